//! The command with the default devices and extensions.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    polyverbs_cli::main()
}
