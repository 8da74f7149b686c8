//! RDS over SEND messages: finds the connections that carry it, and puts its messages together.

use std::collections::HashMap;
use std::net::IpAddr;
use std::ops::Range;

use polyverbs_wire::layout::Octets;
use polyverbs_wire::mad::cm::Message;
use polyverbs_wire::mad::rdma_cm::{self, RdmaCm, port_space};
use polyverbs_wire::rds::{
    CONGESTION_MAP_BYTES, CongestionMap, ConnectData, Extensions, FRAGMENT, Flags, HEADER, Header,
    PORT, PORT_V6, checksum,
};
use polyverbs_wire::roce::{Operation, Packet, Reth, Service};

use crate::form::{Checksum, Rds, RdsHeader, RdsMessage, Verdict};

const PADDING: Range<usize> = 26..30;
const CHECKSUM: Range<usize> = 30..32;

/// Returns whether the hosts that connect to this RDS port have IPv6 addresses; `None` if it is no RDS port.
pub(crate) const fn is_v6(port: u16) -> Option<bool> {
    match port {
        PORT => Some(false),
        PORT_V6 => Some(true),
        _ => None,
    }
}

/// Parses the RDS private data of a connection; `None` if it is too short.
pub(crate) fn connect(
    private_data: &[u8],
    is_v6: bool,
    complaints: &mut Vec<String>,
) -> Option<ConnectData> {
    let Some(data) = ConnectData::parse(private_data, is_v6) else {
        complaints.push("private data too short for RDS".to_owned());
        return None;
    };
    let known = data.to_bytes();
    let rest = private_data.strip_prefix(&known[..]);
    if !rest.is_some_and(|rest| rest.iter().all(|octet| *octet == 0)) {
        complaints.push("private data that is not all RDS's".to_owned());
    }
    Some(data)
}

/// The queue pairs of RDS connections, which are found by CM messages.
#[derive(Debug, Default)]
pub(crate) struct QueuePairs {
    /// The connection requests, by the addresses of initiator and responder and by the initiator's communication ID.
    requests: HashMap<(IpAddr, IpAddr, u32), Request>,
    /// The queue pairs that receive RDS fragments, by source address, destination address and QP number.
    receivers: HashMap<(IpAddr, IpAddr, u32), Receiver>,
}

#[derive(Clone, Copy, Debug)]
struct Request {
    is_v6: bool,
    path_mtu: u32,
}

/// A queue pair that receives RDS fragments.
#[derive(Debug)]
struct Receiver {
    /// The initiator's communication ID of the connection.
    comm_id: u32,
    path_mtu: u32,
    next_psn: u32,
    messages: Messages,
}

impl QueuePairs {
    /// Takes a CM message, to find the QPs of RDS connections. Returns the RDS private data of a request or reply; `None`
    /// for any other message.
    pub(crate) fn message(
        &mut self,
        (source, destination): (IpAddr, IpAddr),
        message: &Message,
        complaints: &mut Vec<String>,
    ) -> Option<ConnectData> {
        let private_data = message.private_data();
        match message {
            Message::Req(req) => {
                let at = (source, destination, req.local_comm_id);
                let receiver = (destination, source, req.qpn);
                let port = rdma_cm::port_of(req.service_id);
                let port = port.filter(|(space, _)| *space == port_space::TCP);
                let is_v6 = port.and_then(|(_, port)| is_v6(port));
                let (Some(is_v6), Some(path_mtu)) = (is_v6, req.path_mtu_bytes()) else {
                    self.requests.remove(&at);
                    self.receivers.remove(&receiver);
                    return None;
                };
                let request = Request { is_v6, path_mtu };
                self.requests.insert(at, request);
                self.receiver(receiver, req.local_comm_id, request, req.starting_psn);
                connect(private_data.get(RdmaCm::LEN..)?, is_v6, complaints)
            }
            Message::Rep(rep) => {
                let receiver = (destination, source, rep.qpn);
                let at = (destination, source, rep.remote_comm_id);
                let Some(request) = self.requests.get(&at).copied() else {
                    self.receivers.remove(&receiver);
                    return None;
                };
                self.receiver(receiver, rep.remote_comm_id, request, rep.starting_psn);
                connect(private_data, request.is_v6, complaints)
            }
            _ => None,
        }
    }

    // Adds a QP. If the CM message was retransmitted, the known QP and its state are kept.
    fn receiver(
        &mut self,
        at: (IpAddr, IpAddr, u32),
        comm_id: u32,
        request: Request,
        starting_psn: u32,
    ) {
        let known = self.receivers.get(&at);
        if known.is_none_or(|known| known.comm_id != comm_id) {
            let receiver = Receiver {
                comm_id,
                path_mtu: request.path_mtu,
                next_psn: starting_psn,
                messages: Messages::default(),
            };
            self.receivers.insert(at, receiver);
        }
    }

    /// Takes a packet, whose ICRC is right if `is_intact`. Returns its part of an RDS fragment; `None` if it belongs to no
    /// RDS connection or cannot be parsed.
    pub(crate) fn packet(
        &mut self,
        (source, destination): (IpAddr, IpAddr),
        packet: &Packet<'_>,
        is_intact: bool,
        complaints: &mut Vec<String>,
    ) -> Option<Rds> {
        let facts = packet.facts;
        if facts.service != Service::Rc || !facts.is_request {
            return None;
        }
        let at = (source, destination, packet.bth.dest_qp());
        let receiver = self.receivers.get_mut(&at)?;
        let is_new = is_intact && receiver.is_new(packet);
        if facts.operation != Operation::Send {
            return None;
        }
        let piece = Piece {
            begins: facts.position.begins(),
            ends: facts.position.ends(),
            octets: packet.payload,
        };
        if is_new {
            receiver.messages.take(&piece, complaints)
        } else {
            piece.fields(complaints).map(|(_, rds)| rds)
        }
    }
}

impl Receiver {
    // Returns whether the packet is no retransmission, and notes the PSN that is expected next.
    fn is_new(&mut self, packet: &Packet<'_>) -> bool {
        const PSNS: u32 = 1 << 24;
        let psn = packet.bth.psn();
        let ahead = psn.wrapping_sub(self.next_psn) % PSNS;
        if ahead >= PSNS / 2 {
            return false;
        }
        if ahead > 0 {
            self.messages.lose();
        }
        // A read takes one PSN for each packet of its response.
        let is_read = packet.facts.operation == Operation::ReadRequest;
        let length = packet.get::<Reth>().filter(|_| is_read);
        let packets = length.map_or(1, |reth| reth.dma_length().div_ceil(self.path_mtu).max(1));
        self.next_psn = psn.wrapping_add(packets) % PSNS;
        true
    }
}

/// The part of a SEND that one packet or DDP segment carries.
#[derive(Debug)]
pub(crate) struct Piece<'o> {
    /// Whether the SEND begins with this part.
    pub(crate) begins: bool,
    /// Whether the SEND ends with this part.
    pub(crate) ends: bool,
    pub(crate) octets: &'o [u8],
}

impl Piece<'_> {
    fn fields(&self, complaints: &mut Vec<String>) -> Option<(Option<Header>, Rds)> {
        if !self.begins {
            return Some((None, data(self.octets)));
        }
        let header = Header::parse(self.octets);
        let header =
            header.map_err(|error| complaints.push(format!("no fragment of RDS: {error}")));
        let header = header.ok()?;
        let (octets, rest) = self.octets.split_first_chunk()?;
        if header.extensions.rest().iter().any(|octet| *octet != 0) {
            complaints.push("an unknown extension header of RDS".to_owned());
        }
        let rds = Rds {
            header: Some(fields(&header, octets)),
            ..data(rest)
        };
        Some((Some(header), rds))
    }
}

fn data(octets: &[u8]) -> Rds {
    Rds {
        header: None,
        data: octets.into(),
        completes: None,
    }
}

fn fields(header: &Header, octets: &[u8; HEADER]) -> RdsHeader {
    let mut padding = Octets::default();
    padding.0.copy_from_slice(&octets[PADDING]);
    let mut value = Octets::default();
    value.0.copy_from_slice(&octets[CHECKSUM]);
    RdsHeader {
        sequence: header.sequence,
        ack: header.ack,
        length: header.length,
        source_port: header.source_port,
        destination_port: header.destination_port,
        flags: header.flags.bits(),
        credit: header.credit,
        padding,
        checksum: Checksum {
            value,
            verdict: match value.0 {
                [0, 0] => Verdict::Unused,
                _ => Verdict::Right,
            },
        },
        extension_octets: Octets(*header.extensions.bytes()),
        extensions: header.extensions.iter().collect(),
    }
}

/// Encodes the header of a fragment.
pub(crate) fn octets(header: &RdsHeader) -> [u8; HEADER] {
    let mut octets = Header {
        sequence: header.sequence,
        ack: header.ack,
        length: header.length,
        source_port: header.source_port,
        destination_port: header.destination_port,
        flags: Flags::from_bits_retain(header.flags),
        credit: header.credit,
        extensions: Extensions::from_bytes(header.extension_octets.0),
    }
    .to_bytes();
    octets[PADDING].copy_from_slice(&header.padding.0);
    octets[CHECKSUM].fill(0);
    let checksum = match (header.checksum.verdict, checksum(&octets)) {
        // A checksum of 0 would mean that none is used.
        (Verdict::Right, 0) => [0xff; 2],
        (Verdict::Right, checksum) => checksum.to_be_bytes(),
        _ => header.checksum.value.0,
    };
    octets[CHECKSUM].copy_from_slice(&checksum);
    octets
}

/// Puts the RDS messages of one direction of a connection together, from parts of SENDs that are taken in order.
#[derive(Debug, Default)]
pub(crate) struct Messages {
    progress: Progress,
    /// The number of data bytes so far of the fragment that has begun.
    fragment: usize,
}

#[derive(Debug, Default)]
enum Progress {
    /// No message has begun: the next fragment begins one.
    #[default]
    Between,
    /// A message has begun and is not complete.
    Within {
        header: Header,
        arrived: usize,
        /// The bytes so far, if the message is a congestion map.
        map: Vec<u8>,
    },
    /// A part is missing. Fragments are passed over until a header has another sequence number than this one, which was
    /// seen last.
    Lost(Option<u64>),
}

impl Messages {
    /// Takes the next part of a SEND; `None` if it cannot be parsed.
    pub(crate) fn take(&mut self, piece: &Piece<'_>, complaints: &mut Vec<String>) -> Option<Rds> {
        let Some((header, mut rds)) = piece.fields(complaints) else {
            self.lose();
            return None;
        };
        let data = &rds.data.0;
        if let Some(header) = header {
            if piece.ends && header.is_ack_only(data.len()) {
                rds.completes = Some(RdsMessage::Acknowledge);
                return Some(rds);
            }
            self.begin(header, complaints);
        }
        self.fragment += data.len();
        if let Progress::Within {
            header,
            arrived,
            map,
        } = &mut self.progress
        {
            *arrived += data.len();
            if header.flags.contains(Flags::CONG_BITMAP) {
                map.extend(data);
            }
        }
        if piece.ends {
            rds.completes = self.end(complaints);
        }
        Some(rds)
    }

    /// Notes that a part of a SEND is missing.
    pub(crate) fn lose(&mut self) {
        self.progress = match &self.progress {
            Progress::Between => Progress::Lost(None),
            Progress::Within { header, .. } => Progress::Lost(Some(header.sequence)),
            Progress::Lost(sequence) => Progress::Lost(*sequence),
        };
    }

    // Begins a fragment.
    fn begin(&mut self, header: Header, complaints: &mut Vec<String>) {
        self.fragment = 0;
        match &self.progress {
            Progress::Within { header: first, .. } if is_same(first, &header) => return,
            Progress::Lost(None) => {
                self.progress = Progress::Lost(Some(header.sequence));
                return;
            }
            Progress::Lost(Some(sequence)) if *sequence == header.sequence => return,
            Progress::Within { .. } => {
                complaints.push("a fragment of another message of RDS than the last".to_owned());
            }
            Progress::Between | Progress::Lost(_) => {}
        }
        self.progress = Progress::Within {
            header,
            arrived: 0,
            map: Vec::new(),
        };
    }

    // Ends a fragment. Returns the message that it completes, if it does.
    fn end(&mut self, complaints: &mut Vec<String>) -> Option<RdsMessage> {
        let Progress::Within {
            header,
            arrived,
            map,
        } = &self.progress
        else {
            return None;
        };
        let length = header.length as usize;
        let before = arrived - self.fragment;
        let expected = length.saturating_sub(before).min(FRAGMENT);
        if self.fragment != expected {
            complaints.push(format!(
                "a fragment of RDS with {} octets where {expected} are right",
                self.fragment
            ));
            self.lose();
            return None;
        }
        if *arrived < length {
            return None;
        }
        let message = if header.flags.contains(Flags::CONG_BITMAP) {
            let ports = ports(map);
            if ports.is_none() {
                complaints.push(format!("a congestion map of {length} octets"));
            }
            RdsMessage::CongestionMap(ports.unwrap_or_default())
        } else {
            RdsMessage::Data {
                length: header.length,
            }
        };
        self.progress = Progress::Between;
        Some(message)
    }
}

// Returns whether two headers belong to one message, compared as Linux does: acknowledgments and credits may differ.
fn is_same(one: &Header, other: &Header) -> bool {
    let fields = |header: &Header| {
        (
            header.sequence,
            header.length,
            header.source_port,
            header.destination_port,
        )
    };
    fields(one) == fields(other)
}

fn ports(map: &[u8]) -> Option<Vec<u16>> {
    let octets: &[u8; CONGESTION_MAP_BYTES] = map.try_into().ok()?;
    let mut map = CongestionMap::new();
    map.replace(octets);
    Some(map.ports().collect())
}
