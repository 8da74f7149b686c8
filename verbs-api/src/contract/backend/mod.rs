//! What makes connections: what a transport, or a provider that connects by itself, does for the connector.
//!
//! A backend carries five messages between two ends. It calls a [`Sink`] with no lock held, and never from within a call that
//! could not stand it: the sink may call back. It need not know queue pairs: the connector brings them up, with attributes
//! that the backend may [change](Backend::bring_up), or that it leaves to the backend.

mod error;

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

pub use self::error::{ConnectError, Phase};
use crate::capability::Mtu;
use crate::error::VerbError;
use crate::ids::{Gid, LinkAddress, Psn, Qpn};
use crate::qp_attributes::{Half, QpAttributes, QpEndpoint};
use crate::service::QpType;

/// One end of a connection, as a backend names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(pub u64);

/// How much private data each message takes, in bytes of the program's.
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

/// What an end tells the other about itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offer {
    /// Who asks, in a request that has come, where the network tells. In one that goes out the port counts, where the
    /// program has chosen one.
    pub from: Option<SocketAddr>,
    /// The queue pair.
    pub endpoint: QpEndpoint,
    /// Its service.
    pub qp_type: QpType,
    /// Which end of the connection it is.
    pub half: Half,
    /// The first packet sequence number that it takes, where ends say that instead of what they send.
    pub takes_psn: Option<Psn>,
    /// Reads that it serves at one time.
    pub inbound_reads: u8,
    /// Reads that it has outstanding at one time.
    pub outbound_reads: u8,
    /// Payload bytes of one packet, both ways; `None` where the transport has no such thing.
    pub path_mtu: Option<Mtu>,
    /// Retries after a timeout or a sequence error; `None` where that is not said.
    pub retry_cnt: Option<u8>,
    /// Retries of who has met no receive; `None` where that is not said.
    pub rnr_retry: Option<u8>,
    /// The program's.
    pub private_data: Vec<u8>,
}

/// What an end is told.
#[derive(Clone, Debug, PartialEq)]
pub enum Told {
    /// The other accepts.
    Accepted(Offer),
    /// The other has completed the connection.
    Completed,
    /// The other does not want it.
    Rejected(Vec<u8>),
    /// The other gave up, or is gone.
    Aborted,
    /// Nobody answered in time.
    TimedOut,
    /// There will be no connection, for this reason: found out after [`Backend::connect`] has begun to ask.
    Failed(ConnectError),
    /// The other ended the connection.
    Disconnected,
    /// The other knows that the connection has ended.
    DisconnectConfirmed,
    /// Nothing can be under way any more of the connection, which has ended. From who [lingers](Backend::lingers) only.
    Lingered,
}

/// How the queue pair of an end comes to be ready.
#[derive(Clone, Debug, PartialEq)]
pub enum BringUp {
    /// It is modified so: to INIT, to RTR and to RTS.
    Steps(Box<[QpAttributes; 3]>),
    /// The backend does it, or what is behind it: it is ready to send when an end is told [`Told::Accepted`] or
    /// [`Told::Completed`].
    ByBackend,
}

/// Takes what an end is told.
pub trait Sink: Send + Sync + 'static {
    /// It happened. Called with no lock held.
    fn told(&self, what: Told);
}

/// Which queue pair serves datagrams: somebody asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    /// The device that asks, where the network tells.
    pub from: Option<LinkAddress>,
    /// The address that who asks says to have.
    pub source: Option<SocketAddr>,
    /// The program's.
    pub private_data: Vec<u8>,
}

/// A queue pair that serves datagrams.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Its device.
    pub address: LinkAddress,
    /// Its identifier.
    pub gid: Gid,
    /// The queue pair.
    pub qp_num: Qpn,
    /// Its queue key.
    pub qkey: u32,
    /// The program's.
    pub private_data: Vec<u8>,
}

/// Takes requests for connections, or questions, that come to a listener.
pub trait ListenSink<T>: Send + Sync + 'static {
    /// Somebody asks. Called with no lock held.
    fn asked(&self, token: Token, what: T);

    /// Who asked has given up, and nobody has answered. Called with no lock held.
    fn withdrawn(&self, token: Token);
}

/// Takes the answer to a question.
pub trait AnswerSink: Send + Sync + 'static {
    /// It has come. Called once, with no lock held.
    fn answered(&self, answer: Result<Answer, ConnectError>);
}

/// Takes the outcome of a ping: called once, with no lock held.
pub type PingSink = Box<dyn FnOnce(Result<(), ConnectError>) + Send>;

/// Pings with a question which queue pair serves datagrams of a port that nobody has: any connection manager of InfiniBand
/// answers, and tells no program.
///
/// # Errors
/// Those of [`Backend::resolve`].
pub fn ping_by_question<B: Backend + ?Sized>(
    backend: &B,
    to: SocketAddr,
    sink: PingSink,
) -> Result<(), ConnectError> {
    // RFC 863: nobody serves there.
    const DISCARD: u16 = 9;
    let sink = Arc::new(Pinging(Mutex::new(Some(sink))));
    backend.resolve(SocketAddr::new(to.ip(), DISCARD), Vec::new(), sink)
}

struct Pinging(Mutex<Option<PingSink>>);

impl AnswerSink for Pinging {
    fn answered(&self, answer: Result<Answer, ConnectError>) {
        let sink = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(sink) = sink {
            sink(match answer {
                Ok(_) | Err(ConnectError::Refused { .. }) => Ok(()),
                Err(error) => Err(error),
            });
        }
    }
}

/// A transport's part of connections.
pub trait Backend: Send + Sync + 'static {
    /// How much private data each message takes.
    fn private_data(&self) -> PrivateDataLimits;

    /// Whether a queue pair is to be in INIT, with what peers may do, before it is asked or agreed with: what is behind the
    /// backend takes it from there, and does not wait for [`bring_up`](Self::bring_up).
    fn needs_init(&self) -> bool {
        false
    }

    /// Whether a connection that has ended keeps its numbers for a while, whose end is [told](Told::Lingered).
    fn lingers(&self) -> bool {
        false
    }

    /// Takes requests for an address; port 0 has one assigned. Answers the address.
    ///
    /// # Errors
    /// It is in use.
    fn listen(
        &self,
        at: SocketAddr,
        sink: Arc<dyn ListenSink<Offer>>,
    ) -> Result<SocketAddr, ConnectError>;

    /// Takes no more.
    fn unlisten(&self, at: SocketAddr);

    /// Asks for a connection. That nobody listens is told to the sink.
    ///
    /// # Errors
    /// There is no way to this address, or no room for another connection.
    fn connect(
        &self,
        to: SocketAddr,
        offer: Offer,
        sink: Arc<dyn Sink>,
    ) -> Result<Token, ConnectError>;

    /// Agrees to one.
    ///
    /// # Errors
    /// Who asked has given up.
    fn accept(&self, token: Token, offer: Offer, sink: Arc<dyn Sink>) -> Result<(), ConnectError>;

    /// How the queue pair of this end is brought up: before it accepts, or where the other has accepted and it completes.
    /// `planned` is what follows from the program's options and from what the other has said; a backend that knows more
    /// (the path, service level, partition, numbers or timeouts) changes it.
    ///
    /// # Errors
    /// The connection has ended.
    fn bring_up(&self, token: Token, planned: [QpAttributes; 3]) -> Result<BringUp, ConnectError> {
        let _ = token;
        Ok(BringUp::Steps(Box::new(planned)))
    }

    /// The active end's queue pair is ready.
    fn complete(&self, token: Token);

    /// Either end does not want it.
    fn reject(&self, token: Token, private_data: Vec<u8>);

    /// Ends a connection, told as [`Told::DisconnectConfirmed`] when the other knows.
    fn disconnect(&self, token: Token);

    /// Nobody wants to hear of it any more: the other is told that it was aborted, or that it has ended.
    fn forget(&self, token: Token);

    /// Asks whether a device of this transport is at an address; port 0 where no program's is known. No program there hears
    /// of it.
    ///
    /// # Errors
    /// There is no way to this address; by default, that this transport cannot be asked.
    fn ping(&self, to: SocketAddr, sink: PingSink) -> Result<(), ConnectError> {
        let _ = (to, sink);
        Err(VerbError::UnsupportedVerb("ping").into())
    }

    /// Takes questions which queue pair serves datagrams of an address, whose ports are none of those of
    /// [`listen`](Self::listen); port 0 has one assigned. Answers the address.
    ///
    /// # Errors
    /// It is in use; by default, that this transport has no datagrams.
    fn listen_datagrams(
        &self,
        at: SocketAddr,
        sink: Arc<dyn ListenSink<Question>>,
    ) -> Result<SocketAddr, ConnectError> {
        let _ = (at, sink);
        Err(VerbError::UnsupportedVerb("listen_datagrams").into())
    }

    /// Takes no more.
    fn unlisten_datagrams(&self, at: SocketAddr) {
        let _ = at;
    }

    /// Asks which queue pair serves datagrams of an address.
    ///
    /// # Errors
    /// There is no way to this address; by default, that this transport has no datagrams.
    fn resolve(
        &self,
        to: SocketAddr,
        private_data: Vec<u8>,
        sink: Arc<dyn AnswerSink>,
    ) -> Result<(), ConnectError> {
        let _ = (to, private_data, sink);
        Err(VerbError::UnsupportedVerb("resolve").into())
    }

    /// Answers a question; `None` where no queue pair does.
    ///
    /// # Errors
    /// The answer cannot be given so, and the question has been refused.
    fn answer(&self, token: Token, answer: Option<Answer>) -> Result<(), ConnectError> {
        let _ = (token, answer);
        Ok(())
    }
}
