use std::io::ErrorKind;
use std::thread;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use test_kit::waiting::{until, until_some};

use super::*;

const V4: &str = "127.0.3.60:0";
const V6: &str = "[::1]:0";

fn listener(local: &str) -> TcpListener {
    TcpListener::listen(local.parse().unwrap(), 16).unwrap()
}

fn connect(listener: &TcpListener) -> TcpSocket {
    let local = SocketAddr::new(listener.local().ip(), 0);
    TcpSocket::connect(local, listener.local()).unwrap()
}

fn pair_at(local: &str) -> (TcpSocket, TcpSocket) {
    let listener = listener(local);
    let one = connect(&listener);
    let (other, peer) = until_some(|| listener.accept().unwrap());
    until(|| one.connected().unwrap());
    assert_eq!(peer, one.local().unwrap());
    (one, other)
}

fn pair() -> (TcpSocket, TcpSocket) {
    pair_at(V4)
}

fn receive_exactly(socket: &TcpSocket, length: usize) -> Vec<u8> {
    let (mut all, mut buffer) = (Vec::new(), vec![0; 65_536]);
    until(|| {
        match socket.receive(&mut buffer).unwrap() {
            Received::Bytes(bytes) => all.extend_from_slice(&buffer[..bytes]),
            Received::Nothing => {}
            Received::End => panic!("ended after {} bytes", all.len()),
        }
        all.len() >= length
    });
    assert_eq!(all.len(), length);
    all
}

fn outcome(socket: &TcpSocket) -> Result<Received, StreamError> {
    until_some(|| {
        let received = socket.receive(&mut [0; 16]);
        (!matches!(received, Ok(Received::Nothing))).then_some(received)
    })
}

#[test]
fn both_ends_receive_what_the_other_sends() {
    for local in [V4, V6] {
        let (one, other) = pair_at(local);
        assert_eq!(one.send(b"one ").unwrap(), 4);
        assert_eq!(one.send(b"stream").unwrap(), 6);
        assert_eq!(receive_exactly(&other, 10), b"one stream");
        assert_eq!(other.send(b"back").unwrap(), 4);
        assert_eq!(receive_exactly(&one, 4), b"back");
        assert_eq!(one.receive(&mut [0; 4]).unwrap(), Received::Nothing);
    }
}

#[test]
fn a_full_socket_takes_nothing_and_its_end_follows_its_bytes() {
    let (one, other) = pair();
    let (bytes, mut taken) = (vec![7; 3_000_000], 0);
    loop {
        match one.send(&bytes).unwrap() {
            0 => break,
            sent => taken += sent,
        }
    }
    one.finish().unwrap();
    assert!(one.send(&bytes).is_err());
    let reader = thread::spawn(move || {
        receive_exactly(&other, taken);
        assert_eq!(outcome(&other).unwrap(), Received::End);
        assert_eq!(other.send(b"still here").unwrap(), 10);
        other
    });
    let other = reader.join().unwrap();
    assert_eq!(receive_exactly(&one, 10), b"still here");
    other.finish().unwrap();
    assert_eq!(outcome(&one).unwrap(), Received::End);
}

#[test]
fn an_abortive_end_is_a_reset_at_once() {
    let (one, other) = pair();
    assert_eq!(one.send(b"lost").unwrap(), 4);
    receive_exactly(&other, 4);
    one.abort();
    assert!(one.send(b"more").is_err());
    assert!(matches!(outcome(&other), Err(StreamError::Reset)));
    let sent = until_some(|| other.send(b"x").err());
    assert!(matches!(sent, StreamError::Reset), "{sent}");
}

/// Returns whether something has arrived that was not read yet.
fn has_something(socket: &TcpSocket) -> bool {
    let mut asked = [PollFd::new(socket, PollFlags::IN)];
    poll(&mut asked, Some(&Timespec::default())).unwrap() > 0
}

#[test]
fn closing_a_socket_with_unread_bytes_resets_it() {
    let (one, other) = pair();
    assert_eq!(one.send(b"unread").unwrap(), 6);
    until(|| has_something(&other));
    drop(other);
    assert!(matches!(outcome(&one), Err(StreamError::Reset)));
}

#[test]
fn a_connection_without_a_listener_is_refused() {
    let gone = listener(V4).local();
    let refused = match TcpSocket::connect(V4.parse().unwrap(), gone) {
        Ok(socket) => until_some(|| socket.connected().err()),
        Err(error) => error,
    };
    assert!(matches!(refused, StreamError::Refused), "{refused}");
}

#[test]
fn a_port_has_one_listener_and_can_have_the_next_at_once() {
    let first = listener(V4);
    let local = first.local();
    let second = TcpListener::listen(local, 1).err().unwrap();
    assert_eq!(second.kind(), ErrorKind::AddrInUse);
    let one = connect(&first);
    let (other, _) = until_some(|| first.accept().unwrap());
    // The system remembers the port of this end for a while.
    other.finish().unwrap();
    drop((other, one, first));
    TcpListener::listen(local, 1).unwrap();
}

#[test]
fn an_accept_without_a_connection_is_no_error() {
    assert!(listener(V4).accept().unwrap().is_none());
}

#[test]
fn an_aborted_connection_is_accepted_and_reads_as_reset() {
    let listener = listener(V4);
    for _ in 0..3 {
        let socket = connect(&listener);
        until(|| socket.connected().unwrap());
        socket.abort();
    }
    let stays = connect(&listener);
    until(|| stays.connected().unwrap());
    loop {
        let (socket, peer) = until_some(|| listener.accept().unwrap());
        if peer == stays.local().unwrap() {
            break;
        }
        assert!(matches!(outcome(&socket), Err(StreamError::Reset)));
    }
    assert!(listener.accept().unwrap().is_none());
}

#[test]
fn a_connection_leaves_from_the_address_it_was_given() {
    let listener = listener(V4);
    let local: SocketAddr = "127.0.3.61:0".parse().unwrap();
    let socket = TcpSocket::connect(local, listener.local()).unwrap();
    let (accepted, peer) = until_some(|| listener.accept().unwrap());
    assert_eq!(peer.ip(), local.ip());
    assert_eq!(socket.peer().unwrap(), listener.local());
    assert_eq!(accepted.local().unwrap(), listener.local());
}

#[test]
fn the_segment_size_is_known() {
    let (one, other) = pair();
    for socket in [&one, &other] {
        assert!(socket.segment_size().unwrap() >= 536);
    }
}

#[test]
fn accepted_sockets_have_the_same_options() {
    let (one, other) = pair();
    for socket in [&one, &other] {
        assert_eq!(sockopt::tcp_user_timeout(socket), Ok(30_000));
        assert_eq!(sockopt::tcp_keepidle(socket), Ok(Duration::from_secs(60)));
        assert_eq!(sockopt::tcp_keepcnt(socket), Ok(3));
        assert_eq!(sockopt::socket_keepalive(socket), Ok(true));
        assert_eq!(sockopt::tcp_nodelay(socket), Ok(true));
    }
}
