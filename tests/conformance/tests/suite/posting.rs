//! Which completions follow the posted requests: FEATURES 3.24 to 3.33.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::{cases, steered_cases};
use conformance::{ANY_DEVICE, Evidence, Outcome, Pair, Rig, needs};
use verbs_api::provider::Mutex;
use verbs_api::qp::{QpState, QpType};
use verbs_api::{
    Access, Batch, Completion, Cq, Features, Memory, Operations, RemoteAddress, WcStatus,
    capability::BaselineGaps,
    completion::{Notify, WcFlags, WcOpcode},
    provider::Operation,
    wr::{self, PostReason, SendFlags, UdDestination, WorkRequest},
};

use crate::support::{
    datagrams, done, flushed, go_to, half_connected, ok, poll, statuses, unusable,
};

cases! {
    a_queue_armed_for_solicited_sleeps_through_the_rest: ANY_DEVICE;
    a_solicited_invalidation_is_noticed: needs(Features::BMME);
    only_marked_requests_complete_visibly: ANY_DEVICE;
    a_queue_pair_that_signals_all_completes_all: ANY_DEVICE;
    unsignaled_requests_that_fail_complete: ANY_DEVICE;
    success_in_silence_stays_silent: ANY_DEVICE;
    a_failed_completion_reports_only_id_and_status: ANY_DEVICE;
    the_error_comes_first_then_the_flush: ANY_DEVICE;
    the_state_changes_before_the_error_is_seen: ANY_DEVICE;
    in_err_every_request_is_accepted_and_flushed: ANY_DEVICE;
    atomics_return_eight_bytes: ANY_DEVICE.without(BaselineGaps::NO_ATOMICS);
    a_misaligned_atomic_changes_nothing: ANY_DEVICE.without(BaselineGaps::NO_ATOMICS);
    a_fence_without_reads_to_wait_for_changes_nothing: ANY_DEVICE.without(BaselineGaps::NO_UC);
    a_datagram_fits_one_frame_and_its_domain: ANY_DEVICE.without(BaselineGaps::NO_UD);
    a_grh_area_of_40_bytes_precedes_each_datagram: ANY_DEVICE.without(BaselineGaps::NO_UD);
}

steered_cases! {
    a_flushed_request_leaves_its_slot_at_once: ANY_DEVICE;
}

const OPEN: Access = Access::LOCAL_WRITE
    .union(Access::REMOTE_READ)
    .union(Access::REMOTE_WRITE);

/// Counts the notices of a queue.
fn notices(cq: &Cq) -> Arc<AtomicU32> {
    let count = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&count);
    cq.on_completion(move |_| {
        counted.fetch_add(1, Ordering::Relaxed);
    });
    count
}

fn told(count: &AtomicU32) -> u32 {
    count.swap(0, Ordering::Relaxed)
}

// covers 3.24 7.80
fn a_queue_armed_for_solicited_sleeps_through_the_rest(rig: &Rig) -> Outcome {
    let desk = rig.far.region(4096, OPEN)?;
    let pair = rig.rc()?;
    (0..8).try_for_each(|at| pair.far.receive(&desk, at * 64, 64))?;
    let count = notices(&pair.far.cq);
    let offered = pair.near.operations();
    let (data, place) = (rig.scratch.sge(0, 8)?, desk.remote(2048));
    let requests = |flags: SendFlags| {
        let all: [WorkRequest<'static>; 4] = [
            wr::Send::new(data).flags(flags).into(),
            wr::SendWithImmediate::new(data, [1; 4]).flags(flags).into(),
            wr::WriteWithImmediate::new(data, place, [2; 4])
                .flags(flags)
                .into(),
            // A write has no completion at the other end that could be solicited.
            wr::Write::new(data, place).flags(flags).into(),
        ];
        let taken = move |request: &WorkRequest<'_>| offered.contains(request.operation());
        all.into_iter().filter(taken)
    };
    pair.far.cq.arm(Notify::Solicited).expect("armed");
    for request in requests(SendFlags::empty()) {
        pair.near.post_one(request).expect("posted");
        rig.settle();
    }
    let plain = poll(&pair.far.cq).len();
    assert_eq!(told(&count), 0, "nothing was solicited");
    // The queue is still armed from before; after that the test arms it for each request.
    let mut marked = 0;
    for request in requests(SendFlags::SOLICITED) {
        let completes = request.operation() != Operations::WRITE;
        pair.near.post_one(request).expect("posted");
        rig.settle();
        assert_eq!(told(&count), u32::from(completes));
        marked += poll(&pair.far.cq).len();
        pair.far.cq.arm(Notify::Solicited).expect("armed");
    }
    assert_eq!(marked, plain);
    // An error notifies as well, and one arming gives one notification only.
    go_to(rig, &pair.far, QpState::Err)?;
    rig.settle();
    assert_eq!(told(&count), 1);
    assert_eq!(poll(&pair.far.cq).len(), 8 - marked - plain);
    Ok(())
}

// covers 3.24
fn a_solicited_invalidation_is_noticed(rig: &Rig) -> Outcome {
    let desk = rig.far.region(64, OPEN)?;
    let pair = rig.rc()?;
    let count = notices(&pair.far.cq);
    let fast = rig.far.fast(4096)?;
    for solicited in [false, true] {
        rig.succeeds(&pair.far, fast.register_afresh(OPEN).signaled(1))?;
        pair.far.receive(&desk, 0, 64)?;
        pair.far.cq.arm(Notify::Solicited).expect("armed");
        let send = wr::SendWithInvalidate::new((), fast.rkey()).signaled(2);
        let send = if solicited { send.solicited() } else { send };
        rig.succeeds(&pair.near, send)?;
        let taken = rig.take(&pair.far.cq, 1)?;
        assert!(taken[0].wc_flags.contains(WcFlags::WITH_INV));
        rig.settle();
        assert_eq!(told(&count), u32::from(solicited));
    }
    Ok(())
}

// covers 3.25
fn only_marked_requests_complete_visibly(rig: &Rig) -> Outcome {
    let desk = rig.far.region(4096, OPEN)?;
    let pair = rig.rc()?;
    // The requests are posted one by one and as one list; a device that segments messages segments the long ones.
    for listed in [false, true] {
        let mut batch = Batch::new();
        for id in 0..8 {
            let write = wr::Write::new(rig.scratch.sge(0, 1500)?, desk.remote(0)).wr_id(id);
            batch.push(if id % 4 == 3 {
                write.signaled(id)
            } else {
                write
            });
            if !listed {
                pair.near.post(&mut batch).expect("posted");
            }
        }
        pair.near.post(&mut batch).expect("posted");
        assert_eq!(done(rig, &pair.near.cq), ok([3, 7]));
    }
    Ok(())
}

// covers 3.25
fn a_queue_pair_that_signals_all_completes_all(rig: &Rig) -> Outcome {
    let desk = rig.far.region(4096, OPEN)?;
    let all = rig.near.side_with(&rig.near.pd, |cq| {
        rig.near.options(QpType::Rc, cq).sq_sig_all()
    })?;
    let pair = rig.connected(all, rig.far.side(QpType::Rc)?)?;
    let mut batch = Batch::new();
    batch.push(wr::Write::new(rig.scratch.sge(0, 8)?, desk.remote(0)).wr_id(1));
    batch.push(wr::Read::new(rig.scratch.sge(64, 2000)?, desk.remote(0)).wr_id(2));
    batch.push(wr::Write::new(rig.scratch.sge(0, 8)?, desk.remote(0)).signaled(3));
    batch.push(wr::Write::new(&b"inline"[..], desk.remote(0)).wr_id(4));
    pair.near.post(&mut batch).expect("posted");
    assert_eq!(done(rig, &pair.near.cq), ok([1, 2, 3, 4]));
    Ok(())
}

// covers 3.25
fn unsignaled_requests_that_fail_complete(rig: &Rig) -> Outcome {
    let nowhere = RemoteAddress::default();
    if let Some(pair) = half_connected(rig)? {
        for id in 0..3 {
            let read = wr::Read::new(rig.scratch.sge(0, 8)?, nowhere).wr_id(id);
            pair.near.post_one(read).expect("posted");
        }
        go_to(rig, &pair.near, QpState::Err)?;
        assert_eq!(done(rig, &pair.near.cq), flushed(0..3));
    }
    // The requests fail for reasons of their own: on this side, and on the peer's.
    let pair = rig.rc()?;
    let bad = wr::Write::new(unusable(rig), nowhere).wr_id(4);
    pair.near.post_one(bad).expect("posted");
    assert_eq!(done(rig, &pair.near.cq), [(4, WcStatus::LocProtErr)]);
    let pair = rig.rc()?;
    let bad = wr::Read::new(rig.scratch.sge(0, 8)?, nowhere).wr_id(5);
    pair.near.post_one(bad).expect("posted");
    assert_eq!(done(rig, &pair.near.cq), [(5, WcStatus::RemAccessErr)]);
    Ok(())
}

// covers 3.26
fn success_in_silence_stays_silent(rig: &Rig) -> Outcome {
    let desk = rig.far.region(4096, OPEN)?;
    for listed in [false, true] {
        let pair = rig.rc()?;
        let data = rig.scratch.sge(0, 2000)?;
        let write = |id| wr::Write::new(data, desk.remote(0)).wr_id(id);
        let mut batch = Batch::new();
        batch.push(write(1));
        batch.push(write(2));
        if !listed {
            pair.near.post(&mut batch).expect("posted");
            rig.settle();
        }
        batch.push(wr::Read::new(rig.scratch.sge(64, 8)?, RemoteAddress::default()).wr_id(3));
        pair.near.post(&mut batch).expect("posted");
        assert_eq!(done(rig, &pair.near.cq), [(3, WcStatus::RemAccessErr)]);
        assert_eq!(pair.near.state()?, QpState::Err);
    }
    Ok(())
}

// covers 3.28
fn a_failed_completion_reports_only_id_and_status(rig: &Rig) -> Outcome {
    let pool = rig
        .near
        .pd
        .register_buffers(3, 64)
        .wait()
        .expect("a pool of buffers");
    let pair = rig.rc()?;
    pair.near
        .post_receive(pool.take().expect("a buffer"))
        .expect("a receive");
    let good = rig.far.region(64, OPEN)?;
    let bad = wr::Read::new(unusable(rig), good.remote(0)).wr_id(7);
    pair.near.post_one(bad).expect("posted");
    // The request is fenced: a device may find a fault of a read's sink only when the response arrives, and later
    // requests need not wait for that.
    let handed = wr::Send::new(pool.take().expect("a buffer")).wr_id(8);
    pair.near.post_one(handed.fence()).expect("posted");
    rig.settle();
    let mut all = poll(&pair.near.cq);
    let of = |id| all.iter().find(|done| done.wr_id == id).map(|it| it.status);
    assert_eq!(of(7), Some(WcStatus::LocProtErr));
    assert_eq!(of(8), Some(WcStatus::WrFlushErr));
    assert_eq!(all.len(), 3);
    for done in &all {
        assert_eq!(done.qp_num, pair.near.qp_num());
        assert_eq!((done.immediate(), done.invalidated_rkey()), (None, None));
        assert_eq!((done.byte_len, done.wc_flags), (0, WcFlags::empty()));
    }
    // Buffers return with the completion, whether the request failed or not.
    let home: usize = all.iter_mut().map(|done| done.take_buffers().count()).sum();
    assert_eq!((home, pool.available()), (2, 3));
    Ok(())
}

// covers 3.29
fn the_error_comes_first_then_the_flush(rig: &Rig) -> Outcome {
    let desk = rig.near.region(4096, OPEN)?;
    let good = rig.far.region(4096, OPEN)?;
    // The receives have a queue of their own, so that the order of each is visible.
    let receives = rig.near.cq(64)?;
    for bad in [rig.scratch.sge(64, 8)?, unusable(rig)] {
        let near = rig.near.side_with(&rig.near.pd, |cq| {
            rig.near.options(QpType::Rc, cq).recv_cq(&receives)
        })?;
        let pair = rig.connected(near, rig.far.side(QpType::Rc)?)?;
        (0..3).try_for_each(|at| pair.near.receive(&desk, at * 64, 64))?;
        let sink = rig.scratch.sge(0, 8)?;
        let read = |id| wr::Read::new(sink, good.remote(0)).signaled(id);
        let mut batch = Batch::new();
        batch.push(read(100));
        batch.push(wr::Read::new(bad, RemoteAddress::default()).wr_id(101));
        batch.push(read(102));
        batch.push(wr::Read::new(bad, RemoteAddress::default()).signaled(103));
        batch.push(read(104));
        pair.near.post(&mut batch).expect("posted");
        let sent = done(rig, &pair.near.cq);
        assert_eq!(sent[0], (100, WcStatus::Success));
        assert_eq!(sent[1].0, 101);
        assert!(![WcStatus::Success, WcStatus::WrFlushErr].contains(&sent[1].1));
        assert_eq!(sent[2..], flushed([102, 103, 104]), "one reason, once");
        assert_eq!(statuses(&poll(&receives)), flushed([0, 64, 128]));
    }
    Ok(())
}

// covers 3.29 7.82
fn the_state_changes_before_the_error_is_seen(rig: &Rig) -> Outcome {
    for locally in [false, true] {
        let pair = rig.rc()?;
        let seen = Arc::new(Mutex::new(Vec::new()));
        let (states, qp) = (Arc::clone(&seen), pair.near.qp.clone());
        pair.near.cq.on_completion(move |cq| {
            let state = qp.query().expect("a queue pair that lives").state;
            let mut states = states.lock();
            states.extend(statuses(&poll(cq)).into_iter().map(|done| (done, state)));
            drop(states);
            cq.arm(Notify::Next).expect("armed");
        });
        pair.near.cq.arm(Notify::Next).expect("armed");
        let good = rig.far.region(64, OPEN)?;
        let read = match locally {
            true => wr::Read::new(unusable(rig), good.remote(0)),
            false => wr::Read::new(rig.scratch.sge(0, 8)?, RemoteAddress::default()),
        };
        let read = read.wr_id(1);
        pair.near.post_one(read).expect("posted");
        rig.settle();
        let status = if locally {
            WcStatus::LocProtErr
        } else {
            WcStatus::RemAccessErr
        };
        let seen = seen.lock();
        assert_eq!(*seen, [((1, status), QpState::Err)]);
    }
    Ok(())
}

// covers 3.30
fn in_err_every_request_is_accepted_and_flushed(rig: &Rig) -> Outcome {
    flushed_behind(rig, 64)?;
    Ok(())
}

// Real adapters free the slot when its completion is polled.
// covers 3.30
fn a_flushed_request_leaves_its_slot_at_once(rig: &Rig) -> Outcome {
    flushed_behind(rig, 4)?;
    Ok(())
}

fn flushed_behind(rig: &Rig, slots: u32) -> Outcome {
    let desk = rig.near.region(4096, OPEN)?;
    let receives = rig.near.cq(512)?;
    let near = rig.near.side_with(&rig.near.pd, |cq| {
        let options = rig.near.options(QpType::Rc, cq).recv_cq(&receives);
        options.max_send_wr(slots).max_recv_wr(slots)
    })?;
    let far = rig.far.side(QpType::Rc)?;
    let (near, _far, outstanding) = match rig.has_gap(BaselineGaps::NO_MODIFY_TO_RTR) {
        true => {
            let Pair { near, far } = rig.connected(near, far)?;
            (near, far, 0)
        }
        false => {
            let at_far = far.endpoint().expect("an endpoint");
            rig.finish(near.connect(&at_far, verbs_api::PathOptions::new()))?;
            (near, far, 2)
        }
    };
    let sink = rig.scratch.sge(0, 8)?;
    let read = |id| wr::Read::new(sink, RemoteAddress::default()).wr_id(id);
    (0..outstanding).for_each(|id| near.post_one(read(id)).expect("posted"));
    (0..2).try_for_each(|at| near.receive(&desk, at, 8))?;
    go_to(rig, &near, QpState::Err)?;
    (outstanding..20).for_each(|id| near.post_one(read(id)).expect("taken"));
    (2..20).try_for_each(|at| near.receive(&desk, at, 8))?;
    let mut batch = Batch::new();
    (20..40).for_each(|id| batch.push(read(id)));
    near.post(&mut batch).expect("taken");
    assert_eq!(done(rig, &near.cq), flushed(0..40));
    assert_eq!(done(rig, &receives), flushed(0..20));
    assert_eq!(near.state()?, QpState::Err);
    Ok(())
}

// covers 3.31
fn atomics_return_eight_bytes(rig: &Rig) -> Outcome {
    let access = OPEN | Access::REMOTE_ATOMIC;
    let counter = rig.far.region(64, access)?;
    let pair = rig.rc()?;
    let near = &pair.near;
    for given in [0, 7] {
        let result = rig.scratch.sge(0, given)?;
        let given = u64::from(given);
        let add = near.post_one(wr::FetchAdd::new(result, counter.remote(0), 1));
        let swap = near.post_one(wr::CompareSwap::new(result, counter.remote(0), 0, 1));
        for refused in [add, swap] {
            let reason = refused.expect_err("too short").reason;
            assert_eq!(reason, PostReason::AtomicLength { given });
        }
    }
    let word = |memory: &Memory, at| memory.load_u64(at).expect("inside");
    counter.memory.store_u64(0, 5).expect("inside");
    let done = |request: WorkRequest<'_>| -> Outcome {
        let opcode = request.wc_opcode();
        near.post_one(request).expect("posted");
        let done = rig.take(&near.cq, 1)?.remove(0);
        assert_eq!((done.status, done.opcode), (WcStatus::Success, opcode));
        assert_eq!(done.byte_len, 8);
        Ok(())
    };
    let place = counter.remote(0);
    done(
        wr::FetchAdd::new(rig.scratch.sge(0, 8)?, place, 2)
            .signaled(1)
            .into(),
    )?;
    done(
        wr::CompareSwap::new(rig.scratch.sge(8, 8)?, place, 7, 9)
            .signaled(2)
            .into(),
    )?;
    // The values differ: nothing is swapped, and the response holds the value in memory.
    done(
        wr::CompareSwap::new(rig.scratch.sge(16, 8)?, place, 7, 11)
            .signaled(3)
            .into(),
    )?;
    // The sum wraps. The result may be placed at any address, and in several entries.
    let pieces = [rig.scratch.sge(33, 3)?, rig.scratch.sge(41, 5)?];
    done(
        wr::FetchAdd::new(&pieces, place, u64::MAX)
            .signaled(4)
            .into(),
    )?;
    let results = [0, 8, 16].map(|at| word(&rig.scratch.memory, at));
    assert_eq!((results, word(&counter.memory, 0)), ([5, 7, 9], 8));
    let split = [rig.scratch.bytes(33, 3)?, rig.scratch.bytes(41, 5)?].concat();
    assert_eq!(split, 9_u64.to_ne_bytes());
    assert_eq!(counter.bytes(8, 56)?, [0; 56], "nothing else was touched");
    // A longer result entry is allowed; only its first eight bytes are written.
    rig.scratch.put(64, &[0xab; 32])?;
    done(
        wr::FetchAdd::new(rig.scratch.sge(64, 24)?, place, 0)
            .signaled(5)
            .into(),
    )?;
    assert_eq!(word(&rig.scratch.memory, 64), 8);
    assert_eq!(rig.scratch.bytes(72, 24)?, [0xab; 24]);
    Ok(())
}

// covers 3.31
fn a_misaligned_atomic_changes_nothing(rig: &Rig) -> Outcome {
    let counter = rig.far.region(64, OPEN | Access::REMOTE_ATOMIC)?;
    for at in [1, 2, 4, 7] {
        let (sink, place) = (rig.scratch.sge(0, 8)?, counter.remote(8 + at));
        let requests: [WorkRequest<'_>; 2] = [
            wr::FetchAdd::new(sink, place, 9).signaled(1).into(),
            wr::CompareSwap::new(sink, place, 0, 9).signaled(1).into(),
        ];
        for request in requests {
            rig.scratch.put(0, &[0xab; 8])?;
            rig.is_invalid(&rig.rc()?, request)?;
            assert_eq!(counter.bytes(0, 64)?, [0; 64]);
            assert_eq!(rig.scratch.bytes(0, 8)?, [0xab; 8], "no result");
        }
    }
    Ok(())
}

fn send_to<'r>(
    rig: &Rig,
    to: &'r UdDestination,
    length: u32,
    id: u64,
) -> Result<wr::Send<'r>, Evidence> {
    Ok(wr::Send::new(rig.scratch.sge(0, length)?)
        .to(to)
        .signaled(id))
}

// covers 3.23
fn a_fence_without_reads_to_wait_for_changes_nothing(rig: &Rig) -> Outcome {
    let desk = rig.far.region(64, OPEN)?;
    let pair = rig.uc()?;
    rig.scratch.fill(6)?;
    let write = wr::Write::new(rig.scratch.sge(0, 64)?, desk.remote(0));
    rig.succeeds(&pair.near, write.fence().signaled(1))?;
    rig.settle();
    assert_eq!(desk.bytes(0, 64)?, rig.scratch.bytes(0, 64)?);
    Ok(())
}

// covers 3.32
fn a_datagram_fits_one_frame_and_its_domain(rig: &Rig) -> Outcome {
    let desk = rig.far.region(8192, OPEN)?;
    let (pair, to) = datagrams(rig)?;
    let near = &pair.near;
    let port = rig.near.context.query_port(1).expect("a port");
    let mtu = port.active_mtu.octets() as usize;
    let refused = |to: &UdDestination, length| -> Result<_, Evidence> {
        let refused = near.post_one(send_to(rig, to, length, 1)?);
        Ok(refused.expect_err("a request that is refused").reason)
    };
    let elsewhere = rig.near.other_pd()?;
    let foreign = UdDestination {
        ah: rig.finish(elsewhere.create_ah(to.ah.path()))?,
        ..to.clone()
    };
    assert_eq!(refused(&foreign, 8)?, PostReason::ForeignAh);
    let given = mtu as u64 + 1;
    let max = mtu as u64;
    assert_eq!(
        refused(&to, given as u32)?,
        PostReason::MessageTooLong { max, given }
    );
    rig.scratch.fill(3)?;
    pair.far.receive(&desk, 0, 40 + mtu as u32)?;
    pair.far.receive(&desk, 6000, 48)?;
    pair.far.receive(&desk, 7000, 48)?;
    // The longest datagram succeeds. So does one whose Q_Key has the top bit set, which stands for the queue pair's own
    // Q_Key whatever the other bits say. Then one has a wrong Q_Key, and is not delivered.
    let keyed = |remote_qkey| UdDestination {
        remote_qkey,
        ..to.clone()
    };
    let (own, wrong) = (keyed(0x8000_2222), keyed(0x2222));
    rig.succeeds(near, send_to(rig, &to, mtu as u32, 1)?)?;
    rig.succeeds(near, send_to(rig, &own, 8, 2)?)?;
    rig.succeeds(near, send_to(rig, &wrong, 8, 3)?)?;
    assert_eq!(done(rig, &pair.far.cq), ok([0, 6000]));
    assert_eq!(desk.bytes(40, mtu)?, rig.scratch.bytes(0, mtu)?);
    // A destroyed address handle leads to no destination.
    let gone = UdDestination {
        ah: rig.finish(rig.near.pd.create_ah(to.ah.path()))?,
        ..to.clone()
    };
    rig.finish_destroy(gone.ah.clone().destroy())?;
    assert_eq!(refused(&gone, 8)?, PostReason::InvalidHandle);
    Ok(())
}

// covers 3.33
fn a_grh_area_of_40_bytes_precedes_each_datagram(rig: &Rig) -> Outcome {
    let desk = rig.far.region(4096, OPEN)?;
    let (pair, to) = datagrams(rig)?;
    rig.scratch.fill(9)?;
    desk.put(0, &[0xee; 4096])?;
    pair.far.receive(&desk, 0, 48)?;
    let two = [desk.sge(1024, 30)?, desk.sge(2048, 30)?];
    let request = verbs_api::wr::ReceiveRequest::new(1024, &two);
    pair.far.post_receive(request).expect("a receive");
    pair.far.receive(&desk, 3000, 40)?;
    // The datagram is one byte too long: it is dropped, and the receive stays for the next.
    rig.succeeds(&pair.near, send_to(rig, &to, 9, 1)?)?;
    rig.nothing_on(&pair.far.cq)?;
    assert_eq!(desk.bytes(0, 48)?, [0xee; 48]);
    let arrives = |length: u32, id| -> Outcome {
        rig.succeeds(&pair.near, send_to(rig, &to, length, 2)?)?;
        let done: Completion = rig.take(&pair.far.cq, 1)?.remove(0);
        assert_eq!((done.wr_id, done.status), (id, WcStatus::Success));
        assert_eq!((done.opcode, done.byte_len), (WcOpcode::Recv, 40 + length));
        assert_eq!(done.src_qp, pair.near.qp_num());
        Ok(())
    };
    arrives(8, 0)?;
    assert_eq!(desk.bytes(40, 8)?, rig.scratch.bytes(0, 8)?);
    assert_eq!(desk.bytes(48, 8)?, [0xee; 8], "not one byte beyond");
    // The header and the data continue from entry to entry.
    arrives(20, 1024)?;
    let data = [desk.bytes(2058, 20)?, rig.scratch.bytes(0, 20)?];
    assert_eq!(data[0], data[1]);
    // The datagram is empty: the forty bytes before it are kept free all the same.
    arrives(0, 3000)?;
    // A receive that cannot hold the header takes nothing.
    pair.far.receive(&desk, 3100, 39)?;
    rig.succeeds(&pair.near, send_to(rig, &to, 0, 3)?)?;
    rig.nothing_on(&pair.far.cq)?;
    assert_eq!(pair.far.state()?, QpState::Rts);
    Ok(())
}
