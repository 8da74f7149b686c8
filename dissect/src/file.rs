//! Reads the packets of a pcap or pcapng file.

use std::io::{self, Cursor, Read};
use std::time::Duration;

use pcap_parser::traits::{PcapNGPacketBlock, PcapReaderIterator};
use pcap_parser::{Block, InterfaceDescriptionBlock, PcapBlockOwned, PcapError, create_reader};

/// The link type of a packet, which says with which header it begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkType {
    /// Ethernet: the packet begins with an Ethernet header.
    Ethernet,
    /// Raw IP: the packet begins with an IP header.
    Raw,
    /// Linux's cooked capture, first version.
    Sll,
    /// Linux's cooked capture, second version (SLL2).
    Sll2,
    /// BSD's loopback: the packet begins with an address family.
    Loopback,
    /// Another link type, by its number. Its packets are not dissected.
    Other(u32),
    /// The file does not describe the interface that captured the packet.
    Undescribed,
}

/// A packet as a capture file has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Captured {
    /// The time of capture since the Unix epoch.
    pub time: Duration,
    /// The link type of the interface that captured the packet.
    pub link_type: LinkType,
    /// The length of the packet on the wire, in bytes; the file may have fewer.
    pub original_len: u32,
    /// The captured bytes of the packet.
    pub octets: Vec<u8>,
}

impl Captured {
    /// Returns whether the file has only the beginning of the packet.
    pub fn is_cut(&self) -> bool {
        (self.octets.len() as u64) < u64::from(self.original_len)
    }
}

/// The reason why a file, or the rest of it, cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FileError {
    /// The file is neither pcap nor pcapng.
    #[error("it is neither a pcap nor a pcapng file")]
    Kind,
    /// The file has another format, which other programs convert.
    #[error("it is {format}: {remedy} first")]
    Foreign {
        /// The format in words.
        format: &'static str,
        /// What makes it a file that can be read.
        remedy: &'static str,
    },
    /// The file ends within the packet with this number.
    #[error("it ends within packet {0}")]
    Truncated(u64),
    /// The file contradicts itself, so that the following packets cannot be found.
    #[error("it is damaged after packet {packets}: {what}")]
    Damaged {
        /// How many packets were read before the damage.
        packets: u64,
        /// The contradiction in words.
        what: &'static str,
    },
    /// The system could not read the file.
    #[error("reading failed")]
    Io(#[source] io::Error),
}

/// A capture file that is being read.
pub struct CaptureFile<'f> {
    reader: Box<dyn PcapReaderIterator + Send + 'f>,
    format: Format,
    packets: u64,
}

/// The length of the first read, which has to contain the file's header.
const FIRST_READ: usize = 256 << 10;

/// The longest block or packet record that is read, in bytes.
const MAX_BLOCK: usize = 64 << 20;

/// The first bytes of files that people take for captures, the format, and what to do.
const FOREIGN: [(&[u8], &str, &str); 7] = [
    (b"\x1f\x8b", "compressed by gzip", "decompress it by gunzip"),
    (
        b"\x28\xb5\x2f\xfd",
        "compressed by zstd",
        "decompress it by unzstd",
    ),
    (
        b"\x04\x22\x4d\x18",
        "compressed by LZ4",
        "decompress it by unlz4",
    ),
    (b"\xfd7zXZ\0", "compressed by xz", "decompress it by unxz"),
    (b"BZh", "compressed by bzip2", "decompress it by bunzip2"),
    (
        b"snoop\0\0\0",
        "a snoop file",
        "convert it by `editcap -F pcapng`",
    ),
    (
        b"GMBU",
        "a Network Monitor file",
        "convert it by `editcap -F pcapng`",
    ),
];

fn unreadable(front: &[u8]) -> FileError {
    let found = FOREIGN.iter().find(|(magic, ..)| front.starts_with(magic));
    found.map_or(FileError::Kind, |&(_, format, remedy)| FileError::Foreign {
        format,
        remedy,
    })
}

impl<'f> CaptureFile<'f> {
    /// Opens a capture file, and reads its header.
    ///
    /// # Errors
    /// The format is unknown, or reading failed.
    pub fn new(mut file: impl Read + Send + 'f) -> Result<Self, FileError> {
        let mut front = Vec::new();
        file.by_ref()
            .take(FIRST_READ as u64)
            .read_to_end(&mut front)
            .map_err(FileError::Io)?;
        let is_pcapng = front.starts_with(&PCAPNG);
        let is_pcap = PCAP.iter().any(|magic| front.starts_with(magic));
        if !is_pcapng && !is_pcap {
            return Err(unreadable(&front));
        }
        let whole = Cursor::new(front).chain(file);
        let reader = create_reader(FIRST_READ, whole).map_err(|error| failure(error, 0))?;
        Ok(Self {
            reader,
            format: Format::default(),
            packets: 0,
        })
    }

    /// Reads the next packet; `None` at the end of the file.
    ///
    /// # Errors
    /// The file ends within a packet or contradicts itself.
    pub fn next_packet(&mut self) -> Result<Option<Captured>, FileError> {
        loop {
            match self.reader.next() {
                Ok((len, block)) => {
                    let captured = self.format.take(&block);
                    self.reader.consume(len);
                    if captured.is_some() {
                        self.packets += 1;
                        return Ok(captured);
                    }
                }
                Err(PcapError::Eof) => return Ok(None),
                Err(PcapError::Incomplete(_) | PcapError::BufferTooSmall) => self.read_more()?,
                Err(error) => return Err(failure(error, self.packets)),
            }
        }
    }

    // The buffer doubles while it is full, because a block has to be in it as a whole.
    fn read_more(&mut self) -> Result<(), FileError> {
        let packets = self.packets;
        let before = self.reader.data().len();
        self.reader
            .refill()
            .map_err(|error| failure(error, packets))?;
        if self.reader.data().len() > before || self.reader.reader_exhausted() {
            return Ok(());
        }
        if before >= MAX_BLOCK {
            let what = "a block is longer than 64 MiB";
            return Err(FileError::Damaged { packets, what });
        }
        self.reader.grow(2 * before.max(FIRST_READ));
        Ok(())
    }
}

const PCAPNG: [u8; 4] = [0x0a, 0x0d, 0x0d, 0x0a];
// The magic numbers: microseconds, nanoseconds, and the longer packet headers of a patched libpcap.
const PCAP: [[u8; 4]; 5] = [
    [0xa1, 0xb2, 0xc3, 0xd4],
    [0xd4, 0xc3, 0xb2, 0xa1],
    [0xa1, 0xb2, 0x3c, 0x4d],
    [0x4d, 0x3c, 0xb2, 0xa1],
    [0x34, 0xcd, 0xb2, 0xa1],
];

/// The properties of the following packets, as far as the blocks that were read describe them.
#[derive(Default)]
struct Format {
    is_big_endian: bool,
    /// The interfaces of the current section. A pcap file has one.
    interfaces: Vec<Interface>,
}

#[derive(Clone, Copy)]
struct Interface {
    link_type: LinkType,
    snap_len: u32,
    /// The unit of time stamps, as a negative power of ten, or of two if the highest bit is set.
    resolution: u8,
    /// The seconds that are added to each time stamp.
    offset: i64,
}

const UNDESCRIBED: Interface = Interface {
    link_type: LinkType::Undescribed,
    snap_len: 0,
    resolution: 6,
    offset: 0,
};

impl Format {
    // Returns the packet in a block, if it has one. Other blocks describe packets, or have content that is not shown.
    fn take(&mut self, block: &PcapBlockOwned<'_>) -> Option<Captured> {
        match block {
            PcapBlockOwned::LegacyHeader(header) => {
                self.interfaces.push(Interface {
                    link_type: link_type(header.network.0 as u32 & LINK_TYPE_BITS),
                    snap_len: header.snaplen,
                    resolution: if header.is_nanosecond_precision() {
                        9
                    } else {
                        6
                    },
                    offset: 0,
                });
                None
            }
            PcapBlockOwned::Legacy(packet) => {
                let interface = self.interface(0);
                let per_second = 10_u64.pow(interface.resolution.into());
                let units = u64::from(packet.ts_sec) * per_second + u64::from(packet.ts_usec);
                Some(interface.captured(units, packet.origlen, packet.data))
            }
            PcapBlockOwned::NG(block) => self.take_block(block),
        }
    }

    fn take_block(&mut self, block: &Block<'_>) -> Option<Captured> {
        match block {
            Block::SectionHeader(header) => {
                *self = Self {
                    is_big_endian: header.big_endian(),
                    interfaces: Vec::new(),
                };
                None
            }
            Block::InterfaceDescription(description) => {
                let interface = self.described(description);
                self.interfaces.push(interface);
                None
            }
            Block::EnhancedPacket(packet) => {
                let units = units(packet.ts_high, packet.ts_low);
                let interface = self.interface(packet.if_id);
                Some(interface.captured(units, packet.origlen, packet.packet_data()))
            }
            Block::SimplePacket(packet) => {
                let interface = Interface {
                    offset: 0,
                    ..self.interface(0)
                };
                // The block does not say how much of the packet it has, and ends in a pad.
                let data = packet.packet_data();
                let len = match interface.snap_len as usize {
                    0 => data.len(),
                    snap_len => data.len().min(snap_len),
                };
                Some(interface.captured(0, packet.origlen, &data[..len]))
            }
            Block::Unknown(block) => {
                let is_packet = self.number(block.block_type.to_le_bytes()) == PACKET_BLOCK;
                is_packet.then(|| self.obsolete_packet(block.data))?
            }
            _ => None,
        }
    }

    // The Packet Block that the Enhanced Packet Block has replaced, which pcap-parser does not know.
    fn obsolete_packet(&self, octets: &[u8]) -> Option<Captured> {
        let (fields, data) = octets.split_first_chunk::<20>()?;
        let (fields, _) = fields.as_chunks::<4>();
        // The first is the interface, in 16 bits, and the count of lost packets.
        let [high, low, captured_len, original_len] =
            [1, 2, 3, 4].map(|at| self.number(fields[at]));
        let interface = [fields[0][0], fields[0][1]];
        let interface = if self.is_big_endian {
            u16::from_be_bytes(interface)
        } else {
            u16::from_le_bytes(interface)
        };
        let data = &data[..data.len().min(captured_len as usize)];
        let interface = self.interface(interface.into());
        Some(interface.captured(units(high, low), original_len, data))
    }

    fn described(&self, description: &InterfaceDescriptionBlock<'_>) -> Interface {
        // pcap-parser reads the offset as little-endian in every section.
        let offset = description.if_tsoffset;
        Interface {
            link_type: link_type(description.linktype.0 as u32 & 0xffff),
            snap_len: description.snaplen,
            resolution: description.if_tsresol,
            offset: if self.is_big_endian {
                offset.swap_bytes()
            } else {
                offset
            },
        }
    }

    fn interface(&self, number: u32) -> Interface {
        let interface = self.interfaces.get(number as usize);
        interface.copied().unwrap_or(UNDESCRIBED)
    }

    fn number(&self, octets: [u8; 4]) -> u32 {
        if self.is_big_endian {
            u32::from_be_bytes(octets)
        } else {
            u32::from_le_bytes(octets)
        }
    }
}

const PACKET_BLOCK: u32 = 2;

impl Interface {
    fn captured(&self, units: u64, original_len: u32, octets: &[u8]) -> Captured {
        Captured {
            time: self.time(units),
            link_type: self.link_type,
            original_len,
            octets: octets.to_vec(),
        }
    }

    fn time(&self, units: u64) -> Duration {
        const NANOSECONDS: i128 = 1_000_000_000;
        let exponent = u32::from(self.resolution & 0x7f);
        let per_second = if self.resolution & 0x80 == 0 {
            10_i128.checked_pow(exponent)
        } else {
            2_i128.checked_pow(exponent)
        };
        let since = per_second.map_or(0, |per_second| i128::from(units) * NANOSECONDS / per_second);
        let since = since + i128::from(self.offset) * NANOSECONDS;
        let seconds = u64::try_from(since / NANOSECONDS).unwrap_or(0);
        let nanoseconds = u32::try_from(since % NANOSECONDS).unwrap_or(0);
        Duration::new(seconds, nanoseconds)
    }
}

fn units(high: u32, low: u32) -> u64 {
    u64::from(high) << 32 | u64::from(low)
}

// The bits of a pcap file's link type field that are the link type. The higher bits have the length of the frame check
// sequence.
const LINK_TYPE_BITS: u32 = 0x03ff_ffff;

// Numbers of <https://www.tcpdump.org/linktypes.html>.
fn link_type(number: u32) -> LinkType {
    match number {
        0 | 108 => LinkType::Loopback,
        1 => LinkType::Ethernet,
        // The numbers of raw IP on some systems are 12 and 14; those of IPv4 and IPv6 alone are 228 and 229.
        12 | 14 | 101 | 228 | 229 => LinkType::Raw,
        113 => LinkType::Sll,
        276 => LinkType::Sll2,
        other => LinkType::Other(other),
    }
}

fn failure<I>(error: PcapError<I>, packets: u64) -> FileError {
    match error {
        PcapError::ReadError => FileError::Io(io::Error::other("the file cannot be read further")),
        PcapError::Eof | PcapError::Incomplete(_) | PcapError::UnexpectedEof => {
            FileError::Truncated(packets + 1)
        }
        _ => FileError::Damaged {
            packets,
            what: "the lengths of a block are not valid",
        },
    }
}

#[cfg(test)]
mod tests;
