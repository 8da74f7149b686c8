//! The pool in the manner of FMR: FEATURES 2.34.

use std::thread;

use crate::cases;
use bmme::{FmrError, FmrMapping, FmrPool, FmrPoolOptions};
use conformance::{Evidence, Outcome, Pair, Rig, needs, waiting};
use verbs_api::{Access, ErrorKind, Features, Memory, PageList, RKey, RemoteAddress, VerbError};

cases! {
    every_map_has_a_new_key_and_their_number_is_limited: needs(Features::BMME);
    an_unmapped_slot_leaves_no_key_behind: needs(Features::BMME);
    slots_are_unmapped_in_a_batch: needs(Features::BMME);
    dropped_slots_are_unmapped_at_the_watermark: needs(Features::BMME);
    a_slot_that_is_given_back_is_unmapped_first: needs(Features::BMME);
    a_dropped_pool_leaves_nothing: needs(Features::BMME);
    a_pool_refuses_impossible_options: needs(Features::BMME);
    two_threads_map_from_one_pool: needs(Features::BMME);
}

const PAGES: u32 = 4;

fn pool(rig: &Rig, options: FmrPoolOptions) -> Result<FmrPool, Evidence> {
    rig.finish(FmrPool::create(&rig.far.pd, options))
}

fn pages(length: usize) -> (Memory, PageList) {
    let memory = Memory::zeroed(length).expect("memory");
    let mapped = PageList::map(&[(&memory).into()], 4096, 64).expect("a page list");
    (memory, mapped.list)
}

// Each attempt has a connection of its own, because a refused access ends the connection.
fn opens(rig: &Rig, remote: RemoteAddress) -> Result<bool, Evidence> {
    let pair: Pair = rig.rc()?;
    rig.can_write(&pair, remote)
}

fn map(rig: &Rig, fmr: &mut bmme::Fmr, list: &PageList) -> Result<FmrMapping, Evidence> {
    Ok(rig
        .outcome(fmr.map(list, list.address()))?
        .expect("a mapping"))
}

// covers 2.34 8.04
fn every_map_has_a_new_key_and_their_number_is_limited(rig: &Rig) -> Outcome {
    let pool = pool(rig, FmrPoolOptions::new(1, PAGES).max_maps(5))?;
    let (_memory, list) = pages(8192);
    let mut fmr = pool.take().expect("a slot");
    let mut keys: Vec<RKey> = Vec::new();
    for left in (0..5).rev() {
        let mapping = map(rig, &mut fmr, &list)?;
        assert!(!keys.contains(&mapping.rkey), "{keys:?}");
        assert_eq!((mapping.length, fmr.maps_left()), (8192, left));
        assert!(opens(rig, mapping.remote(0))?);
        keys.push(mapping.rkey);
    }
    let refused = rig.outcome(fmr.map(&list, list.address()))?;
    assert_eq!(refused, Err(FmrError::MaxMapsExceeded { max_maps: 5 }));
    let last = RemoteAddress::new(list.address(), keys[4]);
    assert!(opens(rig, last)?, "the refusal changed nothing");
    rig.outcome(pool.unmap([&mut fmr]))?.expect("an unmap");
    assert_eq!(fmr.maps_left(), 5);
    let again = map(rig, &mut fmr, &list)?;
    assert!(!keys.contains(&again.rkey));
    assert!(opens(rig, again.remote(0))?);
    Ok(())
}

// covers 2.34
fn an_unmapped_slot_leaves_no_key_behind(rig: &Rig) -> Outcome {
    let pool = pool(rig, FmrPoolOptions::new(1, PAGES).max_maps(3))?;
    let (memory, list) = pages(8192);
    let (_other_memory, other) = pages(4096);
    let mut fmr = pool.take().expect("a slot");
    // The slot is mapped at an address of the program's choice, and mapped again over that.
    let first = rig.outcome(fmr.map(&list, 0x10_0000))?.expect("a mapping");
    assert_eq!(first.remote(8).addr, 0x10_0008);
    rig.scratch.put(0, b"from afar")?;
    assert!(opens(rig, first.remote(100))?);
    assert_eq!(
        memory.to_vec(100, 8).expect("within"),
        rig.scratch.bytes(0, 8)?
    );
    let second = map(rig, &mut fmr, &other)?;
    assert_eq!(second.length, 4096);
    rig.outcome(pool.unmap([&mut fmr]))?.expect("an unmap");
    for mapping in [first, second] {
        assert!(!opens(rig, mapping.remote(0))?);
    }
    // Unmapping an unmapped slot has no effect.
    rig.outcome(pool.unmap([&mut fmr]))?.expect("an unmap");
    Ok(())
}

// covers 2.34 8.04
fn slots_are_unmapped_in_a_batch(rig: &Rig) -> Outcome {
    let pool = pool(rig, FmrPoolOptions::new(4, PAGES))?;
    let lists: Vec<_> = (0..4).map(|_| pages(4096)).collect();
    let mut slots: Vec<_> = (0..4).map(|_| pool.take().expect("a slot")).collect();
    assert_eq!(
        pool.take().err(),
        Some(FmrError::Exhausted { pool_size: 4 })
    );
    let mappings: Vec<_> = slots
        .iter_mut()
        .zip(&lists)
        .map(|(fmr, (_, list))| map(rig, fmr, list))
        .collect::<Result<_, _>>()?;
    rig.outcome(pool.unmap(&mut slots[..3]))?.expect("an unmap");
    let open: Vec<_> = mappings
        .iter()
        .map(|m| opens(rig, m.remote(0)))
        .collect::<Result<_, _>>()?;
    assert_eq!(open, [false, false, false, true]);
    Ok(())
}

// covers 2.34 8.04
fn dropped_slots_are_unmapped_at_the_watermark(rig: &Rig) -> Outcome {
    let pool = pool(rig, FmrPoolOptions::new(4, PAGES).dirty_watermark(2))?;
    let (_memory, list) = pages(4096);
    let take_and_map = || -> Result<_, Evidence> {
        let mut fmr = pool.take().expect("a slot");
        let mapping = map(rig, &mut fmr, &list)?;
        Ok((fmr, mapping))
    };
    let (first, one) = take_and_map()?;
    let (second, two) = take_and_map()?;
    drop(first);
    assert_eq!(pool.available(), 2);
    drop(second);
    rig.settle();
    assert_eq!(pool.available(), 4, "both at once");
    assert!(!opens(rig, one.remote(0))? && !opens(rig, two.remote(0))?);
    // If only dropped slots are left, the pool unmaps them before the watermark.
    let kept: Vec<_> = (0..3).map(|_| take_and_map()).collect::<Result<_, _>>()?;
    let (last, three) = take_and_map()?;
    drop(last);
    assert_eq!(pool.available(), 0);
    let mut fmr = pool.take().expect("the one that was dropped");
    assert!(!opens(rig, three.remote(0))?);
    for (_, mapping) in &kept {
        assert!(opens(rig, mapping.remote(0))?);
    }
    // A slot that was never mapped needs no unmap before it is available.
    drop(fmr);
    assert_eq!(pool.available(), 1);
    fmr = pool.take().expect("a slot");
    map(rig, &mut fmr, &list)?;
    drop((fmr, kept));
    rig.outcome(pool.flush())?.expect("an unmap");
    assert_eq!(pool.available(), 4);
    Ok(())
}

// covers 2.34
fn a_slot_that_is_given_back_is_unmapped_first(rig: &Rig) -> Outcome {
    let pool = pool(rig, FmrPoolOptions::new(2, PAGES).dirty_watermark(2))?;
    let (_memory, list) = pages(4096);
    let mut fmr = pool.take().expect("a slot");
    let mapping = map(rig, &mut fmr, &list)?;
    rig.outcome(fmr.dealloc())?.expect("an unmap");
    assert!(!opens(rig, mapping.remote(0))?);
    assert_eq!(pool.available(), 2);
    Ok(())
}

// covers 2.34
fn a_dropped_pool_leaves_nothing(rig: &Rig) -> Outcome {
    let keys = rig.far.keys_in_use();
    let pd = rig.far.other_pd()?;
    let pool = rig.finish(FmrPool::create(&pd, FmrPoolOptions::new(8, PAGES)))?;
    assert_eq!(rig.far.keys_in_use(), keys.map(|keys| keys + 8));
    let (_memory, list) = pages(4096);
    let mut fmr = pool.take().expect("a slot");
    let mapping = map(rig, &mut fmr, &list)?;
    drop(pool);
    assert_eq!(
        rig.far.keys_in_use(),
        keys.map(|keys| keys + 8),
        "a slot keeps it"
    );
    drop(fmr);
    // Keys are released when no thread of this test or of another accesses them.
    waiting::until(|| rig.far.keys_in_use() == keys);
    assert!(!opens(rig, mapping.remote(0))?);
    rig.finish_destroy(pd.destroy())
}

// covers 2.34
fn a_pool_refuses_impossible_options(rig: &Rig) -> Outcome {
    let wrong = [
        FmrPoolOptions::new(0, PAGES),
        FmrPoolOptions::new(1, 0),
        FmrPoolOptions::new(1, PAGES).max_maps(0),
        FmrPoolOptions::new(1, PAGES).access(Access::REMOTE_WRITE),
        FmrPoolOptions::new(1, PAGES).access(Access::LOCAL_WRITE | Access::MW_BIND),
    ];
    for options in wrong {
        let refused = rig.outcome(FmrPool::create(&rig.far.pd, options))?.err();
        assert_eq!(
            refused.as_ref().map(VerbError::kind),
            Some(ErrorKind::InvalidArgument),
            "{options:?}"
        );
    }
    let deep = rig.attributes().limits.max_fast_reg_page_list_len + 1;
    let refused = rig
        .outcome(FmrPool::create(&rig.far.pd, FmrPoolOptions::new(1, deep)))?
        .err();
    assert_eq!(
        refused.as_ref().map(VerbError::kind),
        Some(ErrorKind::Limit)
    );
    let one = pool(rig, FmrPoolOptions::new(1, PAGES))?;
    let other = pool(rig, FmrPoolOptions::new(1, PAGES))?;
    let (_memory, long) = pages(5 * 4096);
    let mut fmr = one.take().expect("a slot");
    let (max_pages, given) = (PAGES, long.entries());
    assert_eq!(
        rig.outcome(fmr.map(&long, 0))?,
        Err(FmrError::TooManyPages { max_pages, given })
    );
    assert_eq!(fmr.maps_left(), 32);
    let foreign = rig.outcome(other.unmap([&mut fmr]))?;
    assert!(matches!(foreign, Err(FmrError::Verb(_))));
    Ok(())
}

// covers 2.34
fn two_threads_map_from_one_pool(rig: &Rig) -> Outcome {
    let pool = pool(rig, FmrPoolOptions::new(4, PAGES).dirty_watermark(3))?;
    let (_memory, list) = pages(4096);
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                for round in 0..200 {
                    let mut fmr = loop {
                        match pool.take() {
                            Ok(fmr) => break fmr,
                            Err(FmrError::Exhausted { .. }) => thread::yield_now(),
                            Err(error) => panic!("{error}"),
                        }
                    };
                    let first = fmr.map(&list, 0).wait().expect("a mapping");
                    let second = fmr.map(&list, 0).wait().expect("a mapping");
                    assert_ne!(first.rkey, second.rkey);
                    if round % 3 == 0 {
                        pool.unmap([&mut fmr]).wait().expect("an unmap");
                    }
                }
            });
        }
    });
    rig.outcome(pool.flush())?.expect("an unmap");
    assert_eq!(pool.available(), 4);
    Ok(())
}
