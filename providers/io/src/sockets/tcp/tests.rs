use std::io::ErrorKind;
use std::thread;
use std::time::Instant;

use super::*;

const V4: &str = "127.0.3.60:0";
const V6: &str = "[::1]:0";
const LONG: Duration = Duration::from_secs(20);

fn listener(local: &str) -> TcpListener {
    TcpListener::listen(local.parse().unwrap(), 16, &TcpOptions::default()).unwrap()
}

fn until<T>(mut what: impl FnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(found) = what() {
            return found;
        }
        assert!(began.elapsed() < LONG, "it never happened");
        thread::yield_now();
    }
}

fn pair_at(local: &str) -> (Connection, Connection) {
    let listener = listener(local);
    let one = TcpSocket::connect(None, listener.local(), &TcpOptions::default()).unwrap();
    let (other, peer) = until(|| listener.accept().unwrap());
    until(|| one.connected().unwrap().then_some(()));
    assert_eq!(peer, one.local().unwrap());
    (Connection::new(one), Connection::new(other))
}

fn pair() -> (Connection, Connection) {
    pair_at(V4)
}

fn receive_exactly(connection: &mut Connection, length: usize) -> Vec<u8> {
    let (mut all, mut buffer) = (Vec::new(), vec![0; 65_536]);
    until(|| {
        match connection.receive(&mut buffer).unwrap() {
            Received::Octets(octets) => all.extend_from_slice(&buffer[..octets]),
            Received::Nothing => {}
            Received::End => panic!("ended after {} octets", all.len()),
        }
        (all.len() >= length).then_some(())
    });
    assert_eq!(all.len(), length);
    all
}

fn outcome(connection: &mut Connection) -> Result<Received, StreamError> {
    until(|| {
        let received = connection.receive(&mut [0; 16]);
        (!matches!(received, Ok(Received::Nothing))).then_some(received)
    })
}

#[test]
fn both_ends_receive_what_the_other_sends() {
    for local in [V4, V6] {
        let (mut one, mut other) = pair_at(local);
        assert!(one.send(b"one ").unwrap());
        assert!(one.send(b"stream").unwrap());
        assert_eq!(receive_exactly(&mut other, 10), b"one stream");
        assert!(other.send(b"back").unwrap());
        assert_eq!(receive_exactly(&mut one, 4), b"back");
        assert_eq!(one.receive(&mut [0; 4]).unwrap(), Received::Nothing);
    }
}

#[test]
fn what_the_socket_does_not_take_waits_and_keeps_its_order() {
    let (mut one, mut other) = pair();
    let octets: Vec<u8> = (0..3_000_000_u32).map(|at| (at / 3 % 251) as u8).collect();
    let mut taken = 0;
    // Until it is full.
    while taken < 100 && one.send(&octets).unwrap() {
        taken += 1;
    }
    assert!(taken > 0 && one.waiting() > 0);
    assert!(!one.send(&octets).unwrap());
    let waiting = one.waiting();
    let reader = thread::spawn(move || receive_exactly(&mut other, taken * 3_000_000));
    until(|| one.flush().unwrap().then_some(()));
    let arrived = reader.join().unwrap();
    assert!(arrived.chunks(octets.len()).all(|turn| turn == octets));
    assert!(waiting <= 3_000_000 && one.waiting() == 0);
}

#[test]
fn a_graceful_end_comes_behind_everything_and_the_other_direction_goes_on() {
    let (mut one, mut other) = pair();
    let octets = vec![7; 8_000_000];
    assert!(one.send(&octets).unwrap());
    one.finish().unwrap();
    assert!(!one.send(&octets).unwrap_or(false));
    let reader = thread::spawn(move || {
        receive_exactly(&mut other, 8_000_000);
        assert_eq!(outcome(&mut other).unwrap(), Received::End);
        assert!(other.send(b"still here").unwrap());
        other
    });
    until(|| (one.flush().unwrap() && one.waiting() == 0).then_some(()));
    let mut other = reader.join().unwrap();
    assert_eq!(receive_exactly(&mut one, 10), b"still here");
    other.finish().unwrap();
    assert_eq!(outcome(&mut one).unwrap(), Received::End);
}

#[test]
fn an_abortive_end_is_a_reset_at_once() {
    let (mut one, mut other) = pair();
    assert!(one.send(b"lost").unwrap());
    receive_exactly(&mut other, 4);
    one.abort();
    assert!(one.send(b"more").is_err());
    assert!(matches!(outcome(&mut other), Err(StreamError::Reset)));
    let sent = until(|| other.send(b"x").err());
    assert!(matches!(sent, StreamError::Reset), "{sent}");
}

#[test]
fn what_nobody_reads_any_more_is_answered_with_a_reset() {
    let (mut one, other) = pair();
    assert!(one.send(b"unread").unwrap());
    thread::sleep(Duration::from_millis(20));
    drop(other);
    assert!(matches!(outcome(&mut one), Err(StreamError::Reset)));
}

#[test]
fn where_nobody_listens_a_connection_is_refused() {
    let gone = listener(V4).local();
    let options = TcpOptions::default();
    let refused = match TcpSocket::connect(None, gone, &options) {
        Ok(socket) => until(|| socket.connected().err()),
        Err(error) => error,
    };
    assert!(matches!(refused, StreamError::Refused), "{refused}");
}

#[test]
fn a_port_has_one_listener_and_can_have_the_next_at_once() {
    let first = listener(V4);
    let local = first.local();
    let second = TcpListener::listen(local, 1, &TcpOptions::default()).unwrap_err();
    assert_eq!(second.kind(), ErrorKind::AddrInUse);
    let one = TcpSocket::connect(None, local, &TcpOptions::default()).unwrap();
    let (other, _) = until(|| first.accept().unwrap());
    // Its end of the connection remembers the port for a while.
    other.finish().unwrap();
    drop((other, one, first));
    TcpListener::listen(local, 1, &TcpOptions::default()).unwrap();
}

#[test]
fn nobody_waiting_is_no_error() {
    assert!(listener(V4).accept().unwrap().is_none());
}

#[test]
fn who_connected_and_left_is_still_told_apart() {
    let listener = listener(V4);
    for _ in 0..3 {
        let socket = TcpSocket::connect(None, listener.local(), &TcpOptions::default()).unwrap();
        until(|| socket.connected().unwrap().then_some(()));
        socket.abort();
    }
    thread::sleep(Duration::from_millis(20));
    while let Some((socket, _)) = listener.accept().unwrap() {
        let mut connection = Connection::new(socket);
        assert!(matches!(outcome(&mut connection), Err(StreamError::Reset)));
    }
}

#[test]
fn a_connection_leaves_from_the_address_it_was_given() {
    let listener = listener(V4);
    let local: SocketAddr = "127.0.3.61:0".parse().unwrap();
    let socket = TcpSocket::connect(Some(local), listener.local(), &TcpOptions::default()).unwrap();
    let (accepted, peer) = until(|| listener.accept().unwrap());
    assert_eq!(peer.ip(), local.ip());
    assert_eq!(socket.peer().unwrap(), listener.local());
    assert_eq!(accepted.local().unwrap(), listener.local());
}

#[test]
fn the_segment_size_is_known() {
    let (one, other) = pair();
    for connection in [&one, &other] {
        assert!(connection.socket().segment_size().unwrap() >= 536);
    }
}

#[test]
fn what_a_socket_was_made_with_holds_for_accepted_ones_too() {
    let (one, other) = pair();
    for socket in [one.socket(), other.socket()] {
        assert_eq!(sockopt::tcp_user_timeout(socket), Ok(30_000));
        assert_eq!(sockopt::tcp_keepidle(socket), Ok(Duration::from_secs(60)));
        assert_eq!(sockopt::tcp_keepcnt(socket), Ok(3));
        assert_eq!(sockopt::socket_keepalive(socket), Ok(true));
        assert_eq!(sockopt::tcp_nodelay(socket), Ok(true));
    }
}
