//! Lists of any ranges, the empty ones among them, against a byte-by-byte model of the documentation.

use proptest::prelude::*;
use verbs_api::memory::MemoryRange;
use verbs_api::{Memory, PageList};

/// Bytes of each memory that ranges are taken from.
const SIZE: usize = 160;

/// A generated range: its memory, its start, and its length. Half of the ends are on small page boundaries, so that
/// legal lists are longer than one element.
#[derive(Clone, Copy, Debug)]
struct Drawn {
    memory: usize,
    // `None` means the end of the previous range.
    offset: Option<usize>,
    length: usize,
}

fn edge() -> impl Strategy<Value = usize> {
    prop_oneof![(0..=10usize).prop_map(|pages| pages * 16), 0..=SIZE]
}

fn drawn() -> impl Strategy<Value = Vec<Drawn>> {
    let length =
        prop_oneof![1 => Just(0), 2 => (0..=4usize).prop_map(|pages| pages * 16), 2 => 0..40usize];
    let one = (0..3usize, proptest::option::weighted(0.7, edge()), length);
    let one = one.prop_map(|(memory, offset, length)| Drawn {
        memory,
        offset,
        length,
    });
    proptest::collection::vec(one, 0..8)
}

fn memories() -> Vec<Memory> {
    (0..3).map(|_| Memory::zeroed(SIZE).unwrap()).collect()
}

fn ranges(memories: &[Memory], drawn: &[Drawn]) -> Vec<MemoryRange> {
    let mut before = (0, 0);
    let mut take = |one: &Drawn| {
        let (memory, start) = match one.offset {
            Some(offset) => (one.memory, offset),
            None => before,
        };
        let length = one.length.min(SIZE - start);
        before = (memory, start + length);
        memories[memory].range(start, length).unwrap()
    };
    drawn.iter().map(&mut take).collect()
}

fn bytes(range: &MemoryRange) -> impl Iterator<Item = u64> + use<> {
    let (address, length) = (range.address(), range.len() as u64);
    (0..length).map(move |at| address + at)
}

fn bytes_of(ranges: &[MemoryRange]) -> Vec<u64> {
    ranges.iter().flat_map(bytes).collect()
}

/// The address of each byte, by the ranges that `locate` returns.
fn walk(list: &PageList) -> Vec<u64> {
    let mut found = Vec::new();
    while let Some((address, length)) = list.locate(found.len() as u64) {
        assert!(length > 0, "a range without a byte");
        found.extend((0..length).map(|at| address + at));
        assert!(found.len() as u64 <= list.len(), "past the end");
    }
    found
}

#[track_caller]
fn assert_covers(list: &PageList, expected: &[u64], given: &[MemoryRange]) {
    let found = walk(list);
    assert_eq!(found.len() as u64, list.len());
    let given = bytes_of(given);
    assert!(found.iter().all(|byte| given.contains(byte)), "outside");
    assert_eq!(found, expected);
    assert_eq!(list.address(), expected[0]);
}

/// The bytes of the longest legal prefix of elements, and the elements that it has.
fn legal(elements: &[MemoryRange], page: u64) -> (Vec<u64>, usize) {
    let mut last: Option<u64> = None;
    let mut found = Vec::new();
    for (index, element) in elements.iter().enumerate() {
        if element.is_empty() {
            continue;
        }
        let start = element.address();
        let fits = last.is_none_or(|end| {
            start == end || (start.is_multiple_of(page) && end.is_multiple_of(page))
        });
        if !fits {
            return (found, index);
        }
        found.extend(bytes(element));
        last = Some(start + element.len() as u64);
    }
    (found, elements.len())
}

/// The longest prefix of `bytes` that is on so many pages.
fn on_pages(bytes: &[u64], page: u64, max_pages: u32) -> &[u64] {
    let mut pages = 0;
    let fits = |index: usize| {
        let byte = bytes[index];
        let goes_on = index > 0 && byte == bytes[index - 1] + 1 && !byte.is_multiple_of(page);
        pages += u32::from(!goes_on);
        pages <= max_pages
    };
    let count = (0..bytes.len()).map(fits).take_while(|&fits| fits).count();
    &bytes[..count]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    // covers 2.31
    #[test]
    fn a_mapped_list_is_the_longest_legal_prefix_byte_by_byte(
        drawn in drawn(),
        page_bits in 0u32..7,
        max_pages in 0u32..12,
    ) {
        let memories = memories();
        let elements = ranges(&memories, &drawn);
        let page = 1 << page_bits;
        let (prefix, legal_elements) = legal(&elements, page);
        let expected = on_pages(&prefix, page, max_pages);
        let mut end = 0;
        let whole = elements[..legal_elements].iter().take_while(|element| {
            end += element.len();
            end <= expected.len()
        });
        let whole = whole.count();
        let mapped = PageList::map(&elements, page, max_pages);
        prop_assert_eq!(mapped.is_ok(), !expected.is_empty());
        if let Ok(mapped) = mapped {
            assert_covers(&mapped.list, expected, &elements);
            prop_assert_eq!(mapped.elements, whole);
            prop_assert!(mapped.list.entries() <= max_pages);
        }
    }

    // covers 2.32
    #[test]
    fn a_gap_list_is_all_its_elements_byte_by_byte(drawn in drawn()) {
        let memories = memories();
        let elements = ranges(&memories, &drawn);
        let expected = bytes_of(&elements);
        let list = PageList::gaps(&elements);
        prop_assert_eq!(list.is_ok(), !expected.is_empty());
        if let Ok(list) = list {
            assert_covers(&list, &expected, &elements);
        }
    }

    // covers 2.33
    #[test]
    fn a_block_list_is_its_blocks_byte_by_byte_from_the_offset_on(
        drawn in drawn(),
        size in 1usize..30,
        first_offset in 0usize..32,
        missing in -2i64..40,
        is_uniform in proptest::bool::weighted(0.8),
    ) {
        let memories = memories();
        let with_size = |one: &Drawn| Drawn { length: if is_uniform { size } else { one.length }, ..*one };
        let drawn: Vec<_> = drawn.iter().map(with_size).collect();
        let blocks = ranges(&memories, &drawn);
        let length = ((blocks.len() * size) as i64 - first_offset as i64 - missing).max(0) as usize;
        let list = PageList::blocks(&blocks, size as u64, first_offset as u64, length as u64);
        let end = first_offset + length;
        let wanted = |index: usize| size.min(end.saturating_sub(index * size));
        let is_legal = length > 0
            && first_offset < size
            && end.div_ceil(size) == blocks.len()
            && (0..blocks.len()).all(|index| blocks[index].len() >= wanted(index));
        prop_assert_eq!(list.is_ok(), is_legal);
        if let Ok(list) = list {
            let of_block = |(index, block)| bytes(block).take(wanted(index)).collect::<Vec<_>>();
            let expected: Vec<_> = blocks.iter().enumerate().flat_map(of_block).collect();
            assert_covers(&list, &expected[first_offset..], &blocks);
        }
    }
}
