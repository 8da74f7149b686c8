//! `polyverbs capture`: runs another command and captures its packets to a file.

use std::path::PathBuf;

/// Write the packets of another command to a file
///
/// Runs the command, and writes the packets that its device sends and receives: an emulated device at an address, as for
/// `put`, `serve`, `ping` and `perf`. Wireshark reads the file, and so does `polyverbs dissect`.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  polyverbs capture PACKETS put FILE 127.0.0.1:4420 --device ib0
  polyverbs capture PACKETS ping 127.0.0.1 --device ib0 --count 3")]
pub(crate) struct Arguments {
    /// The file; its content is replaced as soon as the command has its device
    pub(crate) file: PathBuf,
    /// The command to run, with its arguments
    #[arg(
        value_name = "COMMAND",
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true
    )]
    pub(crate) command: Vec<String>,
}
