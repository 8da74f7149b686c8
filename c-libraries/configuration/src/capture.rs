//! The capture of this process's devices.

use std::fs::File;
use std::io::{self, BufWriter};
use std::path::Path;
use std::sync::Arc;

use polyverbs::emulated::{OctetCapture, Tap};
use polyverbs::provider::PerProcess;
use verbs_api::provider::Mutex;

use crate::Configuration;

// A buffer for the largest packet, so that each is written with one call.
const LARGEST: usize = 128 << 10;

impl Configuration {
    /// The capture that is asked for, if one is: the same for all devices of a process. A child of a fork begins its own, because a
    /// lock of the parent's may be held.
    ///
    /// # Errors
    /// Its file cannot be written.
    pub fn tap(&self) -> io::Result<Option<Tap>> {
        static BEGUN: PerProcess<Mutex<Option<Arc<OctetCapture>>>> =
            PerProcess::new(Mutex::default);
        let Some(file) = self.pcap.as_deref() else {
            return Ok(None);
        };
        let mut begun = BEGUN.lock();
        let capture = match begun.take() {
            Some(capture) => capture,
            None => Arc::new(capture_to(file)?),
        };
        Ok(Some(Tap(Arc::clone(begun.insert(capture)) as _)))
    }
}

fn capture_to(file: &Path) -> io::Result<OctetCapture> {
    let file = File::options().create(true).append(true).open(file)?;
    OctetCapture::at_once(BufWriter::with_capacity(LARGEST, file))
}
