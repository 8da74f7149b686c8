//! Congestion of sockets and credits of connections.

use std::time::Duration;

use polyverbs_rds::SocketOptions;
use polyverbs_rds::protocol::{FlowControl, HostLimits, Inbound, PathState, Refused};
use polyverbs_wire::rds::Flags;

use crate::net::{Net, at, content, for_each_seed};

fn receive_buffer(receive_buffer: usize) -> SocketOptions {
    SocketOptions {
        receive_buffer,
        ..SocketOptions::default()
    }
}

fn monitor() -> SocketOptions {
    SocketOptions {
        congestion_monitor: true,
        ..SocketOptions::default()
    }
}

// covers 8.33 8.34
#[test]
fn congestion_begins_above_the_buffer_and_ends_below_half() {
    let mut net = Net::new(2, HostLimits::default(), 1);
    let socket = net.bind(0, 100);
    let to = net.bind_with(1, 200, receive_buffer(1000));
    let send = |net: &mut Net, length| {
        let sent = net.send(0, socket, at(1, 200), &content(1, length));
        net.settle();
        sent
    };
    assert_eq!(send(&mut net, 1000), Ok(()));
    assert_eq!(
        send(&mut net, 400),
        Ok(()),
        "as much as the buffer is not more"
    );
    assert_eq!(send(&mut net, 100), Err(Refused::Congested));
    net.receive(1, to);
    net.settle();
    assert_eq!(send(&mut net, 100), Ok(()), "400 bytes are less than half");
    assert_eq!(send(&mut net, 501), Ok(()));
    assert_eq!(send(&mut net, 1), Err(Refused::Congested));
    net.receive(1, to);
    net.settle();
    assert_eq!(
        send(&mut net, 1),
        Err(Refused::Congested),
        "601 bytes are not"
    );
    net.receive(1, to);
    net.settle();
    assert_eq!(
        send(&mut net, 1),
        Err(Refused::Congested),
        "501 bytes are not"
    );
    net.receive(1, to);
    net.settle();
    assert_eq!(send(&mut net, 1), Ok(()));
}

// covers 8.34
#[test]
fn congestion_of_one_socket_leaves_others_reachable() {
    let mut net = Net::new(2, HostLimits::default(), 2);
    let socket = net.bind(0, 100);
    net.bind_with(1, 200, receive_buffer(10));
    let other = net.bind(1, 201);
    net.send(0, socket, at(1, 200), &[1; 11]).unwrap();
    net.settle();
    for _ in 0..1000 {
        let refused = net.send(0, socket, at(1, 200), &[1]);
        assert_eq!(refused, Err(Refused::Congested));
        net.send(0, socket, at(1, 201), &[2; 4000]).unwrap();
        net.settle();
        assert_eq!(net.receive_all(1, other).len(), 1);
    }
}

// covers 8.33
#[test]
fn connected_and_new_peers_get_the_congestion_map() {
    let mut net = Net::new(4, HostLimits::default(), 3);
    let sockets: Vec<_> = [0, 2, 3].map(|host| (host, net.bind(host, 100))).into();
    let to = net.bind_with(1, 200, receive_buffer(10));
    net.connect_hosts(0, 1);
    net.connect_hosts(2, 1);
    net.send(0, sockets[0].1, at(1, 200), &[1; 11]).unwrap();
    net.settle();
    let send = |net: &mut Net, place: usize| {
        let (host, socket) = sockets[place];
        net.send(host, socket, at(1, 200), &[1])
    };
    assert_eq!(send(&mut net, 1), Err(Refused::Congested));
    // A peer that is not connected has sent no map: the first message is sent, and the next one is
    // refused.
    assert_eq!(send(&mut net, 2), Ok(()));
    net.settle();
    assert_eq!(send(&mut net, 2), Err(Refused::Congested));
    net.receive_all(1, to);
    net.settle();
    for place in 0..3 {
        assert_eq!(send(&mut net, place), Ok(()));
    }
}

// covers 8.33 8.49
#[test]
fn closing_a_socket_ends_its_congestion() {
    let mut net = Net::new(2, HostLimits::default(), 4);
    let socket = net.bind(0, 100);
    let to = net.bind_with(1, 200, receive_buffer(10));
    net.send(0, socket, at(1, 200), &[1; 11]).unwrap();
    net.settle();
    assert_eq!(
        net.send(0, socket, at(1, 200), &[1]),
        Err(Refused::Congested)
    );
    net.close(1, to);
    net.settle();
    assert_eq!(net.send(0, socket, at(1, 200), &[1]), Ok(()));
}

// covers 8.34
#[test]
fn congestion_applies_to_sockets_of_the_own_address() {
    let mut net = Net::new(1, HostLimits::default(), 5);
    let socket = net.bind(0, 100);
    let to = net.bind_with(0, 200, receive_buffer(10));
    net.send(0, socket, at(0, 200), &[1; 11]).unwrap();
    assert_eq!(
        net.send(0, socket, at(0, 200), &[1]),
        Err(Refused::Congested)
    );
    net.sides[0].woken.clear();
    net.receive_all(0, to);
    assert!(net.sides[0].woken.contains(&socket));
    assert_eq!(net.send(0, socket, at(0, 200), &[1]), Ok(()));
}

// covers 8.34
#[test]
fn a_refused_sender_is_woken_when_the_map_changes() {
    let mut net = Net::new(2, HostLimits::default(), 6);
    let socket = net.bind(0, 100);
    let to = net.bind_with(1, 200, receive_buffer(10));
    net.send(0, socket, at(1, 200), &[1; 11]).unwrap();
    net.settle();
    net.send(0, socket, at(1, 200), &[1]).unwrap_err();
    net.sides[0].woken.clear();
    net.receive_all(1, to);
    net.settle();
    assert!(net.sides[0].woken.contains(&socket));
}

// covers 8.34
#[test]
fn a_refused_send_reconnects_to_learn_of_the_free_port() {
    let mut net = Net::new(2, HostLimits::default(), 7);
    let socket = net.bind(0, 100);
    let to = net.bind_with(1, 200, receive_buffer(10));
    net.send(0, socket, at(1, 200), &[1; 11]).unwrap();
    net.settle();
    net.is_unreachable = true;
    net.cut(0, 1);
    net.settle();
    assert_eq!(net.state(0, 1), PathState::Down { due: None });
    net.receive_all(1, to);
    net.is_unreachable = false;
    assert_eq!(
        net.send(0, socket, at(1, 200), &[1]),
        Err(Refused::Congested)
    );
    net.settle();
    assert_eq!(net.send(0, socket, at(1, 200), &[1]), Ok(()));
}

// covers 8.35
#[test]
fn a_monitor_gets_the_groups_that_refused_it_and_are_free() {
    let mut net = Net::new(2, HostLimits::default(), 8);
    let socket = net.bind_with(0, 100, monitor());
    let to = [200, 201, 202].map(|port| net.bind_with(1, port, receive_buffer(10)));
    for port in 200..203 {
        net.send(0, socket, at(1, port), &[1; 11]).unwrap();
    }
    net.settle();
    // No message was refused by the third port.
    for port in 200..202 {
        let refused = net.send(0, socket, at(1, port), &[1]);
        assert_eq!(refused, Err(Refused::Congested));
    }
    assert!(!net.host(0).readiness(socket).readable);
    net.sides[0].woken.clear();
    net.receive_all(1, to[2]);
    net.settle();
    assert!(!net.host(0).readiness(socket).readable);
    assert_eq!(net.sides[0].woken, []);
    net.receive_all(1, to[0]);
    net.settle();
    assert!(net.host(0).readiness(socket).readable);
    assert!(!net.host(0).readiness(socket).congestion_changed);
    match net.receive(0, socket) {
        Some(Inbound::Congestion(groups)) => assert_eq!(groups, 1 << (200 % 64)),
        other => panic!("{other:?}"),
    }
    assert!(!net.host(0).readiness(socket).readable);
    assert!(net.receive(0, socket).is_none());
}

// covers 8.35
#[test]
fn without_a_monitor_each_map_change_is_reported_once() {
    let mut net = Net::new(2, HostLimits::default(), 9);
    let socket = net.bind(0, 100);
    let to = net.bind_with(1, 200, receive_buffer(10));
    net.connect_hosts(0, 1);
    net.host(0).readiness(socket);
    assert!(!net.host(0).readiness(socket).congestion_changed);
    net.send(0, socket, at(1, 200), &[1; 11]).unwrap();
    net.settle();
    assert!(net.host(0).readiness(socket).congestion_changed);
    assert!(!net.host(0).readiness(socket).congestion_changed);
    net.receive_all(1, to);
    net.settle();
    assert!(net.host(0).readiness(socket).congestion_changed);
}

fn with_credits(receives: u32) -> HostLimits {
    HostLimits {
        first_receives: receives,
        receives,
        flow_control: FlowControl::Required,
        ..HostLimits::default()
    }
}

// covers 8.48
#[test]
fn two_flooding_sides_do_not_run_out_of_credits() {
    for_each_seed("floods", 20, |seed| {
        for receives in [32, 64, 512] {
            let mut net = Net::new(2, with_credits(receives), seed);
            let options = SocketOptions {
                send_buffer: 1 << 30,
                receive_buffer: 1 << 30,
                ..SocketOptions::default()
            };
            let sockets = [0, 1].map(|host| net.bind_with(host, 100, options));
            for number in 0..400 {
                for (host, &socket) in sockets.iter().enumerate() {
                    let bytes = content(number, if number % 10 == 0 { 20_000 } else { 100 });
                    let to = at(1 - host, 100);
                    net.send(host, socket, to, &bytes).unwrap();
                }
            }
            // The test fails if a fragment finds no receive.
            net.settle();
            for (host, &socket) in sockets.iter().enumerate() {
                assert_eq!(net.receive_all(host, socket).len(), 400);
            }
        }
    });
}

// covers 8.48
#[test]
fn each_reposted_receive_is_advertised_once() {
    let mut net = Net::new(2, with_credits(64), 10);
    let sockets = [0, 1].map(|host| net.bind(host, 100));
    for number in 0..200 {
        for (host, &socket) in sockets.iter().enumerate() {
            let to = at(1 - host, 100);
            net.send(host, socket, to, &content(number, 10)).unwrap();
        }
        net.settle();
    }
    for host in 0..2 {
        let of_host = net.seen.iter().filter(|seen| seen.from == host);
        let advertised: u32 = of_host.map(|seen| u32::from(seen.header.credit)).sum();
        let of_peer = net.seen.iter().filter(|seen| seen.from != host);
        let used = of_peer.count() as u32;
        assert!(
            (used - 32..=used).contains(&advertised),
            "{advertised} of {used}"
        );
    }
}

// covers 8.48
#[test]
fn credits_are_used_if_one_side_asks_for_them() {
    for (flow_control, credit) in [
        (FlowControl::Accepted, 0),
        (FlowControl::Asked, 32),
        (FlowControl::Required, 32),
    ] {
        let limits = HostLimits {
            flow_control,
            ..HostLimits::default()
        };
        let mut net = Net::new(2, limits, 11);
        let socket = net.bind(0, 100);
        net.connect_hosts(0, 1);
        assert_eq!(net.asked[0].credit, credit);
        for _ in 0..100 {
            net.send(0, socket, at(1, 200), &[1]).unwrap();
            net.settle();
        }
        let advertised = net.seen.iter().any(|seen| seen.header.credit > 0);
        assert_eq!(advertised, credit > 0);
    }
}

// covers 8.33
#[test]
fn the_last_map_of_many_changes_is_sent() {
    let mut net = Net::new(2, HostLimits::default(), 12);
    net.delay = Duration::from_millis(1);
    let socket = net.bind(0, 100);
    let to = net.bind_with(1, 200, receive_buffer(10));
    let own = net.bind(1, 201);
    net.connect_hosts(0, 1);
    for _ in 0..101 {
        net.send(1, own, at(1, 200), &[1; 11]).unwrap();
        net.receive_all(1, to);
    }
    net.send(1, own, at(1, 200), &[1; 11]).unwrap();
    net.settle();
    assert_eq!(
        net.send(0, socket, at(1, 200), &[1]),
        Err(Refused::Congested)
    );
    let maps = net
        .seen
        .iter()
        .filter(|seen| seen.header.flags == Flags::CONG_BITMAP);
    assert!(maps.count() <= 2 * 2 * 210);
}
