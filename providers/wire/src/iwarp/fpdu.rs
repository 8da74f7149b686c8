//! MPA's frames (RFC 5044 section 4).
//!
//! ```text
//! ULPDU_Length, 2 octets | ULPDU | pad to a multiple of four | CRC, 4 octets
//! ```
//!
//! Where the receiver asked for them, a marker of four octets stands in the stream after each 508 others, the first one
//! before everything: it says how far back the frame began that it stands in. A marker between two frames belongs to
//! the second, one between pad and CRC to its frame; the checksum covers those of its frame and is not divided by one.
//!
//! A [`Direction`] makes frames or finds them in what has arrived, and [`Layout`] says where everything in a frame lies.

use super::Reject;

/// Octets of a marker.
pub const MARKER_LEN: usize = 4;

/// Octets of the stream from one marker to the next, one of them included.
pub const MARKER_INTERVAL: usize = 512;

/// Octets of the checksum, which is there even where it is not used.
pub const CRC_LEN: usize = 4;

/// Octets of the longest frame, with as many markers as may stand in it.
pub const MAX_FRAME_LEN: usize = Layout::new(u16::MAX, 0, true).frame_len();

const LENGTH_LEN: usize = 2;
const BETWEEN_MARKERS: usize = MARKER_INTERVAL - MARKER_LEN;

/// What one direction of a stream has agreed on: see [`Settings`](super::Settings).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Framing {
    /// Markers stand in the stream.
    pub markers: bool,
    /// The checksum counts.
    pub crc: bool,
}

/// Where everything in a frame lies, in octets from the frame's first, a marker before its length included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    ulpdu_len: u16,
    /// Octets other than markers before the first marker; `None` where there are none.
    first_marker: Option<usize>,
}

impl Layout {
    /// Of a frame with this many octets of ULPDU that begins at this position of the stream: octets since full operation
    /// began, markers included.
    pub const fn new(ulpdu_len: u16, position: u64, markers: bool) -> Self {
        let first_marker = if markers {
            let since = (position % MARKER_INTERVAL as u64) as usize;
            Some((MARKER_INTERVAL - since) % MARKER_INTERVAL)
        } else {
            None
        };
        Self {
            ulpdu_len,
            first_marker,
        }
    }

    /// Of the frame that these octets begin, as soon as its length is there.
    pub fn of(octets: &[u8], position: u64, markers: bool) -> Option<Self> {
        let none = Self::new(0, position, markers);
        let length = octets.get(none.begin()..)?.first_chunk()?;
        Some(Self::new(u16::from_be_bytes(*length), position, markers))
    }

    /// Octets of ULPDU.
    pub const fn ulpdu_len(self) -> usize {
        self.ulpdu_len as usize
    }

    /// Octets of pad.
    pub const fn pad_len(self) -> usize {
        (LENGTH_LEN + self.ulpdu_len()).wrapping_neg() & 3
    }

    /// Octets of the frame on the stream, all its markers included.
    pub const fn frame_len(self) -> usize {
        self.content_len() + MARKER_LEN * self.markers()
    }

    /// How many markers stand in the frame.
    pub const fn markers(self) -> usize {
        match self.first_marker {
            Some(first) if first < self.content_len() => {
                1 + (self.content_len() - 1 - first) / BETWEEN_MARKERS
            }
            _ => 0,
        }
    }

    /// Where each marker lies, and the FPDUPTR that it should have.
    pub fn each_marker(self) -> impl Iterator<Item = (usize, u16)> {
        let first = self.first_marker.unwrap_or(0);
        (0..self.markers()).map(move |number| {
            let at = first + MARKER_INTERVAL * number;
            (at, at.saturating_sub(self.begin()) as u16)
        })
    }

    /// Where the checksum lies: it covers everything before.
    pub const fn crc_at(self) -> usize {
        self.frame_len() - CRC_LEN
    }

    /// Where ULPDU_Length lies.
    const fn begin(self) -> usize {
        match self.first_marker {
            Some(0) => MARKER_LEN,
            _ => 0,
        }
    }

    /// Octets other than markers.
    const fn content_len(self) -> usize {
        LENGTH_LEN + self.ulpdu_len() + self.pad_len() + CRC_LEN
    }

    /// Whether the checksum of a frame of this layout is right.
    pub fn is_intact(self, frame: &[u8]) -> bool {
        let parts = frame.split_at_checked(self.crc_at());
        let parts = parts.and_then(|(covered, rest)| Some((covered, rest.first_chunk()?)));
        parts.is_some_and(|(covered, crc)| checksum(covered) == *crc)
    }

    /// Whether the markers of a frame of this layout point at its beginning. The reserved half, and the two lowest bits,
    /// are not looked at (RFC 5044 section 4.3).
    pub fn markers_fit(self, frame: &[u8]) -> bool {
        self.each_marker().all(|(at, pointer)| {
            let found = frame.get(at + 2..).and_then(|octets| octets.first_chunk());
            found.is_some_and(|found| u16::from_be_bytes(*found) & !3 == pointer)
        })
    }

    /// Moves what a frame has in one stretch apart, and puts its markers between.
    fn spread(self, frame: &mut [u8]) {
        for number in (0..self.markers()).rev() {
            let at = self.first_marker.unwrap_or(0) + MARKER_INTERVAL * number;
            let to = at + MARKER_LEN..frame.len().min(at + MARKER_INTERVAL);
            let before = MARKER_LEN * (number + 1);
            frame.copy_within(to.start - before..to.end - before, to.start);
        }
        for (at, pointer) in self.each_marker() {
            frame[at..at + 2].fill(0);
            frame[at + 2..at + MARKER_LEN].copy_from_slice(&pointer.to_be_bytes());
        }
    }

    /// Moves what lies between the markers of a frame together, and answers its ULPDU and its pad; `None` where the frame
    /// is not whole.
    pub fn strip(self, frame: &mut [u8]) -> Option<(&[u8], &[u8])> {
        let frame = frame.get_mut(..self.frame_len())?;
        let mut to = self.each_marker().next().map_or(0, |(at, _)| at);
        for (at, _) in self.each_marker() {
            let kept = at + MARKER_LEN..frame.len().min(at + MARKER_INTERVAL);
            frame.copy_within(kept.clone(), to);
            to += kept.len();
        }
        let (ulpdu, rest) = frame
            .get(LENGTH_LEN..)?
            .split_at_checked(self.ulpdu_len())?;
        Some((ulpdu, rest.get(..self.pad_len())?))
    }
}

/// The checksum over what a frame has before it, as it goes out: least significant octet first.
pub fn checksum(covered: &[u8]) -> [u8; CRC_LEN] {
    crc32c::crc32c(covered).to_le_bytes()
}

/// Most octets of ULPDU that a frame may have to fit into a TCP segment (RFC 5044 section 4.5).
///
/// `emss` is what a segment carries; at least 128 octets are promised to DDP whatever it is.
pub const fn mulpdu(emss: usize, markers: bool) -> usize {
    let overhead = LENGTH_LEN + CRC_LEN + emss % 4;
    let overhead = if markers {
        overhead + MARKER_LEN * emss.div_ceil(MARKER_INTERVAL)
    } else {
        overhead
    };
    let mulpdu = emss.saturating_sub(overhead);
    if mulpdu < 128 { 128 } else { mulpdu }
}

/// One direction of a stream, at either end: how far it has come.
#[derive(Clone, Copy, Debug, Default)]
pub struct Direction {
    /// What it has agreed on.
    pub framing: Framing,
    /// Octets of the frames so far, since full operation began.
    pub position: u64,
}

/// A frame that has arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fpdu<'a> {
    /// The DDP segment in it.
    pub ulpdu: &'a [u8],
    /// Octets of the stream that the frame takes.
    pub frame_len: usize,
}

impl Direction {
    /// A direction where full operation begins.
    pub const fn new(framing: Framing) -> Self {
        Self {
            framing,
            position: 0,
        }
    }

    /// Makes a frame of a ULPDU of so many octets, which `fill` writes to the front of what it is given.
    pub fn frame_with(&mut self, layout: Layout, frame: &mut [u8], fill: impl FnOnce(&mut [u8])) {
        let (length, rest) = frame.split_at_mut(LENGTH_LEN);
        length.copy_from_slice(&layout.ulpdu_len.to_be_bytes());
        fill(rest);
        rest[layout.ulpdu_len()..].fill(0);
        layout.spread(frame);
        if self.framing.crc {
            let (covered, crc) = frame.split_at_mut(layout.crc_at());
            crc.copy_from_slice(&checksum(covered));
        }
        self.position += layout.frame_len() as u64;
    }

    /// Where everything in the next frame will lie, if it has so many octets of ULPDU.
    pub const fn layout(&self, ulpdu_len: u16) -> Layout {
        Layout::new(ulpdu_len, self.position, self.framing.markers)
    }

    /// Writes a whole frame to the front of `out`, and answers its length; `None` where there is no room, or too much to
    /// be framed.
    pub fn frame(&mut self, ulpdu: &[&[u8]], out: &mut [u8]) -> Option<usize> {
        let len: usize = ulpdu.iter().map(|piece| piece.len()).sum();
        let layout = self.layout(len.try_into().ok()?);
        let out = out.get_mut(..layout.frame_len())?;
        self.frame_with(layout, out, |mut room| {
            for piece in ulpdu {
                let front;
                (front, room) = room.split_at_mut(piece.len());
                front.copy_from_slice(piece);
            }
        });
        Some(layout.frame_len())
    }

    /// Takes the frame at the front of what has arrived; `None` while it is not all there. Markers are taken out of it in
    /// place.
    ///
    /// # Errors
    /// The reason to end the stream: there is no way to find the next frame.
    pub fn next<'a>(&mut self, octets: &'a mut [u8]) -> Result<Option<Fpdu<'a>>, Reject> {
        let Some(layout) = Layout::of(octets, self.position, self.framing.markers) else {
            return Ok(None);
        };
        let frame_len = layout.frame_len();
        let Some(frame) = octets.get_mut(..frame_len) else {
            return Ok(None);
        };
        if !layout.markers_fit(frame) {
            return Err(Reject::Marker);
        }
        if self.framing.crc && !layout.is_intact(frame) {
            return Err(Reject::Crc);
        }
        self.position += frame_len as u64;
        Ok(layout
            .strip(frame)
            .map(|(ulpdu, _)| Fpdu { ulpdu, frame_len }))
    }
}

#[cfg(test)]
mod tests;
