//! Arguments and events of a [`Manager`](super::Manager).

use polyverbs_wire::mad::cm::Message;
use thiserror::Error;
use verbs_api::{
    capability::Mtu,
    ids::{Gid, LinkAddress, Port, Psn, Qpn},
};

/// The local communication ID of a connection or of a service ID resolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CommId(pub u32);

/// Identifies a listener of a connection manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ListenerId(pub(super) u32);

/// The state of a connection or of a service ID resolution (IBTA 12.9.5). One in the idle state does not exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum State {
    /// This side has sent a REQ and waits for the answer.
    ReqSent,
    /// A REQ was received, which the program has not answered yet.
    ReqRcvd,
    /// A REQ was received, and this side has asked for more time with an MRA.
    MraReqSent,
    /// This side has sent a REQ, and the peer has asked for more time with an MRA.
    MraReqRcvd,
    /// This side has sent a REP and waits for the RTU.
    RepSent,
    /// A REP was received; the program has to bring the queue pair up and confirm.
    RepRcvd,
    /// A REP was received, and this side has asked for more time with an MRA.
    MraRepSent,
    /// This side has sent a REP, and the peer has asked for more time with an MRA.
    MraRepRcvd,
    /// The connection is established.
    Established,
    /// This side has sent a DREQ and waits for the DREP.
    DreqSent,
    /// A DREQ was received, which the program has not confirmed yet.
    DreqRcvd,
    /// TIMEWAIT: the connection has ended; its communication ID stays reserved until all of its packets have left the
    /// network.
    TimeWait,
    /// This side has sent a SIDR_REQ and waits for the SIDR_REP.
    SidrReqSent,
    /// A SIDR_REQ was received, which the program has not answered yet.
    SidrReqRcvd,
}

impl State {
    /// All states, each once.
    pub const ALL: [Self; 14] = [
        Self::ReqSent,
        Self::ReqRcvd,
        Self::MraReqSent,
        Self::MraReqRcvd,
        Self::RepSent,
        Self::RepRcvd,
        Self::MraRepSent,
        Self::MraRepRcvd,
        Self::Established,
        Self::DreqSent,
        Self::DreqRcvd,
        Self::TimeWait,
        Self::SidrReqSent,
        Self::SidrReqRcvd,
    ];

    /// Whether this side repeats a message in this state until the peer answers it.
    pub(super) const fn awaits_answer(self) -> bool {
        matches!(
            self,
            Self::ReqSent | Self::RepSent | Self::DreqSent | Self::SidrReqSent
        )
    }

    /// Whether a request of the peer waits in this state for the program's answer.
    pub(super) const fn is_unanswered(self) -> bool {
        matches!(self, Self::ReqRcvd | Self::MraReqSent | Self::SidrReqRcvd)
    }

    pub(super) const fn knows_peer(self) -> bool {
        matches!(
            self,
            Self::ReqRcvd
                | Self::MraReqSent
                | Self::RepSent
                | Self::MraRepRcvd
                | Self::RepRcvd
                | Self::MraRepSent
                | Self::Established
        )
    }
}

/// The service type of a connection's queue pairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Transport {
    /// Reliable connected.
    #[default]
    Rc,
    /// Unreliable connected.
    Uc,
    /// Extended reliable connected (XRC): the active side is the initiator, the passive side the target.
    Xrc,
}

/// The path to a peer, as messages of the connection manager describe it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Path {
    /// The link address of the peer.
    pub address: LinkAddress,
    /// The GID of the local port.
    pub local_gid: Gid,
    /// The GID of the peer's port.
    pub remote_gid: Gid,
    /// The local port, counted from 1.
    pub port_num: Port,
    /// The index of the partition key in the local port's table.
    pub pkey_index: u16,
    /// The partition key itself.
    pub p_key: u16,
    /// The index of the local GID in the port's table.
    pub sgid_index: u8,
    /// The path MTU.
    pub mtu: Mtu,
    /// The flow label: 20 bits.
    pub flow_label: u32,
    /// The traffic class of packets.
    pub traffic_class: u8,
    /// The hop limit of packets.
    pub hop_limit: u8,
    /// The service level of packets.
    pub sl: u8,
    /// The static rate of packets, as verbs encode it.
    pub static_rate: u8,
    /// The packet lifetime: 4.096 µs x 2^n.
    pub packet_life_time: u8,
}

impl Path {
    /// Returns the path through port 1 from `local_gid` to `remote_gid` at `address`, with the defaults of RoCE for the
    /// rest.
    pub const fn new(address: LinkAddress, local_gid: Gid, remote_gid: Gid) -> Self {
        Self {
            address,
            local_gid,
            remote_gid,
            port_num: 1,
            pkey_index: 0,
            p_key: 0xffff,
            sgid_index: 0,
            mtu: Mtu::Mtu1024,
            flow_label: 0,
            traffic_class: 0,
            hop_limit: 64,
            sl: 0,
            static_rate: 0,
            packet_life_time: 14,
        }
    }
}

/// The contents of a REQ to be sent.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// The ID of the service to connect to.
    pub service_id: u64,
    /// The service type of the queue pairs.
    pub transport: Transport,
    /// The path to the peer.
    pub path: Path,
    /// The number of the local queue pair.
    pub qpn: Qpn,
    /// The first PSN that the peer shall send.
    pub starting_psn: Psn,
    /// How many reads and atomics of the peer the local queue pair executes at one time.
    pub responder_resources: u8,
    /// How many reads and atomics the local queue pair has outstanding at one time.
    pub initiator_depth: u8,
    /// How often the queue pairs retry after a timeout or a sequence error.
    pub retry_count: u8,
    /// How often the peer shall retry after an RNR NAK.
    pub rnr_retry_count: u8,
    /// Whether the program asks for end-to-end flow control.
    pub flow_control: bool,
    /// Whether the local queue pair has a shared receive queue.
    pub srq: bool,
    /// How soon the peer shall answer messages: 4.096 µs x 2^n.
    pub remote_response_timeout: u8,
    /// How soon this side answers messages: 4.096 µs x 2^n.
    pub local_response_timeout: u8,
    /// How often an unanswered message is repeated, 0 to 15.
    pub max_cm_retries: u8,
    /// The private data of the program, up to 92 bytes.
    pub private_data: &'a [u8],
}

impl Request<'_> {
    /// Returns a request for a reliable connection, with the times and retries that librdmacm uses.
    pub const fn new(service_id: u64, path: Path, qpn: Qpn, starting_psn: Psn) -> Self {
        Self {
            service_id,
            transport: Transport::Rc,
            path,
            qpn,
            starting_psn,
            responder_resources: 1,
            initiator_depth: 1,
            retry_count: 7,
            rnr_retry_count: 7,
            flow_control: false,
            srq: false,
            remote_response_timeout: 20,
            local_response_timeout: 20,
            max_cm_retries: 15,
            private_data: &[],
        }
    }
}

/// The contents of a REP to be sent.
#[derive(Clone, Copy, Debug)]
pub struct Reply<'a> {
    /// The number of the local queue pair; with XRC, of the target.
    pub qpn: Qpn,
    /// The first PSN that the peer shall send.
    pub starting_psn: Psn,
    /// How many reads and atomics of the peer the local queue pair executes at one time.
    pub responder_resources: u8,
    /// How many reads and atomics the local queue pair has outstanding at one time.
    pub initiator_depth: u8,
    /// How often the peer shall retry after an RNR NAK.
    pub rnr_retry_count: u8,
    /// Whether the program asks for end-to-end flow control.
    pub flow_control: bool,
    /// Whether the local queue pair has a shared receive queue.
    pub srq: bool,
    /// The private data of the program, up to 196 bytes.
    pub private_data: &'a [u8],
}

impl Reply<'_> {
    /// Returns a reply with the read limits that the request asks for.
    pub const fn new(qpn: Qpn, starting_psn: Psn, request: &Requested) -> Self {
        Self {
            qpn,
            starting_psn,
            responder_resources: request.responder_resources,
            initiator_depth: request.initiator_depth,
            rnr_retry_count: 7,
            flow_control: false,
            srq: false,
            private_data: &[],
        }
    }
}

/// The contents of a REJ to be sent.
#[derive(Clone, Copy, Debug)]
pub struct Rejection<'a> {
    /// The reason for the rejection: see [`reason`](polyverbs_wire::mad::cm::reason).
    pub reason: u16,
    /// The additional reject information, up to 72 bytes.
    pub info: &'a [u8],
    /// The private data of the program, up to 148 bytes.
    pub private_data: &'a [u8],
}

/// The contents of a SIDR_REQ to be sent.
#[derive(Clone, Copy, Debug)]
pub struct Inquiry<'a> {
    /// The ID of the service to resolve.
    pub service_id: u64,
    /// The path to the peer.
    pub path: Path,
    /// How long the peer may take to answer: 4.096 µs × 2^n; 5 bits.
    pub response_timeout: u8,
    /// How often the SIDR_REQ is repeated without an answer; 4 bits.
    pub max_cm_retries: u8,
    /// Whether the SIDR_REQ is repeated for a while to a peer that says that no program listens yet.
    pub awaits_listener: bool,
    /// The private data of the program, up to 216 bytes.
    pub private_data: &'a [u8],
}

/// The contents of a SIDR_REP to be sent.
#[derive(Clone, Copy, Debug)]
pub struct Resolution<'a> {
    /// The status: 0 valid, 1 unsupported, 2 rejected, 3 no queue pair, 4 redirected, 5 version.
    pub status: u8,
    /// The number of the datagram queue pair.
    pub qpn: Qpn,
    /// The Q_Key of the datagram queue pair.
    pub q_key: u32,
    /// The private data of the program, up to 136 bytes.
    pub private_data: &'a [u8],
}

/// A received REQ. Its read limits are from this side's point of view: this side executes the reads that the peer starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Requested {
    /// The ID of the service that the peer wants to connect to.
    pub service_id: u64,
    /// The service type of the queue pairs.
    pub transport: Transport,
    /// The path to the peer.
    pub path: Path,
    /// The number of the peer's queue pair.
    pub remote_qpn: Qpn,
    /// The first PSN that this side shall send.
    pub starting_psn: Psn,
    /// The GUID of the peer's adapter.
    pub remote_guid: u64,
    /// How many reads and atomics this side executes at one time: the `initiator_depth` of the peer's REQ.
    pub responder_resources: u8,
    /// How many reads and atomics this side may have outstanding: the `responder_resources` of the peer's REQ.
    pub initiator_depth: u8,
    /// How often the queue pairs retry after a timeout or a sequence error.
    pub retry_count: u8,
    /// How often this side shall retry after an RNR NAK.
    pub rnr_retry_count: u8,
    /// Whether the peer's program asks for end-to-end flow control.
    pub flow_control: bool,
    /// Whether the peer's queue pair has a shared receive queue.
    pub srq: bool,
    /// The private data of the peer, 92 bytes.
    pub private_data: Vec<u8>,
}

/// A received REP. Its read limits are from this side's point of view.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replied {
    /// The path to the peer.
    pub path: Path,
    /// The number of the peer's queue pair.
    pub remote_qpn: Qpn,
    /// The first PSN that this side shall send.
    pub starting_psn: Psn,
    /// How many reads and atomics of the peer this side executes at one time.
    pub responder_resources: u8,
    /// How many reads and atomics this side may have outstanding at one time.
    pub initiator_depth: u8,
    /// How often this side shall retry after an RNR NAK.
    pub rnr_retry_count: u8,
    /// Whether the peer's program asks for end-to-end flow control.
    pub flow_control: bool,
    /// Whether the peer's queue pair has a shared receive queue.
    pub srq: bool,
    /// The private data of the peer, 196 bytes.
    pub private_data: Vec<u8>,
}

/// An event of a connection or of service ID resolution.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A REQ was received; the program answers with [`reply`](super::Manager::reply) or [`reject`](super::Manager::reject).
    Requested {
        /// The listener that listens for the requested service.
        listener: ListenerId,
        /// The communication ID of the new connection.
        id: CommId,
        /// The contents of the REQ.
        request: Box<Requested>,
    },
    /// A REP was received; the program continues with [`ready`](super::Manager::ready) or `reject`.
    Replied {
        /// The communication ID of the connection.
        id: CommId,
        /// The contents of the REP.
        reply: Box<Replied>,
    },
    /// An RTU was received: the connection is established.
    Established {
        /// The communication ID of the connection.
        id: CommId,
        /// The private data of the RTU, 224 bytes.
        private_data: Vec<u8>,
    },
    /// The connection is established because its queue pair received traffic before the RTU.
    EstablishedByTraffic {
        /// The communication ID of the connection.
        id: CommId,
    },
    /// A REJ was received: the connection is refused, or has ended.
    Rejected {
        /// The communication ID of the connection.
        id: CommId,
        /// The reason for the rejection: see [`reason`](polyverbs_wire::mad::cm::reason).
        reason: u16,
        /// The additional reject information of the REJ.
        info: Vec<u8>,
        /// The private data of the REJ, 148 bytes.
        private_data: Vec<u8>,
    },
    /// An MRA was received: the peer needs more time to answer.
    Delayed {
        /// The communication ID of the connection.
        id: CommId,
        /// How long the peer may take: 4.096 µs x 2^n.
        service_timeout: u8,
        /// The private data of the MRA, 222 bytes.
        private_data: Vec<u8>,
    },
    /// A DREQ was received; the program answers with [`confirm_disconnect`](super::Manager::confirm_disconnect).
    DisconnectRequested {
        /// The communication ID of the connection.
        id: CommId,
        /// The private data of the DREQ, 220 bytes.
        private_data: Vec<u8>,
    },
    /// A DREP was received: the peer has confirmed the end of the connection.
    Disconnected {
        /// The communication ID of the connection.
        id: CommId,
        /// The private data of the DREP, 224 bytes.
        private_data: Vec<u8>,
    },
    /// The peer did not answer the REQ: there is no connection.
    RequestTimedOut {
        /// The communication ID of the connection.
        id: CommId,
    },
    /// The peer did not answer the REP: there is no connection.
    ReplyTimedOut {
        /// The communication ID of the connection.
        id: CommId,
    },
    /// The peer did not answer the DREQ: the connection has ended nevertheless.
    DisconnectTimedOut {
        /// The communication ID of the connection.
        id: CommId,
    },
    /// The peer's process does not answer liveness probes: the connection has ended.
    PeerLost {
        /// The communication ID of the connection.
        id: CommId,
    },
    /// The operating system refuses to send the REQ, REP or SIDR_REQ: the connection or resolution has failed.
    Unsent {
        /// The communication ID of the connection or of the resolution.
        id: CommId,
        /// The error number (`errno`) of the operating system.
        errno: i32,
    },
    /// TIMEWAIT is over: the communication IDs may be used again.
    TimewaitExit {
        /// The communication ID of the connection.
        id: CommId,
    },
    /// The program took so long to answer a request that the peer is assumed to have given up: it can no longer answer.
    Withdrawn {
        /// The communication ID of the connection or of the resolution.
        id: CommId,
    },
    /// A SIDR_REQ was received; the program answers with [`resolve_reply`](super::Manager::resolve_reply).
    ResolutionRequested {
        /// The listener that listens for the requested service.
        listener: ListenerId,
        /// The communication ID of the resolution.
        id: CommId,
        /// The link address of the peer.
        from: LinkAddress,
        /// The ID of the service that the peer wants to resolve.
        service_id: u64,
        /// The private data of the SIDR_REQ, 216 bytes.
        private_data: Vec<u8>,
    },
    /// A SIDR_REP was received: the answer to this side's SIDR_REQ.
    Resolved {
        /// The communication ID of the resolution.
        id: CommId,
        /// The status; 0 if queue pair and Q_Key are valid.
        status: u8,
        /// The number of the datagram queue pair.
        qpn: Qpn,
        /// The Q_Key of the datagram queue pair.
        q_key: u32,
        /// The private data of the SIDR_REP, 136 bytes.
        private_data: Vec<u8>,
    },
    /// The peer did not answer the SIDR_REQ.
    ResolutionTimedOut {
        /// The communication ID of the resolution.
        id: CommId,
    },
}

/// A message of the connection manager that is to be sent.
#[derive(Clone, Debug, PartialEq)]
pub struct Outgoing {
    /// The link address to send it to.
    pub to: LinkAddress,
    /// The transaction ID of the management datagram.
    pub transaction_id: u64,
    /// The message of the connection manager.
    pub message: Message,
}

/// Why a call of the connection manager was refused. It has changed nothing and sent no message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum CmError {
    /// There is no such connection or listener.
    #[error("there is no such connection")]
    Unknown,
    /// The call is not allowed in this state of the connection.
    #[error("not allowed in state {0:?}")]
    State(State),
    /// The connection is established already.
    #[error("connected already")]
    Connected,
    /// The private data is longer than the message has room for.
    #[error("{len} bytes of private data, where there may be {max}")]
    PrivateData {
        /// The number of bytes of private data given.
        len: usize,
        /// The largest number of bytes of private data that fit.
        max: usize,
    },
    /// Another listener listens for the service.
    #[error("another listener listens for this service")]
    InUse,
    /// All communication IDs are in use, or there is no room for another connection.
    #[error("too many connections")]
    TooMany,
    /// An argument is invalid, for the reason in this text.
    #[error("{0}")]
    Argument(&'static str),
}
