//! Makes packets.

use std::time::Duration;

use polyverbs_dissect::file::{Captured, LinkType};
use polyverbs_dissect::{Capture, Dissector, encode};
use polyverbs_wire::layout::{Header, Octets};
use polyverbs_wire::net::{Ethernet, Ipv4, Ipv6, ROCE_PORT, Tcp, Udp, ethertype, protocol};
use polyverbs_wire::roce::{Bth, Envelope, Icrc, Opcode, Position, SendExtra, Service, pad_count};

pub(crate) const SOURCE_PORT: u16 = 0xc00c;
const V4: [[u8; 4]; 2] = [[10, 0, 0, 1], [10, 0, 0, 2]];

pub(crate) fn captured(link_type: LinkType, octets: Vec<u8>) -> Captured {
    Captured {
        time: Duration::from_micros(7),
        link_type,
        original_len: octets.len() as u32,
        octets,
    }
}

/// What the dissector makes of packets; they are built again on the way.
pub(crate) fn dissected(packets: &[Captured]) -> Capture {
    let mut dissector = Dissector::new();
    let forms = packets
        .iter()
        .map(|captured| dissector.packet(captured))
        .collect();
    let (unfinished, summary) = dissector.finish();
    let capture = Capture {
        packets: forms,
        unfinished,
        summary,
    };
    let octets: Vec<_> = packets
        .iter()
        .map(|captured| captured.octets.clone())
        .collect();
    assert_eq!(encode(&capture).as_ref(), Ok(&octets), "{capture:#?}");
    capture
}

pub(crate) fn complaints(capture: &Capture) -> Vec<&str> {
    let of_packets = capture.packets.iter().flat_map(|packet| &packet.complaints);
    of_packets.map(|said| &said[..]).collect()
}

pub(crate) fn octets_of<H: Header>(header: &H) -> Vec<u8> {
    let mut octets = vec![0; H::LEN];
    header.put(&mut octets).unwrap();
    octets
}

pub(crate) fn ethernet(ethertype: u16) -> Vec<u8> {
    octets_of(&Ethernet {
        destination: Octets([2; 6]),
        source: Octets([1; 6]),
        ethertype,
    })
}

pub(crate) fn ipv4(protocol: u8, from: usize, behind: &[u8]) -> Vec<u8> {
    let header = Ipv4 {
        version: 4,
        header_words: 5,
        total_length: (Ipv4::LEN + behind.len()) as u16,
        identification: 0x1234,
        dont_fragment: true,
        time_to_live: 64,
        protocol,
        checksum: 0x7357,
        source: Octets(V4[from]),
        destination: Octets(V4[1 - from]),
        ..Ipv4::default()
    };
    [octets_of(&header), behind.to_vec()].concat()
}

pub(crate) fn ipv6(next_header: u8, behind: &[u8]) -> Vec<u8> {
    let header = Ipv6 {
        version: 6,
        traffic_class: 3,
        flow_label: 0xabcde,
        payload_length: behind.len() as u16,
        next_header,
        hop_limit: 64,
        source: Octets([1; 16]),
        destination: Octets([2; 16]),
    };
    [octets_of(&header), behind.to_vec()].concat()
}

fn udp(datagram: &[u8]) -> Vec<u8> {
    let header = Udp {
        source_port: SOURCE_PORT,
        destination_port: ROCE_PORT,
        length: (Udp::LEN + datagram.len()) as u16,
        checksum: 0,
    };
    [octets_of(&header), datagram.to_vec()].concat()
}

/// A SEND, right for this envelope.
fn send(envelope: &Envelope, payload: &[u8]) -> Vec<u8> {
    let pad = pad_count(payload.len());
    let bth = Bth {
        opcode: Opcode::send(Service::Rc, Position::Only, SendExtra::Nothing),
        pad_count: pad,
        p_key: 0xffff,
        dest_qp: 0x11,
        psn: 7,
        ..Bth::default()
    }
    .to_view();
    let pad = &[0; 3][..usize::from(pad)];
    let mut icrc = Icrc::new(envelope, Bth::LEN + payload.len() + pad.len() + 4, &bth);
    icrc.update(payload);
    icrc.update(pad);
    [&bth.0, payload, pad, &icrc.finish()].concat()
}

pub(crate) fn roce_v4(payload: &[u8]) -> Vec<u8> {
    let envelope = Envelope {
        source: (V4[0], SOURCE_PORT).into(),
        destination: (V4[1], ROCE_PORT).into(),
        identification: 0x1234,
    };
    ipv4(protocol::UDP, 0, &udp(&send(&envelope, payload)))
}

pub(crate) fn roce_v6(payload: &[u8]) -> Vec<u8> {
    let envelope = Envelope {
        source: ([1; 16], SOURCE_PORT).into(),
        destination: ([2; 16], ROCE_PORT).into(),
        identification: 0,
    };
    ipv6(protocol::UDP, &udp(&send(&envelope, payload)))
}

/// One end of a TCP connection.
pub(crate) struct End {
    pub(crate) from: usize,
    pub(crate) next: u32,
}

impl End {
    pub(crate) fn pair() -> (Self, Self) {
        // Both numbers wrap within the first hundred octets.
        let end = |from| Self {
            from,
            next: u32::MAX - 40,
        };
        (end(0), end(1))
    }

    fn tcp(&self, change: impl FnOnce(&mut Tcp), octets: &[u8]) -> Captured {
        let ports = [40_000, 7174];
        let mut header = Tcp {
            source_port: ports[self.from],
            destination_port: ports[1 - self.from],
            sequence: self.next,
            header_words: 6,
            ack: true,
            window: 1000,
            ..Tcp::default()
        };
        change(&mut header);
        let segment = [octets_of(&header), vec![1; 4], octets.to_vec()].concat();
        let packet = ipv4(protocol::TCP, self.from, &segment);
        captured(
            LinkType::Ethernet,
            [ethernet(ethertype::IPV4), packet].concat(),
        )
    }

    pub(crate) fn syn(&mut self, is_answer: bool) -> Captured {
        let captured = self.tcp(|tcp| (tcp.syn, tcp.ack) = (true, is_answer), b"");
        self.next = self.next.wrapping_add(1);
        captured
    }

    pub(crate) fn fin(&mut self) -> Captured {
        let captured = self.tcp(|tcp| tcp.fin = true, b"");
        self.next = self.next.wrapping_add(1);
        captured
    }

    pub(crate) fn send(&mut self, octets: &[u8]) -> Captured {
        let captured = self.tcp(|_| {}, octets);
        self.next = self.next.wrapping_add(octets.len() as u32);
        captured
    }

    pub(crate) fn ack(&self) -> Captured {
        self.tcp(|_| {}, b"")
    }
}
