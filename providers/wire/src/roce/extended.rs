//! The extended headers, which follow the BTH (IBTA 9.3 to 9.5; XRC annex A14; memory placement extensions annex A19).
//!
//! The opcode alone decides which extended headers a packet has. Several of them follow each other in the order of
//! [`HeaderSet`]'s bits.

use super::aeth::{Aeth, Syndrome};
use crate::layout::{Header, Octets, Reserved, header};

/// Expands the macro `$table` with a row for each extended header, in their order on the wire: bit, constant of
/// [`HeaderSet`], field of [`Headers`](super::Headers), type, name.
macro_rules! for_extended_headers {
    ($table:ident) => {
        $table! {
            0 DETH deth Deth "DETH";
            1 XRCETH xrceth Xrceth "XRCETH";
            2 FETH feth Feth "FETH";
            3 RETH reth Reth "RETH";
            4 ATOMIC_ETH atomic_eth AtomicEth "AtomicETH";
            5 AETH aeth Aeth "AETH";
            6 ATOMIC_ACK_ETH atomic_ack_eth AtomicAckEth "AtomicAckETH";
            7 IMM_DT imm_dt ImmDt "ImmDt";
            8 IETH ieth Ieth "IETH";
            9 EXTENSION_ETH extension_eth ExtensionEth "ExtensionETH";
            10 CNP cnp Cnp "CNP";
        }
    };
}
pub(super) use for_extended_headers;

/// An extended header, which follows the BTH.
pub trait ExtendedHeader: Header {
    /// The set that contains only this header.
    const SET: HeaderSet;
}

macro_rules! header_set {
    ($($bit:literal $set:ident $field:ident $header:ident $name:literal;)*) => {
        bitflags::bitflags! {
            /// A set of extended headers. The bits are in the order of the headers on the wire.
            #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
            pub struct HeaderSet: u16 {
                $(
                    #[doc = concat!("[`", stringify!($header), "`].")]
                    const $set = 1 << $bit;
                )*
            }
        }

        $(
            impl ExtendedHeader for $header {
                const SET: HeaderSet = HeaderSet::$set;
            }
        )*

        const LENGTHS: [usize; KINDS] = [$($header::LEN),*];
        const NAMES: [&str; KINDS] = [$($name),*];
    };
}
for_extended_headers!(header_set);

/// The number of kinds of extended headers.
pub(super) const KINDS: usize = HeaderSet::all().bits().count_ones() as usize;

impl HeaderSet {
    /// Returns the offset in bytes that each kind of header has in this set, and the length in bytes of all headers of the
    /// set together.
    pub(super) const fn layout(self) -> ([u8; KINDS], usize) {
        let (mut offsets, mut at, mut length) = ([0; KINDS], 0, 0);
        while at < KINDS {
            offsets[at] = length as u8;
            if self.bits() >> at & 1 == 1 {
                length += LENGTHS[at];
            }
            at += 1;
        }
        (offsets, length)
    }

    /// Returns the names of the headers in the set, in their order on the wire.
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        let has = move |(at, _): &(usize, &str)| self.bits() >> at & 1 == 1;
        NAMES
            .into_iter()
            .enumerate()
            .filter(has)
            .map(|(_, name)| name)
    }
}

header! {
    /// Datagram extended transport header: source QP and Q_Key.
    Deth, DethView: 8 octets {
        q_key: u32 = 32, "The Q_Key, which must be that of the receiving queue pair.";
        reserved: Reserved = 8, "Zero.";
        src_qp: u32 = 24, "The number of the sending queue pair: 24 bits.";
    }
}

header! {
    /// XRC extended transport header: the shared receive queue.
    Xrceth, XrcethView: 4 octets {
        reserved: Reserved = 8, "Zero.";
        srq: u32 = 24, "The number of the responder's SRQ for which the request is: 24 bits.";
    }
}

header! {
    /// Flush extended transport header: which memory a FLUSH makes globally visible or persistent.
    Feth, FethView: 4 octets {
        reserved: Reserved = 26, "Zero.";
        selectivity: u8 = 2, "What is flushed: 0 a range of addresses, 1 the whole memory region.";
        placement: u8 = 4, "A bit for each kind of flush: 1 global visibility, 2 persistence.";
    }
}

header! {
    /// RDMA extended transport header: address, key and length.
    Reth, RethView: 16 octets {
        va: u64 = 64, "The virtual address of the first byte in the responder's memory.";
        rkey: u32 = 32, "The R_Key of the responder's memory.";
        dma_length: u32 = 32, "The length of the whole message, in bytes.";
    }
}

header! {
    /// Atomic extended transport header: address, key and operands.
    AtomicEth, AtomicEthView: 28 octets {
        va: u64 = 64, "The virtual address of the eight bytes in the responder's memory.";
        rkey: u32 = 32, "The R_Key of the responder's memory.";
        swap_or_add: u64 = 64, "The value to swap in or to add.";
        compare: u64 = 64, "The value with which the memory is compared.";
    }
}

header! {
    /// Atomic acknowledge extended transport header: the value before the operation.
    AtomicAckEth, AtomicAckEthView: 8 octets {
        original: u64 = 64, "The value in memory before the operation.";
    }
}

header! {
    /// Immediate data extended transport header.
    ImmDt, ImmDtView: 4 octets {
        immediate: Octets<4> = 32, "Four bytes in the order in which the sender posted them.";
    }
}

header! {
    /// Invalidate extended transport header: the R_Key that the responder invalidates.
    Ieth, IethView: 4 octets {
        rkey: u32 = 32, "The R_Key that the responder invalidates.";
    }
}

header! {
    /// The header of all extensions without a standard encoding. It names the extension and one of the extension's
    /// operations.
    ///
    /// The extension defines the bytes after the header. In a response, `syndrome` and `msn` acknowledge as an [`Aeth`]
    /// does; in a request they are zero.
    ExtensionEth, ExtensionEthView: 16 octets {
        extension: u32 = 32, "The number of the extension, which is computed from its name.";
        is_response: bool = 1, "Whether this answers a request.";
        reserved: Reserved = 15, "Zero.";
        operation: u16 = 16, "The operation: a number that the extension has assigned.";
        syndrome: Syndrome = 8, "As in [`Aeth`].";
        msn: u32 = 24, "As in [`Aeth`].";
        reserved8: Reserved = 8, "Zero.";
        srq: u32 = 24, "As in [`Xrceth`], in a request to an XRC target; otherwise zero.";
    }
}

header! {
    /// The 16 reserved bytes that follow the BTH in a congestion notification packet (IBTA annex A17).
    Cnp, CnpView: 16 octets {
        reserved: Octets<16> = 128, "Zero.";
    }
}

#[cfg(test)]
mod tests {
    use hex_literal::hex;

    use super::*;
    use crate::roce::Nak;

    fn round_trip<H: Header + PartialEq + core::fmt::Debug>(octets: &[u8], expected: H) {
        let (header, rest) = H::split(octets).unwrap();
        assert!(rest.is_empty());
        assert_eq!(header, expected);
        let mut out = [0xa5; 32];
        let room = out.len();
        let left = header.put(&mut out).unwrap().len();
        assert_eq!(out[..room - left], *octets);
    }

    #[test]
    fn headers_have_the_bytes_of_the_standard() {
        let (va, rkey) = (0x55d0_c0ff_ee00, 0x1a2b);
        let reth = Reth {
            va,
            rkey,
            dma_length: 3000,
        };
        round_trip(&hex!("000055d0c0ffee00 00001a2b 00000bb8"), reth);
        let atomic_eth = AtomicEth {
            va,
            rkey,
            swap_or_add: 7,
            compare: u64::MAX - 1,
        };
        let octets = hex!("000055d0c0ffee00 00001a2b 0000000000000007 fffffffffffffffe");
        round_trip(&octets, atomic_eth);
        let feth = Feth {
            selectivity: 1,
            placement: 2,
            ..Feth::default()
        };
        round_trip(&hex!("00000012"), feth);
        let deth = Deth {
            q_key: 0x8001_0000,
            src_qp: 1,
            ..Deth::default()
        };
        round_trip(&hex!("80010000 00000001"), deth);
        let xrceth = Xrceth {
            srq: 0xab_cdef,
            ..Xrceth::default()
        };
        round_trip(&hex!("00abcdef"), xrceth);
        let immediate = Octets(hex!("deadbeef"));
        round_trip(&hex!("deadbeef"), ImmDt { immediate });
        round_trip(&hex!("00001f05"), Ieth { rkey: 0x1f05 });
        let original = 0x0102_0304_0506_0708;
        round_trip(&hex!("0102030405060708"), AtomicAckEth { original });
        let syndrome = Syndrome::nak(Nak::REMOTE_ACCESS);
        let msn = 0x107;
        round_trip(&hex!("62000107"), Aeth { syndrome, msn });
        let extension_eth = ExtensionEth {
            extension: 0x1234_5678,
            is_response: true,
            operation: 9,
            syndrome: Syndrome(0x1f),
            msn: 4,
            srq: 5,
            ..ExtensionEth::default()
        };
        round_trip(&hex!("12345678 80000009 1f000004 00000005"), extension_eth);
    }

    #[test]
    fn names_of_headers_follow_their_order_on_the_wire() {
        let set = HeaderSet::IMM_DT | HeaderSet::RETH | HeaderSet::XRCETH;
        assert!(set.names().eq(["XRCETH", "RETH", "ImmDt"]));
    }
}
