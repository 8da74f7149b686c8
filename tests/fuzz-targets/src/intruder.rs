//! A process of the same user, at an address of honest ones, that follows no rule.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::MutexGuard;

use polyverbs_io::{Lease, Mail};
use rustix::cmsg_space;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind,
    connect, listen, recvmsg, sendmsg, socket_with,
};
use verbs_api::provider::Mutex;

/// An address of this process's own, for each number from 1 to 7, so that another run does not meet this one.
pub(crate) fn own_address(number: u8) -> IpAddr {
    let [_, high, middle, low] = std::process::id().to_be_bytes();
    IpAddr::V4(Ipv4Addr::new(127, number << 5 | high & 0x1f, middle, low))
}

/// Makes sure that only one run of this process uses an address at a time.
pub(crate) fn alone(address: &Mutex<()>) -> MutexGuard<'_, ()> {
    address.lock()
}

/// Takes the mail of an honest process, to which no process has forwarded a datagram.
pub(crate) fn no_datagram(mail: Mail<'_>) {
    assert!(!matches!(mail, Mail::Datagram(..)), "a datagram");
}

/// A connection to an honest process.
pub(crate) struct Intruder(OwnedFd);

impl Intruder {
    /// Connects to the process that holds a name.
    pub(crate) fn to(name: &str) -> Self {
        let socket = unconnected();
        let name = SocketAddrUnix::new_abstract_name(name.as_bytes()).expect("a name");
        connect(&socket, &name).expect("a holder of the name");
        Self(socket)
    }

    /// Sends a message, if the socket has room for it.
    pub(crate) fn say(&self, message: &[u8], descriptors: &[BorrowedFd<'_>]) {
        let mut room = [MaybeUninit::uninit(); cmsg_space!(ScmRights(DESCRIPTORS))];
        let mut control = SendAncillaryBuffer::new(&mut room);
        if !descriptors.is_empty() {
            control.push(SendAncillaryMessage::ScmRights(descriptors));
        }
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        let _ = sendmsg(&self.0, &[IoSlice::new(message)], &mut control, flags);
    }

    /// The descriptors that come with the next message, if there is one.
    pub(crate) fn descriptors(&self) -> Vec<OwnedFd> {
        let mut room = [MaybeUninit::uninit(); cmsg_space!(ScmRights(DESCRIPTORS))];
        let (mut control, mut message) = (RecvAncillaryBuffer::new(&mut room), [0; 2]);
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        let into = &mut [IoSliceMut::new(&mut message)];
        let _ = recvmsg(&self.0, into, &mut control, flags);
        let descriptors = control.drain().filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
            _ => None,
        });
        descriptors.flatten().collect()
    }

    /// The descriptors that an honest process passes to one that joins: sockets, and the memory as the last.
    pub(crate) fn joins(honest: &Lease, name: &str) -> Vec<OwnedFd> {
        let asking = Self::to(name);
        asking.say(&[VERSION, JOIN], &[]);
        honest.attend(&mut no_datagram).expect("an inbox");
        asking.descriptors()
    }
}

/// A name that the intruder holds, so that no honest process can.
pub(crate) struct Hideout(OwnedFd);

impl Hideout {
    pub(crate) fn named(name: &str) -> Self {
        let socket = unconnected();
        let name = SocketAddrUnix::new_abstract_name(name.as_bytes()).expect("a name");
        bind(&socket, &name).expect("a free name");
        listen(&socket, 64).expect("a listener");
        Self(socket)
    }

    /// Answers the next request, if one arrives within a millisecond.
    pub(crate) fn answer(&self, message: &[u8], descriptors: &[BorrowedFd<'_>]) {
        let time = Timespec {
            tv_sec: 0,
            tv_nsec: 1_000_000,
        };
        let _ = poll(&mut [PollFd::new(&self.0, PollFlags::IN)], Some(&time));
        if let Ok(asking) = accept_with(&self.0, SocketFlags::CLOEXEC) {
            Intruder(asking).say(message, descriptors);
        }
    }
}

fn unconnected() -> OwnedFd {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None);
    socket.expect("a socket")
}

/// The most descriptors that a message has.
const DESCRIPTORS: usize = 65;
/// The version of the messages between processes.
pub(crate) const VERSION: u8 = 10;
pub(crate) const JOIN: u8 = 1;
