//! `polyverbs check`: whether a program would run on real devices that are not there.

use std::fs;
use std::io::Write as _;
use std::path::PathBuf;

use anyhow::Context as _;
use polyverbs_configuration::ChosenProfile;
use polyverbs_profiles::{Answer, Profile, Wanted};
use serde_json::json;

use crate::output::{AlreadyReported, BOLD, DIM, print_json, say, width, wrapped};

/// Answer for each class of real devices whether a program would run there
///
/// The file says what the program requires. No device is opened. The command fails if a class of devices is known not to suffice;
/// unknown facts are listed.
#[derive(clap::Args)]
#[command(after_help = "\
REQUIREMENTS is TOML:
  transport = \"infiniband\"          # or iwarp; may be left out
  needs = [\"RC\", \"SRQ\"]            # names of `polyverbs matrix`
  [limits]
  max_send_sge = 4

Examples:
  polyverbs check needs.toml
  polyverbs check needs.toml --as amd-ionic,aws-efa
  polyverbs check needs.toml --json | jq '.[] | select(.runs) | .profile'")]
pub(crate) struct Arguments {
    /// What the program requires
    #[arg(value_name = "REQUIREMENTS")]
    file: PathBuf,
    /// Only these profiles; all unless set
    #[arg(long = "as", value_name = "PROFILE", value_delimiter = ',')]
    profiles: Vec<ChosenProfile>,
    /// Print a JSON array
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let file = &arguments.file;
    let text =
        fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
    let wanted = Wanted::parse(&file.display().to_string(), &text)?;
    let profiles = match &*arguments.profiles {
        [] => Profile::shipped()?,
        chosen => chosen.iter().map(|it| it.profile().clone()).collect(),
    };
    let answers = profiles
        .iter()
        .map(|profile| Ok((profile, wanted.check(profile)?)));
    let answers = answers.collect::<anyhow::Result<Vec<_>>>()?;
    match arguments.json {
        true => print_json(
            &answers
                .iter()
                .map(|(profile, answer)| to_json(profile, answer))
                .collect::<Vec<_>>(),
        )?,
        false => {
            for (profile, answer) in &answers {
                tell(profile, answer)?;
            }
        }
    }
    match answers.iter().all(|(_, answer)| answer.shortfall.is_none()) {
        true => Ok(()),
        false => Err(AlreadyReported.into()),
    }
}

/// What the devices lack, without their name.
fn missing(answer: &Answer) -> Vec<String> {
    let Some(shortfall) = &answer.shortfall else {
        return Vec::new();
    };
    let text = shortfall.to_string();
    let parts = text
        .trim_start_matches(&shortfall.device)
        .trim_start_matches(": ");
    parts.split("; ").map(str::to_owned).collect()
}

fn tell(profile: &Profile, answer: &Answer) -> anyhow::Result<()> {
    let mut said = match answer.runs() {
        Some(true) => "runs".to_owned(),
        Some(false) => missing(answer).join("; "),
        None => "may run".to_owned(),
    };
    if !answer.unknown.is_empty() {
        said = format!("{said} (not known: {})", answer.unknown.join(", "));
    }
    let said = wrapped(said.split(' '), " ", 2, width());
    match answer.shortfall {
        None => say!("{BOLD}{}{BOLD:#}: {said}", profile.name)?,
        Some(_) => say!("{BOLD}{}{BOLD:#}: {DIM}{said}{DIM:#}", profile.name)?,
    }
    Ok(())
}

fn to_json(profile: &Profile, answer: &Answer) -> serde_json::Value {
    json!({
        "profile": profile.name,
        "runs": answer.runs(),
        "missing": missing(answer),
        "unknown": answer.unknown,
    })
}
