//! `polyverbs install`: this command and the C libraries, to stay.

use std::env;
use std::ffi::OsStr;
use std::fs;
use std::io::Write as _;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use anyhow::Context as _;

use clap_complete::Shell;

use super::completions;
use crate::libraries::{CM, Libraries, REDIRECT, VERBS};
use crate::output::say;

/// Install this command, its libraries, man pages and completions
///
/// Nothing else is needed where they are: `PREFIX/bin/polyverbs` finds the libraries of `polyverbs run` in
/// `PREFIX/lib/polyverbs`, wherever the prefix is moved to. To undo it, delete the files that it lists.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  polyverbs install --prefix ~/.local
  polyverbs install --prefix /usr/local --dry-run")]
pub(crate) struct Arguments {
    /// Where to
    #[arg(long, value_name = "DIR")]
    prefix: PathBuf,
    /// Only tell what would be written
    #[arg(long)]
    dry_run: bool,
}

enum Content {
    File(PathBuf),
    Link(&'static str),
    /// Made by this command.
    Text(Vec<u8>),
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let libraries = match arguments.dry_run {
        true => Libraries::find()?,
        false => Libraries::find_or_build()?,
    };
    let command = env::current_exe().context("cannot find this command's own file")?;
    let prefix = &arguments.prefix;
    let mut all = vec![(prefix.join("bin/polyverbs"), Content::File(command))];
    all.extend(of_libraries(&prefix.join("lib/polyverbs"), libraries));
    all.extend(man_pages(&prefix.join("share/man/man1"))?);
    for (shell, file) in COMPLETIONS {
        let script = Content::Text(completions::of(shell));
        all.push((prefix.join(file), script));
    }
    for (target, content) in &all {
        if !arguments.dry_run {
            put(target, content).with_context(|| format!("cannot write {}", target.display()))?;
        }
        match content {
            Content::File(from) => say!("{} (from {})", target.display(), from.display())?,
            Content::Link(to) => say!("{} -> {to}", target.display())?,
            Content::Text(_) => say!("{}", target.display())?,
        }
    }
    Ok(())
}

/// Where shells look for completions.
const COMPLETIONS: [(Shell, &str); 3] = [
    (Shell::Bash, "share/bash-completion/completions/polyverbs"),
    (
        Shell::Fish,
        "share/fish/vendor_completions.d/polyverbs.fish",
    ),
    (Shell::Zsh, "share/zsh/site-functions/_polyverbs"),
];

fn of_libraries(lib: &Path, libraries: Libraries) -> [(PathBuf, Content); 3] {
    [
        (lib.join(VERBS), Content::File(libraries.verbs)),
        (lib.join(CM), Content::Link(VERBS)),
        (lib.join(REDIRECT), Content::File(libraries.redirect)),
    ]
}

/// Puts the libraries alone where the command finds them that is in the folder beside.
pub(crate) fn put_libraries(lib: &Path, libraries: Libraries) -> anyhow::Result<()> {
    for (target, content) in of_libraries(lib, libraries) {
        put(&target, &content).with_context(|| format!("cannot write {}", target.display()))?;
    }
    Ok(())
}

// One for the command, and one for each of its commands.
fn man_pages(folder: &Path) -> anyhow::Result<Vec<(PathBuf, Content)>> {
    let mut command = crate::command();
    command.build();
    let mut pages = Vec::new();
    let subcommands = command
        .get_subcommands()
        .filter(|it| it.get_name() != "help");
    for page in std::iter::once(&command).chain(subcommands) {
        let page = clap_mangen::Man::new(page.clone());
        let mut text = Vec::new();
        page.render(&mut text)?;
        pages.push((folder.join(page.get_filename()), Content::Text(text)));
    }
    Ok(pages)
}

// Under another name first: a program that uses what was there keeps it.
fn put(target: &Path, content: &Content) -> anyhow::Result<()> {
    let folder = target.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(folder)?;
    let mut name = target.file_name().unwrap_or(OsStr::new("new")).to_owned();
    name.push(format!(".{}", std::process::id()));
    let new = folder.join(name);
    let written = match content {
        Content::File(from) => fs::copy(from, &new).map(drop),
        Content::Link(to) => symlink(to, &new),
        Content::Text(text) => fs::write(&new, text),
    };
    let put = written.and_then(|()| fs::rename(&new, target));
    if put.is_err() {
        // The first error is the one to tell.
        let _ = fs::remove_file(&new);
    }
    Ok(put?)
}
