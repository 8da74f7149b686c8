//! The calls that a program may make in each state.

use super::*;

const CALLS: [(&str, &[State]); 6] = [
    ("reply", &[State::ReqRcvd, State::MraReqSent]),
    ("ready", &[State::RepRcvd, State::MraRepSent]),
    ("established", &[State::RepSent, State::MraRepRcvd]),
    ("delay", &[State::ReqRcvd, State::RepRcvd]),
    ("disconnect", &[State::Established]),
    ("confirm_disconnect", &[State::DreqRcvd]),
];

fn call(manager: &mut Manager, name: &str, id: CommId) -> Result<(), CmError> {
    let now = Time(0);
    let reply = Reply {
        qpn: Qpn::new(5),
        starting_psn: Psn::new(5),
        responder_resources: 1,
        initiator_depth: 1,
        rnr_retry_count: 7,
        flow_control: false,
        srq: false,
        private_data: b"",
    };
    match name {
        "reply" => manager.reply(now, id, &reply),
        "ready" => manager.ready(id, b""),
        "established" => manager.established(now, id),
        "delay" => manager.delay(id, 18, b""),
        "disconnect" => manager.disconnect(now, id, b""),
        _ => manager.confirm_disconnect(now, id, b""),
    }
}

// covers 7.03 7.07
#[test]
fn a_call_that_does_not_fit_the_state_sends_and_changes_nothing() {
    for state in State::ALL {
        for (name, allowed) in CALLS {
            let mut pair = Pair::new();
            let (end, id, _) = pair.in_state(state);
            assert_eq!(pair.state(end, id), Some(state), "{name}");
            let called = call(&mut pair.ends[end], name, id);
            if allowed.contains(&state) {
                assert_eq!(called, Ok(()), "{name} in {state:?}");
                assert_ne!(pair.state(end, id), Some(state), "{name}");
                continue;
            }
            let expected = match (name, state) {
                ("established", State::Established) => CmError::Connected,
                _ => CmError::State(state),
            };
            assert_eq!(called, Err(expected), "{name}");
            assert_eq!(pair.state(end, id), Some(state), "{name}");
            assert_eq!(pair.ends[end].poll_message(), None, "{name} in {state:?}");
        }
    }
    let mut pair = Pair::new();
    for (name, _) in CALLS {
        let called = call(&mut pair.ends[NEAR], name, CommId(77));
        assert_eq!(called, Err(CmError::Unknown));
    }
}

// covers 7.16
#[test]
fn a_destroyed_connection_ends_as_its_state_demands() {
    let expected = [
        (State::ReqSent, Some("REJ"), None),
        (State::MraReqRcvd, Some("REJ"), None),
        (State::ReqRcvd, Some("REJ"), None),
        (State::MraReqSent, Some("REJ"), None),
        (State::RepRcvd, Some("REJ"), None),
        (State::MraRepSent, Some("REJ"), None),
        // The peer has proven nothing yet, and may not exist.
        (State::RepSent, Some("REJ"), None),
        (State::MraRepRcvd, Some("REJ"), Some(State::TimeWait)),
        (State::Established, Some("DREQ"), Some(State::DreqSent)),
        (State::DreqRcvd, Some("DREP"), Some(State::TimeWait)),
        (State::DreqSent, None, Some(State::DreqSent)),
        (State::TimeWait, None, Some(State::TimeWait)),
        (State::SidrReqSent, None, None),
        (State::SidrReqRcvd, Some("SIDR_REP"), None),
    ];
    for (state, message, after) in expected {
        let mut pair = Pair::new();
        let (end, id, _) = pair.in_state(state);
        pair.ends[end].destroy(pair.now, id).unwrap();
        let sent = pair.ends[end].poll_message().map(|sent| sent.message);
        assert_eq!(sent.as_ref().map(Message::name), message, "{state:?}");
        if let Some(Message::Rej(rej)) = sent {
            let timeout = matches!(state, State::ReqSent | State::MraReqRcvd);
            let expected = if timeout {
                reason::TIMEOUT
            } else {
                reason::CONSUMER
            };
            assert_eq!(rej.reason, expected, "{state:?}");
        }
        assert_eq!(pair.state(end, id), after, "{state:?}");
        pair.drain();
        assert_eq!(pair.state(end, id), None, "{state:?}");
    }
}

// covers 7.16 7.17
#[test]
fn requests_reported_before_unlisten_can_still_be_answered() {
    let mut pair = Pair::new();
    let (near, far, _) = pair.asked(0x11);
    let listener = pair.listener;
    pair.ends[FAR].unlisten(listener).unwrap();
    pair.settle();
    assert_eq!(pair.events(NEAR), []);
    let rejection = Rejection {
        reason: reason::CONSUMER,
        info: &[],
        private_data: &[],
    };
    pair.ends[FAR].reject(pair.now, far, &rejection).unwrap();
    pair.settle();
    assert!(matches!(
        &pair.events(NEAR)[..],
        [Event::Rejected { id, reason: reason::CONSUMER, .. }] if *id == near
    ));
    pair.ask(0x12);
    assert_eq!(pair.events(NEAR), []);
    let asked_at = pair.now;
    pair.drain();
    assert!(matches!(
        pair.events(NEAR)[..],
        [Event::Rejected {
            reason: reason::INVALID_SERVICE_ID,
            ..
        }]
    ));
    assert!(pair.now <= asked_at.after(Duration::from_millis(50)));
    let gone = pair.ends[FAR].unlisten(listener);
    assert_eq!(gone, Err(CmError::Unknown));
}

// covers 7.17
#[test]
fn a_request_is_repeated_for_a_while_to_a_listener_that_starts_late() {
    let mut pair = Pair::new();
    let listener = pair.listener;
    pair.ends[FAR].unlisten(listener).unwrap();
    let near = pair.ends[NEAR].connect(pair.now, &request(0x11)).unwrap();
    let asked = pair.ends[NEAR].poll_message().unwrap();
    pair.deliver(FAR, &asked);
    let refused = pair.ends[FAR].poll_message().unwrap();
    // Any number of these refusals must not end the request early.
    for _ in 0..300 {
        pair.deliver(NEAR, &refused);
    }
    pair.ends[FAR].listen(SERVICE, u64::MAX).unwrap();
    pair.step();
    assert!(matches!(pair.events(FAR)[..], [Event::Requested { .. }]));
    assert_eq!(
        (pair.events(NEAR), pair.state(NEAR, near)),
        (vec![], Some(State::ReqSent))
    );
}

// covers 7.18
#[test]
fn a_sidr_request_is_repeated_to_a_listener_that_starts_late() {
    let mut pair = Pair::new();
    let listener = pair.listener;
    pair.ends[FAR].unlisten(listener).unwrap();
    let near = pair.ends[NEAR]
        .resolve(pair.now, &inquiry(SERVICE))
        .unwrap();
    let asked = pair.ends[NEAR].poll_message().unwrap();
    pair.deliver(FAR, &asked);
    let refused = pair.ends[FAR].poll_message().unwrap();
    for _ in 0..300 {
        pair.deliver(NEAR, &refused);
    }
    pair.ends[FAR].listen(SERVICE, u64::MAX).unwrap();
    pair.step();
    assert!(matches!(
        pair.events(FAR)[..],
        [Event::ResolutionRequested { .. }]
    ));
    assert_eq!(
        (pair.events(NEAR), pair.state(NEAR, near)),
        (vec![], Some(State::SidrReqSent))
    );
}

// covers 7.18
#[test]
fn a_sidr_request_fails_after_50_ms_without_a_listener() {
    let mut pair = Pair::new();
    let asked_at = pair.now;
    pair.ends[NEAR].resolve(pair.now, &inquiry(5)).unwrap();
    pair.settle();
    assert_eq!(pair.events(NEAR), []);
    pair.drain();
    assert!(matches!(
        pair.events(NEAR)[..],
        [Event::Resolved { status: 1, .. }]
    ));
    assert!(pair.now > asked_at.after(Duration::from_millis(40)));
    assert!(pair.now <= asked_at.after(Duration::from_millis(50)));
}

// covers 7.18
#[test]
fn an_inquiry_that_awaits_no_listener_is_sent_once() {
    let mut pair = Pair::new();
    let probe = Inquiry {
        awaits_listener: false,
        ..inquiry(5)
    };
    let id = pair.ends[NEAR].resolve(pair.now, &probe).unwrap();
    pair.settle();
    assert!(
        matches!(&pair.events(NEAR)[..], [Event::Resolved { id: of, status: 1, .. }] if *of == id)
    );
    assert_eq!(pair.sent(), [(NEAR, "SIDR_REQ"), (FAR, "SIDR_REP")]);
}

// covers 7.17
#[test]
fn listeners_do_not_overlap_and_services_can_be_assigned() {
    let mut manager = Manager::new(ManagerOptions::default());
    let all_ports = !0xffff;
    manager.listen(0x0106_0000, all_ports).unwrap();
    let overlap = manager.listen(SERVICE, u64::MAX);
    assert_eq!(overlap, Err(CmError::InUse));
    manager.listen(0x0111_1144, u64::MAX).unwrap();
    assert_eq!(manager.listen(0x0111_0000, all_ports), Err(CmError::InUse));
    let (first, service) = manager.listen(0, 0).unwrap();
    assert_eq!(service, 0x0200_0000_0000_0000);
    let (second, service) = manager.listen(0, 0).unwrap();
    assert_eq!(service, 0x0200_0000_0000_0001);
    assert_ne!(first, second);
}
