//! Loss of the queue pair, the peer or the device between the phases of one request.

use std::sync::Arc;
use std::time::Duration;

use conformance::{Flavour, Rig};
use polyverbs::qp::QpState;
use polyverbs::{DestroyError, Qp, Started, VerbError};
use polyverbs_connection::{Accepted, ConnectError, Connection, ConnectionOptions, Phase};

use crate::networks::ends::{Ends, on, on_each, on_sockets, on_virtual};
use crate::rig::{End, state};

/// How long each control verb of a slow device takes.
const SLOW: Duration = Duration::from_millis(60);
/// A latency longer than a test runs, so that a control verb does not end.
const NEVER: Duration = Duration::from_secs(3600);

fn destroy(ends: &Ends, qp: Qp) {
    ends.rig.finish_destroy(qp.destroy()).unwrap();
}

fn is_of_queue_pair(error: &ConnectError) -> bool {
    let phase = Phase::QueuePair;
    matches!(error, ConnectError::Phase { phase: found, .. } if *found == phase)
}

fn is_removal(error: &ConnectError) -> bool {
    matches!(
        error,
        ConnectError::Verb(VerbError::DeviceRemoved)
            | ConnectError::Phase {
                error: VerbError::DeviceRemoved,
                ..
            }
    )
}

/// Whether the error says that the peer is gone: it refused, gave up, or did not answer in time.
fn is_gone(error: &ConnectError) -> bool {
    matches!(
        error,
        ConnectError::Aborted | ConnectError::Refused { .. } | ConnectError::TimedOut
    )
}

// covers 5.13 7.73
#[test]
fn a_queue_pair_destroyed_during_a_connect_fails_the_next_phase() {
    on_each(|ends| {
        let (near, far) = (ends.near_qp(), ends.far_qp());
        let (asked, incoming) = ends.ask(&near);
        destroy(ends, near);
        let accepted = ends.accept(incoming, &far);
        let pending = ends.end(asked);
        let error = ends.error(pending.complete());
        // The far side cannot adopt the stream either, and its failure may be reported first.
        let is_told = ends.is_stream() && is_gone(&error);
        assert!(is_of_queue_pair(&error) || is_told, "{error}");
        let error = ends.error(accepted);
        assert!(is_gone(&error) || is_told, "{error}");
    });
}

// covers 5.13 7.71
#[test]
fn a_qp_destroyed_during_an_accept_ends_both_sides() {
    on_each(|ends| {
        let (near, far) = (ends.near_qp(), ends.far_qp());
        let (asked, incoming) = ends.ask(&near);
        let accepted = ends.accept(incoming, &far);
        let pending = ends.end(asked);
        destroy(ends, far);
        // The complete may yield a connection that ends at once, or fail.
        let completed = ends.rig.outcome(pending.complete()).unwrap();
        let error = ends.error(accepted);
        assert!(is_of_queue_pair(&error) || is_gone(&error), "{error}");
        match completed {
            Ok(connection) => ends.end(connection.disconnected()),
            Err(error) => assert!(is_of_queue_pair(&error) || is_gone(&error), "{error}"),
        }
    });
}

/// Checks that the queue pair cannot be destroyed now, and returns it.
fn busy(ends: &Ends, qp: Qp) -> Qp {
    match ends.rig.outcome(qp.destroy()).unwrap() {
        Err(DestroyError::Busy { object, .. }) => object,
        Err(other) => panic!("{other}"),
        Ok(()) => panic!("it has gone"),
    }
}

// covers 5.13
#[test]
fn a_queue_pair_is_not_destroyed_while_it_is_brought_up() {
    on_virtual(|ends| {
        let (near, far) = (ends.near_qp(), ends.far_qp());
        let (asked, incoming) = ends.ask(&near);
        ends.rig.far.steer().set_latency(SLOW);
        let accepted = ends.accept(incoming, &far);
        let far = busy(ends, far);
        ends.rig.far.steer().set_latency(Duration::ZERO);
        let pending = ends.end(asked);
        ends.rig.near.steer().set_latency(SLOW);
        let completed = pending.complete();
        let near = busy(ends, near);
        ends.rig.near.steer().set_latency(Duration::ZERO);
        let _both = (ends.end(completed), ends.end(accepted));
        ends.talk(&near, &far);
    });
}

// covers 5.13
#[test]
fn queue_pairs_that_come_up_over_sockets_are_not_destroyed() {
    on_sockets(|ends| {
        let qps = [ends.near_qp(), ends.near_qp()];
        let [first, second] = [ends.far_qp(), ends.far_qp()];
        let (asked, incoming) = ends.ask(&qps[0]);
        let accepted = ends.accept(incoming, &first);
        let pending = ends.end(asked);
        let (asked_too, incoming) = ends.ask(&qps[1]);
        let [near, _] = qps;
        ends.rig.near.steer().set_latency(NEVER);
        let completed = pending.complete();
        let _near = busy(ends, near);
        ends.rig.far.steer().set_latency(NEVER);
        let accepted_too = ends.accept(incoming, &second);
        let _far = busy(ends, second);
        // Only the removal of the devices ends these calls.
        ends.settle();
        assert!(!completed.is_done() && !accepted.is_done() && !accepted_too.is_done());
        ends.rig.near.steer().remove();
        ends.rig.far.steer().remove();
        assert!(is_removal(&ends.error(completed)));
        assert!(is_removal(&ends.error(accepted_too)));
        drop(asked_too);
    });
}

// covers 5.13 7.78
#[test]
fn a_qp_destroyed_during_a_disconnect_fails_only_the_flush() {
    on_each(|ends| {
        let (near, far) = (ends.near_qp(), ends.far_qp());
        let (at_near, at_far) = ends.connected(&near, &far);
        ends.hold();
        let disconnected = at_near.disconnect();
        destroy(ends, near);
        ends.release();
        let error = ends.error(disconnected);
        let is_invalid = matches!(
            error,
            ConnectError::Phase {
                phase: Phase::QueuePair,
                error: VerbError::InvalidHandle(_)
            }
        );
        assert!(is_invalid, "{error}");
        ends.end(at_far.disconnected());
        // The ends can still connect other queue pairs.
        let (near, far) = (ends.near_qp(), ends.far_qp());
        let _both = ends.connected(&near, &far);
        ends.talk(&near, &far);
    });
}

// covers 5.13 7.71 7.73
#[test]
fn a_vanished_peer_ends_pending_calls_in_bounded_time() {
    // The active side receives no further message.
    on_each(|ends| {
        let near = ends.near_qp();
        let (asked, incoming) = ends.ask(&near);
        ends.rig.far.steer().remove();
        drop(incoming);
        ends.expire();
        let error = ends.error(asked);
        assert!(is_gone(&error), "{error}");
        assert_eq!(state(&near), QpState::Reset);
    });
    // The passive side has accepted and receives no further message.
    on_each(|ends| {
        let (near, far) = (ends.near_qp(), ends.far_qp());
        let (asked, incoming) = ends.ask(&near);
        let accepted = ends.accept(incoming, &far);
        let pending = ends.end(asked);
        ends.rig.near.steer().remove();
        ends.expire();
        let error = ends.error(accepted);
        assert!(is_gone(&error), "{error}");
        assert!(matches!(state(&far), QpState::Err | QpState::Reset));
        let error = ends.error(pending.complete());
        assert!(is_removal(&error) || is_gone(&error), "{error}");
    });
}

// covers 5.13 7.78
#[test]
fn a_vanished_peer_does_not_delay_a_disconnect() {
    on_each(|ends| {
        let (near, far) = (ends.near_qp(), ends.far_qp());
        let (at_near, at_far) = ends.connected(&near, &far);
        ends.near.post_receive(&near, 1);
        ends.hold();
        let disconnected = at_near.disconnect();
        ends.rig.far.steer().remove();
        ends.release();
        ends.expire();
        ends.end(disconnected);
        ends.wait_for_state(&near, QpState::Err);
        assert!(!ends.take(&ends.near, 1)[0].status.is_success());
        drop(at_far);
    });
}

// covers 5.15 7.62
#[test]
fn removal_of_the_device_ends_each_phase_of_each_request() {
    type Begin = fn(&Ends) -> Box<dyn FnOnce(&Ends)>;
    fn ends_removed<T: Send + 'static>(
        started: Started<T, ConnectError>,
    ) -> Box<dyn FnOnce(&Ends)> {
        Box::new(move |ends| {
            let error = ends.error(started);
            assert!(is_removal(&error), "{:?}: {error}", ends.flavour);
        })
    }
    let connect: Begin = |ends| {
        let near = ends.near_qp();
        let asked = ends.request(&near);
        ends.rig.near.steer().remove();
        let again = ends.error(ends.request(&near));
        assert!(is_removal(&again), "{again}");
        ends_removed(asked)
    };
    let complete: Begin = |ends| {
        let (near, far) = (ends.near_qp(), ends.far_qp());
        let (asked, incoming) = ends.ask(&near);
        let _accepted = ends.accept(incoming, &far);
        let pending = ends.end(asked);
        ends.rig.near.steer().set_latency(NEVER);
        let completed = pending.complete();
        ends.rig.near.steer().remove();
        ends_removed(completed)
    };
    let accept: Begin = |ends| {
        let (near, far) = (ends.near_qp(), ends.far_qp());
        let (asked, incoming) = ends.ask(&near);
        ends.rig.far.steer().set_latency(NEVER);
        let accepted = ends.accept(incoming, &far);
        ends.rig.far.steer().remove();
        drop(asked);
        ends_removed(accepted)
    };
    let accepted: Begin = |ends| {
        let (near, far) = (ends.near_qp(), ends.far_qp());
        let (asked, incoming) = ends.ask(&near);
        let accepted = ends.accept(incoming, &far);
        let _pending = ends.end(asked);
        ends.rig.far.steer().remove();
        ends_removed(accepted)
    };
    let disconnect: Begin = |ends| {
        let (near, far) = (ends.near_qp(), ends.far_qp());
        let (at_near, at_far) = ends.connected(&near, &far);
        ends.hold();
        let disconnected = at_near.disconnect();
        ends.rig.near.steer().remove();
        ends.release();
        if !ends.rig.is_on_sockets() {
            ends.end(at_far.disconnected());
        }
        ends_removed(disconnected)
    };
    let flush: Begin = |ends| {
        let (near, far) = (ends.near_qp(), ends.far_qp());
        let _both = ends.connected(&near, &far);
        ends.rig.near.steer().set_latency(NEVER);
        let flushed = polyverbs_connection::flush(&near);
        ends.rig.near.steer().remove();
        ends_removed(flushed)
    };
    for begin in [connect, complete, accept, accepted, disconnect, flush] {
        on_each(|ends| begin(ends)(ends));
    }
}

// covers 5.15 7.62
#[test]
fn removal_of_the_device_ends_waiting_for_requests() {
    for flavour in [Flavour::IbUdp, Flavour::IwTcp] {
        let rig = Rig::new(flavour);
        let far = End::of(&rig.far.context);
        let listener = far.listen();
        let waits = listener.next();
        let questions = far.connector.listen_datagrams(far.at(0), 0);
        let asked = questions.as_ref().ok().map(|services| services.next());
        rig.far.steer().remove();
        let is_removed = |error: Option<ConnectError>| is_removal(&error.expect("it succeeded"));
        assert!(is_removed(rig.outcome(waits).unwrap().err()));
        assert!(is_removed(rig.outcome(listener.next()).unwrap().err()));
        assert_eq!(asked.is_some(), flavour == Flavour::IbUdp);
        if let Some(asked) = asked {
            assert!(is_removed(rig.outcome(asked).unwrap().err()));
        }
    }
}

// covers 5.14
#[test]
fn a_pending_call_keeps_its_device_open_until_it_ends() {
    on_each(|ends| {
        let device = Arc::downgrade(&ends.rig.near.device);
        let holders = device.strong_count();
        let (near, far) = (ends.near_qp(), ends.far_qp());
        let (at_near, at_far) = ends.connected(&near, &far);
        ends.hold();
        let disconnected = at_near.disconnect();
        // No thread waits for the disconnect, and the program has dropped all its handles.
        drop((near, at_near));
        drop(disconnected);
        ends.release();
        ends.end(at_far.disconnected());
        // The thread of the device that destroys the queue pair holds the device for a while.
        test_kit::waiting::until(|| {
            ends.rig.step();
            device.strong_count() <= holders
        });
    });
}

#[test]
fn a_withdrawn_request_can_no_longer_be_accepted() {
    on_each(|ends| {
        let (near, to) = (ends.near_qp(), ends.listener.address());
        let (first, second) = (ends.far_qp(), ends.far_qp());
        let begin = || {
            let options = ConnectionOptions::new();
            ends.near.connector.begin_request(&near, to, options)
        };
        let (asked, withdrawal) = begin().unwrap();
        let incoming = ends.end(ends.listener.next());
        let withdrawn = incoming.withdrawn();
        assert!(withdrawal.withdraw());
        assert!(!withdrawal.withdraw());
        let canceled = ConnectError::Verb(VerbError::Canceled);
        assert_eq!(ends.error(asked), canceled);
        ends.end(withdrawn);
        let error = ends.error(ends.accept(incoming, &first));
        assert!(is_of_queue_pair(&error) || is_gone(&error), "{error}");
        // An answer that has arrived ends the request.
        let (asked, withdrawal) = begin().unwrap();
        let incoming = ends.end(ends.listener.next());
        let accepted = ends.accept(incoming, &second);
        let pending = ends.end(asked);
        assert!(!withdrawal.withdraw());
        let _both = (ends.end(pending.complete()), ends.end(accepted));
    });
}

// covers 5.13
#[test]
fn a_withdrawn_answer_is_ended_before_the_peer_completes() {
    on_each(|ends| {
        let (near, far) = (ends.near_qp(), ends.far_qp());
        let (asked, incoming) = ends.ask(&near);
        let begun = incoming.begin_accept(&far, ConnectionOptions::new());
        let (accepted, answer) = begun.unwrap();
        let pending = ends.end(asked);
        assert!(answer.withdraw());
        assert!(!answer.withdraw());
        let canceled = ConnectError::Verb(VerbError::Canceled);
        assert_eq!(ends.error(accepted), canceled);
        // The manager does not wait for the peer, which may not exist.
        ends.wait_for_ends_heard(1);
        let error = ends.error(pending.complete());
        assert!(is_gone(&error), "{error}");
    });
}

// covers 5.13
#[test]
fn a_dropped_connection_completes_what_waits_for_its_end() {
    on_each(|ends| {
        let (near, far) = (ends.near_qp(), ends.far_qp());
        let (at_near, at_far) = ends.connected(&near, &far);
        let (ended, exit) = (at_near.disconnected(), at_near.timewait_exit());
        drop(at_near);
        assert!(ended.is_done() && exit.is_done());
        ends.end(ended);
        ends.end(at_far.disconnected());
    });
}

#[test]
fn an_end_that_the_peer_does_not_confirm_has_timed_out() {
    on(&[Flavour::IbUdp], |ends| {
        let (near, far) = (ends.near_qp(), ends.far_qp());
        let (at_near, _at_far) = ends.connected(&near, &far);
        ends.hold();
        let (waits, ended) = (at_near.disconnected(), at_near.end());
        ends.expire();
        ends.end(ended);
        for ended in [waits, at_near.disconnected()] {
            assert_eq!(ends.error(ended), ConnectError::TimedOut);
        }
    });
}

// covers 5.16
#[test]
fn an_accept_that_timed_out_ignores_a_late_completion() {
    on_each(|ends| {
        let (near, far) = (ends.near_qp(), ends.far_qp());
        let (asked, incoming) = ends.ask(&near);
        let accepted = ends.accept(incoming, &far);
        let pending = ends.end(asked);
        ends.hold();
        let completed = (!ends.is_stream()).then(|| pending_complete(ends, pending));
        ends.expire();
        let error = ends.error(accepted);
        assert!(is_gone(&error), "{error}");
        ends.release();
        if let (Some(Ok(connection)), Flavour::IbUdp) = (completed, ends.flavour) {
            // The connection learns that its peer has no such connection.
            ends.end(connection.disconnected());
        }
        assert!(matches!(state(&far), QpState::Err | QpState::Reset));
    });
}

fn pending_complete(ends: &Ends, pending: Accepted) -> Result<Connection, ConnectError> {
    ends.rig.outcome(pending.complete()).unwrap()
}

// covers 5.28
#[test]
fn connections_on_slow_devices_are_established_concurrently() {
    on_virtual(|ends| {
        let pairs: Vec<_> = (0..50).map(|_| (ends.near_qp(), ends.far_qp())).collect();
        ends.rig.near.steer().set_latency(SLOW);
        ends.rig.far.steer().set_latency(SLOW);
        let asked: Vec<_> = pairs.iter().map(|(near, _)| ends.request(near)).collect();
        let accepted: Vec<_> = pairs
            .iter()
            .map(|(_, far)| ends.accept(ends.end(ends.listener.next()), far))
            .collect();
        // The time suffices for the three modifies of one queue pair: all connects must end within it.
        ends.rig.run_for(3 * SLOW);
        assert!(asked.iter().all(Started::is_done));
        let pending = asked.into_iter().map(|asked| ends.end(asked));
        let completed: Vec<_> = pending.map(Accepted::complete).collect();
        ends.rig.run_for(3 * SLOW);
        let connections: Vec<_> = completed.into_iter().chain(accepted).collect();
        assert!(connections.iter().all(Started::is_done));
        let connections = connections.into_iter().map(|done| ends.end(done));
        assert_eq!(connections.count(), 100);
        ends.rig.near.steer().set_latency(Duration::ZERO);
        ends.rig.far.steer().set_latency(Duration::ZERO);
    });
}

// covers 5.28
#[test]
fn a_slow_queue_pair_delays_no_other_connection() {
    on_sockets(|ends| {
        let pairs: Vec<_> = (0..50).map(|_| (ends.near_qp(), ends.far_qp())).collect();
        let (slow, others) = pairs.split_at(2);
        let asked = slow.iter().map(|(near, _)| ends.ask(near));
        let (asked, incoming): (Vec<_>, Vec<_>) = asked.unzip();
        let [first, second] = <[_; 2]>::try_from(incoming).ok().unwrap();
        let [asks, asks_too] = <[_; 2]>::try_from(asked).ok().unwrap();
        let accepted = ends.accept(first, &slow[0].1);
        let pending = ends.end(asks);
        ends.rig.near.steer().set_latency(NEVER);
        ends.rig.far.steer().set_latency(NEVER);
        let completed = pending.complete();
        let accepted_too = ends.accept(second, &slow[1].1);
        ends.rig.near.steer().set_latency(Duration::ZERO);
        ends.rig.far.steer().set_latency(Duration::ZERO);
        for (near, far) in others {
            let _both = ends.connected(near, far);
            ends.talk(near, far);
        }
        assert!(!completed.is_done() && !accepted.is_done() && !accepted_too.is_done());
        drop(asks_too);
    });
}
