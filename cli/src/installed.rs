//! Files that this command installs.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use anyhow::Context as _;

/// The content of a file that this command installs.
pub(crate) enum Content {
    /// A copy of a file.
    File(PathBuf),
    /// A symbolic link to a file in the same folder.
    Link(&'static str),
    /// Text that this command generates.
    Text(Vec<u8>),
}

impl Content {
    /// Installs the content as `target`, also in place of another file.
    ///
    /// The file is written under another name and synced to the disk before it is renamed: a program that uses the old file
    /// keeps it, and a crash leaves either the old or the new file.
    pub(crate) fn install(&self, target: &Path) -> anyhow::Result<()> {
        let installed = self.put(target);
        installed.with_context(|| format!("cannot write {}", target.display()))
    }

    fn put(&self, target: &Path) -> io::Result<()> {
        let folder = target.parent().unwrap_or(Path::new("."));
        fs::create_dir_all(folder)?;
        let mut name = target.file_name().unwrap_or(OsStr::new("new")).to_owned();
        name.push(format!(".{}", std::process::id()));
        let new = folder.join(name);
        let written = match self {
            Self::File(from) => fs::copy(from, &new).and_then(|_| sync(&new)),
            Self::Link(to) => symlink(to, &new),
            Self::Text(text) => fs::write(&new, text).and_then(|()| sync(&new)),
        };
        let put = written.and_then(|()| fs::rename(&new, target));
        if put.is_err() {
            // Reports the first error.
            let _ = fs::remove_file(&new);
        }
        put?;
        sync(folder)
    }
}

fn sync(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}
