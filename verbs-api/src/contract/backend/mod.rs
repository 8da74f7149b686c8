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

/// One end of a connection, as a backend names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(pub u64);

/// The most private data of the program that each message carries, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrivateDataLimits {
    /// With `connect`.
    pub connect: usize,
    /// With `accept`.
    pub accept: usize,
    /// With `reject`.
    pub reject: usize,
    /// With `resolve`.
    pub resolve: usize,
    /// With `answer`.
    pub answer: usize,
}

impl PrivateDataLimits {
    /// InfiniBand's messages, with the header of the RDMA connection manager.
    pub const INFINIBAND: Self = Self {
        connect: 56,
        accept: 196,
        reject: 148,
        resolve: 180,
        answer: 136,
    };

    /// MPA of revision 2.
    pub const IWARP: Self = Self {
        connect: 508,
        accept: 508,
        reject: 508,
        resolve: 0,
        answer: 0,
    };
}

/// What one end of a connection tells the other about itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offer {
    /// In a received request: the requester's address, where the transport conveys it. In one that is sent: only the port
    /// counts, if the program chose one.
    pub from: Option<SocketAddr>,
    /// The queue pair.
    pub endpoint: QpEndpoint,
    /// Its service.
    pub qp_type: QpType,
    /// Which end of the connection it is.
    pub half: Half,
    /// The first packet sequence number that it expects, for transports whose messages carry that instead of the one it sends.
    pub takes_psn: Option<Psn>,
    /// Incoming reads and atomics that it serves at one time (responder resources).
    pub inbound_reads: u8,
    /// Reads and atomics that it has outstanding at one time (initiator depth).
    pub outbound_reads: u8,
    /// Payload bytes of one packet, both ways; `None` where the transport has no such thing.
    pub path_mtu: Option<Mtu>,
    /// Retries after a timeout or a sequence error; `None` where the transport does not convey it.
    pub retry_cnt: Option<u8>,
    /// Retries after the peer had no receive posted (RNR); `None` where the transport does not convey it.
    pub rnr_retry: Option<u8>,
    /// Private data of the program.
    pub private_data: Vec<u8>,
}

/// An event of a connection, as its backend reports it.
#[derive(Clone, Debug, PartialEq)]
pub enum CmEvent {
    /// The peer accepted.
    Accepted(Offer),
    /// The peer, which asked for the connection, has completed it.
    Completed,
    /// The peer refused the connection, with this private data.
    Rejected(Refusal, Vec<u8>),
    /// The peer gave up, or is gone.
    Aborted,
    /// The peer did not answer in time.
    TimedOut,
    /// The connection failed after [`Backend::connect`] had started it.
    Failed(ConnectError),
    /// The peer disconnected.
    Disconnected,
    /// The peer has confirmed the disconnect.
    DisconnectConfirmed,
    /// TIMEWAIT is over: the numbers of the connection may be used again. Only from a backend that [lingers](Backend::has_timewait).
    TimewaitExit,
}

/// How the queue pair of an end is brought up.
#[derive(Clone, Debug, PartialEq)]
pub enum BringUp {
    /// It is modified with these attributes, to INIT, to RTR and to RTS.
    Steps(Box<[QpAttributes; 3]>),
    /// The backend does it, or the library behind it: the queue pair is ready to send when the end gets [`CmEvent::Accepted`] or
    /// [`CmEvent::Completed`].
    ByBackend,
}

/// Receives the events of one end of a connection.
pub trait Sink: Send + Sync + 'static {
    /// An event has occurred. Called with no lock held.
    fn event(&self, event: CmEvent);
}

/// A request to resolve a service to its datagram queue pair (SIDR).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    /// The requester's device, where the transport conveys it.
    pub from: Option<LinkAddress>,
    /// The address that the requester states as its own.
    pub source: Option<SocketAddr>,
    /// Private data of the program.
    pub private_data: Vec<u8>,
}

/// The queue pair that serves datagrams of a service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The address of its device.
    pub address: LinkAddress,
    /// Its global identifier.
    pub gid: Gid,
    /// The queue pair.
    pub qp_num: Qpn,
    /// Its queue key.
    pub qkey: u32,
    /// Private data of the program.
    pub private_data: Vec<u8>,
}

/// Receives the connection requests, or the questions, of a listener.
pub trait ListenSink<T>: Send + Sync + 'static {
    /// A request has arrived. Called with no lock held.
    fn asked(&self, token: Token, what: T);

    /// The requester has given up before the request was answered. Called with no lock held.
    fn withdrawn(&self, token: Token);
}

/// Receives the answer to a question.
pub trait AnswerSink: Send + Sync + 'static {
    /// The answer has arrived. Called once, with no lock held.
    fn answered(&self, answer: Result<Answer, ConnectError>);
}

/// Receives the outcome of a ping: called once, with no lock held.
pub type PingSink = Box<dyn FnOnce(Result<(), ConnectError>) + Send>;

/// Liveness probe: asks for the datagram queue pair of a port that no service uses. Every InfiniBand connection manager
/// answers such a question by itself, without involving a program.
///
/// # Errors
/// Those of [`Backend::resolve`].
pub fn ping_by_question<B: Backend + ?Sized>(
    backend: &B,
    to: SocketAddr,
    sink: PingSink,
) -> Result<(), ConnectError> {
    // RFC 863, the discard service: no RDMA service uses its port.
    const DISCARD: u16 = 9;
    let sink = Arc::new(Pinging(Mutex::new(Some(sink))));
    backend.resolve(SocketAddr::new(to.ip(), DISCARD), Vec::new(), sink)
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

/// A transport's part of connection management.
pub trait Backend: Send + Sync + 'static {
    /// The most private data that each message carries.
    fn private_data(&self) -> PrivateDataLimits;

    /// Whether a queue pair must be in INIT, with its remote access rights set, before it connects or accepts: the library
    /// behind the backend brings it up from there and does not wait for [`bring_up`](Self::bring_up).
    fn needs_init(&self) -> bool {
        false
    }

    /// Whether connections that have ended stay in TIMEWAIT, whose end is [reported](CmEvent::TimewaitExit).
    fn has_timewait(&self) -> bool {
        false
    }

    /// Listens for connection requests at an address; for port 0 a port is assigned. Returns the address. The sink has room for
    /// `backlog` requests and refuses others, so the backend keeps no fewer; for 0 as many as it can.
    ///
    /// # Errors
    /// It is in use.
    fn listen(
        &self,
        at: SocketAddr,
        backlog: usize,
        sink: Arc<dyn ListenSink<Offer>>,
    ) -> Result<SocketAddr, ConnectError>;

    /// Stops listening.
    fn unlisten(&self, at: SocketAddr);

    /// Starts a connection. A peer without a listener is reported to the sink.
    ///
    /// # Errors
    /// The address cannot be reached from the device, or there are too many connections.
    fn connect(
        &self,
        to: SocketAddr,
        offer: Offer,
        sink: Arc<dyn Sink>,
    ) -> Result<Token, ConnectError>;

    /// Accepts a connection request.
    ///
    /// # Errors
    /// The requester has given up.
    fn accept(&self, token: Token, offer: Offer, sink: Arc<dyn Sink>) -> Result<(), ConnectError>;

    /// Whether the device admits the user of the requesting process at its address. Called only for requests whose source is the device's
    /// own address. By default `true`: for transports where no other user can send such a request.
    fn admits(&self, token: Token) -> bool {
        let _ = token;
        true
    }

    /// How the queue pair of this end is brought up: before it accepts, or after the peer has accepted and before it completes.
    /// `planned` follows from the program's options and the peer's offer; a backend that knows more (path, service level,
    /// partition, numbers or timeouts) changes it.
    ///
    /// # Errors
    /// The connection has ended.
    fn bring_up(&self, token: Token, planned: [QpAttributes; 3]) -> Result<BringUp, ConnectError> {
        let _ = token;
        Ok(BringUp::Steps(Box::new(planned)))
    }

    /// Completes a connection whose queue pair is ready at the active end.
    fn complete(&self, token: Token);

    /// Rejects a connection, from either end, and says why where the transport's messages can.
    fn reject(&self, token: Token, why: Refusal, private_data: Vec<u8>);

    /// Disconnects; [`CmEvent::DisconnectConfirmed`] follows when the peer has confirmed.
    fn disconnect(&self, token: Token);

    /// Drops a connection: no more events are reported, and the peer sees an abort or a disconnect.
    fn forget(&self, token: Token);

    /// Liveness probe: whether a device of this transport is at an address; port 0 where no listener is known. No program at
    /// the peer notices.
    ///
    /// # Errors
    /// The address cannot be reached from the device; by default, that this transport has no such probe.
    fn ping(&self, to: SocketAddr, sink: PingSink) -> Result<(), ConnectError> {
        let _ = (to, sink);
        Err(VerbError::UnsupportedVerb("ping").into())
    }

    /// Listens for questions about the datagram queue pair of an address, whose ports are apart from those of
    /// [`listen`](Self::listen); for port 0 a port is assigned. Returns the address.
    ///
    /// # Errors
    /// It is in use; by default, that this transport has no datagrams.
    fn listen_datagrams(
        &self,
        at: SocketAddr,
        backlog: usize,
        sink: Arc<dyn ListenSink<Question>>,
    ) -> Result<SocketAddr, ConnectError> {
        let _ = (at, backlog, sink);
        Err(VerbError::UnsupportedVerb("listen_datagrams").into())
    }

    /// Stops listening for questions.
    fn unlisten_datagrams(&self, at: SocketAddr) {
        let _ = at;
    }

    /// Asks which queue pair serves datagrams at an address.
    ///
    /// # Errors
    /// The address cannot be reached from the device; by default, that this transport has no datagrams.
    fn resolve(
        &self,
        to: SocketAddr,
        private_data: Vec<u8>,
        sink: Arc<dyn AnswerSink>,
    ) -> Result<(), ConnectError> {
        let _ = (to, private_data, sink);
        Err(VerbError::UnsupportedVerb("resolve").into())
    }

    /// Answers a question, or refuses it.
    ///
    /// # Errors
    /// The answer cannot be sent as it is; the question has been refused instead.
    fn answer(&self, token: Token, answer: Result<Answer, Refusal>) -> Result<(), ConnectError> {
        let _ = (token, answer);
        Ok(())
    }
}
