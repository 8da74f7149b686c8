//! The performance of bare sockets over loopback, and of bare memory: the limits of a device on a wire.
//!
//! Two threads on two processors make the system calls that such a device must make, and nothing else: no headers, no
//! checksums, no copies. No thread sleeps.

use std::hint::spin_loop;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::Result;
use nix::sys::socket::setsockopt;
use nix::sys::socket::sockopt::{UdpGroSegment, UdpGsoSegment};
use polyverbs::provider::Mutex;
use polyverbs_benches::partner::Partner;
use rustix::net::sockopt::{set_socket_recv_buffer_size, set_socket_send_buffer_size};

/// Bytes of a message of a ping-pong.
pub(crate) const MESSAGE: usize = 64;
/// Bytes of a datagram of a stream: 4 KiB, the headers of a write and its checksum.
pub(crate) const SEGMENT: usize = 4156;
/// Bytes of a call with segmentation: the largest number of whole datagrams that fit.
pub(crate) const SUPER: [usize; 1] = [65_507 / SEGMENT * SEGMENT];
/// Bytes of the two calls with segmentation that a write of 64 KiB needs: its first datagram is longer than those after it,
/// and within one call only the last datagram may differ, by being shorter.
pub(crate) const WRITE: [usize; 2] = [SEGMENT, 15 * SEGMENT];
/// Bytes of a write to a TCP stream.
pub(crate) const CHUNK: usize = 64 << 10;

/// Bytes that may be in flight: few enough to fit into every receive buffer.
const WINDOW: u64 = 1 << 20;
/// If nothing arrives for so long, the datagrams were lost.
const LOST: Duration = Duration::from_millis(20);

/// How a datagram socket knows its peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Peer {
    /// Each datagram is sent with the address of the peer, and received with it: a correct ICRC needs that.
    Named,
    /// The socket is connected, which saves the look-up of a route.
    Connected,
}

/// Two UDP sockets.
pub(crate) struct UdpPair {
    sockets: [Arc<UdpSocket>; 2],
    peer: Peer,
}

impl UdpPair {
    /// Opens two sockets on loopback.
    ///
    /// # Errors
    /// The system refuses.
    pub(crate) fn new(peer: Peer) -> Result<Self> {
        let sockets = [udp()?, udp()?];
        if peer == Peer::Connected {
            sockets[0].connect(sockets[1].local_addr()?)?;
            sockets[1].connect(sockets[0].local_addr()?)?;
        }
        let sockets = sockets.map(Arc::new);
        Ok(Self { sockets, peer })
    }

    /// Has the kernel segment the calls of the first socket and join the datagrams that the second receives.
    ///
    /// # Errors
    /// The kernel does not support this.
    pub(crate) fn offload(self) -> Result<Self> {
        setsockopt(&self.sockets[0], UdpGsoSegment, &(SEGMENT as i32))?;
        setsockopt(&self.sockets[1], UdpGroSegment, &true)?;
        Ok(self)
    }

    /// Half of a round trip, in nanoseconds.
    ///
    /// # Errors
    /// The system refuses, or a datagram was lost.
    pub(crate) fn half_round_trip(&self, partner: &Partner, turns: u64) -> Result<f64> {
        let [ours, theirs] = [0, 1].map(|end| self.end(end));
        let [ours, theirs] = [ours?, theirs?];
        ping_pong(partner, turns, ours, theirs)
    }

    /// Bytes per nanosecond that arrive; the calls send the given numbers of bytes in turn.
    ///
    /// # Errors
    /// The system refuses.
    pub(crate) fn stream<const CALLS: usize>(
        &self,
        partner: &Partner,
        calls: [usize; CALLS],
        octets: u64,
    ) -> Result<f64> {
        let [mut ours, mut theirs] = [self.end(0)?, self.end(1)?];
        let message = vec![0x5a; 1 << 16];
        let mut made = 0;
        let mut room = vec![0; 1 << 16];
        stream(
            partner,
            octets,
            move || {
                let sent = ours.send(&message[..calls[made % CALLS]])?;
                made += usize::from(sent > 0);
                Ok(sent)
            },
            move || theirs.receive(&mut room),
        )
    }

    fn end(&self, end: usize) -> Result<Datagrams> {
        let peer = self.sockets[1 - end].local_addr()?;
        Ok(Datagrams {
            socket: Arc::clone(&self.sockets[end]),
            peer: (self.peer == Peer::Named).then_some(peer),
        })
    }
}

/// Two ends of a TCP connection.
pub(crate) struct TcpPair([Arc<TcpStream>; 2]);

impl TcpPair {
    /// Opens a connection over loopback.
    ///
    /// # Errors
    /// The system refuses.
    pub(crate) fn new() -> Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let one = TcpStream::connect(listener.local_addr()?)?;
        let (other, _) = listener.accept()?;
        for end in [&one, &other] {
            end.set_nodelay(true)?;
            end.set_nonblocking(true)?;
        }
        Ok(Self([one, other].map(Arc::new)))
    }

    /// Half of a round trip, in nanoseconds.
    ///
    /// # Errors
    /// The system refuses.
    pub(crate) fn half_round_trip(&self, partner: &Partner, turns: u64) -> Result<f64> {
        let [ours, theirs] = self.0.each_ref().map(|end| Octets(Arc::clone(end)));
        ping_pong(partner, turns, ours, theirs)
    }

    /// Bytes per nanosecond that arrive, in writes of [`CHUNK`] bytes.
    ///
    /// # Errors
    /// The system refuses.
    pub(crate) fn stream(&self, partner: &Partner, octets: u64) -> Result<f64> {
        let [mut ours, mut theirs] = self.0.each_ref().map(|end| Octets(Arc::clone(end)));
        let message = vec![0x5a; CHUNK];
        let mut room = vec![0; 4 * CHUNK];
        stream(
            partner,
            octets,
            move || ours.send(&message),
            move || theirs.receive(&mut room),
        )
    }
}

/// Memory that both ends share. Data passes through it in two copies of 64 KiB: one end copies it in, and the other copies it
/// out.
pub(crate) struct Ring(Arc<Slots>);

struct Slots {
    slots: [Mutex<Vec<u8>>; 8],
    filled: OwnLine,
    emptied: OwnLine,
}

/// A value that has its cache line for itself.
#[repr(align(128))]
#[derive(Default)]
struct OwnLine(AtomicUsize);

impl Ring {
    /// Makes an empty ring.
    pub(crate) fn new() -> Self {
        Self(Arc::new(Slots {
            slots: std::array::from_fn(|_| Mutex::new(vec![0; CHUNK])),
            filled: OwnLine::default(),
            emptied: OwnLine::default(),
        }))
    }

    /// Bytes per nanosecond.
    ///
    /// # Errors
    /// The transfer takes far too long.
    pub(crate) fn stream(&self, partner: &Partner, octets: u64) -> Result<f64> {
        let [ours, theirs] = [(); 2].map(|()| Arc::clone(&self.0));
        let message = vec![0x5a; CHUNK];
        let mut room = vec![0; CHUNK];
        stream(
            partner,
            octets,
            move || {
                let filled = ours.filled.0.load(Ordering::Relaxed);
                if filled - ours.emptied.0.load(Ordering::Acquire) == ours.slots.len() {
                    return Ok(0);
                }
                let mut slot = ours.slots[filled % ours.slots.len()].lock();
                slot.copy_from_slice(&message);
                drop(slot);
                ours.filled.0.store(filled + 1, Ordering::Release);
                Ok(CHUNK)
            },
            move || {
                let emptied = theirs.emptied.0.load(Ordering::Relaxed);
                if emptied == theirs.filled.0.load(Ordering::Acquire) {
                    return Ok(0);
                }
                let slot = theirs.slots[emptied % theirs.slots.len()].lock();
                room.copy_from_slice(&slot);
                theirs.emptied.0.store(emptied + 1, Ordering::Release);
                Ok(CHUNK)
            },
        )
    }
}

/// One end; its calls return 0 bytes where they would have to wait.
trait End: Send + 'static {
    fn send(&mut self, octets: &[u8]) -> io::Result<usize>;
    fn receive(&mut self, room: &mut [u8]) -> io::Result<usize>;
}

struct Datagrams {
    socket: Arc<UdpSocket>,
    peer: Option<SocketAddr>,
}

impl End for Datagrams {
    #[inline]
    fn send(&mut self, octets: &[u8]) -> io::Result<usize> {
        unless_full(match self.peer {
            Some(peer) => self.socket.send_to(octets, peer),
            None => self.socket.send(octets),
        })
    }

    #[inline]
    fn receive(&mut self, room: &mut [u8]) -> io::Result<usize> {
        unless_full(self.socket.recv(room))
    }
}

struct Octets(Arc<TcpStream>);

impl End for Octets {
    #[inline]
    fn send(&mut self, octets: &[u8]) -> io::Result<usize> {
        unless_full((&*self.0).write(octets))
    }

    #[inline]
    fn receive(&mut self, room: &mut [u8]) -> io::Result<usize> {
        unless_full((&*self.0).read(room))
    }
}

fn unless_full(result: io::Result<usize>) -> io::Result<usize> {
    match result {
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(0),
        result => result,
    }
}

fn udp() -> Result<UdpSocket> {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
    socket.set_nonblocking(true)?;
    set_socket_recv_buffer_size(&socket, 4 << 20)?;
    set_socket_send_buffer_size(&socket, 4 << 20)?;
    Ok(socket)
}

/// Both ends return each message that they receive; ours begins.
fn ping_pong(
    partner: &Partner,
    turns: u64,
    mut ours: impl End,
    mut theirs: impl End,
) -> Result<f64> {
    let over = Arc::new(AtomicBool::new(false));
    let is_over = Arc::clone(&over);
    let echo = move || {
        let mut room = [0; MESSAGE];
        for _ in 0..turns {
            if exactly(&mut room, &is_over, |room| theirs.receive(room)).is_err()
                || theirs.send(&room).is_err()
            {
                return;
            }
        }
    };
    let ((), took) = partner.with(echo, || {
        let result = (|| {
            let mut room = [0; MESSAGE];
            let began = Instant::now();
            for _ in 0..turns {
                ours.send(&room)?;
                exactly(&mut room, &over, |room| ours.receive(room))?;
            }
            Ok::<_, io::Error>(began.elapsed())
        })();
        over.store(true, Ordering::Relaxed);
        result
    });
    Ok(took?.as_nanos() as f64 / (2 * turns) as f64)
}

/// Fills the room, spinning. Fails if that takes far too long, or if the other end has given up.
#[inline]
fn exactly(
    room: &mut [u8],
    over: &AtomicBool,
    mut receive: impl FnMut(&mut [u8]) -> io::Result<usize>,
) -> io::Result<()> {
    let (mut filled, mut looks) = (0, 0_u32);
    while filled < room.len() {
        filled += receive(&mut room[filled..])?;
        looks += 1;
        if looks >= PATIENCE || over.load(Ordering::Relaxed) {
            return Err(ErrorKind::TimedOut.into());
        }
        spin_loop();
    }
    Ok(())
}

/// Polls of an empty socket before a ping-pong fails: these take seconds.
const PATIENCE: u32 = 20_000_000;

/// One end sends until the other has received so many bytes.
fn stream(
    partner: &Partner,
    octets: u64,
    mut send: impl FnMut() -> io::Result<usize> + Send + 'static,
    mut receive: impl FnMut() -> io::Result<usize>,
) -> Result<f64> {
    let arrived = Arc::new(AtomicU64::new(0));
    let over = Arc::new(AtomicBool::new(false));
    let (seen, is_over) = (Arc::clone(&arrived), Arc::clone(&over));
    let sender = move || {
        let mut sent = 0;
        let mut last = (0, Instant::now());
        while !is_over.load(Ordering::Relaxed) {
            let arrived = seen.load(Ordering::Relaxed);
            if arrived != last.0 {
                last = (arrived, Instant::now());
            }
            if sent < arrived + WINDOW {
                match send() {
                    Ok(octets) => sent += octets as u64,
                    Err(_) => return,
                }
            } else if last.1.elapsed() > LOST {
                (sent, last.1) = (arrived, Instant::now());
            }
        }
    };
    let ((), took) = partner.with(sender, || {
        let result = (|| {
            let (mut received, began) = (0, Instant::now());
            while received < octets {
                received += receive()? as u64;
                arrived.store(received, Ordering::Relaxed);
                if began.elapsed() > TOO_LONG {
                    return Err(io::Error::from(ErrorKind::TimedOut));
                }
            }
            Ok((received, began.elapsed()))
        })();
        over.store(true, Ordering::Relaxed);
        result
    });
    // Data that is still in flight would be counted by the next measurement.
    while receive()? > 0 {}
    let (received, time) = took?;
    Ok(received as f64 / time.as_nanos() as f64)
}

const TOO_LONG: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_channel_carries_bytes() {
        let partner = Partner::start();
        for peer in [Peer::Named, Peer::Connected] {
            let pair = UdpPair::new(peer).unwrap();
            assert!(pair.half_round_trip(&partner, 20).unwrap() > 0.0);
            assert!(pair.stream(&partner, [SEGMENT], 1 << 20).unwrap() > 0.0);
        }
        let cut = UdpPair::new(Peer::Named).unwrap().offload().unwrap();
        assert!(cut.stream(&partner, SUPER, 4 << 20).unwrap() > 0.0);
        assert!(cut.stream(&partner, WRITE, 4 << 20).unwrap() > 0.0);
        let tcp = TcpPair::new().unwrap();
        assert!(tcp.half_round_trip(&partner, 20).unwrap() > 0.0);
        assert!(tcp.stream(&partner, 4 << 20).unwrap() > 0.0);
    }
}
