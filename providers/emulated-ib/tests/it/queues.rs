//! Receive queues, shared and private, and completion queues.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::support::*;
use emulated_ib::header::{Body, Position, SendExtra};
use verbs_api::qp::{QpState, QpType};
use verbs_api::*;
use verbs_api::{
    completion::Notify,
    event::EventType,
    wr::{self, PostReason, ReceiveRequest, UdDestination},
};

fn shared(size: u32) -> Rig {
    Rig::new(Setup {
        srq: Some(size),
        ..Setup::default()
    })
}

fn send(rig: &Rig, count: u64) {
    (0..count).for_each(|id| rig.a.post(wr::Send::new(rig.a.sge(0, 8)).signaled(id)));
    rig.run();
    assert_eq!(rig.a.done(), ok(0..count));
}

// covers 3.80
#[test]
fn with_a_shared_queue_receives_are_posted_only_there() {
    let rig = shared(8);
    let request = || ReceiveRequest::new(1, rig.b.sge(0, 64));
    assert_eq!(
        rig.b.qp.post_receive(request()).unwrap_err().reason,
        PostReason::HasSrq
    );
    rig.b.receive(2, 0, 64);
    send(&rig, 1);
    assert_eq!(rig.b.done(), ok([2]));
    let srq = rig.b.srq.as_ref().unwrap();
    (0..8).for_each(|id| rig.b.receive(id, 0, 64));
    assert_eq!(
        srq.post_receive(request()).unwrap_err().reason,
        PostReason::QueueFull { max: 8 }
    );
    // Two queue pairs take receives from the queue, each for its own messages.
    let other = make_qp(&rig.b.pd, &rig.b.cq, Some(srq), &rig.setup);
    let peer = make_qp(&rig.a.pd, &rig.a.cq, None, &Setup::default());
    connect(&other, rig.a.path(), peer.qp_num(), &rig.setup, 5, 6);
    connect(&peer, rig.b.path(), other.qp_num(), &rig.setup, 6, 5);
    for _ in 0..2 {
        rig.a.post(wr::Send::new(rig.a.sge(0, 8)));
        peer.post_one(wr::Send::new(rig.a.sge(0, 8))).unwrap();
    }
    rig.run();
    let takers: Vec<_> = rig
        .b
        .completions()
        .iter()
        .map(|done| (done.wr_id, done.qp_num))
        .collect();
    let (first, second) = (rig.b.qp.qp_num(), other.qp_num());
    assert_eq!(takers, [(0, first), (1, second), (2, first), (3, second)]);
}

// covers 3.81
#[test]
fn the_limit_fires_once_when_fewer_are_left() {
    let rig = shared(8);
    let srq = rig.b.srq.as_ref().unwrap();
    (0..8).for_each(|id| rig.b.receive(id, 0, 64));
    assert!(srq.arm_limit(9).wait().is_err());
    srq.arm_limit(4).wait().unwrap();
    send(&rig, 4);
    assert_eq!(
        (rig.b.events(), srq.query().unwrap().srq_limit),
        (vec![], 4)
    );
    send(&rig, 1);
    let event = rig
        .b
        .context
        .poll_event()
        .into_iter()
        .chain(std::iter::from_fn(|| rig.b.context.poll_event()));
    let event: Vec<_> = event
        .filter(|event| event.event_type() != EventType::CommEst)
        .collect();
    assert_eq!(
        (event.len(), event[0].event_type()),
        (1, EventType::SrqLimitReached)
    );
    assert_eq!(event[0].object().unwrap().id, srq.id());
    assert_eq!(srq.query().unwrap().srq_limit, 0);
    send(&rig, 2);
    assert_eq!(rig.b.events(), []);
    // After it was armed again, the limit event occurs with the next receive that is taken.
    srq.arm_limit(2).wait().unwrap();
    send(&rig, 1);
    assert_eq!(rig.b.events(), [EventType::SrqLimitReached]);
}

// covers 3.82
#[test]
fn a_shared_queue_does_not_shrink_below_its_posted_receives() {
    let rig = shared(8);
    let srq = rig.b.srq.as_ref().unwrap();
    (0..5).for_each(|id| rig.b.receive(id, 0, 64));
    assert!(srq.resize(4).wait().is_err());
    assert_eq!(srq.query().unwrap().max_wr, 8);
    srq.resize(5).wait().unwrap();
    let request = ReceiveRequest::new(9, rig.b.sge(0, 64));
    assert_eq!(
        srq.post_receive(request).unwrap_err().reason,
        PostReason::QueueFull { max: 5 }
    );
    srq.resize(6).wait().unwrap();
    rig.b.receive(9, 0, 64);
    send(&rig, 6);
    assert_eq!(rig.b.done(), ok([0, 1, 2, 3, 4, 9]));
}

// covers 3.83 3.84 6.11
#[test]
fn the_last_receive_event_is_reported_once() {
    // The cases: by modify, holding a receive; by an error of the peer; by its own error; holding none.
    for case in 0..4 {
        let rig = shared(8);
        let b = &rig.b;
        let srq = b.srq.as_ref().unwrap();
        (0..4).for_each(|id| b.receive(id, 0, 4096));
        let first = rig.request(
            0,
            Body::Send(Position::First, SendExtra::Nothing),
            &[1; 1024],
        );
        let mut expected = vec![(0, WcStatus::WrFlushErr)];
        match case {
            0 => {
                rig.inject([first]);
                assert_eq!(b.events(), []);
                b.go_to(QpState::Err);
            }
            1 => {
                rig.inject([first.clone()]);
                rig.inject([rig.request(1, first.header.body, &[1; 1024])]);
                expected = vec![(0, WcStatus::RemInvReqErr)];
            }
            2 => {
                rig.inject([first]);
                b.post(wr::Send::new(with_lkey(b.sge(0, 8), 1)).wr_id(7));
                expected = vec![(7, WcStatus::LocProtErr), (0, WcStatus::WrFlushErr)];
            }
            _ => {
                b.go_to(QpState::Err);
                expected.clear();
            }
        }
        assert_eq!(b.done(), expected, "case {case}");
        assert_eq!(b.events(), [EventType::QpLastWqeReached], "case {case}");
        b.go_to(QpState::Err);
        rig.inject([rig.request(0, Body::Send(Position::Only, SendExtra::Nothing), b"x")]);
        assert_eq!((b.done(), b.events()), (vec![], vec![]));
        // The receives that were not taken are still in the queue, for another queue pair.
        let left = 8 - if case == 3 { 4 } else { 3 };
        (0..left).for_each(|id| b.receive(10 + id, 0, 64));
        let request = ReceiveRequest::new(99, b.sge(0, 64));
        assert_eq!(
            srq.post_receive(request).unwrap_err().reason,
            PostReason::QueueFull { max: 8 }
        );
        // After a reset the queue pair may fail and report the event again.
        b.go_to(QpState::Reset);
        for step in [
            init(&rig.setup),
            rtr(&rig.setup, rig.a.path(), rig.a.qp.qp_num(), 9),
        ] {
            b.modify(step).unwrap();
        }
        b.go_to(QpState::Err);
        assert_eq!(b.events(), [EventType::QpLastWqeReached]);
    }
    // There is no such event without a shared queue.
    let rig = Rig::rc();
    rig.b.go_to(QpState::Err);
    assert_eq!(rig.b.events(), []);
}

// covers 3.85
#[test]
fn a_broken_shared_queue_ends_the_queue_pairs_that_need_it() {
    for direct in [false, true] {
        let rig = Rig::new(Setup {
            srq: Some(8),
            retry_cnt: 1,
            rnr_retry: 1,
            direct,
            ..Setup::default()
        });
        let (a, b) = (&rig.a, &rig.b);
        b.receive(1, 0, 64);
        let engine_qp = b.engine.qp(b.qp.qp_num().value()).unwrap();
        (0..2).for_each(|_| engine_qp.srq().unwrap().fail());
        let event = b.context.poll_event().unwrap();
        assert_eq!(
            (event.event_type(), event.object().unwrap().id),
            (EventType::SrqErr, b.srq.as_ref().unwrap().id())
        );
        // Requests that need no receive still succeed.
        a.post(wr::Write::new(a.sge(0, 8), b.remote(0)).signaled(1));
        rig.run();
        assert_eq!(
            (a.done(), b.events(), b.state()),
            (ok([1]), vec![], QpState::Rts)
        );
        a.post(wr::Send::new(a.sge(0, 8)).signaled(2));
        rig.run();
        assert_eq!((b.state(), b.done()), (QpState::Err, vec![]));
        assert_eq!(
            b.events(),
            [EventType::QpFatal, EventType::QpLastWqeReached]
        );
        assert_eq!(a.done(), [(2, WcStatus::RetryExcErr)]);
    }
}

// covers 3.86
#[test]
fn an_overrun_ends_only_that_queue_and_its_queue_pairs() {
    for direct in [false, true] {
        let rig = Rig::new(Setup {
            cqe: 2,
            direct,
            ..Setup::default()
        });
        let (a, b) = (&rig.a, &rig.b);
        // This queue pair uses another completion queue of the same device.
        let cq = a.context.create_cq(16).wait().unwrap();
        let other = a.pd.create_qp(QpOptions::rc(&cq)).wait().unwrap();
        let peer = b.pd.create_qp(QpOptions::rc(&b.cq)).wait().unwrap();
        connect(&other, b.path(), peer.qp_num(), &rig.setup, 3, 4);
        connect(&peer, a.path(), other.qp_num(), &rig.setup, 4, 3);
        for id in 0..3 {
            a.post(wr::Write::new(a.sge(0, 8), b.remote(0)).signaled(id));
            rig.run();
        }
        let events = a.events();
        assert_eq!(events, [EventType::CqErr, EventType::QpFatal], "{direct}");
        assert_eq!(a.state(), QpState::Err);
        let mut slots: [Completion; 4] = Default::default();
        assert_eq!(a.cq.poll(&mut slots).map(|done| done.len()).ok(), Some(2));
        assert!(matches!(a.cq.poll(&mut slots), Err(VerbError::CqOverrun)));
        other
            .post_one(wr::Write::new(a.sge(0, 8), b.remote(0)).signaled(9))
            .unwrap();
        rig.run();
        let done: Vec<_> = poll(&cq)
            .iter()
            .map(|done| (done.wr_id, done.status))
            .collect();
        assert_eq!(
            (done, other.query().unwrap().state),
            (ok([9]), QpState::Rts)
        );
    }
}

// covers 3.87
#[test]
fn arming_gives_one_notification_of_the_wider_kind() {
    let rig = Rig::new(Setup {
        direct: true,
        ..Setup::default()
    });
    let (a, b) = (&rig.a, &rig.b);
    let notices = Arc::new(AtomicU32::new(0));
    let count = Arc::clone(&notices);
    b.cq.on_completion(move |_| {
        count.fetch_add(1, Ordering::Relaxed);
    });
    let told = || notices.swap(0, Ordering::Relaxed);
    (0..20).for_each(|id| b.receive(id, 0, 64));
    let plain = || a.post(wr::Send::new(a.sge(0, 8)));
    let solicited = || a.post(wr::Send::new(a.sge(0, 8)).solicited());
    // An unarmed queue notifies nothing, one that was armed once notifies once.
    solicited();
    assert_eq!(told(), 0);
    assert!(b.cq.arm(Notify::Next).unwrap(), "one is there already");
    assert_eq!(told(), 0, "an earlier completion does not count");
    b.done();
    plain();
    plain();
    assert_eq!(told(), 1);
    b.done();
    // Solicited does not narrow an earlier request for any completion; the reverse widens it.
    for order in [
        [Notify::Next, Notify::Solicited],
        [Notify::Solicited, Notify::Next],
    ] {
        for notify in order {
            assert!(!b.cq.arm(notify).unwrap());
        }
        plain();
        assert_eq!(told(), 1);
        b.done();
    }
    b.cq.arm(Notify::Solicited).unwrap();
    plain();
    assert_eq!(told(), 0);
    solicited();
    assert_eq!(told(), 1);
}

// covers 3.87
#[test]
fn no_wake_up_is_lost_between_arming_and_polling() {
    const ROUNDS: u64 = 100_000;
    let rounds = if std::env::var_os("POLYVERBS_MEMORY_CHECK").is_some() {
        ROUNDS / 100
    } else {
        ROUNDS
    };
    let rig = Rig::new(Setup {
        direct: true,
        max_recv_wr: 16,
        ..Setup::default()
    });
    let (a, b) = (&rig.a, &rig.b);
    let taken = AtomicU64::new(0);
    std::thread::scope(|threads| {
        threads.spawn(|| {
            for round in 0..rounds {
                while round >= taken.load(Ordering::Acquire) + 8 {
                    std::thread::yield_now();
                }
                b.qp.post_receive(ReceiveRequest::new(round, b.sge(0, 8)))
                    .unwrap();
                a.post(wr::Send::new(a.sge(0, 8)));
            }
        });
        // This waits for each completion: a lost notification would make the test hang.
        for round in 0..rounds {
            let done = b.cq.next().wait().unwrap();
            assert_eq!((done.wr_id, done.status), (round, WcStatus::Success));
            taken.store(round + 1, Ordering::Release);
        }
    });
}

// covers 3.89
#[test]
fn a_resized_completion_queue_keeps_its_completions() {
    let rig = Rig::rc();
    let (a, b) = (&rig.a, &rig.b);
    let write = |ids: std::ops::Range<u64>| {
        ids.for_each(|id| a.post(wr::Write::new(a.sge(0, 8), b.remote(0)).signaled(id)));
        rig.run();
    };
    write(0..5);
    assert!(a.cq.resize(4).wait().is_err());
    assert_eq!(a.cq.cqe(), 256);
    assert_eq!(a.cq.resize(6).wait().unwrap(), 6);
    write(5..6);
    assert_eq!(a.done(), ok(0..6));
    a.cq.resize(100).wait().unwrap();
    write(0..50);
    assert_eq!(a.done(), ok(0..50));
    assert_eq!(a.events(), []);
}

// covers 3.91
#[test]
fn completions_outlive_their_queue_pair_and_none_is_added() {
    let rig = Rig::rc();
    let Rig { a, b, .. } = &rig;
    a.post(wr::Write::new(a.sge(0, 8), b.remote(0)).signaled(1));
    rig.run();
    let number = b.qp.qp_num();
    b.receive(2, 0, 8);
    a.post(wr::Send::new(a.sge(0, 8)).signaled(3));
    rig.run();
    b.receive(4, 0, 8);
    let b_qp = b.qp.clone();
    b_qp.destroy().wait().unwrap();
    a.qp.clone().destroy().wait().unwrap();
    assert_eq!(a.done(), ok([1, 3]));
    let left: Vec<_> = b
        .completions()
        .iter()
        .map(|done| (done.wr_id, done.qp_num))
        .collect();
    assert_eq!(left, [(2, number)]);
    let reason =
        b.qp.post_receive(ReceiveRequest::new(1, ()))
            .unwrap_err()
            .reason;
    assert_eq!(reason, PostReason::InvalidHandle);
}

// covers 3.80
#[test]
fn a_shared_queue_serves_datagrams_too() {
    let rig = Rig::new(Setup {
        qp_type: QpType::Ud,
        srq: Some(4),
        ..Setup::default()
    });
    let (a, b) = (&rig.a, &rig.b);
    let ah = a.pd.create_ah(b.path()).wait().unwrap();
    let to = UdDestination {
        ah,
        remote_qpn: b.qp.qp_num(),
        remote_qkey: 0x1111,
    };
    b.receive(1, 0, 48);
    a.post(wr::Send::new(a.sge(0, 9)).to(&to));
    a.post(wr::Send::new(a.sge(0, 8)).to(&to));
    rig.run();
    // The datagram that was too long left the receive for the next one.
    assert_eq!(b.done(), ok([1]));
}
