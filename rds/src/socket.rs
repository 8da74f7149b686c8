//! RDS sockets: the API of this crate for programs.

use std::future::poll_fn;
use std::hint;
use std::io::{self, IoSlice, IoSliceMut};
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, OnceLock};
use std::task::Poll;
use std::time::{Duration, Instant};

use polyverbs::Device;
use polyverbs::provider::Mutex;
use polyverbs_wire::rds::{FRAGMENT, MAX_MESSAGE};

use crate::error::{DeviceError, RdsError};
use crate::memory::LocalMemory;
use crate::node::{Node, Sleeping, State, device_of};
use crate::pool::{Pool, Slot};
use crate::ports::PortLock;
use crate::protocol::{
    Counters, Fragments, Inbound, Outbound, PathInfo, PortError, Queued, RdmaStatus, Readiness,
    Refused, SocketId, SocketOptions,
};
use crate::rdma::{Control, Cookie, Posted, RdmaFlags, attached};
use crate::shared::Shared;
use crate::transport::RdsTransport;

/// How long a bind waits for the leader, the process that peers connect to, to learn of the socket.
const ANNOUNCED: Duration = Duration::from_secs(10);

/// How long a bind waits for a child of a fork to close the port that it has inherited.
const CHILD_CLOSES: Duration = Duration::from_secs(1);

/// How many free ports a bind to port 0 tries before it fails.
const CHOICES: usize = 1000;

/// How long a call may block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// The call does not block; it fails instead.
    No,
    /// The call polls for about as long as putting the thread to sleep and waking it would take, and does not sleep.
    Briefly,
    /// The call blocks until it succeeds or this time has come.
    Until(Instant),
    /// The call blocks until it succeeds, without limit.
    Forever,
}

/// A message to send, with all that goes with it.
#[derive(Clone, Debug, Default)]
pub struct Outgoing<'a> {
    /// The payload, gathered from these buffers.
    pub data: &'a [IoSlice<'a>],
    /// The destination; `None` for the one that the socket is connected to.
    pub to: Option<SocketAddr>,
    /// The RDMA operation or memory registration that goes with the message.
    pub control: Control,
}

/// The result of a receive call: a message, or the outcomes of operations, or the ports that are no longer congested. The
/// fields of the other kinds are empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Received {
    /// The bytes of the message that were copied to the caller's buffer.
    pub length: usize,
    /// Length of the message in bytes; the bytes beyond `length` are lost.
    pub full_length: usize,
    /// The sender of the message; `None` if no message was received.
    pub from: Option<SocketAddr>,
    /// The cookie that came with the message, by which the caller can access memory of the sender; `None` if there was
    /// none.
    pub cookie: Option<Cookie>,
    /// The outcomes of operations that have ended.
    pub statuses: Vec<RdmaStatus>,
    /// The groups of ports that are no longer congested, as a bit mask by the port modulo 64. Only a socket with a
    /// congestion monitor gets them.
    pub congestion: Option<u64>,
}

impl Received {
    /// Whether the message was longer than the buffer of the caller.
    pub const fn is_truncated(&self) -> bool {
        self.length < self.full_length
    }
}

/// A reliable datagram socket (RDS). All clones refer to the same socket, which is closed when the last of them is dropped.
///
/// ```no_run
/// use polyverbs_rds::RdsSocket;
/// let socket = RdsSocket::bind("192.0.2.1:4000".parse()?)?;
/// socket.send_to(b"whole, once, in order", "192.0.2.2:4000".parse()?)?;
/// let mut room = [0; 4096];
/// let received = socket.recv_from(&mut room)?;
/// println!("{:?} says {:?}", received.from, &room[..received.length]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct RdsSocket {
    inner: Arc<Inner>,
}

struct Inner {
    before: Mutex<Before>,
    bound: OnceLock<Bound>,
    shared: Arc<Shared>,
}

/// The state that a socket has before it is bound.
struct Before {
    options: SocketOptions,
    peer: Option<SocketAddr>,
    transport: Option<RdsTransport>,
    nonblocking: bool,
    read_timeout: Option<Duration>,
    write_timeout: Option<Duration>,
}

impl Before {
    /// The way in which a call with this timeout blocks; `None` is no timeout. It does not block at all if the socket is
    /// nonblocking.
    fn wait(&self, timeout: Option<Duration>) -> Wait {
        match timeout {
            _ if self.nonblocking => Wait::No,
            // A time that is too far in the future for the clock counts as none.
            Some(timeout) => {
                (Instant::now().checked_add(timeout)).map_or(Wait::Forever, Wait::Until)
            }
            None => Wait::Forever,
        }
    }
}

struct Bound {
    node: Arc<Node>,
    id: SocketId,
    at: SocketAddr,
    _port: PortLock,
}

impl Drop for Bound {
    fn drop(&mut self) {
        self.node.detach(self.id);
        let now = self.node.now();
        let pending = self.node.with(|state| state.host.close(now, self.id));
        self.node.wait_completed(&pending);
        self.node.release();
    }
}

impl Default for RdsSocket {
    fn default() -> Self {
        Self::new()
    }
}

impl RdsSocket {
    /// A socket that is not bound to an address. It opens no device yet.
    pub fn new() -> Self {
        let before = Before {
            options: SocketOptions::default(),
            peer: None,
            transport: None,
            nonblocking: false,
            read_timeout: None,
            write_timeout: None,
        };
        Self {
            inner: Arc::new(Inner {
                before: Mutex::new(before),
                bound: OnceLock::new(),
                shared: Arc::default(),
            }),
        }
    }

    /// A socket that is bound to this address; for port 0 a free port is chosen.
    ///
    /// # Errors
    /// Those of [`bind_to`](Self::bind_to).
    pub fn bind(at: SocketAddr) -> Result<Self, RdsError> {
        let socket = Self::new();
        socket.bind_to(at)?;
        Ok(socket)
    }

    /// Binds the socket to this address; for port 0 a free port is chosen.
    ///
    /// # Errors
    /// The address is not a unicast address, no device is at it, the port is in use or reserved, or the socket is bound
    /// already.
    pub fn bind_to(&self, at: SocketAddr) -> Result<(), RdsError> {
        let transport = self.inner.before.lock().transport;
        self.bind_over(at, || device_of(at.ip(), transport))
    }

    /// A socket that is bound to this address and uses this device; for port 0 a free port is chosen. If this process
    /// already has sockets at the address, the socket uses their device instead.
    ///
    /// # Errors
    /// Those of [`bind_to`](Self::bind_to).
    pub fn bind_on(device: &Device, at: SocketAddr) -> Result<Self, RdsError> {
        let socket = Self::new();
        socket.bind_over(at, || Ok(device.clone()))?;
        Ok(socket)
    }

    fn bind_over(
        &self,
        at: SocketAddr,
        device: impl FnOnce() -> Result<Device, DeviceError>,
    ) -> Result<(), RdsError> {
        check_unicast(at)?;
        let before = self.inner.before.lock();
        if let Some(bound) = self.inner.bound.get() {
            return Err(RdsError::Bound(bound.at));
        }
        let node = Node::acquire(at, device)?;
        let has = RdsTransport::of(node.transport());
        let taken = match before.transport {
            Some(wanted) if wanted != has => Err(RdsError::WrongTransport(at)),
            _ => take_port(&node, at, before.options),
        };
        let (id, at, port) = match taken {
            Ok(taken) => taken,
            Err(error) => {
                node.release();
                return Err(error);
            }
        };
        node.attach(id, &self.inner.shared);
        let bound = Bound {
            node,
            id,
            at,
            _port: port,
        };
        bound.wait_for(
            &self.inner.shared,
            Wait::Until(Instant::now() + ANNOUNCED),
            |state| match state.host.is_announced(id) {
                true => Ok(()),
                false => Err(RdsError::WouldBlock),
            },
        )?;
        // The lock of `before` is held, so that no other thread can bind the socket at the same time.
        let _ = self.inner.bound.set(bound);
        Ok(())
    }

    fn bound(&self) -> Result<&Bound, RdsError> {
        let bound = self.inner.bound.get();
        bound.ok_or(RdsError::NotConnected("the socket has no address"))
    }

    /// Sets the default destination, for messages that name none. No packet is sent.
    ///
    /// # Errors
    /// The address is not a unicast address.
    pub fn connect(&self, to: SocketAddr) -> Result<(), RdsError> {
        if to.ip().is_unspecified() {
            return Err(RdsError::Destination(to));
        }
        check_unicast(to)?;
        self.inner.before.lock().peer = Some(to);
        Ok(())
    }

    /// The address that the socket is bound to; `None` before the bind.
    pub fn local_addr(&self) -> Option<SocketAddr> {
        Some(self.inner.bound.get()?.at)
    }

    /// The default destination that [`connect`](Self::connect) has set; `None` if there is none.
    pub fn peer_addr(&self) -> Option<SocketAddr> {
        self.inner.before.lock().peer
    }

    /// The transport of the socket's messages: that of the device at its address or, before the bind, the chosen one.
    /// `None` if neither is known.
    pub fn transport(&self) -> Option<RdsTransport> {
        let bound = self.inner.bound.get();
        let has = bound.map(|bound| RdsTransport::of(bound.node.transport()));
        has.or_else(|| self.inner.before.lock().transport)
    }

    /// Chooses the transport of the socket's messages before the socket is bound. If no device is at the address of the
    /// later bind, an emulated one of this transport is created there.
    ///
    /// # Errors
    /// The transport is not supported, or the socket already has one.
    pub fn set_transport(&self, transport: RdsTransport) -> Result<(), RdsError> {
        if self.transport().is_some() {
            return Err(RdsError::TransportChosen);
        }
        if transport == RdsTransport::Tcp {
            return Err(RdsError::NoTransport);
        }
        self.inner.before.lock().transport = Some(transport);
        Ok(())
    }

    /// The current options of the socket.
    pub fn options(&self) -> SocketOptions {
        self.inner.before.lock().options
    }

    /// Changes the options of the socket with this function.
    pub fn set_options(&self, change: impl FnOnce(&mut SocketOptions)) {
        let mut before = self.inner.before.lock();
        change(&mut before.options);
        let options = before.options;
        if let Some(bound) = self.inner.bound.get() {
            bound.node.with(|state| {
                if let Some(now) = state.host.options_mut(bound.id) {
                    *now = options;
                }
            });
        }
    }

    /// Sets whether calls that would have to wait return [`WouldBlock`](RdsError::WouldBlock) or
    /// [`Congested`](RdsError::Congested) instead of blocking.
    pub fn set_nonblocking(&self, nonblocking: bool) {
        self.inner.before.lock().nonblocking = nonblocking;
    }

    /// Sets how long a receive call may block; `None`, the default, is without limit.
    pub fn set_read_timeout(&self, timeout: Option<Duration>) {
        self.inner.before.lock().read_timeout = timeout;
    }

    /// Sets how long a send call may block; `None`, the default, is without limit.
    pub fn set_write_timeout(&self, timeout: Option<Duration>) {
        self.inner.before.lock().write_timeout = timeout;
    }

    /// Sends a message and returns its length in bytes. Blocks while the send buffer is full or the destination is
    /// congested, unless the socket is nonblocking or its write timeout has passed.
    ///
    /// # Errors
    /// Those of [`send_msg`](Self::send_msg).
    pub fn send_to(&self, data: &[u8], to: SocketAddr) -> Result<usize, RdsError> {
        let before = self.inner.before.lock();
        let wait = before.wait(before.write_timeout);
        drop(before);
        let message = Outgoing {
            data: &[IoSlice::new(data)],
            to: Some(to),
            ..Outgoing::default()
        };
        self.send_msg(message, wait)
    }

    /// Queues a whole message for sending and returns its length in bytes. The peer acknowledges it later: a socket that is
    /// closed before then gives up its unacknowledged messages, see [`flush`](Self::flush).
    ///
    /// # Errors
    /// The socket has no address or the message no destination, the message is too long, or the call would have to block
    /// longer than `wait` allows. If earlier messages were given up, one call returns
    /// [`Undelivered`](RdsError::Undelivered) and does not send its message.
    pub fn send_msg(&self, message: Outgoing<'_>, wait: Wait) -> Result<usize, RdsError> {
        let (bound, to, length) = self.check(&message)?;
        let mut outbound = Some(self.outbound(bound, &message, to, length)?);
        let outcome = bound.wait_for(&self.inner.shared, wait, |state| {
            try_send(state, bound.id, &mut outbound)
        });
        // Memory that was registered for a message is freed if the message is not sent, because no peer knows its cookie.
        if let Control::Map(..) = message.control
            && let Some(cookie) = outbound.and_then(|outbound| outbound.cookie)
        {
            self.inner.shared.keys.free(Cookie(cookie))?;
        }
        outcome.map(|()| length)
    }

    /// Sends a message as [`send_to`](Self::send_to) does; the task, not the thread, waits while the message cannot be
    /// sent.
    ///
    /// # Errors
    /// Those of [`send_msg`](Self::send_msg).
    pub async fn send_to_async(&self, data: &[u8], to: SocketAddr) -> Result<usize, RdsError> {
        let data = [IoSlice::new(data)];
        let message = Outgoing {
            data: &data,
            to: Some(to),
            ..Outgoing::default()
        };
        let (bound, to, length) = self.check(&message)?;
        let mut outbound = Some(self.outbound(bound, &message, to, length)?);
        self.until(bound, |state| try_send(state, bound.id, &mut outbound))
            .await?;
        Ok(length)
    }

    fn outbound(
        &self,
        bound: &Bound,
        message: &Outgoing<'_>,
        to: SocketAddr,
        length: usize,
    ) -> Result<Outbound<Slot, Posted>, RdsError> {
        let (context, pd) = (&bound.node.context, &bound.node.pd);
        let keys = &self.inner.shared.keys;
        let recverr = || self.options().recverr;
        let is_remote = matches!(message.control, Control::Rdma(_) | Control::Atomic(_));
        if !matches!(message.control, Control::None) && !bound.node.is_leader() {
            return Err(RdsError::Rdma {
                what: "another process at this address is the one that peers reach",
                errno: libc::EOPNOTSUPP,
            });
        }
        if is_remote && to.ip() == bound.at.ip() {
            return Err(RdsError::Rdma {
                what: "memory at the own address is reached without RDS",
                errno: libc::EOPNOTSUPP,
            });
        }
        let (mut attach, mut cookie) = (None, None);
        match &message.control {
            Control::None => {}
            Control::Destination(told) if keys.has(*told) => cookie = Some(told.0),
            Control::Destination(_) => {
                return Err(RdsError::Rdma {
                    what: "no memory has this cookie",
                    errno: libc::EINVAL,
                });
            }
            Control::Map(memory, flags) => {
                cookie = Some(keys.map(context, pd, memory, *flags)?.0);
            }
            Control::Rdma(_) | Control::Atomic(_) if to.ip() == bound.at.ip() => {
                return Err(RdsError::Rdma {
                    what: "memory of one's own address is reached without RDMA",
                    errno: libc::EOPNOTSUPP,
                });
            }
            Control::Rdma(asked) => {
                let rkey = Some(asked.cookie.rkey());
                let operation = asked.prepare(context, pd)?;
                let (flags, token) = (asked.flags, asked.user_token);
                attach = Some(attached(operation, rkey, flags, token, recverr()));
            }
            Control::Atomic(asked) => {
                let operation = asked.prepare(context, pd)?;
                let (flags, token) = (asked.flags, asked.user_token);
                attach = Some(attached(operation, None, flags, token, recverr()));
            }
        }
        Ok(Outbound {
            to,
            length: length as u32,
            fragments: fragments(&bound.node.pool, message.data, length)?,
            attached: attach,
            cookie,
        })
    }

    /// Registers memory of this program, which peers can then access by the returned cookie.
    ///
    /// # Errors
    /// The socket has no address, or the memory is empty or too long.
    pub fn get_mr(
        &self,
        memory: impl Into<LocalMemory>,
        flags: RdmaFlags,
    ) -> Result<Cookie, RdsError> {
        let node = &self.bound()?.node;
        let keys = &self.inner.shared.keys;
        keys.map(&node.context, &node.pd, &memory.into(), flags)
    }

    /// Frees memory that was registered with [`get_mr`](Self::get_mr) or a message, so that peers can no longer access it.
    ///
    /// # Errors
    /// No memory has this cookie. Cookie 0 asks Linux to flush memory that is no longer used; it is accepted without
    /// effect, because such memory is always freed at once.
    pub fn free_mr(&self, cookie: Cookie) -> Result<(), RdsError> {
        self.bound()?;
        match cookie {
            Cookie(0) => Ok(()),
            cookie => self.inner.shared.keys.free(cookie),
        }
    }

    fn check(&self, message: &Outgoing<'_>) -> Result<(&Bound, SocketAddr, usize), RdsError> {
        if let Some(to) = message.to {
            check_unicast(to)?;
        }
        let before = self.inner.before.lock();
        let to = message.to.or(before.peer);
        let bound = self.bound()?;
        let to = to.ok_or(RdsError::NotConnected("the message has no destination"))?;
        if bound.at.is_ipv4() != to.is_ipv4() {
            return Err(RdsError::Family { from: bound.at, to });
        }
        let length = message.data.iter().map(|part| part.len()).sum();
        let send_buffer = before.options.send_buffer;
        if length > send_buffer.min(MAX_MESSAGE) {
            return Err(RdsError::too_long(length, send_buffer));
        }
        Ok((bound, to, length))
    }

    /// Receives one message into `room`. Blocks until there is one, unless the socket is nonblocking or its read timeout
    /// has passed.
    ///
    /// # Errors
    /// Those of [`recv_msg`](Self::recv_msg).
    pub fn recv_from(&self, room: &mut [u8]) -> Result<Received, RdsError> {
        let before = self.inner.before.lock();
        let wait = before.wait(before.read_timeout);
        drop(before);
        self.recv_msg(&mut [IoSliceMut::new(room)], wait, false)
    }

    /// Receives the outcomes of operations, the ports that are no longer congested, or one message: the first of these that
    /// there is. The bytes of a message that do not fit into `room` are lost. With `peek` only a message is returned, and
    /// it stays in the queue.
    ///
    /// # Errors
    /// The socket has no address, or there is nothing to receive and the call would have to block longer than `wait`
    /// allows. If messages that the socket has sent were given up, one call returns [`Undelivered`](RdsError::Undelivered).
    pub fn recv_msg(
        &self,
        room: &mut [IoSliceMut<'_>],
        wait: Wait,
        peek: bool,
    ) -> Result<Received, RdsError> {
        let bound = self.bound()?;
        if peek {
            return bound.wait_for(&self.inner.shared, wait, |state| {
                let message = state.host.peek(bound.id);
                message
                    .map(|message| taken(message, room))
                    .ok_or(RdsError::WouldBlock)
            });
        }
        let inbound = bound.wait_for(&self.inner.shared, wait, |state| {
            try_receive(state, bound.id)
        })?;
        Ok(received(inbound, room))
    }

    /// Receives a message as [`recv_from`](Self::recv_from) does; the task, not the thread, waits until there is one.
    ///
    /// # Errors
    /// Those of [`recv_msg`](Self::recv_msg).
    pub async fn recv_from_async(&self, room: &mut [u8]) -> Result<Received, RdsError> {
        let bound = self.bound()?;
        let inbound = self.until(bound, |state| try_receive(state, bound.id));
        Ok(received(inbound.await?, &mut [IoSliceMut::new(room)]))
    }

    /// Calls `attempt` at each wake-up of the socket until it returns something other than
    /// [`WouldBlock`](RdsError::WouldBlock) or congestion.
    async fn until<R>(
        &self,
        bound: &Bound,
        mut attempt: impl FnMut(&mut State) -> Result<R, RdsError>,
    ) -> Result<R, RdsError> {
        poll_fn(|cx| {
            self.inner.shared.watch.register(cx.waker());
            loop {
                match bound.node.poll_with(&mut attempt) {
                    Err(RdsError::WouldBlock | RdsError::Congested) if bound.node.arm() => {}
                    Err(RdsError::WouldBlock | RdsError::Congested) => return Poll::Pending,
                    outcome => return Poll::Ready(outcome),
                }
            }
        })
        .await
    }

    /// The length of the next message that waits to be received, in bytes; `None` if none waits.
    pub fn next_length(&self) -> Option<usize> {
        let bound = self.inner.bound.get()?;
        let length = bound
            .node
            .poll_with(|state| state.host.next_length(bound.id));
        length.map(|length| length as usize)
    }

    /// A descriptor for `poll` and `epoll`, the same at each call. It is readable at first, and whenever
    /// [`readiness`](Self::readiness) may have changed, until `readiness` is called.
    ///
    /// ```no_run
    /// # fn example(socket: &polyverbs_rds::RdsSocket) -> Result<(), Box<dyn std::error::Error>> {
    /// use rustix::event::{PollFd, PollFlags, poll};
    /// let fd = socket.fd()?;
    /// while !socket.readiness().readable {
    ///     poll(&mut [PollFd::new(&fd, PollFlags::IN)], None)?;
    /// }
    /// let received = socket.recv_from(&mut [0; 4096])?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The process cannot open further files.
    pub fn fd(&self) -> io::Result<BorrowedFd<'_>> {
        self.inner.shared.watch.fd()
    }

    /// The readiness of the socket for `poll`, by the completions that its node has handled so far. Each later change is
    /// reported: at once through the descriptor ([`fd`](Self::fd)) if the socket has one, else as
    /// [`on_change`](Self::on_change) says.
    pub fn readiness(&self) -> Readiness {
        let has_descriptor = self.inner.shared.watch.clear();
        let Some(bound) = self.inner.bound.get() else {
            return Readiness {
                writable: true,
                ..Readiness::default()
            };
        };
        if !has_descriptor {
            return bound.node.lock().host.readiness(bound.id);
        }
        let look = || bound.node.poll_with(|state| state.host.readiness(bound.id));
        let mut now = look();
        if bound.node.arm() {
            let has_changed = now.congestion_changed;
            now = look();
            now.congestion_changed |= has_changed;
        }
        now
    }

    /// Sets a callback that is called whenever the readiness may have changed, by the thread that notices the change, with
    /// no lock held. It is called at once while a thread is [`Sleeping`], otherwise within a millisecond. `None` removes
    /// the callback.
    pub fn on_change(&self, told: Option<Arc<dyn Fn() + Send + Sync>>) {
        self.inner.shared.watch.tell(told);
    }

    /// Gives up all unacknowledged messages of the socket to this destination, or to all destinations if `to` is `None`.
    /// Waits until their operations no longer use memory.
    ///
    /// # Errors
    /// The socket has no address.
    pub fn cancel_sent_to(&self, to: Option<SocketAddr>) -> Result<(), RdsError> {
        let bound = self.bound()?;
        let now = bound.node.now();
        let pending = bound
            .node
            .with(|state| state.host.cancel(now, bound.id, to));
        bound.node.wait_completed(&pending);
        Ok(())
    }

    /// Waits until peers have acknowledged all messages of the socket, so that closing the socket gives up none.
    ///
    /// # Errors
    /// The socket has no address, `wait` does not allow to wait longer, or messages were already given up, which one call
    /// reports as [`Undelivered`](RdsError::Undelivered).
    pub fn flush(&self, wait: Wait) -> Result<(), RdsError> {
        let bound = self.bound()?;
        let owing = bound.node.poll_with(|state| {
            tell_undelivered(state, bound.id)?;
            Ok::<_, RdsError>(state.host.unacknowledged(bound.id).collect::<Vec<_>>())
        })?;
        if owing.is_empty() {
            return Ok(());
        }
        // A peer acknowledges with its own messages, and it may send none. So another socket pings the peer, whose answer
        // acknowledges all earlier messages.
        let pings = Self::new();
        let mut address = bound.at;
        address.set_port(0);
        pings.bind_to(address)?;
        for peer in owing {
            address.set_ip(peer);
            let ping = Outgoing {
                to: Some(address),
                ..Outgoing::default()
            };
            pings.send_msg(ping, wait)?;
        }
        bound.wait_for(&self.inner.shared, wait, |state| {
            tell_undelivered(state, bound.id)?;
            match state.host.unacknowledged(bound.id).next() {
                None => Ok(()),
                Some(_) => Err(RdsError::WouldBlock),
            }
        })
    }

    /// The paths from the socket's local address to its peers, each with its state. All sockets of this process at the
    /// address share them.
    ///
    /// # Errors
    /// The socket has no address.
    pub fn paths(&self) -> Result<Vec<PathInfo>, RdsError> {
        let bound = self.bound()?;
        Ok(bound.node.with(|state| state.host.paths().collect()))
    }

    /// The event counters of the socket's local address, which all its sockets in this process share.
    ///
    /// # Errors
    /// The socket has no address.
    pub fn counters(&self) -> Result<Counters, RdsError> {
        Ok(self.bound()?.node.counters())
    }
}

impl Bound {
    /// Runs `attempt` at once, then repeatedly while the thread polls for a limited time, then at each wake-up, until it no
    /// longer fails for want of room or messages, or `wait` ends.
    fn wait_for<R>(
        &self,
        shared: &Shared,
        wait: Wait,
        mut attempt: impl FnMut(&mut State) -> Result<R, RdsError>,
    ) -> Result<R, RdsError> {
        let mut outcome = self.node.attempt(&mut attempt);
        let blocks = |outcome: &Result<R, RdsError>| {
            matches!(outcome, Err(RdsError::WouldBlock | RdsError::Congested))
        };
        if !blocks(&outcome) {
            shared.spin.is_awake(|| self.node.now());
            return outcome;
        }
        let deadline = match wait {
            Wait::No => return outcome,
            Wait::Until(deadline) => Some(deadline),
            Wait::Briefly | Wait::Forever => None,
        };
        let began = Instant::now();
        let until = began + shared.spin.time();
        let until = deadline.map_or(until, |deadline| deadline.min(until));
        let mut polls = 0_u32;
        // On some machines reading the clock costs more than a poll, so it is read only every eighth time.
        while blocks(&outcome) && (polls % 8 != 7 || Instant::now() < until) {
            polls += 1;
            hint::spin_loop();
            outcome = self.node.poll_with(&mut attempt);
        }
        if !blocks(&outcome) {
            return outcome;
        }
        shared
            .spin
            .sleeps(self.node.now().saturating_sub(began.elapsed()));
        if wait == Wait::Briefly {
            return outcome;
        }
        let (waiter, _sleeping) = (shared.watch.waiter(), Sleeping::new());
        while blocks(&outcome) {
            let generation = waiter.generation();
            outcome = self.node.poll_with(&mut attempt);
            if !blocks(&outcome) || self.node.arm() {
                continue;
            }
            let is_over = deadline.is_some_and(|deadline| Instant::now() >= deadline);
            if is_over || !waiter.wait(generation, deadline) {
                return Err(RdsError::TimedOut);
            }
        }
        shared.spin.is_awake(|| self.node.now());
        outcome
    }
}

/// Takes a port of the node's address for a socket, exclusively among all processes of this machine; for port 0 a free one.
fn take_port(
    node: &Arc<Node>,
    at: SocketAddr,
    options: SocketOptions,
) -> Result<(SocketId, SocketAddr, PortLock), RdsError> {
    // For port 0 another port is tried, rather than waiting for this one to become free.
    let patience = match at.port() {
        0 => Duration::ZERO,
        _ => CHILD_CLOSES,
    };
    for _ in 0..CHOICES {
        let bound = node.with(|state| state.host.choose(at.port()));
        let port = bound.map_err(|error| RdsError::Port { at, error })?;
        let mut chosen = at;
        chosen.set_port(port);
        let lock = match PortLock::take(chosen, patience) {
            Ok(lock) => lock,
            Err(_) if at.port() == 0 => continue,
            Err(_) => {
                let error = PortError::InUse(port);
                return Err(RdsError::Port { at, error });
            }
        };
        let bound = node.with(|state| state.host.bind(port, options));
        return match bound {
            Ok((id, _)) => Ok((id, chosen, lock)),
            Err(error) => Err(RdsError::Port { at, error }),
        };
    }
    let error = PortError::Exhausted;
    Err(RdsError::Port { at, error })
}

/// Returns an error if messages of the socket were given up since the last call, so that the program is informed once.
fn tell_undelivered(state: &mut State, id: SocketId) -> Result<(), RdsError> {
    match state.host.take_undelivered(id) {
        0 => Ok(()),
        messages => Err(RdsError::Undelivered(messages)),
    }
}

fn try_receive(state: &mut State, id: SocketId) -> Result<Inbound<Slot>, RdsError> {
    tell_undelivered(state, id)?;
    let inbound = state.host.receive(id, usize::MAX);
    inbound.ok_or(RdsError::WouldBlock)
}

fn try_send(
    state: &mut State,
    id: SocketId,
    outbound: &mut Option<Outbound<Slot, Posted>>,
) -> Result<(), RdsError> {
    tell_undelivered(state, id)?;
    let Some(message) = outbound.take() else {
        return Ok(());
    };
    let Err((refused, message)) = state.host.send(id, message) else {
        return Ok(());
    };
    *outbound = Some(message);
    Err(match refused {
        Refused::NoRoom => RdsError::WouldBlock,
        Refused::Congested => RdsError::Congested,
    })
}

/// Copies the bytes of a message to send into slots of registered memory.
fn fragments(
    pool: &Arc<Pool>,
    data: &[IoSlice<'_>],
    length: usize,
) -> Result<Fragments<Slot>, RdsError> {
    let mut fragments = Fragments::with_capacity(length.div_ceil(FRAGMENT));
    let (mut filled, mut left) = (FRAGMENT, length);
    for part in data {
        let mut part: &[u8] = part;
        while !part.is_empty() {
            if filled == FRAGMENT {
                fragments.push(pool.take(left.min(FRAGMENT))?);
                filled = 0;
            }
            let count = part.len().min(FRAGMENT - filled);
            let (now, later) = part.split_at(count);
            if let Some(last) = fragments.last() {
                last.write(filled, now);
            }
            filled += count;
            left -= count;
            part = later;
        }
    }
    Ok(fragments)
}

fn received(inbound: Inbound<Slot>, room: &mut [IoSliceMut<'_>]) -> Received {
    match inbound {
        Inbound::Message(message) => taken(&message, room),
        Inbound::Statuses(statuses) => Received {
            statuses,
            ..Received::default()
        },
        Inbound::Congestion(freed) => Received {
            congestion: Some(freed),
            ..Received::default()
        },
    }
}

/// Copies the bytes of a received message from its slots to the program's buffers; the bytes that do not fit are lost.
fn taken(message: &Queued<Slot>, room: &mut [IoSliceMut<'_>]) -> Received {
    let full_length = message.length as usize;
    let mut length = 0;
    for part in room {
        let mut part: &mut [u8] = part;
        while !part.is_empty() && length < full_length {
            let (slot, offset) = (&message.fragments[length / FRAGMENT], length % FRAGMENT);
            let left = (full_length - length).min(FRAGMENT - offset);
            let (now, later) = part.split_at_mut(part.len().min(left));
            slot.read(offset, now);
            length += now.len();
            part = later;
        }
    }
    Received {
        length,
        full_length,
        from: Some(message.from),
        cookie: message.cookie.map(Cookie),
        ..Received::default()
    }
}

/// Checks that an address belongs to a single host. A link-local address without a scope may be that of a host on any link;
/// one with a scope is not supported.
fn check_unicast(address: SocketAddr) -> Result<(), RdsError> {
    let is_one = match address {
        SocketAddr::V4(v4) => !v4.ip().is_multicast() && !v4.ip().is_broadcast(),
        SocketAddr::V6(v6) if v6.ip().is_unicast_link_local() && v6.scope_id() != 0 => {
            return Err(RdsError::Scope(address));
        }
        SocketAddr::V6(v6) => !v6.ip().is_multicast() && !v6.ip().is_unicast_link_local(),
    };
    match is_one && !address.ip().is_unspecified() {
        true => Ok(()),
        false => Err(RdsError::Address(address)),
    }
}
