//! Connections that begin and end without faults.

use super::*;

fn mask_of(pair: &Pair, end: usize, id: CommId, to: QpState) -> QpAttrMask {
    pair.ends[end].qp_attributes(id, to).unwrap().mask()
}

// covers 7.01 7.02
#[test]
fn three_messages_make_a_connection_and_depths_are_swapped() {
    let mut pair = Pair::new();
    let (near, far, request) = pair.asked(0x11);
    assert_eq!(
        (request.responder_resources, request.initiator_depth),
        (2, 4)
    );
    assert_eq!(pair.state(NEAR, near), Some(State::ReqSent));
    assert_eq!(pair.state(FAR, far), Some(State::ReqRcvd));

    let reply = Reply {
        responder_resources: 1,
        initiator_depth: 3,
        private_data: b"yes",
        ..Reply::new(Qpn::new(0x22), Psn::new(7), &request)
    };
    pair.ends[FAR].reply(pair.now, far, &reply).unwrap();
    pair.settle();
    let Some(Event::Replied { id, reply }) = pair.events(NEAR).pop() else {
        panic!()
    };
    assert_eq!((id, reply.remote_qpn), (near, Qpn::new(0x22)));
    assert_eq!((reply.responder_resources, reply.initiator_depth), (3, 1));
    assert_eq!(reply.private_data.len(), private::REP);
    assert!(reply.private_data.starts_with(b"yes\0"));

    pair.ends[NEAR].ready(near, b"go").unwrap();
    pair.settle();
    assert_eq!(pair.state(NEAR, near), Some(State::Established));
    assert_eq!(pair.state(FAR, far), Some(State::Established));
    assert!(
        matches!(&pair.events(FAR)[..], [Event::Established { private_data, .. }] if private_data.starts_with(b"go"))
    );
    let names: Vec<_> = pair.sent().into_iter().map(|(_, name)| name).collect();
    assert_eq!(names, ["REQ", "REP", "RTU"]);
    assert_eq!(pair.ends[NEAR].next_due(), None);
    assert_eq!(pair.ends[FAR].next_due(), None);
}

// covers 7.01
#[test]
fn private_data_may_fill_its_message_and_no_more() {
    let mut pair = Pair::new();
    let too_long = |len, max| CmError::PrivateData { len, max };
    let big = [7; 256];
    let with = |len: usize| Request {
        private_data: &big[..len],
        ..request(0x11)
    };
    let refused = pair.ends[NEAR].connect(Time(0), &with(93));
    assert_eq!(refused, Err(too_long(93, 92)));
    let near = pair.ends[NEAR].connect(Time(0), &with(92)).unwrap();
    pair.settle();
    let Some(Event::Requested {
        id: far, request, ..
    }) = pair.events(FAR).pop()
    else {
        panic!()
    };
    assert_eq!(request.private_data, big[..92]);
    assert_eq!(
        pair.ends[FAR].delay(far, 1, &big[..223]),
        Err(too_long(223, 222))
    );
    let rejected = pair.ends[FAR].reject(Time(0), far, &rejection(&big[..149]));
    assert_eq!(rejected, Err(too_long(149, 148)));
    let with = |len: usize| Reply {
        private_data: &big[..len],
        ..Reply::new(Qpn::new(2), Psn::new(2), &request)
    };
    assert_eq!(
        pair.ends[FAR].reply(Time(0), far, &with(197)),
        Err(too_long(197, 196))
    );
    pair.ends[FAR].reply(Time(0), far, &with(196)).unwrap();
    pair.settle();
    assert_eq!(
        pair.ends[NEAR].ready(near, &big[..225]),
        Err(too_long(225, 224))
    );
    pair.ends[NEAR].ready(near, &big[..224]).unwrap();
    pair.settle();
    let now = pair.now;
    assert_eq!(
        pair.ends[NEAR].disconnect(now, near, &big[..221]),
        Err(too_long(221, 220))
    );
    pair.ends[NEAR].disconnect(now, near, &big[..220]).unwrap();
    pair.settle();
    let refused = pair.ends[FAR].confirm_disconnect(now, far, &big[..225]);
    assert_eq!(refused, Err(too_long(225, 224)));
    assert_eq!(pair.state(FAR, far), Some(State::DreqRcvd));
}

// covers 7.21 7.55 7.57
#[test]
fn a_handshake_yields_the_attributes_of_the_queue_pair() {
    let mut pair = Pair::new();
    let (near, far) = pair.connected(0x11);
    use QpAttrMask as M;
    for (end, id) in [(NEAR, near), (FAR, far)] {
        assert_eq!(
            mask_of(&pair, end, id, QpState::Init),
            M::STATE | M::PKEY_INDEX | M::PORT | M::ACCESS_FLAGS
        );
        assert_eq!(
            mask_of(&pair, end, id, QpState::Rtr),
            M::STATE
                | M::AV
                | M::PATH_MTU
                | M::DEST_QPN
                | M::RQ_PSN
                | M::MAX_DEST_RD_ATOMIC
                | M::MIN_RNR_TIMER
        );
        assert_eq!(
            mask_of(&pair, end, id, QpState::Rts),
            M::STATE | M::SQ_PSN | M::TIMEOUT | M::RETRY_CNT | M::RNR_RETRY | M::MAX_QP_RD_ATOMIC
        );
    }
    let rtr = pair.ends[NEAR].qp_attributes(near, QpState::Rtr).unwrap();
    assert_eq!(rtr.dest_qp_num, Some(Qpn::new(0x200 + far.0)));
    assert_eq!(rtr.max_dest_rd_atomic, Some(4));
    let rts = pair.ends[FAR].qp_attributes(far, QpState::Rts).unwrap();
    assert_eq!(rts.max_rd_atomic, Some(4));
    assert_eq!(rts.timeout, Some(time::ack_timeout(15, 14)));
}

// The PSNs are from a capture of rdma-core's rping over rxe: the active side begins with the PSN of the REP.
#[test]
fn each_side_chooses_the_psn_at_which_the_other_begins() {
    let mut pair = Pair::new();
    let (in_req, in_rep) = (Psn::new(0xc7_c11d), Psn::new(0xc8_9912));
    let asked = Request {
        starting_psn: in_req,
        ..request(0x11)
    };
    let near = pair.ends[NEAR].connect(Time(0), &asked).unwrap();
    pair.settle();
    let Some(Event::Requested {
        id: far, request, ..
    }) = pair.events(FAR).pop()
    else {
        panic!()
    };
    assert_eq!(request.starting_psn, in_req);
    let reply = Reply::new(Qpn::new(0x22), in_rep, &request);
    pair.ends[FAR].reply(pair.now, far, &reply).unwrap();
    pair.settle();
    let numbers = |pair: &Pair, end: usize, id| {
        let attributes = |to| pair.ends[end].qp_attributes(id, to).unwrap();
        let (rtr, rts) = (attributes(QpState::Rtr), attributes(QpState::Rts));
        (rtr.rq_psn.unwrap(), rts.sq_psn.unwrap())
    };
    assert_eq!(numbers(&pair, NEAR, near), (in_req, in_rep));
    assert_eq!(numbers(&pair, FAR, far), (in_rep, in_req));
}

#[test]
fn an_unreliable_connection_has_fewer_attributes() {
    let mut pair = Pair::new();
    let asked = Request {
        transport: Transport::Uc,
        ..request(0x11)
    };
    let near = pair.ends[NEAR].connect(Time(0), &asked).unwrap();
    assert_eq!(
        pair.ends[NEAR].qp_attributes(near, QpState::Rtr),
        Err(CmError::State(State::ReqSent))
    );
    pair.settle();
    let Some(Event::Requested { id, .. }) = pair.events(FAR).pop() else {
        panic!()
    };
    use QpAttrMask as M;
    assert_eq!(
        mask_of(&pair, FAR, id, QpState::Rtr),
        M::STATE | M::AV | M::PATH_MTU | M::DEST_QPN | M::RQ_PSN
    );
    assert_eq!(mask_of(&pair, FAR, id, QpState::Rts), M::STATE | M::SQ_PSN);
}

// covers 7.14
#[test]
fn a_communication_id_is_not_reused_before_the_end_of_timewait() {
    let mut pair = Pair::new();
    let (near, far) = pair.connected(0x11);
    pair.ends[NEAR].disconnect(pair.now, near, b"").unwrap();
    pair.settle();
    let asked = pair.events(FAR);
    assert!(matches!(asked[..], [Event::DisconnectRequested { .. }]));
    pair.ends[FAR]
        .confirm_disconnect(pair.now, far, b"")
        .unwrap();
    let at = pair.now;
    pair.settle();
    assert!(matches!(
        pair.events(NEAR)[..],
        [Event::Disconnected { .. }]
    ));
    assert_eq!(pair.state(FAR, far), Some(State::TimeWait));

    // The queue pair requests a connection again before the peer has left TIMEWAIT.
    let again = pair.ask(0x11);
    assert!(matches!(
        &pair.events(NEAR)[..],
        [Event::Rejected { id, reason: reason::STALE_CONNECTION, .. }] if *id == again
    ));
    assert_eq!(pair.state(NEAR, again), Some(State::TimeWait));

    pair.drain();
    assert!(matches!(pair.events(FAR)[..], [Event::TimewaitExit { id }] if id == far));
    assert_eq!(pair.state(FAR, far), None);
    assert!(pair.now.0 - at.0 >= time::timewait(time::ack_timeout(15, 14)).as_nanos() as u64);
    let (_, _, _) = pair.asked(0x11);
}

// covers 7.08
#[test]
fn both_ends_may_end_a_connection_at_once() {
    for seed in 0..1000 {
        let mut pair = Pair::new();
        let mut random = SmallRng::seed_from_u64(seed);
        let (near, far) = pair.connected(0x11);
        pair.ends[NEAR].disconnect(pair.now, near, b"").unwrap();
        if random.random() {
            pair.collect();
        }
        pair.ends[FAR].disconnect(pair.now, far, b"").unwrap();
        pair.settle();
        let asked: Vec<_> = [(NEAR, near), (FAR, far)]
            .into_iter()
            .filter(|&(end, id)| pair.state(end, id) == Some(State::DreqRcvd))
            .collect();
        for (end, id) in asked {
            pair.ends[end]
                .confirm_disconnect(pair.now, id, b"")
                .unwrap();
        }
        pair.drain();
        for end in [NEAR, FAR] {
            let is_end = |event: &&Event| {
                matches!(
                    event,
                    Event::DisconnectRequested { .. }
                        | Event::Disconnected { .. }
                        | Event::DisconnectTimedOut { .. }
                )
            };
            assert_eq!(
                pair.events(end).iter().filter(is_end).count(),
                1,
                "seed {seed}"
            );
            assert_eq!(pair.ends[end].connections(), 0, "seed {seed}");
        }
    }
}

// covers 7.18
#[test]
fn a_question_is_answered_with_a_queue_pair_for_datagrams() {
    let mut pair = Pair::new();
    let (_, id, near) = pair.in_state(State::SidrReqRcvd);
    let answer = Resolution {
        status: 0,
        qpn: Qpn::new(0x77),
        q_key: 0x1234,
        private_data: b"hi",
    };
    pair.ends[FAR].resolve_reply(id, &answer).unwrap();
    pair.settle();
    let events = pair.events(NEAR);
    assert!(
        matches!(&events[..], [Event::Resolved { id, status: 0, qpn, q_key: 0x1234, .. }]
            if *id == near && *qpn == Qpn::new(0x77))
    );
    assert_eq!(
        (pair.ends[NEAR].connections(), pair.ends[FAR].connections()),
        (0, 0)
    );

    pair.loses = Box::new(|_, _| true);
    let lost = pair.ends[NEAR].resolve(pair.now, &inquiry(5)).unwrap();
    pair.sent();
    pair.drain();
    assert_eq!(pair.sent().len(), 4);
    assert_eq!(pair.events(NEAR), [Event::ResolutionTimedOut { id: lost }]);
}

// covers 4.13 4.14
#[test]
fn an_xrc_target_has_responder_attributes_and_outlives_its_connection() {
    let mut pair = Pair::new();
    let asked = Request {
        transport: Transport::Xrc,
        srq: true,
        ..request(0x11)
    };
    let near = pair.ends[NEAR].connect(Time(0), &asked).unwrap();
    let message = pair.ends[NEAR].poll_message().unwrap();
    let Message::Req(req) = message.message else {
        panic!()
    };
    assert_eq!((req.transport_type, req.extended_transport_type), (3, 1));
    assert_eq!((req.responder_resources, req.retry_count), (0, 0));
    assert_eq!((req.rnr_retry_count, req.srq), (0, false));
    assert_eq!(req.initiator_depth, 2);
    // The bytes of the fields of annex A14: the queue pair's number, depths, transport and its extension.
    let bytes = message.message.to_data();
    assert_eq!(bytes[32..36], [0, 0, 0x11, 0]);
    assert_eq!((bytes[36..39].to_vec(), bytes[39]), (vec![0; 3], 2));
    assert_eq!((bytes[43] >> 1 & 3, bytes[47] & 7), (3, 0));
    assert_eq!((bytes[50] & 7, bytes[51]), (0, 3 << 4 | 1));
    pair.deliver(FAR, &message);
    pair.collect();
    let Some(Event::Requested {
        id: far, request, ..
    }) = pair.events(FAR).pop()
    else {
        panic!()
    };
    assert_eq!(request.transport, Transport::Xrc);
    let reply = Reply::new(Qpn::new(0x99), Psn::new(7), &request);
    pair.ends[FAR].reply(pair.now, far, &reply).unwrap();
    let message = pair.ends[FAR].poll_message().unwrap();
    let Message::Rep(rep) = message.message else {
        panic!()
    };
    assert_eq!((rep.qpn, rep.ee_context, rep.srq), (0, 0x99, true));
    let bytes = message.message.to_data();
    assert_eq!(bytes[12..15], [0; 3]);
    assert_eq!(bytes[16..19], [0, 0, 0x99]);
    assert_eq!((bytes[25], bytes[27] & 0x10), (0, 0x10));
    pair.deliver(NEAR, &message);
    pair.ends[NEAR].ready(near, b"").unwrap();
    pair.settle();
    pair.sent();
    pair.ends[FAR].destroy(pair.now, far).unwrap();
    pair.settle();
    assert_eq!(pair.sent(), []);
    assert_eq!(pair.state(NEAR, near), Some(State::Established));
    let attributes = pair.ends[NEAR].qp_attributes(near, QpState::Rtr).unwrap();
    assert_eq!(attributes.dest_qp_num, Some(Qpn::new(0x99)));
    // An initiator has no attributes of a responder.
    let of_a_responder = QpAttrMask::MAX_DEST_RD_ATOMIC | QpAttrMask::MIN_RNR_TIMER;
    assert!(!attributes.mask().intersects(of_a_responder));
}

// concerns 4.13 4.16
#[test]
fn an_xrc_target_has_no_requester_attributes() {
    let mut pair = Pair::new();
    let asked = Request {
        transport: Transport::Xrc,
        ..request(0x11)
    };
    pair.ends[NEAR].connect(Time(0), &asked).unwrap();
    pair.settle();
    let Some(Event::Requested { id, .. }) = pair.events(FAR).pop() else {
        panic!()
    };
    let of_a_requester =
        QpAttrMask::RETRY_CNT | QpAttrMask::RNR_RETRY | QpAttrMask::MAX_QP_RD_ATOMIC;
    let of_a_responder = QpAttrMask::MAX_DEST_RD_ATOMIC | QpAttrMask::MIN_RNR_TIMER;
    let attributes = |to| pair.ends[FAR].qp_attributes(id, to).unwrap().mask();
    assert!(attributes(QpState::Rtr).contains(of_a_responder));
    assert!(attributes(QpState::Rts).contains(QpAttrMask::TIMEOUT));
    assert!(!attributes(QpState::Rts).intersects(of_a_requester));
}

// covers 7.20
#[test]
fn requests_that_cross_are_two_connections() {
    let mut pair = Pair::new();
    pair.ends[NEAR].listen(SERVICE, u64::MAX).unwrap();
    let back = Request::new(SERVICE, path_from(FAR), Qpn::new(0x22), Psn::new(1));
    pair.ends[NEAR].connect(Time(0), &request(0x11)).unwrap();
    pair.ends[FAR].connect(Time(0), &back).unwrap();
    pair.settle();
    assert_eq!(
        (pair.ends[NEAR].connections(), pair.ends[FAR].connections()),
        (2, 2)
    );
    for end in [NEAR, FAR] {
        assert!(matches!(pair.events(end)[..], [Event::Requested { .. }]));
    }
}
