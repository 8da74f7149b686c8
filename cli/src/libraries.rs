//! The C libraries: where they are, and putting them where they are found.

use std::env;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use anyhow::Context as _;

/// What programs ask for; both are one file.
pub(crate) const VERBS: &str = "libibverbs.so.1";
pub(crate) const CM: &str = "librdmacm.so.1";
/// What shows them devices below `/sys` and `/dev`.
pub(crate) const REDIRECT: &str = "libpolyverbs_redirect.so";

// What cargo calls the first two.
const BUILT: &str = "libpolyverbs_compat.so";

/// The libraries, where they were found.
pub(crate) struct Libraries {
    /// The file that is both.
    pub(crate) verbs: PathBuf,
    /// The folder that has them under the names that programs ask for.
    pub(crate) folder: Option<PathBuf>,
    pub(crate) redirect: PathBuf,
}

impl Libraries {
    /// Those of this command: beside it where cargo has built both, or where they are installed.
    pub(crate) fn find() -> anyhow::Result<Self> {
        let command = env::current_exe().context("cannot find this command's own file")?;
        let beside = command.parent().unwrap_or(Path::new("/"));
        let installed = beside.with_file_name("lib").join("polyverbs");
        let (verbs, folder, redirect) = if installed.join(VERBS).exists() {
            (
                installed.join(VERBS),
                Some(installed.clone()),
                installed.join(REDIRECT),
            )
        } else {
            (beside.join(BUILT), None, beside.join(REDIRECT))
        };
        for file in [&verbs, &redirect] {
            anyhow::ensure!(
                file.exists(),
                "there is no {}: build the libraries with `cargo build --release`, or install them with `polyverbs install`",
                file.display(),
            );
        }
        Ok(Self {
            verbs,
            folder,
            redirect,
        })
    }

    /// What the dynamic linker is told: a folder that has both under their names, and the file to load first. Theirs, or
    /// links to them within `within`.
    pub(crate) fn named(&self, within: &Path) -> anyhow::Result<(PathBuf, PathBuf)> {
        let own = self.folder.as_ref().filter(|folder| is_one(folder));
        if let Some(folder) = own {
            return Ok((folder.clone(), self.redirect.clone()));
        }
        let folder = within.join("lib");
        anyhow::ensure!(
            is_one(&folder),
            "{} is more than one name to the dynamic linker: set XDG_RUNTIME_DIR or TMPDIR to a folder without spaces, colons and semicolons",
            folder.display(),
        );
        let link = |to: &Path, name| {
            let linked = symlink(to, folder.join(name));
            linked.with_context(|| format!("cannot make {}", folder.display()))
        };
        fs::create_dir(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
        link(&self.verbs, VERBS)?;
        link(Path::new(VERBS), CM)?;
        if is_one(&self.redirect) {
            return Ok((folder, self.redirect.clone()));
        }
        link(&self.redirect, REDIRECT)?;
        let redirect = folder.join(REDIRECT);
        Ok((folder, redirect))
    }
}

// The dynamic linker's lists are separated by these.
fn is_one(path: &Path) -> bool {
    let separates = |octet: &u8| matches!(octet, b' ' | b':' | b';');
    !path.as_os_str().as_bytes().iter().any(separates)
}
