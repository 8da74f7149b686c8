//! Named sockets between programs and the process that holds a fabric.
//!
//! A name with a slash is a file. Any other is an abstract name, which vanishes with its holder. Each end asks the kernel for the
//! user of the other, because anyone may take a name.

use std::fmt;
use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut, Read as _, Seek as _, Write as _};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::str::FromStr;
use std::time::Duration;

use polyverbs_wire::mad::MAD_LEN;
use rustix::cmsg_space;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{MemfdFlags, fcntl_get_seals, memfd_create};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, bind, connect,
    listen, recv, recvmsg, sendmsg, socket_with, socketpair, sockopt,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::protocol::{FRONT, Front, INLINE, LONGEST, LONGEST_REQUEST};

/// The name of the socket of a fabric process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FabricName(String);

impl FabricName {
    /// The name that this user's fabric process has if none is given.
    pub fn standard() -> Self {
        let user = rustix::process::geteuid().as_raw();
        Self(format!("polyverbs-fabric.{user}"))
    }

    fn address(&self) -> io::Result<SocketAddrUnix> {
        let name = &self.0;
        let address = match name.contains('/') {
            true => SocketAddrUnix::new(name.as_str()),
            false => SocketAddrUnix::new_abstract_name(name.as_bytes()),
        };
        Ok(address?)
    }

    /// Connects to the process that holds the name.
    pub(crate) fn connect(&self) -> io::Result<OwnedFd> {
        let socket = unconnected(SocketFlags::CLOEXEC)?;
        // A process that holds the name and accepts nothing, which may be another user's, holds up no program for ever.
        set_socket_timeout(&socket, Timeout::Send, Some(PATIENCE))?;
        connect(&socket, &self.address()?)?;
        set_socket_timeout(&socket, Timeout::Send, None)?;
        if is_admitted(socket.as_fd())? {
            Ok(socket)
        } else {
            Err(io::ErrorKind::PermissionDenied.into())
        }
    }

    /// Takes the name and listens for connections to it, without waiting.
    pub(crate) fn listen(&self) -> io::Result<OwnedFd> {
        let socket = unconnected(SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)?;
        let address = self.address()?;
        match bind(&socket, &address) {
            // The file of a process that was killed is in the way.
            Err(Errno::ADDRINUSE) if self.0.contains('/') && !self.has_holder() => {
                std::fs::remove_file(&self.0)?;
                bind(&socket, &address)?;
            }
            bound => bound?,
        }
        listen(&socket, BACKLOG)?;
        Ok(socket)
    }

    fn has_holder(&self) -> bool {
        let refused = |error: io::Error| error.kind() == io::ErrorKind::ConnectionRefused;
        !self.connect().is_err_and(refused)
    }

    /// Removes the file of the name, if it is one.
    pub(crate) fn remove(&self) {
        if self.0.contains('/') {
            // The next process with this name replaces a file that stays.
            let _ = std::fs::remove_file(&self.0);
        }
    }
}

impl fmt::Display for FabricName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for FabricName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let name = Self(text.to_owned());
        match name.address() {
            Ok(_) if !text.is_empty() => Ok(name),
            _ => Err(format!("{text:?} is not a name of a socket")),
        }
    }
}

fn unconnected(flags: SocketFlags) -> io::Result<OwnedFd> {
    let family = AddressFamily::UNIX;
    Ok(socket_with(family, SocketType::SEQPACKET, flags, None)?)
}

/// Whether the process at the other end belongs to this process's user or to root.
pub(crate) fn is_admitted(socket: BorrowedFd<'_>) -> io::Result<bool> {
    let user = sockopt::socket_peercred(socket)?.uid;
    Ok(user.is_root() || user == rustix::process::geteuid())
}

/// A message that has arrived.
#[derive(Debug)]
pub(crate) struct Message {
    pub(crate) bytes: Vec<u8>,
    pub(crate) attached: Option<OwnedFd>,
}

/// Receives the next message with its descriptor, without waiting; `None` if the other end has gone.
pub(crate) fn receive(socket: BorrowedFd<'_>, most: usize) -> io::Result<Option<Message>> {
    let mut bytes = vec![0; most];
    let mut room = [MaybeUninit::uninit(); cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut room);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let got = recvmsg(
        socket,
        &mut [IoSliceMut::new(&mut bytes)],
        &mut control,
        flags,
    )?;
    let rights = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
        _ => None,
    });
    let attached = rights.flatten().next();
    bytes.truncate(got.bytes);
    Ok((got.bytes > 0).then_some(Message { bytes, attached }))
}

/// Sends a message, with a descriptor.
pub(crate) fn send(
    socket: BorrowedFd<'_>,
    parts: &[IoSlice<'_>],
    attached: Option<BorrowedFd<'_>>,
    flags: SendFlags,
) -> io::Result<()> {
    let mut room = [MaybeUninit::uninit(); cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut room);
    let attached = attached.as_slice();
    if !attached.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(attached));
    }
    sendmsg(socket, parts, &mut control, flags | SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Sends a MAD or a message of several segments.
pub(crate) fn send_mad(
    socket: BorrowedFd<'_>,
    front: &Front,
    data: &[u8],
    flags: SendFlags,
) -> io::Result<()> {
    let front = front.encode();
    if data.len() <= INLINE {
        let parts = [IoSlice::new(&front), IoSlice::new(data)];
        return send(socket, &parts, None, flags);
    }
    let mut file = File::from(memfd_create(
        "polyverbs-mad",
        MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING,
    )?);
    file.write_all(data)?;
    // The beginning comes with the front, for a receiver that has no room for the whole.
    let parts = [IoSlice::new(&front), IoSlice::new(&data[..MAD_LEN])];
    send(socket, &parts, Some(file.as_fd()), flags)
}

/// Returns the MAD of a message, which may be in a file; `None` if the message has none.
pub(crate) fn mad_of(message: Message) -> Option<(Front, Vec<u8>)> {
    let (front, data) = Front::decode(&message.bytes)?;
    let length = front.length as usize;
    if length <= INLINE {
        return (data.len() == length).then(|| (front, data.to_vec()));
    }
    // Only a file in memory has seals. Reading any other could take its time, or never end.
    let file = message
        .attached
        .filter(|it| length <= LONGEST && fcntl_get_seals(it).is_ok())?;
    let mut file = File::from(file);
    let mut data = vec![0; length];
    file.rewind().ok()?;
    file.read_exact(&mut data).ok()?;
    Some((front, data))
}

/// The longest message with a MAD.
pub(crate) const LONGEST_MESSAGE: usize = FRONT + INLINE;

/// Sends a request and waits for its reply.
pub(crate) fn ask<T: Serialize, R: DeserializeOwned>(
    socket: BorrowedFd<'_>,
    request: &T,
) -> io::Result<R> {
    ask_for_descriptor(socket, request).map(|(reply, _)| reply)
}

/// Sends a request and waits for its reply, which may come with a descriptor.
pub(crate) fn ask_for_descriptor<T: Serialize, R: DeserializeOwned>(
    socket: BorrowedFd<'_>,
    request: &T,
) -> io::Result<(R, Option<OwnedFd>)> {
    let flags = SocketFlags::CLOEXEC;
    let (own, others) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    let text = serde_json::to_vec(request)?;
    send(
        socket,
        &[IoSlice::new(&text)],
        Some(others.as_fd()),
        SendFlags::empty(),
    )?;
    drop(others);
    wait(own.as_fd(), PATIENCE)?;
    match receive(own.as_fd(), LONGEST_REQUEST)? {
        Some(reply) => Ok((serde_json::from_slice(&reply.bytes)?, reply.attached)),
        None => Err(io::ErrorKind::ConnectionReset.into()),
    }
}

/// Waits until a descriptor is readable.
pub(crate) fn wait(socket: BorrowedFd<'_>, time: Duration) -> io::Result<()> {
    let until = Timespec::try_from(time).map_err(io::Error::other)?;
    loop {
        let mut entries = [PollFd::from_borrowed_fd(socket, PollFlags::IN)];
        match poll(&mut entries, Some(&until)) {
            Ok(0) => return Err(io::ErrorKind::TimedOut.into()),
            Ok(_) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// How long a program waits for the fabric process to take its connection or to reply, which it does at once.
const PATIENCE: Duration = Duration::from_secs(10);
const BACKLOG: i32 = 128;

/// Returns the front of the next message, and the beginning of its MAD, which stays to be received.
pub(crate) fn peek(socket: BorrowedFd<'_>) -> io::Result<(Front, Vec<u8>)> {
    let mut bytes = [0; FRONT + MAD_LEN];
    let flags = RecvFlags::DONTWAIT | RecvFlags::PEEK;
    let length = recv(socket, &mut bytes, flags)?.0;
    if length == 0 {
        return Err(Errno::NODEV.into());
    }
    let (front, first) = Front::decode(&bytes[..length]).ok_or(io::ErrorKind::InvalidData)?;
    Ok((front, first.to_vec()))
}
