//! The packet capture of the devices of this process.

use std::fs::File;
use std::io::{self, BufWriter};
use std::path::Path;
use std::sync::Arc;

use polyverbs::emulated::{OctetCapture, Tap};
use polyverbs::provider::PerProcess;
use verbs_api::provider::Mutex;

use crate::Configuration;

// The size of the write buffer in bytes: the largest packet fits, so that each packet is written with one system call.
const LARGEST: usize = 128 << 10;

impl Configuration {
    /// The packet capture into the configured file, which all devices of this process share; `None` if none is configured.
    /// A child of a fork makes its own, because a thread of the parent may have held a lock of the inherited one.
    ///
    /// # Errors
    /// The file cannot be opened or written.
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
