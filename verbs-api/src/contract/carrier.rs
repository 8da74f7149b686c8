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

/// How a device transports the messages of connection management.
#[derive(Clone)]
#[non_exhaustive]
pub enum Carrier {
    /// As management datagrams (MADs) to and from queue pair 1.
    Datagrams(Arc<dyn ManagementPort>),
    /// On byte streams (TCP), each of which becomes the stream of a queue pair.
    Streams(Arc<dyn StreamPort>),
    /// Not at all: the provider has its own connection management, such as the one over `librdmacm`.
    Backend(Arc<dyn Backend>),
    /// By function calls: queue pairs connect only to those of the same device in the same process.
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

/// Queue pair 1 of a device on an IP network, which sends and receives management datagrams (MADs).
///
/// Several processes may share the device's address. Each uses its own range of communication IDs, by which replies are
/// routed to it, and registers the services that it listens for.
pub trait ManagementPort: Send + Sync + 'static {
    /// Returns the device's IP address.
    fn address(&self) -> IpAddr;

    /// Returns the range of communication IDs that this process may use: the ID with the upper bits that all of them share,
    /// and how many lower bits the process chooses itself.
    fn communication_ids(&self) -> (u32, u32);

    /// Returns a name that this machine's processes at the device's address have in common, and no others. By default there is
    /// none: no other process shares the address.
    fn group(&self) -> Option<String> {
        None
    }

    /// Attaches the sink that receives management datagrams. The first call makes it with `make`; later calls return that
    /// one.
    fn attach(&self, make: &mut dyn FnMut() -> Arc<dyn ManagementSink>) -> Arc<dyn ManagementSink>;

    /// Sends a management datagram of 256 bytes. It may be lost in the network, but is not lost if this process exits: it
    /// has left the process when this returns. This calls no sink. [`ManagementSink::refused`] reports a datagram that the
    /// system refuses to send.
    fn send(&self, to: IpAddr, datagram: &[u8]);

    /// Delivers the datagrams that are due, on links that need a caller to do so. Call it after sending, with no lock held.
    fn progress(&self) {}

    /// Registers a service: from now on requests for it are routed to this process, whichever process at the address receives
    /// them.
    ///
    /// # Errors
    /// Another process has registered it ([`AddrInUse`](io::ErrorKind::AddrInUse)).
    fn serve(&self, service: u64) -> io::Result<()>;

    /// Withdraws the registration of a service.
    fn withdraw(&self, service: u64);

    /// Returns the time since a fixed moment, on the clock of [`wake_at`](Self::wake_at).
    fn now(&self) -> Duration;

    /// Has [`ManagementSink::due`] called at `at`, or shortly after it.
    fn wake_at(&self, at: Duration);
}

/// Receives the management datagrams and reports of queue pair 1. Its methods are called with no lock held, on a thread
/// that must not block.
pub trait ManagementSink: AsAny {
    /// A management datagram has arrived.
    fn datagram(&self, from: IpAddr, datagram: &[u8]);

    /// The system refuses to send management datagrams to an address, with this error number.
    fn refused(&self, to: IpAddr, errno: i32);

    /// A connected queue pair has received its first packet since it became ready to receive (COMM_EST).
    fn traffic(&self, qp: Qpn);

    /// A time that [`ManagementPort::wake_at`] was called with has come.
    fn due(&self);
}

/// The TCP streams of a device on an IP network, from the first byte until MPA has finished and frames are sent.
///
/// A stream has a number like a queue pair's. A queue pair that moves to RTR with this number as its peer's takes the
/// stream over. Until MPA has [agreed](Self::agree) on the stream, its received bytes go to its sink.
pub trait StreamPort: Send + Sync + 'static {
    /// Returns the device's IP address.
    fn address(&self) -> IpAddr;

    /// Returns the device's preferences for its streams.
    fn wishes(&self) -> StreamWishes;

    /// Listens for streams at an address of the device; for port 0 it assigns a port. Returns the address.
    ///
    /// # Errors
    /// The address is in use or is not an address of the device.
    fn listen(&self, at: SocketAddr, sink: Arc<dyn StreamListener>) -> io::Result<SocketAddr>;

    /// Stops listening at an address.
    fn unlisten(&self, at: SocketAddr);

    /// Connects a stream to `to`, from the port `from` of the device's address; 0 for any port. Returns the number of the
    /// stream; its sink reports the outcome.
    ///
    /// # Errors
    /// The connection cannot be started, for instance because the port is in use.
    fn connect(&self, from: u16, to: SocketAddr, sink: Arc<dyn StreamSink>) -> io::Result<Qpn>;

    /// Whether the peer of an accepted stream is a process whose user the device admits at its address.
    fn admits(&self, stream: Qpn) -> bool;

    /// Sends bytes on a stream that MPA has not agreed on yet.
    fn send(&self, stream: Qpn, octets: &[u8]);

    /// Sends the bytes of `last` and then switches the stream to frames. `rest` are bytes that were received already and
    /// are the beginning of the peer's frames.
    fn agree(&self, stream: Qpn, agreed: StreamAgreed, last: &[u8], rest: &[u8]);

    /// Whether this queue pair has a stream that is connected.
    fn carries(&self, qp: Qpn) -> bool;

    /// Closes a stream. Its sink is no longer called, unless a queue pair has the stream.
    fn close(&self, stream: Qpn, how: StreamClose);

    /// Returns the time since a fixed moment, on the clock of [`wake_at`](Self::wake_at).
    fn now(&self) -> Duration;

    /// Has [`StreamSink::due`] called at `at`, or shortly after it, unless the stream has ended.
    fn wake_at(&self, stream: Qpn, at: Duration);
}

/// A device's preferences for its streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamWishes {
    /// Whether frames shall have a CRC, in both directions.
    pub crc: bool,
    /// Whether the frames that this device receives shall have markers.
    pub markers: bool,
    /// Whether this device, as the passive side, sends before the peer does if no ready-to-receive indication was agreed
    /// on. RFC 5044 section 7.1 makes it wait; a peer that itself waits for a frame right after the reply needs this.
    pub speaks_first: bool,
}

/// How this side closes a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamClose {
    /// Close in good order, after everything that was sent; abruptly if requests of the stream's queue pair are
    /// outstanding.
    Graceful,
    /// Close abruptly: data that was not sent yet is lost, and the queue pair that has the stream, if any, fails.
    Abrupt,
}

/// What the two ends of a stream have agreed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamAgreed {
    /// Whether frames have a CRC, in both directions.
    pub crc: bool,
    /// Whether the frames that this side sends have markers.
    pub sends_markers: bool,
    /// Whether the frames that this side receives have markers.
    pub receives_markers: bool,
    /// The form of the ready-to-receive indication that this side sends as its first frame; empty if it sends none.
    pub says: ReadyForms,
    /// The forms of the ready-to-receive indication that the peer may send as its first frame; empty if it sends none.
    pub awaits: ReadyForms,
    /// Whether this side must send nothing before the peer's first frame has arrived.
    pub is_held: bool,
}

bitflags::bitflags! {
    /// Forms of the ready-to-receive indication (RFC 6581 section 9.2).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct ReadyForms: u8 {
        /// The indication is a send of zero bytes.
        const SEND = 1;
        /// The indication is an RDMA write of zero bytes.
        const WRITE = 2;
        /// The indication is an RDMA read of zero bytes.
        const READ = 4;
    }
}

/// Why a stream has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamEnd {
    /// The stream was closed by the peer, or together with its queue pair.
    Closed,
    /// The peer has no listener at the address.
    Refused,
    /// The TCP connection was reset.
    Reset,
    /// The peer does not answer at the address, or no longer acknowledges data.
    TimedOut,
    /// The operating system does not send to the peer, with this error number: there is no route, or a firewall forbids it.
    Unreachable(i32),
}

/// Receives the streams that peers connect. Its methods are called with no lock held, on a thread that must not block.
pub trait StreamListener: Send + Sync + 'static {
    /// A peer has connected a stream. Returns the sink of the stream; `None` refuses the stream.
    fn accepted(&self, stream: Qpn, from: SocketAddr) -> Option<Arc<dyn StreamSink>>;
}

/// Receives the bytes and events of a stream. Its methods are called with no lock held, on a thread that must not block.
pub trait StreamSink: Send + Sync + 'static {
    /// Called when the stream is connected.
    fn connected(&self);

    /// Bytes have arrived, in the order in which the peer sent them.
    fn octets(&self, octets: &[u8]);

    /// Whether the peer has sent its whole MPA request, so that only the local program's answer is missing: such a stream
    /// is not dropped in favour of newer ones.
    fn has_asked(&self) -> bool {
        false
    }

    /// Called when the peer's first frame has arrived on the stream.
    fn begun(&self);

    /// The stream has ended. No further call follows.
    fn ended(&self, end: StreamEnd);

    /// A time that [`StreamPort::wake_at`] was called with has come.
    fn due(&self);
}
