//! The configuration from `polyverbs run`, as this process uses it.

use std::io::{self, Write as _};
use std::path::Path;

use polyverbs::emulated::Tap;
use polyverbs_configuration::{Configuration, VARIABLE};
use verbs_api::provider::MadeOnce;

/// Writes a message to standard error, if that is open.
pub(crate) fn complain(what: std::fmt::Arguments<'_>) {
    // A failure cannot be reported.
    let _ = writeln!(io::stderr(), "polyverbs: {what}");
}

/// The configuration. If it cannot be read there are no devices, and a message on standard error says why.
pub fn configuration() -> &'static Configuration {
    static READ: MadeOnce<Configuration> = MadeOnce::new();
    READ.get_or_make(|| {
        Configuration::from_environment().unwrap_or_else(|error| {
            complain(format_args!("{VARIABLE}: {error}"));
            Configuration::default()
        })
    })
}

/// The capture of this process's devices.
pub(crate) fn tap() -> Option<Tap> {
    let configuration = configuration();
    configuration.tap().unwrap_or_else(|error| {
        let file = configuration.pcap.as_deref().unwrap_or(Path::new(""));
        complain(format_args!("cannot write {}: {error}", file.display()));
        None
    })
}
