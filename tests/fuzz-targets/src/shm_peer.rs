//! The shared memory of the processes at an address, while one of them writes arbitrary bytes into it.
//!
//! Two honest processes have their rings in the memory. Whatever the fuzzer writes, a reader's poll ends and yields no
//! record longer than allowed, a writer continues, and processes that join afterwards exchange records as if nothing had
//! happened.

use std::fs::File;
use std::os::unix::fs::FileExt;

use polyverbs_io::group::RANGES;
use polyverbs_io::shm::{Connection, LONGEST_HEAD, LONGEST_PAYLOAD};
use polyverbs_io::{GroupOptions, Lease, Put, QpnRange, Readers, Record, RecordMeta, ShmPort};
use verbs_api::memory::Span;
use verbs_api::provider::Mutex;

use crate::intruder::{Intruder, alone, no_datagram, own_address};
use crate::script::Script;

/// Runs the writes of a fuzzer and the operations of the processes that share the memory.
pub fn run(octets: &[u8]) {
    static ADDRESS: Mutex<()> = Mutex::new(());
    let _alone = alone(&ADDRESS);
    let mut script = Script::new(octets);
    let mut rig = Rig::new();
    for _ in 0..STEPS {
        if script.is_over() {
            break;
        }
        rig.step(&mut script);
    }
    rig.begin_anew();
    rig.ends.iter_mut().for_each(End::takes_nothing);
    for (from, to) in [(0, 1), (1, 0)] {
        rig.exchange(from, to);
    }
}

struct Rig {
    /// Keeps the memory alive.
    _keeper: Lease,
    memory: File,
    /// The two honest processes.
    ends: Vec<End>,
}

/// An honest process.
struct End {
    lease: Lease,
    readers: Readers,
}

impl End {
    fn new() -> Self {
        let lease = join();
        assert!(lease.open_memory());
        Self {
            lease,
            readers: Readers::default(),
        }
    }

    fn memory(&self) -> &ShmPort {
        self.lease.memory().expect("it is open")
    }

    fn range(&self) -> QpnRange {
        self.lease.range()
    }

    /// Polls once; returns the records that arrived.
    fn look(&mut self) -> Vec<(QpnRange, Vec<u8>, Vec<u8>)> {
        let mut came = Vec::new();
        let mut take = |record: &Record<'_>| {
            assert!(record.head.len() <= LONGEST_HEAD && record.payload.len() <= LONGEST_PAYLOAD);
            let mut payload = vec![0; record.payload.len()];
            record.payload.read(&mut payload);
            came.push((record.from, record.head.to_vec(), payload));
            assert!(came.len() <= RANGES * ELEMENTS, "a look without an end");
        };
        let memory = self.lease.memory().expect("it is open");
        memory.receive(&mut self.readers, &mut take);
        came
    }

    fn takes_nothing(&mut self) {
        assert_eq!(self.look(), [], "records of no current writer");
    }
}

fn join() -> Lease {
    Lease::join(GroupOptions::without_sockets(own_address(1))).expect("a range")
}

impl Rig {
    fn new() -> Self {
        let keeper = join();
        let name = format!(
            "polyverbs/tcp/{}/range/{}",
            own_address(1),
            keeper.range().index()
        );
        let passed = Intruder::joins(&keeper, &name).pop();
        let mut rig = Self {
            memory: passed.expect("memory").into(),
            _keeper: keeper,
            ends: [(); 2].map(|()| End::new()).into(),
        };
        rig.is_where_it_is_written();
        rig
    }

    // Checks the layout below: with a wrong layout the writes of the fuzzer would be meaningless.
    fn is_where_it_is_written(&mut self) {
        let [one, other] = [0, 1].map(|end| self.ends[end].range());
        let ring = ring(one, other);
        self.exchange(0, 1);
        assert_eq!(self.word(ring + HEAD), EXCHANGED as u32);
        let last = self.word(ring + element(EXCHANGED as u32 - 1));
        assert_eq!(last, EXCHANGED as u32);
        let (mut payload, sent) = (vec![0; LONGEST_PAYLOAD], vec![5; LONGEST_PAYLOAD]);
        let longest = LENGTHS.iter().position(|length| *length == LONGEST_PAYLOAD);
        assert_eq!(longest, Some(EXCHANGED - 1));
        let at = ring + PAYLOADS + u64::from(self.word(ring + element(EXCHANGED as u32 - 1) + 8));
        self.read(at, &mut payload);
        assert!(payload == sent);
    }

    fn read(&self, at: u64, into: &mut [u8]) {
        self.memory.read_exact_at(into, at).expect("within");
    }

    fn word(&self, at: u64) -> u32 {
        let mut word = [0; 4];
        self.read(at, &mut word);
        u32::from_ne_bytes(word)
    }

    fn write(&self, at: u64, bytes: &[u8]) {
        self.memory.write_all_at(bytes, at).expect("within");
    }

    fn step(&mut self, script: &mut Script<'_>) {
        let which = script.octet();
        let (own, other) = if which & 128 == 0 { (0, 1) } else { (1, 0) };
        match which & 7 {
            0 | 1 => self.write_element(own, other, script),
            2 => self.write_word(own, other, script),
            3 => self.write_anywhere(own, other, script),
            4 => drop(self.ends[own].look()),
            5 => self.put(own, other, script),
            6 => self.put_later(own, other, script),
            _ => self.manage(own, other, script),
        }
    }

    // Writes an element of the ring to `own`, mostly the one that is read next.
    fn write_element(&self, own: usize, other: usize, script: &mut Script<'_>) {
        let how = script.octet();
        let [own, other] = [own, other].map(|end| self.ends[end].range());
        let ring = ring(other, own);
        let number = self.word(ring + HEAD).wrapping_add(u32::from(how & 3));
        let at = ring + element(number);
        let arbitrary = |script: &mut Script<'_>| u32::from_ne_bytes(octets(script));
        let number = match how & 4 {
            0 => number.wrapping_add(1),
            _ => arbitrary(script),
        };
        let generation = match how & 8 {
            0 => self.word(door(own)),
            _ => arbitrary(script),
        };
        // Lengths and places near their limits are chosen more often than by chance.
        let [length, place] =
            [(how & 16, 0x1_ffff), (how & 32, 0x1f_ffff)].map(|(any, near)| match any {
                0 => arbitrary(script) & near,
                _ => arbitrary(script),
            });
        let head = u16::from_ne_bytes(octets(script)) & if how & 64 == 0 { 0x7f } else { 0xffff };
        let mut bytes = Vec::new();
        for word in [number, length, place, generation] {
            bytes.extend(word.to_ne_bytes());
        }
        let stream: [u8; 4] = octets(script);
        bytes.extend(stream);
        bytes.extend(head.to_ne_bytes());
        let kind_and_class: [u8; 2] = octets(script);
        bytes.extend(kind_and_class);
        self.write(at, &bytes);
        if how & 128 == 0 {
            self.write(door(own) + WRITERS, &(1_u64 << other.index()).to_ne_bytes());
        }
    }

    // Writes a word by which the two sides of a ring notify each other.
    fn write_word(&self, own: usize, other: usize, script: &mut Script<'_>) {
        let [own, other] = [own, other].map(|end| self.ends[end].range());
        let at = match script.octet() % 8 {
            0 => ring(other, own) + HEAD,
            1 => ring(own, other) + HEAD,
            2 => ring(other, own) + WAITS,
            3 => ring(own, other) + WAITS,
            4 => door(own),
            5 => door(own) + SLEEP,
            6 => return self.write(door(own) + WRITERS, &octets::<8>(script)),
            _ => door(other) + SLEEP,
        };
        let value = match script.octet() {
            0..128 => u32::from_ne_bytes(octets(script)),
            near => self.word(at).wrapping_add(i32::from(near as i8) as u32),
        };
        self.write(at, &value.to_ne_bytes());
    }

    fn write_anywhere(&self, own: usize, other: usize, script: &mut Script<'_>) {
        let [own, other] = [own, other].map(|end| self.ends[end].range());
        let (from, length) = match script.octet() % 4 {
            0 => (0, FRONT),
            1 => (ring(own, other), PAYLOADS),
            2 => (ring(other, own), PAYLOADS),
            _ => (FRONT, (RANGES * RANGES) as u64 * RING),
        };
        let at = from + u64::from_ne_bytes(octets(script)) % (length - 255);
        let count = script.octet();
        let bytes = script.octets(count.into());
        self.write(at, bytes);
    }

    fn put(&self, own: usize, other: usize, script: &mut Script<'_>) {
        let (to, head, length) = self.record(other, script);
        let write = |span: Span<'_>| span.write(&vec![7; length]);
        let memory = self.ends[own].memory();
        memory.put(to, RecordMeta::default(), &head, length, write);
    }

    fn put_later(&self, own: usize, other: usize, script: &mut Script<'_>) {
        let (to, head, length) = self.record(other, script);
        let memory = self.ends[own].memory();
        if memory.put(to, RecordMeta::default(), &head, length, |_| {}) == Put::Full {
            memory.put_later(to, RecordMeta::default(), &head, vec![7; length]);
            let (count, bytes) = memory.waiting(to);
            assert!(count > 0 && bytes >= length);
        }
    }

    fn record(&self, other: usize, script: &mut Script<'_>) -> (QpnRange, Vec<u8>, usize) {
        let how = script.octet();
        let to = match how & 7 {
            7 => QpnRange::of_qpn(u32::from(script.octet()) << QpnRange::SHIFT),
            _ => self.ends[other].range(),
        };
        let length = match how & 8 {
            0 => usize::from(script.octet()),
            _ => LONGEST_PAYLOAD - usize::from(script.octet()),
        };
        let head = vec![how; usize::from(how >> 4) * 7];
        (to, head, length)
    }

    fn manage(&mut self, own: usize, other: usize, script: &mut Script<'_>) {
        let what = script.octet();
        let other = self.ends[other].range();
        let End { lease, readers } = &mut self.ends[own];
        let memory = lease.memory().expect("it is open");
        let connection = Connection {
            ports: (u16::from(what), 5),
            stream: 3,
        };
        match what % 8 {
            0 => {
                memory.arm_bell(readers);
            }
            1 => {
                memory.put_waiting(|_| {});
            }
            2 => lease.ring_bells(),
            3 => {
                memory.announce(connection);
            }
            4 => {
                memory.announced(connection.ports);
            }
            5 => memory.withdraw(lease.range(), connection),
            6 => memory.withdraw(other, connection),
            _ => {
                let attended = lease.attend(&mut no_datagram);
                attended.expect("an inbox");
            }
        }
    }

    // Both processes end, and others get their ranges.
    fn begin_anew(&mut self) {
        let ranges = [self.ends[0].range(), self.ends[1].range()];
        self.ends.clear();
        self.ends.extend([(); 2].map(|()| End::new()));
        assert_eq!([self.ends[0].range(), self.ends[1].range()], ranges);
    }

    // Checks that records of every kind arrive in order.
    fn exchange(&mut self, from: usize, to: usize) {
        let [sender, receiver] = [from, to].map(|end| self.ends[end].range());
        let sent = LENGTHS.map(|length| (sender, b"head".to_vec(), vec![5; length]));
        let memory = self.ends[from].memory();
        for (_, head, payload) in &sent {
            let write = |span: Span<'_>| span.write(payload);
            let meta = RecordMeta::default();
            let put = memory.put(receiver, meta, head, payload.len(), write);
            assert_eq!(put, Put::Taken);
        }
        let mut came = Vec::new();
        for _ in 0..=EXCHANGED {
            came.extend(self.ends[to].look());
        }
        assert!(came == sent, "{} of {EXCHANGED}", came.len());
    }
}

fn octets<const COUNT: usize>(script: &mut Script<'_>) -> [u8; COUNT] {
    std::array::from_fn(|_| script.octet())
}

const STEPS: usize = 64;

/// Lengths of payloads: some are stored next to their heads, others elsewhere.
const LENGTHS: [usize; 5] = [0, 4, 100, 5000, LONGEST_PAYLOAD];
const EXCHANGED: usize = LENGTHS.len();

// The layout of the memory, as the documentation of `polyverbs_io::shm` describes it.

const fn door(of: QpnRange) -> u64 {
    of.index() as u64 * 128
}

const fn ring(from: QpnRange, to: QpnRange) -> u64 {
    FRONT + (to.index() * RANGES + from.index()) as u64 * RING
}

const fn element(number: u32) -> u64 {
    128 * (1 + (number as usize % ELEMENTS) as u64)
}

const FRONT: u64 = (RANGES as u64 * (128 + 4096 * 8)).next_multiple_of(PAGE);
const PAGE: u64 = 64 << 10;
const SLEEP: u64 = 4;
const WRITERS: u64 = 64;
const HEAD: u64 = 0;
const WAITS: u64 = 64;
const ELEMENTS: usize = 256;
const PAYLOADS: u64 = (128 * (1 + ELEMENTS as u64)).next_multiple_of(PAGE);
const RING: u64 = PAYLOADS + (1 << 20);
