use std::cell::RefCell;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::AtomicU64;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use crate::sockets::TcpListener;
use polyverbs_engine::link::OwnedFrame;
use rustix::net::sockopt;
use test_kit::waiting::{PATIENCE, until, until_some};

use super::*;
use crate::sim::fault::{Between, Rate, Stall};

mod shared;

/// A format with a length, a number and a checksum.
struct Toy;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Header {
    Data { key: u64, number: u32 },
    Close(u64),
    Reset(u64),
    Ended(u64),
    Lost(u64),
    Room(u64),
    Broken(u64),
}

/// The receiving half: the key of its stream, and how many frames have arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Receiver {
    key: u64,
    number: u32,
}

impl Receiver {
    fn new(key: u64) -> Self {
        Self { key, number: 0 }
    }
}

const HEAD: usize = 4 + 4;
/// In shared memory every seventh header has the greatest length.
const LONG_HEAD: usize = super::shared::HEADERS;

fn head_length(number: u32) -> usize {
    if number % 7 == 6 { LONG_HEAD } else { 4 }
}

fn sum(bytes: &[u8]) -> u8 {
    bytes.iter().fold(0, |sum, byte| sum ^ byte)
}

impl StreamCodec for Toy {
    type Header = Header;
    /// Counts the frames that were sent, to show that the state is kept.
    type Sender = u32;
    type Receiver = Receiver;
    const LONGEST: usize = HEAD + 70_000 + 1;

    fn key(&self, header: &Header) -> u64 {
        match *header {
            Header::Data { key, .. }
            | Header::Close(key)
            | Header::Reset(key)
            | Header::Ended(key)
            | Header::Lost(key)
            | Header::Room(key)
            | Header::Broken(key) => key,
        }
    }

    fn leaving(&self, header: &Header) -> Leaving {
        match header {
            Header::Close(_) => Leaving::End,
            Header::Reset(_) => Leaving::Reset,
            _ => Leaving::Frame,
        }
    }

    fn encode(
        &self,
        sender: &mut u32,
        header: &Header,
        payload: &Payload<'_>,
        into: &mut ByteQueue,
    ) {
        let Header::Data { number, .. } = *header else {
            return;
        };
        assert_eq!(number, *sender);
        *sender += 1;
        let mut bytes = (payload.len() as u32).to_be_bytes().to_vec();
        bytes.extend(number.to_be_bytes());
        bytes.extend(payload.to_vec());
        bytes.push(sum(&bytes));
        into.push(bytes.len()).copy_from_slice(&bytes);
    }

    fn encode_header<'i>(&self, header: &Header, into: &'i mut [u8]) -> Option<&'i [u8]> {
        let Header::Data { number, .. } = *header else {
            return None;
        };
        let head = into.get_mut(..head_length(number))?;
        head.fill(number as u8);
        head[..4].copy_from_slice(&number.to_be_bytes());
        Some(head)
    }

    fn sent(&self, sender: &mut u32, header: &Header) {
        assert!(matches!(header, Header::Data { number, .. } if number == sender));
        *sender += 1;
    }

    fn open_header<'o>(
        &self,
        receiver: &mut Receiver,
        header: &'o [u8],
        _payload: usize,
    ) -> Result<(Header, &'o [u8]), Header> {
        let Receiver { key, number } = *receiver;
        let broken = Header::Broken(key);
        let (head, rest) = header.split_at_checked(head_length(number)).ok_or(broken)?;
        if head[..4] != number.to_be_bytes() {
            return Err(broken);
        }
        receiver.number += 1;
        Ok((Header::Data { key, number }, rest))
    }

    fn open<'o>(
        &self,
        receiver: &mut Receiver,
        key: u64,
        bytes: &'o mut [u8],
    ) -> Found<'o, Header> {
        let word = |at: usize| {
            let bytes = bytes.get(at..at + 4)?;
            Some(u32::from_be_bytes(bytes.try_into().ok()?))
        };
        let (Some(length), Some(number)) = (word(0), word(4)) else {
            return Found::Partial;
        };
        let end = HEAD + length as usize;
        if end + 1 > Self::LONGEST {
            return Found::Broken(Header::Broken(key));
        }
        if bytes.len() <= end {
            return Found::Partial;
        }
        if sum(&bytes[..=end]) != 0 {
            return Found::Broken(Header::Broken(key));
        }
        assert_eq!((key, number), (receiver.key, receiver.number));
        receiver.number += 1;
        Found::Frame {
            header: Header::Data { key, number },
            payload: &bytes[HEAD..end],
            taken: end + 1,
        }
    }

    fn event(&self, key: u64, event: &StreamEvent) -> Option<Header> {
        Some(match event {
            StreamEvent::End => Header::Ended(key),
            StreamEvent::Lost(_) => Header::Lost(key),
            StreamEvent::Room => Header::Room(key),
            StreamEvent::First => return None,
        })
    }
}

/// A network of one device, which keeps the frames that arrive. Its time stands still until a test moves it.
struct Sink {
    link: Arc<TcpLink<Toy>>,
    frames: Mutex<Vec<OwnedFrame<Header>>>,
    now: AtomicU64,
}

const ADDRESS: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 3, 110));
const ONE: LinkAddress = LinkAddress::InProcess(1);
const OTHER: LinkAddress = LinkAddress::InProcess(2);

impl Sink {
    fn new(options: TcpLinkOptions) -> Arc<Self> {
        Self::with_memory(TcpLinkOptions {
            memory: false,
            ..options
        })
    }

    fn with_memory(options: TcpLinkOptions) -> Arc<Self> {
        Arc::new(Self {
            link: TcpLink::new(Toy, ADDRESS, options).unwrap(),
            frames: Mutex::default(),
            now: AtomicU64::new(1_000_000_000),
        })
    }

    fn now(&self) -> Time {
        Time(self.now.load(Ordering::SeqCst))
    }

    fn move_time_to(&self, now: Time) {
        self.now.store(now.0, Ordering::SeqCst);
    }

    fn headers(&self) -> Vec<Header> {
        self.frames
            .lock()
            .iter()
            .map(|frame| frame.header)
            .collect()
    }

    /// Polls on the test's thread until `count` frames have arrived.
    fn drive(&self, count: usize) -> Vec<OwnedFrame<Header>> {
        self.drive_with(count, || {})
    }

    fn drive_with(&self, count: usize, mut also: impl FnMut()) -> Vec<OwnedFrame<Header>> {
        until(|| {
            self.progress();
            also();
            self.frames.lock().len() >= count
        });
        std::mem::take(&mut *self.frames.lock())
    }

    /// Waits until the link's thread has delivered `count` frames.
    fn brought(&self, count: usize) -> Vec<OwnedFrame<Header>> {
        until(|| self.frames.lock().len() >= count);
        std::mem::take(&mut *self.frames.lock())
    }

    fn send(&self, key: u64, number: u32, payload: &[u8]) {
        let frame = Frame {
            from: ONE,
            to: OTHER,
            header: Header::Data { key, number },
            payload: Payload::Bytes(payload),
            damaged: false,
        };
        self.link.send(frame, self.now());
    }

    // Returns whether there was room.
    fn offer(&self, key: u64, number: u32, payload: &[u8]) -> bool {
        let frame = Frame {
            from: ONE,
            to: OTHER,
            header: Header::Data { key, number },
            payload: Payload::Bytes(payload),
            damaged: false,
        };
        match self.link.try_send(frame, self.now()) {
            TrySend::Sent => true,
            TrySend::NoRoom => false,
            long @ TrySend::TooLong(_) => panic!("{long:?}"),
        }
    }

    fn say(&self, header: Header) {
        let frame = Frame {
            from: ONE,
            to: OTHER,
            header,
            payload: Payload::Empty,
            damaged: false,
        };
        self.link.send(frame, self.now());
        self.link.flush();
    }
}

impl Deliver<Header> for Sink {
    fn deliver(&self, frame: Frame<'_, Header>, _now: Time) {
        self.frames.lock().push(frame.to_owned());
    }
}

impl Progress for Sink {
    fn next_timeout(&self) -> Option<Time> {
        self.link.next_due()
    }

    fn handle_timeout(&self, _now: Time) {}

    fn progress(&self) -> bool {
        self.link.flush();
        while self.link.progress(self.now(), self) {
            self.link.flush();
        }
        true
    }
}

impl Sink {
    /// Polls once, as a thread of a program does.
    fn poll(&self) {
        self.progress();
        self.link.reactor.polled();
    }
}

fn connect() -> [Arc<TcpSocket>; 2] {
    let at = SocketAddr::new(ADDRESS, 0);
    connect_by((at, at))
}

/// Connects from the first of these addresses to the second.
fn connect_by((from, to): (SocketAddr, SocketAddr)) -> [Arc<TcpSocket>; 2] {
    let listener = TcpListener::listen(to, 8).unwrap();
    let one = TcpSocket::connect(from, listener.local()).unwrap();
    let (other, _) = until_some(|| listener.accept().unwrap());
    until(|| one.connected().unwrap());
    [one, other].map(Arc::new)
}

fn attach(sink: &Sink, key: u64, socket: Arc<TcpSocket>) {
    attach_announced(sink, key, socket, None);
}

fn attach_announced(
    sink: &Sink,
    key: u64,
    socket: Arc<TcpSocket>,
    announcement: Option<Announcement>,
) {
    attach_and_say(sink, key, socket, announcement, b"");
}

fn attach_and_say(
    sink: &Sink,
    key: u64,
    socket: Arc<TcpSocket>,
    announcement: Option<Announcement>,
    last: &[u8],
) {
    let attachment = Attachment {
        key,
        socket,
        local: ONE,
        peer: OTHER,
        sender: 0,
        receiver: Receiver::new(key),
        received: Vec::new(),
        last: last.to_vec(),
        is_held: false,
        announcement,
    };
    sink.link.attach(attachment).unwrap();
}

/// Two links with one connection, of key 1 at the first link and key 2 at the second.
fn pair_with(options: TcpLinkOptions) -> [Arc<Sink>; 2] {
    let sinks = [Sink::new(options), Sink::new(TcpLinkOptions::default())];
    let [one, other] = connect();
    attach(&sinks[0], 1, one);
    attach(&sinks[1], 2, other);
    sinks
}

fn pair() -> [Arc<Sink>; 2] {
    pair_with(TcpLinkOptions::default())
}

fn faulty(faults: FaultSpec) -> TcpLinkOptions {
    TcpLinkOptions {
        faults: FaultSpec { seed: 7, ..faults },
        ..TcpLinkOptions::default()
    }
}

fn numbers(frames: &[OwnedFrame<Header>]) -> Vec<u32> {
    let number = |frame: &OwnedFrame<Header>| match frame.header {
        Header::Data { number, .. } => number,
        other => panic!("{other:?}"),
    };
    frames.iter().map(number).collect()
}

#[test]
fn frames_arrive_whole_and_in_order() {
    let [one, other] = pair();
    let payloads: Vec<Vec<u8>> = [0, 1, 1408, 70_000].map(|length| vec![9; length]).into();
    for (number, payload) in payloads.iter().enumerate() {
        one.send(1, number as u32, payload);
    }
    one.link.flush();
    let frames = other.drive(4);
    assert_eq!(numbers(&frames), [0, 1, 2, 3]);
    assert!(
        frames
            .iter()
            .zip(&payloads)
            .all(|(frame, payload)| frame.payload == *payload)
    );
    assert_eq!((frames[0].from, frames[0].to), (OTHER, ONE));
    assert_eq!(frames[0].header, Header::Data { key: 2, number: 0 });
    assert_eq!(
        (one.link.counts().sent, other.link.counts().delivered),
        (4, 4)
    );
}

#[test]
fn chunks_change_only_the_pieces() {
    let [one, other] = pair_with(faulty(FaultSpec {
        chunk: Some(Between::new(1, 700)),
        ..FaultSpec::default()
    }));
    for number in 0..100 {
        one.send(1, number, &[number as u8; 1408]);
        other.send(2, number, &[number as u8; 1408]);
    }
    one.link.flush();
    other.link.flush();
    // The first link reads in pieces as well.
    for sink in [&other, &one] {
        let frames = sink.drive(100);
        assert!(numbers(&frames).into_iter().eq(0..100));
        let intact = |frame: &OwnedFrame<Header>| {
            let first = frame.payload[0];
            frame.payload == vec![first; 1408]
        };
        assert!(frames.iter().all(intact));
    }
}

#[test]
fn frames_of_the_last_read_of_a_turn_are_delivered() {
    for reads in 2..=ROUNDS + 1 {
        let [one, other] = pair_with(faulty(FaultSpec {
            chunk: Some(Between::new(10, 10)),
            ..FaultSpec::default()
        }));
        // The last read is not full, so the link does not read again until the peer sends again.
        other.send(2, 0, &vec![3; reads * 10 - 5 - HEAD - 1]);
        other.link.flush();
        assert_eq!(numbers(&one.drive(1)), [0], "{reads}");
    }
}

#[test]
fn a_full_stream_refuses_frames_and_reports_room_later() {
    let [one, other] = pair_with(TcpLinkOptions {
        max_frame: 60_000,
        ..TcpLinkOptions::default()
    });
    let payload = vec![1; 60_000];
    let mut number = 0;
    while one.offer(1, number, &payload) {
        one.link.flush();
        number += 1;
        assert!(number < 10_000);
    }
    assert!(one.headers().is_empty());
    let arrived = other.drive_with(number as usize, || _ = one.progress());
    assert!(numbers(&arrived).into_iter().eq(0..number));
    assert_eq!(one.drive(1)[0].header, Header::Room(1));
    assert!(one.offer(1, number, &payload));
    // A frame for a stream that does not exist does not wait for room.
    assert!(one.offer(99, 0, &payload));
}

#[test]
fn a_graceful_end_is_reported_after_the_last_frame() {
    let [one, other] = pair();
    one.send(1, 0, &[5; 1000]);
    one.say(Header::Close(1));
    let frames = other.drive(2);
    assert_eq!(frames[1].header, Header::Ended(2));
    the_other_direction_goes_on(&one, &other);
}

/// `one` has ended its direction. The other direction carries a frame and its end, and then the stream is gone.
fn the_other_direction_goes_on(one: &Sink, other: &Sink) {
    other.send(2, 0, b"the other direction goes on");
    other.say(Header::Close(2));
    let headers: Vec<_> = one.drive(2).iter().map(|frame| frame.header).collect();
    assert_eq!(
        headers,
        [Header::Data { key: 1, number: 0 }, Header::Ended(1)]
    );
    until(|| {
        one.progress();
        other.progress();
        one.link.connections() + other.link.connections() == 0
    });
}

fn has_unwritten(sink: &Sink, stream: &Stream<Toy>) -> bool {
    sink.link.has_unwritten(stream, &stream.outgoing.lock())
}

/// Returns a link with a thread, whose stream has taken far more than its socket, and the peer, which has read nothing of
/// it.
fn full_stream() -> ([Arc<Sink>; 2], u32) {
    let sinks = [(); 2].map(|()| Sink::new(TcpLinkOptions::default()));
    let sockets = connect();
    for socket in &sockets {
        sockopt::set_socket_send_buffer_size(&**socket, SMALL).unwrap();
        sockopt::set_socket_recv_buffer_size(&**socket, SMALL).unwrap();
    }
    for ((sink, key), socket) in sinks.iter().zip([1, 2]).zip(sockets) {
        attach(sink, key, socket);
    }
    let one = &sinks[0];
    let network = Arc::clone(one) as Arc<dyn Progress>;
    one.link.start(Arc::downgrade(&network), |_| {}).unwrap();
    let payload = vec![1; 60_000];
    // The kernel takes little of this, even if it takes more some time after it has refused.
    for number in 0..100 {
        one.send(1, number, &payload);
        one.link.flush();
    }
    assert!(has_unwritten(one, &one.link.stream(1).unwrap()));
    (sinks, 100)
}

/// Bytes of a socket's buffer. The kernel takes a few times as many before it refuses more.
const SMALL: usize = 16 << 10;

/// The clock of a caller that waits without losing its patience.
fn no_time() -> Duration {
    Duration::ZERO
}

#[test]
fn drain_waits_until_an_ended_stream_is_written() {
    let ([one, other], taken) = full_stream();
    // A drain does not wait for a stream that continues.
    one.link.drain();
    let stream = one.link.stream(1).unwrap();
    assert!(has_unwritten(&one, &stream));
    one.say(Header::Close(1));
    one.say(Header::Reset(1));
    let reader = thread::spawn(move || other.drive(taken as usize + 1));
    one.link.drain_while(&no_time);
    assert!(!has_unwritten(&one, &stream));
    assert_eq!(
        reader.join().unwrap()[taken as usize].header,
        Header::Ended(2)
    );
}

/// Drains a link whose peer reads nothing, in virtual time: the drain must wait for [`DRAIN`], and end with the first
/// reading of the clock after that.
fn drain_gives_up(sink: &Sink) {
    let looks = RefCell::new(Vec::new());
    sink.link.drain_while(&|| {
        let waited = DRAIN / 4 * looks.borrow().len() as u32;
        looks.borrow_mut().push(waited);
        waited
    });
    let looks = looks.into_inner();
    let is_over = |waited: &&Duration| **waited >= DRAIN;
    // One reading of the clock ends the drain, and one more determines how long the next drains may take.
    assert_eq!(looks.iter().filter(is_over).count(), 2, "{looks:?}");
}

#[test]
fn drain_gives_up_on_a_peer_that_reads_nothing() {
    let ([one, _other], _) = full_stream();
    one.say(Header::Close(1));
    drain_gives_up(&one);
    assert!(has_unwritten(&one, &one.link.stream(1).unwrap()));
    // Later drains do not wait for other streams until one has been written, nor for this stream again.
    assert_eq!(*one.link.patience.lock(), Duration::ZERO);
    one.link.drain();
    assert_eq!(*one.link.patience.lock(), Duration::ZERO);
}

#[test]
fn a_process_that_ends_writes_what_its_streams_took() {
    let ([one, other], taken) = full_stream();
    let reader = thread::spawn(move || other.drive(taken as usize));
    one.link.write_everything(&no_time);
    assert!(!has_unwritten(&one, &one.link.stream(1).unwrap()));
    assert!(numbers(&reader.join().unwrap()).into_iter().eq(0..taken));
}

#[test]
fn a_process_that_ends_does_not_wait_for_a_peer_that_is_gone() {
    let ([one, other], _) = full_stream();
    // No other thread may detect that the peer is gone.
    one.link.reactor.stop();
    assert_eq!(Arc::strong_count(&other), 1);
    drop(other);
    let (ended, end) = mpsc::channel();
    thread::spawn(move || {
        one.link.write_everything(&no_time);
        ended.send(one.link.stream(1).is_none())
    });
    assert_eq!(end.recv_timeout(PATIENCE), Ok(true));
}

#[test]
fn an_abortive_end_is_reported_to_the_peer() {
    let [one, other] = pair();
    one.say(Header::Reset(1));
    assert_eq!(one.link.connections(), 0);
    assert_eq!(other.drive(1)[0].header, Header::Lost(2));
    assert_eq!(other.link.connections(), 0);
    assert!(one.headers().is_empty());
    one.send(1, 0, b"to nobody");
    assert_eq!(one.link.counts().homeless, 1);
}

#[test]
fn a_detached_connection_is_lost_to_the_peer() {
    let [one, other] = pair();
    one.link.detach(1);
    one.link.detach(1);
    assert_eq!(other.drive(1)[0].header, Header::Lost(2));
}

#[test]
fn a_broken_stream_is_reported_as_damaged_and_read_no_further() {
    let [one, other] = pair_with(faulty(FaultSpec {
        flip: Rate::ALWAYS,
        ..FaultSpec::default()
    }));
    for number in 0..3 {
        one.send(1, number, &[0; 64]);
    }
    one.link.flush();
    // A flipped bit of the length may make the frame wait for more bytes than there are.
    for number in 3..2000 {
        one.send(1, number, &[0; 64]);
    }
    one.link.flush();
    let frames = other.drive(1);
    assert_eq!(
        (frames[0].header, frames[0].damaged),
        (Header::Broken(2), true)
    );
    other.progress();
    assert!(other.headers().is_empty());
    assert_eq!(other.link.counts().broken, 1);
    assert_eq!(one.link.counts().flipped, 2000);
    // The driver sends its last frame and ends the stream.
    other.say(Header::Close(2));
    assert_eq!(one.drive(1)[0].header, Header::Ended(1));
}

#[test]
fn a_connection_is_reset_after_so_many_frames() {
    let [one, other] = pair_with(faulty(FaultSpec {
        reset_after: Some(5),
        ..FaultSpec::default()
    }));
    for number in 0..5 {
        one.send(1, number, b"carried");
    }
    one.link.flush();
    assert_eq!(numbers(&other.drive(5)), [0, 1, 2, 3, 4]);
    one.send(1, 5, b"not carried");
    assert_eq!(one.drive(1)[0].header, Header::Lost(1));
    assert_eq!(other.drive(1)[0].header, Header::Lost(2));
}

#[test]
fn a_stalled_stream_continues_in_time() {
    let time = Duration::from_millis(30);
    let rate = Rate::ALWAYS;
    for faults in [
        FaultSpec {
            stall: Some(Stall { rate, time }),
            ..FaultSpec::default()
        },
        FaultSpec {
            delay: Between::exactly(time),
            ..FaultSpec::default()
        },
    ] {
        let [one, other] = pair_with(faulty(faults));
        let due = one.now().after(time);
        one.send(1, 0, b"late");
        one.link.flush();
        assert_eq!(one.link.next_due(), Some(due));
        one.move_time_to(Time(due.0 - 1));
        one.progress();
        assert!(has_unwritten(&one, &one.link.stream(1).unwrap()));
        other.progress();
        assert!(other.headers().is_empty());
        one.move_time_to(due);
        other.drive_with(1, || _ = one.progress());
        assert_eq!(one.link.next_due(), None);
    }
}

#[test]
fn frames_of_the_handshake_are_delivered_and_held_ones_sent() {
    let [one, other] = connect();
    let (left, right) = (
        Sink::new(TcpLinkOptions::default()),
        Sink::new(TcpLinkOptions::default()),
    );
    attach(&left, 1, one);
    left.send(1, 0, b"first");
    left.send(1, 1, b"second");
    left.link.flush();
    let mut received = vec![0; 20];
    until(|| other.receive(&mut received).unwrap() == Received::Bytes(20));
    let attachment = Attachment {
        key: 2,
        socket: other,
        local: OTHER,
        peer: ONE,
        sender: 0,
        receiver: Receiver::new(2),
        received,
        last: Vec::new(),
        is_held: false,
        announcement: None,
    };
    right.link.attach(attachment).unwrap();
    assert_eq!(numbers(&right.drive(2)), [0, 1]);
}

#[test]
fn a_key_is_in_use_once() {
    let [one, _other] = pair();
    let [again, _] = connect();
    let attachment = Attachment {
        key: 1,
        socket: again,
        local: ONE,
        peer: OTHER,
        sender: 0,
        receiver: Receiver::new(1),
        received: Vec::new(),
        last: Vec::new(),
        is_held: false,
        announcement: None,
    };
    let error = one.link.attach(attachment).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
}

#[test]
fn the_thread_delivers_while_no_thread_polls() {
    let sinks = pair();
    let networks = sinks
        .each_ref()
        .map(|sink| Arc::clone(sink) as Arc<dyn Progress>);
    let network = Arc::downgrade(&networks[1]);
    sinks[1].link.start(network, |_| {}).unwrap();
    for number in 0..200 {
        sinks[0].send(1, number, b"woken");
        sinks[0].link.flush();
        until(|| sinks[1].frames.lock().len() > number as usize);
    }
}

/// Polls until pollers own the input. A claim may take a thousand polls in a row.
fn claim(sink: &Sink) {
    until(|| {
        (0..10_000).any(|_| {
            sink.poll();
            sink.link.reactor.is_polled()
        })
    });
}

#[test]
fn the_thread_delivers_after_pollers_are_gone() {
    let [one, other] = pair();
    let network = Arc::clone(&other) as Arc<dyn Progress>;
    other.link.start(Arc::downgrade(&network), |_| {}).unwrap();
    for number in 0..20 {
        claim(&other);
        if number % 2 == 0 {
            other.link.reactor.hand_back();
        }
        one.send(1, number, b"woken");
        one.link.flush();
        until(|| {
            // Sending is not polling.
            other.link.flush();
            other.frames.lock().len() > number as usize
        });
    }
    assert!(numbers(&other.frames.lock()).into_iter().eq(0..20));
}

#[test]
fn a_stream_that_pollers_filled_reports_room_to_them() {
    let options = TcpLinkOptions {
        max_frame: 60_000,
        ..TcpLinkOptions::default()
    };
    let [one, other] = [(); 2].map(|()| Sink::new(options));
    let [left, right] = connect();
    attach(&one, 1, left);
    attach(&other, 2, right);
    let network = Arc::clone(&other) as Arc<dyn Progress>;
    other.link.start(Arc::downgrade(&network), |_| {}).unwrap();
    claim(&other);
    let payload = vec![1; 60_000];
    let mut number = 0;
    while other.offer(2, number, &payload) {
        other.poll();
        number += 1;
        assert!(number < 10_000);
    }
    one.drive_with(number as usize, || other.poll());
    assert_eq!(other.drive(1)[0].header, Header::Room(2));
}

#[test]
fn every_one_of_many_streams_is_read() {
    let [one, other] = [(); 2].map(|()| Sink::new(TcpLinkOptions::default()));
    for key in 1..=50 {
        let [left, right] = connect();
        attach(&one, key, left);
        attach(&other, key, right);
    }
    // Each stream has more bytes than a turn reads.
    let payload = vec![3; 40_000];
    let mut sent = [0; 51];
    let mut arrived = 0;
    until(|| {
        for key in 1..=50 {
            let number = &mut sent[key as usize];
            if *number < 20 && one.offer(key, *number, &payload) {
                *number += 1;
            }
        }
        one.progress();
        other.progress();
        arrived += std::mem::take(&mut *other.frames.lock()).len();
        arrived >= 50 * 20
    });
}

#[test]
fn the_thread_reads_the_bytes_that_a_poll_leaves() {
    // A turn reads fewer bytes than have arrived.
    let options = faulty(FaultSpec {
        chunk: Some(Between::new(1000, 1000)),
        ..FaultSpec::default()
    });
    let [one, other] = [TcpLinkOptions::default(), options].map(Sink::new);
    let [left, right] = connect();
    attach(&one, 1, left);
    attach(&other, 2, right);
    for number in 0..20 {
        one.send(1, number, &[1; 1000]);
    }
    one.link.flush();
    assert!(other.link.progress(other.now(), &*other));
    assert!(other.headers().len() < 20);
    let network = Arc::clone(&other) as Arc<dyn Progress>;
    other.link.start(Arc::downgrade(&network), |_| {}).unwrap();
    let frames = other.brought(20);
    assert!(numbers(&frames).into_iter().eq(0..20));
}
