//! What carries the messages by which connections are made: between a provider and whoever speaks the protocols.
//!
//! A program does not see this either. A provider knows its sockets and no protocol of connections; the crate that knows
//! them finds here, on any device, what it sends with and who tells it what has come.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use crate::contract::AsAny;
use crate::contract::backend::Backend;
use crate::ids::Qpn;

/// How a device carries what connections are made with.
#[derive(Clone)]
#[non_exhaustive]
pub enum Carrier {
    /// Management datagrams to and from queue pair 1.
    Datagrams(Arc<dyn ManagementPort>),
    /// Streams of octets that become those of queue pairs.
    Streams(Arc<dyn StreamPort>),
    /// The provider makes them, as one over `librdmacm` does.
    Backend(Arc<dyn Backend>),
    /// Nothing leaves the process: queue pairs reach those of the same device.
    InProcess,
}

impl fmt::Debug for Carrier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Datagrams(port) => f.debug_tuple("Datagrams").field(&port.address()).finish(),
            Self::Streams(port) => f.debug_tuple("Streams").field(&port.address()).finish(),
            Self::Backend(_) => f.write_str("Backend"),
            Self::InProcess => f.write_str("InProcess"),
        }
    }
}

/// Queue pair 1 of a device on an IP network.
///
/// Several processes may share its address: each has communication ids of its own, by which what answers its messages
/// finds it, and names the services that it answers for.
pub trait ManagementPort: Send + Sync + 'static {
    /// The device's address.
    fn address(&self) -> IpAddr;

    /// The communication ids of this process: with these upper bits, and this many lower ones to choose.
    fn communication_ids(&self) -> (u32, u32);

    /// Who is told what comes. The first one made stays; whoever is later gets that one.
    fn attach(&self, make: &mut dyn FnMut() -> Arc<dyn ManagementSink>) -> Arc<dyn ManagementSink>;

    /// Sends a management datagram of 256 octets. It may be lost on its way, but not with this process: it has left when
    /// this returns. Nobody is told anything meanwhile.
    fn send(&self, to: IpAddr, datagram: &[u8]);

    /// Delivers what is due, where that needs somebody. Call after what was sent, with no lock held.
    fn progress(&self) {}

    /// Requests for this service are for this process from now on, whichever of those at the address they reach.
    ///
    /// # Errors
    /// Another one answers for it ([`AddrInUse`](io::ErrorKind::AddrInUse)).
    fn serve(&self, service: u64) -> io::Result<()>;

    /// They no longer are.
    fn withdraw(&self, service: u64);

    /// Time that has passed since some moment.
    fn now(&self) -> Duration;

    /// Has [`ManagementSink::due`] called at `at`, or shortly after it.
    fn wake_at(&self, at: Duration);
}

/// Takes what comes to queue pair 1. Called with no lock held, on a thread that must not be kept waiting.
pub trait ManagementSink: AsAny {
    /// A management datagram has come.
    fn datagram(&self, from: IpAddr, datagram: &[u8]);

    /// The first packet since it became ready to receive has come to a queue pair that has a peer.
    fn traffic(&self, qp: Qpn);

    /// A moment has come that was asked for.
    fn due(&self);
}

/// The streams of a device on an IP network, from the first octet until frames travel on them.
///
/// A stream has a number like a queue pair's: the queue pair that becomes ready to receive and names that as its peer's
/// is the one that the stream belongs to. Until it was [agreed on](Self::agree), octets come to the stream's sink.
pub trait StreamPort: Send + Sync + 'static {
    /// The device's address.
    fn address(&self) -> IpAddr;

    /// What the device wants of its streams.
    fn wishes(&self) -> StreamWishes;

    /// Takes streams at an address of the device; port 0 has one assigned. Answers the address.
    ///
    /// # Errors
    /// The address is in use or none of the device's.
    fn listen(&self, at: SocketAddr, sink: Arc<dyn StreamListener>) -> io::Result<SocketAddr>;

    /// Takes no more.
    fn unlisten(&self, at: SocketAddr);

    /// Begins a stream. What becomes of it is told to the sink.
    ///
    /// # Errors
    /// It cannot even begin.
    fn connect(&self, to: SocketAddr, sink: Arc<dyn StreamSink>) -> io::Result<Qpn>;

    /// Sends octets, before it was agreed on.
    fn send(&self, stream: Qpn, octets: &[u8]);

    /// From now on frames travel on the stream, behind the `last` octets that are sent before them. `rest` has come
    /// already, and is frames.
    fn agree(&self, stream: Qpn, agreed: StreamAgreed, last: &[u8], rest: &[u8]);

    /// Whether a queue pair of the device has its stream.
    fn carries(&self, qp: Qpn) -> bool;

    /// Ends a stream. Nothing is told of it any more, unless a queue pair has it.
    fn close(&self, stream: Qpn, how: StreamClose);

    /// Time that has passed since some moment.
    fn now(&self) -> Duration;

    /// Has [`StreamSink::due`] called at `at`, or shortly after it, unless the stream has ended.
    fn wake_at(&self, stream: Qpn, at: Duration);
}

/// What a device wants of its streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamWishes {
    /// Checksums, in both directions.
    pub crc: bool,
    /// Markers in what it receives.
    pub markers: bool,
    /// As the passive side, to send before the peer has where no ready-to-receive indication was agreed on. RFC 5044 section
    /// 7.1 has it wait; a peer that takes frames right behind the reply, and itself waits for one, needs this.
    pub speaks_first: bool,
}

/// How a stream ends from this side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamClose {
    /// Behind what was sent. With requests of its queue pair outstanding it is abrupt.
    Graceful,
    /// At once.
    Abrupt,
}

/// What the two ends of a stream have agreed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamAgreed {
    /// Checksums, in both directions.
    pub crc: bool,
    /// Markers in what this side sends.
    pub sends_markers: bool,
    /// Markers in what it receives.
    pub receives_markers: bool,
    /// The ready-to-receive indication that this side begins with.
    pub says: ReadyForms,
    /// Those that the peer may begin with.
    pub awaits: ReadyForms,
    /// This side sends nothing before the peer has.
    pub is_held: bool,
}

bitflags::bitflags! {
    /// Forms of the ready-to-receive indication (RFC 6581 section 9.2).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct ReadyForms: u8 {
        /// A send of no octets.
        const SEND = 1;
        /// An RDMA Write of no octets.
        const WRITE = 2;
        /// An RDMA Read of no octets.
        const READ = 4;
    }
}

/// Why a stream is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamEnd {
    /// It was ended, by the peer or with its queue pair.
    Closed,
    /// Nobody listens there.
    Refused,
    /// It broke off.
    Reset,
    /// The peer does not answer.
    TimedOut,
    /// There is no way to the peer.
    Unreachable,
}

/// Takes streams that others begin. Called with no lock held, on a thread that must not be kept waiting.
pub trait StreamListener: Send + Sync + 'static {
    /// Somebody has begun a stream: who is told what comes; `None` refuses it.
    fn accepted(&self, stream: Qpn, from: SocketAddr) -> Option<Arc<dyn StreamSink>>;
}

/// Takes what comes on a stream. Called with no lock held, on a thread that must not be kept waiting.
pub trait StreamSink: Send + Sync + 'static {
    /// The stream that was begun is there.
    fn connected(&self);

    /// Octets have come.
    fn octets(&self, octets: &[u8]);

    /// Whether whoever connected has said all that it has to: a stream that waits for the own program is not given up for
    /// others that come.
    fn has_asked(&self) -> bool {
        false
    }

    /// The peer's first frame has come.
    fn begun(&self);

    /// The stream is over. Nothing more is told.
    fn ended(&self, end: StreamEnd);

    /// A moment has come that was asked for.
    fn due(&self);
}
