//! Runs a program for each of several profiles, one after the other.

use std::env;
use std::ffi::OsString;
use std::io::Write as _;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Command, ExitCode, ExitStatus};

use anyhow::Context as _;
use polyverbs_configuration::ChosenProfile;

use crate::output::say;

/// Runs this command once for each profile, and prints the exit status of each run. Succeeds if every run has.
pub(super) fn run(profiles: &[ChosenProfile]) -> anyhow::Result<ExitCode> {
    let command = env::current_exe().context("cannot find this command")?;
    let given: Vec<_> = env::args_os().skip(1).collect();
    let mut endings = Vec::new();
    for profile in profiles {
        say!("== as {profile}")?;
        let arguments = with_profile(&given, profile);
        let status = Command::new(&command).args(arguments).status();
        let status = status.with_context(|| format!("cannot run {}", command.display()))?;
        endings.push((profile, status));
    }
    let width = profiles.iter().map(|it| it.to_string().len()).max();
    let width = width.unwrap_or_default();
    say!("==")?;
    for (profile, status) in &endings {
        say!("{:width$}  {}", profile.to_string(), ending(*status))?;
    }
    Ok(match endings.iter().all(|(_, status)| status.success()) {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}

/// The arguments with one profile in place of all. The first `--as` is this command's: the program comes after it.
fn with_profile(given: &[OsString], profile: &ChosenProfile) -> Vec<OsString> {
    let mut arguments = given.to_vec();
    for place in 0..arguments.len() {
        let text = arguments[place].to_string_lossy();
        if text == "--as" && place + 1 < arguments.len() {
            arguments[place + 1] = profile.to_string().into();
            break;
        }
        if text.starts_with("--as=") {
            arguments[place] = format!("--as={profile}").into();
            break;
        }
    }
    arguments
}

fn ending(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(0), _) => "ran".to_owned(),
        (Some(code), _) => format!("exit status {code}"),
        (None, Some(signal)) => format!("killed by signal {signal}"),
        (None, None) => "ended".to_owned(),
    }
}
