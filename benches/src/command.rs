//! The common part of the programs that take options and print a table.

use std::env::Args;
use std::iter::Skip;
use std::process::ExitCode;
use std::str::FromStr;

use crate::Outcome;

/// Reads the options, measures, and reports a failure: with status 2 if the options are wrong. If `options` returns
/// `None`, because help was requested, prints the usage.
pub fn run<O>(
    name: &str,
    usage: &str,
    options: fn(Skip<Args>) -> Result<Option<O>, String>,
    measure: fn(&O) -> Outcome<()>,
) -> ExitCode {
    let options = match options(std::env::args().skip(1)) {
        Ok(Some(options)) => options,
        Ok(None) => {
            print!("{usage}");
            return ExitCode::SUCCESS;
        }
        Err(problem) => {
            eprintln!("{name}: {problem}; see --help");
            return ExitCode::from(2);
        }
    };
    match measure(&options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            eprintln!("{name}: {problem}");
            ExitCode::FAILURE
        }
    }
}

/// Parses the value of an option that counts something.
///
/// # Errors
/// The value is no number, or 0.
pub fn count<T: FromStr + PartialEq + From<u8>>(text: &str) -> Result<T, String> {
    let count = text.parse().ok().filter(|count| *count != T::from(0));
    count.ok_or(format!("{text} is no number above 0"))
}
