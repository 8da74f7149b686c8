//! The ring of a completion queue.
//!
//! A slot is four words; the last one carries the sequence number of its entry and is stored last, with release. A consumer
//! knows from the slot at its head whether there is an entry, so an empty poll reads that one slot and takes no lock. The
//! states of producer and consumer are on cache lines of their own, so that a thread that polls and a thread that pushes
//! share only the slots.
//!
//! Read `lock` first. The producer lock is of class [`LockClass::CqProducer`], the consumer's of [`LockClass::CqConsumer`].
//! If a push reports that the ring was armed, the caller wakes the waiting thread after it has released the producer lock.

// The current array of slots is reached through an atomic pointer.
#![allow(unsafe_code)]

use std::ptr;
use std::sync::OnceLock;

use crate::array::filled;
use crate::lock::{Lock, LockClass, LockGuard};
use crate::sync::{AtomicPtr, AtomicU64, Line, Mutex, Ordering};

/// A completion as the ring stores it. The ring does not interpret the words: the completion queue defines their meaning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Entry {
    /// Three words of the caller's data.
    pub words: [u64; 3],
    /// The caller's data in the lower 30 bits, and the flag [`Entry::SOLICITED`].
    pub tail: u32,
}

impl Entry {
    /// Bit of `tail`: the completion is solicited or reports an error. Either wakes a thread that armed the ring with
    /// [`Armed::Solicited`].
    pub const SOLICITED: u32 = 1 << 31;

    /// Bit of `tail` that only the ring sets: the entry has an additional word.
    const EXTENDED: u32 = 1 << 30;
}

/// The entry whose push wakes the thread that waits for the ring. One wake-up disarms the ring.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Armed {
    /// No entry: the ring is not armed.
    #[default]
    No,
    /// The next entry that is solicited or reports an error.
    Solicited,
    /// The next entry of any kind.
    Next,
}

/// The error of a push that adds no entry: the ring is full or closed, or memory for its slots cannot be allocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overrun;

/// Why a resize was refused. The ring keeps its capacity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResizeError {
    /// The ring holds this many entries that were not polled, which is more than the new capacity.
    Pending(u32),
    /// Memory for the new slots cannot be allocated.
    Memory,
}

/// A ring of completions, with one lock for the threads that push and one for the threads that poll.
pub struct CompletionRing {
    /// The current array of slots; null before the first push. It changes only at that push and when the ring is resized.
    current: AtomicPtr<Array>,
    arrays: Mutex<Arrays>,
    producer: Line<Lock<Producer>>,
    consumer: Line<Consumer>,
}

impl CompletionRing {
    /// Creates an empty ring for `capacity` entries; 0 counts as 1. Its slots are allocated at the first push.
    ///
    /// # Panics
    /// If `capacity` exceeds [`MAX_CAPACITY`].
    pub fn new(capacity: u32) -> Self {
        assert!(capacity <= MAX_CAPACITY);
        let producer = Producer {
            tail: 0,
            head: 0,
            capacity: capacity.max(1),
            room: capacity.max(1),
            armed: Armed::No,
        };
        let consumer = Consumer {
            lock: Lock::new(LockClass::CqConsumer, ()),
            head: AtomicU64::new(0),
        };
        Self {
            current: AtomicPtr::new(ptr::null_mut()),
            arrays: Mutex::new(Arrays(Vec::new())),
            producer: Line(Lock::new(LockClass::CqProducer, producer)),
            consumer: Line(consumer),
        }
    }

    /// Takes the producer lock, for one push or several.
    #[inline]
    pub fn producer(&self) -> LockGuard<'_, Producer> {
        self.producer.lock()
    }

    /// Adds an entry, and with it the additional word `ext` if it is given, for which memory is allocated on first use.
    /// `producer` is this ring's producer state, which the caller has locked.
    ///
    /// Returns whether the ring was armed for the entry. If so, the caller wakes the waiting thread after it has released
    /// the lock.
    ///
    /// # Errors
    /// [`Overrun`] if the ring is closed, already holds as many unpolled entries as its capacity, or has no memory for
    /// them.
    #[inline]
    pub fn push(
        &self,
        producer: &mut Producer,
        entry: Entry,
        ext: Option<u64>,
    ) -> Result<bool, Overrun> {
        let (array, at) = self.claim(producer)?;
        let mut tail = entry.tail & !Entry::EXTENDED;
        if let Some(word) = ext {
            array.ext(at).ok_or(Overrun)?.store(word, Ordering::Relaxed);
            tail |= Entry::EXTENDED;
        }
        array.slot(at).write(at, entry.words, tail);
        producer.tail = at + 1;
        Ok(producer.trigger(entry.tail))
    }

    /// Removes up to `max` entries, oldest first, and passes each to `out` with its additional word, if it has one. Returns
    /// how many entries it removed.
    ///
    /// `out` runs under the consumer lock, so it must only store the entries.
    #[inline]
    pub fn poll(&self, out: &mut impl FnMut(Entry, Option<u64>), max: usize) -> usize {
        if self.is_empty() {
            return 0;
        }
        self.poll_locked(out, max)
    }

    /// Returns the number of entries that were ever polled. This takes no lock.
    pub fn polled(&self) -> u64 {
        self.consumer.head.load(Ordering::Acquire)
    }

    /// Returns the number of entries that were pushed and not polled yet.
    pub fn len(&self) -> usize {
        self.pending(&self.producer()) as usize
    }

    /// Returns the number of unpolled entries that the ring may hold.
    pub fn capacity(&self) -> u32 {
        self.producer().capacity
    }

    /// Arms the ring for one wake-up. On a ring that is armed already, [`Armed::Next`] replaces [`Armed::Solicited`], never
    /// the reverse.
    ///
    /// Returns `true` if the ring holds entries already. They cause no wake-up, so the caller polls again before it sleeps.
    pub fn arm(&self, kind: Armed) -> bool {
        let mut producer = self.producer();
        producer.armed = producer.armed.max(kind);
        self.pending(&producer) > 0
    }

    /// Changes the capacity; 0 counts as 1. Unpolled entries stay in the ring.
    ///
    /// # Errors
    /// The ring holds more unpolled entries than `capacity`, or memory for the slots cannot be allocated. The capacity
    /// stays then.
    ///
    /// # Panics
    /// If `capacity` exceeds [`MAX_CAPACITY`].
    pub fn resize(&self, capacity: u32) -> Result<(), ResizeError> {
        assert!(capacity <= MAX_CAPACITY);
        let capacity = capacity.max(1);
        let mut producer = self.producer();
        let _consumer = self.consumer.lock.lock();
        let pending = self.pending(&producer);
        if u64::from(capacity) < pending {
            return Err(ResizeError::Pending(pending as u32));
        }
        if let Some(old) = self.array().filter(|old| old.len() != array_len(capacity)) {
            let new = self.empty_array(capacity, producer.tail);
            let new = new.ok_or(ResizeError::Memory)?;
            // SAFETY: `arrays` keeps the array as long as this ring exists.
            let new_array = unsafe { &*new };
            let refilled = new_array.refill(old, producer.tail - pending, producer.tail);
            refilled.ok_or(ResizeError::Memory)?;
            self.current.store(new, Ordering::Release);
        }
        producer.capacity = capacity;
        if producer.room != 0 {
            producer.room = capacity;
        }
        Ok(())
    }

    /// Returns the current array and the position for the next entry, or [`Overrun`] if the ring has no room for it.
    #[inline]
    fn claim(&self, producer: &mut Producer) -> Result<(&Array, u64), Overrun> {
        let at = producer.tail;
        if at - producer.head >= u64::from(producer.room) {
            producer.head = self.consumer.head.load(Ordering::Acquire);
            if at - producer.head >= u64::from(producer.room) {
                return Err(Overrun);
            }
        }
        let array = self.array().or_else(|| self.make(producer));
        Ok((array.ok_or(Overrun)?, at))
    }

    #[cold]
    fn make(&self, producer: &mut Producer) -> Option<&Array> {
        let array = self.empty_array(producer.capacity, producer.tail)?;
        self.current.store(array, Ordering::Release);
        // SAFETY: `arrays` keeps the array as long as this ring exists.
        Some(unsafe { &*array })
    }

    /// Returns an array for `capacity` entries in which no slot holds the entry of a position from `tail` on; `None` if its
    /// memory cannot be allocated.
    fn empty_array(&self, capacity: u32, tail: u64) -> Option<*mut Array> {
        let mut arrays = self.arrays.lock();
        let array = arrays.of_len(array_len(capacity))?;
        // SAFETY: the pointers of the list are live.
        unsafe { &*array }.clear(tail);
        Some(array)
    }

    #[inline]
    fn array(&self) -> Option<&Array> {
        let array = self.current.load(Ordering::Acquire);
        // SAFETY: this is null, or an array that `arrays` keeps as long as this ring exists.
        unsafe { array.as_ref() }
    }

    /// Returns whether no entry waits to be polled. This takes no lock: another consumer may advance between the two loads,
    /// to a slot that has an entry, so this checks again until the head has not changed.
    #[inline]
    pub fn is_empty(&self) -> bool {
        let Some(array) = self.array() else {
            return true;
        };
        let mut head = self.consumer.head.load(Ordering::Acquire);
        loop {
            if array.slot(head).holds(head).is_some() {
                return false;
            }
            let now = self.consumer.head.load(Ordering::Acquire);
            if now == head {
                return true;
            }
            head = now;
        }
    }

    fn poll_locked(&self, out: &mut impl FnMut(Entry, Option<u64>), max: usize) -> usize {
        let _lock = self.consumer.lock.lock();
        let Some(array) = self.array() else { return 0 };
        let first = self.consumer.head.load(Ordering::Relaxed);
        let mut head = first;
        while head - first < max as u64 {
            let slot = array.slot(head);
            let Some(tail) = slot.holds(head) else { break };
            let entry = Entry {
                words: slot.words(),
                tail: tail & !Entry::EXTENDED,
            };
            let is_extended = tail & Entry::EXTENDED != 0;
            let word = is_extended.then(|| array.ext(head)).flatten();
            out(entry, word.map(|word| word.load(Ordering::Relaxed)));
            head += 1;
        }
        // Release: the slots have been read before the producer sees the new head and writes them again.
        self.consumer.head.store(head, Ordering::Release);
        (head - first) as usize
    }

    fn pending(&self, producer: &Producer) -> u64 {
        producer.tail - self.polled()
    }
}

/// The state that pushing threads share. The producer lock protects it.
pub struct Producer {
    /// The number of entries that were ever pushed.
    tail: u64,
    /// The number of entries that were ever polled, as the producer last read it.
    head: u64,
    capacity: u32,
    /// How many unpolled entries the ring may hold: the capacity, or 0 once the ring was closed.
    room: u32,
    armed: Armed,
}

impl Producer {
    /// Returns the number of entries that were ever pushed, which is the position of the next one.
    #[inline]
    pub fn pushed(&self) -> u64 {
        self.tail
    }

    /// Closes the ring: every later push fails with [`Overrun`]. Entries that the ring holds can still be polled.
    pub fn close(&mut self) {
        self.room = 0;
    }

    /// Returns whether the ring was armed for an entry with this `tail`, and disarms it in that case.
    #[inline]
    fn trigger(&mut self, tail: u32) -> bool {
        let triggered = match self.armed {
            Armed::No => false,
            Armed::Solicited => tail & Entry::SOLICITED != 0,
            Armed::Next => true,
        };
        if triggered {
            self.armed = Armed::No;
        }
        triggered
    }
}

/// Every array of slots that the ring ever used; the list owns the pointers. Arrays that a resize replaced stay allocated,
/// because an empty poll reads them without a lock. A resize to an earlier size uses that array again, so there is at most
/// one for each size.
struct Arrays(Vec<*mut Array>);

// SAFETY: the arrays consist of atomics, and the lock around this serialises the list of them.
unsafe impl Send for Arrays {}

impl Arrays {
    fn of_len(&mut self, len: usize) -> Option<*mut Array> {
        // SAFETY: the pointers of the list are live.
        let has_len = |&&array: &&*mut Array| unsafe { &*array }.len() == len;
        if let Some(&known) = self.0.iter().find(has_len) {
            return Some(known);
        }
        let array = Box::into_raw(Box::new(Array::new(len)?));
        self.0.push(array);
        Some(array)
    }
}

impl Drop for Arrays {
    fn drop(&mut self) {
        for array in self.0.drain(..) {
            // SAFETY: the pointer was made by `Box::into_raw` and is owned by the list, and the ring is being dropped.
            drop(unsafe { Box::from_raw(array) });
        }
    }
}

/// The state that polling threads share.
struct Consumer {
    lock: Lock<()>,
    /// The number of entries that were ever polled. It is written under the lock.
    head: AtomicU64,
}

/// Slots, and an additional word for each of them once an entry has needed one. The number of slots is a power of two.
struct Array {
    slots: Box<[Slot]>,
    ext: OnceLock<Box<[AtomicU64]>>,
}

impl Array {
    fn new(len: usize) -> Option<Self> {
        Some(Self {
            slots: filled(len)?,
            ext: OnceLock::new(),
        })
    }

    fn len(&self) -> usize {
        self.slots.len()
    }

    #[inline]
    fn slot(&self, position: u64) -> &Slot {
        &self.slots[position as usize & (self.slots.len() - 1)]
    }

    fn ext(&self, position: u64) -> Option<&AtomicU64> {
        let words = match self.ext.get() {
            Some(words) => words,
            None => {
                let made = filled(self.len())?;
                self.ext.get_or_init(|| made)
            }
        };
        Some(&words[position as usize & (self.len() - 1)])
    }

    /// Marks every slot as empty: its sequence number becomes one that none of the next entries, from position `tail` on,
    /// has.
    fn clear(&self, tail: u64) {
        for slot in &self.slots {
            slot.0[3].store((tail & SEQUENCE) << 32, Ordering::Relaxed);
        }
    }

    /// Copies the entries at positions from `head` to `tail`, exclusive, from the array `old`. Returns `None` if memory for
    /// their additional words cannot be allocated.
    fn refill(&self, old: &Self, head: u64, tail: u64) -> Option<()> {
        for at in head..tail {
            let (from, to) = (old.slot(at), self.slot(at));
            let Some(data) = from.holds(at) else { continue };
            if data & Entry::EXTENDED != 0 {
                let word = old.ext(at)?.load(Ordering::Relaxed);
                self.ext(at)?.store(word, Ordering::Relaxed);
            }
            to.write(at, from.words(), data);
        }
        Some(())
    }
}

/// One entry: three words of data, and a fourth with the sequence number in the upper half and `Entry::tail` in the lower.
#[derive(Default)]
#[repr(align(32))]
struct Slot([AtomicU64; 4]);

impl Slot {
    /// Returns the `tail` of the entry at `position`; `None` if the slot does not hold that entry.
    #[inline]
    fn holds(&self, position: u64) -> Option<u32> {
        let last = self.0[3].load(Ordering::Acquire);
        (last >> 32 == (position + 1) & SEQUENCE).then_some(last as u32)
    }

    #[inline]
    fn words(&self) -> [u64; 3] {
        [0, 1, 2].map(|at| self.0[at].load(Ordering::Relaxed))
    }

    #[inline]
    fn write(&self, position: u64, words: [u64; 3], tail: u32) {
        for (slot, word) in self.0.iter().zip(words) {
            slot.store(word, Ordering::Relaxed);
        }
        let sequence = (position + 1) & SEQUENCE;
        self.0[3].store(sequence << 32 | u64::from(tail), Ordering::Release);
    }
}

fn array_len(capacity: u32) -> usize {
    capacity.next_power_of_two() as usize
}

/// The largest capacity of a ring: no two entries in the ring may have the same 32-bit sequence number.
pub const MAX_CAPACITY: u32 = 1 << 30;

/// The mask of the bits of a position that a slot stores as its sequence number.
const SEQUENCE: u64 = u32::MAX as u64;

#[cfg(all(test, not(loom)))]
mod tests {
    use std::collections::VecDeque;
    use std::thread;

    use super::*;

    fn entry(n: u64) -> Entry {
        Entry {
            words: [n, !n, n << 7],
            tail: n as u32 & 0xff_ffff,
        }
    }

    fn push(ring: &CompletionRing, n: u64) -> Result<bool, Overrun> {
        ring.push(&mut ring.producer(), entry(n), None)
    }

    fn poll(ring: &CompletionRing, max: usize) -> Vec<u64> {
        let mut all = vec![];
        let count = ring.poll(
            &mut |got, ext| {
                assert_eq!((got, ext), (entry(got.words[0]), None));
                all.push(got.words[0]);
            },
            max,
        );
        assert_eq!(count, all.len());
        all
    }

    #[test]
    fn a_closed_ring_returns_its_entries_and_takes_none() {
        let ring = CompletionRing::new(2);
        push(&ring, 0).unwrap();
        ring.producer().close();
        assert_eq!(push(&ring, 1), Err(Overrun));
        assert_eq!(poll(&ring, 9), [0]);
        ring.resize(8).unwrap();
        assert_eq!((push(&ring, 1), ring.capacity()), (Err(Overrun), 8));
    }

    #[test]
    fn a_ring_keeps_an_entry_pushed_with_another_rings_producer() {
        let ring = CompletionRing::new(64);
        let other = CompletionRing::new(64);
        ring.push(&mut other.producer(), entry(7), None).unwrap();
        drop(other);
        let elsewhere = CompletionRing::new(64);
        push(&elsewhere, 8).unwrap();
        assert_eq!(poll(&ring, 9), [7]);
    }

    #[test]
    fn arming_is_for_one_entry() {
        let ring = CompletionRing::new(8);
        assert!(!ring.arm(Armed::Next));
        assert_eq!(push(&ring, 0), Ok(true));
        assert_eq!(push(&ring, 1), Ok(false));
        assert!(ring.arm(Armed::Next), "entries are present");
    }

    #[test]
    fn solicited_waits_for_its_bit_and_never_downgrades() {
        let ring = CompletionRing::new(8);
        let solicited = Entry {
            words: [0; 3],
            tail: Entry::SOLICITED,
        };
        ring.arm(Armed::Solicited);
        assert_eq!(push(&ring, 0), Ok(false));
        assert_eq!(ring.push(&mut ring.producer(), solicited, None), Ok(true));
        ring.arm(Armed::Next);
        ring.arm(Armed::Solicited);
        assert_eq!(push(&ring, 0), Ok(true));
        ring.arm(Armed::Solicited);
        ring.arm(Armed::Next);
        assert_eq!(push(&ring, 0), Ok(true));
        ring.arm(Armed::Solicited);
        ring.arm(Armed::No);
        assert_eq!(ring.push(&mut ring.producer(), solicited, None), Ok(true));
    }

    #[test]
    fn extensions_travel_with_their_entry() {
        let ring = CompletionRing::new(4);
        push(&ring, 0).unwrap();
        let pushed = ring.push(&mut ring.producer(), entry(1), Some(4));
        assert_eq!(pushed, Ok(false));
        ring.resize(100).unwrap();
        let mut all = vec![];
        ring.poll(&mut |got, ext| all.push((got, ext)), 9);
        assert_eq!(all, [(entry(0), None), (entry(1), Some(4))]);
    }

    /// Sequence numbers wrap at 2^32; a fresh slot must not look like the entry of that position.
    #[test]
    fn positions_beyond_32_bits_work() {
        let ring = CompletionRing::new(2);
        let start = u64::from(u32::MAX) - 5;
        ring.producer().tail = start;
        ring.producer().head = start;
        ring.consumer.head.store(start, Ordering::Relaxed);
        for n in 0..20 {
            assert!(poll(&ring, 1).is_empty());
            push(&ring, n).unwrap();
            ring.resize(2 + n as u32 % 7).unwrap();
            assert_eq!(poll(&ring, 9), [n]);
        }
    }

    #[test]
    fn generated_operations_match_a_queue() {
        // A ring has room for at least one entry.
        let ring = CompletionRing::new(0);
        let (mut model, mut capacity, mut random) = (VecDeque::new(), 1, 1u64);
        for n in 0..50_000 {
            random = random
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            let (kind, value) = (random >> 60, (random >> 40) as u32 % 20 + 1);
            match kind {
                0..9 => {
                    let fits = model.len() < capacity as usize;
                    assert_eq!(push(&ring, n).is_ok(), fits);
                    model.extend(fits.then_some(n));
                }
                9..15 => {
                    let count = (value as usize % 4).min(model.len());
                    let expected: Vec<_> = model.drain(..count).collect();
                    assert_eq!(poll(&ring, value as usize % 4), expected);
                }
                _ => {
                    let fits = value as usize >= model.len();
                    let refused = Err(ResizeError::Pending(model.len() as u32));
                    assert_eq!(ring.resize(value), if fits { Ok(()) } else { refused });
                    capacity = if fits { value } else { capacity };
                }
            }
            assert_eq!((ring.len(), ring.capacity()), (model.len(), capacity));
            assert_eq!(ring.is_empty(), model.is_empty());
        }
    }

    #[test]
    fn two_producers_and_two_consumers_lose_nothing() {
        const EACH: u64 = 20_000;
        let ring = CompletionRing::new(64);
        let sum = AtomicU64::new(0);
        let count = AtomicU64::new(0);
        thread::scope(|scope| {
            for producer in 0..2 {
                let ring = &ring;
                scope.spawn(move || {
                    for n in 0..EACH {
                        while push(ring, n * 2 + producer).is_err() {
                            thread::yield_now();
                        }
                    }
                });
            }
            for _ in 0..2 {
                scope.spawn(|| {
                    while count.load(Ordering::Relaxed) < 2 * EACH {
                        let got = poll(&ring, 7);
                        if got.is_empty() {
                            thread::yield_now();
                        }
                        sum.fetch_add(got.iter().sum(), Ordering::Relaxed);
                        count.fetch_add(got.len() as u64, Ordering::Relaxed);
                    }
                });
            }
            scope.spawn(|| (0..50).all(|n| ring.resize(64 + 40 * (n % 3)).is_ok()));
        });
        assert_eq!(sum.into_inner(), (2 * EACH) * (2 * EACH - 1) / 2);
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use loom::sync::Arc;

    use super::*;
    use crate::sync::{AtomicBool, model, relax, thread};

    fn entry(n: u64) -> Entry {
        Entry {
            words: [n; 3],
            tail: n as u32,
        }
    }

    #[test]
    fn polled_entries_are_the_pushed_ones() {
        model(|| {
            let ring = Arc::new(CompletionRing::new(1));
            let producer = {
                let ring = ring.clone();
                thread::spawn(move || {
                    for n in 1..=2 {
                        while ring.push(&mut ring.producer(), entry(n), None).is_err() {
                            relax();
                        }
                    }
                })
            };
            for n in 1..=2 {
                while ring.poll(&mut |got, _| assert_eq!(got, entry(n)), 1) == 0 {
                    relax();
                }
            }
            producer.join().unwrap();
        });
    }

    #[test]
    fn two_consumers_share_each_entry_once() {
        model(|| {
            let ring = Arc::new(CompletionRing::new(2));
            (1..=2).for_each(|n| assert!(ring.push(&mut ring.producer(), entry(n), None).is_ok()));
            let other = {
                let ring = ring.clone();
                thread::spawn(move || ring.poll(&mut |_, _| (), 1))
            };
            let mine = ring.poll(&mut |_, _| (), 1);
            assert_eq!(
                (mine, other.join().unwrap()),
                (1, 1),
                "never empty by mistake"
            );
        });
    }

    /// A waiter that armed the ring, found nothing and sleeps is woken by the push.
    #[test]
    fn no_wake_up_is_lost() {
        model(|| {
            let ring = Arc::new(CompletionRing::new(1));
            let woken = Arc::new(AtomicBool::new(false));
            let producer = {
                let (ring, woken) = (ring.clone(), woken.clone());
                thread::spawn(move || {
                    let triggered = ring.push(&mut ring.producer(), entry(1), None).unwrap();
                    if triggered {
                        woken.store(true, Ordering::Release);
                    }
                })
            };
            let missed = ring.arm(Armed::Next);
            producer.join().unwrap();
            assert!(
                missed != woken.load(Ordering::Acquire),
                "one of the two, never both"
            );
            assert_eq!(ring.poll(&mut |_, _| (), 1), 1);
        });
    }
}
