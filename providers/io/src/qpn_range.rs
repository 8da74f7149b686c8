//! Ranges of QP numbers: each process on a port leases one, and numbers its queue pairs in it.

/// The number of ranges of a port. Range 0 is leased to no process.
pub const RANGES: usize = 64;

/// One of 64 ranges of QP numbers: the numbers with the same upper six bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct QpnRange(u8);

impl QpnRange {
    /// The range of all processes. QP 1 is in it, and no process leases it.
    pub const COMMON: Self = Self(0);

    /// The number of lower bits of a QP number in which the numbers of one range differ.
    pub const SHIFT: u32 = 18;

    /// The number of lower bits of a communication ID in which the IDs of one range differ.
    pub const COMMUNICATION_SHIFT: u32 = 26;

    /// Returns the range with this index; `None` if there is no such range.
    pub(crate) fn of_index(index: usize) -> Option<Self> {
        (index < RANGES).then_some(Self(index as u8))
    }

    /// Returns the range of a QP number.
    pub const fn of_qpn(qpn: u32) -> Self {
        Self((qpn >> Self::SHIFT & 0x3f) as u8)
    }

    /// Returns the range of a datagram: that of the destination QP in its BTH (IBTA 9.2). A datagram that is too short is
    /// in the common range.
    pub fn of_datagram(datagram: &[u8]) -> Self {
        let word = datagram.get(4..).and_then(|rest| rest.first_chunk());
        word.map_or(Self::COMMON, |word| Self::of_qpn(u32::from_be_bytes(*word)))
    }

    /// Returns the range of the process that chose a communication ID: its upper six bits.
    pub const fn of_communication(id: u32) -> Self {
        Self((id >> Self::COMMUNICATION_SHIFT) as u8)
    }

    /// Returns the communication ID of this range with the lower 26 bits of `number`.
    pub const fn communication(self, number: u32) -> u32 {
        (self.0 as u32) << Self::COMMUNICATION_SHIFT | number & 0x3ff_ffff
    }

    /// The index of the range, from 0 to 63.
    pub const fn index(self) -> usize {
        self.0 as usize
    }

    /// The first QP number of the range.
    pub const fn first(self) -> u32 {
        (self.0 as u32) << Self::SHIFT
    }

    /// The number after the last QP number of the range. The highest number of all is that of multicast, which no QP has.
    pub const fn end(self) -> u32 {
        let end = (self.0 as u32 + 1) << Self::SHIFT;
        if end > 0xff_ffff { 0xff_ffff } else { end }
    }

    /// Returns every range that a process can lease: all but range 0.
    pub(crate) fn leased() -> impl Iterator<Item = Self> {
        (1..RANGES as u8).map(Self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ranges_are_all_numbers_but_that_of_multicast() {
        let mut next = 0;
        for index in 0..64 {
            let range = QpnRange(index);
            assert_eq!(range.first(), next);
            for qpn in [range.first(), range.end() - 1] {
                assert_eq!(QpnRange::of_qpn(qpn), range);
            }
            next = range.end();
        }
        assert_eq!(next, 0xff_ffff);
    }

    #[test]
    fn a_datagram_has_the_range_of_its_queue_pair() {
        let mut datagram = [0xff; 12];
        datagram[5..8].copy_from_slice(&[0x81, 0, 7]);
        assert_eq!(QpnRange::of_datagram(&datagram).index(), 0x20);
        assert_eq!(QpnRange::of_datagram(&datagram[..7]), QpnRange::COMMON);
    }

    #[test]
    fn a_communication_id_names_the_range_that_made_it() {
        let range = QpnRange(45);
        let id = range.communication(u32::MAX);
        assert_eq!(QpnRange::of_communication(id), range);
        assert_eq!(range.communication(5) & 0x3ff_ffff, 5);
    }
}
