//! Local, remote and implicit invalidation.

use verbs_api::probe::{Evidence, Fast, Outcome, Pair, Rig};
use verbs_api::qp::QpState;
use verbs_api::{
    Access, Batch, Completion, MrOptions, RKey, WcStatus,
    capability::BaselineGaps,
    completion::WcFlags,
    probe::{ensure, ensure_eq},
    wr,
};

use super::register::REFUSED;
use super::{OPEN, registered};

const LONG: u32 = 6000;
const MESSAGE: [u8; 16] = *b"the key is yours";

// covers 2.26
pub(super) fn stale_key(rig: &Rig) -> Outcome {
    let pair = rig.rc()?;
    let fast = registered(rig, &pair)?;
    ensure!(
        rig.can_write(&pair, fast.remote(0))?,
        "a registered key does not open its memory"
    );
    rig.succeeds(&pair.far, fast.invalidate())?;
    ensure!(
        !rig.can_write(&rig.rc()?, fast.remote(0))?,
        "a peer wrote through an invalidated key"
    );
    ensure!(
        !rig.can_read(&rig.rc()?, fast.remote(0))?,
        "a peer read through an invalidated key"
    );
    let local = wr::Send::new(fast.sge(0, 8));
    rig.fails(&rig.rc()?.far, local, &[WcStatus::LocProtErr])?;
    rig.succeeds(&pair.far, fast.register(OPEN))?;
    ensure!(
        rig.can_write(&pair, fast.remote(0))?,
        "an invalidated key cannot be registered again"
    );
    Ok(())
}

// covers 2.28
pub(super) fn stale_byte(rig: &Rig) -> Outcome {
    let pair = rig.rc()?;
    let fast = registered(rig, &pair)?;
    let request = wr::LocalInvalidate::new(fast.rkey().next());
    rig.fails(&rig.rc()?.far, request, REFUSED)?;
    ensure!(
        rig.can_write(&pair, fast.remote(0))?,
        "an invalidate with a wrong key byte has invalidated the key"
    );
    Ok(())
}

// covers 2.26
pub(super) fn no_such_key(rig: &Rig) -> Outcome {
    let ordinary = rig.far.region(64, OPEN)?;
    for wrong in [RKey::new(0), RKey::new(u32::MAX), ordinary.mr.rkey()] {
        rig.fails(&rig.rc()?.far, wr::LocalInvalidate::new(wrong), REFUSED)?;
    }
    ensure!(
        rig.can_write(&rig.rc()?, ordinary.remote(0))?,
        "an ordinary region was invalidated"
    );
    Ok(())
}

/// All access rights that the local memory of a read needs on any transport.
const SINK: Access = Access::LOCAL_WRITE.union(Access::REMOTE_WRITE);

/// Checks that requests have succeeded in this order; a refused operation is the evidence where there is one.
fn completed(done: &[Completion], ids: &[u64], what: &str) -> Outcome {
    let refused = done.iter().find(|done| done.status == WcStatus::LocQpOpErr);
    if let Some(refused) = refused {
        return Err(Evidence::ended(refused.status));
    }
    let found: Vec<_> = done.iter().map(|done| (done.wr_id, done.status)).collect();
    let expected: Vec<_> = ids.iter().map(|&id| (id, WcStatus::Success)).collect();
    ensure_eq!(found, expected, "{what}");
    Ok(())
}

// covers 2.24 2.25
pub(super) fn fenced(rig: &Rig) -> Outcome {
    let pair = rig.rc()?;
    let sink = rig.near.fast(8192)?;
    let source = rig.far.region(8192, OPEN)?;
    for round in 0..50 {
        source.fill(round)?;
        let mut batch = Batch::new();
        batch.push(sink.register_afresh(SINK));
        batch.push(wr::Read::new(sink.sge(0, LONG), source.remote(0)).signaled(1));
        batch.push(sink.invalidate().fence().signaled(2));
        pair.near.post(&mut batch)?;
        let done = rig.take(&pair.near.cq, 2)?;
        completed(
            &done,
            &[1, 2],
            "a read, and a fenced invalidate of its sink",
        )?;
        ensure_eq!(
            sink.bytes(0, LONG as usize)?,
            source.bytes(0, LONG as usize)?,
            "what was read"
        );
    }
    let unusable = wr::Send::new(sink.sge(0, 8));
    rig.fails(&pair.near, unusable, &[WcStatus::LocProtErr])
}

// covers 2.24 2.25
pub(super) fn fenced_all(rig: &Rig) -> Outcome {
    let pair = rig.rc()?;
    let source = rig.far.region(8192, OPEN)?;
    source.fill(7)?;
    let sinks: Vec<Fast> = (0..6)
        .map(|_| rig.near.fast(8192))
        .collect::<Result<_, _>>()?;
    let mut batch = Batch::new();
    for sink in &sinks {
        batch.push(sink.register(SINK));
    }
    for sink in &sinks {
        batch.push(wr::Read::new(sink.sge(0, LONG), source.remote(0)).signaled(1));
    }
    for sink in &sinks {
        batch.push(sink.invalidate().fence().signaled(2));
    }
    pair.near.post(&mut batch)?;
    let done = rig.take(&pair.near.cq, 12)?;
    completed(
        &done,
        &[1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2],
        "six reads and the fenced invalidates of their sinks",
    )?;
    for sink in &sinks {
        ensure_eq!(
            sink.bytes(0, LONG as usize)?,
            source.bytes(0, LONG as usize)?,
            "what was read"
        );
    }
    Ok(())
}

// covers 2.62 2.69
pub(super) fn read(rig: &Rig) -> Outcome {
    let pair = rig.rc()?;
    let source = rig.far.region(8192, OPEN)?;
    let sink = rig.near.fast(8192)?;
    for round in 0..5 {
        source.fill(round)?;
        rig.succeeds(&pair.near, sink.register_afresh(SINK))?;
        let read = wr::ReadWithInvalidate::new(sink.sge(0, LONG), source.remote(0));
        rig.succeeds(&pair.near, read)?;
        ensure_eq!(
            sink.bytes(0, LONG as usize)?,
            source.bytes(0, LONG as usize)?,
            "what was read"
        );
    }
    let unusable = wr::Send::new(sink.sge(0, 8));
    rig.fails(&pair.near, unusable, &[WcStatus::LocProtErr])
}

// covers 2.62
pub(super) fn read_ordinary(rig: &Rig) -> Outcome {
    let source = rig.far.region(64, OPEN)?;
    let ordinary = rig.near.region(64, SINK)?;
    let pair = rig.rc()?;
    let read = wr::ReadWithInvalidate::new(ordinary.sge(0, 64)?, source.remote(0));
    let status = rig.run(&pair.near, read)?;
    ensure!(
        !status.is_success(),
        "a read that was to invalidate an ordinary region succeeded"
    );
    ensure_eq!(
        pair.near.state()?,
        QpState::Err,
        "the state of the queue pair"
    );
    Ok(())
}

/// Sends a message that invalidates `key` into a receive of the far side, and returns the far completion.
pub(super) fn send_invalidating(rig: &Rig, pair: &Pair, key: RKey) -> Result<Completion, Evidence> {
    let landing = rig.far.region(64, Access::LOCAL_WRITE)?;
    pair.far.receive(&landing, 0, 64)?;
    pair.near
        .post_one(wr::SendWithInvalidate::new(&MESSAGE, key).signaled(77))?;
    let got = rig.take(&pair.far.cq, 1)?.remove(0);
    ensure_eq!(
        landing.bytes(0, MESSAGE.len())?,
        MESSAGE.to_vec(),
        "the message"
    );
    Ok(got)
}

// covers 2.63 1.01
pub(super) fn send(rig: &Rig) -> Outcome {
    let pair = rig.rc()?;
    let fast = registered(rig, &pair)?;
    for _ in 0..50 {
        let key = fast.rkey();
        let got = send_invalidating(rig, &pair, key)?;
        ensure_eq!(
            (got.wr_id, got.status, got.byte_len as usize),
            (0, WcStatus::Success, MESSAGE.len()),
            "the receive"
        );
        ensure_eq!(got.wc_flags, WcFlags::WITH_INV, "its flags");
        ensure_eq!(
            (got.invalidated_rkey(), got.immediate()),
            (Some(key), None),
            "the key that it tells, and its immediate data"
        );
        completed(&rig.take(&pair.near.cq, 1)?, &[77], "the send")?;
        // Invalid once the receive has completed: it can be registered at once.
        rig.succeeds(&pair.far, fast.register_afresh(OPEN))?;
    }
    let dead = fast.remote(0);
    send_invalidating(rig, &pair, dead.rkey)?;
    rig.take(&pair.near.cq, 1)?;
    ensure!(
        !rig.can_write(&pair, dead)?,
        "a peer wrote through a key that its own message invalidated"
    );
    Ok(())
}

// covers 2.63
pub(super) fn send_without_receive(rig: &Rig) -> Outcome {
    let (pair, other) = (rig.rc()?, rig.rc()?);
    let fast = registered(rig, &other)?;
    pair.near
        .post_one(wr::SendWithInvalidate::new(&MESSAGE, fast.rkey()).signaled(1))?;
    rig.settle();
    ensure!(
        rig.can_write(&other, fast.remote(0))?,
        "a message that found no receive has invalidated its key"
    );
    if rig.has_gap(BaselineGaps::NO_RNR_RETRY) {
        ensure_eq!(
            pair.far.state()?,
            QpState::Err,
            "the state after a message that found no receive"
        );
        return Ok(());
    }
    let landing = rig.far.region(64, Access::LOCAL_WRITE)?;
    pair.far.receive(&landing, 0, 64)?;
    let got = rig.take(&pair.far.cq, 1)?.remove(0);
    ensure_eq!(
        (got.status, got.invalidated_rkey()),
        (WcStatus::Success, Some(fast.rkey())),
        "the receive, and the key that it tells"
    );
    ensure_eq!(
        landing.bytes(0, MESSAGE.len())?,
        MESSAGE.to_vec(),
        "the message"
    );
    completed(&rig.take(&pair.near.cq, 1)?, &[1], "the send")?;
    rig.nothing_on(&pair.far.cq)?;
    ensure!(
        !rig.can_write(&other, fast.remote(0))?,
        "a key is valid still after the message that invalidates it was received"
    );
    Ok(())
}

// covers 2.64 2.65
pub(super) fn send_refused(rig: &Rig) -> Outcome {
    let maker = rig.rc()?;
    let valid = registered(rig, &maker)?;
    let ordinary = rig.far.region(64, OPEN)?;
    let local = rig.far.fast(4096)?;
    rig.succeeds(&maker.far, local.register(Access::LOCAL_WRITE))?;
    let free = rig.far.fast(4096)?;
    for (key, what) in [
        (RKey::new(u32::MAX), "a key that does not exist"),
        (valid.rkey().next(), "a stale key byte"),
        (ordinary.mr.rkey(), "an ordinary region"),
        (local.rkey(), "a key without rights for peers"),
        (free.rkey(), "a free key"),
    ] {
        let pair = rig.rc()?;
        let got = send_invalidating(rig, &pair, key)?;
        ensure_eq!(
            got.status,
            WcStatus::RemInvReqErr,
            "the receive of a message that was to invalidate {what}"
        );
        ensure_eq!(
            pair.far.state()?,
            QpState::Err,
            "the far queue pair after {what}"
        );
    }
    ensure!(
        rig.can_write(&maker, valid.remote(0))?,
        "a stale key byte has invalidated the key"
    );
    ensure!(
        rig.can_write(&maker, ordinary.remote(0))?,
        "an ordinary region was invalidated by a peer"
    );
    Ok(())
}

// covers 2.64
pub(super) fn send_foreign_domain(rig: &Rig) -> Outcome {
    let pair = rig.rc()?;
    let fast = registered(rig, &pair)?;
    let pd = rig.far.other_pd()?;
    let landing = rig
        .far
        .region_with(&pd, 64, MrOptions::new(Access::LOCAL_WRITE))?;
    let stranger = rig.rc_in(&pd)?;
    stranger.far.receive(&landing, 0, 64)?;
    let send = wr::SendWithInvalidate::new(&MESSAGE, fast.rkey()).signaled(1);
    stranger.near.post_one(send)?;
    let got = rig.take(&stranger.far.cq, 1)?.remove(0);
    ensure_eq!(
        got.status,
        WcStatus::RemInvReqErr,
        "the receive in another domain"
    );
    ensure!(
        rig.can_write(&pair, fast.remote(0))?,
        "a key was invalidated through a queue pair of another domain"
    );
    Ok(())
}
