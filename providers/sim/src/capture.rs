//! Capture: what a link was given and what it delivered, as a list and as a file.
//!
//! Between the devices of one process a header is a value and has no octets. So a captured frame is written as one line
//! of text (the time, the addresses and the header's `Debug` form) followed by the octets of the payload. The file is
//! pcapng with two interfaces, `sent` and `arrived`, of link type USER0 (147), which Wireshark shows as data.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::fmt;
use std::io::{self, Write};
use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use pcap_file::pcapng::PcapNgWriter;
use pcap_file::pcapng::blocks::enhanced_packet::EnhancedPacketBlock;
use pcap_file::pcapng::blocks::interface_description::{
    InterfaceDescriptionBlock, InterfaceDescriptionOption,
};
use pcap_file::{DataLink, PcapError};
use polyverbs_engine::link::{Deliver, Frame, Link, SharedLink};
use polyverbs_engine::time::Time;
use verbs_api::ids::LinkAddress;

/// How much a [`Capture`] keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CaptureOptions {
    /// Frames in the list; of more, the oldest are forgotten. A frame that arrives is there twice.
    pub frames: usize,
    /// Octets of each payload, from its beginning.
    pub octets: usize,
}

impl Default for CaptureOptions {
    /// 4,096 frames with 65,536 octets each at most.
    fn default() -> Self {
        Self {
            frames: 4096,
            octets: 65_536,
        }
    }
}

/// A frame, and where on its way it was.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CapturedFrame<H> {
    /// When.
    pub time: Time,
    /// Where on its way.
    pub stage: Stage,
    /// The sender's link address.
    pub from: LinkAddress,
    /// The receiver's.
    pub to: LinkAddress,
    /// The header.
    pub header: H,
    /// Octets of the payload, kept or not; the header is not counted.
    pub length: usize,
    /// Those that are kept.
    pub octets: Vec<u8>,
    /// Whether the link changed a bit of it.
    pub damaged: bool,
}

impl<H: fmt::Debug> fmt::Display for CapturedFrame<H> {
    /// One line; with `{:#}` no more than that either.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (seconds, nanoseconds) = (self.time.0 / 1_000_000_000, self.time.0 % 1_000_000_000);
        let Self {
            stage,
            from,
            to,
            header,
            length,
            ..
        } = self;
        write!(
            f,
            "{seconds}.{nanoseconds:09} {stage} {from:?} -> {to:?} {header:?} {length} octets"
        )?;
        f.write_str(if self.damaged { " damaged" } else { "" })
    }
}

/// Where on its way a frame was captured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Stage {
    /// Where the link took it, before anything happened to it.
    Sent,
    /// Where the link delivered it.
    Arrived,
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Sent => "sent",
            Self::Arrived => "arrived",
        })
    }
}

/// A link around another, which notes each frame.
///
/// Sending only notes; the file is written where frames are delivered, with no lock of a device held, and when the
/// capture is [flushed](Self::flush) or dropped.
pub struct Capture<H: Clone + fmt::Debug> {
    link: SharedLink<H>,
    options: CaptureOptions,
    notes: Mutex<Notes<H>>,
    /// Taken before the notes, never after them.
    file: Mutex<Option<CaptureFile>>,
}

struct Notes<H> {
    frames: VecDeque<Arc<CapturedFrame<H>>>,
    forgotten: u64,
    /// What the file does not have yet; `None` where there is no file.
    unwritten: Option<Vec<Arc<CapturedFrame<H>>>>,
}

struct CaptureFile {
    writer: PcapNgWriter<Box<dyn Write + Send>>,
    /// What the time of day was at time 0, since 1970.
    zero: Duration,
    /// Why nothing more is written.
    error: Option<io::Error>,
}

impl<H: Clone + fmt::Debug> Capture<H> {
    /// Notes what goes over `link`.
    pub fn new(link: SharedLink<H>, options: CaptureOptions) -> Self {
        let notes = Notes {
            frames: VecDeque::new(),
            forgotten: 0,
            unwritten: None,
        };
        Self {
            link,
            options,
            notes: Mutex::new(notes),
            file: Mutex::new(None),
        }
    }

    /// Writes what goes over the link as pcapng too. `zero` is what the time of day was at [`Time`] 0.
    ///
    /// # Errors
    /// The writer fails.
    pub fn writing_to(
        self,
        writer: impl Write + Send + 'static,
        zero: SystemTime,
    ) -> io::Result<Self> {
        let file = CaptureFile::new(Box::new(writer), zero)?;
        self.notes().unwritten = Some(Vec::new());
        *self.file() = Some(file);
        Ok(self)
    }

    /// The last frames, oldest first.
    pub fn frames(&self) -> Vec<CapturedFrame<H>> {
        self.notes()
            .frames
            .iter()
            .map(|frame| CapturedFrame::clone(frame))
            .collect()
    }

    /// How many frames have left the list because it was full.
    pub fn forgotten(&self) -> u64 {
        self.notes().forgotten
    }

    /// Empties the list. The file keeps what it has.
    pub fn clear(&self) {
        self.notes().frames.clear();
    }

    /// Writes what is not in the file yet.
    ///
    /// # Errors
    /// The writer failed, now or before; nothing has been written since.
    pub fn flush(&self) -> io::Result<()> {
        let mut file = self.file();
        let Some(file) = file.as_mut() else {
            return Ok(());
        };
        let frames = self.notes().unwritten.as_mut().map(mem::take);
        file.write_all(&frames.unwrap_or_default());
        file.flush()
    }

    /// Writes what is not in the file yet; [`flush`](Self::flush) tells what went wrong.
    fn write(&self) {
        if let Some(file) = self.file().as_mut() {
            let frames = self.notes().unwritten.as_mut().map(mem::take);
            file.write_all(&frames.unwrap_or_default());
        }
    }

    fn note(&self, stage: Stage, frame: &Frame<'_, H>, time: Time) {
        let captured = Arc::new(CapturedFrame {
            time,
            stage,
            from: frame.from,
            to: frame.to,
            header: frame.header.clone(),
            length: frame.payload.len(),
            octets: frame.payload.part(0, self.options.octets).to_vec(),
            damaged: frame.damaged,
        });
        let mut notes = self.notes();
        notes
            .unwritten
            .iter_mut()
            .for_each(|unwritten| unwritten.push(Arc::clone(&captured)));
        notes.frames.push_back(captured);
        if notes.frames.len() > self.options.frames {
            notes.frames.pop_front();
            notes.forgotten += 1;
        }
    }

    fn notes(&self) -> MutexGuard<'_, Notes<H>> {
        self.notes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn file(&self) -> MutexGuard<'_, Option<CaptureFile>> {
        self.file.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<H: Clone + fmt::Debug + Send + Sync + 'static> Link<H> for Capture<H> {
    fn inner(&self) -> Option<&dyn Link<H>> {
        Some(&*self.link)
    }

    fn max_frame(&self) -> Option<usize> {
        self.link.max_frame()
    }

    fn send(&self, frame: Frame<'_, H>, now: Time) {
        self.note(Stage::Sent, &frame, now);
        self.link.send(frame, now);
    }

    fn needs_precise_clock(&self) -> bool {
        true
    }

    fn progress(&self, now: Time, network: &dyn Deliver<H>) -> bool {
        let delivered = self.link.progress(
            now,
            &Tap {
                capture: self,
                network,
            },
        );
        self.write();
        delivered
    }

    fn next_due(&self) -> Option<Time> {
        self.link.next_due()
    }
}

impl<H: Clone + fmt::Debug> Drop for Capture<H> {
    fn drop(&mut self) {
        // Who wants to know what went wrong has called it before.
        let _ = self.flush();
    }
}

/// Notes what is delivered.
struct Tap<'a, H: Clone + fmt::Debug> {
    capture: &'a Capture<H>,
    network: &'a dyn Deliver<H>,
}

impl<H: Clone + fmt::Debug + Send + Sync> Deliver<H> for Tap<'_, H> {
    fn deliver(&self, frame: Frame<'_, H>, now: Time) {
        self.capture.note(Stage::Arrived, &frame, now);
        self.network.deliver(frame, now);
    }
}

impl CaptureFile {
    fn new(writer: Box<dyn Write + Send>, zero: SystemTime) -> io::Result<Self> {
        let mut writer = PcapNgWriter::new(writer).map_err(io_error)?;
        for stage in [Stage::Sent, Stage::Arrived] {
            let options = vec![
                InterfaceDescriptionOption::IfName(stage.to_string().into()),
                InterfaceDescriptionOption::IfTsResol(NANOSECONDS),
            ];
            let interface = InterfaceDescriptionBlock {
                linktype: DataLink::USER0,
                snaplen: 0,
                options,
            };
            writer.write_pcapng_block(interface).map_err(io_error)?;
        }
        let zero = zero
            .duration_since(SystemTime::UNIX_EPOCH)
            .unwrap_or_default();
        Ok(Self {
            writer,
            zero,
            error: None,
        })
    }

    fn write_all<H: fmt::Debug>(&mut self, frames: &[Arc<CapturedFrame<H>>]) {
        for frame in frames {
            if self.error.is_none() {
                self.error = self.write(frame).err();
            }
        }
    }

    fn write<H: fmt::Debug>(&mut self, frame: &CapturedFrame<H>) -> io::Result<()> {
        let mut data = format!("{frame}\n").into_bytes();
        let length = data.len() + frame.length;
        data.extend_from_slice(&frame.octets);
        let block = EnhancedPacketBlock {
            interface_id: frame.stage as u32,
            timestamp: self.zero + Duration::from_nanos(frame.time.0),
            original_len: u32::try_from(length).unwrap_or(u32::MAX),
            data: Cow::Owned(data),
            options: Vec::new(),
        };
        self.writer
            .write_pcapng_block(block)
            .map(drop)
            .map_err(io_error)
    }

    fn flush(&mut self) -> io::Result<()> {
        match &self.error {
            // An error can be told more than once, but not copied.
            Some(error) => Err(io::Error::new(error.kind(), error.to_string())),
            None => self.writer.get_mut().flush(),
        }
    }
}

/// What went wrong with a capture, as an error of its file.
pub fn io_error(error: PcapError) -> io::Error {
    match error {
        PcapError::IoError(error) => error,
        other => io::Error::other(other),
    }
}

/// The unit of time stamps, as a negative power of ten.
pub const NANOSECONDS: u8 = 9;

#[cfg(test)]
mod tests {
    use pcap_file::pcapng::{Block, PcapNgReader};

    use super::*;
    use crate::datagram::{DatagramLink, DatagramOptions};
    use crate::fault::{DatagramFaults, Rate};
    use crate::testing::{A, B, Echo, Sink, frame, ms, run};

    fn link(faults: DatagramFaults) -> SharedLink<u32> {
        Arc::new(DatagramLink::new(DatagramOptions {
            faults,
            ..Default::default()
        }))
    }

    /// A file that a test can read while it is written.
    #[derive(Clone, Default)]
    struct Shared(Arc<Mutex<Vec<u8>>>);

    impl Write for Shared {
        fn write(&mut self, octets: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(octets)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// A disk that is full after so many octets.
    struct Full(usize);

    impl Write for Full {
        fn write(&mut self, octets: &[u8]) -> io::Result<usize> {
            self.0 = self
                .0
                .checked_sub(octets.len())
                .ok_or(io::ErrorKind::StorageFull)?;
            Ok(octets.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn each_frame_is_noted_where_it_leaves_and_where_it_arrives() {
        let faults = DatagramFaults {
            corrupt: Rate::ALWAYS,
            ..Default::default()
        };
        let (capture, sink) = (
            Capture::new(link(faults), CaptureOptions::default()),
            Sink::default(),
        );
        capture.send(frame(A, B, 7, b"octets"), ms(1));
        run(&capture, &sink);
        let frames = capture.frames();
        assert_eq!(
            frames[0].to_string(),
            "0.001000000 sent InProcess(1) -> InProcess(2) 7 6 octets"
        );
        assert_eq!(
            frames[1].to_string(),
            "0.001000000 arrived InProcess(1) -> InProcess(2) 7 6 octets damaged"
        );
        assert_eq!(frames[0].octets, b"octets");
        assert_eq!(frames[1].octets, sink.frames()[0].payload);
    }

    #[test]
    fn what_is_lost_never_arrives() {
        let faults = DatagramFaults {
            drop: Rate::ALWAYS,
            ..Default::default()
        };
        let (capture, sink) = (
            Capture::new(link(faults), CaptureOptions::default()),
            Sink::default(),
        );
        capture.send(frame(A, B, 7, b"octets"), ms(1));
        run(&capture, &sink);
        assert_eq!(
            capture
                .frames()
                .iter()
                .map(|frame| frame.stage)
                .collect::<Vec<_>>(),
            [Stage::Sent]
        );
    }

    #[test]
    fn the_list_and_the_octets_are_bounded() {
        let options = CaptureOptions {
            frames: 3,
            octets: 2,
        };
        let capture = Capture::new(link(DatagramFaults::default()), options);
        for number in 0..5 {
            capture.send(frame(A, B, number, b"octets"), ms(1));
        }
        let frames = capture.frames();
        assert_eq!(
            frames.iter().map(|frame| frame.header).collect::<Vec<_>>(),
            [2, 3, 4]
        );
        assert_eq!(
            (frames[0].length, frames[0].octets.as_slice()),
            (6, b"oc".as_slice())
        );
        assert_eq!(capture.forgotten(), 2);
        capture.clear();
        assert!(capture.frames().is_empty());
    }

    #[test]
    fn nothing_is_locked_during_delivery() {
        let capture = Capture::new(link(DatagramFaults::default()), CaptureOptions::default());
        let (capture, sink) = (
            capture
                .writing_to(Shared::default(), SystemTime::UNIX_EPOCH)
                .unwrap(),
            Sink::default(),
        );
        capture.send(frame(A, B, 1, b""), ms(0));
        assert!(capture.progress(
            ms(0),
            &Echo {
                link: &capture,
                sink: &sink
            }
        ));
        assert_eq!(capture.frames().len(), 3);
    }

    #[test]
    fn the_file_has_a_line_and_the_octets_of_each_frame() {
        let (shared, sink) = (Shared::default(), Sink::default());
        let zero = SystemTime::UNIX_EPOCH + Duration::from_secs(1000);
        let options = CaptureOptions {
            octets: 4,
            ..Default::default()
        };
        let capture = Capture::new(link(DatagramFaults::default()), options);
        let capture = capture.writing_to(shared.clone(), zero).unwrap();
        capture.send(frame(A, B, 7, b"octets"), ms(3));
        run(&capture, &sink);
        capture.send(frame(A, B, 8, b""), ms(5));
        drop(capture);

        let octets = shared.0.lock().unwrap().clone();
        let mut reader = PcapNgReader::new(octets.as_slice()).unwrap();
        let (mut links, mut packets) = (Vec::new(), Vec::new());
        while let Some(block) = reader.next_block() {
            match block.unwrap().into_owned() {
                Block::InterfaceDescription(interface) => links.push(interface.linktype),
                Block::EnhancedPacket(packet) => packets.push(packet),
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(links, [DataLink::USER0; 2]);
        let ends = |packet: &EnhancedPacketBlock<'_>| {
            (
                packet.interface_id,
                packet.timestamp,
                String::from_utf8(packet.data.to_vec()).unwrap(),
            )
        };
        let line = |rest: &str| format!("0.00{rest}");
        let at = |milliseconds| Duration::from_secs(1000) + Duration::from_millis(milliseconds);
        let expected = [
            (
                0,
                at(3),
                line("3000000 sent InProcess(1) -> InProcess(2) 7 6 octets\nocte"),
            ),
            (
                1,
                at(3),
                line("3000000 arrived InProcess(1) -> InProcess(2) 7 6 octets\nocte"),
            ),
            (
                0,
                at(5),
                line("5000000 sent InProcess(1) -> InProcess(2) 8 0 octets\n"),
            ),
        ];
        assert_eq!(packets.iter().map(ends).collect::<Vec<_>>(), expected);
        assert_eq!(packets[0].original_len as usize, packets[0].data.len() + 2);
    }

    #[test]
    fn a_full_disk_is_told_and_harms_no_frame() {
        let capture = Capture::new(link(DatagramFaults::default()), CaptureOptions::default());
        let (capture, sink) = (
            capture
                .writing_to(Full(200), SystemTime::UNIX_EPOCH)
                .unwrap(),
            Sink::default(),
        );
        for number in 0..10 {
            capture.send(frame(A, B, number, b"octets"), ms(1));
        }
        run(&capture, &sink);
        assert_eq!(sink.frames().len(), 10);
        for _ in 0..2 {
            assert_eq!(
                capture.flush().unwrap_err().kind(),
                io::ErrorKind::StorageFull
            );
        }
        let none = Capture::new(link(DatagramFaults::default()), CaptureOptions::default());
        assert!(none.writing_to(Full(3), SystemTime::UNIX_EPOCH).is_err());
    }
}
