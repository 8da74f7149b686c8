//! An append-only slab: lookups never wait, and it grows in chunks that double.
//!
//! Keys are indices into a slab. An element is never moved or freed while the slab exists, so a lookup is two loads and
//! takes no lock; the element's own atomics say what it holds *now*. A freed index rests in a queue before it is used
//! again, so that a stale number does not name a new object at once.

use std::collections::VecDeque;
use std::sync::OnceLock;

use crate::array::filled;
use crate::sync::Mutex;

/// Elements that are created on demand and never move.
#[derive(Debug)]
pub struct Slab<T> {
    chunks: [OnceLock<Box<[T]>>; CHUNKS],
    indices: Mutex<Indices>,
    max: u32,
}

impl<T: Default + Sync> Slab<T> {
    /// Creates an empty slab of at most `max` elements. The elements below `first` exist from the beginning, but their
    /// indices are never allocated.
    ///
    /// # Panics
    /// If `max` exceeds [`MAX`] or `first` exceeds `max`.
    pub fn new(first: u32, max: u32) -> Self {
        assert!(first <= max && max <= MAX);
        let slab = Self {
            chunks: [const { OnceLock::new() }; CHUNKS],
            indices: Mutex::new(Indices {
                fresh: first,
                freed: VecDeque::new(),
                allocated: 0,
            }),
            max,
        };
        (0..first).for_each(|index| {
            let made = slab.grow(index);
            made.expect("memory for the first elements");
        });
        slab
    }

    /// Allocates an index that is not in use. Returns `None` if all are in use, or if memory for the element cannot be
    /// allocated.
    pub fn allocate(&self) -> Option<u32> {
        let mut indices = self.indices.lock();
        let index = indices.next(self.max)?;
        if self.grow(index).is_none() {
            indices.freed.push_back(index);
            return None;
        }
        indices.allocated += 1;
        Some(index)
    }

    /// Frees an index. The element stays as it is; the caller resets it before this.
    pub fn free(&self, index: u32) {
        let mut indices = self.indices.lock();
        debug_assert!(
            index < indices.fresh && indices.allocated > 0,
            "index {index} not in use"
        );
        indices.allocated -= 1;
        indices.freed.push_back(index);
    }

    /// Returns the element at an index, whether the index is in use or not; `None` if the element was never created.
    #[inline]
    pub fn get(&self, index: u32) -> Option<&T> {
        let (chunk, offset) = locate(index)?;
        self.chunks.get(chunk)?.get()?.get(offset)
    }

    /// Returns the number of indices in use.
    pub fn in_use(&self) -> usize {
        self.indices.lock().allocated
    }

    /// Returns one more than the highest index that was ever allocated: the bound of a walk over all elements.
    pub fn end(&self) -> u32 {
        self.indices.lock().fresh
    }

    /// Creates the chunk of an index, with its elements, unless it exists. `None` if its memory cannot be allocated.
    fn grow(&self, index: u32) -> Option<()> {
        let (chunk, _) = locate(index)?;
        if self.chunks[chunk].get().is_none() {
            let first = (FIRST << chunk) - FIRST;
            let len = (FIRST << chunk).min(self.max - first);
            let made = filled(len as usize)?;
            self.chunks[chunk].get_or_init(|| made);
        }
        Some(())
    }
}

#[derive(Debug)]
struct Indices {
    fresh: u32,
    freed: VecDeque<u32>,
    allocated: usize,
}

impl Indices {
    /// Returns the index that was freed first if more than `RESTING` rest, else a fresh one, else the one that was freed
    /// first.
    fn next(&mut self, max: u32) -> Option<u32> {
        if self.freed.len() > RESTING || self.fresh == max {
            return self.freed.pop_front();
        }
        self.fresh += 1;
        Some(self.fresh - 1)
    }
}

/// Returns the chunk of an index and the position in it. Chunk `n` holds `FIRST << n` elements.
#[inline]
fn locate(index: u32) -> Option<(usize, usize)> {
    let shifted = index.checked_add(FIRST)?;
    let chunk = shifted.ilog2() - FIRST.ilog2();
    Some((chunk as usize, (shifted - (FIRST << chunk)) as usize))
}

/// The largest number of elements: the number of values of the 24 bits of a key index or of a QP number.
pub const MAX: u32 = 1 << 24;

/// The number of elements of the first chunk.
const FIRST: u32 = 64;

/// The number of chunks for `MAX` elements.
const CHUNKS: usize = 19;

/// The number of freed indices that rest as long as there are fresh ones.
const RESTING: usize = 64;

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::thread;

    use super::*;

    #[test]
    fn indices_map_to_distinct_places() {
        let mut expected = (0, 0);
        for index in 0..300_000 {
            assert_eq!(locate(index), Some(expected));
            expected.1 += 1;
            if expected.1 == (FIRST as usize) << expected.0 {
                expected = (expected.0 + 1, 0);
            }
        }
        assert!(locate(MAX - 1).unwrap().0 < CHUNKS);
        assert_eq!(locate(u32::MAX), None);
    }

    #[test]
    fn elements_stay_where_they_are() {
        let slab = Slab::<AtomicU32>::new(0, MAX);
        let first = slab.allocate().unwrap();
        let place: *const _ = slab.get(first).unwrap();
        for _ in 0..10_000 {
            let index = slab.allocate().unwrap();
            slab.get(index).unwrap().store(index, Ordering::Relaxed);
        }
        assert_eq!(slab.get(first).unwrap() as *const _, place);
        assert!((1..=10_000).all(|i| slab.get(i).unwrap().load(Ordering::Relaxed) == i));
        assert_eq!((slab.in_use(), slab.end()), (10_001, 10_001));
    }

    #[test]
    fn absent_indices_are_none() {
        let slab = Slab::<AtomicU32>::new(0, MAX);
        assert!(slab.get(0).is_none());
        slab.allocate();
        assert!(slab.get(0).is_some() && slab.get(FIRST).is_none());
        assert!(slab.get(MAX).is_none() && slab.get(u32::MAX).is_none());
    }

    #[test]
    fn a_freed_index_rests_before_it_returns() {
        let slab = Slab::<AtomicU32>::new(0, MAX);
        let freed = slab.allocate().unwrap();
        slab.free(freed);
        let again = (0..).find(|_| {
            let index = slab.allocate().unwrap();
            slab.free(index);
            index == freed
        });
        assert!(again.unwrap() >= RESTING);
        assert!(slab.end() <= RESTING as u32 + 2, "no unbounded growth");
    }

    #[test]
    fn the_last_index_is_allocated_and_reused() {
        let slab = Slab::<AtomicU32>::new(2, 5);
        let all: Vec<_> = std::iter::from_fn(|| slab.allocate()).collect();
        assert_eq!(all, [2, 3, 4]);
        assert!(slab.get(1).is_some() && slab.get(4).is_some() && slab.get(5).is_none());
        slab.free(3);
        assert_eq!(slab.allocate(), Some(3));
        assert_eq!(slab.allocate(), None);
        all.iter().for_each(|&index| slab.free(index));
        assert_eq!(slab.in_use(), 0);
    }

    #[test]
    fn no_index_is_allocated_twice() {
        let slab = Slab::<AtomicU32>::new(0, MAX);
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for round in 0..2_000 {
                        let index = slab.allocate().unwrap();
                        let element = slab.get(index).unwrap();
                        assert_eq!(element.swap(1, Ordering::AcqRel), 0);
                        if round % 3 != 0 {
                            element.store(0, Ordering::Release);
                            slab.free(index);
                        }
                    }
                });
            }
        });
    }
}
