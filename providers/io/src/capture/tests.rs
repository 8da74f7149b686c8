use std::io::BufWriter;
use std::net::SocketAddr;
use std::sync::Arc;

use pcap_file::pcapng::{Block, PcapNgReader};

use super::*;

/// A file that a test can read while it is written.
#[derive(Clone, Default)]
struct Shared(Arc<Mutex<Vec<u8>>>);

impl Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Shared {
    /// Returns each packet with the number of its interface.
    fn packets(&self) -> Vec<(u32, Vec<u8>)> {
        let written = self.0.lock();
        let mut reader = PcapNgReader::new(&written[..]).unwrap();
        let mut packets = Vec::new();
        while let Some(block) = reader.next_block() {
            match block.unwrap() {
                Block::InterfaceDescription(interface) => {
                    assert_eq!(interface.linktype, DataLink::RAW);
                }
                Block::EnhancedPacket(packet) => {
                    packets.push((packet.interface_id, packet.data.into_owned()));
                }
                Block::SectionHeader(_) => {}
                other => panic!("{other:?}"),
            }
        }
        packets
    }
}

/// A disk that is full after this many bytes.
struct Full(usize);

impl Write for Full {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let left = self.0.checked_sub(bytes.len());
        self.0 = left.ok_or(io::ErrorKind::StorageFull)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn envelope(from: &str, to: &str, identification: u16) -> Envelope {
    Envelope {
        from: from.parse().unwrap(),
        to: to.parse().unwrap(),
        identification,
    }
}

#[test]
fn captures_that_append_to_one_file_are_one_capture() {
    // Each flush is one write, as to a file to which several processes append.
    let shared = Shared::default();
    let buffered = || BufWriter::with_capacity(1 << 10, shared.clone());
    let first = OctetCapture::at_once(buffered()).unwrap();
    let second = OctetCapture::at_once(buffered()).unwrap();
    let envelope = envelope("192.168.0.7:50000", "192.168.0.8:4791", 3);
    for datagram in [b"a", b"b", b"c"] {
        first.datagram(Way::Out, &envelope, 0, datagram);
        second.datagram(Way::In, &envelope, 0, datagram);
    }
    let packets = shared.packets().into_iter();
    let ends: Vec<_> = packets.map(|(way, packet)| (way, packet[28])).collect();
    let expected = [b'a', b'b', b'c'].map(|last| [(0, last), (1, last)]);
    assert_eq!(ends, expected.concat());
}

#[test]
fn datagrams_are_written_with_their_headers_on_the_wire() {
    let shared = Shared::default();
    let capture = OctetCapture::new(shared.clone()).unwrap();
    let four = envelope("192.168.0.7:50000", "192.168.0.8:4791", 3);
    capture.datagram(Way::Out, &four, 2, b"abcd");
    let six = envelope("[fe80::1]:50000", "[fe80::2]:4791", 0);
    capture.datagram(Way::In, &six, 0x61, b"efgh");
    capture.flush().unwrap();
    let packets = shared.packets();
    let four = [
        0x45, 2, 0, 32, 0, 3, 0x40, 0, 64, 17, 0xb9, 0x68, 192, 168, 0, 7, 192, 168, 0, 8, 0xc3,
        0x50, 0x12, 0xb7, 0, 12, 0, 0, b'a', b'b', b'c', b'd',
    ];
    assert_eq!(packets[0], (0, four.to_vec()));
    assert_eq!(packets[1].0, 1);
    assert_eq!(packets[1].1[..8], [0x66, 0x10, 0, 0, 0, 12, 17, 64]);
    assert_eq!(packets[1].1.len(), 40 + 8 + 4);
}

#[test]
fn a_connection_is_written_as_its_segments() {
    let shared = Shared::default();
    let capture = OctetCapture::new(shared.clone()).unwrap();
    let [local, peer] =
        ["10.0.0.1:50000", "10.0.0.2:7471"].map(|address| address.parse::<SocketAddr>().unwrap());
    let ends = Ends { local, peer };
    capture.passed(Way::Out, &ends, Passed::Bytes(b"of nobody"));
    capture.passed(Way::Out, &ends, Passed::Request);
    capture.passed(Way::Out, &ends, Passed::Bytes(&[7; SEGMENT + 3]));
    capture.passed(Way::In, &ends, Passed::Bytes(b"answer"));
    capture.passed(Way::In, &ends, Passed::End);
    capture.passed(Way::Out, &ends, Passed::Reset);
    capture.passed(Way::Out, &ends, Passed::Bytes(b"too late"));
    capture.flush().unwrap();
    let segment = |(way, packet): (u32, Vec<u8>)| {
        let (ip, tcp) = packet.split_at(20);
        assert_eq!(checksum(&[ip]), 0);
        let [from, to] = if way == 0 {
            [local, peer]
        } else {
            [peer, local]
        };
        assert_eq!(tcp_checksum((from.ip(), to.ip()), tcp), 0);
        let number = |at: usize| u32::from_be_bytes(tcp[at..at + 4].try_into().unwrap());
        (way, number(4), number(8), tcp[13], tcp.len() - 20)
    };
    let segments: Vec<_> = shared.packets().into_iter().map(segment).collect();
    let end = SEGMENT as u32 + 4;
    let expected = [
        (0, 0, 0, SYN, 0),
        (1, 0, 1, SYN | ACK, 0),
        (0, 1, 1, ACK, 0),
        (0, 1, 1, ACK | PSH, SEGMENT),
        (0, end - 3, 1, ACK | PSH, 3),
        (1, 1, end, ACK | PSH, 6),
        (1, 7, end, ACK | FIN, 0),
        (0, end, 8, ACK | RST, 0),
    ];
    assert_eq!(segments, expected);
}

#[test]
fn a_full_disk_is_reported_by_each_flush() {
    let capture = OctetCapture::new(Full(200)).unwrap();
    let envelope = envelope("10.0.0.1:1", "10.0.0.2:2", 0xffff);
    for _ in 0..10 {
        capture.datagram(Way::Out, &envelope, 0xff, &[0; 1000]);
    }
    for _ in 0..2 {
        let error = capture.flush().unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
    }
    assert!(OctetCapture::new(Full(3)).is_err());
}
