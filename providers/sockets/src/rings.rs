//! What the processes of a port send to one another without the kernel: rings in memory that all of them have.
//!
//! From each range to each there is a ring, written by the holder of the one and read by the holder of the other: who is
//! killed in the middle of a record has not published it, and nobody waits for him. A *door* for each range tells who has put
//! something there, whether anybody reads, and whether he sleeps. A sleeper is woken by a datagram to his socket, which
//! he watches anyway.
//!
//! | where | what |
//! | --- | --- |
//! | first page | 64 doors of 64 octets: `generation`, odd while somebody reads; `sleep`, odd while he sleeps; `has`, a bit for each writer |
//! | then 64 × 64 rings | a page with `tail`, which the writer moves, and `head`, which the reader does; then the records |
//!
//! A record is 16 octets and what was sent, in multiples of 16 and never across the end: length, length of a datagram, the
//! generation of the reader that it is for, the sender's port, the traffic class. What a dead reader left behind is of an
//! older generation. Nobody believes what lies there: it is copied, and then taken apart as what comes from a network.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use std::thread;
use std::time::{Duration, Instant};

use crate::group::{QpnRange, RANGES};
use crate::memory::{Mapping, SharedMemory, SleepWord, is_odd, next_odd};
use crate::piece::total;
use crate::receive::Message;
use crate::udp::{MAX_OCTETS, Transmit};

/// The memory of a port.
#[derive(Debug)]
pub(crate) struct Rings {
    memory: SharedMemory,
    doors: Mapping,
}

/// What became of something for another process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Put {
    /// It lies there.
    Taken,
    /// The reader does not keep up.
    Full,
    /// Nobody reads, or not what was asked for.
    Nobody,
}

struct Door<'r> {
    generation: &'r AtomicU32,
    sleep: &'r AtomicU32,
    has: &'r AtomicU64,
}

impl Rings {
    /// For a port that has none.
    pub(crate) fn new() -> io::Result<Self> {
        Self::with(SharedMemory::new(OCTETS)?)
    }

    /// What another process passed; `None` if it is something else.
    pub(crate) fn of(descriptor: OwnedFd) -> Option<Self> {
        Self::with(SharedMemory::of(descriptor, OCTETS)?).ok()
    }

    fn with(memory: SharedMemory) -> io::Result<Self> {
        let doors = memory.map(0, PAGE)?;
        Ok(Self { memory, doors })
    }

    fn door(&self, range: QpnRange) -> Door<'_> {
        let at = range.index() * DOOR;
        Door {
            generation: self.doors.word(at),
            sleep: self.doors.word(at + 4),
            has: self.doors.long(at + 8),
        }
    }

    /// Whether somebody reads what is put for this range.
    pub(crate) fn is_read(&self, range: QpnRange) -> bool {
        is_odd(self.door(range).generation.load(Ordering::Acquire))
    }

    fn ring(&self, from: QpnRange, to: QpnRange) -> io::Result<Mapping> {
        self.memory.map(place(from.index(), to.index()), RING)
    }

    /// Gives back the memory of what the last holder of a range has left. Call it with the range leased, before anything is
    /// put down from it or read there.
    pub(crate) fn let_go(&self, range: QpnRange) {
        for other in (0..RANGES).filter_map(QpnRange::of_index) {
            if self.has_records(other, range) {
                self.let_go_ring(other, range, true);
            }
            if self.has_records(range, other) {
                self.let_go_ring(range, other, false);
            }
        }
    }

    // Whether somebody has written there since the memory was made, or given back.
    fn has_records(&self, from: QpnRange, to: QpnRange) -> bool {
        let first = place(from.index(), to.index());
        let touched = self.memory.next_touched(first + PAGE as u64);
        touched.is_some_and(|touched| touched < first + RING as u64)
    }

    // What lies in a ring that nobody reads is of an older generation, also where a writer has just begun with it. Of one
    // that has a reader only he knows what he still wants.
    fn let_go_ring(&self, from: QpnRange, to: QpnRange, is_unread: bool) {
        let Ok(ring) = self.ring(from, to) else {
            return;
        };
        let tail = ring.long(TAIL).load(Ordering::Acquire);
        if is_unread {
            ring.long(HEAD).store(tail, Ordering::Release);
        }
        if ring.long(HEAD).load(Ordering::Acquire) == tail {
            let records = place(from.index(), to.index()) + PAGE as u64;
            self.memory.release(records, ROOM as u64);
        }
    }

    /// Whether the holder of a range has to be woken, after something was put down.
    pub(crate) fn sleep_of(&self, range: QpnRange) -> SleepWord<'_> {
        SleepWord(self.door(range).sleep)
    }
}

impl AsFd for Rings {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.memory.as_fd()
    }
}

/// The writer's end of a ring.
#[derive(Debug)]
pub(crate) struct Writer {
    ring: Mapping,
    from: QpnRange,
    to: QpnRange,
    tail: u64,
    /// As it was when it was last read: the reader is further, if anything.
    head: u64,
    /// The stretch of the ring in which it was last looked whether all has been read.
    stretch: usize,
    /// Until then nobody waits for the reader.
    impatient: Option<Instant>,
}

impl Writer {
    pub(crate) fn new(rings: &Rings, from: QpnRange, to: QpnRange) -> io::Result<Self> {
        let ring = rings.ring(from, to)?;
        Ok(Self {
            // Whoever had the range before wrote so far.
            tail: aligned(ring.long(TAIL).load(Ordering::Acquire)),
            head: aligned(ring.long(HEAD).load(Ordering::Acquire)),
            ring,
            from,
            to,
            stretch: 0,
            impatient: None,
        })
    }

    /// Puts down what `transmit` has, as one record. A reader who does not keep up is waited for, but not for long, nor
    /// again and again.
    pub(crate) fn put(&mut self, rings: &Rings, port: u16, transmit: &Transmit<'_>) -> Put {
        let put = self.try_put(rings, port, transmit);
        // Whoever writes to himself would wait for himself.
        if put != Put::Full || self.from == self.to {
            return put;
        }
        let began = Instant::now();
        if self.impatient.is_some_and(|until| began < until) {
            return Put::Full;
        }
        loop {
            thread::yield_now();
            let put = self.try_put(rings, port, transmit);
            if put != Put::Full {
                return put;
            }
            let now = Instant::now();
            if now - began > PATIENCE {
                self.impatient = Some(now + IMPATIENCE);
                return Put::Full;
            }
        }
    }

    fn try_put(&mut self, rings: &Rings, port: u16, transmit: &Transmit<'_>) -> Put {
        let door = rings.door(self.to);
        let generation = door.generation.load(Ordering::Acquire);
        let length = total(transmit.pieces);
        if !is_odd(generation) || length > MAX_OCTETS {
            return Put::Nobody;
        }
        let (at, needed) = (offset(self.tail), HEADER + length.next_multiple_of(HEADER));
        let skipped = if needed > ROOM - at || self.may_begin_anew(at) {
            ROOM - at
        } else {
            0
        };
        if !self.has_room((skipped + needed) as u64) {
            return Put::Full;
        }
        let at = if skipped > 0 {
            self.write_header(at, &Header::SKIP);
            0
        } else {
            at
        };
        let header = Header {
            length: length as u32,
            segment: transmit.segment.into(),
            generation,
            port,
            traffic_class: transmit.traffic_class,
        };
        self.write_header(at, &header);
        let mut to = at + HEADER;
        for piece in transmit.pieces {
            if let Some(span) = piece.span() {
                self.ring.span(PAGE + to, span.len()).copy_from(span);
                to += span.len();
            }
        }
        self.tail = self.tail.wrapping_add((skipped + needed) as u64);
        self.ring.long(TAIL).store(self.tail, Ordering::Release);
        // Of two that look at what the other has just written, one at least sees it.
        fence(Ordering::SeqCst);
        let bit = 1 << self.from.index();
        if door.has.load(Ordering::Relaxed) & bit == 0 {
            door.has.fetch_or(bit, Ordering::SeqCst);
        }
        Put::Taken
    }

    // What both sides have in their caches is the beginning, where nothing waits long.
    fn may_begin_anew(&mut self, at: usize) -> bool {
        let stretch = at / STRETCH;
        if std::mem::replace(&mut self.stretch, stretch) == stretch {
            return false;
        }
        self.head = aligned(self.ring.long(HEAD).load(Ordering::Acquire));
        stretch > 0 && self.head == self.tail
    }

    fn has_room(&mut self, needed: u64) -> bool {
        let fits = |head: u64, tail: u64| {
            // A reader that lies counts as one that has read nothing.
            tail.wrapping_sub(head)
                .checked_add(needed)
                .is_some_and(|used| used <= ROOM as u64)
        };
        if !fits(self.head, self.tail) {
            self.head = aligned(self.ring.long(HEAD).load(Ordering::Acquire));
        }
        fits(self.head, self.tail)
    }

    fn write_header(&self, at: usize, header: &Header) {
        self.ring.span(PAGE + at, HEADER).write(&header.as_octets());
    }
}

/// The reader's end of a ring.
#[derive(Debug)]
struct Reader {
    ring: Mapping,
    head: u64,
    /// Looks in a row that found nothing.
    idle: u32,
}

impl Reader {
    fn new(rings: &Rings, from: QpnRange, to: QpnRange) -> io::Result<Self> {
        let ring = rings.ring(from, to)?;
        Ok(Self {
            // Whoever had the range before read so far.
            head: aligned(ring.long(HEAD).load(Ordering::Acquire)),
            ring,
            idle: 0,
        })
    }

    fn tail(&self) -> u64 {
        aligned(self.ring.long(TAIL).load(Ordering::Acquire))
    }

    fn has_some(&self) -> bool {
        self.tail() != self.head
    }

    /// The next record, copied into `room`.
    fn take(&mut self, room: &mut [u8]) -> Option<Header> {
        loop {
            let tail = self.tail();
            let there = tail.wrapping_sub(self.head);
            if there == 0 {
                return None;
            }
            let at = offset(self.head);
            let header = self.read_header(at);
            let (length, left) = (header.length as usize, (ROOM - at) as u64);
            let used = if header == Header::SKIP {
                left
            } else {
                (HEADER + length.next_multiple_of(HEADER)) as u64
            };
            let is_one = header == Header::SKIP || length <= room.len().min(MAX_OCTETS);
            if !is_one || used > left || used > there || there > ROOM as u64 {
                // Nobody writes such things who means well.
                self.moved_to(tail);
                return None;
            }
            if header != Header::SKIP {
                self.ring
                    .span(PAGE + at + HEADER, length)
                    .read(&mut room[..length]);
            }
            self.moved_to(self.head.wrapping_add(used));
            if header != Header::SKIP {
                return Some(header);
            }
        }
    }

    fn moved_to(&mut self, head: u64) {
        self.head = head;
        self.ring.long(HEAD).store(head, Ordering::Release);
    }

    fn read_header(&self, at: usize) -> Header {
        let mut octets = [0; HEADER];
        self.ring.span(PAGE + at, HEADER).read(&mut octets);
        Header::of(octets)
    }
}

/// What goes before the octets of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Header {
    length: u32,
    /// Octets of each datagram but the last; one datagram if 0.
    segment: u32,
    generation: u32,
    port: u16,
    traffic_class: u8,
}

impl Header {
    /// The next record is at the beginning.
    const SKIP: Self = Self {
        length: u32::MAX,
        segment: 0,
        generation: 0,
        port: 0,
        traffic_class: 0,
    };

    fn as_octets(&self) -> [u8; HEADER] {
        let mut octets = [0; HEADER];
        octets[..4].copy_from_slice(&self.length.to_ne_bytes());
        octets[4..8].copy_from_slice(&self.segment.to_ne_bytes());
        octets[8..12].copy_from_slice(&self.generation.to_ne_bytes());
        octets[12..14].copy_from_slice(&self.port.to_ne_bytes());
        octets[14] = self.traffic_class;
        octets
    }

    fn of([a, b, c, d, e, f, g, h, i, j, k, l, m, n, class, _]: [u8; HEADER]) -> Self {
        Self {
            length: u32::from_ne_bytes([a, b, c, d]),
            segment: u32::from_ne_bytes([e, f, g, h]),
            generation: u32::from_ne_bytes([i, j, k, l]),
            port: u16::from_ne_bytes([m, n]),
            traffic_class: class,
        }
    }
}

/// What others put down for one range: whoever has this reads it.
#[derive(Debug)]
pub struct Mailbox {
    rings: Arc<Rings>,
    address: SocketAddr,
    range: QpnRange,
    generation: u32,
    readers: Box<[Option<Reader>]>,
    room: Box<[u8]>,
}

impl Mailbox {
    pub(crate) fn new(rings: Arc<Rings>, address: SocketAddr, range: QpnRange) -> Self {
        let door = rings.door(range);
        let generation = next_odd(door.generation.load(Ordering::Acquire));
        rings.sleep_of(range).sleep();
        door.generation.store(generation, Ordering::SeqCst);
        Self {
            rings,
            address,
            range,
            generation,
            readers: (0..RANGES).map(|_| None).collect(),
            room: vec![0; MAX_OCTETS].into(),
        }
    }

    /// Gives what lies there to `take`, some messages of each sender at most; answers how many.
    pub fn receive(&mut self, take: &mut dyn FnMut(&Message<'_>)) -> usize {
        let senders = self.rings.door(self.range).has.load(Ordering::Acquire);
        let mut due = senders;
        let mut taken = 0;
        while due != 0 {
            let from = due.trailing_zeros() as usize;
            due &= due - 1;
            let read = self.read(from, take);
            taken += read;
            // One that has gone silent is not looked at for ever; the only one may be, for that is as cheap.
            if read == 0 && senders.count_ones() > 1 {
                self.look_away(from);
            }
        }
        taken
    }

    fn read(&mut self, from: usize, take: &mut dyn FnMut(&Message<'_>)) -> usize {
        let Some(reader) = reader(&mut self.readers, &self.rings, from, self.range) else {
            return 0;
        };
        let mut read = 0;
        while read < AT_ONCE
            && let Some(header) = reader.take(&mut self.room)
        {
            read += 1;
            if header.generation != self.generation {
                continue;
            }
            let length = header.length as usize;
            take(&Message {
                from: SocketAddr::new(self.address.ip(), header.port),
                to: Some(self.address.ip()),
                traffic_class: header.traffic_class,
                interface: None,
                segment: match header.segment {
                    0 => length,
                    segment => segment as usize,
                },
                octets: &self.room[..length],
            });
        }
        reader.idle = if read > 0 {
            0
        } else {
            reader.idle.saturating_add(1)
        };
        read
    }

    fn look_away(&mut self, from: usize) {
        let reader = self.readers[from].as_mut();
        let Some(reader) = reader.filter(|reader| reader.idle >= IDLE) else {
            return;
        };
        reader.idle = 0;
        let (door, bit) = (self.rings.door(self.range), 1 << from);
        door.has.fetch_and(!bit, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        if reader.has_some() {
            door.has.fetch_or(bit, Ordering::SeqCst);
        }
    }

    /// From now on whoever puts something here sends a datagram as well, for a thread that sleeps. Answers whether
    /// something lies here already.
    pub fn sleep(&mut self) -> bool {
        self.rings.sleep_of(self.range).sleep();
        self.has_some()
    }

    /// Whether something lies here.
    pub fn has_some(&mut self) -> bool {
        let mut due = self.rings.door(self.range).has.load(Ordering::SeqCst);
        while due != 0 {
            let from = due.trailing_zeros() as usize;
            due &= due - 1;
            let reader = reader(&mut self.readers, &self.rings, from, self.range);
            if reader.is_some_and(|reader| reader.has_some()) {
                return true;
            }
        }
        false
    }

    /// Somebody looks again.
    pub fn wake(&self) {
        self.rings.sleep_of(self.range).wake();
    }
}

// Where there is no room to map a ring, what is in it is lost.
fn reader<'m>(
    readers: &'m mut [Option<Reader>],
    rings: &Rings,
    from: usize,
    to: QpnRange,
) -> Option<&'m mut Reader> {
    let reader = &mut readers[from];
    if reader.is_none() {
        *reader = Reader::new(rings, QpnRange::of_index(from)?, to).ok();
    }
    reader.as_mut()
}

impl Drop for Mailbox {
    fn drop(&mut self) {
        // Unless another has the range by now.
        let _ = self.rings.door(self.range).generation.compare_exchange(
            self.generation,
            self.generation.wrapping_add(1),
            Ordering::SeqCst,
            Ordering::SeqCst,
        );
    }
}

// Where a position lies among the records.
const fn offset(position: u64) -> usize {
    (position % ROOM as u64) as usize
}

// Where a ring begins.
const fn place(from: usize, to: usize) -> u64 {
    (PAGE + (to * RANGES + from) * RING) as u64
}

const fn aligned(position: u64) -> u64 {
    position & !(HEADER as u64 - 1)
}

/// The largest that a system has.
const PAGE: usize = 64 << 10;
const DOOR: usize = 64;
/// In the first page of a ring, on lines of their own.
const TAIL: usize = 0;
const HEAD: usize = 128;
/// Octets of the header of a record.
const HEADER: usize = 16;
/// Octets of records in a ring: a power of two.
pub(crate) const ROOM: usize = 4 << 20;
/// Octets after which a writer looks whether it may begin anew: no record is longer.
const STRETCH: usize = 1 << 20;
const RING: usize = PAGE + ROOM;
const OCTETS: u64 = (PAGE + RANGES * RANGES * RING) as u64;
const _: () = assert!(MAX_OCTETS + 2 * HEADER <= STRETCH + HEADER && STRETCH < ROOM);
const _: () = assert!(ROOM.is_power_of_two() && RANGES * DOOR <= PAGE && RANGES == 64);

/// How long a reader is waited for who does not keep up, and how long nobody waits for him after that.
const PATIENCE: Duration = Duration::from_millis(5);
const IMPATIENCE: Duration = Duration::from_secs(1);

/// Messages of one sender that are taken before another gets his turn.
const AT_ONCE: usize = 16;
/// Looks that may find nothing before a sender has to say that he is there.
const IDLE: u32 = 1000;

#[cfg(test)]
mod tests;
