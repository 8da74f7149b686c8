//! Options for programs that are built with a sanitizer; `c-libraries/redirect/src/sanitizers.rs` explains why they need
//! them.
//!
//! The library there gives the options too, to programs that replace these variables. Only the variables reach a program that
//! contains its sanitizer's runtime.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::Path;

use anyhow::Context as _;

/// The options for AddressSanitizer.
pub(super) const ADDRESS: &str = "verify_asan_link_order=0";

const THREAD: &str = include_str!("thread-sanitizer.supp");

/// Returns the options for ThreadSanitizer: the user's, and a file of suppressions that contains the user's and this
/// project's.
pub(super) fn thread_options(root: &Path) -> anyhow::Result<OsString> {
    let mut options = env::var_os("TSAN_OPTIONS").unwrap_or_default();
    let mut suppressions = THREAD.to_owned();
    if let Some(file) = suppressions_of(&options.to_string_lossy()) {
        let users = fs::read_to_string(file);
        let users =
            users.with_context(|| format!("cannot read {file}, which TSAN_OPTIONS names"))?;
        suppressions.push_str(&users);
    }
    let file = root.join("thread-sanitizer.supp");
    fs::write(&file, suppressions).with_context(|| format!("cannot write {}", file.display()))?;
    // The last one counts.
    options.push(":suppressions=\"");
    options.push(file);
    options.push("\"");
    Ok(options)
}

/// Returns the file of suppressions that ThreadSanitizer's options name.
fn suppressions_of(options: &str) -> Option<&str> {
    let separates = |letter: char| letter.is_ascii_whitespace() || matches!(letter, ',' | ':');
    let values = options.split(separates);
    let file = values
        .rev()
        .find_map(|option| option.strip_prefix("suppressions="))?;
    Some(file.trim_matches(['"', '\'']))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_suppressions_among_the_options_count() {
        assert_eq!(suppressions_of(""), None);
        assert_eq!(suppressions_of("halt_on_error=1:history_size=7"), None);
        let options = "suppressions=a halt_on_error=1,suppressions='b/c':history_size=7";
        assert_eq!(suppressions_of(options), Some("b/c"));
    }
}
