//! Connection backends: what a transport, or a provider that connects by itself, does for the connection manager.
//!
//! A backend carries five messages between the two ends of a connection. It calls a [`Sink`] with no lock held, because the
//! sink may call the backend. A backend need not know queue pairs: the connector brings them up, with attributes that the
//! backend may [change](Backend::bring_up), or leaves that to the backend.

mod error;

use std::net::SocketAddr;
use std::sync::Arc;

pub use self::error::{ConnectError, Phase, Refusal};
use crate::capability::Mtu;
use crate::error::VerbError;
use crate::ids::{Gid, LinkAddress, Psn, Qpn};
use crate::lock::Mutex;
use crate::qp_attributes::{Half, QpAttributes, QpEndpoint};
use crate::service::QpType;

/// Identifies one end of a connection, or a pending question, to the backend that made it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(pub u64);

/// The largest private data of a program, in bytes, that each message of connection management can carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrivateDataLimits {
    /// Most bytes of private data in a connection request.
    pub connect: usize,
    /// Most bytes of private data when a connection is accepted.
    pub accept: usize,
    /// Most bytes of private data when a connection is rejected.
    pub reject: usize,
    /// Most bytes of private data in a request to resolve a datagram service.
    pub resolve: usize,
    /// Most bytes of private data in the answer to such a request.
    pub answer: usize,
}

impl PrivateDataLimits {
    /// The limits of private data in InfiniBand's messages, which also contain the header of the RDMA connection manager.
    pub const INFINIBAND: Self = Self {
        connect: 56,
        accept: 196,
        reject: 148,
        resolve: 180,
        answer: 136,
    };

    /// The limits of private data in messages of MPA revision 2.
    pub const IWARP: Self = Self {
        connect: 508,
        accept: 508,
        reject: 508,
        resolve: 0,
        answer: 0,
    };
}

/// What one end of a connection sends to the other about itself in a connection request or its reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offer {
    /// In a received request: the requester's address, where the transport conveys it. In a request to be sent: only the
    /// port number is used, if the program chose one.
    pub from: Option<SocketAddr>,
    /// The address and number of the sender's queue pair.
    pub endpoint: QpEndpoint,
    /// The service type of the sender's queue pair.
    pub qp_type: QpType,
    /// Whether the sender's queue pair is a requester only, a responder only (both are XRC), or both, as usual.
    pub half: Half,
    /// The first PSN that the sender expects, for transports whose messages contain that PSN instead of the one that the
    /// sender starts with.
    pub takes_psn: Option<Psn>,
    /// How many reads and atomics of the peer the sender executes at one time (responder resources).
    pub inbound_reads: u8,
    /// How many reads and atomics the sender has outstanding at one time (initiator depth).
    pub outbound_reads: u8,
    /// The path MTU for both directions; `None` where the transport has none.
    pub path_mtu: Option<Mtu>,
    /// The traffic class of packets in both directions, in a request; `None` where the transport does not convey it.
    pub traffic_class: Option<u8>,
    /// How often the sender retries after a timeout or a sequence error; `None` where the transport does not convey it.
    pub retry_cnt: Option<u8>,
    /// How often the sender retries after an RNR NAK; `None` where the transport does not convey it.
    pub rnr_retry: Option<u8>,
    /// Whether the sender's program asks for end-to-end flow control; `false` where the transport does not convey it.
    pub flow_control: bool,
    /// Whether the receives of the sender's queue pair come from a shared receive queue; `false` where the transport does not
    /// convey it.
    pub srq: bool,
    /// The private data of the sender's program.
    pub private_data: Vec<u8>,
}

/// An event of a connection, as its backend reports it.
#[derive(Clone, Debug, PartialEq)]
pub enum CmEvent {
    /// The peer accepted the connection and sent this offer.
    Accepted(Offer),
    /// The peer, which is the active end, has completed the connection: the RTU message, or its equivalent, has arrived.
    Completed,
    /// The peer refused the connection, for this reason and with this private data.
    Rejected(Refusal, Vec<u8>),
    /// The peer gave up before the connection was established, or is gone.
    Aborted,
    /// The peer did not answer in time. After a disconnect, the connection has ended nevertheless.
    TimedOut,
    /// The connection failed after [`Backend::connect`] had started it.
    Failed(ConnectError),
    /// The peer disconnected.
    Disconnected,
    /// The peer has confirmed the disconnect.
    DisconnectConfirmed,
    /// The connection's TIMEWAIT is over: its communication IDs may be used again. Reported only by a backend with
    /// [`Backend::has_timewait`].
    TimewaitExit,
}

/// How the queue pair at one end of a connection is brought to RTS.
#[derive(Clone, Debug, PartialEq)]
pub enum BringUp {
    /// The caller modifies the queue pair with these attributes: to INIT, to RTR and to RTS.
    Steps(Box<[QpAttributes; 3]>),
    /// The backend or the library below it brings the queue pair up: it is in RTS when this end gets [`CmEvent::Accepted`]
    /// or [`CmEvent::Completed`].
    ByBackend,
}

/// Receives the events of one end of a connection.
pub trait Sink: Send + Sync + 'static {
    /// Reports an event of the connection. Called with no lock held.
    fn event(&self, event: CmEvent);
}

/// A received request to resolve a service to its datagram queue pair (SIDR).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    /// The link address of the requester's device, where the transport conveys it.
    pub from: Option<LinkAddress>,
    /// The socket address that the requester states as its own.
    pub source: Option<SocketAddr>,
    /// The private data of the requester's program.
    pub private_data: Vec<u8>,
}

/// The answer to a [`Question`]: the datagram queue pair that serves a service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The link address of the queue pair's device.
    pub address: LinkAddress,
    /// The GID of the queue pair's port.
    pub gid: Gid,
    /// The number of the queue pair.
    pub qp_num: Qpn,
    /// The Q_Key that datagrams to the queue pair need.
    pub qkey: u32,
    /// The private data of the answering program.
    pub private_data: Vec<u8>,
}

/// Receives the connection requests, or the [questions](Question), that arrive at a listener.
pub trait ListenSink<T>: Send + Sync + 'static {
    /// A connection request or a question has arrived. Called with no lock held.
    fn asked(&self, token: Token, what: T);

    /// The requester has given up before the program answered. Called with no lock held.
    fn withdrawn(&self, token: Token);
}

/// Receives the answer to a request to resolve a datagram service.
pub trait AnswerSink: Send + Sync + 'static {
    /// The answer, or the failure of the request, has arrived. Called once, with no lock held.
    fn answered(&self, answer: Result<Answer, ConnectError>);
}

/// Receives the outcome of a ping; called once, with no lock held.
pub type PingSink = Box<dyn FnOnce(Result<(), ConnectError>) + Send>;

/// Liveness probe: asks the peer to resolve a port that no datagram service uses. Every InfiniBand connection manager
/// answers such a request itself, without involving a program.
///
/// # Errors
/// Those of [`Backend::resolve`].
pub fn ping_by_question<B: Backend + ?Sized>(
    backend: &B,
    to: SocketAddr,
    sink: PingSink,
) -> Result<(), ConnectError> {
    let unused = SocketAddr::new(to.ip(), UNUSED_SERVICE_PORT);
    backend.resolve(unused, Vec::new(), ping_answer(sink))
}

/// The port that [`ping_by_question`] asks for. RFC 863, the discard service: no RDMA service uses its port.
pub const UNUSED_SERVICE_PORT: u16 = 9;

/// Returns the sink of a question that is a ping: a refusal shows too that the peer lives.
pub fn ping_answer(sink: PingSink) -> Arc<dyn AnswerSink> {
    Arc::new(Pinging(Mutex::new(Some(sink))))
}

struct Pinging(Mutex<Option<PingSink>>);

impl AnswerSink for Pinging {
    fn answered(&self, answer: Result<Answer, ConnectError>) {
        let sink = self.0.lock().take();
        if let Some(sink) = sink {
            sink(match answer {
                Ok(_) | Err(ConnectError::Refused { .. }) => Ok(()),
                Err(error) => Err(error),
            });
        }
    }
}

/// The part of connection management that differs by transport.
pub trait Backend: Send + Sync + 'static {
    /// Returns the largest private data that each message can carry.
    fn private_data(&self) -> PrivateDataLimits;

    /// Whether a queue pair must be in INIT, with its remote access rights set, before it connects or accepts, because the
    /// library below the backend brings it up from there without waiting for [`bring_up`](Self::bring_up).
    fn needs_init(&self) -> bool {
        false
    }

    /// Whether connections that have ended stay in TIMEWAIT, whose end is [reported](CmEvent::TimewaitExit).
    fn has_timewait(&self) -> bool {
        false
    }

    /// Listens for connection requests at an address; for port 0 it assigns a port. Returns the address. The sink takes at
    /// most `backlog` pending requests and refuses others, so the backend must queue no fewer; for 0 as many as it can.
    ///
    /// # Errors
    /// The address is in use.
    fn listen(
        &self,
        at: SocketAddr,
        backlog: usize,
        sink: Arc<dyn ListenSink<Offer>>,
    ) -> Result<SocketAddr, ConnectError>;

    /// Stops listening at an address.
    fn unlisten(&self, at: SocketAddr);

    /// Sends a connection request. The sink reports what follows, also that the peer has no listener.
    ///
    /// # Errors
    /// The address cannot be reached from the device, or there are too many connections.
    fn connect(
        &self,
        to: SocketAddr,
        offer: Offer,
        sink: Arc<dyn Sink>,
    ) -> Result<Token, ConnectError>;

    /// Accepts a connection request: sends this end's offer to the requester.
    ///
    /// # Errors
    /// The requester has given up.
    fn accept(&self, token: Token, offer: Offer, sink: Arc<dyn Sink>) -> Result<(), ConnectError>;

    /// Whether the device admits the user of the process that sent a connection request. Called only for requests from the
    /// device's own address. `true` by default, for transports where no other user can send such a request.
    fn admits(&self, token: Token) -> bool {
        let _ = token;
        true
    }

    /// Returns how to bring up the queue pair of this end. Called at the passive end before it accepts, and at the active
    /// end when the peer has accepted. `planned` follows from the program's options and the peer's offer; a backend that
    /// knows more (path, service level, partition, PSNs or timeouts) changes it.
    ///
    /// # Errors
    /// The connection has ended.
    fn bring_up(&self, token: Token, planned: [QpAttributes; 3]) -> Result<BringUp, ConnectError> {
        let _ = token;
        Ok(BringUp::Steps(Box::new(planned)))
    }

    /// Completes a connection at its active end, whose queue pair is in RTS: sends the RTU message, or its equivalent.
    fn complete(&self, token: Token);

    /// Rejects a connection from either end, and sends the reason where the transport's messages have a place for it.
    fn reject(&self, token: Token, why: Refusal, private_data: Vec<u8>);

    /// Disconnects; [`CmEvent::DisconnectConfirmed`] follows when the peer has confirmed, or [`CmEvent::TimedOut`] when it has
    /// not answered.
    fn disconnect(&self, token: Token);

    /// Drops this end of a connection: its sink is no longer called, and the peer sees an abort or a disconnect.
    fn forget(&self, token: Token);

    /// Liveness probe: reports to the sink whether a device of this transport answers at an address. The port is 0 if no
    /// listener is known. The peer's programs do not notice.
    ///
    /// # Errors
    /// The address cannot be reached from the device; by default, `Unsupported`, for transports without such a probe.
    fn ping(&self, to: SocketAddr, sink: PingSink) -> Result<(), ConnectError> {
        let _ = (to, sink);
        Err(VerbError::UnsupportedVerb("ping").into())
    }

    /// Listens for requests to resolve the datagram service at an address; for port 0 it assigns a port. These ports are
    /// independent of those of [`listen`](Self::listen). Returns the address.
    ///
    /// # Errors
    /// The address is in use; by default, this transport has no datagrams.
    fn listen_datagrams(
        &self,
        at: SocketAddr,
        backlog: usize,
        sink: Arc<dyn ListenSink<Question>>,
    ) -> Result<SocketAddr, ConnectError> {
        let _ = (at, backlog, sink);
        Err(VerbError::UnsupportedVerb("listen_datagrams").into())
    }

    /// Stops listening for requests to resolve a datagram service.
    fn unlisten_datagrams(&self, at: SocketAddr) {
        let _ = at;
    }

    /// Asks a peer which queue pair serves datagrams at an address; the sink receives the answer.
    ///
    /// # Errors
    /// The address cannot be reached from the device; by default, this transport has no datagrams.
    fn resolve(
        &self,
        to: SocketAddr,
        private_data: Vec<u8>,
        sink: Arc<dyn AnswerSink>,
    ) -> Result<(), ConnectError> {
        let _ = (to, private_data, sink);
        Err(VerbError::UnsupportedVerb("resolve").into())
    }

    /// Answers a request to resolve a datagram service.
    ///
    /// # Errors
    /// The answer cannot be sent as it is; the request has been refused instead.
    fn answer(&self, token: Token, answer: Answer) -> Result<(), ConnectError> {
        let _ = (token, answer);
        Ok(())
    }

    /// Refuses a request to resolve a datagram service.
    fn refuse(&self, token: Token, why: Refusal, private_data: Vec<u8>) {
        let _ = (token, why, private_data);
    }
}
