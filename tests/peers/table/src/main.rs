//! Programs of other projects, unmodified, over our C libraries: each is a row of `rows/*.toml` with the way to install it,
//! the way to run it and the output that it must have. The page [docs/programs.md](../../../docs/programs.md) is made from
//! the results.
#![forbid(unsafe_code)]

mod capture;
mod install;
mod page;
mod process;
mod results;
mod rows;
mod trial;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::Parser;

use install::Tools;
use results::Results;
use rows::{Group, Trial};

/// Runs the programs of the table over our C libraries.
#[derive(Parser)]
#[command(name = "tests/peers/table/run", version, after_help = EXAMPLES)]
struct Arguments {
    /// Run only the rows that have this in their name, their group or their device
    only: Vec<String>,
    /// Run the rows that are marked `full`, too
    #[arg(long)]
    full: bool,
    /// Run each row N times; every run has to succeed
    #[arg(long, value_name = "N", default_value_t = 1)]
    runs: u32,
    /// List the rows that would be run, and run nothing
    #[arg(long)]
    list: bool,
    /// Write the page from the existing results
    #[arg(long, value_name = "FILE")]
    page: Option<PathBuf>,
    /// The folder with the rows
    #[arg(long, value_name = "DIR", default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/table/rows"))]
    rows: PathBuf,
    /// Where tools, logs and results are kept
    #[arg(long, value_name = "DIR", default_value = "/var/tmp/verbs-peers")]
    keep: PathBuf,
    /// The `polyverbs` command
    #[arg(long, value_name = "FILE", default_value = "target/dist/polyverbs")]
    polyverbs: PathBuf,
}

const EXAMPLES: &str = "\
Examples:
  tests/peers/table/run                       the rows that CI runs
  tests/peers/table/run qperf                 those with qperf in their name
  tests/peers/table/run --full --runs 3       all of them, three times each
  tests/peers/table/run --page docs/programs.md --list";

fn main() -> anyhow::Result<ExitCode> {
    let arguments = Arguments::parse();
    let groups = rows::read(&arguments.rows)?;
    let mut results = Results::open(&arguments.keep.join("out/table"))?;
    let trials = chosen(&groups, &arguments);
    anyhow::ensure!(
        !trials.is_empty(),
        "no row has all of these words in its name"
    );
    let mut failed = 0;
    if arguments.list {
        for trial in &trials {
            println!("{}", trial.name());
        }
    } else {
        failed = perform(&trials, &arguments, &mut results)?;
    }
    if let Some(file) = &arguments.page {
        let text = page::text(&groups, &results);
        std::fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))?;
    }
    Ok(ExitCode::from(u8::from(failed > 0)))
}

fn chosen<'a>(groups: &'a [Group], arguments: &Arguments) -> Vec<Trial<'a>> {
    groups
        .iter()
        .flat_map(Group::trials)
        .filter(|trial| arguments.full || !trial.row.full || !arguments.only.is_empty())
        .filter(|trial| arguments.only.iter().all(|word| trial.is_named(word)))
        .collect()
}

/// Runs all trials; returns how many failed.
fn perform(
    trials: &[Trial<'_>],
    arguments: &Arguments,
    results: &mut Results,
) -> anyhow::Result<usize> {
    let polyverbs = arguments
        .polyverbs
        .canonicalize()
        .with_context(|| format!("{} is not built", arguments.polyverbs.display()))?;
    let tools = Tools::install(trials, &arguments.keep.join("table"))?;
    let (mut passed, mut failed) = (0, 0);
    println!("| {:64} | {:7} | {:>5} |", "program", "result", "s");
    println!("| {} | ------- | ----- |", "-".repeat(64));
    for trial in trials {
        let mut outcome = results::Outcome::default();
        for _ in 0..arguments.runs {
            let patience = trial::PATIENCE;
            outcome = trial::run(trial, &polyverbs, &tools, results.folder(), patience)?;
            if outcome.failure.is_some() {
                break;
            }
        }
        println!(
            "| {:64} | {:7} | {:5.1} |",
            trial.name(),
            if outcome.failure.is_some() {
                "FAILED"
            } else {
                "ok"
            },
            outcome.seconds
        );
        match &outcome.failure {
            Some(reason) => {
                eprintln!("{}: {reason}", trial.name());
                failed += 1;
            }
            None => passed += 1,
        }
        results.keep(trial, outcome)?;
    }
    println!("{passed} passed, {failed} failed");
    Ok(failed)
}
