//! The wire format of stream rsockets.
//!
//! A connection is a pair of rings. In request and reply each side names its *list of targets*; the peer writes into an entry
//! of it where the next half of its receive ring is. The program's bytes are written there by RDMA, and each write is followed
//! by a *message* of 32 bits: as immediate data, or, where the transport has none, as a send of four bytes.
//!
//! ```text
//!  request, reply     version  flags  credits(16)  0(24)  maps(8)   list of targets   first half of the ring
//!  target             address(64)  key(32)  length(32)
//!  map                offset(64)   target
//!  message            kind(3)  value(29)
//! ```
//!
//! Request and reply are in network order. Targets and maps are in the byte order of the side in whose memory they lie, because
//! that side reads them there.

/// A range of registered memory that the peer may write by RDMA.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Target {
    /// The address of the first byte of the memory.
    pub(crate) addr: u64,
    /// The R_Key of the memory.
    pub(crate) key: u32,
    /// The length of the memory in bytes; for a list of targets, the number of its entries.
    pub(crate) length: u32,
}

/// The byte order of the memory of one side, which it announces in its connection data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ByteOrder {
    Big,
    Little,
}

impl ByteOrder {
    /// The byte order of this machine.
    pub(crate) const HERE: Self = if cfg!(target_endian = "big") {
        Self::Big
    } else {
        Self::Little
    };

    fn u32(self, value: u32) -> [u8; 4] {
        match self {
            Self::Big => value.to_be_bytes(),
            Self::Little => value.to_le_bytes(),
        }
    }

    fn u64(self, value: u64) -> [u8; 8] {
        match self {
            Self::Big => value.to_be_bytes(),
            Self::Little => value.to_le_bytes(),
        }
    }
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_be_bytes(*bytes.get(at..)?.first_chunk()?))
}

impl Target {
    /// The length of an encoded target, in bytes.
    pub(crate) const LEN: usize = 16;

    pub(crate) fn emit(&self, order: ByteOrder) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[..8].copy_from_slice(&order.u64(self.addr));
        bytes[8..12].copy_from_slice(&order.u32(self.key));
        bytes[12..].copy_from_slice(&order.u32(self.length));
        bytes
    }

    fn parse(bytes: &[u8]) -> Option<Self> {
        Some(Self {
            addr: u64_at(bytes, 0)?,
            key: u32_at(bytes, 8)?,
            length: u32_at(bytes, 12)?,
        })
    }
}

/// A map (`riomap`): memory of the peer's program that this side may write by `riowrite`, at an offset that the peer's
/// program has chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Map {
    /// The offset that stands for the first byte of the memory.
    pub(crate) offset: u64,
    /// The memory of the peer's program.
    pub(crate) target: Target,
}

impl Map {
    /// The length of an encoded map, in bytes.
    pub(crate) const LEN: usize = 8 + Target::LEN;

    pub(crate) fn emit(&self, order: ByteOrder) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[..8].copy_from_slice(&order.u64(self.offset));
        bytes[8..].copy_from_slice(&self.target.emit(order));
        bytes
    }

    /// Parses a map that the peer has written to this side's memory, in this machine's byte order.
    pub(crate) fn read(bytes: &[u8; Self::LEN]) -> Self {
        let word = |at: usize| {
            let mut word = [0; 4];
            word.copy_from_slice(&bytes[at..at + 4]);
            u32::from_ne_bytes(word)
        };
        let long = |at: usize| {
            let mut long = [0; 8];
            long.copy_from_slice(&bytes[at..at + 8]);
            u64::from_ne_bytes(long)
        };
        Self {
            offset: long(0),
            target: Target {
                addr: long(8),
                key: word(16),
                length: word(20),
            },
        }
    }

    /// The part of the map's memory from `offset` to the end; `None` if the map does not include the offset.
    pub(crate) fn find(&self, offset: u64) -> Option<Target> {
        let into = offset.checked_sub(self.offset)?;
        let left = u64::from(self.target.length).checked_sub(into)?;
        (left > 0).then(|| Target {
            addr: self.target.addr.wrapping_add(into),
            key: self.target.key,
            length: left as u32,
        })
    }
}

/// The parameters that each side sends to the other, in the private data of the connection request and reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ConnData {
    /// The byte order of the sender's memory.
    pub(crate) order: ByteOrder,
    /// The number of messages that the peer may send before it gets further credits.
    pub(crate) credits: u16,
    /// The number of maps that the peer may announce; `None` if the peer's version of the protocol does not state it.
    pub(crate) maps: Option<u32>,
    /// The list of targets of the sender, which is followed in memory by its list of maps.
    pub(crate) list: Target,
    /// The first half of the sender's receive ring, which the peer fills first.
    pub(crate) ring: Target,
}

const VERSION: u8 = 1;
const BIG_ENDIAN: u8 = 1;
const HAS_MAPS: u8 = 1 << 1;

impl ConnData {
    /// The length of encoded connection data, in bytes.
    pub(crate) const LEN: usize = 8 + 2 * Target::LEN;

    pub(crate) fn emit(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[0] = VERSION;
        if self.order == ByteOrder::Big {
            bytes[1] |= BIG_ENDIAN;
        }
        if let Some(maps) = self.maps {
            bytes[1] |= HAS_MAPS;
            bytes[7] = to_scale(maps);
        }
        bytes[2..4].copy_from_slice(&self.credits.to_be_bytes());
        bytes[8..24].copy_from_slice(&self.list.emit(ByteOrder::Big));
        bytes[24..].copy_from_slice(&self.ring.emit(ByteOrder::Big));
        bytes
    }

    /// Parses connection data. Returns `None` if `bytes` is too short or has another version of the protocol. Bytes
    /// after the connection data are padding.
    pub(crate) fn parse(bytes: &[u8]) -> Option<Self> {
        let bytes = bytes.get(..Self::LEN)?;
        let flags = bytes[1];
        let order = match flags & BIG_ENDIAN {
            0 => ByteOrder::Little,
            _ => ByteOrder::Big,
        };
        (bytes[0] == VERSION).then_some(Self {
            order,
            credits: u16::from_be_bytes([bytes[2], bytes[3]]),
            maps: (flags & HAS_MAPS != 0).then(|| from_scale(bytes[7])),
            list: Target::parse(&bytes[8..])?,
            ring: Target::parse(&bytes[24..])?,
        })
    }

    /// The address in the memory of the sender of this connection data at which the peer has to write its map with this
    /// index.
    pub(crate) fn map_address(&self, index: u32) -> u64 {
        let before =
            u64::from(self.list.length) * Target::LEN as u64 + u64::from(index) * Map::LEN as u64;
        self.list.addr.wrapping_add(before)
    }
}

const SCALED: u8 = 1 << 7;

/// Encodes a number in eight bits: up to 128 as it is, larger ones in steps of 256.
fn to_scale(value: u32) -> u8 {
    match value {
        0..=128 => value as u8,
        _ => SCALED | (value >> 8).min(127) as u8,
    }
}

fn from_scale(scaled: u8) -> u32 {
    match scaled {
        0..=SCALED => u32::from(scaled),
        _ => u32::from(scaled & !SCALED) << 8,
    }
}

/// Rounds `wanted`, the number of memory maps (`riomap`) that a side has room for, down to a number that the eight bits
/// in its connection data can announce.
pub(crate) fn maps_told(wanted: u32) -> u32 {
    from_scale(to_scale(wanted))
}

/// A message of 32 bits, which a side sends after each RDMA write to the peer's receive ring, and also without a write
/// to inform the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Message {
    /// The sender has written this many bytes to the receiver's ring.
    Data(u32),
    /// The receiver may send messages up to this number (credits). The sender may also have written a new target to the
    /// receiver's list of targets.
    Credits(u16),
    /// The sender has written the map with this index to the receiver's list of maps.
    Mapped(u32),
    /// The sender neither sends nor receives from now on.
    Disconnect,
    /// A keep-alive without content.
    KeepAlive,
    /// The sender sends no data from now on; it still receives.
    Shutdown,
    /// A message that this version of the protocol does not define.
    Unknown(u32),
}

const KIND: u32 = 29;
const VALUE: u32 = (1 << KIND) - 1;
const DATA: u32 = 0;
const CREDITS: u32 = 4;
const MAPPED: u32 = 6;
const CONTROL: u32 = 7;

impl Message {
    /// The most bytes of one RDMA write that a [`Data`](Self::Data) message can announce.
    pub(crate) const MOST: u32 = VALUE;

    pub(crate) fn bits(self) -> u32 {
        let (kind, value) = match self {
            Self::Data(bytes) => (DATA, bytes),
            Self::Credits(limit) => (CREDITS, u32::from(limit)),
            Self::Mapped(index) => (MAPPED, index),
            Self::Disconnect => (CONTROL, 0),
            Self::KeepAlive => (CONTROL, 1),
            Self::Shutdown => (CONTROL, 2),
            Self::Unknown(bits) => return bits,
        };
        kind << KIND | value & VALUE
    }

    pub(crate) fn of_bits(bits: u32) -> Self {
        let value = bits & VALUE;
        match (bits >> KIND, value) {
            (DATA, bytes) => Self::Data(bytes),
            // Message numbers have 16 bits; some senders put larger ones, which wrap, into the field.
            (CREDITS, limit) => Self::Credits(limit as u16),
            (MAPPED, index) => Self::Mapped(index),
            (CONTROL, 0) => Self::Disconnect,
            (CONTROL, 1) => Self::KeepAlive,
            (CONTROL, 2) => Self::Shutdown,
            _ => Self::Unknown(bits),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HELLO: ConnData = ConnData {
        order: ByteOrder::Little,
        credits: 384,
        maps: Some(1),
        list: Target {
            addr: 0x0102_0304_0506_0708,
            key: 0x1112_1314,
            length: 2,
        },
        ring: Target {
            addr: 0x2122_2324_2526_2728,
            key: 0x3132_3334,
            length: 65536,
        },
    };

    #[test]
    fn connection_data_has_forty_bytes_in_network_order() {
        let bytes = HELLO.emit();
        assert_eq!(bytes.len(), 40);
        assert_eq!(bytes[..8], [1, 2, 1, 0x80, 0, 0, 0, 1]);
        assert_eq!(bytes[8..16], [1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(bytes[16..24], [0x11, 0x12, 0x13, 0x14, 0, 0, 0, 2]);
        assert_eq!(bytes[36..], [0, 1, 0, 0]);
        let mut padded = bytes.to_vec();
        padded.resize(56, 0);
        assert_eq!(ConnData::parse(&padded), Some(HELLO));
    }

    #[test]
    fn short_connection_data_or_another_version_is_refused() {
        let mut bytes = HELLO.emit();
        for short in 0..bytes.len() {
            assert_eq!(ConnData::parse(&bytes[..short]), None);
        }
        bytes[0] = 2;
        assert_eq!(ConnData::parse(&bytes), None);
    }

    #[test]
    fn messages_survive_encoding() {
        for (message, bits) in [
            (Message::Data(1000), 1000),
            (Message::Credits(0xfffe), 0x8000_fffe),
            (Message::Mapped(3), 0xc000_0003),
            (Message::Disconnect, 0xe000_0000),
            (Message::KeepAlive, 0xe000_0001),
            (Message::Shutdown, 0xe000_0002),
            (Message::Unknown(0x2000_0000), 0x2000_0000),
        ] {
            assert_eq!(message.bits(), bits);
            assert_eq!(Message::of_bits(bits), message);
        }
        assert_eq!(Message::of_bits(0x8001_0005), Message::Credits(5));
    }

    #[test]
    fn a_map_survives_encoding_and_is_found_by_offset() {
        let map = Map {
            offset: 1000,
            target: Target {
                addr: 0x7000,
                key: 9,
                length: 100,
            },
        };
        assert_eq!(Map::read(&map.emit(ByteOrder::HERE)), map);
        let found = map.find(1040).unwrap();
        assert_eq!((found.addr, found.key, found.length), (0x7028, 9, 60));
        assert_eq!((map.find(999), map.find(1100)), (None, None));
        // The maps follow two targets.
        assert_eq!(HELLO.map_address(2), HELLO.list.addr + 32 + 48);
    }

    #[test]
    fn a_map_is_written_in_the_byte_order_of_its_memory() {
        let target = Target {
            addr: 1,
            key: 2,
            length: 3,
        };
        let bytes = target.emit(ByteOrder::Big);
        assert_eq!(bytes, [0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 3]);
        let bytes = target.emit(ByteOrder::Little);
        assert_eq!(bytes, [1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0]);
    }

    #[test]
    fn map_counts_are_encoded_in_eight_bits() {
        assert_eq!([0, 1, 128].map(maps_told), [0, 1, 128]);
        assert_eq!([256, 1000, u32::MAX].map(maps_told), [256, 768, 127 << 8]);
    }
}
