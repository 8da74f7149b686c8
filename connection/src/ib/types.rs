//! What goes into a [`Manager`](super::Manager) and what comes out of it, besides messages.

use polyverbs_wire::mad::cm::Message;
use thiserror::Error;
use verbs_api::{
    capability::Mtu,
    ids::{Gid, LinkAddress, Port, Psn, Qpn},
};

/// A connection's number: the *local communication id* of the messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CommId(pub u32);

/// A listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ListenerId(pub(super) u32);

/// The state of a connection (IBTA 12.9.5). One that is idle does not exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum State {
    /// REQ has left.
    ReqSent,
    /// REQ has come.
    ReqRcvd,
    /// REQ has come, and an MRA has left.
    MraReqSent,
    /// REQ has left, and an MRA has come.
    MraReqRcvd,
    /// REP has left.
    RepSent,
    /// REP has come.
    RepRcvd,
    /// REP has come, and an MRA has left.
    MraRepSent,
    /// REP has left, and an MRA has come.
    MraRepRcvd,
    /// Connected.
    Established,
    /// DREQ has left.
    DreqSent,
    /// DREQ has come.
    DreqRcvd,
    /// Over; its numbers are kept until no packet can be under way.
    TimeWait,
    /// SIDR_REQ has left.
    SidrReqSent,
    /// SIDR_REQ has come.
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
    /// Extended reliable connection: who asks is the initiator, who is asked the target.
    Xrc,
}

/// The way to a peer, as messages describe it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Path {
    /// The peer's address on the link.
    pub address: LinkAddress,
    /// The own identifier.
    pub local_gid: Gid,
    /// The peer's identifier.
    pub remote_gid: Gid,
    /// The own port.
    pub port_num: Port,
    /// Index of the partition key.
    pub pkey_index: u16,
    /// The partition key.
    pub p_key: u16,
    /// Index of the own identifier.
    pub sgid_index: u8,
    /// Payload octets of one packet.
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
    /// How long a packet may be under way: 4.096 µs x 2^n.
    pub packet_life_time: u8,
}

impl Path {
    /// From `local_gid` to `remote_gid` at `address`; port 1 and what RoCE has for the rest.
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

/// What a REQ asks for.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// Whom the connection is for.
    pub service_id: u64,
    /// The service of the queue pairs.
    pub transport: Transport,
    /// The way there.
    pub path: Path,
    /// The own queue pair.
    pub qpn: Qpn,
    /// The number of the first packet that it takes: the peer begins with that.
    pub starting_psn: Psn,
    /// Reads and atomics that it serves at one time.
    pub responder_resources: u8,
    /// Reads and atomics that it has outstanding at one time.
    pub initiator_depth: u8,
    /// Retries of a packet.
    pub retry_count: u8,
    /// Retries of a packet that met no receive: for the peer.
    pub rnr_retry_count: u8,
    /// Its receives come from a shared queue.
    pub srq: bool,
    /// How soon the peer is to answer: 4.096 µs x 2^n.
    pub remote_response_timeout: u8,
    /// How soon this side answers.
    pub local_response_timeout: u8,
    /// Repetitions of a message that is not answered, 0 to 15.
    pub max_cm_retries: u8,
    /// Up to 92 octets.
    pub private_data: &'a [u8],
}

impl Request<'_> {
    /// Of a reliable connection; times and retries as the RDMA connection manager has them.
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

/// What a REP agrees to.
#[derive(Clone, Copy, Debug)]
pub struct Reply<'a> {
    /// The own queue pair; of XRC the target.
    pub qpn: Qpn,
    /// The number of the first packet that it takes: the peer begins with that.
    pub starting_psn: Psn,
    /// Reads and atomics that it serves at one time.
    pub responder_resources: u8,
    /// Reads and atomics that it has outstanding at one time.
    pub initiator_depth: u8,
    /// Retries of a packet that met no receive: for the peer.
    pub rnr_retry_count: u8,
    /// Its receives come from a shared queue.
    pub srq: bool,
    /// Up to 196 octets.
    pub private_data: &'a [u8],
}

impl Reply<'_> {
    /// With the depths that a request showed.
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

/// Why there will be no connection.
#[derive(Clone, Copy, Debug)]
pub struct Rejection<'a> {
    /// See [`reason`](polyverbs_wire::mad::cm::reason).
    pub reason: u16,
    /// More about the reason: up to 72 octets.
    pub info: &'a [u8],
    /// Up to 148 octets.
    pub private_data: &'a [u8],
}

/// What the answer to a SIDR_REQ says.
#[derive(Clone, Copy, Debug)]
pub struct Resolution<'a> {
    /// 0 valid, 1 unsupported, 2 rejected, 3 no queue pair, 4 redirected, 5 version.
    pub status: u8,
    /// The queue pair for datagrams.
    pub qpn: Qpn,
    /// Its queue key.
    pub q_key: u32,
    /// Up to 136 octets.
    pub private_data: &'a [u8],
}

/// A request that has come. Depths are from the own point of view: what the peer wants to start, this side serves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Requested {
    /// Whom it is for.
    pub service_id: u64,
    /// The service of the queue pairs.
    pub transport: Transport,
    /// The way to who asks.
    pub path: Path,
    /// The peer's queue pair.
    pub remote_qpn: Qpn,
    /// The number of the first packet that this side sends.
    pub starting_psn: Psn,
    /// The peer's adapter.
    pub remote_guid: u64,
    /// Reads and atomics to serve at one time: the peer's `initiator_depth`.
    pub responder_resources: u8,
    /// Reads and atomics to have outstanding at one time: the peer's `responder_resources`.
    pub initiator_depth: u8,
    /// Retries of a packet.
    pub retry_count: u8,
    /// Retries of a packet that met no receive.
    pub rnr_retry_count: u8,
    /// The peer's receives come from a shared queue.
    pub srq: bool,
    /// 92 octets.
    pub private_data: Vec<u8>,
}

/// A reply that has come. Depths are from the own point of view.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replied {
    /// The way to who was asked.
    pub path: Path,
    /// The peer's queue pair.
    pub remote_qpn: Qpn,
    /// The number of the first packet that this side sends.
    pub starting_psn: Psn,
    /// Reads and atomics to serve at one time.
    pub responder_resources: u8,
    /// Reads and atomics to have outstanding at one time.
    pub initiator_depth: u8,
    /// Retries of a packet that met no receive.
    pub rnr_retry_count: u8,
    /// The peer's receives come from a shared queue.
    pub srq: bool,
    /// 196 octets.
    pub private_data: Vec<u8>,
}

/// What has happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// REQ: answer with [`reply`](super::Manager::reply) or [`reject`](super::Manager::reject).
    Requested {
        /// Who listened for it.
        listener: ListenerId,
        /// The connection.
        id: CommId,
        /// What is asked for.
        request: Box<Requested>,
    },
    /// REP: go on with [`ready`](super::Manager::ready) or `reject`.
    Replied {
        /// The connection.
        id: CommId,
        /// What is agreed to.
        reply: Box<Replied>,
    },
    /// RTU: the connection is there.
    Established {
        /// The connection.
        id: CommId,
        /// 224 octets.
        private_data: Vec<u8>,
    },
    /// Traffic came before the RTU: the connection is there.
    EstablishedByTraffic {
        /// The connection.
        id: CommId,
    },
    /// REJ: there will be no connection, or it is over.
    Rejected {
        /// The connection.
        id: CommId,
        /// See [`reason`](polyverbs_wire::mad::cm::reason).
        reason: u16,
        /// More about the reason.
        info: Vec<u8>,
        /// 148 octets.
        private_data: Vec<u8>,
    },
    /// MRA: the answer takes some time.
    Delayed {
        /// The connection.
        id: CommId,
        /// How long: 4.096 µs x 2^n.
        service_timeout: u8,
        /// 222 octets.
        private_data: Vec<u8>,
    },
    /// DREQ: answer with [`confirm_disconnect`](super::Manager::confirm_disconnect).
    DisconnectRequested {
        /// The connection.
        id: CommId,
        /// 220 octets.
        private_data: Vec<u8>,
    },
    /// DREP: the peer knows that it is over.
    Disconnected {
        /// The connection.
        id: CommId,
        /// 224 octets.
        private_data: Vec<u8>,
    },
    /// Nobody answered the REQ: there is no connection.
    RequestTimedOut {
        /// The connection.
        id: CommId,
    },
    /// Nobody answered the REP: there is no connection.
    ReplyTimedOut {
        /// The connection.
        id: CommId,
    },
    /// Nobody answered the DREQ: the connection is over all the same.
    DisconnectTimedOut {
        /// The connection.
        id: CommId,
    },
    /// The peer is not there any more: the connection is over.
    PeerLost {
        /// The connection.
        id: CommId,
    },
    /// No packet of the old connection can be under way any more: its numbers are free.
    TimewaitExit {
        /// The connection.
        id: CommId,
    },
    /// Who asked is taken to have gone, since the program has not answered for so long: nothing is left to answer.
    Withdrawn {
        /// The connection, or the question.
        id: CommId,
    },
    /// SIDR_REQ: answer with [`resolve_reply`](super::Manager::resolve_reply).
    ResolutionRequested {
        /// Who listened for it.
        listener: ListenerId,
        /// The question.
        id: CommId,
        /// Who asks.
        from: LinkAddress,
        /// Whom it is for.
        service_id: u64,
        /// 216 octets.
        private_data: Vec<u8>,
    },
    /// SIDR_REP.
    Resolved {
        /// The question.
        id: CommId,
        /// 0 where queue pair and key may be used.
        status: u8,
        /// The queue pair.
        qpn: Qpn,
        /// Its queue key.
        q_key: u32,
        /// 136 octets.
        private_data: Vec<u8>,
    },
    /// Nobody answered the SIDR_REQ.
    ResolutionTimedOut {
        /// The question.
        id: CommId,
    },
}

/// A message that is to leave.
#[derive(Clone, Debug, PartialEq)]
pub struct Outgoing {
    /// To whom.
    pub to: LinkAddress,
    /// Transaction id of the management datagram.
    pub transaction_id: u64,
    /// What.
    pub message: Message,
}

/// Why a call was refused: nothing was changed, nothing is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum CmError {
    /// There is no such connection or listener.
    #[error("there is no such connection")]
    Unknown,
    /// Not in this state.
    #[error("not allowed in state {0:?}")]
    State(State),
    /// The connection is there already.
    #[error("connected already")]
    Connected,
    /// More private data than the message has room for.
    #[error("{len} octets of private data, where there may be {max}")]
    PrivateData {
        /// What was given.
        len: usize,
        /// What fits.
        max: usize,
    },
    /// Another listener is there for such a service.
    #[error("another listener is there for this service")]
    InUse,
    /// No room for another connection.
    #[error("too many connections")]
    TooMany,
    /// A wrong argument.
    #[error("{0}")]
    Argument(&'static str),
}
