//! Peers that break the protocol: the host refuses the message or the connection, and other peers notice nothing.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

use polyverbs_rds::SocketOptions;
use polyverbs_rds::protocol::{
    Action, Answer, ArrivalId, HostLimits, Inbound, PathId, PathState, Payload, Process,
    ProtocolError, Role, SocketId, Transmit,
};
use polyverbs_wire::rds::{
    ConnectData, Extension, Extensions, FRAGMENT, Flags, HEADER, Header, Version,
};
use proptest::prelude::*;

use crate::net::{Net, TestHost, address, at, content};

/// Memory for about 250 messages of one fragment, and for some thousand messages without payload.
fn little_memory() -> HostLimits {
    HostLimits {
        max_memory: 1 << 20,
        ..HostLimits::default()
    }
}

/// More messages than fit into that memory.
const MANY: u64 = 20_000;

/// Asserts that a host with little memory is full: of messages of equal size, the last one was taken when there was still room,
/// and no other after it.
fn assert_full(held: usize, messages: usize) {
    assert_share_full(held, messages, little_memory().max_memory);
}

/// Asserts that messages of equal size have filled this share of a host's memory.
fn assert_share_full(held: usize, messages: usize, share: usize) {
    let each = held / messages;
    assert_eq!(messages, share / each + 1, "{held}");
}

/// A network in which host 0 is connected to an honest host and to a hostile one.
fn between(seed: u64) -> Net {
    between_with(seed, HostLimits::default())
}

fn between_with(seed: u64, limits: HostLimits) -> Net {
    let mut net = Net::new(3, limits, seed);
    net.connect_hosts(HONEST, 0);
    net.connect_hosts(HOSTILE, 0);
    net
}

const HONEST: usize = 1;
const HOSTILE: usize = 2;

fn header(length: u32) -> Header {
    Header {
        sequence: 1000,
        length,
        source_port: 300,
        destination_port: 100,
        ..Header::default()
    }
}

/// Asserts that messages to and from the honest host arrive.
fn others_go_on(net: &mut Net) {
    let near = net.bind(0, 4000);
    let far = net.bind(HONEST, 4000);
    for (from, to, socket) in [(0, HONEST, near), (HONEST, 0, far)] {
        net.send(from, socket, at(to, 4000), &content(7, 9000))
            .unwrap();
    }
    net.settle();
    for (host, socket) in [(0, near), (HONEST, far)] {
        assert_eq!(net.receive_all(host, socket).len(), 1);
    }
    assert!(net.common(0, HONEST).is_some());
}

/// Asserts that this fragment ends the connection, and that there is another one later.
fn ends_the_connection(net: &mut Net, bytes: &[u8], payload: &[u8], error: ProtocolError) {
    assert_eq!(net.inject(0, HOSTILE, bytes, payload), Err(error));
    assert_eq!(net.state(0, HOSTILE), PathState::Ending);
    net.settle();
    assert!(net.common(0, HOSTILE).is_some());
}

// covers 8.26
#[test]
fn a_malformed_header_ends_the_connection() {
    let mut net = between(1);
    let socket = net.bind(0, 100);
    let bytes = header(1).to_bytes();
    for place in 0..HEADER {
        let mut wrong = bytes;
        wrong[place] ^= 0x10;
        ends_the_connection(&mut net, &wrong, &[1], ProtocolError::Header);
    }
    for length in [0, 1, HEADER - 1] {
        ends_the_connection(&mut net, &bytes[..length], &[], ProtocolError::Header);
    }
    assert_eq!(net.host(0).counters().recv_drop_bad_checksum, 51);
    assert_eq!(net.receive_all(0, socket), []);
    others_go_on(&mut net);
}

// covers 8.28
#[test]
fn an_impossible_length_ends_the_connection() {
    let mut net = between(2);
    for length in [(1 << 20) + 1, 1 << 31, u32::MAX] {
        let error = ProtocolError::Length { length };
        let bytes = header(length).to_bytes();
        ends_the_connection(&mut net, &bytes, &[1; 4096], error);
    }
    others_go_on(&mut net);
}

// covers 8.28
#[test]
fn a_fragment_of_the_wrong_length_ends_the_connection() {
    let mut net = between(3);
    let socket = net.bind(0, 100);
    for (length, expected, found) in [
        (0, 0, 1),
        (1, 1, 0),
        (1, 1, 2),
        (5000, 4096, 4095),
        (5000, 4096, 0),
        (5000, 4096, 5000),
    ] {
        let error = ProtocolError::FragmentLength { expected, found };
        let bytes = header(length).to_bytes();
        ends_the_connection(&mut net, &bytes, &vec![1; found], error);
    }
    // The last fragment is shorter than the others.
    for found in [0, 903, 905, 4096] {
        let bytes = header(5000).to_bytes();
        net.inject(0, HOSTILE, &bytes, &[1; 4096]).unwrap();
        let error = ProtocolError::FragmentLength {
            expected: 904,
            found,
        };
        ends_the_connection(&mut net, &bytes, &vec![1; found], error);
    }
    assert_eq!(net.receive_all(0, socket), []);
    others_go_on(&mut net);
}

// covers 8.28
#[test]
fn interleaved_messages_end_the_connection() {
    let mut net = between(4);
    let socket = net.bind(0, 100);
    let begun = header(5000);
    let others = [
        Header {
            sequence: 1001,
            ..begun
        },
        Header {
            length: 5001,
            ..begun
        },
        Header {
            source_port: 301,
            ..begun
        },
        Header {
            destination_port: 101,
            ..begun
        },
        Header {
            length: 8192,
            flags: Flags::CONG_BITMAP,
            ..Header::default()
        },
    ];
    for other in others {
        net.inject(0, HOSTILE, &begun.to_bytes(), &[1; 4096])
            .unwrap();
        let bytes = other.to_bytes();
        ends_the_connection(&mut net, &bytes, &[1; 904], ProtocolError::Mismatch);
    }
    assert_eq!(net.receive_all(0, socket), []);
    others_go_on(&mut net);
}

#[test]
fn an_acknowledge_may_come_between_fragments() {
    let mut net = between(5);
    let socket = net.bind(0, 100);
    let begun = header(5000).to_bytes();
    net.inject(0, HOSTILE, &begun, &[1; 4096]).unwrap();
    net.inject(0, HOSTILE, &Header::default().to_bytes(), &[])
        .unwrap();
    net.inject(0, HOSTILE, &begun, &[1; 904]).unwrap();
    assert_eq!(
        net.receive_all(0, socket),
        [(at(HOSTILE, 300), vec![1; 5000])]
    );
}

// covers 8.31
#[test]
fn a_partial_message_is_dropped_with_its_connection() {
    let mut net = between(6);
    let socket = net.bind(0, 100);
    net.inject(0, HOSTILE, &header(5000).to_bytes(), &[1; 4096])
        .unwrap();
    net.cut(0, HOSTILE);
    net.settle();
    let bytes = header(904).to_bytes();
    net.inject(0, HOSTILE, &bytes, &[2; 904]).unwrap();
    assert_eq!(
        net.receive_all(0, socket),
        [(at(HOSTILE, 300), vec![2; 904])]
    );
}

// covers 8.33
#[test]
fn a_congestion_map_of_another_size_ends_the_connection() {
    let mut net = between(7);
    for length in [0, 1, 4096, 8191, 8193, 1 << 20] {
        let map = Header {
            length,
            flags: Flags::CONG_BITMAP,
            source_port: 1,
            ..Header::default()
        };
        let error = ProtocolError::Length { length };
        let payload = vec![0xff; length.min(4096) as usize];
        ends_the_connection(&mut net, &map.to_bytes(), &payload, error);
    }
    let socket = net.bind(0, 100);
    net.send(0, socket, at(HOSTILE, 200), b"free").unwrap();
    others_go_on(&mut net);
}

// covers 8.33
#[test]
fn a_full_congestion_map_affects_only_its_sender() {
    let mut net = between(8);
    let map = Header {
        length: 8192,
        flags: Flags::CONG_BITMAP,
        ..Header::default()
    };
    for _ in 0..2 {
        net.inject(0, HOSTILE, &map.to_bytes(), &[0xff; 4096])
            .unwrap();
    }
    let socket = net.bind(0, 100);
    for port in [0, 1, 2, 3999, u16::MAX] {
        net.send(0, socket, at(HOSTILE, port), &[]).unwrap_err();
        net.send(0, socket, at(HONEST, port), &[]).unwrap();
    }
    others_go_on(&mut net);
}

// covers 8.29 8.30
#[test]
fn wrong_sequence_numbers_and_acknowledges_do_no_harm() {
    let mut net = between(9);
    let socket = net.bind(0, 100);
    let mut arrived = 0;
    for sequence in [0, u64::MAX, 1, u64::MAX - 1, 1 << 63, 5, u64::MAX] {
        for ack in [u64::MAX, 0, 1 << 63] {
            let strange = Header {
                sequence,
                ack,
                flags: Flags::ACK_REQUIRED,
                ..header(1)
            };
            net.send(0, socket, at(HOSTILE, 200), &[1; 9000]).unwrap();
            net.inject(0, HOSTILE, &strange.to_bytes(), &[1]).unwrap();
            net.settle();
            arrived += net.receive_all(0, socket).len();
        }
    }
    assert_eq!(arrived, 21);
    assert!(net.host(0).readiness(socket).writable);
    others_go_on(&mut net);
}

// covers 8.30
#[test]
fn an_early_acknowledge_counts_after_the_message_was_sent() {
    let limits = HostLimits {
        send_requests: 8,
        ..HostLimits::default()
    };
    let mut net = between_with(10, limits);
    let socket = net.bind(0, 100);
    let bytes = content(1, 100_000);
    let to = net.bind(HOSTILE, 200);
    net.send(0, socket, at(HOSTILE, 200), &bytes).unwrap();
    let ack = Header {
        ack: u64::MAX,
        ..Header::default()
    };
    net.inject(0, HOSTILE, &ack.to_bytes(), &[]).unwrap();
    net.settle();
    assert_eq!(net.receive_all(HOSTILE, to), [(at(0, 100), bytes)]);
}

// covers 8.30
#[test]
fn an_acknowledge_of_unsent_messages_is_ignored() {
    let mut net = between(16);
    let socket = net.bind(0, 100);
    let ack = Header {
        ack: u64::MAX,
        ..Header::default()
    };
    net.inject(0, HOSTILE, &ack.to_bytes(), &[]).unwrap();
    net.send(0, socket, at(HOSTILE, 200), &[1]).unwrap();
    let path = net.path(0, HOSTILE).unwrap();
    net.host(0).handle_completion(path, u64::MAX);
    let mut paths = net.host(0).paths();
    let path = paths.find(|path| path.peer == address(HOSTILE)).unwrap();
    assert_eq!(path.unacknowledged, 1);
}

// covers 8.27
#[test]
fn arbitrary_extension_headers_are_read_up_to_unknown_ones() {
    let mut net = between(11);
    let socket = net.bind(0, 100);
    for kind in 0..=255 {
        let mut bytes = [0xff; 16];
        bytes[0] = kind;
        let strange = Header {
            extensions: Extensions::from_bytes(bytes),
            ..header(1)
        };
        net.inject(0, HOSTILE, &strange.to_bytes(), &[1]).unwrap();
    }
    assert_eq!(net.receive_all(0, socket).len(), 256);
    others_go_on(&mut net);
}

// covers 8.40
#[test]
fn a_used_key_belongs_to_the_receiving_socket() {
    let mut net = between(12);
    let [socket, other] = [net.bind(0, 100), net.bind(0, 101)];
    let extensions = Extensions::of(Extension::Rdma { rkey: 9 });
    for destination_port in [100, 102] {
        let used = Header {
            extensions,
            destination_port,
            ..header(0)
        };
        net.inject(0, HOSTILE, &used.to_bytes(), &[]).unwrap();
    }
    assert_eq!(net.sides[0].used, [(socket, 9)]);
    assert_ne!(socket, other);
}

/// Sends as a peer that ignores congestion. Returns the most fragments that the network held.
fn flood(net: &mut Net, length: usize, count: u64) -> usize {
    let mut most = 0;
    for number in 0..count {
        let Some(sequence) = net.path(0, HOSTILE).map(|_| 1000 + number) else {
            net.step();
            continue;
        };
        let message = Header {
            sequence,
            ..header(length as u32)
        };
        // The host may have ended the connection.
        let _ = net.inject(0, HOSTILE, &message.to_bytes(), &vec![1; length]);
        most = most.max(net.fragments_held());
    }
    most
}

// covers 8.33
#[test]
fn a_flood_to_a_congested_socket_stops_at_the_memory_limit() {
    let mut net = between_with(13, little_memory());
    net.delay = Duration::from_micros(1);
    let socket = net.bind(0, 100);
    let most = flood(&mut net, 4096, 2000);
    assert!(net.host(0).counters().conn_reset > 0);
    // The host has no memory for other peers either until the socket receives.
    let held = net.host(0).held();
    let kept = net.receive_all(0, socket).len();
    assert_full(held, kept);
    assert!((kept..300).contains(&most), "{most}");
    others_go_on(&mut net);
}

/// The honest host sends more messages to port 100 of host 0 than the process that has the port, process `number` of the
/// network, has memory for. Asserts that the connections that end for lack of memory are few, and that each message arrives
/// once when a program receives.
fn messages_wait_for_memory(net: &mut Net, number: usize) {
    const MESSAGES: u64 = 400;
    let to = net.bind(number, 100);
    net.settle();
    let options = SocketOptions {
        send_buffer: 4 << 20,
        ..SocketOptions::default()
    };
    let from = net.bind_with(HONEST, 300, options);
    net.delay = Duration::from_millis(5);
    let messages = || (0..MESSAGES).map(|name| content(name, FRAGMENT));
    for message in messages() {
        net.send(HONEST, from, at(0, 100), &message).unwrap();
    }
    net.pass(Duration::from_secs(60));
    let before = net.asked.len();
    net.pass(Duration::from_secs(60));
    let attempts = net.asked.len() - before;
    assert!((60..240).contains(&attempts), "{attempts}");
    let mut received = Vec::new();
    for _ in 0..10 {
        received.extend(net.receive_all(number, to));
        net.pass(Duration::from_secs(10));
    }
    assert!(received.into_iter().map(|(_, bytes)| bytes).eq(messages()));
}

// covers 8.33 8.46
#[test]
fn a_peer_refused_for_memory_waits_between_attempts() {
    messages_wait_for_memory(&mut Net::new(2, little_memory(), 24), 0);
}

// covers 8.20 8.33
#[test]
fn a_member_without_memory_is_not_taken_for_ended() {
    let mut net = Net::new(2, little_memory(), 25);
    let member = net.add_member(0);
    messages_wait_for_memory(&mut net, member);
}

// covers 8.30 8.33
#[test]
fn the_reply_acknowledges_messages_of_earlier_connections() {
    let mut net = Net::new(2, HostLimits::default(), 26);
    let (near, far) = (net.bind(0, 100), net.bind(HONEST, 200));
    net.connect_hosts(HONEST, 0);
    for name in 0..3 {
        net.send(HONEST, far, at(0, 100), &content(name, 100))
            .unwrap();
    }
    net.until(|net| net.host(0).counters().recv_queued == 3);
    let known = net.host(HONEST).incarnation();
    // A process that has started anew has sent none of these messages.
    for (incarnation, is_known) in [(known, true), (known ^ 1, false), (0, false)] {
        let asked = ConnectData {
            incarnation,
            ..asking(HONEST, 0)
        };
        let Answer::Accept { data, .. } =
            (net.host(0)).handle_request(Some(asked.source), false, &asked)
        else {
            panic!("the host refuses a request of its peer");
        };
        assert_eq!(data.ack_sequence > 0, is_known, "{incarnation}");
    }
    let path = net.path(HONEST, 0).unwrap();
    let unacknowledged = |net: &mut Net| {
        let paths: Vec<_> = net.host(HONEST).paths().collect();
        paths[0].queued + paths[0].unacknowledged
    };
    let before = unacknowledged(&mut net);
    assert!(before >= 3, "{before}");
    let last = net.host(HONEST).paths().next().unwrap().next_transmit - 1;
    let host = net.host(HONEST);
    host.handle_lost(path);
    host.handle_gone(Duration::ZERO, path);
    let told = ConnectData {
        ack_sequence: last - 1,
        ..asking(0, 0)
    };
    assert_eq!(asked(host), (path, Process::Peer));
    host.handle_connected(path, &told);
    assert_eq!(unacknowledged(&mut net), 1);
    assert_eq!(net.receive_all(0, near).len(), 3);
}

// covers 8.33
#[test]
fn messages_after_a_refused_one_wait_for_a_new_connection() {
    let mut net = between_with(23, little_memory());
    let socket = net.bind(0, 100);
    let message = |sequence, flags| Header {
        sequence,
        flags,
        ..header(0)
    };
    let none = Flags::empty();
    // One message finds no memory. Before the connection is ended, there is some again.
    let path = net.path(0, HOSTILE).unwrap();
    let (fragment, host) = (net.fragment(&[]), net.host(0));
    let arrives = |host: &mut TestHost, sequence| {
        let bytes = message(sequence, none).to_bytes();
        host.handle_fragment(path, &bytes, 0, fragment.clone())
    };
    let refused =
        (1000..MANY).find(|&sequence| arrives(host, sequence) == Err(ProtocolError::Memory));
    let refused = refused.expect("there is little memory");
    assert_full(host.held(), refused as usize - 1000);
    assert!(host.receive(socket, usize::MAX).is_some());
    arrives(host, refused + 1).unwrap();
    net.pump(0);
    assert_eq!(net.receive_all(0, socket).len() as u64, refused - 1001);
    net.settle();
    for sequence in [refused, refused + 1] {
        let again = message(sequence, Flags::RETRANSMITTED).to_bytes();
        net.inject(0, HOSTILE, &again, &[]).unwrap();
    }
    assert_eq!(net.receive_all(0, socket).len(), 2);
}

// covers 8.33
#[test]
fn empty_messages_count_towards_the_memory_limit() {
    let mut net = between_with(14, little_memory());
    net.delay = Duration::from_micros(1);
    let socket = net.bind(0, 100);
    flood(&mut net, 0, MANY);
    assert!(net.host(0).counters().conn_reset > 0);
    let held = net.host(0).held();
    assert_full(held, net.receive_all(0, socket).len());
    others_go_on(&mut net);
}

// covers 8.45
#[test]
fn at_most_256_pings_without_acknowledge_are_answered() {
    let mut net = between(15);
    let before = net.seen.len();
    for number in 0..10_000 {
        let ping = Header {
            sequence: 1000 + number,
            destination_port: 0,
            ..header(0)
        };
        net.inject(0, HOSTILE, &ping.to_bytes(), &[]).unwrap();
        // The answers that were posted are complete, as the queue pair reports it.
        let path = net.path(0, HOSTILE).unwrap();
        net.host(0).handle_completion(path, u64::MAX);
        net.pump(0);
    }
    assert_eq!(net.seen.len() - before, 256);
    let path = net
        .host(0)
        .paths()
        .find(|path| path.peer == address(HOSTILE));
    let path = path.unwrap();
    assert_eq!(path.queued + path.unacknowledged, 256);
    others_go_on(&mut net);
}

/// The private data of a connection request to host 0, by a process that has not restarted.
fn asking(source: usize, member: u16) -> ConnectData {
    ConnectData {
        source: address(source),
        destination: address(0),
        version: Version::V4_1,
        minor_mask: 3,
        tos: 0,
        member,
        ack_sequence: 0,
        credit: 0,
        incarnation: 7,
    }
}

fn accepted(host: &mut TestHost, asked: &ConnectData) -> PathId {
    let is_of_process = asked.member != 0;
    let from = match is_of_process {
        true => host.address(),
        false => asked.source,
    };
    let answer = host.handle_request(Some(from), is_of_process, asked);
    let Answer::Accept { arrival, .. } = answer else {
        panic!("the host refuses the request");
    };
    host.handle_accepted(arrival, asked)
        .expect("the path has no other connection")
}

/// The path that the host connects next, and the process that it connects to.
fn asked(host: &mut TestHost) -> (PathId, Process) {
    let asked = std::iter::from_fn(|| host.poll_action()).find_map(|action| match action {
        Action::Connect { path, to, .. } => Some((path, to)),
        _ => None,
    });
    asked.unwrap()
}

/// Adds another process at the address, which announces port 100.
fn with_member(host: &mut TestHost, net: &Net) -> PathId {
    let member = accepted(host, &asking(0, 7));
    let announced = Header {
        sequence: 1,
        source_port: 100,
        destination_port: 1,
        extensions: Extensions::of(Extension::Paths(1)),
        ..Header::default()
    };
    let nothing = net.fragment(&[]);
    host.handle_fragment(member, &announced.to_bytes(), 0, nothing)
        .unwrap();
    member
}

// covers 8.20
#[test]
fn a_partly_sent_message_to_an_ended_process_is_given_up() {
    let limits = HostLimits {
        send_requests: 1,
        ..HostLimits::default()
    };
    let net = Net::new(0, limits, 1);
    let mut host = TestHost::new(address(0), limits, 1);
    let member = with_member(&mut host, &net);
    let peer = accepted(&mut host, &asking(HONEST, 0));
    for _ in 0..2 {
        let half = net.fragment(&[1; 4096]);
        let message = header(8192).to_bytes();
        host.handle_fragment(peer, &message, 4096, half).unwrap();
    }
    let (passed, _) = asked(&mut host);
    host.handle_connected(passed, &asking(HONEST, 7));
    // The congestion map takes two requests.
    for request in 1..=3 {
        host.handle_completion(passed, request - 1);
        assert!(host.poll_transmit(passed).is_some());
    }
    host.handle_lost(member);
    host.handle_absent(member);
    host.handle_gone(Duration::ZERO, member);
    host.handle_completion(passed, 3);
    assert!(host.poll_transmit(passed).is_none());
    assert_eq!(net.fragments_held(), 0);
}

// covers 8.20
#[test]
fn a_process_refused_for_memory_keeps_its_port() {
    let net = Net::new(0, little_memory(), 1);
    let mut host = TestHost::new(address(0), little_memory(), 1);
    let (socket, _) = host.bind(200, Default::default()).unwrap();
    let member = with_member(&mut host, &net);
    let peer = accepted(&mut host, &asking(HONEST, 0));
    let sent = |sequence, destination_port| {
        let message = Header {
            sequence,
            destination_port,
            ..header(0)
        };
        message.to_bytes()
    };
    let refused = (2..MANY).find(|&sequence| {
        let nothing = net.fragment(&[]);
        host.handle_fragment(member, &sent(sequence, 200), 0, nothing) == Err(ProtocolError::Memory)
    });
    let refused = refused.expect("there is little memory");
    let share = little_memory().max_memory / 2;
    assert_share_full(host.held(), refused as usize - 2, share);
    host.handle_gone(Duration::ZERO, member);
    while host.receive(socket, usize::MAX).is_some() {}
    let nothing = net.fragment(&[]);
    host.handle_fragment(peer, &sent(1, 100), 0, nothing)
        .unwrap();
    assert_eq!(host.counters().recv_drop_no_sock, 0);
}

// covers 8.20 8.29
#[test]
fn messages_that_wait_for_their_owner_end_with_their_sender() {
    let net = Net::new(0, HostLimits::default(), 1);
    let mut host = TestHost::new(address(0), HostLimits::default(), 1);
    let arrives = |host: &mut TestHost, path, sequence| {
        let message = Header {
            sequence,
            ..header(0)
        };
        let nothing = net.fragment(&[]);
        host.handle_fragment(path, &message.to_bytes(), 0, nothing)
            .unwrap();
    };
    let peer = accepted(&mut host, &asking(HONEST, 0));
    arrives(&mut host, peer, 1000);
    host.handle_lost(peer);
    host.handle_gone(Duration::ZERO, peer);
    assert_eq!(asked(&mut host), (peer, Process::Peer));
    // The peer restarts, and counts from a lower number.
    let restarted = ConnectData {
        incarnation: 8,
        ..asking(HONEST, 0)
    };
    host.handle_connected(peer, &restarted);
    arrives(&mut host, peer, 5);
    with_member(&mut host, &net);
    let (passed, _) = asked(&mut host);
    host.handle_connected(passed, &asking(HONEST, 7));
    let mut sequences = Vec::new();
    while let Some(Transmit::Send { header, .. }) = host.poll_transmit(passed) {
        sequences.extend(header.extensions.iter().filter_map(|one| match one {
            Extension::Passed { sequence, .. } => Some(sequence),
            _ => None,
        }));
    }
    assert_eq!(sequences, [5]);
}

// covers 8.20 8.33
#[test]
fn congestion_of_a_member_ends_while_one_of_its_paths_is_down() {
    let net = Net::new(0, HostLimits::default(), 1);
    let mut host = TestHost::new(address(0), HostLimits::default(), 1);
    let own = with_member(&mut host, &net);
    let peer = accepted(&mut host, &asking(HONEST, 0));
    let for_peer = ConnectData {
        destination: address(HONEST),
        ..asking(0, 7)
    };
    let for_peer = accepted(&mut host, &for_peer);
    let member_sends = |host: &mut TestHost, path, bits| {
        let map = Header {
            length: 8192,
            flags: Flags::CONG_BITMAP,
            ..Header::default()
        };
        for _ in 0..2 {
            let half = net.fragment(&[bits; 4096]);
            host.handle_fragment(path, &map.to_bytes(), 4096, half)
                .unwrap();
        }
    };
    // The first byte of the last map that the peer gets.
    let peer_gets = |host: &mut TestHost| {
        let mut first = None;
        while let Some(Transmit::Send { payload, .. }) = host.poll_transmit(peer) {
            if let Payload::Map(map) = payload {
                first = Some(map[0]);
            }
        }
        first
    };
    for path in [own, for_peer] {
        member_sends(&mut host, path, 0xff);
    }
    assert_eq!(peer_gets(&mut host), Some(0xff));
    host.handle_lost(for_peer);
    host.handle_gone(Duration::ZERO, for_peer);
    member_sends(&mut host, own, 0);
    assert_eq!(peer_gets(&mut host), Some(0));
}

// covers 8.20
#[test]
fn a_port_belongs_to_the_socket_that_was_bound_last() {
    let net = Net::new(0, HostLimits::default(), 1);
    let mut host = TestHost::new(address(0), HostLimits::default(), 1);
    with_member(&mut host, &net);
    // The other process has given the port up; its announcement may still be on its way.
    let (socket, _) = host.bind(100, Default::default()).unwrap();
    let peer = accepted(&mut host, &asking(HONEST, 0));
    let nothing = net.fragment(&[]);
    host.handle_fragment(peer, &header(0).to_bytes(), 0, nothing)
        .unwrap();
    assert!(host.receive(socket, usize::MAX).is_some());
}

/// A member with a socket at port 100 whose path to a peer is connected through a leader, and that path.
fn connected_member(leader: &ConnectData) -> (TestHost, SocketId, PathId) {
    let mut host = TestHost::new(address(0), HostLimits::default(), 1);
    host.set_role(Role::Member(9));
    let (socket, _) = host.bind(100, Default::default()).unwrap();
    let own = asked(&mut host).0;
    host.handle_connected(own, leader);
    (host, socket, own)
}

// covers 8.20
#[test]
fn leaders_with_the_same_number_are_told_apart() {
    let net = Net::new(0, HostLimits::default(), 1);
    let first = asking(0, 7);
    let (mut host, socket, own) = connected_member(&first);
    let message = net.message(at(0, 200), &[]);
    host.send(socket, message).unwrap();
    while host.poll_transmit(own).is_some() {}
    host.handle_lost(own);
    host.handle_gone(Duration::ZERO, own);
    // The old leader may have forwarded the message, and the new one must not.
    let second = ConnectData {
        incarnation: first.incarnation + 1,
        ..first
    };
    host.handle_connected(own, &second);
    assert_eq!(host.take_undelivered(socket), 1);
    assert!(host.is_connected(own));
}

// covers 8.20
#[test]
fn a_member_announces_its_ports_before_its_messages() {
    let net = Net::new(0, HostLimits::default(), 1);
    let (mut host, socket, own) = connected_member(&asking(0, 7));
    host.handle_lost(own);
    host.handle_gone(Duration::ZERO, own);
    let message = net.message(at(0, 200), &[]);
    host.send(socket, message).unwrap();
    for _ in 0..3 {
        host.handle_connected(own, &asking(0, 7));
        let mut ports = Vec::new();
        while let Some(Transmit::Send { header, .. }) = host.poll_transmit(own) {
            if !header.is_map() {
                ports.push((header.source_port, header.destination_port));
            }
        }
        // The announcement of the bind has not been acknowledged, and is repeated in its place. It is not added to.
        assert_eq!(ports, [(100, 1), (100, 1), (100, 200)]);
        host.handle_lost(own);
        host.handle_gone(Duration::ZERO, own);
    }
}

// covers 8.33
#[test]
fn messages_for_a_stalled_process_stop_at_the_memory_limit() {
    let net = Net::new(0, little_memory(), 1);
    let mut host = TestHost::new(address(0), little_memory(), 1);
    host.set_role(Role::Leader);
    with_member(&mut host, &net);
    let flood = |host: &mut TestHost, path| {
        (0..2000).find(|number| {
            let message = Header {
                sequence: 1000 + number,
                ..header(4096)
            };
            let payload = net.fragment(&[1; 4096]);
            host.handle_fragment(path, &message.to_bytes(), 4096, payload)
                == Err(ProtocolError::Memory)
        })
    };
    let hostile = accepted(&mut host, &asking(HOSTILE, 0));
    let taken = flood(&mut host, hostile).expect("there is little memory");
    assert_eq!(net.fragments_held() as u64, taken);
    assert_full(host.held(), taken as usize);

    // The member takes the waiting messages. Its acknowledge is handled although there is no memory, and frees some.
    let (path, to) = asked(&mut host);
    assert_eq!(to, Process::Member(7));
    host.handle_connected(path, &asking(HOSTILE, 7));
    let (mut last, mut passed) = (0, 0);
    while let Some(transmit) = host.poll_transmit(path) {
        if let Transmit::Send {
            request, header, ..
        } = transmit
        {
            host.handle_completion(path, request);
            last = last.max(header.sequence);
            passed += u64::from(header.destination_port == 100);
        }
    }
    assert_eq!(passed, taken);
    let acknowledged = Header {
        ack: last,
        ..Header::default()
    };
    let nothing = net.fragment(&[]);
    host.handle_fragment(path, &acknowledged.to_bytes(), 0, nothing)
        .unwrap();
    host.settle(path);
    assert_eq!(net.fragments_held(), 0);
    // This host requests a new connection in place of the one that ended for lack of memory.
    host.handle_gone(Duration::ZERO, hostile);
    host.handle_connected(hostile, &asking(HOSTILE, 0));
    assert_eq!(flood(&mut host, hostile), Some(taken));
}

// covers 8.48
#[test]
fn without_advertisements_sends_stop_at_the_last_credit() {
    let mut host = TestHost::new(address(0), HostLimits::default(), 1);
    let (socket, _) = host.bind(100, Default::default()).unwrap();
    let asked = ConnectData {
        credit: 10,
        ..asking(1, 0)
    };
    let path = accepted(&mut host, &asked);
    let net = Net::new(0, HostLimits::default(), 1);
    for _ in 0..100 {
        host.send(socket, net.message(at(1, 200), &[1])).unwrap();
    }
    let mut sent = 0;
    while host.poll_transmit(path).is_some() {
        sent += 1;
    }
    // The last credit is reserved for advertising new receives.
    assert_eq!(sent, 9);
}

// covers 8.46
#[test]
fn endless_connection_requests_of_a_peer_share_one_path() {
    let mut host = TestHost::new(address(0), HostLimits::default(), 1);
    let mut accepted = 0;
    for number in 0..10_000_u64 {
        let asked = ConnectData {
            source: address(1),
            destination: address(0),
            version: Version {
                major: number as u8,
                minor: (number >> 8) as u8,
            },
            minor_mask: number as u16,
            tos: number as u8,
            member: 0,
            ack_sequence: number << 48,
            credit: number as u32,
            incarnation: number as u32,
        };
        if let Answer::Accept { arrival, .. } =
            host.handle_request(Some(asked.source), false, &asked)
        {
            accepted += 1;
            if number % 3 == 0
                && let Some(path) = host.handle_accepted(arrival, &asked)
            {
                host.handle_lost(path);
                host.handle_gone(Duration::from_secs(number), path);
            }
        }
        while let Some(action) = host.poll_action() {
            if let Action::Connect { path, .. } = action {
                host.handle_lost(path);
                host.handle_gone(Duration::from_secs(number), path);
            }
        }
    }
    assert!(accepted > 0);
    assert_eq!(host.paths().count(), 1);
}

/// An action of a peer or of another process, of a connection, or of a program.
#[derive(Clone, Debug)]
enum Input {
    /// An action on one of the connections, which the number chooses.
    On(usize, PathInput),
    /// A connection request from one host to another. Host 0 means a process at the own address. The sender has this
    /// incarnation, sends the request again as often as the next number says, and completes the last connection or none.
    Request(usize, usize, u32, usize, bool),
    Send(usize),
    Receive,
    Cancel,
    Pass(Duration),
}

#[derive(Clone, Debug)]
enum PathInput {
    Fragment(Vec<u8>, usize),
    Header(Header, usize),
    /// A whole message to this port.
    Message(u16),
    Completion(u64),
    Failure(u64),
    Lost,
    Posted(u32),
}

fn any_header() -> impl Strategy<Value = Header> {
    let number = prop_oneof![0..20_u64, any::<u64>()];
    let length = prop_oneof![0..10_u32, Just(4096), Just(5000), Just(8192), any::<u32>()];
    let port = prop_oneof![0..3_u16, Just(100), any::<u16>()];
    let ports = (port.clone(), port);
    let flags = prop_oneof![0..8_u8, any::<u8>()];
    let rest = (flags, any::<u8>(), any::<[u8; 16]>());
    (number.clone(), number, length, ports, rest).prop_map(
        |(sequence, ack, length, ports, (flags, credit, extensions))| Header {
            sequence,
            ack,
            length,
            source_port: ports.0,
            destination_port: ports.1,
            flags: Flags::from_bits_retain(flags),
            credit,
            extensions: Extensions::from_bytes(extensions),
        },
    )
}

fn any_path_input() -> impl Strategy<Value = PathInput> {
    let bytes = proptest::collection::vec(any::<u8>(), 0..=HEADER);
    let length = || prop_oneof![0..10_usize, Just(4096), Just(904), 0..=4096_usize];
    let port = prop_oneof![0..3_u16, Just(100), Just(101), any::<u16>()];
    let request = || prop_oneof![0..50_u64, any::<u64>()];
    prop_oneof![
        2 => (bytes, length()).prop_map(|(bytes, length)| PathInput::Fragment(bytes, length)),
        2 => (any_header(), length()).prop_map(|(header, length)| PathInput::Header(header, length)),
        4 => port.prop_map(PathInput::Message),
        1 => request().prop_map(PathInput::Completion),
        1 => request().prop_map(PathInput::Failure),
        1 => Just(PathInput::Lost),
        1 => (0..1000_u32).prop_map(PathInput::Posted),
    ]
}

fn any_input() -> impl Strategy<Value = Input> {
    let host = || prop_oneof![Just(0), 0..HOSTS];
    let request = (host(), host(), 0..3_u32, 0..30_usize, any::<bool>());
    let length = prop_oneof![0..10_usize, 0..10_000_usize];
    prop_oneof![
        12 => (any::<usize>(), any_path_input()).prop_map(|(at, input)| Input::On(at, input)),
        3 => request.prop_map(|(from, to, incarnation, again, completes)| {
            Input::Request(from, to, incarnation, again, completes)
        }),
        1 => length.prop_map(Input::Send),
        1 => Just(Input::Receive),
        1 => Just(Input::Cancel),
        1 => (0..5_000_u64).prop_map(|time| Input::Pass(Duration::from_millis(time))),
    ]
}

/// The number of hosts that send requests.
const HOSTS: usize = 20;

/// A host among hostile peers and processes. Its driver connects each path as soon as the host asks for it.
struct Exposed {
    host: TestHost,
    socket: SocketId,
    net: Net,
    now: Duration,
    credit: u32,
    /// The paths that are connected.
    connected: BTreeSet<PathId>,
    /// The addresses that the host may connect to: those of peers that have completed a connection, and those to which
    /// processes at the own address send.
    known: BTreeSet<IpAddr>,
    /// The accepted requests whose sender does not complete the connection.
    accepted: Vec<ArrivalId>,
}

impl Exposed {
    fn new(role: Role, limits: HostLimits, credit: u32) -> Self {
        let mut host = TestHost::new(address(0), limits, 1);
        host.set_role(role);
        let (socket, _) = host.bind(100, Default::default()).unwrap();
        Self {
            host,
            socket,
            net: Net::new(0, limits, 1),
            now: Duration::ZERO,
            credit,
            connected: BTreeSet::new(),
            known: BTreeSet::from([address(1)]),
            accepted: Vec::new(),
        }
    }

    fn take(&mut self, input: Input) {
        match input {
            Input::On(number, input) => {
                let count = self.connected.len().max(1);
                if let Some(&path) = self.connected.iter().nth(number % count) {
                    self.take_on(path, input);
                }
            }
            Input::Request(from, to, incarnation, again, completes) => {
                for _ in 0..again {
                    self.request(from, to, incarnation, false);
                }
                self.request(from, to, incarnation, completes);
            }
            Input::Send(length) => {
                let message = self.net.message(at(1, 200), &content(1, length));
                let _ = self.host.send(self.socket, message);
            }
            Input::Receive => {
                let inbound = self.host.receive(self.socket, usize::MAX);
                assert!(matches!(inbound, None | Some(Inbound::Message(_))));
            }
            Input::Cancel => {
                self.host.cancel(self.now, self.socket, None);
            }
            Input::Pass(time) => {
                self.now += time;
                self.host.handle_timeout(self.now);
            }
        }
        self.act();
    }

    fn take_on(&mut self, path: PathId, input: PathInput) {
        match input {
            PathInput::Fragment(bytes, length) => self.fragment(path, &bytes, length),
            PathInput::Header(header, length) => self.fragment(path, &header.to_bytes(), length),
            PathInput::Message(destination_port) => {
                let message = Header {
                    destination_port,
                    ..header(4096)
                };
                self.fragment(path, &message.to_bytes(), 4096);
            }
            PathInput::Completion(request) => self.host.handle_completion(path, request),
            PathInput::Failure(request) => {
                let status = polyverbs_rds::OperationStatus::OtherError;
                self.host.handle_failure(path, request, status);
            }
            PathInput::Lost => self.host.handle_lost(path),
            PathInput::Posted(receives) => self.host.handle_posted_receives(path, receives),
        }
    }

    fn fragment(&mut self, path: PathId, header: &[u8], length: usize) {
        let payload = self.net.fragment(&vec![1; length]);
        let _ = self.host.handle_fragment(path, header, length, payload);
    }

    fn request(&mut self, from: usize, to: usize, incarnation: u32, completes: bool) {
        let is_process = from == 0 || self.host.role() != Role::Leader;
        let asked = ConnectData {
            destination: address(to),
            credit: self.credit,
            incarnation,
            ..asking(from, 7)
        };
        let sender = match is_process {
            true => address(0),
            false => asked.source,
        };
        let answer = self.host.handle_request(Some(sender), is_process, &asked);
        let Answer::Accept { arrival, .. } = answer else {
            return;
        };
        if !completes {
            return self.accepted.push(arrival);
        }
        self.known.extend([asked.source, asked.destination]);
        self.connected
            .extend(self.host.handle_accepted(arrival, &asked));
    }

    /// Posts what the host sends, and carries out its actions.
    fn act(&mut self) {
        loop {
            while let Some(path) = self.host.next_ready() {
                while self.host.poll_transmit(path).is_some() {}
                self.host.settle(path);
            }
            let Some(action) = self.host.poll_action() else {
                return;
            };
            match action {
                Action::Connect { path, to, data } => {
                    let destination = data.destination;
                    let is_known = self.known.contains(&destination);
                    assert!(to != Process::Peer || is_known, "{destination} is asked");
                    let told = ConnectData {
                        credit: self.credit,
                        ..asking(0, 7)
                    };
                    self.host.handle_connected(path, &told);
                    self.connected.insert(path);
                }
                Action::Adopt { path, told, .. } => {
                    self.host.handle_connected(path, &told);
                    self.connected.insert(path);
                }
                Action::End(path) => {
                    self.connected.remove(&path);
                    self.host.handle_gone(self.now, path);
                }
                Action::FindOwner(_)
                | Action::Wake(_)
                | Action::Used { .. }
                | Action::Withdraw(_) => {}
            }
        }
    }

    fn check_bounds(&self) {
        // The last message is taken when there is still room; none of these messages has more than three fragments.
        let most = self.host.limits().max_memory + 4 * FRAGMENT;
        assert!(self.host.held() <= most, "{} bytes", self.host.held());
        let awaited = self
            .accepted
            .iter()
            .filter(|one| self.host.is_awaited(**one));
        assert!(awaited.count() <= 64);
        // Each address has a path to the peer and one to the process that reaches the peer.
        assert!(self.host.paths().count() <= 2 * self.known.len() + 2);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(debug_assertions) { 200 } else { 5000 }))]

    // covers 8.26 8.27
    #[test]
    fn no_input_makes_a_host_panic_or_exceed_its_memory(
        inputs in proptest::collection::vec(any_input(), 1..200),
        role in prop_oneof![Just(Role::Leader), Just(Role::Member(5))],
        credit in prop_oneof![Just(0), 0..100_u32, any::<u32>()],
        send_requests in 1..300_u32,
    ) {
        let limits = HostLimits { max_memory: 30_000, send_requests, ..HostLimits::default() };
        let mut exposed = Exposed::new(role, limits, credit);
        exposed.request(1, 0, 1, true);
        for input in inputs {
            exposed.take(input);
            exposed.check_bounds();
        }
        exposed.host.close(exposed.now, exposed.socket);
        exposed.act();
        // Apart from the messages that wait, the host may hold partial messages and its own unacknowledged messages.
        let waiting = exposed.host.held() / FRAGMENT;
        prop_assert!(exposed.net.fragments_held() <= waiting + 256 + 300 + 30);
    }
}
