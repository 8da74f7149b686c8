//! The sockets below the [streams](crate::streams) of a device: the kernel's, or those of a simulation in their place.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use polyverbs_io::{
    Announcement, Attachment, Received, Source, StreamError, TcpLink, TcpListener, TcpSocket,
    TcpTap, Way,
};

use crate::MpaCodec;

/// Makes and accepts the TCP connections of a device, and gives those that queue pairs use to the device's link. No call blocks or
/// calls the device.
pub trait Sockets: Send + Sync + 'static {
    /// One end of a connection. Dropping it closes the connection.
    type Socket: StreamSocket;
    /// A socket that accepts connections until it is dropped.
    type Listener: Send + Sync + 'static;

    /// Listens on `at`. Returns the listener and its address, which has a port even if that of `at` is 0.
    ///
    /// # Errors
    /// The address is in use or not this host's.
    fn listen(&self, at: SocketAddr) -> io::Result<(Self::Listener, SocketAddr)>;

    /// Accepts the next connection and returns it with its peer's address; `None` if no connection waits.
    ///
    /// # Errors
    /// The process has no descriptor or no memory left.
    fn accept(&self, listener: &Self::Listener) -> io::Result<Option<(Self::Socket, SocketAddr)>>;

    /// Begins to connect from `local` to `to`.
    ///
    /// # Errors
    /// The system refuses at once.
    fn connect(&self, local: SocketAddr, to: SocketAddr) -> io::Result<Self::Socket>;

    /// Has the device [attend](crate::wire::OnSockets::attend) to a socket, by this token, whenever bytes or the end of the connection
    /// wait there, or if it `is_connecting`, when the connection has been made or has failed.
    ///
    /// # Errors
    /// The process has no memory left.
    fn watch(&self, socket: &Self::Socket, token: u64, is_connecting: bool) -> io::Result<()>;

    /// Ends the watching of a socket. It is no error if the socket is not watched.
    fn unwatch(&self, socket: &Self::Socket);

    /// Has the device [attend](crate::wire::OnSockets::attend) to a listener, by this token, whenever connections wait there.
    ///
    /// # Errors
    /// The process has no memory left.
    fn watch_listener(&self, listener: &Self::Listener, token: u64) -> io::Result<()>;

    /// Ends the watching of a listener.
    ///
    /// # Errors
    /// The listener is not watched.
    fn unwatch_listener(&self, listener: &Self::Listener) -> io::Result<()>;

    /// Announces a connection as [`TcpLink::announce`] does.
    fn announce(&self, socket: &Self::Socket) -> Option<Announcement>;

    /// Returns whether the user of the peer's socket is admitted, as [`TcpLink::admits`] does.
    fn admits(&self, socket: &Self::Socket) -> bool;

    /// Gives a connection to the link.
    ///
    /// # Errors
    /// As for [`TcpLink::attach`].
    fn attach(&self, attachment: Attachment<MpaCodec, Self::Socket>) -> io::Result<()>;
}

/// One end of a TCP connection before a queue pair uses it.
pub trait StreamSocket: Send + Sync + 'static {
    /// Returns whether the connection has been made; `false` while the socket still connects.
    ///
    /// # Errors
    /// The connection could not be made, for this reason.
    fn connected(&self) -> Result<bool, StreamError>;

    /// Receives bytes that have arrived into `into`.
    ///
    /// # Errors
    /// The connection was lost before the peer ended its direction.
    fn receive(&self, into: &mut [u8]) -> Result<Received, StreamError>;

    /// Sends bytes that come before any frame. If they find no room, the connection is aborted.
    fn send_first(&self, bytes: &[u8]);

    /// Ends the sending direction: the peer sees the end after everything that was sent.
    fn finish(&self);

    /// Resets the connection at once.
    fn abort(&self);
}

/// Sockets of the kernel, which the reactor of a link watches.
pub(crate) struct KernelSockets {
    pub(crate) link: Arc<TcpLink<MpaCodec>>,
    /// Gets a copy of the bytes that pass through the sockets.
    pub(crate) tap: Option<Arc<dyn TcpTap>>,
}

impl KernelSockets {
    fn tapped(&self, socket: TcpSocket, way: Way, peer: SocketAddr) -> TcpSocket {
        match &self.tap {
            Some(tap) => socket.tapped(Arc::clone(tap), way, peer),
            None => socket,
        }
    }
}

impl Sockets for KernelSockets {
    type Socket = TcpSocket;
    type Listener = TcpListener;

    fn listen(&self, at: SocketAddr) -> io::Result<(TcpListener, SocketAddr)> {
        let listener = TcpListener::listen(at, BACKLOG)?;
        let local = listener.local();
        Ok((listener, local))
    }

    fn accept(&self, listener: &TcpListener) -> io::Result<Option<(TcpSocket, SocketAddr)>> {
        let accepted = listener.accept()?;
        Ok(accepted.map(|(socket, from)| (self.tapped(socket, Way::In, from), from)))
    }

    fn connect(&self, local: SocketAddr, to: SocketAddr) -> io::Result<TcpSocket> {
        Ok(self.tapped(TcpSocket::connect(local, to)?, Way::Out, to))
    }

    fn watch(&self, socket: &TcpSocket, token: u64, is_connecting: bool) -> io::Result<()> {
        let kind = match is_connecting {
            true => Source::Connecting,
            false => Source::Rare,
        };
        self.link.reactor().add(socket, token, kind)
    }

    fn unwatch(&self, socket: &TcpSocket) {
        // One call removes either kind; it fails without harm if the socket is no longer watched.
        let _ = self.link.reactor().remove(socket, Source::Rare);
    }

    fn watch_listener(&self, listener: &TcpListener, token: u64) -> io::Result<()> {
        self.link.reactor().add(listener, token, Source::Rare)
    }

    fn unwatch_listener(&self, listener: &TcpListener) -> io::Result<()> {
        self.link.reactor().remove(listener, Source::Rare)
    }

    fn announce(&self, socket: &TcpSocket) -> Option<Announcement> {
        self.link.announce(socket)
    }

    fn admits(&self, socket: &TcpSocket) -> bool {
        self.link.admits(socket)
    }

    fn attach(&self, attachment: Attachment<MpaCodec>) -> io::Result<()> {
        self.link.attach(attachment)
    }
}

impl StreamSocket for TcpSocket {
    fn connected(&self) -> Result<bool, StreamError> {
        self.connected()
    }

    fn receive(&self, into: &mut [u8]) -> Result<Received, StreamError> {
        self.receive(into)
    }

    fn send_first(&self, bytes: &[u8]) {
        self.send_first(bytes);
    }

    fn finish(&self) {
        // If this fails, the connection has ended.
        let _ = self.finish();
    }

    fn abort(&self) {
        self.abort();
    }
}

/// The most connections to a listener that wait in the kernel.
const BACKLOG: u32 = 1024;
