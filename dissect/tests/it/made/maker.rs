//! Makes packets.

use std::time::Duration;

use polyverbs_dissect::file::{Captured, LinkType};
use polyverbs_dissect::{Capture, Dissector, encode};
use polyverbs_wire::layout::{Header, Octets, view};
use polyverbs_wire::net::{Ethernet, Ipv4, Ipv6, ROCE_PORT, Tcp, Udp, ethertype, protocol};
use polyverbs_wire::roce::packet::{ICRC_LEN, MAX_HEADER_LEN};
use polyverbs_wire::roce::{
    Bth, Envelope, Headers, Icrc, Opcode, Position, SendExtra, Service, pad_count,
};

pub(crate) const SOURCE_PORT: u16 = 0xc00c;
pub(crate) const V4: [[u8; 4]; 2] = [[10, 0, 0, 1], [10, 0, 0, 2]];

pub(crate) fn captured(link_type: LinkType, octets: Vec<u8>) -> Captured {
    Captured {
        time: Duration::from_micros(7),
        link_type,
        original_len: octets.len() as u32,
        octets,
    }
}

/// Dissects packets, and checks that they are built again unchanged.
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
        defect: None,
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

/// A packet whose ICRC is right in this envelope.
fn datagram(envelope: &Envelope, mut headers: Headers, payload: &[u8]) -> Vec<u8> {
    let pad = pad_count(payload.len());
    headers.bth.pad_count = pad;
    headers.bth.p_key = 0xffff;
    let mut datagram = vec![0; MAX_HEADER_LEN];
    let len = headers.encode(&mut datagram).unwrap();
    datagram.truncate(len);
    datagram.extend(payload);
    datagram.extend(&[0; 3][..usize::from(pad)]);
    let (bth, rest) = view::<Bth>(&datagram).unwrap();
    let mut icrc = Icrc::new(envelope, datagram.len() + ICRC_LEN, bth);
    icrc.update(rest);
    let icrc = icrc.finish();
    datagram.extend(icrc);
    datagram
}

/// A SEND whose ICRC is right in this envelope.
fn send(envelope: &Envelope, payload: &[u8]) -> Vec<u8> {
    let headers = Headers {
        bth: Bth {
            opcode: Opcode::send(Service::Rc, Position::Only, SendExtra::Nothing),
            dest_qp: 0x11,
            psn: 7,
            ..Bth::default()
        },
        ..Headers::default()
    };
    datagram(envelope, headers, payload)
}

/// A packet from one of two hosts to the other.
pub(crate) fn roce_from(from: usize, headers: Headers, payload: &[u8]) -> Captured {
    let envelope = Envelope {
        source: (V4[from], SOURCE_PORT).into(),
        destination: (V4[1 - from], ROCE_PORT).into(),
        identification: 0x1234,
    };
    let datagram = datagram(&envelope, headers, payload);
    captured(LinkType::Raw, ipv4(protocol::UDP, from, &udp(&datagram)))
}

pub(crate) fn roce_v4(payload: &[u8]) -> Vec<u8> {
    let envelope = Envelope {
        source: (V4[0], SOURCE_PORT).into(),
        destination: (V4[1], ROCE_PORT).into(),
        identification: 0x1234,
    };
    ipv4(protocol::UDP, 0, &udp(&send(&envelope, payload)))
}

/// A datagram of several packets that the kernel has joined, one for each payload.
pub(crate) fn joined_v4(payloads: &[&[u8]], identification_counts: bool) -> Vec<u8> {
    let packets = payloads.iter().zip(0x1234..).map(|(payload, counted)| {
        let envelope = Envelope {
            source: (V4[0], SOURCE_PORT).into(),
            destination: (V4[1], ROCE_PORT).into(),
            identification: if identification_counts {
                counted
            } else {
                0x1234
            },
        };
        send(&envelope, payload)
    });
    let packets: Vec<_> = packets.collect();
    ipv4(protocol::UDP, 0, &udp(&packets.concat()))
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
    responder_port: u16,
}

impl End {
    pub(crate) fn pair(responder_port: u16) -> (Self, Self) {
        // The sequence numbers of both directions wrap within the first hundred bytes.
        let end = |from| Self {
            from,
            next: u32::MAX - 40,
            responder_port,
        };
        (end(0), end(1))
    }

    fn tcp(&self, change: impl FnOnce(&mut Tcp), octets: &[u8]) -> Captured {
        let ports = [40_000, self.responder_port];
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
