//! Operations on the peer's memory, which the protocol posts before a message.

use std::time::Duration;

use polyverbs_rds::protocol::{
    Attached, HostLimits, Notify, OperationStatus, Outbound, PathState, SocketId,
};
use polyverbs_rds::{RdmaStatus, SocketOptions};
use polyverbs_wire::rds::{Extension, Header};

use crate::net::{Bytes, Fate, Net, Op, at, attached, renamed};

fn told(user_token: u64, status: OperationStatus) -> RdmaStatus {
    RdmaStatus { user_token, status }
}

/// Two connected hosts with a socket each: port 100 at the first and port 200 at the second.
fn connected(seed: u64) -> (Net, SocketId, SocketId) {
    connected_with(seed, HostLimits::default())
}

fn connected_with(seed: u64, limits: HostLimits) -> (Net, SocketId, SocketId) {
    let mut net = Net::new(2, limits, seed);
    let (socket, to) = (net.bind(0, 100), net.bind(1, 200));
    net.connect_hosts(0, 1);
    net.seen.clear();
    (net, socket, to)
}

fn message(net: &Net, bytes: &[u8], attached: Attached<Op>) -> Outbound<Bytes, Op> {
    let mut message = net.message(at(1, 200), bytes);
    message.attached = Some(attached);
    message
}

fn send(net: &mut Net, socket: SocketId, bytes: &[u8], attached: Attached<Op>) {
    let message = message(net, bytes, attached);
    net.send_message(0, socket, message).unwrap();
}

// covers 8.42
#[test]
fn an_operation_is_carried_out_before_its_message_arrives() {
    let (mut net, socket, to) = connected(1);
    for name in 0..20 {
        send(&mut net, socket, &[1; 5000], attached(name));
    }
    let mut arrived = 0;
    while net.step() {
        arrived += net.receive_all(1, to).len();
        assert!(net.carried_out.len() >= arrived);
    }
    assert_eq!(arrived, 20);
    assert!(net.carried_out.iter().copied().eq(0..20));
}

// covers 8.42 8.44
#[test]
fn the_message_of_a_refused_operation_is_not_delivered() {
    let (mut net, socket, to) = connected(2);
    let mut refused = attached(1);
    refused.operation.fate = Fate::Refused;
    send(&mut net, socket, b"one", refused);
    net.send(0, socket, at(1, 200), b"two").unwrap();
    net.settle();
    assert_eq!(net.receive_all(1, to), [(at(0, 100), b"two".to_vec())]);
    assert_eq!(
        net.statuses(0, socket),
        [told(1, OperationStatus::RemoteError)]
    );
    assert_eq!(net.statuses(0, socket), []);
}

// covers 8.32 8.44
#[test]
fn an_operation_is_carried_out_once_or_reported_as_dropped() {
    let mut dropped = 0;
    for (fragments, completes_early) in (0..10).flat_map(|cut| [(cut, false), (cut, true)]) {
        let (mut net, socket, to) = connected(3);
        net.cut_after(0, 1, fragments);
        for name in 0..10_u64 {
            let mut asked = attached(name);
            asked.operation.completes_early = completes_early;
            send(&mut net, socket, &name.to_be_bytes(), asked);
        }
        net.settle();
        let arrived = net.receive_all(1, to).into_iter();
        let arrived: Vec<_> = arrived
            .map(|(_, bytes)| u64::from_be_bytes(bytes[..].try_into().unwrap()))
            .collect();
        assert!(arrived.is_sorted());
        assert!(net.carried_out.is_sorted_by(|one, next| one < next));
        assert!(arrived.iter().all(|name| net.carried_out.contains(name)));
        let statuses = net.statuses(0, socket);
        assert_eq!(statuses.len(), 10, "{statuses:?}");
        for name in 0..10_u64 {
            let one: Vec<_> = statuses
                .iter()
                .filter(|one| one.user_token == name)
                .collect();
            assert_eq!(one.len(), 1);
            match one[0].status {
                OperationStatus::Success => {
                    assert!(net.carried_out.contains(&name));
                    assert!(completes_early || arrived.contains(&name));
                }
                OperationStatus::Dropped => dropped += 1,
                other => panic!("{other:?}"),
            }
        }
    }
    assert!(dropped > 0);
}

// covers 8.44
#[test]
fn the_completion_and_not_the_acknowledge_ends_an_operation() {
    let (mut net, socket, _) = connected(17);
    send(&mut net, socket, b"overtakes a read", attached(1));
    let sent = net.seen.last().expect("the message was sent");
    let ack = Header {
        ack: sent.header.sequence,
        ..Header::default()
    };
    net.inject(0, 1, &ack.to_bytes(), &[]).unwrap();
    assert_eq!(net.statuses(0, socket), []);
    net.settle();
    assert_eq!(net.statuses(0, socket), [told(1, OperationStatus::Success)]);
    let path = net.host(0).paths().next().unwrap();
    assert_eq!(path.unacknowledged, 0);
}

// covers 8.32
#[test]
fn unposted_operations_are_posted_on_the_next_connection() {
    let (mut net, socket, to) = connected(4);
    net.cut(0, 1);
    net.until(|net| net.state(0, 1) != PathState::Up);
    send(&mut net, socket, b"later", attached(1));
    net.settle();
    assert_eq!(net.carried_out, [1]);
    assert_eq!(net.receive_all(1, to).len(), 1);
    assert_eq!(net.statuses(0, socket), [told(1, OperationStatus::Success)]);
}

// covers 8.36
#[test]
fn a_cancelled_operation_waits_for_its_posted_requests() {
    let (mut net, socket, _) = connected(5);
    send(&mut net, socket, b"posted", attached(1));
    let pending = net.cancel(0, socket, Some(at(1, 200)));
    let [(path, request)] = pending[..] else {
        panic!("{pending:?}");
    };
    assert!(!net.host(0).is_completed(path, request));
    net.settle();
    assert!(net.host(0).is_completed(path, request));
    assert_eq!(
        net.statuses(0, socket),
        [told(1, OperationStatus::Canceled)]
    );
}

// covers 8.36
#[test]
fn the_end_of_the_connection_frees_cancelled_memory() {
    let (mut net, socket, _) = connected(6);
    send(&mut net, socket, b"posted", attached(1));
    let pending = net.cancel(0, socket, None);
    net.cut(0, 1);
    net.settle();
    let (path, request) = pending[0];
    assert!(net.host(0).is_completed(path, request));
}

// covers 8.36
#[test]
fn a_peer_that_exhausts_a_sockets_patience_is_disconnected() {
    for is_closed in [false, true] {
        let (mut net, _, _) = connected(18);
        let patience = Duration::from_millis(1500);
        let options = SocketOptions {
            patience,
            ..SocketOptions::default()
        };
        let impatient = net.bind_with(0, 101, options);
        let mut unanswered = attached(1);
        unanswered.operation.fate = Fate::Unanswered;
        send(&mut net, impatient, b"posted", unanswered);
        net.settle();
        let pending = match is_closed {
            true => net.close(0, impatient),
            false => net.cancel(0, impatient, None),
        };
        let [(path, request)] = pending[..] else {
            panic!("{pending:?}");
        };
        let canceled = net.now;
        net.until(|net| net.state(0, 1) != PathState::Up);
        assert_eq!(net.now, canceled + patience);
        assert!(!net.host(0).is_completed(path, request));
        net.settle();
        assert!(net.host(0).is_completed(path, request));
    }
}

// covers 8.36
#[test]
fn a_cancel_that_completes_in_time_keeps_the_connection() {
    let (mut net, socket, _) = connected(19);
    assert_eq!(SocketOptions::default().patience, Duration::from_secs(5));
    send(&mut net, socket, b"posted", attached(1));
    assert_eq!(net.cancel(0, socket, None).len(), 1);
    net.pass(2 * SocketOptions::default().patience);
    assert_eq!(net.state(0, 1), PathState::Up);
    assert_eq!((net.asked.len(), net.host(0).next_due()), (1, None));
}

// covers 8.36
#[test]
fn a_cancelled_operation_without_room_is_never_posted() {
    let limits = HostLimits {
        send_requests: 8,
        ..HostLimits::default()
    };
    let (mut net, socket, to) = connected_with(7, limits);
    let other = net.bind(0, 101);
    let mut large = attached(1);
    large.operation.requests = 5;
    send(&mut net, other, b"first", renamed(&large, 1));
    send(&mut net, socket, b"second", renamed(&large, 2));
    assert_eq!(net.cancel(0, socket, None), []);
    send(&mut net, other, b"third", renamed(&large, 3));
    net.settle();
    assert_eq!(net.carried_out, [1, 3]);
    let received = net.receive_all(1, to).into_iter();
    let received: Vec<_> = received.map(|(_, bytes)| bytes).collect();
    assert_eq!(received, [b"first".to_vec(), b"third".to_vec()]);
    assert_eq!(
        net.statuses(0, socket),
        [told(2, OperationStatus::Canceled)]
    );
}

// covers 8.37
#[test]
fn an_operation_without_room_is_posted_on_the_next_connection() {
    let limits = HostLimits {
        send_requests: 8,
        ..HostLimits::default()
    };
    let (mut net, socket, to) = connected_with(15, limits);
    let other = net.bind(0, 101);
    let mut large = attached(1);
    // The send queue has room for one request.
    large.operation.requests = 3;
    send(&mut net, other, b"posted", renamed(&large, 1));
    send(&mut net, socket, b"waits", renamed(&large, 2));
    net.cut(0, 1);
    net.settle();
    assert_eq!(net.carried_out, [2]);
    assert_eq!(net.receive_all(1, to).len(), 1);
    assert_eq!(net.statuses(0, other), [told(1, OperationStatus::Dropped)]);
    assert_eq!(net.statuses(0, socket), [told(2, OperationStatus::Success)]);
}

// covers 8.37 8.40
#[test]
fn the_used_key_is_reported_to_the_peer() {
    let (mut net, socket, to) = connected(8);
    send(&mut net, socket, b"used", attached(1));
    net.settle();
    let told: Vec<_> = net.seen[0].header.extensions.iter().collect();
    assert_eq!(told, [Extension::Rdma { rkey: 7 }]);
    assert_eq!(net.sides[1].used, [(to, 7)]);
}

// covers 8.37
#[test]
fn an_atomic_reports_no_key() {
    let (mut net, socket, _) = connected(9);
    let mut atomic = attached(1);
    atomic.rkey = None;
    send(&mut net, socket, b"changed", atomic);
    net.settle();
    assert_eq!(net.seen[0].header.extensions.iter().count(), 0);
    assert_eq!(net.sides[1].used, []);
}

// covers 8.37
#[test]
fn a_silent_operation_without_data_sends_no_message() {
    let (mut net, socket, to) = connected(10);
    let mut silent = attached(1);
    silent.is_silent = true;
    send(&mut net, socket, &[], silent);
    net.settle();
    assert_eq!(net.carried_out, [1]);
    assert_eq!(net.seen.len(), 0);
    assert_eq!(net.receive_all(1, to), []);
    assert_eq!(net.statuses(0, socket), [told(1, OperationStatus::Success)]);
    // The operation is not kept, because no acknowledge will come for it.
    let path = net.host(0).paths().next().unwrap();
    assert_eq!(path.unacknowledged, 1, "the message that connected them");
}

// covers 8.37
#[test]
fn data_or_the_lack_of_the_flag_makes_an_operation_send() {
    let (mut net, socket, to) = connected(11);
    let mut silent = attached(1);
    silent.is_silent = true;
    send(&mut net, socket, b"data", silent);
    send(&mut net, socket, &[], attached(2));
    net.settle();
    let received = net.receive_all(1, to).into_iter();
    let received: Vec<_> = received.map(|(_, bytes)| bytes).collect();
    assert_eq!(received, [b"data".to_vec(), Vec::new()]);
}

// covers 8.44
#[test]
fn statuses_come_always_or_on_error_or_never() {
    for (fate, status) in [
        (Fate::Done, OperationStatus::Success),
        (Fate::Refused, OperationStatus::RemoteError),
    ] {
        for notify in [Notify::Always, Notify::OnError, Notify::Never] {
            let (mut net, socket, _) = connected(12);
            let mut asked = attached(9);
            asked.notify = notify;
            asked.operation.fate = fate;
            send(&mut net, socket, b"data", asked);
            net.settle();
            let is_told = match notify {
                Notify::Always => true,
                Notify::OnError => fate == Fate::Refused,
                Notify::Never => false,
            };
            let expected = is_told.then_some(told(9, status));
            let statuses = net.statuses(0, socket);
            assert!(statuses.into_iter().eq(expected), "{fate:?} {notify:?}");
        }
    }
}

// covers 8.32 8.44
#[test]
fn an_operation_carried_out_survives_its_connection() {
    for notify in [Notify::Always, Notify::OnError] {
        let (mut net, socket, _) = connected(16);
        let mut asked = attached(9);
        asked.notify = notify;
        send(&mut net, socket, b"done", asked);
        net.settle();
        net.cut(0, 1);
        net.settle();
        let expected = (notify == Notify::Always).then_some(told(9, OperationStatus::Success));
        assert!(net.statuses(0, socket).into_iter().eq(expected));
        assert_eq!(net.statuses(0, socket), []);
    }
}

// covers 8.44
#[test]
fn only_the_failed_operation_reports_an_error() {
    let (mut net, socket, _) = connected(13);
    let mut refused = attached(2);
    refused.operation.fate = Fate::Refused;
    send(&mut net, socket, b"one", attached(1));
    send(&mut net, socket, b"two", refused);
    send(&mut net, socket, b"three", attached(3));
    net.settle();
    let expected = [
        told(1, OperationStatus::Success),
        told(2, OperationStatus::RemoteError),
        told(3, OperationStatus::Dropped),
    ];
    assert_eq!(net.statuses(0, socket), expected);
}

// covers 8.44
#[test]
fn an_operation_after_a_failed_send_is_dropped() {
    let (mut net, socket, _) = connected(14);
    net.send(0, socket, at(1, 200), b"fails").unwrap();
    send(&mut net, socket, b"behind it", attached(1));
    let path = net.path(0, 1).unwrap();
    // The two fragments of the map and the message that connected the hosts were posted before.
    let failed = OperationStatus::OtherError;
    net.host(0).handle_failure(path, 4, failed);
    net.pump(0);
    net.settle();
    assert_eq!(net.statuses(0, socket), [told(1, OperationStatus::Dropped)]);
}

// covers 8.44
#[test]
fn statuses_come_before_messages_and_as_many_as_fit() {
    let (mut net, socket, _) = connected(15);
    let to = net.bind(1, 201);
    for name in 0..5 {
        send(&mut net, socket, &[], attached(name));
    }
    net.send(1, to, at(0, 100), b"message").unwrap();
    net.settle();
    let readiness = net.host(0).readiness(socket);
    assert!(readiness.readable);
    for most in [2, 2, 1] {
        match net.host(0).receive(socket, 2) {
            Some(polyverbs_rds::protocol::Inbound::Statuses(statuses)) => {
                assert_eq!(statuses.len(), most);
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(net.receive_all(0, socket).len(), 1);
}
