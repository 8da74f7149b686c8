//! `polyverbs completions`: completion scripts for shells.

use clap_complete::{Shell, generate};

use crate::output::print;

/// Print a shell's completions of this command
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  source <(polyverbs completions bash)
  polyverbs completions fish | source")]
pub(crate) struct Arguments {
    /// The shell to print completions for
    #[arg(value_enum)]
    shell: Shell,
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    Ok(print(&of(arguments.shell))?)
}

/// Returns the completion script for a shell.
pub(crate) fn of(shell: Shell) -> Vec<u8> {
    let mut script = Vec::new();
    generate(shell, &mut crate::command(), crate::NAME, &mut script);
    script
}
