//! The begin and the end of connections.

use std::thread;

use verbs_api::qp::{QpAttributes, QpState};
use verbs_api::{WcStatus, capability::PortState, event::EventType, wr};

use crate::iwarp::lab::{Lab, Wire, open};

use WcStatus::{Success, WrFlushErr};

fn both(test: impl Fn(Lab)) {
    test(Lab::unconnected(None, Default::default()));
    test(Lab::unconnected(Some(Wire::default()), Default::default()));
}

fn modify(lab_side: &crate::iwarp::lab::Side, state: QpState) {
    lab_side
        .qp
        .modify(QpAttributes::new().qp_state(state))
        .wait()
        .unwrap();
}

// covers 3.98
#[test]
fn requests_wait_until_the_peer_is_ready() {
    both(|lab| {
        lab.b.fill(32, b"data");
        lab.a.connect(&lab.b, open());
        lab.a
            .post(wr::Write::new(&b"early"[..], lab.b.remote(0)).signaled(1));
        lab.a
            .post(wr::Read::new(lab.a.sge(64, 4), lab.b.remote(32)).signaled(2));
        lab.settle();
        assert_eq!((lab.a.statuses(), lab.a.state()), (vec![], QpState::Rts));
        lab.b.connect(&lab.a, open());
        lab.settle();
        assert_eq!(lab.a.statuses(), [(1, Success), (2, Success)]);
        assert_eq!(
            (lab.b.octets(0, 5), lab.a.octets(64, 4)),
            (b"early".to_vec(), b"data".to_vec())
        );
    });
}

// covers 3.98
#[test]
fn a_receive_posted_in_init_serves_the_later_connection() {
    both(|lab| {
        lab.a.connect(&lab.b, open());
        lab.a.post(wr::Send::new(&b"early"[..]).signaled(1));
        let access = verbs_api::Access::REMOTE_READ;
        let init = QpAttributes::new()
            .qp_state(QpState::Init)
            .pkey_index(0)
            .port_num(1)
            .qp_access_flags(access);
        lab.b.qp.modify(init).wait().unwrap();
        lab.b.receive(10, 0, 16);
        let peer = lab.a.qp.endpoint().unwrap();
        let path = verbs_api::qp::AddressVector::new(peer.address, peer.gid, 1);
        let rtr = QpAttributes::new()
            .qp_state(QpState::Rtr)
            .ah_attr(path)
            .path_mtu(verbs_api::capability::Mtu::Mtu1024)
            .dest_qp_num(peer.qp_num)
            .rq_psn(peer.sq_psn)
            .max_dest_rd_atomic(1)
            .min_rnr_timer(1);
        lab.b.qp.modify(rtr).wait().unwrap();
        lab.settle();
        assert_eq!(
            (lab.a.statuses(), lab.b.statuses()),
            (vec![(1, Success)], vec![(10, Success)])
        );
        assert_eq!(
            (lab.b.octets(0, 5), lab.b.state()),
            (b"early".to_vec(), QpState::Rtr)
        );
        assert_eq!(lab.b.events(), [EventType::CommEst]);
    });
}

// covers 3.98 7.45
#[test]
fn sqd_closes_the_connection_gracefully() {
    both(|lab| {
        let lab = lab.connected(open());
        lab.a.receive(1, 0, 8);
        lab.b.receive(10, 0, 8);
        lab.b.receive(11, 0, 8);
        lab.a.post(wr::Send::new(&b"last"[..]).signaled(2));
        modify(&lab.a, QpState::Sqd);
        lab.settle();
        assert_eq!((lab.a.state(), lab.b.state()), (QpState::Err, QpState::Err));
        assert_eq!(lab.a.statuses(), [(2, Success), (1, WrFlushErr)]);
        assert_eq!(
            lab.b.statuses(),
            [(10, Success), (11, WrFlushErr)],
            "data before the close arrives"
        );
        assert_eq!((lab.a.terminated(), lab.b.terminated()), (None, None));
        assert_eq!((lab.a.events(), lab.b.events()), (vec![], vec![]));
    });
}

// covers 3.98 7.45
#[test]
fn sqd_with_outstanding_work_leads_to_err() {
    let lab = Lab::stream(None);
    lab.wire().tamper(|_| false);
    lab.a
        .post(wr::Read::new(lab.a.sge(0, 8), lab.b.remote(0)).signaled(1));
    modify(&lab.a, QpState::Sqd);
    assert_eq!(lab.a.state(), QpState::Err);
    assert_eq!(lab.a.statuses(), [(1, WrFlushErr)]);
}

#[test]
fn both_ends_may_close_at_the_same_time() {
    let lab = Lab::stream(None);
    let (a, b) = (lab.a.qp.clone(), lab.b.qp.clone());
    let close = |qp: verbs_api::Qp| qp.modify(QpAttributes::new().qp_state(QpState::Sqd)).wait();
    thread::scope(|scope| {
        scope.spawn(move || close(a));
        scope.spawn(move || close(b));
    });
    lab.settle();
    assert_eq!((lab.a.state(), lab.b.state()), (QpState::Err, QpState::Err));
}

// covers 3.98
#[test]
fn an_end_that_leaves_moves_its_peer_to_err() {
    type Leave = fn(&Lab);
    let ways: [Leave; 4] = [
        |lab| modify(&lab.a, QpState::Err),
        |lab| modify(&lab.a, QpState::Reset),
        |lab| lab.a.qp.clone().destroy().wait().unwrap(),
        |lab| lab.a.device.remove(),
    ];
    for leave in ways {
        both(|lab| {
            let lab = lab.connected(open());
            lab.b.receive(10, 0, 8);
            leave(&lab);
            lab.settle();
            assert_eq!(lab.b.state(), QpState::Err);
            assert_eq!(lab.b.statuses(), [(10, WrFlushErr)]);
            lab.b.post(wr::Send::new(()).signaled(11));
            assert_eq!(lab.b.statuses(), [(11, WrFlushErr)]);
        });
    }
}

#[test]
fn a_pair_connects_again_after_a_reset() {
    both(|lab| {
        let mut lab = lab.connected(open());
        for round in 0..5 {
            lab.b.receive(round, 0, 8);
            lab.a.post(wr::Write::new(&b"x"[..], lab.b.remote(round)));
            lab.a.post(wr::Send::new(()));
            lab.settle();
            assert_eq!(lab.b.statuses(), [(round, Success)]);
            modify(&lab.a, QpState::Reset);
            lab.settle();
            assert_eq!(lab.b.state(), QpState::Err);
            modify(&lab.b, QpState::Reset);
            lab = lab.connected(open());
        }
    });
}

// covers 3.95
#[test]
fn a_send_completes_even_if_the_peer_refuses_it() {
    let lab = Lab::stream(None);
    lab.wire().tamper(|_| false);
    lab.b.receive(10, 0, 8);
    lab.a.post(wr::Send::new(&b"lost"[..]).signaled(1));
    assert_eq!(lab.a.statuses(), [(1, Success)]);
    lab.b.device.remove();
    lab.settle();
    assert_eq!(lab.b.statuses(), [(10, WrFlushErr)]);
}

#[test]
fn connecting_to_a_destroyed_peer_fails() {
    let lab = Lab::unconnected(None, Default::default());
    let endpoint = lab.b.qp.endpoint().unwrap();
    lab.b.qp.clone().destroy().wait().unwrap();
    // The queue pair reaches ready-to-receive; the next step finds the error state.
    assert!(lab.a.qp.connect(&endpoint, open()).wait().is_err());
    assert_eq!(lab.a.state(), QpState::Err);
}

#[test]
fn a_queue_pair_may_be_its_own_peer() {
    both(|lab| {
        lab.a.connect(&lab.a, open());
        lab.a.receive(10, 100, 8);
        lab.a.post(wr::Send::new(&b"myself"[..]).signaled(1));
        lab.a
            .post(wr::FetchAdd::new(lab.a.sge(0, 8), lab.a.remote(8), 3).signaled(2));
        lab.settle();
        let mut done = lab.a.statuses();
        done.sort_by_key(|(wr_id, _)| *wr_id);
        assert_eq!(done, [(1, Success), (2, Success), (10, Success)]);
        assert_eq!(
            (lab.a.octets(100, 6), lab.a.memory.load_u64(8)),
            (b"myself".to_vec(), Ok(3))
        );
        modify(&lab.a, QpState::Err);
        lab.settle();
    });
}

#[test]
fn an_inactive_port_delays_requests() {
    both(|lab| {
        let lab = lab.connected(open());
        lab.a.device.set_port_state(PortState::Down);
        lab.a
            .post(wr::Write::new(&b"held"[..], lab.b.remote(0)).signaled(1));
        lab.settle();
        assert_eq!((lab.a.statuses(), lab.b.octets(0, 4)), (vec![], vec![0; 4]));
        lab.a.device.set_port_state(PortState::Active);
        lab.run();
        assert_eq!(
            (lab.a.statuses(), lab.b.octets(0, 4)),
            (vec![(1, Success)], b"held".to_vec())
        );
    });
}

#[test]
fn a_direct_network_delays_requests_to_an_inactive_port() {
    let lab = Lab::direct();
    let write = |text: &[u8], wr_id| {
        lab.a
            .post(wr::Write::new(text, lab.b.remote(0)).signaled(wr_id));
        lab.settle();
        (lab.a.statuses(), lab.b.octets(0, 4))
    };
    // After the first request the next one takes the short path.
    assert_eq!(write(b"sent", 1), (vec![(1, Success)], b"sent".to_vec()));
    lab.b.device.set_port_state(PortState::Down);
    assert_eq!(write(b"held", 2), (vec![], b"sent".to_vec()));
    lab.b.device.set_port_state(PortState::Active);
    lab.run();
    assert_eq!(
        (lab.a.statuses(), lab.b.octets(0, 4)),
        (vec![(2, Success)], b"held".to_vec())
    );
}

#[test]
fn an_end_may_leave_while_two_threads_post_to_each_other() {
    for _ in 0..50 {
        let lab = Lab::direct();
        let (a, b) = (&lab.a, &lab.b);
        thread::scope(|scope| {
            for (from, to) in [(a, b), (b, a)] {
                scope.spawn(move || {
                    for number in 0..200 {
                        let _ = from.qp.post_one(wr::Write::new(
                            &[number as u8; 8][..],
                            to.remote(number * 8),
                        ));
                    }
                });
            }
            scope.spawn(|| modify(a, QpState::Err));
        });
        assert_eq!((a.state(), b.state()), (QpState::Err, QpState::Err));
    }
}

#[test]
fn simultaneous_begin_and_end_leave_no_half_open_stream() {
    for _ in 0..200 {
        let lab = Lab::unconnected(None, Default::default());
        let (to_a, to_b) = (lab.a.qp.endpoint().unwrap(), lab.b.qp.endpoint().unwrap());
        thread::scope(|scope| {
            scope.spawn(|| lab.a.qp.connect(&to_b, open()).wait());
            scope.spawn(|| {
                let _ = lab.b.qp.connect(&to_a, open()).wait();
                let _ = lab
                    .b
                    .qp
                    .modify(QpAttributes::new().qp_state(QpState::Err))
                    .wait();
            });
        });
        if lab.a.state() == QpState::Rts {
            lab.a
                .post(wr::Write::new(&b"?"[..], lab.b.remote(0)).signaled(1));
            assert_eq!(
                lab.a.statuses(),
                [],
                "waits for a connection that never was"
            );
        }
        assert_eq!(lab.b.octets(0, 1), [0]);
    }
}
