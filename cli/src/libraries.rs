//! The C libraries: where they are, and putting them where they are found.

use std::env;
use std::fs;
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

    /// A folder that has both under their names: theirs, or one within `within` with links to them.
    pub(crate) fn named(&self, within: &Path) -> anyhow::Result<PathBuf> {
        if let Some(folder) = &self.folder {
            return Ok(folder.clone());
        }
        let folder = within.join("lib");
        let cannot = || format!("cannot make {}", folder.display());
        fs::create_dir(&folder).with_context(cannot)?;
        symlink(&self.verbs, folder.join(VERBS)).with_context(cannot)?;
        symlink(VERBS, folder.join(CM)).with_context(cannot)?;
        Ok(folder)
    }
}
