//! The ring of receives that are posted on a queue pair.
//!
//! A slot takes half a cache line, a *segment*: its state, the `wr_id` and one scatter entry. Each further segment has two
//! more entries, and the queue pair's `max_recv_sge` determines how many segments a slot has. Programs post under a lock.
//! The state of the one consumer is part of the queue pair's responder half, under that half's lock. The consumer only
//! reads slots and writes to that half, so it takes no cache miss for the slots of a program that posts many receives
//! ahead.
//!
//! # Running dry
//! A responder that finds no receive must not miss a receive that is being posted:
//! - the poster releases its lock and calls [`ReceiveRing::take_starved`], which fences, then reads the flag;
//! - the responder calls [`ReceiveRing::set_starved_and_recheck`], which sets the flag, fences, then reads the ring.
//!
//! Whichever fence comes first, one of the two sees the other's store. Read `lock` first.

use std::sync::OnceLock;

use smallvec::SmallVec;
use verbs_api::{Sge, wr::ReceiveRequest};

use crate::array::filled;
use crate::sync::{AtomicBool, AtomicU32, AtomicU64, Ordering, full_fence};

/// A scatter/gather entry as plain numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RawSge {
    /// The address of the first byte of the memory.
    pub addr: u64,
    /// The number of bytes of the memory.
    pub length: u32,
    /// The L_Key of the memory region.
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

/// The scatter entries of one receive; up to two need no allocation.
pub type SmallSges = SmallVec<[RawSge; 2]>;

/// A posted receive, as the ring returns it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Receive {
    /// The program's `wr_id`.
    pub wr_id: u64,
    /// The number of the loan: the buffer that the program lent with the receive; 0 if it lent none.
    pub loan: u32,
    /// Whether the memory is a private buffer, which the program has lent with the receive.
    pub private: bool,
    /// The scatter entries: the memory in which a message is placed.
    pub sges: SmallSges,
}

impl Receive {
    /// Converts a receive request into the form that the ring stores.
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

/// Why a receive was not added to the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// The ring holds as many receives as its capacity permits.
    Full,
    /// The memory for the ring's slots cannot be allocated.
    Memory,
}

/// A ring of the receives that are posted on one queue pair.
pub struct ReceiveRing {
    segments: OnceLock<Box<[Segment]>>,
    capacity: u32,
    /// The number of the ring's slots, a power of two.
    slots: u32,
    /// The number of segments of which each slot consists.
    length: u16,
    starved: AtomicBool,
}

impl ReceiveRing {
    /// Creates an empty ring for `capacity` receives of at most `max_sge` entries. Its slots are allocated at the first
    /// post; a capacity of 0 needs none.
    ///
    /// # Panics
    /// If `capacity` exceeds [`MAX_CAPACITY`], or `max_sge` exceeds 65,535.
    pub fn new(capacity: u32, max_sge: u32) -> Self {
        assert!(capacity <= MAX_CAPACITY && u64::from(max_sge) <= NUM_SGE);
        let ring = Self {
            segments: OnceLock::new(),
            capacity,
            slots: capacity.next_power_of_two(),
            length: (max_sge + 1).div_ceil(2) as u16,
            starved: AtomicBool::new(false),
        };
        // The model checker does not know `OnceLock`, so under it the slots are allocated at once.
        if cfg!(loom) {
            ring.make_slots();
        }
        ring
    }

    /// Adds a receive to the ring. `producer` is this ring's producer state, which the caller has locked; `taken` is this
    /// ring's position of the consumer.
    ///
    /// After the last post of a batch, and after it has released the lock, the caller calls
    /// [`take_starved`](Self::take_starved).
    ///
    /// # Errors
    /// The ring is full, or memory for its slots cannot be allocated.
    ///
    /// # Panics
    /// If the receive has more entries than a slot of the ring.
    #[inline]
    pub fn post(
        &self,
        producer: &mut ReceiveProducer,
        taken: &Taken,
        receive: Receive,
    ) -> Result<(), Refused> {
        let at = producer.posted;
        if at.wrapping_sub(producer.taken) >= self.capacity {
            producer.taken = taken.0.load(Ordering::Acquire);
            if at.wrapping_sub(producer.taken) >= self.capacity {
                return Err(Refused::Full);
            }
        }
        let segments = match self.segments.get() {
            Some(segments) => segments,
            None => self.make_slots().ok_or(Refused::Memory)?,
        };
        self.slot(segments, at).write(self.lap(at), &receive);
        producer.posted = at.wrapping_add(1);
        Ok(())
    }

    /// Takes the oldest posted receive; `None` if there is none. `consumer` and `taken` are those of this ring.
    #[inline]
    pub fn take(&self, consumer: &mut ReceiveConsumer, taken: &Taken) -> Option<Receive> {
        let receive = self.oldest(consumer)?.read();
        consumer.step(taken);
        Some(receive)
    }

    /// Returns the scatter entry of the oldest posted receive, if it has exactly one and no private buffer or loan. The
    /// receive stays in the ring.
    #[inline]
    pub fn peek_one(&self, consumer: &ReceiveConsumer) -> Option<RawSge> {
        let slot = self.slot(self.segments.get()?, consumer.taken);
        (slot.state() == self.lap(consumer.taken) | 1).then(|| slot.entry(0))
    }

    /// Takes the receive whose entry [`peek_one`](Self::peek_one) has returned. Returns its `wr_id`.
    #[inline]
    pub fn pop_one(&self, consumer: &mut ReceiveConsumer, taken: &Taken) -> u64 {
        let Some(segments) = self.segments.get() else {
            return 0;
        };
        let slot = self.slot(segments, consumer.taken);
        let wr_id = slot.word(WR_ID).load(Ordering::Relaxed);
        consumer.step(taken);
        let next = self.slot(segments, consumer.taken);
        crate::sync::prefetch(next.0.as_ptr().cast());
        wr_id
    }

    /// Returns whether a receive is posted that was not taken yet.
    #[inline]
    pub fn has_one(&self, consumer: &ReceiveConsumer) -> bool {
        self.oldest(consumer).is_some()
    }

    /// Notes for the poster that the consumer has found no receive, then checks the ring again.
    ///
    /// Returns `true` if there is a receive now: the note is withdrawn and the caller continues. After `false` the next
    /// post resumes the peer, whose message waits for a receive.
    #[must_use]
    pub fn set_starved_and_recheck(&self, consumer: &ReceiveConsumer) -> bool {
        self.starved.store(true, Ordering::Relaxed);
        full_fence();
        if !self.has_one(consumer) {
            return false;
        }
        self.starved.store(false, Ordering::Relaxed);
        true
    }

    /// Returns whether the consumer has found the ring empty and must be resumed. The poster calls this after it has
    /// released the lock.
    ///
    /// One caller only gets `true`. It resumes the consumer with no lock held, and the consumer may find nothing to do.
    #[must_use]
    #[inline]
    pub fn take_starved(&self) -> bool {
        full_fence();
        self.starved.load(Ordering::Relaxed) && self.starved.swap(false, Ordering::AcqRel)
    }

    #[cold]
    fn make_slots(&self) -> Option<&[Segment]> {
        let made = filled(self.slots as usize * usize::from(self.length))?;
        Some(self.segments.get_or_init(|| made))
    }

    /// Returns the slot of the receive with this number, counted from the first one ever posted.
    #[inline]
    fn slot<'r>(&self, segments: &'r [Segment], number: u32) -> Slot<'r> {
        let length = usize::from(self.length);
        let first = (number & (self.slots - 1)) as usize * length;
        Slot(&segments[first..first + length])
    }

    /// Returns the bit in a slot's state that shows that the slot holds the receive with this number, not that of the lap
    /// before.
    #[inline]
    const fn lap(&self, number: u32) -> u64 {
        if number & self.slots == 0 { LAP } else { 0 }
    }

    #[inline]
    fn oldest(&self, consumer: &ReceiveConsumer) -> Option<Slot<'_>> {
        let slot = self.slot(self.segments.get()?, consumer.taken);
        (slot.state() & LAP == self.lap(consumer.taken)).then_some(slot)
    }
}

/// The state that threads which post receives share. The producer lock protects it.
#[derive(Debug, Default)]
pub struct ReceiveProducer {
    /// The number of receives that were ever posted to the ring.
    posted: u32,
    /// The number of receives that were ever taken, as the producer last read it.
    taken: u32,
}

impl ReceiveProducer {
    /// Returns how many receives were posted and not taken yet.
    pub const fn ahead_of(&self, consumer: &ReceiveConsumer) -> u32 {
        self.posted.wrapping_sub(consumer.taken)
    }
}

/// The state of the side that takes receives, one for each ring, under the responder's lock.
#[derive(Debug, Default)]
pub struct ReceiveConsumer {
    /// The number of receives that were ever taken from the ring.
    taken: u32,
}

impl ReceiveConsumer {
    #[inline]
    fn step(&mut self, taken: &Taken) {
        self.taken = self.taken.wrapping_add(1);
        // Release: the slot has been read before the poster sees the new number and writes the slot again.
        taken.0.store(self.taken, Ordering::Release);
    }
}

/// The number of receives that the consumer has taken, which the poster reads to find free slots.
#[derive(Debug, Default)]
pub struct Taken(AtomicU32);

/// A part of a slot: half a cache line.
#[derive(Default)]
#[repr(align(32))]
struct Segment([AtomicU64; WORDS]);

/// A slot: its state, the request's number, and for each entry the address, then length above key. Every access is atomic,
/// so that a producer or a consumer of another ring, passed by mistake, causes wrong values but no undefined behaviour.
struct Slot<'r>(&'r [Segment]);

impl Slot<'_> {
    #[inline]
    fn word(&self, index: usize) -> &AtomicU64 {
        &self.0[index / WORDS].0[index % WORDS]
    }

    #[inline]
    fn state(&self) -> u64 {
        self.word(STATE).load(Ordering::Acquire)
    }

    #[inline]
    fn write(&self, lap: u64, receive: &Receive) {
        self.word(WR_ID).store(receive.wr_id, Ordering::Relaxed);
        for (index, sge) in receive.sges.iter().enumerate() {
            let at = ENTRIES + 2 * index;
            let second = u64::from(sge.length) << 32 | u64::from(sge.lkey);
            self.word(at).store(sge.addr, Ordering::Relaxed);
            self.word(at + 1).store(second, Ordering::Relaxed);
        }
        let private = if receive.private { PRIVATE } else { 0 };
        let state = lap | private | receive.sges.len() as u64 | u64::from(receive.loan) << 32;
        // Release: a thread that sees this store sees the stores before it.
        self.word(STATE).store(state, Ordering::Release);
    }

    #[inline]
    fn read(&self) -> Receive {
        let state = self.state();
        let num_sge = (state & NUM_SGE) as usize;
        Receive {
            wr_id: self.word(WR_ID).load(Ordering::Relaxed),
            loan: (state >> 32) as u32,
            private: state & PRIVATE != 0,
            sges: (0..num_sge).map(|index| self.entry(index)).collect(),
        }
    }

    #[inline]
    fn entry(&self, index: usize) -> RawSge {
        let at = ENTRIES + 2 * index;
        let second = self.word(at + 1).load(Ordering::Relaxed);
        RawSge {
            addr: self.word(at).load(Ordering::Relaxed),
            length: (second >> 32) as u32,
            lkey: second as u32,
        }
    }
}

/// The largest capacity of a ring. The bit above the slot number in a receive's number changes with each lap through the
/// slots.
pub const MAX_CAPACITY: u32 = 1 << 30;

/// Words of a segment.
const WORDS: usize = 4;

/// The words at which the parts of a slot begin.
const STATE: usize = 0;
const WR_ID: usize = 1;
const ENTRIES: usize = 2;

/// The parts of a slot's state, below the number of the lent buffer: the number of entries; a bit that is set in every
/// other lap through the ring, and so shows whether the slot was written in this lap; whether the buffer is private.
const NUM_SGE: u64 = 0xffff;
const LAP: u64 = 1 << 16;
const PRIVATE: u64 = 1 << 17;

#[cfg(all(test, not(loom)))]
mod tests {
    use std::thread;

    use verbs_api::provider::Mutex;

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

    type Sides = (ReceiveProducer, ReceiveConsumer, Taken);

    #[test]
    fn a_slot_has_half_a_line_for_one_entry_and_a_line_for_three() {
        let sizes = [0, 1, 2, 3, 4].map(|max_sge| {
            let ring = ReceiveRing::new(1, max_sge);
            size_of_val(ring.make_slots().unwrap())
        });
        assert_eq!(sizes, [32, 32, 64, 64, 96]);
    }

    #[test]
    fn receives_come_back_as_posted() {
        let (mut producer, mut consumer, taken) = Sides::default();
        let ring = ReceiveRing::new(3, 4);
        assert_eq!(ring.take(&mut consumer, &taken), None);
        for n in 0..40 {
            let posted = receive(n, n as usize % 5);
            ring.post(&mut producer, &taken, posted.clone()).unwrap();
            assert_eq!(producer.ahead_of(&consumer), 1);
            assert_eq!(ring.take(&mut consumer, &taken), Some(posted));
            assert_eq!(ring.take(&mut consumer, &taken), None);
        }
    }

    #[test]
    fn only_a_single_entry_without_a_lent_buffer_is_peeked() {
        let (mut producer, mut consumer, taken) = Sides::default();
        let ring = ReceiveRing::new(4, 2);
        let one = Receive {
            loan: 0,
            private: false,
            ..receive(7, 1)
        };
        let private = Receive {
            private: true,
            ..one.clone()
        };
        for posted in [one.clone(), private, receive(2, 1), receive(2, 2)] {
            ring.post(&mut producer, &taken, posted.clone()).unwrap();
            let found = ring.peek_one(&consumer);
            assert_eq!(found, (posted == one).then(|| one.sges[0]));
            assert_eq!(ring.pop_one(&mut consumer, &taken), posted.wr_id);
        }
    }

    #[test]
    fn a_full_ring_refuses_a_receive() {
        let (mut producer, mut consumer, taken) = Sides::default();
        let ring = ReceiveRing::new(3, 4);
        for n in 0..3 {
            ring.post(&mut producer, &taken, receive(n, 1)).unwrap();
        }
        assert_eq!(
            ring.post(&mut producer, &taken, receive(3, 4)),
            Err(Refused::Full)
        );
        ring.take(&mut consumer, &taken).unwrap();
        ring.post(&mut producer, &taken, receive(4, 4)).unwrap();
        assert_eq!(producer.ahead_of(&consumer), 3);
    }

    #[test]
    fn a_ring_without_capacity_refuses() {
        let (mut producer, mut consumer, taken) = Sides::default();
        let ring = ReceiveRing::new(0, 1);
        assert!(ring.post(&mut producer, &taken, receive(0, 0)).is_err());
        assert_eq!(ring.take(&mut consumer, &taken), None);
    }

    #[test]
    fn a_dry_ring_resumes_once() {
        let (mut producer, consumer, taken) = Sides::default();
        let ring = ReceiveRing::new(2, 1);
        assert!(!ring.take_starved());
        assert!(!ring.set_starved_and_recheck(&consumer));
        ring.post(&mut producer, &taken, receive(0, 0)).unwrap();
        assert!(ring.take_starved() && !ring.take_starved());
        assert!(
            ring.set_starved_and_recheck(&consumer),
            "there is one by now"
        );
        assert!(!ring.take_starved());
    }

    /// Several consumers share one lock.
    #[test]
    fn many_threads_take_each_receive_once() {
        const COUNT: u64 = 30_000;
        let (mut producer, consumer, taken) = Sides::default();
        let ring = ReceiveRing::new(16, 3);
        let consumer = Mutex::new(consumer);
        let count = AtomicU64::new(0);
        let sum = AtomicU64::new(0);
        thread::scope(|scope| {
            scope.spawn(|| {
                for n in 0..COUNT {
                    let posted = receive(n, n as usize % 4);
                    while ring.post(&mut producer, &taken, posted.clone()).is_err() {
                        thread::yield_now();
                    }
                }
            });
            for _ in 0..2 {
                scope.spawn(|| {
                    while count.load(Ordering::Relaxed) < COUNT {
                        let Some(got) = ring.take(&mut consumer.lock(), &taken) else {
                            thread::yield_now();
                            continue;
                        };
                        assert_eq!(got, receive(got.wr_id, got.wr_id as usize % 4));
                        sum.fetch_add(got.wr_id, Ordering::Relaxed);
                        count.fetch_add(1, Ordering::Relaxed);
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
    fn taken_receives_are_the_posted_ones() {
        model(|| {
            let (mut producer, mut consumer) = Default::default();
            let ring = Arc::new((ReceiveRing::new(1, 3), Taken::default()));
            let poster = {
                let ring = ring.clone();
                thread::spawn(move || {
                    let (ring, taken) = &*ring;
                    for n in 1..=2 {
                        while ring.post(&mut producer, taken, receive(n)).is_err() {
                            relax();
                        }
                    }
                })
            };
            let (ring, taken) = &*ring;
            for n in 1..=2 {
                let got = loop {
                    match ring.take(&mut consumer, taken) {
                        Some(got) => break got,
                        None => relax(),
                    }
                };
                assert_eq!(got, receive(n));
            }
            poster.join().unwrap();
        });
    }

    /// A responder that found no receive and rests is resumed by the post.
    #[test]
    fn a_dry_responder_is_always_resumed() {
        model(|| {
            let (mut producer, mut consumer) = Default::default();
            let ring = Arc::new((ReceiveRing::new(1, 1), Taken::default()));
            let poster = {
                let ring = ring.clone();
                thread::spawn(move || {
                    let (ring, taken) = &*ring;
                    ring.post(&mut producer, taken, receive(1)).unwrap();
                    ring.take_starved()
                })
            };
            let (ring, taken) = &*ring;
            let served = ring.take(&mut consumer, taken).is_some()
                || ring.set_starved_and_recheck(&consumer)
                    && ring.take(&mut consumer, taken).is_some();
            let resumed = poster.join().unwrap();
            assert!(served || resumed);
        });
    }
}
