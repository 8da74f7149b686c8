//! Receive queues that are shared: FEATURES 3.82 to 3.84.

use std::sync::Arc;

use crate::cases;
use conformance::{Evidence, Needs, Outcome, Pair, Region, Rig, Side, needs};
use verbs_api::provider::Mutex;
use verbs_api::qp::{QpState, QpType};
use verbs_api::{
    Access, Features, PathOptions, Srq, SrqOptions, VerbError, WcStatus,
    capability::BaselineGaps,
    event::EventType,
    wr::{self, PostReason, ReceiveRequest, UdDestination},
};

use crate::support::{QKEY, datagrams_to, done, flushed, go_to, ok, poll, statuses, unusable};

cases! {
    a_shared_queue_keeps_what_is_posted_when_resized: SHARED;
    a_shared_queue_has_room_for_what_it_says: SHARED;
    the_last_wqe_event_follows_a_change_of_the_state: SHARED;
    the_last_wqe_event_follows_an_error_of_its_own: SHARED;
    the_last_wqe_event_follows_an_error_of_the_peer: SHARED;
    the_last_wqe_event_follows_the_loss_of_the_peer: SHARED;
    a_receive_in_progress_precedes_the_last_wqe_event: SHARED;
    the_last_wqe_event_comes_once_between_resets: SHARED;
    a_private_receive_queue_raises_no_last_wqe_event: SHARED;
    uc_and_ud_raise_the_last_wqe_event_too: SHARED.without(BaselineGaps::NO_UD);
    an_untaken_receive_serves_another_queue_pair: SHARED;
}

const SHARED: Needs = needs(Features::SRQ);

/// A far end with a shared receive queue.
struct Desk {
    region: Region,
    srq: Srq,
}

impl Desk {
    fn new(rig: &Rig, max_wr: u32) -> Result<Self, Evidence> {
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        Ok(Self {
            region: rig.far.region(1 << 16, access)?,
            srq: rig.finish(rig.far.pd.create_srq(SrqOptions::new(max_wr)))?,
        })
    }

    fn side(&self, rig: &Rig, qp_type: QpType) -> Result<Side, Evidence> {
        rig.far.side_with(&rig.far.pd, |cq| {
            rig.far.options(qp_type, cq).srq(&self.srq)
        })
    }

    fn pair(&self, rig: &Rig) -> Result<Pair, Evidence> {
        rig.connected(rig.near.side(QpType::Rc)?, self.side(rig, QpType::Rc)?)
    }

    fn post_of(&self, id: u64, length: u32) -> Result<Result<(), PostReason>, Evidence> {
        let data = self.region.sge(0, length)?;
        let posted = self.srq.post_receive(ReceiveRequest::new(id, data));
        Ok(posted.map_err(|refused| refused.reason))
    }

    fn post(&self, id: u64) -> Result<Result<(), PostReason>, Evidence> {
        self.post_of(id, 8192)
    }

    fn fill(&self, ids: std::ops::Range<u64>) -> Outcome {
        for id in ids {
            assert_eq!(self.post(id)?, Ok(()));
        }
        Ok(())
    }

    /// How many receives the queue holds: at least as many as were requested.
    fn room(&self) -> u64 {
        let status = self.srq.query().expect("a queue that lives");
        status.max_wr.into()
    }

    fn is_full(&self) -> Result<bool, Evidence> {
        let max = self.room() as u32;
        Ok(self.post(1000)? == Err(PostReason::QueueFull { max }))
    }

    /// How many receives are in the queue, found by posting until the queue is full.
    fn waiting(&self) -> Result<u32, Evidence> {
        let max = self.srq.query().expect("a queue that lives").max_wr;
        let mut posted = 0;
        while self.post(1000 + u64::from(posted))?.is_ok() {
            posted += 1;
        }
        Ok(max - posted)
    }
}

fn send(rig: &Rig, pair: &Pair, ids: std::ops::Range<u64>) -> Outcome {
    for id in ids.clone() {
        let send = wr::Send::new(rig.scratch.sge(0, 8)?).signaled(id);
        pair.near.post_one(send).expect("posted");
    }
    assert_eq!(done(rig, &pair.near.cq), ok(ids));
    Ok(())
}

// covers 3.82 7.86
fn a_shared_queue_keeps_what_is_posted_when_resized(rig: &Rig) -> Outcome {
    let desk = Desk::new(rig, 8)?;
    let pair = desk.pair(rig)?;
    let made = desk.room();
    desk.fill(0..made)?;
    rig.finish(desk.srq.arm_limit(3))?;
    for refused in [4, 0, u32::MAX] {
        assert!(rig.outcome(desk.srq.resize(refused))?.is_err(), "{refused}");
        let status = desk.srq.query().expect("a queue that lives");
        let found = (u64::from(status.max_wr), status.srq_limit);
        assert_eq!(found, (made, 3), "as it was");
    }
    let taken = made - 5;
    send(rig, &pair, 0..taken)?;
    assert_eq!(done(rig, &pair.far.cq), ok(0..taken));
    rig.finish(desk.srq.resize(5))?;
    let smaller = taken + desk.room();
    desk.fill(made..smaller)?;
    assert!(desk.is_full()?);
    rig.finish(desk.srq.resize(desk.room() as u32 + 2))?;
    let end = taken + desk.room();
    desk.fill(smaller..end)?;
    assert!(desk.is_full()?);
    send(rig, &pair, taken..end - 3)?;
    assert_eq!(
        rig.far
            .events()
            .iter()
            .filter(|it| **it == EventType::SrqLimitReached)
            .count(),
        0
    );
    // The SRQ limit was kept, too.
    send(rig, &pair, end - 3..end - 1)?;
    assert!(rig.far.events().contains(&EventType::SrqLimitReached));
    assert_eq!(done(rig, &pair.far.cq), ok(taken..end - 1));
    rig.finish(desk.srq.resize(1))?;
    desk.fill(end..end - 1 + desk.room())?;
    assert!(desk.is_full()?);
    send(rig, &pair, end - 1..end)?;
    assert_eq!(done(rig, &pair.far.cq), ok([end - 1]));
    Ok(())
}

// covers 3.82
fn a_shared_queue_has_room_for_what_it_says(rig: &Rig) -> Outcome {
    let large = rig.attributes().limits.max_srq_wr.min(3000);
    let small = Desk::new(rig, 2)?;
    let desk = match rig.outcome(small.srq.resize(large))? {
        // Resizing is the one verb of shared receive queues that a device need not have.
        Err(VerbError::UnsupportedVerb(_)) if rig.is_given() => Desk::new(rig, large)?,
        resized => resized.map(|()| small).expect("a larger queue"),
    };
    let pair = desk.pair(rig)?;
    let room = desk.room();
    assert!(room >= large.into());
    desk.fill(0..room)?;
    assert!(desk.is_full()?);
    for first in (0..room).step_by(50) {
        let ids = first..(first + 50).min(room);
        send(rig, &pair, ids.clone())?;
        assert_eq!(done(rig, &pair.far.cq), ok(ids));
    }
    Ok(())
}

/// The far end's events, of this queue pair, and the completions that were there when each arrived.
type Told = Arc<Mutex<Vec<(EventType, Vec<(u64, WcStatus)>)>>>;

fn listen(rig: &Rig, side: &Side) -> Told {
    let told = Told::default();
    let (events, cq, id) = (Arc::clone(&told), side.cq.clone(), side.id());
    rig.far.context.on_event(move |event| {
        if event.object().is_some_and(|object| object.id == id)
            && event.event_type() != EventType::CommEst
        {
            let mut events = events.lock();
            events.push((event.event_type(), statuses(&poll(&cq))));
        }
    });
    told
}

fn taken(told: &Told) -> Vec<(EventType, Vec<(u64, WcStatus)>)> {
    std::mem::take(&mut *told.lock())
}

const LAST: EventType = EventType::QpLastWqeReached;

// covers 3.83 3.84
fn the_last_wqe_event_follows_a_change_of_the_state(rig: &Rig) -> Outcome {
    let desk = Desk::new(rig, 8)?;
    let pair = desk.pair(rig)?;
    let told = listen(rig, &pair.far);
    desk.fill(0..4)?;
    send(rig, &pair, 0..1)?;
    assert_eq!(taken(&told), []);
    go_to(rig, &pair.far, QpState::Err)?;
    rig.settle();
    assert_eq!(
        taken(&told),
        [(LAST, ok([0]))],
        "the queue pair held no receive"
    );
    assert_eq!(desk.waiting()?, 3);
    // No further event comes, whatever happens to the queue pair.
    go_to(rig, &pair.far, QpState::Err)?;
    let late = wr::Send::new(rig.scratch.sge(0, 8)?).signaled(9);
    pair.near.post_one(late).expect("taken");
    assert_eq!((done(rig, &pair.far.cq), taken(&told)), (vec![], vec![]));
    Ok(())
}

// covers 3.83 3.84
fn the_last_wqe_event_follows_an_error_of_its_own(rig: &Rig) -> Outcome {
    let desk = Desk::new(rig, 8)?;
    let pair = desk.pair(rig)?;
    let told = listen(rig, &pair.far);
    desk.fill(0..4)?;
    let bad = wr::Send::new(unusable(rig)).wr_id(50);
    pair.far.post_one(bad).expect("posted");
    rig.settle();
    assert_eq!(taken(&told), [(LAST, vec![(50, WcStatus::LocProtErr)])]);
    assert_eq!(desk.waiting()?, 4);
    Ok(())
}

// covers 3.83 3.84
fn the_last_wqe_event_follows_an_error_of_the_peer(rig: &Rig) -> Outcome {
    // One receive was taken, and is too short: its completion reports the fault, and no other event does.
    let desk = Desk::new(rig, 8)?;
    let pair = desk.pair(rig)?;
    let told = listen(rig, &pair.far);
    assert_eq!(desk.post_of(0, 8)?, Ok(()));
    desk.fill(1..4)?;
    let long = wr::Send::new(rig.scratch.sge(0, 4000)?).signaled(1);
    pair.near.post_one(long).expect("posted");
    rig.settle();
    assert_eq!(taken(&told), [(LAST, vec![(0, WcStatus::LocLenErr)])]);
    assert_eq!(desk.waiting()?, 3);
    // No receive was taken: the fault has an event, and the last-WQE event comes in addition.
    let desk = Desk::new(rig, 8)?;
    let pair = desk.pair(rig)?;
    let told = listen(rig, &pair.far);
    desk.fill(0..4)?;
    let nowhere = verbs_api::RemoteAddress::default();
    let write = verbs_api::wr::Write::new(rig.scratch.sge(0, 8)?, nowhere).signaled(1);
    pair.near.post_one(write).expect("posted");
    rig.settle();
    let mut events: Vec<_> = taken(&told).into_iter().map(|(event, _)| event).collect();
    events.sort_by_key(|event| *event == LAST);
    assert_eq!(events, [EventType::QpAccessErr, LAST]);
    assert_eq!(desk.waiting()?, 4);
    Ok(())
}

// covers 3.83
fn the_last_wqe_event_follows_the_loss_of_the_peer(rig: &Rig) -> Outcome {
    if rig.acknowledges() {
        // InfiniBand has no connection whose loss the far end could notice.
        return Ok(());
    }
    let desk = Desk::new(rig, 8)?;
    let pair = desk.pair(rig)?;
    let told = listen(rig, &pair.far);
    desk.fill(0..4)?;
    rig.finish_destroy(pair.near.qp.clone().destroy())?;
    rig.settle();
    assert_eq!(taken(&told), [(LAST, vec![])]);
    assert_eq!(desk.waiting()?, 4);
    Ok(())
}

// covers 3.83 3.84
fn a_receive_in_progress_precedes_the_last_wqe_event(rig: &Rig) -> Outcome {
    let desk = Desk::new(rig, 8)?;
    let pair = desk.pair(rig)?;
    let told = listen(rig, &pair.far);
    desk.fill(0..4)?;
    send(rig, &pair, 0..1)?;
    let long = wr::Send::new(rig.scratch.sge(0, 8000)?).signaled(1);
    pair.near.post_one(long).expect("posted");
    // Over a link a part of the message has arrived; elsewhere all of it. Over sockets any part may have arrived,
    // perhaps none.
    rig.step();
    go_to(rig, &pair.far, QpState::Err)?;
    rig.settle();
    let told = taken(&told);
    assert_eq!(told.len(), 1);
    if rig.is_in_real_time() && told[0].1.len() == 1 {
        assert_eq!(told[0], (LAST, vec![(0, WcStatus::Success)]));
        assert_eq!((desk.waiting()?, done(rig, &pair.far.cq)), (3, vec![]));
        return Ok(());
    }
    let status = told[0].1.last().map_or(WcStatus::Success, |done| done.1);
    assert_eq!(told[0], (LAST, vec![(0, WcStatus::Success), (1, status)]));
    assert!([WcStatus::Success, WcStatus::WrFlushErr].contains(&status));
    assert_eq!((desk.waiting()?, done(rig, &pair.far.cq)), (2, vec![]));
    Ok(())
}

// covers 3.83
fn the_last_wqe_event_comes_once_between_resets(rig: &Rig) -> Outcome {
    let desk = Desk::new(rig, 8)?;
    desk.fill(0..2)?;
    let pair = desk.pair(rig)?;
    let told = listen(rig, &pair.far);
    go_to(rig, &pair.far, QpState::Err)?;
    rig.settle();
    assert_eq!(taken(&told), [(LAST, vec![])]);
    go_to(rig, &pair.far, QpState::Reset)?;
    go_to(rig, &pair.near, QpState::Reset)?;
    rig.settle();
    poll(&pair.near.cq);
    let pair = rig.connected(pair.near, pair.far)?;
    send(rig, &pair, 0..1)?;
    assert_eq!((done(rig, &pair.far.cq), taken(&told)), (ok([0]), vec![]));
    go_to(rig, &pair.far, QpState::Err)?;
    rig.settle();
    assert_eq!(taken(&told), [(LAST, vec![])]);
    // Now the queue pair can be destroyed, and the shared queue after it.
    rig.finish_destroy(pair.far.qp.clone().destroy())?;
    rig.finish_destroy(desk.srq.destroy())
}

// covers 3.83
fn a_private_receive_queue_raises_no_last_wqe_event(rig: &Rig) -> Outcome {
    let desk = Desk::new(rig, 8)?;
    let pair = rig.rc()?;
    let told = listen(rig, &pair.far);
    pair.far.receive(&desk.region, 0, 64)?;
    go_to(rig, &pair.far, QpState::Err)?;
    assert_eq!(done(rig, &pair.far.cq), flushed([0]));
    assert_eq!(taken(&told), []);
    Ok(())
}

// covers 3.83 3.84
fn uc_and_ud_raise_the_last_wqe_event_too(rig: &Rig) -> Outcome {
    for qp_type in [QpType::Uc, QpType::Ud] {
        let desk = Desk::new(rig, 8)?;
        let (near, far) = (rig.near.side(qp_type)?, desk.side(rig, qp_type)?);
        let (pair, to): (Pair, Option<UdDestination>) = if qp_type == QpType::Ud {
            for side in [&near, &far] {
                rig.finish(side.activate(PathOptions::new().qkey(QKEY)))?;
            }
            let to = datagrams_to(rig, &far)?;
            (Pair { near, far }, Some(to))
        } else {
            (rig.connected(near, far)?, None)
        };
        let told = listen(rig, &pair.far);
        desk.fill(0..4)?;
        let data = rig.scratch.sge(0, 8)?;
        let send = wr::Send::new(data).signaled(1);
        let send = to
            .as_ref()
            .map_or(send, |to| wr::Send::new(data).to(to).signaled(1));
        pair.near.post_one(send).expect("posted");
        rig.settle();
        go_to(rig, &pair.far, QpState::Err)?;
        rig.settle();
        assert_eq!(taken(&told), [(LAST, ok([0]))], "{qp_type:?}");
        assert_eq!(desk.waiting()?, 3);
    }
    Ok(())
}

// covers 3.84
fn an_untaken_receive_serves_another_queue_pair(rig: &Rig) -> Outcome {
    let desk = Desk::new(rig, 8)?;
    let (failing, other) = (desk.pair(rig)?, desk.pair(rig)?);
    desk.fill(0..8)?;
    send(rig, &failing, 0..2)?;
    send(rig, &other, 0..1)?;
    go_to(rig, &failing.far, QpState::Err)?;
    assert_eq!(done(rig, &failing.far.cq), ok([0, 1]));
    send(rig, &other, 1..6)?;
    assert_eq!(done(rig, &other.far.cq), ok(2..8));
    assert_eq!(desk.waiting()?, 0);
    Ok(())
}
