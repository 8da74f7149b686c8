//! Probes of CQs that are resized, of shared receive queues, and of completion counters.

use verbs_api::completion::{CompletionCounter, CountedOperations, CountedUnit};
use verbs_api::event::EventType;
use verbs_api::probe::{Evidence, Outcome, Pair, Region, Rig, Side, ensure, ensure_eq};
use verbs_api::qp::{QpAttributes, QpState, QpType};
use verbs_api::wr::{ReceiveRequest, Send, Write};
use verbs_api::{Access, DestroyError, MrOptions, Srq, SrqOptions, VerbError, WcStatus};

use crate::{filled, statuses};

// covers 3.89
pub(crate) fn resize_cq(rig: &Rig) -> Outcome {
    let cq = rig.near.cq(8)?;
    let qp = rig.finish(rig.near.pd.create_qp(rig.near.options(QpType::Rc, &cq)))?;
    let near = Side { qp, cq };
    let pair = rig.connected(near, rig.far.side(QpType::Rc)?)?;
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    let desk = rig.far.region(64, access)?;
    let write = |id| -> Outcome {
        let write = Write::new(rig.scratch.sge(0, 8)?, desk.remote(0)).signaled(id);
        Ok(pair.near.post_one(write)?)
    };
    (0..5).try_for_each(write)?;
    rig.settle();
    ensure!(
        rig.outcome(pair.near.cq.resize(4))?.is_err(),
        "a queue with five completions was made one for four"
    );
    rig.finish(pair.near.cq.resize(64))?;
    (5..40).try_for_each(write)?;
    rig.settle();
    rig.finish(pair.near.cq.resize(40))?;
    let done = statuses(&rig.take(&pair.near.cq, 40)?);
    let expected: Vec<_> = (0..40).map(|id| (id, WcStatus::Success)).collect();
    ensure_eq!(done, expected, "what a queue held whose size was changed");
    Ok(())
}

/// An SRQ with room for eight receives, and memory for them.
fn shared(rig: &Rig) -> Result<(Srq, Region), Evidence> {
    let desk = rig.far.region(4096, Access::LOCAL_WRITE)?;
    Ok((rig.finish(rig.far.pd.create_srq(SrqOptions::new(8)))?, desk))
}

/// A pair of connected QPs, of which the far one takes its receives from `srq`.
fn sharing(rig: &Rig, srq: &Srq) -> Result<Pair, Evidence> {
    let far = rig
        .far
        .side_with(&rig.far.pd, |cq| rig.far.options(QpType::Rc, cq).srq(srq))?;
    rig.connected(rig.near.side(QpType::Rc)?, far)
}

fn post(srq: &Srq, desk: &Region, id: u64) -> Outcome {
    let data = desk.sge(id as usize * 64, 64)?;
    Ok(srq.post_receive(ReceiveRequest::new(id, data))?)
}

// covers 3.80
pub(crate) fn srq_shared(rig: &Rig) -> Outcome {
    let (srq, desk) = shared(rig)?;
    filled(rig)?;
    let (one, other) = (sharing(rig, &srq)?, sharing(rig, &srq)?);
    (0..4).try_for_each(|id| post(&srq, &desk, id))?;
    for (id, pair) in [&one, &other, &one, &other].into_iter().enumerate() {
        rig.succeeds(&pair.near, Send::new(rig.scratch.sge(id * 8, 8)?))?;
        let done = rig.take(&pair.far.cq, 1)?.remove(0);
        ensure_eq!(
            (done.wr_id, done.qp_num, done.status),
            (id as u64, pair.far.qp_num(), WcStatus::Success),
            "which receive message {id} took, and for whom"
        );
        ensure_eq!(
            desk.bytes(id * 64, 8)?,
            rig.scratch.bytes(id * 8, 8)?,
            "message {id}"
        );
    }
    let own = ReceiveRequest::new(9, desk.sge(0, 8)?);
    ensure!(
        one.far.post_receive(own).is_err(),
        "a queue pair that shares a receive queue takes a receive of its own"
    );
    Ok(())
}

// covers 3.81 7.86
pub(crate) fn srq_limit(rig: &Rig) -> Outcome {
    let (srq, desk) = shared(rig)?;
    let pair = sharing(rig, &srq)?;
    (0..4).try_for_each(|id| post(&srq, &desk, id))?;
    rig.finish(srq.arm_limit(3))?;
    let mut told = Vec::new();
    for _ in 0..3 {
        rig.succeeds(&pair.near, Send::new(rig.scratch.sge(0, 8)?))?;
        rig.take(&pair.far.cq, 1)?;
        rig.settle();
        let events = rig.far.events();
        let limits = events
            .iter()
            .filter(|it| **it == EventType::SrqLimitReached);
        told.push(limits.count());
    }
    ensure_eq!(
        told,
        [0, 1, 0],
        "events while four receives become one, with a limit of three"
    );
    Ok(())
}

// covers 2.07
pub(crate) fn srq_domain(rig: &Rig) -> Outcome {
    let other = rig.far.other_pd()?;
    let mine = MrOptions::new(Access::LOCAL_WRITE);
    let desk = rig.far.region_with(&other, 4096, mine)?;
    let srq = rig.finish(other.create_srq(SrqOptions::new(8)))?;
    let pair = sharing(rig, &srq)?;
    post(&srq, &desk, 0)?;
    rig.succeeds(&pair.near, Send::new(rig.scratch.sge(0, 8)?))?;
    let done = rig.take(&pair.far.cq, 1)?.remove(0);
    ensure_eq!(
        done.status,
        WcStatus::Success,
        "a receive in the domain of its queue, taken by a queue pair of another"
    );
    let foreign = rig.far.region(4096, Access::LOCAL_WRITE)?;
    post(&srq, &foreign, 1)?;
    let found = rig.verdict(&pair, Send::new(rig.scratch.sge(0, 8)?))?;
    ensure!(
        found != WcStatus::Success,
        "a receive outside the domain of its queue was used"
    );
    Ok(())
}

// covers 3.84
pub(crate) fn srq_survives(rig: &Rig) -> Outcome {
    let (srq, desk) = shared(rig)?;
    let (one, other) = (sharing(rig, &srq)?, sharing(rig, &srq)?);
    post(&srq, &desk, 0)?;
    let failed = QpAttributes::new().qp_state(QpState::Err);
    rig.finish(one.far.modify(failed))?;
    rig.settle();
    ensure!(
        one.far.poll()?.is_empty(),
        "a receive of a shared queue was flushed with one of its queue pairs"
    );
    rig.succeeds(&other.near, Send::new(rig.scratch.sge(0, 8)?))?;
    let done = rig.take(&other.far.cq, 1)?.remove(0);
    ensure_eq!(
        (done.wr_id, done.status),
        (0, WcStatus::Success),
        "the receive that was left"
    );
    Ok(())
}

/// A pair of connected QPs whose sends, writes and receives are counted: of the near one by requests, of the far one by bytes.
fn counted(rig: &Rig) -> Result<(Pair, CompletionCounter, CompletionCounter), Evidence> {
    let (near, far) = (rig.near.side(QpType::Rc)?, rig.far.side(QpType::Rc)?);
    let requests = rig
        .near
        .context
        .create_completion_counter(CountedUnit::Requests)?;
    let bytes = rig
        .far
        .context
        .create_completion_counter(CountedUnit::Bytes)?;
    let sent = CountedOperations::SEND | CountedOperations::RDMA_WRITE;
    near.qp.attach_completion_counter(&requests, sent)?;
    far.qp
        .attach_completion_counter(&bytes, CountedOperations::RECV)?;
    Ok((rig.connected(near, far)?, requests, bytes))
}

pub(crate) fn counters_count(rig: &Rig) -> Outcome {
    let (pair, requests, bytes) = counted(rig)?;
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    let desk = rig.far.region(64, access)?;
    filled(rig)?;
    pair.far
        .post_receive(ReceiveRequest::new(1, desk.sge(0, 64)?))?;
    // Requests without a completion of their own count too.
    for _ in 0..3 {
        pair.near
            .post_one(Write::new(rig.scratch.sge(0, 8)?, desk.remote(0)))?;
    }
    rig.succeeds(&pair.near, Send::new(rig.scratch.sge(0, 24)?))?;
    rig.take(&pair.far.cq, 1)?;
    ensure_eq!(
        (requests.successes(), requests.errors()),
        (4, 0),
        "three writes and a send, and no failure"
    );
    ensure_eq!(
        (bytes.successes(), bytes.errors()),
        (24, 0),
        "the bytes of the message that was received"
    );
    requests.set_successes(100);
    requests.add_successes(1);
    bytes.set_errors(7);
    bytes.add_errors(2);
    ensure_eq!(
        (requests.successes(), bytes.errors(), bytes.successes()),
        (101, 9, 24),
        "what the program has set and added"
    );
    Ok(())
}

pub(crate) fn counters_errors(rig: &Rig) -> Outcome {
    let (pair, requests, bytes) = counted(rig)?;
    let desk = rig.far.region(64, Access::LOCAL_WRITE)?;
    for id in 0..2 {
        pair.far
            .post_receive(ReceiveRequest::new(id, desk.sge(0, 8)?))?;
    }
    let no_key = rig.near.dead_sge()?;
    pair.near.post_one(Send::new(no_key).signaled(1))?;
    rig.take(&pair.near.cq, 1)?;
    let failed = QpAttributes::new().qp_state(QpState::Err);
    rig.finish(pair.far.modify(failed))?;
    rig.take(&pair.far.cq, 2)?;
    ensure_eq!(
        (requests.successes(), requests.errors()),
        (0, 1),
        "a send with a key that is gone"
    );
    ensure_eq!(
        (bytes.successes(), bytes.errors()),
        (0, 2),
        "two receives that were flushed"
    );
    Ok(())
}

pub(crate) fn counters_attach(rig: &Rig) -> Outcome {
    let (pair, requests, _bytes) = counted(rig)?;
    let make = || {
        rig.near
            .context
            .create_completion_counter(CountedUnit::Requests)
    };
    let (other, sent) = (make()?, CountedOperations::SEND);
    let late = pair.near.attach_completion_counter(&other, sent);
    ensure!(
        matches!(late, Err(VerbError::InvalidState(QpState::Rts))),
        "a counter was attached to a connected queue pair: {late:?}"
    );
    let idle = rig.near.side(QpType::Rc)?;
    idle.qp.attach_completion_counter(&other, sent)?;
    let again = idle.qp.attach_completion_counter(&requests, sent);
    ensure!(
        matches!(again, Err(VerbError::Busy(_))),
        "two counters count one operation: {again:?}"
    );
    let Err(DestroyError::Busy { object, .. }) = other.destroy() else {
        return Err(Evidence::wrong(
            "a counter was destroyed that a queue pair has",
        ));
    };
    rig.finish_destroy(idle.qp.destroy())?;
    ensure!(
        object.destroy().is_ok(),
        "the end of its queue pair does not detach a counter"
    );
    Ok(())
}
