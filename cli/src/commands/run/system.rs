//! `polyverbs run --over-system`: the library of the system, whose devices the program uses through ours.

use std::env;
use std::path::PathBuf;

/// The variable that names another file, as for the provider of real devices.
const VARIABLE: &str = "POLYVERBS_RDMA_CORE";

const FILE: &str = "libibverbs.so.1";

/// The folders of distributions for libraries.
const FOLDERS: [&str; 6] = [
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/lib64",
    "/usr/local/lib",
    "/usr/lib",
];

/// Finds the library of the system.
pub(super) fn library() -> anyhow::Result<PathBuf> {
    if let Some(file) = env::var_os(VARIABLE).filter(|file| !file.is_empty()) {
        return Ok(std::path::absolute(file)?);
    }
    let files = FOLDERS.map(|folder| PathBuf::from(folder).join(FILE));
    let found = files.into_iter().find(|file| file.is_file());
    found.ok_or_else(|| {
        anyhow::anyhow!(
            "--over-system: there is no {FILE} in {}: install rdma-core, or name the file in {VARIABLE}",
            FOLDERS.join(", ")
        )
    })
}
