//! Allocated keys and fast-register.

use verbs_api::probe::{Outcome, Rig};
use verbs_api::{
    Access, Batch, Memory, PageList, RKey, VerbError, WcStatus,
    completion::WcOpcode,
    probe::{ensure, ensure_eq},
    wr::{self, PostReason},
};

use super::{OPEN, registered};

/// The statuses of a fast-register or invalidate that its own device refuses; every device reports one of these.
pub(super) const REFUSED: &[WcStatus] = &[WcStatus::LocQpOpErr, WcStatus::LocProtErr];

// covers 2.20
pub(super) fn fresh_key(rig: &Rig) -> Outcome {
    let fast = rig.far.fast(4096)?;
    ensure!(
        !rig.can_write(&rig.rc()?, fast.remote(0))?,
        "a peer wrote through a key that was never registered"
    );
    ensure!(
        !rig.can_read(&rig.rc()?, fast.remote(0))?,
        "a peer read through a key that was never registered"
    );
    ensure!(
        !rig.can_write(&rig.rc()?, fast.key.remote(0))?,
        "a peer wrote at address 0 through a key that was never registered"
    );
    let local = wr::Send::new(fast.sge(0, 8));
    rig.fails(&rig.rc()?.far, local, &[WcStatus::LocProtErr])?;
    let pair = rig.rc()?;
    rig.succeeds(&pair.far, fast.register(OPEN))?;
    ensure!(
        rig.can_write(&pair, fast.remote(0))?,
        "a key cannot be used after a refused access"
    );
    Ok(())
}

// covers 2.23
pub(super) fn one_list(rig: &Rig) -> Outcome {
    let pair = rig.rc()?;
    let fast = rig.near.fast(8192)?;
    let target = rig.far.region(8192, OPEN)?;
    for round in 0..20 {
        fast.fill(round)?;
        let mut batch = Batch::new();
        if round > 0 {
            batch.push(fast.invalidate());
        }
        batch.push(fast.register_afresh(Access::LOCAL_WRITE));
        batch.push(wr::Write::new(fast.sge(0, 8192), target.remote(0)).signaled(2));
        pair.near.post(&mut batch)?;
        let done = rig.take(&pair.near.cq, 1)?.remove(0);
        ensure_eq!(
            done.status,
            WcStatus::Success,
            "a write from a key that the request before registered"
        );
        rig.settle();
        ensure_eq!(
            target.bytes(0, 8192)?,
            fast.bytes(0, 8192)?,
            "the bytes that arrived in round {round}"
        );
    }
    Ok(())
}

// covers 2.21
pub(super) fn twice(rig: &Rig) -> Outcome {
    let pair = rig.rc()?;
    let fast = registered(rig, &pair)?;
    let again = fast.register(Access::LOCAL_WRITE);
    rig.fails(&pair.far, again, REFUSED)?;
    let after = fast.register_afresh(Access::LOCAL_WRITE);
    rig.fails(&rig.rc()?.far, after, REFUSED)
}

// covers 2.21
pub(super) fn foreign_domain(rig: &Rig) -> Outcome {
    let fast = rig.far.fast(4096)?;
    let stranger = rig.rc_in(&rig.far.other_pd()?)?;
    rig.fails(&stranger.far, fast.register(OPEN), REFUSED)?;
    rig.succeeds(&rig.rc()?.far, fast.register(OPEN))
}

// covers 2.22
pub(super) fn wrong_index(rig: &Rig) -> Outcome {
    let fast = rig.far.fast(4096)?;
    let other = RKey::new(fast.rkey().value() ^ 0x100_0000);
    let wrong = wr::FastRegister::new(other, &fast.pages).access(OPEN);
    rig.fails(&rig.rc()?.far, wrong, REFUSED)?;
    // The key was not registered.
    let pair = rig.rc()?;
    rig.succeeds(&pair.far, fast.register(OPEN))?;
    ensure!(
        rig.can_write(&pair, fast.remote(0))?,
        "the key cannot be used after a request that named another index"
    );
    Ok(())
}

// covers 1.19 2.22
pub(super) fn low_byte(rig: &Rig) -> Outcome {
    let pair = rig.rc()?;
    let fast = registered(rig, &pair)?;
    let mut stale = Vec::new();
    for _ in 0..3 {
        let old = fast.remote(0);
        rig.succeeds(&pair.far, fast.invalidate())?;
        rig.succeeds(&pair.far, fast.register_afresh(OPEN))?;
        let new = fast.remote(0);
        ensure_eq!(new.rkey.index(), old.rkey.index(), "the index of the key");
        ensure!(
            new.rkey.key_byte() != old.rkey.key_byte(),
            "the key byte is not the program's"
        );
        ensure_eq!(
            fast.lkey().value(),
            fast.rkey().value(),
            "the local key, which takes the same byte"
        );
        ensure!(
            rig.can_write(&pair, new)?,
            "the key with the new byte does not open its memory"
        );
        stale.push(old);
    }
    for old in stale {
        ensure!(
            !rig.can_write(&rig.rc()?, old)?,
            "the key with an earlier byte still opens the memory"
        );
    }
    ensure!(
        rig.can_write(&pair, fast.remote(0))?,
        "the current key was harmed by attempts with earlier ones"
    );
    Ok(())
}

// covers 1.14
pub(super) fn depth(rig: &Rig) -> Outcome {
    let limit = rig.far.context.limits().max_fast_reg_page_list_len;
    match rig.outcome(rig.far.pd.alloc_key(limit.saturating_add(1)))? {
        Err(VerbError::Limit(short)) => {
            ensure_eq!(
                short.offered,
                u64::from(limit),
                "the limit that the refusal tells"
            );
        }
        other => ensure!(
            false,
            "a key of {} pages, beyond the limit of {limit}: {other:?}",
            u64::from(limit) + 1
        ),
    }
    let key = rig.finish(rig.far.pd.alloc_key(1))?;
    let memory = Memory::zeroed(8192)?;
    let two = PageList::map(&[(&memory).into()], 4096, 2);
    let two = two.map_err(|error| verbs_api::probe::Evidence::not_here(error.to_string()))?;
    let beyond = wr::FastRegister::new(&key, &two.list).access(OPEN);
    rig.fails(&rig.rc()?.far, beyond, REFUSED)
}

// covers 2.05
pub(super) fn rights(rig: &Rig) -> Outcome {
    for (access, write, read) in [
        (Access::LOCAL_WRITE | Access::REMOTE_WRITE, true, false),
        (Access::LOCAL_WRITE | Access::REMOTE_READ, false, true),
        (Access::REMOTE_READ, false, true),
        (Access::LOCAL_WRITE, false, false),
    ] {
        let pair = rig.rc()?;
        let fast = rig.far.fast(4096)?;
        rig.succeeds(&pair.far, fast.register(access))?;
        let may_write = rig.can_write(&rig.rc()?, fast.remote(0))?;
        ensure_eq!(may_write, write, "whether {access:?} lets a peer write");
        let may_read = rig.can_read(&rig.rc()?, fast.remote(0))?;
        ensure_eq!(may_read, read, "whether {access:?} lets a peer read");
    }
    Ok(())
}

// covers 2.06
pub(super) fn bounds(rig: &Rig) -> Outcome {
    let pair = rig.rc()?;
    let fast = rig.far.fast(8192)?;
    for wrong in [0, 8193] {
        match pair.far.post_one(fast.register(OPEN).length(wrong)) {
            Err(refused) if matches!(refused.reason, PostReason::RegionLength { .. }) => {}
            Err(refused) => return Err(refused.into()),
            Ok(()) => ensure!(false, "{wrong} of 8192 bytes were registered"),
        }
    }
    rig.succeeds(&pair.far, fast.register(OPEN).length(5000))?;
    ensure!(
        rig.can_write(&pair, fast.remote(4992))?,
        "the last bytes of a registration cannot be written"
    );
    for outside in [4993, 5000, 8184, u64::MAX - fast.pages.address() - 3] {
        ensure!(
            !rig.can_write(&rig.rc()?, fast.remote(0).plus(outside))?,
            "a peer wrote {outside} bytes behind the first of 5000"
        );
    }
    let written = fast.bytes(5000, 3192)?;
    ensure!(
        written.iter().all(|&byte| byte == 0),
        "bytes behind a registration have changed"
    );
    Ok(())
}

// covers 2.29
pub(super) fn completions(rig: &Rig) -> Outcome {
    let pair = rig.rc()?;
    let fast = rig.near.fast(4096)?;
    let target = rig.far.region(64, OPEN)?;
    let mut batch = Batch::new();
    batch.push(wr::Write::new((), target.remote(0)).signaled(1));
    batch.push(fast.register(OPEN).signaled(2));
    batch.push(wr::Write::new(fast.sge(0, 8), target.remote(0)));
    batch.push(fast.invalidate().signaled(3));
    batch.push(wr::Write::new((), target.remote(0)).signaled(4));
    pair.near.post(&mut batch)?;
    let done = rig.take(&pair.near.cq, 4)?;
    let found: Vec<_> = done
        .iter()
        .map(|done| (done.wr_id, done.opcode, done.status))
        .collect();
    let ok = WcStatus::Success;
    let expected = [
        (1, WcOpcode::RdmaWrite, ok),
        (2, WcOpcode::FastRegister, ok),
        (3, WcOpcode::LocalInv, ok),
        (4, WcOpcode::RdmaWrite, ok),
    ];
    ensure_eq!(found, expected, "the completions of a list");
    Ok(())
}
