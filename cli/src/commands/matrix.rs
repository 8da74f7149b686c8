//! `polyverbs matrix`: shows what each device supports, side by side.

use std::ffi::OsStr;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use capability_matrix::Matrix;
use clap::ValueEnum;
use polyverbs::Device;

use crate::interrupt::{self, Ending};
use crate::output::{AlreadyReported, print, progress, width};
use crate::transfer::files::Target;

/// Show what each device can do, side by side
///
/// The table shows the features that devices claim. With --verify the conformance probes of each feature are run on each
/// device, to check the claims. A claim that does not hold, or a feature that works and is not claimed, is a mismatch, and
/// the command fails.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  polyverbs matrix
  polyverbs matrix --device ib0
  polyverbs matrix --verify --provider libibverbs
  polyverbs matrix --verify
  polyverbs matrix --verify --output matrix.html --output matrix.json
  polyverbs matrix --format markdown
  polyverbs matrix --verify --json | jq '.rows[] | .feature'")]
pub(crate) struct Arguments {
    /// Only this device; may be given several times
    #[arg(long, value_name = "NAME")]
    device: Vec<String>,
    /// Only devices of this provider, `libibverbs` for instance; may be given several times
    #[arg(long, value_name = "NAME")]
    provider: Vec<String>,
    /// Run the conformance probes on each device: about a second for each
    #[arg(long)]
    verify: bool,
    /// How the tables are printed; by default as text, and to a file as its ending says: .html, .json, .md
    #[arg(long, value_enum)]
    format: Option<Format>,
    /// The same as --format json
    #[arg(long, conflicts_with = "format")]
    json: bool,
    /// Write the tables to a file instead of standard output; may be given several times
    #[arg(long, short, value_name = "FILE")]
    output: Vec<PathBuf>,
}

#[derive(Clone, Copy, ValueEnum)]
enum Format {
    /// Tables for a terminal
    Text,
    /// Tables for a page of documentation
    Markdown,
    /// JSON, for programs
    Json,
    /// One page that needs no other file and no script
    Html,
}

impl Format {
    fn by_ending(path: &Path) -> Self {
        match path.extension().and_then(OsStr::to_str) {
            Some("html" | "htm") => Self::Html,
            Some("json") => Self::Json,
            Some("md") => Self::Markdown,
            _ => Self::Text,
        }
    }

    fn of(self, matrix: &Matrix, colours: bool) -> anyhow::Result<String> {
        Ok(match self {
            Self::Text => matrix.to_text(width(), colours),
            Self::Markdown => matrix.to_markdown(),
            Self::Json => serde_json::to_string_pretty(&matrix.to_json())? + "\n",
            Self::Html => matrix.to_html(),
        })
    }
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let devices = chosen(arguments)?;
    let matrix = match arguments.verify {
        true => verified(&devices)?,
        false => Matrix::of(&devices)?,
    };
    let given = match arguments.json {
        true => Some(Format::Json),
        false => arguments.format,
    };
    if arguments.output.is_empty() {
        let text = given.unwrap_or(Format::Text).of(&matrix, use_colours())?;
        print(text.as_bytes())?;
    }
    for path in &arguments.output {
        let text = given
            .unwrap_or_else(|| Format::by_ending(path))
            .of(&matrix, false)?;
        write(path, &text)?;
    }
    match matrix.mismatches().next() {
        None => Ok(()),
        Some(_) => Err(AlreadyReported.into()),
    }
}

fn chosen(arguments: &Arguments) -> anyhow::Result<Vec<Device>> {
    let devices = if arguments.device.is_empty() {
        polyverbs::devices()?
    } else {
        let named = arguments.device.iter();
        let named = named.map(|name| crate::output::device(name));
        named.collect::<anyhow::Result<_>>()?
    };
    let wanted = &arguments.provider;
    let registry = polyverbs::registry()?;
    if let Some(unknown) = wanted
        .iter()
        .find(|name| !registry.providers().any(|known| known == *name))
    {
        let known: Vec<_> = registry.providers().collect();
        anyhow::bail!(
            "no provider is named {unknown}; there are {}",
            known.join(", ")
        );
    }
    let is_wanted =
        |device: &Device| wanted.is_empty() || wanted.iter().any(|name| name == device.provider());
    let chosen: Vec<_> = devices.into_iter().filter(is_wanted).collect();
    if chosen.is_empty() {
        anyhow::bail!(none_of(wanted));
    }
    Ok(chosen)
}

/// Returns the error message if no device is shown: these providers have none, or there is no device at all.
fn none_of(providers: &[String]) -> String {
    let none = match providers {
        [] => "there is no device".to_owned(),
        _ => format!("there is no such device of {}", providers.join(", ")),
    };
    format!("{none}; `polyverbs devices --verbose` says what there is, and why not more")
}

// A file is replaced once all of it is written.
fn write(path: &Path, text: &str) -> anyhow::Result<()> {
    let target = Target::open(path).map_err(anyhow::Error::from_boxed)?;
    let written = target.file().write_all(text.as_bytes());
    written.with_context(|| format!("cannot write {}", path.display()))?;
    target.keep().map_err(anyhow::Error::from_boxed)
}

fn use_colours() -> bool {
    anstream::AutoStream::choice(&std::io::stdout()) != anstream::ColorChoice::Never
}

fn verified(devices: &[Device]) -> anyhow::Result<Matrix> {
    let bar = progress(0, "{bar:32.cyan/dim} {pos}/{len} {msg}");
    let shown = bar.clone();
    interrupt::says(Ending::AtOnce, move || {
        let (done, all) = (shown.position(), shown.length().unwrap_or_default());
        shown.finish_and_clear();
        format!("{done} of {all} probes were run, and nothing is written")
    });
    let matrix = Matrix::verified(devices, &mut |step| {
        bar.set_length(step.total as u64);
        bar.set_position(step.done as u64);
        bar.set_message(format!("{} {}", step.device, step.probe.id()));
    });
    bar.finish_and_clear();
    Ok(matrix?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_provider_filter_names_the_providers() {
        let asked = ["libibverbs", "acme"].map(str::to_owned);
        assert!(none_of(&asked).starts_with("there is no such device of libibverbs, acme; "));
        assert!(none_of(&[]).starts_with("there is no device; "));
    }
}
