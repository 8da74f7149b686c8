//! Messages between the processes of one machine, addressed by name.
//!
//! A name is that of an abstract unix socket. It exists once in a network namespace and vanishes with the process that
//! holds it, however that ends: so holding a name is a lease that needs no keeper.

use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::cmsg_space;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt::set_socket_passcred;
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType, bind, sendmsg_addr, socket_with,
};

use crate::sockets::sys::{self, Local};
use crate::sockets::udp::is_passing;

/// Whose messages are read: the own user's and root's, and those of the users that are named.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Admission {
    /// Numbers of further users.
    pub users: Vec<u32>,
}

impl Admission {
    fn admits(&self, user: Option<u32>) -> bool {
        let own = rustix::process::geteuid().as_raw();
        user.is_some_and(|user| user == own || user == 0 || self.users.contains(&user))
    }
}

/// A socket with a name, or with one that the kernel chose.
#[derive(Debug)]
pub(crate) struct LocalSocket(OwnedFd);

/// What came in, and how to answer.
pub(crate) struct Letter {
    pub(crate) length: usize,
    pub(crate) descriptors: Vec<OwnedFd>,
    sender: SocketAddrUnix,
}

impl LocalSocket {
    /// Takes a name.
    ///
    /// # Errors
    /// Another has it ([`AddrInUse`](io::ErrorKind::AddrInUse)).
    pub(crate) fn named(name: &str) -> io::Result<Self> {
        Self::bound(&SocketAddrUnix::new_abstract_name(name.as_bytes())?)
    }

    /// Without a name that anybody knows.
    pub(crate) fn anonymous() -> io::Result<Self> {
        Self::bound(&SocketAddrUnix::new_unnamed())
    }

    fn bound(name: &SocketAddrUnix) -> io::Result<Self> {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = socket_with(AddressFamily::UNIX, SocketType::DGRAM, flags, None)?;
        // Before anything can arrive.
        set_socket_passcred(&socket, true)?;
        bind(&socket, name)?;
        Ok(Self(socket))
    }

    /// Sends to whoever has this name, without waiting.
    ///
    /// # Errors
    /// Nobody has it ([`ConnectionRefused`](io::ErrorKind::ConnectionRefused)), or its holder does not keep up
    /// ([`WouldBlock`](io::ErrorKind::WouldBlock)).
    pub(crate) fn send(&self, name: &str, bytes: &[IoSlice<'_>]) -> io::Result<()> {
        let to = SocketAddrUnix::new_abstract_name(name.as_bytes())?;
        self.send_to(&to, bytes, &[])
    }

    fn send_to(
        &self,
        to: &SocketAddrUnix,
        bytes: &[IoSlice<'_>],
        descriptors: &[BorrowedFd<'_>],
    ) -> io::Result<()> {
        let mut room = [MaybeUninit::uninit(); cmsg_space!(ScmRights(DESCRIPTORS))];
        let mut control = SendAncillaryBuffer::new(&mut room);
        if !descriptors.is_empty() {
            control.push(SendAncillaryMessage::ScmRights(descriptors));
        }
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        sendmsg_addr(&self.0, to, bytes, &mut control, flags)?;
        Ok(())
    }

    /// Answers a letter, with descriptors.
    ///
    /// # Errors
    /// The sender is gone, or does not keep up.
    pub(crate) fn answer(
        &self,
        letter: &Letter,
        bytes: &[u8],
        descriptors: &[BorrowedFd<'_>],
    ) -> io::Result<()> {
        self.send_to(&letter.sender, &[IoSlice::new(bytes)], descriptors)
    }

    /// The next letter of a user who is admitted; `None` where there is none.
    ///
    /// # Errors
    /// The socket is of no use any more.
    pub(crate) fn receive(
        &self,
        admission: &Admission,
        into: &mut [u8],
    ) -> io::Result<Option<Letter>> {
        let mut sender = [0; LONGEST_NAME];
        loop {
            let local = match sys::receive_local(self.as_fd(), &mut sender, into) {
                Ok(local) => local,
                Err(error) if is_passing(&error) => return Ok(None),
                Err(error) => return Err(error),
            };
            let Local {
                filled,
                user,
                descriptors,
            } = local;
            if admission.admits(user) && !filled.truncated {
                return Ok(Some(Letter {
                    length: filled.payload,
                    descriptors,
                    // Behind the family and the zero that an abstract name begins with.
                    sender: SocketAddrUnix::new_abstract_name(
                        sender[..filled.name].get(3..).unwrap_or_default(),
                    )?,
                }));
            }
        }
    }

    /// Waits until something can be read, so long at most.
    pub(crate) fn wait(&self, time: Duration) -> io::Result<()> {
        let mut fds = [PollFd::new(&self.0, PollFlags::IN)];
        let time = Timespec::try_from(time).ok();
        match poll(&mut fds, time.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

impl AsFd for LocalSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// The most descriptors that an answer has.
pub(crate) const DESCRIPTORS: usize = 65;

/// Bytes of the longest `sockaddr_un`.
const LONGEST_NAME: usize = 110;

#[cfg(test)]
mod tests {
    use super::*;

    fn name(of: &str) -> String {
        format!("polyverbs-test/{}/{of}", std::process::id())
    }

    #[test]
    fn a_name_is_held_by_one_and_free_when_he_is_gone() {
        let name = name("held");
        let holder = LocalSocket::named(&name).unwrap();
        let second = LocalSocket::named(&name).unwrap_err();
        assert_eq!(second.kind(), io::ErrorKind::AddrInUse);
        let letter = [IoSlice::new(b"hello")];
        let sender = LocalSocket::anonymous().unwrap();
        sender.send(&name, &letter).unwrap();
        drop(holder);
        let nobody = sender.send(&name, &letter).unwrap_err();
        assert_eq!(nobody.kind(), io::ErrorKind::ConnectionRefused);
        LocalSocket::named(&name).unwrap();
    }

    #[test]
    fn descriptors_come_with_the_answer() {
        let (name, admission) = (name("descriptors"), Admission::default());
        let holder = LocalSocket::named(&name).unwrap();
        let asker = LocalSocket::anonymous().unwrap();
        asker.send(&name, &[IoSlice::new(b"please")]).unwrap();
        let mut bytes = [0; 100];
        let letter = holder.receive(&admission, &mut bytes).unwrap().unwrap();
        assert_eq!(&bytes[..letter.length], b"please");
        let passed = [holder.as_fd(); DESCRIPTORS];
        holder.answer(&letter, b"here", &passed).unwrap();
        asker.wait(Duration::from_secs(5)).unwrap();
        let letter = asker.receive(&admission, &mut bytes).unwrap().unwrap();
        assert_eq!(&bytes[..letter.length], b"here");
        assert_eq!(letter.descriptors.len(), DESCRIPTORS);
        assert!(asker.receive(&admission, &mut bytes).unwrap().is_none());
    }

    #[test]
    fn strangers_are_not_admitted() {
        let own = rustix::process::geteuid().as_raw();
        let stranger = own.wrapping_add(4711);
        let admission = Admission::default();
        assert!(admission.admits(Some(own)) && admission.admits(Some(0)));
        assert!(!admission.admits(Some(stranger)) && !admission.admits(None));
        let users = vec![stranger];
        assert!(Admission { users }.admits(Some(stranger)));
    }
}
