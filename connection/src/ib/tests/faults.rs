//! A link that loses, duplicates, reorders and delays messages.

use super::*;

fn loses_first(count: usize, name: &'static str) -> Loses {
    let mut left = count;
    Box::new(move |_, message| {
        let hit = left > 0 && message.name() == name;
        left -= usize::from(hit);
        hit
    })
}

fn count(sent: &[(usize, &str)], name: &str) -> usize {
    sent.iter().filter(|(_, sent)| *sent == name).count()
}

// covers 7.10 7.13
#[test]
fn an_unanswered_message_is_repeated_as_often_as_agreed_and_given_up() {
    let mut pair = Pair::new();
    pair.loses = Box::new(|_, message| message.name() != "REJ");
    let near = pair.ask(0x11);
    let Some(due) = pair.ends[NEAR].next_due() else {
        panic!()
    };
    // 2^20 and twice 2^14, in units of 4.096 µs.
    assert_eq!(due, Time(4096 * ((1 << 20) + 2 * (1 << 14))));
    pair.drain();
    assert_eq!(pair.events(NEAR), [Event::RequestTimedOut { id: near }]);
    assert_eq!(pair.state(NEAR, near), None);
    let sent = pair.sent();
    assert_eq!((count(&sent, "REQ"), count(&sent, "REJ")), (4, 1));
    assert_eq!(pair.ends[NEAR].counts().retries, 3);
}

#[test]
fn an_unsent_message_is_given_up_at_once_with_the_cause() {
    const EPERM: i32 = 1;
    let mut pair = Pair::new();
    pair.loses = Box::new(|_, _| true);
    let near = pair.ask(0x11);
    let elsewhere = LinkAddress::InProcess(7);
    for (to, is_over) in [
        (address(FAR), false),
        (address(FAR), false),
        (elsewhere, false),
        (address(FAR), false),
        (address(FAR), true),
    ] {
        assert_eq!(pair.events(NEAR), []);
        pair.ends[NEAR].handle_refusal(pair.now, to, EPERM);
        pair.settle();
        assert_eq!(pair.state(NEAR, near).is_none(), is_over);
    }
    let unsent = Event::Unsent {
        id: near,
        errno: EPERM,
    };
    assert_eq!(pair.events(NEAR), [unsent]);
    assert_eq!(count(&pair.sent(), "REQ"), 4);
}

#[test]
fn a_refusal_concerns_the_connections_to_its_address() {
    const EPERM: i32 = 1;
    let mut pair = Pair::new();
    pair.loses = Box::new(|_, _| true);
    let near = pair.ask(0x11);
    let mut elsewhere = request(0x12);
    elsewhere.path.address = LinkAddress::InProcess(7);
    let other = pair.ends[NEAR].connect(pair.now, &elsewhere).unwrap();
    for _ in 0..4 {
        pair.ends[NEAR].handle_refusal(pair.now, elsewhere.path.address, EPERM);
    }
    pair.settle();
    let unsent = Event::Unsent {
        id: other,
        errno: EPERM,
    };
    assert_eq!(pair.events(NEAR), [unsent]);
    assert_eq!(pair.state(NEAR, near), Some(State::ReqSent));
    pair.drain();
    assert_eq!(pair.ends[NEAR].connections(), 0);
    assert!(pair.ends[NEAR].by_address.is_empty());
}

// covers 7.13
#[test]
fn a_rep_that_only_an_mra_answers_is_given_up_with_a_rej() {
    let mut pair = Pair::new();
    let (near, far, request) = pair.asked(0x11);
    pair.reply(far, &request);
    pair.ends[NEAR].delay(near, 18, b"").unwrap();
    pair.settle();
    pair.loses = Box::new(|_, message| message.name() == "REP");
    pair.sent();
    pair.events = [Vec::new(), Vec::new()];
    // Only the timeouts of the passive side are handled, because the active one waits too and would give up as well.
    while pair.state(FAR, far).is_some() {
        let due = pair.ends[FAR].next_due().unwrap();
        pair.now = due;
        pair.ends[FAR].handle_timeout(due);
        pair.settle();
    }
    let sent = pair.sent();
    assert_eq!((count(&sent, "REP"), count(&sent, "REJ")), (3, 1));
    assert_eq!(pair.events(FAR), [Event::ReplyTimedOut { id: far }]);
    assert!(matches!(
        &pair.events(NEAR)[..],
        [Event::Rejected { id, reason: reason::TIMEOUT, info, .. }]
            if *id == near && info[..] == 0xa1u64.to_be_bytes()
    ));
}

// covers 7.10
#[test]
fn a_rej_for_a_timeout_before_any_answer_is_matched_by_the_guid() {
    let mut pair = Pair::new();
    let (near, far, _) = pair.asked(0x11);
    pair.ends[NEAR].destroy(pair.now, near).unwrap();
    pair.settle();
    assert!(matches!(
        &pair.events(FAR)[..],
        [Event::Rejected { id, reason: reason::TIMEOUT, .. }] if *id == far
    ));
    assert_eq!(pair.ends[FAR].connections(), 0);
}

// covers 7.06
#[test]
fn a_lost_rtu_heals_itself() {
    let mut pair = Pair::new();
    pair.loses = loses_first(1, "RTU");
    let (near, far, request) = pair.asked(0x11);
    pair.reply(far, &request);
    pair.ends[NEAR].ready(near, b"again").unwrap();
    pair.settle();
    assert_eq!(pair.state(FAR, far), Some(State::RepSent));
    pair.step();
    assert_eq!(pair.state(FAR, far), Some(State::Established));
    assert!(
        matches!(&pair.events(FAR)[..], [Event::Established { private_data, .. }] if private_data.starts_with(b"again"))
    );
    assert_eq!(pair.ends[NEAR].counts().duplicates, 1);
}

// covers 7.06
#[test]
fn a_repeated_rep_is_answered_according_to_the_state() {
    for (state, answer) in [
        (State::RepRcvd, None),
        (State::MraRepSent, Some("MRA")),
        (State::Established, Some("RTU")),
        (State::DreqSent, None),
    ] {
        let mut pair = Pair::new();
        let (near, far, request) = pair.asked(0x11);
        let reply = Reply::new(Qpn::new(0x22), Psn::new(7), &request);
        pair.ends[FAR].reply(pair.now, far, &reply).unwrap();
        let rep = pair.ends[FAR].poll_message().unwrap();
        pair.deliver(NEAR, &rep);
        match state {
            State::MraRepSent => pair.ends[NEAR].delay(near, 18, b"").unwrap(),
            State::RepRcvd => {}
            _ => pair.ends[NEAR].ready(near, b"").unwrap(),
        }
        if state == State::DreqSent {
            pair.ends[NEAR].disconnect(pair.now, near, b"").unwrap();
        }
        while pair.ends[NEAR].poll_message().is_some() {}
        pair.deliver(NEAR, &rep);
        let sent = pair.ends[NEAR].poll_message().map(|sent| sent.message);
        assert_eq!(sent.as_ref().map(Message::name), answer, "{state:?}");
        assert_eq!(pair.state(NEAR, near), Some(state));
    }
}

// covers 7.07
#[test]
fn traffic_establishes_a_connection_whose_rtu_is_lost() {
    let mut pair = Pair::new();
    pair.loses = Box::new(|_, message| message.name() == "RTU");
    let (near, far, request) = pair.asked(0x11);
    pair.reply(far, &request);
    pair.ends[NEAR].ready(near, b"").unwrap();
    pair.settle();
    pair.ends[FAR].established(pair.now, far).unwrap();
    pair.settle();
    assert_eq!(pair.events(FAR), [Event::EstablishedByTraffic { id: far }]);
    assert_eq!(
        pair.ends[FAR].established(pair.now, far),
        Err(CmError::Connected)
    );
    assert_eq!(pair.ends[FAR].next_due(), None);
    // An RTU that arrives late has no effect.
    let rtu = polyverbs_wire::mad::cm::Rtu {
        local_comm_id: near.0,
        remote_comm_id: far.0,
        ..Default::default()
    };
    pair.ends[FAR].handle_message(pair.now, address(NEAR), 0, &rtu.into());
    pair.settle();
    assert_eq!(pair.events(FAR), []);
}

// covers 7.12
#[test]
fn an_mra_extends_the_timeout_and_uses_no_retry() {
    for told in [false, true] {
        let mut pair = Pair::new();
        let (near, far, request) = pair.asked(0x11);
        if told {
            pair.ends[FAR].delay(far, 24, b"soon").unwrap();
            pair.settle();
            assert!(matches!(
                pair.events(NEAR)[..],
                [Event::Delayed {
                    service_timeout: 24,
                    ..
                }]
            ));
        }
        // Longer than all retries together.
        let patience = Time(pair.now.0 + 20_000_000_000);
        while pair.ends[NEAR].next_due().is_some_and(|due| due < patience) {
            pair.step();
        }
        assert_eq!(pair.state(NEAR, near).is_some(), told);
        assert_eq!(pair.ends[NEAR].counts().retries, if told { 0 } else { 3 });
        if told {
            pair.now = patience;
            pair.reply(far, &request);
            assert_eq!(pair.state(NEAR, near), Some(State::RepRcvd));
        }
    }
}

// covers 7.09
#[test]
fn an_unanswered_dreq_ends_the_connection_all_the_same() {
    let mut pair = Pair::new();
    let (near, _) = pair.connected(0x11);
    pair.loses = Box::new(|_, message| matches!(message.name(), "DREQ" | "DREP"));
    pair.sent();
    pair.ends[NEAR].disconnect(pair.now, near, b"").unwrap();
    pair.drain();
    assert_eq!(count(&pair.sent(), "DREQ"), 4);
    assert_eq!(
        pair.events(NEAR),
        [
            Event::DisconnectTimedOut { id: near },
            Event::TimewaitExit { id: near }
        ]
    );
}

// covers 7.08
#[test]
fn a_lost_drep_is_said_again() {
    let mut pair = Pair::new();
    let (near, far) = pair.connected(0x11);
    pair.loses = loses_first(1, "DREP");
    // The connection stays in TIMEWAIT for longer than the peer takes to repeat its DREQ.
    pair.ends[FAR]
        .connections
        .get_mut(&far.0)
        .unwrap()
        .ack_timeout = 24;
    pair.ends[NEAR].disconnect(pair.now, near, b"").unwrap();
    pair.settle();
    pair.ends[FAR]
        .confirm_disconnect(pair.now, far, b"bye")
        .unwrap();
    pair.settle();
    pair.step();
    assert!(
        matches!(&pair.events(NEAR)[..], [Event::Disconnected { private_data, .. }] if private_data.starts_with(b"bye"))
    );
}

/// Answers an event as a program would.
fn serve(pair: &mut Pair, end: usize, event: &Event, now: Time) {
    let manager = &mut pair.ends[end];
    match event {
        Event::Requested { id, request, .. } => {
            let reply = Reply::new(Qpn::new(0x8000 + id.0), Psn::new(3), request);
            manager.reply(now, *id, &reply).unwrap();
        }
        Event::Replied { id, .. } => manager.ready(*id, b"").unwrap(),
        Event::DisconnectRequested { id, .. } => {
            manager.confirm_disconnect(now, *id, b"").unwrap();
        }
        _ => {}
    }
}

fn run_with_faults(seed: u64) {
    let mut random = SmallRng::seed_from_u64(seed);
    let mut pair = Pair::new();
    let loss = random.random_range(0..30);
    let mut asked = 0;
    let mut told = [0u32; 2];
    let mut queue: Vec<(Time, u32, usize, Outgoing)> = Vec::new();
    for turn in 0..20_000u32 {
        for end in [NEAR, FAR] {
            while let Some(event) = pair.ends[end].poll_event() {
                told[end] += 1;
                let now = pair.now;
                serve(&mut pair, end, &event, now);
                let established = match event {
                    Event::Established { id, .. } if end == FAR => Some(id),
                    _ => None,
                };
                if let Some(id) = established
                    && random.random()
                {
                    let _ = pair.ends[end].disconnect(pair.now, id, b"");
                }
            }
            while let Some(message) = pair.ends[end].poll_message() {
                let copies = match random.random_range(0..100) {
                    lost if lost < loss => 0,
                    90.. => 2,
                    _ => 1,
                };
                for _ in 0..copies {
                    let delay = Duration::from_micros(random.random_range(1..2_000_000));
                    queue.push((pair.now.after(delay), turn, 1 - end, message.clone()));
                }
            }
        }
        let idle = queue.is_empty() && pair.ends.iter().all(|end| end.next_due().is_none());
        if asked < 20 && (idle || random.random_range(0..4) == 0) {
            asked += 1;
            pair.ends[NEAR].connect(pair.now, &request(asked)).unwrap();
            continue;
        }
        queue.sort_by_key(|(at, turn, ..)| (*at, *turn));
        let due = pair.ends.iter().filter_map(Manager::next_due).min();
        let arrives = queue.first().map(|(at, ..)| *at);
        let Some(next) = due.into_iter().chain(arrives).min() else {
            break;
        };
        pair.now = pair.now.max(next);
        if arrives == Some(next) {
            let (_, _, to, message) = queue.remove(0);
            pair.deliver(to, &message);
        } else {
            let now = pair.now;
            pair.ends.iter_mut().for_each(|end| end.handle_timeout(now));
        }
        assert!(turn < 19_999, "seed {seed}: still not idle");
    }
    // Whichever messages were lost, each connection is established or gone at each end.
    for end in [NEAR, FAR] {
        let manager = &pair.ends[end];
        let states = manager
            .connections
            .values()
            .map(|connection| connection.state);
        for state in states {
            assert_eq!(state, State::Established, "seed {seed}, end {end}");
        }
        assert!(told[end] > 0, "seed {seed}: nothing happened at {end}");
    }
}

// covers 7.13
#[test]
fn lost_duplicated_and_delayed_messages_leave_a_final_state() {
    (0..300).for_each(run_with_faults);
}
