use std::sync::atomic::{AtomicU64, AtomicUsize};
use std::thread;

use super::*;
use crate::is_memory_checked;
use crate::piece::Piece;

const FROM: usize = 5;
const TO: usize = 9;

fn range(index: usize) -> QpnRange {
    QpnRange::of_index(index).unwrap()
}

fn mailbox(rings: &Arc<Rings>) -> Mailbox {
    let address = "127.0.3.90:4791".parse().unwrap();
    Mailbox::new(Arc::clone(rings), address, range(TO))
}

fn put(writer: &mut Writer, rings: &Rings, octets: &[u8], segment: u16) -> Put {
    let pieces = [Piece::from(octets)];
    let transmit = Transmit {
        segment,
        traffic_class: 2,
        ..Transmit::new("127.0.3.90:4791".parse().unwrap(), &pieces)
    };
    writer.put(rings, 0xc007, &transmit)
}

fn all(mailbox: &mut Mailbox) -> Vec<Vec<u8>> {
    let mut found = Vec::new();
    while mailbox.receive(&mut |message| found.push(message.octets.to_vec())) > 0 {}
    found
}

fn pair() -> (Arc<Rings>, Writer, Mailbox) {
    let rings = Arc::new(Rings::new().unwrap());
    let mailbox = mailbox(&rings);
    let writer = Writer::new(&rings, range(FROM), range(TO)).unwrap();
    (rings, writer, mailbox)
}

#[test]
fn what_is_put_down_is_read_with_what_a_socket_would_tell() {
    let (rings, mut writer, mut mailbox) = pair();
    mailbox.wake();
    assert_eq!(put(&mut writer, &rings, &[7; 100], 40), Put::Taken);
    assert_eq!(put(&mut writer, &rings, b"", 0), Put::Taken);
    let mut found = Vec::new();
    let count = mailbox.receive(&mut |message| {
        assert_eq!(message.from, "127.0.3.90:49159".parse().unwrap());
        assert_eq!(message.to, Some(message.from.ip()));
        assert_eq!(message.traffic_class, 2);
        found.extend(message.datagrams().map(<[u8]>::len));
    });
    assert_eq!((count, found), (2, vec![40, 40, 20, 0]));
    assert_eq!(mailbox.receive(&mut |_| unreachable!()), 0);
}

#[test]
fn who_sleeps_is_woken_by_whoever_comes_first_and_sees_what_came_before() {
    let (rings, mut writer, mut mailbox) = pair();
    assert!(!mailbox.sleep());
    let mut say = |octets: &[u8]| {
        assert_eq!(put(&mut writer, &rings, octets, 0), Put::Taken);
        rings.sleep_of(range(TO)).number()
    };
    let first = say(b"x");
    // Until he has been woken the next one would.
    assert_eq!(say(b"y"), first);
    rings.sleep_of(range(TO)).woken(first.unwrap());
    assert_eq!(say(b"z"), None);
    assert!(mailbox.sleep());
    // Who woke him from the first is late.
    rings.sleep_of(range(TO)).woken(first.unwrap());
    let second = say(b"!");
    assert!(second.is_some() && second != first);
    assert_eq!(all(&mut mailbox), [b"x", b"y", b"z", b"!"]);
    assert!(!mailbox.sleep());
}

#[test]
fn nothing_is_put_down_where_nobody_reads_or_for_who_read_before() {
    let rings = Arc::new(Rings::new().unwrap());
    let mut writer = Writer::new(&rings, range(FROM), range(TO)).unwrap();
    assert!(!rings.is_read(range(TO)));
    assert_eq!(put(&mut writer, &rings, b"x", 0), Put::Nobody);
    let first = mailbox(&rings);
    assert!(rings.is_read(range(TO)));
    assert_eq!(put(&mut writer, &rings, b"old", 0), Put::Taken);
    // As if it had been killed: the next one has the range without a word of the first.
    let mut second = mailbox(&rings);
    assert_eq!(put(&mut writer, &rings, b"new", 0), Put::Taken);
    assert_eq!(all(&mut second), [b"new"]);
    drop(first);
    assert!(rings.is_read(range(TO)), "another has it");
    drop(second);
    assert!(!rings.is_read(range(TO)));
}

#[test]
fn a_full_ring_refuses_and_goes_on_when_it_has_been_read() {
    let (rings, mut writer, mut mailbox) = pair();
    let octets = vec![1; MAX_OCTETS];
    let mut taken = 0;
    while put(&mut writer, &rings, &octets, 4096) != Put::Full {
        taken += 1;
    }
    assert_eq!(taken, ROOM / MAX_OCTETS.next_multiple_of(HEADER));
    assert_eq!(all(&mut mailbox).len(), taken);
    assert_eq!(put(&mut writer, &rings, &octets, 4096), Put::Taken);
    assert_eq!(
        put(&mut writer, &rings, &vec![1; MAX_OCTETS + 1], 0),
        Put::Nobody
    );
    assert_eq!(all(&mut mailbox).len(), 1);
}

#[test]
fn who_takes_over_a_range_writes_on_where_the_last_one_was_killed() {
    let (rings, mut writer, mut mailbox) = pair();
    put(&mut writer, &rings, b"one", 0);
    drop(writer);
    let mut writer = Writer::new(&rings, range(FROM), range(TO)).unwrap();
    put(&mut writer, &rings, b"two", 0);
    assert_eq!(all(&mut mailbox), [b"one", b"two"]);
}

#[test]
fn where_nothing_waits_the_same_stretch_is_used_again() {
    let (rings, mut writer, mut mailbox) = pair();
    let octets = vec![3; 60_000];
    for _ in 0..if is_memory_checked() { 50 } else { 1000 } {
        put(&mut writer, &rings, &octets, 0);
        assert_eq!(all(&mut mailbox).len(), 1);
        assert!(offset(writer.tail) <= STRETCH + octets.len() + HEADER);
    }
}

#[test]
fn everything_arrives_once_and_in_order_whoever_sleeps_and_looks_away() {
    let messages: u64 = if is_memory_checked() { 200 } else { 50_000 };
    let (rings, writer, mut mailbox) = pair();
    let other = Writer::new(&rings, range(FROM + 1), range(TO)).unwrap();
    let bell = AtomicUsize::new(0);
    let next = [AtomicU64::new(0), AtomicU64::new(0)];
    thread::scope(|scope| {
        for (number, mut writer) in [writer, other].into_iter().enumerate() {
            let (rings, bell) = (&rings, &bell);
            scope.spawn(move || {
                let mut seed = 77 + number as u64;
                for count in 0..messages {
                    seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    let mut octets = vec![number as u8; 9 + (seed >> 40) as usize % 9000];
                    octets[1..9].copy_from_slice(&count.to_ne_bytes());
                    while put(&mut writer, rings, &octets, 0) == Put::Full {}
                    if let Some(sleep) = rings.sleep_of(range(TO)).number() {
                        bell.fetch_add(1, Ordering::SeqCst);
                        rings.sleep_of(range(TO)).woken(sleep);
                    }
                }
            });
        }
        while next
            .iter()
            .any(|next| next.load(Ordering::Relaxed) < messages)
        {
            let read = mailbox.receive(&mut |message| {
                let (number, rest) = message.octets.split_first().unwrap();
                let count = u64::from_ne_bytes(*rest.first_chunk().unwrap());
                assert!(rest[8..].iter().all(|octet| octet == number));
                let next = &next[usize::from(*number)];
                assert_eq!(next.fetch_add(1, Ordering::Relaxed), count);
            });
            if read == 0 {
                let heard = bell.load(Ordering::SeqCst);
                if !mailbox.sleep() {
                    // Both may be done; otherwise whoever puts something down rings.
                    let is_over = || {
                        next.iter()
                            .all(|next| next.load(Ordering::Relaxed) == messages)
                    };
                    while !is_over() && bell.load(Ordering::SeqCst) == heard {
                        thread::yield_now();
                    }
                }
                mailbox.wake();
            }
        }
    });
}

#[test]
fn nonsense_in_a_ring_is_left_out() {
    let (rings, mut writer, mut mailbox) = pair();
    let ring = rings.ring(range(FROM), range(TO)).unwrap();
    rings.door(range(TO)).has.store(u64::MAX, Ordering::SeqCst);
    let mut seed = 4711_u64;
    let mut random = || {
        seed = seed
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        seed >> 20
    };
    for _ in 0..if is_memory_checked() { 500 } else { 20_000 } {
        let tail = match random() % 4 {
            0 => random() % (2 * ROOM as u64),
            1 => u64::MAX - random() % 100,
            _ => ring
                .long(HEAD)
                .load(Ordering::SeqCst)
                .wrapping_add(random() % 100_000),
        };
        let at = offset(ring.long(HEAD).load(Ordering::SeqCst));
        let length = [random(), random() % 70_000, u64::from(u32::MAX)][random() as usize % 3];
        ring.span(PAGE + at, 4)
            .write(&(length as u32).to_ne_bytes());
        ring.long(TAIL).store(tail, Ordering::SeqCst);
        mailbox.receive(&mut |_| {});
    }
    // And whoever means well is heard again.
    let tail = ring.long(TAIL).load(Ordering::SeqCst);
    ring.long(TAIL).store(aligned(tail), Ordering::SeqCst);
    all(&mut mailbox);
    writer = Writer::new(&rings, writer.from, writer.to).unwrap();
    put(&mut writer, &rings, b"sense", 0);
    assert_eq!(all(&mut mailbox), [b"sense"]);
}

// Pages that somebody has touched.
fn pages(rings: &Rings) -> u64 {
    rustix::fs::fstat(rings).unwrap().st_blocks as u64 / 8
}

#[test]
fn the_memory_of_a_range_is_given_back_to_its_next_holder() {
    const MESSAGES: usize = 40;
    let message = [7; 50_000];
    let (rings, mut writer, mut dead) = pair();
    let mut back = Writer::new(&rings, range(TO), range(FROM)).unwrap();
    let mut other = Mailbox::new(
        Arc::clone(&rings),
        "127.0.3.90:4791".parse().unwrap(),
        range(FROM),
    );
    for _ in 0..MESSAGES {
        assert_eq!(put(&mut writer, &rings, &message, 0), Put::Taken);
        assert_eq!(put(&mut back, &rings, &message, 0), Put::Taken);
    }
    assert_eq!(all(&mut other).len(), MESSAGES);
    // What he has said last is still to be read, and what he has not read is nobody's.
    assert_eq!(put(&mut back, &rings, b"last", 0), Put::Taken);
    assert_eq!(dead.receive(&mut |_| ()), AT_ONCE);
    let before = pages(&rings);
    // It ends without a word: nothing of it runs any more.
    rings.let_go(range(TO));
    assert!(
        pages(&rings) < before / 2 + 10,
        "{} of {before}",
        pages(&rings)
    );
    assert_eq!(all(&mut other), [b"last"]);
    rings.let_go(range(TO));
    assert!(pages(&rings) < 10, "{}", pages(&rings));
    // Whoever wrote before and whoever reads now meet.
    let mut next = mailbox(&rings);
    assert_eq!(put(&mut writer, &rings, b"next", 0), Put::Taken);
    assert_eq!(all(&mut next), [b"next"]);
    let mut writer = Writer::new(&rings, range(TO), range(FROM)).unwrap();
    assert_eq!(put(&mut writer, &rings, b"first", 0), Put::Taken);
    assert_eq!(all(&mut other), [b"first"]);
}
