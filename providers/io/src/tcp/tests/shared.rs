//! Streams whose frames go through shared memory.

use super::*;
use crate::shm::LONGEST_PAYLOAD;

/// Makes a connection on both links whose frames go through shared memory.
fn join(sinks: &[Arc<Sink>; 2], keys: [u64; 2]) {
    // Sometimes another connection occupies its place, so this tries again.
    let both = |announced: &[(_, Option<Announcement>); 2]| {
        announced
            .iter()
            .all(|(_, announcement)| announcement.is_some())
    };
    let announced = std::iter::repeat_with(|| announce(sinks))
        .take(100)
        .find(both);
    attach_both(sinks, keys, announced.unwrap());
}

fn attach_both(
    sinks: &[Arc<Sink>; 2],
    keys: [u64; 2],
    announced: [(Arc<TcpSocket>, Option<Announcement>); 2],
) {
    for ((sink, key), (socket, announcement)) in sinks.iter().zip(keys).zip(announced) {
        attach_announced(sink, key, socket, announcement);
    }
}

/// Makes and announces a connection that is not attached yet.
fn announce(sinks: &[Arc<Sink>; 2]) -> [(Arc<TcpSocket>, Option<Announcement>); 2] {
    announce_of(sinks, connect())
}

fn announce_of(
    sinks: &[Arc<Sink>; 2],
    [left, right]: [Arc<TcpSocket>; 2],
) -> [(Arc<TcpSocket>, Option<Announcement>); 2] {
    // The end that connects announces first.
    let one = sinks[0].link.announce(&left);
    let other = sinks[1].link.announce(&right);
    [(left, one), (right, other)]
}

fn pair_by_memory() -> [Arc<Sink>; 2] {
    let sinks = [(); 2].map(|()| Sink::with_memory(TcpLinkOptions::default()));
    join(&sinks, [1, 2]);
    assert_eq!(by_memory(&sinks), [1, 1]);
    sinks
}

fn by_memory(sinks: &[Arc<Sink>; 2]) -> [u64; 2] {
    sinks.each_ref().map(|sink| sink.link.counts().by_memory)
}

fn start(sink: &Arc<Sink>) {
    let network = Arc::clone(sink) as Arc<dyn Progress>;
    sink.link.start(Arc::downgrade(&network), |_| {}).unwrap();
}

/// Offers frames beginning with number `first` until there is no room. Returns the next number.
fn fill(sink: &Sink, key: u64, first: u32, payload: &[u8]) -> u32 {
    let next = (first..first + 1000).find(|number| !sink.offer(key, *number, payload));
    next.unwrap()
}

#[test]
fn frames_of_both_directions_arrive_whole_and_in_order() {
    let sinks = pair_by_memory();
    let lengths = [0, 1, 15, 16, 17, 100, 1408, LONGEST_PAYLOAD]
        .iter()
        .cycle();
    let payloads: Vec<_> = (0..100)
        .zip(lengths)
        .map(|(number, length)| vec![number; *length])
        .collect();
    for (number, payload) in (0..).zip(&payloads) {
        for (sink, key) in sinks.iter().zip([1, 2]) {
            sink.send(key, number, payload);
        }
    }
    for (sink, key) in sinks.iter().zip([1, 2]) {
        let other = &sinks[key as usize % 2];
        let frames = sink.drive_with(100, || _ = other.progress());
        for ((number, frame), payload) in (0..).zip(&frames).zip(&payloads) {
            assert_eq!(frame.header, Header::Data { key, number });
            assert_eq!((frame.from, frame.to), (OTHER, ONE));
            assert!(frame.payload == *payload, "{number}");
        }
        let counts = sink.link.counts();
        assert_eq!(
            (counts.sent, counts.delivered, counts.broken),
            (100, 100, 0)
        );
    }
}

#[test]
fn a_frame_longer_than_a_record_is_refused() {
    let [one, other] = pair_by_memory();
    let offer = |length| {
        let payload = vec![1; length];
        let frame = Frame {
            from: ONE,
            to: OTHER,
            header: Header::Data { key: 1, number: 0 },
            payload: Payload::Bytes(&payload),
            damaged: false,
        };
        one.link.try_send(frame, one.now())
    };
    assert!(matches!(
        offer(LONGEST_PAYLOAD + 1),
        TrySend::TooLong(LONGEST_PAYLOAD)
    ));
    assert!(matches!(offer(LONGEST_PAYLOAD), TrySend::Sent));
    assert_eq!(other.drive(1)[0].payload.len(), LONGEST_PAYLOAD);
}

#[test]
fn a_peer_without_shared_memory_uses_tcp() {
    for memory in [[true, false], [false, true]] {
        let sinks = memory.map(|memory| {
            Sink::with_memory(TcpLinkOptions {
                memory,
                ..TcpLinkOptions::default()
            })
        });
        let announced = announce(&sinks);
        assert!(
            announced
                .iter()
                .any(|(_, announcement)| announcement.is_none())
        );
        attach_both(&sinks, [1, 2], announced);
        for number in 0..20 {
            for (sink, key) in sinks.iter().zip([1, 2]) {
                sink.send(key, number, &[7; 100]);
                sink.link.flush();
            }
        }
        for sink in &sinks {
            assert!(numbers(&sink.drive(20)).into_iter().eq(0..20));
        }
        assert_eq!(by_memory(&sinks), [0, 0]);
    }
}

#[test]
fn frames_sent_after_the_last_bytes_find_their_stream() {
    let sinks = [(); 2].map(|()| Sink::with_memory(TcpLinkOptions::default()));
    let [(left, one), (right, other)] = announce(&sinks);
    attach_and_say(&sinks[1], 2, right, other, b"go on");
    let mut room = [0; 8];
    until(|| matches!(left.receive(&mut room), Ok(Received::Bytes(5))));
    assert_eq!(&room[..5], b"go on");
    attach_announced(&sinks[0], 1, left, one);
    // These are far more frames than may arrive before a stream is attached.
    for number in 0..2000 {
        sinks[0].send(1, number, b"many");
    }
    let frames = sinks[1].drive_with(2000, || _ = sinks[0].progress());
    assert!(numbers(&frames).into_iter().eq(0..2000));
}

#[test]
fn late_records_do_not_reach_a_new_connection_of_their_ports() {
    let sinks = [(); 2].map(|()| Sink::with_memory(TcpLinkOptions::default()));
    let announced = std::iter::repeat_with(|| announce(&sinks)).take(100);
    let mut announced = announced.filter(|ends| ends.iter().all(|(_, said)| said.is_some()));
    let first = announced.next().unwrap();
    let ports = (first[0].0.local().unwrap(), first[1].0.local().unwrap());
    attach_both(&sinks, [1, 2], first);
    sinks[1].say(Header::Reset(2));
    for number in 0..10 {
        sinks[0].send(1, number, b"too late");
    }
    sinks[0].say(Header::Reset(1));
    for sink in &sinks {
        sink.progress();
    }
    let second = announce_of(&sinks, connect_by(ports));
    attach_both(&sinks, [3, 4], second);
    assert_eq!(by_memory(&sinks), [2, 2]);
    sinks[0].send(3, 0, b"in time");
    let frames = sinks[1].drive(1);
    assert_eq!(frames[0].header, Header::Data { key: 4, number: 0 });
    assert_eq!(frames[0].payload, b"in time");
    assert_eq!(sinks[1].link.counts().homeless, 10);
}

#[test]
fn an_end_follows_the_last_frame_and_ends_one_direction() {
    let [one, other] = pair_by_memory();
    // These frames need more room than there is.
    for number in 0..100 {
        one.send(1, number, &[5; UNIT]);
    }
    one.say(Header::Close(1));
    let frames = other.drive_with(101, || _ = one.progress());
    assert!(numbers(&frames[..100]).into_iter().eq(0..100));
    assert_eq!(frames[100].header, Header::Ended(2));
    the_other_direction_goes_on(&one, &other);
    assert_eq!((one.link.counts().lost, other.link.counts().lost), (0, 0));
}

#[test]
fn the_loss_of_a_peer_is_reported_after_its_records() {
    type Leave = fn(Arc<Sink>);
    let resets: Leave = |sink| sink.say(Header::Reset(1));
    // The process was killed: the system closes its sockets.
    let is_killed: Leave = drop;
    for leave in [resets, is_killed] {
        let [one, other] = pair_by_memory();
        for number in 0..ROUND * 2 + 3 {
            one.send(1, number, b"said before");
        }
        leave(one);
        let count = ROUND * 2 + 3;
        let frames = other.drive(count as usize + 1);
        assert!(numbers(&frames[..count as usize]).into_iter().eq(0..count));
        assert_eq!(frames[count as usize].header, Header::Lost(2));
        assert_eq!((other.link.connections(), other.link.counts().lost), (0, 1));
    }
}

#[test]
fn a_full_ring_refuses_offers_and_takes_answers() {
    let [one, other] = pair_by_memory();
    let payload = vec![1; UNIT];
    let full = fill(&one, 1, 0, &payload);
    for number in full..full + 50 {
        one.send(1, number, &payload);
    }
    assert!(!one.offer(1, full + 50, b"behind what waits"));
    one.progress();
    assert!(one.headers().is_empty());
    let frames = other.drive_with(full as usize + 50, || _ = one.progress());
    assert!(numbers(&frames).into_iter().eq(0..full + 50));
    assert!(frames.iter().all(|frame| frame.payload == payload));
    assert_eq!(one.drive(1)[0].header, Header::Room(1));
    assert!(one.offer(1, full + 50, &payload));
    assert_eq!(numbers(&other.drive(1)), [full + 50]);
    assert!(one.headers().is_empty());
}

#[test]
fn room_is_reported_to_every_stream_that_was_refused() {
    let sinks = pair_by_memory();
    let payload = vec![1; UNIT];
    let full = fill(&sinks[0], 1, 0, &payload);
    // No poll has registered this stream yet.
    join(&sinks, [3, 4]);
    sinks[0].link.flush();
    assert!(!sinks[0].offer(3, 0, &payload));
    sinks[1].drive(full as usize);
    let mut told = sinks[0].drive(2);
    told.sort_by_key(|frame| Toy.key(&frame.header));
    let headers: Vec<_> = told.iter().map(|frame| frame.header).collect();
    assert_eq!(headers, [Header::Room(1), Header::Room(3)]);
}

#[test]
fn an_invalid_record_is_reported_as_damaged_and_ends_reading() {
    let [one, other] = pair_by_memory();
    {
        let stream = one.link.stream(1).unwrap();
        stream.outgoing.lock().sender = 5;
    }
    for number in 5..8 {
        one.send(1, number, b"not the first");
    }
    let frames = other.drive(1);
    assert_eq!(
        (frames[0].header, frames[0].damaged),
        (Header::Broken(2), true)
    );
    other.progress();
    assert!(other.headers().is_empty());
    assert_eq!(other.link.counts().broken, 1);
}

#[test]
fn a_record_wakes_a_sleeping_process() {
    let sinks = pair_by_memory();
    sinks.iter().for_each(start);
    for number in 0..500 {
        for (from, key) in [(0, 1), (1, 2)] {
            sinks[from].send(key, number, b"woken");
            sinks[from].link.flush();
            assert_eq!(numbers(&sinks[1 - from].brought(1)), [number]);
        }
    }
    assert_eq!(by_memory(&sinks), [1, 1]);
}

#[test]
fn the_thread_reads_the_records_that_a_poll_leaves() {
    let sinks = pair_by_memory();
    for number in 0..200 {
        sinks[0].send(1, number, b"many");
    }
    assert!(sinks[1].link.progress(sinks[1].now(), &*sinks[1]));
    assert!(sinks[1].headers().len() < 200);
    sinks.iter().for_each(start);
    let frames = sinks[1].brought(200);
    assert!(numbers(&frames).into_iter().eq(0..200));
}

#[test]
fn the_thread_reads_memory_after_pollers_are_gone() {
    let sinks = pair_by_memory();
    sinks.iter().for_each(start);
    let [one, other] = &sinks;
    for number in 0..20 {
        claim(other);
        if number % 2 == 0 {
            other.link.reactor.hand_back();
        }
        one.send(1, number, b"woken");
        one.link.flush();
        assert_eq!(numbers(&other.brought(1)), [number]);
    }
}

#[test]
fn ten_connections_at_once_lose_no_frame() {
    const FRAMES: u32 = 300;
    let sinks = [(); 2].map(|()| Sink::with_memory(TcpLinkOptions::default()));
    for key in 1..=10 {
        join(&sinks, [key, key]);
    }
    assert_eq!(by_memory(&sinks), [10, 10]);
    sinks.iter().for_each(start);
    let payload = vec![3; 20_000];
    thread::scope(|scope| {
        for key in 1..=10 {
            let (sinks, payload) = (&sinks, &payload);
            scope.spawn(move || {
                for number in 0..FRAMES {
                    for sink in sinks {
                        sink.send(key, number, &payload[..number as usize * 613 % 20_000]);
                        sink.link.flush();
                    }
                }
            });
        }
    });
    for sink in &sinks {
        let frames = sink.brought(10 * FRAMES as usize);
        for key in 1..=10 {
            let of = frames.iter().filter(|frame| Toy.key(&frame.header) == key);
            assert!(
                numbers(&of.cloned().collect::<Vec<_>>())
                    .into_iter()
                    .eq(0..FRAMES)
            );
        }
    }
}

#[test]
fn ten_connections_wait_for_room_and_get_it_reported() {
    const FRAMES: u32 = 100;
    let sinks = [(); 2].map(|()| Sink::with_memory(TcpLinkOptions::default()));
    for key in 1..=10 {
        join(&sinks, [key, key]);
    }
    sinks.iter().for_each(start);
    let payload = vec![3; UNIT];
    let mut next = [0; 11];
    let offer = |key: u64, next: &mut u32| {
        while *next < FRAMES && sinks[0].offer(key, *next, &payload) {
            *next += 1;
        }
        sinks[0].link.flush();
    };
    (1..=10).for_each(|key| offer(key, &mut next[key as usize]));
    // The test offers a frame only on a stream that has been reported to have room.
    until(|| {
        for frame in std::mem::take(&mut *sinks[0].frames.lock()) {
            let Header::Room(key) = frame.header else {
                panic!("{:?}", frame.header);
            };
            offer(key, &mut next[key as usize]);
        }
        next[1..].iter().all(|next| *next >= FRAMES)
    });
    let frames = sinks[1].brought(10 * FRAMES as usize);
    assert_eq!(frames.len(), 10 * FRAMES as usize);
}

#[test]
fn a_record_that_waited_for_room_wakes_a_sleeper() {
    let sinks = pair_by_memory();
    let full = fill(&sinks[0], 1, 0, b"");
    // A driver that waits for room would be notified of it, which would count as an arrival.
    sinks[0].link.stream(1).unwrap().outgoing.lock().wants_room = false;
    for number in full..full + 50 {
        sinks[0].send(1, number, b"");
    }
    sinks[0].link.flush();
    start(&sinks[1]);
    sinks[1].brought(full as usize);
    sinks[0].progress();
    let frames = sinks[1].brought(50);
    assert!(numbers(&frames).into_iter().eq(full..full + 50));
}

/// Calls `work` while the other link is read, until that link has `count` frames of the first stream and, if `ends`, its
/// end.
fn read_while(sinks: &[Arc<Sink>; 2], count: u32, ends: bool, work: impl FnOnce(&Sink)) {
    thread::scope(|scope| {
        let reader = scope.spawn(|| sinks[1].drive(count as usize + usize::from(ends)));
        work(&sinks[0]);
        let frames = reader.join().unwrap();
        assert!(numbers(&frames[..count as usize]).into_iter().eq(0..count));
        assert!(!ends || frames[count as usize].header == Header::Ended(2));
    });
}

#[test]
fn a_process_that_ends_writes_the_records_of_its_streams() {
    let sinks = pair_by_memory();
    for number in 0..100 {
        sinks[0].send(1, number, &[1; UNIT]);
    }
    read_while(&sinks, 100, false, |sink| {
        sink.link.write_everything(&no_time)
    });
}

#[test]
fn drain_waits_until_an_ended_streams_records_are_written() {
    let sinks = pair_by_memory();
    for number in 0..100 {
        sinks[0].send(1, number, &[1; UNIT]);
    }
    // A drain does not wait for a stream that continues.
    sinks[0].link.drain();
    assert!(sinks[1].headers().is_empty());
    sinks[0].say(Header::Close(1));
    read_while(&sinks, 100, true, |sink| sink.link.drain_while(&no_time));
}

#[test]
fn drain_gives_up_on_a_peer_that_reads_no_memory() {
    let [one, _other] = pair_by_memory();
    for number in 0..100 {
        one.send(1, number, &[1; UNIT]);
    }
    one.say(Header::Close(1));
    drain_gives_up(&one);
}

/// Bytes of a long payload, and the most records of a sender that one poll reads.
const UNIT: usize = 32 << 10;
const ROUND: u32 = 64;
