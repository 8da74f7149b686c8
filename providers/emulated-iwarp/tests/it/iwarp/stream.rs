//! Behaviour that only a stream shows: order, budgets, faults of the peer.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use emulated_iwarp::ServiceDelay;
use emulated_iwarp::header::{
    Body, Header, Message, Opcode, Tagged, Untagged, reset_header, stream_key,
};
use polyverbs_engine::link::OwnedFrame;
use verbs_api::qp::QpState;
use verbs_api::{Access, Batch, WcStatus, event::EventType, ids::LinkAddress, wr};

use crate::iwarp::direct::fast_register;
use crate::iwarp::lab::{Lab, open};

use WcStatus::{BadRespErr, LocProtErr, RemAccessErr, RemInvReqErr, Success, WrFlushErr};

// covers 3.96
#[test]
fn writes_are_visible_once_a_later_send_has_arrived() {
    let lab = Lab::stream(Some(16));
    lab.b.receive(10, 4096, 8);
    lab.a.fill(0, &[9; 1000]);
    lab.a
        .post(wr::Write::new(lab.a.sge(0, 1000), lab.b.remote(0)));
    lab.a.post(wr::Send::new(()));
    lab.settle();
    assert_eq!(lab.b.statuses(), [(10, Success)]);
    assert_eq!(lab.b.octets(0, 1000), [9; 1000]);
}

fn read_then_write(lab: &Lab, fenced: bool) -> Vec<u8> {
    lab.b.fill(0, b"old");
    lab.a.fill(0, b"new");
    let mut batch = Batch::new();
    batch.push(wr::Read::new(lab.a.sge(64, 3), lab.b.remote(0)).signaled(1));
    let write = wr::Write::new(lab.a.sge(0, 3), lab.b.remote(0)).signaled(2);
    batch.push(if fenced { write.fence() } else { write });
    lab.a.qp.post(&mut batch).unwrap();
    lab.run();
    assert_eq!(lab.a.statuses(), [(1, Success), (2, Success)]);
    assert_eq!(lab.b.octets(0, 3), b"new");
    lab.a.octets(64, 3)
}

// covers 3.72
#[test]
fn only_an_unfenced_write_may_overtake_a_read() {
    let lab = Lab::stream(None);
    assert_eq!(read_then_write(&lab, false), b"new");
    for seed in 0..20 {
        let service = ServiceDelay {
            max: Duration::from_micros(100),
            seed,
        };
        let lab = Lab::over(None, service).connected(open());
        assert_eq!(read_then_write(&lab, true), b"old", "seed {seed}");
    }
}

// covers 3.72
#[test]
fn the_seed_determines_the_delay_of_reads() {
    let outcomes = |seed| -> Vec<bool> {
        let service = ServiceDelay {
            max: Duration::from_micros(100),
            seed,
        };
        let lab = Lab::over(None, service).connected(open());
        let early = |_| {
            lab.b.fill(0, b"old");
            lab.a
                .post(wr::Read::new(lab.a.sge(64, 3), lab.b.remote(0)).signaled(1));
            lab.pass(Duration::from_micros(50));
            lab.a.post(wr::Write::new(&b"new"[..], lab.b.remote(0)));
            lab.run();
            assert_eq!(lab.a.statuses(), [(1, Success)]);
            lab.a.octets(64, 3) == b"old"
        };
        (0..32).map(early).collect()
    };
    let one = outcomes(1);
    assert!(one.contains(&true) && one.contains(&false), "{one:?}");
    assert_eq!(one, outcomes(1));
    assert_ne!(one, outcomes(2));
}

// covers 2.62 2.69
#[test]
fn a_peer_may_write_to_a_read_sink_until_the_read_has_ended() {
    let service = ServiceDelay {
        max: Duration::from_micros(100),
        seed: 3,
    };
    let lab = Lab::over(None, service).connected(open());
    let key = fast_register(&lab.a, Access::LOCAL_WRITE | Access::REMOTE_WRITE, 4096);
    let sink = key.sge(lab.a.memory.address(), 4);
    let write = |octets| wr::Write::new(octets, key.remote(sink.addr()));
    lab.b.fill(0, b"read");
    lab.a
        .post(wr::ReadWithInvalidate::new(sink, lab.b.remote(0)).signaled(1));
    lab.settle();
    // The peer has the request, and holds the response back.
    lab.b.post(write(&b"open"[..]));
    lab.settle();
    assert_eq!(lab.a.octets(0, 4), b"open");
    assert_eq!(lab.a.statuses(), [], "the read is under way");
    lab.run();
    assert_eq!(lab.a.statuses(), [(1, Success)]);
    assert_eq!(lab.a.octets(0, 4), b"read");
    lab.b.post(write(&b"late"[..]));
    lab.run();
    assert_eq!(lab.b.terminated(), Some((1, 1, 0x00)));
    assert_eq!(lab.a.octets(0, 4), b"read");
}

// covers 3.99 9.51
#[test]
fn reads_are_answered_and_completed_in_order() {
    let service = ServiceDelay {
        max: Duration::from_micros(100),
        seed: 3,
    };
    let lab = Lab::over(Some(8), service).connected(open());
    lab.b.receive(50, 8192, 8);
    lab.b.fill(0, b"0123456789abcdef");
    lab.a
        .post(wr::Read::new(lab.a.sge(0, 16), lab.b.remote(0)).signaled(1));
    lab.a
        .post(wr::FetchAdd::new(lab.a.sge(16, 8), lab.b.remote(64), 1).signaled(2));
    lab.a.post(wr::Send::new(()).signaled(3));
    lab.a
        .post(wr::Read::new(lab.a.sge(24, 4), lab.b.remote(4)).signaled(4));
    lab.settle();
    assert_eq!(
        lab.a.statuses(),
        [],
        "the send is complete, but the reads before it are not"
    );
    lab.run();
    assert_eq!(
        lab.a.statuses(),
        [(1, Success), (2, Success), (3, Success), (4, Success)]
    );
    assert_eq!(
        (lab.a.octets(0, 16), lab.a.octets(24, 4)),
        (b"0123456789abcdef".to_vec(), b"4567".to_vec())
    );
}

// covers 1.13 3.99 9.51
#[test]
fn the_requester_does_not_exceed_its_budget() {
    let service = ServiceDelay {
        max: Duration::from_micros(100),
        seed: 3,
    };
    let lab = Lab::over(None, service).connected(open().max_rd_atomic(2).max_dest_rd_atomic(2));
    let outstanding = Arc::new((AtomicUsize::new(0), AtomicUsize::new(0)));
    let count = Arc::clone(&outstanding);
    lab.wire().tamper(move |frame| {
        match &frame.header.message {
            Message::Untagged(_, Body::ReadRequest(_) | Body::AtomicRequest(_)) => {
                let now = count.0.fetch_add(1, Ordering::SeqCst) + 1;
                count.1.fetch_max(now, Ordering::SeqCst);
            }
            Message::Tagged(Tagged {
                opcode: Opcode::READ_RESPONSE,
                ..
            })
            | Message::Untagged(_, Body::AtomicResponse(_)) => {
                count.0.fetch_sub(1, Ordering::SeqCst);
            }
            _ => {}
        }
        true
    });
    for wr_id in 0..5 {
        lab.a
            .post(wr::Read::new(lab.a.sge(0, 8), lab.b.remote(0)).signaled(2 * wr_id));
        lab.a
            .post(wr::FetchAdd::new(lab.a.sge(8, 8), lab.b.remote(8), 1).signaled(2 * wr_id + 1));
    }
    lab.run();
    assert_eq!(
        lab.a.statuses(),
        (0..10).map(|wr_id| (wr_id, Success)).collect::<Vec<_>>()
    );
    assert_eq!(
        (
            outstanding.1.load(Ordering::SeqCst),
            lab.b.memory.load_u64(8)
        ),
        (2, Ok(5))
    );
}

// covers 1.13 9.45
#[test]
fn the_responder_refuses_requests_above_its_budget() {
    let service = ServiceDelay {
        max: Duration::from_micros(100),
        seed: 3,
    };
    let lab = Lab::over(None, service).connected(open().max_rd_atomic(3).max_dest_rd_atomic(2));
    for wr_id in 1..=3 {
        lab.a
            .post(wr::Read::new(lab.a.sge(0, 8), lab.b.remote(0)).signaled(wr_id));
    }
    lab.settle();
    assert_eq!(
        lab.a.statuses(),
        [(1, WrFlushErr), (2, WrFlushErr), (3, RemInvReqErr)],
        "the third is to blame"
    );
    assert_eq!(lab.a.terminated(), Some((0, 2, 7)));
}

#[test]
fn a_refused_read_fails_but_earlier_requests_do_not() {
    let lab = Lab::stream(None);
    lab.b.receive(10, 0, 8);
    let bad = verbs_api::RemoteAddress::new(0, verbs_api::RKey::new(0x4242_4242));
    let mut batch = Batch::new();
    batch.push(wr::Read::new(lab.a.sge(0, 8), lab.b.remote(0)).signaled(1));
    batch.push(wr::Read::new(lab.a.sge(0, 8), bad).signaled(2));
    batch.push(wr::Read::new(lab.a.sge(0, 8), lab.b.remote(0)).signaled(3));
    batch.push(wr::Send::new(()).signaled(4));
    lab.a.qp.post(&mut batch).unwrap();
    lab.settle();
    let done = lab.a.statuses();
    assert_eq!(
        done[..3],
        [(1, Success), (2, RemAccessErr), (3, WrFlushErr)]
    );
    assert_eq!(
        done[3],
        (4, Success),
        "it was over when it had been handed over"
    );
}

// covers 9.26
#[test]
fn a_damaged_segment_is_not_placed_and_ends_the_stream() {
    let lab = Lab::stream(None);
    lab.wire().tamper(|frame| {
        frame.damaged |= matches!(frame.header.message, Message::Tagged(_));
        true
    });
    lab.a
        .post(wr::Write::new(&b"octets"[..], lab.b.remote(0)).signaled(1));
    lab.settle();
    assert_eq!(lab.b.octets(0, 6), [0; 6]);
    assert_eq!(lab.a.terminated(), Some((2, 0, 2)));
    assert_eq!((lab.a.state(), lab.b.state()), (QpState::Err, QpState::Err));
    assert_eq!(
        (lab.a.statuses(), lab.a.events()),
        (vec![(1, Success)], vec![EventType::QpFatal])
    );
}

/// Changes the frames that arrive. Returns the code with which the receiver ended the connection.
fn tampered(
    post: impl Fn(&Lab),
    tamper: impl FnMut(&mut OwnedFrame<Header>) -> bool + Send + 'static,
) -> (Lab, Option<(u8, u8, u8)>) {
    let lab = Lab::stream(Some(8));
    lab.b.receive(10, 4096, 64);
    lab.b.receive(11, 4096, 64);
    lab.wire().tamper(tamper);
    post(&lab);
    lab.settle();
    let code = lab.a.terminated().or(lab.b.terminated());
    assert_eq!((lab.a.state(), lab.b.state()), (QpState::Err, QpState::Err));
    (lab, code)
}

fn untagged(
    change: impl Fn(&mut Untagged) + Send + 'static,
) -> impl FnMut(&mut OwnedFrame<Header>) -> bool + Send {
    move |frame| {
        if let Message::Untagged(segment, body) = &mut frame.header.message
            && !matches!(body, Body::Terminate)
        {
            change(segment);
        }
        true
    }
}

#[test]
fn order_and_offset_of_untagged_messages_are_checked() {
    let send = |lab: &Lab| {
        lab.a
            .post(wr::Send::new(&b"twenty octets of it."[..]).signaled(1))
    };
    assert_eq!(
        tampered(send, untagged(|segment| segment.msn += 1)).1,
        Some((1, 2, 3))
    );
    assert_eq!(
        tampered(send, untagged(|segment| segment.mo += 1)).1,
        Some((1, 2, 4))
    );
    assert_eq!(
        tampered(send, untagged(|segment| segment.qn = 7)).1,
        Some((1, 2, 1))
    );
    assert_eq!(
        tampered(send, untagged(|segment| segment.qn = 1)).1,
        Some((0, 2, 6))
    );
    let read = |lab: &Lab| {
        lab.a
            .post(wr::Read::new(lab.a.sge(0, 8), lab.b.remote(0)).signaled(1))
    };
    assert_eq!(
        tampered(read, untagged(|segment| segment.qn = 0)).1,
        Some((0, 2, 6))
    );
    assert_eq!(
        tampered(read, untagged(|segment| segment.msn = 5)).1,
        Some((1, 2, 3))
    );
    let lost = tampered(
        send,
        |frame| !matches!(&frame.header.message, Message::Untagged(segment, _) if segment.mo == 8),
    );
    assert_eq!(lost.1, Some((1, 2, 4)));
    assert_eq!(lost.0.b.statuses(), [(10, WrFlushErr), (11, WrFlushErr)]);
    assert_eq!(lost.0.b.events(), [EventType::QpReqErr]);
}

// covers 9.53
#[test]
fn immediate_data_of_another_length_than_8_is_refused() {
    for length in [7, 9] {
        let post = |lab: &Lab| {
            lab.a
                .post(wr::WriteWithImmediate::new((), lab.b.remote(0), [1; 4]).signaled(1))
        };
        let (lab, code) = tampered(post, move |frame| {
            if let Message::Untagged(_, Body::Immediate) = &frame.header.message {
                frame.payload.resize(length, 0);
            }
            true
        });
        assert_eq!(code, Some((0, 2, 7)));
        assert_eq!(lab.b.statuses(), [(10, WrFlushErr), (11, WrFlushErr)]);
    }
}

// covers 9.46 9.47
#[test]
fn a_read_response_must_match_its_request() {
    let read = |lab: &Lab| {
        lab.a
            .post(wr::Read::new(lab.a.sge(0, 24), lab.b.remote(0)).signaled(1))
    };
    let response = |change: fn(&mut Tagged, &mut Vec<u8>)| {
        move |frame: &mut OwnedFrame<Header>| {
            if let Message::Tagged(segment) = &mut frame.header.message {
                change(segment, &mut frame.payload);
            }
            true
        }
    };
    let (lab, code) = tampered(read, response(|segment, _| segment.stag ^= 1));
    assert_eq!(
        (lab.a.statuses(), code),
        (vec![(1, BadRespErr)], Some((1, 1, 0)))
    );
    let (lab, code) = tampered(read, response(|segment, _| segment.to += 1));
    assert_eq!(
        (lab.a.statuses(), code),
        (vec![(1, BadRespErr)], Some((1, 1, 1)))
    );
    let (lab, code) = tampered(read, response(|segment, _| segment.last = true));
    assert_eq!(
        (lab.a.statuses(), code),
        (vec![(1, BadRespErr)], Some((1, 1, 1))),
        "shorter than asked for"
    );
    let (_, code) = tampered(read, response(|segment, _| segment.last = false));
    assert_eq!(code, Some((1, 1, 1)), "longer than asked for");
    let (_, code) = tampered(read, response(|_, payload| payload.push(0)));
    assert_eq!(code, Some((1, 1, 1)));
}

// covers 9.46
#[test]
fn an_unrequested_response_ends_the_connection() {
    let lab = Lab::stream(None);
    lab.wire().tamper(|frame| {
        if let Message::Tagged(segment) = &mut frame.header.message {
            segment.opcode = Opcode::READ_RESPONSE;
        }
        true
    });
    lab.a
        .post(wr::Write::new(&b"octets"[..], lab.b.remote(0)).signaled(1));
    lab.settle();
    assert_eq!(lab.a.terminated(), Some((0, 2, 6)));
    assert_eq!(lab.b.octets(0, 6), [0; 6]);
    assert_eq!(lab.b.events(), [EventType::QpReqErr]);
}

#[test]
fn closing_the_sink_fails_a_read_in_progress() {
    let lab = Lab::over(
        None,
        ServiceDelay {
            max: Duration::from_micros(100),
            seed: 1,
        },
    );
    let lab = lab.connected(open());
    let sink = lab.a.register(crate::iwarp::lab::ALL);
    lab.a
        .post(wr::Read::new(sink.sge(0, 8).unwrap(), lab.b.remote(0)).signaled(1));
    lab.settle();
    sink.deregister().wait().unwrap();
    lab.run();
    assert_eq!(lab.a.statuses(), [(1, LocProtErr)]);
    assert_eq!(lab.b.terminated(), Some((1, 1, 0)));
}

#[test]
fn after_a_reset_a_prefix_of_the_messages_has_arrived() {
    for lost in 0..12 {
        let lab = Lab::stream(Some(8));
        (0..8).for_each(|wr_id| lab.b.receive(wr_id, wr_id as usize * 64, 64));
        let mut left = lost;
        let key = Arc::new(verbs_api::provider::Mutex::new(None));
        let noted = Arc::clone(&key);
        lab.wire().tamper(move |frame| {
            noted.lock().get_or_insert(stream_key(&frame.header));
            if left == 0 {
                // A link that resets a connection does the same: it names the connection only by
                // its key.
                frame.header = reset_header(frame.from, frame.to, stream_key(&frame.header));
                frame.payload.clear();
            } else {
                left -= 1;
            }
            true
        });
        let mut batch = Batch::new();
        (0..4).for_each(|wr_id| batch.push(wr::Send::new(lab.a.sge(0, 20)).signaled(wr_id)));
        batch.push(wr::Read::new(lab.a.sge(0, 8), lab.b.remote(0)).signaled(4));
        lab.a.qp.post(&mut batch).unwrap();
        lab.settle();
        let (from, to) = (LinkAddress::InProcess(2), LinkAddress::InProcess(1));
        let header = reset_header(from, to, key.lock().unwrap());
        lab.wire().inject(OwnedFrame {
            from,
            to,
            header,
            payload: Vec::new(),
            damaged: false,
        });
        lab.settle();
        assert_eq!(lab.b.state(), QpState::Err, "after {lost}");
        let received = lab.b.statuses();
        let whole = lost / 3;
        let expected =
            (0..8).map(|wr_id| (wr_id, if wr_id < whole { Success } else { WrFlushErr }));
        assert_eq!(received, expected.collect::<Vec<_>>(), "after {lost}");
        let sent = lab.a.statuses();
        assert_eq!(
            sent,
            [
                (0, Success),
                (1, Success),
                (2, Success),
                (3, Success),
                (4, WrFlushErr)
            ]
        );
    }
}

#[test]
fn a_reset_by_connection_key_reaches_both_ends() {
    let lab = Lab::stream(None);
    lab.a.receive(1, 0, 8);
    lab.b.receive(2, 0, 8);
    lab.a.post(wr::Write::new(&b"x"[..], lab.b.remote(0)));
    let key = Arc::new(verbs_api::provider::Mutex::new(None));
    let noted = Arc::clone(&key);
    lab.wire().tamper(move |frame| {
        *noted.lock() = Some(stream_key(&frame.header));
        true
    });
    lab.a.post(wr::Write::new(&b"x"[..], lab.b.remote(0)));
    lab.settle();
    let key = key.lock().unwrap();
    for (from, to) in [(1, 2), (2, 1)] {
        let (from, to) = (LinkAddress::InProcess(from), LinkAddress::InProcess(to));
        let header = reset_header(from, to, key);
        lab.wire().inject(OwnedFrame {
            from,
            to,
            header,
            payload: Vec::new(),
            damaged: false,
        });
    }
    lab.settle();
    assert_eq!(
        (lab.a.statuses(), lab.b.statuses()),
        (vec![(1, WrFlushErr)], vec![(2, WrFlushErr)])
    );
}

#[test]
fn frames_of_an_earlier_connection_are_ignored() {
    let lab = Lab::stream(None);
    lab.wire().tamper(|_| true);
    let late = Arc::new(verbs_api::provider::Mutex::new(None));
    let kept = Arc::clone(&late);
    lab.wire().tamper(move |frame| {
        kept.lock().get_or_insert(frame.clone());
        true
    });
    lab.a.post(wr::Write::new(&b"late"[..], lab.b.remote(0)));
    lab.settle();
    lab.b.fill(0, &[0; 4]);
    let reset = verbs_api::qp::QpAttributes::new().qp_state(QpState::Reset);
    lab.a.qp.modify(reset).wait().unwrap();
    lab.settle();
    lab.b.qp.modify(reset).wait().unwrap();
    let lab = lab.connected(open());
    lab.wire().inject(late.lock().clone().unwrap());
    lab.settle();
    assert_eq!(
        (lab.b.octets(0, 4), lab.b.state()),
        (vec![0; 4], QpState::Rts)
    );
}

#[test]
fn atomics_run_once_while_their_answers_wait_for_room() {
    let lab = Lab::stream(None);
    lab.wire().fill(Some(LinkAddress::InProcess(2)));
    let remote = lab.b.remote(0);
    for id in 1..=3 {
        let add = wr::FetchAdd::new(lab.a.sge(8 * id as usize, 8), remote, 1);
        lab.a.post(add.signaled(id));
    }
    lab.run();
    let is_answer =
        |message: &Message| matches!(message, Message::Untagged(_, Body::AtomicResponse(_)));
    assert!(!lab.wire().seen().iter().any(is_answer));
    assert_eq!(lab.a.statuses(), []);
    lab.wire().fill(None);
    // The arrival of the next request serves them.
    lab.a
        .post(wr::Read::new(lab.a.sge(64, 8), remote).signaled(4));
    lab.run();
    assert_eq!(lab.a.statuses(), [1, 2, 3, 4].map(|id| (id, Success)));
    let words = [1, 2, 3, 8].map(|word| lab.a.octets(8 * word, 8));
    assert_eq!(words, [0, 1, 2, 3].map(|word: u64| word.to_ne_bytes()));
}
