//! Keys, ordinary regions, zero-based addresses, sinks of reads: FEATURES 2.03 to 2.15, 2.60, 2.61,
//! 2.66 to 2.69.

use std::time::Duration;

use crate::cases;
use crate::support::{forged, statuses};
use conformance::{ANY_DEVICE, Evidence, Outcome, Pair, Rig, needs};
use verbs_api::qp::{QpState, QpType};
use verbs_api::{
    Access, Batch, ErrorKind, Features, MrOptions, PathOptions, RKey, RemoteAddress, SrqOptions,
    WcStatus,
    capability::BaselineGaps,
    event::EventType,
    ids::LKey,
    memory::MrReregister,
    portable::read_sink_access,
    wr::{self, PostReason, ReceiveRequest},
};

cases! {
    a_dead_key_stays_dead: ANY_DEVICE;
    rights_that_do_not_go_together_are_refused: ANY_DEVICE;
    every_right_is_asked_for: ANY_DEVICE;
    an_address_near_the_top_does_not_wrap: ANY_DEVICE;
    a_region_serves_its_domain: ANY_DEVICE;
    a_shared_receive_belongs_to_the_queues_domain: needs(Features::SRQ);
    an_empty_request_names_no_memory: ANY_DEVICE;
    an_empty_request_needs_the_queue_pairs_permission: ANY_DEVICE;
    a_bad_local_key_shows_at_execution: ANY_DEVICE;
    a_local_range_outside_its_region_is_refused: ANY_DEVICE;
    a_bad_key_of_a_receive_fails_the_receive: ANY_DEVICE;
    an_empty_entry_is_not_checked: ANY_DEVICE;
    a_receive_is_checked_as_far_as_the_message_reaches: ANY_DEVICE;
    a_message_beyond_the_limit_is_refused: ANY_DEVICE;
    inline_bytes_are_copied_while_posting: ANY_DEVICE;
    deregistering_while_a_peer_reads: ANY_DEVICE;
    a_refused_change_leaves_the_region: ANY_DEVICE.without(BaselineGaps::NO_REREG_MR);
    a_sink_needs_what_the_transport_says: ANY_DEVICE;
    a_private_sink_is_filled_or_refused_at_once: ANY_DEVICE;
    a_read_has_up_to_the_reported_number_of_sinks: ANY_DEVICE;
    a_sink_is_open_to_its_peer_where_it_must_be: ANY_DEVICE;
    a_zero_based_region_keeps_its_offset_in_the_page: needs(Features::ZBVA);
}

const OPEN: Access = Access::LOCAL_WRITE
    .union(Access::REMOTE_READ)
    .union(Access::REMOTE_WRITE);
const NO_KEY: RKey = RKey::new(0xdead_beef);

// covers 2.03
fn a_dead_key_stays_dead(rig: &Rig) -> Outcome {
    let region = rig.far.region(4096, OPEN)?;
    let (saved, addr) = (region.mr.rkey(), region.mr.iova());
    assert!(rig.can_read(&rig.rc()?, region.remote(0))?);
    rig.finish_destroy(region.mr.deregister())?;
    for round in 0..300 {
        let next = rig
            .far
            .region_with(&rig.far.pd, 4096, MrOptions::new(OPEN).iova(addr))?;
        assert_ne!(next.mr.rkey(), saved);
        let dead = RemoteAddress::new(addr, saved);
        assert!(!rig.can_read(&rig.rc()?, dead)?, "round {round}");
        rig.finish_destroy(next.mr.deregister())?;
    }
    Ok(())
}

// covers 2.04
fn rights_that_do_not_go_together_are_refused(rig: &Rig) -> Outcome {
    let keys = rig.far.keys_in_use();
    let memory = verbs_api::Memory::zeroed(64).expect("memory");
    for wrong in [
        Access::REMOTE_WRITE,
        Access::REMOTE_ATOMIC | Access::REMOTE_READ,
    ] {
        let refused = rig
            .outcome(rig.far.pd.register(&memory, wrong))?
            .expect_err("a refusal");
        assert_eq!(refused.kind(), ErrorKind::InvalidArgument);
        assert!(refused.to_string().contains("LOCAL_WRITE"), "{refused}");
    }
    assert_eq!(rig.far.keys_in_use(), keys);
    assert!(rig.can_read(
        &rig.rc()?,
        rig.far.region(64, Access::REMOTE_READ)?.remote(0)
    )?);
    Ok(())
}

// covers 2.05
fn every_right_is_asked_for(rig: &Rig) -> Outcome {
    let read_only = rig.far.region(64, Access::REMOTE_READ)?;
    assert!(rig.can_read(&rig.rc()?, read_only.remote(0))?);
    assert!(!rig.can_write(&rig.rc()?, read_only.remote(0))?);
    let local_write_too = rig
        .far
        .region(64, Access::REMOTE_READ | Access::LOCAL_WRITE)?;
    assert!(
        !rig.can_write(&rig.rc()?, local_write_too.remote(0))?,
        "local write is another right"
    );
    let write_only = rig
        .far
        .region(64, Access::REMOTE_WRITE | Access::LOCAL_WRITE)?;
    assert!(rig.can_write(&rig.rc()?, write_only.remote(0))?);
    assert!(!rig.can_read(&rig.rc()?, write_only.remote(0))?);
    if rig.has_gap(BaselineGaps::NO_ATOMICS) {
        return Ok(());
    }
    for region in [&local_write_too, &write_only] {
        assert!(!rig.can_add(&rig.rc()?, region.remote(0))?);
    }
    let atomic_only = rig
        .far
        .region(64, Access::REMOTE_ATOMIC | Access::LOCAL_WRITE)?;
    assert!(rig.can_add(&rig.rc()?, atomic_only.remote(0))?);
    assert!(!rig.can_read(&rig.rc()?, atomic_only.remote(0))?);
    assert!(!rig.can_write(&rig.rc()?, atomic_only.remote(0))?);
    Ok(())
}

// covers 2.06
fn an_address_near_the_top_does_not_wrap(rig: &Rig) -> Outcome {
    let memory = verbs_api::Memory::zeroed(8192).expect("memory");
    // Both addresses have the same offset within their page, as some devices require.
    let length = 8191 - (memory.address() & 0xfff);
    let range = memory.range(0, length as usize).expect("inside");
    let top = MrOptions::new(OPEN).iova(u64::MAX - length);
    let high = rig.finish(rig.far.pd.register_with(range, top))?;
    let pair = rig.rc()?;
    for offset in [0, length - 8] {
        assert!(rig.can_write(&pair, high.remote(offset))?);
    }
    for offset in [length - 7, length, length + 1, length + 904] {
        assert!(!rig.can_write(&rig.rc()?, high.remote(offset))?, "{offset}");
        assert!(!rig.can_read(&rig.rc()?, high.remote(offset))?, "{offset}");
    }
    // A region that would wrap is refused, or its part beyond the top cannot be accessed.
    let wrapping = MrOptions::new(OPEN).iova(u64::MAX - 100);
    if let Ok(mr) = rig.outcome(rig.far.pd.register_with(&memory, wrapping))? {
        assert!(!rig.can_read(&rig.rc()?, mr.remote(200))?);
        assert!(!rig.can_read(&rig.rc()?, mr.remote(97))?);
    }
    Ok(())
}

// covers 2.07
fn a_region_serves_its_domain(rig: &Rig) -> Outcome {
    let region = rig.far.region(64, OPEN)?;
    let other = rig.far.other_pd()?;
    assert!(!rig.can_read(&rig.rc_in(&other)?, region.remote(0))?);
    assert!(!rig.can_write(&rig.rc_in(&other)?, region.remote(0))?);
    let stranger = rig.rc_in(&other)?;
    let send = wr::Send::new(region.sge(0, 8)?).signaled(1);
    rig.fails(&stranger.far, send, &[WcStatus::LocProtErr])?;
    assert!(rig.can_read(&rig.rc()?, region.remote(0))?);
    Ok(())
}

// covers 2.07
fn a_shared_receive_belongs_to_the_queues_domain(rig: &Rig) -> Outcome {
    let other = rig.far.other_pd()?;
    let pair_on = |srq: &verbs_api::Srq| -> Result<Pair, Evidence> {
        let far = rig
            .far
            .side_with(&rig.far.pd, |cq| rig.far.options(QpType::Rc, cq).srq(srq))?;
        rig.connected(rig.near.side(QpType::Rc)?, far)
    };
    let srq = rig.finish(other.create_srq(SrqOptions::new(8)))?;
    let of_the_queue = rig
        .far
        .region_with(&other, 64, MrOptions::new(Access::LOCAL_WRITE))?;
    let of_the_qp = rig.far.region(64, Access::LOCAL_WRITE)?;

    let pair = pair_on(&srq)?;
    srq.post_receive(ReceiveRequest::new(1, of_the_queue.sge(0, 64)?))
        .expect("a receive");
    rig.succeeds(&pair.near, wr::Send::new(&[7; 8]).signaled(1))?;
    assert_eq!(rig.take(&pair.far.cq, 1)?[0].status, WcStatus::Success);
    assert_eq!(of_the_queue.bytes(0, 8)?, [7; 8]);

    srq.post_receive(ReceiveRequest::new(2, of_the_qp.sge(0, 64)?))
        .expect("a receive");
    receive_fails(rig, &pair, WcStatus::LocProtErr)?;
    assert_eq!(of_the_qp.bytes(0, 8)?, [0; 8]);
    Ok(())
}

/// A message arrives and its receive cannot take it.
fn receive_fails(rig: &Rig, pair: &Pair, status: WcStatus) -> Outcome {
    pair.near
        .post_one(wr::Send::new(&[7; 8]).signaled(9))
        .expect("a send");
    assert_eq!(rig.take(&pair.far.cq, 1)?[0].status, status);
    assert_eq!(pair.far.state()?, QpState::Err);
    let sent = rig.take(&pair.near.cq, 1)?[0].status;
    let told = if rig.acknowledges() {
        WcStatus::RemOpErr
    } else {
        WcStatus::Success
    };
    assert_eq!(sent, told);
    rig.settle();
    assert_eq!(pair.near.state()?, QpState::Err);
    Ok(())
}

// covers 2.08 2.68
fn an_empty_request_names_no_memory(rig: &Rig) -> Outcome {
    let pair = rig.rc()?;
    let nowhere = forged(3, 0, 0xdead_beef);
    for remote in [
        RemoteAddress::new(u64::MAX, NO_KEY),
        RemoteAddress::new(0, RKey::new(0)),
        RemoteAddress::new(1, RKey::new(u32::MAX)),
    ] {
        rig.succeeds(&pair.near, wr::Write::new((), remote).signaled(1))?;
        rig.succeeds(&pair.near, wr::Write::new(nowhere, remote).signaled(2))?;
        rig.succeeds(&pair.near, wr::Read::new((), remote).signaled(3))?;
        rig.succeeds(&pair.near, wr::Read::new(nowhere, remote).signaled(4))?;
    }
    rig.settle();
    assert_eq!(pair.far.state()?, QpState::Rts);
    assert!(rig.far.events().is_empty());
    Ok(())
}

// covers 2.08
fn an_empty_request_needs_the_queue_pairs_permission(rig: &Rig) -> Outcome {
    let pair = |access| -> Result<Pair, Evidence> {
        let options = PathOptions::new().access(access);
        rig.connected_with(
            rig.near.side(QpType::Rc)?,
            rig.far.side(QpType::Rc)?,
            options,
        )
    };
    let remote = RemoteAddress::new(0, NO_KEY);
    let invalid = WcStatus::RemInvReqErr;
    let write = || wr::Write::new((), remote).signaled(1);
    let read = || wr::Read::new((), remote).signaled(1);
    assert_eq!(
        rig.verdict(&pair(Access::REMOTE_WRITE)?, write())?,
        WcStatus::Success
    );
    assert_eq!(rig.verdict(&pair(Access::REMOTE_READ)?, write())?, invalid);
    assert_eq!(
        rig.verdict(&pair(Access::REMOTE_READ)?, read())?,
        WcStatus::Success
    );
    assert_eq!(rig.verdict(&pair(Access::REMOTE_WRITE)?, read())?, invalid);
    Ok(())
}

/// Posts an invalid request between two valid ones, and checks its status and the state of the queue pair.
fn shows_at_execution(rig: &Rig, bad: impl Into<verbs_api::wr::WorkRequest<'static>>) -> Outcome {
    let pair = rig.rc()?;
    let mut batch = Batch::new();
    batch.push(wr::Write::new((), RemoteAddress::default()).signaled(1));
    batch.push(bad);
    batch.push(wr::Write::new((), RemoteAddress::default()).signaled(3));
    pair.near
        .post(&mut batch)
        .expect("accepted while posting, whatever the key");
    let done = rig.take(&pair.near.cq, 3)?;
    let expected = [
        (1, WcStatus::Success),
        (2, WcStatus::LocProtErr),
        (3, WcStatus::WrFlushErr),
    ];
    assert_eq!(statuses(&done), expected);
    assert_eq!(pair.near.state()?, QpState::Err);
    Ok(())
}

// covers 2.09
fn a_bad_local_key_shows_at_execution(rig: &Rig) -> Outcome {
    let target = rig.far.region(64, OPEN)?;
    let sge = |lkey: LKey| forged(rig.scratch.mr.iova(), 8, lkey.value());
    let stale = LKey::new(rig.scratch.mr.lkey().value() ^ 1);
    let elsewhere = rig
        .near
        .region_with(&rig.near.other_pd()?, 64, MrOptions::new(OPEN))?;
    for lkey in [LKey::new(0), LKey::new(u32::MAX), stale] {
        shows_at_execution(rig, wr::Send::new(sge(lkey)).signaled(2))?;
        shows_at_execution(rig, wr::Write::new(sge(lkey), target.remote(0)).signaled(2))?;
        shows_at_execution(rig, wr::Read::new(sge(lkey), target.remote(0)).signaled(2))?;
    }
    shows_at_execution(rig, wr::Send::new(elsewhere.sge(0, 8)?).signaled(2))?;
    let read_only = rig.near.region(64, Access::empty())?;
    shows_at_execution(
        rig,
        wr::Read::new(read_only.sge(0, 8)?, target.remote(0)).signaled(2),
    )?;
    let gone = rig.near.region(64, OPEN)?;
    let dead = gone.sge(0, 8)?;
    rig.finish_destroy(gone.mr.deregister())?;
    shows_at_execution(rig, wr::Write::new(dead, target.remote(0)).signaled(2))?;
    assert_eq!(target.bytes(0, 64)?, [0; 64]);
    Ok(())
}

// covers 2.09 2.06
fn a_local_range_outside_its_region_is_refused(rig: &Rig) -> Outcome {
    let region = rig.near.region(4096, OPEN)?;
    let (first, lkey) = (region.mr.iova(), region.mr.lkey());
    for (addr, length) in [
        (first - 1, 1),
        (first + 4096, 1),
        (first, 4097),
        (u64::MAX - 3, 8),
    ] {
        let sge = forged(addr, length, lkey.value());
        shows_at_execution(rig, wr::Send::new(sge).signaled(2))?;
    }
    Ok(())
}

// covers 2.09
fn a_bad_key_of_a_receive_fails_the_receive(rig: &Rig) -> Outcome {
    let landing = rig.far.region(64, Access::LOCAL_WRITE)?;
    let closed = rig.far.region(64, Access::REMOTE_READ)?;
    let stale = forged(landing.mr.iova(), 64, landing.mr.lkey().value() ^ 1);
    for bad in [
        stale,
        closed.sge(0, 64)?,
        landing.sge(60, 4)?.at(landing.mr.iova() + 60, 8),
    ] {
        let pair = rig.rc()?;
        pair.far
            .post_receive(ReceiveRequest::new(5, bad))
            .expect("accepted, whatever the key");
        receive_fails(rig, &pair, WcStatus::LocProtErr)?;
    }
    Ok(())
}

// covers 2.10
fn an_empty_entry_is_not_checked(rig: &Rig) -> Outcome {
    let pair = rig.rc()?;
    let landing = rig.far.region(64, Access::LOCAL_WRITE)?;
    let nowhere = forged(u64::MAX, 0, 0xdead_beef);
    rig.scratch.fill(1)?;
    let into = [nowhere, landing.sge(0, 4)?, nowhere, landing.sge(8, 56)?];
    pair.far
        .post_receive(ReceiveRequest::new(1, &into))
        .expect("a receive");
    let from = [
        nowhere,
        rig.scratch.sge(0, 6)?,
        nowhere,
        rig.scratch.sge(6, 4)?,
    ];
    rig.succeeds(&pair.near, wr::Send::new(&from).signaled(1))?;
    let got = rig.take(&pair.far.cq, 1)?.remove(0);
    assert_eq!((got.status, got.byte_len), (WcStatus::Success, 10));
    assert_eq!(landing.bytes(0, 4)?, rig.scratch.bytes(0, 4)?);
    assert_eq!(landing.bytes(8, 6)?, rig.scratch.bytes(4, 6)?);

    pair.far
        .post_receive(ReceiveRequest::new(2, nowhere))
        .expect("a receive");
    rig.succeeds(&pair.near, wr::Send::new(nowhere).signaled(2))?;
    let got = rig.take(&pair.far.cq, 1)?.remove(0);
    assert_eq!((got.status, got.byte_len), (WcStatus::Success, 0));
    Ok(())
}

// covers 2.09 3.34
fn a_receive_is_checked_as_far_as_the_message_reaches(rig: &Rig) -> Outcome {
    let pair = rig.rc()?;
    let landing = rig.far.region(64, Access::LOCAL_WRITE)?;
    let nowhere = forged(0, 256, 0);
    pair.far
        .post_receive(ReceiveRequest::new(1, nowhere))
        .expect("a receive");
    let nothing = nowhere.at(0, 0);
    rig.succeeds(&pair.near, wr::Send::new(nothing).signaled(1))?;
    let got = rig.take(&pair.far.cq, 1)?.remove(0);
    assert_eq!((got.status, got.byte_len), (WcStatus::Success, 0));

    let beyond = landing.sge(56, 8)?.at(landing.mr.iova() + 56, 100);
    pair.far
        .post_receive(ReceiveRequest::new(2, beyond))
        .expect("a receive");
    rig.scratch.fill(1)?;
    rig.succeeds(
        &pair.near,
        wr::Send::new(rig.scratch.sge(0, 8)?).signaled(4),
    )?;
    let got = rig.take(&pair.far.cq, 1)?.remove(0);
    assert_eq!((got.status, got.byte_len), (WcStatus::Success, 8));
    assert_eq!(landing.bytes(56, 8)?, rig.scratch.bytes(0, 8)?);

    let into = [landing.sge(0, 8)?, nowhere];
    pair.far
        .post_receive(ReceiveRequest::new(2, &into))
        .expect("a receive");
    rig.succeeds(
        &pair.near,
        wr::Send::new(rig.scratch.sge(0, 8)?).signaled(2),
    )?;
    let got = rig.take(&pair.far.cq, 1)?.remove(0);
    assert_eq!((got.status, got.byte_len), (WcStatus::Success, 8));
    assert_eq!(landing.bytes(0, 8)?, rig.scratch.bytes(0, 8)?);

    pair.far
        .post_receive(ReceiveRequest::new(5, &into))
        .expect("a receive");
    let send = wr::Send::new(rig.scratch.sge(0, 9)?).signaled(3);
    pair.near.post_one(send).expect("a send");
    let got = rig.take(&pair.far.cq, 1)?.remove(0);
    assert_eq!((got.wr_id, got.status), (5, WcStatus::LocProtErr));
    Ok(())
}

// covers 2.11
fn a_message_beyond_the_limit_is_refused(rig: &Rig) -> Outcome {
    let max = rig.attributes().limits.max_msg_sz;
    let some = rig.scratch.sge(0, 8)?;
    let of_length = |length: u64| {
        let length = u32::try_from(length).unwrap_or(u32::MAX);
        some.at(rig.scratch.mr.iova(), length)
    };
    let (half, rest) = (of_length(max / 2), of_length(max - max / 2));
    let all = of_length(u64::MAX);
    let pair = rig.rc()?;
    for list in [[half, rest, of_length(1)], [all, all, all]] {
        let given: u64 = list.iter().map(|sge| u64::from(sge.length())).sum();
        let expected = PostReason::MessageTooLong { max, given };
        let refused = pair
            .near
            .post_one(wr::Send::new(&list))
            .expect_err("too long");
        assert_eq!(refused.reason, expected);
        let write = wr::Write::new(&list, RemoteAddress::new(0, NO_KEY));
        assert_eq!(
            pair.near.post_one(write).expect_err("too long").reason,
            expected
        );
    }
    assert_eq!(pair.near.state()?, QpState::Rts);
    rig.nothing_on(&pair.near.cq)
}

// covers 2.12 7.87
fn inline_bytes_are_copied_while_posting(rig: &Rig) -> Outcome {
    let pair = rig.rc()?;
    let target = rig.far.region(64, OPEN)?;
    let landing = rig.far.region(64, Access::LOCAL_WRITE)?;
    pair.far.receive(&landing, 0, 64)?;
    let mut octets = *b"before";
    pair.near
        .post_one(wr::Write::new(&octets, target.remote(0)).signaled(1))
        .expect("a write");
    pair.near
        .post_one(wr::Send::new(&octets).signaled(2))
        .expect("a send");
    octets.fill(0);
    let sent = rig.take(&pair.near.cq, 2)?;
    assert!(sent.iter().all(|done| done.status.is_success()));
    assert_eq!(rig.take(&pair.far.cq, 1)?[0].byte_len, 6);
    assert_eq!(
        (target.bytes(0, 6)?, landing.bytes(0, 6)?),
        (b"before".to_vec(), b"before".to_vec())
    );
    assert_eq!(octets, [0; 6]);

    let max = pair.near.cap().max_inline_data as usize;
    let too_long = vec![0_u8; max.max(64) + 1];
    let refused = pair
        .near
        .post_one(wr::Send::new(&too_long[..]))
        .expect_err("too long");
    assert!(
        matches!(refused.reason, PostReason::InlineTooLong { .. }),
        "{refused}"
    );
    let read = wr::Read::new(&[0; 4], target.remote(0));
    let refused = pair
        .near
        .post_one(read)
        .expect_err("a read cannot be inline");
    assert_eq!(refused.reason, PostReason::InlineNotAllowed);
    assert_eq!(pair.near.state()?, QpState::Rts);
    Ok(())
}

// covers 2.14
fn deregistering_while_a_peer_reads(rig: &Rig) -> Outcome {
    const LENGTH: usize = 1 << 18;
    for moment in 0..8 {
        let source = rig.far.region(LENGTH, OPEN)?;
        source.put(0, &vec![0xaa; LENGTH])?;
        let sink = rig
            .near
            .region(LENGTH, read_sink_access(&rig.near.context).access)?;
        let pair = rig.rc()?;
        let read = wr::Read::new(sink.sge(0, LENGTH as u32)?, source.remote(0)).signaled(1);
        pair.near.post_one(read).expect("a read");
        rig.run_for(Duration::from_nanos(moment * 500));
        rig.finish_destroy(source.mr.clone().deregister())?;
        source.put(0, &vec![0xbb; LENGTH])?;
        let status = rig.take(&pair.near.cq, 1)?[0].status;
        let got = sink.bytes(0, LENGTH)?;
        assert!(!got.contains(&0xbb), "bytes written after it");
        match status {
            WcStatus::Success => assert!(got.iter().all(|&octet| octet == 0xaa)),
            other => assert_eq!(other, WcStatus::RemAccessErr),
        }
        assert!(
            !rig.can_read(&rig.rc()?, source.remote(0))?,
            "the key is dead"
        );
    }
    Ok(())
}

// covers 2.15
fn a_refused_change_leaves_the_region(rig: &Rig) -> Outcome {
    let region = rig.far.region(4096, OPEN)?;
    for wrong in [
        MrReregister::new().access(Access::REMOTE_WRITE),
        MrReregister::new().iova(4096),
        MrReregister::new().pd(&rig.near.pd),
    ] {
        let refused = rig.outcome(region.mr.rereg(wrong))?.expect_err("a refusal");
        assert_eq!(refused.kind(), ErrorKind::InvalidArgument);
    }
    let pair = rig.rc()?;
    assert!(rig.can_write(&pair, region.remote(0))?);
    if !rig.attributes().features.intersects(Features::WINDOW_2) {
        return Ok(());
    }
    rig.finish(
        region
            .mr
            .rereg(MrReregister::new().access(OPEN | Access::MW_BIND)),
    )?;
    let window = rig.far.window(verbs_api::memory::MwType::Type2)?;
    let key = window.rkey().next();
    let bind = verbs_api::wr::BindWindow::new(&window, &region.mr, region.mr.iova(), 64);
    rig.succeeds(&pair.far, bind.access(Access::REMOTE_READ).signaled(1))?;
    let change = MrReregister::new().access(OPEN);
    let refused = rig
        .outcome(region.mr.rereg(change.clone()))?
        .expect_err("a window is bound");
    assert_eq!(refused.kind(), ErrorKind::Busy);
    assert!(rig.can_write(&pair, region.remote(0))?);
    assert!(rig.can_read(&pair, RemoteAddress::new(region.mr.iova(), key))?);
    rig.finish_destroy(window.destroy())?;
    rig.finish(region.mr.rereg(change))?;
    Ok(())
}

// covers 2.60
fn a_sink_needs_what_the_transport_says(rig: &Rig) -> Outcome {
    let source = rig.far.region(64, OPEN)?;
    source.fill(3)?;
    let local = rig.near.region(64, Access::LOCAL_WRITE)?;
    let pair = rig.rc()?;
    let read = wr::Read::new(local.sge(0, 64)?, source.remote(0)).signaled(1);
    if rig.has_gap(BaselineGaps::READ_SINK_NEEDS_REMOTE_WRITE) {
        rig.fails(&pair.near, read, &[WcStatus::LocProtErr])?;
        assert_eq!(local.bytes(0, 64)?, [0; 64]);
        let events = rig.far.events();
        assert!(
            !events.contains(&EventType::QpAccessErr),
            "no request reached the peer"
        );
        assert_eq!(pair.near.counters().reads, 0);
    } else {
        rig.succeeds(&pair.near, read)?;
        assert_eq!(local.bytes(0, 64)?, source.bytes(0, 64)?);
    }
    let portable = read_sink_access(&rig.near.context).access;
    let sink = rig.near.region(64, portable)?;
    rig.succeeds(
        &rig.rc()?.near,
        wr::Read::new(sink.sge(0, 64)?, source.remote(0)).signaled(2),
    )?;
    assert_eq!(sink.bytes(0, 64)?, source.bytes(0, 64)?);
    Ok(())
}

// covers 2.60
fn a_private_sink_is_filled_or_refused_at_once(rig: &Rig) -> Outcome {
    let source = rig.far.region(64, OPEN)?;
    source.fill(3)?;
    let pool = rig.finish(rig.near.pd.register_buffers(1, 64))?;
    let buffer = pool.take().expect("a buffer");
    let pair = rig.rc()?;
    let read = wr::Read::new(buffer, source.remote(0)).signaled(1);
    if rig.has_gap(BaselineGaps::READ_SINK_NEEDS_REMOTE_WRITE) {
        let refused = pair.near.post_one(read).expect_err("no peer may write it");
        assert_eq!(refused.reason, PostReason::PrivateReadSink);
        assert_eq!(refused.kind(), ErrorKind::Unsupported);
        assert_eq!(pool.available(), 1, "the buffer came back");
        // The queue pair is unchanged, and the requests that a batch posted before remain posted.
        let mut batch = Batch::new();
        batch.push(wr::Write::new(rig.scratch.sge(0, 8)?, source.remote(0)).signaled(2));
        batch.push(wr::Read::new(
            pool.take().expect("a buffer"),
            source.remote(0),
        ));
        let refused = pair
            .near
            .post(&mut batch)
            .expect_err("no peer may write it");
        assert_eq!(
            (refused.index, refused.reason),
            (1, PostReason::PrivateReadSink)
        );
        let done = rig.take(&pair.near.cq, 1)?.remove(0);
        assert_eq!((done.wr_id, done.status), (2, WcStatus::Success));
    } else {
        pair.near.post_one(read).expect("a read");
        let mut done = rig.take(&pair.near.cq, 1)?.remove(0);
        assert_eq!(done.status, WcStatus::Success);
        assert_eq!(done.buffer(), source.bytes(0, 64)?);
        drop(done.take_buffers());
    }
    Ok(())
}

// covers 2.61 1.13
fn a_read_has_up_to_the_reported_number_of_sinks(rig: &Rig) -> Outcome {
    let source = rig.far.region(64, OPEN)?;
    source.fill(3)?;
    let pair = rig.rc()?;
    let sinks = [rig.scratch.sge(0, 10)?, rig.scratch.sge(100, 54)?];
    let read = wr::Read::new(&sinks, source.remote(0)).signaled(1);
    if rig.attributes().limits.max_sge_rd == 1 {
        let refused = pair.near.post_one(read).expect_err("two sinks");
        assert_eq!(refused.reason, PostReason::TooManySges { max: 1, given: 2 });
        assert_eq!(pair.near.state()?, QpState::Rts);
        rig.nothing_on(&pair.near.cq)?;
        rig.succeeds(
            &pair.near,
            wr::Read::new(sinks[0], source.remote(0)).signaled(2),
        )?;
    } else {
        rig.succeeds(&pair.near, read)?;
        assert_eq!(rig.scratch.bytes(100, 54)?, source.bytes(10, 54)?);
    }
    assert_eq!(rig.scratch.bytes(0, 10)?, source.bytes(0, 10)?);
    Ok(())
}

// covers 2.69
fn a_sink_is_open_to_its_peer_where_it_must_be(rig: &Rig) -> Outcome {
    let source = rig.far.region(4096, OPEN)?;
    source.fill(3)?;
    let sink = rig
        .near
        .region(8192, read_sink_access(&rig.near.context).access)?;
    let pair = rig.rc()?;
    let read = wr::Read::new(sink.sge(0, 4096)?, source.remote(0)).signaled(1);
    pair.near.post_one(read).expect("a read");
    // While the read is in progress, the peer writes to the sink after the range that the read
    // fetches.
    let write = wr::Write::new(source.sge(0, 8)?, sink.remote(4096)).signaled(2);
    pair.far.post_one(write).expect("a write");
    rig.settle();
    if rig.has_gap(BaselineGaps::READ_SINK_NEEDS_REMOTE_WRITE) {
        assert_eq!(
            sink.bytes(4096, 8)?,
            source.bytes(0, 8)?,
            "the sink's key opens it"
        );
        assert_eq!(rig.take(&pair.near.cq, 1)?[0].status, WcStatus::Success);
        assert_eq!(sink.bytes(0, 4096)?, source.bytes(0, 4096)?);
    } else {
        assert_eq!(
            sink.mr.rkey(),
            RKey::new(0),
            "the sink has no key for peers"
        );
        assert_eq!(sink.bytes(4096, 8)?, [0; 8]);
        assert_eq!(pair.near.state()?, QpState::Err);
    }
    Ok(())
}

// covers 2.67
fn a_zero_based_region_keeps_its_offset_in_the_page(rig: &Rig) -> Outcome {
    let memory = verbs_api::Memory::zeroed(8192).expect("memory");
    memory.write(4096 + 123, b"the first").expect("inside");
    let range = memory.range(4096 + 123, 1000).expect("inside");
    let mr = rig.finish(
        rig.far
            .pd
            .register_with(range, MrOptions::new(OPEN).zero_based()),
    )?;
    assert_eq!((mr.iova(), mr.len()), (0, 1000));
    let pair = rig.rc()?;
    assert!(rig.can_read_bytes(&pair, RemoteAddress::new(0, mr.rkey()), 9)?);
    assert_eq!(rig.scratch.bytes(0x8000, 9)?, b"the first");
    assert!(rig.can_read_bytes(&pair, mr.remote(4), 5)?);
    assert_eq!(rig.scratch.bytes(0x8000, 5)?, b"first");
    assert!(rig.can_read_bytes(&pair, mr.remote(999), 1)?);
    assert!(!rig.can_read_bytes(&pair, mr.remote(1000), 1)?);
    Ok(())
}
