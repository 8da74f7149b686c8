//! What a program has: sockets.

use std::future::poll_fn;
use std::hint;
use std::io::{self, IoSlice, IoSliceMut};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::Poll;
use std::time::{Duration, Instant};

use polyverbs::{Device, Transport};
use polyverbs_rds_wire::{FRAGMENT, MAX_MESSAGE};

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

/// How long the process that peers reach may take to learn of a socket.
const ANNOUNCED: Duration = Duration::from_secs(10);

/// How long a child of a fork may take to close the descriptors of its parent.
const CHILD_CLOSES: Duration = Duration::from_secs(1);

/// How often a port is chosen before there is none.
const CHOICES: usize = 1000;

/// How long a call waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Not at all.
    No,
    /// For as long as it would take to sleep and to be woken, without that.
    Briefly,
    /// Until then.
    Until(Instant),
    /// Until it is done.
    Forever,
}

/// What carries a socket's messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RdsTransport {
    /// InfiniBand or RoCE.
    InfiniBand,
    /// iWARP.
    Iwarp,
    /// Another protocol, which this crate does not have.
    Tcp,
}

impl RdsTransport {
    pub(crate) fn of(transport: Transport) -> Self {
        match transport {
            Transport::Iwarp => Self::Iwarp,
            _ => Self::InfiniBand,
        }
    }
}

/// A message to be sent.
#[derive(Clone, Debug, Default)]
pub struct Outgoing<'a> {
    /// Its bytes.
    pub data: &'a [IoSlice<'a>],
    /// Where to; `None`: to where the socket is connected.
    pub to: Option<SocketAddr>,
    /// What goes with it.
    pub control: Control,
}

/// What a receiving call got: a message, or, without one, what became of operations or which ports are free.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Received {
    /// Bytes that were copied.
    pub length: usize,
    /// Bytes that the message had; those beyond `length` are lost.
    pub full_length: usize,
    /// Who sent it.
    pub from: Option<SocketAddr>,
    /// Memory of the sender.
    pub cookie: Option<Cookie>,
    /// What became of operations.
    pub statuses: Vec<RdmaStatus>,
    /// Groups of ports (port modulo 64) that were congested and are free, of a socket with a congestion monitor.
    pub congestion: Option<u64>,
}

impl Received {
    /// Whether the room was shorter than the message.
    pub const fn is_truncated(&self) -> bool {
        self.length < self.full_length
    }
}

/// A socket of reliable datagrams. Clones are the same socket, which is closed with the last of them.
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

/// What is known of a socket beside its host.
struct Before {
    options: SocketOptions,
    peer: Option<SocketAddr>,
    transport: Option<RdsTransport>,
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
    /// A socket without an address; no device is touched.
    pub fn new() -> Self {
        let before = Before {
            options: SocketOptions::default(),
            peer: None,
            transport: None,
        };
        Self {
            inner: Arc::new(Inner {
                before: Mutex::new(before),
                bound: OnceLock::new(),
                shared: Arc::default(),
            }),
        }
    }

    /// A socket at this address; for port 0 one is chosen.
    ///
    /// # Errors
    /// As [`bind_to`](Self::bind_to).
    pub fn bind(at: SocketAddr) -> Result<Self, RdsError> {
        let socket = Self::new();
        socket.bind_to(at)?;
        Ok(socket)
    }

    /// Gives the socket its address; for port 0 a port is chosen.
    ///
    /// # Errors
    /// No address of one host, no device for it, or a port that is in use or reserved; the socket has an address.
    pub fn bind_to(&self, at: SocketAddr) -> Result<(), RdsError> {
        let transport = self.before().transport;
        self.bind_over(at, || device_of(at.ip(), transport))
    }

    /// A socket at this address over this device, unless this process has sockets at the address over another one already; for port 0
    /// one is chosen.
    ///
    /// # Errors
    /// As [`bind_to`](Self::bind_to).
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
        if !is_unicast(at) {
            return Err(RdsError::Address(at));
        }
        let before = self.before();
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
        // `before` is locked: nobody else binds.
        let _ = self.inner.bound.set(bound);
        Ok(())
    }

    fn before(&self) -> MutexGuard<'_, Before> {
        let before = self.inner.before.lock();
        before.unwrap_or_else(PoisonError::into_inner)
    }

    fn bound(&self) -> Result<&Bound, RdsError> {
        let bound = self.inner.bound.get();
        bound.ok_or(RdsError::NotConnected("the socket has no address"))
    }

    /// Where messages go that name no destination. Nothing is sent.
    ///
    /// # Errors
    /// No address of one host.
    pub fn connect(&self, to: SocketAddr) -> Result<(), RdsError> {
        if to.ip().is_unspecified() {
            return Err(RdsError::Destination(to));
        }
        if !is_unicast(to) {
            return Err(RdsError::Address(to));
        }
        self.before().peer = Some(to);
        Ok(())
    }

    /// The socket's address.
    pub fn local_addr(&self) -> Option<SocketAddr> {
        Some(self.inner.bound.get()?.at)
    }

    /// Where messages go that name no destination.
    pub fn peer_addr(&self) -> Option<SocketAddr> {
        self.before().peer
    }

    /// What carries its messages: that of its address, or what was chosen.
    pub fn transport(&self) -> Option<RdsTransport> {
        let bound = self.inner.bound.get();
        let has = bound.map(|bound| RdsTransport::of(bound.node.transport()));
        has.or_else(|| self.before().transport)
    }

    /// Chooses what carries its messages, before it has an address. Where no device is at the address, an emulated one of this
    /// transport is made there.
    ///
    /// # Errors
    /// There is no such transport, or the socket has one.
    pub fn set_transport(&self, transport: RdsTransport) -> Result<(), RdsError> {
        if self.transport().is_some() {
            return Err(RdsError::TransportChosen);
        }
        if transport == RdsTransport::Tcp {
            return Err(RdsError::NoTransport);
        }
        self.before().transport = Some(transport);
        Ok(())
    }

    /// Its options.
    pub fn options(&self) -> SocketOptions {
        self.before().options
    }

    /// Changes its options.
    pub fn set_options(&self, change: impl FnOnce(&mut SocketOptions)) {
        let mut before = self.before();
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

    /// Sends a message, and waits for room in the send buffer and for a destination that is not congested.
    ///
    /// # Errors
    /// As [`send_message`](Self::send_message).
    pub fn send_to(&self, data: &[u8], to: SocketAddr) -> Result<usize, RdsError> {
        self.send_for(data, to, Wait::Forever)
    }

    /// Sends a message at once, or not at all.
    ///
    /// # Errors
    /// As [`send_message`](Self::send_message).
    pub fn try_send_to(&self, data: &[u8], to: SocketAddr) -> Result<usize, RdsError> {
        self.send_for(data, to, Wait::No)
    }

    /// Sends a message by this time.
    ///
    /// # Errors
    /// As [`send_message`](Self::send_message).
    pub fn send_to_until(
        &self,
        data: &[u8],
        to: SocketAddr,
        deadline: Instant,
    ) -> Result<usize, RdsError> {
        self.send_for(data, to, Wait::Until(deadline))
    }

    fn send_for(&self, data: &[u8], to: SocketAddr, wait: Wait) -> Result<usize, RdsError> {
        let data = [IoSlice::new(data)];
        let message = Outgoing {
            data: &data,
            to: Some(to),
            ..Outgoing::default()
        };
        self.send_message(message, wait)
    }

    /// Sends a message whole. It is acknowledged later: a socket that is closed before gives up what it has sent, see
    /// [`flush`](Self::flush).
    ///
    /// # Errors
    /// No address or no destination, a message that is too long, or, where it may not wait, no room or congestion. Once
    /// [`Undelivered`](RdsError::Undelivered) where earlier messages were given up; this one is not sent then.
    pub fn send_message(&self, message: Outgoing<'_>, wait: Wait) -> Result<usize, RdsError> {
        let (bound, to, length) = self.check(&message)?;
        let mut outbound = Some(self.outbound(bound, &message, to, length)?);
        let outcome = bound.wait_for(&self.inner.shared, wait, |state| {
            try_send(state, bound.id, &mut outbound)
        });
        // Nobody has been told of what was registered for a message that is not sent.
        if let Control::Map(..) = message.control
            && let Some(cookie) = outbound.and_then(|outbound| outbound.cookie)
        {
            self.inner.shared.keys.free(Cookie(cookie))?;
        }
        outcome.map(|()| length)
    }

    /// [`send_to`](Self::send_to), to be awaited.
    ///
    /// # Errors
    /// As [`send_message`](Self::send_message).
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

    /// Registers memory for peers, which are told of it by its cookie.
    ///
    /// # Errors
    /// It has no address, or memory is of no length or too long.
    pub fn get_mr(
        &self,
        memory: impl Into<LocalMemory>,
        flags: RdmaFlags,
    ) -> Result<Cookie, RdsError> {
        let node = &self.bound()?.node;
        let keys = &self.inner.shared.keys;
        keys.map(&node.context, &node.pd, &memory.into(), flags)
    }

    /// Gives up memory that was registered. No peer reaches it any more.
    ///
    /// # Errors
    /// No memory has this cookie; one of 0 means all that nobody uses any more, which is given up in any case.
    pub fn free_mr(&self, cookie: Cookie) -> Result<(), RdsError> {
        self.bound()?;
        match cookie {
            Cookie(0) => Ok(()),
            cookie => self.inner.shared.keys.free(cookie),
        }
    }

    fn check(&self, message: &Outgoing<'_>) -> Result<(&Bound, SocketAddr, usize), RdsError> {
        if let Some(to) = message.to
            && !is_unicast(to)
        {
            return Err(RdsError::Address(to));
        }
        let before = self.before();
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

    /// Receives a message, and waits for one.
    ///
    /// # Errors
    /// As [`receive_message`](Self::receive_message).
    pub fn recv_from(&self, room: &mut [u8]) -> Result<Received, RdsError> {
        self.receive_message(&mut [IoSliceMut::new(room)], Wait::Forever, false)
    }

    /// Receives a message that is there.
    ///
    /// # Errors
    /// As [`receive_message`](Self::receive_message).
    pub fn try_recv_from(&self, room: &mut [u8]) -> Result<Received, RdsError> {
        self.receive_message(&mut [IoSliceMut::new(room)], Wait::No, false)
    }

    /// Receives a message by this time.
    ///
    /// # Errors
    /// As [`receive_message`](Self::receive_message).
    pub fn recv_from_until(
        &self,
        room: &mut [u8],
        deadline: Instant,
    ) -> Result<Received, RdsError> {
        self.receive_message(&mut [IoSliceMut::new(room)], Wait::Until(deadline), false)
    }

    /// Receives a message, or what became of operations, or which ports are free; the latter come first. What does not fit into `room` is
    /// lost. With `peek` a message stays.
    ///
    /// # Errors
    /// No address, or nothing to receive where it may not wait. Once [`Undelivered`](RdsError::Undelivered) where messages that it has
    /// sent were given up.
    pub fn receive_message(
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

    /// [`recv_from`](Self::recv_from), to be awaited.
    ///
    /// # Errors
    /// As [`receive_message`](Self::receive_message).
    pub async fn recv_from_async(&self, room: &mut [u8]) -> Result<Received, RdsError> {
        let bound = self.bound()?;
        let inbound = self.until(bound, |state| try_receive(state, bound.id));
        Ok(received(inbound.await?, &mut [IoSliceMut::new(room)]))
    }

    /// Attempts this at each wake-up.
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

    /// The length of the message that is received next.
    pub fn next_length(&self) -> Option<usize> {
        let bound = self.inner.bound.get()?;
        let length = bound
            .node
            .poll_with(|state| state.host.next_length(bound.id));
        length.map(|length| length as usize)
    }

    /// A descriptor for `poll` and `epoll`, the same at each call. It is readable, at first and whenever what [`readiness`](Self::readiness)
    /// says may have changed, until that is asked for.
    ///
    /// ```no_run
    /// # fn example(socket: &polyverbs_rds::RdsSocket) -> Result<(), Box<dyn std::error::Error>> {
    /// use rustix::event::{PollFd, PollFlags, poll};
    /// let fd = socket.fd()?;
    /// while !socket.readiness().readable {
    ///     poll(&mut [PollFd::new(&fd, PollFlags::IN)], None)?;
    /// }
    /// let received = socket.try_recv_from(&mut [0; 4096])?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The process has no more files.
    pub fn fd(&self) -> io::Result<BorrowedFd<'_>> {
        self.inner.shared.watch.fd()
    }

    /// What `poll` says of it, as far as has been seen of what has arrived. Whatever changes is told: by its descriptor
    /// ([`fd`](Self::fd)) at once, else as [`on_change`](Self::on_change) says.
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

    /// Calls this whenever what can be said of its readiness may have changed, on whichever thread that happens, with no lock held:
    /// at once while a thread is [`Sleeping`], and otherwise within a millisecond.
    pub fn on_change(&self, told: Option<Arc<dyn Fn() + Send + Sync>>) {
        self.inner.shared.watch.tell(told);
    }

    /// Gives up what it has sent to this destination, or to all, and the peer has not acknowledged.
    ///
    /// # Errors
    /// It has no address.
    pub fn cancel_sent_to(&self, to: Option<SocketAddr>) -> Result<(), RdsError> {
        let bound = self.bound()?;
        let now = bound.node.now();
        let pending = bound
            .node
            .with(|state| state.host.cancel(now, bound.id, to));
        bound.node.wait_completed(&pending);
        Ok(())
    }

    /// Waits until all that it has sent has been acknowledged: whoever closes it then gives up nothing.
    ///
    /// # Errors
    /// It has no address, the time is over, or once [`Undelivered`](RdsError::Undelivered).
    pub fn flush(&self, wait: Wait) -> Result<(), RdsError> {
        let bound = self.bound()?;
        let owing = bound.node.poll_with(|state| {
            tell_undelivered(state, bound.id)?;
            Ok::<_, RdsError>(state.host.unacknowledged(bound.id).collect::<Vec<_>>())
        })?;
        if owing.is_empty() {
            return Ok(());
        }
        // A peer acknowledges with what it sends, which may be nothing: another socket pings it, and the answer acknowledges what
        // was sent before.
        let pings = Self::new();
        let mut address = bound.at;
        address.set_port(0);
        pings.bind_to(address)?;
        for peer in owing {
            address.set_ip(peer);
            pings.send_for(&[], address, wait)?;
        }
        bound.wait_for(&self.inner.shared, wait, |state| {
            tell_undelivered(state, bound.id)?;
            match state.host.unacknowledged(bound.id).next() {
                None => Ok(()),
                Some(_) => Err(RdsError::WouldBlock),
            }
        })
    }

    /// The paths of its host.
    ///
    /// # Errors
    /// It has no address.
    pub fn paths(&self) -> Result<Vec<PathInfo>, RdsError> {
        let bound = self.bound()?;
        Ok(bound.node.with(|state| state.host.paths().collect()))
    }

    /// What has happened at its host.
    ///
    /// # Errors
    /// It has no address.
    pub fn counters(&self) -> Result<Counters, RdsError> {
        Ok(self.bound()?.node.counters())
    }
}

impl Bound {
    /// Attempts this at once, then for a while with looks at what arrives, then at each wake-up.
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
        // The time of some machines costs more than a look.
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

/// A port of a node, for one process of this machine.
fn take_port(
    node: &Arc<Node>,
    at: SocketAddr,
    options: SocketOptions,
) -> Result<(SocketId, SocketAddr, PortLock), RdsError> {
    // Instead of a port that may become free another one is chosen, where that is left to the host.
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

/// Fails once where messages of the socket were given up.
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

/// The bytes of a message, copied into slots.
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

/// The bytes of a message, copied out of their slots.
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

/// Whether an address is one of a single host. One of a link needs to say which link.
fn is_unicast(address: SocketAddr) -> bool {
    let is_one = match address.ip() {
        IpAddr::V4(ip) => !ip.is_multicast() && !ip.is_broadcast(),
        IpAddr::V6(ip) => !ip.is_multicast(),
    };
    let has_link = match address {
        SocketAddr::V6(v6) => !v6.ip().is_unicast_link_local() || v6.scope_id() != 0,
        SocketAddr::V4(_) => true,
    };
    is_one && has_link && !address.ip().is_unspecified()
}
