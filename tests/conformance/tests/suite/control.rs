//! Control verbs, destruction, events and threads on devices: FEATURES group 5.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::Duration;

use crate::support::{poll, statuses};
use crate::{cases, steered_cases};
use conformance::{ANY_DEVICE, Outcome, Pair, Rig, Side, waiting};
use verbs_api::provider::Mutex;
use verbs_api::qp::{QpAttributes, QpState, QpType};
use verbs_api::{
    Access, Completion, Cq, DestroyError, Device, ErrorKind, Memory, PathOptions, Pd, Qp,
    QpOptions, RKey, RemoteAddress, Requirements, Transport, VerbError, WcStatus,
    capability::{BaselineGaps, PortState},
    completion::{Notify, WcOpcode},
    connect_pair,
    event::{EventSubject, EventType},
    provider::in_handler,
    wr::{self, PostReason, ReceiveRequest},
};

cases! {
    a_request_is_answered_by_the_thread_that_brings_it: ANY_DEVICE;
    a_receive_handler_registers_memory_and_sends_its_key: ANY_DEVICE;
    nothing_completes_once_a_queue_pair_is_destroyed: ANY_DEVICE;
    nothing_completes_once_a_queue_pair_is_destroyed_under_fire: ANY_DEVICE;
    of_two_destroys_of_a_busy_queue_pair_one_wins: ANY_DEVICE;
    objects_of_one_handle_serve_another: ANY_DEVICE;
    a_stale_identity_reaches_nothing_newer: ANY_DEVICE;
    events_of_a_queue_pair_reach_its_owner: ANY_DEVICE;
    communication_is_established_once: ANY_DEVICE;
    faults_without_a_receive_raise_their_event: ANY_DEVICE;
    a_fault_with_a_receive_is_reported_by_the_receive: ANY_DEVICE;
    eight_threads_post_on_one_queue_pair: ANY_DEVICE;
}

steered_cases! {
    a_context_ends_after_the_verbs_under_way: ANY_DEVICE;
    verbs_under_way_end_with_the_device: ANY_DEVICE;
    a_removed_device_ends_requests_and_is_not_opened_again: ANY_DEVICE;
    events_of_a_port_reach_every_context: ANY_DEVICE;
}

fn rights() -> Access {
    Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ
}

// Serves a queue in its handler: polls until the queue is empty, arms, and polls again.
fn serve(cq: &Cq, handle: impl Fn(&Completion) + Send + Sync + 'static) {
    cq.on_completion(move |cq| {
        loop {
            let done = poll(cq);
            done.iter().for_each(&handle);
            if done.is_empty() && !cq.arm(Notify::Next).expect("a queue that lives") {
                return;
            }
        }
    });
    assert!(!cq.arm(Notify::Next).expect("a queue that lives"));
}

// covers 5.05
fn a_request_is_answered_by_the_thread_that_brings_it(rig: &Rig) -> Outcome {
    let pair = rig.rc()?;
    let desk = rig.far.region(4096, rights())?;
    pair.far.receive(&desk, 0, 64)?;
    let (qp, answer) = (pair.far.qp.clone(), desk.sge(1024, 8)?);
    let (home, in_real_time) = (thread::current().id(), rig.is_in_real_time());
    let served = Arc::new(AtomicU32::new(0));
    let count = Arc::clone(&served);
    let memory = desk.memory.clone();
    serve(&pair.far.cq, move |done| {
        assert!(in_handler() && (in_real_time || thread::current().id() == home));
        if done.opcode == WcOpcode::Recv {
            let question = memory.load_u64(0).expect("within");
            memory.store_u64(1024, question + 1).expect("within");
            count.fetch_add(1, Ordering::SeqCst);
            qp.post_one(wr::Send::new(answer).signaled(1))
                .expect("posted from a handler");
        }
    });
    pair.near.receive(&rig.scratch, 512, 8)?;
    rig.scratch.memory.store_u64(0, 41).expect("within");
    pair.near
        .post_one(wr::Send::new(rig.scratch.sge(0, 8)?).signaled(2))
        .expect("posted");
    let done = rig.take(&pair.near.cq, 2)?;
    assert!(done.iter().all(|done| done.status.is_success()));
    assert_eq!(rig.scratch.memory.load_u64(512).expect("within"), 42);
    assert_eq!(served.load(Ordering::SeqCst), 1);
    Ok(())
}

// covers 5.06 5.02
fn a_receive_handler_registers_memory_and_sends_its_key(rig: &Rig) -> Outcome {
    // With a latency the registration completes after the handler has returned.
    rig.far.set_latency(Duration::ZERO);
    for latency in [Duration::ZERO, Duration::from_millis(3)] {
        let pair = rig.rc()?;
        let desk = rig.far.region(4096, rights())?;
        pair.far.receive(&desk, 0, 64)?;
        rig.far.set_latency(latency);
        let (home, in_real_time) = (thread::current().id(), rig.is_in_real_time());
        let (qp, pd) = (pair.far.qp.clone(), rig.far.pd.clone());
        let (note, key_at) = (desk.memory.clone(), desk.sge(1024, 16)?);
        let target = Memory::zeroed(4096).expect("memory");
        let kept = Arc::new(Mutex::new(None));
        let (memory, keep) = (target.clone(), Arc::clone(&kept));
        serve(&pair.far.cq, move |done| {
            if done.opcode != WcOpcode::Recv {
                return;
            }
            assert_eq!(wait_in_handler(&pd), Some(VerbError::WouldDeadlock));
            let (qp, note, keep) = (qp.clone(), note.clone(), Arc::clone(&keep));
            pd.register(&memory, rights()).on_done(move |region| {
                let region = region.expect("a region");
                assert!(in_handler() && (in_real_time || thread::current().id() == home));
                note.store_u64(1024, region.iova()).expect("within");
                note.store_u64(1032, region.rkey().value().into())
                    .expect("within");
                qp.post_one(wr::Send::new(key_at))
                    .expect("posted from a handler");
                *keep.lock() = Some(region);
            });
        });
        pair.near.receive(&rig.scratch, 512, 16)?;
        pair.near
            .post_one(wr::Send::new(rig.scratch.sge(0, 8)?).signaled(2))
            .expect("posted");
        assert_eq!(rig.take(&pair.near.cq, 2)?.len(), 2);
        let word = |at| rig.scratch.memory.load_u64(at).expect("within");
        let remote = RemoteAddress::new(word(512), RKey::new(word(520) as u32));
        rig.far.set_latency(Duration::ZERO);
        rig.scratch.put(0, b"by key")?;
        rig.succeeds(
            &pair.near,
            wr::Write::new(rig.scratch.sge(0, 6)?, remote).signaled(3),
        )?;
        rig.settle();
        assert_eq!(target.to_vec(0, 6).expect("within"), b"by key");
    }
    Ok(())
}

// Waits for a verb in a handler, and returns the error that this gives.
fn wait_in_handler(pd: &Pd) -> Option<VerbError> {
    let memory = Memory::zeroed(64).expect("memory");
    pd.register(&memory, Access::LOCAL_WRITE).wait().err()
}

// Posts requests in both directions, more than a link carries at once.
fn start_traffic(
    rig: &Rig,
    pair: &Pair,
    target: RemoteAddress,
    desk: &conformance::Region,
) -> Outcome {
    for wr_id in 0..16 {
        pair.far.receive(desk, wr_id * 1024, 1024)?;
    }
    for wr_id in 0..16 {
        let send = wr::Send::new(rig.scratch.sge(0, 1024)?).signaled(wr_id);
        pair.near.post_one(send).expect("posted");
        let write = wr::Write::new(rig.scratch.sge(0, 8000)?, target).signaled(100 + wr_id);
        pair.near.post_one(write).expect("posted");
        let read = wr::Read::new(rig.scratch.sge(0x8000, 8000)?, target).signaled(200 + wr_id);
        pair.near.post_one(read).expect("posted");
    }
    Ok(())
}

// covers 5.10 3.91
fn nothing_completes_once_a_queue_pair_is_destroyed(rig: &Rig) -> Outcome {
    for steps in 0..40 {
        let pair = rig.rc()?;
        let desk = rig.far.region(1 << 16, rights())?;
        start_traffic(rig, &pair, desk.remote(0x8000), &desk)?;
        (0..steps).all(|_| rig.step());
        let Pair { near, far } = pair;
        let (first, second) = match steps % 2 {
            0 => (near, far),
            _ => (far, near),
        };
        let (number, cq) = (first.qp.qp_num(), first.cq);
        rig.finish_destroy(first.qp.destroy())?;
        let before = poll(&cq).len();
        rig.settle();
        assert_eq!(poll(&cq).len(), 0, "{number} has had {before}");
        let number = second.qp.qp_num();
        rig.finish_destroy(second.qp.destroy())?;
        let mine = |done: &Completion| done.qp_num == number;
        let _ = poll(&second.cq);
        rig.settle();
        assert_eq!(poll(&second.cq).into_iter().filter(mine).count(), 0);
        rig.finish_destroy(cq.destroy())?;
        rig.finish_destroy(second.cq.destroy())?;
    }
    Ok(())
}

// covers 5.10 5.09
fn nothing_completes_once_a_queue_pair_is_destroyed_under_fire(rig: &Rig) -> Outcome {
    let region = rig.far.region(4096, rights())?;
    for round in 0..60 {
        let pair = rig.rc()?;
        let gone = AtomicBool::new(false);
        let Pair { near, far } = pair;
        // One thread posts while another thread destroys the same queue pair, or that of the peer.
        let (doomed, doomed_cq) = match round % 2 {
            0 => (near.qp.clone(), near.cq.clone()),
            _ => (far.qp.clone(), far.cq.clone()),
        };
        let data = rig.scratch.sge(0, 64)?;
        thread::scope(|scope| -> Outcome {
            let posting = scope.spawn(|| {
                for wr_id in 0..2000 {
                    let write = wr::Write::new(data, region.remote(0));
                    let posted = near.qp.post_one(write.wr_id(wr_id));
                    match posted {
                        Ok(()) => {}
                        Err(refused) if refused.reason == PostReason::InvalidHandle => {
                            return Ok(());
                        }
                        Err(refused) if matches!(refused.reason, PostReason::QueueFull { .. }) => {
                            if gone.load(Ordering::SeqCst) {
                                return Ok(());
                            }
                        }
                        Err(_) => return posted,
                    }
                }
                Ok(())
            });
            rig.finish_destroy(doomed.destroy())?;
            gone.store(true, Ordering::SeqCst);
            poll(&doomed_cq);
            thread::yield_now();
            assert!(poll(&doomed_cq).is_empty());
            let posted = posting.join().expect("a thread that ends");
            posted.expect("taken as long as it was there");
            Ok(())
        })?;
    }
    Ok(())
}

// covers 5.09
fn of_two_destroys_of_a_busy_queue_pair_one_wins(rig: &Rig) -> Outcome {
    let rounds = 1250;
    let cq = rig.near.cq(64)?;
    let barrier = Barrier::new(2);
    let (wins, late) = (AtomicU32::new(0), AtomicU32::new(0));
    let make = |_| {
        let made = rig
            .near
            .pd
            .create_qp(QpOptions::rc(&cq).max_recv_wr(1))
            .wait();
        made.expect("a queue pair")
    };
    let doomed: Vec<Qp> = (0..rounds).map(make).collect();
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                for qp in &doomed {
                    barrier.wait();
                    let modify = qp.modify(QpAttributes::new().qp_state(QpState::Err));
                    match qp.clone().destroy().wait() {
                        Ok(()) => drop(wins.fetch_add(1, Ordering::SeqCst)),
                        Err(error) if error.kind() == ErrorKind::InvalidHandle => {
                            late.fetch_add(1, Ordering::SeqCst);
                        }
                        Err(DestroyError::Busy { object, .. }) => {
                            // The modify of the other thread is in progress: when it ends, this destroy is
                            // tried again.
                            while let Err(DestroyError::Busy { .. }) =
                                object.clone().destroy().wait()
                            {
                                thread::yield_now();
                            }
                        }
                        Err(error) => panic!("{error}"),
                    }
                    drop(modify);
                    assert!(qp.query().is_err());
                }
            });
        }
    });
    rig.finish_destroy(cq.destroy())?;
    assert!(wins.into_inner() <= rounds);
    Ok(())
}

// covers 5.14
fn a_context_ends_after_the_verbs_under_way(rig: &Rig) -> Outcome {
    let keys = rig.far.keys_in_use();
    let device = Device::of(Arc::clone(&rig.far.device));
    let context = device
        .open(&Requirements::new())
        .expect("a device that opens");
    let pd = context.alloc_pd().wait().expect("a domain");
    // In real time this thread may have to wait for a processor.
    let latency = if rig.is_in_real_time() { 200 } else { 5 };
    rig.far.set_latency(Duration::from_millis(latency));
    let memory = Memory::zeroed(4096).expect("memory");
    let held = Arc::strong_count(&rig.far.device);
    let wanted = pd.register(&memory, rights());
    drop(pd.register(&memory, rights()));
    let (context, held_by) = match context.close().wait() {
        Err(DestroyError::Busy { object, held_by }) => (object, held_by),
        other => panic!("{other:?}"),
    };
    assert!(held_by.len() >= 2, "{held_by:?}");
    drop((context, pd));
    assert!(!wanted.is_done());
    let region = rig.finish(wanted)?;
    assert_eq!(region.len(), 4096, "dropping the handles cancelled nothing");
    drop(region);
    rig.far.set_latency(Duration::ZERO);
    eventually(rig, || {
        let is_gone = Arc::strong_count(&rig.far.device) < held;
        rig.far.keys_in_use() == keys && is_gone
    });
    Ok(())
}

// Waits for a condition that other threads may delay for a moment: memory is released when no thread
// accesses it.
fn eventually(rig: &Rig, mut what: impl FnMut() -> bool) {
    waiting::until(|| {
        let is_so = what();
        if !is_so {
            rig.settle();
        }
        is_so
    });
}

// covers 5.15 5.01
fn verbs_under_way_end_with_the_device(rig: &Rig) -> Outcome {
    let pair = rig.rc()?;
    let cq = rig.far.cq(16)?;
    let memory = Memory::zeroed(4096).expect("memory");
    let region = rig.far.region(4096, rights())?;
    let doomed = rig.far.cq(16)?;
    let device = rig.far.steer();
    device.set_latency(Duration::from_secs(3600));
    let outcomes = Arc::new(Mutex::new(BTreeMap::new()));
    let count = Arc::new(AtomicUsize::new(0));
    let note = |name: &'static str| {
        let (outcomes, count) = (Arc::clone(&outcomes), Arc::clone(&count));
        move |error: Option<VerbError>| {
            let before = outcomes.lock().insert(name, error);
            assert!(before.is_none(), "{name} ended twice");
            count.fetch_add(1, Ordering::SeqCst);
        }
    };
    macro_rules! start {
        ($($name:literal: $started:expr;)*) => {
            $(let ended = note($name);
            $started.on_done(move |result| ended(result.err()));)*
        };
    }
    start! {
        "alloc_pd": rig.far.context.alloc_pd();
        "create_cq": rig.far.context.create_cq(16);
        "resize_cq": cq.resize(64);
        "reg_mr": rig.far.pd.register(&memory, rights());
        "create_qp": rig.far.pd.create_qp(QpOptions::rc(&cq));
        "modify_qp": pair.far.modify(QpAttributes::new().qp_state(QpState::Err));
    }
    let ended = note("destroy_cq");
    doomed
        .destroy()
        .on_done(move |result| ended(result.err().map(DestroyError::into_verb_error)));
    let ended = note("dereg_mr");
    region
        .mr
        .deregister()
        .on_done(move |result| ended(result.err().map(DestroyError::into_verb_error)));
    assert_eq!(count.load(Ordering::SeqCst), 0);
    device.remove();
    eventually(rig, || count.load(Ordering::SeqCst) == 8);
    let outcomes = outcomes.lock();
    assert_eq!(outcomes.len(), 8);
    for (name, error) in outcomes.iter() {
        let expected = match *name {
            "destroy_cq" | "dereg_mr" => None,
            _ => Some(VerbError::DeviceRemoved),
        };
        assert_eq!(error, &expected, "{name}");
    }
    let refused = rig.far.context.alloc_pd().wait();
    assert_eq!(refused.err(), Some(VerbError::DeviceRemoved));
    Ok(())
}

// covers 5.15
fn a_removed_device_ends_requests_and_is_not_opened_again(rig: &Rig) -> Outcome {
    let (near, far) = (rig.near.side(QpType::Rc)?, rig.far.side(QpType::Rc)?);
    let pair = rig.connected_with(near, far, conformance::open().timeout(8))?;
    let desk = rig.far.region(4096, rights())?;
    (0..4).try_for_each(|at| pair.far.receive(&desk, at * 64, 64))?;
    rig.near.steer().set_port_state(PortState::Down);
    let write = wr::Write::new(rig.scratch.sge(0, 8)?, desk.remote(0)).signaled(1);
    pair.near.post_one(write).expect("posted");
    rig.near.steer().set_port_state(PortState::Active);
    rig.far.steer().remove();
    rig.far.steer().remove();
    let mut flushed = poll_removed(&pair.far.cq);
    flushed.retain(|done| done.status == WcStatus::WrFlushErr);
    assert_eq!(flushed.len(), 4);
    assert_eq!(rig.far.events(), [EventType::DeviceRemoved]);
    let receive = ReceiveRequest::new(1, desk.sge(0, 8)?);
    let refused = pair
        .far
        .post_receive(receive)
        .expect_err("the device is gone");
    assert_eq!(refused.reason, PostReason::DeviceRemoved);
    let device = Device::of(Arc::clone(&rig.far.device));
    assert!(device.open(&Requirements::new()).is_err());
    // The peer notices the removal by its own timeout, because no answer comes.
    rig.take(&pair.near.cq, 1)?;
    // Objects can still be destroyed, whatever references them.
    let Pair {
        far: Side { qp, cq },
        ..
    } = pair;
    rig.finish_destroy(qp.destroy())?;
    rig.finish_destroy(cq.destroy())?;
    rig.finish_destroy(desk.mr.deregister())
}

fn poll_removed(cq: &Cq) -> Vec<Completion> {
    let mut all = Vec::new();
    let mut slots: [Completion; 8] = Default::default();
    while let Ok(done) = cq.poll(&mut slots) {
        if done.is_empty() {
            break;
        }
        all.extend(done.iter_mut().map(std::mem::take));
    }
    all
}

// covers 5.20
fn objects_of_one_handle_serve_another(rig: &Rig) -> Outcome {
    let device = Device::of(Arc::clone(&rig.near.device));
    let held = Arc::strong_count(&rig.near.device);
    let first = device
        .open(&Requirements::new())
        .expect("a device that opens");
    let second = first.clone();
    let pd = first.alloc_pd().wait().expect("a domain");
    let cq = second.create_cq(16).wait().expect("a queue");
    let made = thread::scope(|scope| {
        let make = || {
            pd.create_qp(QpOptions::rc(&cq))
                .wait()
                .expect("a queue pair")
        };
        [scope.spawn(make), scope.spawn(make)].map(|made| made.join().expect("a thread"))
    });
    let [a, b] = made;
    let found = second.find_qp(a.id()).expect("the same queue pair");
    drop(first);
    rig.finish(connect_pair(&found, &b, Access::REMOTE_WRITE))?;
    drop((second, pd));
    // No handle of the context is left: its objects keep the context open, and still work.
    found
        .post_one(wr::Write::new((), RemoteAddress::default()).signaled(1))
        .expect("posted");
    assert!(rig.take(&cq, 1)?[0].status.is_success());
    drop((a, b, found));
    drop(cq);
    drop(device);
    // The context closes with the last of its objects.
    eventually(rig, || Arc::strong_count(&rig.near.device) < held);
    Ok(())
}

// covers 5.29
fn a_stale_identity_reaches_nothing_newer(rig: &Rig) -> Outcome {
    let context = &rig.near.context;
    let memory = Memory::zeroed(64).expect("memory");
    let mut stale = Vec::new();
    for round in 0..3000 {
        let cq = rig.near.cq(1)?;
        let region = rig
            .near
            .pd
            .register(&memory, rights())
            .wait()
            .expect("a region");
        let ids = (cq.id(), region.id());
        assert!(context.find_cq(ids.0).is_some() && context.find_mr(ids.1).is_some());
        drop(cq.destroy().wait());
        rig.finish_destroy(region.deregister())?;
        if round % 100 == 0 {
            stale.push(ids);
        }
        let lives = |&(cq, mr): &_| context.find_cq(cq).is_some() || context.find_mr(mr).is_some();
        assert!(!stale.iter().any(lives));
    }
    Ok(())
}

// covers 5.23
fn events_of_a_queue_pair_reach_its_owner(rig: &Rig) -> Outcome {
    let device = Device::of(Arc::clone(&rig.far.device));
    let other = device
        .open(&Requirements::new())
        .expect("a device that opens");
    let pair = rig.rc()?;
    assert!(!rig.can_write(&pair, RemoteAddress::new(0, RKey::new(0xfff_ff00)))?);
    assert!(
        other.poll_event().is_none(),
        "an event of another context's queue pair"
    );
    Ok(())
}

// covers 5.23
fn events_of_a_port_reach_every_context(rig: &Rig) -> Outcome {
    let device = Device::of(Arc::clone(&rig.far.device));
    let other = device
        .open(&Requirements::new())
        .expect("a device that opens");
    rig.far.steer().set_port_state(PortState::Down);
    rig.far.steer().set_port_state(PortState::Down);
    rig.far.steer().set_port_state(PortState::Active);
    let expected = [EventType::PortErr, EventType::PortActive];
    assert_eq!(rig.far.events(), expected);
    let told: Vec<_> = std::iter::from_fn(|| other.poll_event()).collect();
    assert_eq!(
        told.iter()
            .map(|event| event.event_type())
            .collect::<Vec<_>>(),
        expected
    );
    assert!(
        told.iter()
            .all(|event| event.subject() == EventSubject::Port(1))
    );
    // Each event goes to one of the threads that wait for events.
    let taken = AtomicU32::new(0);
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while other.next_event().wait().is_ok() {
                    taken.fetch_add(1, Ordering::SeqCst);
                }
            });
        }
        for _ in 0..50 {
            rig.far.steer().set_port_state(PortState::Down);
            rig.far.steer().set_port_state(PortState::Active);
        }
        while taken.load(Ordering::SeqCst) < 100 {
            thread::yield_now();
        }
        rig.far.steer().remove();
    });
    assert_eq!(taken.into_inner(), 101, "the last one is the removal");
    Ok(())
}

// covers 5.24
fn communication_is_established_once(rig: &Rig) -> Outcome {
    let (near, far) = (rig.near.side(QpType::Rc)?, rig.far.side(QpType::Rc)?);
    let order = Arc::new(Mutex::new(Vec::new()));
    let events = Arc::clone(&order);
    rig.far.context.on_event(move |event| {
        events.lock().push(Some(event.event_type()));
    });
    let completions = Arc::clone(&order);
    let desk = rig.far.region(4096, rights())?;
    serve(&far.cq, move |_| completions.lock().push(None));
    let (at_near, at_far) = (near.endpoint().expect("one"), far.endpoint().expect("one"));
    let full = near.connect(&at_far, PathOptions::new());
    if rig.attributes().transport == Transport::Iwarp {
        // Queue pairs of this transport go from IDLE to RTS: they have no time in RTR in which a message
        // could arrive.
        rig.finish(far.connect(&at_near, PathOptions::new()))?;
        rig.finish(full)?;
    } else {
        rig.finish(full)?;
        to_rtr(rig, &far, &at_near)?;
    }
    for at in 0..3 {
        far.receive(&desk, at * 64, 64)?;
        rig.succeeds(
            &near,
            wr::Send::new(rig.scratch.sge(0, 8)?).signaled(at as u64),
        )?;
        rig.settle();
    }
    let told = order.lock().clone();
    let expected: &[_] = match rig.attributes().transport {
        Transport::Iwarp => &[None, None, None],
        Transport::InfiniBand => &[Some(EventType::CommEst), None, None, None],
    };
    assert_eq!(told, expected, "the event before the first receive");
    Ok(())
}

fn to_rtr(rig: &Rig, side: &Side, peer: &verbs_api::qp::QpEndpoint) -> Outcome {
    let path = rig.far.context.path_to(1, peer.address, peer.gid)?;
    let init = QpAttributes::new()
        .qp_state(QpState::Init)
        .pkey_index(0)
        .port_num(1)
        .qp_access_flags(Access::REMOTE_WRITE);
    let rtr = QpAttributes::new()
        .qp_state(QpState::Rtr)
        .ah_attr(path)
        .path_mtu(verbs_api::capability::Mtu::Mtu1024)
        .dest_qp_num(peer.qp_num)
        .rq_psn(peer.sq_psn)
        .max_dest_rd_atomic(4)
        .min_rnr_timer(1);
    rig.finish(side.modify(init))?;
    rig.finish(side.modify(rtr))?;
    Ok(())
}

// covers 5.25
fn faults_without_a_receive_raise_their_event(rig: &Rig) -> Outcome {
    let pair = rig.rc()?;
    let desk = rig.far.region(64, rights())?;
    assert!(
        !rig.can_write(&pair, desk.remote(60))?,
        "QP_ACCESS_ERR, as the helper sees to"
    );
    assert!(poll(&pair.far.cq).is_empty());
    // The queue pair answers a request that it does not allow as an invalid one, and by default it allows
    // none.
    let closed = PathOptions::new();
    let (near, far) = (rig.near.side(QpType::Rc)?, rig.far.side(QpType::Rc)?);
    let pair = rig.connected_with(near, far, closed)?;
    let verdict = rig.verdict(
        &pair,
        wr::Write::new(rig.scratch.sge(0, 8)?, desk.remote(0)).signaled(1),
    )?;
    assert_ne!(verdict, WcStatus::Success);
    // An overrun of a completion queue fails the queue pairs that complete on it.
    let cq = rig.far.cq(1)?;
    let far = rig
        .far
        .side_with(&rig.far.pd, |_| rig.far.options(QpType::Rc, &cq))?;
    let pair = rig.connected(rig.near.side(QpType::Rc)?, far)?;
    (0..3).try_for_each(|at| pair.far.receive(&desk, at * 8, 8))?;
    for wr_id in 0..3 {
        let send = wr::Send::new(rig.scratch.sge(0, 8)?).signaled(wr_id);
        pair.near.post_one(send).expect("posted");
    }
    rig.settle();
    assert_eq!(rig.far.events(), [EventType::CqErr, EventType::QpFatal]);
    assert_eq!(pair.far.state()?, QpState::Err);
    Ok(())
}

// covers 5.25 6.12
fn a_fault_with_a_receive_is_reported_by_the_receive(rig: &Rig) -> Outcome {
    let pair = rig.rc()?;
    let desk = rig.far.region(4096, rights())?;
    pair.far.receive(&desk, 0, 3000)?;
    pair.far.receive(&desk, 64, 8)?;
    pair.far.receive(&desk, 128, 8)?;
    // The message is longer than its receive: over a link, it is more than one frame.
    let send = wr::Send::new(rig.scratch.sge(0, 4000)?).signaled(1);
    pair.near.post_one(send).expect("posted");
    rig.settle();
    let flushed = WcStatus::WrFlushErr;
    assert_eq!(
        statuses(&poll(&pair.far.cq)),
        [(0, WcStatus::LocLenErr), (64, flushed), (128, flushed)]
    );
    assert!(rig.far.events().is_empty(), "the receive has reported it");
    assert_eq!(pair.far.state()?, QpState::Err);
    Ok(())
}

// covers 5.27
fn eight_threads_post_on_one_queue_pair(rig: &Rig) -> Outcome {
    const ROUNDS: u64 = 25;
    const EACH: u64 = 16;
    let pair = rig.rc()?;
    let desk = rig.far.region(4096, rights() | Access::REMOTE_ATOMIC)?;
    let has_atomics = !rig.has_gap(BaselineGaps::NO_ATOMICS);
    let mut done = Vec::new();
    for round in 0..ROUNDS {
        let data = rig.scratch.sge(0, 100)?;
        let mut results = Vec::new();
        for number in 0..8 {
            results.push(rig.scratch.sge(512 + number * 8, 8)?);
        }
        thread::scope(|scope| {
            for (number, result) in (0_u64..).zip(results) {
                let (pair, desk) = (&pair, &desk);
                scope.spawn(move || {
                    for count in round * EACH..(round + 1) * EACH {
                        let wr_id = number << 32 | count;
                        let add = wr::FetchAdd::new(result, desk.remote(0), 1).signaled(wr_id);
                        let write = wr::Write::new(data, desk.remote(64)).signaled(wr_id);
                        let posted = match count % 4 {
                            0 if has_atomics => pair.near.post_one(add),
                            _ => pair.near.post_one(write),
                        };
                        posted.expect("posted");
                    }
                });
            }
        });
        done.extend(rig.take(&pair.near.cq, 8 * EACH as usize)?);
    }
    assert!(done.iter().all(|done| done.status.is_success()));
    for number in 0..8 {
        let mine = done.iter().filter(|done| done.wr_id >> 32 == number);
        let counts: Vec<_> = mine.map(|done| u64::from(done.wr_id as u32)).collect();
        let expected: Vec<_> = (0..ROUNDS * EACH).collect();
        assert_eq!(counts, expected, "thread {number} kept its order");
    }
    if has_atomics {
        assert_eq!(
            desk.memory.load_u64(0).expect("within"),
            8 * ROUNDS * EACH / 4
        );
    }
    Ok(())
}
