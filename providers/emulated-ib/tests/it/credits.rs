//! End-to-end credits: how an acknowledge reports receives, and how a requester uses that.

use crate::support::{ACK, Rig, Setup, ok};
use emulated_ib::header::Aeth;
use verbs_api::wr;

fn credits(rig: &Rig) -> Vec<(u32, Option<u32>)> {
    let answers = rig.wire.log();
    let acks = answers.iter().filter(|frame| frame.header.is_ack());
    acks.map(|frame| (frame.header.aeth.msn, frame.header.aeth.limit()))
        .collect()
}

// covers 3.68
#[test]
fn acknowledges_report_messages_and_remaining_receives() {
    let rig = Rig::rc();
    for id in 0..6 {
        rig.b.receive(id, 0, 64);
    }
    rig.a.post(wr::Send::new(rig.a.sge(0, 8)).signaled(1));
    rig.run();
    rig.a
        .post(wr::Write::new(rig.a.sge(0, 8), rig.b.remote(100)).signaled(2));
    rig.run();
    // Five receives are left after the send, of which the code can promise four; a write takes none.
    assert_eq!(credits(&rig), [(1, Some(5)), (2, Some(6))]);
}

// covers 3.68
#[test]
fn a_requester_exceeds_its_credits_by_one_probe_only() {
    let rig = Rig::new(Setup {
        rnr_retry: 7,
        ..Setup::default()
    });
    rig.b.receive(0, 0, 64);
    rig.b.receive(1, 0, 64);
    rig.a.post(wr::Send::new(rig.a.sge(0, 8)).signaled(100));
    rig.run();
    rig.wire.forget();
    // One receive is left, and the requester knows that: of three sends one leaves, and then a second by itself, as a
    // probe.
    for id in 0..3 {
        rig.a.post(wr::Send::new(rig.a.sge(0, 8)).signaled(id));
    }
    let sends = rig.requests().len();
    assert_eq!(
        sends, 2,
        "the second is the probe, sent when nothing else was under way"
    );
    assert_eq!(rig.a.done(), ok([100, 0]));
    rig.b.receive(2, 0, 64);
    rig.b.receive(3, 0, 64);
    rig.run();
    assert_eq!(rig.a.done(), ok([1, 2]));
}

// covers 3.68
#[test]
fn a_shared_queue_removes_the_credit_limit_permanently() {
    let rig = Rig::new(Setup {
        srq: Some(16),
        ..Setup::default()
    });
    for id in 0..2 {
        rig.b.receive(id, 0, 64);
    }
    rig.a.post(wr::Send::new(rig.a.sge(0, 8)).signaled(1));
    rig.run();
    assert_eq!(credits(&rig), [(1, None)]);
    // An answer with a limit arrives too late.
    rig.a.post(wr::Send::new(rig.a.sge(0, 8)).signaled(2));
    rig.run();
    let mut late = rig.answer(1, ACK, b"");
    late.header.aeth = Aeth::ack(2, Some(0));
    rig.inject([late]);
    rig.wire.forget();
    for id in 3..6 {
        rig.b.receive(id, 0, 64);
        rig.a.post(wr::Send::new(rig.a.sge(0, 8)).signaled(id));
    }
    rig.run();
    assert_eq!(rig.a.done(), ok([1, 2, 3, 4, 5]));
}
