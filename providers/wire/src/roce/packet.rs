//! A packet of the InfiniBand transport: the payload of a UDP datagram to port 4791.
//!
//! ```text
//! BTH | headers after it, by the opcode | payload | pad | ICRC
//! ```
//!
//! [`decode`] reads a packet in place; a sender fills in [`Headers`].

use super::aeth::Aeth;
use super::bth::{Bth, BthView};
use super::extended::{
    AtomicAckEth, AtomicEth, Cnp, Deth, ExtendedHeader, ExtensionEth, Feth, HeaderSet, Ieth, ImmDt,
    Reth, Xrceth, for_extended_headers,
};
use super::icrc::{Envelope, Icrc};
use super::opcode::Facts;
use crate::layout::{Header, view};

/// Length of the ICRC, in bytes.
pub const ICRC_LEN: usize = 4;

/// Length of the longest sequence of headers in bytes: those of an atomic through XRC.
pub const MAX_HEADER_LEN: usize = Bth::LEN + Xrceth::LEN + AtomicEth::LEN;

/// The most bytes that follow a payload: pad and ICRC.
pub const MAX_TRAILER_LEN: usize = 3 + ICRC_LEN;

/// The reason why the input is not a packet. A responder answers none of these: it drops and counts the packet (IBTA
/// 9.6.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Reject {
    /// The input ends within the packet's headers or ICRC.
    #[error("too short for its headers")]
    Short,
    /// The transport version in the BTH is not 0.
    #[error("another version of the transport")]
    TransportVersion,
    /// The opcode is reserved, or of a service that no device here implements.
    #[error("an unknown opcode")]
    Opcode,
    /// The pad is longer than the payload, or payload and pad are not a multiple of four bytes.
    #[error("a pad count that does not fit the length")]
    Pad,
}

/// A RoCE packet, read in place.
#[derive(Clone, Copy, Debug)]
pub struct Packet<'a> {
    /// The base transport header.
    pub bth: &'a BthView,
    /// The properties of the packet's opcode.
    pub facts: &'static Facts,
    /// The payload, without its pad.
    pub payload: &'a [u8],
    /// The bytes that pad the payload to a multiple of four. They should be zero, which is not checked.
    pub pad: &'a [u8],
    /// The invariant CRC as received. It has not been checked.
    pub icrc: [u8; ICRC_LEN],
    behind_bth: &'a [u8],
    covered: &'a [u8],
}

/// Decodes a packet: the payload of a UDP datagram, ICRC included. This does not check the ICRC.
///
/// # Errors
/// The reason to drop the packet.
#[inline]
pub fn decode(octets: &[u8]) -> Result<Packet<'_>, Reject> {
    let (covered, &icrc) = octets.split_last_chunk().ok_or(Reject::Short)?;
    let packet = decode_headers(covered)?;
    let rest = packet.payload;
    let payload_len = rest.len().checked_sub(packet.bth.pad_count().into());
    let (payload, pad) = payload_len
        .filter(|_| rest.len() % 4 == 0)
        .and_then(|payload_len| rest.split_at_checked(payload_len))
        .ok_or(Reject::Pad)?;
    Ok(Packet {
        payload,
        pad,
        icrc,
        ..packet
    })
}

/// Decodes the headers of a frame that has no pad and no ICRC, as in shared memory. All bytes after them are payload.
///
/// # Errors
/// The reason to drop the frame.
#[inline]
pub fn decode_headers(octets: &[u8]) -> Result<Packet<'_>, Reject> {
    let packet = decode_front(octets)?;
    if packet.behind_bth.len() < packet.facts.headers_len {
        return Err(Reject::Short);
    }
    Ok(packet)
}

/// Decodes the beginning of a packet that was cut somewhere after the BTH, for instance in a capture. [`get`](Packet::get)
/// returns `None` for extended headers that are incomplete.
///
/// # Errors
/// The reason to drop the packet.
#[inline]
pub fn decode_front(octets: &[u8]) -> Result<Packet<'_>, Reject> {
    let (bth, rest) = view::<Bth>(octets).ok_or(Reject::Short)?;
    if bth.transport_version() != 0 {
        return Err(Reject::TransportVersion);
    }
    let facts = bth.opcode().facts().ok_or(Reject::Opcode)?;
    let (behind_bth, payload) = rest.split_at(facts.headers_len.min(rest.len()));
    Ok(Packet {
        bth,
        facts,
        payload,
        pad: &[],
        icrc: [0; ICRC_LEN],
        behind_bth,
        covered: octets,
    })
}

impl<'a> Packet<'a> {
    /// Returns a view of an extended header; `None` if packets with this opcode do not have it, or if the packet was cut
    /// before its end.
    #[inline]
    pub fn get<H: ExtendedHeader>(&self) -> Option<&'a H::View> {
        let offset = self.facts.offset(H::SET)?;
        view::<H>(self.behind_bth.get(offset..)?).map(|(view, _)| view)
    }

    /// Returns whether the packet has the right ICRC if its IP and UDP headers have these fields.
    #[inline]
    pub fn is_intact(&self, envelope: &Envelope) -> bool {
        self.expected_icrc(envelope) == self.icrc
    }

    /// Computes the ICRC that the packet should have if its IP and UDP headers have these fields.
    #[inline]
    pub fn expected_icrc(&self, envelope: &Envelope) -> [u8; ICRC_LEN] {
        self.finish(Icrc::new(envelope, self.covered.len() + ICRC_LEN, self.bth))
    }

    /// Computes the ICRC that the packet should have. `icrc` already covers the packet's IP, UDP and BTH headers.
    #[inline]
    pub fn finish(&self, mut icrc: Icrc) -> [u8; ICRC_LEN] {
        icrc.update(&self.covered[Bth::LEN..]);
        icrc.finish()
    }
}

/// Returns the number of zero bytes that pad a payload of this length to a multiple of four.
#[inline]
pub const fn pad_count(payload_len: usize) -> u8 {
    (payload_len.wrapping_neg() & 3) as u8
}

macro_rules! owned_headers {
    ($($bit:literal $set:ident $field:ident $header:ident $name:literal;)*) => {
        /// The headers of a packet in their owned form. Extended headers that its opcode does not require are `None`.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[cfg_attr(
            feature = "serde",
            derive(serde::Serialize, serde::Deserialize),
            serde(deny_unknown_fields)
        )]
        pub struct Headers {
            /// The base transport header.
            pub bth: Bth,
            $(
                #[doc = concat!("[`", stringify!($header), "`].")]
                #[cfg_attr(
                    feature = "serde",
                    serde(default, skip_serializing_if = "Option::is_none")
                )]
                pub $field: Option<$header>,
            )*
        }

        impl Packet<'_> {
            /// Returns the headers in their owned form.
            pub fn headers(&self) -> Headers {
                Headers {
                    bth: Bth::of(self.bth),
                    $($field: self.get::<$header>().map($header::of),)*
                }
            }
        }

        impl Headers {
            /// Writes the headers that are present to the beginning of `room`, and returns their length in bytes. Returns
            /// `None` if they are not those that the opcode requires, or if `room` is too short.
            #[inline]
            pub fn encode(&self, room: &mut [u8]) -> Option<usize> {
                let (has, len) = self.put(room)?;
                (has == self.bth.opcode.facts()?.headers).then_some(len)
            }

            /// Writes the headers as [`encode`](Self::encode) does, for a packet that was cut and may lack some of the
            /// headers that its opcode requires.
            pub fn encode_front(&self, room: &mut [u8]) -> Option<usize> {
                self.put(room).map(|(_, len)| len)
            }

            #[inline]
            fn put(&self, room: &mut [u8]) -> Option<(HeaderSet, usize)> {
                let all = room.len();
                let mut has = HeaderSet::empty();
                let mut rest = self.bth.put(room)?;
                $(
                    if let Some(header) = &self.$field {
                        rest = header.put(rest)?;
                        has |= $header::SET;
                    }
                )*
                Some((has, all - rest.len()))
            }
        }
    };
}

for_extended_headers!(owned_headers);

#[cfg(test)]
mod tests;
