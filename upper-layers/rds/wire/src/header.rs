use zerocopy::{
    FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned,
    byteorder::big_endian::{U16, U32, U64},
};

use crate::Extensions;

/// Bytes of a header.
pub const HEADER: usize = 48;

bitflags::bitflags! {
    /// What a fragment is, and what is asked of who receives it. Bits without a name are kept.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct Flags: u8 {
        /// The message is the sender's congestion map.
        const CONG_BITMAP = 1;
        /// An acknowledge is wanted soon.
        const ACK_REQUIRED = 2;
        /// The message was sent before, over a connection that has ended.
        const RETRANSMITTED = 4;
    }
}

/// What each fragment begins with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// The message's number among all of this direction of the path.
    pub sequence: u64,
    /// The highest number that has arrived in the other direction.
    pub ack: u64,
    /// Bytes of the whole message.
    pub length: u32,
    /// The socket that has sent it.
    pub source_port: u16,
    /// The socket that it is for.
    pub destination_port: u16,
    /// What the fragment is.
    pub flags: Flags,
    /// Receives that the sender has posted since it said so last.
    pub credit: u8,
    /// What else there is to say.
    pub extensions: Extensions,
}

/// Why bytes are no header. The connection that brought them is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HeaderError {
    /// There are fewer than [`HEADER`] bytes.
    #[error("fewer bytes than a header has")]
    TooShort,
    /// The checksum is wrong.
    #[error("a wrong checksum")]
    Checksum,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Layout {
    sequence: U64,
    ack: U64,
    length: U32,
    source_port: U16,
    destination_port: U16,
    flags: u8,
    credit: u8,
    padding: [u8; 4],
    checksum: U16,
    extensions: [u8; 16],
}

const _: () = assert!(size_of::<Layout>() == HEADER);

impl Header {
    /// Reads the header at the front of `bytes`. A checksum of 0 is not checked.
    ///
    /// # Errors
    /// Too few bytes; a wrong checksum.
    pub fn parse(bytes: &[u8]) -> Result<Self, HeaderError> {
        let (layout, _) = Layout::ref_from_prefix(bytes).map_err(|_| HeaderError::TooShort)?;
        if layout.checksum.get() != 0 && checksum(zerocopy::transmute_ref!(layout)) != 0 {
            return Err(HeaderError::Checksum);
        }
        Ok(Self {
            sequence: layout.sequence.get(),
            ack: layout.ack.get(),
            length: layout.length.get(),
            source_port: layout.source_port.get(),
            destination_port: layout.destination_port.get(),
            flags: Flags::from_bits_retain(layout.flags),
            credit: layout.credit,
            extensions: Extensions::from_bytes(layout.extensions),
        })
    }

    /// The bytes, with their checksum.
    pub fn to_bytes(&self) -> [u8; HEADER] {
        let mut layout = Layout {
            sequence: self.sequence.into(),
            ack: self.ack.into(),
            length: self.length.into(),
            source_port: self.source_port.into(),
            destination_port: self.destination_port.into(),
            flags: self.flags.bits(),
            credit: self.credit,
            padding: [0; 4],
            checksum: U16::ZERO,
            extensions: *self.extensions.bytes(),
        };
        layout.checksum = checksum(zerocopy::transmute_ref!(&layout)).into();
        zerocopy::transmute!(layout)
    }

    /// Whether this is no fragment of a message: both ports are 0, and no data follows.
    pub fn is_ack_only(&self, data_length: usize) -> bool {
        self.source_port == 0 && self.destination_port == 0 && data_length == 0
    }

    /// Whether what follows it is a congestion map.
    pub fn is_map(&self) -> bool {
        self.flags == Flags::CONG_BITMAP
    }
}

/// The Internet checksum (RFC 1071) of a header: what belongs into the field where that holds 0, and 0 where it holds it.
pub fn checksum(header: &[u8; HEADER]) -> u16 {
    let words = header.chunks_exact(2);
    let sum: u32 = words
        .map(|word| u32::from(word[0]) << 8 | u32::from(word[1]))
        .sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    !((folded & 0xffff) + (folded >> 16)) as u16
}

#[cfg(test)]
mod tests {
    use hex_literal::hex;
    use proptest::prelude::*;

    use super::*;
    use crate::Extension;

    const BYTES: [u8; HEADER] = hex!(
        "0102030405060708" "1112131415161718" "00001001" "0fa0" "1388" "02" "09" "00000000" "52ed"
        "03aabbccdd0000007b 00000000000000"
    );

    fn header() -> Header {
        Header {
            sequence: 0x0102_0304_0506_0708,
            ack: 0x1112_1314_1516_1718,
            length: 4097,
            source_port: 4000,
            destination_port: 5000,
            flags: Flags::ACK_REQUIRED,
            credit: 9,
            extensions: Extensions::of(Extension::RdmaDestination {
                rkey: 0xaabb_ccdd,
                offset: 123,
            }),
        }
    }

    // covers 8.26
    #[test]
    fn a_header_is_48_bytes_with_the_internet_checksum_of_all_of_them() {
        assert_eq!(header().to_bytes(), BYTES);
        assert_eq!(Header::parse(&BYTES), Ok(header()));
    }

    // covers 8.26
    #[test]
    fn each_wrong_bit_is_found() {
        for bit in 0..8 * HEADER {
            let mut bytes = BYTES;
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Header::parse(&bytes), Err(HeaderError::Checksum), "{bit}");
        }
    }

    // covers 8.26
    #[test]
    fn a_checksum_of_0_is_not_checked() {
        let mut bytes = BYTES;
        bytes[30..32].fill(0);
        bytes[29] = 0xff;
        assert_eq!(Header::parse(&bytes), Ok(header()));
    }

    #[test]
    fn fewer_bytes_are_no_header_and_more_are_the_data_behind_it() {
        for length in 0..HEADER {
            assert_eq!(Header::parse(&BYTES[..length]), Err(HeaderError::TooShort));
        }
        assert_eq!(
            Header::parse(&[&BYTES[..], &[7; 100]].concat()),
            Ok(header())
        );
    }

    #[test]
    fn an_acknowledge_alone_has_neither_ports_nor_data() {
        let ack = Header {
            ack: 5,
            ..Header::default()
        };
        assert!(ack.is_ack_only(0));
        assert!(!ack.is_ack_only(1));
        let ping = Header {
            source_port: 4000,
            ..ack
        };
        assert!(!ping.is_ack_only(0));
        let pong = Header {
            destination_port: 4000,
            ..ack
        };
        assert!(!pong.is_ack_only(0));
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_again(
            sequence: u64, ack: u64, length: u32, ports: (u16, u16), flags: u8, credit: u8, extensions: [u8; 16],
        ) {
            let header = Header {
                sequence,
                ack,
                length,
                source_port: ports.0,
                destination_port: ports.1,
                flags: Flags::from_bits_retain(flags),
                credit,
                extensions: Extensions::from_bytes(extensions),
            };
            prop_assert_eq!(Header::parse(&header.to_bytes()), Ok(header));
        }
    }
}
