//! The configuration that `polyverbs run` passes to this process.

use std::path::Path;

use polyverbs::emulated::Tap;
use polyverbs_configuration::{Configuration, VARIABLE, complain};
use verbs_api::provider::MadeOnce;

/// The configuration of this process. If it cannot be read, it has no devices, and a message on standard error says why.
pub fn configuration() -> &'static Configuration {
    static READ: MadeOnce<Configuration> = MadeOnce::new();
    READ.get_or_make(|| {
        Configuration::from_environment().unwrap_or_else(|error| {
            complain(format_args!("{VARIABLE}: {error}"));
            Configuration::default()
        })
    })
}

/// The packet capture that all devices of this process share; `None` if none is configured or its file cannot be written,
/// which a message on standard error reports.
pub(crate) fn tap() -> Option<Tap> {
    let configuration = configuration();
    configuration.tap().unwrap_or_else(|error| {
        let file = configuration.pcap.as_deref().unwrap_or(Path::new(""));
        complain(format_args!("cannot write {}: {error}", file.display()));
        None
    })
}
