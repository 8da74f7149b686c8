//! When a responder acknowledges: once for all messages that arrive together, and after its program's own message.

use crate::support::*;
use emulated_ib::header::{Body, Header, Nak, Position, SendExtra};
use polyverbs_engine::network::Progress;
use verbs_api::completion::Notify;
use verbs_api::ids::Psn;
use verbs_api::qp::QpState;
use verbs_api::wr;
use verbs_api::*;

use Position::Only;

const SEND: Body = Body::Send(Only, SendExtra::Nothing);

fn sends<const N: usize>(rig: &Rig, offsets: [u32; N]) -> [OwnFrame; N] {
    offsets.map(|offset| rig.request(offset, SEND, b"message"))
}

#[test]
fn one_acknowledge_covers_messages_that_arrive_together() {
    let rig = Rig::rc();
    (0..5).for_each(|id| rig.b.receive(id, 0, 64));
    rig.inject(sends(&rig, [0, 1, 2, 3]));
    assert_eq!(rig.answers(), [(3, ACK)]);
    let said = rig.wire.log();
    assert_eq!(said[0].header.aeth.msn, 4);
    assert_eq!(rig.b.done(), ok(0..4));
    // The acknowledge is not repeated.
    rig.network.progress();
    assert_eq!(rig.answers().len(), 1);
    rig.inject(sends(&rig, [4]));
    assert_eq!(rig.answers()[1..], [(4, ACK)]);
}

#[test]
fn a_request_completes_when_nothing_more_arrives() {
    let rig = Rig::rc();
    for id in 0..3 {
        rig.b.receive(id, 0, 64);
        rig.a.post(wr::Send::new(rig.a.sge(0, 8)).signaled(id));
        rig.run();
        assert_eq!(rig.a.done(), ok([id]));
    }
    assert_eq!(rig.answers(), [(0, ACK), (1, ACK), (2, ACK)]);
}

#[test]
fn messages_seen_twice_are_acknowledged_with_the_newest_number() {
    let rig = Rig::rc();
    (0..3).for_each(|id| rig.b.receive(id, 0, 64));
    rig.inject(sends(&rig, [0, 1, 2, 0, 1]));
    assert_eq!(rig.answers(), [(2, ACK)]);
    rig.inject(sends(&rig, [0]));
    assert_eq!(rig.answers()[1..], [(2, ACK)]);
}

#[test]
fn an_answer_acknowledges_earlier_requests() {
    let read = |rig: &Rig, offset| rig.request(offset, Body::ReadRequest(rig.b.remote(0), 8), b"");
    let add = |rig: &Rig, offset| rig.request(offset, Body::FetchAdd(rig.b.remote(0), 1), b"");
    let rig = Rig::rc();
    (0..4).for_each(|id| rig.b.receive(id, 64, 64));
    let [first, second, third] = sends(&rig, [0, 2, 4]);
    rig.inject([first, read(&rig, 1), second, add(&rig, 3), third]);
    let answers = [
        (1, Body::ReadResponse(Only).into()),
        (3, Body::AtomicAcknowledge(0).into()),
        (4, ACK),
    ];
    assert_eq!(rig.answers(), answers);
    // Refusals acknowledge, too: that of a frame out of order, and that of a message without a receive.
    rig.inject(sends(&rig, [5, 7]));
    assert_eq!(rig.answers()[3..], [(6, nak(Nak::SEQUENCE_ERROR))]);
    let write = Body::Write(Only, rig.b.remote(4096), 3, None);
    rig.inject([
        rig.request(6, write, b"new"),
        rig.request(7, SEND, b"no receive"),
    ]);
    assert_eq!(rig.answers()[4..], [(7, rnr(rig.setup.min_rnr_timer))]);
}

#[test]
fn an_older_answer_acknowledges_nothing_newer() {
    let rig = Rig::rc();
    rig.b.receive(1, 64, 64);
    let read = rig.request(0, Body::ReadRequest(rig.b.remote(0), 8), b"");
    rig.inject([read.clone()]);
    rig.wire.forget();
    let [send] = sends(&rig, [1]);
    rig.inject([send, read]);
    let mut answers = rig.answers();
    answers.sort_by_key(|(offset, _)| *offset);
    assert_eq!(answers, [(0, Body::ReadResponse(Only).into()), (1, ACK)]);
}

/// Creates two sides whose programs poll frequently. B has polled these messages of A, and has not acknowledged them.
fn seen(ids: std::ops::Range<u64>) -> Rig {
    seen_over(None, ids)
}

fn seen_over(joined: Option<usize>, ids: std::ops::Range<u64>) -> Rig {
    let rig = Rig::new(Setup {
        polled: true,
        joined,
        ..Setup::default()
    });
    for id in ids.clone() {
        rig.b.receive(id, 0, 64);
        rig.a.post(wr::Send::new(rig.a.sge(0, 8)).signaled(id));
    }
    assert_eq!(poll_once(&rig.b.cq), ids.count());
    assert_eq!(rig.answers(), []);
    rig
}

fn poll_once(cq: &Cq) -> usize {
    let mut slots: [Completion; 16] = Default::default();
    cq.poll(&mut slots).unwrap().len()
}

/// Polls `times` times. Returns how many completions that brought.
fn poll(cq: &Cq, times: usize) -> usize {
    (0..times).map(|_| poll_once(cq)).sum()
}

/// Returns the headers that B has sent.
fn said(rig: &Rig) -> Vec<Header> {
    let log = rig.wire.log().into_iter();
    log.filter(|frame| frame.from == rig.b.address())
        .map(|frame| frame.header)
        .collect()
}

#[test]
fn a_programs_own_message_precedes_the_acknowledge() {
    let rig = seen(0..3);
    rig.a.receive(7, 0, 64);
    rig.b.post(wr::Send::new(rig.b.sge(0, 8)).signaled(8));
    // B's peer may answer the message.
    assert_eq!(poll(&rig.b.cq, 8), 0);
    assert_eq!(said(&rig).len(), 1);
    assert_eq!(poll(&rig.b.cq, 32), 1);
    let bodies: Vec<_> = said(&rig).iter().map(|header| header.body).collect();
    assert_eq!(bodies, [SEND, Body::Acknowledge]);
    assert_eq!(rig.answers()[0], (2, ACK));
    assert_eq!(rig.a.done(), ok([7, 0, 1, 2]));
}

#[test]
fn one_acknowledge_stands_for_the_messages_of_a_conversation() {
    let rig = seen(0..1);
    for turn in 1..4 {
        rig.a.receive(0, 0, 64);
        rig.b.receive(0, 0, 64);
        rig.b.post(wr::Send::new(rig.b.sge(0, 8)));
        assert_eq!(poll(&rig.b.cq, 2), 0);
        rig.a.post(wr::Send::new(rig.a.sge(0, 8)));
        assert_eq!(poll(&rig.b.cq, 2), 1);
        assert_eq!(said(&rig).len(), turn);
    }
}

#[test]
fn with_joined_packets_a_message_carries_the_acknowledge() {
    let rig = seen_over(Some(8192), 0..3);
    rig.a.receive(7, 0, 64);
    rig.b.post(wr::Send::new(rig.b.sge(0, 8)).signaled(8));
    assert_eq!(poll(&rig.b.cq, 40), 1);
    let said = said(&rig);
    assert_eq!((said.len(), said[0].body), (1, SEND));
    let (psn, aeth) = said[0].acknowledges.unwrap();
    let newest = Psn::new(rig.setup.a_psn).plus(2);
    assert_eq!((psn, aeth.msn), (newest, 3));
    assert_eq!(rig.a.done(), ok([7, 0, 1, 2]));
}

#[test]
fn an_acknowledge_that_is_not_awaited_is_not_piggybacked() {
    let rig = Rig::new(Setup {
        polled: true,
        joined: Some(8192),
        ..Setup::default()
    });
    rig.b.receive(1, 0, 64);
    rig.a.post(wr::Send::new(rig.a.sge(0, 8)));
    assert_eq!(poll(&rig.b.cq, 1), 1);
    rig.a.receive(2, 0, 64);
    rig.b.post(wr::Send::new(rig.b.sge(0, 8)));
    assert_eq!(poll(&rig.b.cq, 40), 0);
    let said: Vec<_> = (said(&rig).iter())
        .map(|header| (header.body, header.acknowledges))
        .collect();
    assert_eq!(said, [(SEND, None), (Body::Acknowledge, None)]);
}

#[test]
fn the_next_poll_that_finds_nothing_acknowledges() {
    let rig = seen(0..3);
    assert_eq!(poll_once(&rig.b.cq), 0);
    assert_eq!(rig.answers(), [(2, ACK)]);
    assert_eq!(rig.a.done(), ok([0, 1, 2]));
}

// The peer's process then knows that the acknowledge is not lost.
#[test]
fn an_acknowledge_kept_back_is_not_reported_as_sent() {
    let rig = seen(0..3);
    let before = rig.wire.log().len();
    // The link's thread calls this while pollers own the input.
    assert!(Progress::look(&*rig.network));
    assert!(rig.wire.answered() < before);
    assert!(Progress::progress(&*rig.network));
    assert_eq!(rig.answers(), [(2, ACK)]);
    assert_eq!(rig.wire.answered(), before + 1);
}

#[test]
fn when_the_pollers_are_gone_the_thread_acknowledges() {
    let rig = seen(0..3);
    // The link's thread calls this.
    assert!(Progress::progress(&*rig.network));
    assert_eq!(rig.answers(), [(2, ACK)]);
    assert_eq!(rig.a.done(), ok([0, 1, 2]));
}

#[test]
fn a_program_that_is_about_to_sleep_acknowledges() {
    let rig = seen(0..3);
    rig.b.cq.arm(Notify::Next).unwrap();
    assert_eq!(rig.answers(), [(2, ACK)]);
    assert_eq!(rig.a.done(), ok([0, 1, 2]));
}

#[test]
fn a_control_verb_acknowledges() {
    let verbs: [fn(&Side); 4] = [
        |side| drop(side.context.alloc_pd().wait().unwrap()),
        |side| drop(side.context.create_cq(1).wait().unwrap()),
        |side| side.go_to(QpState::Reset),
        |side| side.go_to(QpState::Err),
    ];
    for verb in verbs {
        let rig = seen(0..3);
        verb(&rig.b);
        assert_eq!(rig.answers(), [(2, ACK)]);
        assert_eq!(rig.a.done(), ok([0, 1, 2]));
    }
}

#[test]
fn a_queue_pair_that_is_destroyed_has_acknowledged() {
    let rig = seen(0..3);
    rig.b.qp.destroy().wait().unwrap();
    let last = rig.wire.log().pop().unwrap();
    assert_eq!(last.header.body, Body::Acknowledge);
    assert_eq!(last.header.psn.value(), rig.setup.a_psn + 2);
    assert_eq!(rig.a.done(), ok([0, 1, 2]));
}
