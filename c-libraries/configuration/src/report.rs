//! Messages of the C libraries on standard error.
//!
//! Writing takes no lock: a child of a fork could find the lock of `std`'s standard error held by a thread of its parent, whose
//! write may take long.

use std::fmt;
use std::io;

use rustix::io::write;

/// Writes a message of the libraries to standard error; a failure to do so is ignored.
pub fn complain(what: fmt::Arguments<'_>) {
    to_standard_error(&format!("polyverbs: {what}\n"));
}

/// Writes lines to standard error with one system call, so that lines of several threads and processes are not mixed; a failure
/// to do so is ignored.
pub fn to_standard_error(lines: &str) {
    // A failure cannot be reported.
    let _ = write(io::stderr(), lines.as_bytes());
}
