//! How two processes of one machine find each other that have the ends of a connection.
//!
//! Who accepted it holds a name for the port, `polyverbs/tcp/ADDRESS:PORT`; who connected asks there, and may be given
//! [memory](StreamMemory). The kernel tells each who the other is.

use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};

use super::memory::{NewMemory, StreamMemory};
use super::tap::Ends;
use crate::local::{Admission, Letter, LocalSocket, number};

/// Where letters come in.
#[derive(Debug)]
pub struct Post {
    socket: LocalSocket,
    admission: Admission,
}

/// What came in.
pub enum Mail {
    /// The process with the other end of this connection asks for memory.
    Asked(Ends, Asker),
    /// It gives memory.
    Given(Ends, StreamMemory),
}

/// Who asks.
pub struct Asker(Letter);

impl Post {
    /// For a port of this process; whom it admits is read.
    ///
    /// # Errors
    /// Another process has the name ([`AddrInUse`](io::ErrorKind::AddrInUse)).
    pub fn at(port: SocketAddr, admission: Admission) -> io::Result<Self> {
        let socket = LocalSocket::named(&name(port))?;
        Ok(Self { socket, admission })
    }

    /// For whoever asks.
    ///
    /// # Errors
    /// The process has too many descriptors.
    pub fn to_ask(admission: Admission) -> io::Result<Self> {
        let socket = LocalSocket::anonymous()?;
        Ok(Self { socket, admission })
    }

    /// Asks for memory for a connection, without waiting.
    ///
    /// # Errors
    /// Nobody has the name of the peer's port, or he does not keep up.
    pub fn ask(&self, ends: Ends) -> io::Result<()> {
        let octets = Written::of(ASK, ends).0;
        self.socket.send(&name(ends.peer), &[octets[..].into()])
    }

    /// Gives memory for a connection to who has asked for it.
    ///
    /// # Errors
    /// He is gone, or does not keep up.
    pub fn give(&self, asker: &Asker, ends: Ends, memory: &NewMemory) -> io::Result<()> {
        let octets = Written::of(GIVE, ends).0;
        let passed = std::iter::once(number(memory));
        self.socket.answer(&asker.0, &octets, passed)
    }

    /// Gives what came in to `take`, some of it. Call when it can be read, again as long as it can.
    ///
    /// # Errors
    /// It is of no use any more.
    pub fn attend(&self, take: &mut dyn FnMut(Mail)) -> io::Result<()> {
        let mut octets = [0; Written::LENGTH];
        for _ in 0..LETTERS {
            let Some(mut letter) = self.socket.receive(&self.admission, &mut octets)? else {
                break;
            };
            if letter.length != Written::LENGTH {
                continue;
            }
            match Written(octets).read() {
                Some((ASK, ends)) => take(Mail::Asked(ends, Asker(letter))),
                Some((GIVE, ends)) => {
                    let memory = letter.descriptors.pop().and_then(StreamMemory::of);
                    if let Some(memory) = memory {
                        take(Mail::Given(ends, memory));
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }
}

impl AsFd for Post {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

fn name(port: SocketAddr) -> String {
    format!("polyverbs/tcp/{}", SocketAddr::new(port.ip(), port.port()))
}

/// A letter: the version, what it is, the sender's end, the receiver's; of each the address and the port.
#[derive(Clone, Copy, Debug)]
struct Written([u8; Self::LENGTH]);

impl Written {
    const LENGTH: usize = 2 + 2 * END;

    fn of(kind: u8, ends: Ends) -> Self {
        let mut octets = [0; Self::LENGTH];
        octets[..2].copy_from_slice(&[VERSION, kind]);
        let written = octets[2..].chunks_exact_mut(END);
        for (written, end) in written.zip([ends.local, ends.peer]) {
            let address = match end.ip() {
                IpAddr::V4(ip) => ip.to_ipv6_mapped(),
                IpAddr::V6(ip) => ip,
            };
            written[..16].copy_from_slice(&address.octets());
            written[16..].copy_from_slice(&end.port().to_be_bytes());
        }
        Self(octets)
    }

    /// What it is, and the ends as its receiver sees them.
    fn read(&self) -> Option<(u8, Ends)> {
        let [VERSION, kind, ref ends @ ..] = self.0 else {
            return None;
        };
        let end = |at: usize| {
            let (address, rest) = ends.get(at..)?.split_first_chunk::<16>()?;
            let address = Ipv6Addr::from(*address).to_canonical();
            let port = u16::from_be_bytes(*rest.first_chunk()?);
            Some(SocketAddr::new(address, port))
        };
        let ends = Ends {
            local: end(END)?,
            peer: end(0)?,
        };
        Some((kind, ends))
    }
}

/// Octets of an end in a letter.
const END: usize = 18;
const VERSION: u8 = 1;
const ASK: u8 = 1;
const GIVE: u8 = 2;
/// Letters that are read at once.
const LETTERS: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    fn mail(post: &Post) -> Option<Mail> {
        let mut found = None;
        post.attend(&mut |mail| found = Some(mail)).unwrap();
        found
    }

    #[test]
    fn who_asks_is_given_memory_that_both_have() {
        for (local, peer) in [
            ("127.0.3.120:5001", "127.0.3.120:5002"),
            ("[::1]:5001", "[::1]:5002"),
        ] {
            let [local, peer] = [local, peer].map(|end| end.parse().unwrap());
            let [near, far] = [
                Ends { local, peer },
                Ends {
                    local: peer,
                    peer: local,
                },
            ];
            let asks = Post::to_ask(Admission::default()).unwrap();
            assert_eq!(
                asks.ask(near).unwrap_err().kind(),
                io::ErrorKind::ConnectionRefused
            );
            let post = Post::at(peer, Admission::default()).unwrap();
            let taken = Post::at(peer, Admission::default()).unwrap_err();
            assert_eq!(taken.kind(), io::ErrorKind::AddrInUse);
            asks.ask(near).unwrap();
            let Some(Mail::Asked(ends, asker)) = mail(&post) else {
                panic!("nobody asks");
            };
            assert_eq!(ends, far);
            let (made, passed) = StreamMemory::make().unwrap();
            post.give(&asker, ends, &passed).unwrap();
            let Some(Mail::Given(ends, given)) = mail(&asks) else {
                panic!("nothing is given");
            };
            assert_eq!(ends, near);
            made.put(b"octets");
            let mut found = [0; 9];
            assert_eq!(given.take(&mut found), Ok(6));
            assert_eq!(&found[..6], b"octets");
        }
    }

    #[test]
    fn what_is_no_letter_is_passed_over() {
        let post = Post::at("127.0.3.120:5003".parse().unwrap(), Admission::default()).unwrap();
        let other = LocalSocket::anonymous().unwrap();
        let zeros = [0; Written::LENGTH + 1];
        let mut give = [0; Written::LENGTH];
        give[..2].copy_from_slice(&[VERSION, GIVE]);
        for octets in [&zeros[..1], &zeros[1..], &zeros, &give] {
            other
                .send("polyverbs/tcp/127.0.3.120:5003", &[octets.into()])
                .unwrap();
        }
        assert!(mail(&post).is_none());
    }
}
