//! Queue pairs that the program brings up by itself, and ends that leave queue pairs alone.

use conformance::Flavour;
use polyverbs::qp::{QpAttributes, QpState};
use polyverbs::{Qp, VerbError, WcStatus, ids::Psn};
use polyverbs_connection::{ConnectError, ConnectionOptions, flush};

use crate::networks::ends::{Ends, on, on_each};
use crate::rig::state;

const DREQ: u16 = 0x15;
const RTU: u16 = 0x14;

fn by_program(psn: u32) -> ConnectionOptions {
    ConnectionOptions::new().brought_up_by_program(Psn::new(psn))
}

fn bring_up(ends: &Ends, qp: &Qp, steps: [QpAttributes; 3]) {
    assert_eq!(state(qp), QpState::Reset);
    for step in steps {
        ends.rig.finish(qp.modify(step)).unwrap();
    }
}

fn is_unsupported(error: &ConnectError) -> bool {
    matches!(error, ConnectError::Verb(VerbError::UnsupportedHere(_)))
}

// covers 7.21 7.55
#[test]
fn a_program_can_bring_its_queue_pairs_up_by_the_given_steps() {
    on(&[Flavour::Ib, Flavour::IbFramed, Flavour::IbUdp], |ends| {
        let (near, far) = (ends.near_qp(), ends.far_qp());
        let asked = ends.request_with(&near, by_program(0x70_0007).reads(3, 5));
        let incoming = ends.end(ends.listener.next());
        let options = by_program(0x90_0009).reads(4, 2);
        let steps = incoming.steps(&options).unwrap();
        assert_eq!(steps[1].dest_qp_num, Some(near.qp_num()));
        assert_eq!(steps[1].max_dest_rd_atomic, Some(4));
        assert_eq!(steps[2].max_rd_atomic, Some(2));
        bring_up(ends, &far, steps);
        let accepted = incoming.accept(&far, options);
        let pending = ends.end(asked);
        let steps = pending.steps().unwrap();
        assert_eq!(steps[1].dest_qp_num, Some(far.qp_num()));
        assert_eq!(steps[1].max_dest_rd_atomic, Some(2));
        assert_eq!(steps[2].max_rd_atomic, Some(4));
        assert!(!accepted.is_done());
        bring_up(ends, &near, steps);
        let at_near = ends.end(pending.complete());
        let at_far = ends.end(accepted);
        ends.talk(&near, &far);

        ends.end(at_near.disconnect());
        ends.end(at_far.disconnected());
        assert_eq!((state(&near), state(&far)), (QpState::Err, QpState::Rts));
    });
}

#[test]
fn a_connect_leaves_queue_pairs_of_the_program_alone() {
    on(&[Flavour::Ib, Flavour::IbUdp], |ends| {
        let (near, far) = (ends.near_qp(), ends.far_qp());
        let asked = ends.request_with(&near, by_program(1));
        let incoming = ends.end(ends.listener.next());
        let accepted = incoming.accept(&far, by_program(2));
        let at_near = ends.end(ends.end(asked).complete());
        let at_far = ends.end(accepted);
        assert_eq!(
            (state(&near), state(&far)),
            (QpState::Reset, QpState::Reset)
        );
        drop(at_near);
        ends.end(at_far.disconnected());
        // A refused connect leaves the queue pair unchanged, too.
        let near = ends.near_qp();
        let asked = ends.request_with(&near, by_program(1));
        ends.end(ends.listener.next()).reject(b"").unwrap();
        ends.error(asked);
        assert_eq!(state(&near), QpState::Reset);
    });
}

#[test]
fn a_stream_needs_its_queue_pair_brought_up_with_it() {
    on(&[Flavour::Iwarp, Flavour::IwTcp], |ends| {
        let (near, far) = (ends.near_qp(), ends.far_qp());
        let error = ends.error(ends.request_with(&near, by_program(1)));
        assert!(is_unsupported(&error), "{error}");
        let (asked, incoming) = ends.ask(&near);
        let error = ends.error(incoming.accept(&far, by_program(2)));
        assert!(is_unsupported(&error), "{error}");
        assert!(matches!(ends.error(asked), ConnectError::Refused { .. }));
        assert_eq!(
            (state(&near), state(&far)),
            (QpState::Reset, QpState::Reset)
        );
    });
}

// covers 7.58 7.77
#[test]
fn an_end_without_disconnect_is_reported_and_flushes_nothing() {
    on_each(|ends| {
        let (near, far) = (ends.near_qp(), ends.far_qp());
        let (at_near, at_far) = ends.connected(&near, &far);
        ends.near.post_receive(&near, 1);
        ends.far.post_receive(&far, 2);
        ends.end(at_near.end());
        ends.end(at_near.disconnected());
        ends.end(at_far.disconnected());
        ends.nothing_on(&ends.near);
        ends.nothing_on(&ends.far);
        assert_eq!((state(&near), state(&far)), (QpState::Rts, QpState::Rts));
        // A second end has no effect, and the program requests the flush by itself.
        ends.end(at_near.end());
        for (end, qp) in [(&ends.near, &near), (&ends.far, &far)] {
            ends.end(flush(qp));
            assert_eq!(ends.take(end, 1)[0].status, WcStatus::WrFlushErr);
        }
    });
}

// covers 7.08
#[test]
fn an_accept_succeeds_if_the_dreq_overtakes_the_rtu() {
    on(&[Flavour::IbUdp], |ends| {
        ends.gate().lose(RTU);
        let (near, far) = (ends.near_qp(), ends.far_qp());
        let (asked, incoming) = ends.ask(&near);
        let accepted = ends.accept(incoming, &far);
        let at_near = ends.end(ends.end(asked).complete());
        ends.settle();
        assert!(!accepted.is_done());
        ends.end(at_near.disconnect());
        assert_eq!((ends.gate().sent(DREQ), ends.gate().sent(RTU)), (1, 1));
        // The accept yields a connection that has already ended; the queue pair remains for the
        // program to flush.
        let at_far = ends.end(accepted);
        assert!(at_far.disconnected().is_done());
        assert_eq!(state(&far), QpState::Rts);
        ends.end(at_far.disconnect());
        assert_eq!(state(&far), QpState::Err);
    });
}
