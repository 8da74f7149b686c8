//! Connections that go over to memory.

use polyverbs_sockets::{Ends, Mail, Passed, Post, StreamMemory, TcpTap, Way};

use super::*;
use crate::chance::Chance;

/// Two links with their threads, and a connection as of [`pair`].
struct Pair {
    sinks: [Arc<Sink>; 2],
    _duties: [Arc<dyn Duty>; 2],
}

const KEYS: [u64; 2] = [1, 2];

fn started(options: TcpLinkOptions) -> (Arc<Sink>, Arc<dyn Duty>) {
    let sink = Sink::new(options);
    let network: Weak<dyn Progress> = Arc::downgrade(&sink) as _;
    let duty = sink.link.start(network, |_| {}).unwrap();
    (sink, duty)
}

fn listener() -> TcpListener {
    TcpListener::listen("127.0.3.111:0".parse().unwrap(), 8, &TcpOptions::default()).unwrap()
}

fn connect_to(listener: &TcpListener) -> (TcpSocket, TcpSocket) {
    let (at, options) = (listener.local(), TcpOptions::default());
    let near = TcpSocket::connect(Some(SocketAddr::new(at.ip(), 0)), at, &options).unwrap();
    let began = Instant::now();
    let far = loop {
        assert!(began.elapsed() < LONG);
        if let Some((socket, _)) = listener.accept().unwrap() {
            break socket;
        }
    };
    while !near.connected().unwrap() {}
    (near, far)
}

fn connect_at_one_address() -> [Connection; 2] {
    let (near, far) = connect_to(&listener());
    [near, far].map(Connection::new)
}

impl Pair {
    fn with(options: [TcpLinkOptions; 2]) -> Self {
        let [(one, a), (other, b)] = options.map(started);
        let [near, far] = connect_at_one_address();
        attach(&one, KEYS[0], near);
        attach(&other, KEYS[1], far);
        Self {
            sinks: [one, other],
            _duties: [a, b],
        }
    }

    fn new() -> Self {
        Self::with([TcpLinkOptions::default(); 2])
    }

    /// Has carried what it takes for both directions to be in memory: the numbers of the next frames.
    fn by_memory(&self) -> [u32; 2] {
        let began = Instant::now();
        let mut number = 0;
        while self.counts() != [1, 1] || number < 20 {
            assert!(began.elapsed() < LONG);
            self.exchange(number, 1);
            number += 1;
        }
        [number; 2]
    }

    fn counts(&self) -> [u64; 2] {
        let count = |sink: &Arc<Sink>| sink.link.counts().by_memory;
        [count(&self.sinks[0]), count(&self.sinks[1])]
    }

    // One frame each way, driven by this thread.
    fn exchange(&self, number: u32, length: usize) {
        for (sink, key) in self.sinks.iter().zip(KEYS) {
            sink.send(key, number, &vec![7; length]);
            sink.link.flush();
        }
        for sink in &self.sinks {
            assert_eq!(numbers(&sink.drive(1)), [number]);
        }
    }
}

fn off() -> TcpLinkOptions {
    TcpLinkOptions {
        memory: false,
        ..TcpLinkOptions::default()
    }
}

/// Until the threads of the links have brought so many.
fn brought(sink: &Sink, count: usize) -> Vec<OwnedFrame<Header>> {
    let began = Instant::now();
    while lock(&sink.frames).len() < count {
        assert!(began.elapsed() < LONG, "{:?}", sink.headers());
        thread::sleep(Duration::from_micros(100));
    }
    std::mem::take(&mut *lock(&sink.frames))
}

#[test]
fn frames_of_any_size_keep_their_order_while_a_connection_goes_over() {
    for seed in 0..6 {
        let pair = Pair::new();
        let (mut sent, mut lengths) = ([0; 2], [Vec::new(), Vec::new()]);
        let mut found = [Vec::new(), Vec::new()];
        let mut chance = Chance::new(seed, 0);
        let began = Instant::now();
        while pair.counts() != [1, 1] || sent.iter().any(|sent| *sent < 400) {
            assert!(began.elapsed() < LONG, "{:?}", pair.counts());
            for side in 0..2 {
                for _ in 0..chance.number(Between::new(0, 3)) {
                    let most = [10, 1_500, 66_000][chance.number(Between::new(0, 2)) as usize];
                    let length = chance.number(Between::new(0, most)) as usize;
                    pair.sinks[side].send(KEYS[side], sent[side], &vec![sent[side] as u8; length]);
                    sent[side] += 1;
                    lengths[side].push(length);
                }
                if chance.number(Between::new(0, 1)) == 0 {
                    pair.sinks[side].link.flush();
                }
                let other = &pair.sinks[1 - side];
                other.progress();
                found[1 - side].append(&mut lock(&other.frames));
            }
        }
        for side in 0..2 {
            let (from, to) = (&pair.sinks[1 - side], &pair.sinks[side]);
            let left = sent[1 - side] as usize - found[side].len();
            let mut frames = std::mem::take(&mut found[side]);
            frames.extend(to.drive_with(left, || from.progress()));
            assert!(numbers(&frames).into_iter().eq(0..sent[1 - side]));
            for (number, (frame, length)) in frames.iter().zip(&lengths[1 - side]).enumerate() {
                assert_eq!(frame.payload, vec![number as u8; *length]);
            }
        }
    }
}

#[test]
fn where_one_side_does_not_want_memory_tcp_carries_everything() {
    let on = TcpLinkOptions::default();
    let stalls = faulty(StreamFaults {
        chunk: Some(Between::new(1, 700)),
        ..StreamFaults::default()
    });
    for options in [[on, off()], [off(), on], [on, stalls], [stalls, on]] {
        let pair = Pair::with(options);
        (0..300).for_each(|number| pair.exchange(number, 100));
        assert_eq!(pair.counts(), [0, 0]);
    }
}

#[test]
fn where_somebody_listens_in_tcp_carries_everything() {
    struct Nobody;
    impl TcpTap for Nobody {
        fn passed(&self, _: Way, _: &Ends, _: Passed<'_>) {}
    }
    let [(one, _a), (other, _b)] = [TcpLinkOptions::default(); 2].map(started);
    let listener = listener();
    let (near, far) = connect_to(&listener);
    let peer = near.local().unwrap();
    let far = far.tapped(Arc::new(Nobody), Way::In, peer);
    attach(&one, 1, Connection::new(near));
    attach(&other, 2, Connection::new(far));
    for number in 0..100 {
        one.send(1, number, b"octets");
        one.link.flush();
        other.drive(1);
    }
    assert_eq!(one.link.counts().by_memory, 0);
}

#[test]
fn who_sleeps_is_woken() {
    let pair = Pair::new();
    let [first, _] = pair.by_memory();
    let [one, other] = &pair.sinks;
    for number in first..first + 300 {
        // Now and then after the threads have gone to sleep.
        if number % 10 == 0 {
            thread::sleep(Duration::from_millis(8));
        }
        for (from, key, to) in [(one, 1, other), (other, 2, one)] {
            from.send(key, number, b"octets");
            from.link.flush();
            assert_eq!(numbers(&brought(to, 1)), [number]);
        }
    }
}

#[test]
fn a_full_ring_says_so_and_who_waits_is_told_of_room() {
    for polls in [true, false] {
        let pair = Pair::new();
        let [mut number, _] = pair.by_memory();
        let first = number;
        let [one, other] = &pair.sinks;
        // Whoever reads stands at the first frame.
        let door = lock(&other.frames);
        let payload = vec![1; 60_000];
        while one.offer(1, number, &payload) {
            one.link.flush();
            number += 1;
            assert!(number < first + 100);
        }
        thread::sleep(Duration::from_millis(20));
        drop(door);
        let room = if polls { one.drive(1) } else { brought(one, 1) };
        assert_eq!(room[0].header, Header::Room(1));
        assert!(one.offer(1, number, &payload));
        one.link.flush();
        let frames = brought(other, (number + 1 - first) as usize);
        assert!(numbers(&frames).into_iter().eq(first..=number));
    }
}

#[test]
fn an_end_comes_behind_what_is_in_memory() {
    for (last, told) in [
        (Header::Close(1), Header::Ended(2)),
        (Header::Reset(1), Header::Lost(2)),
    ] {
        let pair = Pair::new();
        let [first, _] = pair.by_memory();
        let [one, other] = &pair.sinks;
        let door = lock(&other.frames);
        for number in first..first + 3 {
            one.send(1, number, &[2; 50_000]);
        }
        one.link.flush();
        // What has not left is lost with a reset.
        thread::sleep(Duration::from_millis(20));
        one.say(last);
        thread::sleep(Duration::from_millis(20));
        drop(door);
        let frames = brought(other, 4);
        assert!(numbers(&frames[..3]).into_iter().eq(first..first + 3));
        assert_eq!(frames[3].header, told);
    }
}

#[test]
fn the_other_direction_goes_on_behind_an_end() {
    let pair = Pair::new();
    let [first, _] = pair.by_memory();
    let [one, other] = &pair.sinks;
    one.say(Header::Close(1));
    assert_eq!(brought(other, 1)[0].header, Header::Ended(2));
    for number in first..first + 50 {
        other.send(2, number, &[3; 60_000]);
    }
    other.link.flush();
    assert!(numbers(&brought(one, 50)).into_iter().eq(first..first + 50));
    other.say(Header::Close(2));
    assert_eq!(brought(one, 1)[0].header, Header::Ended(1));
    let began = Instant::now();
    while one.link.connections() + other.link.connections() > 0 {
        assert!(began.elapsed() < LONG);
        thread::yield_now();
    }
    assert_eq!(one.link.counts().lost + other.link.counts().lost, 0);
}

#[test]
fn many_connections_share_a_port_and_few_have_memory_at_a_time() {
    let [(one, _a), (other, _b)] = [TcpLinkOptions::default(); 2].map(started);
    let listener = listener();
    for key in 1..=200 {
        let (near, far) = connect_to(&listener);
        attach(&one, key, Connection::new(near));
        attach(&other, key, Connection::new(far));
    }
    for number in 0..100 {
        for key in 1..=200 {
            one.send(key, number, &[1; 3000]);
        }
        one.link.flush();
        assert_eq!(other.drive_with(200, || one.progress()).len(), 200);
    }
    let by_memory = one.link.counts().by_memory;
    assert!((64..=128).contains(&by_memory), "{by_memory}");
    for key in 1..=200 {
        one.link.detach(key);
    }
    assert_eq!(other.drive(200).len(), 200);
    // Its name is free again.
    let began = Instant::now();
    while Post::at(listener.local(), Admission::default()).is_err() {
        assert!(began.elapsed() < LONG);
        one.progress();
        other.progress();
    }
}

/// A peer that has memory and its own mind.
struct Stranger {
    connection: Connection,
    memory: StreamMemory,
    sink: Arc<Sink>,
    _duty: Arc<dyn Duty>,
}

impl Stranger {
    fn new() -> Self {
        let (sink, duty) = started(TcpLinkOptions::default());
        let [connection, far] = connect_at_one_address();
        let ends = Ends {
            local: connection.socket().local().unwrap(),
            peer: connection.socket().peer().unwrap(),
        };
        attach(&sink, 2, far);
        let post = Post::to_ask(Admission::default()).unwrap();
        post.ask(ends).unwrap();
        let (began, mut given) = (Instant::now(), None);
        let memory = loop {
            assert!(began.elapsed() < LONG);
            let mut take = |mail| match mail {
                Mail::Given(_, memory) => given = Some(memory),
                Mail::Asked(..) => {}
            };
            post.attend(&mut take).unwrap();
            if let Some(memory) = given.take() {
                break memory;
            }
        };
        memory.accept();
        Self {
            connection,
            memory,
            sink,
            _duty: duty,
        }
    }

    fn ring(&mut self) {
        self.connection.send(&[b"!"[..].into()]).unwrap();
    }
}

fn frame(number: u32) -> OctetQueue {
    let mut frame = OctetQueue::default();
    let header = Header::Data { key: 2, number };
    Toy.encode(&mut number.clone(), &header, &Payload::Empty, &mut frame);
    frame
}

// The peer sends no bell to a thread that is awake: so that thread looks also where it has written to memory, but not read
// there yet.
#[test]
fn what_begins_in_memory_while_the_thread_is_awake_is_seen_before_it_sleeps() {
    for by_tcp in 0..3 {
        let mut stranger = Stranger::new();
        let link = Arc::clone(&stranger.sink.link);
        stranger.sink.send(2, 0, b"goes over");
        link.flush();
        assert_eq!(link.counts().by_memory, 1);
        let frames: Vec<_> = (0..=by_tcp).map(frame).collect();
        let before = &frames[..by_tcp as usize];
        let start: usize = before.iter().map(OctetQueue::len).sum();
        link.wake();
        stranger.memory.start(start as u64);
        assert_eq!(
            stranger.memory.put(frames[by_tcp as usize].waiting()),
            HEAD + 1
        );
        let is_seen = link.sleep() || !lock(&stranger.sink.frames).is_empty();
        // Before TCP's octets have come nobody looks for them again and again: they wake the thread.
        assert_eq!(is_seen, by_tcp == 0);
        for frame in before {
            stranger.connection.send(&[frame.waiting().into()]).unwrap();
        }
        if by_tcp == 0 {
            link.watch().leave();
        }
        let found = brought(&stranger.sink, frames.len());
        assert!(numbers(&found).into_iter().eq(0..=by_tcp));
    }
}

#[test]
fn a_peer_that_begins_where_it_cannot_is_lost() {
    let mut stranger = Stranger::new();
    let frame = frame(0);
    stranger.connection.send(&[frame.waiting().into()]).unwrap();
    assert_eq!(numbers(&brought(&stranger.sink, 1)), [0]);
    stranger.memory.start(3);
    stranger.ring();
    assert_eq!(brought(&stranger.sink, 1)[0].header, Header::Lost(2));
}

#[test]
fn octets_that_are_no_frames_are_found_out_in_memory_too() {
    let mut stranger = Stranger::new();
    stranger.memory.start(0);
    stranger.memory.put(&[0xff; 5000]);
    stranger.ring();
    assert_eq!(brought(&stranger.sink, 1)[0].header, Header::Broken(2));
}

#[test]
fn who_rings_without_end_keeps_nothing_from_coming() {
    let mut stranger = Stranger::new();
    stranger.memory.start(0);
    for number in 0..20 {
        stranger.memory.put(frame(number).waiting());
        stranger
            .connection
            .send(&[[0; 200_000][..].into()])
            .unwrap();
        assert_eq!(numbers(&brought(&stranger.sink, 1)), [number]);
        while !stranger.connection.flush().unwrap() {}
    }
    assert_eq!(stranger.sink.link.counts().lost, 0);
}
