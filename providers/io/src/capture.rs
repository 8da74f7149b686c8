//! Writes the traffic of a link to a capture file (pcapng), which any dissector reads.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;
use std::io::{self, Write};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::SystemTime;

use pcap_file::pcapng::PcapNgWriter;
use pcap_file::pcapng::blocks::enhanced_packet::EnhancedPacketBlock;
use pcap_file::pcapng::blocks::interface_description::{
    InterfaceDescriptionBlock, InterfaceDescriptionOption,
};
use pcap_file::{DataLink, PcapError};
use verbs_api::provider::Mutex;

use crate::codec::Envelope;
use crate::sockets::{Ends, Passed, TcpTap, Way};

/// Observes the datagrams that a link sends, before an injected fault changes them, and those that the link receives.
pub trait DatagramTap: Send + Sync {
    /// Observes one datagram. The link calls this while it holds locks of QPs, so an implementation must not call verbs.
    fn datagram(&self, way: Way, envelope: &Envelope, traffic_class: u8, datagram: &[u8]);
}

/// Observes everything that a link sends and receives: datagrams and the bytes of TCP connections.
pub trait WireTap: DatagramTap + TcpTap {}

impl<T: DatagramTap + TcpTap> WireTap for T {}

/// A tap that observes the traffic of a device on the wire.
#[derive(Clone)]
pub struct Tap(pub Arc<dyn WireTap>);

impl fmt::Debug for Tap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tap")
    }
}

/// Writes a link's traffic as pcapng, each datagram with the IP and UDP headers that it has on the wire. The UDP checksum
/// and the hop limit, which a socket does not report, are written as 0 and 64.
///
/// Of a TCP connection a socket reports only the bytes, so the capture makes up the segments: one for the bytes of each
/// send or receive call, with sequence numbers that begin with 0. The three segments of the handshake are written when the
/// tap reports the connection request. No segment is ever lost or retransmitted.
///
/// There are two interfaces, `sent` and `arrived`, of link type RAW: packets begin with the IP header.
pub struct OctetCapture(Mutex<File>);

struct File {
    writer: PcapNgWriter<Box<dyn Write + Send>>,
    /// Whether the writer is flushed after each packet.
    at_once: bool,
    error: Option<io::Error>,
    /// The next TCP sequence numbers of each connection: of the bytes sent, and of the bytes received.
    streams: HashMap<Ends, [u32; 2]>,
}

impl OctetCapture {
    /// Begins a capture file: writes its header and the descriptions of its two interfaces.
    ///
    /// # Errors
    /// The writer fails.
    pub fn new(writer: impl Write + Send + 'static) -> io::Result<Self> {
        let writer: Box<dyn Write + Send> = Box::new(writer);
        let mut writer = PcapNgWriter::new(writer).map_err(io_error)?;
        // `Way as u32` is the number of a packet's interface.
        for name in ["sent", "arrived"] {
            let interface = InterfaceDescriptionBlock {
                linktype: DataLink::RAW,
                snaplen: 0,
                options: vec![
                    InterfaceDescriptionOption::IfName(name.into()),
                    InterfaceDescriptionOption::IfTsResol(NANOSECONDS),
                ],
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

    /// Begins a capture file, and flushes the writer after the header and after each packet. If the writer's buffer holds
    /// the largest packet, each flush is one write: several processes can then append to one file, and a process that is
    /// killed has written all that it captured.
    ///
    /// # Errors
    /// The writer fails.
    pub fn at_once(writer: impl Write + Send + 'static) -> io::Result<Self> {
        let Self(mut file) = Self::new(writer)?;
        let begun = file.get_mut();
        begun.at_once = true;
        begun.writer.get_mut().flush()?;
        Ok(Self(file))
    }

    /// Flushes everything that was captured to the writer.
    ///
    /// # Errors
    /// The writer fails, or has failed before: after its first error no further packet is written.
    pub fn flush(&self) -> io::Result<()> {
        let mut file = self.0.lock();
        match &file.error {
            Some(error) => Err(io::Error::new(error.kind(), error.to_string())),
            None => file.writer.get_mut().flush(),
        }
    }
}

impl DatagramTap for OctetCapture {
    fn datagram(&self, way: Way, envelope: &Envelope, traffic_class: u8, datagram: &[u8]) {
        let packet = packet(envelope, traffic_class, datagram);
        self.0.lock().packet(way, packet);
    }
}

impl TcpTap for OctetCapture {
    fn passed(&self, way: Way, ends: &Ends, passed: Passed<'_>) {
        let mut file = self.0.lock();
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
            Passed::Bytes(bytes) => {
                for bytes in bytes.chunks(SEGMENT) {
                    file.segment(way, ends, ACK | PSH, bytes);
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
    fn packet(&mut self, way: Way, packet: Vec<u8>) {
        if self.error.is_none() {
            self.error = self.write(way, packet).err();
        }
    }

    // Writes a segment of a known connection. A SYN and a FIN count as a byte.
    fn segment(&mut self, way: Way, ends: &Ends, flags: u8, bytes: &[u8]) {
        let Some([sent, received]) = self.streams.get_mut(ends) else {
            return;
        };
        let (from, to, sequence, acknowledged) = match way {
            Way::Out => (ends.local, ends.peer, sent, received),
            Way::In => (ends.peer, ends.local, received, sent),
        };
        let mut tcp = Vec::with_capacity(TCP + bytes.len());
        tcp.extend(from.port().to_be_bytes());
        tcp.extend(to.port().to_be_bytes());
        tcp.extend(sequence.to_be_bytes());
        let acknowledged = if flags & ACK == 0 { 0 } else { *acknowledged };
        tcp.extend(acknowledged.to_be_bytes());
        // The header has five words and the widest window; the checksum follows below; no data are urgent.
        tcp.extend([0x50, flags, 0xff, 0xff, 0, 0, 0, 0]);
        tcp.extend_from_slice(bytes);
        let counts = bytes.len() as u32 + u32::from(flags & (SYN | FIN) != 0);
        *sequence = sequence.wrapping_add(counts);
        let addresses = (from.ip(), to.ip());
        let sum = tcp_checksum(addresses, &tcp);
        tcp[16..18].copy_from_slice(&sum.to_be_bytes());
        let mut packet = ip_header(addresses, 0, 0, PROTOCOL_TCP, tcp.len() as u16);
        packet.extend(tcp);
        self.packet(way, packet);
    }

    fn write(&mut self, way: Way, packet: Vec<u8>) -> io::Result<()> {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let block = EnhancedPacketBlock {
            interface_id: way as u32,
            timestamp: since.unwrap_or_default(),
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

fn io_error(error: PcapError) -> io::Error {
    match error {
        PcapError::IoError(error) => error,
        other => io::Error::other(other),
    }
}

// Builds a packet with IP and UDP headers (RFC 768).
fn packet(envelope: &Envelope, traffic_class: u8, datagram: &[u8]) -> Vec<u8> {
    let Envelope {
        from,
        to,
        identification,
    } = *envelope;
    let length = (UDP + datagram.len()) as u16;
    let addresses = (from.ip(), to.ip());
    let mut packet = ip_header(
        addresses,
        traffic_class,
        identification,
        PROTOCOL_UDP,
        length,
    );
    for field in [from.port(), to.port(), length, 0] {
        packet.extend(field.to_be_bytes());
    }
    packet.extend_from_slice(datagram);
    packet
}

/// The source and destination address of a packet.
type Addresses = (IpAddr, IpAddr);

// Builds the IP header of `length` bytes (RFC 791, RFC 8200).
fn ip_header(
    addresses: Addresses,
    traffic_class: u8,
    identification: u16,
    protocol: u8,
    length: u16,
) -> Vec<u8> {
    let [length, whole] = [length, 20 + length].map(u16::to_be_bytes);
    let bytes = address_bytes(addresses);
    if bytes.len() > 8 {
        let mut ip = vec![0x60 | traffic_class >> 4, traffic_class << 4, 0, 0];
        ip.extend(length);
        ip.extend([protocol, HOPS]);
        ip.extend(bytes);
        return ip;
    }
    let mut ip = vec![0x45, traffic_class];
    ip.extend(whole);
    ip.extend(identification.to_be_bytes());
    // DF is set, the packet is no fragment, and the checksum follows below.
    ip.extend([0x40, 0, HOPS, protocol, 0, 0]);
    ip.extend(bytes);
    let sum = checksum(&[&ip]);
    ip[10..12].copy_from_slice(&sum.to_be_bytes());
    ip
}

// Returns both addresses as a header of IPv4 has them if possible, else as one of IPv6.
fn address_bytes(addresses: Addresses) -> Vec<u8> {
    let six = |ip| match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
        IpAddr::V6(ip) => ip.octets(),
    };
    match addresses {
        (IpAddr::V4(from), IpAddr::V4(to)) => [from.octets(), to.octets()].concat(),
        (from, to) => [six(from), six(to)].concat(),
    }
}

// Computes the checksum over the segment and its pseudo-header (RFC 9293 section 3.1, RFC 8200 section 8.1).
fn tcp_checksum(addresses: Addresses, segment: &[u8]) -> u16 {
    let length = (segment.len() as u16).to_be_bytes();
    let addresses = address_bytes(addresses);
    checksum(&[&addresses, &[0, PROTOCOL_TCP], &length, segment])
}

// Computes the ones' complement sum of all parts (RFC 1071). Only the last may have an odd length.
fn checksum(parts: &[&[u8]]) -> u16 {
    let word = |word: &[u8]| match *word {
        [first, second] => u16::from_be_bytes([first, second]).into(),
        [last] => u32::from(last) << 8,
        _ => 0,
    };
    let words = parts.iter().flat_map(|part| part.chunks(2));
    let sum: u32 = words.map(word).sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    !((folded & 0xffff) + (folded >> 16)) as u16
}

/// The resolution of the time stamps, as the exponent of a negative power of ten.
const NANOSECONDS: u8 = 9;
const UDP: usize = 8;
const TCP: usize = 20;
/// The most payload bytes of a captured TCP segment. An IP packet has no room for twice as many.
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
mod tests;
