//! The messages between a program and the process that holds a fabric, over a connection of named sockets.
//!
//! A program sends requests and MADs. A request comes with the descriptor of a socket, to which the process sends the reply: so what
//! arrives on the connection itself is nothing but MADs, and the program can poll it. Both ends run on one machine, so numbers
//! have its byte order. A MAD, or a message of several segments, that is longer than [`INLINE`] is in a file in memory, whose
//! descriptor comes with the message. A [request for a file](decode_file_request) has a form of its own, for senders that have no room for
//! more.

use std::net::Ipv4Addr;

use polyverbs_management::{Address, Event, GlobalRoute};
use polyverbs_wire::layout::{Header as _, Octets};
use polyverbs_wire::mad::smp::{NodeInfo, PortInfo};
use serde::{Deserialize, Serialize};

use crate::members::{Delivery, Outgoing, Registration};
use crate::subnet::LinkError;

/// What a program asks the process for, and waits for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Request {
    /// Makes the connection one of a program at a port. An empty name is that of the first adapter.
    Attach {
        /// The name of the node.
        node: String,
        /// The number of the port.
        port: u8,
    },
    /// Says that the program is a subnet manager at its port, until the connection ends.
    BecomeSm,
    /// Says that the program has a verbs device at its port, and asks for the [address](Reply::Carrier) of its frames. From
    /// then on the connection carries a [`Notice`] at each change, and no MADs.
    Carry,
    /// Describes a node. An empty name is that of the first adapter.
    Describe {
        /// The name of the node.
        node: String,
    },
    /// Has a port count an error of its link.
    Fail {
        /// The name of the node.
        node: String,
        /// The number of the port.
        port: u8,
        /// The error.
        error: LinkError,
    },
    /// Registers an agent.
    Register(Registration),
    /// Asks where the LIDs of ports with verbs devices lead, as seen from the program's port.
    Routes,
    /// Cuts or joins the link of a port.
    SetLink {
        /// The name of the node.
        node: String,
        /// The number of the port.
        port: u8,
        /// Whether the link is joined.
        is_up: bool,
    },
    /// Ends the registration of an agent.
    Unregister {
        /// The number of the agent.
        agent: u32,
    },
}

/// The reply to a request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Reply {
    /// The request has been fulfilled.
    Done,
    /// The agent has this number.
    Agent(u32),
    /// Verbs devices at the port send and receive frames at this address. The descriptor of the counters to which they add
    /// comes with the reply.
    Carrier {
        /// The address, which is the same each time that the process is started.
        at: Ipv4Addr,
        /// The port as it is now.
        notice: Box<Notice>,
    },
    /// The LIDs of a port lead to these ports.
    Routes(Vec<Route>),
    /// The node that is to be described.
    Node(Box<NodeReport>),
    /// The request is refused with this error number.
    Refused(i32),
}

/// A node as its ports are now.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NodeReport {
    /// The name of the node.
    pub name: String,
    info: Octets<{ NodeInfo::LEN }>,
    /// The ports from 1 on.
    pub ports: Vec<PortReport>,
}

/// The state of a port for its verbs devices.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Notice {
    /// The port as it is now.
    pub port: PortReport,
    /// The virtual lane by service level.
    pub sl_to_vl: [u8; 16],
    /// The events since the last notice, in their order.
    pub events: Vec<PortEvent>,
    /// The ports with verbs devices: at most [`MOST_ROUTES`].
    pub routes: Vec<Route>,
}

/// A LID, the address of frames to the port that has it, and whether the forwarding tables lead there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Route(pub u16, pub Ipv4Addr, pub bool);

/// An asynchronous event of verbs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the names are those of verbs")]
pub enum PortEvent {
    ClientReregister,
    GidChange,
    LidChange,
    PkeyChange,
    PortActive,
    PortErr,
    SmChange,
}

impl PortEvent {
    /// The event of verbs for a change of a port; `None` if programs get none.
    pub fn of(event: Event) -> Option<Self> {
        Some(match event {
            Event::ClientReregister => Self::ClientReregister,
            Event::GidChange => Self::GidChange,
            Event::LidChange => Self::LidChange,
            Event::PkeyChange => Self::PkeyChange,
            Event::PortActive => Self::PortActive,
            Event::PortErr => Self::PortErr,
            Event::SmChange => Self::SmChange,
            Event::Retrain => return None,
        })
    }
}

/// A port as it is now.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PortReport {
    info: Octets<{ PortInfo::LEN }>,
    /// The P_Key table.
    pub p_keys: Vec<u16>,
    /// The GUIDs.
    pub guids: Vec<u64>,
}

impl NodeReport {
    /// Creates a report of a node.
    pub fn new(name: String, info: &NodeInfo, ports: Vec<PortReport>) -> Self {
        let info = Octets(info.to_view().0);
        Self { name, info, ports }
    }

    /// Returns what the node is.
    pub fn info(&self) -> NodeInfo {
        self.info.header()
    }
}

impl PortReport {
    /// Creates a report of a port.
    pub fn new(port: &polyverbs_management::Port) -> Self {
        Self {
            info: Octets(port.info().to_view().0),
            p_keys: port.p_keys().to_vec(),
            guids: port.guids().to_vec(),
        }
    }

    /// Returns the state of the port.
    pub fn info(&self) -> PortInfo {
        self.info.header()
    }

    /// Replaces the state of the port.
    pub fn set_info(&mut self, info: &PortInfo) {
        self.info = Octets(info.to_view().0);
    }

    /// Returns width and speed of the link. A port without a link has the lowest ones.
    pub fn rate(&self) -> ActiveRate {
        let info = self.info();
        let lanes = match info.link_width_active {
            2 => 4,
            4 => 8,
            8 => 12,
            16 => 2,
            _ => 1,
        };
        let (speed, name) = match (info.link_speed_ext_active, info.link_speed_active) {
            (1, _) => (140, "FDR"),
            (2, _) => (250, "EDR"),
            (4, _) => (500, "HDR"),
            (8, _) => (1000, "NDR"),
            (_, 2) => (50, "DDR"),
            (_, 4) => (100, "QDR"),
            _ => (25, "SDR"),
        };
        ActiveRate { lanes, speed, name }
    }
}

/// Width and speed of a link, as programs show it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ActiveRate {
    /// The number of lanes.
    pub lanes: u16,
    /// The speed of each lane in units of 100 Mb/s.
    pub speed: u16,
    /// The name of the speed.
    pub name: &'static str,
}

/// The length up to which a MAD, or a message of several segments, is part of the message between the processes.
pub const INLINE: usize = 4096;
/// The length of the longest message of several segments.
pub const LONGEST: usize = 16 << 20;
/// The most routes of a notice, so that it is no longer than a message may be.
pub const MOST_ROUTES: usize = 1792;
/// The length of a message that carries no MAD, at most.
pub const LONGEST_REQUEST: usize = 64 << 10;
/// The length of the front of a message with a MAD, before the MAD itself.
pub const FRONT: usize = 1 + 5 * 4 + ADDRESS;
const ADDRESS: usize = 38;
const MAD: u8 = b'M';

/// Decodes a request for the text of a file: `R`, the name of a node, a zero, and the path of the file below the folder of the
/// adapter. The reply is the text, or nothing.
pub fn decode_file_request(message: &[u8]) -> Option<(&str, &str)> {
    let rest = str::from_utf8(message.strip_prefix(b"R")?).ok()?;
    rest.split_once('\0')
}

/// The front of a message with a MAD.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Front {
    /// The number of the agent.
    pub agent: u32,
    /// The error number with which a request has ended without an answer; 0 for a MAD.
    pub status: u32,
    /// How many milliseconds an answer is waited for; 0 if none is.
    pub timeout_ms: u32,
    /// How often the request is repeated.
    pub retries: u32,
    /// The length of the MAD.
    pub length: u32,
    /// The peer.
    pub peer: Address,
}

impl Front {
    /// Encodes the front.
    pub fn encode(&self) -> [u8; FRONT] {
        let mut out = [0; FRONT];
        out[0] = MAD;
        let numbers = [
            self.agent,
            self.status,
            self.timeout_ms,
            self.retries,
            self.length,
        ];
        for (place, number) in out[1..].chunks_exact_mut(4).zip(numbers) {
            place.copy_from_slice(&number.to_ne_bytes());
        }
        out[FRONT - ADDRESS..].copy_from_slice(&encode_address(&self.peer));
        out
    }

    /// Decodes the front of a message, and returns it with the rest; `None` if the message has none.
    pub fn decode(message: &[u8]) -> Option<(Self, &[u8])> {
        let (front, rest) = message.split_first_chunk::<FRONT>()?;
        if front[0] != MAD {
            return None;
        }
        let number = |at: usize| {
            let bytes = front[1 + 4 * at..][..4].try_into();
            bytes.map_or(0, u32::from_ne_bytes)
        };
        let decoded = Self {
            agent: number(0),
            status: number(1),
            timeout_ms: number(2),
            retries: number(3),
            length: number(4),
            peer: decode_address(front[FRONT - ADDRESS..].try_into().ok()?),
        };
        Some((decoded, rest))
    }
}

impl Outgoing {
    /// The front with which a program sends this MAD.
    pub fn front(&self) -> Front {
        Front {
            agent: self.agent,
            status: 0,
            timeout_ms: self.timeout_ms,
            retries: self.retries,
            length: self.data.len() as u32,
            peer: self.to,
        }
    }
}

impl Delivery {
    /// The front with which a program gets this MAD.
    pub fn front(&self) -> Front {
        Front {
            agent: self.agent,
            status: self.status,
            timeout_ms: 0,
            retries: 0,
            length: self.data.len() as u32,
            peer: self.from,
        }
    }
}

fn encode_address(address: &Address) -> [u8; ADDRESS] {
    let mut out = [0; ADDRESS];
    out[..4].copy_from_slice(&address.qpn.to_ne_bytes());
    out[4..8].copy_from_slice(&address.q_key.to_ne_bytes());
    out[8..10].copy_from_slice(&address.lid.to_ne_bytes());
    out[10] = address.sl;
    out[11] = address.path_bits;
    out[12..14].copy_from_slice(&address.pkey_index.to_ne_bytes());
    if let Some(route) = &address.global {
        out[14] = 1;
        out[15] = route.gid_index;
        out[16] = route.hop_limit;
        out[17] = route.traffic_class;
        out[18..22].copy_from_slice(&route.flow_label.to_ne_bytes());
        out[22..].copy_from_slice(&route.gid);
    }
    out
}

fn decode_address(bytes: &[u8; ADDRESS]) -> Address {
    let short = |at: usize| u16::from_ne_bytes([bytes[at], bytes[at + 1]]);
    let long =
        |at: usize| u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
    let route = || GlobalRoute {
        gid: bytes[22..].try_into().unwrap_or_default(),
        gid_index: bytes[15],
        hop_limit: bytes[16],
        traffic_class: bytes[17],
        flow_label: long(18),
    };
    Address {
        qpn: long(0),
        q_key: long(4),
        lid: short(8),
        sl: bytes[10],
        path_bits: bytes[11],
        pkey_index: short(12),
        global: (bytes[14] != 0).then(route),
    }
}
