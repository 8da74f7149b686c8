use std::iter::repeat_with;
use std::ops::Deref;
use std::thread;

use proptest::prelude::*;

use super::*;

#[derive(Clone, Debug, PartialEq, Eq)]
struct Found {
    from: usize,
    meta: RecordMeta,
    head: Vec<u8>,
    payload: Vec<u8>,
}

fn memory() -> Arc<Shm> {
    Arc::new(Shm::new().unwrap())
}

fn range(index: usize) -> QpnRange {
    QpnRange::of_index(index).unwrap()
}

/// A process, which also receives.
struct End {
    port: ShmPort,
    readers: Mutex<Readers>,
}

impl Deref for End {
    type Target = ShmPort;

    fn deref(&self) -> &ShmPort {
        &self.port
    }
}

impl End {
    fn receive(&self, take: &mut dyn FnMut(&Record<'_>)) -> bool {
        self.port.receive(&mut self.readers.lock(), take)
    }

    fn note_answers(&self) {
        self.port.note_answers(&mut self.readers.lock());
    }

    fn arm_bell(&self) -> bool {
        self.port.arm_bell(&mut self.readers.lock())
    }
}

fn port(shm: &Arc<Shm>, index: usize) -> End {
    End {
        port: ShmPort::new(Arc::clone(shm), range(index)),
        readers: Mutex::default(),
    }
}

/// The processes of range 1, which writes, and range 2, which reads.
fn pair() -> (Arc<Shm>, [End; 2]) {
    let shm = memory();
    let ports = [1, 2].map(|index| port(&shm, index));
    (shm, ports)
}

fn put(port: &End, head: &[u8], payload: &[u8]) -> Put {
    let write = |span: Span<'_>| span.write(payload);
    let meta = RecordMeta::default();
    port.put(range(2), meta, head, payload.len(), write)
}

fn put_number(port: &End, number: u32, length: usize) -> Put {
    put(port, &number.to_ne_bytes(), &vec![number as u8; length])
}

/// Polls once.
fn look(port: &End) -> Vec<Found> {
    let mut found = Vec::new();
    let any = port.receive(&mut |record| {
        let mut payload = vec![0; record.payload.len()];
        record.payload.read(&mut payload);
        found.push(Found {
            from: record.from.index(),
            meta: record.meta,
            head: record.head.to_vec(),
            payload,
        });
    });
    assert!(any || found.is_empty());
    found
}

/// Polls until nothing is left.
fn look_long(port: &End) -> Vec<Found> {
    let looks = repeat_with(|| look(port));
    looks
        .take_while(|found| !found.is_empty())
        .flatten()
        .collect()
}

fn numbers(found: &[Found]) -> Vec<u32> {
    let number = |found: &Found| {
        let number = u32::from_ne_bytes(found.head[..].try_into().unwrap());
        assert!(found.payload.iter().all(|byte| *byte == number as u8));
        number
    };
    found.iter().map(number).collect()
}

/// Writes records until there is no room. Returns how many records there are.
fn fill(port: &End, length: usize) -> u32 {
    let is_taken = |number: &u32| put_number(port, *number, length) == Put::Taken;
    (0..).take_while(is_taken).count() as u32
}

fn bells(port: &End) -> Vec<(usize, u32)> {
    let bells = port.take_bells();
    bells.map(|(to, sleep)| (to.index(), sleep)).collect()
}

/// Rings the bells, as a lease does.
fn ring(port: &End) -> Vec<usize> {
    let bells = bells(port);
    (bells.iter()).for_each(|(to, sleep)| port.rung(range(*to), *sleep));
    bells.into_iter().map(|(to, _)| to).collect()
}

#[test]
fn records_of_every_shape_arrive_in_order() {
    let (_, [writer, reader]) = pair();
    let heads = [0, 1, 20, LONGEST_HEAD - 1, LONGEST_HEAD];
    let payloads = [
        0,
        1,
        40,
        INLINE - 1,
        INLINE,
        INLINE + 1,
        4096,
        LONGEST_PAYLOAD,
    ];
    let bytes: Vec<_> = (0..LONGEST_PAYLOAD).map(|at| (at % 251) as u8).collect();
    let mut expected = Vec::new();
    for (number, (head, payload)) in heads
        .into_iter()
        .flat_map(|head| payloads.map(|payload| (head, payload)))
        .enumerate()
    {
        let meta = RecordMeta {
            stream: 0xfeed_0000 + number as u32,
            kind: number as u8,
            class: 255 - number as u8,
        };
        let (head, payload) = (&bytes[number..number + head], &bytes[..payload]);
        let write = |span: Span<'_>| span.write(payload);
        let put = writer.put(range(2), meta, head, payload.len(), write);
        assert_eq!(put, Put::Taken);
        expected.push(Found {
            from: 1,
            meta,
            head: head.to_vec(),
            payload: payload.to_vec(),
        });
    }
    assert_eq!(look(&reader), expected);
    assert_eq!(look(&reader), []);
    assert_eq!(writer.sent(), expected.len() as u64);
}

#[test]
fn a_record_that_is_too_long_or_has_no_reader_is_not_taken() {
    let (_, [writer, reader]) = pair();
    assert_eq!(put(&writer, &[0; LONGEST_HEAD + 1], &[]), Put::Nobody);
    assert_eq!(put(&writer, &[], &[0; LONGEST_PAYLOAD + 1]), Put::Nobody);
    assert!(writer.reaches(range(2)) && !writer.reaches(range(3)));
    drop(reader);
    assert!(!writer.reaches(range(2)));
    assert_eq!(put(&writer, &[], &[]), Put::Nobody);
}

#[test]
fn each_side_knows_what_is_unread() {
    let (_shm, [writer, reader]) = pair();
    let unread = |end: &End, with| {
        let now = end.exchange(range(with)).unwrap();
        let of = |written: u32, read: u32| written.wrapping_sub(read);
        (
            of(now.sent, now.sent_answered),
            of(now.arrived, now.arrived_read),
        )
    };
    assert_eq!(unread(&writer, 2), (0, 0));
    let lying = fill(&writer, 1000);
    writer.put_later(range(2), RecordMeta::default(), b"late", Vec::new());
    assert_eq!(unread(&writer, 2), (lying + 1, 0));
    assert_eq!(unread(&reader, 1), (0, lying));
    let mut read = 0;
    reader.receive(&mut |_| read += 1);
    // The reader may keep the answers back.
    assert_eq!(unread(&writer, 2), (lying + 1, 0));
    assert_eq!(unread(&reader, 1), (0, lying - read));
    // An answer waits for room.
    reader.put_later(range(1), RecordMeta::default(), b"answer", Vec::new());
    reader.note_answers();
    assert_eq!(unread(&writer, 2), (lying + 1, 0));
    assert!(reader.put_waiting(|_| {}));
    reader.note_answers();
    assert_eq!(unread(&writer, 2), (lying + 1 - read, 1));
    drop(reader);
    assert_eq!(writer.exchange(range(2)), None);
}

#[test]
fn each_sender_has_its_turn_and_keeps_its_order() {
    let shm = memory();
    let reader = port(&shm, 2);
    let writers = [1, 3, 63].map(|index| port(&shm, index));
    let counts = writers.each_ref().map(|writer| fill(writer, 10));
    let first = look(&reader);
    for (index, count) in [1, 3, 63].into_iter().zip(counts) {
        assert!(first.iter().any(|found| found.from == index));
        let of = |found: &Found| (found.from == index).then(|| found.clone());
        let turn: Vec<_> = first.iter().filter_map(of).collect();
        assert!(numbers(&turn).into_iter().eq(0..AT_ONCE as u32));
        assert_eq!(count, ELEMENTS as u32);
    }
    assert_eq!(
        first.len() + look_long(&reader).len(),
        writers.len() * ELEMENTS
    );
}

#[test]
fn records_that_wait_for_room_are_written_in_order() {
    // The ring is full of elements, of bytes, or of bytes in lines that are not full.
    for (length, room) in [
        (10, ELEMENTS),
        (LONGEST_PAYLOAD, ROOM / LONGEST_PAYLOAD),
        (LINE * 100 + 1, ROOM / (LINE * 101)),
    ] {
        let (_, [writer, reader]) = pair();
        let mut next = fill(&writer, length);
        assert_eq!(next as usize, room);
        assert!(writer.waits() && writer.waiting(range(2)).0 == 0);
        for number in next..next + 2 * room as u32 {
            writer.put_later(
                range(2),
                RecordMeta::default(),
                &number.to_ne_bytes(),
                vec![number as u8; length],
            );
        }
        next += 2 * room as u32;
        assert_eq!(writer.waiting(range(2)).1, 2 * room * length);
        assert!(!writer.put_waiting(|_| panic!("no room yet")));
        let mut found = look(&reader);
        // A later record must wait after those that wait already.
        assert_eq!(put_number(&writer, next, length), Put::Full);
        let mut told = 0;
        while told == 0 {
            writer.put_waiting(|to| {
                assert_eq!(to, range(2));
                told += 1;
            });
            found.extend(look(&reader));
            assert!(!found.is_empty() && found.len() <= next as usize);
        }
        assert!(!writer.waits() && writer.waiting(range(2)).0 == 0);
        assert_eq!(put_number(&writer, next, length), Put::Taken);
        found.extend(look_long(&reader));
        assert!(numbers(&found).into_iter().eq(0..=next));
    }
}

#[test]
fn room_is_reported_when_there_is_much() {
    let (_, [writer, reader]) = pair();
    let full = fill(&writer, 0);
    let mut read = 0;
    loop {
        let mut told = false;
        writer.put_waiting(|_| told = true);
        assert_eq!(told, read >= ELEMENTS / 2);
        if told {
            break;
        }
        read += look(&reader).len();
    }
    assert!(read < full as usize);
}

#[test]
fn a_sleeping_reader_is_rung_once() {
    let (_, [writer, reader]) = pair();
    assert!(!reader.arm_bell());
    put_number(&writer, 0, 0);
    put_number(&writer, 1, 0);
    assert!(writer.may_have_bells());
    let first = bells(&writer);
    assert!(matches!(first[..], [(2, _)]), "{first:?}");
    writer.rung(range(2), first[0].1);
    assert!(!writer.may_have_bells());
    put_number(&writer, 2, 0);
    assert_eq!(bells(&writer), []);
    // The reader must not sleep before it has polled.
    assert!(reader.arm_bell());
    assert_eq!(numbers(&look(&reader)), [0, 1, 2]);
    assert!(!reader.arm_bell());
    put_number(&writer, 3, 0);
    // A bell for the last sleep does not end this one.
    writer.rung(range(2), first[0].1);
    assert_eq!(ring(&writer), [2]);
}

#[test]
fn a_reader_that_leaves_records_unread_is_reminded_once() {
    let (_, [writer, reader]) = pair();
    let reminded = || -> Vec<_> {
        let reminders = writer.take_reminders();
        reminders.map(|range| range.index()).collect()
    };
    put_number(&writer, 0, 0);
    bells(&writer);
    (1..REMINDED).for_each(|_| assert!(look(&writer).is_empty()));
    assert_eq!(reminded(), []);
    look(&writer);
    assert!(writer.may_have_bells());
    assert_eq!(reminded(), [2]);
    (0..2 * REMINDED).for_each(|_| assert!(look(&writer).is_empty()));
    assert_eq!(reminded(), []);
    // A reader that has read all records needs no reminder.
    put_number(&writer, 1, 0);
    assert_eq!(numbers(&look(&reader)), [0, 1]);
    (0..2 * REMINDED).for_each(|_| assert!(look(&writer).is_empty()));
    assert_eq!(reminded(), []);
}

#[test]
fn a_writer_that_waits_for_room_is_rung_when_it_sleeps() {
    let (_, [writer, reader]) = pair();
    let full = fill(&writer, 0);
    ring(&writer);
    assert_eq!(look(&reader).len(), AT_ONCE);
    // A writer that has polled since does not sleep.
    writer.rung(range(1), bells(&reader).first().map_or(0, |bell| bell.1));
    assert_eq!(ring(&reader), []);
    assert!(!writer.arm_bell());
    let mut read = AT_ONCE;
    while read < full as usize {
        read += look(&reader).len();
    }
    assert_eq!(ring(&reader), [1]);
    assert!(writer.arm_bell());
    let mut told = 0;
    writer.put_waiting(|_| told += 1);
    assert_eq!(told, 1);
    assert!(!writer.arm_bell());
    assert!(!reader.arm_bell());
}

#[test]
fn a_reader_does_not_sleep_while_a_writer_awaits_a_bell() {
    let (_, [writer, reader]) = pair();
    fill(&writer, 0);
    look_long(&reader);
    writer.shm.door(range(1)).sleep.begin();
    assert!(reader.arm_bell());
    look(&reader);
    assert_eq!(ring(&reader), [1]);
    assert!(!reader.arm_bell());
}

#[test]
fn a_record_that_waited_sets_the_writers_bit() {
    let (_, [writer, reader]) = pair();
    fill(&writer, 0);
    assert!(!writer.put_waiting(|_| {}));
    let later = || writer.put_later(range(2), RecordMeta::default(), &[0; 4], Vec::new());
    later();
    look_long(&reader);
    ring(&reader);
    ring(&writer);
    assert!(!reader.arm_bell());
    assert!(writer.put_waiting(|_| {}));
    assert_eq!(ring(&writer), [2]);
}

#[test]
fn a_sender_that_was_silent_for_long_is_read_again() {
    let shm = memory();
    let reader = port(&shm, 2);
    let [silent, other] = [1, 3].map(|index| port(&shm, index));
    put_number(&silent, 0, 0);
    put_number(&other, 0, 0);
    let is_looked_at = || shm.door(range(2)).writers.load(Ordering::SeqCst) & 1 << 1 != 0;
    for _ in 0..IDLE + 2 {
        put_number(&other, 0, 0);
        look(&reader);
    }
    assert!(!is_looked_at());
    put_number(&silent, 1, 0);
    assert_eq!(numbers(&look(&reader)), [1]);
    // The reader clears the sender's bit at the moment of the write.
    put_number(&silent, 2, 0);
    (shm.door(range(2)).writers).fetch_and(!(1 << 1), Ordering::SeqCst);
    assert_eq!(look(&reader), []);
    bells(&silent);
    assert_eq!(numbers(&look(&reader)), [2]);
}

#[test]
fn a_successor_of_a_killed_writer_continues_where_it_stopped() {
    for unread in [0, 5, ELEMENTS as u32] {
        let (shm, [writer, reader]) = pair();
        for number in 0..10 {
            put_number(&writer, number, 3000);
        }
        assert_eq!(look(&reader).len(), 10);
        for number in 10..10 + unread {
            assert_eq!(put_number(&writer, number, 3000), Put::Taken);
        }
        // The writer is killed in the middle of another record.
        let tail = writer.writer(range(2)).unwrap().tail as usize;
        let ring = shm.ring(range(1), range(2)).unwrap();
        if unread < ELEMENTS as u32 {
            let at = ELEMENT * (1 + tail % ELEMENTS);
            ring.span(at + 4, ELEMENT - 4).write(&[0xff; ELEMENT - 4]);
        }
        let _killed = writer;
        shm.leave(range(1));
        let writer = port(&shm, 1);
        let payloads = place(range(1), range(2)) + PAYLOADS as u64;
        let touched = shm.memory.next_touched(payloads);
        let is_given_back = touched.is_none_or(|touched| touched >= payloads + ROOM as u64);
        assert_eq!(is_given_back, unread == 0);
        let (mut next, mut found) = (10 + unread, Vec::new());
        while next < 1000 {
            while put_number(&writer, next, 3000) == Put::Taken {
                next += 1;
            }
            found.extend(look(&reader));
        }
        found.extend(look_long(&reader));
        assert!(numbers(&found).into_iter().eq(10..next));
    }
}

#[test]
fn a_successor_of_a_killed_reader_gets_no_old_record() {
    for length in [0, 3000] {
        let (shm, [writer, reader]) = pair();
        let next = fill(&writer, length);
        assert_eq!(look(&reader).len(), AT_ONCE);
        let later = || writer.put_later(range(2), RecordMeta::default(), &[0; 4], vec![0; 10]);
        later();
        let _killed = reader;
        shm.leave(range(2));
        later();
        assert_eq!(put_number(&writer, 0, 0), Put::Nobody);
        let reader = port(&shm, 2);
        // Nothing is owed for the records that the killed process has not answered, only for those that wait.
        let now = writer.exchange(range(2)).unwrap();
        assert!(now.sent.wrapping_sub(now.sent_answered) <= 2, "{now:?}");
        later();
        assert_eq!(look(&reader), []);
        assert!(writer.put_waiting(|_| {}));
        // The reader finds only the record that was written since.
        assert_eq!(numbers(&look(&reader)).len(), 1);
        for number in next..next + 1000 {
            assert_eq!(put_number(&writer, number, length), Put::Taken);
            assert_eq!(numbers(&look(&reader)), [number]);
        }
    }
}

#[test]
fn records_that_wait_for_a_process_that_has_gone_are_lost() {
    let (_, [writer, reader]) = pair();
    fill(&writer, 0);
    writer.put_later(range(2), RecordMeta::default(), &[0; 4], vec![0; 10]);
    drop(reader);
    let mut told = 0;
    writer.put_waiting(|_| told += 1);
    assert_eq!(
        (told, writer.waiting(range(2)).1, writer.waits()),
        (1, 0, false)
    );
}

#[test]
fn a_successor_does_not_wait_for_its_predecessors_room() {
    let (shm, [writer, reader]) = pair();
    fill(&writer, 0);
    let _killed = writer;
    let _successor = port(&shm, 1);
    assert_eq!(look_long(&reader).len(), ELEMENTS);
    assert_eq!(ring(&reader), []);
    assert!(!reader.arm_bell());
}

// ---- corrupt rings

/// Fields of an element, in words.
const LENGTH: usize = 1;
const PLACE: usize = 2;
const GENERATION: usize = 3;
/// The head's length shares its word with kind and class.
const HEAD_LENGTH: usize = 5;

#[test]
fn an_invalid_record_is_ignored() {
    let (long, room) = (LONGEST_PAYLOAD as u32, ROOM as u32);
    for (field, nonsense) in [
        (LENGTH, vec![long + 1, room, room + 1, u32::MAX, 1 << 31]),
        (PLACE, vec![room, room - 1999, u32::MAX, u32::MAX - 1999]),
        (GENERATION, vec![0, 1, 2, u32::MAX]),
        (
            HEAD_LENGTH,
            vec![LONGEST_HEAD as u32 + 1, u32::from(u16::MAX)],
        ),
    ] {
        for value in nonsense {
            let (shm, [writer, reader]) = pair();
            let ring = shm.ring(range(1), range(2)).unwrap();
            put_number(&writer, 0, 2000);
            put_number(&writer, 1, 2000);
            let word = ring.word(ELEMENT + 4 * field);
            let before = word.swap(value, Ordering::SeqCst);
            assert_ne!(before, value);
            assert_eq!(numbers(&look(&reader)), [1], "{value} in word {field}");
        }
    }
}

#[test]
fn a_record_is_published_by_its_number() {
    let (shm, [writer, reader]) = pair();
    let ring = shm.ring(range(1), range(2)).unwrap();
    put_number(&writer, 0, 0);
    let number = ring.word(ELEMENT);
    for nonsense in [0, 2, ELEMENTS as u32 + 1, u32::MAX] {
        number.store(nonsense, Ordering::SeqCst);
        assert_eq!(look(&reader), []);
    }
    number.store(1, Ordering::SeqCst);
    assert_eq!(numbers(&look(&reader)), [0]);
}

#[test]
fn a_reader_that_lies_makes_no_room() {
    let (shm, [writer, _reader]) = pair();
    let head = || {
        let ring = shm.ring(range(1), range(2)).unwrap();
        move |value| ring.word(HEAD).store(value, Ordering::SeqCst)
    };
    let full = fill(&writer, 2000);
    for lie in [full + 1, u32::MAX, 1 << 31, full + ELEMENTS as u32] {
        head()(lie);
        assert_eq!(put_number(&writer, full, 2000), Put::Full, "{lie}");
    }
    head()(full);
    assert_eq!(put_number(&writer, full, 2000), Put::Taken);
}

#[derive(Clone, Debug)]
enum Step {
    Put {
        head: usize,
        payload: usize,
    },
    /// A word of an element, counted from the element that is read next.
    Element {
        element: u32,
        word: usize,
        value: u32,
    },
    Anywhere {
        at: usize,
        value: u32,
    },
    Door {
        word: usize,
        value: u32,
    },
    Look,
    /// The writer, or the reader, is replaced by a new process.
    Anew(bool),
}

fn value() -> impl Strategy<Value = u32> {
    prop_oneof![
        any::<u32>(),
        0..600_u32,
        (0..64_u32).prop_map(|under| (ROOM as u32).wrapping_sub(under * 32)),
        (0..64_u32).prop_map(|over| LONGEST_PAYLOAD as u32 + over),
        (0..8_u32).prop_map(|under| u32::MAX - under),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0..=LONGEST_HEAD, prop_oneof![0..200_usize, 0..=LONGEST_PAYLOAD])
            .prop_map(|(head, payload)| Step::Put { head, payload }),
        6 => (0..4_u32, 0..ELEMENT / 4, value())
            .prop_map(|(element, word, value)| Step::Element { element, word, value }),
        2 => (0..4_u32, 0..6_usize, value())
            .prop_map(|(element, word, value)| Step::Element { element, word, value }),
        1 => (0..PAYLOADS / 4, value())
            .prop_map(|(word, value)| Step::Anywhere { at: word * 4, value }),
        1 => (0..DOOR / 4, value()).prop_map(|(word, value)| Step::Door { word, value }),
        5 => Just(Step::Look),
        1 => any::<bool>().prop_map(Step::Anew),
    ]
}

proptest! {
    // A record that arrives may have any content then, but is never too long, nor from another range.
    #[test]
    fn random_writes_to_the_memory_are_tolerated(steps in prop::collection::vec(step(), 1..120)) {
        let (shm, [mut writer, mut reader]) = pair();
        let ring = shm.ring(range(1), range(2)).unwrap();
        for step in steps {
            match step {
                Step::Put { head, payload } => {
                    put(&writer, &vec![1; head], &vec![2; payload]);
                }
                Step::Element { element, word, value } => {
                    let head = ring.word(HEAD).load(Ordering::SeqCst);
                    let element = head.wrapping_add(element) as usize % ELEMENTS;
                    ring.word(ELEMENT * (1 + element) + 4 * word).store(value, Ordering::SeqCst);
                }
                Step::Anywhere { at, value } => ring.word(at).store(value, Ordering::SeqCst),
                Step::Door { word, value } => {
                    shm.front.word(2 * DOOR + 4 * word).store(value, Ordering::SeqCst);
                }
                Step::Look => {}
                Step::Anew(true) => writer = port(&shm, 1),
                Step::Anew(false) => reader = port(&shm, 2),
            }
            writer.put_waiting(|_| {});
            ring_all(&writer, &reader);
            for found in look(&reader) {
                prop_assert!(found.head.len() <= LONGEST_HEAD);
                prop_assert!(found.payload.len() <= LONGEST_PAYLOAD);
                prop_assert_eq!(found.from, 1);
            }
            reader.arm_bell();
            writer.arm_bell();
        }
        // A process that begins anew works as in new memory.
        let (writer, reader) = (port(&shm, 1), port(&shm, 2));
        look_long(&reader);
        for number in 0..ELEMENTS as u32 + 50 {
            prop_assert_eq!(put_number(&writer, number, 3000), Put::Taken);
            prop_assert_eq!(numbers(&look(&reader)), [number]);
        }
    }
}

#[test]
fn records_arrive_while_their_numbers_wrap() {
    let (shm, _) = pair();
    let ring = shm.ring(range(1), range(2)).unwrap();
    ring.word(HEAD).store(u32::MAX - 1, Ordering::SeqCst);
    let (writer, reader) = (port(&shm, 1), port(&shm, 2));
    for number in 0..4 {
        assert_eq!(put_number(&writer, number, 3000), Put::Taken);
        assert_eq!(numbers(&look(&reader)), [number]);
    }
}

fn ring_all(writer: &End, reader: &End) {
    ring(writer);
    ring(reader);
}

// ---- connections

fn connection(ports: (u16, u16)) -> Connection {
    Connection { ports, stream: 7 }
}

#[test]
fn a_connection_is_found_by_its_other_end_until_it_is_withdrawn() {
    let (_, [one, other]) = pair();
    assert_eq!(other.announced((6000, 5000)), None);
    assert!(one.announce(connection((5000, 6000))));
    assert_eq!(
        other.announced((6000, 5000)),
        Some((range(1), connection((5000, 6000))))
    );
    assert_eq!(other.announced((5000, 6000)), None);
    assert_eq!(other.announced((6000, 5001)), None);
    assert!(other.announce(connection((6000, 5000))));
    assert_eq!(
        one.announced((5000, 6000)),
        Some((range(2), connection((6000, 5000))))
    );
    one.withdraw(range(1), connection((5000, 6000)));
    assert_eq!(other.announced((6000, 5000)), None);
    assert_eq!(
        one.announced((5000, 6000)),
        Some((range(2), connection((6000, 5000))))
    );
}

#[test]
fn the_first_of_two_connections_gets_their_place() {
    let (shm, [one, other]) = pair();
    let at = |ports| shm.connection(range(1), ports).as_ptr();
    let first = (5000, 6000);
    let peer = (0..u16::MAX).find(|peer| at((5001, *peer)) == at(first));
    let second = (5001, peer.unwrap());
    assert!(one.announce(connection(first)));
    assert!(!one.announce(connection(second)));
    assert_eq!(other.announced((second.1, second.0)), None);
    one.withdraw(range(1), connection(second));
    assert_eq!(
        other.announced((first.1, first.0)),
        Some((range(1), connection(first)))
    );
    one.withdraw(range(1), connection(first));
    assert!(one.announce(connection(second)));
    assert_eq!(
        other.announced((second.1, second.0)),
        Some((range(1), connection(second)))
    );
}

#[test]
fn announcements_of_a_process_that_is_gone_are_not_found() {
    let (shm, [one, other]) = pair();
    one.announce(connection((5000, 6000)));
    drop(one);
    assert_eq!(other.announced((6000, 5000)), None);
    let one = port(&shm, 1);
    assert_eq!(other.announced((6000, 5000)), None);
    one.announce(connection((5000, 6000)));
    // The process was killed; the next holder of its range marks that.
    let _killed = one;
    shm.leave(range(1));
    assert_eq!(other.announced((6000, 5000)), None);
    let _one = port(&shm, 1);
    assert_eq!(other.announced((6000, 5000)), None);
}

// ---- two at once

#[test]
fn a_concurrent_reader_gets_every_byte() {
    // A memory checker makes this about thirty times slower.
    let is_checked = std::env::var_os("POLYVERBS_MEMORY_CHECK").is_some();
    let count: u32 = if is_checked { 2_000 } else { 100_000 };
    let (_, [writer, reader]) = pair();
    // The payloads are pieces of this.
    let mut state = 1_u32;
    let mut random = move || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as usize
    };
    let bytes: Vec<_> = (0..LONGEST_PAYLOAD + 1024)
        .map(|_| random() as u8)
        .collect();
    let lengths: Vec<_> = (0..count)
        .map(|_| {
            let most = match random() % 100 {
                0..20 => 0,
                20..60 => INLINE,
                60..98 => 2_000,
                _ => LONGEST_PAYLOAD,
            };
            (4 + random() % (LONGEST_HEAD - 3), random() % (most + 1))
        })
        .collect();
    let piece = |number: u32, length: usize| &bytes[number as usize % 1000..][..length];
    thread::scope(|scope| {
        scope.spawn(|| {
            for (number, (head, length)) in lengths.iter().enumerate() {
                let number = number as u32;
                let mut bytes = number.to_ne_bytes().to_vec();
                bytes.extend_from_slice(piece(number, head - 4));
                let payload = piece(number, *length);
                if put(&writer, &bytes, payload) == Put::Full {
                    let meta = RecordMeta::default();
                    writer.put_later(range(2), meta, &bytes, payload.to_vec());
                }
                while writer.waits() && !writer.put_waiting(|_| {}) {
                    thread::yield_now();
                }
            }
            while writer.waits() {
                writer.put_waiting(|_| {});
                thread::yield_now();
            }
        });
        let mut next = 0;
        while next < count {
            let any = reader.receive(&mut |record| {
                let (head, length) = lengths[next as usize];
                assert_eq!(record.head[..4], next.to_ne_bytes());
                assert!(record.head[4..] == *piece(next, head - 4), "head of {next}");
                let mut payload = vec![0; record.payload.len()];
                record.payload.read(&mut payload);
                assert!(payload == piece(next, length), "payload of {next}");
                next += 1;
            });
            if !any {
                thread::yield_now();
            }
        }
    });
    assert_eq!(look(&reader), []);
    assert_eq!(writer.sent(), u64::from(count));
}
