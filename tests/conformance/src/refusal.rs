//! A device refuses each feature that it does not have: by name, at once, and with nothing left allocated.

use verbs_api::qp::{QpAttributes, QpEndpoint, QpState, QpType};
use verbs_api::{
    Access, DestroyError, ErrorKind, Features, Memory, MrOptions, Operations, PageList, Pd,
    QpOptions, RKey, SrqOptions, Started, VerbError,
    capability::BaselineGaps,
    completion::CountedUnit,
    ids::Gid,
    memory::{MrReregister, MwType},
    wr::{self, PostReason, WorkRequest},
};

use crate::needs::Missing;
use crate::{Evidence, Outcome, Rig, Side, open};

/// Checks that the far device refuses every feature that it lacks.
///
/// # Errors
/// A verb of the check fails.
///
/// # Panics
/// The device grants a missing feature, or a refused verb leaves an object or a key allocated.
pub fn is_refused(rig: &Rig, missing: &Missing) -> Outcome {
    let keys = rig.far.keys_in_use();
    let pd = rig.far.other_pd()?;
    for feature in missing.features.iter() {
        refuses(rig, &pd, feature)?;
    }
    for gap in missing.gaps.iter() {
        has_gap(rig, &pd, gap)?;
    }
    assert_eq!(rig.far.keys_in_use(), keys, "no key was used up");
    match rig.outcome(pd.destroy())? {
        Ok(()) => Ok(()),
        Err(DestroyError::Busy { held_by, .. }) => panic!("left behind: {held_by:?}"),
        Err(error) => panic!("{error}"),
    }
}

fn refuses(rig: &Rig, pd: &Pd, feature: Features) -> Outcome {
    match feature {
        Features::BMME => {
            names(feature, pd.alloc_key(1));
            lacks_operation(rig, pd, Operations::FAST_REGISTER, feature)?;
            let memory = Memory::zeroed(4096).expect("memory");
            let list = PageList::map(&[(&memory).into()], 4096, 1)
                .expect("a page list")
                .list;
            lacks_request(rig, wr::FastRegister::new(RKey::new(0x100), &list))?;
            // Type-2 windows can be invalidated without `BMME`.
            if !rig.attributes().features.intersects(Features::WINDOW_2) {
                lacks_operation(rig, pd, Operations::LOCAL_INV, feature)?;
                lacks_operation(rig, pd, Operations::SEND_WITH_INV, feature)?;
                lacks_request(rig, wr::LocalInvalidate::new(RKey::new(0x100)))?;
            }
        }
        Features::WINDOW_1 => {
            names(feature, pd.alloc_mw(MwType::Type1));
            let pair = rig.rc()?;
            let reason = PostReason::Unsupported { missing: feature };
            assert_eq!(
                pair.far.bind_mw(wr::BindWindow::default()),
                Err(reason.into())
            );
            works(rig, &pair.far)?;
        }
        Features::WINDOW_2A | Features::WINDOW_2B => {
            names(Features::WINDOW_2, pd.alloc_mw(MwType::Type2));
            lacks_operation(rig, pd, Operations::BIND_MW, Features::WINDOW_2)?;
            lacks_request(rig, wr::BindWindow::default())?;
        }
        Features::READ_WITH_INVALIDATE => {
            lacks_operation(rig, pd, Operations::READ_WITH_INV, feature)?;
        }
        Features::ZBVA => {
            let memory = Memory::zeroed(64).expect("memory");
            let options = MrOptions::new(Access::LOCAL_WRITE).zero_based();
            names(feature, pd.register_with(&memory, options));
        }
        Features::SRQ => names(feature, pd.create_srq(SrqOptions::new(1))),
        Features::ATOMIC_WRITE => lacks_operation(rig, pd, Operations::ATOMIC_WRITE, feature)?,
        Features::FLUSH => lacks_operation(rig, pd, Operations::FLUSH, feature)?,
        Features::ON_DEMAND => {
            let memory = Memory::zeroed(64).expect("memory");
            let options = MrOptions::new(Access::LOCAL_WRITE).on_demand();
            names(feature, pd.register_with(&memory, options));
        }
        Features::COMPLETION_COUNTERS => {
            let made = rig
                .far
                .context
                .create_completion_counter(CountedUnit::Requests);
            let missing = feature;
            assert_eq!(made.unwrap_err(), VerbError::Unsupported { missing });
        }
        // Only datagram queue pairs join groups.
        Features::MULTICAST if rig.has_gap(BaselineGaps::NO_UD) => {
            lacks_service(rig, pd, QpOptions::ud, BaselineGaps::NO_UD)?;
        }
        Features::MULTICAST => {
            let side = rig.far.side(QpType::Ud)?;
            let mut group = [0; 16];
            group[0] = 0xff;
            names(feature, side.attach_multicast(Gid(group)));
        }
        Features::LOCAL_INVALIDATE_FENCE | Features::BLOCK_LIST | Features::SG_GAPS => {
            refuses_request(rig, feature)?;
        }
        other => panic!("no refusal is known for {other:?}"),
    }
    Ok(())
}

// The request is refused by name while posting; without `BMME` there is no queue pair to which it could be posted.
fn refuses_request(rig: &Rig, feature: Features) -> Outcome {
    if !rig.attributes().features.contains(Features::BMME) {
        return refuses(rig, &rig.far.other_pd()?, Features::BMME);
    }
    let fast = rig.far.fast(4096)?;
    let range = fast.memory.range(0, 4096).expect("inside");
    let ranges = std::slice::from_ref(&range);
    let list = match feature {
        Features::BLOCK_LIST => PageList::blocks(ranges, 4096, 0, 4096),
        _ => PageList::gaps(ranges),
    };
    let list = list.expect("a list");
    let request: WorkRequest<'_> = match feature {
        Features::LOCAL_INVALIDATE_FENCE => wr::LocalInvalidate::new(&fast.key).fence().into(),
        _ => wr::FastRegister::new(&fast.key, &list).into(),
    };
    let pair = rig.rc()?;
    let refused = pair
        .far
        .post_one(request)
        .expect_err("a request that is refused");
    assert_eq!(refused.reason, PostReason::Unsupported { missing: feature });
    works(rig, &pair.far)?;
    rig.finish_destroy(fast.key.deregister())
}

fn has_gap(rig: &Rig, pd: &Pd, gap: BaselineGaps) -> Outcome {
    let operation = match gap {
        BaselineGaps::NO_RC => return lacks_service(rig, pd, QpOptions::rc, gap),
        BaselineGaps::NO_UD => return lacks_service(rig, pd, QpOptions::ud, gap),
        BaselineGaps::NO_UC => return lacks_service(rig, pd, QpOptions::uc, gap),
        BaselineGaps::NO_SEND_WITH_IMMEDIATE => Operations::SEND_WITH_IMM,
        BaselineGaps::NO_WRITE_WITH_IMMEDIATE => Operations::WRITE_WITH_IMM,
        BaselineGaps::NO_REREG_MR => {
            let region = rig.far.region(64, Access::LOCAL_WRITE)?;
            let change = MrReregister::new().access(Access::LOCAL_WRITE | Access::REMOTE_READ);
            let refused = rig.outcome(region.mr.rereg(change))?;
            assert_eq!(refused, Err(VerbError::BaselineGap(gap)));
            return Ok(());
        }
        BaselineGaps::NO_RESIZE_CQ => {
            let cq = rig.far.cq(8)?;
            let refused = rig.outcome(cq.resize(16))?;
            assert_eq!(refused, Err(VerbError::BaselineGap(gap)));
            assert!(cq.cqe() >= 8);
            return Ok(());
        }
        BaselineGaps::NO_ATOMICS => Operations::ATOMIC_CMP_AND_SWP,
        BaselineGaps::NO_MODIFY_TO_RTR => return begins_with_its_peer(rig),
        // These gaps are rules of the transport that remove no operation.
        _ => return Ok(()),
    };
    let cq = rig.far.cq(8)?;
    let refused = rig.outcome(pd.create_qp(QpOptions::rc(&cq).operations(operation)))?;
    assert_eq!(refused.err(), Some(VerbError::BaselineGap(gap)));
    Ok(())
}

/// The queue pair cannot be moved to RTR by hand. A connect that waits for an absent peer can be canceled, and
/// started afresh from RESET.
fn begins_with_its_peer(rig: &Rig) -> Outcome {
    let far = rig.far.side(QpType::Rc)?;
    let at_far = far.endpoint().expect("an endpoint");
    let failed = called_off(rig, &at_far, QpState::Err)?;
    let [_, rtr, _] = failed
        .connect_steps(&at_far, open())
        .expect("a queue pair that is connected");
    let gap = VerbError::BaselineGap(BaselineGaps::NO_MODIFY_TO_RTR);
    assert_eq!(rig.outcome(failed.modify(rtr))?, Err(gap));
    let near = called_off(rig, &at_far, QpState::Reset)?;
    let pair = rig.connected(near, far)?;
    works(rig, &pair.near)
}

fn called_off(rig: &Rig, peer: &QpEndpoint, by: QpState) -> Result<Side, Evidence> {
    let side = rig.near.side(QpType::Rc)?;
    let waits = side.connect(peer, open());
    rig.finish(side.modify(QpAttributes::new().qp_state(by)))?;
    assert_eq!(rig.outcome(waits)?, Err(VerbError::Canceled));
    assert_eq!(side.state()?, by);
    Ok(side)
}

fn lacks_service(
    rig: &Rig,
    pd: &Pd,
    options: fn(&verbs_api::Cq) -> QpOptions,
    gap: BaselineGaps,
) -> Outcome {
    let cq = rig.far.cq(8)?;
    let refused = rig.outcome(pd.create_qp(options(&cq)))?;
    assert_eq!(refused.err(), Some(VerbError::BaselineGap(gap)));
    Ok(())
}

fn lacks_operation(rig: &Rig, pd: &Pd, operation: Operations, feature: Features) -> Outcome {
    let cq = rig.far.cq(8)?;
    names(
        feature,
        pd.create_qp(QpOptions::rc(&cq).operations(operation)),
    );
    Ok(())
}

// A request for which the queue pair was not created uses no slot, and the queue pair keeps working.
fn lacks_request<'a>(rig: &Rig, request: impl Into<WorkRequest<'a>>) -> Outcome {
    let pair = rig.rc()?;
    let refused = pair
        .near
        .post_one(request)
        .expect_err("a request that is refused");
    assert_eq!(refused.kind(), ErrorKind::Unsupported);
    works(rig, &pair.near)
}

fn works(rig: &Rig, side: &Side) -> Outcome {
    assert_eq!(side.qp_type(), QpType::Rc);
    let nothing = verbs_api::RemoteAddress::default();
    rig.succeeds(side, wr::Write::new((), nothing))
}

/// Checks that the verb was refused and that the refusal names a part of `features` and nothing else.
fn names<T: Send + 'static>(features: Features, started: Started<T>) {
    match started.wait() {
        Err(VerbError::Unsupported { missing }) => {
            assert!(
                !missing.is_empty() && features.contains(missing),
                "{missing:?}"
            );
        }
        Err(other) => panic!("refused otherwise: {other}"),
        Ok(_) => panic!("{features:?} is not claimed but granted"),
    }
}
