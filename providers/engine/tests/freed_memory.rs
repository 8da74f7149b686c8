//! The memory of a key is freed, but not before the pins that may have found it have ended.
//!
//! This is one test in a process of its own, on one thread, so that only it changes the mappings of the process.
#![cfg(target_os = "linux")]

use std::fs;

use polyverbs_engine::fault::Fault;
use polyverbs_engine::key_table::{
    Binding, KeyKind, KeyTable, LocalUse, Region, RemoteUse, Translation,
};
use polyverbs_engine::pin::{Pin, pin};
use verbs_api::memory::Span;
use verbs_api::provider::RegionMemory;
use verbs_api::{Access, Memory, PageList};

/// So large that the memory is a mapping of its own.
const SIZE: usize = 1 << 20;

const PD: u32 = 7;

const ALL: Access = Access::LOCAL_WRITE
    .union(Access::REMOTE)
    .union(Access::MW_BIND);

/// Returns memory that reads as threes, and its address.
fn threes() -> (Memory, u64) {
    let memory = Memory::zeroed(SIZE).unwrap();
    memory.write(0, &[3; SIZE]).unwrap();
    let address = memory.address();
    (memory, address)
}

fn whole(memory: &Memory) -> RegionMemory {
    RegionMemory::from(&memory.into())
}

/// Returns whether all memory at `address` is still mapped.
fn is_mapped(address: u64) -> bool {
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let mut covered = address;
    for line in maps.lines() {
        let (start, rest) = line.split_once('-').unwrap();
        let end = rest.split(' ').next().unwrap();
        let [start, end] = [start, end].map(|number| u64::from_str_radix(number, 16).unwrap());
        if start <= covered && covered < end {
            covered = end;
        }
    }
    covered >= address + SIZE as u64
}

fn find<'p>(table: &KeyTable, pin: &'p Pin, key: u32, address: u64) -> Result<Region<'p>, Fault> {
    let user = LocalUse {
        pd: PD,
        private: false,
        write: false,
    };
    table.check_local(pin, key, address, SIZE as u64, user)
}

fn find_remote<'p>(table: &KeyTable, pin: &'p Pin, key: u32, at: u64) -> Result<Span<'p>, Fault> {
    let user = RemoteUse {
        pd: PD,
        qpn: 1,
        access: Access::REMOTE_READ,
    };
    let region = table.check_remote(pin, key, at, SIZE as u64, user)?;
    Ok(region.first(SIZE))
}

fn assert_reads_as_threes(region: Region<'_>) {
    let mut count = 0;
    region.for_each(|span| {
        let mut octets = vec![0; span.len()];
        span.read(&mut octets);
        assert!(octets.iter().all(|&octet| octet == 3));
        count += octets.len();
    });
    assert_eq!(count, SIZE);
}

fn register(table: &KeyTable, memory: &Memory) -> u32 {
    let key = table.allocate(KeyKind::Region, PD, 0).unwrap();
    table
        .set_region(key, whole(memory), memory.address(), ALL, false)
        .unwrap();
    key
}

fn fast_register(table: &KeyTable, memory: &Memory) -> u32 {
    let half = SIZE / 2;
    let elements = [(half, half), (0, half)].map(|(at, len)| memory.range(at, len).unwrap());
    let list = PageList::gaps(&elements).unwrap();
    assert!(list.flat_address().is_none());
    let key = table.allocate(KeyKind::FastRegion, PD, 2).unwrap();
    let (address, length) = (memory.address(), SIZE as u64);
    table
        .fast_register(key, PD, &list, ALL, address, length)
        .unwrap();
    key
}

/// Checks that a pin that has found the memory keeps it after `take_away` has disabled the key, and that nothing else does.
fn outlives_the_pin(
    register: impl FnOnce(&KeyTable, &Memory) -> u32,
    take_away: impl FnOnce(KeyTable, u32) -> Option<KeyTable>,
) {
    let table = KeyTable::new(5, || 0);
    let (memory, address) = threes();
    let key = register(&table, &memory);
    drop(memory);
    let pin = pin();
    let region = find(&table, &pin, key, address).unwrap();
    let table = take_away(table, key);
    assert!(is_mapped(address), "freed under a pin that found it");
    assert_reads_as_threes(region);
    if let Some(table) = &table {
        assert!(find(table, &pin, key, address).is_err());
    }
    drop(pin);
    assert!(!is_mapped(address), "never freed");
}

/// A window opens its region's memory as long as it is bound, whatever the test tries with the region.
fn a_bound_window_keeps_its_region() {
    let table = KeyTable::new(5, || 0);
    let (memory, address) = threes();
    let region = register(&table, &memory);
    drop(memory);
    let window = table.allocate(KeyKind::Window2B, PD, 0).unwrap();
    let binding = Binding {
        region,
        addr: address,
        length: SIZE as u64,
        access: Access::REMOTE_READ,
        pd: PD,
        qpn: 1,
    };
    table.bind(window, &binding).unwrap();
    let (other, elsewhere) = threes();
    let set = table.set_region(region, whole(&other), elsewhere, ALL, false);
    let to = Translation::new(whole(&other), elsewhere);
    let moved = table.change_region(region, Some(to), None, None);
    assert_eq!((set, moved), (Err(Fault::Operation), Err(Fault::Operation)));
    assert_eq!(table.disable(region), Err(Fault::Operation));
    assert_eq!(table.release(region), Err(Fault::Key));
    assert!(is_mapped(address), "freed under a window");
    assert!(find_remote(&table, &pin(), window, address).is_ok());
    table.invalidate_local(window, PD, 1).unwrap();
    table.disable(region).unwrap();
    assert!(!is_mapped(address), "never freed");
}

fn release(table: KeyTable, key: u32) -> Option<KeyTable> {
    table.disable(key).unwrap();
    table.release(key).unwrap();
    Some(table)
}

fn set_again(table: KeyTable, key: u32) -> Option<KeyTable> {
    let (other, elsewhere) = threes();
    table
        .set_region(key, whole(&other), elsewhere, ALL, false)
        .unwrap();
    Some(table)
}

fn change(table: KeyTable, key: u32) -> Option<KeyTable> {
    let (other, elsewhere) = threes();
    let to = Translation::new(whole(&other), elsewhere);
    table.change_region(key, Some(to), None, None).unwrap();
    Some(table)
}

fn drop_table(table: KeyTable, _: u32) -> Option<KeyTable> {
    drop(table);
    None
}

#[test]
fn memory_is_freed_after_the_pins_that_found_it() {
    outlives_the_pin(register, release);
    outlives_the_pin(fast_register, release);
    outlives_the_pin(register, set_again);
    outlives_the_pin(register, change);
    outlives_the_pin(register, drop_table);
    outlives_the_pin(fast_register, drop_table);
    a_bound_window_keeps_its_region();
}
