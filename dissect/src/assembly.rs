//! Reassembles bytes from segments that arrive in any order: one direction of a TCP stream, or the payload of a fragmented
//! IP packet.

use std::collections::BTreeMap;

/// How many parsed bytes are kept, to be compared with retransmissions.
const KEPT: usize = 4 << 20;

/// How many bytes after the first gap are kept.
const AHEAD: u64 = 16 << 20;

/// The bytes of one direction of a stream, or of an IP packet, as far as they have arrived.
#[derive(Debug, Default)]
pub(crate) struct Assembly {
    /// The offset of the first byte that is kept.
    start: u64,
    /// The bytes from `start` to the first gap.
    octets: Vec<u8>,
    /// Ranges of bytes after the first gap, by offset. They do not overlap; adjacent ranges stay separate, because joining
    /// them for each segment would copy a long range each time.
    ahead: BTreeMap<u64, Vec<u8>>,
}

/// The result of inserting bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Inserted {
    /// The bytes were inserted, or equal those that arrived before.
    Taken,
    /// Other bytes have arrived at these offsets before; none was inserted.
    Differ,
    /// The offset is too far before or after the bytes that are kept; none was inserted.
    Beyond,
}

impl Assembly {
    /// The offset of the first gap: after the last byte that has no gap before it.
    pub(crate) fn end(&self) -> u64 {
        self.start + self.octets.len() as u64
    }

    /// Returns the bytes from `offset` to the first gap; none if `offset` is not among the bytes that are kept.
    pub(crate) fn from(&self, offset: u64) -> &[u8] {
        let at = offset.checked_sub(self.start).map(|at| at as usize);
        at.and_then(|at| self.octets.get(at..)).unwrap_or(&[])
    }

    /// The offset after the last byte that was inserted, also if it follows a gap.
    pub(crate) fn furthest(&self) -> u64 {
        let ahead = self.ahead.last_key_value();
        ahead.map_or(self.end(), |(at, octets)| at + octets.len() as u64)
    }

    /// Returns whether any byte between these two offsets was inserted.
    pub(crate) fn has_any(&self, from: u64, to: u64) -> bool {
        let missing = self.gaps(from.max(self.end()), to);
        missing.iter().map(|(_, len)| *len as u64).sum::<u64>() < to - from
    }

    /// Returns the ranges of bytes after the first gap, each with its offset. Between any two of them is a gap.
    pub(crate) fn ahead(&self) -> Vec<(u64, Vec<u8>)> {
        let mut ranges: Vec<(u64, Vec<u8>)> = Vec::new();
        for (at, octets) in &self.ahead {
            match ranges.last_mut() {
                Some((from, range)) if *from + range.len() as u64 == *at => range.extend(octets),
                _ => ranges.push((*at, octets.clone())),
            }
        }
        ranges
    }

    pub(crate) fn insert(&mut self, offset: u64, octets: &[u8]) -> Inserted {
        let end = offset + octets.len() as u64;
        if offset < self.start || end > self.end() + AHEAD {
            return Inserted::Beyond;
        }
        if self.differs(offset, octets) {
            return Inserted::Differ;
        }
        for (at, len) in self.gaps(offset.max(self.end()), end) {
            let from = (at - offset) as usize;
            self.ahead.insert(at, octets[from..from + len].to_vec());
        }
        self.close();
        Inserted::Taken
    }

    /// Drops bytes that are more than [`KEPT`] before `offset`, which is parsed.
    pub(crate) fn forget(&mut self, offset: u64) {
        let behind = offset.saturating_sub(self.start) as usize;
        if behind > 2 * KEPT {
            let forgotten = (behind - KEPT).min(self.octets.len());
            self.octets.drain(..forgotten);
            self.start += forgotten as u64;
        }
    }

    fn differs(&self, offset: u64, octets: &[u8]) -> bool {
        let known = (offset < self.end()).then(|| (offset, self.from(offset)));
        let end = offset + octets.len() as u64;
        let ahead = self
            .ahead
            .range(..end)
            .map(|(at, octets)| (*at, &octets[..]));
        known.into_iter().chain(ahead).any(|(at, known)| {
            let (from, to) = (at.max(offset), end.min(at + known.len() as u64));
            from < to && stretch(known, at, from, to) != stretch(octets, offset, from, to)
        })
    }

    // Returns the gaps between these two offsets, as offset and length.
    fn gaps(&self, mut from: u64, to: u64) -> Vec<(u64, usize)> {
        let mut gaps = Vec::new();
        for (at, octets) in self.ahead.range(..to) {
            if *at > from {
                gaps.push((from, (at - from) as usize));
            }
            from = from.max(at + octets.len() as u64);
        }
        if from < to {
            gaps.push((from, (to - from) as usize));
        }
        gaps
    }

    fn close(&mut self) {
        while let Some(entry) = self.ahead.first_entry()
            && *entry.key() == self.start + self.octets.len() as u64
        {
            self.octets.append(&mut entry.remove());
        }
    }
}

// Returns the bytes between two offsets, out of bytes that begin at the offset `base`.
fn stretch(octets: &[u8], base: u64, from: u64, to: u64) -> Option<&[u8]> {
    octets.get((from - base) as usize..(to - base) as usize)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn segments_are_inserted_at_their_offsets() {
        let mut stream = Assembly::default();
        assert_eq!(stream.insert(3, b"def"), Inserted::Taken);
        assert_eq!(stream.insert(8, b"ij"), Inserted::Taken);
        assert_eq!((stream.from(0), stream.end()), (&b""[..], 0));
        assert_eq!(stream.insert(0, b"abcd"), Inserted::Taken);
        assert_eq!((stream.from(1), stream.end()), (&b"bcdef"[..], 6));
        assert_eq!(stream.ahead(), [(8, b"ij".to_vec())]);
        assert_eq!(stream.insert(5, b"fghijk"), Inserted::Taken);
        assert_eq!(stream.from(0), b"abcdefghijk");
        assert_eq!(stream.ahead(), []);
    }

    #[test]
    fn a_range_after_a_gap_is_one_however_many_segments_it_has() {
        let mut stream = Assembly::default();
        for (offset, octets) in [(4, b"ef"), (6, b"gh"), (2, b"cd"), (10, b"kl")] {
            assert_eq!(stream.insert(offset, octets), Inserted::Taken);
        }
        assert_eq!(
            stream.ahead(),
            [(2, b"cdefgh".to_vec()), (10, b"kl".to_vec())]
        );
    }

    #[test]
    fn retransmissions_change_nothing() {
        let mut stream = Assembly::default();
        stream.insert(0, b"abc");
        stream.insert(6, b"ghi");
        assert_eq!(stream.insert(1, b"bc"), Inserted::Taken);
        assert_eq!(stream.insert(1, b"bX"), Inserted::Differ);
        assert_eq!(stream.insert(5, b"fX"), Inserted::Differ);
        assert_eq!(stream.insert(2, b"cdefghX"), Inserted::Differ);
        assert_eq!(stream.from(0), b"abc");
        assert_eq!(stream.insert(1 << 40, b"x"), Inserted::Beyond);
    }

    #[test]
    fn bytes_far_behind_are_dropped() {
        let mut stream = Assembly::default();
        let chunk = vec![7; 1 << 20];
        for number in 0..12 {
            assert_eq!(stream.insert(number << 20, &chunk), Inserted::Taken);
            stream.forget(stream.end());
        }
        assert_eq!(stream.end(), 12 << 20);
        assert!(stream.octets.len() <= 2 * KEPT);
        assert_eq!(stream.insert(0, &chunk), Inserted::Beyond);
        assert_eq!(stream.from(stream.end() - 5).len(), 5);
    }

    proptest! {
        #[test]
        fn any_order_gives_the_same_stream(
            len in 1..200_usize,
            pieces in proptest::collection::vec((0..200_usize, 1..40_usize), 0..60),
        ) {
            let whole: Vec<u8> = (0..len).map(|at| (at * 7) as u8).collect();
            let mut stream = Assembly::default();
            let mut there = vec![false; len];
            for (from, count) in pieces {
                let (from, to) = (from.min(len), (from + count).min(len));
                prop_assert_eq!(stream.insert(from as u64, &whole[from..to]), Inserted::Taken);
                there[from..to].fill(true);
            }
            let end = there.iter().position(|there| !there).unwrap_or(len);
            prop_assert_eq!(stream.from(0), &whole[..end]);
            let ahead: usize = stream.ahead().iter().map(|(_, octets)| octets.len()).sum();
            prop_assert_eq!(ahead, there[end..].iter().filter(|there| **there).count());
        }
    }
}
