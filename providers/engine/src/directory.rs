//! Values of a pool by number, found without a lock: a tree over the 24 bits of a queue pair number.
//!
//! Nodes are created when a number below them is first used, and stay. A thread that looks a number up is pinned, and may
//! use the value while it is; a removed value is released when every pin of that time has ended (see [`mod@pin`]).

// The leaves hold counted references as raw pointers.
#![allow(unsafe_code)]

use std::sync::{Arc, OnceLock};

use crate::pin::{self, Pin, pin};
use crate::pool::{PoolRef, Pooled};
use crate::sync::{AtomicPtr, Ordering};

/// References to values of a pool, by their 24-bit numbers.
pub(crate) struct Directory<T>(Node<Node<Leaf<T>>>);

type Node<T> = Box<[OnceLock<T>]>;

/// A leaf of the tree: each element is a counted reference to a value, or null.
struct Leaf<T>(Box<[AtomicPtr<Pooled<T>>]>);

impl<T> Default for Leaf<T> {
    fn default() -> Self {
        let nobody = |_| AtomicPtr::new(std::ptr::null_mut());
        Self((0..FANOUT).map(nobody).collect())
    }
}

impl<T: Send + Sync + 'static> Directory<T> {
    pub(crate) fn new() -> Self {
        Self(node())
    }

    /// Stores a reference to `value` under this number. A value that had the number is released when all pins of that time
    /// have ended.
    ///
    /// # Panics
    /// If the number has more than 24 bits.
    pub(crate) fn insert(&self, number: u32, value: &PoolRef<T>) {
        let [root, branch, leaf] = path(number).expect("a number of 24 bits");
        let branches = self.0[root].get_or_init(node);
        let slot = &branches[branch].get_or_init(Leaf::default).0[leaf];
        let value = Arc::into_raw(Arc::clone(value.owner()));
        drop(Removed::new(slot.swap(value.cast_mut(), Ordering::AcqRel)));
    }

    /// Removes the value of a number; `None` if there is none.
    pub(crate) fn remove(&self, number: u32) -> Option<Removed<T>> {
        let nobody = std::ptr::null_mut();
        Removed::new(self.slot(number)?.swap(nobody, Ordering::AcqRel))
    }

    /// Returns the value of a number, which stays alive as long as the pin; `None` if there is none.
    #[inline]
    pub(crate) fn get<'p>(&self, number: u32, _: &'p Pin) -> Option<&'p Pooled<T>> {
        let value = self.slot(number)?.load(Ordering::Acquire);
        // SAFETY: this is null, or a reference of this leaf, which is not released before this pin has ended.
        unsafe { value.as_ref() }
    }

    /// Returns a counted reference to the value of a number; `None` if there is none.
    pub(crate) fn find(&self, number: u32) -> Option<PoolRef<T>> {
        self.get(number, &pin()).map(keep)
    }

    /// Returns counted references to all values.
    pub(crate) fn all(&self) -> Vec<PoolRef<T>> {
        let _pin = pin();
        let value = |slot: &AtomicPtr<Pooled<T>>| {
            // SAFETY: as in `get`; the pin ends after the last of these.
            unsafe { slot.load(Ordering::Acquire).as_ref() }.map(keep)
        };
        self.leaves()
            .flat_map(|leaf| leaf.0.iter().filter_map(value))
            .collect()
    }

    #[inline]
    fn slot(&self, number: u32) -> Option<&AtomicPtr<Pooled<T>>> {
        let [root, branch, leaf] = path(number)?;
        Some(&self.0[root].get()?[branch].get()?.0[leaf])
    }
}

/// A value that was removed. Drop it with no lock held: it is released then, or when all pins of that time have ended.
#[must_use]
pub(crate) struct Removed<T: Send + Sync + 'static>(Option<Arc<Pooled<T>>>);

impl<T: Send + Sync + 'static> Removed<T> {
    // `value` is null or a reference that a leaf had and no longer has.
    fn new(value: *mut Pooled<T>) -> Option<Self> {
        let value = std::ptr::NonNull::new(value)?.as_ptr().cast_const();
        // SAFETY: no leaf has this reference any longer, so it is this one's.
        Some(Self(Some(unsafe { Arc::from_raw(value) })))
    }
}

impl<T: Send + Sync + 'static> Drop for Removed<T> {
    fn drop(&mut self) {
        if let Some(value) = self.0.take() {
            pin::after_grace(move || drop(value));
        }
    }
}

impl<T> Directory<T> {
    fn leaves(&self) -> impl Iterator<Item = &Leaf<T>> {
        let branches = self.0.iter().filter_map(OnceLock::get);
        branches.flat_map(|branch| branch.iter().filter_map(OnceLock::get))
    }
}

impl<T> Drop for Directory<T> {
    fn drop(&mut self) {
        for slot in self.leaves().flat_map(|leaf| &leaf.0) {
            let value = slot.load(Ordering::Acquire).cast_const();
            if !value.is_null() {
                // SAFETY: this is the reference of this leaf; no thread looks a number up in a directory that is being
                // dropped.
                drop(unsafe { Arc::from_raw(value) });
            }
        }
    }
}

fn node<T>() -> Node<T> {
    (0..FANOUT).map(|_| OnceLock::new()).collect()
}

#[inline]
fn path(number: u32) -> Option<[usize; 3]> {
    let [0, root, branch, leaf] = number.to_be_bytes() else {
        return None;
    };
    Some([root, branch, leaf].map(usize::from))
}

// Returns a new reference to the value.
fn keep<T>(value: &Pooled<T>) -> PoolRef<T> {
    let value = std::ptr::from_ref(value);
    // SAFETY: the value is in an `Arc` that is not released before the pin of the caller has ended.
    let owner = unsafe {
        Arc::increment_strong_count(value);
        Arc::from_raw(value)
    };
    PoolRef::from(owner)
}

/// The number of children of each node: one for each value of a byte.
const FANOUT: usize = 256;

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicU32};
    use std::thread;

    use test_kit::waiting::until;

    use super::*;
    use crate::pool::Pool;

    const NUMBERS: [u32; 6] = [0, 1, 255, 256, 0x01_0000, 0xff_ffff];

    #[test]
    fn values_are_found_by_their_numbers_only() {
        let (pool, directory) = (Pool::default(), Directory::new());
        for number in NUMBERS {
            directory.insert(number, &pool.make(|_| number));
        }
        for number in NUMBERS {
            assert_eq!(
                directory.get(number, &pin()).map(|value| **value),
                Some(number)
            );
            assert_eq!(directory.find(number).map(|value| *value), Some(number));
        }
        let others = [2, 254, 257, 0x02_0000, 0x0100_0000, u32::MAX];
        assert!(
            others
                .iter()
                .all(|number| directory.find(*number).is_none())
        );
        let all: Vec<_> = directory.all().iter().map(|value| **value).collect();
        assert_eq!(all, NUMBERS);
    }

    #[test]
    fn a_removed_value_lives_until_pins_have_ended() {
        let (pool, directory) = (Pool::default(), Directory::new());
        let weak = {
            let value = pool.make(|_| 7);
            directory.insert(9, &value);
            value.downgrade()
        };
        let pinned = pin();
        let value = directory.get(9, &pinned).unwrap();
        assert!(directory.remove(9).is_some() && directory.remove(9).is_none());
        assert!(directory.get(9, &pinned).is_none());
        assert_eq!(**value, 7);
        drop(pinned);
        // The thread whose pin ends last drops the value, and that may be the thread of another test.
        until(|| weak.upgrade().is_none());
    }

    #[test]
    fn a_directory_releases_replaced_and_remaining_values() {
        let (pool, directory) = (Pool::default(), Directory::new());
        let [old, new] = [1, 2].map(|value| pool.make(|_| value));
        let weak = [old.downgrade(), new.downgrade()];
        directory.insert(5, &old);
        directory.insert(5, &new);
        drop((old, new));
        until(|| weak[0].upgrade().is_none());
        assert_eq!(directory.find(5).map(|value| *value), Some(2));
        drop(directory);
        assert!(weak[1].upgrade().is_none());
    }

    // A value that reports whether it was dropped.
    struct Live(Arc<AtomicU32>, AtomicBool);

    impl Drop for Live {
        fn drop(&mut self) {
            self.1.store(false, Ordering::SeqCst);
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    #[test]
    fn a_dropped_value_is_never_found() {
        let is_slow = std::env::var_os("POLYVERBS_MEMORY_CHECK").is_some();
        let rounds = if is_slow { 200 } else { 20_000 };
        let (pool, directory) = (Pool::default(), Directory::<Live>::new());
        let dropped = Arc::new(AtomicU32::new(0));
        let over = AtomicBool::new(false);
        thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while !over.load(Ordering::Relaxed) {
                        let pinned = pin();
                        if let Some(value) = directory.get(3, &pinned) {
                            assert!(value.1.load(Ordering::SeqCst));
                        }
                        drop(pinned);
                        if let Some(value) = directory.find(3) {
                            assert!(value.1.load(Ordering::SeqCst));
                        }
                    }
                });
            }
            for _ in 0..rounds {
                let value = pool.make(|_| Live(Arc::clone(&dropped), AtomicBool::new(true)));
                directory.insert(3, &value);
                drop(value);
                drop(directory.remove(3));
            }
            over.store(true, Ordering::Relaxed);
        });
        until(|| dropped.load(Ordering::SeqCst) == rounds);
    }
}
