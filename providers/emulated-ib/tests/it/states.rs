//! The states of a queue pair: the steps between them, and the operations that each allows.

use crate::support::*;
use emulated_ib::header::{Body, Position, SendExtra};
use verbs_api::qp::{BadModify, QpAttrMask, QpAttributes, QpState, QpType};
use verbs_api::*;
use verbs_api::{
    event::EventType,
    ids::Psn,
    wr::{self, PostReason, ReceiveRequest, UdDestination},
};

const TYPES: [QpType; 3] = [QpType::Rc, QpType::Uc, QpType::Ud];

fn setup(qp_type: QpType) -> Setup {
    Setup {
        qp_type,
        ..Setup::default()
    }
}

fn bad(result: Result<(), VerbError>) -> BadModify {
    match result {
        Err(VerbError::BadModify(bad)) => bad,
        other => panic!("{other:?}"),
    }
}

// Returns the attributes of each step from RESET to RTS.
fn steps(rig: &Rig) -> [QpAttributes; 3] {
    let setup = &rig.setup;
    [
        init(setup),
        rtr(setup, rig.b.path(), rig.b.qp.qp_num(), setup.b_psn),
        rts(setup, setup.a_psn),
    ]
}

// covers 3.01 3.03 3.04
#[test]
fn missing_and_superfluous_attributes_are_named() {
    for qp_type in TYPES {
        let rig = Rig::unconnected(setup(qp_type));
        let qp = &rig.a;
        let reached = [QpState::Reset, QpState::Init, QpState::Rtr];
        for (step, from) in steps(&rig).into_iter().zip(reached) {
            for missing in (step.mask() - QpAttrMask::STATE).iter() {
                match bad(qp.modify(step.without(missing))) {
                    BadModify::Attributes {
                        missing: named,
                        forbidden,
                        ..
                    } => {
                        assert_eq!((named, forbidden), (missing, QpAttrMask::empty()));
                    }
                    other => panic!("{other:?}"),
                }
                assert_eq!(qp.state(), from);
            }
            match bad(qp.modify(step.en_sqd_async_notify(true))) {
                BadModify::Attributes {
                    missing, forbidden, ..
                } => {
                    assert_eq!(
                        (missing, forbidden),
                        (QpAttrMask::empty(), QpAttrMask::EN_SQD_ASYNC_NOTIFY)
                    );
                }
                other => panic!("{other:?}"),
            }
            assert_eq!(qp.state(), from);
            qp.modify(step).unwrap();
        }
        assert_eq!(qp.state(), QpState::Rts);
    }
}

// covers 3.02
#[test]
fn attributes_given_again_in_init_take_effect() {
    let rig = Rig::unconnected(setup(QpType::Rc));
    rig.b.modify(init(&rig.setup)).unwrap();
    rig.b
        .modify(
            QpAttributes::new()
                .qp_state(QpState::Init)
                .qp_access_flags(Access::REMOTE_READ),
        )
        .unwrap();
    rig.b.modify(QpAttributes::new().port_num(1)).unwrap();
    assert_eq!(
        rig.b.qp.query().unwrap().attributes.qp_access_flags,
        Some(Access::REMOTE_READ)
    );
    let [first, second, third] = steps(&rig);
    for step in [first, second, third] {
        rig.a.modify(step).unwrap();
    }
    rig.b
        .modify(rtr(
            &rig.setup,
            rig.a.path(),
            rig.a.qp.qp_num(),
            rig.setup.a_psn,
        ))
        .unwrap();
    rig.a
        .post(wr::Write::new(rig.a.sge(0, 8), rig.b.remote(0)).signaled(1));
    rig.run();
    assert_eq!(rig.a.done(), [(1, WcStatus::RemInvReqErr)]);
}

// covers 3.03 3.04 3.S
#[test]
fn receives_are_processed_from_rtr_on_and_sends_from_rts_on() {
    let rig = Rig::unconnected(setup(QpType::Rc));
    let (a, b) = (&rig.a, &rig.b);
    let [to_init, to_rtr, to_rts] = steps(&rig);
    let peers = [
        to_init,
        rtr(&rig.setup, a.path(), a.qp.qp_num(), rig.setup.a_psn),
        rts(&rig.setup, rig.setup.b_psn),
    ];
    for step in peers {
        b.modify(step).unwrap();
    }
    let send = || {
        a.qp.post_one(wr::Send::new(a.sge(0, 8)).signaled(9))
            .map_err(|rejected| rejected.reason)
    };
    let receive = || {
        a.qp.post_receive(ReceiveRequest::new(5, a.sge(64, 8)))
            .map_err(|refused| refused.reason)
    };
    assert_eq!(receive(), Err(PostReason::InvalidState(QpState::Reset)));
    assert_eq!(send(), Err(PostReason::InvalidState(QpState::Reset)));
    a.modify(to_init).unwrap();
    assert_eq!(receive(), Ok(()));
    assert_eq!(send(), Err(PostReason::InvalidState(QpState::Init)));
    // A message that arrives before RTR is dropped, and retransmitted until it is taken.
    b.post(wr::Send::new(b.sge(0, 8)).signaled(1));
    assert_eq!((a.done(), rig.wire.log().len()), (vec![], 1));
    a.modify(to_rtr).unwrap();
    assert_eq!(send(), Err(PostReason::InvalidState(QpState::Rtr)));
    rig.run();
    assert_eq!((a.done(), b.done()), (ok([5]), ok([1])));
    let event = a.context.poll_event().unwrap();
    assert_eq!(
        (event.event_type(), event.object().unwrap().id),
        (EventType::CommEst, a.qp.id())
    );
    a.modify(to_rts).unwrap();
    b.receive(1, 0, 8);
    assert_eq!(send(), Ok(()));
    rig.run();
    assert_eq!((a.done(), b.done()), (ok([9]), ok([1])));
}

// covers 3.05 3.06
#[test]
fn attributes_change_in_rts_and_the_path_in_sqd() {
    let rig = Rig::rc();
    let (a, b) = (&rig.a, &rig.b);
    b.modify(
        QpAttributes::new()
            .qp_state(QpState::Rts)
            .min_rnr_timer(9)
            .qp_access_flags(Access::REMOTE_READ),
    )
    .unwrap();
    assert_eq!(b.qp.query().unwrap().attributes.min_rnr_timer, Some(9));
    // The timeout may change in SQD, but not in RTS; the same holds for the path.
    let path = QpAttributes::new().ah_attr(b.path());
    for only_in_sqd in [
        path,
        QpAttributes::new().timeout(3),
        QpAttributes::new().max_rd_atomic(1),
    ] {
        assert!(matches!(
            bad(a.modify(only_in_sqd)),
            BadModify::Attributes { .. }
        ));
    }
    // There are three lists: posted before, while, and after draining. They arrive in this order, over the new path.
    (0..9).for_each(|id| b.receive(id, 1024 + 64 * id as usize, 64));
    let post = |ids: std::ops::Range<u64>| {
        for id in ids {
            a.post(wr::Send::new(&[id as u8; 4]).signaled(id));
        }
    };
    post(0..3);
    a.modify(
        QpAttributes::new()
            .qp_state(QpState::Sqd)
            .en_sqd_async_notify(true),
    )
    .unwrap();
    post(3..6);
    rig.run();
    assert_eq!(
        (a.done(), a.events()),
        (ok(0..3), vec![EventType::SqDrained])
    );
    for allowed in [
        path,
        QpAttributes::new().timeout(3).retry_cnt(2).max_rd_atomic(1),
    ] {
        a.modify(allowed).unwrap();
    }
    a.go_to(QpState::Rts);
    post(6..9);
    rig.run();
    assert_eq!((a.done(), b.done()), (ok(3..9), ok(0..9)));
    (0..9).for_each(|id| assert_eq!(b.read(1024 + 64 * id, 4), [id as u8; 4]));
}

// covers 3.07
#[test]
fn only_unreliable_queue_pairs_enter_sqe_on_a_send_error() {
    for qp_type in TYPES {
        let rig = Rig::new(setup(qp_type));
        let (a, b) = (&rig.a, &rig.b);
        let ah = a.pd.create_ah(b.path()).wait().unwrap();
        let to = UdDestination {
            ah,
            remote_qpn: b.qp.qp_num(),
            remote_qkey: 0x1111,
        };
        let send = |id, lkey| {
            let request = wr::Send::new(with_lkey(a.sge(0, 8), lkey)).signaled(id);
            a.post(if qp_type == QpType::Ud {
                request.to(&to)
            } else {
                request
            });
        };
        a.receive(7, 4096, 128);
        send(1, 0x1234);
        send(2, a.mr.lkey().value());
        if qp_type == QpType::Rc {
            assert_eq!(a.state(), QpState::Err);
            let expected = [
                (1, WcStatus::LocProtErr),
                (7, WcStatus::WrFlushErr),
                (2, WcStatus::WrFlushErr),
            ];
            assert_eq!(a.done(), expected);
            assert!(matches!(
                bad(a.modify(QpAttributes::new().qp_state(QpState::Rts))),
                BadModify::NoTransition { .. }
            ));
            continue;
        }
        assert_eq!(a.state(), QpState::Sqe);
        assert_eq!(
            a.done(),
            [(1, WcStatus::LocProtErr), (2, WcStatus::WrFlushErr)]
        );
        // Receiving continues: SQE stops only the send queue.
        let back = UdDestination {
            ah: b.pd.create_ah(a.path()).wait().unwrap(),
            remote_qpn: a.qp.qp_num(),
            remote_qkey: 0x1111,
        };
        let answer = wr::Send::new(b.sge(0, 8)).signaled(3);
        b.post(if qp_type == QpType::Ud {
            answer.to(&back)
        } else {
            answer
        });
        rig.run();
        assert_eq!(a.done(), ok([7]), "{qp_type:?}");
        a.go_to(QpState::Rts);
        b.receive(8, 4096, 128);
        send(4, a.mr.lkey().value());
        rig.run();
        assert_eq!(a.done(), ok([4]));
        assert_eq!(b.done(), ok([3, 8]));
    }
}

// covers 3.08
#[test]
fn every_state_but_reset_leads_to_err() {
    for qp_type in TYPES {
        let rig = Rig::unconnected(setup(qp_type));
        let to_err = QpAttributes::new().qp_state(QpState::Err);
        assert!(matches!(
            bad(rig.a.modify(to_err)),
            BadModify::NoTransition { .. }
        ));
        assert_eq!(rig.a.state(), QpState::Reset);
        for count in 1..=4 {
            let rig = Rig::unconnected(setup(qp_type));
            steps(&rig)
                .into_iter()
                .take(count)
                .for_each(|step| rig.a.modify(step).unwrap());
            if count == 4 {
                rig.a.go_to(QpState::Sqd);
            }
            rig.a.receive(1, 0, 64);
            rig.a.modify(to_err).unwrap();
            assert_eq!(
                (rig.a.state(), rig.a.done()),
                (QpState::Err, vec![(1, WcStatus::WrFlushErr)])
            );
            rig.a.modify(to_err).unwrap();
            assert_eq!(rig.a.done(), []);
        }
    }
}

// covers 3.09
#[test]
fn reset_empties_the_queues_without_completions() {
    let rig = Rig::rc();
    let (a, b) = (&rig.a, &rig.b);
    rig.wire.rule(|_| Fate::Drop);
    (0..3).for_each(|id| a.receive(id, 0, 64));
    (3..6).for_each(|id| a.post(wr::Send::new(a.sge(0, 8)).signaled(id)));
    for side in [a, b] {
        side.go_to(QpState::Reset);
    }
    rig.wire.pass();
    rig.run();
    assert_eq!((a.done(), a.state()), (vec![], QpState::Reset));
    assert_eq!(a.qp.query().unwrap().attributes.timeout, None);
    // The queue pair is connected again, with the same numbers: nothing remains of the earlier connection.
    rig.connect();
    b.receive(7, 0, 64);
    a.post(wr::Send::new(a.sge(0, 8)).signaled(8));
    rig.run();
    assert_eq!((a.done(), b.done()), (ok([8]), ok([7])));
    // A reset works from every state.
    for count in 0..=3 {
        let rig = Rig::unconnected(setup(QpType::Rc));
        steps(&rig)
            .into_iter()
            .take(count)
            .for_each(|step| rig.a.modify(step).unwrap());
        rig.a.go_to(QpState::Reset);
        assert_eq!(rig.a.state(), QpState::Reset);
    }
    for through in [QpState::Sqd, QpState::Err] {
        let rig = Rig::rc();
        rig.a.go_to(through);
        rig.a.go_to(QpState::Reset);
        assert_eq!(rig.a.state(), QpState::Reset);
    }
}

// covers 3.10
#[test]
fn a_wrong_current_state_fails_the_modify() {
    let rig = Rig::rc();
    let claim = |state| QpAttributes::new().cur_qp_state(state).min_rnr_timer(3);
    let error = bad(rig.a.modify(claim(QpState::Sqd)));
    assert_eq!(
        error,
        BadModify::CurrentState {
            claimed: QpState::Sqd,
            actual: QpState::Rts
        }
    );
    assert_eq!(rig.a.qp.query().unwrap().attributes.min_rnr_timer, Some(1));
    rig.a.modify(claim(QpState::Rts)).unwrap();
    assert_eq!(rig.a.qp.query().unwrap().attributes.min_rnr_timer, Some(3));
    // If the table does not list the attribute, it is superfluous.
    let error = bad(rig.a.modify(
        QpAttributes::new()
            .qp_state(QpState::Sqd)
            .cur_qp_state(QpState::Rts),
    ));
    assert!(matches!(
        error,
        BadModify::Attributes {
            forbidden: QpAttrMask::CUR_STATE,
            ..
        }
    ));
}

// covers 3.11
#[test]
fn values_beyond_their_range_are_refused_and_change_nothing() {
    let rig = Rig::unconnected(setup(QpType::Rc));
    let [to_init, to_rtr, to_rts] = steps(&rig);
    let limits = *rig.a.context.limits();
    let refused = |step: QpAttributes, name: &str| match bad(rig.a.modify(step)) {
        BadModify::Value {
            attribute,
            value,
            max,
        } => {
            assert_eq!(attribute, name);
            assert!(value > max || value == 0);
        }
        other => panic!("{other:?}"),
    };
    refused(to_init.port_num(2), "port_num");
    refused(to_init.port_num(0), "port_num");
    assert!(rig.a.modify(to_init.pkey_index(1)).is_err());
    assert_eq!(rig.a.state(), QpState::Reset);
    rig.a.modify(to_init).unwrap();
    refused(to_rtr.min_rnr_timer(32), "min_rnr_timer");
    refused(
        to_rtr.max_dest_rd_atomic(limits.max_qp_rd_atom as u8 + 1),
        "max_dest_rd_atomic",
    );
    refused(
        to_rtr.ah_attr(verbs_api::qp::AddressVector {
            port_num: 3,
            ..rig.b.path()
        }),
        "ah_attr.port_num",
    );
    assert_eq!(rig.a.state(), QpState::Init);
    rig.a.modify(to_rtr).unwrap();
    refused(to_rts.timeout(32), "timeout");
    refused(to_rts.retry_cnt(8), "retry_cnt");
    refused(to_rts.rnr_retry(8), "rnr_retry");
    refused(
        to_rts.max_rd_atomic(limits.max_qp_init_rd_atom as u8 + 1),
        "max_rd_atomic",
    );
    assert_eq!(rig.a.state(), QpState::Rtr);
    // The type holds only numbers of 24 bits.
    assert_eq!(Psn::new(0x1ff_ffff).value(), 0xff_ffff);
    rig.a.modify(to_rts).unwrap();
}

// covers 3.S 3.30
#[test]
fn in_err_all_requests_are_taken_and_flushed_in_order() {
    let rig = Rig::rc();
    let (a, b) = (&rig.a, &rig.b);
    rig.wire.rule(|_| Fate::Drop);
    a.receive(1, 0, 64);
    a.post(wr::Send::new(a.sge(0, 8)).signaled(2));
    a.go_to(QpState::Err);
    a.post(wr::Send::new(a.sge(0, 8)).wr_id(3));
    a.post(wr::Send::new(a.sge(0, 8)).signaled(4));
    a.receive(5, 0, 64);
    let all: Vec<_> = a.done();
    assert!(
        all.iter()
            .all(|(_, status)| *status == WcStatus::WrFlushErr)
    );
    let of = |ids: &[u64]| {
        all.iter()
            .map(|(id, _)| *id)
            .filter(|id| ids.contains(id))
            .collect::<Vec<_>>()
    };
    assert_eq!(
        (of(&[2, 3, 4]), of(&[1, 5]), all.len()),
        (vec![2, 3, 4], vec![1, 5], 5)
    );
    // A frame that arrives is dropped.
    rig.wire.pass();
    let arrival = rig.answer(0, Body::Send(Position::Only, SendExtra::Nothing), b"x");
    rig.inject([arrival]);
    assert_eq!((a.done(), b.done()), (vec![], vec![]));
}
