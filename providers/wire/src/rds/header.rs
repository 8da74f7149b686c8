use zerocopy::{
    FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned,
    byteorder::big_endian::{U16, U32, U64},
};

use super::Extensions;

/// Length of the header of an RDS fragment, in bytes.
pub const HEADER: usize = 48;

bitflags::bitflags! {
    /// Flags of a fragment. Bits without a name are kept when a header is decoded and encoded.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct Flags: u8 {
        /// The payload of the message is the sender's congestion map.
        const CONG_BITMAP = 1;
        /// The sender asks for an acknowledgment soon.
        const ACK_REQUIRED = 2;
        /// The message is a retransmission: it was sent before, over a connection that has ended.
        const RETRANSMITTED = 4;
    }
}

/// The header of each fragment of an RDS message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// The sequence number of the message, counted for this direction of the path.
    pub sequence: u64,
    /// The highest sequence number that the sender of this header has received in the other direction.
    pub ack: u64,
    /// Length of the whole message, in bytes.
    pub length: u32,
    /// The RDS port of the sending socket.
    pub source_port: u16,
    /// The RDS port of the receiving socket.
    pub destination_port: u16,
    /// The flags of the fragment.
    pub flags: Flags,
    /// The number of receives that the sender has posted since its previous header (flow control credit).
    pub credit: u8,
    /// The extension headers of the message.
    pub extensions: Extensions,
}

/// The reason why the input is not a header of a fragment. The receiver drops the connection that delivered it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HeaderError {
    /// The input has fewer than [`HEADER`] bytes.
    #[error("fewer bytes than a header has")]
    TooShort,
    /// The checksum of the header is wrong.
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
    /// Decodes the header with which the input begins. A checksum of 0 is not checked.
    ///
    /// # Errors
    /// The input is too short, or the checksum is wrong.
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

    /// Encodes the header, and computes its checksum.
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

    /// Returns whether a fragment with this header and `data_length` bytes of payload carries only an acknowledgment: both
    /// ports are 0, and there is no payload.
    pub fn is_ack_only(&self, data_length: usize) -> bool {
        self.source_port == 0 && self.destination_port == 0 && data_length == 0
    }

    /// Returns whether the payload of the message is a congestion map.
    pub fn is_map(&self) -> bool {
        self.flags == Flags::CONG_BITMAP
    }
}

/// Computes the Internet checksum (RFC 1071) of a header. If the checksum field of the input is 0, the result is the value
/// for that field; otherwise the result is 0 if the field is right.
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

    use super::super::Extension;
    use super::*;

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
    fn a_header_is_48_bytes_with_the_checksum_of_all_of_them() {
        assert_eq!(header().to_bytes(), BYTES);
        assert_eq!(Header::parse(&BYTES), Ok(header()));
    }

    // covers 8.26
    #[test]
    fn each_flipped_bit_is_detected() {
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
    fn short_input_is_refused_and_bytes_after_it_ignored() {
        for length in 0..HEADER {
            assert_eq!(Header::parse(&BYTES[..length]), Err(HeaderError::TooShort));
        }
        assert_eq!(
            Header::parse(&[&BYTES[..], &[7; 100]].concat()),
            Ok(header())
        );
    }

    #[test]
    fn only_a_header_without_ports_and_data_is_an_ack_only() {
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
        fn every_header_decodes_to_the_one_that_was_encoded(
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
