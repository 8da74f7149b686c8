//! What a port has sent and received. The numbers only grow, and the agent of performance management makes its counters of them.

use std::sync::atomic::{AtomicU64, Ordering};

use polyverbs_engine::link::Frame;
#[cfg(feature = "fabric")]
use polyverbs_io::SharedCounters;
use polyverbs_management::{Carried, Totals};
use polyverbs_wire::roce::packet::ICRC_LEN;
use polyverbs_wire::roce::{
    Aeth, AtomicAckEth, AtomicEth, Bth, Cnp, Deth, ExtensionEth, Feth, Ieth, ImmDt, Reth, Xrceth,
};

#[cfg(feature = "fabric")]
use verbs_api::provider::RwLock;

use crate::header::{Body, Header, SendExtra};

/// The length of the local route header, by which a packet begins on an InfiniBand link (IBTA 7.7).
const LRH_LEN: usize = 8;

/// Data are counted in words of this many bytes (IBTA 16.1.3.5).
const WORD: usize = 4;

/// What a port has sent, received and dropped.
#[derive(Debug)]
pub(super) enum PortTotals {
    /// Of a port that belongs to one device.
    Own([AtomicU64; Carried::COUNT]),
    /// Of a port in a fabric, where devices of several processes count. Another process that holds the fabric has others.
    #[cfg(feature = "fabric")]
    Shared(RwLock<SharedCounters>),
}

impl Default for PortTotals {
    fn default() -> Self {
        Self::Own(Default::default())
    }
}

/// The way of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    Sent,
    Received,
}

impl PortTotals {
    pub(super) fn read(&self) -> Totals {
        let of = |number: &AtomicU64| number.load(Ordering::Relaxed);
        Totals::carried(match self {
            Self::Own(numbers) => std::array::from_fn(|index| of(&numbers[index])),
            #[cfg(feature = "fabric")]
            Self::Shared(shared) => {
                let shared = shared.read();
                std::array::from_fn(|index| of(shared.counter(index)))
            }
        })
    }

    fn add(&self, amounts: &[(Carried, usize)]) {
        let add = |number: &AtomicU64, amount| _ = number.fetch_add(amount, Ordering::Relaxed);
        match self {
            Self::Own(numbers) => {
                for (what, amount) in amounts {
                    add(&numbers[*what as usize], *amount as u64);
                }
            }
            #[cfg(feature = "fabric")]
            Self::Shared(shared) => {
                let shared = shared.read();
                for (what, amount) in amounts {
                    add(shared.counter(*what as usize), *amount as u64);
                }
            }
        }
    }
}

/// Counts the packets of a frame. A damaged packet that has arrived is an error, and its data do not count.
pub(super) fn count(totals: &PortTotals, direction: Direction, frame: &Frame<'_, Header>) {
    let is_multicast = matches!(frame.header.body, Body::Datagram(_, _, Some(_)));
    let (word, packet) = match (direction, is_multicast) {
        (Direction::Received, _) if frame.damaged => return totals.add(&[(Carried::RcvErrors, 1)]),
        (Direction::Sent, false) => (Carried::XmitWords, Carried::XmitUnicast),
        (Direction::Sent, true) => (Carried::XmitWords, Carried::XmitMulticast),
        (Direction::Received, false) => (Carried::RcvWords, Carried::RcvUnicast),
        (Direction::Received, true) => (Carried::RcvWords, Carried::RcvMulticast),
    };
    let (packets, words) = size(&frame.header, frame.payload.len());
    totals.add(&[(word, words), (packet, packets)]);
}

/// The packets of a frame, and their words from the local route header to the ICRC.
fn size(header: &Header, payload: usize) -> (usize, usize) {
    let per_packet = LRH_LEN + Bth::LEN + ICRC_LEN + xrc_len(header);
    let packets = match header.joined {
        true => payload.div_ceil(1 << header.mtu_shift).max(1),
        false => 1,
    };
    let extended = extended_len(header) + aeth_count(header, packets) * Aeth::LEN;
    let octets = packets * per_packet + extended + payload.next_multiple_of(WORD);
    (packets, octets / WORD)
}

fn xrc_len(header: &Header) -> usize {
    match header.xrc {
        Some(_) if header.body.is_request() => Xrceth::LEN,
        _ => 0,
    }
}

/// How many packets have an AETH: of a read response the first and the last.
fn aeth_count(header: &Header, packets: usize) -> usize {
    match header.body {
        Body::ReadResponse(position) if packets > 1 => {
            usize::from(position.begins()) + usize::from(position.ends())
        }
        Body::ExtensionResponse(..) => 0,
        body => usize::from(body.has_aeth()),
    }
}

/// The length of the headers after the BTH that only one packet of the frame has.
fn extended_len(header: &Header) -> usize {
    match header.body {
        Body::Send(position, extra) if position.ends() => extra_len(extra),
        Body::Write(position, .., imm) => {
            let reth = if position.begins() { Reth::LEN } else { 0 };
            let imm = imm.filter(|_| position.ends());
            reth + imm.map_or(0, |_| ImmDt::LEN)
        }
        Body::ReadRequest(..) | Body::AtomicWrite(_) => Reth::LEN,
        Body::CompareSwap(..) | Body::FetchAdd(..) => AtomicEth::LEN,
        Body::Flush(..) => Feth::LEN + Reth::LEN,
        Body::AtomicAcknowledge(_) => AtomicAckEth::LEN,
        Body::Datagram(_, extra, _) => Deth::LEN + extra_len(extra),
        Body::ExtensionRequest(..) | Body::ExtensionResponse(..) => ExtensionEth::LEN,
        Body::Congestion => Cnp::LEN,
        Body::Send(..) | Body::Acknowledge | Body::ReadResponse(_) | Body::Refused(_) => 0,
    }
}

fn extra_len(extra: SendExtra) -> usize {
    match extra {
        SendExtra::Nothing => 0,
        SendExtra::Immediate(_) => ImmDt::LEN,
        SendExtra::Invalidate(_) => Ieth::LEN,
    }
}

#[cfg(test)]
mod tests {
    use polyverbs_wire::roce::Position;
    use verbs_api::RemoteAddress;
    use verbs_api::ids::Psn;
    use verbs_api::qp::QpType;

    use super::*;

    fn of(body: Body) -> Header {
        Header::new(QpType::Rc, 2, 3, Psn::default(), body)
    }

    // The length of a MAD's packet is the one that a subnet manager sees on a real link.
    // covers 8.73
    #[test]
    fn a_mad_takes_72_words() {
        let mad = of(Body::Datagram(0, SendExtra::Nothing, None));
        assert_eq!(size(&mad, 256), (1, 72));
    }

    // covers 8.73
    #[test]
    fn a_frame_of_several_packets_counts_each() {
        let remote = RemoteAddress::default();
        let mut write = of(Body::Write(Position::Only, remote, 2049, None));
        (write.joined, write.mtu_shift) = (true, 10);
        assert_eq!(size(&write, 2049), (3, (3 * 24 + 16 + 2052) / WORD));
        assert_eq!(size(&write, 0), (1, (24 + 16) / WORD));
        write.joined = false;
        assert_eq!(size(&write, 1024), (1, (24 + 16 + 1024) / WORD));
        let mut read = of(Body::ReadResponse(Position::Only));
        assert_eq!(size(&read, 8), (1, (24 + 4 + 8) / WORD));
        (read.joined, read.mtu_shift) = (true, 10);
        assert_eq!(size(&read, 2048), (2, (2 * 24 + 2 * 4 + 2048) / WORD));
    }
}
