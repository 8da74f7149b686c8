//! Arguments and events of a [`Manager`](super::Manager).

use polyverbs_wire::mad::cm::Message;
use thiserror::Error;
use verbs_api::{
    capability::Mtu,
    ids::{Gid, LinkAddress, Port, Psn, Qpn},
};

/// A connection's *local communication ID*.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CommId(pub u32);

/// The identity of a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ListenerId(pub(super) u32);

/// The state of a connection (IBTA 12.9.5). An idle connection does not exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum State {
    /// REQ sent.
    ReqSent,
    /// REQ received.
    ReqRcvd,
    /// REQ received, MRA sent.
    MraReqSent,
    /// REQ sent, MRA received.
    MraReqRcvd,
    /// REP sent.
    RepSent,
    /// REP received.
    RepRcvd,
    /// REP received, MRA sent.
    MraRepSent,
    /// REP sent, MRA received.
    MraRepRcvd,
    /// Connected.
    Established,
    /// DREQ sent.
    DreqSent,
    /// DREQ received.
    DreqRcvd,
    /// Ended; its communication ID stays reserved until all of its packets have left the network.
    TimeWait,
    /// SIDR_REQ sent.
    SidrReqSent,
    /// SIDR_REQ received.
    SidrReqRcvd,
}

impl State {
    /// Every state.
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

    /// Whether a message is repeated until the peer answers it.
    pub(super) const fn awaits_answer(self) -> bool {
        matches!(
            self,
            Self::ReqSent | Self::RepSent | Self::DreqSent | Self::SidrReqSent
        )
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

/// The service of a connection's queue pairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Transport {
    /// Reliable connection.
    #[default]
    Rc,
    /// Unreliable connection.
    Uc,
    /// Extended reliable connection: the active side is the initiator, the passive side the target.
    Xrc,
}

/// The path to a peer, as messages describe it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Path {
    /// The peer's address on the link.
    pub address: LinkAddress,
    /// The local GID.
    pub local_gid: Gid,
    /// The peer's GID.
    pub remote_gid: Gid,
    /// The local port.
    pub port_num: Port,
    /// Index of the partition key.
    pub pkey_index: u16,
    /// The partition key.
    pub p_key: u16,
    /// Index of the local GID.
    pub sgid_index: u8,
    /// Path MTU.
    pub mtu: Mtu,
    /// Flow label: 20 bits.
    pub flow_label: u32,
    /// Traffic class.
    pub traffic_class: u8,
    /// Hop limit.
    pub hop_limit: u8,
    /// Service level.
    pub sl: u8,
    /// Static rate.
    pub static_rate: u8,
    /// Packet lifetime: 4.096 µs x 2^n.
    pub packet_life_time: u8,
}

impl Path {
    /// From `local_gid` to `remote_gid` at `address`, by port 1; the rest as RoCE has it.
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
    /// The service to connect to.
    pub service_id: u64,
    /// The service of the queue pairs.
    pub transport: Transport,
    /// The path to the peer.
    pub path: Path,
    /// The local queue pair.
    pub qpn: Qpn,
    /// The PSN at which the peer is to begin.
    pub starting_psn: Psn,
    /// Incoming reads and atomics that the local queue pair serves at one time.
    pub responder_resources: u8,
    /// Reads and atomics that the local queue pair has outstanding at one time.
    pub initiator_depth: u8,
    /// Retries after a timeout or a sequence error.
    pub retry_count: u8,
    /// RNR retries, for the peer to use.
    pub rnr_retry_count: u8,
    /// The local queue pair has a shared receive queue.
    pub srq: bool,
    /// How soon the peer is to answer: 4.096 µs x 2^n.
    pub remote_response_timeout: u8,
    /// How soon this side answers: 4.096 µs x 2^n.
    pub local_response_timeout: u8,
    /// How often an unanswered message is repeated, 0 to 15.
    pub max_cm_retries: u8,
    /// Up to 92 bytes.
    pub private_data: &'a [u8],
}

impl Request<'_> {
    /// For a reliable connection, with the times and retries that librdmacm uses.
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
    /// The local queue pair; with XRC, the target.
    pub qpn: Qpn,
    /// The PSN at which the peer is to begin.
    pub starting_psn: Psn,
    /// Incoming reads and atomics that the local queue pair serves at one time.
    pub responder_resources: u8,
    /// Reads and atomics that the local queue pair has outstanding at one time.
    pub initiator_depth: u8,
    /// RNR retries, for the peer to use.
    pub rnr_retry_count: u8,
    /// The local queue pair has a shared receive queue.
    pub srq: bool,
    /// Up to 196 bytes.
    pub private_data: &'a [u8],
}

impl Reply<'_> {
    /// With the depths that the request asks for.
    pub const fn new(qpn: Qpn, starting_psn: Psn, request: &Requested) -> Self {
        Self {
            qpn,
            starting_psn,
            responder_resources: request.responder_resources,
            initiator_depth: request.initiator_depth,
            rnr_retry_count: 7,
            srq: false,
            private_data: &[],
        }
    }
}

/// The contents of a REJ to be sent.
#[derive(Clone, Copy, Debug)]
pub struct Rejection<'a> {
    /// See [`reason`](polyverbs_wire::mad::cm::reason).
    pub reason: u16,
    /// Additional reject information: up to 72 bytes.
    pub info: &'a [u8],
    /// Up to 148 bytes.
    pub private_data: &'a [u8],
}

/// The contents of a SIDR_REP to be sent.
#[derive(Clone, Copy, Debug)]
pub struct Resolution<'a> {
    /// 0 valid, 1 unsupported, 2 rejected, 3 no queue pair, 4 redirected, 5 version.
    pub status: u8,
    /// The datagram queue pair.
    pub qpn: Qpn,
    /// Its Q_Key.
    pub q_key: u32,
    /// Up to 136 bytes.
    pub private_data: &'a [u8],
}

/// A REQ that was received. Depths are from this side's point of view: the reads that the peer starts, this side serves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Requested {
    /// The service that the peer wants.
    pub service_id: u64,
    /// The service of the queue pairs.
    pub transport: Transport,
    /// The path to the peer.
    pub path: Path,
    /// The peer's queue pair.
    pub remote_qpn: Qpn,
    /// The PSN at which this side begins to send.
    pub starting_psn: Psn,
    /// GUID of the peer's adapter.
    pub remote_guid: u64,
    /// Reads and atomics to serve at one time: the peer's `initiator_depth`.
    pub responder_resources: u8,
    /// Reads and atomics to have outstanding at one time: the peer's `responder_resources`.
    pub initiator_depth: u8,
    /// Retries after a timeout or a sequence error.
    pub retry_count: u8,
    /// RNR retries.
    pub rnr_retry_count: u8,
    /// The peer has a shared receive queue.
    pub srq: bool,
    /// 92 bytes.
    pub private_data: Vec<u8>,
}

/// A REP that was received. Depths are from this side's point of view.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replied {
    /// The path to the peer.
    pub path: Path,
    /// The peer's queue pair.
    pub remote_qpn: Qpn,
    /// The PSN at which this side begins to send.
    pub starting_psn: Psn,
    /// Reads and atomics to serve at one time.
    pub responder_resources: u8,
    /// Reads and atomics to have outstanding at one time.
    pub initiator_depth: u8,
    /// RNR retries.
    pub rnr_retry_count: u8,
    /// The peer has a shared receive queue.
    pub srq: bool,
    /// 196 bytes.
    pub private_data: Vec<u8>,
}

/// An event of a connection or of service ID resolution.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// REQ received: answer with [`reply`](super::Manager::reply) or [`reject`](super::Manager::reject).
    Requested {
        /// The listener of the service.
        listener: ListenerId,
        /// The connection.
        id: CommId,
        /// What the REQ says.
        request: Box<Requested>,
    },
    /// REP received: go on with [`ready`](super::Manager::ready) or `reject`.
    Replied {
        /// The connection.
        id: CommId,
        /// What the REP says.
        reply: Box<Replied>,
    },
    /// RTU received: the connection is established.
    Established {
        /// The connection.
        id: CommId,
        /// 224 bytes.
        private_data: Vec<u8>,
    },
    /// The queue pair received traffic before the RTU: the connection is established.
    EstablishedByTraffic {
        /// The connection.
        id: CommId,
    },
    /// REJ received: the connection is refused, or has ended.
    Rejected {
        /// The connection.
        id: CommId,
        /// See [`reason`](polyverbs_wire::mad::cm::reason).
        reason: u16,
        /// Additional reject information.
        info: Vec<u8>,
        /// 148 bytes.
        private_data: Vec<u8>,
    },
    /// MRA received: the peer needs more time to answer.
    Delayed {
        /// The connection.
        id: CommId,
        /// How long: 4.096 µs x 2^n.
        service_timeout: u8,
        /// 222 bytes.
        private_data: Vec<u8>,
    },
    /// DREQ received: answer with [`confirm_disconnect`](super::Manager::confirm_disconnect).
    DisconnectRequested {
        /// The connection.
        id: CommId,
        /// 220 bytes.
        private_data: Vec<u8>,
    },
    /// DREP received: the peer knows that the connection has ended.
    Disconnected {
        /// The connection.
        id: CommId,
        /// 224 bytes.
        private_data: Vec<u8>,
    },
    /// The REQ was not answered: there is no connection.
    RequestTimedOut {
        /// The connection.
        id: CommId,
    },
    /// The REP was not answered: there is no connection.
    ReplyTimedOut {
        /// The connection.
        id: CommId,
    },
    /// The DREQ was not answered: the connection has ended all the same.
    DisconnectTimedOut {
        /// The connection.
        id: CommId,
    },
    /// The peer's process is gone: the connection has ended.
    PeerLost {
        /// The connection.
        id: CommId,
    },
    /// The system refuses to send the REQ, REP or SIDR_REQ: there is no connection, or no answer.
    Unsent {
        /// The connection, or the resolution.
        id: CommId,
        /// The system's error number.
        errno: i32,
    },
    /// TIMEWAIT is over: the communication IDs may be used again.
    TimewaitExit {
        /// The connection.
        id: CommId,
    },
    /// The program took so long to answer that the peer is assumed to be gone: an answer is not possible any more.
    Withdrawn {
        /// The connection, or the resolution.
        id: CommId,
    },
    /// SIDR_REQ received: answer with [`resolve_reply`](super::Manager::resolve_reply).
    ResolutionRequested {
        /// The listener of the service.
        listener: ListenerId,
        /// The resolution.
        id: CommId,
        /// The peer's address.
        from: LinkAddress,
        /// The service that the peer wants.
        service_id: u64,
        /// 216 bytes.
        private_data: Vec<u8>,
    },
    /// SIDR_REP received.
    Resolved {
        /// The resolution.
        id: CommId,
        /// 0 where queue pair and key are valid.
        status: u8,
        /// The queue pair.
        qpn: Qpn,
        /// Its Q_Key.
        q_key: u32,
        /// 136 bytes.
        private_data: Vec<u8>,
    },
    /// The SIDR_REQ was not answered.
    ResolutionTimedOut {
        /// The resolution.
        id: CommId,
    },
}

/// A message to be sent.
#[derive(Clone, Debug, PartialEq)]
pub struct Outgoing {
    /// The destination.
    pub to: LinkAddress,
    /// Transaction ID of the management datagram.
    pub transaction_id: u64,
    /// The message.
    pub message: Message,
}

/// Why a call was refused. It has changed and sent nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum CmError {
    /// There is no such connection or listener.
    #[error("there is no such connection")]
    Unknown,
    /// Not allowed in this state.
    #[error("not allowed in state {0:?}")]
    State(State),
    /// The connection is established already.
    #[error("connected already")]
    Connected,
    /// More private data than the message has room for.
    #[error("{len} bytes of private data, where there may be {max}")]
    PrivateData {
        /// What was given.
        len: usize,
        /// What fits.
        max: usize,
    },
    /// Another listener has the service.
    #[error("another listener is there for this service")]
    InUse,
    /// No communication ID, or no room for another connection.
    #[error("too many connections")]
    TooMany,
    /// A wrong argument.
    #[error("{0}")]
    Argument(&'static str),
}
