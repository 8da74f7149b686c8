//! Writes `docs/features.md`; with `--uncovered`, lists the rows without a test instead.

#![forbid(unsafe_code)]

use std::{error::Error, fs, process::ExitCode};

use project::{Index, page_path};

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let index = Index::of_workspace()?;
    match std::env::args().nth(1).as_deref() {
        None => write(&index),
        Some("--uncovered") => {
            index.uncovered().iter().for_each(|id| println!("{id}"));
            Ok(ExitCode::SUCCESS)
        }
        Some(other) => {
            eprintln!("feature-index: unknown argument {other}; there is only --uncovered");
            Ok(ExitCode::from(2))
        }
    }
}

fn write(index: &Index) -> Result<ExitCode, Box<dyn Error>> {
    fs::write(page_path(), index.page())?;
    let problems = index.problems();
    problems.iter().for_each(|problem| eprintln!("{problem}"));
    Ok(if problems.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}
