//! The sources of the programs: Debian's packages, PyPI and crates.io.

use std::collections::BTreeSet;
use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context;

use crate::rows::Trial;

/// The place where the programs are installed.
pub(crate) struct Tools {
    /// The PATH by which they are found.
    pub(crate) path: OsString,
}

impl Tools {
    /// Installs the missing packages that these trials need.
    ///
    /// # Errors
    /// The package that cannot be installed.
    pub(crate) fn install(trials: &[Trial<'_>], folder: &Path) -> anyhow::Result<Self> {
        fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
        let wanted: BTreeSet<&str> = trials
            .iter()
            .flat_map(|trial| &trial.row.install)
            .map(String::as_str)
            .collect();
        let of = |prefix| {
            wanted
                .iter()
                .filter_map(move |name| name.strip_prefix(prefix))
        };
        debian(wanted.iter().copied().filter(|name| !name.contains(':')))?;
        let environment = folder.join("python");
        python(of("pip:"), &environment)?;
        let crates = folder.join("cargo");
        for name in of("cargo:") {
            cargo(name, &crates)?;
        }
        let with = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/with"));
        let mut path = vec![with, environment.join("bin"), crates.join("bin")];
        path.extend(env::split_paths(&env::var_os("PATH").unwrap_or_default()));
        Ok(Self {
            path: env::join_paths(path)?,
        })
    }
}

fn debian<'a>(names: impl Iterator<Item = &'a str>) -> anyhow::Result<()> {
    let missing: Vec<_> = names.filter(|name| !is_installed(name)).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let list = missing.join(" ");
    anyhow::ensure!(
        rustix::process::geteuid().is_root(),
        "Debian packages are missing; install them: {list}"
    );
    println!("installing {list}");
    let apt = |arguments: &[&str]| {
        succeed(
            Command::new("apt-get")
                .args(["-o", "DPkg::Lock::Timeout=600", "-qq"])
                .args(arguments)
                .env("DEBIAN_FRONTEND", "noninteractive"),
        )
    };
    apt(&["update"])?;
    // Servers that a package brings are started only by rows.
    let install = ["install", "-y", "--no-install-recommends"];
    apt(&[&install[..], &missing].concat())
}

fn is_installed(package: &str) -> bool {
    Command::new("dpkg-query")
        .args(["-W", "-f", "${db:Status-Status}", package])
        .output()
        .is_ok_and(|output| output.stdout == b"installed")
}

fn python<'a>(names: impl Iterator<Item = &'a str>, environment: &Path) -> anyhow::Result<()> {
    let names: Vec<_> = names.collect();
    let list = names.join("\n");
    let stamp = environment.join("installed");
    if names.is_empty() || fs::read_to_string(&stamp).is_ok_and(|installed| installed == list) {
        return Ok(());
    }
    println!("installing {}", names.join(" "));
    succeed(
        Command::new("python3")
            .args(["-m", "venv"])
            .arg(environment),
    )?;
    succeed(
        Command::new(environment.join("bin/pip"))
            .args(["install", "-q"])
            .args(&names),
    )?;
    fs::write(stamp, list)?;
    Ok(())
}

fn cargo(name: &str, root: &Path) -> anyhow::Result<()> {
    // Cargo does nothing where that version is installed.
    succeed(
        Command::new("cargo")
            .args(["install", "-q", "--locked", "--root"])
            .arg(root)
            .arg(name),
    )
}

fn succeed(command: &mut Command) -> anyhow::Result<()> {
    let status = command
        .status()
        .with_context(|| format!("cannot run {}", command.get_program().display()))?;
    anyhow::ensure!(status.success(), "{command:?}: {status}");
    Ok(())
}
