use std::io::ErrorKind;
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::net::{RecvFlags, recv};

use super::*;
use crate::sockets::classes::{ROUND, WINDOW};
use crate::sockets::receive::Message;

const V4: &str = "127.0.3.1:0";
const V6: &str = "[::1]:0";

fn socket(local: &str) -> UdpSocket {
    with(local, Offload::default())
}

fn with(local: &str, offload: Offload) -> UdpSocket {
    let options = UdpOptions {
        offload,
        ..UdpOptions::default()
    };
    UdpSocket::bind(local.parse().unwrap(), &options).unwrap()
}

/// Receives until `enough`, and gives each datagram with its message to `each`.
fn receive(socket: &UdpSocket, count: usize, mut each: impl FnMut(&Message<'_>, &[u8])) {
    let mut batch = ReceiveBatch::new(4, 65_535);
    let (mut seen, began) = (0, Instant::now());
    while seen < count {
        assert!(
            began.elapsed() < Duration::from_secs(10),
            "{seen} of {count} datagrams"
        );
        socket.receive(&mut batch).unwrap();
        for message in batch.messages() {
            for datagram in message.datagrams() {
                each(&message, datagram);
                seen += 1;
            }
        }
    }
}

fn transmit<'a>(to: &UdpSocket, pieces: &'a [Piece<'a>]) -> Transmit<'a> {
    Transmit::new(to.local(), pieces)
}

#[test]
fn a_datagram_is_gathered_and_arrives_with_its_addresses() {
    for local in [V4, V6] {
        let (from, to) = (socket(local), socket(local));
        let pieces = [Piece::from(&b"head"[..]), Piece::EMPTY, b" body"[..].into()];
        assert_eq!(from.send(&[transmit(&to, &pieces)]).unwrap(), 1);
        receive(&to, 1, |message, datagram| {
            assert_eq!(datagram, b"head body");
            assert_eq!(message.from, from.local());
            assert_eq!(message.to, Some(to.local().ip()));
            assert_eq!((message.traffic_class, message.interface), (0, None));
        });
    }
}

#[test]
fn the_traffic_class_arrives_whichever_came_first() {
    const CLASSES: [u8; 5] = [0, 1, 2, 3, 0x68 | 2];
    for (local, hop_limit) in [(V4, 0), (V4, 9), (V6, 0), (V6, 9)] {
        let pieces = [Piece::from(&b"x"[..])];
        for first in 0..CLASSES.len() {
            let (from, to) = (socket(local), socket(local));
            let mut classes = CLASSES;
            classes.rotate_left(first);
            let of = |traffic_class| Transmit {
                traffic_class,
                hop_limit,
                ..transmit(&to, &pieces)
            };
            for class in classes {
                from.send(&[of(class)]).unwrap();
                from.send(&[of(class), of(classes[0])]).unwrap();
                let mut arrived = Vec::new();
                receive(&to, 3, |message, _| arrived.push(message.traffic_class));
                assert_eq!(arrived, [class, class, classes[0]]);
            }
        }
    }
}

/// Sends so many messages one by one, and gives the class that each is told to have.
fn classes_told(
    from: &UdpSocket,
    to: &UdpSocket,
    batch: &mut ReceiveBatch,
    (count, sent): (u32, u8),
) -> Vec<u8> {
    let pieces = [Piece::from(&b"words"[..])];
    let one = |_| {
        let transmit = Transmit {
            traffic_class: sent,
            ..transmit(to, &pieces)
        };
        // Who waits for the next one looks in vain.
        assert_eq!(to.receive(batch).unwrap(), 0);
        from.send(&[transmit]).unwrap();
        assert_eq!(to.receive(batch).unwrap(), 1);
        let message = batch.messages().next().unwrap();
        assert_eq!((message.octets, message.segment), (&b"words"[..], 5));
        assert_eq!(message.from, from.local());
        assert_eq!(message.to, Some(to.local().ip()));
        message.traffic_class
    };
    (0..count).map(one).collect()
}

fn is_asked_for_classes(socket: &UdpSocket) -> bool {
    let (level, option) = match socket.local {
        SocketAddr::V4(_) => (libc::IPPROTO_IP, libc::IP_RECVTOS),
        SocketAddr::V6(_) => (libc::IPPROTO_IPV6, libc::IPV6_RECVTCLASS),
    };
    sys::number(socket.as_fd(), level, option).unwrap() != 0
}

const UNASKED: u32 = ROUND - WINDOW;

/// A pair whose second socket has just stopped asking for classes.
fn unasked(local: &str, offload: Offload, batch: &mut ReceiveBatch) -> (UdpSocket, UdpSocket) {
    let (from, to) = (socket(local), with(local, offload));
    // It is not asked to join any more.
    classes_told(&from, &to, batch, (100, 2));
    to.tell_classes(false);
    classes_told(&from, &to, batch, (WINDOW + 1, 2));
    assert!(!is_asked_for_classes(&to) && !is_asked_to_join(&to));
    (from, to)
}

#[test]
fn where_not_all_classes_are_told_those_of_a_conversation_are_now_and_then() {
    for local in [V4, V6] {
        for offload in [Offload::default(), Offload::NONE] {
            let (from, to) = (socket(local), with(local, offload));
            let mut batch = ReceiveBatch::new(4, 65_535);
            let mut told = |count, class| classes_told(&from, &to, &mut batch, (count, class));
            assert_eq!(told(200, 2), [2; 200]);
            to.tell_classes(false);
            for _ in 0..2 {
                assert_eq!(told(WINDOW, 2), [2; WINDOW as usize]);
                assert!(is_asked_for_classes(&to));
                assert_eq!(told(UNASKED, 2), [0; UNASKED as usize]);
                assert!(!is_asked_for_classes(&to));
            }
            // Congestion is noticed, and then all of it.
            assert_eq!(told(WINDOW - 1, 2), [2; WINDOW as usize - 1]);
            assert_eq!(told(200, 3), [3; 200]);
            assert_eq!(told(WINDOW, 2), [2; WINDOW as usize]);
            assert_eq!(told(UNASKED, 3), [0; UNASKED as usize]);
            assert_eq!(told(200, 3), [3; 200]);
        }
    }
}

#[test]
fn who_wants_every_class_is_told_it_from_the_next_message_on() {
    for local in [V4, V6] {
        for offload in [Offload::default(), Offload::NONE] {
            let mut batch = ReceiveBatch::new(4, 65_535);
            let (from, to) = unasked(local, offload, &mut batch);
            let pieces = [Piece::from(&b"x"[..])];
            let transmit = Transmit {
                traffic_class: 2,
                ..transmit(&to, &pieces)
            };
            // It waits already.
            from.send(&[transmit]).unwrap();
            to.tell_classes(true);
            receive(&to, 1, |message, _| assert_eq!(message.traffic_class, 2));
            let mut told = |count| classes_told(&from, &to, &mut batch, (count, 2));
            assert_eq!(told(2 * ROUND), [2; 2 * ROUND as usize]);
            // Otherwise a window comes first.
            to.tell_classes(false);
            assert_eq!(told(WINDOW), [2; WINDOW as usize]);
            assert_eq!(told(1), [0]);
        }
    }
}

#[test]
fn what_comes_several_at_once_tells_its_class_but_for_the_first_few() {
    const COUNT: usize = 200;
    for local in [V4, V6] {
        let mut batch = ReceiveBatch::new(4, 65_535);
        let (from, to) = unasked(local, Offload::NONE, &mut batch);
        let pieces = [Piece::from(&b"x"[..])];
        let transmit = Transmit {
            traffic_class: 2,
            ..transmit(&to, &pieces)
        };
        assert_eq!(to.receive(&mut batch).unwrap(), 0);
        from.send(&[transmit; COUNT]).unwrap();
        let mut told = Vec::new();
        while to.receive(&mut batch).unwrap() > 0 {
            told.extend(batch.messages().map(|message| message.traffic_class));
        }
        assert_eq!(told.len(), COUNT);
        assert!(told[4..].iter().all(|&class| class == 2), "{told:?}");
    }
}

#[test]
fn what_the_kernel_joins_tells_its_class() {
    for local in [V4, V6] {
        let (from, to) = (socket(local), socket(local));
        to.tell_classes(false);
        let mut batch = ReceiveBatch::new(4, 65_535);
        for _ in 0..2 * WINDOW {
            send_train(&from, &to);
            assert_eq!(to.receive(&mut batch).unwrap(), 1);
            let message = batch.messages().next().unwrap();
            assert_eq!((message.segment, message.traffic_class), (4156, 2));
            assert_eq!(to.receive(&mut batch).unwrap(), 0);
        }
    }
}

#[test]
fn where_not_all_classes_are_told_what_does_not_fit_is_left_out_all_the_same() {
    let (from, to) = (socket(V4), with(V4, Offload::NONE));
    to.tell_classes(false);
    let mut batch = ReceiveBatch::new(1, 5);
    classes_told(&from, &to, &mut batch, (1, 2));
    for _ in 0..2 * WINDOW {
        let pieces = [Piece::from(&b"a word"[..])];
        from.send(&[transmit(&to, &pieces)]).unwrap();
        assert_eq!(to.receive(&mut batch).unwrap(), 1);
        assert_eq!((batch.truncated(), batch.messages().count()), (1, 0));
    }
}

#[test]
fn a_socket_without_an_address_tells_where_each_datagram_was_sent() {
    for (any, one) in [("0.0.0.0:0", V4), ("[::]:0", V6)] {
        let (from, to) = (socket(one), with(any, Offload::NONE));
        let address = SocketAddr::new(from.local().ip(), to.local().port());
        let pieces = [Piece::from(&b"x"[..])];
        to.tell_classes(false);
        for _ in 0..2 * WINDOW {
            from.send(&[Transmit::new(address, &pieces)]).unwrap();
            receive(&to, 1, |message, _| {
                assert_eq!(message.to, Some(address.ip()));
                assert!(message.interface.is_some());
            });
        }
    }
}

#[test]
fn what_is_cut_by_the_kernel_arrives_datagram_by_datagram() {
    let octets: Vec<u8> = (0..60_000_u32).map(|at| (at % 251) as u8).collect();
    for local in [V4, V6] {
        for offload in [Offload::default(), Offload::NONE] {
            let (from, to) = (socket(local), with(local, offload));
            assert!(from.can_segment());
            assert_eq!(to.joins(), offload.joining);
            let pieces = [Piece::from(&octets[..]), b"tail"[..].into()];
            let transmit = Transmit {
                segment: 4156,
                ..transmit(&to, &pieces)
            };
            from.send(&[transmit]).unwrap();
            let (mut arrived, mut lengths) = (Vec::new(), Vec::new());
            receive(&to, 15, |_, datagram| {
                arrived.extend_from_slice(datagram);
                lengths.push(datagram.len());
            });
            assert_eq!(arrived[..60_000], octets[..]);
            assert_eq!(&arrived[60_000..], b"tail");
            assert!(lengths[..14].iter().all(|&length| length == 4156));
        }
    }
}

/// A train of datagrams that the kernel cuts, and joins where it is asked to.
fn send_train(from: &UdpSocket, to: &UdpSocket) {
    let octets = [7; 14 * 4156];
    let pieces = [Piece::from(&octets[..])];
    let transmit = Transmit {
        segment: 4156,
        traffic_class: 2,
        ..transmit(to, &pieces)
    };
    from.send(&[transmit]).unwrap();
}

fn send_single(from: &UdpSocket, to: &UdpSocket) {
    from.send(&[transmit(to, &[Piece::from(&b"x"[..])])])
        .unwrap();
}

/// Receives so many datagrams and gives their lengths; whether one was joined to another.
fn lengths(to: &UdpSocket, batch: &mut ReceiveBatch, count: usize) -> (Vec<usize>, bool) {
    let (mut lengths, mut joined, began) = (Vec::new(), false, Instant::now());
    while lengths.len() < count {
        assert!(began.elapsed() < Duration::from_secs(10), "{lengths:?}");
        to.receive(batch).unwrap();
        for message in batch.messages() {
            lengths.extend(message.datagrams().map(<[u8]>::len));
            joined |= message.octets.len() > message.segment;
        }
    }
    (lengths, joined)
}

fn is_asked_to_join(socket: &UdpSocket) -> bool {
    sys::number(socket.as_fd(), libc::SOL_UDP, libc::UDP_GRO).unwrap() != 0
}

#[test]
fn the_kernel_is_asked_to_join_while_something_is_joined() {
    for local in [V4, V6] {
        let (from, to) = (socket(local), socket(local));
        let mut batch = ReceiveBatch::new(4, 65_535);
        for _ in 0..3 {
            while is_asked_to_join(&to) {
                send_single(&from, &to);
                assert_eq!(lengths(&to, &mut batch, 1), (vec![1], false));
            }
            let mut trains = 0;
            while !is_asked_to_join(&to) {
                trains += 1;
                assert!(trains < 200);
                send_train(&from, &to);
                assert_eq!(lengths(&to, &mut batch, 14), (vec![4156; 14], false));
            }
            for _ in 0..10 {
                send_train(&from, &to);
                assert_eq!(lengths(&to, &mut batch, 14), (vec![4156; 14], true));
            }
        }
    }
}

#[test]
fn what_waits_joined_when_the_kernel_is_to_be_asked_no_more_is_cut() {
    // After one of these it is to be asked no more.
    for before in 0..100 {
        let (from, to) = (socket(V4), socket(V4));
        let mut batch = ReceiveBatch::new(4, 65_535);
        for _ in 0..before {
            send_single(&from, &to);
            lengths(&to, &mut batch, 1);
        }
        let asked = is_asked_to_join(&to);
        send_single(&from, &to);
        send_train(&from, &to);
        let (lengths, joined) = lengths(&to, &mut batch, 15);
        assert_eq!((lengths[0], &lengths[1..]), (1, &[4156; 14][..]));
        assert_eq!(joined, asked, "{before}");
    }
}

#[test]
fn a_batch_goes_out_in_order() {
    let (from, to) = (socket(V4), socket(V4));
    let numbers: Vec<_> = (0..100_u32).map(u32::to_be_bytes).collect();
    let pieces: Vec<_> = numbers
        .iter()
        .map(|number| [Piece::from(&number[..])])
        .collect();
    let transmits: Vec<_> = pieces.iter().map(|pieces| transmit(&to, pieces)).collect();
    assert_eq!(from.send(&transmits).unwrap(), 100);
    let mut next = 0_u32;
    receive(&to, 100, |_, datagram| {
        assert_eq!(datagram, next.to_be_bytes());
        next += 1;
    });
}

#[test]
fn an_empty_socket_answers_at_once() {
    let mut batch = ReceiveBatch::new(4, 2048);
    assert_eq!(socket(V4).receive(&mut batch).unwrap(), 0);
    assert_eq!(batch.messages().count(), 0);
}

#[test]
fn what_does_not_fit_is_left_out_and_counted() {
    let (from, to) = (socket(V4), with(V4, Offload::NONE));
    for octets in [&[1; 10][..], &[2; 11], &[3; 10]] {
        from.send(&[transmit(&to, &[octets.into()])]).unwrap();
    }
    let mut batch = ReceiveBatch::new(3, 10);
    let (mut arrived, mut truncated) = (Vec::new(), 0);
    while to.receive(&mut batch).unwrap() > 0 {
        arrived.extend(batch.messages().map(|message| message.octets[0]));
        truncated += batch.truncated();
    }
    assert_eq!((arrived, truncated), (vec![1, 3], 1));
}

#[test]
fn longer_than_a_datagram_can_be_is_refused() {
    let (from, to) = (socket(V4), socket(V4));
    let octets = vec![0; MAX_OCTETS + 1];
    let most = [Piece::from(&octets[..MAX_OCTETS])];
    let over = [Piece::from(&octets[..])];
    assert!(matches!(
        from.send(&[transmit(&to, &over)]),
        Err(SendError::TooLong)
    ));
    assert_eq!(from.send(&[transmit(&to, &most)]).unwrap(), 1);
}

#[test]
fn a_refusal_tells_what_was_sent_before_it() {
    let (from, to) = (socket(V4), socket(V4));
    let octets = vec![0; MAX_OCTETS + 1];
    let (good, bad) = ([Piece::from(&octets[..4])], [Piece::from(&octets[..])]);
    let transmits = [
        transmit(&to, &good),
        transmit(&to, &bad),
        transmit(&to, &good),
    ];
    assert_eq!(from.send(&transmits).unwrap(), 1);
}

#[test]
fn a_segment_that_the_path_does_not_carry_is_refused_and_nothing_is_sent() {
    let (from, to) = (socket(V4), socket(V4));
    let octets = vec![0; 60_000];
    let pieces = [Piece::from(&octets[..])];
    let unusable = Transmit {
        // 60,000 octets in datagrams of 1: more than a call may have.
        segment: 1,
        ..transmit(&to, &pieces)
    };
    assert!(matches!(
        from.send(&[unusable]),
        Err(SendError::NoSegmentation)
    ));
    assert!(!from.can_segment());
    let mut batch = ReceiveBatch::new(1, 65_535);
    assert_eq!(to.receive(&mut batch).unwrap(), 0);
}

#[test]
fn nobody_at_the_other_end_is_no_error() {
    let (from, gone) = (socket(V4), socket(V4).local());
    let pieces = [Piece::from(&b"x"[..])];
    for _ in 0..5 {
        assert_eq!(from.send(&[Transmit::new(gone, &pieces)]).unwrap(), 1);
        let mut batch = ReceiveBatch::new(1, 100);
        assert_eq!(from.receive(&mut batch).unwrap(), 0);
    }
}

#[test]
fn an_address_of_another_machine_is_refused() {
    let bound = UdpSocket::bind("203.0.113.1:0".parse().unwrap(), &UdpOptions::default());
    assert_eq!(bound.unwrap_err().kind(), ErrorKind::AddrNotAvailable);
    let taken = socket(V4);
    let bound = UdpSocket::bind(taken.local(), &UdpOptions::default());
    assert_eq!(bound.unwrap_err().kind(), ErrorKind::AddrInUse);
}

#[test]
fn the_path_of_loopback_is_known() {
    for local in [V4, V6] {
        let address: SocketAddr = local.parse().unwrap();
        let to = SocketAddr::new(address.ip(), 9);
        assert!(path_mtu(address.ip(), to).unwrap() >= 16_384);
        assert!(interface_mtu(address).unwrap() >= 16_384);
    }
}

/// An interface with an address of either kind, until it is dropped.
struct Interface(String);

impl Interface {
    fn new(mtu: u32, addresses: [&str; 2]) -> Self {
        let name = format!("pv{}", std::process::id());
        let this = Self(name.clone());
        ip(&format!(
            "link add {name} mtu {mtu} type veth peer name {name}b"
        ));
        ip(&format!("addr add {}/24 dev {name}", addresses[0]));
        ip(&format!("addr add {}/64 dev {name} nodad", addresses[1]));
        ip(&format!("link set {name}b up"));
        ip(&format!("link set {name} up"));
        this
    }
}

impl Drop for Interface {
    fn drop(&mut self) {
        ip(&format!("link del {}", self.0));
    }
}

fn ip(arguments: &str) {
    let status = Command::new("ip").args(arguments.split(' ')).status();
    assert!(status.unwrap().success(), "ip {arguments}");
}

// The way from the machine to itself has loopback's, whichever address it has.
#[test]
#[ignore = "needs root and ip: tests/foreign runs it"]
fn what_an_interface_carries_is_not_what_loopback_does() {
    let addresses = ["198.18.77.1", "fd77::1"];
    let _interface = Interface::new(1500, addresses);
    for address in addresses {
        let local = SocketAddr::new(address.parse().unwrap(), 0);
        assert_eq!(interface_mtu(local).unwrap(), 1500, "{address}");
        let to = SocketAddr::new(local.ip(), 9);
        assert!(path_mtu(local.ip(), to).unwrap() >= 16_384);
    }
}

/// What a checksum over the IP header relies on. A dissector's view: it needs the right to open a raw socket.
#[test]
#[ignore = "needs root: tests/foreign runs it"]
fn the_identification_is_0_and_df_is_set() {
    let raw = socket_with(
        AddressFamily::INET,
        SocketType::RAW,
        SocketFlags::NONBLOCK,
        Some(rustix::net::ipproto::UDP),
    )
    .expect("the right to open a raw socket");
    let (from, to) = (socket("127.0.3.2:0"), socket("127.0.3.2:0"));
    let octets = [0; 3000];
    let pieces = [Piece::from(&octets[..])];
    for segment in [0, 0, 1000] {
        let transmit = Transmit {
            segment,
            ..transmit(&to, &pieces)
        };
        from.send(&[transmit]).unwrap();
    }
    let (mut seen, mut packet) = (0, [0; 65_535]);
    while seen < 3 {
        let (length, _) = recv(&raw, &mut packet[..], RecvFlags::empty()).expect("three packets");
        let ours =
            packet[12..16] == [127, 0, 3, 2] && packet[22..24] == to.local().port().to_be_bytes();
        if length >= 28 && ours {
            assert_eq!(packet[4..8], [0, 0, 0x40, 0]);
            seen += 1;
        }
    }
}

#[test]
fn the_way_to_an_address_of_this_machine_begins_at_it() {
    let source = |to: &str| source_of(to.parse().unwrap());
    assert_eq!(source("127.0.0.1:1").unwrap().to_string(), "127.0.0.1");
    assert_eq!(source("[::1]:1").unwrap().to_string(), "::1");
    // An address of the documentation's: where there is a way at all, it does not begin there.
    assert!(source("192.0.2.1:1").map_or(true, |from| from.to_string() != "192.0.2.1"));
}
