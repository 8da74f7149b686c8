use std::thread;

use super::*;
use crate::is_memory_checked;

fn pair() -> [StreamMemory; 2] {
    let (made, passed) = StreamMemory::make().unwrap();
    let passed = passed.as_fd().try_clone_to_owned().unwrap();
    [made, StreamMemory::of(passed).unwrap()]
}

fn octets(from: u64, count: usize) -> Vec<u8> {
    (from..)
        .take(count)
        .map(|number| (number % 251) as u8)
        .collect()
}

#[test]
fn octets_come_in_their_order_across_the_end_of_a_ring() {
    let [one, other] = pair();
    for (from, to) in [(&one, &other), (&other, &one)] {
        let (mut put, mut taken) = (0, 0);
        let mut room = vec![0; 70_000];
        let (rounds, rings) = if is_memory_checked() {
            (30, 1)
        } else {
            (200, 4)
        };
        for length in (0..rounds).map(|round| round * 1_777 % 70_000) {
            put += from.put(&octets(put, length)) as u64;
            let count = to.take(&mut room[..length * 2 / 3 + 1]).unwrap();
            assert_eq!(room[..count], octets(taken, count));
            taken += count as u64;
        }
        while to.has_some() {
            taken += to.take(&mut room).unwrap() as u64;
        }
        assert!(put == taken && put > rings * ROOM as u64, "{put} {taken}");
    }
}

#[test]
fn two_threads_lose_nothing() {
    let all = if is_memory_checked() {
        1 << 18
    } else {
        8 << 20
    };
    let [one, other] = pair();
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut put = 0;
            while put < all {
                let length = (put % 9_001) as usize + 1;
                put += one.put(&octets(put, length)) as u64;
                thread::yield_now();
            }
        });
        let (mut taken, mut room) = (0, vec![0; 12_345]);
        while taken < all {
            let count = other.take(&mut room).unwrap();
            assert_eq!(room[..count], octets(taken, count));
            taken += count as u64;
        }
    });
}

#[test]
fn a_full_ring_takes_nothing_and_who_makes_much_room_is_to_say_so() {
    let [one, other] = pair();
    assert_eq!(one.put(&vec![0; ROOM + 1]), ROOM);
    assert_eq!(one.put(&[0]), 0);
    assert!(!one.wait_for_room());
    one.wake();
    one.sleep();
    let mut room = vec![0; MUCH];
    assert_eq!(other.take(&mut room[..9]), Ok(9));
    assert!(!one.has_room() && other.waits_asleep().is_none());
    assert_eq!(other.take(&mut room), Ok(MUCH));
    let sleep = other.waits_asleep().unwrap();
    other.woken(sleep);
    assert!(one.has_room() && other.waits_asleep().is_none());
    one.waits_no_more();
    assert!(!one.has_room());
}

#[test]
fn a_sleep_is_ended_by_its_own_number_only() {
    let [one, other] = pair();
    let first = one.asleep().unwrap();
    other.wake();
    assert_eq!(one.asleep(), None);
    other.sleep();
    one.woken(first);
    let second = one.asleep().unwrap();
    assert_ne!(first, second);
    one.woken(second);
    assert_eq!(one.asleep(), None);
}

#[test]
fn the_beginning_is_told_when_it_was_said() {
    let [one, other] = pair();
    assert!(!one.is_accepted() && other.is_accepted());
    other.accept();
    assert!(one.is_accepted());
    assert_eq!((one.started(), other.started()), (None, None));
    one.start(0);
    other.start(77);
    assert_eq!((one.started(), other.started()), (Some(77), Some(0)));
}

#[test]
fn positions_that_make_no_sense_harm_nobody() {
    let [one, other] = pair();
    let mut room = [0; 100];
    for tail in [u64::MAX, ROOM as u64 + 1, 1 << 63] {
        one.outgoing().tail().store(tail, Ordering::Release);
        assert_eq!(other.take(&mut room), Err(Nonsense));
        other.waits_asleep();
    }
    let [one, other] = pair();
    for head in [1, ROOM as u64, 1 << 63] {
        other.incoming().head().store(head, Ordering::Release);
        one.room();
        assert_eq!(one.put(&room), 0);
    }
}

#[test]
fn other_memory_is_not_taken() {
    let other = SharedMemory::new(4096).unwrap();
    assert!(StreamMemory::of(other.as_fd().try_clone_to_owned().unwrap()).is_none());
}
