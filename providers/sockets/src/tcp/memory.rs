//! Memory that carries the octets of a connection between two processes of one machine.
//!
//! One end makes it and passes it to the other, which *accepts* it. For each direction there is a ring of octets. Whoever
//! writes one says at which octet of TCP's stream it *starts*, once the other has accepted. What comes by TCP behind that
//! only wakes a side that sleeps.
//!
//! | where | what |
//! | --- | --- |
//! | 0, 256: what the maker writes, what the other does | `tail`, which the writer moves; one more than the octet of TCP's stream where it starts, or 0; whether he waits for room; 128 behind: `head`, which the reader moves |
//! | 512, 576: the maker, the other | the number of a sleep, odd while he sleeps |
//! | 640 | whether the other has accepted |
//! | 4096 | the rings |
//!
//! Positions only grow. Those of the other side are believed as far as they make sense, and octets are copied before
//! anybody looks at them.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};

use verbs_api::memory::Span;

use crate::memory::{Mapping, SharedMemory, SleepWord};

/// One end of the memory of a connection: one thread at a time puts, and one takes.
#[derive(Debug)]
pub struct StreamMemory {
    mapping: Mapping,
    side: Side,
    /// Of what is put; the reader believes its own.
    tail: AtomicU64,
    /// Of what the other has taken of it, as it was when it was last looked at.
    left: AtomicU64,
    /// Of what is taken.
    head: AtomicU64,
    /// There was no room.
    waits: AtomicBool,
}

/// New memory, for the other end.
#[derive(Debug)]
pub struct NewMemory(SharedMemory);

/// Positions in shared memory that make no sense.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Nonsense;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Maker,
    Other,
}

impl Side {
    const fn other(self) -> Self {
        match self {
            Self::Maker => Self::Other,
            Self::Other => Self::Maker,
        }
    }

    const fn index(self) -> usize {
        self as usize
    }
}

impl StreamMemory {
    /// New memory, and what the other end is to be passed.
    ///
    /// # Errors
    /// The system has none.
    pub fn make() -> io::Result<(Self, NewMemory)> {
        let memory = SharedMemory::new(OCTETS as u64)?;
        let made = Self::on(&memory, Side::Maker)?;
        for side in [Side::Maker, Side::Other] {
            // Until somebody looks.
            made.sleep_of(side).sleep();
        }
        Ok((made, NewMemory(memory)))
    }

    /// What another process has made and passed; `None` if it is something else.
    pub(super) fn of(descriptor: OwnedFd) -> Option<Self> {
        let memory = SharedMemory::of(descriptor, OCTETS as u64)?;
        Self::on(&memory, Side::Other).ok()
    }

    fn on(memory: &SharedMemory, side: Side) -> io::Result<Self> {
        Ok(Self {
            mapping: memory.map(0, OCTETS)?,
            side,
            tail: AtomicU64::new(0),
            left: AtomicU64::new(0),
            head: AtomicU64::new(0),
            waits: AtomicBool::new(false),
        })
    }

    fn ring(&self, writer: Side) -> Ring<'_> {
        let at = writer.index() * RING;
        Ring {
            mapping: &self.mapping,
            words: at,
            octets: FIRST + writer.index() * ROOM,
        }
    }

    fn outgoing(&self) -> Ring<'_> {
        self.ring(self.side)
    }

    fn incoming(&self) -> Ring<'_> {
        self.ring(self.side.other())
    }

    fn sleep_of(&self, side: Side) -> SleepWord<'_> {
        SleepWord(self.mapping.word(SLEEPS + side.index() * SLEEP))
    }

    // ---- the beginning

    /// Says that this end knows of the memory: the maker may put.
    pub fn accept(&self) {
        self.mapping.word(ACCEPTED).store(1, Ordering::Release);
    }

    /// Whether this end may put: the other knows of the memory.
    pub fn is_accepted(&self) -> bool {
        self.side == Side::Other || self.mapping.word(ACCEPTED).load(Ordering::Acquire) != 0
    }

    /// What is put from now on follows on so many octets by TCP.
    pub fn start(&self, octets: u64) {
        self.outgoing()
            .started()
            .store(octets + 1, Ordering::Release);
    }

    /// Behind how many octets by TCP there is what can be taken, if the other has said so.
    pub fn started(&self) -> Option<u64> {
        self.incoming()
            .started()
            .load(Ordering::Acquire)
            .checked_sub(1)
    }

    // ---- out

    /// Puts down as many of `octets` as there is room for; how many. Then somebody may have to be [woken](Self::asleep).
    pub fn put(&self, octets: &[u8]) -> usize {
        let mut tail = self.tail.load(Ordering::Relaxed);
        let mut room = room(tail, self.left.load(Ordering::Relaxed));
        if room < octets.len() {
            room = self.room();
        }
        let ring = self.outgoing();
        let taken = octets.len().min(room);
        // The reader begins before all of it is there.
        for piece in octets[..taken].chunks(PIECE) {
            let (first, second) = ring.spans(tail, piece.len());
            let (one, other) = piece.split_at(first.len());
            first.write(one);
            second.write(other);
            tail = tail.wrapping_add(piece.len() as u64);
            self.tail.store(tail, Ordering::Relaxed);
            ring.tail().store(tail, Ordering::Release);
        }
        taken
    }

    fn room(&self) -> usize {
        let left = self.outgoing().head().load(Ordering::Acquire);
        self.left.store(left, Ordering::Relaxed);
        room(self.tail.load(Ordering::Relaxed), left)
    }

    /// There was no room: whoever takes something says so when there is much again. Whether there is by now.
    pub fn wait_for_room(&self) -> bool {
        self.waits.store(true, Ordering::Relaxed);
        self.outgoing().waits().store(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        self.has_room()
    }

    /// Whether room is waited for.
    pub fn waits(&self) -> bool {
        self.waits.load(Ordering::Relaxed)
    }

    /// Whether there is room that was waited for.
    pub fn has_room(&self) -> bool {
        self.waits() && self.room() >= MUCH
    }

    /// It is not waited for any more.
    pub fn waits_no_more(&self) {
        self.waits.store(false, Ordering::Relaxed);
        self.outgoing().waits().store(0, Ordering::Relaxed);
    }

    // ---- in

    /// Whether there is something to take.
    #[inline]
    pub fn has_some(&self) -> bool {
        let tail = self.incoming().tail().load(Ordering::Acquire);
        tail != self.head.load(Ordering::Relaxed)
    }

    /// Takes what is there and fits; how many octets. Then somebody may have to be [told](Self::waits_asleep).
    ///
    /// # Errors
    /// There is more than there can be.
    pub fn take(&self, into: &mut [u8]) -> Result<usize, Nonsense> {
        let ring = self.incoming();
        let head = self.head.load(Ordering::Relaxed);
        let there = ring.tail().load(Ordering::Acquire).wrapping_sub(head);
        if there > ROOM as u64 {
            return Err(Nonsense);
        }
        let taken = into.len().min(there as usize);
        if taken > 0 {
            let (first, second) = ring.spans(head, taken);
            let (one, other) = into[..taken].split_at_mut(first.len());
            first.read(one);
            second.read(other);
            let head = head.wrapping_add(taken as u64);
            self.head.store(head, Ordering::Relaxed);
            ring.head().store(head, Ordering::Release);
        }
        Ok(taken)
    }

    // ---- sleeping

    /// From now on this end is woken. Something may be there already: look.
    pub fn sleep(&self) {
        self.sleep_of(self.side).sleep();
    }

    /// This end looks again.
    pub fn wake(&self) {
        self.sleep_of(self.side).wake();
    }

    /// The number of the other's sleep, if it sleeps and cannot have seen what was put.
    pub fn asleep(&self) -> Option<u32> {
        fence(Ordering::SeqCst);
        self.sleep_of(self.side.other()).number()
    }

    /// The number of the other's sleep, if it sleeps and waits for room, of which there is much.
    pub fn waits_asleep(&self) -> Option<u32> {
        fence(Ordering::SeqCst);
        let ring = self.incoming();
        if ring.waits().load(Ordering::SeqCst) == 0 {
            return None;
        }
        let head = self.head.load(Ordering::Relaxed);
        let has_much = room(ring.tail().load(Ordering::Acquire), head) >= MUCH;
        has_much.then(|| self.asleep()).flatten()
    }

    /// The other has been woken from this sleep; it may sleep again by now.
    pub fn woken(&self, sleep: u32) {
        self.sleep_of(self.side.other()).woken(sleep);
    }
}

impl AsFd for NewMemory {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// One direction.
struct Ring<'m> {
    mapping: &'m Mapping,
    words: usize,
    octets: usize,
}

impl<'m> Ring<'m> {
    fn tail(&self) -> &'m AtomicU64 {
        self.mapping.long(self.words)
    }

    fn started(&self) -> &'m AtomicU64 {
        self.mapping.long(self.words + 8)
    }

    fn waits(&self) -> &'m AtomicU32 {
        self.mapping.word(self.words + 16)
    }

    fn head(&self) -> &'m AtomicU64 {
        self.mapping.long(self.words + 128)
    }

    // Octets from a position on: up to the end, and from the beginning.
    fn spans(&self, position: u64, length: usize) -> (Span<'m>, Span<'m>) {
        let at = (position % ROOM as u64) as usize;
        let first = length.min(ROOM - at);
        (
            self.mapping.span(self.octets + at, first),
            self.mapping.span(self.octets, length - first),
        )
    }
}

// A reader that lies counts as one that has read nothing.
const fn room(tail: u64, head: u64) -> usize {
    (ROOM as u64).saturating_sub(tail.wrapping_sub(head)) as usize
}

const RING: usize = 256;
const SLEEPS: usize = 512;
const SLEEP: usize = 64;
const ACCEPTED: usize = 640;
const FIRST: usize = 4096;
/// Octets of a ring: a power of two.
const ROOM: usize = 256 << 10;
const OCTETS: usize = FIRST + 2 * ROOM;
/// Octets that are published at once.
const PIECE: usize = 32 << 10;
/// Room that is worth waking somebody for.
const MUCH: usize = ROOM / 2;
const _: () = assert!(ROOM.is_power_of_two());

#[cfg(test)]
mod tests;
