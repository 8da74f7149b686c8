//! The size of the key table: FEATURES 6.15.

use polyverbs_engine::fault::Fault;
use polyverbs_engine::key_table::{KeyKind, KeyTable, LocalUse, RemoteUse, Translation};
use polyverbs_engine::pin::pin;
use verbs_api::provider::RegionMemory;
use verbs_api::{Access, Memory, PageList};

// covers 6.15
#[test]
fn a_table_allocates_all_its_keys_and_never_key_0() {
    let table = KeyTable::new(5, || 0);
    let allocate = || table.allocate(KeyKind::Region, 1, 0);
    let all: Vec<_> = std::iter::from_fn(allocate).collect();
    assert_eq!((all.len(), table.in_use()), (5, 5));
    assert!(
        all.iter().all(|key| key >> 8 != 0),
        "index 0 is not allocated: {all:x?}"
    );
    let early = table.release(all[2]);
    assert_eq!(early, Err(Fault::Key), "it still opens something");
    table.disable(all[2]).unwrap();
    table.release(all[2]).unwrap();
    let twice = (table.disable(all[2]), table.release(all[2]));
    assert_eq!(
        twice,
        (Err(Fault::Key), Err(Fault::Key)),
        "an index is given back once"
    );
    let again = allocate().unwrap();
    assert_eq!(again >> 8, all[2] >> 8);
    assert_ne!(again, all[2], "a stale key opens nothing");
    assert_eq!(allocate(), None);
}

#[test]
fn other_memory_has_another_key_unless_the_key_is_kept() {
    let table = KeyTable::new(8, || 0);
    let memory = Memory::zeroed(4096).unwrap();
    let region = || RegionMemory::from(&memory.range(0, 4096).unwrap());
    let key = table.allocate(KeyKind::Region, 1, 0).unwrap();
    table
        .set_region(key, region(), 0, Access::LOCAL_WRITE, false)
        .unwrap();
    let to = Translation {
        keeps_key: true,
        ..Translation::new(region(), 0)
    };
    assert_eq!(table.change_region(key, Some(to), None, None), Ok(key));
    let to = Translation::new(region(), 0);
    let changed = table.change_region(key, Some(to), None, None);
    assert_ne!(changed, Ok(key));
    assert!(changed.is_ok());
}

#[test]
fn only_an_ordinary_region_takes_memory() {
    let table = KeyTable::new(5, || 0);
    let memory = Memory::zeroed(4096).unwrap();
    let range = |at, length| memory.range(at, length).unwrap();
    let pages = PageList::gaps(&[range(2048, 64), range(0, 64)]).unwrap();
    let paged = table.allocate(KeyKind::FastRegion, 1, 2).unwrap();
    table
        .fast_register(paged, 1, &pages, Access::LOCAL_WRITE, 0, 128)
        .unwrap();
    let window = table.allocate(KeyKind::Window2B, 1, 0).unwrap();
    let region = || RegionMemory::from(&range(0, 4096));
    let is_refused = |key, why| {
        let set = table.set_region(key, region(), 0, Access::LOCAL_WRITE, false);
        let changed = table.change_region(key, Some(Translation::new(region(), 0)), None, None);
        assert_eq!((set, changed), (Err(why), Err(why)));
    };
    is_refused(paged, Fault::Operation);
    is_refused(window, Fault::Operation);
    is_refused(4 << 8, Fault::Key);
    let pin = pin();
    let user = LocalUse {
        pd: 1,
        private: false,
        write: true,
    };
    let stretches = table.check_local(&pin, paged, 0, 128, user).unwrap();
    let mut found = Vec::new();
    stretches.for_each(|span| found.push((span.address(), span.len())));
    let at = memory.address();
    assert_eq!(found, [(at + 2048, 64), (at, 64)]);
}

// covers 6.15
#[test]
fn index_0_opens_nothing_with_any_low_byte() {
    let table = KeyTable::new(5, || 0);
    let pin = pin();
    let user = LocalUse {
        pd: 0,
        private: false,
        write: false,
    };
    let peer = RemoteUse {
        pd: 0,
        qpn: 0,
        access: Access::empty(),
    };
    for key in 0..256 {
        assert_eq!(
            table.check_local(&pin, key, 0, 0, user).err(),
            Some(Fault::Key)
        );
        assert_eq!(
            table.check_remote(&pin, key, 0, 1, peer).err(),
            Some(Fault::Key)
        );
        assert!(table.invalidate_local(key, 0, 0).is_err());
        assert!(table.fields(key).is_none());
    }
}

// covers 6.15
#[test]
fn a_table_is_limited_to_24_bit_indices() {
    // Slots are created on demand, so a table costs only the keys in use.
    for max in [1 << 24, u32::MAX] {
        let table = KeyTable::new(max, || 0);
        let key = table.allocate(KeyKind::FastRegion, 1, 4).unwrap();
        assert_eq!(key >> 8, 1);
        // The highest possible index was never allocated, and looking it up is harmless.
        assert!(table.fields(u32::MAX).is_none());
        assert!(table.fields(0x8000_0000).is_none());
    }
}

#[test]
fn indices_and_bytes_of_keys_follow_from_random_numbers() {
    let first = |random: u64| {
        let table = KeyTable::new(1000, || random);
        table.allocate(KeyKind::Region, 1, 0).unwrap()
    };
    let (one, other) = (first(0x12_3456), first(0x65_4321));
    assert_ne!(one >> 8, other >> 8);
    assert_ne!(one as u8, other as u8);
    assert_eq!(one, first(0x12_3456));
}

#[test]
fn a_freed_key_is_reused_after_all_others_of_its_index() {
    for random in 0..20 {
        let table = KeyTable::new(1, || random);
        let again = || {
            let key = table.allocate(KeyKind::Region, 1, 0).unwrap();
            table.disable(key).unwrap();
            table.release(key).unwrap();
            key
        };
        let mut keys: Vec<_> = std::iter::repeat_with(again).take(256).collect();
        assert_eq!(again(), keys[0]);
        keys.sort_unstable();
        keys.dedup();
        assert_eq!(keys.len(), 256);
    }
}

#[test]
fn no_random_number_repeats_a_key_or_gives_index_0() {
    for random in (0..700).chain([0x7f_ffff, 0x80_0001, 0xff_ffff]) {
        let table = KeyTable::new(300, || random);
        let allocate = || table.allocate(KeyKind::Region, 1, 0);
        let mut keys: Vec<_> = std::iter::from_fn(allocate).collect();
        for &key in &keys {
            assert_eq!(table.fields(key).unwrap().key, key as u8);
            table.disable(key).unwrap();
            table.release(key).unwrap();
        }
        assert_eq!(table.in_use(), 0);
        keys.iter_mut().for_each(|key| *key >>= 8);
        keys.sort_unstable();
        keys.dedup();
        assert_eq!(keys.len(), 300, "{random:#x}");
        assert_ne!(keys[0], 0, "{random:#x}");
    }
}
