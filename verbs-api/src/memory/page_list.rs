//! Lists of memory that a fast-register maps behind one key.

use std::sync::Arc;

use thiserror::Error;

use super::{Memory, MemoryRange};

/// A list of pages, blocks or elements, and the memory that they lie in. Cloning shares it.
///
/// Immutable once made: what a key was registered with cannot change behind it.
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
    // Of so many octets.
    Pages(u64),
    Blocks,
    Gaps,
}

#[derive(Debug)]
enum Pieces {
    // One stretch.
    Flat(u64),
    // Octet i lies in block (i + first_offset) / size at offset (i + first_offset) % size.
    Blocks {
        size: u64,
        first_offset: u64,
        starts: Vec<u64>,
    },
    // Start offset within the list and address of each element, ascending.
    Elements(Vec<(u64, u64)>),
}

/// What [`PageList::map`] made, and how many elements it covers: a shorter count than was given is not an error.
#[derive(Clone, Debug)]
pub struct Mapped {
    /// The list.
    pub list: PageList,
    /// Elements that lie in it whole.
    pub elements: usize,
}

/// Why a list cannot be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum PageListError {
    /// No element, or only empty ones.
    #[error("the list is empty")]
    Empty,
    /// Page sizes are powers of two.
    #[error("a page size is a power of two; {0} is not")]
    PageSize(u64),
    /// The first octet lies in the first block.
    #[error("the first octet's offset {first_offset} lies outside a block of {block_size} octets")]
    FirstOffset {
        /// The offset given.
        first_offset: u64,
        /// Octets of a block.
        block_size: u64,
    },
    /// The blocks are all of one size, except that the last may be short.
    #[error("block {index} has {length} octets where {block_size} are needed")]
    BlockSize {
        /// Which one.
        index: usize,
        /// Its octets.
        length: usize,
        /// Octets of a block.
        block_size: u64,
    },
    /// The blocks do not cover the length.
    #[error("{length} octets from offset {first_offset} need {needed} blocks; {given} were given")]
    Length {
        /// Octets to cover.
        length: u64,
        /// Offset of the first octet.
        first_offset: u64,
        /// Blocks needed.
        needed: u64,
        /// Blocks given.
        given: usize,
    },
}

impl PageList {
    /// Maps the longest legal prefix of `elements` onto at most `max_pages` pages of `page_size` octets.
    ///
    /// The first element may begin anywhere in a page; every later one begins on a page boundary or where its
    /// predecessor ended; every one but the last ends on a page boundary or where its successor begins. The address of
    /// the first octet is that of the first element. A shorter prefix than was given is not an error: compare
    /// [`Mapped::elements`]. An element that fits in part is mapped in part and not counted.
    ///
    /// # Errors
    /// The page size is no power of two, or nothing can be mapped.
    #[doc(alias = "ib_map_mr_sg")]
    pub fn map(
        elements: &[MemoryRange],
        page_size: u64,
        max_pages: u32,
    ) -> Result<Mapped, PageListError> {
        if !page_size.is_power_of_two() {
            return Err(PageListError::PageSize(page_size));
        }
        let offset_in_page = page_size - 1;
        let mut pages: Vec<u64> = Vec::new();
        let mut end = 0;
        let mut mapped = 0;
        let mut length = 0;
        for element in elements {
            let (start, stop) = (element.address(), element.address() + element.len() as u64);
            let contiguous = !pages.is_empty() && start == end;
            if !pages.is_empty() && !contiguous && (start | end) & offset_in_page != 0 {
                break;
            }
            let mut page = start & !offset_in_page;
            if contiguous && start & offset_in_page != 0 {
                page += page_size;
            }
            let mut covered = start.max(page.min(stop));
            if contiguous && start & offset_in_page != 0 {
                covered = stop.min(page);
            }
            while page < stop && (pages.len() as u64) < u64::from(max_pages) {
                pages.push(page);
                page += page_size;
                covered = stop.min(page);
            }
            length += covered - start;
            end = covered;
            if covered != stop {
                break;
            }
            mapped += 1;
        }
        if length == 0 {
            return Err(PageListError::Empty);
        }
        let address = elements[0].address();
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

    /// Maps `elements` whole, whatever their sizes and the gaps between them. Needs `SG_GAPS`.
    ///
    /// # Errors
    /// There is nothing to map.
    pub fn gaps(elements: &[MemoryRange]) -> Result<Self, PageListError> {
        let mut length = 0;
        let pieces: Vec<_> = elements
            .iter()
            .filter(|element| !element.is_empty())
            .map(|element| {
                length += element.len() as u64;
                (length - element.len() as u64, element.address())
            })
            .collect();
        let &(_, address) = pieces.first().ok_or(PageListError::Empty)?;
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

    /// Maps `length` octets that begin `first_offset` octets into the first of `blocks` of `block_size` octets each.
    /// Needs `BLOCK_LIST`. The block size need be neither a power of two nor aligned; the last block may be short.
    ///
    /// # Errors
    /// The offset lies outside the first block, a block has another size, or the count does not fit the length.
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
        let end = first_offset.saturating_add(length);
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

    /// Whether both are clones of one list.
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }

    /// Octets mapped.
    pub fn len(&self) -> u64 {
        self.inner.length
    }

    /// Whether no octet is mapped; never true.
    pub fn is_empty(&self) -> bool {
        self.inner.length == 0
    }

    /// The address of the first octet: the region's address unless the request names another.
    pub fn address(&self) -> u64 {
        self.inner.address
    }

    /// Pages, blocks or elements: what `max_fast_reg_page_list_len` and a key's depth count.
    pub fn entries(&self) -> u32 {
        self.inner.entries
    }

    /// Octets of a page, which must be among the sizes of `page_size_cap`; none for blocks and for gap lists.
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

    /// The address of octet 0 where all octets lie in one stretch: a provider's short cut.
    pub fn flat_address(&self) -> Option<u64> {
        match self.inner.pieces {
            Pieces::Flat(address) => Some(address),
            _ => None,
        }
    }

    /// The stretch that octet `offset` lies in: its address, and how many octets follow it there.
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
    }
}
