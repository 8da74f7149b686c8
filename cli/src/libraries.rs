//! The C libraries: finding and installing them.

use std::env;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{MetadataExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::Context as _;
use tempfile::TempDir;

use crate::installed::Content;
use crate::output::complain;

/// The name by which programs load libibverbs; librdmacm and libibumad are links to the same file.
pub(crate) const VERBS: &str = "libibverbs.so.1";
pub(crate) const CM: &str = "librdmacm.so.1";
pub(crate) const MAD: &str = "libibumad.so.3";
/// The library that redirects paths below `/sys` and `/dev` to the folder of a program.
pub(crate) const REDIRECT: &str = "libpolyverbs_redirect.so";
/// The library for `AF_RDS` sockets, which the redirecting library loads from its own folder.
pub(crate) const RDS: &str = "libpolyverbs_rds_sockets.so";

// The names that cargo gives to these files.
const BUILT: &str = "libpolyverbs_c_libraries.so";

/// The files of the C libraries of this command.
pub(crate) struct Libraries {
    /// The one file that is libibverbs, librdmacm and libibumad.
    pub(crate) verbs: PathBuf,
    /// The folder that contains them under the names that programs load; `None` if the libraries are not installed.
    pub(crate) folder: Option<PathBuf>,
    pub(crate) redirect: PathBuf,
    pub(crate) rds: PathBuf,
}

impl Libraries {
    /// Finds the libraries of this command: installed, in the folder of cargo's build, or in the command's own folder.
    pub(crate) fn find() -> anyhow::Result<Self> {
        let command = env::current_exe().context("cannot find this command's own file")?;
        let beside = command.parent().unwrap_or(Path::new("/"));
        let installed = beside.with_file_name("lib").join("polyverbs");
        let is_installed = installed.join(VERBS).exists();
        // Cargo puts every library that it builds there, but only those next to the command that it was asked to build.
        let dependencies = beside.join("deps");
        let (within, verbs) = if is_installed {
            (&*installed, VERBS)
        } else if dependencies.join(BUILT).exists() {
            (&*dependencies, BUILT)
        } else {
            (beside, BUILT)
        };
        let found = Self {
            verbs: within.join(verbs),
            folder: is_installed.then(|| installed.clone()),
            redirect: within.join(REDIRECT),
            rds: within.join(RDS),
        };
        for file in [&found.verbs, &found.redirect, &found.rds] {
            anyhow::ensure!(
                file.exists(),
                "there is no {}: build the libraries with `cargo build --release` in a clone of Polyverbs",
                file.display(),
            );
        }
        Ok(found)
    }

    /// Finds the libraries, also for a command that was installed by `cargo install`, which omits libraries: at the first
    /// use they are built from the [sources](Sources) of the command, and installed where [`find`](Self::find) looks for them.
    pub(crate) fn find_or_build() -> anyhow::Result<Self> {
        let missing = match Self::find() {
            Ok(found) => return Ok(found),
            Err(missing) => missing,
        };
        let command = env::current_exe().context("cannot find this command's own file")?;
        let bin = command
            .parent()
            .filter(|bin| bin.file_name() == Some(OsStr::new("bin")));
        let Some(bin) = bin.filter(|bin| is_installed_by_cargo(bin)) else {
            return Err(missing);
        };
        let sources = Sources::find()?;
        let built = sources.build()?;
        for (target, content) in built.installed_in(&bin.with_file_name("lib").join("polyverbs")) {
            content.install(&target)?;
        }
        Self::find()
    }

    /// Returns the files that an installation of these libraries in a folder consists of.
    pub(crate) fn installed_in(self, lib: &Path) -> [(PathBuf, Content); 5] {
        [
            (lib.join(VERBS), Content::File(self.verbs)),
            (lib.join(CM), Content::Link(VERBS)),
            (lib.join(MAD), Content::Link(VERBS)),
            (lib.join(REDIRECT), Content::File(self.redirect)),
            (lib.join(RDS), Content::File(self.rds)),
        ]
    }

    /// Returns what to set for the dynamic linker: a folder that contains the libraries under their names, and the file to
    /// preload. The folder is the libraries' own, or `within`, where links are made.
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
        link(Path::new(VERBS), MAD)?;
        if is_one(&self.redirect) {
            return Ok((folder, self.redirect.clone()));
        }
        link(&self.redirect, REDIRECT)?;
        link(&self.rds, RDS)?;
        let redirect = folder.join(REDIRECT);
        Ok((folder, redirect))
    }
}

/// The folder of the sources that the command was built from.
const CLONE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

// What cargo's list in that folder says is installed.
fn is_installed_by_cargo(bin: &Path) -> bool {
    let listed = fs::read_to_string(bin.with_file_name(".crates.toml"));
    listed.is_ok_and(|listed| listed.contains(concat!("\"", env!("CARGO_PKG_NAME"), " ")))
}

// Files of other users are neither built nor run.
fn is_own(clone: &Path) -> bool {
    let owner = |path: &Path| fs::metadata(path).map(|there| there.uid()).ok();
    let manifest = owner(&clone.join("cli/Cargo.toml"));
    manifest.is_some() && manifest == owner(Path::new("/proc/self"))
}

/// The sources of the libraries: the clone that the command was built from, or a project that depends on the packages of this
/// version, which cargo downloads as it downloaded the command.
enum Sources {
    Clone,
    Packages(TempDir),
}

impl Sources {
    fn find() -> anyhow::Result<Self> {
        if is_own(Path::new(CLONE)) {
            return Ok(Self::Clone);
        }
        let project = TempDir::new().context("cannot make a folder to build the libraries in")?;
        let write = |name, text: &str| {
            let file = project.path().join(name);
            fs::write(&file, text).with_context(|| format!("cannot write {}", file.display()))
        };
        write("Cargo.toml", PROJECT)?;
        write("lib.rs", "")?;
        Ok(Self::Packages(project))
    }

    fn folder(&self) -> &Path {
        match self {
            Self::Clone => Path::new(CLONE),
            Self::Packages(project) => project.path(),
        }
    }

    fn build(&self) -> anyhow::Result<Libraries> {
        complain(&match self {
            Self::Clone => format!("the libraries of `run` are built, this once, in {CLONE}"),
            Self::Packages(_) => "the libraries of `run` are built, this once".to_owned(),
        });
        Ok(Libraries {
            verbs: self.build_library("polyverbs-c-libraries", BUILT)?,
            folder: None,
            redirect: self.build_library("polyverbs-redirect", REDIRECT)?,
            rds: self.build_library("polyverbs-rds-sockets", RDS)?,
        })
    }

    // By itself: cargo optimises a library for C across crates only where it is no library of Rust at the same time.
    fn build_library(&self, package: &str, name: &str) -> anyhow::Result<PathBuf> {
        let folder = self.folder();
        let cargo = Command::new("cargo")
            .current_dir(folder)
            .args(["rustc", "--profile", "dist", "-p", package])
            .args(["--lib", "--crate-type", "cdylib"])
            .arg("--message-format=json-render-diagnostics")
            .stderr(Stdio::inherit())
            .output()
            .context("cannot run cargo")?;
        anyhow::ensure!(
            cargo.status.success(),
            "{name} could not be built in {}",
            folder.display()
        );
        let messages = String::from_utf8_lossy(&cargo.stdout);
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
    }
}

/// The manifest of a project that has the packages of the libraries, with the profile in which the libraries are shipped.
const PROJECT: &str = concat!(
    r#"
[package]
name = "polyverbs-libraries"
edition = "2024"

# The folder of temporary files may be below that of another workspace.
[workspace]

[lib]
path = "lib.rs"

[dependencies]
polyverbs-c-libraries = "="#,
    env!("CARGO_PKG_VERSION"),
    r#""
polyverbs-redirect = "="#,
    env!("CARGO_PKG_VERSION"),
    r#""
polyverbs-rds-sockets = "="#,
    env!("CARGO_PKG_VERSION"),
    r#""

[profile.dist]
inherits = "release"
lto = "thin"
codegen-units = 1

# As in the project's own manifest: a sum of a peer's numbers that does not fit is a panic.
[profile.dist.package]
polyverbs-connection.overflow-checks = true
polyverbs-wire.overflow-checks = true
polyverbs-management.overflow-checks = true
polyverbs-fabric.overflow-checks = true
polyverbs-librdmacm.overflow-checks = true
"#
);

// Separators in the dynamic linker's lists.
fn is_one(path: &Path) -> bool {
    let separates = |byte: &u8| matches!(byte, b' ' | b':' | b';');
    !path.as_os_str().as_bytes().iter().any(separates)
}
