//! What the processes at one address send to one another without the kernel: rings of records in memory that all have.
//!
//! From each range to each there is a ring, written by the holder of the one and read by the holder of the other. Who is
//! killed in the middle of a record has not published it, and nobody waits for him. A *door* for each range tells who
//! writes to it, whether anybody reads, and whether the reader sleeps: then a bell wakes it.
//!
//! | where | what |
//! | --- | --- |
//! | doors, 128 bytes for each range | `generation`, odd while somebody reads; `sleep`, odd while the reader sleeps; on a line of its own `writers`, a bit for each |
//! | connections, 4,096 long words for each range | TCP connections that this process would rather have here: [`ShmPort::announce`] |
//! | rings | a line with `head`, which the reader moves; one with `waits`, set while the writer waits for room; the elements; the payloads |
//!
//! A record is one element of 128 bytes: its number and the length of its payload, which publish it in one store, the
//! generation of the reader that it is for, and the record's head. The payload lies behind the head where both fit, and
//! otherwise among the payloads. What a dead reader has left is of an older generation. Nobody believes what lies there: heads
//! are copied before anybody looks at them, payloads are copied without being looked at, lengths and places are checked.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

use polyverbs_engine::link::Exchange;
use verbs_api::memory::Span;

use crate::group::{QpnRange, RANGES};
use crate::lock;
use crate::memory::{Mapping, SharedMemory, SleepWord, is_odd, next_odd};

/// The memory of the processes at one address.
#[derive(Debug)]
pub(crate) struct Shm {
    memory: SharedMemory,
    /// Doors and connections.
    front: Mapping,
}

struct Door<'s> {
    generation: &'s AtomicU32,
    sleep: SleepWord<'s>,
    writers: &'s AtomicU64,
}

impl Shm {
    /// For processes that have none.
    pub(crate) fn new() -> io::Result<Self> {
        Self::with(SharedMemory::new(TOTAL)?)
    }

    /// What another process passed; `None` if it is something else.
    pub(crate) fn of(descriptor: OwnedFd) -> Option<Self> {
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

    /// Says that nobody reads what is put down for a range: whoever had it may have been killed.
    pub(crate) fn leave(&self, range: QpnRange) {
        let generation = self.door(range).generation;
        let before = generation.load(Ordering::Acquire);
        if is_odd(before) {
            generation.store(before.wrapping_add(1), Ordering::SeqCst);
        }
    }

    // Whether somebody has written there since the memory was made, or given back.
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

/// What goes with a record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecordMeta {
    /// Whatever sender and receiver have agreed on.
    pub stream: u32,
    /// The same.
    pub kind: u8,
    /// The same.
    pub class: u8,
}

/// An end of a TCP connection whose frames may go by memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connection {
    /// Its own port and its peer's.
    pub ports: (u16, u16),
    /// What the records that it receives carry as their [`stream`](RecordMeta::stream): no later connection of these ports
    /// gets what is for this one.
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

/// A record that has arrived.
#[derive(Clone, Copy, Debug)]
pub struct Record<'r> {
    /// Who sent it.
    pub from: QpnRange,
    /// What goes with it.
    pub meta: RecordMeta,
    /// The head, in memory of the reader's own.
    pub head: &'r [u8],
    /// The payload, where the sender may still change it.
    pub payload: Span<'r>,
}

/// What became of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Put {
    /// It lies there.
    Taken,
    /// There is no room. Whoever waits for some is woken when there is much.
    Full,
    /// Nobody reads, or the head is longer than any.
    Nobody,
}

/// The end of a process: what it sends to others at its address, and what they send to it.
#[derive(Debug)]
pub struct ShmPort {
    shm: Arc<Shm>,
    range: QpnRange,
    generation: u32,
    outboxes: Box<[OnceLock<Option<Outbox>>]>,
    /// A bit for each outbox that there is.
    open: AtomicU64,
    /// Something has been put down since bells were rung.
    has_put: AtomicBool,
    /// Who waits for room that there is now.
    bells: AtomicU64,
    /// Looks that found nothing since something was put down, and who has left something unread for that long.
    looks: AtomicU32,
    reminders: AtomicU64,
    /// To whom something waits for room, or somebody does.
    waiting: AtomicU64,
}

impl ShmPort {
    /// Reads what is put down for a range, which this process has leased, from now on.
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

    // Gives the system back what the last holder of the range left. What lies there for it nobody wants any more; of what it
    // wrote only the reader knows what he still wants.
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
                let head = ring.word(HEAD);
                head.store(
                    published(&ring, head.load(Ordering::Acquire)),
                    Ordering::Release,
                );
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

    /// Says that this process would rather have a TCP connection here: the peer [finds](Self::announced) it. `false` where
    /// another one has the place.
    pub fn announce(&self, own: Connection) -> bool {
        let place = self.shm.connection(self.range, own.ports);
        let announced = place.compare_exchange(0, own.word(), Ordering::SeqCst, Ordering::SeqCst);
        announced.is_ok()
    }

    /// Takes that back; also for another process, which has been killed, or does not need it any more.
    pub fn withdraw(&self, range: QpnRange, of: Connection) {
        let place = self.shm.connection(range, of.ports);
        let _ = place.compare_exchange(of.word(), 0, Ordering::SeqCst, Ordering::SeqCst);
    }

    /// The process that has the other end of a connection, if it [has said so](Self::announce), and what it has said.
    pub fn announced(&self, (local, peer): (u16, u16)) -> Option<(QpnRange, Connection)> {
        let mut ranges = (1..RANGES).filter_map(QpnRange::of_index);
        ranges.find_map(|range| {
            let place = self.shm.connection(range, (peer, local));
            let said = Connection::of(place.load(Ordering::SeqCst));
            (said.ports == (peer, local) && self.reaches(range)).then_some((range, said))
        })
    }

    // ---- out

    /// Whether somebody reads what is put down for a range.
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
        Some(lock(&self.outbox(to)?.writer))
    }

    /// Puts a record down, whose payload of so many bytes `write` writes. Makes no system call:
    /// [`Lease::ring_bells`](crate::Lease::ring_bells) does.
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
        let mut writer = lock(&outbox.writer);
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

    /// Puts a record down as soon as there is room, behind others that wait. What waits for a process that has gone is lost.
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

    /// How many records were put down so far.
    pub fn sent(&self) -> u64 {
        let outboxes = self.outboxes.iter().filter_map(OnceLock::get).flatten();
        outboxes.map(|outbox| lock(&outbox.writer).sent).sum()
    }

    /// How many records wait for room, and how many bytes of payloads.
    pub fn waiting(&self, to: QpnRange) -> (usize, usize) {
        let writer = self.waits().then(|| self.writer(to)).flatten();
        writer.map_or((0, 0), |writer| (writer.later.len(), writer.later_bytes))
    }

    /// What the holder of a range and this process have written to one another, and read; `None` where the range has no reader.
    pub(crate) fn exchange(&self, with: QpnRange) -> Option<Exchange> {
        let mut writer = self.reaches(with).then(|| self.writer(with))??;
        writer.look_at_head();
        let later = u32::try_from(writer.later.len()).unwrap_or(u32::MAX / 2);
        // Mapped for the moment: a timer asks, and seldom. The peer's answers are counted after what it has read.
        let ring = self.shm.ring(with, self.range).ok()?;
        let arrived_read = ring.word(HEAD).load(Ordering::Acquire);
        Some(Exchange {
            sent: writer.tail.wrapping_add(later),
            sent_read: writer.head,
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

    // Who has put something down.
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

    /// Whether room is waited for.
    #[inline]
    pub fn waits(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) != 0
    }

    /// Puts down what waits for room, as far as there is some; answers whether that was any. Gives the ranges to which everything
    /// has gone to `has_room`.
    pub fn put_waiting(&self, mut has_room: impl FnMut(QpnRange)) -> bool {
        let mut any = false;
        for to in ranges(self.waiting.load(Ordering::Relaxed)) {
            let Some(outbox) = self.outbox(to) else {
                continue;
            };
            let mut writer = lock(&outbox.writer);
            let door = self.shm.door(to);
            let generation = door.generation.load(Ordering::Acquire);
            while let Some(later) = writer.later.pop_front() {
                writer.later_bytes -= later.payload.len();
                // What waits for a reader that has gone is nothing for its successor.
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

    /// Whether somebody may have to be woken: [`Lease::ring_bells`](crate::Lease::ring_bells) does.
    #[inline]
    pub(crate) fn may_have_bells(&self) -> bool {
        self.has_put.load(Ordering::Relaxed)
            || self.bells.load(Ordering::Relaxed) != 0
            || self.reminders.load(Ordering::Relaxed) != 0
    }

    /// Whose bell is to be rung, and for which sleep: of those who sleep while something lies there for them, or room that they
    /// wait for.
    pub(crate) fn take_bells(&self) -> impl Iterator<Item = (QpnRange, u32)> {
        // Whoever puts something down from now on sets it again, and looks himself: what others have set before is seen here.
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
        // Of two that look at what the other has just written, one at least sees it.
        fence(Ordering::SeqCst);
        // The reader may have looked away while it was put down.
        ranges(put).for_each(|to| self.say(&self.shm.door(to)));
        bells |= put;
        ranges(bells).filter_map(|to| Some((to, self.shm.door(to).sleep.number()?)))
    }

    /// Whose bell is to be rung though they do not sleep: they do not read either.
    pub(crate) fn take_reminders(&self) -> impl Iterator<Item = QpnRange> {
        ranges(match self.reminders.load(Ordering::Relaxed) {
            0 => 0,
            _ => self.reminders.swap(0, Ordering::Relaxed),
        })
    }

    /// The bell of a range has been rung for this sleep: whoever is killed before that has not said so.
    pub(crate) fn rung(&self, to: QpnRange, sleep: u32) {
        self.shm.door(to).sleep.woken(sleep);
    }

    // ---- in

    /// Gives what lies there to `take`, some records of each sender at most; answers whether there was any.
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
            // One that has gone silent is not looked at for ever; the only one may be, for that is as cheap.
            if !read && reader.idle >= IDLE && !senders.is_power_of_two() {
                self.look_away(reader, from);
            }
            any |= read;
        }
        any
    }

    // Whoever has not read for long what was put down may have polled, and now wait for it without.
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

    /// From now on a process that writes a record here, or makes room for one that waits, rings the bell. Returns whether
    /// there is something to do already.
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
        // Unless another has the range by now.
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
    /// Something has been put down since the bell was rung.
    has_put: AtomicBool,
}

/// The writer's end of a ring.
#[derive(Debug)]
struct Writer {
    ring: Mapping,
    tail: u32,
    /// As it was when it was last read: the reader is further, if anything.
    head: u32,
    /// Where payloads are written next, and where the payload of each element ends. Positions only grow.
    next: u64,
    ends: Box<[u64]>,
    /// Up to this element the ring holds what another process has written, whose payloads lie anywhere.
    inherited: u32,
    later: VecDeque<Later>,
    later_bytes: usize,
    sent: u64,
}

/// A record that waits for room.
#[derive(Debug)]
struct Later {
    /// Of the reader that it is for.
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
        // What a writer before this one has written further on it has not published.
        for ahead in tail.wrapping_sub(head)..ELEMENTS as u32 {
            let number = head.wrapping_add(ahead);
            ring.long(element(number)).store(0, Ordering::Relaxed);
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
        // A reader that lies counts as one that has read nothing.
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

    // Bytes of payloads that have not been read.
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

    // Room for a payload: where.
    fn allocate(&mut self, length: usize) -> Option<u64> {
        let length = length.next_multiple_of(LINE) as u64;
        let room = ROOM as u64;
        let mut at = self.next % room;
        if at + length > STRETCH as u64 {
            self.look_at_head();
            // What both sides have in their caches is the beginning, where nothing waits long.
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

// The number behind the last record that has been published.
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

/// The reader's end of a ring.
#[derive(Debug)]
struct Reader {
    ring: Mapping,
    head: u32,
    /// Looks in a row that found nothing.
    idle: u32,
}

impl Reader {
    // Where the next record lies, and how long its payload is, if there is one.
    #[inline]
    fn next(&self) -> Option<(usize, usize)> {
        let at = element(self.head);
        let first = self.ring.long(at).load(Ordering::Acquire);
        let is_next = first as u32 == self.head.wrapping_add(1);
        is_next.then_some((at, (first >> 32) as usize))
    }

    // Whether the writer waits for room, and has to be told that there is some.
    fn is_waited_for(&self, writer: &Door<'_>) -> bool {
        let waits = self.ring.word(WAITS).load(Ordering::Relaxed) != 0;
        waits && writer.sleep.number().is_some()
    }

    #[inline]
    fn read(&mut self, from: QpnRange, generation: u32, take: &mut dyn FnMut(&Record<'_>)) -> bool {
        // Whoever has waited goes on with the first: what follows it can wait for him.
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
        // Of an older reader, or of a writer that does not mean well.
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

/// The ends at which a process reads what others put down for it: of whoever receives, one thread at a time.
#[derive(Debug, Default)]
pub struct Readers(Vec<Option<Reader>>);

impl Readers {
    // Where there is no room to map a ring, what is in it is lost.
    fn of(&mut self, shm: &Shm, from: QpnRange, to: QpnRange) -> Option<&mut Reader> {
        if self.0.is_empty() {
            self.0.resize_with(RANGES, || None);
        }
        let reader = &mut self.0[from.index()];
        if reader.is_none() {
            let ring = shm.ring(from, to).ok()?;
            let head = ring.word(HEAD).load(Ordering::Acquire);
            let idle = 0;
            *reader = Some(Reader { ring, head, idle });
        }
        reader.as_mut()
    }
}

/// What goes before the head of a record, behind its number and the length of its payload.
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

// Where the element lies behind so many others.
const fn element(number: u32) -> usize {
    ELEMENT * (1 + number as usize % ELEMENTS)
}

// Where a ring begins.
const fn place(from: QpnRange, to: QpnRange) -> u64 {
    (FRONT + (to.index() * RANGES + from.index()) * RING) as u64
}

/// Bytes of a cache line, and of two: what a processor fetches together.
const LINE: usize = 64;
const DOOR: usize = 2 * LINE;
/// Connections that a process may have announced.
const CONNECTIONS: usize = 4096;
const FRONT: usize = (RANGES * DOOR + RANGES * CONNECTIONS * 8).next_multiple_of(PAGE);
/// The largest page that a system has.
const PAGE: usize = 64 << 10;

/// In the first lines of a ring.
const HEAD: usize = 0;
const WAITS: usize = LINE;
/// Bytes of an element: the fixed part and what is behind it.
const ELEMENT: usize = 2 * LINE;
/// What follows a head begins at a multiple of this: aligned words are copied fastest.
const WORD: usize = 8;
const FIXED: usize = 24;
const INLINE: usize = ELEMENT - FIXED;
const ELEMENTS: usize = 256;
const PAYLOADS: usize = (ELEMENT * (1 + ELEMENTS)).next_multiple_of(PAGE);
/// Bytes of payloads, and after how many a writer looks whether it may begin anew.
pub(crate) const ROOM: usize = 1 << 20;
const STRETCH: usize = ROOM / 2;
const RING: usize = PAYLOADS + ROOM;
const TOTAL: u64 = (FRONT + RANGES * RANGES * RING) as u64;

/// Bytes of the longest head.
pub const LONGEST_HEAD: usize = INLINE;
/// Bytes of the longest payload: the next one is written while this one is read.
pub const LONGEST_PAYLOAD: usize = 64 << 10;
const _: () = assert!(LONGEST_PAYLOAD <= STRETCH && INLINE.is_multiple_of(WORD) && RANGES == 64);

/// Records of one sender that are taken before another gets his turn.
const AT_ONCE: usize = 64;
/// So many looks take all that a sender had put down before.
pub const LOOKS_FOR_ALL: usize = ELEMENTS.div_ceil(AT_ONCE);
/// Looks that find nothing, some tens of microseconds, until whoever leaves something unread is reminded.
const REMINDED: u32 = 512;
/// Looks that may find nothing before a sender has to say that he is there.
const IDLE: u32 = 1000;

#[cfg(test)]
mod tests;
