//! Stream rsockets: binding, listening, connecting, sending and receiving.
//!
//! One lock protects the state of a socket. It is held while bytes are copied, and never while a thread waits. Callbacks of
//! the connection manager do not take it: they put events into a mailbox, and the next thread that locks the state handles
//! them.

use std::collections::VecDeque;
use std::io::{IoSlice, IoSliceMut};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Weak};
use std::time::Duration;

use polyverbs_connection::{Accepted, ConnectError, Connection, ConnectionOptions, Incoming};
use polyverbs_libibverbs::errno::Errno;
use verbs_api::provider::Mutex;
use verbs_api::{Access, MrOptions, PathOptions, Qp, Started};

use super::accepting::Accepting;
use super::device::{self, Opened};
use super::options::Options;
use super::protocol::{ConnData, Message};
use super::stream_qp::{End, StreamQp};
use super::waiting::{AGAIN, Deadline, SLICE, Waiters, Waiting};
use crate::errno;
use crate::ports::{is_forbidden, some_port};

/// A stream rsocket.
pub(crate) struct Stream {
    state: Mutex<State>,
    mailbox: Mutex<VecDeque<Notice>>,
    waiting: Waiting,
}

// Events that callbacks of the connection manager report to the socket.
enum Notice {
    Connected(ConnData, Connection),
    Failed(Errno),
    Over,
    /// For a listening socket: a peer has completed its connection, which the program can accept.
    Accepted(Arc<Stream>),
}

struct State {
    stage: Stage,
    options: Options,
    family: Family,
    local: Option<SocketAddr>,
    peer: Option<SocketAddr>,
    qp: Option<StreamQp>,
    connection: Option<Connection>,
    // The error that SO_ERROR returns, once; `None` if there is none.
    error: Option<Errno>,
    reads: bool,
    writes: bool,
    // For a listening socket: the connections that wait for the program to accept them.
    accepted: VecDeque<Arc<Stream>>,
}

enum Stage {
    New,
    Listening(Accepting),
    Connecting,
    Open,
    Closed,
}

/// The address family of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Family {
    V4,
    V6,
}

impl Family {
    pub(crate) fn unspecified(self) -> SocketAddr {
        let ip = match self {
            Self::V4 => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            Self::V6 => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        };
        SocketAddr::new(ip, 0)
    }

    /// Converts an address of the program for this socket: an IPv4-mapped IPv6 address becomes the IPv4 address.
    ///
    /// # Errors
    /// The address is of the other family.
    fn meant(self, at: SocketAddr) -> Result<SocketAddr, Errno> {
        if at.is_ipv4() != (self == Self::V4) {
            return Err(Errno(libc::EAFNOSUPPORT));
        }
        Ok(match at.ip().to_canonical() {
            IpAddr::V4(ip) => SocketAddr::new(ip.into(), at.port()),
            // The address keeps its scope.
            IpAddr::V6(_) => at,
        })
    }

    /// Converts an address for the program: for an IPv6 socket, an IPv4 address becomes an IPv4-mapped one.
    fn shown(self, at: SocketAddr) -> SocketAddr {
        match at.ip() {
            IpAddr::V4(ip) if self == Self::V6 => {
                SocketAddr::new(ip.to_ipv6_mapped().into(), at.port())
            }
            _ => at,
        }
    }
}

/// The conditions that `rpoll` reports for a socket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ready {
    pub(crate) read: bool,
    pub(crate) write: bool,
    pub(crate) error: bool,
    pub(crate) hang_up: bool,
}

/// The ACK timeout of connections, half a second in the encoding of verbs. With seven retries, a busy peer is not taken for
/// a dead one.
const ACK_TIMEOUT: u8 = 17;
/// How long a close waits for sent bytes to arrive, unless SO_LINGER says otherwise.
const LINGER: Duration = Duration::from_secs(10);

/// The least backlog of a listener, whatever the program asks for: as with identifiers. Clients that connect at the same time
/// are not refused, and peers with forged addresses can take places in it, where TCP has a separate queue for half-open
/// connections.
const LEAST_BACKLOG: usize = 1024;

/// The result of a receive call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Received {
    pub(crate) bytes: usize,
    /// Whether a datagram was longer than the buffer and was truncated.
    pub(crate) is_cut: bool,
    /// The sender of a datagram; `None` on a stream.
    pub(crate) from: Option<SocketAddr>,
}

/// The flags of a send or receive call.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Mode {
    /// The call does not wait (`MSG_DONTWAIT`).
    pub(crate) no_wait: bool,
    /// The received bytes stay in the socket (`MSG_PEEK`).
    pub(crate) peek: bool,
    /// The call waits until all bytes have arrived (`MSG_WAITALL`).
    pub(crate) all: bool,
}

const NOT_CONNECTED: Errno = Errno(libc::ENOTCONN);
const INTERRUPTED: Errno = Errno(libc::EINTR);

impl Stream {
    pub(crate) fn new(family: Family) -> Arc<Self> {
        Self::with(Stage::New, family, Options::default())
    }

    fn with(stage: Stage, family: Family, options: Options) -> Arc<Self> {
        let state = State {
            stage,
            options,
            family,
            local: None,
            peer: None,
            qp: None,
            connection: None,
            error: None,
            reads: true,
            writes: true,
            accepted: VecDeque::new(),
        };
        Arc::new(Self {
            state: Mutex::new(state),
            mailbox: Mutex::default(),
            waiting: Waiting::default(),
        })
    }

    pub(crate) fn waiting(&self) -> &Waiting {
        &self.waiting
    }

    fn tell(&self, notice: Notice) {
        self.mailbox.lock().push_back(notice);
        self.waiting.waiters.wake();
    }

    // Locks the state, handles the events of the mailbox and the completions, and then calls `look`.
    fn look<T>(&self, look: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.state.lock();
        let notices = std::mem::take(&mut *self.mailbox.lock());
        let before = state.end();
        for notice in notices {
            state.handle_notice(notice);
        }
        state.progress();
        if let (None, Some(End::Failed(error))) = (before, state.end()) {
            state.error = Some(error);
        }
        look(&mut state)
    }

    // Calls `attempt` on the locked state until it returns an outcome, and puts the thread to sleep in between.
    fn until<T>(
        &self,
        no_wait: bool,
        deadline: Deadline,
        mut attempt: impl FnMut(&mut State) -> Option<Result<T, Errno>>,
    ) -> Result<T, Errno> {
        let attempt = |arm: bool| {
            self.look(|state| {
                let mut outcome = attempt(state);
                while arm && outcome.is_none() && state.arm() {
                    state.progress();
                    outcome = attempt(state);
                }
                outcome
            })
        };
        self.waiting.until(no_wait, attempt, |waker| {
            waker.sleep(deadline.left(SLICE).ok_or(AGAIN)?)?;
            self.look(State::probe);
            Ok(())
        })
    }

    /// The conditions that hold now. With `arm`, the socket's waiters are woken when they change.
    pub(crate) fn ready(&self, arm: bool) -> Ready {
        self.look(|state| {
            let mut ready = state.ready();
            while arm && ready == Ready::default() && state.arm() {
                state.progress();
                ready = state.ready();
            }
            if arm && ready != Ready::default() {
                // Conditions that the program does not poll for may hold already, and others may come to hold, so the CQ is
                // armed anyway.
                while state.arm() {
                    state.progress();
                }
                ready = state.ready();
            }
            ready
        })
    }

    /// Sends a keep-alive if there was no traffic for [`SLICE`], one second.
    pub(crate) fn probe(&self) {
        self.look(State::probe);
    }

    /// Binds the socket to an address, which must be that of a device or a wildcard.
    pub(crate) fn bind(&self, at: SocketAddr) -> Result<(), Errno> {
        self.look(|state| {
            if !matches!(state.stage, Stage::New) || state.local.is_some() {
                return Err(Errno::INVAL);
            }
            let at = state.family.meant(at)?;
            if !at.ip().is_unspecified() {
                device::at(at.ip()).map_err(|errno| match errno {
                    Errno(libc::ENODEV) => Errno(libc::EADDRNOTAVAIL),
                    other => other,
                })?;
            }
            if is_forbidden(at) {
                return Err(Errno(libc::EACCES));
            }
            state.local = Some(at);
            Ok(())
        })
    }

    /// Listens on each device at the socket's address. Connections are accepted on a thread of their own; up to about
    /// `backlog` of them wait for the program.
    pub(crate) fn listen(self: &Arc<Self>, backlog: usize) -> Result<(), Errno> {
        let mut state = self.state.lock();
        if let Stage::Listening(_) = state.stage {
            return Ok(());
        }
        if !matches!(state.stage, Stage::New) {
            return Err(Errno::INVAL);
        }
        let mut at = state.local.unwrap_or_else(|| state.family.unspecified());
        let mut listeners = Vec::new();
        let mut refused = Errno(libc::ENODEV);
        // A listener at the IPv6 wildcard address accepts both families, unless IPV6_V6ONLY is set.
        let both = state.family == Family::V6 && !state.options.is_alone_in_family();
        for device in device::listening(at.ip(), both)? {
            let own = SocketAddr::new(device.address, at.port());
            match device.connector.listen(own, backlog.max(LEAST_BACKLOG)) {
                Ok(listener) => {
                    // The devices at one address share the port.
                    at.set_port(listener.address().port());
                    listeners.push((device, listener));
                }
                Err(error) => refused = errno::of(&error),
            }
        }
        if listeners.is_empty() {
            return Err(refused);
        }
        state.stage = Stage::Listening(Accepting::start(self, listeners, backlog)?);
        state.local = Some(at);
        Ok(())
    }

    /// Takes the next connection that waits, and its peer's address. Waits for one if the socket is blocking.
    pub(crate) fn accept(&self) -> Result<(Arc<Self>, SocketAddr), Errno> {
        let no_wait = self.waiting.is_nonblocking();
        let made = self.until(no_wait, Deadline::NEVER, |state| {
            let Stage::Listening(accepting) = &state.stage else {
                return Some(Err(Errno::INVAL));
            };
            let made = state.accepted.pop_front()?;
            accepting.taken();
            Some(Ok(made))
        })?;
        let peer = made.state.lock().shown_peer();
        Ok((made, peer))
    }

    /// For a listening socket: adds a connection that the program can accept.
    pub(super) fn offer(&self, made: Arc<Self>) {
        self.tell(Notice::Accepted(made));
    }

    /// For a listening socket: makes a socket for the peer of a connection request. Returns it with its QP and the options
    /// by which the request is to be accepted.
    ///
    /// # Errors
    /// The device has no room for it.
    pub(super) fn passive(
        &self,
        device: &Opened,
        incoming: &Incoming,
    ) -> Result<(Arc<Self>, Qp, ConnectionOptions), Errno> {
        let state = self.state.lock();
        let (family, options, local) = (state.family, state.options, state.local);
        drop(state);
        let made = Self::with(Stage::Connecting, family, options);
        let (qp, options) = made.make_qp(device)?;
        let mut state = made.state.lock();
        state.local = local.map(|local| SocketAddr::new(device.address, local.port()));
        state.peer = Some(incoming.from().unwrap_or_else(|| family.unspecified()));
        drop(state);
        Ok((made, qp, options))
    }

    // Creates the QP of the socket. Returns it with the options of the connection, which contain this side's connection
    // data.
    fn make_qp(&self, device: &Opened) -> Result<(Qp, ConnectionOptions), Errno> {
        let sizes = self.state.lock().options.sizes;
        let stream_qp = StreamQp::new(device, &sizes)?;
        let waiters = Arc::downgrade(&self.waiting.waiters);
        stream_qp.cq().on_completion(move |_| wake(&waiters));
        let conn_data = stream_qp.conn_data(&sizes).emit();
        let qp = stream_qp.qp().clone();
        self.state.lock().qp = Some(stream_qp);
        let path_options = PathOptions::new()
            .access(Access::REMOTE_WRITE)
            .timeout(ACK_TIMEOUT);
        let options = ConnectionOptions::new()
            .path(path_options)
            .reads(0, 0)
            .private_data(&conn_data);
        Ok((qp, options))
    }

    /// Connects the socket to a peer. Waits until the connection is established or has failed, unless the socket is
    /// nonblocking.
    pub(crate) fn connect(self: &Arc<Self>, to: SocketAddr) -> Result<(), Errno> {
        let begins = self.look(|state| match state.stage {
            Stage::New => {
                let to = state.family.meant(to)?;
                state.stage = Stage::Connecting;
                Ok(Some((to, state.local)))
            }
            Stage::Connecting => Ok(None),
            Stage::Open => Err(Errno(libc::EISCONN)),
            Stage::Listening(_) | Stage::Closed => Err(Errno::INVAL),
        })?;
        match begins {
            Some((to, from)) => {
                let begun = self.begin_connect(to, from);
                if let Err(error) = begun {
                    self.look(|state| state.stage = Stage::New);
                    return Err(error);
                }
            }
            None if self.waiting.is_nonblocking() => return Err(Errno(libc::EALREADY)),
            None => {}
        }
        if self.waiting.is_nonblocking() {
            return Err(Errno(libc::EINPROGRESS));
        }
        self.until(false, Deadline::NEVER, |state| match state.stage {
            Stage::Connecting => None,
            Stage::Open => Some(Ok(())),
            _ => Some(Err(state.error.take().unwrap_or(NOT_CONNECTED))),
        })
    }

    fn begin_connect(
        self: &Arc<Self>,
        to: SocketAddr,
        from: Option<SocketAddr>,
    ) -> Result<(), Errno> {
        let device = device::reaching(to, from.map(|from| from.ip()))?;
        let (qp, options) = self.make_qp(&device)?;
        self.state.lock().peer = Some(to);
        let this = Arc::downgrade(self);
        self.request(
            &device,
            &qp,
            to,
            &options,
            from.map_or(0, |from| from.port()),
        )
        .on_done(move |done| {
            let accepted = match done {
                Ok(accepted) => accepted,
                Err(error) => return failed(&this, errno::of(&error)),
            };
            let Some(conn_data) = ConnData::parse(accepted.private_data()) else {
                return failed(&this, Errno(libc::EPROTO));
            };
            accepted
                .complete()
                .on_done(move |done| Self::established(&this, done, conn_data));
        });
        Ok(())
    }

    // Requests a connection from this port, for 0 from one that is free. Whether a port is free is known at once.
    fn request(
        &self,
        device: &Opened,
        qp: &Qp,
        to: SocketAddr,
        options: &ConnectionOptions,
        port: u16,
    ) -> Started<Accepted, ConnectError> {
        const TRIED_PORTS: usize = 16;
        let request = |port| {
            self.state.lock().local = Some(SocketAddr::new(device.address, port));
            let options = options.clone().source_port(port);
            device.connector.request(qp, to, options)
        };
        if port != 0 {
            return request(port);
        }
        for _ in 1..TRIED_PORTS {
            let asked = request(some_port());
            if !asked.is_done() {
                return asked;
            }
            match asked.wait() {
                Err(ConnectError::AddressInUse { .. }) => {}
                done => return Started::ready(done),
            }
        }
        request(some_port())
    }

    /// Reports the outcome of an attempt to connect to the socket: the connection with the peer's connection data, or the
    /// error.
    pub(super) fn established(
        stream: &Weak<Self>,
        done: Result<Connection, ConnectError>,
        conn_data: ConnData,
    ) {
        let connection = match done {
            Ok(connection) => connection,
            Err(error) => return failed(stream, errno::of(&error)),
        };
        let Some(this) = stream.upgrade() else {
            return;
        };
        let disconnected = connection.disconnected();
        this.tell(Notice::Connected(conn_data, connection));
        let stream = Weak::clone(stream);
        disconnected.on_done(move |_| {
            if let Some(stream) = stream.upgrade() {
                stream.tell(Notice::Over);
            }
        });
    }

    /// Sends bytes. Returns their number: all of them, unless the call may not wait or the connection ends.
    pub(crate) fn send(&self, parts: &[IoSlice<'_>], mode: Mode) -> Result<usize, Errno> {
        let total: usize = parts.iter().map(|part| part.len()).sum();
        let mut sent = 0;
        self.move_out(mode, total, &mut sent, |qp, sent| {
            with_rest(parts, *sent, |rest| {
                *sent += qp.send(rest) as usize;
            });
            Ok(())
        })
    }

    /// Writes bytes to the memory that the peer's program has mapped at `offset`. Returns their number: all of them, unless
    /// the call may not wait or the connection ends.
    pub(crate) fn write_at(&self, source: &[u8], offset: u64, mode: Mode) -> Result<usize, Errno> {
        let mut sent = 0;
        self.move_out(mode, source.len(), &mut sent, |qp, sent| {
            let rest = [IoSlice::new(&source[*sent..])];
            *sent += qp.write(&rest, offset.wrapping_add(*sent as u64))? as usize;
            Ok(())
        })
    }

    fn move_out(
        &self,
        mode: Mode,
        total: usize,
        sent: &mut usize,
        mut step: impl FnMut(&mut StreamQp, &mut usize) -> Result<(), Errno>,
    ) -> Result<usize, Errno> {
        let no_wait = mode.no_wait || self.waiting.is_nonblocking();
        let moved = self.until(no_wait, Deadline::NEVER, |state| {
            loop {
                let qp = match state.sending() {
                    Ok(Some(qp)) => qp,
                    Ok(None) => return None,
                    Err(error) => return Some(Err(error)),
                };
                if *sent == total {
                    return Some(Ok(()));
                }
                let before = *sent;
                if let Err(error) = step(qp, sent) {
                    return Some(Err(error));
                }
                if *sent == before {
                    return None;
                }
            }
        });
        match moved {
            Ok(()) => Ok(total),
            // If some bytes were sent before an error, their number is returned; the next call reports the error.
            Err(_) if *sent > 0 => Ok(*sent),
            Err(error) => Err(error),
        }
    }

    /// Receives bytes and returns their number; 0 at the end of the peer's data.
    pub(crate) fn receive(&self, sinks: &mut [IoSliceMut<'_>], mode: Mode) -> Result<usize, Errno> {
        let total: usize = sinks.iter().map(|sink| sink.len()).sum();
        let no_wait = mode.no_wait || self.waiting.is_nonblocking();
        let mut received = 0;
        let moved = self.until(no_wait, Deadline::NEVER, |state| {
            let qp = match state.receiving() {
                Ok(Some(qp)) => qp,
                Ok(None) => return None,
                Err(error) => return Some(Err(error)),
            };
            with_rest_mut(sinks, received, |rest| {
                received += qp.receive(rest, mode.peek);
            });
            let enough = received == total || received > 0 && (!mode.all || mode.peek);
            if enough {
                return Some(Ok(()));
            }
            state.end_of_reads()
        });
        match moved {
            Ok(()) => Ok(received),
            Err(_) if received > 0 => Ok(received),
            Err(error) => Err(error),
        }
    }

    /// Ends sending, receiving, or both. If it ends sending, waits until sent bytes have arrived.
    pub(crate) fn shutdown(&self, reads: bool, writes: bool) -> Result<(), Errno> {
        self.shutdown_within(reads, writes, Deadline::after(LINGER))
    }

    fn shutdown_within(&self, reads: bool, writes: bool, deadline: Deadline) -> Result<(), Errno> {
        let message = self.look(|state| {
            if !matches!(state.stage, Stage::Open) {
                return Err(NOT_CONNECTED);
            }
            state.reads &= !reads;
            let ends = writes && state.writes;
            state.writes &= !writes;
            Ok(ends.then_some(match state.reads {
                true => Message::Shutdown,
                false => Message::Disconnect,
            }))
        })?;
        self.waiting.waiters.wake();
        let Some(message) = message else {
            return Ok(());
        };
        let mut is_told = false;
        let mut arrived = |state: &mut State| {
            let Some(qp) = state.qp.as_mut().filter(|qp| qp.end().is_none()) else {
                return Some(Ok(()));
            };
            is_told |= !is_told && qp.control(message);
            (is_told && qp.is_idle()).then_some(Ok(()))
        };
        // Signals do not interrupt this wait.
        while self.until(false, deadline, &mut arrived) == Err(INTERRUPTED) {}
        Ok(())
    }

    /// Closes the socket after sent bytes have arrived, as far as the transport reports that, or the linger time has
    /// passed.
    pub(crate) fn close(&self) {
        let deadline = self.look(|state| {
            let linger = state.options.linger.unwrap_or(LINGER);
            Deadline::after(linger)
        });
        let _ = self.shutdown_within(true, true, deadline);
        self.end();
    }

    /// Closes the socket at once, even if sent bytes have not arrived.
    pub(super) fn end(&self) {
        let mut state = self.state.lock();
        let stage = std::mem::replace(&mut state.stage, Stage::Closed);
        let qp = state.qp.take();
        let connection = state.connection.take();
        drop(state);
        self.waiting.waiters.wake();
        // No lock is held, because these objects call back when they are dropped. Once the accepting thread has ended, no
        // further event comes to the mailbox.
        if let Stage::Listening(accepting) = stage {
            accepting.end();
        }
        let accepted = std::mem::take(&mut self.state.lock().accepted);
        let notices = std::mem::take(&mut *self.mailbox.lock());
        accepted.iter().for_each(|made| made.end());
        for notice in notices {
            if let Notice::Accepted(made) = notice {
                made.end();
            }
        }
        drop(connection);
        if let Some(qp) = qp {
            qp.destroy();
        }
    }

    /// Maps memory of the program, which the peer can write at `offset`; `None` uses the address as the offset. If not
    /// `is_remote`, the peer gets no write access and is not informed. Returns the offset.
    ///
    /// # Safety
    /// `length` bytes from `address` stay mapped, readable and writable, until [`unmap`](Self::unmap) or
    /// [`close`](Self::close).
    #[allow(unsafe_code)]
    pub(crate) unsafe fn map(
        &self,
        address: *mut u8,
        length: usize,
        is_remote: bool,
        offset: Option<u64>,
    ) -> Result<u64, Errno> {
        let length32 = u32::try_from(length).map_err(|_| Errno::INVAL)?;
        if address.is_null() || length == 0 {
            return Err(Errno::INVAL);
        }
        // A connection that the program has just accepted may not be established yet, so this waits.
        let pd = self.until(false, Deadline::NEVER, |state| {
            let found = state.receiving().transpose()?;
            Some(found.map(|qp| qp.pd().clone()))
        })?;
        let access = match is_remote {
            true => Access::LOCAL_WRITE | Access::REMOTE_WRITE,
            false => Access::LOCAL_WRITE,
        };
        // SAFETY: as the caller promises.
        let mr = unsafe { pd.register_borrowed(address, length, MrOptions::new(access)) };
        let mr = mr.wait()?;
        let address = address.addr();
        let offset = offset.unwrap_or(address as u64);
        let unused = mr.clone();
        let mapped = self.look(|state| match &mut state.qp {
            Some(qp) => qp.map(mr, address, length32, offset, is_remote),
            None => Err(NOT_CONNECTED),
        });
        if mapped.is_err() {
            let _ = unused.deregister().wait();
        }
        mapped.map(|()| offset)
    }

    /// Removes the map of this memory, which the peer can no longer write.
    pub(crate) fn unmap(&self, address: usize, length: usize) -> Result<(), Errno> {
        let found = self.look(|state| state.qp.as_mut()?.unmap(address, length));
        let (mr, _kept) = found.ok_or(Errno::INVAL)?;
        mr.deregister().wait()?;
        Ok(())
    }

    pub(crate) fn local(&self) -> SocketAddr {
        self.look(|state| {
            let local = state.local.unwrap_or_else(|| state.family.unspecified());
            state.family.shown(local)
        })
    }

    pub(crate) fn peer(&self) -> Result<SocketAddr, Errno> {
        self.look(|state| match (&state.stage, state.peer) {
            (Stage::Open, Some(_)) => Ok(state.shown_peer()),
            _ => Err(NOT_CONNECTED),
        })
    }

    /// Takes the error that SO_ERROR returns: the one since the last call, `None` if there was none.
    pub(crate) fn take_error(&self) -> Option<Errno> {
        self.look(|state| state.error.take())
    }

    /// Whether the connection of the socket is established.
    pub(crate) fn is_open(&self) -> bool {
        self.look(|state| matches!(state.stage, Stage::Open))
    }

    pub(crate) fn is_listening(&self) -> bool {
        self.look(|state| matches!(state.stage, Stage::Listening(_)))
    }

    pub(crate) fn with_options<T>(&self, look: impl FnOnce(&mut Options, bool) -> T) -> T {
        self.look(|state| look(&mut state.options, state.qp.is_some()))
    }
}

fn wake(waiters: &Weak<Waiters>) {
    if let Some(waiters) = waiters.upgrade() {
        waiters.wake();
    }
}

fn failed(stream: &Weak<Stream>, error: Errno) {
    if let Some(stream) = stream.upgrade() {
        stream.tell(Notice::Failed(error));
    }
}

// Calls `then` with the parts, without their first `skipped` bytes.
fn with_rest(parts: &[IoSlice<'_>], skipped: usize, then: impl FnOnce(&[IoSlice<'_>])) {
    if skipped == 0 {
        return then(parts);
    }
    let mut left = skipped;
    for (place, part) in parts.iter().enumerate() {
        if left < part.len() {
            if parts.len() == 1 {
                return then(&[IoSlice::new(&part[left..])]);
            }
            let first = std::iter::once(IoSlice::new(&part[left..]));
            let rest: Vec<_> = first.chain(parts[place + 1..].iter().copied()).collect();
            return then(&rest);
        }
        left -= part.len();
    }
    then(&[]);
}

fn with_rest_mut(
    parts: &mut [IoSliceMut<'_>],
    skipped: usize,
    then: impl FnOnce(&mut [IoSliceMut<'_>]),
) {
    if skipped == 0 {
        return then(parts);
    }
    let mut left = skipped;
    let mut rest = Vec::with_capacity(parts.len());
    for part in parts {
        let skip = left.min(part.len());
        left -= skip;
        rest.push(IoSliceMut::new(&mut part[skip..]));
    }
    then(&mut rest);
}

impl State {
    fn handle_notice(&mut self, notice: Notice) {
        match notice {
            Notice::Accepted(made) => self.accepted.push_back(made),
            Notice::Connected(conn_data, connection) => {
                if let (Stage::Connecting, Some(qp)) = (&self.stage, &mut self.qp) {
                    qp.open(conn_data);
                    self.stage = Stage::Open;
                    self.connection = Some(connection);
                }
            }
            Notice::Failed(error) => {
                self.error = Some(error);
                if let Stage::Connecting = self.stage {
                    self.stage = Stage::Closed;
                }
            }
            Notice::Over => {
                if let Some(qp) = &mut self.qp {
                    qp.hang_up();
                }
            }
        }
    }

    fn shown_peer(&self) -> SocketAddr {
        let peer = self.peer.unwrap_or_else(|| self.family.unspecified());
        self.family.shown(peer)
    }

    fn end(&self) -> Option<End> {
        self.qp.as_ref().and_then(StreamQp::end)
    }

    fn progress(&mut self) {
        if let (Stage::Open, Some(qp)) = (&self.stage, &mut self.qp) {
            qp.progress();
        }
    }

    // Arms the CQ. Returns true if there are completions already, so that they have to be polled.
    fn arm(&self) -> bool {
        match (&self.stage, &self.qp) {
            (Stage::Open, Some(qp)) if qp.end().is_none() => qp.arm(),
            _ => false,
        }
    }

    fn probe(&mut self) {
        if let (Stage::Open, Some(qp)) = (&self.stage, &mut self.qp)
            && qp.last_traffic().elapsed() >= SLICE
        {
            qp.probe();
        }
    }

    // The QP for sending; `None` while the connection is being established.
    fn sending(&mut self) -> Result<Option<&mut StreamQp>, Errno> {
        match (&self.stage, &mut self.qp) {
            (Stage::Connecting, _) => Ok(None),
            (Stage::Open, Some(_)) if !self.writes => Err(Errno(libc::EPIPE)),
            (Stage::Open, Some(qp)) => match qp.end() {
                None => Ok(Some(qp)),
                Some(End::Closed) => Err(Errno(libc::ECONNRESET)),
                Some(End::Failed(error)) => Err(error),
            },
            _ => Err(self.error.take().unwrap_or(NOT_CONNECTED)),
        }
    }

    fn receiving(&mut self) -> Result<Option<&mut StreamQp>, Errno> {
        match (&self.stage, &mut self.qp) {
            (Stage::Connecting, _) => Ok(None),
            (Stage::Open, Some(qp)) => Ok(Some(qp)),
            _ => Err(self.error.take().unwrap_or(NOT_CONNECTED)),
        }
    }

    // The outcome of a receive call if no further bytes can arrive; `None` if they can.
    fn end_of_reads(&self) -> Option<Result<(), Errno>> {
        let qp = self.qp.as_ref()?;
        match qp.end() {
            Some(End::Failed(error)) => Some(Err(error)),
            _ if !self.reads || !qp.peer_sends() => Some(Ok(())),
            _ => None,
        }
    }

    fn ready(&mut self) -> Ready {
        let mut ready = Ready::default();
        match (&self.stage, &mut self.qp) {
            (Stage::Listening(_), _) => ready.read = !self.accepted.is_empty(),
            (Stage::Open, Some(qp)) => {
                let is_over = qp.end().is_some();
                ready.read = qp.unread() > 0 || is_over || !self.reads || !qp.peer_sends();
                ready.write = is_over || !self.writes || qp.can_send();
                // A program that sees a hang-up polls no further, so it is reported only when all bytes were read.
                ready.hang_up = is_over && qp.unread() == 0;
                ready.error = matches!(qp.end(), Some(End::Failed(_)));
            }
            (Stage::Closed, _) => {
                ready = Ready {
                    read: true,
                    write: true,
                    error: self.error.is_some(),
                    hang_up: true,
                }
            }
            (Stage::New, _) => ready.hang_up = true,
            (Stage::Connecting | Stage::Open, _) => {}
        }
        ready
    }
}

#[cfg(test)]
pub(super) mod tests;
