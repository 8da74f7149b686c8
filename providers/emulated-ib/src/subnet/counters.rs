//! What a port has sent and received. The numbers only grow, and the agent of performance management makes its counters of them.

use std::sync::atomic::{AtomicU64, Ordering};

use polyverbs_engine::link::Frame;
use polyverbs_management::Totals;
use polyverbs_wire::roce::packet::ICRC_LEN;
use polyverbs_wire::roce::{
    Aeth, AtomicAckEth, AtomicEth, Bth, Cnp, Deth, ExtensionEth, Feth, Ieth, ImmDt, Reth, Xrceth,
};

use crate::header::{Body, Header, SendExtra};

/// The length of the local route header, by which a packet begins on an InfiniBand link (IBTA 7.7).
const LRH_LEN: usize = 8;

/// Data are counted in words of this many bytes (IBTA 16.1.3.5).
const WORD: usize = 4;

/// What a port has sent or received.
#[derive(Debug, Default)]
struct Traffic {
    words: AtomicU64,
    unicast_packets: AtomicU64,
    multicast_packets: AtomicU64,
}

/// What a port has sent, received and dropped.
#[derive(Debug, Default)]
pub(super) struct PortTotals {
    sent: Traffic,
    received: Traffic,
    damaged: AtomicU64,
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
        let (sent, received) = (&self.sent, &self.received);
        Totals {
            rcv_errors: of(&self.damaged),
            xmit_data: of(&sent.words),
            rcv_data: of(&received.words),
            xmit_pkts: of(&sent.unicast_packets) + of(&sent.multicast_packets),
            rcv_pkts: of(&received.unicast_packets) + of(&received.multicast_packets),
            unicast_xmit_pkts: of(&sent.unicast_packets),
            unicast_rcv_pkts: of(&received.unicast_packets),
            multicast_xmit_pkts: of(&sent.multicast_packets),
            multicast_rcv_pkts: of(&received.multicast_packets),
            ..Totals::default()
        }
    }
}

/// Counts the packets of a frame. A damaged packet that has arrived is an error, and its data do not count.
pub(super) fn count(totals: &PortTotals, direction: Direction, frame: &Frame<'_, Header>) {
    let add = |number: &AtomicU64, amount| _ = number.fetch_add(amount, Ordering::Relaxed);
    let traffic = match direction {
        Direction::Sent => &totals.sent,
        Direction::Received if frame.damaged => return add(&totals.damaged, 1),
        Direction::Received => &totals.received,
    };
    let (packets, words) = size(&frame.header, frame.payload.len());
    add(&traffic.words, words as u64);
    let is_multicast = matches!(frame.header.body, Body::Datagram(_, _, Some(_)));
    let counted = match is_multicast {
        true => &traffic.multicast_packets,
        false => &traffic.unicast_packets,
    };
    add(counted, packets as u64);
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
