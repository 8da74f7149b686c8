//! `polyverbs install`: this command and the C libraries, to stay.

use std::env;
use std::ffi::OsStr;
use std::fs;
use std::io::Write as _;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use anyhow::Context as _;

use crate::libraries::{CM, Libraries, REDIRECT, VERBS};
use crate::output::say;

/// Install this command and the libraries of `polyverbs run`
///
/// Nothing else is needed where they are: `PREFIX/bin/polyverbs` finds its libraries in `PREFIX/lib/polyverbs`, wherever the
/// prefix is moved to. To undo it, delete both.
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
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let libraries = Libraries::find()?;
    let command = env::current_exe().context("cannot find this command's own file")?;
    let (bin, lib) = (
        arguments.prefix.join("bin"),
        arguments.prefix.join("lib/polyverbs"),
    );
    let all = [
        (bin.join("polyverbs"), Content::File(command)),
        (lib.join(VERBS), Content::File(libraries.verbs)),
        (lib.join(CM), Content::Link(VERBS)),
        (lib.join(REDIRECT), Content::File(libraries.redirect)),
    ];
    for (target, content) in &all {
        if !arguments.dry_run {
            put(target, content).with_context(|| format!("cannot write {}", target.display()))?;
        }
        match content {
            Content::File(from) => say!("{} (from {})", target.display(), from.display())?,
            Content::Link(to) => say!("{} -> {to}", target.display())?,
        }
    }
    Ok(())
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
    };
    let put = written.and_then(|()| fs::rename(&new, target));
    if put.is_err() {
        // The first error is the one to tell.
        let _ = fs::remove_file(&new);
    }
    Ok(put?)
}
