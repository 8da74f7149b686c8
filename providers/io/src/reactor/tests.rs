use std::sync::atomic::AtomicUsize;
use std::sync::mpsc;

use test_kit::waiting::{PATIENCE, until};

use super::*;
use crate::sockets::{ReceiveBatch, Transmit, UdpOptions, UdpSocket};

/// Reads one socket, and counts the calls of the reactor.
struct Reader {
    reactor: Arc<Reactor>,
    socket: UdpSocket,
    batch: Mutex<ReceiveBatch>,
    /// No epoll watches the socket while pollers own the input.
    is_left: bool,
    arrived: AtomicUsize,
    by_thread: AtomicUsize,
    claimed: AtomicUsize,
    released: AtomicUsize,
    attended: mpsc::Sender<u64>,
    rare: UdpSocket,
}

/// So long that the thread takes the input back from no poller while a test runs.
const FOR_EVER: Duration = Duration::from_secs(3600 * 24);
/// So short that the thread soon takes the input back.
const SOON: Duration = Duration::from_millis(2);

impl Reader {
    /// Starts a reactor with a thread and this patience.
    fn start(is_left: bool, patience: Duration) -> (Arc<Self>, mpsc::Receiver<u64>) {
        let (reader, told) = Self::new(is_left, patience);
        let handler = Arc::downgrade(&reader);
        (reader.reactor).start(handler.clone(), handler).unwrap();
        (reader, told)
    }

    /// Starts a reactor without a thread: the test's thread does everything.
    fn without_thread(is_left: bool) -> Arc<Self> {
        let (reader, _told) = Self::new(is_left, FOR_EVER);
        let handler = Arc::downgrade(&reader);
        let network = handler.clone();
        assert!(
            reader
                .reactor
                .served
                .set(Served { handler, network })
                .is_ok()
        );
        reader
    }

    fn new(is_left: bool, patience: Duration) -> (Arc<Self>, mpsc::Receiver<u64>) {
        let socket = || UdpSocket::bind("127.0.3.30:0".parse().unwrap(), &UdpOptions::default());
        let (attended, told) = mpsc::channel();
        let mut reactor = Reactor::new().unwrap();
        reactor.patience = patience;
        let reader = Arc::new(Self {
            reactor: Arc::new(reactor),
            socket: socket().unwrap(),
            batch: Mutex::new(ReceiveBatch::new(4, 65_535).unwrap()),
            is_left,
            arrived: AtomicUsize::new(0),
            by_thread: AtomicUsize::new(0),
            claimed: AtomicUsize::new(0),
            released: AtomicUsize::new(0),
            attended,
            rare: socket().unwrap(),
        });
        let reactor = &reader.reactor;
        reactor.add(&reader.socket, 1, Source::Data).unwrap();
        reactor.add(&reader.rare, 2, Source::Shared).unwrap();
        (reader, told)
    }

    fn read(&self) -> usize {
        let mut batch = self.batch.lock();
        let mut count = 0;
        while self.socket.receive(&mut batch).unwrap() > 0 {
            count += batch.messages().count();
        }
        self.arrived.fetch_add(count, Ordering::SeqCst);
        count
    }

    fn send(&self) {
        let transmit = Transmit::new(self.socket.local(), b"datagram");
        self.rare.send(&[transmit]).unwrap();
    }

    fn send_rare(&self, bytes: &[u8]) {
        let transmit = Transmit::new(self.rare.local(), bytes);
        self.socket.send(&[transmit]).unwrap();
    }

    fn arrived(&self) -> usize {
        self.arrived.load(Ordering::SeqCst)
    }

    fn released(&self) -> usize {
        self.released.load(Ordering::SeqCst)
    }

    fn poll(&self) {
        self.read();
        self.reactor.polled();
    }

    /// Polls until the polls claim the input.
    fn claim(&self) {
        until(|| self.claims_by_polls());
    }

    /// Returns whether pollers own the input after they have polled frequently for long, whatever the clock says.
    fn claims_by_polls(&self) -> bool {
        (0..10_000).any(|_| {
            self.reactor.polled();
            self.reactor.is_polled()
        })
    }

    /// Reads the ring of the bell, as the thread does when it is woken.
    fn hear_bell(&self) {
        let _ = read(&self.reactor.bell, &mut [0; 8]);
    }
}

impl Progress for Reader {
    fn next_timeout(&self) -> Option<Time> {
        None
    }

    fn handle_timeout(&self, _now: Time) {}

    fn progress(&self) -> bool {
        let count = self.read();
        self.by_thread.fetch_add(count, Ordering::SeqCst);
        true
    }
}

impl IoHandler for Reader {
    fn attend(&self, token: u64) {
        let mut batch = self.batch.lock();
        self.rare.receive(&mut batch).unwrap();
        let _ = self.attended.send(token);
        assert!(batch.messages().all(|message| message.bytes != b"panic"));
    }

    fn set_polled(&self, is_polled: bool) {
        let (reactor, socket) = (&self.reactor, &self.socket);
        let count = match is_polled {
            true => &self.claimed,
            false => &self.released,
        };
        count.fetch_add(1, Ordering::SeqCst);
        match is_polled {
            _ if !self.is_left => {}
            true => reactor.remove(socket, Source::Data).unwrap(),
            false => reactor.add(socket, 1, Source::Data).unwrap(),
        }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.reactor.stop();
    }
}

fn is_ready(epoll: &Unshared) -> bool {
    let mut asked = [PollFd::new(epoll, PollFlags::IN)];
    poll(&mut asked, Some(&Timespec::default())).unwrap() > 0
}

#[test]
fn the_thread_reads_while_no_thread_polls() {
    let (reader, _told) = Reader::start(false, SOON);
    for count in 1..=500 {
        reader.send();
        until(|| reader.by_thread.load(Ordering::SeqCst) == count);
    }
    assert_eq!(reader.arrived(), 500);
}

#[test]
fn arrivals_do_not_wake_the_thread_while_pollers_own_the_input() {
    let reader = Reader::without_thread(false);
    let reactor = &reader.reactor;
    for round in 1..=20 {
        reader.claim();
        assert_eq!(reader.claimed.load(Ordering::SeqCst), round);
        // The claim itself has woken the thread.
        reader.hear_bell();
        assert!(!is_ready(&reactor.all));
        reader.send();
        until(|| reactor.has_data());
        assert!(!is_ready(&reactor.all));
        reader.poll();
        reactor.hand_back();
        assert_eq!(reader.released(), round);
        reader.hear_bell();
        assert!(!is_ready(&reactor.all));
        reader.send();
        until(|| is_ready(&reactor.all));
        reader.read();
    }
}

#[test]
fn pollers_that_stay_read_everything_themselves() {
    let (reader, _told) = Reader::start(false, FOR_EVER);
    reader.claim();
    for count in 1..=500 {
        reader.send();
        until(|| {
            reader.poll();
            reader.arrived() == count
        });
    }
    assert_eq!(reader.by_thread.load(Ordering::SeqCst), 0);
    reader.reactor.hand_back();
    reader.send();
    until(|| reader.by_thread.load(Ordering::SeqCst) == 1);
}

#[test]
fn the_thread_reads_after_pollers_are_gone() {
    for is_left in [false, true] {
        let (reader, _told) = Reader::start(is_left, SOON);
        for count in 1..=10 {
            reader.claim();
            reader.send();
            until(|| reader.by_thread.load(Ordering::SeqCst) == count);
            *reader.reactor.claims.lock() = Claims::new(reader.reactor.now());
        }
    }
}

#[test]
fn wake_ups_do_not_keep_the_thread_from_taking_over() {
    let (reader, told) = Reader::start(false, SOON * 10);
    reader.claim();
    reader.send();
    until(|| {
        reader.send_rare(b"rare");
        until(|| told.try_recv().is_ok());
        reader.released() == 1
    });
    until(|| reader.by_thread.load(Ordering::SeqCst) == 1);
}

#[test]
fn a_poller_that_returns_the_input_is_replaced_at_once() {
    let (reader, _told) = Reader::start(false, FOR_EVER);
    for count in 1..=100 {
        reader.claim();
        reader.reactor.hand_back();
        assert!(!reader.reactor.is_polled());
        reader.send();
        until(|| reader.arrived() == count);
    }
}

#[test]
fn unread_input_is_read_when_a_poller_returns_it() {
    let (reader, _told) = Reader::start(true, FOR_EVER);
    for count in 1..=100 {
        reader.claim();
        reader.send();
        reader.reactor.hand_back();
        until(|| reader.arrived() == count);
    }
}

#[test]
fn only_a_short_claim_that_left_data_unread_is_not_repeated() {
    for is_left in [false, true] {
        for (was_worth_it, has_sent) in [(true, true), (true, false), (false, false), (false, true)]
        {
            let reader = Reader::without_thread(is_left);
            reader.claim();
            if has_sent {
                reader.send();
            }
            reader.reactor.take_over(&*reader, was_worth_it);
            assert!(!reader.reactor.is_polled());
            if was_worth_it || !has_sent {
                reader.claim();
            } else {
                assert!(!reader.claims_by_polls());
            }
        }
    }
}

#[test]
fn rare_sources_are_attended_while_pollers_own_the_input() {
    let (reader, told) = Reader::start(false, FOR_EVER);
    for is_polled in [true, false] {
        match is_polled {
            true => reader.claim(),
            false => reader.reactor.hand_back(),
        }
        for _ in 0..20 {
            reader.send_rare(b"rare");
            until(|| told.try_recv().is_ok());
        }
        assert_eq!(reader.reactor.is_polled(), is_polled);
    }
}

/// Behaves as its fields say, and counts its calls.
#[derive(Default)]
struct Told {
    /// The number of further calls that it refuses, as if another thread were reading.
    refusals: AtomicUsize,
    panics: AtomicBool,
    /// Input has arrived without a descriptor.
    has_some: AtomicBool,
    calls: AtomicUsize,
}

impl Told {
    fn start(self) -> (Arc<Reactor>, Arc<Self>) {
        let (reactor, told) = (Arc::new(Reactor::new().unwrap()), Arc::new(self));
        let handler = Arc::downgrade(&told);
        reactor.start(handler.clone(), handler).unwrap();
        (reactor, told)
    }

    fn calls(&self) -> usize {
        self.calls.load(Ordering::SeqCst)
    }
}

impl Progress for Told {
    fn next_timeout(&self) -> Option<Time> {
        None
    }

    fn handle_timeout(&self, _now: Time) {}

    fn progress(&self) -> bool {
        self.calls.fetch_add(1, Ordering::SeqCst);
        assert!(!self.panics.load(Ordering::SeqCst));
        let less = |left: usize| left.checked_sub(1);
        (self.refusals)
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, less)
            .is_err()
    }
}

impl IoHandler for Told {
    fn attend(&self, _token: u64) {}

    fn arm_bell(&self) -> bool {
        self.has_some.swap(false, Ordering::SeqCst)
    }
}

#[test]
fn a_handler_that_panics_does_not_end_the_thread() {
    let (reactor, handler) = Told::default().start();
    handler.panics.store(true, Ordering::SeqCst);
    for calls in 1..=3 {
        reactor.ring();
        until(|| handler.calls() >= calls);
    }
    let (reader, told) = Reader::start(false, SOON);
    for bytes in [&b"panic"[..], b"calm", b"panic"] {
        reader.send_rare(bytes);
        assert_eq!(told.recv_timeout(PATIENCE), Ok(2));
    }
    reactor.stop();
}

#[test]
fn the_thread_tries_again_if_another_thread_reads() {
    let (reactor, handler) = Told::default().start();
    handler.refusals.store(10, Ordering::SeqCst);
    reactor.ring();
    until(|| handler.calls() == 11);
    reactor.stop();
}

#[test]
fn input_without_a_descriptor_is_read_before_the_thread_sleeps() {
    let told = Told {
        has_some: AtomicBool::new(true),
        ..Told::default()
    };
    let (reactor, handler) = told.start();
    until(|| handler.calls() == 1);
    reactor.stop();
}

#[test]
fn a_refused_poll_counts_as_a_poll() {
    let reader = Reader::without_thread(false);
    let before = reader.reactor.polls.load(Ordering::SeqCst);
    (0..200).for_each(|_| reader.reactor.give_way());
    let polls = reader.reactor.polls.load(Ordering::SeqCst) - before;
    assert_eq!(polls, 200);
}

#[test]
fn a_reactor_measures_how_long_pollers_may_stay_away() {
    let bounds = [Duration::ZERO, Duration::MAX / 20_000].map(policy::patience);
    let patience = Reactor::new().unwrap().patience;
    assert!((bounds[0]..=bounds[1]).contains(&patience));
}

#[test]
fn the_thread_ends_when_it_is_stopped() {
    let (reactor, _handler) = Told::default().start();
    reactor.stop();
    until(|| Arc::strong_count(&reactor) == 1);
}

#[test]
fn the_thread_ends_with_its_handler() {
    let (reader, _told) = Reader::start(false, SOON);
    let reactor = Arc::downgrade(&reader.reactor);
    drop(reader);
    until(|| reactor.strong_count() == 0);
}
