//! Prints the size of the checkout in a folder, or of the one that this program was built in; with `--json`, as JSON.

#![forbid(unsafe_code)]

use std::{env, error::Error, fs, process::ExitCode};

use project::{Size, workspace_root};

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let (options, folders): (Vec<_>, Vec<_>) =
        env::args().skip(1).partition(|word| word.starts_with('-'));
    if folders.len() > 1 || options.iter().any(|option| option != "--json") {
        eprintln!("size: the arguments are [--json] [FOLDER]");
        return Ok(ExitCode::from(2));
    }
    let root = folders.first().map_or_else(workspace_root, Into::into);
    let size = Size::of(&fs::canonicalize(root)?);
    match options.is_empty() {
        true => println!("{size}"),
        false => println!("{}", serde_json::to_string_pretty(&size)?),
    }
    Ok(ExitCode::SUCCESS)
}
