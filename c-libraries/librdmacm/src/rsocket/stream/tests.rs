//! Two connected streams in this process.

use std::thread;

use test_kit::waiting::{PATIENCE, until};

use super::*;

// Devices at an address of their own, where no other process answers.
const DEVICES: &str = r#"
[[device]]
address = "127.0.41.22"

[[device]]
address = "127.0.41.22"
transport = "iwarp"

[[device]]
name = "iw1"
address = "127.0.41.23"
transport = "iwarp"
"#;

/// A port of the devices of these tests. Everything that uses devices begins here.
pub(in super::super) fn at(port: u16) -> SocketAddr {
    test_kit::configure(DEVICES);
    SocketAddr::from(([127, 0, 41, 22], port))
}

// Two connected sockets in this process.
fn pair(prepare: impl Fn(&Stream)) -> (Arc<Stream>, Arc<Stream>) {
    pair_from(None, prepare)
}

// Two connected sockets, the connecting one bound to `from` if that is given.
fn pair_from(from: Option<SocketAddr>, prepare: impl Fn(&Stream)) -> (Arc<Stream>, Arc<Stream>) {
    let listener = Stream::new(Family::V4);
    prepare(&listener);
    listener.bind(at(0)).unwrap();
    listener.listen(4).unwrap();
    let to = listener.local();
    assert_ne!(to.port(), 0);
    let active = Stream::new(Family::V4);
    prepare(&active);
    from.into_iter().for_each(|from| active.bind(from).unwrap());
    let accepting = thread::spawn(move || {
        let accepted = listener.accept().unwrap().0;
        (listener, accepted)
    });
    active.connect(to).unwrap();
    let (listener, passive) = accepting.join().unwrap();
    listener.close();
    (active, passive)
}

fn small(stream: &Stream) {
    stream.with_options(|options, _| {
        options.sizes.ring = 8192;
        options.sizes.send_ring = 8192;
        options.sizes.receives = 16;
        options.sizes.sends = 16;
        options.sizes.maps = 2;
    });
}

fn send_all(stream: &Stream, bytes: &[u8]) {
    let sent = stream.send(&[IoSlice::new(bytes)], Mode::default());
    assert_eq!(sent, Ok(bytes.len()));
}

fn receive(stream: &Stream, most: usize, mode: Mode) -> Result<Vec<u8>, Errno> {
    let mut bytes = vec![0; most];
    let length = stream.receive(&mut [IoSliceMut::new(&mut bytes)], mode)?;
    bytes.truncate(length);
    Ok(bytes)
}

const ALL: Mode = Mode {
    no_wait: false,
    peek: false,
    all: true,
};

#[test]
fn bytes_go_round_small_rings_in_both_directions() {
    let (active, passive) = pair(small);
    let bytes: Vec<u8> = (0..100_000_u32).map(|n| (n * 7 / 3) as u8).collect();
    let expected = bytes.clone();
    let echo = thread::spawn(move || {
        let all = receive(&passive, 100_000, ALL).unwrap();
        let (first, rest) = all.split_at(33);
        let parts = [IoSlice::new(first), IoSlice::new(rest)];
        assert_eq!(passive.send(&parts, Mode::default()), Ok(100_000));
        passive.close();
    });
    send_all(&active, &bytes[..50_001]);
    for piece in bytes[50_001..].chunks(61) {
        send_all(&active, piece);
    }
    assert_eq!(receive(&active, 100_000, ALL), Ok(expected));
    assert_eq!(receive(&active, 1, ALL), Ok(Vec::new()), "the end");
    echo.join().unwrap();
    active.close();
}

#[test]
fn peeked_bytes_stay_and_nonblocking_reads_do_not_wait() {
    let (active, passive) = pair(|_| {});
    let no_wait = Mode {
        no_wait: true,
        ..Mode::default()
    };
    assert_eq!(receive(&passive, 9, no_wait), Err(AGAIN));
    send_all(&active, b"hello");
    let peek = Mode {
        peek: true,
        ..Mode::default()
    };
    assert_eq!(receive(&passive, 4, peek).unwrap(), b"hell");
    assert_eq!(receive(&passive, 9, Mode::default()).unwrap(), b"hello");
    active.waiting.set_nonblocking(true);
    let block = vec![0; 1 << 20];
    let sent = active
        .send(&[IoSlice::new(&block)], Mode::default())
        .unwrap();
    assert!((1..block.len()).contains(&sent), "{sent}");
    active.waiting.set_nonblocking(false);
    let reader = thread::spawn(move || {
        let all = receive(&passive, 1 << 20, ALL).unwrap().len();
        passive.close();
        all
    });
    send_all(&active, &block[sent..]);
    assert_eq!(reader.join().unwrap(), 1 << 20);
    active.close();
}

#[test]
fn a_listener_at_the_ipv6_wildcard_accepts_ipv4() {
    let to = at(0);
    let listener = Stream::new(Family::V6);
    listener.bind(Family::V6.unspecified()).unwrap();
    listener.listen(4).unwrap();
    let port = listener.local().port();
    let mapped =
        |port| SocketAddr::new(Ipv4Addr::new(127, 0, 41, 22).to_ipv6_mapped().into(), port);
    for (family, to) in [
        (Family::V4, SocketAddr::new(to.ip(), port)),
        (Family::V6, mapped(port)),
    ] {
        let active = Stream::new(family);
        let accepting = thread::spawn({
            let listener = Arc::clone(&listener);
            move || listener.accept().unwrap()
        });
        active.connect(to).unwrap();
        let (passive, peer) = accepting.join().unwrap();
        assert_eq!(peer, mapped(active.local().port()));
        assert_eq!(passive.local(), mapped(port));
        assert_eq!(active.peer(), Ok(to));
        active.close();
        passive.close();
    }
    listener.close();
    let alone = Stream::new(Family::V6);
    alone.with_options(|options, _| {
        let on = 1_u32.to_ne_bytes();
        options
            .set(libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, &on, false)
            .unwrap();
    });
    // There is no device at an IPv6 address.
    assert_eq!(alone.listen(4), Err(Errno(libc::ENODEV)));
}

#[test]
fn each_side_has_the_address_that_the_other_sees() {
    let bound = at(47471);
    for from in [None, Some(bound)] {
        let (active, passive) = pair_from(from, |_| {});
        let own = active.local();
        assert_ne!(own.port(), 0);
        assert_eq!(own, from.unwrap_or(own));
        send_all(&active, b"x");
        assert_eq!(receive(&passive, 1, ALL).unwrap(), b"x");
        assert_eq!(passive.peer(), Ok(own));
        assert_eq!(active.peer(), Ok(passive.local()));
        active.close();
        passive.close();
    }
}

fn listening(backlog: usize) -> Arc<Stream> {
    let listener = Stream::new(Family::V4);
    small(&listener);
    listener.bind(at(0)).unwrap();
    listener.listen(backlog).unwrap();
    listener
}

#[test]
fn peers_are_connected_before_the_program_accepts_them() {
    let listener = listening(4);
    let connected = || {
        let active = Stream::new(Family::V4);
        active.connect(listener.local()).unwrap();
        active
    };
    let (first, second) = (connected(), connected());
    send_all(&second, b"2");
    for (active, bytes) in [(first, "1"), (second, "2")] {
        let (passive, peer) = listener.accept().unwrap();
        assert_eq!((peer, passive.is_open()), (active.local(), true));
        if bytes == "1" {
            send_all(&active, b"1");
        }
        assert_eq!(receive(&passive, 1, ALL).unwrap(), bytes.as_bytes());
        active.close();
        passive.close();
    }
    // As with TCP: the connection is reset that the program has not accepted.
    let left = connected();
    listener.close();
    assert_eq!(receive(&left, 1, ALL), Err(Errno(libc::ECONNRESET)));
    left.close();
    assert_eq!(listener.accept().err(), Some(Errno::INVAL));
}

#[test]
fn peers_beyond_the_backlog_wait_and_are_not_refused() {
    let listener = listening(0);
    let to = listener.local();
    let connecting = move || {
        let active = Stream::new(Family::V4);
        small(&active);
        active.connect(to).map(|()| active)
    };
    let actives: Vec<_> = (0..8).map(|_| thread::spawn(connecting)).collect();
    let passives: Vec<_> = (0..8).map(|_| listener.accept().unwrap().0).collect();
    for active in actives {
        active.join().unwrap().unwrap().close();
    }
    passives.iter().for_each(|passive| passive.close());
    listener.close();
}

#[test]
fn clients_that_connect_at_the_same_time_are_not_refused() {
    const CLIENTS: usize = 150;
    let listener = listening(1);
    let to = listener.local();
    let connecting = || {
        let active = Stream::new(Family::V4);
        small(&active);
        active.waiting.set_nonblocking(true);
        assert_eq!(active.connect(to).err(), Some(Errno(libc::EINPROGRESS)));
        active
    };
    let actives: Vec<_> = (0..CLIENTS).map(|_| connecting()).collect();
    listener.waiting.set_nonblocking(true);
    let mut passives = Vec::new();
    until(|| {
        passives.extend(listener.accept().map(|(passive, _)| passive));
        let failed = |active: &&Arc<Stream>| active.state.lock().error.is_some();
        assert_eq!(actives.iter().filter(failed).count(), 0);
        passives.len() == CLIENTS
    });
    for (active, passive) in actives.iter().zip(&passives) {
        active.close();
        passive.close();
    }
    listener.close();
}

#[test]
fn both_ends_have_the_same_ports_on_each_transport() {
    for address in [at(0).ip(), "127.0.41.23".parse().unwrap()] {
        let listener = Stream::new(Family::V4);
        listener.bind(SocketAddr::new(address, 0)).unwrap();
        listener.listen(1).unwrap();
        let active = Stream::new(Family::V4);
        active.connect(listener.local()).unwrap();
        let (passive, peer) = listener.accept().unwrap();
        assert_ne!(active.local().port(), 0);
        assert_eq!(peer, active.local());
        assert_eq!(passive.peer(), Ok(active.local()));
        assert_eq!(active.peer(), Ok(passive.local()));
        for stream in [active, passive, listener] {
            stream.close();
        }
    }
}

#[test]
fn a_peer_that_does_not_complete_its_connection_is_not_accepted() {
    let listener = listening(1);
    let device = device::at(at(0).ip()).unwrap().remove(0);
    let asker = Stream::new(Family::V4);
    let (qp, options) = asker.make_qp(&device).unwrap();
    let asked = device.connector.request(&qp, listener.local(), options);
    let answered = asked.wait().unwrap();
    assert!(!listener.ready(false).read);
    let active = Stream::new(Family::V4);
    active.connect(listener.local()).unwrap();
    assert_eq!(listener.accept().unwrap().1, active.local());
    drop(answered);
    listener.waiting.set_nonblocking(true);
    assert_eq!(listener.accept().err(), Some(AGAIN));
    active.close();
    listener.close();
    asker.close();
}

#[test]
fn one_direction_ends_before_the_other() {
    let (active, passive) = pair(|_| {});
    send_all(&active, b"last");
    active.shutdown(false, true).unwrap();
    let refused = active.send(&[IoSlice::new(b"x")], Mode::default());
    assert_eq!(refused, Err(Errno(libc::EPIPE)));
    assert_eq!(receive(&passive, 10, ALL).unwrap(), b"last");
    assert_eq!(receive(&passive, 10, ALL).unwrap(), b"");
    assert!(passive.ready(false).read && passive.ready(false).write);
    assert!(!passive.ready(false).hang_up);
    send_all(&passive, b"still");
    passive.close();
    assert_eq!(receive(&active, 10, ALL).unwrap(), b"still");
    assert!(active.ready(false).hang_up);
    active.close();
}

#[test]
fn connecting_without_a_listener_is_refused() {
    let active = Stream::new(Family::V4);
    let refused = active.connect(at(1));
    assert_eq!(refused, Err(Errno(libc::ECONNREFUSED)));
    active.close();
    let active = Stream::new(Family::V4);
    active.waiting.set_nonblocking(true);
    let begun = active.connect(at(1));
    assert_eq!(begun, Err(Errno(libc::EINPROGRESS)));
    let failed = active.until(false, Deadline::after(PATIENCE), |state| {
        state.ready().error.then(|| Ok(state.error.take()))
    });
    // No other call has polled a non-blocking socket.
    active.waiting.set_nonblocking(false);
    assert_eq!(failed, Ok(Some(Errno(libc::ECONNREFUSED))));
    active.close();
}

#[test]
#[allow(unsafe_code)]
fn mapped_memory_is_written_before_what_is_sent_behind() {
    let (active, passive) = pair(small);
    let mut room = vec![0_u8; 20_000];
    let address = room.as_mut_ptr();
    // SAFETY: the memory lives until it is unmapped below, and is read only when the peer has written it.
    let mapped = unsafe { passive.map(address, 20_000, true, Some(7_000)) };
    assert_eq!(mapped, Ok(7_000));
    send_all(&passive, b"go");
    assert_eq!(receive(&active, 2, ALL).unwrap(), b"go");
    let bytes: Vec<u8> = (0..15_000_u32).map(|n| n as u8).collect();
    assert_eq!(active.write_at(&bytes, 8_000, Mode::default()), Ok(15_000));
    let outside = active.write_at(&bytes, 6_000, Mode::default());
    assert_eq!(outside, Err(Errno::INVAL));
    send_all(&active, b"done");
    assert_eq!(receive(&passive, 4, ALL).unwrap(), b"done");
    passive.unmap(address.addr(), 20_000).unwrap();
    assert_eq!(passive.unmap(address.addr(), 20_000), Err(Errno::INVAL));
    assert_eq!(&room[1_000..16_000], bytes);
    assert!(room[..1_000].iter().all(|byte| *byte == 0));
    active.close();
    passive.close();
}
