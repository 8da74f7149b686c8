//! What a device claims and what it does: FEATURES 1.01 to 1.15.

use crate::cases;
use crate::support::{ok, statuses};
use conformance::{ANY_DEVICE, Outcome, Rig, needs};
use verbs_api::qp::{QpAttributes, QpState, QpType};
use verbs_api::{
    Access, Batch, Device, ErrorKind, Features, Memory, MrOptions, OpenError, Operations, PageList,
    PathOptions, QpOptions, Requirements, Transport, VerbError, WcStatus,
    capability::{AtomicScope, BaselineGaps, PortCaps},
    memory::PageListError,
    wr::{self, PostReason, ReceiveRequest},
};

cases! {
    base_memory_management_is_all_of_it: ANY_DEVICE;
    each_feature_of_the_transport_is_there_or_a_gap: ANY_DEVICE;
    a_layout_has_a_bit_of_its_own: needs(Features::BMME);
    zero_based_addresses_have_a_bit_of_their_own: ANY_DEVICE;
    the_scope_of_atomics_is_what_they_do: ANY_DEVICE;
    adding_nothing_probes_for_atomics: needs(Features::empty())
        .without(BaselineGaps::NO_ATOMICS);
    a_port_reports_its_protocols: ANY_DEVICE;
    an_unknown_bit_is_refused: ANY_DEVICE;
    a_reply_may_hold_unknown_bits: ANY_DEVICE;
    operations_are_granted_as_a_whole: ANY_DEVICE;
    unrequested_features_are_not_granted: ANY_DEVICE;
    an_absent_verb_is_no_wrong_argument: ANY_DEVICE;
    a_queue_holds_what_it_says: ANY_DEVICE;
    a_send_queue_holds_what_it_says: needs(Features::empty())
        .without(BaselineGaps::NO_RNR_RETRY);
    reads_and_atomics_share_a_budget: ANY_DEVICE;
    a_peer_that_permits_no_read_refuses_one_after_writes: ANY_DEVICE;
    a_page_size_is_of_the_devices_set: needs(Features::BMME);
}

const OPEN: Access = Access::LOCAL_WRITE
    .union(Access::REMOTE_READ)
    .union(Access::REMOTE_WRITE)
    .union(Access::REMOTE_ATOMIC);

// covers 1.01 1.02
fn base_memory_management_is_all_of_it(rig: &Rig) -> Outcome {
    let attributes = rig.attributes();
    let has_it = attributes.features.contains(Features::BMME);
    let key = rig.outcome(rig.far.pd.alloc_key(1))?;
    let needed = Operations::FAST_REGISTER | Operations::LOCAL_INV | Operations::SEND_WITH_INV;
    let cq = rig.far.cq(8)?;
    let qp = rig.outcome(rig.far.pd.create_qp(QpOptions::rc(&cq).operations(needed)))?;
    if !has_it {
        let missing = Features::BMME;
        assert_eq!(key.err(), Some(VerbError::Unsupported { missing }));
        assert_eq!(qp.err(), Some(VerbError::Unsupported { missing }));
        return Ok(());
    }
    assert!(key.is_ok() && qp.is_ok());
    let pair = rig.rc()?;
    let fast = rig.far.fast(4096)?;
    let landing = rig.far.region(64, Access::LOCAL_WRITE)?;
    rig.succeeds(&pair.far, fast.register(OPEN).signaled(1))?;
    rig.succeeds(&pair.far, fast.invalidate().signaled(2))?;
    rig.succeeds(&pair.far, fast.register_afresh(OPEN).signaled(3))?;
    pair.far.receive(&landing, 0, 64)?;
    rig.succeeds(
        &pair.near,
        wr::SendWithInvalidate::new(&[1], fast.rkey()).signaled(4),
    )?;
    assert_eq!(
        rig.take(&pair.far.cq, 1)?[0].invalidated_rkey(),
        Some(fast.rkey())
    );
    // `BMME` alone does not include read-with-invalidate: only iWARP has it.
    let reads = attributes.features.contains(Features::READ_WITH_INVALIDATE);
    let read = QpOptions::rc(&cq).operations(Operations::READ_WITH_INV);
    assert_eq!(rig.outcome(rig.far.pd.create_qp(read))?.is_ok(), reads);
    assert!(!reads || attributes.transport == Transport::Iwarp);
    Ok(())
}

// covers 1.02 1.04 1.05
fn each_feature_of_the_transport_is_there_or_a_gap(rig: &Rig) -> Outcome {
    let attributes = rig.attributes();
    assert_eq!(attributes.inconsistency(), None);
    let demanded = [
        (Features::BMME, BaselineGaps::NO_BMME),
        (
            Features::LOCAL_INVALIDATE_FENCE,
            BaselineGaps::NO_LOCAL_INVALIDATE_FENCE,
        ),
        (Features::WINDOW_2B, BaselineGaps::NO_WINDOW_2B),
        (Features::ZBVA, BaselineGaps::NO_ZBVA),
        (
            Features::READ_WITH_INVALIDATE,
            BaselineGaps::NO_READ_WITH_INVALIDATE,
        ),
    ];
    for (feature, gap) in demanded {
        let lacks = !attributes.features.contains(feature);
        let expected = lacks && attributes.transport == Transport::Iwarp;
        assert_eq!(attributes.gaps.contains(gap), expected, "{feature:?}");
    }
    Ok(())
}

// covers 1.03
fn a_layout_has_a_bit_of_its_own(rig: &Rig) -> Outcome {
    let memory = Memory::zeroed(8192).expect("memory");
    let ranges = [
        memory.range(0, 1000).expect("in"),
        memory.range(5000, 1000).expect("in"),
    ];
    let key = rig.finish(rig.far.pd.alloc_key(2))?;
    let pair = rig.rc()?;
    let blocks = PageList::blocks(&ranges, 1000, 10, 1500).expect("a list");
    let gaps = PageList::gaps(&ranges).expect("a list");
    for (list, bit) in [(blocks, Features::BLOCK_LIST), (gaps, Features::SG_GAPS)] {
        let request = wr::FastRegister::new(&key, &list).access(OPEN).signaled(1);
        if rig.attributes().features.contains(bit) {
            rig.succeeds(&pair.far, request)?;
            assert!(rig.can_write(&pair, key.remote(list.address()))?);
            rig.succeeds(
                &pair.far,
                verbs_api::wr::LocalInvalidate::new(&key).signaled(2),
            )?;
        } else {
            let refused = pair
                .far
                .post_one(request)
                .expect_err("a layout without its bit");
            assert_eq!(refused.reason, PostReason::Unsupported { missing: bit });
        }
    }
    assert_eq!(pair.far.state()?, QpState::Rts);
    rig.nothing_on(&pair.far.cq)
}

// covers 1.04
fn zero_based_addresses_have_a_bit_of_their_own(rig: &Rig) -> Outcome {
    let memory = Memory::zeroed(64).expect("memory");
    let keys = rig.far.keys_in_use();
    let zero_based = MrOptions::new(Access::LOCAL_WRITE).zero_based();
    let made = rig.outcome(rig.far.pd.register_with(&memory, zero_based))?;
    if rig.attributes().features.contains(Features::ZBVA) {
        assert_eq!(made.expect("a region").iova(), 0);
    } else {
        let missing = Features::ZBVA;
        assert_eq!(made.err(), Some(VerbError::Unsupported { missing }));
        assert_eq!(rig.far.keys_in_use(), keys, "nothing was allocated");
    }
    Ok(())
}

// covers 1.06
fn the_scope_of_atomics_is_what_they_do(rig: &Rig) -> Outcome {
    let attributes = rig.attributes();
    let none = attributes.atomic_cap == AtomicScope::None;
    assert_eq!(none, rig.has_gap(BaselineGaps::NO_ATOMICS));
    let cq = rig.far.cq(8)?;
    for operation in [
        Operations::ATOMIC_CMP_AND_SWP,
        Operations::ATOMIC_FETCH_AND_ADD,
    ] {
        let options = QpOptions::rc(&cq).operations(operation);
        assert_eq!(rig.outcome(rig.far.pd.create_qp(options))?.is_ok(), !none);
    }
    if none {
        return Ok(());
    }
    let target = rig.far.region(64, OPEN)?;
    let result = rig.scratch.sge(0, 8)?;
    let before = || rig.scratch.memory.load_u64(0).expect("inside");
    let now = || target.memory.load_u64(8).expect("inside");
    target.memory.store_u64(8, 40).expect("inside");
    let pair = rig.rc()?;
    rig.succeeds(
        &pair.near,
        wr::FetchAdd::new(result, target.remote(8), 2).signaled(1),
    )?;
    assert_eq!((before(), now()), (40, 42));
    rig.succeeds(
        &pair.near,
        wr::CompareSwap::new(result, target.remote(8), 42, 7).signaled(2),
    )?;
    assert_eq!((before(), now()), (42, 7));
    rig.succeeds(
        &pair.near,
        wr::CompareSwap::new(result, target.remote(8), 42, 9).signaled(3),
    )?;
    assert_eq!((before(), now()), (7, 7));
    rig.succeeds(
        &pair.near,
        wr::FetchAdd::new(result, target.remote(8), u64::MAX).signaled(4),
    )?;
    assert_eq!((before(), now()), (7, 6));
    // The core has no masked atomics: their scope is independent of `atomic_cap`.
    assert!(attributes.masked_atomic_cap <= attributes.atomic_cap);
    Ok(())
}

// covers 1.07
fn adding_nothing_probes_for_atomics(rig: &Rig) -> Outcome {
    let target = rig.far.region(64, OPEN)?;
    target
        .memory
        .store_u64(0, 0x0123_4567_89ab_cdef)
        .expect("inside");
    let sink = rig.scratch.sge(0, 8)?;
    let probe = || wr::FetchAdd::new(sink, target.remote(0), 0).signaled(1);
    rig.succeeds(&rig.rc()?.near, probe())?;
    assert_eq!(rig.scratch.memory.load_u64(0), Ok(0x0123_4567_89ab_cdef));

    // A peer that does not grant atomics answers like a peer that has none.
    let closed = PathOptions::new().access(Access::REMOTE_READ | Access::REMOTE_WRITE);
    let (near, far) = (rig.near.side(QpType::Rc)?, rig.far.side(QpType::Rc)?);
    let pair = rig.connected_with(near, far, closed)?;
    assert_eq!(rig.verdict(&pair, probe())?, WcStatus::RemInvReqErr);
    assert_eq!(target.memory.load_u64(0), Ok(0x0123_4567_89ab_cdef));
    Ok(())
}

// covers 1.08
fn a_port_reports_its_protocols(rig: &Rig) -> Outcome {
    let attributes = rig.attributes();
    assert_eq!(
        attributes.ports.len(),
        usize::from(attributes.limits.phys_port_cnt)
    );
    let protocols = [
        (PortCaps::PROTOCOL_IB, Transport::InfiniBand),
        (PortCaps::PROTOCOL_ROCE_V1, Transport::InfiniBand),
        (PortCaps::PROTOCOL_ROCE_V2, Transport::InfiniBand),
        (PortCaps::PROTOCOL_IWARP, Transport::Iwarp),
    ];
    for known in &attributes.ports {
        let port = rig.far.context.query_port(known.port).expect("a port");
        assert_eq!((port.port, port.caps), (known.port, known.caps));
        let spoken: Vec<_> = protocols
            .iter()
            .filter(|&&(bit, _)| port.caps.contains(bit))
            .collect();
        assert!(!spoken.is_empty());
        assert!(
            spoken
                .iter()
                .all(|&&(_, transport)| transport == attributes.transport)
        );
        if port.caps.contains(PortCaps::PROTOCOL_IWARP) {
            assert_eq!(
                port.caps,
                PortCaps::IWARP,
                "its own connection manager and no other one"
            );
        } else {
            assert!(port.caps.contains(PortCaps::MAD | PortCaps::IB_CM));
            assert!(!port.caps.contains(PortCaps::IW_CM));
        }
        if !port.caps.contains(PortCaps::PROTOCOL_IB) {
            assert!(!port.caps.intersects(PortCaps::SMI | PortCaps::SA));
        }
    }
    for wrong in [0, attributes.limits.phys_port_cnt + 1] {
        let refused = rig.far.context.query_port(wrong).expect_err("no such port");
        assert_eq!(refused.kind(), ErrorKind::InvalidArgument);
    }
    Ok(())
}

// covers 1.09 7.88
fn an_unknown_bit_is_refused(rig: &Rig) -> Outcome {
    let keys = rig.far.keys_in_use();
    let pd = rig.far.other_pd()?;
    let cq = rig.far.cq(8)?;
    let unknown = Operations::from_bits_retain(1 << 31);
    for options in [
        QpOptions::rc(&cq).operations(unknown),
        QpOptions::rc(&cq).only(unknown),
    ] {
        assert!(rig.outcome(pd.create_qp(options))?.is_err());
    }
    let memory = Memory::zeroed(64).expect("memory");
    let unknown = Access::LOCAL_WRITE | Access::from_bits_retain(1 << 31);
    let refused = rig
        .outcome(pd.register(&memory, unknown))?
        .expect_err("an unknown right");
    assert_eq!(refused.kind(), ErrorKind::InvalidArgument);
    let side = rig.far.side(QpType::Rc)?;
    let init = QpAttributes::new()
        .qp_state(QpState::Init)
        .pkey_index(0)
        .port_num(1)
        .qp_access_flags(unknown);
    let refused = rig
        .outcome(side.modify(init))?
        .expect_err("an unknown right");
    assert_eq!(refused.kind(), ErrorKind::InvalidArgument);
    assert_eq!(side.state()?, QpState::Reset);
    if rig.attributes().features.contains(Features::BMME) {
        let pair = rig.rc()?;
        let fast = rig.far.fast(4096)?;
        let refused = pair
            .far
            .post_one(fast.register(unknown))
            .expect_err("an unknown right");
        assert_eq!(refused.kind(), ErrorKind::InvalidArgument);
        rig.finish_destroy(fast.key.deregister())?;
    }
    let unknown = Features::from_bits_retain(1 << 60);
    let device = Device::of(rig.far.device.clone());
    let refused = device.open(&Requirements::new().needs(unknown));
    assert!(matches!(refused, Err(OpenError::NotMet(_))));
    assert_eq!(rig.far.keys_in_use(), keys, "nothing was created");
    rig.finish_destroy(pd.destroy())
}

// covers 1.09
fn a_reply_may_hold_unknown_bits(rig: &Rig) -> Outcome {
    let mut attributes = rig.attributes().clone();
    attributes.features |= Features::from_bits_retain(1 << 60);
    attributes.gaps |= BaselineGaps::from_bits_retain(1 << 30);
    let grant = Requirements::new()
        .check(&attributes)
        .expect("nothing is asked for");
    assert!(grant.features().is_empty());
    let names = verbs_api::capability::feature_names(attributes.features);
    assert_eq!(
        names,
        verbs_api::capability::feature_names(rig.attributes().features)
    );
    Ok(())
}

// covers 1.10
fn operations_are_granted_as_a_whole(rig: &Rig) -> Outcome {
    let pd = rig.far.other_pd()?;
    let cq = rig.far.cq(8)?;
    let features = rig.attributes().features;
    // Ending keys needs either type-2 windows or `BMME`: without one of them there is no key to
    // end.
    let ends_keys = match features.intersects(Features::WINDOW_2) {
        true => features & Features::WINDOW_2,
        false => Features::BMME,
    };
    let optional = [
        (Operations::ATOMIC_WRITE, Features::ATOMIC_WRITE),
        (Operations::FLUSH, Features::FLUSH),
        (Operations::READ_WITH_INV, Features::READ_WITH_INVALIDATE),
        (Operations::SEND_WITH_INV, ends_keys),
    ];
    for (operation, feature) in optional {
        let wanted = Operations::SEND | operation;
        let made = rig.outcome(pd.create_qp(QpOptions::rc(&cq).only(wanted)))?;
        match made {
            Ok(qp) => {
                assert!(features.contains(feature));
                assert_eq!(qp.operations(), wanted, "these and no other");
                rig.finish_destroy(qp.destroy())?;
            }
            Err(error) => {
                let missing = feature;
                assert_eq!(error, VerbError::Unsupported { missing });
                assert!(!features.contains(feature));
            }
        }
    }
    // No object is left that would hold the domain.
    rig.finish_destroy(pd.destroy())
}

// covers 1.10 1.11
fn unrequested_features_are_not_granted(rig: &Rig) -> Outcome {
    let device = Device::of(rig.far.device.clone());
    let context = device
        .open(&Requirements::new())
        .expect("a device that opens");
    assert_eq!(context.features(), Features::empty());
    let pd = rig.finish(context.alloc_pd())?;
    let refused = rig.outcome(pd.alloc_key(1))?.expect_err("not asked for");
    assert_eq!(
        refused,
        VerbError::Unsupported {
            missing: Features::BMME
        }
    );
    let refused = rig.outcome(pd.create_srq(verbs_api::SrqOptions::new(1)))?;
    assert_eq!(
        refused.err(),
        Some(VerbError::Unsupported {
            missing: Features::SRQ
        })
    );
    let cq = rig.finish(context.create_cq(8))?;
    let qp = rig.finish(pd.create_qp(QpOptions::rc(&cq)))?;
    let refused = qp.post_one(verbs_api::wr::LocalInvalidate::new(verbs_api::RKey::new(
        0x100,
    )));
    assert_eq!(
        refused.expect_err("not asked for").reason,
        PostReason::OperationNeeds {
            operation: verbs_api::Operations::LOCAL_INV,
            missing: Features::BMME
        }
    );
    Ok(())
}

// covers 1.11
fn an_absent_verb_is_no_wrong_argument(rig: &Rig) -> Outcome {
    let features = rig.attributes().features;
    let absent = rig.outcome(rig.far.pd.alloc_mw(verbs_api::memory::MwType::Type1))?;
    if let Err(error) = absent {
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(!features.contains(Features::WINDOW_1));
    }
    let wrong = rig
        .outcome(rig.far.context.create_cq(0))?
        .expect_err("no entries");
    assert_eq!(wrong.kind(), ErrorKind::InvalidArgument);
    Ok(())
}

// covers 1.12
fn a_queue_holds_what_it_says(rig: &Rig) -> Outcome {
    for wanted in [1, 3, 5, 100] {
        let cq = rig.far.cq(wanted)?;
        assert!(cq.cqe() >= wanted);
        let options = QpOptions::rc(&cq)
            .max_send_wr(wanted)
            .max_recv_wr(wanted)
            .max_send_sge(2)
            .max_recv_sge(2)
            .max_inline_data(16);
        let qp = rig.finish(rig.far.pd.create_qp(options))?;
        let cap = qp.cap();
        assert!(cap.max_send_wr >= wanted && cap.max_recv_wr >= wanted);
        assert!(cap.max_send_sge >= 2 && cap.max_recv_sge >= 2 && cap.max_inline_data >= 16);
        let init = QpAttributes::new()
            .qp_state(QpState::Init)
            .pkey_index(0)
            .port_num(1)
            .qp_access_flags(Access::empty());
        rig.finish(qp.modify(init))?;
        for wr_id in 0..u64::from(cap.max_recv_wr) {
            qp.post_receive(ReceiveRequest::new(wr_id, ()))
                .expect("as many as it says");
        }
        let full = qp
            .post_receive(ReceiveRequest::new(99, ()))
            .expect_err("one more");
        assert_eq!(full.kind(), ErrorKind::Resources);
    }
    Ok(())
}

// covers 1.12
fn a_send_queue_holds_what_it_says(rig: &Rig) -> Outcome {
    let near = rig
        .near
        .side_with(&rig.near.pd, |cq| QpOptions::rc(cq).max_send_wr(3))?;
    let pair = rig.connected(near, rig.far.side(QpType::Rc)?)?;
    let max = pair.near.cap().max_send_wr;
    assert!(max >= 3);
    // The peer has no receive: all requests wait.
    for wr_id in 0..u64::from(max) {
        pair.near
            .post_one(wr::Send::new(()).signaled(wr_id))
            .expect("as many as it says");
    }
    let full = pair
        .near
        .post_one(wr::Send::new(()).signaled(99))
        .expect_err("one more");
    assert_eq!(full.reason, PostReason::QueueFull { max });
    for wr_id in 0..u64::from(max) {
        pair.far
            .post_receive(ReceiveRequest::new(wr_id, ()))
            .expect("a receive");
    }
    let done = rig.take(&pair.near.cq, max as usize)?;
    assert_eq!(statuses(&done), ok(0..u64::from(max)));
    pair.far
        .post_receive(ReceiveRequest::new(9, ()))
        .expect("a receive");
    rig.succeeds(&pair.near, wr::Send::new(()).signaled(7))
}

// covers 1.13
fn reads_and_atomics_share_a_budget(rig: &Rig) -> Outcome {
    let limits = rig.attributes().limits;
    assert!(limits.max_qp_rd_atom > 0 && limits.max_qp_init_rd_atom > 0);
    assert!(limits.max_sge_rd >= 1 && limits.max_sge_rd <= limits.max_send_sge);
    let beyond = |limit: u32| u8::try_from(limit + 1).ok();
    let (near, far) = (rig.near.side(QpType::Rc)?, rig.far.side(QpType::Rc)?);
    let peer = near.endpoint().expect("an endpoint");
    if let Some(depth) = beyond(limits.max_qp_rd_atom) {
        let options = PathOptions::new().max_dest_rd_atomic(depth);
        let refused = rig
            .outcome(far.connect(&peer, options))?
            .expect_err("beyond the limit");
        assert!(
            refused.to_string().contains("max_dest_rd_atomic"),
            "{refused}"
        );
    }
    // Only one read is outstanding at a time: the others wait, and all are answered.
    let target = rig.far.region(4096, OPEN)?;
    target.fill(1)?;
    let far = rig.far.side(QpType::Rc)?;
    let one = conformance::open().max_rd_atomic(1).max_dest_rd_atomic(1);
    let pair = rig.connected_with(near, far, one)?;
    let atomics = !rig.has_gap(BaselineGaps::NO_ATOMICS);
    let mut batch = Batch::new();
    for n in 0..10_u64 {
        let sink = rig.scratch.sge(512 * n as usize, 512)?;
        if atomics && n % 2 == 1 {
            let result = rig.scratch.sge(512 * n as usize, 8)?;
            batch.push(wr::FetchAdd::new(result, target.remote(8 * n), 0).signaled(n));
        } else {
            batch.push(wr::Read::new(sink, target.remote(n)).signaled(n));
        }
        batch.push(wr::Write::new((), target.remote(0)));
    }
    pair.near.post(&mut batch).expect("a batch that is taken");
    let done = rig.take(&pair.near.cq, 10)?;
    for (n, done) in done.iter().enumerate() {
        assert_eq!((done.wr_id, done.status), (n as u64, WcStatus::Success));
    }
    assert_eq!(rig.scratch.bytes(512 * 4, 512)?, target.bytes(4, 512)?);
    assert_eq!(pair.far.state()?, QpState::Rts);
    Ok(())
}

// covers 1.13
fn a_peer_that_permits_no_read_refuses_one_after_writes(rig: &Rig) -> Outcome {
    let (near, far) = (rig.near.side(QpType::Rc)?, rig.far.side(QpType::Rc)?);
    let none = conformance::open().max_dest_rd_atomic(0);
    let pair = rig.connected_with(near, far, none)?;
    let target = rig.far.region(64, OPEN)?;
    for _ in 0..3 {
        rig.succeeds(
            &pair.near,
            wr::Write::new(rig.scratch.sge(0, 8)?, target.remote(0)).signaled(1),
        )?;
    }
    let read = wr::Read::new(rig.scratch.sge(0, 8)?, target.remote(0)).signaled(2);
    assert_eq!(rig.run(&pair.near, read)?, WcStatus::RemInvReqErr);
    Ok(())
}

// covers 1.15
fn a_page_size_is_of_the_devices_set(rig: &Rig) -> Outcome {
    let supported = rig.attributes().limits.page_size_cap;
    assert_ne!(supported & 4096, 0, "pages of 4096 bytes");
    let memory = Memory::zeroed(1 << 16).expect("memory");
    let range = memory.range(0, 64).expect("inside");
    let ranges = std::slice::from_ref(&range);
    for wrong in [0, 5000, 4096 | 8192, u64::MAX] {
        let refused = PageList::map(ranges, wrong, 8).map(|_| ());
        assert_eq!(refused, Err(PageListError::PageSize(wrong)));
    }
    let key = rig.finish(rig.far.pd.alloc_key(8))?;
    let pair = rig.rc()?;
    for shift in 4..20 {
        let size = 1 << shift;
        let list = PageList::map(ranges, size, 8).expect("a list").list;
        let request = wr::FastRegister::new(&key, &list)
            .access(OPEN)
            .signaled(shift);
        if supported & size != 0 {
            rig.succeeds(&pair.far, request)?;
            rig.succeeds(
                &pair.far,
                verbs_api::wr::LocalInvalidate::new(&key).signaled(0),
            )?;
        } else {
            let refused = pair
                .far
                .post_one(request)
                .expect_err("a size that it has not");
            assert_eq!(refused.kind(), ErrorKind::InvalidArgument);
        }
    }
    rig.nothing_on(&pair.far.cq)
}
