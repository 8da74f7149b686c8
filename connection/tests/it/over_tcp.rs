//! Connections by MPA over TCP, between two devices in real time, and with peers that are no device at all.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;

use emulated_iwarp::WireOptions;
use polyverbs::WcStatus;
use polyverbs::qp::QpState;
use polyverbs::wr;
use polyverbs_connection::{ConnectError, Connection, ConnectionOptions, Listener, Refusal};
use polyverbs_wire::iwarp::start::{self, Enhanced, Kind, Start};

use crate::managed::Managed;
use crate::rig::{End, error, open, state, tcp_device};

fn changed(ip: &str, change: impl FnOnce(&mut WireOptions)) -> End {
    End::of(&open(&tcp_device(ip, change)))
}

fn say(from: &End, to: &End, text: &[u8]) {
    from.say(&from.qp, (to, &to.qp), text, End::completion);
}

fn flushed(end: &End, count: usize) -> Vec<u64> {
    let done: Vec<_> = (0..count).map(|_| end.completion()).collect();
    assert!(done.iter().all(|done| done.status == WcStatus::WrFlushErr));
    done.iter().map(|done| done.wr_id).collect()
}

// covers 7.77 7.78
#[test]
fn only_the_side_that_disconnects_flushes() {
    let (near, far) = (End::tcp("127.0.4.16"), End::tcp("127.0.4.17"));
    let listener = far.listen();
    let (one, other) = near.connected(&far, &listener);
    far.post_receive(&far.qp, 1);
    far.post_receive(&far.qp, 2);
    let (first, second) = (other.disconnected(), other.disconnected());
    assert!(!first.is_done());
    one.disconnect().wait().unwrap();
    assert_eq!(state(&near.qp), QpState::Err);
    first.wait().unwrap();
    second.wait().unwrap();
    assert!(far.nothing_completed());
    assert_eq!(state(&far.qp), QpState::Rts);
    other.disconnect().wait().unwrap();
    assert_eq!(flushed(&far, 2), [1, 2]);
    assert_eq!(state(&far.qp), QpState::Err);
    assert!(far.nothing_completed());
    other.disconnected().wait().unwrap();
}

// covers 7.77
#[test]
fn requests_posted_after_the_peer_disconnected_fail() {
    let (near, far) = (End::tcp("127.0.4.18"), End::tcp("127.0.4.19"));
    let listener = far.listen();
    let (one, other) = near.connected(&far, &listener);
    far.post_receive(&far.qp, 1);
    one.disconnect().wait().unwrap();
    other.disconnected().wait().unwrap();
    let bytes = far.mr.sge(1024, 8).unwrap();
    far.qp.post_one(wr::Send::new(bytes).signaled(2)).unwrap();
    let mut ids = flushed(&far, 2);
    ids.sort_unstable();
    assert_eq!(ids, [1, 2]);
    assert_eq!(state(&far.qp), QpState::Err);
}

// covers 7.35 7.37 7.40 7.45
#[test]
fn two_queue_pairs_connect_exchange_data_and_disconnect() {
    for (crc, markers) in [(true, false), (false, false), (true, true), (false, true)] {
        let change = |wire: &mut WireOptions| (wire.crc, wire.markers) = (crc, markers);
        let near = changed("127.0.4.1", change);
        let far = changed("127.0.4.2", change);
        let listener = far.listen();
        let (one, other) = near.connected(&far, &listener);
        // Either side may send first: the ready-to-receive indication has shown that both are ready.
        say(&far, &near, b"the passive side begins");
        say(&near, &far, b"and is answered");
        let gone = other.disconnected();
        one.disconnect().wait().unwrap();
        gone.wait().unwrap();
        assert_eq!(
            (state(&near.qp), state(&far.qp)),
            (QpState::Err, QpState::Rts)
        );
        other.disconnect().wait().unwrap();
        assert_eq!(state(&far.qp), QpState::Err);
    }
}

#[test]
fn a_device_answers_a_ping_without_the_program() {
    let near = End::tcp("127.0.4.11");
    let far = changed("127.0.4.12", |options| options.address.set_port(4791));
    let listener = far.listen();
    let next = listener.next();
    for port in [listener.address().port(), 0] {
        let to = SocketAddr::new(listener.address().ip(), port);
        near.connector.ping(to).wait().unwrap();
    }
    assert!(!next.is_done());
    let refused = SocketAddr::new(listener.address().ip(), 9);
    let refused = near.connector.ping(refused).wait();
    assert!(matches!(refused, Err(ConnectError::Refused { .. })));
    let other = std::net::TcpListener::bind("127.0.4.12:0").unwrap();
    let at = other.local_addr().unwrap();
    let asked = near.connector.ping(at);
    drop(other.accept().unwrap());
    assert!(matches!(asked.wait(), Err(ConnectError::NoDevice)));
}

#[test]
fn private_data_is_unpadded_if_the_connector_asks_for_that() {
    let (near, far) = (End::tcp("127.0.4.13"), End::tcp("127.0.4.14"));
    let (exact, peer) = (
        near.connector.clone().with_private_data_as_sent(),
        far.connector.clone().with_private_data_as_sent(),
    );
    let listener = peer.listen("127.0.4.14:0".parse().unwrap(), 0).unwrap();
    let options = || ConnectionOptions::new().private_data(b"exact");
    let asked = exact.request(&near.qp, listener.address(), options());
    let incoming = listener.next().wait().unwrap();
    assert_eq!(incoming.private_data(), b"exact");
    let _accepted = incoming.accept(&far.qp, options());
    assert_eq!(asked.wait().unwrap().private_data(), b"exact");
}

// covers 7.48 7.72
#[test]
fn private_data_goes_both_ways() {
    let (near, far) = (End::tcp("127.0.4.3"), End::tcp("127.0.4.4"));
    let listener = far.listen();
    let most = [9; 508];
    let asked = near.request(
        listener.address(),
        ConnectionOptions::new().private_data(&most),
    );
    let incoming = listener.next().wait().unwrap();
    assert_eq!(incoming.private_data(), most);
    let options = ConnectionOptions::new().private_data(b"welcome");
    let accepted = incoming.accept(&far.qp, options);
    let mine = asked.wait().unwrap();
    assert!(mine.private_data().starts_with(b"welcome\0"));
    assert_eq!(mine.private_data().len(), 196);
    let _near = mine.complete().wait().unwrap();
    let _far = accepted.wait().unwrap();

    let options = ConnectionOptions::new().private_data(&[0; 509]);
    let other = End::tcp("127.0.4.5");
    let refused = other.request(listener.address(), options);
    let too_much = ConnectError::PrivateData { len: 509, max: 508 };
    assert_eq!(error(refused), too_much);
}

// covers 7.33 7.73
#[test]
fn a_rejected_queue_pair_can_connect_again() {
    let (near, far) = (End::tcp("127.0.4.6"), End::tcp("127.0.4.7"));
    let listener = far.listen();
    let ask = || {
        let to = listener.address();
        near.request(to, ConnectionOptions::new())
    };
    let asked = ask();
    listener
        .next()
        .wait()
        .unwrap()
        .reject(b"not today")
        .unwrap();
    let mut private_data = b"not today".to_vec();
    private_data.resize(148, 0);
    let refused = ConnectError::Refused {
        reason: Refusal::ProgramOrBacklog,
        private_data,
    };
    assert_eq!(error(asked), refused);
    assert_eq!(state(&near.qp), QpState::Reset);
    let _both = near.connected(&far, &listener);
    say(&near, &far, b"after all");
}

#[test]
fn a_connect_without_a_listener_is_refused() {
    let near = End::tcp("127.0.4.8");
    let nobody = "127.0.4.9:9".parse().unwrap();
    let asked = near.request(nobody, ConnectionOptions::new());
    let private_data = Vec::new();
    let refused = ConnectError::Refused {
        reason: Refusal::NoListener,
        private_data,
    };
    assert_eq!(error(asked), refused);
}

// covers 7.71
#[test]
fn an_accept_fails_when_the_peer_gives_up() {
    let (near, far) = (End::tcp("127.0.4.10"), End::tcp("127.0.4.11"));
    let listener = far.listen();
    let asked = near.request(listener.address(), ConnectionOptions::new());
    let incoming = listener.next().wait().unwrap();
    let accepted = incoming.accept(&far.qp, ConnectionOptions::new());
    drop(asked.wait().unwrap());
    assert_eq!(error(accepted), ConnectError::Aborted);
}

// covers 7.36
#[test]
fn a_peer_that_has_revision_1_only_is_asked_again() {
    let near = End::tcp("127.0.4.12");
    let manager = Managed::new(&near.context, &Arc::default());
    let listener = TcpListener::bind("127.0.4.13:0").unwrap();
    let to = listener.local_addr().unwrap();
    let asked = manager
        .connector
        .request(&near.qp, to, ConnectionOptions::new());
    let request = |stream: &mut TcpStream| {
        let mut bytes = [0; 24];
        let mut len = 0;
        loop {
            len += stream.read(&mut bytes[len..]).unwrap();
            if let Some((start, _)) = start::decode(&bytes[..len]).unwrap() {
                return start.header.revision;
            }
        }
    };
    let (mut first, _) = listener.accept().unwrap();
    assert_eq!(request(&mut first), 2);
    drop(first);
    let (mut second, _) = listener.accept().unwrap();
    assert_eq!(request(&mut second), 1);
    let mut reply = [0; 32];
    let start = Start::new(Kind::Reply, None, b"old").unwrap();
    let len = start.encode(&mut reply).unwrap();
    // The reply arrives in two pieces.
    second.write_all(&reply[..9]).unwrap();
    test_kit::waiting::until(|| manager.gate.heard() == 9);
    second.write_all(&reply[9..len]).unwrap();
    let accepted = asked.wait().unwrap();
    assert!(accepted.private_data().starts_with(b"old\0"));
    let connection = accepted.complete().wait().unwrap();
    drop(second);
    connection.disconnected().wait().unwrap();
    connection.disconnect().wait().unwrap();
    assert_eq!(state(&near.qp), QpState::Err);
}

// covers 7.40
#[test]
fn the_ready_to_receive_indication_is_repeated() {
    let near = End::tcp("127.0.4.24");
    let listener = TcpListener::bind("127.0.4.25:0").unwrap();
    let to = listener.local_addr().unwrap();
    let asked = near.request(to, ConnectionOptions::new());
    let (mut peer, _) = listener.accept().unwrap();
    let (mut bytes, mut len) = ([0; 1024], 0);
    let wishes = loop {
        len += peer.read(&mut bytes[len..]).unwrap();
        if let Some((start, _)) = start::decode(&bytes[..len]).unwrap() {
            break start.enhanced.unwrap();
        }
    };
    let answer = Enhanced {
        rtr_send: false,
        rtr_read: false,
        ..wishes
    };
    let reply = Start::new(Kind::Reply, Some(answer), b"").unwrap();
    let len = reply.encode(&mut bytes).unwrap();
    peer.write_all(&bytes[..len]).unwrap();
    let _connection = asked.wait().unwrap().complete().wait().unwrap();
    // The indication is a write of no bytes; each repetition is identical.
    let mut frames = [[0; 20]; 2];
    for frame in &mut frames {
        peer.read_exact(frame).unwrap();
    }
    assert_eq!(frames[0], frames[1]);
    assert_eq!(state(&near.qp), QpState::Rts);
}

/// Bytes after the reply that a passive side has sent, before the active one has sent a frame.
struct SaidFirst {
    peer: TcpStream,
    bytes: Vec<u8>,
    _connection: Connection,
}

impl SaidFirst {
    fn by(far: &End, listener: &Listener) -> Self {
        let mut peer = TcpStream::connect(listener.address()).unwrap();
        let wishes = Enhanced::default();
        let mut bytes = [0; 1024];
        let request = Start::new(Kind::Request, Some(wishes), b"").unwrap();
        let len = request.encode(&mut bytes).unwrap();
        peer.write_all(&bytes[..len]).unwrap();
        let incoming = listener.next().wait().unwrap();
        let accepted = incoming.accept(&far.qp, ConnectionOptions::new());
        let _connection = accepted.wait().unwrap();
        let first = wr::Send::new(&b"first"[..]).signaled(1);
        far.qp.post_one(first).unwrap();
        peer.set_read_timeout(Some(test_kit::waiting::PATIENCE))
            .unwrap();
        let mut said = Self {
            peer,
            bytes: Vec::new(),
            _connection,
        };
        let reply = loop {
            said.read();
            if let Some((_, reply)) = start::decode(&said.bytes).unwrap() {
                break reply;
            }
        };
        said.bytes.drain(..reply);
        said
    }

    fn read(&mut self) {
        let mut bytes = [0; 1024];
        let len = self.peer.read(&mut bytes).unwrap();
        self.bytes.extend_from_slice(&bytes[..len]);
    }
}

// concerns 7.35
#[test]
fn a_passive_side_sends_first_only_if_configured_to() {
    let (near, far) = (End::tcp("127.0.4.28"), End::tcp("127.0.4.26"));
    let listener = far.listen();
    let mut said = SaidFirst::by(&far, &listener);
    // A frame would arrive before this answer of the device.
    near.connector.ping(listener.address()).wait().unwrap();
    said.peer.set_nonblocking(true).unwrap();
    let nothing = said.peer.read(&mut [0; 64]).unwrap_err();
    assert_eq!(
        (nothing.kind(), said.bytes),
        (ErrorKind::WouldBlock, vec![])
    );

    let far = changed("127.0.4.27", |wire| wire.speaks_first = true);
    let mut said = SaidFirst::by(&far, &far.listen());
    while !said.bytes.windows(5).any(|bytes| bytes == b"first") {
        said.read();
    }
}

// covers 7.34 7.41
#[test]
fn peers_of_another_protocol_disturb_no_connection() {
    let (near, far) = (End::tcp("127.0.4.14"), End::tcp("127.0.4.15"));
    let listener = far.listen();
    let mut liars: Vec<TcpStream> = (0..20)
        .map(|_| TcpStream::connect(listener.address()).unwrap())
        .collect();
    for (number, liar) in liars.iter_mut().enumerate() {
        let said: &[u8] = match number % 4 {
            0 => b"GET / HTTP/1.1\r\n\r\n",
            1 => b"MPA ID Rep Frame\0\x02\0\0",
            2 => b"MPA ID Req Frame\0\x02\xff\xff",
            // This peer sends a part of a request, and then nothing.
            _ => b"MPA ID Req Fra",
        };
        liar.write_all(said).unwrap();
    }
    let _both = near.connected(&far, &listener);
    say(&near, &far, b"undisturbed");
    for (number, liar) in liars.iter_mut().enumerate() {
        if number % 4 != 3 {
            // The device closes the stream without an answer.
            let mut bytes = [0; 64];
            assert!(!matches!(liar.read(&mut bytes), Ok(1..)));
        }
    }
}

#[test]
fn the_port_that_one_end_chose_is_the_one_that_its_peer_sees() {
    let (near, far) = (End::tcp("127.0.4.31"), End::tcp("127.0.4.32"));
    let listener = far.listen();
    // The port is free until the connection takes it.
    let free = std::net::TcpListener::bind("127.0.4.31:0").unwrap();
    let own = free.local_addr().unwrap();
    drop(free);
    let options = ConnectionOptions::new().source_port(own.port());
    let _asked = near.request(listener.address(), options);
    assert_eq!(listener.next().wait().unwrap().from(), Some(own));
}
