//! `polyverbs profile`: profiles of classes of real devices.

use std::fs;
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use capability_matrix::{DeviceReport, Matrix};
use clap::Subcommand;
use polyverbs_configuration::ChosenProfile;
use polyverbs_profiles::{Atlas, Imported, Profile, ProfileError};
use serde_json::{Value, json};

use crate::output::{BOLD, DIM, device, print, print_json, say, width, wrapped};

/// Show, compare and make profiles of real devices
///
/// A profile says what a class of devices reports, can do, cannot do and gets wrong, each fact with its source. Programs run
/// on devices that take one on with `polyverbs run --as`.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  polyverbs profile list
  polyverbs profile show amd-ionic
  polyverbs profile diff mellanox-cx5 broadcom-thor
  polyverbs profile record mlx5_0 > my-card.toml
  polyverbs profile import devinfo.txt --name my-card > my-card.toml
  polyverbs run --as ./my-card.toml -- PROGRAM")]
pub(crate) struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// List the profiles that are shipped
    List {
        /// Print a JSON array
        #[arg(long)]
        json: bool,
    },
    /// Show every fact of a profile with its source and how sure it is
    Show {
        /// Name of a shipped profile, or a TOML file
        profile: ChosenProfile,
        /// Print a JSON object
        #[arg(long, conflicts_with = "toml")]
        json: bool,
        /// Print the profile as a file to begin with
        #[arg(long)]
        toml: bool,
    },
    /// Show what two profiles say differently
    Diff {
        /// Name of a shipped profile, or a TOML file
        first: ChosenProfile,
        /// Another one
        second: ChosenProfile,
        /// Print a JSON array
        #[arg(long)]
        json: bool,
    },
    /// Write the atlas: one table of all profiles, and a page for each
    Atlas {
        /// Folder for the files; those that are there are replaced
        #[arg(long, short, value_name = "FOLDER")]
        output: PathBuf,
    },
    /// Make a profile of a device that is here: runs the conformance probes, and prints TOML
    Record {
        /// Name of the device
        device: String,
        /// Name of the profile; that of the device unless set
        #[arg(long, value_name = "NAME")]
        name: Option<String>,
        /// Print the device's claims without running the probes
        #[arg(long)]
        unverified: bool,
    },
    /// Make a profile of a posted text: `ibv_devinfo -v`, or the JSON of `polyverbs matrix`; prints TOML
    Import {
        /// File with the text; - for standard input
        file: PathBuf,
        /// Name of the profile
        #[arg(long, value_name = "NAME", default_value = "imported")]
        name: String,
        /// Device of the matrix, if it has several
        #[arg(long, value_name = "DEVICE")]
        device: Option<String>,
    },
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    match &arguments.command {
        Command::List { json } => list(*json),
        Command::Show {
            profile,
            json,
            toml,
        } => show(profile.profile(), *json, *toml),
        Command::Diff {
            first,
            second,
            json,
        } => diff(first.profile(), second.profile(), *json),
        Command::Atlas { output } => atlas(output),
        Command::Record {
            device,
            name,
            unverified,
        } => record(device, name.as_deref(), *unverified),
        Command::Import { file, name, device } => import(file, name, device.as_deref()),
    }
}

fn list(json: bool) -> anyhow::Result<()> {
    let profiles = Profile::shipped()?;
    if json {
        let about = |it: &Profile| {
            json!({
                "name": it.name,
                "class": it.class,
                "summary": it.summary,
                "transport": it.transport_name(),
                "quirks": it.quirks.iter().map(|quirk| quirk.name()).collect::<Vec<_>>(),
            })
        };
        return print_json(&profiles.iter().map(about).collect::<Vec<_>>());
    }
    let longest = profiles.iter().map(|it| it.name.len()).max();
    let longest = longest.unwrap_or_default();
    for profile in &profiles {
        let summary = format!("{} ({})", profile.summary, profile.transport_name());
        let indent = longest + 2;
        let summary = wrapped(summary.split(' '), " ", indent, width());
        say!("{BOLD}{:longest$}{BOLD:#}  {summary}", profile.name)?;
    }
    Ok(())
}

fn show(profile: &Profile, json: bool, toml: bool) -> anyhow::Result<()> {
    if json {
        return print_json(&profile.to_json());
    }
    if toml {
        return Ok(print(profile.to_toml().as_bytes())?);
    }
    for (number, line) in profile.lines().iter().enumerate() {
        let indent = line.len() - line.trim_start().len();
        let text = wrapped(line.trim_start().split(' '), " ", indent + 2, width());
        match number {
            0 => say!("{BOLD}{text}{BOLD:#}")?,
            _ => say!("{:indent$}{text}", "")?,
        }
    }
    let unmet = profile.unmet()?;
    if !unmet.is_empty() {
        let unmet: Vec<_> = unmet.iter().map(ToString::to_string).collect();
        let unmet = format!("our device has {}", unmet.join(", "));
        let unmet = wrapped(unmet.split(' '), " ", 2, width());
        say!("\n{DIM}{unmet}{DIM:#}")?;
    }
    Ok(())
}

fn diff(first: &Profile, second: &Profile, json: bool) -> anyhow::Result<()> {
    let differences = first.differences(second);
    if json {
        let differences = differences
            .iter()
            .map(|(what, mine, other)| json!({ "what": what, "first": mine, "second": other }));
        return print_json(&differences.collect::<Vec<_>>());
    }
    if differences.is_empty() {
        say!("{} and {} say the same", first.name, second.name)?;
    }
    for (what, mine, other) in differences {
        say!("{BOLD}{what}{BOLD:#}: {mine} | {other}")?;
    }
    Ok(())
}

fn atlas(folder: &Path) -> anyhow::Result<()> {
    let profiles = Profile::shipped()?;
    for (name, text) in Atlas::of(&profiles).files()? {
        let file = folder.join(name);
        fs::write(&file, text).with_context(|| format!("cannot write {}", file.display()))?;
    }
    Ok(())
}

fn record(name: &str, profile: Option<&str>, unverified: bool) -> anyhow::Result<()> {
    let devices = [device(name)?];
    let matrix = match unverified {
        true => Matrix::of(&devices)?,
        false => Matrix::verified(&devices, &mut |_| ())?,
    };
    let source = "polyverbs profile record";
    let named = profile.unwrap_or(name).to_lowercase().replace('_', "-");
    let mut recorded = Profile::of_matrix(&named, source, &matrix.to_json(), Some(name))?;
    for fact in &mut recorded.facts {
        fact.port.gids = polyverbs_profiles::gid_layout(&devices[0].attributes());
    }
    let report = DeviceReport::of(&devices[0].attributes());
    let head = format!(
        "# Recorded from a device of the provider {}. It has no addresses, GUIDs or names of machines. Look it over, and\n\
         # send it as one file in one pull request: docs/atlas/README.md says where to.\n",
        report.provider
    );
    print(head.as_bytes())?;
    Ok(print(recorded.to_toml().as_bytes())?)
}

fn import(file: &Path, name: &str, device: Option<&str>) -> anyhow::Result<()> {
    let cannot = || format!("cannot read {}", file.display());
    let text = match file.as_os_str() == "-" {
        true => {
            let mut text = String::new();
            std::io::stdin()
                .read_to_string(&mut text)
                .with_context(cannot)?;
            text
        }
        false => fs::read_to_string(file).with_context(cannot)?,
    };
    let source = file.display().to_string();
    let Imported { profile, rest, .. } = imported(name, &source, &text, device)?;
    print(profile.to_toml().as_bytes())?;
    for line in rest {
        say!("# not understood: {line}")?;
    }
    Ok(())
}

fn imported(
    name: &str,
    source: &str,
    text: &str,
    device: Option<&str>,
) -> Result<Imported, ProfileError> {
    match (device, serde_json::from_str::<Value>(text)) {
        (Some(device), Ok(matrix)) => {
            Profile::of_matrix(name, source, &matrix, Some(device)).map(Imported::of)
        }
        _ => Profile::import(name, source, text),
    }
}
