//! Messages between the processes of one machine, over connections to a name.
//!
//! A name is that of an abstract unix socket. It exists once in a network namespace and vanishes with the process that
//! holds it, however that ends, so a name is a lease that needs no keeper. Any user may take any name, so both ends of a
//! connection ask the kernel for the other's user before they send or read anything.

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

use crate::fork::Unshared;
use crate::sockets::refusal::named;
use crate::sockets::sys;
use crate::sockets::udp::is_passing;
use crate::{count, zeroed};

mod presence;

pub use presence::{Name, Presence, Witness};

/// The users that may exchange messages with a process: its own user, root, and those that are named.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Admission {
    /// Numbers of further users.
    pub users: Vec<u32>,
}

impl Admission {
    pub(crate) fn admits(&self, user: u32) -> bool {
        let own = rustix::process::geteuid().as_raw();
        user == own || user == 0 || self.users.contains(&user)
    }
}

/// A connection to a process of a user who is admitted.
#[derive(Debug)]
pub(crate) struct Connection(Unshared);

impl Connection {
    /// Connects to the holder of this name, without waiting.
    ///
    /// # Errors
    /// No process holds it ([`ConnectionRefused`](io::ErrorKind::ConnectionRefused)), its holder is not admitted
    /// ([`PermissionDenied`](io::ErrorKind::PermissionDenied)) or does not keep up
    /// ([`WouldBlock`](io::ErrorKind::WouldBlock)).
    pub(crate) fn to(name: &str, admission: &Admission) -> io::Result<Self> {
        Self::of(connected(name)?, admission)
    }

    /// Creates a connection of which this process has both ends.
    pub(super) fn pair() -> io::Result<[Self; 2]> {
        let (_, ends) = Unshared::several(|| {
            let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
            let (one, other) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
            Ok(((), vec![one, other]))
        })?;
        let ends = <[_; 2]>::try_from(ends).map_err(|_| io::ErrorKind::Other)?;
        Ok(ends.map(Self))
    }

    /// Takes an end that another process passed.
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
    /// [`ConnectionReset`](io::ErrorKind::ConnectionReset)), or does not keep up
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

    /// Receives the next message, and returns its length, which may be greater than the room. Returns 0 if the other
    /// process has gone. There is no room for descriptors: the kernel drops those that accompany the message.
    fn receive(&self, into: &mut [u8]) -> io::Result<usize> {
        let flags = RecvFlags::DONTWAIT | RecvFlags::TRUNC;
        Ok(recv(&self.0, into, flags)?.1)
    }

    /// Returns whether the other end has gone. It must be one that sends nothing.
    pub(crate) fn has_gone(&self) -> bool {
        !self.receive(&mut []).is_err_and(|error| is_passing(&error))
    }

    /// Receives the next message, with descriptors.
    pub(crate) fn receive_descriptors(&self) -> io::Result<([u8; 2], Vec<Unshared>)> {
        Unshared::several(|| self.receive_open(RecvFlags::empty()))
    }

    /// Returns the descriptors of the message after `at` others of one byte each. All of them stay queued.
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

    /// Waits for at most `time` until one of several connections is readable.
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

/// Returns the process that holds a name, if any does.
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

/// A name, and the messages that others send to it.
#[derive(Debug)]
pub(crate) struct Inbox {
    /// An epoll instance with the listener and the connections.
    ready: Unshared,
    listener: Unshared,
    accepted: Mutex<Accepted>,
}

#[derive(Debug)]
struct Accepted {
    /// The connections by their tokens, in the order in which they were made.
    connections: BTreeMap<u64, Connection>,
    next: u64,
    bytes: Box<[u8]>,
}

impl Inbox {
    /// Takes a name.
    ///
    /// # Errors
    /// Another process holds it ([`AddrInUse`](io::ErrorKind::AddrInUse)).
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

    /// Makes [`attend`](Self::attend) report when the other end of a connection that only sends has gone.
    pub(crate) fn watch(&self, connection: &Connection) -> io::Result<()> {
        let flags = EventFlags::RDHUP | EventFlags::ET;
        Ok(epoll::add(&self.ready, &connection.0, OTHER, flags)?)
    }

    /// Gives messages to `take`, a limited number of each connection. Closes connections of users who are not admitted, and
    /// counts them. Returns whether a [watched](Self::watch) process has gone.
    ///
    /// # Errors
    /// The inbox does not work any longer.
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

/// The most descriptors of a message.
pub(crate) const DESCRIPTORS: usize = 4;
/// Bytes of the longest message: a datagram and its arrival.
const LONGEST: usize = 66_000;
/// The most connections of an inbox: 63 other ranges have one each, and a process that joins or asks for a service has one
/// for a moment.
const MOST: usize = 128;
/// The most connections that are handled, or accepted, in one turn, and the most messages of each.
const AT_ONCE: usize = 16;
const MESSAGES: usize = 64;
/// The most connections that wait to be accepted. The system may allow fewer.
const BACKLOG: i32 = 4096;

const LISTENER: EventData = EventData::new_u64(0);
/// The token of connections that only send.
const OTHER: EventData = EventData::new_u64(1);
/// This is edge-triggered: a process without a descriptor left would get the same connection reported for ever.
const CONNECTING: EventFlags = EventFlags::IN.union(EventFlags::ET);
const NO_EVENT: Event = Event {
    flags: EventFlags::empty(),
    data: LISTENER,
};

#[cfg(test)]
mod tests;
