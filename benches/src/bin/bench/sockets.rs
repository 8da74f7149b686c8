//! Pairs of bare sockets over loopback, and a ring in bare memory, whose performance limits that of a device whose packets
//! pass through them.
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

/// The number of bytes of each message of a ping-pong.
pub(crate) const MESSAGE: usize = 64;
/// The number of bytes of each datagram of a UDP stream: 4 KiB of payload, 56 for the IPv4, UDP, BTH and RETH headers, and
/// 4 for the ICRC.
pub(crate) const SEGMENT: usize = 4156;
/// The number of bytes that each call with GSO sends: as many whole datagrams of [`SEGMENT`] bytes as fit into one call.
pub(crate) const SUPER: [usize; 1] = [65_507 / SEGMENT * SEGMENT];
/// The number of bytes of each of the two calls with GSO that an RDMA write of 64 KiB needs. The first packet of the
/// write needs a call of its own, because it is longer than the packets after it, and in a call with GSO only the last
/// datagram may differ, by being shorter.
pub(crate) const WRITE: [usize; 2] = [SEGMENT, 15 * SEGMENT];
/// The number of bytes that each write to a TCP stream passes to the kernel, and that a slot of [`Ring`] holds.
pub(crate) const CHUNK: usize = 64 << 10;

/// The sender of a stream stops while this many bytes have been sent and not been received; so few fit into every receive
/// buffer.
const WINDOW: u64 = 1 << 20;
/// If the receiver of a stream receives nothing for this long, the sender takes the bytes in flight for lost, and sends
/// more.
const LOST: Duration = Duration::from_millis(20);

/// Whether the UDP sockets of a pair are connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Peer {
    /// The sockets are not connected: each send names the peer's address, as it does in a RoCEv2 device.
    Named,
    /// The two sockets are connected to each other, so that the kernel does not look up a route for each datagram.
    Connected,
}

/// Two non-blocking UDP sockets on loopback that send datagrams to each other.
pub(crate) struct UdpPair {
    sockets: [Arc<UdpSocket>; 2],
    peer: Peer,
}

impl UdpPair {
    /// Opens two UDP sockets on loopback, which are connected to each other if `peer` is [`Peer::Connected`].
    ///
    /// # Errors
    /// The system refuses to open, bind or connect a socket.
    pub(crate) fn new(peer: Peer) -> Result<Self> {
        let sockets = [udp()?, udp()?];
        if peer == Peer::Connected {
            sockets[0].connect(sockets[1].local_addr()?)?;
            sockets[1].connect(sockets[0].local_addr()?)?;
        }
        let sockets = sockets.map(Arc::new);
        Ok(Self { sockets, peer })
    }

    /// Sets UDP GSO on the first socket, so that the kernel divides each call's bytes into datagrams of [`SEGMENT`] bytes,
    /// and GRO on the second, so that the kernel joins arriving datagrams.
    ///
    /// # Errors
    /// The kernel does not support UDP GSO or GRO.
    pub(crate) fn offload(self) -> Result<Self> {
        setsockopt(&self.sockets[0], UdpGsoSegment, &(SEGMENT as i32))?;
        setsockopt(&self.sockets[1], UdpGroSegment, &true)?;
        Ok(self)
    }

    /// Returns half of the mean time of `turns` round trips of a datagram of [`MESSAGE`] bytes between the calling thread
    /// and the partner, in nanoseconds.
    ///
    /// # Errors
    /// A system call failed, or no datagram arrived for seconds.
    pub(crate) fn half_round_trip(&self, partner: &Partner, turns: u64) -> Result<f64> {
        let [ours, theirs] = [0, 1].map(|end| self.end(end));
        let [ours, theirs] = [ours?, theirs?];
        ping_pong(partner, turns, ours, theirs)
    }

    /// Has the partner's thread send from the first socket until the calling thread has received the given number of bytes
    /// at the second; returns the received bytes per nanosecond. `calls` has the number of bytes of each call, which the
    /// sender uses in turn.
    ///
    /// # Errors
    /// A system call of the receiver failed, or the transfer took more than ten seconds.
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

/// The two non-blocking sockets of a TCP connection over loopback, with `TCP_NODELAY`.
pub(crate) struct TcpPair([Arc<TcpStream>; 2]);

impl TcpPair {
    /// Opens a TCP connection over loopback.
    ///
    /// # Errors
    /// The system refuses to open, bind or connect a socket.
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

    /// Returns half of the mean time of `turns` round trips of [`MESSAGE`] bytes between the calling thread and the
    /// partner, in nanoseconds.
    ///
    /// # Errors
    /// A system call failed, or no byte arrived for seconds.
    pub(crate) fn half_round_trip(&self, partner: &Partner, turns: u64) -> Result<f64> {
        let [ours, theirs] = self.0.each_ref().map(|end| Octets(Arc::clone(end)));
        ping_pong(partner, turns, ours, theirs)
    }

    /// Has the partner's thread write [`CHUNK`] bytes in each call until the calling thread has received the given number
    /// of bytes; returns the received bytes per nanosecond.
    ///
    /// # Errors
    /// A system call of the receiver failed, or the transfer took more than ten seconds.
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

/// A ring of eight slots in memory that two threads share. One thread copies 64 KiB into each slot, and the second
/// thread copies them out.
pub(crate) struct Ring(Arc<Slots>);

struct Slots {
    slots: [Mutex<Vec<u8>>; 8],
    filled: OwnLine,
    emptied: OwnLine,
}

/// A counter of the slots of a [`Ring`] that shares its cache line with no other value.
#[repr(align(128))]
#[derive(Default)]
struct OwnLine(AtomicUsize);

impl Ring {
    /// Creates a ring whose eight slots are empty.
    pub(crate) fn new() -> Self {
        Self(Arc::new(Slots {
            slots: std::array::from_fn(|_| Mutex::new(vec![0; CHUNK])),
            filled: OwnLine::default(),
            emptied: OwnLine::default(),
        }))
    }

    /// Has the partner's thread fill slots until the calling thread has copied the given number of bytes out of them;
    /// returns the copied bytes per nanosecond.
    ///
    /// # Errors
    /// The transfer took more than ten seconds.
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

/// A socket of a pair. Its calls do not block: they return 0 if the socket cannot send or has nothing to receive, and
/// otherwise the number of bytes sent or received.
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

/// Plays `turns` round trips of [`MESSAGE`] bytes: `ours`, on the calling thread, sends, and `theirs`, on the partner's
/// thread, sends each message back. Returns half of the mean time of a round trip in nanoseconds.
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

/// Calls `receive` without sleeping until `room` is full. Fails after [`PATIENCE`] calls, or as soon as the other
/// thread has set `over`, because it has ended the ping-pong.
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

/// The number of calls after which a receive that has not filled its room fails: they take seconds.
const PATIENCE: u32 = 20_000_000;

/// Has the partner's thread call `send` until the calling thread has received the given number of bytes by `receive`; both
/// return the number of bytes of a call. Returns the received bytes per nanosecond; fails if that takes longer than ten
/// seconds.
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
    // The bytes in flight are received now, because the next measurement would count them.
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
