//! Memory windows: FEATURES 2.40 to 2.55.

use crate::{cases, steered_cases};
use conformance::{ANY_DEVICE, Evidence, Outcome, Pair, Region, Rig, Side, needs, one_of};
use verbs_api::qp::{QpState, QpType};
use verbs_api::{
    Access, Batch, DestroyError, ErrorKind, Features, MrOptions, Mw, Operations, QpOptions, RKey,
    RemoteAddress, WcStatus,
    capability::BaselineGaps,
    completion::WcOpcode,
    memory::MwType,
    wr::{self, PostReason},
};

const TYPE_1: Features = Features::WINDOW_1;
const TYPE_2: Features = Features::WINDOW_2;

cases! {
    a_type_1_window_is_bound_rebound_and_unbound: needs(TYPE_1);
    a_type_1_window_cannot_be_zero_based: needs(TYPE_1.union(Features::ZBVA));
    a_device_has_one_kind_of_type_2_windows: ANY_DEVICE;
    a_bind_asks_for_one_domain: one_of(TYPE_2);
    a_bind_asks_for_the_key_of_the_region: one_of(TYPE_2);
    a_bind_grants_nothing_but_remote_rights: one_of(TYPE_2);
    a_bind_stays_inside_the_region: one_of(TYPE_2);
    a_bind_to_a_zero_based_region_keeps_its_bounds: one_of(TYPE_2).and(Features::ZBVA);
    a_bind_that_fails_leaves_a_type_1_window_as_it_was: needs(TYPE_1);
    a_bind_that_fails_leaves_a_type_2_window_as_it_was: one_of(TYPE_2);
    a_type_2_window_takes_its_byte_from_the_request: one_of(TYPE_2);
    a_type_1_window_is_given_its_byte: needs(TYPE_1);
    a_key_works_as_soon_as_the_peer_has_it: one_of(TYPE_2).and(Features::BMME);
    a_key_of_type_1_works_as_soon_as_the_peer_has_it: needs(TYPE_1);
    unreliable_connections_bind: one_of(TYPE_2).without(BaselineGaps::NO_UC);
    datagrams_do_not_bind: needs(TYPE_1).without(BaselineGaps::NO_UD);
    a_type_1_window_cannot_be_invalidated: needs(TYPE_1.union(Features::BMME));
    only_its_queue_pair_invalidates_a_window: one_of(TYPE_2).and(Features::BMME);
    a_window_dies_with_its_queue_pair: one_of(TYPE_2);
    a_window_is_free_when_its_queue_pair_was_reset: one_of(TYPE_2);
    a_bound_window_can_be_given_back: one_of(TYPE_2);
    a_bound_window_of_type_1_can_be_given_back: needs(TYPE_1);
    a_region_with_a_window_stays: one_of(TYPE_2);
}

steered_cases! {
    a_window_is_not_inherited_with_the_number: one_of(TYPE_2);
}

const READ_WRITE: Access = Access::REMOTE_READ.union(Access::REMOTE_WRITE);

/// A region of the far end that windows can be bound to, without remote rights of its own.
fn host(rig: &Rig) -> Result<Region, Evidence> {
    rig.far.region(4096, Access::LOCAL_WRITE | Access::MW_BIND)
}

/// A bind of a range of `host` that peers may read and write.
fn bind_of<'a>(mw: &'a Mw, host: &'a Region, offset: u64, length: u64) -> wr::BindWindow<'a> {
    wr::BindWindow::new(mw, &host.mr, host.mr.iova() + offset, length)
        .access(READ_WRITE)
        .signaled(1)
}

/// Binds a window of either type and returns its key.
fn bind(rig: &Rig, side: &Side, mw: &Mw, request: wr::BindWindow<'_>) -> Result<RKey, Evidence> {
    if mw.mw_type() == MwType::Type2 {
        let key = request.key();
        rig.succeeds(side, request)?;
        assert_eq!(mw.rkey(), key);
        return Ok(key);
    }
    let key = side.bind_mw(request).expect("a bind that is taken");
    let done = rig.take(&side.cq, 1)?.remove(0);
    assert_eq!(
        (done.status, done.opcode),
        (WcStatus::Success, WcOpcode::BindMw)
    );
    assert_eq!(mw.rkey(), key);
    Ok(key)
}

/// A window that is bound to bytes 0 to 63 of `host`, through a pair of its own.
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
fn a_type_1_window_is_bound_rebound_and_unbound(rig: &Rig) -> Outcome {
    let host = host(rig)?;
    let pair = rig.rc()?;
    let mw = rig.far.window(MwType::Type1)?;
    let fresh = mw.rkey();
    assert!(
        !rig.can_write(&rig.rc()?, at(&host, 0, fresh))?,
        "bound to nothing yet"
    );

    let first = bind(rig, &pair.far, &mw, bind_of(&mw, &host, 0, 64))?;
    assert!(rig.can_write(&pair, at(&host, 0, first))?);
    let second = bind(rig, &pair.far, &mw, bind_of(&mw, &host, 64, 64))?;
    assert_eq!(second.index(), first.index());
    assert_ne!(second.key_byte(), first.key_byte());
    assert!(rig.can_write(&pair, at(&host, 64, second))?);
    assert!(
        !rig.can_write(&rig.rc()?, at(&host, 0, first))?,
        "the key of the bind before"
    );
    assert!(
        !rig.can_write(&rig.rc()?, at(&host, 0, second))?,
        "the stretch of the bind before"
    );

    let unbind = wr::BindWindow::unbind(&mw).signaled(1);
    let unbound = bind(rig, &pair.far, &mw, unbind)?;
    assert!(!rig.can_write(&rig.rc()?, at(&host, 64, second))?);
    assert!(!rig.can_write(&rig.rc()?, at(&host, 64, unbound))?);
    rig.finish_destroy(host.mr.deregister())
}

// covers 2.40
fn a_type_1_window_cannot_be_zero_based(rig: &Rig) -> Outcome {
    let host = host(rig)?;
    let pair = rig.rc()?;
    let mw = rig.far.window(MwType::Type1)?;
    let request = bind_of(&mw, &host, 0, 64).access(READ_WRITE | Access::ZERO_BASED);
    if pair.far.bind_mw(request).is_ok() {
        assert_eq!(rig.take(&pair.far.cq, 1)?[0].status, WcStatus::MwBindErr);
    }
    assert!(!rig.can_write(&rig.rc()?, RemoteAddress::new(0, mw.rkey()))?);
    Ok(())
}

// covers 2.43 1.05
fn a_device_has_one_kind_of_type_2_windows(rig: &Rig) -> Outcome {
    let attributes = rig.attributes();
    assert!(
        !attributes.features.contains(TYPE_2),
        "2A and 2B exclude each other"
    );
    if attributes.transport == verbs_api::Transport::Iwarp {
        assert!(!attributes.features.intersects(Features::WINDOW_2A | TYPE_1));
    }
    let type_2 = rig.outcome(rig.far.pd.alloc_mw(MwType::Type2))?;
    assert_eq!(type_2.is_ok(), attributes.features.intersects(TYPE_2));
    if let Err(error) = type_2 {
        assert_eq!(error.kind(), ErrorKind::Unsupported);
    }
    Ok(())
}

// covers 2.44
fn a_bind_asks_for_one_domain(rig: &Rig) -> Outcome {
    let other = rig.far.other_pd()?;
    let host = host(rig)?;
    let access = Access::LOCAL_WRITE | Access::MW_BIND;
    let elsewhere = rig.far.region_with(&other, 4096, MrOptions::new(access))?;
    let mw = rig.far.window(MwType::Type2)?;

    let stranger = rig.rc_in(&other)?;
    rig.fails(
        &stranger.far,
        bind_of(&mw, &host, 0, 64),
        &[WcStatus::MwBindErr],
    )?;
    rig.fails(
        &rig.rc()?.far,
        bind_of(&mw, &elsewhere, 0, 64),
        &[WcStatus::MwBindErr],
    )?;
    let stranger = rig.rc_in(&other)?;
    rig.fails(
        &stranger.far,
        bind_of(&mw, &elsewhere, 0, 64),
        &[WcStatus::MwBindErr],
    )?;
    let pair = rig.rc()?;
    bind(rig, &pair.far, &mw, bind_of(&mw, &host, 0, 64))?;
    rig.finish_destroy(mw.destroy())
}

// covers 2.44
fn a_bind_asks_for_the_key_of_the_region(rig: &Rig) -> Outcome {
    let host = host(rig)?;
    let mw = rig.far.window(MwType::Type2)?;
    let stale = host.mr.lkey().key_byte() ^ 1;
    let request = bind_of(&mw, &host, 0, 64).region_key_byte(stale);
    rig.does_not_bind(&rig.rc()?.far, request)?;
    let pair = rig.rc()?;
    bind(rig, &pair.far, &mw, bind_of(&mw, &host, 0, 64))?;
    rig.finish_destroy(mw.destroy())
}

// covers 2.44
fn a_bind_grants_nothing_but_remote_rights(rig: &Rig) -> Outcome {
    let host = host(rig)?;
    let mw = rig.far.window(MwType::Type2)?;
    for wrong in [
        Access::MW_BIND,
        Access::LOCAL_WRITE,
        Access::from_bits_retain(1 << 31),
    ] {
        let request = bind_of(&mw, &host, 0, 64).access(Access::REMOTE_READ | wrong);
        rig.does_not_bind(&rig.rc()?.far, request)?;
    }
    Ok(())
}

// covers 2.44
fn a_bind_stays_inside_the_region(rig: &Rig) -> Outcome {
    let host = host(rig)?;
    let mw = rig.far.window(MwType::Type2)?;
    let first = host.mr.iova();
    for (addr, length) in [
        (first, 4097),
        (first + 1, 4096),
        (first + 4096, 1),
        (first - 1, 1),
        (u64::MAX - 3, 8),
        (first, u64::MAX),
    ] {
        let request = wr::BindWindow::new(&mw, &host.mr, addr, length);
        let request = request.access(READ_WRITE).signaled(1);
        rig.fails(&rig.rc()?.far, request, &[WcStatus::MwBindErr])?;
    }
    let pair = rig.rc()?;
    let key = bind(rig, &pair.far, &mw, bind_of(&mw, &host, 0, 4096))?;
    assert!(rig.can_write(&pair, at(&host, 4088, key))?);
    rig.finish_destroy(mw.destroy())
}

// covers 2.45
fn a_bind_to_a_zero_based_region_keeps_its_bounds(rig: &Rig) -> Outcome {
    let access = Access::LOCAL_WRITE | Access::MW_BIND;
    let options = MrOptions::new(access).zero_based();
    let host = rig.far.region_with(&rig.far.pd, 4096, options)?;
    let mw = rig.far.window(MwType::Type2)?;
    for (addr, length) in [(4096, 1), (4000, 97), (host.memory.address(), 64)] {
        let request = wr::BindWindow::new(&mw, &host.mr, addr, length);
        let request = request.access(READ_WRITE).signaled(1);
        rig.fails(&rig.rc()?.far, request, &[WcStatus::MwBindErr])?;
    }
    let pair = rig.rc()?;
    let key = bind(rig, &pair.far, &mw, bind_of(&mw, &host, 100, 100))?;
    rig.scratch.fill(3)?;
    assert!(rig.can_write(&pair, RemoteAddress::new(100, key))?);
    assert_eq!(host.bytes(100, 8)?, rig.scratch.bytes(0, 8)?);
    assert!(rig.can_read(&pair, RemoteAddress::new(192, key))?);
    assert!(
        !rig.can_write(&pair, RemoteAddress::new(99, key))?,
        "one byte below"
    );
    Ok(())
}

// covers 2.46
fn a_bind_that_fails_leaves_a_type_1_window_as_it_was(rig: &Rig) -> Outcome {
    let host = host(rig)?;
    let (pair, mw, key) = bound(rig, MwType::Type1, &host)?;
    let other = rig.rc()?;
    let request = bind_of(&mw, &host, 0, 4097);
    other.far.bind_mw(request).expect("a bind that is taken");
    assert_eq!(rig.take(&other.far.cq, 1)?[0].status, WcStatus::MwBindErr);
    assert_eq!(other.far.state()?, QpState::Err);
    assert_eq!(mw.rkey(), key);
    assert!(rig.can_write(&pair, at(&host, 0, key))?);
    assert!(
        !rig.can_write(&pair, at(&host, 64, key))?,
        "the stretch is the old one"
    );
    Ok(())
}

// covers 2.46
fn a_bind_that_fails_leaves_a_type_2_window_as_it_was(rig: &Rig) -> Outcome {
    let host = host(rig)?;
    let (pair, mw, key) = bound(rig, MwType::Type2, &host)?;
    rig.fails(
        &rig.rc()?.far,
        bind_of(&mw, &host, 128, 64),
        &[WcStatus::MwBindErr],
    )?;
    assert_eq!(mw.rkey(), key);
    assert!(rig.can_write(&pair, at(&host, 0, key))?);
    assert!(
        !rig.can_write(&pair, at(&host, 128, key))?,
        "the stretch is the old one"
    );
    Ok(())
}

// covers 2.47
fn a_type_2_window_takes_its_byte_from_the_request(rig: &Rig) -> Outcome {
    let host = host(rig)?;
    let mw = rig.far.window(MwType::Type2)?;
    let index = mw.rkey().index();
    for byte in [0x5a, 0x00, 0xff] {
        let pair = rig.rc()?;
        let request = bind_of(&mw, &host, 0, 64).key_byte(byte);
        let key = bind(rig, &pair.far, &mw, request)?;
        assert_eq!((key.index(), key.key_byte()), (index, byte));
        assert!(rig.can_write(&pair, at(&host, 0, key))?);
        drop(pair.far.qp.destroy().wait());
    }
    Ok(())
}

// covers 2.47
fn a_type_1_window_is_given_its_byte(rig: &Rig) -> Outcome {
    let host = host(rig)?;
    let pair = rig.rc()?;
    let mw = rig.far.window(MwType::Type1)?;
    let mut before = mw.rkey();
    for _ in 0..300 {
        let key = bind(rig, &pair.far, &mw, bind_of(&mw, &host, 0, 64))?;
        assert_eq!(key.index(), before.index());
        assert_ne!(key.key_byte(), before.key_byte());
        before = key;
    }
    assert!(rig.can_write(&pair, at(&host, 0, before))?);
    Ok(())
}

// covers 2.48
fn a_key_works_as_soon_as_the_peer_has_it(rig: &Rig) -> Outcome {
    let host = host(rig)?;
    let pair = rig.rc()?;
    let mw = rig.far.window(MwType::Type2)?;
    for round in 0..200 {
        pair.near.receive(&rig.scratch, 0, 64)?;
        let key = mw.rkey().next();
        let mut batch = Batch::new();
        if round > 0 {
            batch.push(wr::LocalInvalidate::new(mw.rkey()));
        }
        batch.push(bind_of(&mw, &host, 0, 64).flags(verbs_api::wr::SendFlags::empty()));
        let advert = key.value().to_be_bytes();
        batch.push(wr::Send::new(&advert));
        pair.far.post(&mut batch).expect("a batch that is taken");
        let got = rig.take(&pair.near.cq, 1)?.remove(0);
        assert_eq!((got.status, got.byte_len), (WcStatus::Success, 4));
        let told = rig.scratch.bytes(0, 4)?.try_into().expect("four octets");
        let remote = at(&host, 0, RKey::new(u32::from_be_bytes(told)));
        assert!(rig.can_write(&pair, remote)?, "round {round}");
    }
    Ok(())
}

// covers 2.48
fn a_key_of_type_1_works_as_soon_as_the_peer_has_it(rig: &Rig) -> Outcome {
    let host = host(rig)?;
    let pair = rig.rc()?;
    let mw = rig.far.window(MwType::Type1)?;
    for round in 0..100 {
        pair.near.receive(&rig.scratch, 0, 64)?;
        let request = bind_of(&mw, &host, 0, 64).flags(verbs_api::wr::SendFlags::empty());
        let key = pair.far.bind_mw(request).expect("a bind that is taken");
        pair.far
            .post_one(wr::Send::new(&key.value().to_be_bytes()).signaled(1))
            .expect("a send");
        assert_eq!(rig.take(&pair.near.cq, 1)?[0].status, WcStatus::Success);
        // A device need not free the slots before this completion has been polled.
        assert_eq!(rig.take(&pair.far.cq, 1)?[0].status, WcStatus::Success);
        assert!(rig.can_write(&pair, at(&host, 0, key))?, "round {round}");
    }
    Ok(())
}

// covers 2.49
fn unreliable_connections_bind(rig: &Rig) -> Outcome {
    let host = host(rig)?;
    let pair = rig.uc()?;
    let mw = rig.far.window(MwType::Type2)?;
    let key = bind(rig, &pair.far, &mw, bind_of(&mw, &host, 0, 64))?;
    rig.scratch.fill(9)?;
    let write = verbs_api::wr::Write::new(rig.scratch.sge(0, 8)?, at(&host, 0, key)).signaled(1);
    rig.succeeds(&pair.near, write)?;
    rig.settle();
    assert_eq!(host.bytes(0, 8)?, rig.scratch.bytes(0, 8)?);
    rig.fails(&pair.far, bind_of(&mw, &host, 0, 0), &[WcStatus::MwBindErr])
}

// covers 2.49
fn datagrams_do_not_bind(rig: &Rig) -> Outcome {
    let host = host(rig)?;
    let mw = rig.far.window(MwType::Type1)?;
    let side = rig.far.side(QpType::Ud)?;
    rig.finish(side.activate(verbs_api::PathOptions::new()))?;
    let before = mw.rkey();
    let refused = side.bind_mw(bind_of(&mw, &host, 0, 64));
    let missing = Operations::BIND_MW;
    let reason = PostReason::OperationNotEnabled { missing };
    assert_eq!(refused, Err(reason.into()));
    let refused = side
        .post_one(bind_of(&mw, &host, 0, 64))
        .expect_err("a refusal");
    assert_eq!(refused.reason, PostReason::OperationNotEnabled { missing });
    assert_eq!(mw.rkey(), before);
    let options = QpOptions::ud(&side.cq).operations(Operations::BIND_MW);
    let refused = rig
        .outcome(rig.far.pd.create_qp(options))?
        .expect_err("a refusal");
    assert_eq!(refused.kind(), ErrorKind::InvalidArgument);
    rig.nothing_on(&side.cq)
}

// covers 2.50
fn a_type_1_window_cannot_be_invalidated(rig: &Rig) -> Outcome {
    let host = host(rig)?;
    let (pair, _mw, key) = bound(rig, MwType::Type1, &host)?;
    let other = rig.rc()?;
    rig.fails(
        &other.far,
        wr::LocalInvalidate::new(key).signaled(2),
        &[WcStatus::LocQpOpErr],
    )?;
    assert!(
        rig.can_write(&pair, at(&host, 0, key))?,
        "it is bound still"
    );
    Ok(())
}

// covers 2.51
fn only_its_queue_pair_invalidates_a_window(rig: &Rig) -> Outcome {
    let host = host(rig)?;
    let (pair, mw, key) = bound(rig, MwType::Type2, &host)?;
    let other = rig.rc()?;
    rig.fails(
        &other.far,
        wr::LocalInvalidate::new(key).signaled(2),
        &[WcStatus::LocQpOpErr],
    )?;
    assert!(rig.can_write(&pair, at(&host, 0, key))?);

    let other = rig.rc()?;
    let landing = rig.far.region(64, Access::LOCAL_WRITE)?;
    other.far.receive(&landing, 0, 64)?;
    let send = verbs_api::wr::SendWithInvalidate::new(&[1, 2, 3, 4], key);
    other.near.post_one(send).expect("a send");
    rig.settle();
    assert_eq!(
        rig.take(&other.far.cq, 1)?[0].status,
        WcStatus::RemInvReqErr
    );
    assert_eq!(other.far.state()?, QpState::Err);
    assert!(rig.can_write(&pair, at(&host, 0, key))?);

    rig.succeeds(&pair.far, wr::LocalInvalidate::new(mw.rkey()).signaled(2))?;
    assert!(!rig.can_write(&pair, at(&host, 0, key))?);
    Ok(())
}

// covers 2.54
fn a_window_dies_with_its_queue_pair(rig: &Rig) -> Outcome {
    let host = host(rig)?;
    let pd = rig.far.other_pd()?;
    let access = Access::LOCAL_WRITE | Access::MW_BIND;
    let elsewhere = rig.far.region_with(&pd, 4096, MrOptions::new(access))?;
    let mw = rig.finish(pd.alloc_mw(MwType::Type2))?;
    let pair = rig.rc_in(&pd)?;
    let key = bind(rig, &pair.far, &mw, bind_of(&mw, &elsewhere, 0, 64))?;
    assert!(rig.can_write(&pair, at(&elsewhere, 0, key))?);
    drop(pair.near);
    rig.finish_destroy(pair.far.qp.destroy())?;
    assert!(
        !rig.can_write(&rig.rc_in(&pd)?, at(&elsewhere, 0, key))?,
        "a new queue pair"
    );

    // The window still exists, holds its domain, and can be bound again.
    rig.finish_destroy(elsewhere.mr.deregister())?;
    match rig.outcome(pd.clone().destroy())? {
        Err(DestroyError::Busy { held_by, .. }) => assert_eq!(held_by.len(), 1, "{held_by:?}"),
        other => panic!("not busy: {other:?}"),
    }
    let again = rig.far.region_with(&pd, 4096, MrOptions::new(access))?;
    let pair = rig.rc_in(&pd)?;
    let key = bind(rig, &pair.far, &mw, bind_of(&mw, &again, 0, 64))?;
    assert!(rig.can_write(&pair, at(&again, 0, key))?);
    drop(host);
    Ok(())
}

// covers 2.54
fn a_window_is_not_inherited_with_the_number(rig: &Rig) -> Outcome {
    // Each device has one queue pair number, which every queue pair gets in turn.
    let rig = &rig.with_qp_numbers(0x40, 0x41);
    let host = host(rig)?;
    let (pair, mw, key) = bound(rig, MwType::Type2, &host)?;
    assert!(rig.can_write(&pair, at(&host, 0, key))?);
    let numbers = (pair.near.qp_num(), pair.far.qp_num());
    rig.finish_destroy(pair.near.qp.destroy())?;
    rig.finish_destroy(pair.far.qp.destroy())?;

    let heir = rig.rc()?;
    assert_eq!((heir.near.qp_num(), heir.far.qp_num()), numbers);
    assert!(!rig.can_write(&heir, at(&host, 0, key))?);
    rig.finish_destroy(heir.near.qp.destroy())?;
    rig.finish_destroy(heir.far.qp.destroy())?;
    let heir = rig.rc()?;
    let key = bind(rig, &heir.far, &mw, bind_of(&mw, &host, 0, 64))?;
    assert!(rig.can_write(&heir, at(&host, 0, key))?, "it was free");
    Ok(())
}

// covers 2.54
fn a_window_is_free_when_its_queue_pair_was_reset(rig: &Rig) -> Outcome {
    let host = host(rig)?;
    let (pair, mw, key) = bound(rig, MwType::Type2, &host)?;
    let reset = verbs_api::qp::QpAttributes::new().qp_state(QpState::Reset);
    rig.finish(pair.near.modify(reset))?;
    rig.finish(pair.far.modify(reset))?;
    let pair = rig.connected(pair.near, pair.far)?;
    assert!(
        !rig.can_write(&pair, at(&host, 0, key))?,
        "the same number, reset"
    );
    let other = rig.rc()?;
    let key = bind(rig, &other.far, &mw, bind_of(&mw, &host, 0, 64))?;
    assert!(rig.can_write(&other, at(&host, 0, key))?);
    Ok(())
}

fn can_be_given_back(rig: &Rig, mw_type: MwType) -> Outcome {
    let host = host(rig)?;
    let (pair, mw, key) = bound(rig, mw_type, &host)?;
    assert!(rig.can_write(&pair, at(&host, 0, key))?);
    rig.finish_destroy(mw.destroy())?;
    assert!(
        !rig.can_write(&pair, at(&host, 0, key))?,
        "dead before the verb was done"
    );
    rig.finish_destroy(host.mr.deregister())
}

// covers 2.55
fn a_bound_window_can_be_given_back(rig: &Rig) -> Outcome {
    can_be_given_back(rig, MwType::Type2)?;
    Ok(())
}

// covers 2.55
fn a_bound_window_of_type_1_can_be_given_back(rig: &Rig) -> Outcome {
    can_be_given_back(rig, MwType::Type1)?;
    Ok(())
}

// covers 2.13
fn a_region_with_a_window_stays(rig: &Rig) -> Outcome {
    let host = host(rig)?;
    let (pair, mw, key) = bound(rig, MwType::Type2, &host)?;
    let mr = match rig.outcome(host.mr.clone().deregister())? {
        Err(DestroyError::Busy { object, held_by }) => {
            assert_eq!(held_by.len(), 1, "{held_by:?}");
            assert_eq!(held_by[0].id, mw.id());
            object
        }
        other => panic!("not busy: {other:?}"),
    };
    assert!(rig.can_write(&pair, at(&host, 0, key))?);
    assert!(rig.can_read(&pair, at(&host, 0, key))?);
    rig.finish_destroy(mw.destroy())?;
    rig.finish_destroy(mr.deregister())
}
