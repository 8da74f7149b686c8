//! Sockets at addresses of this machine: hosts in one process, over RoCE and over iWARP.

mod calls;
mod congestion;
mod deadlines;
mod errors;
mod messages;
mod rdma;
mod stalled;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicU16, Ordering};

use polyverbs_rds::{RdsError, RdsSocket, RdsTransport, Wait};

use crate::receive_for;

/// An address that no other test uses.
fn address() -> IpAddr {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    assert!(number < 8 * 250);
    Ipv4Addr::new(127, 0, 32 + (number / 250) as u8, 1 + (number % 250) as u8).into()
}

/// A socket at this address on a device of this transport.
fn socket_at(at: SocketAddr, transport: RdsTransport) -> RdsSocket {
    let socket = RdsSocket::new();
    socket.set_transport(transport).unwrap();
    socket.bind_to(at).unwrap();
    assert_eq!(socket.transport(), Some(transport));
    socket
}

/// `COUNT` sockets, each at an address of its own.
fn sockets<const COUNT: usize>(transport: RdsTransport) -> [RdsSocket; COUNT] {
    std::array::from_fn(|_| socket_at(SocketAddr::new(address(), 0), transport))
}

fn at(socket: &RdsSocket) -> SocketAddr {
    socket.local_addr().unwrap()
}

fn over_both(test: impl Fn(RdsTransport)) {
    test(RdsTransport::InfiniBand);
    test(RdsTransport::Iwarp);
}

/// The next message of a socket, cut to `most` bytes.
fn receive(socket: &RdsSocket, most: usize) -> Vec<u8> {
    let mut room = vec![0; most];
    let received = receive_for(
        socket,
        &mut room,
        Wait::Until(test_kit::waiting::deadline()),
    );
    let received = received.unwrap();
    assert!(received.from.is_some(), "{received:?}");
    room.truncate(received.length);
    room
}

fn errno<T>(outcome: Result<T, RdsError>) -> Option<i32> {
    outcome.err().map(|error| error.errno())
}

/// Bytes that depend on `seed` and on their position.
fn content(seed: usize, length: usize) -> Vec<u8> {
    (0..length)
        .map(|place| ((seed + place) % 251) as u8)
        .collect()
}
