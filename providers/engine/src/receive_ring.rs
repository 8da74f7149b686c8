//! The ring of posted receives, of a QP or of an SRQ.
//!
//! A slot is one cache line: sequence number, request, up to two scatter entries; more spill into a box. Programs post
//! under a lock of their own; the one consumer is a state that lives within the responder's half of the QP and so under
//! its lock, or in a lock of its own for an SRQ. Who posts many receives ahead saves the consumer a cache miss for each.
//!
//! # Running dry
//! A responder that finds no receive must not sleep through one that is being posted:
//! - the poster drops its lock and calls [`ReceiveRing::take_starved`], which fences, then looks
//!   at the flag;
//! - the responder calls [`ReceiveRing::set_starved_and_recheck`], which sets the flag, fences,
//!   then looks at the ring.
//!
//! Whichever fence comes first, one of the two sees the other. Read `lock` first.

// Spilled scatter lists are owned by raw pointers in the slots.
#![allow(unsafe_code)]

use std::ptr;
use std::sync::OnceLock;

use smallvec::SmallVec;
use verbs_api::{Sge, wr::ReceiveRequest};

use crate::lock::{Lock, LockClass, LockGuard};
use crate::sync::{AtomicBool, AtomicPtr, AtomicU64, Line, Ordering, full_fence};

/// A scatter/gather entry as numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RawSge {
    /// Address.
    pub addr: u64,
    /// Bytes.
    pub length: u32,
    /// Local key.
    pub lkey: u32,
}

impl From<&Sge> for RawSge {
    #[inline]
    fn from(sge: &Sge) -> Self {
        Self {
            addr: sge.addr(),
            length: sge.length(),
            lkey: sge.lkey().value(),
        }
    }
}

/// A scatter list; up to two entries need no allocation.
pub type SmallSges = SmallVec<[RawSge; INLINE]>;

/// A posted receive.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Receive {
    /// The program's number.
    pub wr_id: u64,
    /// The number of the buffer that the program lent with it; 0: none.
    pub loan: u32,
    /// Whether the buffer is private, so that an ordinary copy may fill it.
    pub private: bool,
    /// Where the message goes.
    pub sges: SmallSges,
}

impl Receive {
    /// The ring's form of a receive that a program posts.
    pub(crate) fn of(request: &ReceiveRequest<'_>) -> Self {
        let sges = request.data.sges();
        Self {
            wr_id: request.wr_id,
            loan: sges.loan.to_bits(),
            private: sges.private,
            sges: sges.list.iter().map(RawSge::from).collect(),
        }
    }
}

/// A ring of posted receives.
pub struct ReceiveRing {
    slots: OnceLock<Box<[Slot]>>,
    capacity: u32,
    starved: AtomicBool,
    producer: Line<ProducerSide>,
    /// Receives ever taken; written by the consumer.
    head: Line<AtomicU64>,
}

impl ReceiveRing {
    /// Makes an empty ring for `capacity` receives, and its consumer. Slots are made at the first
    /// post; a capacity of 0 takes none.
    ///
    /// # Panics
    /// If `capacity` exceeds [`MAX_CAPACITY`].
    pub fn new(capacity: u32) -> (Self, ReceiveConsumer) {
        assert!(capacity <= MAX_CAPACITY);
        let producer = ReceiveProducer { tail: 0, head: 0 };
        let producer = ProducerSide {
            lock: Lock::new(LockClass::Receive, producer),
            tail: AtomicU64::new(0),
        };
        // The model checker does not know `OnceLock`: under it the slots are there from the start.
        let slots = if cfg!(loom) {
            make_slots(capacity).into()
        } else {
            OnceLock::new()
        };
        let ring = Self {
            slots,
            capacity,
            starved: AtomicBool::new(false),
            producer: Line(producer),
            head: Line(AtomicU64::new(0)),
        };
        (ring, ReceiveConsumer { head: 0 })
    }

    /// Takes the producer lock, for one post or a batch.
    #[inline]
    pub fn producer(&self) -> LockGuard<'_, ReceiveProducer> {
        self.producer.lock.lock()
    }

    /// Adds a receive; `producer` is this ring's, locked.
    ///
    /// Call [`take_starved`](Self::take_starved) once after the batch, when the lock is dropped.
    ///
    /// # Errors
    /// The receive, if the ring is full.
    #[inline]
    pub fn post(&self, producer: &mut ReceiveProducer, receive: Receive) -> Result<(), Receive> {
        let at = producer.tail;
        if at - producer.head >= u64::from(self.capacity) {
            producer.head = self.head.load(Ordering::Acquire);
            if at - producer.head >= u64::from(self.capacity) {
                return Err(receive);
            }
        }
        let slots = self.slots.get_or_init(|| make_slots(self.capacity));
        slot_at(slots, at).write(at, receive);
        producer.tail = at + 1;
        self.producer.tail.store(at + 1, Ordering::Relaxed);
        Ok(())
    }

    /// Takes the oldest receive; `consumer` is this ring's.
    #[inline]
    pub fn take(&self, consumer: &mut ReceiveConsumer) -> Option<Receive> {
        let at = consumer.head;
        let slot = slot_at(self.slots.get()?, at);
        let receive = slot.take(slot.holds(at)?);
        consumer.head = at + 1;
        // Release: the slot has been read when the poster sees this and writes it again.
        self.head.store(at + 1, Ordering::Release);
        Some(receive)
    }

    /// The one entry of the oldest receive, if it has just one and no lent buffer; it stays.
    #[inline]
    pub fn peek_one(&self, consumer: &ReceiveConsumer) -> Option<RawSge> {
        let slot = slot_at(self.slots.get()?, consumer.head);
        (slot.holds(consumer.head)? as u32 == 1).then(|| slot.read_entry(0))
    }

    /// Takes the receive that [`peek_one`](Self::peek_one) found; returns its number.
    #[inline]
    pub fn pop_one(&self, consumer: &mut ReceiveConsumer) -> u64 {
        let Some(slots) = self.slots.get() else {
            return 0;
        };
        let wr_id = slot_at(slots, consumer.head).wr_id.load(Ordering::Relaxed);
        consumer.head += 1;
        crate::sync::prefetch(ptr::from_ref(slot_at(slots, consumer.head)).cast());
        // Release: as in `take`.
        self.head.store(consumer.head, Ordering::Release);
        wr_id
    }

    /// The number of receives that wait, as last published by both sides.
    pub fn len(&self) -> usize {
        let head = self.head.load(Ordering::Acquire);
        let tail = self.producer.tail.load(Ordering::Relaxed);
        tail.saturating_sub(head) as usize
    }

    /// Whether no receive waits, as last published by both sides.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Consumer: notes that there was no receive, then looks again.
    ///
    /// Returns `true` if there is one now: the note is withdrawn and the caller goes on. On
    /// `false` the next post resumes the peer.
    #[must_use]
    pub fn set_starved_and_recheck(&self, consumer: &ReceiveConsumer) -> bool {
        self.starved.store(true, Ordering::Relaxed);
        full_fence();
        let next = self.slots.get().map(|slots| slot_at(slots, consumer.head));
        if next.and_then(|slot| slot.holds(consumer.head)).is_none() {
            return false;
        }
        self.starved.store(false, Ordering::Relaxed);
        true
    }

    /// Poster, after dropping the lock: whether the consumer ran dry and must be resumed.
    ///
    /// Answers `true` to one caller only. Resume with no lock held; it may find nothing to do.
    #[must_use]
    #[inline]
    pub fn take_starved(&self) -> bool {
        full_fence();
        self.starved.load(Ordering::Relaxed) && self.starved.swap(false, Ordering::AcqRel)
    }
}

/// The state of the side that posts, under its lock.
#[derive(Debug)]
pub struct ReceiveProducer {
    /// Receives ever posted.
    tail: u64,
    /// Receives ever taken, as last seen.
    head: u64,
}

/// The state of the side that takes; there is one per ring. The responder keeps it.
#[derive(Debug)]
pub struct ReceiveConsumer {
    /// Receives ever taken.
    head: u64,
}

struct ProducerSide {
    lock: Lock<ReceiveProducer>,
    /// Receives ever posted, for `len`.
    tail: AtomicU64,
}

/// One receive on one cache line. Every access is atomic, so that a producer or a consumer of
/// another ring, passed by mistake, makes nonsense but no undefined behaviour.
#[derive(Default)]
#[repr(align(64))]
struct Slot {
    /// The sequence number above the number of entries and the flag. Stored last, with release.
    state: AtomicU64,
    wr_id: AtomicU64,
    loan: AtomicU64,
    /// Owned, or null. A box of a box, because the pointer to a slice is two words.
    spilled: AtomicPtr<Box<[RawSge]>>,
    /// For each entry the address, then length above key.
    sges: [[AtomicU64; 2]; INLINE],
}

impl Slot {
    /// The state of the receive at `position`, if that is what the slot holds.
    #[inline]
    fn holds(&self, position: u64) -> Option<u64> {
        let state = self.state.load(Ordering::Acquire);
        (state >> 32 == (position + 1) & SEQUENCE).then_some(state)
    }

    #[inline]
    fn write(&self, position: u64, receive: Receive) {
        self.wr_id.store(receive.wr_id, Ordering::Relaxed);
        self.loan.store(receive.loan.into(), Ordering::Relaxed);
        let num_sge = match receive.sges.spilled() {
            false => self.write_inline(&receive.sges),
            true => {
                let list = Box::new(receive.sges.into_boxed_slice());
                self.spilled.store(Box::into_raw(list), Ordering::Release);
                SPILLED
            }
        };
        let state = ((position + 1) & SEQUENCE) << 32 | u64::from(num_sge);
        self.state.store(
            state | if receive.private { PRIVATE } else { 0 },
            Ordering::Release,
        );
    }

    #[inline]
    fn write_inline(&self, sges: &[RawSge]) -> u8 {
        for (words, sge) in self.sges.iter().zip(sges) {
            words[0].store(sge.addr, Ordering::Relaxed);
            let second = u64::from(sge.length) << 32 | u64::from(sge.lkey);
            words[1].store(second, Ordering::Relaxed);
        }
        sges.len() as u8
    }

    #[inline]
    fn take(&self, state: u64) -> Receive {
        let sges = match state as u8 {
            SPILLED => self.take_spilled().into_vec().into(),
            len => {
                let entries = std::array::from_fn(|at| self.read_entry(at));
                SmallSges::from_buf_and_len(entries, INLINE.min(len.into()))
            }
        };
        Receive {
            wr_id: self.wr_id.load(Ordering::Relaxed),
            loan: self.loan.load(Ordering::Relaxed) as u32,
            private: state & PRIVATE != 0,
            sges,
        }
    }

    #[inline]
    fn read_entry(&self, at: usize) -> RawSge {
        let [addr, second] = &self.sges[at];
        let second = second.load(Ordering::Relaxed);
        RawSge {
            addr: addr.load(Ordering::Relaxed),
            length: (second >> 32) as u32,
            lkey: second as u32,
        }
    }

    #[cold]
    fn take_spilled(&self) -> Box<[RawSge]> {
        let list = self.spilled.swap(ptr::null_mut(), Ordering::AcqRel);
        if list.is_null() {
            return Box::default();
        }
        // SAFETY: made by `Box::into_raw`; the exchange gave its ownership to this caller alone.
        *unsafe { Box::from_raw(list) }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.take_spilled();
    }
}

#[cold]
fn make_slots(capacity: u32) -> Box<[Slot]> {
    (0..capacity.next_power_of_two())
        .map(|_| Slot::default())
        .collect()
}

#[inline]
fn slot_at(slots: &[Slot], position: u64) -> &Slot {
    &slots[position as usize & (slots.len() - 1)]
}

/// The largest capacity: sequence numbers of one lap must differ.
pub const MAX_CAPACITY: u32 = 1 << 30;

/// Scatter entries that fit a slot.
pub const INLINE: usize = 2;

/// The number of entries of a list that spilled.
const SPILLED: u8 = u8::MAX;

/// The bit of a slot's state that says that the buffer is private.
const PRIVATE: u64 = 1 << 8;

/// The bits of a position that a slot stores.
const SEQUENCE: u64 = u32::MAX as u64;

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Mutex;
    use std::thread;

    use super::*;

    fn receive(n: u64, num_sge: usize) -> Receive {
        let sge = |i: usize| RawSge {
            addr: n << 8 | i as u64,
            length: u32::MAX - i as u32,
            lkey: 9,
        };
        Receive {
            wr_id: n,
            loan: n as u32,
            private: n % 2 == 1,
            sges: (0..num_sge).map(sge).collect(),
        }
    }

    fn post(ring: &ReceiveRing, receive: Receive) -> Result<(), Receive> {
        ring.post(&mut ring.producer(), receive)
    }

    #[test]
    fn a_slot_is_one_line() {
        assert_eq!((size_of::<Slot>(), align_of::<Slot>()), (64, 64));
    }

    #[test]
    fn receives_come_back_as_posted() {
        let (ring, mut consumer) = ReceiveRing::new(4);
        assert_eq!(ring.take(&mut consumer), None);
        for n in 0..40 {
            let posted = receive(n, n as usize % 5);
            post(&ring, posted.clone()).unwrap();
            assert_eq!(ring.len(), 1);
            assert_eq!(ring.take(&mut consumer), Some(posted));
            assert_eq!(ring.take(&mut consumer), None);
        }
    }

    #[test]
    fn a_full_ring_hands_the_receive_back() {
        let (ring, mut consumer) = ReceiveRing::new(3);
        let mut producer = ring.producer();
        for n in 0..3 {
            ring.post(&mut producer, receive(n, 1)).unwrap();
        }
        assert_eq!(ring.post(&mut producer, receive(3, 4)), Err(receive(3, 4)));
        ring.take(&mut consumer).unwrap();
        ring.post(&mut producer, receive(4, 4)).unwrap();
        assert_eq!(ring.len(), 3);
    }

    #[test]
    fn a_ring_without_capacity_refuses() {
        let (ring, mut consumer) = ReceiveRing::new(0);
        assert!(post(&ring, receive(0, 0)).is_err());
        assert_eq!(ring.take(&mut consumer), None);
    }

    #[test]
    fn spilled_lists_are_freed_with_the_ring() {
        let (ring, _consumer) = ReceiveRing::new(8);
        (0..8).for_each(|n| post(&ring, receive(n, 5)).unwrap());
    }

    #[test]
    fn a_dry_ring_resumes_once() {
        let (ring, consumer) = ReceiveRing::new(2);
        assert!(!ring.take_starved());
        assert!(!ring.set_starved_and_recheck(&consumer));
        post(&ring, receive(0, 0)).unwrap();
        assert!(ring.take_starved() && !ring.take_starved());
        assert!(
            ring.set_starved_and_recheck(&consumer),
            "there is one by now"
        );
        assert!(!ring.take_starved());
    }

    /// An SRQ: several consumers behind a lock of the caller's.
    #[test]
    fn many_threads_take_each_receive_once() {
        const COUNT: u64 = 30_000;
        let (ring, consumer) = ReceiveRing::new(16);
        let consumer = Mutex::new(consumer);
        let taken = AtomicU64::new(0);
        let sum = AtomicU64::new(0);
        thread::scope(|scope| {
            scope.spawn(|| {
                for n in 0..COUNT {
                    while post(&ring, receive(n, n as usize % 4)).is_err() {
                        thread::yield_now();
                    }
                }
            });
            for _ in 0..2 {
                scope.spawn(|| {
                    while taken.load(Ordering::Relaxed) < COUNT {
                        let Some(got) = ring.take(&mut consumer.lock().unwrap()) else {
                            thread::yield_now();
                            continue;
                        };
                        assert_eq!(got, receive(got.wr_id, got.wr_id as usize % 4));
                        sum.fetch_add(got.wr_id, Ordering::Relaxed);
                        taken.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
        });
        assert_eq!(sum.into_inner(), COUNT * (COUNT - 1) / 2);
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use loom::sync::Arc;

    use super::*;
    use crate::sync::{model, relax, thread};

    fn receive(n: u64) -> Receive {
        let sge = RawSge {
            addr: n,
            length: 1,
            lkey: 1,
        };
        Receive {
            wr_id: n,
            sges: SmallSges::from_elem(sge, if n == 2 { 3 } else { 1 }),
            ..Receive::default()
        }
    }

    #[test]
    fn what_is_taken_is_what_was_posted() {
        model(|| {
            let (ring, mut consumer) = ReceiveRing::new(1);
            let ring = Arc::new(ring);
            let poster = {
                let ring = ring.clone();
                thread::spawn(move || {
                    for n in 1..=2 {
                        while ring.post(&mut ring.producer(), receive(n)).is_err() {
                            relax();
                        }
                    }
                })
            };
            for n in 1..=2 {
                let got = loop {
                    match ring.take(&mut consumer) {
                        Some(got) => break got,
                        None => relax(),
                    }
                };
                assert_eq!(got, receive(n));
            }
            poster.join().unwrap();
        });
    }

    /// A responder that found nothing and rests is resumed by the post.
    #[test]
    fn a_dry_responder_is_always_resumed() {
        model(|| {
            let (ring, mut consumer) = ReceiveRing::new(1);
            let ring = Arc::new(ring);
            let poster = {
                let ring = ring.clone();
                thread::spawn(move || {
                    ring.post(&mut ring.producer(), receive(1)).unwrap();
                    ring.take_starved()
                })
            };
            let served = ring.take(&mut consumer).is_some()
                || ring.set_starved_and_recheck(&consumer) && ring.take(&mut consumer).is_some();
            let resumed = poster.join().unwrap();
            assert!(served || resumed);
        });
    }
}
