//! Completion queues that overrun, change their size, outlive their queue pairs, or have events that were not acknowledged:
//! FEATURES 3.86, 3.88, 3.89, 3.91.

use crate::cases;
use conformance::{ANY_DEVICE, Evidence, Needs, Outcome, Pair, Rig, Side, needs};
use verbs_api::qp::{QpState, QpType};
use verbs_api::{
    Access, Completion, Cq, CqOptions, Features, RKey, RemoteAddress, SrqOptions, VerbError,
    WcStatus,
    capability::BaselineGaps,
    completion::Notify,
    event::EventType,
    wr::{self, PostReason, ReceiveRequest},
};

use crate::support::{datagrams, done, go_to, half_connected, ok, poll, statuses};

cases! {
    an_overrun_ends_its_queue_and_no_other: ANY_DEVICE;
    an_overrun_of_receives_ends_the_receiver: ANY_DEVICE;
    one_of_two_queues_overruns: ANY_DEVICE;
    a_flush_may_overrun: ANY_DEVICE;
    an_overrun_is_for_good: ANY_DEVICE;
    an_overrun_reaches_every_queue_pair_on_it: SHARED;
    completions_are_kept_when_the_size_changes: RESIZED;
    long_completions_are_kept_when_the_size_changes: RESIZED.without(BaselineGaps::NO_UD);
    a_size_may_change_under_load: RESIZED;
    completions_outlive_their_queue_pair: ANY_DEVICE;
    nothing_is_added_for_a_queue_pair_that_is_gone: ANY_DEVICE;
    buffers_come_home_after_their_queue_pair: ANY_DEVICE;
    a_queue_is_destroyed_when_its_events_are_acknowledged: ANY_DEVICE;
}

const SHARED: Needs = needs(Features::SRQ);
const RESIZED: Needs = ANY_DEVICE.without(BaselineGaps::NO_RESIZE_CQ);
const OPEN: Access = Access::LOCAL_WRITE
    .union(Access::REMOTE_READ)
    .union(Access::REMOTE_WRITE);

/// Connects a near queue pair that completes on `cq` with a far one.
fn on(rig: &Rig, cq: &Cq) -> Result<Pair, Evidence> {
    let options = |_: &Cq| rig.near.options(QpType::Rc, cq);
    let near = rig.near.side_with(&rig.near.pd, options)?;
    let near = Side {
        cq: cq.clone(),
        qp: near.qp,
    };
    rig.connected(near, rig.far.side(QpType::Rc)?)
}

fn overran(cq: &Cq) -> bool {
    let mut slots: [Completion; 8] = Default::default();
    matches!(cq.poll(&mut slots), Err(VerbError::CqOverrun))
}

/// How many completions the queue holds: at least as many as were requested.
fn room(cq: &Cq) -> u64 {
    cq.cqe().into()
}

/// Polls in one call the completions that arrived before the overrun.
fn left(cq: &Cq) -> Vec<(u64, WcStatus)> {
    let mut slots: [Completion; 32] = Default::default();
    statuses(
        cq.poll(&mut slots)
            .expect("the completions before the overrun"),
    )
}

fn write(rig: &Rig, pair: &Pair, place: RemoteAddress, ids: std::ops::Range<u64>) -> Outcome {
    for id in ids {
        let write = wr::Write::new(rig.scratch.sge(0, 8)?, place).signaled(id);
        pair.near.post_one(write).expect("posted");
    }
    rig.settle();
    Ok(())
}

// covers 3.86 6.25
fn an_overrun_ends_its_queue_and_no_other(rig: &Rig) -> Outcome {
    let desk = rig.far.region(64, OPEN)?;
    let cq = rig.near.cq(2)?;
    let (pair, other) = (on(rig, &cq)?, rig.rc()?);
    let room = room(&cq);
    write(rig, &pair, desk.remote(0), 0..room)?;
    assert_eq!(
        (rig.near.events(), pair.near.state()?),
        (vec![], QpState::Rts),
        "full is not over"
    );
    write(rig, &pair, desk.remote(0), room..room + 1)?;
    assert_eq!(rig.near.events(), [EventType::CqErr, EventType::QpFatal]);
    assert_eq!(pair.near.state()?, QpState::Err);
    assert_eq!(left(&cq), ok(0..room));
    assert!(overran(&cq));
    write(rig, &other, desk.remote(0), 5..9)?;
    assert_eq!(statuses(&poll(&other.near.cq)), ok(5..9));
    assert_eq!(rig.near.events(), [], "reported once");
    // The queue can only be destroyed.
    rig.finish_destroy(pair.near.qp.clone().destroy())?;
    drop(pair);
    rig.finish_destroy(cq.destroy())
}

// covers 3.86
fn an_overrun_of_receives_ends_the_receiver(rig: &Rig) -> Outcome {
    let desk = rig.near.region(4096, OPEN)?;
    let cq = rig.near.cq(2)?;
    let pair = on(rig, &cq)?;
    let room = room(&cq);
    (0..room as usize + 2).try_for_each(|at| pair.near.receive(&desk, at * 64, 64))?;
    for id in 0..=room {
        let send = wr::Send::new(&[1; 8]).signaled(id);
        pair.far.post_one(send).expect("posted");
        rig.settle();
    }
    assert_eq!(left(&cq), ok((0..room).map(|at| at * 64)));
    assert!(overran(&cq));
    assert_eq!(rig.near.events(), [EventType::CqErr, EventType::QpFatal]);
    assert_eq!(pair.near.state()?, QpState::Err);
    Ok(())
}

// covers 3.86
fn one_of_two_queues_overruns(rig: &Rig) -> Outcome {
    let desk = rig.far.region(64, OPEN)?;
    let own = rig.near.region(4096, OPEN)?;
    let (sends, receives) = (rig.near.cq(1)?, rig.near.cq(16)?);
    let near = rig.near.side_with(&rig.near.pd, |_| {
        rig.near.options(QpType::Rc, &sends).recv_cq(&receives)
    })?;
    let pair = rig.connected(near, rig.far.side(QpType::Rc)?)?;
    // The neighbour shares the queue that has not overrun.
    let neighbour = on(rig, &receives)?;
    (0..3).try_for_each(|at| pair.near.receive(&own, at * 64, 64))?;
    let room = room(&sends);
    write(rig, &pair, desk.remote(0), 0..room + 1)?;
    assert_eq!(rig.near.events(), [EventType::CqErr, EventType::QpFatal]);
    let flushed: Vec<_> = poll(&receives);
    assert_eq!(flushed.len(), 3);
    assert!(
        flushed
            .iter()
            .all(|done| done.status == WcStatus::WrFlushErr)
    );
    write(rig, &neighbour, desk.remote(0), 7..9)?;
    assert_eq!(statuses(&poll(&receives)), ok([7, 8]));
    assert_eq!(neighbour.near.state()?, QpState::Rts);
    assert_eq!(left(&sends), ok(0..room));
    assert!(overran(&sends));
    Ok(())
}

// covers 3.86
fn a_flush_may_overrun(rig: &Rig) -> Outcome {
    let desk = rig.near.region(4096, OPEN)?;
    let cq = rig.near.cq(2)?;
    let pair = on(rig, &cq)?;
    let room = room(&cq);
    (0..room as usize + 2).try_for_each(|at| pair.near.receive(&desk, at * 64, 64))?;
    go_to(rig, &pair.near, QpState::Err)?;
    rig.settle();
    // The queue pair had failed before the queue did.
    assert_eq!(rig.near.events(), [EventType::CqErr]);
    let flush = WcStatus::WrFlushErr;
    let expected: Vec<_> = (0..room).map(|at| (at * 64, flush)).collect();
    assert_eq!(left(&cq), expected);
    assert!(overran(&cq));
    Ok(())
}

// covers 3.86
fn an_overrun_is_for_good(rig: &Rig) -> Outcome {
    let desk = rig.far.region(64, OPEN)?;
    let cq = rig.near.cq(1)?;
    let pair = on(rig, &cq)?;
    let made = || {
        let options = |_: &Cq| rig.near.options(QpType::Rc, &cq);
        rig.near.side_with(&rig.near.pd, options)
    };
    // This queue pair is in RESET when the queue overruns. Where queue pairs begin with a stream, the device has them
    // in INIT from the start.
    let idle = (!rig.has_gap(BaselineGaps::NO_MODIFY_TO_RTR)).then(made);
    let idle = idle.transpose()?;
    let room = room(&cq);
    write(rig, &pair, desk.remote(0), 0..room + 1)?;
    assert_eq!(left(&cq), ok(0..room));
    assert!(overran(&cq));
    // There is room now, and the queue accepts no completion all the same.
    let late = wr::Write::new(rig.scratch.sge(0, 8)?, desk.remote(0)).signaled(9);
    pair.near.post_one(late).expect("taken");
    rig.settle();
    assert!(overran(&cq));
    if !rig.has_gap(BaselineGaps::NO_RESIZE_CQ) {
        let resized = rig.outcome(cq.resize(16))?;
        assert!(matches!(resized, Err(VerbError::CqOverrun)), "{resized:?}");
    }
    // No queue pair can be connected on the queue either: the old one cannot be again, nor an idle one, nor a new one.
    go_to(rig, &pair.near, QpState::Reset)?;
    let new = made()?;
    let at_far = pair.far.endpoint().expect("an endpoint");
    for side in [&pair.near, &new].into_iter().chain(&idle) {
        let up = rig.outcome(side.connect(&at_far, verbs_api::PathOptions::new()))?;
        assert!(matches!(up, Err(VerbError::CqOverrun)), "{up:?}");
        assert_eq!(side.state()?, QpState::Reset);
    }
    let events = rig.near.events();
    assert_eq!(events, [EventType::CqErr, EventType::QpFatal]);
    Ok(())
}

// covers 3.86
fn an_overrun_reaches_every_queue_pair_on_it(rig: &Rig) -> Outcome {
    let desk = rig.far.region(64, OPEN)?;
    let cq = rig.near.cq(2)?;
    let pairs = [on(rig, &cq)?, on(rig, &cq)?];
    // This queue pair takes no part in the failure, and receives from a shared queue.
    let srq = rig.finish(rig.near.pd.create_srq(SrqOptions::new(4)))?;
    let shares = rig.near.side_with(&rig.near.pd, |own| {
        rig.near.options(QpType::Rc, own).recv_cq(&cq).srq(&srq)
    })?;
    let shares = rig.connected(shares, rig.far.side(QpType::Rc)?)?;
    write(rig, &pairs[0], desk.remote(0), 0..room(&cq) + 1)?;
    let mut events = rig.near.events();
    assert_eq!(events.first(), Some(&EventType::CqErr));
    events.remove(0);
    let count = |event| events.iter().filter(|it| **it == event).count();
    assert_eq!(count(EventType::QpFatal), 3);
    assert_eq!(count(EventType::QpLastWqeReached), 1);
    assert_eq!(events.len(), 4);
    for side in [&pairs[0].near, &pairs[1].near, &shares.near] {
        assert_eq!(side.state()?, QpState::Err);
    }
    Ok(())
}

// covers 3.89 7.81
fn completions_are_kept_when_the_size_changes(rig: &Rig) -> Outcome {
    let desk = rig.far.region(64, OPEN)?;
    let cq = rig.near.cq(8)?;
    let pair = on(rig, &cq)?;
    let made = cq.cqe();
    write(rig, &pair, desk.remote(0), 0..5)?;
    for refused in [4, 0, u32::MAX] {
        assert!(rig.outcome(cq.resize(refused))?.is_err(), "{refused}");
        assert_eq!(cq.cqe(), made, "as it was");
    }
    let smaller = rig.finish(cq.resize(5))?;
    assert!((5..=made).contains(&smaller));
    assert_eq!((left(&cq), cq.cqe()), (ok(0..5), smaller));
    // The pending completions move with the queue as it grows and shrinks, also when they wrap around its end.
    let (mut next, mut oldest) = (5, 5);
    for (size, more, taken) in [(7, 6, 4), (64, 50, 30), (22, 0, 22), (1, 1, 0), (3, 2, 0)] {
        assert!(rig.finish(cq.resize(size))? >= size);
        write(rig, &pair, desk.remote(0), next..next + more)?;
        next += more;
        for _ in 0..taken {
            let mut slot = [Completion::default()];
            let found = statuses(cq.poll(&mut slot).expect("a queue that works"));
            assert_eq!(found, ok([oldest]));
            oldest += 1;
        }
    }
    assert_eq!(statuses(&poll(&cq)), ok(oldest..next));
    assert_eq!(
        (rig.near.events(), pair.near.state()?),
        (vec![], QpState::Rts)
    );
    Ok(())
}

// covers 3.89
fn long_completions_are_kept_when_the_size_changes(rig: &Rig) -> Outcome {
    let desk = rig.far.region(4096, OPEN)?;
    let (pair, to) = datagrams(rig)?;
    for id in 0..6 {
        pair.far.receive(&desk, id * 64, 64)?;
        let send = wr::Send::new(rig.scratch.sge(0, id as u32)?)
            .to(&to)
            .signaled(1);
        rig.succeeds(&pair.near, send)?;
    }
    rig.settle();
    rig.finish(pair.far.cq.resize(6))?;
    rig.finish(pair.far.cq.resize(700))?;
    for (id, done) in poll(&pair.far.cq).iter().enumerate() {
        assert_eq!(
            (done.wr_id, done.byte_len),
            (id as u64 * 64, 40 + id as u32)
        );
        assert_eq!(done.src_qp, pair.near.qp_num());
    }
    Ok(())
}

// covers 3.89
fn a_size_may_change_under_load(rig: &Rig) -> Outcome {
    let rounds = if std::env::var_os("POLYVERBS_MEMORY_CHECK").is_some() {
        10
    } else {
        100
    };
    let desk = rig.far.region(64, OPEN)?;
    let cq = rig.near.cq(64)?;
    let pair = on(rig, &cq)?;
    std::thread::scope(|threads| -> Outcome {
        let resizing = threads.spawn(|| {
            for round in 0..rounds {
                // A size with room for fewer than the pending completions is refused, and no completion is lost.
                let _ = cq.resize([64, 500, 65, 100][round % 4]).wait();
                std::thread::yield_now();
            }
        });
        let mut next = 0;
        while !resizing.is_finished() {
            write(rig, &pair, desk.remote(0), next..next + 40)?;
            assert_eq!(statuses(&poll(&cq)), ok(next..next + 40));
            next += 40;
        }
        Ok(())
    })?;
    assert_eq!(rig.near.events(), []);
    Ok(())
}

// covers 3.91
fn completions_outlive_their_queue_pair(rig: &Rig) -> Outcome {
    let desk = rig.near.region(4096, OPEN)?;
    let place = rig.far.region(64, OPEN)?;
    let cq = rig.near.cq(16)?;
    let pair = on(rig, &cq)?;
    let number = pair.near.qp_num();
    write(rig, &pair, place.remote(0), 1..3)?;
    pair.near.receive(&desk, 3, 8)?;
    let send = wr::Send::new(&[7; 8]).signaled(9);
    rig.succeeds(&pair.far, send)?;
    rig.settle();
    pair.near.receive(&desk, 64, 8)?;
    rig.finish_destroy(pair.near.qp.clone().destroy())?;
    // The next queue pair may get the same number, and shares the completion queue.
    let other = on(rig, &cq)?;
    write(rig, &other, place.remote(0), 4..5)?;
    let all = poll(&cq);
    assert_eq!(statuses(&all), ok([1, 2, 3, 4]));
    assert!(all[..3].iter().all(|done| done.qp_num == number));
    assert_eq!(all[3].qp_num, other.near.qp_num());
    // The remaining handle refers to no queue pair.
    let refused = pair.near.post_receive(ReceiveRequest::new(1, ()));
    assert_eq!(
        refused.expect_err("refused").reason,
        PostReason::InvalidHandle
    );
    // Completions that the program does not poll do not keep a queue alive.
    write(rig, &other, place.remote(0), 5..9)?;
    rig.finish_destroy(other.near.qp.clone().destroy())?;
    rig.finish_destroy(cq.destroy())
}

// covers 3.91
fn nothing_is_added_for_a_queue_pair_that_is_gone(rig: &Rig) -> Outcome {
    let desk = rig.near.region(64, OPEN)?;
    // The request waits for a peer that is not ready.
    if let Some(pair) = half_connected(rig)? {
        let read = wr::Read::new(rig.scratch.sge(0, 8)?, RemoteAddress::default()).signaled(1);
        pair.near.post_one(read).expect("posted");
        pair.near.receive(&desk, 0, 8)?;
        rig.finish_destroy(pair.near.qp.clone().destroy())?;
        rig.nothing_on(&pair.near.cq)?;
    }
    // Requests are in progress in both directions.
    let place = rig.far.region(1 << 15, OPEN)?;
    let pair = rig.rc()?;
    pair.near.receive(&desk, 0, 8)?;
    let read = wr::Read::new(rig.scratch.sge(0, 20_000)?, place.remote(0)).signaled(1);
    pair.near.post_one(read).expect("posted");
    let send = wr::Send::new(&[7; 8]).signaled(9);
    pair.far.post_one(send).expect("posted");
    rig.step();
    rig.finish_destroy(pair.near.qp.clone().destroy())?;
    let before = poll(&pair.near.cq).len();
    assert!(before <= 2);
    let octets = rig.scratch.bytes(0, 20_000)?;
    rig.nothing_on(&pair.near.cq)?;
    assert_eq!(rig.scratch.bytes(0, 20_000)?, octets);
    Ok(())
}

// covers 3.91
fn buffers_come_home_after_their_queue_pair(rig: &Rig) -> Outcome {
    let pool = rig
        .near
        .pd
        .register_buffers(4, 64)
        .wait()
        .expect("a pool of buffers");
    let pair = rig.rc()?;
    for _ in 0..2 {
        pair.near
            .post_receive(pool.take().expect("a buffer"))
            .expect("a receive");
    }
    rig.succeeds(&pair.far, wr::Send::new(b"polyverb").signaled(1))?;
    rig.settle();
    rig.finish_destroy(pair.near.qp.clone().destroy())?;
    assert_eq!(pool.available(), 3, "the receive that no message took");
    let mut all = poll(&pair.near.cq);
    assert_eq!(all[0].buffer(), b"polyverb");
    let home = all[0].take_buffers().count();
    assert_eq!((all.len(), home, pool.available()), (1, 1, 4));
    assert_eq!(done(rig, &pair.near.cq), []);
    Ok(())
}

// covers 3.88
fn a_queue_is_destroyed_when_its_events_are_acknowledged(rig: &Rig) -> Outcome {
    let context = &rig.near.context;
    let channel = context.create_completion_channel().expect("a channel");
    let options = CqOptions::new(16).channel(&channel);
    let cq = rig.finish(context.create_cq(options))?;
    let pair = on(rig, &cq)?;
    assert!(!cq.arm(Notify::Next).expect("to be armed"));
    rig.succeeds(
        &pair.near,
        wr::Write::new((), RemoteAddress::new(0, RKey::new(0))).signaled(1),
    )?;
    let mut event = None;
    rig.until("an event of the channel", || {
        event = event.take().or_else(|| channel.poll_event());
        event.is_some()
    })?;
    let event = event.expect("an event");
    assert_eq!(event.cq().id(), cq.id());
    let Pair { near, far: _far } = pair;
    let Side { qp, cq: of_pair } = near;
    drop(of_pair);
    rig.finish_destroy(qp.destroy())?;
    let destroyed = cq.destroy();
    rig.settle();
    assert!(
        !destroyed.is_done(),
        "an event of the queue is not acknowledged"
    );
    drop(event);
    rig.finish_destroy(destroyed)
}
