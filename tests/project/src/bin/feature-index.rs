//! Writes `docs/features.md` and the pages in `docs/features`; with `--uncovered`, lists the rows without a test instead.

#![forbid(unsafe_code)]

use std::{error::Error, fs, process::ExitCode};

use project::{Index, index::SECTIONS, workspace_root};

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
    let docs = workspace_root().join("docs");
    // A section whose name has changed leaves no page.
    fs::remove_dir_all(docs.join(SECTIONS))?;
    fs::create_dir(docs.join(SECTIONS))?;
    for (place, page) in index.pages() {
        fs::write(docs.join(place), page)?;
    }
    let problems = index.problems();
    problems.iter().for_each(|problem| eprintln!("{problem}"));
    Ok(if problems.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}
