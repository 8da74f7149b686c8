//! Allocated keys and fast-register: FEATURES 1.14, 2.21, 2.22, 2.29 to 2.33.

use crate::cases;
use crate::support::statuses;
use conformance::{ANY_DEVICE, Evidence, Outcome, Pair, Rig, needs, one_of};
use verbs_api::qp::QpState;
use verbs_api::{
    Access, Batch, ErrorKind, Features, Limit, Memory, MrKey, PageList, RKey, WcStatus,
    capability::BaselineGaps,
    completion::WcOpcode,
    memory::{MemoryRange, MwType, PageListError},
    wr::{self, PostReason},
};

cases! {
    a_key_is_as_deep_as_the_device_allows: needs(Features::BMME);
    a_device_without_it_allows_no_pages: ANY_DEVICE;
    a_key_must_be_free_to_be_registered: needs(Features::BMME);
    only_an_allocated_key_of_the_domain_is_registered: needs(Features::BMME);
    a_key_maps_no_more_than_it_was_allocated_for: needs(Features::BMME);
    a_wrong_index_leaves_the_key_free: needs(Features::BMME);
    local_operations_complete_like_others: needs(Features::BMME)
        .and(Features::LOCAL_INVALIDATE_FENCE);
    an_unsignaled_local_operation_completes_only_if_it_fails: needs(Features::BMME);
    rights_that_do_not_go_together_are_refused: needs(Features::BMME);
    a_registered_read_sink_needs_the_rights_of_any_other: needs(Features::BMME);
    an_address_of_the_programs_choice: needs(Features::BMME);
    pages_are_mapped_in_order: needs(Features::BMME);
    a_list_is_mapped_as_far_as_it_goes: needs(Features::BMME);
    a_gap_list_maps_each_element_whole: needs(Features::BMME.union(Features::SG_GAPS));
    blocks_of_any_size_are_found_by_division: needs(Features::BMME.union(Features::BLOCK_LIST));
    a_window_opens_a_range_of_a_list: one_of(Features::WINDOW_2)
        .and(Features::BMME.union(Features::BLOCK_LIST));
}

const OPEN: Access = Access::LOCAL_WRITE
    .union(Access::REMOTE_READ)
    .union(Access::REMOTE_WRITE);

// covers 1.14
fn a_key_is_as_deep_as_the_device_allows(rig: &Rig) -> Outcome {
    let max = rig.attributes().limits.max_fast_reg_page_list_len;
    assert!(max > 0);
    let key = rig.finish(rig.far.pd.alloc_key(max))?;
    assert_eq!(key.max_num_sg(), max);
    let keys = rig.far.keys_in_use();
    let refused = rig
        .outcome(rig.far.pd.alloc_key(max + 1))?
        .expect_err("beyond the limit");
    assert_eq!(refused.kind(), ErrorKind::Limit);
    assert!(
        refused
            .to_string()
            .contains(Limit::MaxFastRegPageListLen.name()),
        "{refused}"
    );
    let refused = rig
        .outcome(rig.far.pd.alloc_key(0))?
        .expect_err("for no page");
    assert_eq!(refused.kind(), ErrorKind::InvalidArgument);
    assert_eq!(rig.far.keys_in_use(), keys);
    Ok(())
}

// covers 1.14 1.01
fn a_device_without_it_allows_no_pages(rig: &Rig) -> Outcome {
    let attributes = rig.attributes();
    let has_it = attributes.features.contains(Features::BMME);
    assert_eq!(attributes.limits.max_fast_reg_page_list_len > 0, has_it);
    assert_eq!(rig.outcome(rig.far.pd.alloc_key(1))?.is_ok(), has_it);
    Ok(())
}

// covers 2.21
fn a_key_must_be_free_to_be_registered(rig: &Rig) -> Outcome {
    let fast = rig.far.fast(4096)?;
    let pair = rig.rc()?;
    rig.succeeds(&pair.far, fast.register(OPEN).signaled(1))?;
    let other = rig.rc()?;
    let again = wr::FastRegister::new(fast.rkey().next(), &fast.pages)
        .access(OPEN)
        .signaled(2);
    rig.fails(&other.far, again, &[WcStatus::LocQpOpErr])?;
    assert!(
        rig.can_write(&pair, fast.remote(0))?,
        "the registration stands"
    );
    Ok(())
}

// covers 2.21
fn only_an_allocated_key_of_the_domain_is_registered(rig: &Rig) -> Outcome {
    let fast = rig.far.fast(4096)?;
    let stranger = rig.rc_in(&rig.far.other_pd()?)?;
    rig.fails(
        &stranger.far,
        fast.register(OPEN).signaled(1),
        &[WcStatus::LocQpOpErr],
    )?;

    let ordinary = rig.far.region(4096, OPEN)?;
    let wrong_kind = wr::FastRegister::new(ordinary.mr.rkey().next(), &fast.pages).access(OPEN);
    rig.fails(
        &rig.rc()?.far,
        wrong_kind.signaled(1),
        &[WcStatus::LocQpOpErr],
    )?;
    assert!(
        rig.can_write(&rig.rc()?, ordinary.remote(0))?,
        "the region stands"
    );

    if rig.attributes().features.intersects(Features::WINDOW_2) {
        let window = rig.far.window(MwType::Type2)?;
        let wrong_kind = wr::FastRegister::new(window.rkey(), &fast.pages).access(OPEN);
        rig.fails(
            &rig.rc()?.far,
            wrong_kind.signaled(1),
            &[WcStatus::LocQpOpErr],
        )?;
    }
    let pair = rig.rc()?;
    rig.succeeds(&pair.far, fast.register(OPEN).signaled(1))
}

// covers 2.21
fn a_key_maps_no_more_than_it_was_allocated_for(rig: &Rig) -> Outcome {
    let shallow = rig.far.fast(4096)?;
    let deep = rig.far.fast(3 * 4096)?;
    assert_eq!((shallow.key.max_num_sg(), deep.pages.entries()), (1, 3));
    let request = wr::FastRegister::new(&shallow.key, &deep.pages)
        .access(OPEN)
        .signaled(1);
    rig.fails(&rig.rc()?.far, request, &[WcStatus::LocQpOpErr])?;
    assert!(
        !rig.can_read(&rig.rc()?, shallow.remote(0))?,
        "the key is free"
    );
    rig.succeeds(&rig.rc()?.far, shallow.register(OPEN).signaled(1))
}

// covers 2.22
fn a_wrong_index_leaves_the_key_free(rig: &Rig) -> Outcome {
    let fast = rig.far.fast(4096)?;
    let key = fast.rkey().value();
    for wrong in [key ^ 0x4000_0000, key & 0xff, u32::MAX] {
        let request = wr::FastRegister::new(RKey::new(wrong), &fast.pages)
            .access(OPEN)
            .signaled(1);
        rig.fails(&rig.rc()?.far, request, &[WcStatus::LocQpOpErr])?;
        assert!(!rig.can_read(&rig.rc()?, fast.remote(0))?);
    }
    let pair = rig.rc()?;
    rig.succeeds(&pair.far, fast.register(OPEN).signaled(1))?;
    assert!(rig.can_read(&pair, fast.remote(0))?);
    Ok(())
}

// covers 2.29 1.01
fn local_operations_complete_like_others(rig: &Rig) -> Outcome {
    let fast = rig.near.fast(4096)?;
    let target = rig.far.region(4096, OPEN)?;
    let pair = rig.rc()?;
    let mut batch = Batch::new();
    batch.push(fast.register(OPEN).signaled(1));
    batch.push(wr::Write::new(fast.sge(0, 4096), target.remote(0)).signaled(2));
    batch.push(wr::Read::new(fast.sge(0, 4096), target.remote(0)).signaled(3));
    batch.push(fast.invalidate().fence().signaled(4));
    batch.push(wr::Write::new((), target.remote(0)).signaled(5));
    pair.near.post(&mut batch).expect("a batch that is taken");
    let done = rig.take(&pair.near.cq, 5)?;
    let seen: Vec<_> = done
        .iter()
        .map(|done| (done.wr_id, done.status, done.opcode))
        .collect();
    let expected = [
        (1, WcOpcode::FastRegister),
        (2, WcOpcode::RdmaWrite),
        (3, WcOpcode::RdmaRead),
        (4, WcOpcode::LocalInv),
        (5, WcOpcode::RdmaWrite),
    ];
    assert_eq!(
        seen,
        expected.map(|(wr_id, opcode)| (wr_id, WcStatus::Success, opcode))
    );
    let counters = pair.near.counters();
    assert_eq!(
        (counters.fast_registers, counters.local_invalidates),
        (1, 1)
    );
    rig.nothing_on(&pair.near.cq)
}

// covers 2.29
fn an_unsignaled_local_operation_completes_only_if_it_fails(rig: &Rig) -> Outcome {
    let fast = rig.near.fast(4096)?;
    let pair = rig.rc()?;
    let mut batch = Batch::new();
    batch.push(fast.register(OPEN).wr_id(1));
    batch.push(fast.invalidate().wr_id(2));
    pair.near.post(&mut batch).expect("a batch that is taken");
    rig.nothing_on(&pair.near.cq)?;

    batch.push(wr::LocalInvalidate::new(RKey::new(u32::MAX)).wr_id(3));
    batch.push(fast.register(OPEN).wr_id(4));
    pair.near.post(&mut batch).expect("a batch that is taken");
    let done = rig.take(&pair.near.cq, 2)?;
    assert_eq!(
        statuses(&done),
        [(3, WcStatus::LocQpOpErr), (4, WcStatus::WrFlushErr)]
    );
    assert_eq!(pair.near.state()?, QpState::Err);
    rig.nothing_on(&pair.near.cq)
}

// covers 2.30 2.04
fn rights_that_do_not_go_together_are_refused(rig: &Rig) -> Outcome {
    let fast = rig.far.fast(4096)?;
    let pair = rig.rc()?;
    for wrong in [
        Access::REMOTE_WRITE,
        Access::REMOTE_ATOMIC | Access::REMOTE_READ,
    ] {
        let refused = pair
            .far
            .post_one(fast.register(wrong).signaled(1))
            .expect_err("a refusal");
        assert!(
            matches!(refused.reason, PostReason::IllegalAccess(_)),
            "{refused}"
        );
    }
    assert_eq!(pair.far.state()?, QpState::Rts);
    rig.nothing_on(&pair.far.cq)?;
    rig.succeeds(&pair.far, fast.register(Access::REMOTE_READ).signaled(1))?;
    assert!(rig.can_read(&pair, fast.remote(0))?);
    assert!(!rig.can_write(&pair, fast.remote(0))?);
    Ok(())
}

// covers 2.30 2.60
fn a_registered_read_sink_needs_the_rights_of_any_other(rig: &Rig) -> Outcome {
    let source = rig.far.region(64, OPEN)?;
    source.fill(5)?;
    let (pair, sink) = (rig.rc()?, rig.near.fast(4096)?);
    rig.succeeds(&pair.near, sink.register(Access::LOCAL_WRITE).signaled(1))?;
    let read = wr::Read::new(sink.sge(0, 64), source.remote(0)).signaled(2);
    if rig.has_gap(BaselineGaps::READ_SINK_NEEDS_REMOTE_WRITE) {
        rig.fails(&pair.near, read, &[WcStatus::LocProtErr])?;
        assert_eq!(sink.bytes(0, 64)?, [0; 64]);
    } else {
        rig.succeeds(&pair.near, read)?;
        assert_eq!(sink.bytes(0, 64)?, source.bytes(0, 64)?);
    }
    Ok(())
}

// covers 2.31
fn an_address_of_the_programs_choice(rig: &Rig) -> Outcome {
    let fast = rig.far.fast(4096)?;
    let pair = rig.rc()?;
    rig.succeeds(
        &pair.far,
        fast.register(OPEN).iova(0x1_0000_0000).signaled(1),
    )?;
    rig.scratch.fill(4)?;
    assert!(rig.can_write(&pair, fast.key.remote(0x1_0000_0010))?);
    assert_eq!(fast.bytes(16, 8)?, rig.scratch.bytes(0, 8)?);
    assert!(
        !rig.can_write(&pair, fast.remote(16))?,
        "its own address is not known"
    );
    Ok(())
}

/// Pieces of memory, and a page list of them that the far queue pair registers.
struct Listed {
    memory: Memory,
    pieces: Vec<(usize, usize)>,
    list: PageList,
    key: MrKey,
}

impl Listed {
    fn new(
        rig: &Rig,
        pieces: &[(usize, usize)],
        make: impl FnOnce(&[MemoryRange]) -> PageList,
    ) -> Result<Self, Evidence> {
        let memory = Memory::zeroed(16 * 4096).expect("memory");
        let ranges: Vec<_> = pieces
            .iter()
            .map(|&(at, length)| memory.range(at, length).expect("inside"))
            .collect();
        let list = make(&ranges);
        let key = rig.finish(rig.far.pd.alloc_key(list.entries()))?;
        Ok(Self {
            memory,
            pieces: pieces.to_vec(),
            list,
            key,
        })
    }

    fn register(&self) -> wr::FastRegister<'_> {
        wr::FastRegister::new(&self.key, &self.list)
            .access(OPEN | Access::MW_BIND)
            .signaled(1)
    }

    fn remote(&self, offset: u64) -> verbs_api::RemoteAddress {
        self.key.remote(self.list.address() + offset)
    }

    /// The position in the memory of byte `offset` of the list.
    fn place(&self, mut offset: usize) -> usize {
        for &(at, length) in &self.pieces {
            if offset < length {
                return at + offset;
            }
            offset -= length;
        }
        panic!("beyond the pieces")
    }

    fn octet(&self, offset: usize) -> u8 {
        self.memory.to_vec(self.place(offset), 1).expect("inside")[0]
    }

    /// Writes the whole list from the peer, checks each byte in the memory, and reads and sends
    /// it back.
    fn is_mapped(&self, rig: &Rig, pair: &Pair) -> Outcome {
        let length = self.list.len() as u32;
        rig.scratch.fill(0x35)?;
        rig.succeeds(&pair.far, self.register())?;
        assert!(rig.can_write_bytes(pair, self.remote(0), length)?);
        let wanted = rig.scratch.bytes(0, length as usize)?;
        for (offset, octet) in wanted.iter().enumerate() {
            assert_eq!(self.octet(offset), *octet, "octet {offset}");
        }
        let untouched = self.memory.to_vec(0, self.memory.len()).expect("all of it");
        let touched = untouched.iter().filter(|&&octet| octet != 0).count();
        assert_eq!(touched, length as usize, "and no other");

        assert!(rig.can_read_bytes(pair, self.remote(0), length)?);
        assert_eq!(rig.scratch.bytes(0x8000, length as usize)?, wanted);
        // Each byte next to a seam between two pieces is accessed by itself.
        let seams = self.pieces.iter().scan(0, |end, &(_, length)| {
            *end += length;
            Some(*end)
        });
        for seam in seams.filter(|&seam| seam < length as usize) {
            let at = seam as u64 - 1;
            assert!(rig.can_read_bytes(pair, self.remote(at), 2)?);
            assert_eq!(rig.scratch.bytes(0x8000, 2)?, wanted[seam - 1..seam + 1]);
        }
        // The list is the source of a send.
        let landing = &rig.scratch;
        pair.near.receive(landing, 0x8000, length)?;
        let whole = self.key.sge(self.list.address(), length);
        rig.succeeds(&pair.far, wr::Send::new(whole).signaled(2))?;
        let got = rig.take(&pair.near.cq, 1)?.remove(0);
        assert_eq!((got.status, got.byte_len), (WcStatus::Success, length));
        assert_eq!(landing.bytes(0x8000, length as usize)?, wanted);
        assert!(
            !rig.can_read_bytes(pair, self.remote(1), length)?,
            "one byte too far"
        );
        Ok(())
    }
}

// covers 2.31
fn pages_are_mapped_in_order(rig: &Rig) -> Outcome {
    let pieces = [(5 * 4096 + 100, 3996), (2 * 4096, 4096), (9 * 4096, 1234)];
    let listed = Listed::new(rig, &pieces, |ranges| {
        let mapped = PageList::map(ranges, 4096, 3).expect("a list");
        assert_eq!(mapped.elements, 3);
        mapped.list
    })?;
    assert_eq!(listed.list.len(), 3996 + 4096 + 1234);
    listed.is_mapped(rig, &rig.rc()?)
}

// covers 2.31 2.32
fn a_list_is_mapped_as_far_as_it_goes(rig: &Rig) -> Outcome {
    // The second piece ends inside a page, so the third cannot follow it.
    let pieces = [(0, 4096), (4 * 4096, 100), (8 * 4096, 4096)];
    let mut listed = Listed::new(rig, &pieces, |ranges| {
        let mapped = PageList::map(ranges, 4096, 3).expect("a list");
        assert_eq!((mapped.elements, mapped.list.len()), (2, 4196));
        mapped.list
    })?;
    listed.pieces.truncate(2);
    listed.is_mapped(rig, &rig.rc()?)
}

// covers 2.32
fn a_gap_list_maps_each_element_whole(rig: &Rig) -> Outcome {
    let pieces = [(17, 100), (5000, 1), (9999, 3000), (0, 4), (4 * 4096, 4096)];
    let gaps = |ranges: &[MemoryRange]| PageList::gaps(ranges).expect("a list");
    Listed::new(rig, &pieces, gaps)?.is_mapped(rig, &rig.rc()?)
}

fn blocks(rig: &Rig) -> Result<Listed, Evidence> {
    // Five blocks of 1000 bytes, of which the first begins at byte 37 and the last is short.
    let starts = [7000, 1, 20_003, 12_345, 4096];
    let ranges = starts.map(|at| (at, 1000));
    let mut listed = Listed::new(rig, &ranges, |ranges| {
        PageList::blocks(ranges, 1000, 37, 4500).expect("a list")
    })?;
    listed.pieces = vec![
        (7037, 963),
        (1, 1000),
        (20_003, 1000),
        (12_345, 1000),
        (4096, 537),
    ];
    Ok(listed)
}

// covers 2.33
fn blocks_of_any_size_are_found_by_division(rig: &Rig) -> Outcome {
    blocks(rig)?.is_mapped(rig, &rig.rc()?)?;
    let memory = Memory::zeroed(8192).expect("memory");
    let ranges: Vec<_> = (0..2)
        .map(|n| memory.range(n * 1000, 1000).expect("inside"))
        .collect();
    assert!(matches!(
        PageList::blocks(&ranges, 1000, 1000, 500),
        Err(PageListError::FirstOffset { .. })
    ));
    assert!(matches!(
        PageList::blocks(&ranges, 1000, 500, 1501),
        Err(PageListError::Length { needed: 3, .. })
    ));
    assert!(PageList::blocks(&ranges, 1000, 500, 1500).is_ok());
    Ok(())
}

// covers 2.33 2.52
fn a_window_opens_a_range_of_a_list(rig: &Rig) -> Outcome {
    let listed = blocks(rig)?;
    let pair = rig.rc()?;
    rig.succeeds(&pair.far, listed.register())?;
    let mw = rig.far.window(MwType::Type2)?;
    let addr = listed.list.address() + 900;
    let key = mw.rkey().next();
    let bind = wr::BindWindow::new(&mw, &listed.key, addr, 200).access(Access::REMOTE_WRITE);
    rig.succeeds(&pair.far, bind.signaled(2))?;
    rig.scratch.fill(0x71)?;
    let remote = verbs_api::RemoteAddress::new(addr, key);
    assert!(rig.can_write_bytes(&pair, remote, 200)?);
    for (at, octet) in rig.scratch.bytes(0, 200)?.iter().enumerate() {
        assert_eq!(listed.octet(900 + at), *octet);
    }
    assert_eq!((listed.octet(899), listed.octet(1100)), (0, 0));
    assert!(!rig.can_write_bytes(&pair, remote.plus(193), 8)?);
    Ok(())
}
