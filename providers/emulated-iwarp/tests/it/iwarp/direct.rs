//! The effect of every operation, on a direct network and over a stream.

use bmme::Bmme;
use verbs_api::qp::QpState;
use verbs_api::{
    Access, Mr, MrKey, MrOptions, PageList, RKey, RemoteAddress, Sge, WcStatus,
    completion::{WcFlags, WcOpcode},
    event::EventType,
    memory::MwType,
    wr,
};

use crate::iwarp::lab::{ALL, Lab, Side, open, with_lkey};

use WcStatus::{LocProtErr, RemAccessErr, RemInvReqErr, Success, WrFlushErr};

/// A key registered by a work request for the first `length` bytes of the side's memory.
pub(crate) fn fast_register(side: &Side, access: Access, length: usize) -> MrKey {
    let bmme: Bmme = side.context.extension().unwrap();
    let key = bmme
        .alloc_key(&side.pd, 16)
        .wait()
        .unwrap()
        .next_consumer_key();
    let pages = PageList::map(&[side.memory.range(0, length).unwrap()], 4096, 16)
        .unwrap()
        .list;
    side.post(wr::FastRegister::new(key.rkey(), &pages).access(access));
    key
}

// covers 3.95
#[test]
fn sends_and_writes_arrive() {
    Lab::everywhere(|lab| {
        let (a, b) = (&lab.a, &lab.b);
        a.fill(0, b"a message longer than a frame");
        b.receive(10, 100, 64);
        b.receive(11, 200, 64);
        a.post(wr::Send::new(a.sge(0, 29)).signaled(1));
        a.post(wr::Write::new(&[a.sge(0, 2), a.sge(2, 5)], b.remote(300)).signaled(2));
        a.post(wr::Send::new(&b"inline"[..]).signaled(3));
        assert_eq!(a.statuses(), [(1, Success), (2, Success), (3, Success)]);
        lab.settle();
        let received = b.poll();
        assert_eq!(
            received
                .iter()
                .map(|seen| (seen.wr_id, seen.byte_len))
                .collect::<Vec<_>>(),
            [(10, 29), (11, 6)]
        );
        assert_eq!(b.octets(100, 29), b"a message longer than a frame");
        assert_eq!(b.octets(200, 6), b"inline");
        assert_eq!(b.octets(300, 8), b"a messa\0");
    });
}

#[test]
fn messages_without_payload_arrive_and_name_no_memory() {
    Lab::everywhere(|lab| {
        let nowhere = RemoteAddress::new(77, RKey::new(0xdead_beef));
        lab.b.receive(10, 0, 0);
        lab.a.post(wr::Send::new(()).signaled(1));
        lab.a.post(wr::Write::new((), nowhere).signaled(2));
        lab.settle();
        assert_eq!(lab.a.statuses(), [(1, Success), (2, Success)]);
        assert_eq!(lab.b.statuses(), [(10, Success)]);
    });
}

// covers 2.68
#[test]
fn a_read_of_length_zero_checks_no_key() {
    Lab::everywhere(|lab| {
        let nowhere = RemoteAddress::new(77, RKey::new(0xdead_beef));
        let sink = with_lkey(Sge::default().at(5, 0), 0xbad_bad);
        lab.a.post(wr::Read::new(sink, nowhere).signaled(1));
        lab.settle();
        assert_eq!(lab.a.statuses(), [(1, Success)]);
    });
}

#[test]
fn a_write_with_immediate_takes_a_receive_of_its_own() {
    Lab::everywhere(|lab| {
        lab.a.fill(0, b"octets of the write");
        lab.b.receive(10, 500, 4);
        lab.a
            .post(wr::Write::new(lab.a.sge(0, 3), lab.b.remote(400)));
        lab.a.post(
            wr::WriteWithImmediate::new(lab.a.sge(0, 19), lab.b.remote(300), [1, 2, 3, 4])
                .signaled(1),
        );
        lab.settle();
        assert_eq!(lab.a.statuses(), [(1, Success)]);
        let received = lab.b.poll();
        assert_eq!(
            (received.len(), received[0].opcode),
            (1, WcOpcode::RecvRdmaWithImm)
        );
        assert_eq!((received[0].byte_len, received[0].imm), (19, [1, 2, 3, 4]));
        assert!(received[0].flags.contains(WcFlags::WITH_IMM));
        assert_eq!(lab.b.octets(300, 19), b"octets of the write");
        assert_eq!(
            lab.b.octets(500, 4),
            [0; 4],
            "the receive's own buffer stays"
        );
    });
}

#[test]
fn reads_return_the_bytes_of_the_peer() {
    Lab::everywhere(|lab| {
        lab.b.fill(0, b"far away, and longer than a frame");
        lab.a
            .post(wr::Read::new(lab.a.sge(64, 33), lab.b.remote(0)).signaled(1));
        lab.settle();
        let done = lab.a.poll();
        assert_eq!(
            (done[0].status, done[0].opcode, done[0].byte_len),
            (Success, WcOpcode::RdmaRead, 33)
        );
        assert_eq!(lab.a.octets(64, 33), b"far away, and longer than a frame");
    });
}

// covers 1.07
#[test]
fn both_atomics_work_and_adding_zero_changes_nothing() {
    Lab::everywhere(|lab| {
        let (a, b) = (&lab.a, &lab.b);
        b.memory.store_u64(8, 40).unwrap();
        a.post(wr::FetchAdd::new(a.sge(0, 8), b.remote(8), 0).signaled(1));
        a.post(wr::FetchAdd::new(a.sge(8, 8), b.remote(8), 2).signaled(2));
        a.post(wr::CompareSwap::new(a.sge(16, 8), b.remote(8), 42, 7).signaled(3));
        a.post(wr::CompareSwap::new(&[a.sge(24, 3), a.sge(27, 5)], b.remote(8), 42, 8).signaled(4));
        lab.settle();
        assert_eq!(
            a.statuses(),
            [(1, Success), (2, Success), (3, Success), (4, Success)]
        );
        let originals: Vec<_> = (0..4)
            .map(|at| a.memory.load_u64(at * 8).unwrap())
            .collect();
        assert_eq!(originals, [40, 40, 42, 7]);
        assert_eq!(b.memory.load_u64(8), Ok(7));
    });
}

#[test]
fn an_atomic_needs_an_aligned_address_at_any_offset() {
    Lab::everywhere(|lab| {
        let (a, b) = (&lab.a, &lab.b);
        let options = MrOptions::new(ALL | Access::ZERO_BASED);
        let odd =
            b.pd.register_with(b.memory.range(4, 64).unwrap(), options)
                .wait()
                .unwrap();
        a.post(wr::FetchAdd::new(a.sge(0, 8), odd.remote(4), 5).signaled(1));
        lab.settle();
        assert_eq!(a.statuses(), [(1, Success)]);
        assert_eq!(b.memory.load_u64(8), Ok(5));
        a.post(wr::FetchAdd::new(a.sge(0, 8), odd.remote(0), 5).signaled(2));
        lab.settle();
        assert_eq!(a.statuses(), [(2, RemInvReqErr)]);
        assert_eq!(a.terminated(), Some((0, 2, 0x07)));
        assert_eq!(b.octets(0, 8), [0; 8]);
        assert_eq!(b.memory.load_u64(8), Ok(5));
    });
}

// covers 2.60
#[test]
fn a_read_sink_without_remote_write_is_refused_locally() {
    Lab::everywhere(|lab| {
        let sink = lab.a.register(Access::LOCAL_WRITE);
        let sent = lab.wire.as_ref().map(|wire| wire.seen().len());
        lab.a
            .post(wr::Read::new(sink.sge(0, 8).unwrap(), lab.b.remote(0)).signaled(1));
        assert_eq!(lab.a.statuses(), [(1, LocProtErr)]);
        if let (Some(before), Some(wire)) = (sent, &lab.wire) {
            let requests = wire.seen()[before..]
                .iter()
                .filter(|sent| format!("{sent:?}").contains("ReadRequest"))
                .count();
            assert_eq!(requests, 0);
        }
        lab.settle();
        assert_eq!((lab.a.state(), lab.b.state()), (QpState::Err, QpState::Err));
        assert_eq!(
            lab.b.terminated(),
            Some((0, 0, 0)),
            "the Terminate reports a local fault"
        );
    });
}

// covers 2.62 2.69
#[test]
fn read_with_invalidate_closes_the_sink_on_completion() {
    Lab::everywhere(|lab| {
        let (a, b) = (&lab.a, &lab.b);
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let key = fast_register(a, access, 4096);
        let sink = key.sge(a.memory.address(), 16);
        b.fill(0, b"sixteen octets..");
        // While the key is valid, the peer may write to the sink.
        b.post(wr::Write::new(&b"early"[..], key.remote(sink.addr() + 100)).signaled(9));
        lab.settle();
        assert_eq!(
            (b.statuses(), a.octets(100, 5)),
            (vec![(9, Success)], b"early".to_vec())
        );
        a.post(wr::ReadWithInvalidate::new(sink, b.remote(0)).signaled(1));
        lab.settle();
        assert_eq!(a.statuses(), [(1, Success)]);
        assert_eq!(a.octets(0, 16), b"sixteen octets..");
        a.post(wr::Send::new(sink).signaled(2));
        assert_eq!(a.statuses(), [(2, LocProtErr)], "the key is free");
    });
}

// covers 2.69
#[test]
fn after_read_with_invalidate_the_peer_cannot_write() {
    Lab::everywhere(|lab| {
        let key = fast_register(&lab.a, Access::LOCAL_WRITE | Access::REMOTE_WRITE, 4096);
        let sink = key.sge(lab.a.memory.address(), 16);
        lab.a
            .post(wr::ReadWithInvalidate::new(sink, lab.b.remote(0)).signaled(1));
        lab.settle();
        assert_eq!(lab.a.statuses(), [(1, Success)]);
        lab.b
            .post(wr::Write::new(&b"late"[..], key.remote(sink.addr())).signaled(9));
        lab.settle();
        assert_eq!(lab.b.terminated(), Some((1, 1, 0x00)));
        assert_eq!(lab.a.octets(0, 4), [0; 4]);
    });
}

// covers 2.24 2.25
#[test]
fn a_read_and_a_fenced_invalidate_succeed() {
    Lab::everywhere(|lab| {
        let key = fast_register(&lab.a, Access::LOCAL_WRITE | Access::REMOTE_WRITE, 4096);
        let sink = key.sge(lab.a.memory.address(), 64);
        lab.b.fill(0, &[7; 64]);
        lab.a.post(wr::Read::new(sink, lab.b.remote(0)).signaled(1));
        lab.a
            .post(wr::LocalInvalidate::new(key.rkey()).fence().signaled(2));
        lab.settle();
        assert_eq!(lab.a.statuses(), [(1, Success), (2, Success)]);
        assert_eq!(lab.a.octets(0, 64), [7; 64]);
    });
}

// covers 2.24
#[test]
fn an_unfenced_invalidate_may_fail_a_read_in_progress() {
    let lab = Lab::stream(None);
    let key = fast_register(&lab.a, Access::LOCAL_WRITE | Access::REMOTE_WRITE, 4096);
    let sink = key.sge(lab.a.memory.address(), 64);
    lab.b.fill(0, &[7; 64]);
    let mut batch = verbs_api::Batch::new();
    batch.push(wr::Read::new(sink, lab.b.remote(0)).signaled(1));
    batch.push(wr::LocalInvalidate::new(key.rkey()).signaled(2));
    lab.a.qp.post(&mut batch).unwrap();
    lab.settle();
    assert_eq!(lab.a.statuses(), [(1, LocProtErr), (2, Success)]);
    assert_eq!(lab.a.octets(0, 64), [0; 64]);
    assert_eq!(lab.b.terminated(), Some((1, 1, 0x00)));
}

// covers 2.63
#[test]
fn a_send_with_invalidate_closes_and_reports_the_key() {
    Lab::everywhere(|lab| {
        let (a, b) = (&lab.a, &lab.b);
        let key = fast_register(b, ALL, 4096);
        b.receive(10, 8000, 16);
        a.post(wr::SendWithInvalidate::new(&b"done"[..], key.rkey()).signaled(1));
        lab.settle();
        assert_eq!(a.statuses(), [(1, Success)]);
        let received = b.poll();
        assert_eq!((received[0].status, received[0].byte_len), (Success, 4));
        assert!(received[0].flags.contains(WcFlags::WITH_INV));
        assert_eq!(received[0].imm, key.rkey().value().to_be_bytes());
        a.post(wr::Write::new(&b"x"[..], key.remote(b.memory.address())).signaled(2));
        lab.settle();
        assert_eq!(a.terminated(), Some((1, 1, 0x00)));
    });
}

// covers 2.63 3.97
#[test]
fn without_a_receive_send_with_invalidate_keeps_the_key() {
    Lab::everywhere(|lab| {
        let key = fast_register(&lab.b, ALL, 4096);
        lab.a
            .post(wr::SendWithInvalidate::new((), key.rkey()).signaled(1));
        lab.settle();
        assert_eq!(lab.a.terminated(), Some((1, 2, 0x02)));
        assert!(
            lab.b
                .device
                .keys()
                .fields(key.rkey().value())
                .is_some_and(|fields| {
                    fields.state == polyverbs_engine::key_table::KeyState::Valid
                })
        );
    });
}

// covers 2.65
#[test]
fn an_uninvalidatable_key_fails_receive_and_connection() {
    Lab::everywhere(|lab| {
        lab.b.receive(10, 0, 16);
        lab.b.receive(11, 0, 16);
        let ordinary = lab.b.mr.rkey();
        lab.a
            .post(wr::SendWithInvalidate::new(&b"data"[..], ordinary).signaled(1));
        lab.settle();
        assert_eq!(lab.b.statuses(), [(10, RemInvReqErr), (11, WrFlushErr)]);
        assert_eq!(lab.b.octets(0, 4), b"data", "the bytes were delivered");
        assert_eq!(lab.a.statuses(), [(1, Success)]);
        assert_eq!(lab.a.terminated(), Some((0, 2, 9)));
        assert_eq!((lab.a.state(), lab.b.state()), (QpState::Err, QpState::Err));
    });
}

// covers 2.65
#[test]
fn invalidating_a_key_of_another_domain_is_a_violation() {
    Lab::everywhere(|lab| {
        let bmme: Bmme = lab.b.context.extension().unwrap();
        let other = lab.b.context.alloc_pd().wait().unwrap();
        let key = bmme.alloc_key(&other, 16).wait().unwrap();
        let pages = PageList::map(&[lab.b.memory.range(0, 4096).unwrap()], 4096, 16)
            .unwrap()
            .list;
        let (keys, pd) = (
            lab.b.device.keys(),
            lab.b.device.keys().fields(key.rkey().value()).unwrap().pd,
        );
        keys.fast_register(key.rkey().value(), pd, &pages, ALL, 0, 4096)
            .unwrap();
        lab.b.receive(10, 0, 16);
        lab.a.post(wr::SendWithInvalidate::new((), key.rkey()));
        lab.settle();
        assert_eq!(lab.b.statuses(), [(10, RemInvReqErr)]);
        assert_eq!(lab.a.terminated(), Some((0, 1, 9)));
    });
}

// covers 3.97 9.44
#[test]
fn a_send_without_a_receive_ends_the_connection() {
    Lab::everywhere(|lab| {
        lab.a.post(wr::Send::new(&b"nobody waits"[..]).signaled(1));
        lab.settle();
        assert_eq!(lab.a.statuses(), [(1, Success)], "the stream had the bytes");
        assert_eq!(lab.a.terminated(), Some((1, 2, 2)));
        assert_eq!((lab.a.state(), lab.b.state()), (QpState::Err, QpState::Err));
        assert_eq!(
            (lab.a.events(), lab.b.events()),
            (vec![EventType::QpFatal], vec![EventType::QpReqErr])
        );
        lab.a.post(wr::Send::new(()).signaled(2));
        assert_eq!(lab.a.statuses(), [(2, WrFlushErr)]);
    });
}

// covers 9.48
#[test]
fn a_send_longer_than_its_receive_fails_both() {
    Lab::everywhere(|lab| {
        lab.b.receive(10, 0, 8);
        lab.b.receive(11, 0, 8);
        lab.a.post(wr::Send::new(&b"nine octets"[..]).signaled(1));
        lab.settle();
        assert_eq!(lab.a.statuses(), [(1, Success)]);
        assert_eq!(
            lab.b.statuses(),
            [(10, WcStatus::LocLenErr), (11, WrFlushErr)]
        );
        assert_eq!(lab.a.terminated(), Some((1, 2, 5)));
    });
}

#[test]
fn a_receive_with_a_bad_key_is_the_fault_of_its_side() {
    Lab::everywhere(|lab| {
        let bad = with_lkey(lab.b.sge(0, 8), 0x7777_7777);
        lab.b
            .qp
            .post_receive(verbs_api::wr::ReceiveRequest::new(10, bad))
            .unwrap();
        lab.a.post(wr::Send::new(&b"octets"[..]).signaled(1));
        lab.settle();
        assert_eq!(lab.b.statuses(), [(10, LocProtErr)]);
        assert_eq!(lab.a.terminated(), Some((1, 0, 0)));
    });
}

/// Chooses the target of a request. Also returns the region, which stays registered while the value
/// exists.
type Target = fn(&Lab) -> (RemoteAddress, Option<Mr>);

/// The start of a region, with the region.
fn named(mr: Mr) -> (RemoteAddress, Option<Mr>) {
    (mr.remote(0), Some(mr))
}

// covers 9.40 9.41
#[test]
fn refused_writes_are_reported_by_their_codes() {
    let cases: [(Target, u8); 4] = [
        (
            |lab| {
                (
                    RemoteAddress::new(lab.b.memory.address(), RKey::new(0x1234_5678)),
                    None,
                )
            },
            0x00,
        ),
        (|lab| named(lab.b.register(Access::REMOTE_READ)), 0x00),
        (|lab| (lab.b.remote(65530), None), 0x01),
        (
            |lab| (RemoteAddress::new(u64::MAX - 3, lab.b.mr.rkey()), None),
            0x03,
        ),
    ];
    for (remote, code) in cases {
        Lab::everywhere(|lab| {
            let (remote, _mr) = remote(lab);
            lab.a
                .post(wr::Write::new(&b"nowhere"[..], remote).signaled(1));
            lab.settle();
            assert_eq!(lab.a.statuses(), [(1, Success)]);
            assert_eq!(lab.a.terminated(), Some((1, 1, code)));
            assert_eq!(
                (lab.a.events(), lab.b.events()),
                (vec![EventType::QpFatal], vec![EventType::QpAccessErr])
            );
        });
    }
}

// covers 9.40
#[test]
fn refused_reads_fail_with_their_status() {
    let cases: [(Target, u8); 4] = [
        (
            |lab| {
                (
                    RemoteAddress::new(lab.b.memory.address(), RKey::new(0x1234_5678)),
                    None,
                )
            },
            0x00,
        ),
        (|lab| (lab.b.remote(65530), None), 0x01),
        (
            |lab| named(lab.b.register(Access::LOCAL_WRITE | Access::REMOTE_WRITE)),
            0x02,
        ),
        (
            |lab| (RemoteAddress::new(u64::MAX - 3, lab.b.mr.rkey()), None),
            0x04,
        ),
    ];
    for (remote, code) in cases {
        Lab::everywhere(|lab| {
            let (remote, _mr) = remote(lab);
            lab.a
                .post(wr::Read::new(lab.a.sge(0, 8), remote).signaled(1));
            lab.settle();
            assert_eq!(lab.a.statuses(), [(1, RemAccessErr)]);
            assert_eq!(lab.a.terminated(), Some((0, 1, code)));
            assert_eq!(lab.b.events(), [EventType::QpAccessErr]);
            assert_eq!(lab.a.events(), [], "the completion reports the failure");
        });
    }
}

#[test]
fn operations_without_the_right_are_unexpected_messages() {
    for wire in [false, true] {
        let lab = if wire {
            Lab::over(None, Default::default())
        } else {
            Lab::unconnected(None, Default::default())
        };
        let lab = lab.connected(verbs_api::PathOptions::new().access(Access::REMOTE_WRITE));
        lab.a
            .post(wr::Read::new(lab.a.sge(0, 8), lab.b.remote(0)).signaled(1));
        lab.settle();
        assert_eq!(lab.a.statuses(), [(1, RemInvReqErr)]);
        assert_eq!(lab.a.terminated(), Some((0, 2, 6)));
    }
}

// covers 1.13
#[test]
fn a_budget_of_zero_refuses_reads_and_atomics() {
    for wire in [false, true] {
        let make = || {
            if wire {
                Lab::over(None, Default::default())
            } else {
                Lab::unconnected(None, Default::default())
            }
        };
        let lab = make().connected(open().max_dest_rd_atomic(0));
        lab.a
            .post(wr::FetchAdd::new(lab.a.sge(0, 8), lab.b.remote(0), 1).signaled(1));
        lab.settle();
        assert_eq!(lab.a.statuses(), [(1, RemInvReqErr)]);
        assert_eq!(lab.a.terminated(), Some((0, 2, 7)));
        let lab = make().connected(open().max_rd_atomic(0));
        lab.a
            .post(wr::Read::new(lab.a.sge(0, 8), lab.b.remote(0)).signaled(1));
        assert_eq!(lab.a.statuses(), [(1, WcStatus::LocQpOpErr)]);
    }
}

#[test]
fn a_window_opens_its_range_to_one_queue_pair() {
    Lab::everywhere(|lab| {
        let (a, b) = (&lab.a, &lab.b);
        let window = b.pd.alloc_mw(MwType::Type2).wait().unwrap();
        let key = window.rkey().next();
        let start = b.memory.address() + 100;
        let bind = wr::BindWindow::new(&window, &b.mr, start, 50)
            .access(Access::REMOTE_WRITE | Access::ZERO_BASED);
        b.post(bind.signaled(5));
        assert_eq!(b.statuses(), [(5, Success)]);
        a.post(wr::Write::new(&b"window"[..], RemoteAddress::new(44, key)).signaled(1));
        lab.settle();
        assert_eq!(
            (a.statuses(), b.octets(144, 6)),
            (vec![(1, Success)], b"window".to_vec())
        );
        a.post(wr::Write::new(&b"window"[..], RemoteAddress::new(45, key)).signaled(2));
        lab.settle();
        assert_eq!(a.terminated(), Some((1, 1, 0x01)));
    });
}
