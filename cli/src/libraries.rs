//! The C libraries: where they are, and putting them where they are found.

use std::env;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{MetadataExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::Context as _;

use crate::commands::install;
use crate::output::complain;

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
                "there is no {}: build the libraries with `cargo build --release` in a clone of Polyverbs",
                file.display(),
            );
        }
        Ok(Self {
            verbs,
            folder,
            redirect,
        })
    }

    /// The same for a command that `cargo install` has put where it is, which leaves libraries out: the first time they are
    /// built, in the clone that the command was built from, and put where it finds them.
    pub(crate) fn find_or_build() -> anyhow::Result<Self> {
        let missing = match Self::find() {
            Ok(found) => return Ok(found),
            Err(missing) => missing,
        };
        let command = env::current_exe().context("cannot find this command's own file")?;
        let bin = command
            .parent()
            .filter(|bin| bin.file_name() == Some(OsStr::new("bin")));
        let Some(bin) = bin.filter(|bin| is_installed_by_cargo(bin) && is_own(Path::new(CLONE)))
        else {
            return Err(missing);
        };
        let built = build()?;
        install::put_libraries(&bin.with_file_name("lib").join("polyverbs"), built)?;
        Self::find()
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

/// What this command was built from, where it was built.
const CLONE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

// What cargo has installed beside the folder it lists there.
fn is_installed_by_cargo(bin: &Path) -> bool {
    let listed = fs::read_to_string(bin.with_file_name(".crates.toml"));
    listed.is_ok_and(|listed| listed.contains(concat!("\"", env!("CARGO_PKG_NAME"), " ")))
}

// Nobody else's files are built and run.
fn is_own(clone: &Path) -> bool {
    let owner = |path: &Path| fs::metadata(path).map(|there| there.uid()).ok();
    let manifest = owner(&clone.join("cli/Cargo.toml"));
    manifest.is_some() && manifest == owner(Path::new("/proc/self"))
}

fn build() -> anyhow::Result<Libraries> {
    complain(&format!(
        "the libraries of `run` are built, this once, in {CLONE}"
    ));
    let cargo = Command::new("cargo")
        .current_dir(CLONE)
        .args([
            "build",
            "--release",
            "--message-format=json-render-diagnostics",
        ])
        .args(["-p", "polyverbs-compat", "-p", "polyverbs-redirect"])
        .stderr(Stdio::inherit())
        .output()
        .context("cannot run cargo")?;
    anyhow::ensure!(
        cargo.status.success(),
        "the libraries could not be built in {CLONE}"
    );
    let messages = String::from_utf8_lossy(&cargo.stdout);
    let file = |name: &str| {
        let messages = messages
            .lines()
            .filter_map(|line| serde_json::from_str(line).ok());
        let mut files = messages.flat_map(|message: serde_json::Value| {
            let files = message["filenames"].as_array().cloned().unwrap_or_default();
            files
                .into_iter()
                .filter_map(|file| Some(PathBuf::from(file.as_str()?)))
        });
        let found = files.find(|file| file.ends_with(name));
        found.with_context(|| format!("cargo built no {name}"))
    };
    Ok(Libraries {
        verbs: file(BUILT)?,
        folder: None,
        redirect: file(REDIRECT)?,
    })
}

// The dynamic linker's lists are separated by these.
fn is_one(path: &Path) -> bool {
    let separates = |byte: &u8| matches!(byte, b' ' | b':' | b';');
    !path.as_os_str().as_bytes().iter().any(separates)
}
