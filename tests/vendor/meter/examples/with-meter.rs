//! The `polyverbs` command, with the meter.

use acme_meter as _;

fn main() -> std::process::ExitCode {
    polyverbs_cli::main()
}
