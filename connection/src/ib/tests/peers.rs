//! Messages that are repeated, come from another address, or are invalid.

use polyverbs_wire::mad::cm::{Dreq, Lap, Rej, Rep, Req};

use super::*;

/// The REQ of a connection, and the connection at the far end.
fn requested(pair: &mut Pair, qpn: u32) -> (Outgoing, CommId) {
    pair.ends[NEAR].connect(pair.now, &request(qpn)).unwrap();
    let req = pair.ends[NEAR].poll_message().unwrap();
    pair.deliver(FAR, &req);
    pair.collect();
    let Some(Event::Requested { id, .. }) = pair.events(FAR).pop() else {
        panic!()
    };
    (req, id)
}

fn answer_to(pair: &mut Pair, end: usize, message: &Outgoing) -> Option<Message> {
    while pair.ends[end].poll_message().is_some() {}
    pair.deliver(end, message);
    pair.ends[end].poll_message().map(|sent| sent.message)
}

fn changed(req: &Outgoing, change: impl FnOnce(&mut Req)) -> Outgoing {
    let mut req = req.clone();
    if let Message::Req(req) = &mut req.message {
        change(req);
    }
    req
}

// covers 7.04
#[test]
fn a_repeated_req_is_answered_according_to_the_state() {
    for state in State::ALL {
        let mut pair = Pair::new();
        let (req, far) = requested(&mut pair, 0x11);
        let Some(connection) = pair.ends[FAR].connections.get_mut(&far.0) else {
            panic!()
        };
        if state == State::MraReqSent {
            pair.ends[FAR].delay(far, 18, b"").unwrap();
        } else {
            connection.state = state;
        }
        let answer = answer_to(&mut pair, FAR, &req);
        match (state, answer) {
            (State::ReqRcvd | State::MraReqSent, Some(Message::Mra(_))) => {}
            (State::TimeWait, Some(Message::Rej(rej))) => {
                assert_eq!(rej.reason, reason::STALE_CONNECTION);
            }
            (State::ReqRcvd | State::MraReqSent | State::TimeWait, other) => {
                panic!("{state:?}: {other:?}")
            }
            (_, answer) => assert_eq!(answer, None, "{state:?}"),
        }
        assert_eq!(pair.ends[FAR].poll_event(), None);
        assert_eq!(pair.ends[FAR].counts().duplicates, 1);
    }
}

// covers 7.05
#[test]
fn a_connection_of_a_restarted_peer_replaces_the_old_one() {
    let mut pair = Pair::new();
    let (near, far) = pair.connected(0x11);
    pair.sent();
    // The peer has restarted: it has forgotten the connection, and uses the queue pair number again.
    pair.ends[NEAR].forget(near.0);
    let (again, new, request) = pair.asked(0x11);
    pair.reply(new, &request);
    assert_eq!(pair.state(FAR, far), Some(State::Established));
    pair.ends[NEAR].ready(again, b"").unwrap();
    pair.settle();
    let names: Vec<_> = pair.sent().into_iter().map(|(_, name)| name).collect();
    assert_eq!(names, ["REQ", "REP", "RTU", "DREQ", "DREP"]);
    let Some(Event::Disconnected { id, .. }) = pair.events(FAR).pop() else {
        panic!("the old connection still exists");
    };
    assert_eq!(id, far);
    pair.drain();
    for (end, id) in [(NEAR, again), (FAR, new)] {
        assert_eq!(pair.state(end, id), Some(State::Established));
    }
    assert_eq!(pair.ends[FAR].connections(), 1);
}

// covers 7.05
#[test]
fn an_unproven_req_keeps_its_queue_pair_from_no_peer() {
    let mut pair = Pair::new();
    let (_, far) = pair.connected(0x11);
    // The forged requests name the queue pair that is connected, and the one that the peer uses next.
    let (req, _) = requested(&mut pair, 0x13);
    for qpn in [0x11, 0x12] {
        let forged = changed(&req, |req| {
            (req.local_comm_id, req.qpn) = (req.local_comm_id.wrapping_add(qpn), qpn);
        });
        assert_eq!(answer_to(&mut pair, FAR, &forged), None);
        pair.collect();
    }
    pair.events = [Vec::new(), Vec::new()];
    let (_, next) = pair.connected(0x12);
    pair.drain();
    for id in [far, next] {
        assert_eq!(pair.state(FAR, id), Some(State::Established));
    }
    assert_eq!(pair.ends[FAR].connections(), 2);
}

// covers 7.05
#[test]
fn a_reply_with_a_queue_pair_that_is_connected_is_refused() {
    let mut pair = Pair::new();
    let (near, _) = pair.connected(0x11);
    let qpn = pair.ends[NEAR].connections[&near.0].remote_qpn;
    let (second, far, request) = pair.asked(0x12);
    pair.sent();
    let reply = Reply::new(qpn, Psn::new(1), &request);
    pair.ends[FAR].reply(pair.now, far, &reply).unwrap();
    pair.settle();
    let names: Vec<_> = pair.sent().into_iter().map(|(_, name)| name).collect();
    assert_eq!(names, ["REP", "REJ", "DREQ"]);
    assert_eq!(pair.state(NEAR, near), Some(State::DreqSent));
    assert_eq!(pair.state(NEAR, second), Some(State::ReqSent));
    assert_eq!(pair.state(FAR, far), Some(State::TimeWait));
}

// covers 7.10
#[test]
fn an_invalid_req_is_refused_with_the_reason() {
    let mut pair = Pair::new();
    let (req, _) = requested(&mut pair, 0x11);
    let next = |change: fn(&mut Req)| {
        changed(&req, |req| {
            (req.local_comm_id, req.qpn) = (req.local_comm_id + 1, req.qpn + 1);
            change(req);
        })
    };
    for (message, expected) in [
        (next(|req| req.service_id = 9), reason::INVALID_SERVICE_ID),
        (
            next(|req| req.transport_type = 2),
            reason::INVALID_TRANSPORT_TYPE,
        ),
        (
            next(|req| req.transport_type = 3),
            reason::INVALID_TRANSPORT_TYPE,
        ),
        (next(|req| req.path_mtu = 0), reason::INVALID_MTU),
    ] {
        let Some(Message::Rej(rej)) = answer_to(&mut pair, FAR, &message) else {
            panic!("reason {expected}");
        };
        assert_eq!((rej.reason, rej.message), (expected, 0));
        assert_eq!(rej.local_comm_id, 0);
        let Message::Req(req) = message.message else {
            panic!()
        };
        assert_eq!(rej.remote_comm_id, req.local_comm_id);
    }
    assert_eq!(pair.ends[FAR].connections(), 1);
}

// covers 7.10
#[test]
fn a_source_has_half_of_all_connections() {
    let mut pair = Pair::new();
    pair.ends[FAR].options.max_connections = 2;
    let (_, kept) = pair.connected(0x11);
    let refused = pair.ask(0x12);
    let told = pair.events(NEAR).pop();
    let is_told = |told| matches!(told, Event::Rejected { id, reason: reason::NO_RESOURCES, .. } if id == refused);
    assert!(told.is_some_and(is_told));
    assert_eq!(pair.state(FAR, kept), Some(State::Established));
}

// covers 7.11
#[test]
fn a_rej_acts_according_to_state_and_reason() {
    for state in State::ALL {
        for stale in [false, true] {
            let mut pair = Pair::new();
            let (end, id, remote) = pair.in_state(state);
            let before = pair.ends[end].counts().stray;
            pair.events = [Vec::new(), Vec::new()];
            let rej = Rej {
                local_comm_id: remote.0,
                remote_comm_id: id.0,
                reason: if stale {
                    reason::STALE_CONNECTION
                } else {
                    reason::CONSUMER
                },
                ..Rej::default()
            };
            pair.ends[end].handle_message(pair.now, address(1 - end), 0, &rej.into());
            let expected = match state {
                State::ReqSent | State::MraReqRcvd | State::ReqRcvd | State::MraReqSent => {
                    stale.then_some(State::TimeWait)
                }
                State::TimeWait | State::SidrReqSent | State::SidrReqRcvd => Some(state),
                _ => Some(State::TimeWait),
            };
            assert_eq!(pair.state(end, id), expected, "{state:?}, stale {stale}");
            let told = matches!(pair.ends[end].poll_event(), Some(Event::Rejected { .. }));
            let is_stray = pair.ends[end].counts().stray > before;
            assert_eq!(told, !is_stray, "{state:?}");
        }
    }
}

// covers 7.08
#[test]
fn a_dreq_must_name_the_queue_pair_and_an_unknown_one_is_answered() {
    let mut pair = Pair::new();
    let (near, far) = pair.connected(0x11);
    let dreq = |local: CommId, remote: CommId, remote_qpn| {
        let dreq = Dreq {
            local_comm_id: local.0,
            remote_comm_id: remote.0,
            remote_qpn,
            ..Dreq::default()
        };
        Message::from(dreq)
    };
    let own = pair.ends[FAR].connections[&far.0].local_qpn.value();
    let from = address(NEAR);
    pair.ends[FAR].handle_message(pair.now, from, 5, &dreq(near, far, own + 1));
    assert_eq!(pair.ends[FAR].poll_message(), None);
    assert_eq!(pair.state(FAR, far), Some(State::Established));

    pair.ends[FAR].handle_message(pair.now, from, 5, &dreq(CommId(9), CommId(8), 1));
    let Some(Outgoing {
        transaction_id: 5,
        message: Message::Drep(drep),
        ..
    }) = pair.ends[FAR].poll_message()
    else {
        panic!()
    };
    assert_eq!((drep.local_comm_id, drep.remote_comm_id), (8, 9));

    let (_, waiting, request) = pair.asked(0x12);
    pair.loses = Box::new(|_, _| true);
    pair.reply(waiting, &request);
    let remote = pair.ends[FAR].connections[&waiting.0].remote_comm_id;
    let own = pair.ends[FAR].connections[&waiting.0].local_qpn.value();
    let end = dreq(CommId(remote), waiting, own);
    pair.ends[FAR].handle_message(pair.now, from, 5, &end);
    assert_eq!(pair.state(FAR, waiting), Some(State::DreqRcvd));
}

// covers 7.19
#[test]
fn a_lap_is_answered_that_alternate_paths_are_unsupported() {
    let mut pair = Pair::new();
    let (near, far) = pair.connected(0x11);
    let lap = Lap {
        local_comm_id: near.0,
        remote_comm_id: far.0,
        ..Lap::default()
    };
    pair.ends[FAR].handle_message(pair.now, address(NEAR), 5, &lap.into());
    let Some(Message::Apr(apr)) = pair.ends[FAR].poll_message().map(|sent| sent.message) else {
        panic!()
    };
    assert_eq!((apr.remote_comm_id, apr.status), (near.0, 2));
    assert_eq!(pair.state(FAR, far), Some(State::Established));
}

#[test]
fn a_message_from_another_address_changes_nothing() {
    let mut pair = Pair::new();
    let (near, far) = pair.connected(0x11);
    let own = pair.ends[FAR].connections[&far.0].local_qpn.value();
    let elsewhere = LinkAddress::InProcess(99);
    let (local_comm_id, remote_comm_id) = (near.0, far.0);
    let rej = Rej {
        local_comm_id,
        remote_comm_id,
        ..Rej::default()
    };
    let dreq = Dreq {
        local_comm_id,
        remote_comm_id,
        remote_qpn: own,
        ..Dreq::default()
    };
    for message in [Message::from(rej), Message::from(dreq)] {
        pair.ends[FAR].handle_message(pair.now, elsewhere, 0, &message);
    }
    assert_eq!(pair.state(FAR, far), Some(State::Established));
    assert_eq!(pair.ends[FAR].poll_message(), None);
    assert_eq!(pair.ends[FAR].counts().misdirected, 2);
}

#[test]
fn a_flood_of_requests_gets_few_connections_and_answers() {
    let mut pair = Pair::new();
    pair.ends[FAR].options.max_outgoing = 60;
    let listener = pair.listener;
    pair.ends[FAR].set_backlog(listener, 50);
    let (req, _) = requested(&mut pair, 1);
    let mut flood = |service_id| {
        for n in 0..10_000 {
            let message = changed(&req, |req| {
                (req.local_comm_id, req.qpn, req.service_id) = (n, n + 2, service_id);
            });
            pair.deliver(FAR, &message);
        }
        std::iter::from_fn(|| pair.ends[FAR].poll_message()).count()
    };
    assert_eq!(flood(SERVICE), 0);
    // Each of these requests draws a REJ, as long as there is room for outgoing messages.
    assert_eq!(flood(SERVICE + 1), 60);
    assert!(pair.ends[FAR].connections() <= 50);
    assert!(pair.ends[FAR].counts().unsent > 9_000);
}

#[test]
fn a_peer_cannot_delay_an_answer_without_limit() {
    let mut pair = Pair::new();
    let (near, far, _) = pair.asked(0x11);
    pair.ends[FAR].delay(far, 31, b"").unwrap();
    pair.settle();
    let wait = pair.ends[NEAR].next_due().unwrap().0 - pair.now.0;
    assert!(wait <= pair.ends[NEAR].options.patience.as_nanos() as u64);
    assert_eq!(pair.state(NEAR, near), Some(State::MraReqRcvd));
}

#[test]
fn arbitrary_bytes_as_messages_do_no_harm() {
    let mut random = SmallRng::seed_from_u64(7);
    for _ in 0..200 {
        let mut pair = Pair::new();
        let (near, far) = pair.connected(0x11);
        for _ in 0..200 {
            let mut data: [u8; 232] = std::array::from_fn(|_| random.random());
            let (local, remote) = [(near, far), (far, near)][random.random_range(0..2)];
            if random.random() {
                data[..4].copy_from_slice(&local.0.to_be_bytes());
                data[4..8].copy_from_slice(&remote.0.to_be_bytes());
            }
            let Some(message) = Message::of(random.random_range(0x10..0x1b), &data) else {
                continue;
            };
            let end = random.random_range(0..2);
            pair.ends[end].handle_message(pair.now, address(1 - end), 0, &message);
        }
        pair.ends
            .iter_mut()
            .for_each(|end| while end.poll_message().is_some() {});
    }
}

#[test]
fn a_rep_without_a_connection_is_stray() {
    let mut pair = Pair::new();
    pair.ends[NEAR].handle_message(Time(0), address(FAR), 0, &Rep::default().into());
    assert_eq!(pair.ends[NEAR].counts().stray, 1);
}
