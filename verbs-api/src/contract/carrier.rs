//! How a device carries the messages of connection management.
//!
//! Programs do not see this. A provider knows its sockets and no connection protocol; the crate that implements the
//! protocols sends and receives through these traits, on any device.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use crate::as_any::AsAny;
use crate::contract::backend::Backend;
use crate::ids::Qpn;

/// How a device carries the messages of connection management.
#[derive(Clone)]
#[non_exhaustive]
pub enum Carrier {
    /// Management datagrams to and from queue pair 1.
    Datagrams(Arc<dyn ManagementPort>),
    /// Streams of octets, each of which becomes that of a queue pair.
    Streams(Arc<dyn StreamPort>),
    /// The provider makes connections itself, as the one over `librdmacm` does.
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
/// Several processes may share its address. Each has communication IDs of its own, by which replies are routed to it, and
/// registers the services that it listens for.
pub trait ManagementPort: Send + Sync + 'static {
    /// The device's address.
    fn address(&self) -> IpAddr;

    /// The communication IDs of this process: the upper bits that they share, and how many lower bits it may choose.
    fn communication_ids(&self) -> (u32, u32);

    /// Attaches the sink for received datagrams. Only the first call makes one; every later call gets the same.
    fn attach(&self, make: &mut dyn FnMut() -> Arc<dyn ManagementSink>) -> Arc<dyn ManagementSink>;

    /// Sends a management datagram of 256 octets. It may be lost in the network, but is not lost if this process exits: it has
    /// left the process when this returns. No sink is called meanwhile. [`ManagementSink::refused`] reports a datagram that the
    /// system refuses to send.
    fn send(&self, to: IpAddr, datagram: &[u8]);

    /// Delivers what is due, on links that need a caller to do so. Call it after sending, with no lock held.
    fn progress(&self) {}

    /// Registers a service: from now on requests for it are routed to this process, whichever process at the address receives
    /// them.
    ///
    /// # Errors
    /// Another process has registered it ([`AddrInUse`](io::ErrorKind::AddrInUse)).
    fn serve(&self, service: u64) -> io::Result<()>;

    /// Takes the registration back.
    fn withdraw(&self, service: u64);

    /// The time since some fixed moment.
    fn now(&self) -> Duration;

    /// Has [`ManagementSink::due`] called at `at`, or shortly after it.
    fn wake_at(&self, at: Duration);
}

/// Receives what arrives at queue pair 1. Called with no lock held, on a thread that must not block.
pub trait ManagementSink: AsAny {
    /// A management datagram has arrived.
    fn datagram(&self, from: IpAddr, datagram: &[u8]);

    /// The system refuses to send management datagrams to an address, with this error number.
    fn refused(&self, to: IpAddr, errno: i32);

    /// A connected queue pair has received its first packet since it became ready to receive (COMM_EST).
    fn traffic(&self, qp: Qpn);

    /// A time that was asked for with [`ManagementPort::wake_at`] has come.
    fn due(&self);
}

/// The streams of a device on an IP network, from the first octet until frames travel on them.
///
/// A stream has a number like a queue pair's. A queue pair gets the stream whose number it names as its peer's when it
/// becomes ready to receive. Until MPA has [agreed](Self::agree) on the stream, its octets go to its sink.
pub trait StreamPort: Send + Sync + 'static {
    /// The device's address.
    fn address(&self) -> IpAddr;

    /// The device's preferences for its streams.
    fn wishes(&self) -> StreamWishes;

    /// Listens for streams at an address of the device; for port 0 a port is assigned. Returns the address.
    ///
    /// # Errors
    /// The address is in use or none of the device's.
    fn listen(&self, at: SocketAddr, sink: Arc<dyn StreamListener>) -> io::Result<SocketAddr>;

    /// Stops listening.
    fn unlisten(&self, at: SocketAddr);

    /// Connects a stream, from the port `from` of the device's address, or for 0 from any. The outcome is reported to the sink.
    ///
    /// # Errors
    /// The connection cannot be started, for instance because the port is in use.
    fn connect(&self, from: u16, to: SocketAddr, sink: Arc<dyn StreamSink>) -> io::Result<Qpn>;

    /// Whether the peer of a stream that was accepted is a process of a user that the device lets in at its address.
    fn admits(&self, stream: Qpn) -> bool;

    /// Sends octets on a stream that has not been agreed on yet.
    fn send(&self, stream: Qpn, octets: &[u8]);

    /// Switches the stream to frames, after sending the octets of `last`. `rest` was received already and is the beginning
    /// of the peer's frames.
    fn agree(&self, stream: Qpn, agreed: StreamAgreed, last: &[u8], rest: &[u8]);

    /// Whether a queue pair of the device has its stream.
    fn carries(&self, qp: Qpn) -> bool;

    /// Closes a stream. Its sink is not called any more, unless a queue pair has the stream.
    fn close(&self, stream: Qpn, how: StreamClose);

    /// The time since some fixed moment.
    fn now(&self) -> Duration;

    /// Has [`StreamSink::due`] called at `at`, or shortly after it, unless the stream has ended.
    fn wake_at(&self, stream: Qpn, at: Duration);
}

/// A device's preferences for its streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamWishes {
    /// Checksums, in both directions.
    pub crc: bool,
    /// Markers in what it receives.
    pub markers: bool,
    /// As the passive side, sends before the peer does where no ready-to-receive indication was agreed on. RFC 5044 section
    /// 7.1 makes it wait; a peer that itself waits for a frame right after the reply needs this.
    pub speaks_first: bool,
}

/// How this side closes a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamClose {
    /// In good order, after everything that was sent. Abrupt while requests of its queue pair are outstanding.
    Graceful,
    /// Abruptly.
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
    /// The ready-to-receive indication that this side sends first.
    pub says: ReadyForms,
    /// Those that the peer may send first.
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

/// Why a stream has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamEnd {
    /// It was closed, by the peer or with its queue pair.
    Closed,
    /// There is no listener at the address.
    Refused,
    /// The connection was reset.
    Reset,
    /// The peer does not answer.
    TimedOut,
    /// The system does not send to the peer, with this error number: there is no route, or a firewall forbids it.
    Unreachable(i32),
}

/// Receives the streams that peers connect. Called with no lock held, on a thread that must not block.
pub trait StreamListener: Send + Sync + 'static {
    /// A peer has connected a stream. Returns its sink; `None` refuses it.
    fn accepted(&self, stream: Qpn, from: SocketAddr) -> Option<Arc<dyn StreamSink>>;
}

/// Receives what arrives on a stream. Called with no lock held, on a thread that must not block.
pub trait StreamSink: Send + Sync + 'static {
    /// The stream is connected.
    fn connected(&self);

    /// Octets have arrived.
    fn octets(&self, octets: &[u8]);

    /// Whether the peer has sent its whole request, so that only the local program is awaited: such a stream is not dropped
    /// in favour of newer ones.
    fn has_asked(&self) -> bool {
        false
    }

    /// The peer's first frame has arrived.
    fn begun(&self);

    /// The stream has ended. No further call follows.
    fn ended(&self, end: StreamEnd);

    /// A time that was asked for with [`StreamPort::wake_at`] has come.
    fn due(&self);
}
