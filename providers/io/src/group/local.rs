//! Messages between the processes of one machine, over connections to named sockets.
//!
//! A name is that of an abstract unix socket. It exists once in a network namespace and vanishes with the process that
//! holds it, however that process ends, so a name is a lease that nothing has to renew. Any user may take any name, so each
//! end of a connection asks the kernel for the user of the other end before it sends or reads anything.

use std::collections::BTreeMap;
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use rustix::cmsg_space;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind,
    connect, listen, recv, recvmsg, sendmsg, socket_with, socketpair,
};
use verbs_api::provider::Mutex;

use crate::counters::count;
use crate::fork::Unshared;
use crate::sockets::refusal::named;
use crate::sockets::sys;
use crate::sockets::udp::is_passing;
use crate::zeroed;

mod presence;

pub use presence::{Name, Presence, Witness};

/// The users whose processes may exchange messages with this process: its own user, root, and the users listed here.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Admission {
    /// The user IDs (UIDs) of further users.
    pub users: Vec<u32>,
}

impl Admission {
    pub(crate) fn admits(&self, user: u32) -> bool {
        let own = rustix::process::geteuid().as_raw();
        user == own || user == 0 || self.users.contains(&user)
    }
}

/// A connection to a process of an admitted user.
#[derive(Debug)]
pub(crate) struct Connection(Unshared);

impl Connection {
    /// Connects to the process that holds this name, without waiting.
    ///
    /// # Errors
    /// No process holds the name ([`ConnectionRefused`](io::ErrorKind::ConnectionRefused)), the user of its holder is not
    /// admitted ([`PermissionDenied`](io::ErrorKind::PermissionDenied)), or too many connections wait for the holder
    /// ([`WouldBlock`](io::ErrorKind::WouldBlock)).
    pub(crate) fn to(name: &str, admission: &Admission) -> io::Result<Self> {
        Self::of(connected(name)?, admission)
    }

    /// Creates a connection both ends of which belong to this process.
    pub(super) fn pair() -> io::Result<[Self; 2]> {
        let (_, ends) = Unshared::several(|| {
            let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
            let (one, other) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
            Ok(((), vec![one, other]))
        })?;
        let ends = <[_; 2]>::try_from(ends).map_err(|_| io::ErrorKind::Other)?;
        Ok(ends.map(Self))
    }

    /// Takes an end of a connection that another process passed.
    pub(super) fn passed(end: Unshared) -> Self {
        Self(end)
    }

    fn of(socket: Unshared, admission: &Admission) -> io::Result<Self> {
        match admission.admits(sys::peer(socket.as_fd())?.uid) {
            true => Ok(Self(socket)),
            false => Err(io::ErrorKind::PermissionDenied.into()),
        }
    }

    /// Sends a message without waiting.
    ///
    /// # Errors
    /// The other process has gone ([`BrokenPipe`](io::ErrorKind::BrokenPipe),
    /// [`ConnectionReset`](io::ErrorKind::ConnectionReset)), or it does not read its messages fast enough
    /// ([`WouldBlock`](io::ErrorKind::WouldBlock)).
    pub(crate) fn send(
        &self,
        bytes: &[IoSlice<'_>],
        descriptors: &[BorrowedFd<'_>],
    ) -> io::Result<()> {
        let mut room = [MaybeUninit::uninit(); cmsg_space!(ScmRights(DESCRIPTORS))];
        let mut control = SendAncillaryBuffer::new(&mut room);
        if !descriptors.is_empty() {
            control.push(SendAncillaryMessage::ScmRights(descriptors));
        }
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        sendmsg(&self.0, bytes, &mut control, flags)?;
        Ok(())
    }

    /// Receives the next message, and returns its length, which is greater than that of `into` if the message was cut off.
    /// Returns 0 if the other process has gone. There is no room for descriptors: the kernel drops those that accompany the
    /// message.
    fn receive(&self, into: &mut [u8]) -> io::Result<usize> {
        let flags = RecvFlags::DONTWAIT | RecvFlags::TRUNC;
        Ok(recv(&self.0, into, flags)?.1)
    }

    /// Returns whether the process at the other end has gone. The other end must be one that sends nothing, because this
    /// drops a message.
    pub(crate) fn has_gone(&self) -> bool {
        !self.receive(&mut []).is_err_and(|error| is_passing(&error))
    }

    /// Connects again to the process at the other end, which has closed this connection; `None` if it does not hold this name.
    pub(crate) fn again(&self, name: &str, admission: &Admission) -> Option<Self> {
        let process = |one: &Self| sys::peer(one.0.as_fd()).ok().map(|peer| peer.pid);
        let new = Self::to(name, admission).ok()?;
        (process(&new)? == process(self)?).then_some(new)
    }

    /// Receives the next message and the descriptors that accompany it.
    pub(crate) fn receive_descriptors(&self) -> io::Result<([u8; 2], Vec<Unshared>)> {
        Unshared::several(|| self.receive_open(RecvFlags::empty()))
    }

    /// Returns the descriptors of the message that follows the first `at` messages, each of one byte. All messages stay
    /// queued.
    pub(super) fn peek_descriptors(&self, at: usize) -> io::Result<Vec<Unshared>> {
        let at = libc::c_int::try_from(at).map_err(io::Error::other)?;
        sys::set_number(self.0.as_fd(), libc::SOL_SOCKET, libc::SO_PEEK_OFF, at)?;
        Unshared::several(|| self.receive_open(RecvFlags::PEEK)).map(|(_, attached)| attached)
    }

    fn receive_open(&self, flags: RecvFlags) -> io::Result<([u8; 2], Vec<OwnedFd>)> {
        let mut room = [MaybeUninit::uninit(); cmsg_space!(ScmRights(DESCRIPTORS))];
        let (mut control, mut bytes) = (RecvAncillaryBuffer::new(&mut room), [0; 2]);
        let flags = flags | RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        let into = &mut [io::IoSliceMut::new(&mut bytes)];
        if recvmsg(&self.0, into, &mut control, flags)?.bytes == 0 {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        let descriptors = control.drain().filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
            _ => None,
        });
        let descriptors = descriptors.flatten().collect();
        Ok((bytes, descriptors))
    }

    /// Waits until one of several connections is readable, for at most `time`.
    pub(crate) fn wait(several: &[Self], time: Duration) -> io::Result<()> {
        let fds = several.iter().map(|one| PollFd::new(&one.0, PollFlags::IN));
        let time = Timespec::try_from(time).ok();
        match poll(&mut fds.collect::<Vec<_>>(), time.as_ref()) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Returns the process that holds a name, and its user; `None` if no process does.
pub(super) fn holder(name: &str) -> Option<libc::ucred> {
    sys::peer(connected(name).ok()?.as_fd()).ok()
}

fn connected(name: &str) -> io::Result<Unshared> {
    let socket = Unshared::made(unconnected)?;
    connect(
        &socket,
        &SocketAddrUnix::new_abstract_name(name.as_bytes())?,
    )?;
    Ok(socket)
}

fn listening(name: &str) -> io::Result<OwnedFd> {
    let listener = unconnected()?;
    bind(
        &listener,
        &SocketAddrUnix::new_abstract_name(name.as_bytes())?,
    )?;
    listen(&listener, BACKLOG)?;
    Ok(listener)
}

fn unconnected() -> io::Result<OwnedFd> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
        .map_err(named("socket(AF_UNIX)"))
}

/// A name that this process holds, and the connections over which other processes send messages to it.
#[derive(Debug)]
pub(crate) struct Inbox {
    /// An epoll instance that watches the listener and the connections.
    ready: Unshared,
    listener: Unshared,
    accepted: Mutex<Accepted>,
}

#[derive(Debug)]
struct Accepted {
    /// The connections by their tokens, in the order in which they were accepted.
    connections: BTreeMap<u64, Connection>,
    next: u64,
    bytes: Box<[u8]>,
}

impl Inbox {
    /// Takes a name and listens for connections to it.
    ///
    /// # Errors
    /// Another process holds the name ([`AddrInUse`](io::ErrorKind::AddrInUse)).
    pub(crate) fn named(name: &str) -> io::Result<Self> {
        let listener = Unshared::made(|| listening(name))?;
        let new_epoll = || epoll::create(CreateFlags::CLOEXEC).map_err(named("epoll_create1"));
        let ready = Unshared::made(new_epoll)?;
        epoll::add(&ready, &listener, LISTENER, CONNECTING)?;
        let accepted = Accepted {
            connections: BTreeMap::new(),
            next: OTHER.u64() + 1,
            bytes: zeroed(LONGEST)?,
        };
        Ok(Self {
            ready,
            listener,
            accepted: Mutex::new(accepted),
        })
    }

    /// Watches a connection on which this process only sends, so that [`attend`](Self::attend) reports when the other
    /// process has gone.
    pub(crate) fn watch(&self, connection: &Connection) -> io::Result<()> {
        let flags = EventFlags::RDHUP | EventFlags::ET;
        Ok(epoll::add(&self.ready, &connection.0, OTHER, flags)?)
    }

    /// Accepts connections and calls `take` with the messages that have arrived, a limited number of each connection.
    /// Closes connections of users who are not admitted, and counts them in `strangers`. Returns whether a process at the
    /// other end of a [watched](Self::watch) connection has gone.
    ///
    /// # Errors
    /// The epoll instance fails.
    pub(crate) fn attend(
        &self,
        admission: &Admission,
        strangers: &AtomicU64,
        take: &mut dyn FnMut(&Connection, &[u8]),
    ) -> io::Result<bool> {
        let mut events = [NO_EVENT; AT_ONCE];
        let count = match epoll::wait(&self.ready, &mut events, Some(&Timespec::default())) {
            Err(Errno::INTR) => return Ok(false),
            count => count?,
        };
        let accepted = &mut *self.accepted.lock();
        let mut has_gone = false;
        for event in &events[..count] {
            match event.data.u64() {
                token if token == LISTENER.u64() => {
                    self.accept(accepted, admission, strangers, take)?;
                }
                token if token == OTHER.u64() => has_gone = true,
                token => self.read(token, accepted, take),
            }
        }
        Ok(has_gone)
    }

    fn accept(
        &self,
        accepted: &mut Accepted,
        admission: &Admission,
        strangers: &AtomicU64,
        take: &mut dyn FnMut(&Connection, &[u8]),
    ) -> io::Result<()> {
        for _ in 0..AT_ONCE {
            // A process that has no descriptor left tries again when the next one connects.
            let make = || Ok(accept_with(&self.listener, SocketFlags::CLOEXEC)?);
            let Ok(socket) = Unshared::made(make) else {
                return Ok(());
            };
            let Ok(connection) = Connection::of(socket, admission) else {
                count(strangers);
                continue;
            };
            let token = accepted.next;
            epoll::add(
                &self.ready,
                &connection.0,
                EventData::new_u64(token),
                EventFlags::IN,
            )?;
            accepted.next += 1;
            accepted.connections.insert(token, connection);
            if accepted.connections.len() > MOST
                && let Some(oldest) = accepted.connections.keys().next().copied()
            {
                self.close(oldest, accepted);
            }
            // A process that connects sends a message at once.
            self.read(token, accepted, take);
        }
        // There may be more connections, so this makes epoll report the listener again.
        Ok(epoll::modify(
            &self.ready,
            &self.listener,
            LISTENER,
            CONNECTING,
        )?)
    }

    fn read(&self, token: u64, accepted: &mut Accepted, take: &mut dyn FnMut(&Connection, &[u8])) {
        let Accepted {
            connections, bytes, ..
        } = accepted;
        let Some(connection) = connections.get(&token) else {
            return;
        };
        for _ in 0..MESSAGES {
            match connection.receive(bytes) {
                Err(error) if is_passing(&error) => return,
                Ok(0) | Err(_) => return self.close(token, accepted),
                Ok(length) if length > LONGEST => {}
                Ok(length) => take(connection, &bytes[..length]),
            }
        }
    }

    // Another process may have the descriptor for a moment, as a child that is about to execute a program, so epoll must
    // forget it explicitly.
    fn close(&self, token: u64, accepted: &mut Accepted) {
        if let Some(connection) = accepted.connections.remove(&token) {
            let _ = epoll::delete(&self.ready, &connection.0);
        }
    }
}

impl AsFd for Inbox {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.ready.as_fd()
    }
}

/// The most descriptors that accompany a message.
pub(crate) const DESCRIPTORS: usize = 4;
/// Bytes of the longest message: a forwarded datagram and its properties.
const LONGEST: usize = 66_000;
/// The most connections that an inbox keeps open: 63 other ranges have one each, and a process that joins or forwards a
/// connection request has one for a moment.
const MOST: usize = 128;
/// The most events that one call of [`Inbox::attend`] handles, and connections that it accepts. The next constant is the
/// most messages that it reads from each connection.
const AT_ONCE: usize = 16;
const MESSAGES: usize = 64;
/// The most connections that the kernel queues until they are accepted. The system may allow fewer.
const BACKLOG: i32 = 4096;

const LISTENER: EventData = EventData::new_u64(0);
/// The token of connections on which this process only sends.
const OTHER: EventData = EventData::new_u64(1);
/// The listener is edge-triggered: a process without a free descriptor cannot accept, and would get the same connection
/// reported again and again.
const CONNECTING: EventFlags = EventFlags::IN.union(EventFlags::ET);
const NO_EVENT: Event = Event {
    flags: EventFlags::empty(),
    data: LISTENER,
};

#[cfg(test)]
mod tests;
