//! The file to which this command writes the packets of its devices.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use anyhow::Context as _;

use polyverbs::emulated::{OctetCapture, Tap};

use crate::output::complain;

/// The capture of this command's devices, if it runs within `polyverbs capture`.
static CAPTURE: OnceLock<Capture> = OnceLock::new();

pub(crate) struct Capture {
    file: PathBuf,
    packets: Arc<OctetCapture>,
    is_begun: AtomicBool,
}

impl Capture {
    /// Empties the capture file and begins to write packets to it, because the command has opened a device.
    pub(crate) fn begin(&self) -> anyhow::Result<()> {
        self.is_begun.store(true, Ordering::SeqCst);
        self.flush()
    }

    /// Returns the tap for a device, which adds the device's packets to the capture.
    pub(crate) fn tap(&self) -> Tap {
        Tap(Arc::clone(&self.packets) as _)
    }

    fn is_begun(&self) -> bool {
        self.is_begun.load(Ordering::SeqCst)
    }

    fn flush(&self) -> anyhow::Result<()> {
        let flushed = self.packets.flush();
        flushed.with_context(|| format!("cannot write {}", self.file.display()))
    }
}

/// A file that is created, or emptied, only when the first byte is written.
enum LateFile {
    Named(PathBuf),
    Open(File),
}

impl Write for LateFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Named(name) => {
                *self = Self::Open(File::create(name)?);
                self.write(bytes)
            }
            Self::Open(file) => file.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Returns the capture that this command runs within; `None` if there is none.
pub(crate) fn current() -> Option<&'static Capture> {
    CAPTURE.get()
}

/// Runs `work` and captures the packets of its devices to a file. If `work` opens no device, the file is left as it is.
pub(crate) fn captured(
    file: &Path,
    work: impl FnOnce() -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let writer = BufWriter::new(LateFile::Named(file.to_owned()));
    let capture = Capture {
        file: file.to_owned(),
        packets: Arc::new(OctetCapture::new(writer)?),
        is_begun: AtomicBool::new(false),
    };
    anyhow::ensure!(CAPTURE.set(capture).is_ok(), "a capture of a capture");
    let result = work();
    match current() {
        Some(capture) if result.is_ok() || capture.is_begun() => capture.flush().and(result),
        _ => result,
    }
}

/// Writes the packets captured so far to the file, before the process ends by a signal.
pub(crate) fn flush() {
    let begun = current().filter(|capture| capture.is_begun());
    if let Some(Err(error)) = begun.map(Capture::flush) {
        complain(&format!("{error:#}"));
    }
}
