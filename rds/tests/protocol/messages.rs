//! Messages from one socket to another.

use polyverbs_rds::SocketOptions;
use polyverbs_rds::protocol::{HostLimits, PathState, PortError, Refused};
use polyverbs_wire::rds::{Extension, FRAGMENT, Flags};

use crate::net::{Net, Seen, at, content};

fn two(seed: u64) -> Net {
    Net::new(2, HostLimits::default(), seed)
}

/// The messages that a host has sent from one port.
fn sent_by(net: &Net, host: usize, port: u16) -> Vec<Seen> {
    let is_meant = |seen: &&Seen| seen.from == host && seen.header.source_port == port;
    net.seen.iter().filter(is_meant).cloned().collect()
}

// covers 8.20
#[test]
fn one_connection_keeps_the_order_of_eight_times_eight_pairs() {
    let mut net = two(1);
    let from: Vec<_> = (0..8).map(|number| net.bind(0, 100 + number)).collect();
    let to: Vec<_> = (0..8).map(|number| net.bind(1, 200 + number)).collect();
    for number in 0..100_u64 {
        for &socket in &from {
            for port in 200..208 {
                let sent = net.send(0, socket, at(1, port), &number.to_be_bytes());
                sent.unwrap();
            }
        }
    }
    net.settle();
    for &socket in &to {
        let received = net.receive_all(1, socket);
        assert_eq!(received.len(), 800);
        for port in 100..108 {
            let of_port = received.iter().filter(|(from, _)| *from == at(0, port));
            let numbers =
                of_port.map(|(_, bytes)| u64::from_be_bytes(bytes[..].try_into().unwrap()));
            assert!(numbers.eq(0..100));
        }
    }
    assert_eq!(net.asked.len(), 1);
}

// covers 8.20
#[test]
fn messages_keep_the_order_of_all_sockets_of_a_connection() {
    let mut net = two(2);
    let from = [net.bind(0, 100), net.bind(0, 101)];
    let to = net.bind(1, 200);
    for number in 0..100_u8 {
        let socket = from[usize::from(number % 2)];
        net.send(0, socket, at(1, 200), &[number]).unwrap();
    }
    net.settle();
    let received = net.receive_all(1, to);
    let numbers = received.iter().map(|(_, bytes)| bytes[0]);
    assert!(numbers.eq(0..100));
}

// covers 8.21
#[test]
fn a_port_has_one_socket_and_port_1_has_none() {
    let mut net = two(3);
    let socket = net.bind(0, 4000);
    let options = SocketOptions::default();
    assert_eq!(net.host(0).bind(4000, options), Err(PortError::InUse(4000)));
    assert_eq!(net.host(0).bind(1, options), Err(PortError::Reserved));
    net.bind(1, 4000);
    net.close(0, socket);
    net.bind(0, 4000);
}

// covers 8.21
#[test]
fn port_0_binds_a_free_port_until_all_are_taken() {
    let mut net = two(4);
    let mut ports: Vec<u16> = (2..=u16::MAX)
        .map(|_| net.host(0).bind(0, SocketOptions::default()).unwrap().1)
        .collect();
    assert_eq!(
        net.host(0).bind(0, SocketOptions::default()),
        Err(PortError::Exhausted)
    );
    ports.sort_unstable();
    assert!(ports.into_iter().eq(2..=u16::MAX));
}

// covers 8.25
#[test]
fn earlier_unacknowledged_bytes_decide_if_a_message_fits() {
    let mut net = two(5);
    let options = SocketOptions {
        send_buffer: 1000,
        ..SocketOptions::default()
    };
    let socket = net.bind_with(0, 100, options);
    let to = net.bind(1, 200);
    net.send(0, socket, at(1, 200), &[1; 999]).unwrap();
    net.send(0, socket, at(1, 200), &[2; 1000]).unwrap();
    assert!(!net.host(0).readiness(socket).writable);
    assert_eq!(
        net.send(0, socket, at(1, 200), &[]),
        Err(Refused::NoRoom),
        "no message is taken, however short"
    );
    net.settle();
    assert_eq!(net.receive_all(1, to).len(), 2);
    net.send(0, socket, at(1, 200), &[3; 1000]).unwrap();
}

// covers 8.25 8.30
#[test]
fn the_acknowledge_and_not_the_completion_frees_the_buffer() {
    let mut net = two(6);
    let options = SocketOptions {
        send_buffer: 1000,
        ..SocketOptions::default()
    };
    let socket = net.bind_with(0, 100, options);
    net.bind(1, 200);
    net.connect_hosts(0, 1);
    net.send(0, socket, at(1, 200), &[1; 1000]).unwrap();
    let path = net.path(0, 1).unwrap();
    let request = u64::MAX;
    net.host(0).handle_completion(path, request);
    assert!(!net.host(0).readiness(socket).writable);
    net.sides[0].woken.clear();
    net.settle();
    assert!(net.host(0).readiness(socket).writable);
    assert!(net.sides[0].woken.contains(&socket));
}

// covers 8.27 8.38
#[test]
fn a_cookie_travels_in_an_extension_header() {
    let mut net = two(7);
    let socket = net.bind(0, 100);
    let to = net.bind(1, 200);
    let cookie = 123 << 32 | 0xaabb_ccdd;
    let mut message = net.message(at(1, 200), b"here it is");
    message.cookie = Some(cookie);
    net.send_message(0, socket, message).unwrap();
    net.settle();
    let seen = sent_by(&net, 0, 100);
    let extensions: Vec<_> = seen[0].header.extensions.iter().collect();
    let offset = 123;
    let rkey = 0xaabb_ccdd;
    assert_eq!(extensions, [Extension::RdmaDestination { rkey, offset }]);
    let queued = net.host(1).peek(to).unwrap();
    assert_eq!(queued.cookie, Some(cookie));
}

// covers 8.28
#[test]
fn each_fragment_has_a_header_and_up_to_4096_bytes() {
    for length in [0, 1, 4095, 4096, 4097, 8192, 8193, 1 << 20] {
        let mut net = two(8);
        let socket = net.bind(0, 100);
        let to = net.bind(1, 200);
        let bytes = content(1, length);
        net.send(0, socket, at(1, 200), &bytes).unwrap();
        net.settle();
        let seen = sent_by(&net, 0, 100);
        assert_eq!(seen.len(), length.div_ceil(FRAGMENT).max(1));
        for (number, fragment) in seen.iter().enumerate() {
            assert_eq!(fragment.header.length as usize, length);
            assert_eq!(fragment.header.sequence, seen[0].header.sequence);
            assert_eq!(fragment.header.destination_port, 200);
            let left = length - number * FRAGMENT;
            assert_eq!(fragment.length, left.min(FRAGMENT));
        }
        assert_eq!(net.receive_all(1, to), [(at(0, 100), bytes)]);
    }
}

// covers 8.30
#[test]
fn every_eighth_message_and_a_half_full_buffer_ask_for_acks() {
    let mut net = two(9);
    let socket = net.bind(0, 100);
    net.bind(1, 200);
    net.connect_hosts(0, 1);
    net.seen.clear();
    (0..20).for_each(|_| net.send(0, socket, at(1, 200), &[1]).unwrap());
    net.settle();
    let asks = |net: &Net| -> Vec<bool> {
        let flags = sent_by(net, 0, 100)
            .into_iter()
            .map(|seen| seen.header.flags);
        flags
            .map(|flags| flags.contains(Flags::ACK_REQUIRED))
            .collect()
    };
    let asked = asks(&net);
    assert_eq!(asked.len(), 20);
    // The message that connected the hosts was sent before these.
    let places: Vec<_> = (0..20).filter(|&number| asked[number]).collect();
    assert_eq!(places, [7, 16]);

    let options = SocketOptions {
        send_buffer: 1000,
        ..SocketOptions::default()
    };
    let socket = net.bind_with(0, 101, options);
    net.send(0, socket, at(1, 200), &[1; 499]).unwrap();
    net.send(0, socket, at(1, 200), &[1]).unwrap();
    let seen = sent_by(&net, 0, 101);
    let flags: Vec<_> = seen.iter().map(|seen| seen.header.flags).collect();
    assert_eq!(flags, [Flags::empty(), Flags::ACK_REQUIRED]);
}

// covers 8.30
#[test]
fn an_acknowledge_covers_all_messages_before_it() {
    let mut net = two(10);
    let socket = net.bind(0, 100);
    net.bind(1, 200);
    net.connect_hosts(0, 1);
    net.seen.clear();
    (0..50).for_each(|_| net.send(0, socket, at(1, 200), &[1]).unwrap());
    net.settle();
    let sent = sent_by(&net, 0, 100).len();
    let acks: Vec<_> = net.seen.iter().filter(|seen| seen.from == 1).collect();
    assert!(!acks.is_empty() && acks.len() < sent / 4, "{}", acks.len());
    assert!(acks.iter().all(|seen| seen.header.is_ack_only(seen.length)));
    let last = acks.last().unwrap().header.ack;
    let path = net.host(0).paths().next().unwrap();
    assert_eq!(last + 1 + path.unacknowledged as u64, path.next_transmit);
}

// covers 8.29 8.31
#[test]
fn cutting_at_any_fragment_loses_and_repeats_no_message() {
    for seed in 1..=3 {
        for fragments in 0..40 {
            let mut net = two(seed);
            let from = [net.bind(0, 100), net.bind(0, 101)];
            let to = net.bind(1, 200);
            net.connect_hosts(0, 1);
            net.cut_after(0, 1, fragments);
            let lengths = [0, 1, 5000, 4096, 20_000, 0, 9000, 100];
            for (number, &length) in lengths.iter().enumerate() {
                let bytes = content(number as u64, length);
                net.send(0, from[number % 2], at(1, 200), &bytes).unwrap();
            }
            net.settle();
            let received = net.receive_all(1, to);
            let received: Vec<_> = received.into_iter().map(|(_, bytes)| bytes).collect();
            let expected = lengths.iter().enumerate();
            let expected: Vec<_> = expected
                .map(|(number, &length)| content(number as u64, length))
                .collect();
            assert_eq!(received, expected, "cut after {fragments} fragments");
        }
    }
}

// covers 8.31
#[test]
fn unacknowledged_messages_are_retransmitted_first() {
    let mut net = two(11);
    let socket = net.bind(0, 100);
    let to = net.bind(1, 200);
    net.connect_hosts(0, 1);
    // The next connection begins with the map, which is two fragments.
    net.cut_after(0, 1, 3);
    let lengths = [10, 10_000, 10, 10];
    for (number, &length) in lengths.iter().enumerate() {
        net.send(0, socket, at(1, 200), &content(number as u64, length))
            .unwrap();
    }
    let first = net.seen.last().unwrap().connection;
    net.until(|net| net.state(0, 1) != PathState::Up);
    net.send(0, socket, at(1, 200), &content(4, 10)).unwrap();
    net.settle();
    let seen = sent_by(&net, 0, 100);
    let again: Vec<_> = seen
        .iter()
        .filter(|seen| seen.connection != first)
        .collect();
    assert!(again.is_sorted_by_key(|seen| seen.header.sequence));
    let both = Flags::ACK_REQUIRED | Flags::RETRANSMITTED;
    let marked: Vec<_> = again.iter().map(|seen| seen.header.flags == both).collect();
    // The reply acknowledges the first message. The others have three, one and one fragments, and the new message has one.
    assert_eq!(marked, [true, true, true, true, true, false]);
    assert_eq!(net.receive_all(1, to).len(), 5);
}

// covers 8.31
#[test]
fn each_connection_begins_with_the_whole_congestion_map() {
    let mut net = two(12);
    net.connect_hosts(0, 1);
    for _ in 0..3 {
        net.seen.clear();
        net.cut(0, 1);
        net.settle();
        for host in 0..2 {
            let of_host = net.seen.iter().filter(|seen| seen.from == host);
            let maps: Vec<_> = of_host
                .take(2)
                .map(|seen| (seen.header.flags, seen.header.length, seen.length))
                .collect();
            assert_eq!(maps, [(Flags::CONG_BITMAP, 8192, 4096); 2]);
        }
    }
}

// covers 8.29
#[test]
fn a_low_sequence_number_is_dropped_only_if_retransmitted() {
    let mut net = two(13);
    let to = net.bind(1, 200);
    net.connect_hosts(0, 1);
    let arrives = |net: &mut Net, sequence, flags| {
        let header = polyverbs_wire::rds::Header {
            sequence,
            source_port: 100,
            destination_port: 200,
            flags,
            length: 1,
            ..Default::default()
        };
        net.inject(1, 0, &header.to_bytes(), &[1]).unwrap();
        net.receive_all(1, to).len()
    };
    assert_eq!(arrives(&mut net, 1000, Flags::empty()), 1);
    assert_eq!(arrives(&mut net, 1000, Flags::RETRANSMITTED), 0);
    assert_eq!(arrives(&mut net, 5, Flags::RETRANSMITTED), 0);
    assert_eq!(
        arrives(&mut net, 2000, Flags::RETRANSMITTED),
        1,
        "gaps are legal"
    );
    assert_eq!(
        arrives(&mut net, 5, Flags::empty()),
        1,
        "of a host that is new"
    );
    assert_eq!(arrives(&mut net, 6, Flags::RETRANSMITTED), 1);
}

// covers 8.36
#[test]
fn cancelled_messages_are_not_sent_and_others_keep_order() {
    let mut net = two(14);
    let from = [net.bind(0, 100), net.bind(0, 101)];
    let to = [net.bind(1, 200), net.bind(1, 201)];
    for number in 0..30_u8 {
        for socket in from {
            for port in [200, 201] {
                net.send(0, socket, at(1, port), &[number]).unwrap();
            }
        }
    }
    // Nothing was sent yet, because there is no connection.
    let pending = net.cancel(0, from[0], Some(at(1, 200)));
    assert_eq!(pending, []);
    net.settle();
    let at_200 = net.receive_all(1, to[0]);
    assert!(at_200.iter().all(|(from, _)| *from == at(0, 101)));
    assert_eq!(at_200.len(), 30);
    let at_201 = net.receive_all(1, to[1]);
    for port in [100, 101] {
        let numbers = at_201.iter().filter(|(from, _)| *from == at(0, port));
        assert!(numbers.map(|(_, bytes)| bytes[0]).eq(0..30));
    }
    let readiness = net.host(0).readiness(from[0]);
    assert!(readiness.writable);
}

// covers 8.36
#[test]
fn a_cancel_without_destination_applies_to_all() {
    let mut net = Net::new(3, HostLimits::default(), 15);
    let socket = net.bind(0, 100);
    let to = [net.bind(1, 200), net.bind(2, 200)];
    for host in [1, 2] {
        net.send(0, socket, at(host, 200), &[1]).unwrap();
    }
    net.cancel(0, socket, None);
    net.settle();
    assert_eq!(net.receive_all(1, to[0]).len(), 0);
    assert_eq!(net.receive_all(2, to[1]).len(), 0);
}

// covers 8.36
#[test]
fn cancelled_messages_are_not_retransmitted() {
    let mut net = two(16);
    let socket = net.bind(0, 100);
    let to = net.bind(1, 200);
    net.connect_hosts(0, 1);
    net.cut_after(0, 1, 0);
    net.send(0, socket, at(1, 200), &[1; 9000]).unwrap();
    net.cancel(0, socket, None);
    net.send(0, socket, at(1, 200), &[2; 9000]).unwrap();
    net.settle();
    assert_eq!(net.receive_all(1, to), [(at(0, 100), vec![2; 9000])]);
    assert!(net.fragments_held() <= 3);
}

// covers 8.45
#[test]
fn a_ping_is_answered_from_port_0_and_reaches_no_socket() {
    let mut net = two(17);
    let socket = net.bind(0, 100);
    let other = net.bind(1, 100);
    net.send(0, socket, at(1, 0), b"whatever").unwrap();
    net.settle();
    assert_eq!(net.receive_all(0, socket), [(at(1, 0), Vec::new())]);
    assert_eq!(net.receive_all(1, other), []);
}

// covers 8.45
#[test]
fn a_ping_from_port_0_is_not_answered() {
    let mut net = two(18);
    net.connect_hosts(0, 1);
    net.seen.clear();
    let ping = polyverbs_wire::rds::Header {
        sequence: 1000,
        length: 1,
        ..Default::default()
    };
    net.inject(1, 0, &ping.to_bytes(), &[1]).unwrap();
    net.settle();
    assert_eq!(net.seen.len(), 0);
}

// covers 8.45
#[test]
fn a_ping_to_the_own_address_is_answered() {
    let mut net = two(19);
    let socket = net.bind(0, 100);
    net.send(0, socket, at(0, 0), b"whatever").unwrap();
    assert_eq!(net.receive_all(0, socket), [(at(0, 0), Vec::new())]);
}

// covers 8.47
#[test]
fn a_message_to_the_own_address_needs_no_connection() {
    let mut net = two(20);
    let [socket, to] = [net.bind(0, 100), net.bind(0, 200)];
    let bytes = content(1, 9000);
    net.send(0, socket, at(0, 200), &bytes).unwrap();
    assert_eq!(net.receive_all(0, to), [(at(0, 100), bytes)]);
    assert_eq!(net.asked, []);
}

// covers 8.49
#[test]
fn closing_a_socket_drops_its_messages() {
    let mut net = two(21);
    let socket = net.bind(0, 100);
    let to = net.bind(1, 200);
    net.send(0, socket, at(1, 200), &[1; 9000]).unwrap();
    net.close(0, socket);
    assert_eq!(net.fragments_held(), 0);
    let socket = net.bind(0, 100);
    net.send(0, socket, at(1, 200), &[2; 9000]).unwrap();
    net.settle();
    assert_eq!(net.host(1).next_length(to), Some(9000));
    net.close(1, to);
    let to = net.bind(1, 200);
    assert_eq!(net.receive_all(1, to), []);
    // The peer was not asked to acknowledge the last messages, so it may still hold them.
    assert!(net.fragments_held() <= 3);
}

// covers 8.49
#[test]
fn a_message_to_an_unbound_port_is_dropped_and_acknowledged() {
    let mut net = two(22);
    let socket = net.bind(0, 100);
    for _ in 0..100 {
        net.send(0, socket, at(1, 200), &[1; 20_000]).unwrap_or(());
        net.settle();
    }
    assert_eq!(net.host(1).counters().recv_drop_no_sock, 100);
    assert_eq!(net.host(0).counters().send_queued, 100);
}
