//! `polyverbs install`: installs this command and the C libraries.

use std::env;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::Context as _;

use clap_complete::Shell;

use super::completions;
use crate::installed::Content;
use crate::libraries::Libraries;
use crate::output::say;
use crate::transfer::printable;

/// Install this command, its libraries, man pages and completions
///
/// The installed files need nothing else: `PREFIX/bin/polyverbs` finds the libraries of `polyverbs run` in
/// `PREFIX/lib/polyverbs`, even if the prefix is moved. To undo it, delete the files that it lists.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  polyverbs install --prefix ~/.local
  polyverbs install --prefix /usr/local --dry-run")]
pub(crate) struct Arguments {
    /// The folder to install below, such as ~/.local
    #[arg(long, value_name = "DIR")]
    prefix: PathBuf,
    /// Only list what would be written
    #[arg(long)]
    dry_run: bool,
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let libraries = match arguments.dry_run {
        true => Libraries::find()?,
        false => Libraries::find_or_build()?,
    };
    let command = env::current_exe().context("cannot find this command's own file")?;
    let prefix = &arguments.prefix;
    let mut all = vec![(prefix.join("bin/polyverbs"), Content::File(command))];
    all.extend(libraries.installed_in(&prefix.join("lib/polyverbs")));
    all.extend(man_pages(&prefix.join("share/man/man1"))?);
    for (shell, file) in COMPLETIONS {
        let script = Content::Text(completions::of(shell));
        all.push((prefix.join(file), script));
    }
    for (target, content) in &all {
        if !arguments.dry_run {
            content.install(target)?;
        }
        let target = printable(target.display());
        match content {
            Content::File(from) => say!("{target} (from {})", printable(from.display()))?,
            Content::Link(to) => say!("{target} -> {to}")?,
            Content::Text(_) => say!("{target}")?,
        }
    }
    Ok(())
}

/// The files below the prefix where shells look for completions.
const COMPLETIONS: [(Shell, &str); 3] = [
    (Shell::Bash, "share/bash-completion/completions/polyverbs"),
    (
        Shell::Fish,
        "share/fish/vendor_completions.d/polyverbs.fish",
    ),
    (Shell::Zsh, "share/zsh/site-functions/_polyverbs"),
];

// The man pages: one for the command, and one for each subcommand.
fn man_pages(folder: &Path) -> anyhow::Result<Vec<(PathBuf, Content)>> {
    let mut command = crate::command();
    command.build();
    let mut pages = Vec::new();
    let is_no_help = |it: &&clap::Command| it.get_name() != "help";
    let subcommands = command
        .get_subcommands()
        .filter(is_no_help)
        .flat_map(|it| std::iter::once(it).chain(it.get_subcommands()))
        .filter(is_no_help);
    for page in std::iter::once(&command).chain(subcommands) {
        let page = clap_mangen::Man::new(page.clone());
        let mut text = Vec::new();
        page.render(&mut text)?;
        pages.push((folder.join(page.get_filename()), Content::Text(text)));
    }
    Ok(pages)
}
