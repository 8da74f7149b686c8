//! The `polyverbs` command: lists RDMA devices, shows what they support and what an operation becomes on them, copies files
//! over them, and measures them.
//!
//! It shows the providers and extensions that are linked and named. A program that names one more crate than the project's
//! own `polyverbs` has that crate's devices and features in every command:
//!
//! ```no_run
//! # mod vendor_extension {}
//! use vendor_extension as _;
//!
//! fn main() -> std::process::ExitCode {
//!     polyverbs_cli::main()
//! }
//! ```
#![forbid(unsafe_code)]

#[cfg(debug_assertions)]
mod broken;
mod capture_file;
mod commands;
mod installed;
mod interrupt;
mod libraries;
mod output;

// The portable program, as a user of the library would write it: the example and this command share one source.
mod transfer;

use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{CommandFactory as _, Parser, Subcommand};

use commands::{
    capture, check, completions, copy, devices, dissect, fabric, install, matrix, perf, ping, plan,
    profile, put, rds, run, serve, tour,
};
use output::AlreadyReported;

/// The name in usage and errors, whatever the file is called: examples, man pages and completions use the same.
const NAME: &str = "polyverbs";

/// RDMA verbs for InfiniBand, RoCE and iWARP alike, and without any RDMA device.
///
/// Without a command: a short guided tour.
#[derive(Parser)]
#[command(name = NAME, bin_name = NAME, version, max_term_width = 100, after_help = EXAMPLES)]
struct Arguments {
    #[command(subcommand)]
    command: Option<Command>,
}

const EXAMPLES: &str = "\
Examples:
  polyverbs
  polyverbs devices
  polyverbs copy FILE --device ib0 --to COPY
  polyverbs serve --device ib0 --listen 127.0.0.1:4420 --dir IN
  polyverbs put FILE 127.0.0.1:4420 --device ib0
  polyverbs ping 127.0.0.1:4420 --device ib0
  polyverbs rds ping 127.0.0.1 --device ib0
  polyverbs run -- ibv_devinfo
  polyverbs run --as amd-ionic -- ibv_devinfo
Each command has more: polyverbs COMMAND --help";

#[derive(Subcommand)]
enum Command {
    Capture(capture::Arguments),
    Check(check::Arguments),
    Completions(completions::Arguments),
    Copy(copy::Arguments),
    Devices(devices::Arguments),
    Dissect(dissect::Arguments),
    Fabric(fabric::Arguments),
    Install(install::Arguments),
    Matrix(matrix::Arguments),
    Perf(perf::Arguments),
    Ping(ping::Arguments),
    Plan(plan::Arguments),
    Profile(profile::Arguments),
    Put(put::Arguments),
    Rds(rds::Arguments),
    Run(run::Arguments),
    Serve(serve::Arguments),
}

/// Returns the command line's description for `clap`.
pub(crate) fn command() -> clap::Command {
    Arguments::command()
}

/// Runs the command with the arguments of the process, and returns its exit status: all that a `main` has to do.
///
/// * It calls itself `polyverbs`, in usage and errors, and its version is that of this crate.
/// * `polyverbs run` finds its libraries as usual: in the folder of the executable, or in `lib/polyverbs` next to its
///   `bin`. They are separate libraries, so the unmodified programs that it runs have only the devices that those were
///   linked with.
/// * `polyverbs install` installs the running executable, with everything that it is linked with.
///
/// It handles signals from then on, and an interrupted command ends the process.
pub fn main() -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => return end(refuse(&error)),
    };
    #[cfg(debug_assertions)]
    if let Err(error) = broken::from_environment() {
        output::complain(&format!("{error:#}"));
        return ExitCode::FAILURE;
    }
    let result = match arguments.command {
        Some(Command::Run(arguments)) => run::run(&arguments),
        _ => interrupt::watch()
            .and_then(|()| perform(arguments))
            .map(|()| ExitCode::SUCCESS),
    };
    end(result)
}

fn end(result: anyhow::Result<ExitCode>) -> ExitCode {
    match result {
        Ok(code) => code,
        Err(_) if interrupt::is_interrupted() => std::process::exit(interrupt::report()),
        // `polyverbs … | head` is no failure: the reader has seen enough.
        Err(error) if output::is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) if error.is::<AlreadyReported>() => ExitCode::FAILURE,
        Err(error) => {
            output::complain(&format!("{error:#}"));
            ExitCode::FAILURE
        }
    }
}

fn perform(arguments: Arguments) -> anyhow::Result<()> {
    match arguments.command {
        None => tour::run(),
        Some(Command::Capture(arguments)) => {
            let command = std::iter::once(NAME.to_owned()).chain(arguments.command);
            match Arguments::try_parse_from(command) {
                Ok(inner) => capture_file::captured(&arguments.file, || perform(inner)),
                Err(error) => Err(anyhow::anyhow!(said(&error))),
            }
        }
        Some(Command::Check(arguments)) => check::run(&arguments),
        Some(Command::Completions(arguments)) => completions::run(&arguments),
        Some(Command::Copy(arguments)) => copy::run(&arguments),
        Some(Command::Devices(arguments)) => devices::run(&arguments),
        Some(Command::Dissect(arguments)) => dissect::run(&arguments),
        Some(Command::Fabric(arguments)) => fabric::run(&arguments),
        Some(Command::Install(arguments)) => install::run(&arguments),
        Some(Command::Matrix(arguments)) => matrix::run(&arguments),
        Some(Command::Perf(arguments)) => perf::run(&arguments),
        Some(Command::Ping(arguments)) => ping::run(&arguments),
        Some(Command::Plan(arguments)) => plan::run(&arguments),
        Some(Command::Profile(arguments)) => profile::run(&arguments),
        Some(Command::Put(arguments)) => put::run(&arguments),
        Some(Command::Rds(arguments)) => rds::run(&arguments),
        Some(Command::Run(_)) => anyhow::bail!("run has --pcap itself"),
        Some(Command::Serve(arguments)) => serve::run(&arguments),
    }
}

// Help is printed as clap formats it; an invalid command line gets one line, like every other error.
fn refuse(error: &clap::Error) -> anyhow::Result<ExitCode> {
    if matches!(
        error.kind(),
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion
    ) {
        output::written(error.print())?;
        return Ok(ExitCode::SUCCESS);
    }
    output::complain(&said(error));
    Ok(ExitCode::from(2))
}

// The error of a command line, in one line.
fn said(error: &clap::Error) -> String {
    let text = error.to_string();
    let said: Vec<_> = text
        .lines()
        .map(str::trim)
        .take_while(|line| !line.starts_with("Usage:") && !line.starts_with("For more information"))
        .filter(|line| !line.is_empty())
        .collect();
    let said = said.join(" ");
    format!("{}; try --help", said.trim_start_matches("error: "))
}
