//! The packets of a pcap or pcapng file.

use std::io::{self, Chain, Cursor, Read};
use std::time::Duration;

use pcap_file::pcap::PcapReader;
use pcap_file::pcapng::blocks::interface_description::InterfaceDescriptionOption;
use pcap_file::pcapng::{Block, PcapNgReader};
use pcap_file::{DataLink, PcapError, TsResolution};

/// The link type of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkType {
    /// Ethernet.
    Ethernet,
    /// Raw IP: the packet begins with an IP header.
    Raw,
    /// Linux's cooked capture.
    Sll,
    /// Linux's cooked capture, second version.
    Sll2,
}

/// A packet of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Captured {
    /// Time of capture since the Unix epoch.
    pub time: Duration,
    /// The link type.
    pub link_type: LinkType,
    /// Length on the wire; the file may have fewer bytes.
    pub original_len: u32,
    /// The captured bytes.
    pub octets: Vec<u8>,
}

/// Why a file cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FileError {
    /// Neither pcap nor pcapng.
    #[error("it is neither a pcap nor a pcapng file")]
    Kind,
    /// An unknown link type.
    #[error("its link type is {0}; known are Ethernet, raw IP and Linux's cooked captures")]
    LinkType(u32),
    /// The file ends within a packet.
    #[error("it ends within packet {0}")]
    Truncated(u64),
    /// The file contradicts itself.
    #[error("it is damaged behind packet {packets}: {what}")]
    Damaged {
        /// How many packets were read before.
        packets: u64,
        /// What is wrong.
        what: String,
    },
    /// Reading failed.
    #[error("reading failed")]
    Io(#[source] io::Error),
}

type Whole<R> = Chain<Cursor<Vec<u8>>, R>;

enum Kind<R: Read> {
    Pcap(PcapReader<Whole<R>>, LinkType),
    PcapNg(PcapNgReader<Whole<R>>),
}

/// A file that is being read.
pub struct CaptureFile<R: Read> {
    kind: Kind<R>,
    packets: u64,
}

const PCAPNG: [u8; 4] = [0x0a, 0x0d, 0x0d, 0x0a];
const PCAP: [[u8; 4]; 4] = [
    [0xa1, 0xb2, 0xc3, 0xd4],
    [0xd4, 0xc3, 0xb2, 0xa1],
    [0xa1, 0xb2, 0x3c, 0x4d],
    [0x4d, 0x3c, 0xb2, 0xa1],
];

impl<R: Read> CaptureFile<R> {
    /// Opens a file.
    ///
    /// # Errors
    /// The format or a link type is unknown.
    pub fn new(mut file: R) -> Result<Self, FileError> {
        let mut magic = Vec::new();
        file.by_ref()
            .take(4)
            .read_to_end(&mut magic)
            .map_err(FileError::Io)?;
        let magic: [u8; 4] = magic.try_into().map_err(|_| FileError::Kind)?;
        let whole = Cursor::new(magic.to_vec()).chain(file);
        let kind = if magic == PCAPNG {
            Kind::PcapNg(PcapNgReader::new(whole).map_err(|error| wrong(error, 0))?)
        } else if PCAP.contains(&magic) {
            let reader = PcapReader::new(whole).map_err(|error| wrong(error, 0))?;
            let link_type = link_type(reader.header().datalink)?;
            Kind::Pcap(reader, link_type)
        } else {
            return Err(FileError::Kind);
        };
        Ok(Self { kind, packets: 0 })
    }

    /// The next packet.
    ///
    /// # Errors
    /// The file ends within a packet or contradicts itself.
    pub fn next_packet(&mut self) -> Result<Option<Captured>, FileError> {
        let packets = self.packets;
        let captured = match &mut self.kind {
            Kind::Pcap(reader, link_type) => next_of_pcap(reader, *link_type),
            Kind::PcapNg(reader) => next_of_pcapng(reader),
        };
        let captured = captured.map_err(|error| match error {
            NextError::File(error) => error,
            NextError::Format(error) => wrong(error, packets),
        })?;
        self.packets += u64::from(captured.is_some());
        Ok(captured)
    }
}

enum NextError {
    File(FileError),
    Format(PcapError),
}

impl From<PcapError> for NextError {
    fn from(error: PcapError) -> Self {
        Self::Format(error)
    }
}

impl From<FileError> for NextError {
    fn from(error: FileError) -> Self {
        Self::File(error)
    }
}

fn next_of_pcap<R: Read>(
    reader: &mut PcapReader<Whole<R>>,
    link_type: LinkType,
) -> Result<Option<Captured>, NextError> {
    let unit = match reader.header().ts_resolution {
        TsResolution::MicroSecond => 1000,
        TsResolution::NanoSecond => 1,
    };
    // The raw packet: whether its lengths match the file's interface does not matter here.
    let Some(packet) = reader.next_raw_packet().transpose()? else {
        return Ok(None);
    };
    Ok(Some(Captured {
        time: Duration::from_secs(packet.ts_sec.into())
            + Duration::from_nanos(u64::from(packet.ts_frac) * unit),
        link_type,
        original_len: packet.orig_len,
        octets: packet.data.into_owned(),
    }))
}

fn next_of_pcapng<R: Read>(
    reader: &mut PcapNgReader<Whole<R>>,
) -> Result<Option<Captured>, NextError> {
    loop {
        let (interface, time, original_len, octets) = match reader.next_block().transpose()? {
            None => return Ok(None),
            Some(Block::EnhancedPacket(packet)) => (
                packet.interface_id,
                packet.timestamp,
                packet.original_len,
                packet.data.into_owned(),
            ),
            Some(Block::SimplePacket(packet)) => (
                0,
                Duration::ZERO,
                packet.original_len,
                packet.data.into_owned(),
            ),
            Some(_) => continue,
        };
        let interface = reader.interfaces().get(interface as usize);
        let interface = interface.ok_or(PcapError::InvalidField("no such interface"))?;
        let resolution = interface.options.iter().find_map(|option| match option {
            InterfaceDescriptionOption::IfTsResol(resolution) => Some(*resolution),
            _ => None,
        });
        return Ok(Some(Captured {
            time: in_units(time, resolution.unwrap_or(6)),
            link_type: link_type(interface.linktype)?,
            original_len,
            octets,
        }));
    }
}

// The reader takes every unit for a nanosecond. A resolution is a negative power of ten, or, with the highest bit set, of two.
fn in_units(time: Duration, resolution: u8) -> Duration {
    let units = time.as_nanos();
    let exponent = u32::from(resolution & 0x7f);
    let per_second = if resolution & 0x80 == 0 {
        10_u128.checked_pow(exponent)
    } else {
        2_u128.checked_pow(exponent)
    };
    let nanoseconds = per_second
        .and_then(|per_second| Some(units.checked_mul(1_000_000_000)? / per_second))
        .and_then(|nanoseconds| u64::try_from(nanoseconds).ok());
    nanoseconds.map_or(Duration::ZERO, Duration::from_nanos)
}

fn link_type(link: DataLink) -> Result<LinkType, FileError> {
    match link {
        DataLink::ETHERNET => Ok(LinkType::Ethernet),
        DataLink::RAW | DataLink::IPV4 | DataLink::IPV6 => Ok(LinkType::Raw),
        DataLink::LINUX_SLL => Ok(LinkType::Sll),
        other => match u32::from(other) {
            SLL2 => Ok(LinkType::Sll2),
            // The number of raw IP on some systems.
            12 | 14 => Ok(LinkType::Raw),
            other => Err(FileError::LinkType(other)),
        },
    }
}

const SLL2: u32 = 276;

fn wrong(error: PcapError, packets: u64) -> FileError {
    match error {
        PcapError::IoError(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
            FileError::Truncated(packets + 1)
        }
        PcapError::IoError(error) => FileError::Io(error),
        other => FileError::Damaged {
            packets,
            what: other.to_string(),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_in_the_units_of_their_interface() {
        let units = Duration::from_nanos(1_500_000);
        assert_eq!(in_units(units, 6), Duration::from_millis(1500));
        assert_eq!(in_units(units, 9), Duration::from_micros(1500));
        assert_eq!(in_units(units, 0x80), Duration::from_secs(1_500_000));
        assert_eq!(in_units(units, 127), Duration::ZERO);
    }

    #[test]
    fn a_file_that_is_no_capture_is_an_error() {
        let open = |octets: &[u8]| {
            CaptureFile::new(octets)
                .err()
                .map(|error| error.to_string())
        };
        let neither = Some("it is neither a pcap nor a pcapng file".to_owned());
        assert_eq!(open(b""), neither);
        assert_eq!(open(b"abc"), neither);
        assert_eq!(open(b"# a text"), neither);
        let mut header = [0; 24];
        header[..4].copy_from_slice(&PCAP[0]);
        header[5] = 2;
        header[7] = 4;
        header[23] = 147;
        assert!(open(&header).is_some_and(|said| said.contains("147")));
        assert!(open(&header[..20]).is_some_and(|said| said.contains("ends within")));
    }
}
