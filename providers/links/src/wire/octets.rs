//! Capture of what is on the wire, as a file that any dissector reads.

use std::borrow::Cow;
use std::io::{self, Write};
use std::net::{IpAddr, SocketAddr};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use pcap_file::DataLink;
use pcap_file::pcapng::PcapNgWriter;
use pcap_file::pcapng::blocks::enhanced_packet::EnhancedPacketBlock;
use pcap_file::pcapng::blocks::interface_description::{
    InterfaceDescriptionBlock, InterfaceDescriptionOption,
};

use super::codec::Envelope;
use crate::capture::{NANOSECONDS, Stage, io_error};

/// Is told of the octets that a link sends, before anything happens to them, and of those that arrive.
pub trait OctetTap: Send + Sync {
    /// A datagram. Called with locks of queue pairs held.
    fn datagram(&self, stage: Stage, envelope: &Envelope, traffic_class: u8, octets: &[u8]);
}

/// Writes datagrams as pcapng, with the IP and UDP headers that they have on the wire. UDP checksums and hop limits, which
/// a socket does not show, are 0 and 64.
///
/// There are two interfaces, `sent` and `arrived`, of link type RAW: packets begin with the IP header.
pub struct OctetCapture(Mutex<File>);

struct File {
    writer: PcapNgWriter<Box<dyn Write + Send>>,
    error: Option<io::Error>,
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
            error: None,
        })))
    }

    /// Has everything written that was captured.
    ///
    /// # Errors
    /// The writer failed, now or before; nothing has been written since.
    pub fn flush(&self) -> io::Result<()> {
        let mut file = self.0.lock().unwrap_or_else(PoisonError::into_inner);
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
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let mut file = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if file.error.is_none() {
            file.error = file.write(stage, since.unwrap_or_default(), packet).err();
        }
    }
}

impl File {
    fn write(&mut self, stage: Stage, timestamp: Duration, packet: Vec<u8>) -> io::Result<()> {
        let block = EnhancedPacketBlock {
            interface_id: stage as u32,
            timestamp,
            original_len: packet.len() as u32,
            data: Cow::Owned(packet),
            options: Vec::new(),
        };
        self.writer
            .write_pcapng_block(block)
            .map(drop)
            .map_err(io_error)
    }
}

// IP and UDP headers (RFC 791, RFC 8200, RFC 768).
fn headers(envelope: &Envelope, traffic_class: u8, octets: usize) -> Vec<u8> {
    let udp = (UDP + octets) as u16;
    let mut packet = match (envelope.from.ip(), envelope.to.ip()) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            let mut ip = vec![0x45, traffic_class];
            ip.extend((20 + udp).to_be_bytes());
            ip.extend(envelope.identification.to_be_bytes());
            // DF; not a fragment; hops; UDP; checksum to be filled in.
            ip.extend([0x40, 0, HOPS, PROTOCOL_UDP, 0, 0]);
            ip.extend(from.octets());
            ip.extend(to.octets());
            let sum = checksum(&ip);
            ip[10..12].copy_from_slice(&sum.to_be_bytes());
            ip
        }
        (from, to) => {
            let six = |ip: IpAddr| match ip {
                IpAddr::V4(ip) => ip.to_ipv6_mapped(),
                IpAddr::V6(ip) => ip,
            };
            let mut ip = vec![0x60 | traffic_class >> 4, traffic_class << 4, 0, 0];
            ip.extend(udp.to_be_bytes());
            ip.extend([PROTOCOL_UDP, HOPS]);
            ip.extend(six(from).octets());
            ip.extend(six(to).octets());
            ip
        }
    };
    let port = |address: SocketAddr| address.port().to_be_bytes();
    packet.extend(port(envelope.from));
    packet.extend(port(envelope.to));
    packet.extend(udp.to_be_bytes());
    packet.extend([0, 0]);
    packet
}

fn checksum(header: &[u8]) -> u16 {
    let words = header
        .chunks_exact(2)
        .map(|word| u32::from(u16::from_be_bytes([word[0], word[1]])));
    let sum: u32 = words.sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    !((folded & 0xffff) + (folded >> 16)) as u16
}

const UDP: usize = 8;
const HOPS: u8 = 64;
const PROTOCOL_UDP: u8 = 17;

#[cfg(test)]
mod tests {
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
    fn the_checksum_of_a_header_with_its_checksum_is_0() {
        let header = headers(&envelope("10.0.0.1:1", "10.0.0.2:2", 0xffff), 0xff, 1000);
        assert_eq!(checksum(&header[..20]), 0);
    }
}
