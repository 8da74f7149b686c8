//! The `polyverbs` command, with the extension.

use acme_checksum as _;

fn main() -> std::process::ExitCode {
    polyverbs_cli::main()
}
