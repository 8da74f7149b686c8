//! `polyverbs matrix`: what each device can do, side by side.

use std::io::Write as _;
use std::path::PathBuf;

use anyhow::Context as _;
use capability_matrix::Matrix;
use clap::ValueEnum;

/// Show what each device can do, side by side
///
/// What is shown is what the devices claim.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  polyverbs matrix
  polyverbs matrix --device ib0
  polyverbs matrix --format markdown
  polyverbs matrix --format html --output matrix.html
  polyverbs matrix --format json | jq '.rows[] | select(.section == \"features\") | .name'")]
pub(crate) struct Arguments {
    /// Only this device; may be given several times
    #[arg(long, value_name = "NAME")]
    device: Vec<String>,
    /// How it is shown
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
    /// Write it to a file instead of standard output
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
}

#[derive(Clone, Copy, ValueEnum)]
enum Format {
    /// Tables for a terminal
    Text,
    /// Tables for a page of documentation
    Markdown,
    /// For programs
    Json,
    /// One page that needs no other file and no script
    Html,
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let devices = if arguments.device.is_empty() {
        polyverbs::devices()?
    } else {
        let named = arguments
            .device
            .iter()
            .map(|name| crate::output::device(name));
        named.collect::<anyhow::Result<_>>()?
    };
    let matrix = Matrix::of(&devices);
    let text = match arguments.format {
        Format::Text => matrix.to_text(),
        Format::Markdown => matrix.to_markdown(),
        Format::Json => serde_json::to_string_pretty(&matrix.to_json())? + "\n",
        Format::Html => matrix.to_html(),
    };
    match &arguments.output {
        None => std::io::stdout().write_all(text.as_bytes())?,
        Some(path) => std::fs::write(path, text)
            .with_context(|| format!("cannot write {}", path.display()))?,
    }
    Ok(())
}
