//! Shared memory in which the processes at one address send records to one another without the kernel.
//!
//! For each pair of ranges there are two rings, one per direction: the holder of the one range writes a ring, the holder of
//! the other reads it. A process that is killed in the middle of a record has not published it, and no process waits for
//! it. Each range has a *door*, a block that says which ranges write to it, whether a process reads its rings, and whether
//! that process sleeps: a writer then wakes it by a message to its inbox, the *bell*.
//!
//! | where | contents |
//! | --- | --- |
//! | doors, 128 bytes for each range | `generation`, odd while a process reads; `sleep`, odd while the reader sleeps; in a cache line of its own `writers`, a bit for each range that writes |
//! | connections, 4,096 words of 64 bits for each range | TCP connections whose frames the holder of the range offers to send through this memory: [`ShmPort::announce`] |
//! | rings | a cache line with `head` and `answered`, which the reader moves; one with `waits`, set while the writer waits for room; the elements; the payloads |
//!
//! A record is one element of 128 bytes: its number and the length of its payload, which one store publishes; the
//! generation of the reader for which it is meant; and the record's head. The payload follows the head in the element if
//! both fit, and is stored in the ring's payload area otherwise. A reader ignores records with another generation than its
//! own: they are meant for a process that has ended. A reader trusts nothing in this memory: it copies heads before it
//! parses them, copies payloads without parsing them, and checks lengths and positions.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};
use std::sync::{Arc, MutexGuard, OnceLock};

use polyverbs_engine::link::Exchange;
use verbs_api::memory::Span;
use verbs_api::provider::Mutex;

use crate::fork::Unshared;
use crate::memory::{Mapping, SharedMemory, SleepWord, is_odd, next_odd};
use crate::qpn_range::{QpnRange, RANGES};

/// The shared memory of the processes at one address.
#[derive(Debug)]
pub(crate) struct Shm {
    memory: SharedMemory,
    /// The mapping of the doors and of the announced connections.
    front: Mapping,
}

struct Door<'s> {
    generation: &'s AtomicU32,
    sleep: SleepWord<'s>,
    writers: &'s AtomicU64,
}

impl Shm {
    /// Creates the memory for the first process of a group.
    pub(crate) fn new() -> io::Result<Self> {
        Self::with(SharedMemory::new(TOTAL)?)
    }

    /// Takes the memory whose descriptor another process passed; `None` if it is something else or cannot be mapped.
    pub(crate) fn of(descriptor: Unshared) -> Option<Self> {
        Self::with(SharedMemory::of(descriptor, TOTAL)?).ok()
    }

    fn with(memory: SharedMemory) -> io::Result<Self> {
        let front = memory.map(0, FRONT)?;
        Ok(Self { memory, front })
    }

    #[inline]
    fn door(&self, range: QpnRange) -> Door<'_> {
        let at = range.index() * DOOR;
        Door {
            generation: self.front.word(at),
            sleep: SleepWord(self.front.word(at + 4)),
            writers: self.front.long(at + LINE),
        }
    }

    fn connection(&self, range: QpnRange, (local, peer): (u16, u16)) -> &AtomicU64 {
        let mixed = (u32::from(local) << 16 | u32::from(peer)).wrapping_mul(0x9e37_79b1);
        self.connection_at(range, (mixed >> 16) as usize % CONNECTIONS)
    }

    fn connection_at(&self, range: QpnRange, place: usize) -> &AtomicU64 {
        let table = RANGES * DOOR + range.index() * CONNECTIONS * 8;
        self.front.long(table + place * 8)
    }

    fn ring(&self, from: QpnRange, to: QpnRange) -> io::Result<Mapping> {
        self.memory.map(place(from, to), RING)
    }

    /// Marks a range as having no reader, because a process that was killed has not done so itself.
    pub(crate) fn leave(&self, range: QpnRange) {
        let generation = self.door(range).generation;
        let before = generation.load(Ordering::Acquire);
        if is_odd(before) {
            generation.store(before.wrapping_add(1), Ordering::SeqCst);
        }
    }

    // Returns whether a process has written to this ring since the memory was created, or since the ring's pages were
    // released.
    fn is_touched(&self, from: QpnRange, to: QpnRange) -> bool {
        let first = place(from, to);
        let touched = self.memory.next_touched(first);
        touched.is_some_and(|touched| touched < first + RING as u64)
    }
}

impl AsFd for Shm {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.memory.as_fd()
    }
}

/// Values that the writer of a record attaches to it for the reader. The ring does not interpret them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecordMeta {
    /// A number; the TCP link stores in it which connection the record belongs to.
    pub stream: u32,
    /// A kind; a link stores in it what the record contains.
    pub kind: u8,
    /// A class; the UDP link stores the frame's traffic class in it.
    pub class: u8,
}

/// One end of a TCP connection whose frames may go through shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connection {
    /// The TCP port of this end and that of its peer.
    pub ports: (u16, u16),
    /// The [`stream`](RecordMeta::stream) number of the records that this end receives. A later connection with the same
    /// ports has another number, and so gets no records of this one.
    pub stream: u32,
}

impl Connection {
    fn word(self) -> u64 {
        let (local, peer) = self.ports;
        u64::from(local) << 48 | u64::from(peer) << 32 | u64::from(self.stream)
    }

    const fn of(word: u64) -> Self {
        Self {
            ports: ((word >> 48) as u16, (word >> 32) as u16),
            stream: word as u32,
        }
    }
}

/// A record that was read from a ring.
#[derive(Clone, Copy, Debug)]
pub struct Record<'r> {
    /// The range of the process that wrote the record.
    pub from: QpnRange,
    /// The values that the writer attached.
    pub meta: RecordMeta,
    /// The head of the record, copied to memory of this process.
    pub head: &'r [u8],
    /// The payload in shared memory, which the writer may still change.
    pub payload: Span<'r>,
}

/// The result of an attempt to write a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Put {
    /// The record was written to the ring.
    Taken,
    /// The ring has no room. [`ShmPort::put_waiting`] reports when at least half of it is free.
    Full,
    /// No process reads the range's records, or the head or the payload is too long.
    Nobody,
}

/// A process's access to the shared memory: to the rings that it writes and to those that it reads.
#[derive(Debug)]
pub struct ShmPort {
    shm: Arc<Shm>,
    range: QpnRange,
    generation: u32,
    outboxes: Box<[OnceLock<Option<Outbox>>]>,
    /// A bit for each range to which an outbox exists.
    open: AtomicU64,
    /// Whether this process has written a record since it last checked which readers sleep.
    has_put: AtomicBool,
    /// The ranges, one bit each, of processes that must be woken: they sleep until this process makes room in a ring, and
    /// now there is room.
    bells: AtomicU64,
    /// The number of consecutive polls without a record since this process last wrote one. `reminders` are the ranges, one
    /// bit each, of processes that had not read its records by the [`REMINDED`]-th of these polls.
    looks: AtomicU32,
    reminders: AtomicU64,
    /// The ranges, one bit each, in whose rings queued records or a driver wait for room.
    waiting: AtomicU64,
}

impl ShmPort {
    /// Announces that this process, which has leased `range`, reads the records for that range from now on.
    pub(crate) fn new(shm: Arc<Shm>, range: QpnRange) -> Self {
        let port = Self {
            generation: next_odd(shm.door(range).generation.load(Ordering::Acquire)),
            shm,
            range,
            outboxes: (0..RANGES).map(|_| OnceLock::new()).collect(),
            open: AtomicU64::new(0),
            has_put: AtomicBool::new(false),
            bells: AtomicU64::new(0),
            looks: AtomicU32::new(0),
            reminders: AtomicU64::new(0),
            waiting: AtomicU64::new(0),
        };
        port.begin_anew();
        let door = port.shm.door(range);
        door.sleep.begin();
        door.generation.store(port.generation, Ordering::SeqCst);
        port
    }

    // Discards the records that the last holder of the range has not read, and returns its pages to the system. No process
    // needs the records for that holder; only their readers know which of the records from it they still need.
    fn begin_anew(&self) {
        let others = || (0..RANGES).filter_map(QpnRange::of_index);
        for connection in 0..CONNECTIONS {
            let word = self.shm.connection_at(self.range, connection);
            if word.load(Ordering::Relaxed) != 0 {
                word.store(0, Ordering::Relaxed);
            }
        }
        self.shm.door(self.range).writers.store(0, Ordering::SeqCst);
        for other in others().filter(|other| self.shm.is_touched(*other, self.range)) {
            if let Ok(ring) = self.shm.ring(other, self.range) {
                let end = published(&ring, ring.word(HEAD).load(Ordering::Acquire));
                // Nothing will be answered that the last holder has not answered.
                for at in [HEAD, ANSWERED] {
                    ring.word(at).store(end, Ordering::Release);
                }
            }
        }
        for other in others().filter(|other| self.shm.is_touched(self.range, *other)) {
            if let Ok(ring) = self.shm.ring(self.range, other) {
                ring.word(WAITS).store(0, Ordering::SeqCst);
                let head = ring.word(HEAD).load(Ordering::Acquire);
                if published(&ring, head) == head {
                    let payloads = place(self.range, other) + PAYLOADS as u64;
                    self.shm.memory.release(payloads, ROOM as u64);
                }
            }
        }
    }

    // ---- connections

    /// Offers to send the frames of a TCP connection through shared memory; the peer [finds](Self::announced) the offer.
    /// Returns `false` if another connection occupies the entry.
    pub fn announce(&self, own: Connection) -> bool {
        let place = self.shm.connection(self.range, own.ports);
        let announced = place.compare_exchange(0, own.word(), Ordering::SeqCst, Ordering::SeqCst);
        announced.is_ok()
    }

    /// Withdraws the offer `of` that the process with the range `range` has made: this process itself, or a peer that was
    /// killed or no longer needs it.
    pub fn withdraw(&self, range: QpnRange, of: Connection) {
        let place = self.shm.connection(range, of.ports);
        let _ = place.compare_exchange(of.word(), 0, Ordering::SeqCst, Ordering::SeqCst);
    }

    /// Returns the range of the process that has [offered](Self::announce) the other end of a TCP connection, and the
    /// offer; `None` if no process has. The ports are those of this end and of its peer.
    pub fn announced(&self, (local, peer): (u16, u16)) -> Option<(QpnRange, Connection)> {
        let mut ranges = (1..RANGES).filter_map(QpnRange::of_index);
        ranges.find_map(|range| {
            let place = self.shm.connection(range, (peer, local));
            let said = Connection::of(place.load(Ordering::SeqCst));
            (said.ports == (peer, local) && self.reaches(range)).then_some((range, said))
        })
    }

    // ---- out

    /// Returns whether a process reads the records for the range `to`.
    #[inline]
    pub fn reaches(&self, to: QpnRange) -> bool {
        is_odd(self.shm.door(to).generation.load(Ordering::Acquire))
    }

    #[inline]
    fn outbox(&self, to: QpnRange) -> Option<&Outbox> {
        let outbox = self.outboxes[to.index()].get_or_init(|| {
            self.open.fetch_or(1 << to.index(), Ordering::SeqCst);
            let writer = Mutex::new(Writer::new(&self.shm, self.range, to).ok()?);
            Some(Outbox {
                writer,
                has_put: AtomicBool::new(false),
            })
        });
        outbox.as_ref()
    }

    fn writer(&self, to: QpnRange) -> Option<MutexGuard<'_, Writer>> {
        Some(self.outbox(to)?.writer.lock())
    }

    /// Writes a record for the process with the range `to`; `write` writes its payload of `length` bytes. This makes no
    /// system call: [`Lease::ring_bells`](crate::Lease::ring_bells) wakes the reader if it sleeps.
    #[inline]
    pub fn put(
        &self,
        to: QpnRange,
        meta: RecordMeta,
        head: &[u8],
        length: usize,
        write: impl FnOnce(Span<'_>),
    ) -> Put {
        let Some(outbox) = self.outbox(to) else {
            return Put::Nobody;
        };
        let mut writer = outbox.writer.lock();
        let door = self.shm.door(to);
        let generation = door.generation.load(Ordering::Acquire);
        if !is_odd(generation) || head.len() > LONGEST_HEAD || length > LONGEST_PAYLOAD {
            return Put::Nobody;
        }
        let put = match writer.later.is_empty() {
            true => writer.put(generation, meta, head, length, write),
            false => Put::Full,
        };
        match put {
            Put::Taken => self.published(outbox, &door),
            _ => self.wait_for_room(&writer, to),
        }
        put
    }

    /// Queues a record until the ring has room, after the records that are queued already. It is dropped if its reader ends
    /// before.
    pub fn put_later(&self, to: QpnRange, meta: RecordMeta, head: &[u8], payload: Vec<u8>) {
        if let Some(mut writer) = self.writer(to) {
            writer.later_bytes += payload.len();
            writer.later.push_back(Later {
                generation: self.shm.door(to).generation.load(Ordering::Acquire),
                meta,
                head: head.into(),
                payload,
            });
            self.wait_for_room(&writer, to);
        }
    }

    /// Returns how many records this process has written so far.
    pub fn sent(&self) -> u64 {
        let outboxes = self.outboxes.iter().filter_map(OnceLock::get).flatten();
        outboxes.map(|outbox| outbox.writer.lock().sent).sum()
    }

    /// Returns how many records for `to` are queued for lack of room, and how many bytes of payload they have.
    pub fn waiting(&self, to: QpnRange) -> (usize, usize) {
        let writer = self.waits().then(|| self.writer(to)).flatten();
        writer.map_or((0, 0), |writer| (writer.later.len(), writer.later_bytes))
    }

    /// Returns how many records this process and the process with the range `with` have written to one another, and how
    /// many of them were answered or read; `None` if no process reads the records for that range.
    pub(crate) fn exchange(&self, with: QpnRange) -> Option<Exchange> {
        let mut writer = self.reaches(with).then(|| self.writer(with))??;
        writer.look_at_head();
        let later = u32::try_from(writer.later.len()).unwrap_or(u32::MAX / 2);
        // The reader answers what it has read. An impossible position counts as the nearest possible one, and so does one that
        // is so old that the numbers have wrapped.
        let answered = writer.ring.word(ANSWERED).load(Ordering::Acquire);
        let unanswered = writer.tail.wrapping_sub(answered);
        let unanswered = unanswered.clamp(writer.used(), i32::MAX as u32);
        // The ring is mapped for this moment only, because a timer asks, and rarely. The peer's answers are counted after
        // the records that it has answered.
        let ring = self.shm.ring(with, self.range).ok()?;
        let arrived_read = ring.word(HEAD).load(Ordering::Acquire);
        Some(Exchange {
            sent: writer.tail.wrapping_add(later),
            sent_answered: writer.tail.wrapping_sub(unanswered),
            arrived: published(&ring, arrived_read),
            arrived_read,
        })
    }

    #[inline]
    fn published(&self, outbox: &Outbox, door: &Door<'_>) {
        self.say(door);
        outbox.has_put.store(true, Ordering::Release);
        self.has_put.store(true, Ordering::Release);
        self.looks.store(0, Ordering::Relaxed);
    }

    // Sets the bit of this range in the reader's door, so that the reader polls this ring.
    #[inline]
    fn say(&self, door: &Door<'_>) {
        let bit = 1 << self.range.index();
        if door.writers.load(Ordering::Relaxed) & bit == 0 {
            door.writers.fetch_or(bit, Ordering::SeqCst);
        }
    }

    fn wait_for_room(&self, writer: &Writer, to: QpnRange) {
        writer.ring.word(WAITS).store(1, Ordering::SeqCst);
        self.waiting.fetch_or(1 << to.index(), Ordering::SeqCst);
    }

    /// Returns whether a queued record or a driver waits for room in any ring.
    #[inline]
    pub fn waits(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) != 0
    }

    /// Writes queued records, as far as the rings have room. Returns whether it wrote any. Calls `has_room` for a range
    /// once no record for it is queued and at least half of its ring is free.
    pub fn put_waiting(&self, mut has_room: impl FnMut(QpnRange)) -> bool {
        let mut any = false;
        for to in ranges(self.waiting.load(Ordering::Relaxed)) {
            let Some(outbox) = self.outbox(to) else {
                continue;
            };
            let mut writer = outbox.writer.lock();
            let door = self.shm.door(to);
            let generation = door.generation.load(Ordering::Acquire);
            while let Some(later) = writer.later.pop_front() {
                writer.later_bytes -= later.payload.len();
                // Records that wait for a reader that has gone are not meant for its successor.
                if !is_odd(generation) || later.generation != generation {
                    continue;
                }
                let (head, payload) = (&later.head, &later.payload);
                let write = |span: Span<'_>| span.write(payload);
                if writer.put(generation, later.meta, head, payload.len(), write) == Put::Full {
                    writer.later_bytes += later.payload.len();
                    writer.later.push_front(later);
                    break;
                }
                self.published(outbox, &door);
                any = true;
            }
            if writer.later.is_empty() && (writer.has_much_room() || !is_odd(generation)) {
                writer.ring.word(WAITS).store(0, Ordering::SeqCst);
                self.waiting.fetch_and(!(1 << to.index()), Ordering::SeqCst);
                drop(writer);
                has_room(to);
            }
        }
        any
    }

    /// Returns whether it may be necessary to wake a process, which [`Lease::ring_bells`](crate::Lease::ring_bells) does.
    #[inline]
    pub(crate) fn may_have_bells(&self) -> bool {
        self.has_put.load(Ordering::Relaxed)
            || self.bells.load(Ordering::Relaxed) != 0
            || self.reminders.load(Ordering::Relaxed) != 0
    }

    /// Returns the ranges of the processes that must be woken, because they sleep although there is a record for them, or
    /// room that they wait for; and the number of each one's sleep.
    pub(crate) fn take_bells(&self) -> impl Iterator<Item = (QpnRange, u32)> {
        // A thread that writes a record from now on sets this again and checks by itself. This thread sees records that
        // others have written before.
        self.has_put.swap(false, Ordering::AcqRel);
        let mut put = 0;
        let mut bells = match self.bells.load(Ordering::Relaxed) {
            0 => 0,
            _ => self.bells.swap(0, Ordering::Relaxed),
        };
        for to in ranges(self.open.load(Ordering::Relaxed)) {
            if let Some(outbox) = self.outbox(to)
                && outbox.has_put.load(Ordering::Relaxed)
                && outbox.has_put.swap(false, Ordering::AcqRel)
            {
                put |= 1 << to.index();
            }
        }
        // The writer stores a record and then reads the sleep word, the reader does the reverse: with fences, at least one
        // sees the other's store.
        fence(Ordering::SeqCst);
        // The reader may have cleared the writer's bit while the record was written.
        ranges(put).for_each(|to| self.say(&self.shm.door(to)));
        bells |= put;
        ranges(bells).filter_map(|to| Some((to, self.shm.door(to).sleep.number()?)))
    }

    /// Returns the ranges of processes that must be woken although they do not sleep, because they do not read their
    /// records either.
    pub(crate) fn take_reminders(&self) -> impl Iterator<Item = QpnRange> {
        ranges(match self.reminders.load(Ordering::Relaxed) {
            0 => 0,
            _ => self.reminders.swap(0, Ordering::Relaxed),
        })
    }

    /// Notes that this process has woken the process with the range `to` from its sleep, so that no other writer wakes it
    /// again. `sleep` is the number of that sleep. If this process is killed before, another writer does the waking.
    pub(crate) fn rung(&self, to: QpnRange, sleep: u32) {
        self.shm.door(to).sleep.woken(sleep);
    }

    // ---- in

    /// Calls `take` with the records that have arrived, at most 64 of each writer. Returns whether there was any.
    #[inline]
    pub fn receive(&self, readers: &mut Readers, take: &mut dyn FnMut(&Record<'_>)) -> bool {
        let senders = self.shm.door(self.range).writers.load(Ordering::Acquire);
        let looks = self.looks.load(Ordering::Relaxed).saturating_add(1);
        self.looks.store(looks, Ordering::Relaxed);
        if looks == REMINDED {
            self.remind();
        }
        if senders == 0 {
            return false;
        }
        let mut any = false;
        for from in ranges(senders) {
            let Some(reader) = readers.of(&self.shm, from, self.range) else {
                continue;
            };
            let read = reader.read(from, self.generation, take);
            if reader.is_waited_for(&self.shm.door(from)) {
                self.bells.fetch_or(1 << from.index(), Ordering::Relaxed);
            }
            // A silent sender is not polled for ever, unless it is the only one: polling that one costs nothing extra.
            if !read && reader.idle >= IDLE && !senders.is_power_of_two() {
                self.look_away(reader, from);
            }
            any |= read;
        }
        any
    }

    /// Reports to the writers that this process has answered all records that it has read. A writer whose answers wait for room
    /// gets no report yet.
    pub(crate) fn note_answers(&self, readers: &mut Readers) {
        for (index, reader) in readers.0.iter_mut().enumerate() {
            let Some(reader) = reader
                .as_mut()
                .filter(|reader| reader.answered != reader.head)
            else {
                continue;
            };
            if QpnRange::of_index(index).is_some_and(|to| self.waiting(to).0 == 0) {
                reader.answered = reader.head;
                let answered = reader.ring.word(ANSWERED);
                answered.store(reader.head, Ordering::Release);
            }
        }
    }

    // Finds the processes that must be reminded: one that has not read for long may have polled before, and may now wait
    // without polling.
    #[cold]
    fn remind(&self) {
        let has_unread = |to: &QpnRange| {
            self.writer(*to).is_some_and(|mut writer| {
                writer.look_at_head();
                writer.used() > 0
            })
        };
        let unread = ranges(self.open.load(Ordering::Relaxed)).filter(has_unread);
        let unread = unread.fold(0, |bits, to| bits | 1 << to.index());
        self.reminders.store(unread, Ordering::Relaxed);
    }

    fn look_away(&self, reader: &mut Reader, from: QpnRange) {
        reader.idle = 0;
        let (writers, bit) = (self.shm.door(self.range).writers, 1 << from.index());
        writers.fetch_and(!bit, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        if reader.next().is_some() {
            writers.fetch_or(bit, Ordering::SeqCst);
        }
    }

    /// Makes other processes wake this one when they write a record for it, or make room that it waits for. Returns whether
    /// a record or room is there already.
    pub fn arm_bell(&self, readers: &mut Readers) -> bool {
        let door = self.shm.door(self.range);
        door.sleep.begin();
        let has_some = |from| {
            let reader = readers.of(&self.shm, from, self.range);
            reader.is_some_and(|reader| {
                reader.next().is_some() || reader.is_waited_for(&self.shm.door(from))
            })
        };
        let has_room = |to| {
            self.writer(to)
                .is_some_and(|mut writer| writer.has_much_room())
        };
        ranges(door.writers.load(Ordering::SeqCst)).any(has_some)
            || ranges(self.waiting.load(Ordering::SeqCst)).any(has_room)
    }
}

impl Drop for ShmPort {
    fn drop(&mut self) {
        // Another process may have leased the range meanwhile: its generation must stay.
        let _ = self.shm.door(self.range).generation.compare_exchange(
            self.generation,
            self.generation.wrapping_add(1),
            Ordering::SeqCst,
            Ordering::SeqCst,
        );
    }
}

#[derive(Debug)]
struct Outbox {
    writer: Mutex<Writer>,
    /// Whether a record was written to this ring since the writer last checked whether the reader sleeps.
    has_put: AtomicBool,
}

/// The writing end of a ring.
#[derive(Debug)]
struct Writer {
    ring: Mapping,
    tail: u32,
    /// The reader's position when this process last read it. The reader may have advanced since.
    head: u32,
    /// The position of the next payload in the payload area. `ends` has the position after the payload of each record in
    /// the ring. Positions only grow; the area is used modulo its size.
    next: u64,
    ends: Box<[u64]>,
    /// The number of the last record, plus one, that an earlier process wrote to this ring. The payloads of such records
    /// may be anywhere in the payload area.
    inherited: u32,
    later: VecDeque<Later>,
    later_bytes: usize,
    sent: u64,
}

/// A record that is queued until the ring has room.
#[derive(Debug)]
struct Later {
    /// The generation of the reader for which the record is meant. If another process reads by then, the record is dropped.
    generation: u32,
    meta: RecordMeta,
    head: Box<[u8]>,
    payload: Vec<u8>,
}

impl Writer {
    fn new(shm: &Shm, from: QpnRange, to: QpnRange) -> io::Result<Self> {
        let ring = shm.ring(from, to)?;
        let head = ring.word(HEAD).load(Ordering::Acquire);
        let tail = published(&ring, head);
        // Records after the tail were written but not published by an earlier writer. A record is published by the number
        // after its own, so its own number never publishes it, as 0 would for the last number before the numbers wrap.
        for ahead in tail.wrapping_sub(head)..ELEMENTS as u32 {
            let number = head.wrapping_add(ahead);
            ring.long(element(number))
                .store(number.into(), Ordering::Relaxed);
        }
        Ok(Self {
            ring,
            tail,
            head,
            next: 0,
            ends: vec![0; ELEMENTS].into(),
            inherited: tail,
            later: VecDeque::new(),
            later_bytes: 0,
            sent: 0,
        })
    }

    fn look_at_head(&mut self) {
        let head = self.ring.word(HEAD).load(Ordering::Acquire);
        // A reader that reports an impossible position counts as one that has read nothing.
        if self.tail.wrapping_sub(head) <= self.tail.wrapping_sub(self.head) {
            self.head = head;
        }
    }

    fn used(&self) -> u32 {
        self.tail.wrapping_sub(self.head)
    }

    fn has_much_room(&mut self) -> bool {
        self.look_at_head();
        self.used() as usize <= ELEMENTS / 2 && self.used_bytes() <= ROOM as u64 / 2
    }

    // Returns how many bytes of the payload area hold payloads that have not been read.
    fn used_bytes(&self) -> u64 {
        let is_inherited = self.tail.wrapping_sub(self.inherited) < self.used();
        match self.used() {
            0 => 0,
            _ if is_inherited => ROOM as u64,
            _ => {
                let read = self.head.wrapping_sub(1) as usize % ELEMENTS;
                self.next - self.ends[read].min(self.next)
            }
        }
    }

    // Allocates room for a payload in the payload area. Returns its position; `None` if there is no room.
    fn allocate(&mut self, length: usize) -> Option<u64> {
        let length = length.next_multiple_of(LINE) as u64;
        let room = ROOM as u64;
        let mut at = self.next % room;
        if at + length > STRETCH as u64 {
            self.look_at_head();
            // Both processes have the beginning in their caches, if no record waits long.
            if self.used() == 0 || at + length > room {
                self.next += room - at;
                at = 0;
            }
        }
        if self.used_bytes() + length > room {
            self.look_at_head();
            if self.used_bytes() + length > room {
                return None;
            }
        }
        self.next += length;
        Some(at)
    }

    fn put(
        &mut self,
        generation: u32,
        meta: RecordMeta,
        head: &[u8],
        length: usize,
        write: impl FnOnce(Span<'_>),
    ) -> Put {
        if self.used() as usize == ELEMENTS {
            self.look_at_head();
            if self.used() as usize == ELEMENTS {
                return Put::Full;
            }
        }
        let at = element(self.tail);
        let behind = head.len().next_multiple_of(WORD);
        let is_inline = behind + length <= INLINE;
        let mut place = 0;
        if !is_inline {
            let Some(found) = self.allocate(length) else {
                return Put::Full;
            };
            place = found as usize;
        }
        let inline = self.ring.span(at + FIXED, INLINE);
        inline.sub(0, head.len()).write(head);
        if length > 0 {
            write(match is_inline {
                true => inline.sub(behind, length),
                false => self.ring.span(PAYLOADS + place, length),
            });
        }
        let fixed = Fixed {
            place: place as u32,
            generation,
            head: head.len() as u16,
            meta,
        };
        for (word, at) in fixed.as_words().into_iter().zip([at + 8, at + 16]) {
            self.ring.long(at).store(word, Ordering::Relaxed);
        }
        self.ends[self.tail as usize % ELEMENTS] = self.next;
        self.tail = self.tail.wrapping_add(1);
        self.sent += 1;
        let first = u64::from(self.tail) | (length as u64) << 32;
        self.ring.long(at).store(first, Ordering::Release);
        Put::Taken
    }
}

// Returns the number after that of the last published record. `head` is the number at which the reader is.
fn published(ring: &Mapping, head: u32) -> u32 {
    let mut tail = head;
    for _ in 0..ELEMENTS {
        if ring.long(element(tail)).load(Ordering::Acquire) as u32 != tail.wrapping_add(1) {
            break;
        }
        tail = tail.wrapping_add(1);
    }
    tail
}

/// The reading end of a ring.
#[derive(Debug)]
struct Reader {
    ring: Mapping,
    head: u32,
    /// The reader's position when it last reported that all records before it are answered.
    answered: u32,
    /// The number of consecutive polls that found no record in this ring.
    idle: u32,
}

impl Reader {
    // Returns the position of the next record and the length of its payload, if there is one.
    #[inline]
    fn next(&self) -> Option<(usize, usize)> {
        let at = element(self.head);
        let first = self.ring.long(at).load(Ordering::Acquire);
        let is_next = first as u32 == self.head.wrapping_add(1);
        is_next.then_some((at, (first >> 32) as usize))
    }

    // Returns whether the writer waits for room and sleeps, so that it must be woken.
    fn is_waited_for(&self, writer: &Door<'_>) -> bool {
        let waits = self.ring.word(WAITS).load(Ordering::Relaxed) != 0;
        waits && writer.sleep.number().is_some()
    }

    #[inline]
    fn read(&mut self, from: QpnRange, generation: u32, take: &mut dyn FnMut(&Record<'_>)) -> bool {
        // A reader that has waited continues with the first record at once; later records can wait.
        let most = if self.idle > 0 { 1 } else { AT_ONCE };
        let mut read = 0;
        while read < most
            && let Some((at, length)) = self.next()
        {
            self.ring.prefetch(at + LINE);
            read += 1;
            self.head = self.head.wrapping_add(1);
            self.take(at, length, from, generation, take);
            self.ring.word(HEAD).store(self.head, Ordering::Release);
        }
        self.idle = match read {
            0 => self.idle.saturating_add(1),
            _ => 0,
        };
        read > 0
    }

    #[inline]
    fn take(
        &self,
        at: usize,
        length: usize,
        from: QpnRange,
        generation: u32,
        take: &mut dyn FnMut(&Record<'_>),
    ) {
        let words = [at + 8, at + 16].map(|at| self.ring.long(at).load(Ordering::Relaxed));
        let fixed = Fixed::of(words);
        let head = usize::from(fixed.head);
        // The record is for an older reader, or its writer is malicious.
        if fixed.generation != generation || head > LONGEST_HEAD || length > LONGEST_PAYLOAD {
            return;
        }
        let behind = head.next_multiple_of(WORD);
        let (place, is_inline) = (fixed.place as usize, behind + length <= INLINE);
        if !is_inline && place > ROOM - length {
            return;
        }
        let inline = self.ring.span(at + FIXED, INLINE);
        let payload = match is_inline {
            true => inline.sub(behind, length),
            false => self.ring.span(PAYLOADS + place, length),
        };
        let mut room = [0; LONGEST_HEAD];
        let head = &mut room[..head];
        inline.sub(0, head.len()).read(head);
        take(&Record {
            from,
            meta: fixed.meta,
            head,
            payload,
        });
    }
}

/// The reading ends of the rings to this process. Only the thread that receives uses them.
#[derive(Debug, Default)]
pub struct Readers(Vec<Option<Reader>>);

impl Readers {
    // Returns the reader of a ring; `None` if the ring cannot be mapped: then its records are lost.
    fn of(&mut self, shm: &Shm, from: QpnRange, to: QpnRange) -> Option<&mut Reader> {
        if self.0.is_empty() {
            self.0.resize_with(RANGES, || None);
        }
        let reader = &mut self.0[from.index()];
        if reader.is_none() {
            let ring = shm.ring(from, to).ok()?;
            let [head, answered] = [HEAD, ANSWERED].map(|at| ring.word(at).load(Ordering::Acquire));
            *reader = Some(Reader {
                ring,
                head,
                answered,
                idle: 0,
            });
        }
        reader.as_mut()
    }
}

/// The two 64-bit words of a record in a ring that follow the record's number and payload length, and precede its head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Fixed {
    place: u32,
    generation: u32,
    head: u16,
    meta: RecordMeta,
}

impl Fixed {
    fn as_words(self) -> [u64; 2] {
        let RecordMeta {
            stream,
            kind,
            class,
        } = self.meta;
        let [head, kind, class]: [u64; 3] = [self.head.into(), kind.into(), class.into()];
        [
            u64::from(self.place) | u64::from(self.generation) << 32,
            u64::from(stream) | head << 32 | kind << 48 | class << 56,
        ]
    }

    fn of([one, other]: [u64; 2]) -> Self {
        Self {
            place: one as u32,
            generation: (one >> 32) as u32,
            head: (other >> 32) as u16,
            meta: RecordMeta {
                stream: other as u32,
                kind: (other >> 48) as u8,
                class: (other >> 56) as u8,
            },
        }
    }
}

fn ranges(bits: u64) -> impl Iterator<Item = QpnRange> {
    let mut left = bits;
    std::iter::from_fn(move || {
        let index = left.trailing_zeros() as usize;
        left &= left.wrapping_sub(1);
        QpnRange::of_index(index)
    })
}

// The offset of the element with this number.
const fn element(number: u32) -> usize {
    ELEMENT * (1 + number as usize % ELEMENTS)
}

// The offset of a ring.
const fn place(from: QpnRange, to: QpnRange) -> u64 {
    (FRONT + (to.index() * RANGES + from.index()) * RING) as u64
}

/// Bytes of a cache line. A door, which holds the state of a range, has two lines, which a processor fetches together.
const LINE: usize = 64;
const DOOR: usize = 2 * LINE;
/// The most TCP connections that a process can have announced.
const CONNECTIONS: usize = 4096;
const FRONT: usize = (RANGES * DOOR + RANGES * CONNECTIONS * 8).next_multiple_of(PAGE);
/// The largest page size of any system, in bytes.
const PAGE: usize = 64 << 10;

/// Offsets in a ring: of the reader's position, of that before which it has answered everything, and of the flag that the
/// writer waits for room.
const HEAD: usize = 0;
const ANSWERED: usize = 4;
const WAITS: usize = LINE;
/// Bytes of an element, the slot of a record in a ring: the fixed part, the head, and the payload if it fits.
const ELEMENT: usize = 2 * LINE;
/// A payload that is stored in a ring's element begins at a multiple of this after the head, because aligned words are
/// copied fastest.
const WORD: usize = 8;
const FIXED: usize = 24;
const INLINE: usize = ELEMENT - FIXED;
const ELEMENTS: usize = 256;
const PAYLOADS: usize = (ELEMENT * (1 + ELEMENTS)).next_multiple_of(PAGE);
/// Bytes of a ring's payload area. A writer that is beyond `STRETCH` continues at the beginning if the ring is empty then.
pub(crate) const ROOM: usize = 1 << 20;
const STRETCH: usize = ROOM / 2;
const RING: usize = PAYLOADS + ROOM;
const TOTAL: u64 = (FRONT + RANGES * RANGES * RING) as u64;

/// Bytes of the longest head of a record.
pub const LONGEST_HEAD: usize = INLINE;
/// Bytes of the longest payload of a record. It is so short that the writer can write the next payload while the reader
/// reads this one.
pub const LONGEST_PAYLOAD: usize = 64 << 10;
const _: () = assert!(LONGEST_PAYLOAD <= STRETCH && INLINE.is_multiple_of(WORD) && RANGES == 64);

/// The most records of one writer that are read before it is the next writer's turn.
const AT_ONCE: usize = 64;
/// The number of polls after which a reader has read all records that a writer had written before.
pub const LOOKS_FOR_ALL: usize = ELEMENTS.div_ceil(AT_ONCE);
/// The number of polls without a record, some tens of microseconds, after which processes that leave records unread are
/// reminded.
const REMINDED: u32 = 512;
/// The number of polls without a record after which a reader clears the writer's bit and no longer polls its ring.
const IDLE: u32 = 1000;

#[cfg(test)]
mod tests;
