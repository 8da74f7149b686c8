//! The behaviour of a connector, whatever carries its messages.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use conformance::Flavour;
use polyverbs::qp::{QpAttributes, QpState};
use polyverbs::{
    Access, Completion, PathOptions, Qp, RKey, RemoteAddress, VerbError, WcStatus,
    wr::{self, ReceiveRequest},
};
use polyverbs_connection::{
    ConnectError, ConnectionOptions, PrivateDataLimits, ReadLimits, Refusal, flush,
};
use verbs_api::provider::Mutex;

use crate::networks::ends::{Ends, on, on_each, on_sockets, on_virtual};
use crate::rig::state;

/// Attribute id of an RTU.
const RTU: u16 = 0x14;

// covers 7.70
#[test]
fn connect_waits_for_the_accept_and_accept_for_the_complete() {
    on_each(|ends| {
        let (near, far) = (ends.near_qp(), ends.far_qp());
        let (asked, incoming) = ends.ask(&near);
        ends.settle();
        assert!(!asked.is_done());
        let accepted = ends.accept(incoming, &far);
        let pending = ends.end(asked);
        ends.settle();
        assert!(!accepted.is_done());
        assert_eq!(state(&near), QpState::Reset);
        let _near = ends.end(pending.complete());
        let _far = ends.end(accepted);
        assert_eq!((state(&near), state(&far)), (QpState::Rts, QpState::Rts));
        ends.talk(&near, &far);
    });
}

// covers 7.70
#[test]
fn receives_may_be_posted_before_the_connection_exists() {
    on_each(|ends| {
        let (near, far) = (ends.near_qp(), ends.far_qp());
        ends.rig.finish(far.init(PathOptions::new())).unwrap();
        ends.far.post_receive(&far, 1);
        let _both = ends.connected(&near, &far);
        near.post_one(wr::Send::new(&b"hello"[..])).unwrap();
        let done = ends.take(&ends.far, 1);
        assert_eq!((done[0].wr_id, done[0].status), (1, WcStatus::Success));
    });
}

#[test]
fn a_dropped_connect_leaves_its_queue_pair_as_it_was() {
    on_each(|ends| {
        let (near, far) = (ends.near_qp(), ends.far_qp());
        let (to, options) = (ends.listener.address(), ConnectionOptions::new());
        let connecting = ends.near.connector.connect(&near, to, options);
        let incoming = ends.end(ends.listener.next());
        drop(connecting);
        let error = ends.error(ends.accept(incoming, &far));
        let is_told = matches!(error, ConnectError::Aborted | ConnectError::Refused { .. });
        assert!(is_told, "{error}");
        assert_eq!(state(&near), QpState::Reset);
    });
}

// covers 7.71
#[test]
fn an_accept_ends_as_the_peer_decides() {
    on_each(|ends| {
        let (near, far) = (ends.near_qp(), ends.far_qp());
        let (asked, incoming) = ends.ask(&near);
        let accepted = ends.accept(incoming, &far);
        drop(ends.end(asked));
        let error = ends.error(accepted);
        let is_told = matches!(error, ConnectError::Aborted | ConnectError::Refused { .. });
        assert!(is_told, "{error}");
        assert_eq!((state(&near), state(&far)), (QpState::Reset, QpState::Err));
        // No answer arrives at all. The test takes new queue pairs, because packets of the aborted one might still be in transit.
        let (near, far) = (ends.near_qp(), ends.far_qp());
        let (asked, incoming) = ends.ask(&near);
        let accepted = ends.accept(incoming, &far);
        let pending = ends.end(asked);
        ends.hold();
        ends.expire();
        assert_eq!(ends.error(accepted), ConnectError::TimedOut);
        ends.release();
        drop(pending);
    });
}

// covers 7.71
#[test]
fn a_request_of_a_peer_that_gave_up_cannot_be_accepted() {
    on_virtual(|ends| {
        let (near, far) = (ends.near_qp(), ends.far_qp());
        let (asked, incoming) = ends.ask(&near);
        ends.expire();
        assert_eq!(ends.error(asked), ConnectError::TimedOut);
        let accepted = ends.accept(incoming, &far);
        assert_eq!(ends.error(accepted), ConnectError::Aborted);
    });
}

// covers 5.02
#[test]
fn a_panicking_handler_does_not_prevent_other_connections() {
    on_each(|ends| {
        let (near, far) = (ends.near_qp(), ends.far_qp());
        let (asked, incoming) = ends.ask(&near);
        let ran = Arc::new(AtomicBool::new(false));
        let runs = Arc::clone(&ran);
        asked.on_done(move |_| {
            runs.store(true, Ordering::SeqCst);
            panic!("a handler that a test has panic");
        });
        // The panic reaches the thread that runs the handler: the thread that accepts in one process, or the thread that
        // polls.
        let accepted = catch_unwind(AssertUnwindSafe(|| ends.accept(incoming, &far)));
        test_kit::waiting::until(|| {
            let _ = catch_unwind(AssertUnwindSafe(|| {
                ends.rig.step();
                ends.rig.near.steer().progress();
            }));
            ran.load(Ordering::SeqCst)
        });
        drop(accepted);
        let (near, far) = (ends.near_qp(), ends.far_qp());
        let _both = ends.connected(&near, &far);
        ends.talk(&near, &far);
    });
}

// covers 7.72 7.73
#[test]
fn either_side_may_reject_with_a_reason() {
    on_each(|ends| {
        let (near, far) = (ends.near_qp(), ends.far_qp());
        let (asked, incoming) = ends.ask(&near);
        incoming.reject(b"not today").unwrap();
        let said = |error| match error {
            ConnectError::Refused { private_data, .. } => private_data,
            other => panic!("{other}"),
        };
        assert!(said(ends.error(asked)).starts_with(b"not today"));
        // The queue pair is unchanged.
        assert_eq!(state(&near), QpState::Reset);
        if ends.is_stream() {
            let _both = ends.connected(&near, &far);
            return ends.talk(&near, &far);
        }
        // Only InfiniBand has a message with which the active side rejects the reply.
        let (asked, incoming) = ends.ask(&near);
        let accepted = ends.accept(incoming, &far);
        ends.end(asked).reject(b"I have changed my mind").unwrap();
        assert!(said(ends.error(accepted)).starts_with(b"I have changed my mind"));
        // The test takes new queue pairs, because packets of the rejected one might still be in transit.
        let (near, far) = (ends.near_qp(), ends.far_qp());
        let _both = ends.connected(&near, &far);
        ends.talk(&near, &far);
        assert_eq!(ends.error(ends.request(&near)), ConnectError::Connected);
    });
}

// covers 7.74
#[test]
fn a_connection_whose_accept_timed_out_cannot_be_completed() {
    on_each(|ends| {
        let (near, far) = (ends.near_qp(), ends.far_qp());
        let (asked, incoming) = ends.ask(&near);
        let accepted = ends.accept(incoming, &far);
        let pending = ends.end(asked);
        // The peer stops waiting, and reports that.
        ends.expire();
        assert_eq!(ends.error(accepted), ConnectError::TimedOut);
        ends.wait_for_ends_heard(1);
        assert_eq!(ends.error(pending.complete()), ConnectError::Aborted);
        assert_eq!(state(&near), QpState::Reset);
    });
}

// covers 7.56 7.75
#[test]
fn each_side_reports_read_limits_clamped_to_the_other() {
    on_each(|ends| {
        let (near, far) = (ends.near_qp(), ends.far_qp());
        let asked = ends.request_with(&near, ConnectionOptions::new().reads(255, 255));
        let incoming = ends.end(ends.listener.next());
        let most = |limit: u32| limit.min(255) as u8;
        let limits = ends.rig.near.context.limits();
        assert_eq!(
            incoming.offered_reads().outbound,
            most(limits.max_qp_rd_atom)
        );
        let options = ConnectionOptions::new().reads(4, 2);
        let accepted = incoming.accept(&far, options);
        let pending = ends.end(asked);
        let expected = ReadLimits {
            inbound: 2,
            outbound: 4,
        };
        assert_eq!(pending.reads(), expected);
        let _near = ends.end(pending.complete());
        let _far = ends.end(accepted);
        let depths = |qp: &polyverbs::Qp| {
            let attributes = qp.query().unwrap().attributes;
            (attributes.max_dest_rd_atomic, attributes.max_rd_atomic)
        };
        assert_eq!(depths(&near), (Some(2), Some(4)));
        assert_eq!(depths(&far), (Some(4), Some(2)));
    });
}

#[test]
fn private_data_is_padded_to_the_same_length_on_every_transport() {
    on_each(|ends| {
        let (near, far) = (ends.near_qp(), ends.far_qp());
        let asked = ends.request_with(&near, ConnectionOptions::new().private_data(b"may I"));
        let incoming = ends.end(ends.listener.next());
        let mut expected = [0; 56];
        expected[..5].copy_from_slice(b"may I");
        assert_eq!(incoming.private_data(), expected);
        incoming.reject(b"not today").unwrap();
        let mut expected = [0; 148];
        expected[..9].copy_from_slice(b"not today");
        let private_data = expected.to_vec();
        let reason = ends.rejection();
        let refused = ConnectError::Refused {
            reason,
            private_data,
        };
        assert_eq!(ends.error(asked), refused);
        let asked = ends.request_with(&near, ConnectionOptions::new());
        let incoming = ends.end(ends.listener.next());
        assert_eq!(incoming.private_data(), [0; 56]);
        let options = ConnectionOptions::new().private_data(b"you may");
        let _accepted = incoming.accept(&far, options);
        let mut expected = [0; 196];
        expected[..7].copy_from_slice(b"you may");
        assert_eq!(ends.end(asked).private_data(), expected);
    });
}

// covers 7.52
#[test]
fn private_data_has_the_limits_that_the_connector_reports() {
    on_each(|ends| {
        let (near, far) = (ends.near_qp(), ends.far_qp());
        let max = ends.near.connector.max_private_data();
        let least = PrivateDataLimits::INFINIBAND;
        assert_eq!((least.connect, least.reject), (56, 148));
        assert!(
            max.connect >= least.connect
                && max.accept >= least.accept
                && max.reject >= least.reject
        );
        let says = |length| ConnectionOptions::new().private_data(&vec![7; length]);
        let too_long = |max| ConnectError::PrivateData { len: max + 1, max };

        let asked = ends.request_with(&near, says(max.connect + 1));
        assert_eq!(ends.error(asked), too_long(max.connect));
        let asked = ends.request_with(&near, says(max.connect));
        let incoming = ends.end(ends.listener.next());
        assert_eq!(incoming.private_data(), vec![7; max.connect]);
        let refused = incoming.reject(&vec![7; max.reject + 1]);
        assert_eq!(refused, Err(too_long(max.reject)));
        assert!(matches!(ends.error(asked), ConnectError::Refused { .. }));

        let (asked, incoming) = ends.ask(&near);
        incoming.reject(&vec![7; max.reject]).unwrap();
        let private_data = vec![7; max.reject];
        let reason = ends.rejection();
        let refused = ConnectError::Refused {
            reason,
            private_data,
        };
        assert_eq!(ends.error(asked), refused);

        let (asked, incoming) = ends.ask(&near);
        let accepted = incoming.accept(&far, says(max.accept + 1));
        assert_eq!(ends.error(accepted), too_long(max.accept));
        assert!(matches!(ends.error(asked), ConnectError::Refused { .. }));
        let (asked, incoming) = ends.ask(&near);
        let _accepted = incoming.accept(&far, says(max.accept));
        assert_eq!(ends.end(asked).private_data(), vec![7; max.accept]);
    });
}

// covers 7.76
#[test]
fn a_short_buffer_is_filled_and_reported_as_too_short() {
    on_each(|ends| {
        let (near, far) = (ends.near_qp(), ends.far_qp());
        let asked = ends.request_with(&near, ConnectionOptions::new().private_data(b"may I"));
        let incoming = ends.end(ends.listener.next());
        let whole = incoming.private_data().len();
        let mut small = [0xa5; 3];
        let error = incoming.copy_private_data(&mut small).unwrap_err();
        assert_eq!(error, ConnectError::PrivateData { len: whole, max: 3 });
        assert_eq!(&small, b"may");
        let mut large = [0xa5; 600];
        assert_eq!(incoming.copy_private_data(&mut large), Ok(whole));
        assert!(large.starts_with(b"may I"));
        assert!(large[whole..].iter().all(|byte| *byte == 0xa5));
        // Other queries leave the buffer unchanged.
        incoming.offered_reads();
        assert!(large.starts_with(b"may I"));
        let options = ConnectionOptions::new().private_data(b"you may");
        let accepted = incoming.accept(&far, options);
        let pending = ends.end(asked);
        assert!(pending.copy_private_data(&mut small).is_err());
        assert_eq!(&small, b"you");
        let _near = ends.end(pending.complete());
        ends.end(accepted);
    });
}

// covers 7.77 7.78
#[test]
fn only_the_side_that_disconnects_flushes() {
    on_each(|ends| {
        let (near, far) = (ends.near_qp(), ends.far_qp());
        let (at_near, at_far) = ends.connected(&near, &far);
        ends.far.post_receive(&far, 1);
        ends.far.post_receive(&far, 2);
        let (first, second) = (at_far.disconnected(), at_far.disconnected());
        ends.settle();
        assert!(!first.is_done() && !second.is_done());
        ends.end(at_near.disconnect());
        ends.end(first);
        ends.end(second);
        assert_eq!(state(&near), QpState::Err);
        ends.nothing_on(&ends.far);
        assert_eq!(state(&far), QpState::Rts);
        ends.end(at_far.disconnect());
        let done = ends.take(&ends.far, 2);
        let ids: Vec<_> = done.iter().map(|done| done.wr_id).collect();
        assert_eq!(ids, [1, 2]);
        assert!(done.iter().all(|done| done.status == WcStatus::WrFlushErr));
        ends.nothing_on(&ends.far);
        // A later query still reports the end, and a second disconnect has no other effect.
        ends.end(at_far.disconnected());
        ends.end(at_far.disconnect());
    });
}

// covers 7.79
#[test]
fn a_flush_completes_the_requests_of_one_queue_pair_in_order() {
    on_each(|ends| {
        let qps: Vec<_> = (0..2).map(|_| (ends.near_qp(), ends.far_qp())).collect();
        let _connections: Vec<_> = qps
            .iter()
            .map(|(near, far)| ends.connected(near, far))
            .collect();
        // A flush of a queue pair without requests completes nothing.
        ends.end(flush(&ends.far_qp()));
        ends.nothing_on(&ends.far);
        for wr_id in [1, 2, 3] {
            ends.far.post_receive(&qps[0].1, wr_id);
        }
        ends.far.post_receive(&qps[1].1, 4);
        ends.end(flush(&qps[0].1));
        let ids: Vec<_> = ends
            .take(&ends.far, 3)
            .iter()
            .map(|done| done.wr_id)
            .collect();
        assert_eq!(ids, [1, 2, 3]);
        ends.nothing_on(&ends.far);
        assert_eq!(state(&qps[1].1), QpState::Rts);
    });
}

// covers 7.07
#[test]
fn traffic_before_the_rtu_establishes_the_connection() {
    on(&[Flavour::IbUdp], |ends: &Ends| {
        ends.gate().lose(RTU);
        let (near, far) = (ends.near_qp(), ends.far_qp());
        let (asked, incoming) = ends.ask(&near);
        let accepted = ends.accept(incoming, &far);
        let at_near = ends.end(ends.end(asked).complete());
        ends.far.post_receive(&far, 1);
        ends.settle();
        assert!(!accepted.is_done());
        // The clock of the connection managers stands still, so no REP is repeated.
        near.post_one(wr::Send::new(&b"I am here"[..]).signaled(1))
            .unwrap();
        let at_far = ends.end(accepted);
        assert_eq!(ends.take(&ends.far, 1)[0].wr_id, 1);
        assert_eq!(ends.gate().sent(RTU), 1);
        // The connection is a complete one.
        let gone = at_far.disconnected();
        ends.end(at_near.disconnect());
        ends.end(gone);
    });
}

// covers 7.60
#[test]
fn a_future_that_is_dropped_loses_no_request() {
    on_each(|ends| {
        drop(ends.listener.next());
        let abandoned = ends.listener.next();
        let (near, far) = (ends.near_qp(), ends.far_qp());
        let asked = ends.request(&near);
        let is_over = ends.rig.until("its end", || abandoned.is_done());
        is_over.unwrap();
        drop(abandoned);
        let incoming = ends.end(ends.listener.next());
        let accepted = ends.accept(incoming, &far);
        let _near = ends.end(ends.end(asked).complete());
        let _far = ends.end(accepted);
        ends.talk(&near, &far);
    });
}

// covers 7.71 7.50
#[test]
fn a_request_that_no_device_answers_times_out() {
    on(&[Flavour::IbUdp], |ends: &Ends| {
        let nowhere = "127.31.0.1:12".parse().unwrap();
        let (connector, near) = (&ends.near.connector, ends.near_qp());
        let asked = connector.connect(&near, nowhere, ConnectionOptions::new());
        ends.settle();
        assert!(!asked.is_done());
        ends.expire();
        assert_eq!(ends.error(asked), ConnectError::TimedOut);
    });
}

#[test]
fn a_slow_program_is_waited_for() {
    on_sockets(|ends| {
        let (near, far) = (ends.near_qp(), ends.far_qp());
        let (asked, incoming) = ends.ask(&near);
        // InfiniBand's manager answers repeated requests for a program that has not answered yet, and the peer waits longer.
        let time = if ends.is_stream() { 9 } else { 20 };
        ends.run_for(Duration::from_secs(time));
        assert!(!asked.is_done());
        let accepted = ends.accept(incoming, &far);
        let _near = ends.end(ends.end(asked).complete());
        let _far = ends.end(accepted);
        ends.talk(&near, &far);
    });
}

// covers 7.57
#[test]
fn rnr_timer_code_0_delays_655_milliseconds() {
    on(&[Flavour::IbFramed], |ends: &Ends| {
        let (near, far) = (ends.near_qp(), ends.far_qp());
        let (asked, incoming) = ends.ask(&near);
        let longest = ConnectionOptions::new().path(PathOptions::new().min_rnr_timer(0));
        let accepted = incoming.accept(&far, longest);
        let _near = ends.end(ends.end(asked).complete());
        let _far = ends.end(accepted);
        let early = wr::Send::new(&b"early"[..]).signaled(1);
        near.post_one(early).unwrap();
        let is_refused = || near.counters().rnr_naks == 1;
        ends.rig.until("an RNR NAK", is_refused).unwrap();
        ends.far.post_receive(&far, 1);
        ends.rig.run_for(Duration::from_millis(655));
        assert!(ends.take(&ends.near, 0).is_empty());
        ends.rig.run_for(Duration::from_millis(1));
        let mut slots = [Completion::default()];
        let done = ends.near.cq.poll(&mut slots).unwrap();
        assert_eq!(done[0].status, WcStatus::Success);
    });
}

// covers 7.60
#[test]
fn an_accepted_connection_precedes_the_next_request() {
    // Over sockets the order of the two messages is not deterministic.
    on_virtual(|ends| {
        let (near, far, next_qp) = (ends.near_qp(), ends.far_qp(), ends.near_qp());
        let (asked, incoming) = ends.ask(&near);
        let (connector, to) = (ends.near.connector.clone(), ends.listener.address());
        asked.on_done(move |accepted| {
            accepted.unwrap().complete().on_done(move |connection| {
                std::mem::forget(connection);
                let options = ConnectionOptions::new();
                connector.connect(&next_qp, to, options).on_done(|_| {});
            });
        });
        let order = Arc::new(Mutex::new(Vec::new()));
        let (first, second) = (Arc::clone(&order), Arc::clone(&order));
        let next = ends.listener.next();
        next.on_done(move |_| second.lock().push("the next request"));
        let accepted = incoming.accept_then(&far, ConnectionOptions::new(), move |_| {
            first.lock().push("established");
        });
        accepted.unwrap();
        ends.settle();
        let order = order.lock();
        assert_eq!(*order, ["established", "the next request"]);
    });
}

#[test]
fn one_call_ends_all_connections_of_a_connector() {
    on_each(|ends| {
        let pair = || (ends.near_qp(), ends.far_qp());
        let (first, second, third) = (pair(), pair(), pair());
        let connections = [&first, &second].map(|(near, far)| ends.connected(near, far));
        // The program has dropped a third connection, and disconnects the first one itself at the same time.
        drop(ends.connected(&third.0, &third.1));
        let own = connections[0].1.disconnect();
        ends.end(ends.far.connector.end_all());
        ends.end(own);
        for (at_near, at_far) in &connections {
            ends.end(at_near.disconnected());
            ends.end(at_far.disconnected());
        }
        assert_eq!(
            state(&second.1),
            QpState::Rts,
            "the queue pair is not modified"
        );
        // There is none left.
        ends.end(ends.far.connector.end_all());
    });
}

#[test]
fn calls_that_the_peer_does_not_answer_can_be_given_up() {
    on(&[Flavour::Ib, Flavour::IbUdp], |ends| {
        let (near, far, other) = (ends.near_qp(), ends.far_qp(), ends.near_qp());
        let (at_near, at_far) = ends.connected(&near, &far);
        ends.hold();
        let (ended, asked) = (at_near.end(), ends.request(&other));
        ends.near.connector.abandon_all();
        let canceled = ConnectError::Verb(VerbError::Canceled);
        assert_eq!(ends.error(ended), canceled);
        assert_eq!(ends.error(asked), canceled);
        ends.release();
        ends.end(at_far.disconnected());
    });
}

// covers 7.47 7.63 7.84
#[test]
fn a_listener_has_its_address_alone_and_refuses_when_it_goes() {
    on(&[Flavour::Ib], |ends| {
        let (connector, at) = (&ends.near.connector, ends.listener.address());
        let again = connector.listen(at, 0);
        assert!(matches!(again, Err(ConnectError::AddressInUse { address, .. }) if address == at));
        assert!(at.port() >= 49152);

        let small = connector.listen("10.0.0.2:5".parse().unwrap(), 1).unwrap();
        let at = small.address();
        let (first, second) = (ends.near_qp(), ends.near_qp());
        let ask = |qp| connector.connect(qp, at, ConnectionOptions::new());
        let (waits, refused) = (ask(&first), ask(&second));
        let refused_because = |reason| ConnectError::Refused {
            reason,
            private_data: Vec::new(),
        };
        let full = refused_because(Refusal::BacklogFull);
        assert_eq!(ends.error(refused), full);
        assert!(!waits.is_done());
        drop(small);
        let gone = refused_because(Refusal::NoListener);
        assert_eq!(ends.error(waits), gone);
        assert_eq!(ends.error(ask(&first)), gone);
    });
}

// concerns 7.78
#[test]
fn a_queue_pair_that_was_reset_may_connect_again() {
    on(&[Flavour::Ib], |ends| {
        let (near, far) = (ends.near_qp(), ends.far_qp());
        for _ in 0..3 {
            let (at_near, at_far) = ends.connected(&near, &far);
            ends.end(at_near.disconnect());
            ends.end(at_far.disconnect());
            for qp in [&near, &far] {
                let reset = QpAttributes::new().qp_state(QpState::Reset);
                ends.rig.finish(qp.modify(reset)).unwrap();
            }
        }
    });
}

// covers 7.43
#[test]
fn a_connection_request_is_reported_and_answered_once() {
    on_virtual(|ends| {
        let (near, far, other) = (ends.near_qp(), ends.far_qp(), ends.near_qp());
        let (at_near, at_far) = ends.connected(&near, &far);
        // Neither queue pair can serve another connection.
        assert_eq!(ends.error(ends.request(&near)), ConnectError::Connected);
        let (asked, incoming) = ends.ask(&other);
        let accepted = ends.accept(incoming, &far);
        assert_eq!(ends.error(accepted), ConnectError::Connected);
        assert!(matches!(ends.error(asked), ConnectError::Refused { .. }));
        assert_eq!((state(&near), state(&far)), (QpState::Rts, QpState::Rts));
        // The connection ends once, and a second disconnect has no other effect.
        ends.end(at_near.disconnect());
        ends.end(at_far.disconnected());
        ends.end(at_near.disconnect());
        ends.end(at_far.disconnect());
        let _again = ends.connected(&other, &ends.far_qp());
    });
}

// covers 7.44
#[test]
fn a_pending_connect_or_accept_blocks_no_other_call() {
    on_virtual(|ends| {
        // A queue pair is destroyed, and its connect fails: the listener sees no error.
        let near = ends.near_qp();
        let (asked, incoming) = ends.ask(&near);
        ends.rig.finish_destroy(near.destroy()).unwrap();
        incoming.reject(b"").unwrap();
        assert!(matches!(ends.error(asked), ConnectError::Refused { .. }));
        // The queue pair of the passive side is destroyed during an accept.
        let (near, far) = (ends.near_qp(), ends.far_qp());
        let (asked, incoming) = ends.ask(&near);
        let accepted = ends.accept(incoming, &far);
        ends.rig.finish_destroy(far.destroy()).unwrap();
        drop(ends.end(asked));
        assert_eq!(ends.error(accepted), ConnectError::Aborted);
        ends.rig.finish_destroy(near.destroy()).unwrap();
    });
}

// covers 7.46
#[test]
fn a_failed_accept_refuses_the_peer_and_reports_no_event() {
    on_virtual(|ends| {
        let (near, far) = (ends.near_qp(), ends.far_qp());
        let (asked, incoming) = ends.ask(&near);
        let options = ConnectionOptions::new().private_data(&[0; 1000]);
        let failed = ends.error(incoming.accept(&far, options));
        let is_too_long = matches!(failed, ConnectError::PrivateData { len: 1000, .. });
        assert!(is_too_long, "{failed}");
        assert!(matches!(ends.error(asked), ConnectError::Refused { .. }));
        let states = (state(&near), state(&far));
        assert_eq!(states, (QpState::Reset, QpState::Reset));
        let next = ends.listener.next();
        assert!(!next.is_done());
        let asked = ends.request(&near);
        let accepted = ends.accept(ends.end(next), &far);
        let _near = ends.end(ends.end(asked).complete());
        let _far = ends.end(accepted);
    });
}

// covers 8.11
#[test]
fn a_dropped_request_is_refused_and_the_next_is_served() {
    on_virtual(|ends| {
        let (near, far) = (ends.near_qp(), ends.far_qp());
        let (asked, incoming) = ends.ask(&near);
        drop(incoming);
        assert!(matches!(ends.error(asked), ConnectError::Refused { .. }));
        let next = ends.listener.next();
        assert!(!next.is_done(), "the dropped request was reported twice");
        let asked = ends.request(&near);
        let accepted = ends.accept(ends.end(next), &far);
        let _near = ends.end(ends.end(asked).complete());
        let _far = ends.end(accepted);
    });
}

// covers 7.83
#[test]
fn each_failure_has_its_status() {
    on(&[Flavour::Ib], |ends| {
        let statuses = |request: &dyn Fn(&Qp), receives: bool| {
            let (near, far) = (ends.near_qp(), ends.far_qp());
            let path = PathOptions::new().rnr_retry(0).access(Access::REMOTE_WRITE);
            let options = ConnectionOptions::new().path(path);
            let asked = ends.request_with(&near, options.clone());
            let accepted = ends.end(ends.listener.next()).accept(&far, options);
            let _near = ends.end(ends.end(asked).complete());
            let _far = ends.end(accepted);
            if receives {
                let room = ends.far.mr.sge(0, 4).unwrap();
                far.post_receive(ReceiveRequest::new(9, room)).unwrap();
            }
            request(&near);
            let mut done = ends.take(&ends.near, 1);
            done.extend(ends.take(&ends.far, usize::from(receives)));
            done.iter().map(|done| done.status).collect::<Vec<_>>()
        };
        let data = ends.near.mr.sge(0, 64).unwrap();
        let outside = data.at(0, 64);
        let nowhere = RemoteAddress::new(0, RKey::new(0xbad));
        let send = |qp: &Qp| qp.post_one(wr::Send::new(data).signaled(1)).unwrap();
        let unread = |qp: &Qp| qp.post_one(wr::Send::new(outside).signaled(1)).unwrap();
        let write = |qp: &Qp| {
            let write = wr::Write::new(data, nowhere).signaled(1);
            qp.post_one(write).unwrap();
        };
        assert_eq!(
            statuses(&send, true),
            [WcStatus::RemInvReqErr, WcStatus::LocLenErr]
        );
        assert_eq!(statuses(&send, false), [WcStatus::RnrRetryExcErr]);
        assert_eq!(statuses(&write, false), [WcStatus::RemAccessErr]);
        assert_eq!(statuses(&unread, false), [WcStatus::LocProtErr]);
    });
}
