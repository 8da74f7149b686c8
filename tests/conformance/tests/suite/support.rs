//! Helpers that several modules of the suite use.

use conformance::{Evidence, Outcome, Pair, Rig, Side};
use verbs_api::qp::{QpAttributes, QpState, QpType};
use verbs_api::{
    Completion, Cq, PathOptions, Sge, WcStatus, capability::BaselineGaps, ids::LKey,
    wr::UdDestination,
};

/// The identities and statuses of completions.
pub(crate) fn statuses(done: &[Completion]) -> Vec<(u64, WcStatus)> {
    done.iter().map(|done| (done.wr_id, done.status)).collect()
}

/// The identities of requests that succeeded, with their status.
pub(crate) fn ok(ids: impl IntoIterator<Item = u64>) -> Vec<(u64, WcStatus)> {
    ids.into_iter().map(|id| (id, WcStatus::Success)).collect()
}

/// The identities of requests that were flushed, with their status.
pub(crate) fn flushed(ids: impl IntoIterator<Item = u64>) -> Vec<(u64, WcStatus)> {
    let ids = ids.into_iter();
    ids.map(|id| (id, WcStatus::WrFlushErr)).collect()
}

/// The completions that are in the queue, polled one by one.
pub(crate) fn poll(cq: &Cq) -> Vec<Completion> {
    let one = || {
        let mut slot = [Completion::default()];
        let found = cq.poll(&mut slot).expect("a queue that works").len();
        let [done] = slot;
        (found == 1).then_some(done)
    };
    std::iter::from_fn(one).collect()
}

/// Lets time pass, and returns the completions that have arrived.
pub(crate) fn done(rig: &Rig, cq: &Cq) -> Vec<(u64, WcStatus)> {
    rig.settle();
    statuses(&poll(cq))
}

/// Moves a queue pair to a state that needs no other attribute.
pub(crate) fn go_to(rig: &Rig, side: &Side, state: QpState) -> Outcome {
    rig.finish(side.modify(QpAttributes::new().qp_state(state)))
}

/// The near queue pair can send, and the far one is in RESET, so that posted requests stay outstanding. `None` on devices
/// where no queue pair can send before its peer is ready.
pub(crate) fn half_connected(rig: &Rig) -> Result<Option<Pair>, Evidence> {
    if rig.has_gap(BaselineGaps::NO_MODIFY_TO_RTR) {
        return Ok(None);
    }
    let (near, far) = (rig.near.side(QpType::Rc)?, rig.far.side(QpType::Rc)?);
    let at_far = far.endpoint().expect("an endpoint");
    rig.finish(near.connect(&at_far, PathOptions::new()))?;
    Ok(Some(Pair { near, far }))
}

/// How the near end addresses datagrams to a queue pair of the far end.
pub(crate) fn datagrams_to(rig: &Rig, far: &Side) -> Result<UdDestination, Evidence> {
    let at = far.endpoint().expect("an endpoint");
    let path = rig.near.context.path_to(1, at.address, at.gid)?;
    Ok(UdDestination {
        ah: rig.finish(rig.near.pd.create_ah(path))?,
        remote_qpn: at.qp_num,
        remote_qkey: QKEY,
    })
}

/// The Q_Key of the datagram queue pairs.
pub(crate) const QKEY: u32 = 0x1111;

/// Queue pairs for datagrams, ready, and how the near one addresses the far one.
pub(crate) fn datagrams(rig: &Rig) -> Result<(Pair, UdDestination), Evidence> {
    let (near, far) = (rig.near.side(QpType::Ud)?, rig.far.side(QpType::Ud)?);
    for side in [&near, &far] {
        rig.finish(side.activate(PathOptions::new().qkey(QKEY)))?;
    }
    let to = datagrams_to(rig, &far)?;
    Ok((Pair { near, far }, to))
}

/// A scatter/gather entry whose key is not valid.
pub(crate) fn unusable(rig: &Rig) -> Sge {
    forged(rig.scratch.mr.iova(), 8, 0x12_3456)
}

/// A scatter/gather entry of forged numbers.
#[allow(unsafe_code)]
pub(crate) fn forged(addr: u64, length: u32, lkey: u32) -> Sge {
    // SAFETY: emulated devices check whether a region belongs to a buffer pool, whichever entry names it.
    unsafe { Sge::from_raw(addr, length, LKey::new(lkey)) }
}
