//! Stream rsockets: binding, listening, connecting, sending and receiving.
//!
//! One lock protects the state of a socket. It is held while bytes are copied, and never while a thread waits. Handlers of the
//! connection manager do not take it: they leave events in a mailbox, from which the next user of the socket takes them.

use std::collections::VecDeque;
use std::io::{IoSlice, IoSliceMut};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use polyverbs_connection::{ConnectError, Connection, ConnectionOptions, Incoming};
use polyverbs_libibverbs::errno::Errno;
use polyverbs_libibverbs::lock::lock;
use verbs_api::{Access, MrOptions, PathOptions, Qp, Transport};

use super::accepting::Accepting;
use super::device::{self, Opened};
use super::options::Options;
use super::protocol::{ConnData, Message};
use super::stream_qp::{End, StreamQp};
use super::waiting::{AGAIN, Deadline, SLICE, Waiters, Waiting};
use crate::errno;
use crate::ports::{is_forbidden, some_port};

/// A stream socket.
pub(crate) struct Stream {
    state: Mutex<State>,
    mailbox: Mutex<VecDeque<Notice>>,
    waiting: Waiting,
}

// Events of the connection manager.
enum Notice {
    Connected(ConnData, Connection),
    Failed(Errno),
    Over,
    /// A peer has connected to a listening socket.
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
    // The error that SO_ERROR reports, once.
    error: Option<Errno>,
    reads: bool,
    writes: bool,
    // Of a listening socket: connections that wait for the program.
    accepted: VecDeque<Arc<Stream>>,
}

enum Stage {
    New,
    Listening(Accepting),
    Connecting,
    Open,
    Closed,
}

/// The address families of a socket.
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

    /// The address that a program means: an IPv6 socket names IPv4 addresses in mapped form.
    ///
    /// # Errors
    /// It is of the other family.
    fn meant(self, at: SocketAddr) -> Result<SocketAddr, Errno> {
        if at.is_ipv4() != (self == Self::V4) {
            return Err(Errno(libc::EAFNOSUPPORT));
        }
        Ok(match at.ip().to_canonical() {
            IpAddr::V4(ip) => SocketAddr::new(ip.into(), at.port()),
            // With its scope.
            IpAddr::V6(_) => at,
        })
    }

    /// An address in the form that the program expects.
    fn shown(self, at: SocketAddr) -> SocketAddr {
        match at.ip() {
            IpAddr::V4(ip) if self == Self::V6 => {
                SocketAddr::new(ip.to_ipv6_mapped().into(), at.port())
            }
            _ => at,
        }
    }
}

/// Which calls would not block, as in `poll`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ready {
    pub(crate) read: bool,
    pub(crate) write: bool,
    pub(crate) error: bool,
    pub(crate) hang_up: bool,
}

/// Half a second, seven times: a busy peer is not a dead one.
const ACK_TIMEOUT: u8 = 17;
/// How long closing waits for sent bytes, unless SO_LINGER says otherwise.
const LINGER: Duration = Duration::from_secs(10);

/// Requests that may be pending in any case. The peers of some may not exist: TCP has a queue of its own for half-open connections.
const LEAST_BACKLOG: usize = 128;

/// The result of a receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Received {
    pub(crate) bytes: usize,
    /// A datagram was truncated.
    pub(crate) is_cut: bool,
    /// The sender of a datagram.
    pub(crate) from: Option<SocketAddr>,
}

/// The mode of a send or receive.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Mode {
    /// Non-blocking.
    pub(crate) no_wait: bool,
    /// Received bytes stay in the socket.
    pub(crate) peek: bool,
    /// Waits for all bytes.
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
        lock(&self.mailbox).push_back(notice);
        self.waiting.waiters.wake();
    }

    // Locks the state, after the mailbox was emptied into it.
    fn look<T>(&self, look: impl FnOnce(&mut State) -> T) -> T {
        let mut state = lock(&self.state);
        let notices = std::mem::take(&mut *lock(&self.mailbox));
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

    // Repeats an attempt until it has an outcome.
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

    /// What would not block now. `arm`: waiters are woken when that changes.
    pub(crate) fn ready(&self, arm: bool) -> Ready {
        self.look(|state| {
            let mut ready = state.ready();
            while arm && ready == Ready::default() && state.arm() {
                state.progress();
                ready = state.ready();
            }
            if arm && ready != Ready::default() {
                // Conditions that nobody waits for may hold already, and others may come to hold.
                while state.arm() {
                    state.progress();
                }
                ready = state.ready();
            }
            ready
        })
    }

    /// Sends a keep-alive after a while without traffic.
    pub(crate) fn probe(&self) {
        self.look(State::probe);
    }

    /// Binds the socket to an address.
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

    /// Listens on every device at its address.
    pub(crate) fn listen(self: &Arc<Self>, backlog: usize) -> Result<(), Errno> {
        let mut state = lock(&self.state);
        if let Stage::Listening(_) = state.stage {
            return Ok(());
        }
        if !matches!(state.stage, Stage::New) {
            return Err(Errno::INVAL);
        }
        let mut at = state.local.unwrap_or_else(|| state.family.unspecified());
        let mut listeners = Vec::new();
        let mut refused = Errno(libc::ENODEV);
        // A listener at any address accepts both families, unless told otherwise.
        let both = state.family == Family::V6 && !state.options.is_alone_in_family();
        for device in device::listening(at.ip(), both)? {
            let own = SocketAddr::new(device.address, at.port());
            match device.connector.listen(own, backlog.max(LEAST_BACKLOG)) {
                Ok(listener) => {
                    // All devices at one address use the same port.
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

    /// The next connection, and its peer's address.
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
        let peer = lock(&made.state).shown_peer();
        Ok((made, peer))
    }

    /// For a listening socket: a peer has connected.
    pub(super) fn offer(&self, made: Arc<Self>) {
        self.tell(Notice::Accepted(made));
    }

    /// For a listening socket: a socket for the peer that asks at this device, its queue pair, and what to accept with.
    ///
    /// # Errors
    /// The device has no room for it.
    pub(super) fn passive(
        &self,
        device: &Opened,
        incoming: &Incoming,
    ) -> Result<(Arc<Self>, Qp, ConnectionOptions), Errno> {
        let state = lock(&self.state);
        let (family, options, local) = (state.family, state.options, state.local);
        drop(state);
        let made = Self::with(Stage::Connecting, family, options);
        let (qp, options) = made.make_qp(device)?;
        let mut state = lock(&made.state);
        state.local = local.map(|local| SocketAddr::new(device.address, local.port()));
        state.peer = Some(incoming.from().unwrap_or_else(|| family.unspecified()));
        drop(state);
        Ok((made, qp, options))
    }

    // A queue pair, and the parameters for the peer.
    fn make_qp(&self, device: &Opened) -> Result<(Qp, ConnectionOptions), Errno> {
        let sizes = lock(&self.state).options.sizes;
        let stream_qp = StreamQp::new(device, &sizes)?;
        let waiters = Arc::downgrade(&self.waiting.waiters);
        stream_qp.cq().on_completion(move |_| wake(&waiters));
        let conn_data = stream_qp.conn_data(&sizes).emit();
        let qp = stream_qp.qp().clone();
        lock(&self.state).qp = Some(stream_qp);
        let path_options = PathOptions::new()
            .access(Access::REMOTE_WRITE)
            .timeout(ACK_TIMEOUT);
        let options = ConnectionOptions::new()
            .path(path_options)
            .reads(0, 0)
            .private_data(&conn_data);
        Ok((qp, options))
    }

    /// Connects.
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
        let mut state = lock(&self.state);
        state.peer = Some(to);
        let port = match (from.map_or(0, |from| from.port()), device.transport) {
            (0, Transport::InfiniBand) => some_port(),
            // The system chooses the address of a stream.
            (port, _) => port,
        };
        state.local = Some(SocketAddr::new(device.address, port));
        drop(state);
        let this = Arc::downgrade(self);
        let connector = device.connector.clone();
        connector
            .request(&qp, to, options.source_port(port))
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

    /// The attempt to connect has an outcome.
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

    /// Sends bytes. Returns how many: all, if it waits.
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

    /// Writes bytes to where the peer's program has mapped `offset`.
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
            // Progress made before an error counts; the next call reports the error.
            Err(_) if *sent > 0 => Ok(*sent),
            Err(error) => Err(error),
        }
    }

    /// Receives bytes: 0 at the end.
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

    /// Shuts one or both directions down.
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
        // Signals do not interrupt it. If there is nothing left to send, a peer that accepts no more is no error.
        while self.until(false, deadline, &mut arrived) == Err(INTERRUPTED) {}
        Ok(())
    }

    /// Closes the socket, after sent bytes have arrived as far as this side can ensure that.
    pub(crate) fn close(&self) {
        let deadline = self.look(|state| {
            let linger = state.options.linger.unwrap_or(LINGER);
            Deadline::after(linger)
        });
        let _ = self.shutdown_within(true, true, deadline);
        self.end();
    }

    /// Ends the socket at once, whatever has not arrived.
    pub(super) fn end(&self) {
        let mut state = lock(&self.state);
        let stage = std::mem::replace(&mut state.stage, Stage::Closed);
        let qp = state.qp.take();
        let connection = state.connection.take();
        drop(state);
        self.waiting.waiters.wake();
        // With no lock held, since these call back. Once the thread that accepts has ended, nothing more is left in the mailbox.
        if let Stage::Listening(accepting) = stage {
            accepting.end();
        }
        let accepted = std::mem::take(&mut lock(&self.state).accepted);
        let notices = std::mem::take(&mut *lock(&self.mailbox));
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

    /// Lets the peer write the program's memory at `offset`; -1 stands for its address. Returns the offset.
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
        // An accepted connection may not be established yet.
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

    /// Removes a map.
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

    /// The error since the last call.
    pub(crate) fn take_error(&self) -> Option<Errno> {
        self.look(|state| state.error.take())
    }

    /// Whether the socket is connected.
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

// The parts without their first `skipped` bytes.
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

    // Returns whether there is something already.
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

    // The connection for sending; none while it is still being established.
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

    // Whether no more bytes can arrive, and why.
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
                // Programs that see an end poll no further: it is reported when all bytes were read.
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
