//! Posting: which requests are taken and refused, and which completions follow.

use crate::support::*;
use verbs_api::provider::Operation;
use verbs_api::qp::{QpState, QpType};
use verbs_api::*;
use verbs_api::{
    capability::Mtu,
    completion::{Notify, WcFlags, WcOpcode},
    wr::{self, PostReason, ReceiveRequest, SendFlags, UdDestination, WorkRequest},
};

// Returns one request of each operation, which is valid except perhaps for the service.
fn each_operation<'r>(rig: &Rig, to: Option<&'r UdDestination>) -> Vec<WorkRequest<'r>> {
    let (a, b) = (&rig.a, &rig.b);
    let (data, remote) = (a.sge(0, 8), b.remote(0));
    let (mut send, mut send_imm) = (
        wr::Send::new(data),
        wr::SendWithImmediate::new(data, [0; 4]),
    );
    if let Some(to) = to {
        (send, send_imm) = (send.to(to), send_imm.to(to));
    }
    vec![
        send.into(),
        send_imm.into(),
        wr::Write::new(data, remote).into(),
        wr::WriteWithImmediate::new(data, remote, [0; 4]).into(),
        wr::BindWindow::default().into(),
        wr::LocalInvalidate::new(RKey::new(1)).into(),
        wr::Read::new(data, remote).into(),
        wr::CompareSwap::new(data, remote, 0, 0).into(),
        wr::FetchAdd::new(data, remote, 0).into(),
        wr::SendWithInvalidate::new(data, b.mr.rkey()).into(),
        wr::FastRegister::default().into(),
        wr::AtomicWrite::new(data, remote).into(),
        wr::Flush::new(remote, 8, Access::FLUSH_GLOBAL).into(),
    ]
}

// covers 3.20
#[test]
fn each_service_refuses_the_operations_of_others() {
    for (qp_type, taken) in [(QpType::Ud, 2), (QpType::Uc, 6), (QpType::Rc, 13)] {
        let rig = Rig::new(Setup {
            qp_type,
            ..Setup::default()
        });
        let ah = rig.a.pd.create_ah(rig.b.path()).wait().unwrap();
        let to = UdDestination {
            ah,
            remote_qpn: rig.b.qp.qp_num(),
            remote_qkey: 0x1111,
        };
        let all = qp_type.operations();
        let options = match qp_type {
            QpType::Ud => QpOptions::ud(&rig.a.cq),
            QpType::Uc => QpOptions::uc(&rig.a.cq),
            _ => QpOptions::rc(&rig.a.cq),
        };
        // The queue pair takes all operations of the service that the device reports.
        let claimed = all - Operations::READ_WITH_INV;
        let qp = rig
            .a
            .pd
            .create_qp(options.operations(claimed).max_send_wr(1))
            .wait()
            .unwrap();
        connect(&qp, rig.b.path(), rig.b.qp.qp_num(), &rig.setup, 1, 1);
        rig.wire.rule(|_| Fate::Drop);
        let requests = each_operation(&rig, (qp_type == QpType::Ud).then_some(&to));
        for (index, request) in requests.into_iter().enumerate() {
            let bit = request.operation();
            if index < taken {
                assert!(claimed.contains(bit), "{qp_type:?} {bit:?}");
                continue;
            }
            let reason = qp.post_one(request).unwrap_err().reason;
            assert_eq!(
                reason,
                PostReason::OperationNotEnabled { missing: bit },
                "{qp_type:?}"
            );
            assert!(
                rig.a
                    .pd
                    .create_qp(
                        match qp_type {
                            QpType::Ud => QpOptions::ud(&rig.a.cq),
                            _ => QpOptions::uc(&rig.a.cq),
                        }
                        .operations(bit)
                    )
                    .wait()
                    .is_err()
            );
        }
        // The one slot is still free.
        let mut first = each_operation(&rig, (qp_type == QpType::Ud).then_some(&to));
        qp.post_one(first.swap_remove(0)).unwrap();
    }
}

// covers 3.20
#[test]
fn a_send_carries_a_destination_on_datagrams_only() {
    let rig = Rig::rc();
    let ah = rig.a.pd.create_ah(rig.b.path()).wait().unwrap();
    let to = UdDestination {
        ah,
        remote_qpn: rig.b.qp.qp_num(),
        remote_qkey: 0,
    };
    let reason = rig
        .a
        .qp
        .post_one(wr::Send::new(rig.a.sge(0, 8)).to(&to))
        .unwrap_err()
        .reason;
    assert_eq!(reason, PostReason::DestinationOnConnected);
    let rig = Rig::ud();
    assert_eq!(
        rig.a
            .qp
            .post_one(wr::Send::new(rig.a.sge(0, 8)))
            .unwrap_err()
            .reason,
        PostReason::NoDestination
    );
}

// covers 3.21
#[test]
fn a_list_stops_at_its_first_bad_entry() {
    let rig = Rig::rc();
    let (a, b) = (&rig.a, &rig.b);
    let bad = || wr::Send::new(&[0; 65]);
    let good = |id| wr::Write::new(a.sge(0, 8), b.remote(0)).signaled(id);
    let mut batch = Batch::new();
    batch.push(good(1));
    batch.push(good(2));
    batch.push(bad());
    batch.push(good(4));
    let error = a.qp.post(&mut batch).unwrap_err();
    assert_eq!(
        (error.index, error.reason),
        (2, PostReason::InlineTooLong { max: 64, given: 65 })
    );
    assert_eq!(batch.len(), 2);
    rig.run();
    assert_eq!(a.done(), ok([1, 2]));
    let mut batch = Batch::new();
    batch.push(bad());
    batch.push(good(2));
    assert_eq!(a.qp.post(&mut batch).unwrap_err().index, 0);
    rig.run();
    assert_eq!((batch.len(), a.done()), (2, vec![]));
    // A list also stops where the queue becomes full.
    rig.wire.rule(|_| Fate::Drop);
    let mut batch = Batch::new();
    (0..70).for_each(|id| batch.push(good(id)));
    let error = a.qp.post(&mut batch).unwrap_err();
    assert_eq!(
        (error.index, error.reason),
        (64, PostReason::QueueFull { max: 64 })
    );
    assert_eq!(batch.len(), 6);
}

// covers 3.22
#[test]
fn only_outstanding_requests_fill_a_send_queue() {
    for direct in [false, true] {
        let rig = Rig::new(Setup {
            direct,
            ..Setup::default()
        });
        let (a, b) = (&rig.a, &rig.b);
        let qp =
            a.pd.create_qp(QpOptions::rc(&a.cq).max_send_wr(4))
                .wait()
                .unwrap();
        let peer = b.pd.create_qp(QpOptions::rc(&b.cq)).wait().unwrap();
        connect(&qp, b.path(), peer.qp_num(), &rig.setup, 1, 2);
        connect(&peer, a.path(), qp.qp_num(), &rig.setup, 2, 1);
        // There is no receive: the first request waits, and later ones fill the queue.
        let send = || {
            qp.post_one(wr::Send::new(a.sge(0, 8)))
                .map_err(|rejected| rejected.reason)
        };
        (0..4).for_each(|_| send().unwrap());
        assert_eq!(send(), Err(PostReason::QueueFull { max: 4 }));
        (0..5).for_each(|id| {
            peer.post_receive(ReceiveRequest::new(id, b.sge(0, 8)))
                .unwrap()
        });
        rig.run();
        send().unwrap();
        rig.run();
        assert_eq!((b.done(), a.done()), (ok(0..5), vec![]));
        // A slot is free again when its request has completed, whether the program polls or not.
        for _ in 0..100 {
            qp.post_one(wr::Write::new(a.sge(0, 8), b.remote(0)))
                .unwrap();
            rig.run();
        }
        assert_eq!(a.done(), []);
    }
}

// covers 3.24
#[test]
fn only_solicited_completions_wake_a_queue_armed_for_them() {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};
    for direct in [false, true] {
        let rig = Rig::new(Setup {
            direct,
            ..Setup::default()
        });
        let (a, b) = (&rig.a, &rig.b);
        let notices = Arc::new(AtomicU32::new(0));
        let count = Arc::clone(&notices);
        b.cq.on_completion(move |_| {
            count.fetch_add(1, Ordering::Relaxed);
        });
        (0..8).for_each(|id| b.receive(id, 0, 64));
        let data = a.sge(0, 8);
        let plain: [WorkRequest<'_>; 4] = [
            wr::Send::new(data).into(),
            wr::SendWithImmediate::new(data, [0; 4]).into(),
            wr::WriteWithImmediate::new(data, b.remote(512), [0; 4]).into(),
            // A plain write has no completion at the peer, so the mark has no effect.
            wr::Write::new(data, b.remote(512))
                .flags(SendFlags::SOLICITED)
                .into(),
        ];
        b.cq.arm(Notify::Solicited).unwrap();
        for request in plain {
            a.post(request);
            rig.run();
        }
        assert_eq!((notices.load(Ordering::Relaxed), b.done().len()), (0, 3));
        let marked: [WorkRequest<'_>; 3] = [
            wr::Send::new(data).solicited().into(),
            wr::SendWithImmediate::new(data, [0; 4]).solicited().into(),
            wr::WriteWithImmediate::new(data, b.remote(512), [0; 4])
                .solicited()
                .into(),
        ];
        for (index, request) in marked.into_iter().enumerate() {
            b.cq.arm(Notify::Solicited).unwrap();
            a.post(request);
            rig.run();
            assert_eq!(
                (notices.load(Ordering::Relaxed) as usize, b.done().len()),
                (index + 1, 1)
            );
        }
        // Every error counts as solicited.
        b.cq.arm(Notify::Solicited).unwrap();
        b.go_to(QpState::Err);
        assert_eq!(notices.load(Ordering::Relaxed), 4);
    }
}

// covers 3.25
#[test]
fn only_signaled_requests_complete_unless_all_are_signaled() {
    for direct in [false, true] {
        for sq_sig_all in [false, true] {
            let rig = Rig::new(Setup {
                direct,
                sq_sig_all,
                ..Setup::default()
            });
            let (a, b) = (&rig.a, &rig.b);
            (0..3).for_each(|id| a.post(wr::Write::new(a.sge(0, 8), b.remote(0)).wr_id(id)));
            a.post(wr::Write::new(a.sge(0, 8), b.remote(0)).signaled(3));
            rig.run();
            assert_eq!(a.done(), if sq_sig_all { ok(0..4) } else { ok([3]) });
        }
    }
    let rig = Rig::rc();
    rig.wire.rule(|_| Fate::Drop);
    (0..3).for_each(|id| {
        rig.a
            .post(wr::Write::new(rig.a.sge(0, 8), rig.b.remote(0)).wr_id(id))
    });
    rig.a.go_to(QpState::Err);
    assert_eq!(rig.a.done(), [0, 1, 2].map(|id| (id, WcStatus::WrFlushErr)));
}

// covers 3.26 3.28 3.29
#[test]
fn unsignaled_requests_complete_only_on_failure_or_flush() {
    for direct in [false, true] {
        let rig = Rig::new(Setup {
            direct,
            ..Setup::default()
        });
        let (a, b) = (&rig.a, &rig.b);
        a.receive(20, 0, 8);
        a.receive(21, 0, 8);
        a.post(wr::Write::new(a.sge(0, 8), b.remote(0)).wr_id(1));
        a.post(wr::Write::new(a.sge(0, 8), b.remote(0)).wr_id(2));
        a.post(wr::Write::new(a.sge(0, 8), RemoteAddress::default()).wr_id(3));
        a.post(wr::Write::new(a.sge(0, 8), b.remote(0)).wr_id(4));
        rig.run();
        let all = a.completions();
        let of = |receives: bool| {
            let those = all.iter().filter(|done| (done.wr_id >= 20) == receives);
            those
                .map(|done| (done.wr_id, done.status))
                .collect::<Vec<_>>()
        };
        assert_eq!(
            of(false),
            [(3, WcStatus::RemAccessErr), (4, WcStatus::WrFlushErr)],
            "{direct}"
        );
        assert_eq!(
            of(true),
            [(20, WcStatus::WrFlushErr), (21, WcStatus::WrFlushErr)]
        );
        assert!(
            all.iter()
                .all(|done| done.qp_num == a.qp.qp_num() && done.byte_len == 0)
        );
        assert!(
            all.iter()
                .all(|done| done.immediate().is_none() && done.invalidated_rkey().is_none())
        );
    }
}

// covers 3.29
#[test]
fn a_queue_pair_enters_the_error_state_before_it_reports_one() {
    use std::sync::Arc;

    use verbs_api::provider::Mutex;
    let rig = Rig::new(Setup {
        direct: true,
        ..Setup::default()
    });
    let seen = Arc::new(Mutex::new(Vec::new()));
    let (states, qp) = (Arc::clone(&seen), rig.a.qp.clone());
    rig.a
        .cq
        .on_completion(move |_| states.lock().push(qp.query().unwrap().state));
    rig.a.cq.arm(Notify::Next).unwrap();
    rig.a
        .post(wr::Write::new(rig.a.sge(0, 8), RemoteAddress::default()));
    assert_eq!(*seen.lock(), [QpState::Err]);
}

// covers 3.31
#[test]
fn atomics_access_eight_bytes_at_an_aligned_address() {
    for direct in [false, true] {
        let make = || {
            Rig::new(Setup {
                direct,
                ..Setup::default()
            })
        };
        let rig = make();
        let (a, b) = (&rig.a, &rig.b);
        let short = wr::FetchAdd::new(a.sge(0, 7), b.remote(0), 1);
        assert_eq!(
            a.qp.post_one(short).unwrap_err().reason,
            PostReason::AtomicLength { given: 7 }
        );
        b.memory.store_u64(0, 5).unwrap();
        a.post(wr::FetchAdd::new(a.sge(0, 8), b.remote(0), 2).signaled(1));
        a.post(wr::CompareSwap::new(a.sge(8, 8), b.remote(0), 7, 9).signaled(2));
        a.post(wr::CompareSwap::new(a.sge(16, 8), b.remote(0), 7, 11).signaled(3));
        // The result may be stored anywhere, also in pieces.
        let pieces = [a.sge(33, 3), a.sge(41, 5)];
        a.post(wr::FetchAdd::new(&pieces, b.remote(0), 1).signaled(4));
        rig.run();
        let done = a.completions();
        assert!(
            done.iter()
                .all(|done| done.status.is_success() && done.byte_len == 8)
        );
        let results = [0, 8, 16].map(|place| a.memory.load_u64(place).unwrap());
        assert_eq!((results, b.memory.load_u64(0).unwrap()), ([5, 7, 9], 10));
        let split = [a.read(33, 3), a.read(41, 5)].concat();
        assert_eq!(split, 9_u64.to_ne_bytes());
        for misaligned in [1, 2, 4] {
            for swap in [false, true] {
                let rig = make();
                let (sink, place) = (rig.a.sge(0, 8), rig.b.remote(8 + misaligned));
                let request: WorkRequest<'_> = match swap {
                    true => wr::CompareSwap::new(sink, place, 0, 9).signaled(1).into(),
                    false => wr::FetchAdd::new(sink, place, 9).signaled(1).into(),
                };
                rig.a.post(request);
                rig.run();
                assert_eq!(rig.a.done(), [(1, WcStatus::RemInvReqErr)]);
                assert_eq!(rig.b.read(0, 32), [0; 32]);
            }
        }
    }
}

// covers 3.32
#[test]
fn a_datagram_needs_a_route_of_its_domain_and_fits_one_frame() {
    for (mtu, direct) in [(Some(Mtu::Mtu512), false), (None, true)] {
        let rig = Rig::new(Setup {
            qp_type: QpType::Ud,
            mtu,
            direct,
            ..Setup::default()
        });
        let (a, b) = (&rig.a, &rig.b);
        let ah = a.pd.create_ah(b.path()).wait().unwrap();
        let to = |remote_qkey| UdDestination {
            ah: ah.clone(),
            remote_qpn: b.qp.qp_num(),
            remote_qkey,
        };
        let other = a.context.alloc_pd().wait().unwrap();
        let foreign = UdDestination {
            ah: other.create_ah(b.path()).wait().unwrap(),
            ..to(0)
        };
        let reason = |length, to: &UdDestination| {
            a.qp.post_one(wr::Send::new(a.sge(0, length)).to(to).signaled(1))
                .map_err(|rejected| rejected.reason)
        };
        let max = mtu.map_or(4096, Mtu::octets) as usize;
        assert_eq!(reason(8, &foreign), Err(PostReason::ForeignAh));
        let too_long = PostReason::MessageTooLong {
            max: max as u64,
            given: max as u64 + 1,
        };
        assert_eq!(reason(max + 1, &to(0x1111)), Err(too_long));
        b.receive(1, 0, 40 + max);
        b.receive(2, 8192, 48);
        a.write(0, &pattern(max, 2));
        assert_eq!(reason(max, &to(0x1111)), Ok(()));
        // With the top bit set, the queue pair's own key applies, whatever the other bits.
        assert_eq!(reason(8, &to(0x8000_2222)), Ok(()));
        assert_eq!(reason(8, &to(0x2222)), Ok(()));
        rig.run();
        assert_eq!((a.done(), b.done()), (ok([1, 1, 1]), ok([1, 2])));
        assert_eq!(b.read(40, max), pattern(max, 2));
    }
}

// covers 3.33
#[test]
fn a_datagram_completion_counts_the_forty_bytes_before_it() {
    for direct in [false, true] {
        let rig = Rig::new(Setup {
            qp_type: QpType::Ud,
            direct,
            ..Setup::default()
        });
        let (a, b) = (&rig.a, &rig.b);
        let ah = a.pd.create_ah(b.path()).wait().unwrap();
        let to = UdDestination {
            ah,
            remote_qpn: b.qp.qp_num(),
            remote_qkey: 0x1111,
        };
        let send = |length| a.post(wr::Send::new(a.sge(0, length)).to(&to));
        b.write(0, &[0xee; 128]);
        b.receive(1, 0, 40 + 8);
        send(9);
        rig.run();
        assert_eq!((b.done(), b.read(0, 128)), (vec![], vec![0xee; 128]));
        a.write(0, b"datagram");
        send(8);
        rig.run();
        let done = b.completions();
        assert_eq!(
            (done[0].wr_id, done[0].byte_len, done[0].src_qp),
            (1, 48, a.qp.qp_num())
        );
        assert!(done[0].wc_flags.contains(WcFlags::GRH));
        assert_eq!(
            (b.read(20, 1), b.read(40, 8)),
            (vec![0x45], b"datagram".to_vec())
        );
        // The receive has several entries, and the header may end in any of them.
        let pieces = [b.sge(256, 17), b.sge(512, 30), b.sge(1024, 20)];
        b.qp.post_receive(ReceiveRequest::new(2, &pieces)).unwrap();
        send(8);
        rig.run();
        assert_eq!(b.completions()[0].byte_len, 48);
        assert_eq!([b.read(535, 7), b.read(1024, 1)].concat(), b"datagram");
    }
}

// covers 3.34 3.35
#[test]
fn write_with_immediate_takes_a_receive_but_not_its_buffer() {
    for direct in [false, true] {
        let rig = Rig::new(Setup {
            direct,
            ..Setup::default()
        });
        let (a, b) = (&rig.a, &rig.b);
        b.write(0, &[0xee; 64]);
        b.receive(1, 0, 64);
        b.qp.post_receive(ReceiveRequest::new(2, ())).unwrap();
        b.qp.post_receive(ReceiveRequest::new(3, ())).unwrap();
        let immediate = [0x00, 0x01, 0xfe, 0xff];
        for length in [10, 3000, 0] {
            a.post(wr::WriteWithImmediate::new(
                a.sge(0, length),
                b.remote(8192),
                immediate,
            ));
        }
        rig.run();
        let done = b.completions();
        let told: Vec<_> = done
            .iter()
            .map(|done| (done.wr_id, done.byte_len, done.immediate()))
            .collect();
        assert_eq!(
            told,
            [
                (1, 10, Some(immediate)),
                (2, 3000, Some(immediate)),
                (3, 0, Some(immediate))
            ]
        );
        assert!(
            done.iter()
                .all(|done| done.opcode == WcOpcode::RecvRdmaWithImm)
        );
        assert_eq!(b.read(0, 64), [0xee; 64]);
    }
}
