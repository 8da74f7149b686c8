//! The `polyverbs` command, without the extension.

fn main() -> std::process::ExitCode {
    polyverbs_cli::main()
}
