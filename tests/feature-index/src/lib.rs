//! The index of features: which row is covered by which test.
//!
//! `rows.toml` lists the features. Tests name the rows that they cover in a `// covers` line, which
//! [`scan`] finds in the sources. [`Index`] joins the two; it renders `docs/features.md` and lists
//! the problems. Read [`rows`], [`scan`] and [`index`] in this order.

#![forbid(unsafe_code)]

pub mod index;
pub mod rows;
pub mod scan;

use std::path::{Path, PathBuf};

pub use index::Index;

/// The root folder of the workspace that this crate was built in.
pub fn workspace_root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).unwrap_or(here).to_path_buf()
}

/// Where the generated page is kept.
pub fn page_path() -> PathBuf {
    workspace_root().join("docs/features.md")
}
