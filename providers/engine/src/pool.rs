//! A pool: values of one type in adjacent memory, each counted like an [`Arc`].
//!
//! Objects that the data path uses often are stored here in the order in which they were made, with nothing between them.
//! So a program that serves its queue pairs in turn reads memory in order, and one that picks them at random finds them on
//! few pages. A value never moves. Its place is reused after the last reference is dropped; the memory is freed with the
//! pool and the last value.

// Values are stored in memory that the pool allocates in chunks.
#![allow(unsafe_code)]

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::fmt;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::{Arc, Weak};

use verbs_api::provider::MadeOnce;

use crate::sync::Mutex;

/// A pool in which values of one type are made.
pub struct Pool<T>(Arc<Mutex<Book<T>>>);

impl<T> Default for Pool<T> {
    fn default() -> Self {
        let book = Book {
            chunks: Vec::new(),
            fresh: 0,
            free: Vec::new(),
        };
        Self(Arc::new(Mutex::new(book)))
    }
}

impl<T> Pool<T> {
    /// Makes a value in the pool. `make` gets a weak reference to the new value, which the value may store.
    pub fn make(&self, make: impl FnOnce(PoolWeak<T>) -> T) -> PoolRef<T> {
        let owner = Arc::new_cyclic(|me| {
            let value = make(PoolWeak(me.clone()));
            let at = self.0.lock().take();
            // SAFETY: no other value has this place, which has the right size and alignment.
            unsafe { at.write(value) };
            Pooled {
                at,
                places: Arc::clone(&self.0),
            }
        });
        PoolRef::from(owner)
    }
}

/// A value of a pool, together with its place there. There is one for each value, in an [`Arc`] that counts the references.
pub struct Pooled<T> {
    at: NonNull<T>,
    places: Arc<Mutex<Book<T>>>,
}

// SAFETY: this owns its value, as a box does.
unsafe impl<T: Send> Send for Pooled<T> {}
// SAFETY: this owns its value, as a box does.
unsafe impl<T: Sync> Sync for Pooled<T> {}

impl<T> Deref for Pooled<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: the value was written before this was made, and is dropped only with it.
        unsafe { self.at.as_ref() }
    }
}

impl<T> Drop for Pooled<T> {
    fn drop(&mut self) {
        // SAFETY: the value is dropped once, and its place is freed afterwards.
        unsafe { self.at.drop_in_place() };
        self.places.lock().free.push(self.at);
    }
}

/// A counted reference to a value of a pool. Reaching the value costs as much as following a pointer.
pub struct PoolRef<T> {
    at: NonNull<T>,
    owner: Arc<Pooled<T>>,
}

// SAFETY: this lends shared references only, and the last one drops the value, as an `Arc` does.
unsafe impl<T: Send + Sync> Send for PoolRef<T> {}
// SAFETY: this lends shared references only, and the last one drops the value, as an `Arc` does.
unsafe impl<T: Send + Sync> Sync for PoolRef<T> {}

impl<T> PoolRef<T> {
    /// Returns the `Arc` that counts the references to the value.
    pub const fn owner(&self) -> &Arc<Pooled<T>> {
        &self.owner
    }

    /// Converts this reference into the `Arc` that counts the references to the value.
    pub fn into_owner(self) -> Arc<Pooled<T>> {
        self.owner
    }

    /// Returns a weak reference, which does not keep the value alive.
    pub fn downgrade(&self) -> PoolWeak<T> {
        PoolWeak(Arc::downgrade(&self.owner))
    }
}

impl<T> From<Arc<Pooled<T>>> for PoolRef<T> {
    fn from(owner: Arc<Pooled<T>>) -> Self {
        Self {
            at: owner.at,
            owner,
        }
    }
}

impl<T> Clone for PoolRef<T> {
    fn clone(&self) -> Self {
        Self {
            at: self.at,
            owner: Arc::clone(&self.owner),
        }
    }
}

impl<T> Deref for PoolRef<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: this is the value of `owner`, which exists as long as this reference.
        unsafe { self.at.as_ref() }
    }
}

/// A weak reference to a value of a pool, which does not keep the value alive.
pub struct PoolWeak<T>(Weak<Pooled<T>>);

impl<T> PoolWeak<T> {
    /// Returns a counted reference; `None` if the value was dropped or is still being made.
    pub fn upgrade(&self) -> Option<PoolRef<T>> {
        self.0.upgrade().map(PoolRef::from)
    }

    /// Returns the weak `Arc` reference to the value.
    pub const fn owner(&self) -> &Weak<Pooled<T>> {
        &self.0
    }
}

impl<T> Clone for PoolWeak<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T> fmt::Debug for PoolWeak<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(Weak)")
    }
}

struct Book<T> {
    chunks: Vec<Chunk<T>>,
    // Never used places of the last chunk begin here.
    fresh: usize,
    free: Vec<NonNull<T>>,
}

// SAFETY: the places hold no value that a `Pooled` does not own.
unsafe impl<T> Send for Book<T> {}

struct Chunk<T> {
    at: NonNull<T>,
    places: usize,
    layout: Layout,
}

impl<T> Chunk<T> {
    /// Allocates a chunk for `places` values, or one of the size of a large page if they need as much.
    fn allocate(places: usize) -> Self {
        let least = Layout::array::<T>(places).expect("a chunk is small");
        let large = Layout::from_size_align(LARGE_PAGE, LARGE_PAGE).expect("a power of two");
        let layout = if least.size() < LARGE_PAGE {
            least
        } else {
            large
        };
        // SAFETY: the size is not zero, because there are places and a value has a size (asserted below).
        let at = unsafe { alloc(layout) };
        let Some(at) = NonNull::new(at) else {
            handle_alloc_error(layout)
        };
        if layout.align() == LARGE_PAGE
            && let Some(advise) = ADVISE.made()
        {
            advise(NonNull::slice_from_raw_parts(at, layout.size()));
        }
        Self {
            at: at.cast(),
            places: layout.size() / size_of::<T>(),
            layout,
        }
    }
}

/// The size of the system's large pages in bytes: 2 MiB.
pub const LARGE_PAGE: usize = 2 << 20;

/// The function that asks the system to back a chunk with large pages.
static ADVISE: MadeOnce<fn(NonNull<[u8]>)> = MadeOnce::new();

/// Makes the pools call `advise` with each chunk of the size and alignment of a large page before they use it, so that the
/// system can back it with one: a program that picks values at random then needs one address translation instead of
/// hundreds. The first call applies to the whole process.
pub fn use_large_pages(advise: fn(NonNull<[u8]>)) {
    ADVISE.get_or_make(|| advise);
}

/// The number of places of the first chunk. Each chunk has twice as many as the one before, until one fills a large page.
const FIRST: usize = 8;

impl<T> Book<T> {
    fn take(&mut self) -> NonNull<T> {
        if let Some(at) = self.free.pop() {
            return at;
        }
        const { assert!(size_of::<T>() > 0) };
        let room = self.chunks.last().map_or(0, |chunk| chunk.places);
        if self.fresh == room {
            self.chunks.push(Chunk::allocate((2 * room).max(FIRST)));
            self.fresh = 0;
        }
        let chunk = &self.chunks[self.chunks.len() - 1];
        let at = self.fresh;
        self.fresh += 1;
        // SAFETY: `at` is below the number of places.
        unsafe { chunk.at.add(at) }
    }
}

impl<T> Drop for Book<T> {
    fn drop(&mut self) {
        for chunk in self.chunks.drain(..) {
            // SAFETY: the chunk was allocated with this layout; no `Pooled` is left, because each holds the places.
            unsafe { dealloc(chunk.at.as_ptr().cast(), chunk.layout) };
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn values_are_adjacent_and_never_move() {
        let pool = Pool::default();
        let values: Vec<_> = (0..FIRST as u64).map(|n| pool.make(|_| n)).collect();
        let more: Vec<_> = (0..10_000u64).map(|n| pool.make(|_| n)).collect();
        let address = |value: &PoolRef<u64>| value.at.as_ptr() as usize;
        for (n, value) in values.iter().enumerate() {
            assert_eq!(address(value), address(&values[0]) + n * size_of::<u64>());
            assert_eq!(**value, n as u64);
        }
        assert!(
            more.iter()
                .enumerate()
                .all(|(n, value)| **value == n as u64)
        );
    }

    #[test]
    fn the_last_reference_drops_the_value_and_frees_its_place() {
        struct Told(Arc<AtomicUsize>);
        impl Drop for Told {
            fn drop(&mut self) {
                self.0.fetch_add(1, Ordering::Relaxed);
            }
        }
        let dropped = Arc::new(AtomicUsize::new(0));
        let pool = Pool::default();
        let one = pool.make(|_| Told(Arc::clone(&dropped)));
        let (other, weak, at) = (one.clone(), one.downgrade(), one.at);
        drop(one);
        assert_eq!(dropped.load(Ordering::Relaxed), 0);
        assert!(weak.upgrade().is_some_and(|again| again.at == other.at));
        drop(other);
        assert_eq!(dropped.load(Ordering::Relaxed), 1);
        assert!(weak.upgrade().is_none());
        assert_eq!(pool.make(|_| Told(Arc::clone(&dropped))).at, at);
    }

    #[test]
    fn a_value_outlives_its_pool() {
        let pool = Pool::default();
        let value = pool.make(|_| String::from("here"));
        drop(pool);
        assert_eq!(&**value, "here");
    }

    #[test]
    fn a_value_may_refer_to_itself() {
        struct Own(PoolWeak<Own>);
        let pool = Pool::default();
        let value = pool.make(|me| {
            assert!(me.upgrade().is_none(), "not made yet");
            Own(me)
        });
        assert!(value.0.upgrade().is_some_and(|same| same.at == value.at));
    }
}
