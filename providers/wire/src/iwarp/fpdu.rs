//! FPDUs, the frames of MPA (RFC 5044 section 4).
//!
//! ```text
//! ULPDU_Length, 2 octets | ULPDU | pad to a multiple of four | CRC, 4 octets
//! ```
//!
//! If the receiver asked for markers, the sender puts a marker of four bytes before the first byte of the stream, and after
//! each further 508 other bytes. A marker says how many bytes before it its frame began. A marker between two frames
//! belongs to the second, one between pad and CRC belongs to the frame that ends there. The CRC covers the markers of its
//! frame, and no marker divides it.
//!
//! A [`Direction`] encodes frames or finds them in received bytes, and a [`Layout`] gives the position of each part of a
//! frame.

use super::Reject;

/// Length of an MPA marker, in bytes.
pub const MARKER_LEN: usize = 4;

/// Bytes of the stream from one marker to the next, one marker included.
pub const MARKER_INTERVAL: usize = 512;

/// Length of the CRC field in bytes. The field is there even if no CRC is used.
pub const CRC_LEN: usize = 4;

/// Length of the longest FPDU in bytes, with as many markers as it can contain.
pub const MAX_FRAME_LEN: usize = Layout::new(u16::MAX, 0, true).frame_len();

const LENGTH_LEN: usize = 2;
const BETWEEN_MARKERS: usize = MARKER_INTERVAL - MARKER_LEN;

/// The framing that both ends have negotiated for one direction of a stream: see [`Settings`](super::Settings).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Framing {
    /// Whether the sender puts markers into the stream.
    pub markers: bool,
    /// Whether the sender computes the CRC and the receiver checks it.
    pub crc: bool,
}

/// The position of each part of a frame, in bytes from the beginning of the frame. The frame may begin with a marker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    ulpdu_len: u16,
    /// The number of bytes, without markers, that precede the first marker in the frame; `None` if the stream has no
    /// markers.
    first_marker: Option<usize>,
}

impl Layout {
    /// Returns the layout of a frame with a ULPDU of `ulpdu_len` bytes. `position` is the position of the frame in the
    /// stream: the number of bytes since full operation began, markers included.
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

    /// Returns the layout of the frame with which the input begins; `None` if its length field has not arrived yet.
    pub fn of(octets: &[u8], position: u64, markers: bool) -> Option<Self> {
        let none = Self::new(0, position, markers);
        let length = octets.get(none.begin()..)?.first_chunk()?;
        Some(Self::new(u16::from_be_bytes(*length), position, markers))
    }

    /// Length of the ULPDU, in bytes.
    pub const fn ulpdu_len(self) -> usize {
        self.ulpdu_len as usize
    }

    /// Length of the pad after the ULPDU, in bytes.
    pub const fn pad_len(self) -> usize {
        (LENGTH_LEN + self.ulpdu_len()).wrapping_neg() & 3
    }

    /// Length of the frame on the stream in bytes, markers included.
    pub const fn frame_len(self) -> usize {
        self.content_len() + MARKER_LEN * self.markers()
    }

    /// Number of markers in the frame.
    pub const fn markers(self) -> usize {
        match self.first_marker {
            Some(first) if first < self.content_len() => {
                1 + (self.content_len() - 1 - first) / BETWEEN_MARKERS
            }
            _ => 0,
        }
    }

    /// Returns the position of each marker in the frame, and the FPDUPTR that it should have.
    pub fn each_marker(self) -> impl Iterator<Item = (usize, u16)> {
        let first = self.first_marker.unwrap_or(0);
        (0..self.markers()).map(move |number| {
            let at = first + MARKER_INTERVAL * number;
            (at, at.saturating_sub(self.begin()) as u16)
        })
    }

    /// The position of the CRC, which covers everything before it.
    pub const fn crc_at(self) -> usize {
        self.frame_len() - CRC_LEN
    }

    /// The position of the ULPDU_Length field.
    const fn begin(self) -> usize {
        match self.first_marker {
            Some(0) => MARKER_LEN,
            _ => 0,
        }
    }

    /// Length of the frame in bytes, markers not counted.
    const fn content_len(self) -> usize {
        LENGTH_LEN + self.ulpdu_len() + self.pad_len() + CRC_LEN
    }

    /// Returns whether the CRC of a frame with this layout is right.
    pub fn is_intact(self, frame: &[u8]) -> bool {
        let parts = frame.split_at_checked(self.crc_at());
        let parts = parts.and_then(|(covered, rest)| Some((covered, rest.first_chunk()?)));
        parts.is_some_and(|(covered, crc)| checksum(covered) == *crc)
    }

    /// Returns whether the markers of a frame with this layout point at its beginning. The reserved half of a marker and
    /// the two lowest bits of its FPDUPTR are ignored (RFC 5044 section 4.3).
    pub fn markers_fit(self, frame: &[u8]) -> bool {
        self.each_marker().all(|(at, pointer)| {
            let found = frame.get(at + 2..).and_then(|octets| octets.first_chunk());
            found.is_some_and(|found| u16::from_be_bytes(*found) & !3 == pointer)
        })
    }

    /// Makes gaps in a frame that was written without markers, and writes markers into the gaps.
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

    /// Removes the markers from the frame in place, and returns its ULPDU and its pad; `None` if the frame is incomplete.
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

/// Returns the CRC over the part of a frame that precedes the CRC field, in the byte order of the wire: least significant
/// byte first.
pub fn checksum(covered: &[u8]) -> [u8; CRC_LEN] {
    crc32c::crc32c(covered).to_le_bytes()
}

/// Returns MULPDU: the length in bytes of the longest ULPDU whose frame fits into one TCP segment (RFC 5044 section 4.5).
///
/// `emss` is the most payload bytes of a TCP segment. The result is at least 128, which MPA guarantees to DDP even if a
/// segment is smaller.
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

/// One direction of a stream, seen by its sender or by its receiver, and the position that it has reached.
#[derive(Clone, Copy, Debug, Default)]
pub struct Direction {
    /// The framing that both ends have negotiated for this direction.
    pub framing: Framing,
    /// The position of the next frame: the length in bytes of all frames since full operation began.
    pub position: u64,
}

/// A received FPDU, without its markers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fpdu<'a> {
    /// The ULPDU of the frame: a DDP segment.
    pub ulpdu: &'a [u8],
    /// Length of the frame on the stream, in bytes.
    pub frame_len: usize,
}

impl Direction {
    /// Creates a direction at the beginning of full operation.
    pub const fn new(framing: Framing) -> Self {
        Self {
            framing,
            position: 0,
        }
    }

    /// Encodes a frame of this layout into `frame`, and advances the position to the next frame. `fill` writes the ULPDU to
    /// the beginning of the slice that it gets.
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

    /// Returns the layout of the next frame if its ULPDU has `ulpdu_len` bytes.
    pub const fn layout(&self, ulpdu_len: u16) -> Layout {
        Layout::new(ulpdu_len, self.position, self.framing.markers)
    }

    /// Encodes a frame whose ULPDU consists of the given pieces to the beginning of `out`, and returns its length. Returns
    /// `None` if `out` is too short, or if the ULPDU is too long for a frame.
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

    /// Returns the frame with which the received bytes begin, without its markers, which are removed in place; `None` while
    /// the frame is incomplete. Advances the position to the next frame.
    ///
    /// # Errors
    /// The reason to end the stream: a marker or the CRC is wrong, so the position of the next frame is not certain.
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
