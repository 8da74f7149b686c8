//! The capture of this process's devices.

use std::fs::File;
use std::io::{self, BufWriter};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use polyverbs::emulated::{OctetCapture, Tap};

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
        static BEGUN: Mutex<Option<(u32, Arc<OctetCapture>)>> = Mutex::new(None);
        let Some(file) = self.pcap.as_deref() else {
            return Ok(None);
        };
        let mut begun = BEGUN.lock().unwrap_or_else(PoisonError::into_inner);
        let process = std::process::id();
        if let Some((_, capture)) = begun.as_ref().filter(|(of, _)| *of == process) {
            return Ok(Some(Tap(Arc::clone(capture) as _)));
        }
        let capture = Arc::new(capture_to(file)?);
        std::mem::forget(begun.replace((process, Arc::clone(&capture))));
        Ok(Some(Tap(capture)))
    }
}

fn capture_to(file: &Path) -> io::Result<OctetCapture> {
    let file = File::options().create(true).append(true).open(file)?;
    OctetCapture::at_once(BufWriter::with_capacity(LARGEST, file))
}
