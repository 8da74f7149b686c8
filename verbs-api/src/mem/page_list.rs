//! Lists of memory that a fast-register maps under one key.

use std::sync::Arc;

use thiserror::Error;

use super::{Memory, MemoryRange};

/// A list of pages, blocks or elements for a fast-register; it keeps their memory alive. A clone refers to the same list.
///
/// It is immutable, so that the memory of a registered key cannot change afterwards.
///
/// ```
/// use verbs_api::{Memory, PageList};
/// let memory = Memory::zeroed(16 * 4096)?;
/// let scattered = [memory.range(0, 4096)?, memory.range(8 * 4096, 2 * 4096)?];
/// let mapped = PageList::map(&scattered, 4096, 256)?;
/// assert_eq!(mapped.elements, scattered.len(), "both, behind one key");
/// assert_eq!((mapped.list.entries(), mapped.list.len()), (3, 3 * 4096));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct PageList {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    pieces: Pieces,
    length: u64,
    address: u64,
    entries: u32,
    kind: Kind,
    _memory: Vec<Memory>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    // Of so many bytes.
    Pages(u64),
    Blocks,
    Gaps,
}

#[derive(Debug)]
enum Pieces {
    // One range.
    Flat(u64),
    // Byte i is in block (i + first_offset) / size at offset (i + first_offset) % size.
    Blocks {
        size: u64,
        first_offset: u64,
        starts: Vec<u64>,
    },
    // Start offset within the list and address of each element, ascending.
    Elements(Vec<(u64, u64)>),
}

/// The result of [`PageList::map`]. Covering fewer elements than were given is not an error.
#[derive(Clone, Debug)]
pub struct Mapped {
    /// The page list that was made.
    pub list: PageList,
    /// How many elements the list contains whole.
    pub elements: usize,
}

/// Why a page list cannot be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum PageListError {
    /// There is no element, or all are empty.
    #[error("the list is empty")]
    Empty,
    /// The page size is no power of two.
    #[error("a page size is a power of two; {0} is not")]
    PageSize(u64),
    /// The first byte is not in the first block.
    #[error("the first byte's offset {first_offset} lies outside a block of {block_size} bytes")]
    FirstOffset {
        /// The offset of the first byte that was given.
        first_offset: u64,
        /// The size of a block in bytes.
        block_size: u64,
    },
    /// A block has another size than the others; only the last may be shorter.
    #[error("block {index} has {length} bytes where {block_size} are needed")]
    BlockSize {
        /// Index of the block that has another size.
        index: usize,
        /// The size in bytes of the block that differs.
        length: usize,
        /// The size that every block must have, in bytes.
        block_size: u64,
    },
    /// The number of blocks does not fit the length.
    #[error("{length} bytes from offset {first_offset} need {needed} blocks; {given} were given")]
    Length {
        /// How many bytes the list shall cover.
        length: u64,
        /// The offset of the first byte in the first block.
        first_offset: u64,
        /// How many blocks are needed.
        needed: u64,
        /// How many blocks were given.
        given: usize,
    },
    /// The elements have 2^64 bytes or more in total.
    #[error("the list has 2^64 bytes or more")]
    TooLong,
}

impl PageList {
    /// Maps the longest legal prefix of `elements` onto at most `max_pages` pages of `page_size` bytes.
    ///
    /// The first element may begin anywhere in a page; every later one begins on a page boundary or where its
    /// predecessor ended; every one but the last ends on a page boundary or where its successor begins. The address of
    /// the first byte is that of the first element. A shorter prefix than was given is not an error: compare
    /// [`Mapped::elements`]. An element that fits in part is mapped in part and not counted. An empty element is legal
    /// anywhere, takes no page and is counted; the rules above are about the others.
    ///
    /// # Errors
    /// The page size is no power of two, there is nothing to map, or there are 2^64 bytes or more.
    #[doc(alias = "ib_map_mr_sg")]
    pub fn map(
        elements: &[MemoryRange],
        page_size: u64,
        max_pages: u32,
    ) -> Result<Mapped, PageListError> {
        if !page_size.is_power_of_two() {
            return Err(PageListError::PageSize(page_size));
        }
        let address = first_address(elements)?;
        let offset_in_page = page_size - 1;
        let mut pages: Vec<u64> = Vec::new();
        let mut end = 0;
        let mut mapped = 0;
        let mut length = 0;
        for element in elements {
            if element.is_empty() {
                mapped += 1;
                continue;
            }
            let (start, stop) = (element.address(), element.address() + element.len() as u64);
            let contiguous = !pages.is_empty() && start == end;
            if !pages.is_empty() && !contiguous && (start | end) & offset_in_page != 0 {
                break;
            }
            let mut page = if contiguous {
                start.next_multiple_of(page_size)
            } else {
                start & !offset_in_page
            };
            while page < stop && (pages.len() as u64) < u64::from(max_pages) {
                pages.push(page);
                page += page_size;
            }
            end = page.clamp(start, stop);
            length = add(length, end - start)?;
            if end != stop {
                break;
            }
            mapped += 1;
        }
        if length == 0 {
            return Err(PageListError::Empty);
        }
        let first_offset = address & offset_in_page;
        let entries = pages.len() as u32;
        let used = &elements[..elements.len().min(mapped + 1)];
        let pieces = Pieces::Blocks {
            size: page_size,
            first_offset,
            starts: pages,
        };
        Ok(Mapped {
            list: Self::new(
                pieces,
                length,
                address,
                entries,
                Kind::Pages(page_size),
                used,
            ),
            elements: mapped,
        })
    }

    /// Maps `elements` completely, whatever their sizes and the gaps between them. Needs `SG_GAPS`.
    ///
    /// # Errors
    /// There is nothing to map, or there are 2^64 bytes or more.
    pub fn gaps(elements: &[MemoryRange]) -> Result<Self, PageListError> {
        let address = first_address(elements)?;
        let mut length = 0;
        let mut pieces = Vec::new();
        for element in elements.iter().filter(|element| !element.is_empty()) {
            pieces.push((length, element.address()));
            length = add(length, element.len() as u64)?;
        }
        let entries = pieces.len() as u32;
        Ok(Self::new(
            Pieces::Elements(pieces),
            length,
            address,
            entries,
            Kind::Gaps,
            elements,
        ))
    }

    /// Maps `length` bytes that begin `first_offset` bytes into the first of `blocks` of `block_size` bytes each.
    /// Needs `BLOCK_LIST`. The block size need be neither a power of two nor aligned; the last block may be short.
    ///
    /// # Errors
    /// The offset lies outside the first block, a block has another size, the number of blocks does not fit the length, or
    /// the end is 2^64 bytes or more after the start of the first block.
    pub fn blocks(
        blocks: &[MemoryRange],
        block_size: u64,
        first_offset: u64,
        length: u64,
    ) -> Result<Self, PageListError> {
        if length == 0 || blocks.is_empty() {
            return Err(PageListError::Empty);
        }
        if first_offset >= block_size {
            return Err(PageListError::FirstOffset {
                first_offset,
                block_size,
            });
        }
        let end = add(first_offset, length)?;
        let needed = end.div_ceil(block_size);
        if needed != blocks.len() as u64 {
            return Err(PageListError::Length {
                length,
                first_offset,
                needed,
                given: blocks.len(),
            });
        }
        let last = blocks.len() - 1;
        for (index, block) in blocks.iter().enumerate() {
            let wanted = if index == last {
                end - last as u64 * block_size
            } else {
                block_size
            };
            if (block.len() as u64) < wanted {
                return Err(PageListError::BlockSize {
                    index,
                    length: block.len(),
                    block_size,
                });
            }
        }
        let starts: Vec<_> = blocks.iter().map(MemoryRange::address).collect();
        let address = starts[0] + first_offset;
        let entries = starts.len() as u32;
        let pieces = Pieces::Blocks {
            size: block_size,
            first_offset,
            starts,
        };
        Ok(Self::new(
            pieces,
            length,
            address,
            entries,
            Kind::Blocks,
            blocks,
        ))
    }

    fn new(
        pieces: Pieces,
        length: u64,
        address: u64,
        entries: u32,
        kind: Kind,
        memory: &[MemoryRange],
    ) -> Self {
        let mut held: Vec<Memory> = Vec::new();
        for range in memory {
            if !held
                .iter()
                .any(|known| known.address() == range.memory().address())
            {
                held.push(range.memory().clone());
            }
        }
        let pieces = flatten(pieces, length);
        Self {
            inner: Arc::new(Inner {
                pieces,
                length,
                address,
                entries,
                kind,
                _memory: held,
            }),
        }
    }

    /// Whether both are clones of the same list.
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }

    /// Returns the number of bytes that the list maps.
    pub fn len(&self) -> u64 {
        self.inner.length
    }

    /// Whether the list maps no byte, which is never the case.
    pub fn is_empty(&self) -> bool {
        self.inner.length == 0
    }

    /// Returns the address of the first byte, which becomes the region's address unless the request sets another.
    pub fn address(&self) -> u64 {
        self.inner.address
    }

    /// Returns the number of pages, blocks or elements, which `max_fast_reg_page_list_len` and the size of an allocated key
    /// limit.
    pub fn entries(&self) -> u32 {
        self.inner.entries
    }

    /// Returns the page size in bytes, which must be one of `page_size_cap`; `None` for block lists and gap lists.
    pub fn page_size(&self) -> Option<u64> {
        match self.inner.kind {
            Kind::Pages(size) => Some(size),
            Kind::Blocks | Kind::Gaps => None,
        }
    }

    /// Whether this is a block list, which needs `BLOCK_LIST`.
    pub fn is_block_list(&self) -> bool {
        self.inner.kind == Kind::Blocks
    }

    /// Whether this is a gap list, which needs `SG_GAPS`.
    pub fn has_gaps(&self) -> bool {
        self.inner.kind == Kind::Gaps
    }

    /// Returns the address of the first byte if all bytes are in one contiguous range, so that a provider needs no table;
    /// otherwise `None`.
    pub fn flat_address(&self) -> Option<u64> {
        match self.inner.pieces {
            Pieces::Flat(address) => Some(address),
            _ => None,
        }
    }

    /// Returns the address of the byte at `offset`, and the number of bytes from there to the end of its contiguous range.
    ///
    /// `None` beyond the end.
    pub fn locate(&self, offset: u64) -> Option<(u64, u64)> {
        let left = self
            .inner
            .length
            .checked_sub(offset)
            .filter(|&left| left > 0)?;
        match &self.inner.pieces {
            Pieces::Flat(address) => Some((address + offset, left)),
            Pieces::Blocks {
                size,
                first_offset,
                starts,
            } => {
                let at = offset + first_offset;
                let within = at % size;
                Some((
                    starts[(at / size) as usize] + within,
                    left.min(size - within),
                ))
            }
            Pieces::Elements(elements) => {
                let index = elements.partition_point(|&(start, _)| start <= offset) - 1;
                let (start, address) = elements[index];
                let end = elements
                    .get(index + 1)
                    .map_or(self.inner.length, |&(next, _)| next);
                Some((address + (offset - start), end - offset))
            }
        }
    }
}

// The address of the first byte of all.
fn first_address(elements: &[MemoryRange]) -> Result<u64, PageListError> {
    let first = elements.iter().find(|element| !element.is_empty());
    first.map(MemoryRange::address).ok_or(PageListError::Empty)
}

fn add(length: u64, more: u64) -> Result<u64, PageListError> {
    length.checked_add(more).ok_or(PageListError::TooLong)
}

fn flatten(pieces: Pieces, length: u64) -> Pieces {
    let flat = match &pieces {
        Pieces::Flat(address) => Some(*address),
        Pieces::Blocks {
            size,
            first_offset,
            starts,
        } => starts
            .windows(2)
            .all(|pair| pair[1] == pair[0] + size)
            .then(|| starts[0] + first_offset),
        Pieces::Elements(elements) => elements
            .windows(2)
            .all(|pair| pair[1].1 == pair[0].1.wrapping_add(pair[1].0 - pair[0].0))
            .then(|| elements[0].1),
    };
    debug_assert!(length > 0);
    flat.map_or(pieces, Pieces::Flat)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranges(memory: &Memory, list: &[(usize, usize)]) -> Vec<MemoryRange> {
        list.iter()
            .map(|&(offset, length)| memory.range(offset, length).unwrap())
            .collect()
    }

    // covers 2.31
    #[test]
    fn the_longest_legal_prefix_is_mapped_and_counted() {
        let memory = Memory::zeroed(16 * 4096).unwrap();
        let map = |list: &[(usize, usize)]| PageList::map(&ranges(&memory, list), 4096, 8).unwrap();
        assert_eq!(map(&[(100, 3996), (8192, 4096)]).elements, 2);
        let gap_after_second = map(&[(0, 4096), (8192, 100), (16384, 4096)]);
        assert_eq!(
            (gap_after_second.elements, gap_after_second.list.len()),
            (2, 4196)
        );
        assert_eq!(map(&[(0, 100), (100, 100)]).elements, 2);
        assert_eq!(map(&[(0, 100), (200, 100)]).elements, 1);
        let in_part = map(&[(0, 16 * 4096)]);
        assert_eq!((in_part.elements, in_part.list.len()), (0, 8 * 4096));
        assert_eq!(map(&[(100, 50)]).list.address(), memory.address() + 100);
        assert_eq!(
            PageList::map(&ranges(&memory, &[(0, 5)]), 5000, 1).unwrap_err(),
            PageListError::PageSize(5000)
        );
    }

    // covers 2.31
    #[test]
    fn empty_elements_are_mapped_wherever_they_lie_and_name_no_byte() {
        let (memory, other) = (Memory::zeroed(4096).unwrap(), Memory::zeroed(64).unwrap());
        let empty = other.range(64, 0).unwrap();
        let first = memory.range(0, 4096).unwrap();
        for elements in [
            [empty.clone(), first.clone(), empty.clone()],
            [empty.clone(), empty.clone(), first.clone()],
            [first.clone(), empty.clone(), empty.clone()],
        ] {
            let mapped = PageList::map(&elements, 4096, 1).unwrap();
            assert_eq!(mapped.elements, 3);
            assert_eq!(mapped.list.address(), memory.address());
            assert_eq!(mapped.list.locate(0), Some((memory.address(), 4096)));
        }
        let nothing = PageList::map(&[empty], 4096, 8).unwrap_err();
        assert_eq!(nothing, PageListError::Empty);
    }

    // covers 2.32
    #[test]
    fn a_gap_list_maps_every_element() {
        let memory = Memory::zeroed(16 * 4096).unwrap();
        let list = PageList::gaps(&ranges(&memory, &[(7, 93), (200, 50), (9001, 3)])).unwrap();
        assert_eq!((list.entries(), list.len()), (3, 146));
        assert_eq!(list.locate(92), Some((memory.address() + 99, 1)));
        assert_eq!(list.locate(93), Some((memory.address() + 200, 50)));
        assert_eq!(list.locate(145), Some((memory.address() + 9003, 1)));
        assert_eq!(list.locate(146), None);
    }

    // covers 2.33
    #[test]
    fn block_arithmetic_holds_for_odd_sizes() {
        let memory = Memory::zeroed(16 * 4096).unwrap();
        let starts = [40_000, 3, 20_011, 9_000, 30_007];
        let blocks = ranges(&memory, &starts.map(|start| (start, 1000)));
        let list = PageList::blocks(&blocks, 1000, 37, 4900).unwrap();
        for i in 0..4900 {
            let at = i + 37;
            let expected = memory.address() + starts[at as usize / 1000] as u64 + at % 1000;
            assert_eq!(list.locate(i).unwrap().0, expected);
        }
        assert!(PageList::blocks(&blocks, 1000, 1000, 4000).is_err());
        assert!(PageList::blocks(&blocks, 1000, 37, 3900).is_err());
        assert!(PageList::blocks(&blocks, 1000, 37, 4964).is_err());
        let past_64_bits = PageList::blocks(&blocks[..1], u64::MAX, 1, u64::MAX);
        assert_eq!(past_64_bits.unwrap_err(), PageListError::TooLong);
    }
}
