//! Capture of what is on the wire, as a file that any dissector reads.

use std::borrow::Cow;
use std::collections::HashMap;
use std::io::{self, Write};
use std::net::{IpAddr, SocketAddr};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use crate::sockets::{Ends, Passed, TcpTap, Way};
use pcap_file::DataLink;
use pcap_file::pcapng::PcapNgWriter;
use pcap_file::pcapng::blocks::enhanced_packet::EnhancedPacketBlock;
use pcap_file::pcapng::blocks::interface_description::{
    InterfaceDescriptionBlock, InterfaceDescriptionOption,
};

use crate::codec::Envelope;
use crate::lock;
use polyverbs_sim::capture::{NANOSECONDS, Stage, io_error};

/// Is told of the octets that a link sends, before anything happens to them, and of those that arrive.
pub trait OctetTap: Send + Sync {
    /// A datagram. Called with locks of queue pairs held.
    fn datagram(&self, stage: Stage, envelope: &Envelope, traffic_class: u8, octets: &[u8]);
}

/// Is told of all that leaves and arrives, datagrams and streams.
pub trait WireTap: OctetTap + TcpTap {}

impl<T: OctetTap + TcpTap> WireTap for T {}

/// Writes datagrams as pcapng, with the IP and UDP headers that they have on the wire. UDP checksums and hop limits, which
/// a socket does not show, are 0 and 64.
///
/// Of a TCP connection a socket shows the octets: segments are made of what a call has sent or received, sequence numbers
/// begin with 0, and the three segments with which it began are written where its request is told. Nothing is ever lost or
/// sent twice.
///
/// There are two interfaces, `sent` and `arrived`, of link type RAW: packets begin with the IP header.
pub struct OctetCapture(Mutex<File>);

struct File {
    writer: PcapNgWriter<Box<dyn Write + Send>>,
    /// Whether each packet is flushed.
    at_once: bool,
    error: Option<io::Error>,
    /// What each connection has sent and received, as sequence numbers.
    streams: HashMap<Ends, [u32; 2]>,
}

impl OctetCapture {
    /// Begins a file.
    ///
    /// # Errors
    /// The writer fails.
    pub fn new(writer: impl Write + Send + 'static) -> io::Result<Self> {
        let writer: Box<dyn Write + Send> = Box::new(writer);
        let mut writer = PcapNgWriter::new(writer).map_err(io_error)?;
        for stage in [Stage::Sent, Stage::Arrived] {
            let options = vec![
                InterfaceDescriptionOption::IfName(stage.to_string().into()),
                InterfaceDescriptionOption::IfTsResol(NANOSECONDS),
            ];
            let interface = InterfaceDescriptionBlock {
                linktype: DataLink::RAW,
                snaplen: 0,
                options,
            };
            writer.write_pcapng_block(interface).map_err(io_error)?;
        }
        Ok(Self(Mutex::new(File {
            writer,
            at_once: false,
            error: None,
            streams: HashMap::new(),
        })))
    }

    /// The same with the beginning, and then each packet, flushed as a whole: behind a buffer that holds the largest packet,
    /// several processes can append to one file, and one that is killed has written what it captured.
    ///
    /// # Errors
    /// The writer fails.
    pub fn at_once(writer: impl Write + Send + 'static) -> io::Result<Self> {
        let Self(mut file) = Self::new(writer)?;
        let begun = file.get_mut().unwrap_or_else(PoisonError::into_inner);
        begun.at_once = true;
        begun.writer.get_mut().flush()?;
        Ok(Self(file))
    }

    /// Has everything written that was captured.
    ///
    /// # Errors
    /// The writer failed, now or before; nothing has been written since.
    pub fn flush(&self) -> io::Result<()> {
        let mut file = lock(&self.0);
        match &file.error {
            Some(error) => Err(io::Error::new(error.kind(), error.to_string())),
            None => file.writer.get_mut().flush(),
        }
    }
}

impl OctetTap for OctetCapture {
    fn datagram(&self, stage: Stage, envelope: &Envelope, traffic_class: u8, octets: &[u8]) {
        let mut packet = headers(envelope, traffic_class, octets.len());
        packet.extend_from_slice(octets);
        let mut file = lock(&self.0);
        file.packet(stage, packet);
    }
}

impl TcpTap for OctetCapture {
    fn passed(&self, way: Way, ends: &Ends, passed: Passed<'_>) {
        let mut file = lock(&self.0);
        match passed {
            Passed::Request => {
                file.streams.insert(*ends, [0; 2]);
                let back = match way {
                    Way::Out => Way::In,
                    Way::In => Way::Out,
                };
                file.segment(way, ends, SYN, b"");
                file.segment(back, ends, SYN | ACK, b"");
                file.segment(way, ends, ACK, b"");
            }
            Passed::Octets(octets) => {
                for octets in octets.chunks(SEGMENT) {
                    file.segment(way, ends, ACK | PSH, octets);
                }
            }
            Passed::End => file.segment(way, ends, ACK | FIN, b""),
            Passed::Reset => {
                file.segment(way, ends, ACK | RST, b"");
                file.streams.remove(ends);
            }
        }
    }
}

impl File {
    fn packet(&mut self, stage: Stage, packet: Vec<u8>) {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        if self.error.is_none() {
            self.error = self.write(stage, since.unwrap_or_default(), packet).err();
        }
    }

    // A segment of a connection that is known. A SYN and a FIN count as an octet.
    fn segment(&mut self, way: Way, ends: &Ends, flags: u8, octets: &[u8]) {
        let Some([sent, received]) = self.streams.get_mut(ends) else {
            return;
        };
        let (stage, from, to, sequence, acknowledged) = match way {
            Way::Out => (Stage::Sent, ends.local, ends.peer, sent, received),
            Way::In => (Stage::Arrived, ends.peer, ends.local, received, sent),
        };
        let mut tcp = Vec::with_capacity(TCP + octets.len());
        tcp.extend(from.port().to_be_bytes());
        tcp.extend(to.port().to_be_bytes());
        tcp.extend(sequence.to_be_bytes());
        let acknowledged = if flags & ACK == 0 { 0 } else { *acknowledged };
        tcp.extend(acknowledged.to_be_bytes());
        // Five words of header; the widest window; checksum to be filled in; nothing urgent.
        tcp.extend([0x50, flags, 0xff, 0xff, 0, 0, 0, 0]);
        tcp.extend_from_slice(octets);
        let counts = octets.len() as u32 + u32::from(flags & (SYN | FIN) != 0);
        *sequence = sequence.wrapping_add(counts);
        let addresses = (from.ip(), to.ip());
        let sum = tcp_checksum(addresses, &tcp);
        tcp[16..18].copy_from_slice(&sum.to_be_bytes());
        let mut packet = ip_header(addresses, 0, 0, PROTOCOL_TCP, tcp.len() as u16);
        packet.extend(tcp);
        self.packet(stage, packet);
    }

    fn write(&mut self, stage: Stage, timestamp: Duration, packet: Vec<u8>) -> io::Result<()> {
        let block = EnhancedPacketBlock {
            interface_id: stage as u32,
            timestamp,
            original_len: packet.len() as u32,
            data: Cow::Owned(packet),
            options: Vec::new(),
        };
        self.writer.write_pcapng_block(block).map_err(io_error)?;
        if self.at_once {
            self.writer.get_mut().flush()?;
        }
        Ok(())
    }
}

// IP and UDP headers (RFC 768).
fn headers(envelope: &Envelope, traffic_class: u8, octets: usize) -> Vec<u8> {
    let udp = (UDP + octets) as u16;
    let addresses = (envelope.from.ip(), envelope.to.ip());
    let identification = envelope.identification;
    let mut packet = ip_header(addresses, traffic_class, identification, PROTOCOL_UDP, udp);
    let port = |address: SocketAddr| address.port().to_be_bytes();
    packet.extend(port(envelope.from));
    packet.extend(port(envelope.to));
    packet.extend(udp.to_be_bytes());
    packet.extend([0, 0]);
    packet
}

/// Whom a packet is from, and whom to.
type Addresses = (IpAddr, IpAddr);

// In front of so many octets (RFC 791, RFC 8200).
fn ip_header(
    addresses: Addresses,
    traffic_class: u8,
    identification: u16,
    protocol: u8,
    octets: u16,
) -> Vec<u8> {
    match addresses {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            let mut ip = vec![0x45, traffic_class];
            ip.extend((20 + octets).to_be_bytes());
            ip.extend(identification.to_be_bytes());
            // DF; not a fragment; hops; protocol; checksum to be filled in.
            ip.extend([0x40, 0, HOPS, protocol, 0, 0]);
            ip.extend(from.octets());
            ip.extend(to.octets());
            let sum = checksum(&ip);
            ip[10..12].copy_from_slice(&sum.to_be_bytes());
            ip
        }
        (from, to) => {
            let mut ip = vec![0x60 | traffic_class >> 4, traffic_class << 4, 0, 0];
            ip.extend(octets.to_be_bytes());
            ip.extend([protocol, HOPS]);
            ip.extend(six(from));
            ip.extend(six(to));
            ip
        }
    }
}

fn six(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
        IpAddr::V6(ip) => ip.octets(),
    }
}

// Over the segment and what IP says of it (RFC 9293 section 3.1, RFC 8200 section 8.1).
fn tcp_checksum(addresses: Addresses, segment: &[u8]) -> u16 {
    let about = [0, PROTOCOL_TCP];
    let length = (segment.len() as u16).to_be_bytes();
    let sums = [sum(segment), sum(&about), sum(&length)];
    let addresses = match addresses {
        (IpAddr::V4(from), IpAddr::V4(to)) => sum(&from.octets()) + sum(&to.octets()),
        (from, to) => sum(&six(from)) + sum(&six(to)),
    };
    fold(addresses + sums.iter().sum::<u32>())
}

fn checksum(header: &[u8]) -> u16 {
    fold(sum(header))
}

fn sum(octets: &[u8]) -> u32 {
    let word = |word: &[u8]| match *word {
        [first, second] => u16::from_be_bytes([first, second]).into(),
        [last] => u32::from(last) << 8,
        _ => 0,
    };
    octets.chunks(2).map(word).sum()
}

fn fold(sum: u32) -> u16 {
    let folded = (sum & 0xffff) + (sum >> 16);
    !((folded & 0xffff) + (folded >> 16)) as u16
}

const UDP: usize = 8;
const TCP: usize = 20;
/// Octets of a segment: an IP packet has no room for more than twice as many.
const SEGMENT: usize = 32 << 10;
const HOPS: u8 = 64;
const PROTOCOL_TCP: u8 = 6;
const PROTOCOL_UDP: u8 = 17;
const FIN: u8 = 1;
const SYN: u8 = 2;
const RST: u8 = 4;
const PSH: u8 = 8;
const ACK: u8 = 16;

#[cfg(test)]
mod tests {
    use std::io::BufWriter;
    use std::sync::Arc;

    use pcap_file::pcapng::{Block, PcapNgReader};

    use super::*;

    #[derive(Clone, Default)]
    struct Shared(Arc<Mutex<Vec<u8>>>);

    impl Write for Shared {
        fn write(&mut self, octets: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(octets)
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
        // Each flush is one write, as to a file that is appended to.
        let shared = Shared::default();
        let buffered = || BufWriter::with_capacity(1 << 10, shared.clone());
        let first = OctetCapture::at_once(buffered()).unwrap();
        let second = OctetCapture::at_once(buffered()).unwrap();
        let envelope = envelope("192.168.0.7:50000", "192.168.0.8:4791", 3);
        for octets in [b"a", b"b", b"c"] {
            first.datagram(Stage::Sent, &envelope, 0, octets);
            second.datagram(Stage::Arrived, &envelope, 0, octets);
        }
        let written = shared.0.lock().unwrap();
        let mut reader = PcapNgReader::new(&written[..]).unwrap();
        let mut packets = Vec::new();
        while let Some(block) = reader.next_block() {
            if let Block::EnhancedPacket(packet) = block.unwrap() {
                packets.push((packet.interface_id, packet.data[packet.data.len() - 1]));
            }
        }
        let expected = [
            (0, b'a'),
            (1, b'a'),
            (0, b'b'),
            (1, b'b'),
            (0, b'c'),
            (1, b'c'),
        ];
        assert_eq!(packets, expected);
    }

    #[test]
    fn datagrams_are_written_with_the_headers_that_they_have_on_the_wire() {
        let shared = Shared::default();
        let capture = OctetCapture::new(shared.clone()).unwrap();
        let four = envelope("192.168.0.7:50000", "192.168.0.8:4791", 3);
        capture.datagram(Stage::Sent, &four, 2, b"abcd");
        let six = envelope("[fe80::1]:50000", "[fe80::2]:4791", 0);
        capture.datagram(Stage::Arrived, &six, 0x61, b"efgh");
        capture.flush().unwrap();
        let written = shared.0.lock().unwrap();
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
                other => panic!("{other:?}"),
            }
        }
        let four = [
            0x45, 2, 0, 32, 0, 3, 0x40, 0, 64, 17, 0xb9, 0x68, 192, 168, 0, 7, 192, 168, 0, 8,
            0xc3, 0x50, 0x12, 0xb7, 0, 12, 0, 0, b'a', b'b', b'c', b'd',
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
        let ends = Ends {
            local: "10.0.0.1:50000".parse().unwrap(),
            peer: "10.0.0.2:7471".parse().unwrap(),
        };
        capture.passed(Way::Out, &ends, Passed::Octets(b"of nobody"));
        capture.passed(Way::Out, &ends, Passed::Request);
        capture.passed(Way::Out, &ends, Passed::Octets(&[7; SEGMENT + 3]));
        capture.passed(Way::In, &ends, Passed::Octets(b"answer"));
        capture.passed(Way::In, &ends, Passed::End);
        capture.passed(Way::Out, &ends, Passed::Reset);
        capture.passed(Way::Out, &ends, Passed::Octets(b"too late"));
        capture.flush().unwrap();
        let written = shared.0.lock().unwrap();
        let mut reader = PcapNgReader::new(&written[..]).unwrap();
        let mut segments = Vec::new();
        while let Some(block) = reader.next_block() {
            let Block::EnhancedPacket(packet) = block.unwrap() else {
                continue;
            };
            let (ip, tcp) = packet.data.split_at(20);
            assert_eq!(checksum(ip), 0);
            let from: [u8; 4] = ip[12..16].try_into().unwrap();
            let to: [u8; 4] = ip[16..].try_into().unwrap();
            assert_eq!(tcp_checksum((from.into(), to.into()), tcp), 0);
            let number = |at: usize| u32::from_be_bytes(tcp[at..at + 4].try_into().unwrap());
            let flags = tcp[13];
            segments.push((
                packet.interface_id,
                number(4),
                number(8),
                flags,
                tcp.len() - 20,
            ));
        }
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
    fn the_checksum_of_a_header_with_its_checksum_is_0() {
        let header = headers(&envelope("10.0.0.1:1", "10.0.0.2:2", 0xffff), 0xff, 1000);
        assert_eq!(checksum(&header[..20]), 0);
    }
}
