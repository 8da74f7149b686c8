//! Probes that verify the feature: progress advances, and nothing else changes.

use verbs_api::probe::{Evidence, Outcome, Pair, Probe, Rig};
use verbs_api::qp::QpType;
use verbs_api::{
    Access, ErrorKind, Features, QpOptions, SrqOptions, WcStatus,
    extension::{FeatureInfo, feature},
    probe::{ensure, ensure_eq},
    wr,
};

use crate::{LOW_LATENCY, LowLatency, Progress, Watch};

const SRQ: FeatureInfo = feature!(Features::SRQ, "queue pairs share a receive queue");

/// The probes of the extension.
pub static PROBES: &[Probe] = &[
    Probe::new(
        &LOW_LATENCY,
        "low-latency-qp.receive",
        "4.52",
        "a receive is seen without its completion queue, and completes there",
        receive,
    ),
    Probe::new(
        &LOW_LATENCY,
        "low-latency-qp.send",
        "4.52",
        "a request is seen without its completion queue, and completes there",
        send,
    ),
    Probe::new(
        &LOW_LATENCY,
        "low-latency-qp.what-is-watched",
        "4.50",
        "only what was asked for is counted, and unknown bits are refused",
        what_is_watched,
    ),
    Probe::new(
        &LOW_LATENCY,
        "low-latency-qp.flush",
        "4.51",
        "what fails or is flushed is not counted, and completes",
        flushed,
    ),
    Probe::new(
        &LOW_LATENCY,
        "low-latency-qp.srq",
        "4.51",
        "a shared receive queue is refused",
        shared,
    )
    .needs(&[SRQ]),
    Probe::new(
        &LOW_LATENCY,
        "low-latency-qp.off",
        "4.53",
        "a queue pair without it moves no progress",
        off,
    ),
];

/// Makes two connected queue pairs, of which the far one has a [`Progress`], and returns them with it.
fn watched(rig: &Rig, what: Watch) -> Result<(Pair, Progress), Evidence> {
    let low_latency = rig.far.context.extension::<LowLatency>()?;
    let progress = low_latency.watch(what)?;
    let far = rig.far.side_with(&rig.far.pd, |cq| {
        rig.far.options(QpType::Rc, cq).with(&progress)
    })?;
    let pair = rig.connected(rig.near.side(QpType::Rc)?, far)?;
    Ok((pair, progress))
}

// covers 4.52
fn receive(rig: &Rig) -> Outcome {
    let (pair, progress) = watched(rig, Watch::RECEIVES)?;
    let landing = rig.far.region(4096, Access::LOCAL_WRITE)?;
    for round in 0..20_u64 {
        pair.far.receive(&landing, 64 * round as usize, 64)?;
        pair.near.post_one(wr::Send::new(&round.to_ne_bytes()))?;
        rig.until("the progress of a receive", || progress.receives() > round)?;
        ensure_eq!(progress.receives(), round + 1, "receives");
        ensure_eq!(
            landing.word(64 * round as usize)?,
            round,
            "the bytes of a receive that is counted"
        );
    }
    let done = rig.take(&pair.far.cq, 20)?;
    let in_order = done
        .iter()
        .enumerate()
        .all(|(at, done)| done.wr_id == 64 * at as u64);
    ensure!(
        in_order,
        "the completions are not in the order of the receives"
    );
    Ok(())
}

// covers 4.52
fn send(rig: &Rig) -> Outcome {
    let (pair, progress) = watched(rig, Watch::SENDS)?;
    let open = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
    let target = rig.near.region(64, open)?;
    let source = rig.far.region(64, open)?;
    source.set_word(0, 77)?;
    pair.far
        .post_one(wr::Write::new(source.sge(0, 8)?, target.remote(0)))?;
    pair.far
        .post_one(wr::Read::new(source.sge(8, 8)?, target.remote(0)).signaled(2))?;
    rig.until("the progress of two requests", || progress.sends() >= 2)?;
    ensure_eq!(progress.sends(), 2, "requests, signaled or not");
    ensure_eq!(
        source.word(8)?,
        77,
        "what the read that is counted has read"
    );
    let done = rig.take(&pair.far.cq, 1)?.remove(0);
    ensure_eq!(
        (done.wr_id, done.status),
        (2, WcStatus::Success),
        "the completion"
    );
    Ok(())
}

// covers 4.50
fn what_is_watched(rig: &Rig) -> Outcome {
    let low_latency = rig.far.context.extension::<LowLatency>()?;
    for unknown in [
        Watch::empty(),
        Watch::from_bits_retain(4),
        Watch::from_bits_retain(7),
    ] {
        ensure!(
            low_latency.watch(unknown).is_err(),
            "{:#x} can be watched",
            unknown.bits()
        );
    }
    let landing = rig.far.region(64, Access::LOCAL_WRITE)?;
    for what in [Watch::SENDS, Watch::RECEIVES, Watch::all()] {
        let (pair, progress) = watched(rig, what)?;
        pair.far.receive(&landing, 0, 64)?;
        pair.near.post_one(wr::Send::new(&[1]))?;
        rig.take(&pair.far.cq, 1)?;
        let nothing = wr::Write::new((), verbs_api::RemoteAddress::default());
        rig.succeeds(&pair.far, nothing)?;
        let expected = (
            u64::from(what.contains(Watch::SENDS)),
            u64::from(what.contains(Watch::RECEIVES)),
        );
        let found = (progress.sends(), progress.receives());
        ensure_eq!(found, expected, "sends and receives with {what:?} watched");
    }
    Ok(())
}

// covers 4.51
fn flushed(rig: &Rig) -> Outcome {
    let (pair, progress) = watched(rig, Watch::all())?;
    let landing = rig.far.region(64, Access::LOCAL_WRITE)?;
    pair.far.receive(&landing, 0, 8)?;
    let bad = rig.far.dead_sge()?;
    pair.far.post_one(wr::Send::new(bad).signaled(1))?;
    let done = rig.take(&pair.far.cq, 2)?;
    let mut found: Vec<_> = done.iter().map(|done| done.status).collect();
    found.sort_by_key(|status| *status as u8);
    let expected = [WcStatus::LocProtErr, WcStatus::WrFlushErr];
    ensure_eq!(
        found,
        expected,
        "a failure and what was flushed, in the completion queue"
    );
    ensure_eq!(
        (progress.sends(), progress.receives()),
        (0, 0),
        "what failed or was flushed"
    );
    Ok(())
}

// covers 4.51
fn shared(rig: &Rig) -> Outcome {
    let low_latency = rig.far.context.extension::<LowLatency>()?;
    let progress = low_latency.watch(Watch::all())?;
    let srq = rig.finish(rig.far.pd.create_srq(SrqOptions::new(8)))?;
    let cq = rig.far.cq(8)?;
    let options = QpOptions::rc(&cq).srq(&srq).with(&progress);
    match rig.outcome(rig.far.pd.create_qp(options))? {
        Err(error) if error.kind() == ErrorKind::InvalidArgument => {}
        other => {
            return Err(Evidence::wrong(format!(
                "a low-latency queue pair with a shared receive queue: {other:?}"
            )));
        }
    }
    // It was the shared queue that was refused.
    rig.finish(rig.far.pd.create_qp(QpOptions::rc(&cq).with(&progress)))?;
    Ok(())
}

// covers 4.53
fn off(rig: &Rig) -> Outcome {
    let (_, progress) = watched(rig, Watch::all())?;
    let pair = rig.rc()?;
    let nothing = wr::Write::new((), verbs_api::RemoteAddress::default());
    rig.succeeds(&pair.far, nothing)?;
    ensure_eq!(
        progress.sends(),
        0,
        "requests of a queue pair that is not watched"
    );
    Ok(())
}
