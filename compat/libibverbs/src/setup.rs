//! The configuration from `polyverbs run`, as this process uses it.

use std::fs::File;
use std::io::{self, BufWriter, Write as _};
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock};

use polyverbs::emulated::{OctetCapture, Tap};
use polyverbs_configuration::{Configuration, VARIABLE};

use crate::lock::lock;

/// Writes a message to standard error, if that is open.
pub(crate) fn complain(what: std::fmt::Arguments<'_>) {
    // A failure cannot be reported.
    let _ = writeln!(io::stderr(), "polyverbs: {what}");
}

/// The configuration. If it cannot be read there are no devices, and a message on standard error says why.
pub fn configuration() -> &'static Configuration {
    static READ: OnceLock<Configuration> = OnceLock::new();
    READ.get_or_init(|| {
        Configuration::from_environment().unwrap_or_else(|error| {
            complain(format_args!("{VARIABLE}: {error}"));
            Configuration::default()
        })
    })
}

// A buffer for the largest packet, so that each is written with one call.
const LARGEST: usize = 128 << 10;

/// The capture of this process's devices. A child of a fork begins its own, because a lock of the parent's may be held.
pub(crate) fn tap() -> Option<Tap> {
    static BEGUN: Mutex<Option<(u32, Arc<OctetCapture>)>> = Mutex::new(None);
    let file = configuration().pcap.as_deref()?;
    let mut begun = lock(&BEGUN);
    let process = std::process::id();
    if let Some((_, capture)) = begun.as_ref().filter(|(of, _)| *of == process) {
        return Some(Tap(Arc::clone(capture) as _));
    }
    match capture_to(file) {
        Ok(capture) => {
            let capture = Arc::new(capture);
            std::mem::forget(begun.replace((process, Arc::clone(&capture))));
            Some(Tap(capture))
        }
        Err(error) => {
            complain(format_args!("cannot write {}: {error}", file.display()));
            None
        }
    }
}

fn capture_to(file: &Path) -> io::Result<OctetCapture> {
    let file = File::options().create(true).append(true).open(file)?;
    OctetCapture::at_once(BufWriter::with_capacity(LARGEST, file))
}
