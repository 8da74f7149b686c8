//! Invalidation, local and from afar: FEATURES 2.24 to 2.28, 2.62 to 2.65.

use crate::cases;
use crate::support::{ok, statuses};
use conformance::{Evidence, Fast, Outcome, Pair, Region, Rig, needs, one_of};
use verbs_api::qp::{QpState, QpType};
use verbs_api::{
    Access, Batch, Features, Operations, QpOptions, RKey, WcStatus,
    memory::MwType,
    portable::{ReadAndInvalidate, read_sink_access},
    wr,
};

const BMME: Features = Features::BMME;
const FENCED: Features = BMME.union(Features::LOCAL_INVALIDATE_FENCE);

cases! {
    an_unfenced_invalidate_harms_no_memory: needs(BMME);
    a_read_may_be_fenced: needs(FENCED);
    read_and_invalidate_is_one_operation: needs(FENCED);
    a_free_key_stays_free: needs(BMME);
    only_a_valid_key_can_be_invalidated: needs(BMME);
    a_region_with_a_window_cannot_be_invalidated: one_of(Features::WINDOW_2).and(BMME);
    the_byte_must_be_the_current_one: needs(BMME);
    read_with_invalidate_frees_the_sink: needs(BMME.union(Features::READ_WITH_INVALIDATE));
    only_reliable_connections_send_with_invalidate: needs(BMME);
    a_key_that_does_not_exist_fails_the_receive: needs(BMME);
    a_stale_byte_fails_the_receive: needs(BMME);
    an_ordinary_region_fails_the_receive: needs(BMME);
    a_type_1_window_fails_the_receive: needs(BMME.union(Features::WINDOW_1));
    a_region_with_a_window_fails_the_receive: one_of(Features::WINDOW_2).and(BMME);
    a_window_of_another_queue_pair_fails_the_receive: one_of(Features::WINDOW_2).and(BMME);
    a_region_without_remote_rights_fails_the_receive: needs(BMME);
    a_free_key_fails_the_receive: needs(BMME);
    a_failed_invalidation_is_not_refused_to_the_sender: needs(BMME);
}

const OPEN: Access = Access::LOCAL_WRITE
    .union(Access::REMOTE_READ)
    .union(Access::REMOTE_WRITE);
const LONG: u32 = 6000;

/// Filled memory of the far end that the peer may read.
fn source(rig: &Rig, seed: u8) -> Result<Region, Evidence> {
    let source = rig.far.region(8192, OPEN)?;
    source.fill(seed)?;
    Ok(source)
}

/// The rights that a sink of reads needs on this device.
fn sink_access(rig: &Rig) -> Access {
    read_sink_access(&rig.near.context).access
}

// covers 2.24
fn an_unfenced_invalidate_harms_no_memory(rig: &Rig) -> Outcome {
    let source = source(rig, 9)?;
    let sent = source.bytes(0, LONG as usize)?;
    for _ in 0..20 {
        let pair = rig.rc()?;
        let sink = rig.near.fast(8192)?;
        let mut batch = Batch::new();
        batch.push(sink.register(sink_access(rig)));
        batch.push(wr::Read::new(sink.sge(0, LONG), source.remote(0)).signaled(1));
        batch.push(sink.invalidate().signaled(2));
        pair.near.post(&mut batch).expect("a batch that is taken");
        let done = rig.take(&pair.near.cq, 2)?;
        assert_eq!([done[0].wr_id, done[1].wr_id], [1, 2], "in posting order");
        let got = sink.bytes(0, 8192)?;
        assert!(
            got[LONG as usize..].iter().all(|&octet| octet == 0),
            "beyond the read"
        );
        let first = done[0].status;
        if first.is_success() {
            assert_eq!(got[..LONG as usize], sent);
            assert_eq!(done[1].status, WcStatus::Success);
        } else {
            assert_ne!(
                first,
                WcStatus::WrFlushErr,
                "an error of its own, not a flush"
            );
            assert_eq!(pair.near.state()?, QpState::Err);
            // Every placed byte is from the source, and none is placed after the completion.
            let placed = got
                .iter()
                .zip(&sent)
                .take_while(|(got, sent)| got == sent)
                .count();
            assert!(got[placed..].iter().all(|&octet| octet == 0));
        }
        rig.settle();
        assert_eq!(
            sink.bytes(0, 8192)?,
            got,
            "nothing is placed after the completion"
        );
    }
    Ok(())
}

// covers 2.25
fn a_read_may_be_fenced(rig: &Rig) -> Outcome {
    let source = source(rig, 2)?;
    let pair = rig.rc()?;
    let sink = rig.near.fast(8192)?;
    let mut batch = Batch::new();
    batch.push(sink.register(sink_access(rig)));
    batch.push(wr::Read::new(sink.sge(0, 2000), source.remote(0)).signaled(1));
    batch.push(
        wr::Read::new(sink.sge(2000, 2000), source.remote(2000))
            .fence()
            .signaled(2),
    );
    batch.push(sink.invalidate().fence().signaled(3));
    batch.push(wr::Write::new((), source.remote(0)).fence().signaled(4));
    pair.near.post(&mut batch).expect("a batch that is taken");
    assert_eq!(statuses(&rig.take(&pair.near.cq, 4)?), ok([1, 2, 3, 4]));
    assert_eq!(sink.bytes(0, 4000)?, source.bytes(0, 4000)?);
    Ok(())
}

// covers 2.25
fn read_and_invalidate_is_one_operation(rig: &Rig) -> Outcome {
    let source = source(rig, 3)?;
    let sink = rig.near.fast(8192)?;
    let pair = rig.rc()?;
    for round in 0..10 {
        pair.near
            .post_one(sink.register_afresh(sink_access(rig)))
            .expect("a registration");
        let portable = sink.key.sink(sink.pages.address(), LONG);
        let operation = ReadAndInvalidate::new(source.remote(0), &portable).wr_id(round);
        pair.near
            .post_portable(operation)
            .expect("an operation that is taken");
        assert_eq!(statuses(&rig.take(&pair.near.cq, 1)?), ok([round]));
        assert_eq!(
            sink.bytes(0, LONG as usize)?,
            source.bytes(0, LONG as usize)?
        );
    }
    rig.nothing_on(&pair.near.cq)?;
    assert_eq!(pair.near.counters().local_invalidates, 10);
    // The key of the sink is invalid: the operation fails with a single completion.
    let portable = sink.key.sink(sink.pages.address(), 8);
    let operation = ReadAndInvalidate::new(source.remote(0), &portable).wr_id(99);
    pair.near
        .post_portable(operation)
        .expect("an operation that is taken");
    assert_eq!(
        statuses(&rig.take(&pair.near.cq, 1)?),
        [(99, WcStatus::LocProtErr)]
    );
    rig.nothing_on(&pair.near.cq)
}

/// A far key, registered through `pair` and open to peers.
fn registered(rig: &Rig, pair: &Pair) -> Result<Fast, Evidence> {
    let fast = rig.far.fast(4096)?;
    rig.succeeds(&pair.far, fast.register(OPEN | Access::MW_BIND).signaled(1))?;
    Ok(fast)
}

// covers 2.26
fn a_free_key_stays_free(rig: &Rig) -> Outcome {
    let pair = rig.rc()?;
    let fast = rig.far.fast(4096)?;
    rig.succeeds(&pair.far, fast.invalidate().signaled(1))?;
    rig.succeeds(&pair.far, fast.register(OPEN).signaled(2))?;
    rig.succeeds(&pair.far, fast.invalidate().signaled(3))?;
    rig.succeeds(&pair.far, fast.invalidate().signaled(4))?;
    assert!(!rig.can_read(&rig.rc()?, fast.remote(0))?);
    let stale = wr::LocalInvalidate::new(fast.rkey().next()).signaled(5);
    rig.fails(&rig.rc()?.far, stale, &[WcStatus::LocQpOpErr])?;
    rig.succeeds(&pair.far, fast.register(OPEN).signaled(6))
}

// covers 2.26
fn only_a_valid_key_can_be_invalidated(rig: &Rig) -> Outcome {
    let pair = rig.rc()?;
    let fast = registered(rig, &pair)?;
    let key = fast.rkey().value();
    for wrong in [0, key ^ 0x4000_0000, u32::MAX, key & 0xff] {
        let request = wr::LocalInvalidate::new(RKey::new(wrong)).signaled(1);
        rig.fails(&rig.rc()?.far, request, &[WcStatus::LocQpOpErr])?;
    }
    let ordinary = rig.far.region(64, OPEN)?;
    let request = wr::LocalInvalidate::new(ordinary.mr.rkey()).signaled(1);
    rig.fails(&rig.rc()?.far, request, &[WcStatus::LocQpOpErr])?;
    assert!(rig.can_write(&rig.rc()?, ordinary.remote(0))?);
    let stranger = rig.rc_in(&rig.far.other_pd()?)?;
    rig.fails(
        &stranger.far,
        fast.invalidate().signaled(1),
        &[WcStatus::LocQpOpErr],
    )?;
    assert!(rig.can_write(&pair, fast.remote(0))?, "it is valid still");
    Ok(())
}

// covers 2.27
fn a_region_with_a_window_cannot_be_invalidated(rig: &Rig) -> Outcome {
    let pair = rig.rc()?;
    let fast = registered(rig, &pair)?;
    let (window, key) = window_on(rig, &pair, &fast)?;
    let remote = verbs_api::RemoteAddress::new(fast.pages.address(), key);
    rig.fails(
        &rig.rc()?.far,
        fast.invalidate().signaled(1),
        &[WcStatus::LocQpOpErr],
    )?;
    assert!(rig.can_write(&pair, remote)?, "the window goes on working");
    assert!(
        rig.can_write(&pair, fast.remote(0))?,
        "and so does the region"
    );
    rig.succeeds(
        &pair.far,
        wr::LocalInvalidate::new(window.rkey()).signaled(2),
    )?;
    rig.succeeds(&pair.far, fast.invalidate().signaled(3))?;
    assert!(!rig.can_write(&pair, fast.remote(0))?);
    Ok(())
}

/// A type-2 window on all of a registered key, bound through the far side of `pair`.
fn window_on(rig: &Rig, pair: &Pair, fast: &Fast) -> Result<(verbs_api::Mw, RKey), Evidence> {
    let window = rig.far.window(MwType::Type2)?;
    let key = window.rkey().next();
    let bind = wr::BindWindow::new(&window, &fast.key, fast.pages.address(), fast.pages.len());
    rig.succeeds(&pair.far, bind.access(Access::REMOTE_WRITE).signaled(9))?;
    Ok((window, key))
}

// covers 2.28
fn the_byte_must_be_the_current_one(rig: &Rig) -> Outcome {
    let pair = rig.rc()?;
    let fast = registered(rig, &pair)?;
    assert_eq!(fast.lkey().value(), fast.rkey().value(), "one key");
    let old = fast.rkey();
    rig.succeeds(&pair.far, fast.invalidate().signaled(1))?;
    rig.succeeds(&pair.far, fast.register_afresh(OPEN).signaled(2))?;
    for stale in [old, fast.rkey().next()] {
        let request = wr::LocalInvalidate::new(stale).signaled(3);
        rig.fails(&rig.rc()?.far, request, &[WcStatus::LocQpOpErr])?;
    }
    assert!(rig.can_write(&pair, fast.remote(0))?);
    rig.succeeds(&pair.far, fast.invalidate().signaled(4))
}

// covers 2.62 2.69
fn read_with_invalidate_frees_the_sink(rig: &Rig) -> Outcome {
    let source = source(rig, 6)?;
    let sink = rig.near.fast(8192)?;
    let pair = rig.rc()?;
    for round in 0..10 {
        let request = sink.register_afresh(sink_access(rig));
        pair.near.post_one(request).expect("a registration");
        let read = wr::ReadWithInvalidate::new(sink.sge(0, LONG), source.remote(0)).signaled(round);
        rig.succeeds(&pair.near, read)?;
        assert_eq!(
            sink.bytes(0, LONG as usize)?,
            source.bytes(0, LONG as usize)?
        );
        // The key is free when the read completes: it can be registered again, and until then it
        // grants the peer no access.
    }
    let exposed = wr::Write::new(source.sge(0, 8)?, sink.remote(0)).signaled(1);
    pair.far.post_one(exposed).expect("a write");
    rig.settle();
    assert_eq!(
        pair.near.state()?,
        QpState::Err,
        "the peer may no longer write the sink"
    );
    assert_eq!(sink.bytes(0, 8)?, source.bytes(0, 8)?, "and has not");
    let unusable = wr::Read::new(sink.sge(0, 8), source.remote(0)).signaled(2);
    rig.fails(&rig.rc()?.near, unusable, &[WcStatus::LocProtErr])
}

/// Where a far queue pair receives messages.
fn landing(rig: &Rig) -> Result<Region, Evidence> {
    rig.far.region(4096, Access::LOCAL_WRITE)
}

const MESSAGE: [u8; 16] = *b"the key is yours";

// covers 2.63
fn only_reliable_connections_send_with_invalidate(rig: &Rig) -> Outcome {
    let cq = rig.near.cq(8)?;
    for options in [QpOptions::uc(&cq), QpOptions::ud(&cq)] {
        let created = rig.outcome(
            rig.near
                .pd
                .create_qp(options.operations(Operations::SEND_WITH_INV)),
        )?;
        assert!(created.is_err());
    }
    assert!(!QpType::Uc.operations().contains(Operations::SEND_WITH_INV));
    Ok(())
}

/// A message that invalidates `key` arrives, and its receive fails with all consequences of a failure.
fn receive_fails(rig: &Rig, pair: &Pair, key: RKey) -> Outcome {
    let landing = landing(rig)?;
    pair.far.receive(&landing, 64, 64)?;
    pair.far.receive(&landing, 128, 64)?;
    let send = wr::SendWithInvalidate::new(&MESSAGE, key).signaled(77);
    pair.near.post_one(send).expect("a send");
    let done = rig.take(&pair.far.cq, 2)?;
    let expected = [(64, WcStatus::RemInvReqErr), (128, WcStatus::WrFlushErr)];
    assert_eq!(statuses(&done), expected);
    assert_eq!(pair.far.state()?, QpState::Err);
    assert_eq!(
        statuses(&rig.take(&pair.near.cq, 1)?),
        ok([77]),
        "it was delivered"
    );
    assert_eq!(landing.bytes(64, MESSAGE.len())?, MESSAGE);
    assert_eq!(pair.near.counters().naks, 0);
    rig.settle();
    if !rig.acknowledges() {
        assert_eq!(pair.near.state()?, QpState::Err, "notified by a Terminate");
    }
    Ok(())
}

// covers 2.64 2.65
fn a_key_that_does_not_exist_fails_the_receive(rig: &Rig) -> Outcome {
    let fast = rig.far.fast(4096)?;
    for wrong in [0, u32::MAX, fast.rkey().value() ^ 0x4000_0000] {
        receive_fails(rig, &rig.rc()?, RKey::new(wrong))?;
    }
    Ok(())
}

// covers 2.64 2.65
fn a_stale_byte_fails_the_receive(rig: &Rig) -> Outcome {
    let pair = rig.rc()?;
    let fast = registered(rig, &pair)?;
    receive_fails(rig, &rig.rc()?, fast.rkey().next())?;
    assert!(rig.can_write(&pair, fast.remote(0))?, "it is valid still");
    Ok(())
}

// covers 2.64
fn an_ordinary_region_fails_the_receive(rig: &Rig) -> Outcome {
    let ordinary = rig.far.region(64, OPEN)?;
    receive_fails(rig, &rig.rc()?, ordinary.mr.rkey())?;
    assert!(
        rig.can_write(&rig.rc()?, ordinary.remote(0))?,
        "it is valid still"
    );
    Ok(())
}

// covers 2.64
fn a_type_1_window_fails_the_receive(rig: &Rig) -> Outcome {
    let pair = rig.rc()?;
    let fast = registered(rig, &pair)?;
    let window = rig.far.window(MwType::Type1)?;
    let addr = fast.pages.address();
    let bind = wr::BindWindow::new(&window, &fast.key, addr, 64);
    let bind = bind.access(Access::REMOTE_WRITE).signaled(1);
    let key = pair.far.bind_mw(bind).expect("a bind that is taken");
    rig.take(&pair.far.cq, 1)?;
    receive_fails(rig, &rig.rc()?, key)?;
    assert!(rig.can_write(&pair, verbs_api::RemoteAddress::new(addr, key))?);
    Ok(())
}

// covers 2.64
fn a_region_with_a_window_fails_the_receive(rig: &Rig) -> Outcome {
    let pair = rig.rc()?;
    let fast = registered(rig, &pair)?;
    let (_window, key) = window_on(rig, &pair, &fast)?;
    receive_fails(rig, &rig.rc()?, fast.rkey())?;
    let remote = verbs_api::RemoteAddress::new(fast.pages.address(), key);
    assert!(rig.can_write(&pair, remote)? && rig.can_write(&pair, fast.remote(0))?);
    Ok(())
}

// covers 2.64 2.51 2.43
fn a_window_of_another_queue_pair_fails_the_receive(rig: &Rig) -> Outcome {
    let pair = rig.rc()?;
    let fast = registered(rig, &pair)?;
    let (_window, key) = window_on(rig, &pair, &fast)?;
    receive_fails(rig, &rig.rc()?, key)?;
    let remote = verbs_api::RemoteAddress::new(fast.pages.address(), key);
    assert!(rig.can_write(&pair, remote)?);
    Ok(())
}

// covers 2.64
fn a_region_without_remote_rights_fails_the_receive(rig: &Rig) -> Outcome {
    let pair = rig.rc()?;
    let fast = rig.far.fast(4096)?;
    rig.succeeds(&pair.far, fast.register(Access::LOCAL_WRITE).signaled(1))?;
    receive_fails(rig, &rig.rc()?, fast.rkey())?;
    // The registration is still valid: a send can use it, and a fast-register of it fails.
    let again = fast.register(Access::LOCAL_WRITE).signaled(2);
    rig.fails(&pair.far, again, &[WcStatus::LocQpOpErr])
}

// covers 2.64
fn a_free_key_fails_the_receive(rig: &Rig) -> Outcome {
    let fast = rig.far.fast(4096)?;
    receive_fails(rig, &rig.rc()?, fast.rkey())?;
    rig.succeeds(&rig.rc()?.far, fast.register(OPEN).signaled(1))
}

// covers 2.65
fn a_failed_invalidation_is_not_refused_to_the_sender(rig: &Rig) -> Outcome {
    let pair = rig.rc()?;
    rig.far.events();
    receive_fails(rig, &pair, RKey::new(u32::MAX))?;
    if rig.acknowledges() {
        assert_eq!(
            pair.near.state()?,
            QpState::Rts,
            "the sender is not notified"
        );
    }
    Ok(())
}
