//! Memory windows.

use verbs_api::probe::{Evidence, Outcome, Pair, Region, Rig, Side};
use verbs_api::qp::{QpAttributes, QpState};
use verbs_api::{
    Access, DestroyError, MrOptions, Mw, RKey, RemoteAddress, WcStatus,
    capability::BaselineGaps,
    completion::WcOpcode,
    memory::MwType,
    probe::{ensure, ensure_eq},
    wr,
};

use super::invalidate::send_invalidating;
use super::register::REFUSED;
use super::registered;

const READ_WRITE: Access = Access::REMOTE_READ.union(Access::REMOTE_WRITE);
const NOT_BOUND: &[WcStatus] = &[WcStatus::MwBindErr];

/// Registers a region of the far side to which windows can be bound, and which has no remote rights of its own.
fn host(rig: &Rig) -> Result<Region, Evidence> {
    rig.far.region(4096, Access::LOCAL_WRITE | Access::MW_BIND)
}

/// Returns a request that binds a window to a part of `host`, with remote read and write.
fn bind_of<'a>(mw: &'a Mw, host: &'a Region, offset: u64, length: u64) -> wr::BindWindow<'a> {
    wr::BindWindow::new(mw, &host.mr, host.mr.iova() + offset, length)
        .access(READ_WRITE)
        .signaled(1)
}

/// Binds a window of either type and returns its key.
fn bind(rig: &Rig, side: &Side, mw: &Mw, request: wr::BindWindow<'_>) -> Result<RKey, Evidence> {
    let key = if mw.mw_type() == MwType::Type2 {
        let key = request.key();
        rig.succeeds(side, request)?;
        key
    } else {
        let key = side.bind_mw(request)?;
        let done = rig.take(&side.cq, 1)?.remove(0);
        ensure_eq!(
            (done.status, done.opcode),
            (WcStatus::Success, WcOpcode::BindMw),
            "a bind"
        );
        key
    };
    ensure_eq!(mw.rkey(), key, "the window's key after the bind");
    Ok(key)
}

/// Binds a window to bytes 0 to 63 of `host`, through a new pair of queue pairs. Returns the pair, the window and its key.
fn bound(rig: &Rig, mw_type: MwType, host: &Region) -> Result<(Pair, Mw, RKey), Evidence> {
    let pair = rig.rc()?;
    let mw = rig.far.window(mw_type)?;
    let key = bind(rig, &pair.far, &mw, bind_of(&mw, host, 0, 64))?;
    Ok((pair, mw, key))
}

fn at(host: &Region, offset: u64, key: RKey) -> RemoteAddress {
    RemoteAddress::new(host.mr.iova() + offset, key)
}

// covers 2.40
pub(super) fn type_1_life(rig: &Rig) -> Outcome {
    let host = host(rig)?;
    let pair = rig.rc()?;
    let mw = rig.far.window(MwType::Type1)?;
    ensure!(
        !rig.can_write(&rig.rc()?, at(&host, 0, mw.rkey()))?,
        "a window that was never bound opens memory"
    );
    let first = bind(rig, &pair.far, &mw, bind_of(&mw, &host, 0, 64))?;
    let second = bind(rig, &pair.far, &mw, bind_of(&mw, &host, 64, 64))?;
    ensure!(first != second, "a second bind has the key of the first");
    ensure!(
        rig.can_write(&pair, at(&host, 64, second))?,
        "a window does not open what it was bound to"
    );
    ensure!(
        !rig.can_write(&rig.rc()?, at(&host, 0, first))?,
        "the key of the bind before works still"
    );
    let unbind = wr::BindWindow::unbind(&mw).signaled(1);
    let unbound = bind(rig, &pair.far, &mw, unbind)?;
    for key in [second, unbound] {
        ensure!(
            !rig.can_write(&rig.rc()?, at(&host, 64, key))?,
            "a window opens memory after it was unbound"
        );
    }
    Ok(())
}

// covers 2.41
pub(super) fn type_1_domain(rig: &Rig) -> Outcome {
    let host = host(rig)?;
    let (binder, _mw, key) = bound(rig, MwType::Type1, &host)?;
    ensure!(
        rig.can_write(&binder, at(&host, 0, key))?,
        "a type-1 window does not answer the queue pair that bound it"
    );
    ensure!(
        rig.can_write(&rig.rc()?, at(&host, 0, key))?,
        "a type-1 window does not answer another queue pair of its domain"
    );
    let stranger = rig.rc_in(&rig.far.other_pd()?)?;
    ensure!(
        !rig.can_write(&stranger, at(&host, 0, key))?,
        "a window answers a queue pair of another domain"
    );
    Ok(())
}

// A window of 100 bytes from byte 100 on must not reach bytes before or after it. Each range is tried on a pair that could
// otherwise use the window.
fn keeps_bounds(rig: &Rig, mw_type: MwType) -> Outcome {
    let host = host(rig)?;
    host.fill(1)?;
    rig.scratch.fill(2)?;
    let before = host.bytes(0, 4096)?;
    for (offset, length, granted) in [
        (99, 1, false),
        (200, 1, false),
        (99, 8, false),
        (193, 8, false),
        (0, 4096, false),
        (100, 101, false),
        (4088, 8, false),
        (100, 100, true),
        (100, 1, true),
        (199, 1, true),
    ] {
        for what in ["write", "read"] {
            let pair = rig.rc()?;
            let mw = rig.far.window(mw_type)?;
            let key = bind(rig, &pair.far, &mw, bind_of(&mw, &host, 100, 100))?;
            let remote = at(&host, offset, key);
            let found = match what {
                "write" => rig.can_write_bytes(&pair, remote, length)?,
                _ => rig.can_read_bytes(&pair, remote, length)?,
            };
            ensure_eq!(
                found,
                granted,
                "whether a window on bytes 100 to 199 lets a peer {what} {length} bytes at {offset}"
            );
        }
        let inside = if granted { 100..200 } else { 0..0 };
        let after = host.bytes(0, 4096)?;
        let outside = |at: &usize| !inside.contains(at);
        ensure!(
            (0..4096).filter(outside).all(|at| after[at] == before[at]),
            "an access to {length} bytes at {offset} changed bytes outside a window on bytes 100 to 199"
        );
    }
    Ok(())
}

// covers 2.52
pub(super) fn type_1_bounds(rig: &Rig) -> Outcome {
    keeps_bounds(rig, MwType::Type1)
}

// covers 2.52
pub(super) fn type_2_bounds(rig: &Rig) -> Outcome {
    keeps_bounds(rig, MwType::Type2)
}

// covers 2.50
pub(super) fn type_1_invalidate(rig: &Rig) -> Outcome {
    let host = host(rig)?;
    let (pair, _mw, key) = bound(rig, MwType::Type1, &host)?;
    rig.fails(&rig.rc()?.far, wr::LocalInvalidate::new(key), REFUSED)?;
    ensure!(
        rig.can_write(&pair, at(&host, 0, key))?,
        "a type-1 window was invalidated"
    );
    Ok(())
}

// covers 2.42 2.46
pub(super) fn type_2_life(rig: &Rig) -> Outcome {
    let host = host(rig)?;
    let free = rig.far.window(MwType::Type2)?;
    ensure!(
        !rig.can_write(&rig.rc()?, at(&host, 0, free.rkey()))?,
        "a window that was never bound opens memory"
    );
    let empty = bind_of(&free, &host, 0, 0);
    rig.fails(&rig.rc()?.far, empty, NOT_BOUND)?;
    let unbind = wr::BindWindow::unbind(&free);
    rig.fails(&rig.rc()?.far, unbind, NOT_BOUND)?;
    // The window is still free.
    let pair = rig.rc()?;
    bind(rig, &pair.far, &free, bind_of(&free, &host, 0, 64))?;
    rig.finish_destroy(free.destroy())?;

    let (pair, mw, key) = bound(rig, MwType::Type2, &host)?;
    ensure!(
        rig.can_write(&pair, at(&host, 0, key))?,
        "a window does not open what it was bound to"
    );
    let again = bind_of(&mw, &host, 64, 64);
    rig.fails(&rig.rc()?.far, again, NOT_BOUND)?;
    ensure!(
        rig.can_write(&pair, at(&host, 0, key))?,
        "a bind that failed has changed the window"
    );
    let (pair, mw, _key) = bound(rig, MwType::Type2, &host)?;
    rig.fails(&pair.far, bind_of(&mw, &host, 0, 64), NOT_BOUND)?;
    rig.finish_destroy(mw.destroy())
}

// covers 2.04 2.05 2.44
pub(super) fn type_2_rights(rig: &Rig) -> Outcome {
    let host = host(rig)?;
    let all = Access::LOCAL_WRITE | Access::MW_BIND | READ_WRITE | Access::REMOTE_ATOMIC;
    let open_host = rig.far.region(4096, all)?;
    let rights = [
        Access::REMOTE_WRITE,
        Access::REMOTE_READ,
        Access::REMOTE_ATOMIC,
    ];
    let has_atomics = !rig.has_gap(BaselineGaps::NO_ATOMICS);
    for access in rights {
        for wanted in rights {
            if wanted == Access::REMOTE_ATOMIC && !has_atomics {
                continue;
            }
            let pair = rig.rc()?;
            let mw = rig.far.window(MwType::Type2)?;
            let request = bind_of(&mw, &open_host, 0, 64).access(access);
            let remote = at(&open_host, 0, bind(rig, &pair.far, &mw, request)?);
            let found = match wanted {
                Access::REMOTE_WRITE => rig.can_write(&pair, remote)?,
                Access::REMOTE_READ => rig.can_read(&pair, remote)?,
                _ => rig.can_add(&pair, remote)?,
            };
            ensure_eq!(
                found,
                access == wanted,
                "whether a window with {access:?} grants {wanted:?}"
            );
        }
    }
    rights_of_region(rig, &host)
}

// A bind needs the right to bind from its region, and local write where the window lets peers change the memory. It needs no
// right for peers, and the region's own key stays closed.
fn rights_of_region(rig: &Rig, host: &Region) -> Outcome {
    let mw = rig.far.window(MwType::Type2)?;
    let closed = rig.far.region(64, Access::LOCAL_WRITE | READ_WRITE)?;
    let unasked = bind_of(&mw, &closed, 0, 64);
    rig.fails(&rig.rc()?.far, unasked, NOT_BOUND)?;
    let read_only = rig.far.region(64, Access::MW_BIND)?;
    for changes in [Access::REMOTE_WRITE, Access::REMOTE_ATOMIC] {
        let beyond = bind_of(&mw, &read_only, 0, 64).access(changes);
        rig.fails(&rig.rc()?.far, beyond, NOT_BOUND)?;
    }
    let outside = bind_of(&mw, host, 4090, 64);
    rig.fails(&rig.rc()?.far, outside, NOT_BOUND)?;
    // The window is still free.
    let pair = rig.rc()?;
    let request = bind_of(&mw, &read_only, 0, 64).access(Access::REMOTE_READ);
    let key = bind(rig, &pair.far, &mw, request)?;
    ensure!(
        rig.can_read(&pair, at(&read_only, 0, key))?,
        "a window does not open a region that it may read"
    );
    rig.finish_destroy(mw.destroy())?;

    ensure_eq!(
        host.mr.rkey(),
        RKey::new(0),
        "the key for peers of a region without rights for them"
    );
    let (pair, _mw, key) = bound(rig, MwType::Type2, host)?;
    rig.scratch.fill(7)?;
    ensure!(
        rig.can_write(&pair, at(host, 16, key))?,
        "a window does not open a region without rights for peers"
    );
    ensure_eq!(
        host.bytes(16, 8)?,
        rig.scratch.bytes(0, 8)?,
        "what a peer wrote through a window"
    );
    let own_key = RKey::new(host.mr.lkey().value());
    ensure!(
        !rig.can_write(&pair, at(host, 16, own_key))?,
        "a peer wrote through the region's own key"
    );
    Ok(())
}

// covers 2.43
pub(super) fn type_2_queue_pair(rig: &Rig) -> Outcome {
    let host = host(rig)?;
    let (pair, _mw, key) = bound(rig, MwType::Type2, &host)?;
    ensure!(
        !rig.can_write(&rig.rc()?, at(&host, 0, key))?,
        "a type-2 window answers another queue pair of its domain"
    );
    let stranger = rig.rc_in(&rig.far.other_pd()?)?;
    ensure!(
        !rig.can_read(&stranger, at(&host, 0, key))?,
        "a type-2 window answers a queue pair of another domain"
    );
    ensure!(
        rig.can_write(&pair, at(&host, 0, key))? && rig.can_read(&pair, at(&host, 0, key))?,
        "a type-2 window does not answer the queue pair that bound it"
    );
    Ok(())
}

// covers 2.47 2.52
pub(super) fn type_2_key(rig: &Rig) -> Outcome {
    let host = host(rig)?;
    let pair = rig.rc()?;
    let mw = rig.far.window(MwType::Type2)?;
    let key = mw.rkey().with_key_byte(0xa7);
    let request = bind_of(&mw, &host, 0, 64).key_byte(0xa7);
    rig.succeeds(&pair.far, request)?;
    ensure_eq!(mw.rkey(), key, "the window's key after the bind");
    ensure!(
        rig.can_write(&pair, at(&host, 0, key))?,
        "a window does not answer to the key of its bind"
    );
    ensure!(
        !rig.can_write(&pair, at(&host, 0, key.next()))?,
        "a window answers to a key with another byte"
    );
    Ok(())
}

// covers 2.50 2.51 2.63
pub(super) fn type_2_invalidate(rig: &Rig) -> Outcome {
    let host = host(rig)?;
    let (pair, mw, key) = bound(rig, MwType::Type2, &host)?;
    rig.fails(&rig.rc()?.far, wr::LocalInvalidate::new(key), REFUSED)?;
    ensure!(
        rig.can_write(&pair, at(&host, 0, key))?,
        "a window was invalidated through another queue pair"
    );
    rig.succeeds(&pair.far, wr::LocalInvalidate::new(key))?;
    is_free(rig, &mw, &host)?;
    ensure!(
        !rig.can_write(&pair, at(&host, 0, key))?,
        "a peer wrote through an invalidated window"
    );
    by_message(rig, &host)?;
    rig.finish_destroy(host.mr.deregister())
}

// Another queue pair can bind a window that is free.
fn is_free(rig: &Rig, mw: &Mw, host: &Region) -> Outcome {
    let other = rig.rc()?;
    let key = bind(rig, &other.far, mw, bind_of(mw, host, 0, 64))?;
    ensure!(
        rig.can_write(&other, at(host, 0, key))?,
        "a window that was invalidated cannot be bound again"
    );
    rig.succeeds(&other.far, wr::LocalInvalidate::new(key))
}

// A window of type 2 that a message of the peer invalidates is freed too.
fn by_message(rig: &Rig, host: &Region) -> Outcome {
    let (pair, mw, key) = bound(rig, MwType::Type2, host)?;
    let got = send_invalidating(rig, &pair, key)?;
    ensure_eq!(got.status, WcStatus::Success, "the receive");
    ensure_eq!(got.invalidated_rkey(), Some(key), "the key that it tells");
    rig.take(&pair.near.cq, 1)?;
    ensure!(
        !rig.can_write(&pair, at(host, 0, key))?,
        "a peer wrote through a window that its own message invalidated"
    );
    is_free(rig, &mw, host)
}

// covers 2.27 2.13
pub(super) fn type_2_region(rig: &Rig) -> Outcome {
    let pair = rig.rc()?;
    let fast = registered(rig, &pair)?;
    let mw = rig.far.window(MwType::Type2)?;
    let key = mw.rkey().next();
    let bind = wr::BindWindow::new(&mw, &fast.key, fast.pages.address(), 64).access(READ_WRITE);
    rig.succeeds(&pair.far, bind)?;
    rig.fails(&rig.rc()?.far, fast.invalidate(), REFUSED)?;
    let through = RemoteAddress::new(fast.pages.address(), key);
    ensure!(
        rig.can_write(&pair, through)?,
        "a window died with an invalidate of its region that was refused"
    );
    let host = host(rig)?;
    let second = rig.far.window(MwType::Type2)?;
    let key = bind_again(rig, &pair, &second, &host)?;
    let is_open = match rig.outcome(host.mr.clone().deregister())? {
        Err(DestroyError::Busy { .. }) => true,
        // For a device that does not know the window.
        Ok(()) => false,
        Err(other) => {
            return Err(Evidence::wrong(format!(
                "deregistering a region with a window bound to it: {other}"
            )));
        }
    };
    ensure_eq!(
        rig.can_write(&pair, at(&host, 0, key))?,
        is_open,
        "whether a window opens its region, of which the deregistration was refused or not"
    );
    Ok(())
}

fn bind_again(rig: &Rig, pair: &Pair, mw: &Mw, host: &Region) -> Result<RKey, Evidence> {
    bind(rig, &pair.far, mw, bind_of(mw, host, 0, 64))
}

// covers 2.54
pub(super) fn type_2_gone(rig: &Rig) -> Outcome {
    let host = host(rig)?;
    let (pair, _mw, key) = bound(rig, MwType::Type2, &host)?;
    rig.finish(
        pair.far
            .modify(QpAttributes::new().qp_state(QpState::Reset)),
    )?;
    ensure!(
        !rig.can_write(&rig.rc()?, at(&host, 0, key))?,
        "a window works after its queue pair was reset"
    );
    let (Pair { near, far }, _mw, key) = bound(rig, MwType::Type2, &host)?;
    rig.finish_destroy(far.qp.destroy())?;
    ensure!(
        !rig.can_write(&rig.rc()?, at(&host, 0, key))?,
        "a window works after its queue pair was destroyed"
    );
    drop(near);
    Ok(())
}

// covers 2.44
pub(super) fn type_2_domain(rig: &Rig) -> Outcome {
    let elsewhere = rig.far.other_pd()?;
    let access = Access::LOCAL_WRITE | Access::MW_BIND;
    let foreign = rig
        .far
        .region_with(&elsewhere, 64, MrOptions::new(access))?;
    let mw = rig.far.window(MwType::Type2)?;
    rig.fails(&rig.rc()?.far, bind_of(&mw, &foreign, 0, 64), NOT_BOUND)?;
    let host = host(rig)?;
    let stranger = rig.rc_in(&elsewhere)?;
    rig.fails(&stranger.far, bind_of(&mw, &host, 0, 64), NOT_BOUND)
}

// covers 2.53
pub(super) fn zero_based(rig: &Rig) -> Outcome {
    if !rig
        .attributes()
        .features
        .intersects(verbs_api::Features::WINDOW_2)
    {
        return Err(Evidence::not_here("the device has no windows of type 2"));
    }
    let host = host(rig)?;
    let pair = rig.rc()?;
    let mw = rig.far.window(MwType::Type2)?;
    let request = bind_of(&mw, &host, 100, 64).access(READ_WRITE | Access::ZERO_BASED);
    let key = request.key();
    rig.succeeds(&pair.far, request)?;
    rig.scratch.fill(0x33)?;
    ensure!(
        rig.can_write(&pair, RemoteAddress::new(0, key))?,
        "a zero-based window does not answer at 0"
    );
    ensure_eq!(
        host.bytes(100, 8)?,
        rig.scratch.bytes(0, 8)?,
        "the first bytes of a zero-based window on byte 100"
    );
    ensure!(
        rig.can_write(&pair, RemoteAddress::new(56, key))?,
        "a peer cannot write the last bytes of a zero-based window"
    );
    ensure_eq!(
        host.bytes(156, 8)?,
        rig.scratch.bytes(0, 8)?,
        "the last bytes of a zero-based window of 64 bytes"
    );
    ensure_eq!(
        host.bytes(0, 100)?,
        [0; 100],
        "the bytes in front of a zero-based window"
    );
    ensure!(
        !rig.can_write(&pair, RemoteAddress::new(57, key))?,
        "a peer wrote beyond the end of a zero-based window"
    );
    Ok(())
}
