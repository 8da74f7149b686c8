//! How hosts connect, disconnect and connect again.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use polyverbs_rds::protocol::{Action, Answer, FlowControl, HostLimits, PathId, PathState};
use polyverbs_wire::rds::{ConnectData, Version};

use crate::net::{Net, TestHost, address, at, attached, content, for_each_seed, runs};

fn proposal(version: Version, minor_mask: u16) -> ConnectData {
    ConnectData {
        source: address(1),
        destination: address(0),
        version,
        minor_mask,
        tos: 0,
        member: 0,
        ack_sequence: 0,
        credit: 0,
        incarnation: 0,
    }
}

fn host() -> TestHost {
    TestHost::new(address(0), HostLimits::default(), 1)
}

/// The private data that the host replies with to a request; `None` if it refuses the request.
fn answer(mut host: TestHost, asked: &ConnectData) -> Option<ConnectData> {
    match host.handle_request(Some(asked.source), false, asked) {
        Answer::Accept { data, .. } => Some(data),
        Answer::Refuse => None,
    }
}

// covers 8.28
#[test]
fn a_request_gets_the_common_version_or_is_refused() {
    let version = |major, minor| Version { major, minor };
    for (proposed, minor_mask, agreed) in [
        (version(4, 1), 3, Some(version(4, 1))),
        (version(4, 1), 1, Some(version(4, 0))),
        (version(4, 2), 7, Some(version(4, 1))),
        (version(4, 2), 4, None),
        (version(3, 1), 1, Some(version(3, 1))),
        (version(3, 0), 1, None),
        (version(5, 0), 3, None),
    ] {
        let told = answer(host(), &proposal(proposed, minor_mask));
        assert_eq!(told.map(|told| told.version), agreed, "{proposed}");
    }
}

// covers 8.28
#[test]
fn version_3_1_is_proposed_after_4_1_was_refused() {
    let mut net = Net::new(2, HostLimits::default(), 1);
    let socket = net.bind(0, 100);
    net.send(0, socket, at(1, 200), &[]).unwrap();
    assert_eq!(net.asked[0].version, Version::V4_1);
    let path = net.path_of_asked(0);
    net.host(0).handle_refused(path);
    net.host(0).handle_lost(path);
    net.settle();
    assert_eq!(net.asked[1].version, Version::V3_1);
}

// covers 8.46
#[test]
fn requests_with_wrong_addresses_are_refused() {
    let asked = proposal(Version::V4_1, 3);
    assert!(answer(host(), &asked).is_some());
    let destination = address(2);
    assert_eq!(
        answer(
            host(),
            &ConnectData {
                destination,
                ..asked
            }
        ),
        None
    );
    let source = address(0);
    assert_eq!(answer(host(), &ConnectData { source, ..asked }), None);
}

// covers 8.46
#[test]
fn a_request_must_come_from_the_address_that_it_names() {
    let of_peer = proposal(Version::V4_1, 3);
    let of_process = ConnectData {
        source: address(0),
        destination: address(1),
        member: 7,
        ..of_peer
    };
    for (from, is_admitted, asked, is_accepted) in [
        (address(1), false, of_peer, true),
        (address(1), true, of_peer, true),
        (address(2), false, of_peer, false),
        (address(0), false, of_peer, false),
        (address(0), true, of_process, true),
        (address(0), false, of_process, false),
        (address(1), true, of_process, false),
    ] {
        let answer = host().handle_request(Some(from), is_admitted, &asked);
        let answered = matches!(answer, Answer::Accept { .. });
        assert_eq!(answered, is_accepted, "{from}, {is_admitted}, {asked:?}");
    }
}

// covers 8.48 8.50
#[test]
fn a_host_that_needs_credits_refuses_peers_without_them() {
    let limits = HostLimits {
        flow_control: FlowControl::Required,
        ..HostLimits::default()
    };
    let host = || TestHost::new(address(0), limits, 1);
    let asked = proposal(Version::V4_1, 3);
    assert_eq!(answer(host(), &asked), None);
    let told = answer(host(), &ConnectData { credit: 9, ..asked });
    assert_eq!(told.map(|told| told.credit), Some(limits.first_receives));

    // The peer's reply has no credits.
    let mut host = host();
    let (socket, _) = host.bind(100, Default::default()).unwrap();
    let message = polyverbs_rds::protocol::Outbound {
        to: at(1, 200),
        length: 0,
        fragments: Default::default(),
        attached: None,
        cookie: None,
    };
    host.send(socket, message).unwrap();
    let Some(Action::Connect { path, data, .. }) = host.poll_action() else {
        panic!("the host requests no connection");
    };
    assert_eq!(data.credit, limits.first_receives);
    host.handle_connected(path, &ConnectData { credit: 0, ..data });
    assert_eq!(host.poll_action(), Some(Action::End(path)));
    assert!(host.poll_transmit(path).is_none());
}

// covers 8.46
#[test]
fn the_first_retry_is_immediate_and_later_windows_double() {
    let mut longest = [Duration::ZERO; 10];
    for seed in 0..200 {
        let mut net = Net::new(2, HostLimits::default(), seed);
        net.delay = Duration::ZERO;
        net.connect_hosts(0, 1);
        let socket = net.bind(0, 100);
        net.is_unreachable = true;
        net.restart(1);
        net.send(0, socket, at(1, 200), &[]).unwrap();
        let lost = net.now;
        net.until(|net| net.asked.len() == 2);
        assert_eq!(net.now, lost, "the first attempt is made at once");
        for (number, longest) in longest.iter_mut().enumerate() {
            let before = net.now;
            net.until(|net| net.asked.len() == 3 + number);
            let window = Duration::from_millis(1 << number).min(Duration::from_secs(1));
            let waited = net.now - before;
            assert!(waited <= window);
            *longest = waited.max(*longest);
        }
    }
    for (number, longest) in longest.into_iter().enumerate() {
        assert!(longest > Duration::from_micros(900 << number), "{number}");
    }
}

// covers 8.46
#[test]
fn attempts_for_an_empty_queue_end_after_a_while() {
    let mut net = Net::new(2, HostLimits::default(), 2);
    net.connect_hosts(0, 1);
    net.is_unreachable = true;
    net.cut(0, 1);
    net.settle();
    assert!((5..30).contains(&net.asked.len()), "{}", net.asked.len());
    for host in 0..2 {
        assert_eq!(net.state(host, 1 - host), PathState::Down { due: None });
    }
}

// covers 8.46
#[test]
fn attempts_continue_while_messages_wait() {
    let mut net = Net::new(2, HostLimits::default(), 3);
    let socket = net.bind(0, 100);
    let to = net.bind(1, 200);
    net.is_unreachable = true;
    net.send(0, socket, at(1, 200), &[1]).unwrap();
    net.pass(Duration::from_secs(600));
    assert!(
        (600..3000).contains(&net.asked.len()),
        "{}",
        net.asked.len()
    );
    net.is_unreachable = false;
    net.settle();
    assert_eq!(net.receive_all(1, to).len(), 1);
}

// covers 8.46
#[test]
fn simultaneous_requests_lead_to_one_connection() {
    let mut attempts = 0;
    for seed in 0..runs(1000) {
        let mut net = Net::new(2, HostLimits::default(), seed);
        net.delay = Duration::from_micros(1 + seed % 300);
        let sockets = [0, 1].map(|host| net.bind(host, 100));
        for (host, &socket) in sockets.iter().enumerate() {
            let to = at(1 - host, 100);
            let bytes = content(seed, 5000);
            net.send(host, socket, to, &bytes).unwrap();
        }
        assert_eq!(net.asked.len(), 2, "both hosts request a connection");
        net.settle();
        assert!(net.common(0, 1).is_some());
        for (host, &socket) in sockets.iter().enumerate() {
            assert_eq!(net.host(host).paths().count(), 1);
            let received = net.receive_all(host, socket);
            assert_eq!(received, [(at(1 - host, 100), content(seed, 5000))]);
        }
        assert!(net.asked.len() < 40, "{} attempts", net.asked.len());
        attempts += net.asked.len() as u64;
    }
    assert!(attempts < 12 * runs(1000), "{attempts} attempts");
}

// covers 8.46
#[test]
fn two_sides_that_reconnect_keep_one_connection() {
    for_each_seed("both connect anew", 500, |seed| {
        let mut net = Net::new(2, HostLimits::default(), seed);
        net.delay = Duration::from_micros(1 + seed % 300);
        let (socket, to) = (net.bind(0, 100), net.bind(1, 200));
        net.connect_hosts(0, 1);
        net.cut(0, 1);
        net.until(|net| net.state(0, 1) != PathState::Up);
        let mut asked = attached(1);
        asked.operation.completes_early = true;
        let mut message = net.message(at(1, 200), b"with an operation");
        message.attached = Some(asked);
        net.send_message(0, socket, message).unwrap();
        net.settle();
        assert_eq!(net.receive_all(1, to).len(), 1);
        assert_eq!(net.carried_out, [1]);
    });
}

// covers 8.46
#[test]
fn a_restarted_peer_is_accepted_during_an_attempt() {
    let mut net = Net::new(2, HostLimits::default(), 5);
    net.connect_hosts(0, 1);
    let before = net.host(1).incarnation();
    let socket = net.bind(0, 100);
    net.restart(1);
    net.send(0, socket, at(1, 200), &[]).unwrap();
    net.until(|net| net.asked.len() == 2);
    assert_eq!(net.state(0, 1), PathState::Connecting);
    let after = net.host(1).incarnation();
    for (incarnation, is_accepted) in [(before, false), (after, true)] {
        let asked = ConnectData {
            incarnation,
            ..proposal(Version::V4_1, 3)
        };
        let answer = net
            .host(0)
            .handle_request(Some(asked.source), false, &asked);
        assert_eq!(matches!(answer, Answer::Accept { .. }), is_accepted);
    }
}

// covers 8.46
#[test]
fn an_attempt_is_not_completed_over_a_new_connection() {
    let mut host = host();
    let connect = |host: &mut TestHost, incarnation| {
        let asked = ConnectData {
            incarnation,
            ..proposal(Version::V4_1, 3)
        };
        match host.handle_request(Some(asked.source), false, &asked) {
            Answer::Accept { arrival, .. } => host.handle_accepted(arrival, &asked),
            Answer::Refuse => panic!("the request of a restarted peer was refused"),
        }
    };
    let path = connect(&mut host, 1).unwrap();
    host.handle_lost(path);
    host.handle_gone(Duration::ZERO, path);
    let attempt = host.attempt(path).expect("the host connects again");
    let told = ConnectData {
        incarnation: 2,
        ..proposal(Version::V4_1, 3)
    };
    assert!(host.handle_reply(path, attempt, &told));
    assert_eq!(connect(&mut host, 2), None, "the attempt ends first");
    assert!(!host.handle_reply(path, attempt, &told));
    host.handle_gone(Duration::ZERO, path);
    assert!(!host.handle_reply(path, attempt, &told));
}

// covers 8.46
#[test]
fn one_of_two_crossing_connections_stays() {
    for_each_seed("crossing", 1000, |seed| {
        let mut net = Net::new(2, HostLimits::default(), seed);
        net.delay = Duration::from_micros(1 + seed % 300);
        let to = net.bind(1, 200);
        net.connect_hosts(0, 1);
        let before = net.established();
        net.end_process(0);
        net.restart(0);
        let from = net.bind(0, 100);
        net.send(0, from, at(1, 200), b"after").unwrap();
        net.settle();
        assert_eq!(net.receive_all(1, to).len(), 1);
        assert_eq!(net.established() - before, 1);
    });
}

// covers 8.46
#[test]
fn many_simultaneous_hosts_have_one_connection_per_pair() {
    for_each_seed("many hosts", 30, |seed| {
        let mut net = Net::new(6, HostLimits::default(), seed);
        let sockets: Vec<_> = (0..6).map(|host| net.bind(host, 100)).collect();
        for (from, &socket) in sockets.iter().enumerate() {
            for to in (0..6).filter(|&to| to != from) {
                net.send(from, socket, at(to, 100), &[1]).unwrap();
            }
        }
        net.settle();
        for (one, &socket) in sockets.iter().enumerate() {
            assert_eq!(net.receive_all(one, socket).len(), 5);
            for other in (0..6).filter(|&other| other != one) {
                assert!(net.common(one, other).is_some());
            }
        }
    });
}

// covers 8.46
#[test]
fn only_a_proven_request_replaces_a_connection() {
    let mut net = Net::new(2, HostLimits::default(), 4);
    net.connect_hosts(0, 1);
    let asked = ConnectData {
        source: address(0),
        destination: address(1),
        ..net.asked[0]
    };
    let Answer::Accept { arrival, .. } =
        net.host(1)
            .handle_request(Some(asked.source), false, &asked)
    else {
        panic!("a request that may come from a restarted peer was refused");
    };
    net.pump(1);
    assert_eq!(net.state(1, 0), PathState::Up);
    net.host(1).handle_withdrawn(arrival);
    net.settle();
    assert_eq!(net.state(1, 0), PathState::Up);

    let Answer::Accept { arrival, .. } =
        net.host(1)
            .handle_request(Some(asked.source), false, &asked)
    else {
        panic!("a request that may come from a restarted peer was refused");
    };
    assert_eq!(net.host(1).handle_accepted(arrival, &asked), None);
    net.pump(1);
    assert_eq!(net.state(1, 0), PathState::Ending);
}

// covers 8.46
#[test]
fn unproven_requests_are_bounded_and_leave_no_state() {
    let mut host = host();
    let mut withdrawn = Vec::new();
    let mut accepted = Vec::new();
    for number in 0..1000 {
        let asked = ConnectData {
            source: Ipv4Addr::from_bits(0x0a00_0000 + number % 100).into(),
            ..proposal(Version::V4_1, 3)
        };
        let Answer::Accept { arrival, .. } = host.handle_request(Some(asked.source), false, &asked)
        else {
            panic!("a request that may come from a peer was refused");
        };
        accepted.push(arrival);
        while let Some(action) = host.poll_action() {
            let Action::Withdraw(arrival) = action else {
                panic!("{action:?}");
            };
            withdrawn.push(arrival);
        }
    }
    // The oldest requests are withdrawn first.
    assert_eq!(withdrawn, accepted[..1000 - 64]);
    accepted
        .into_iter()
        .for_each(|one| host.handle_withdrawn(one));
    assert_eq!(host.paths().count(), 0);
    host.handle_timeout(Duration::from_hours(1));
    assert_eq!((host.poll_action(), host.next_due()), (None, None));
}

// covers 8.46
#[test]
fn requests_with_forged_sources_keep_no_peer_out() {
    let mut host = host();
    let asked = |source: u32| ConnectData {
        source: Ipv4Addr::from_bits(source).into(),
        ..proposal(Version::V4_1, 3)
    };
    let other = asked(0x0a00_0002);
    let Answer::Accept {
        arrival: of_other, ..
    } = host.handle_request(Some(other.source), false, &other)
    else {
        panic!("the request of a peer was refused");
    };
    let named = asked(0x0a00_0001);
    for _ in 0..1000 {
        host.handle_request(Some(named.source), false, &named);
    }
    let Answer::Accept { arrival, .. } = host.handle_request(Some(named.source), false, &named)
    else {
        panic!("a request that may come from the peer was refused");
    };
    for _ in 0..15 {
        host.handle_request(Some(named.source), false, &named);
    }
    assert!(host.handle_accepted(arrival, &named).is_some());
    assert!(host.handle_accepted(of_other, &other).is_some());
}

/// The address of one of many peers.
fn peer(number: u32) -> IpAddr {
    Ipv4Addr::from_bits(0x0a00_0000 + number).into()
}

/// Connects a host that nothing has connected to yet from the address with this number.
fn connect_from(host: &mut TestHost, number: u32) -> Option<PathId> {
    let asked = ConnectData {
        source: peer(number),
        ..proposal(Version::V4_1, 3)
    };
    match host.handle_request(Some(asked.source), false, &asked) {
        Answer::Accept { arrival, .. } => host.handle_accepted(arrival, &asked),
        Answer::Refuse => None,
    }
}

// covers 8.46
#[test]
fn peers_that_have_gone_give_way_to_new_ones() {
    let mut host = host();
    let mut now = Duration::ZERO;
    let mut first = None;
    for number in 0..1500 {
        let path = connect_from(&mut host, number).expect("a peer is accepted");
        first = first.or(host.paths().next().map(|path| path.next_transmit));
        while let Some(ready) = host.next_ready() {
            while host.poll_transmit(ready).is_some() {}
        }
        // The peer has gone: no attempt to connect succeeds.
        host.handle_lost(path);
        loop {
            match host.poll_action() {
                Some(Action::Connect { path, .. }) => host.handle_lost(path),
                Some(Action::End(path)) => host.handle_gone(now, path),
                Some(other) => panic!("{other:?}"),
                None => match host.next_due() {
                    Some(due) => {
                        now = now.max(due);
                        host.handle_timeout(now);
                    }
                    None => break,
                },
            }
        }
        while host.next_ready().is_some() {}
    }
    assert_eq!(host.paths().count(), 1024);

    // The first peer remembers the sequence numbers of its path, which has given way. A new path does not use them again.
    let next = |host: &TestHost| {
        let mut paths = host.paths();
        paths
            .find(|path| path.peer == peer(0))
            .map(|path| path.next_transmit)
    };
    assert_eq!(next(&host), None);
    connect_from(&mut host, 0).expect("the peer is accepted again");
    assert!(next(&host) > first, "{:?}", next(&host));
}

// covers 8.46
#[test]
fn a_request_is_refused_while_no_peer_of_1024_is_idle() {
    let mut host = host();
    for number in 0..1024 {
        connect_from(&mut host, number).expect("a peer is accepted");
    }
    assert_eq!(connect_from(&mut host, 1024), None);
    assert_eq!(host.paths().count(), 1024);
}

// covers 8.46
#[test]
fn requests_accepted_for_the_last_place_share_it() {
    let mut host = host();
    for number in 0..1023 {
        connect_from(&mut host, number).expect("a peer is accepted");
    }
    let request = |number| ConnectData {
        source: peer(number),
        ..proposal(Version::V4_1, 3)
    };
    let arrivals = (1023..1033).map(|number| {
        let answer = host.handle_request(Some(peer(number)), false, &request(number));
        let Answer::Accept { arrival, .. } = answer else {
            panic!("a place is free");
        };
        (arrival, request(number))
    });
    let arrivals: Vec<_> = arrivals.collect();
    for (number, (arrival, told)) in arrivals.iter().enumerate() {
        let path = host.handle_accepted(*arrival, told);
        assert_eq!(path.is_some(), number == 0, "{number}");
    }
    let withdrawn = arrivals[1..]
        .iter()
        .map(|(arrival, _)| Action::Withdraw(*arrival));
    assert!(std::iter::from_fn(|| host.poll_action()).eq(withdrawn));
    assert_eq!(host.paths().count(), 1024);
}

// covers 8.46
#[test]
fn a_peer_waits_between_attempts_until_a_place_is_free() {
    let mut net = Net::new(2, HostLimits::default(), 7);
    let to = net.bind(0, 200);
    let others = (0..1024).map(|number| connect_from(net.host(0), number));
    let others: Vec<_> = others.collect();
    let socket = net.bind(1, 100);
    net.send(1, socket, at(0, 200), b"waits").unwrap();
    net.pass(Duration::from_mins(1));
    let before = net.asked.len();
    net.pass(Duration::from_mins(1));
    let attempts = net.asked.len() - before;
    assert!((60..240).contains(&attempts), "{attempts}");
    net.host(0).handle_lost(others[0].expect("a path"));
    net.pump(0);
    net.settle();
    assert_eq!(net.receive_all(0, to).len(), 1);
}

// covers 8.46
#[test]
fn forged_requests_keep_a_pair_apart_for_10_s_at_most() {
    for_each_seed("forged requests", 200, |seed| {
        let mut net = Net::new(2, HostLimits::default(), seed);
        net.connect_hosts(0, 1);
        let (socket, to) = (net.bind(0, 100), net.bind(1, 200));
        let incarnations = [0, 1].map(|host| net.host(host).incarnation());
        // The forger has learnt the incarnation of each host, and sends in its name to the other one.
        let forge = |net: &mut Net| {
            for host in 0..2 {
                let asked = ConnectData {
                    source: address(1 - host),
                    destination: address(host),
                    incarnation: incarnations[1 - host],
                    ..proposal(Version::V4_1, 3)
                };
                net.host(host)
                    .handle_request(Some(asked.source), false, &asked);
                net.pump(host);
            }
        };
        forge(&mut net);
        net.cut(0, 1);
        net.until(|net| net.state(0, 1) != PathState::Up);
        net.send(0, socket, at(1, 200), &[1]).unwrap();
        let cut = net.now;
        while net.receive_message(1, to).is_none() {
            let waited = net.now - cut;
            assert!(waited < Duration::from_secs(10), "{waited:?}");
            forge(&mut net);
            net.pass(Duration::from_millis(50));
        }
    });
}

// covers 8.29 8.46
#[test]
fn a_restarted_host_exchanges_messages_with_its_old_peers() {
    for_each_seed("restarts", 200, |seed| {
        let mut net = Net::new(2, HostLimits::default(), seed);
        let near = net.bind(0, 100);
        let far = net.bind(1, 200);
        for number in 0..10 {
            net.send(0, near, at(1, 200), &content(number, 100))
                .unwrap();
            net.send(1, far, at(0, 100), &content(number, 100)).unwrap();
        }
        net.settle();
        assert_eq!(net.receive_all(0, near).len(), 10);
        net.restart(1);
        let far = net.bind(1, 200);
        // The host that sends first notices the restart.
        let first = (seed % 2) as usize;
        let (sockets, ports) = ([near, far], [100, 200]);
        for host in [first, 1 - first] {
            let to = at(1 - host, ports[1 - host]);
            net.send(host, sockets[host], to, b"after").unwrap();
            if seed % 3 == 0 {
                net.settle();
            }
        }
        net.settle();
        assert_eq!(net.receive_all(0, near), [(at(1, 200), b"after".to_vec())]);
        // Messages that the old host had not acknowledged may arrive again.
        let received = net.receive_all(1, far);
        let after = received.iter().filter(|(_, bytes)| bytes == b"after");
        assert_eq!(after.count(), 1);
        let before = received.len() - 1;
        assert!(before <= 9, "{before}");
    });
}

// covers 8.34
#[test]
fn attempts_continue_while_a_socket_waits_for_a_port() {
    let mut net = Net::new(2, HostLimits::default(), 6);
    let near = net.bind(0, 100);
    let far = net.bind(1, 200);
    while net.send(1, far, at(0, 100), &content(1, 60_000)).is_ok() {
        net.settle();
    }
    net.is_unreachable = true;
    net.cut(0, 1);
    net.pass(Duration::from_mins(1));
    let attempts = net.asked.len();
    net.pass(Duration::from_mins(1));
    let attempts = net.asked.len() - attempts;
    assert!((60..240).contains(&attempts), "{attempts}");
    net.receive_all(0, near);
    net.is_unreachable = false;
    net.sides[1].woken.clear();
    net.settle();
    assert!(net.sides[1].woken.contains(&far));
    net.send(1, far, at(0, 100), b"after").unwrap();
    net.settle();
    assert_eq!(net.receive_all(0, near), [(at(1, 200), b"after".to_vec())]);
}

// covers 8.46
#[test]
fn a_connection_that_failed_early_is_tried_again() {
    let mut net = Net::new(2, HostLimits::default(), 5);
    let socket = net.bind(0, 100);
    let to = net.bind(1, 200);
    net.send(0, socket, at(1, 200), &[1]).unwrap();
    // The peer accepts the request and restarts.
    net.until(|net| net.state(0, 1) == PathState::Up);
    net.restart(1);
    let _ = to;
    let to = net.bind(1, 200);
    net.settle();
    assert_eq!(net.receive_all(1, to).len(), 1);
}
