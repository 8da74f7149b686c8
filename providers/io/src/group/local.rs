//! Messages between the processes of one machine, addressed by name.
//!
//! A name is that of an abstract unix socket. It exists once in a network namespace and vanishes with the process that
//! holds it, however that ends: so holding a name is a lease that needs no keeper.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt::set_socket_passcred;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, socket_with};

use crate::sockets::control::{self, Control};
use crate::sockets::piece::Piece;
use crate::sockets::sys::{self, Local, Outgoing};
use crate::sockets::{address, udp};

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
    sender: [u8; LONGEST],
    sender_length: usize,
}

const LONGEST: usize = 110;

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
    pub(crate) fn send(&self, name: &str, pieces: &[Piece<'_>]) -> io::Result<()> {
        let message = Outgoing {
            name: &address::local(name.as_bytes()),
            pieces,
            control: &[],
        };
        sys::send(self.as_fd(), &message).map(drop)
    }

    /// Answers a letter, with descriptors.
    ///
    /// # Errors
    /// The sender is gone, or does not keep up.
    pub(crate) fn answer(
        &self,
        letter: &Letter,
        octets: &[u8],
        descriptors: impl Iterator<Item = i32>,
    ) -> io::Result<()> {
        let numbers: Vec<u8> = descriptors.flat_map(i32::to_ne_bytes).collect();
        let mut control = Control::<{ control::space(DESCRIPTORS * size_of::<i32>()) }>::default();
        control.push(libc::SOL_SOCKET, libc::SCM_RIGHTS, &numbers);
        let message = Outgoing {
            name: &letter.sender[..letter.sender_length],
            pieces: &[octets.into()],
            control: control.octets(),
        };
        sys::send(self.as_fd(), &message).map(drop)
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
        let mut sender = [0; LONGEST];
        loop {
            let local = match sys::receive_local(self.as_fd(), &mut sender, into) {
                Ok(local) => local,
                Err(error) if udp::is_passing(&error) => return Ok(None),
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
                    sender,
                    sender_length: filled.name,
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

/// The number of a descriptor, for [`LocalSocket::answer`].
pub(crate) fn number(descriptor: &impl AsFd) -> i32 {
    descriptor.as_fd().as_raw_fd()
}

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
        let letter = [Piece::from(&b"hello"[..])];
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
        asker.send(&name, &[b"please"[..].into()]).unwrap();
        let mut octets = [0; 100];
        let letter = holder.receive(&admission, &mut octets).unwrap().unwrap();
        assert_eq!(&octets[..letter.length], b"please");
        let passed = std::iter::repeat_n(number(&holder), DESCRIPTORS);
        holder.answer(&letter, b"here", passed).unwrap();
        asker.wait(Duration::from_secs(5)).unwrap();
        let letter = asker.receive(&admission, &mut octets).unwrap().unwrap();
        assert_eq!(&octets[..letter.length], b"here");
        assert_eq!(letter.descriptors.len(), DESCRIPTORS);
        assert!(asker.receive(&admission, &mut octets).unwrap().is_none());
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
