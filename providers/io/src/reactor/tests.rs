use std::sync::atomic::AtomicUsize;
use std::sync::mpsc;

use polyverbs_engine::time::Time;

use super::*;
use crate::sockets::{ReceiveBatch, Transmit, UdpOptions, UdpSocket};

/// Reads one socket, and counts what the reactor asks of it.
struct Reader {
    reactor: Arc<Reactor>,
    socket: UdpSocket,
    batch: Mutex<ReceiveBatch>,
    /// The socket is watched by nobody while pollers own the input.
    is_left: bool,
    arrived: AtomicUsize,
    by_thread: AtomicUsize,
    claimed: AtomicUsize,
    released: AtomicUsize,
    attended: mpsc::Sender<u64>,
    rare: UdpSocket,
}

const LONG: Duration = Duration::from_secs(20);

impl Reader {
    fn new() -> (Arc<Self>, mpsc::Receiver<u64>) {
        Self::with(false)
    }

    fn with(is_left: bool) -> (Arc<Self>, mpsc::Receiver<u64>) {
        let socket = || UdpSocket::bind("127.0.3.30:0".parse().unwrap(), &UdpOptions::default());
        let (attended, told) = mpsc::channel();
        let mut reactor = Reactor::new().unwrap();
        // So that a poller that has lost its processor for a turn or two is not gone.
        reactor.patience = Duration::from_millis(20);
        let reader = Arc::new(Self {
            reactor: Arc::new(reactor),
            socket: socket().unwrap(),
            batch: Mutex::new(ReceiveBatch::new(4, 65_535)),
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
        let handler = Arc::downgrade(&reader);
        reactor.start(handler.clone(), handler).unwrap();
        (reader, told)
    }

    fn read(&self) -> usize {
        let mut batch = self.batch.lock().unwrap();
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

    fn await_arrival(&self, count: usize) {
        until(|| self.arrived() >= count);
    }

    fn poll(&self) {
        self.read();
        self.reactor.polled();
    }

    /// Polls until that claims the input, whatever earlier claims left; how many polls it took.
    fn claim(&self) -> u32 {
        let began = Instant::now();
        self.reactor.claims().not_before = began;
        for polls in 1.. {
            self.reactor.polled();
            if self.reactor.is_polled() {
                return polls;
            }
            assert!(began.elapsed() < LONG);
        }
        unreachable!()
    }

    fn needed(&self) -> u32 {
        self.reactor.claims().needed
    }

    /// Claims the input, leaves it at once, with something to read or not, and answers what the next claim takes where this
    /// one took so many polls; `None` where the thread had it back before that was sent.
    fn leave(&self, needed: u32, with_data: bool) -> Option<u32> {
        let (released, count) = (self.released(), self.arrived());
        self.reactor.claims().needed = 1;
        self.claim();
        self.reactor.claims().needed = needed;
        if with_data {
            self.send();
        }
        let is_held = self.released() == released;
        until(|| self.released() > released);
        // Both happen under one lock.
        let learned = self.needed();
        self.await_arrival(count + usize::from(with_data));
        is_held.then_some(learned)
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
        let mut batch = lock(&self.batch);
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

#[track_caller]
fn until(mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < LONG);
        thread::yield_now();
    }
}

/// What the first so many trials that count had for a result: where the processor was elsewhere, one does not.
#[track_caller]
fn trials<T>(count: usize, mut trial: impl FnMut() -> Option<T>) -> Vec<T> {
    let mut results = Vec::new();
    until(|| {
        results.extend(trial());
        results.len() >= count
    });
    results
}

fn is_ready(epoll: &OwnedFd) -> bool {
    let mut asked = [PollFd::new(epoll, PollFlags::IN)];
    poll(&mut asked, Some(&Timespec::default())).unwrap() > 0
}

#[test]
fn while_nobody_polls_the_thread_reads() {
    let (reader, _told) = Reader::new();
    for count in 1..=500 {
        reader.send();
        until(|| reader.by_thread.load(Ordering::SeqCst) == count);
    }
    assert_eq!(reader.arrived(), 500);
}

#[test]
fn a_poll_now_and_then_claims_nothing() {
    let (reader, _told) = Reader::new();
    for count in 1..=20 {
        // So far apart, however many at a time.
        (1..POLLS).for_each(|_| reader.poll());
        thread::sleep(SOON);
        reader.poll();
        reader.send();
        reader.await_arrival(count);
    }
    assert_eq!(reader.claimed.load(Ordering::SeqCst), 0);
}

#[test]
fn pollers_that_come_again_and_again_claim_the_input() {
    let claimed = trials(1, || {
        let (reader, _told) = Reader::new();
        reader.claim();
        let claimed = reader.claimed.load(Ordering::SeqCst);
        (reader.released() == 0).then_some(claimed)
    });
    assert_eq!(claimed, [1]);
}

#[test]
fn what_comes_while_pollers_own_the_input_does_not_wake_the_thread() {
    let (reader, _told) = Reader::new();
    let reactor = &reader.reactor;
    let found = trials(20, || {
        reader.claim();
        let released = reader.released();
        // The claim itself has, and what was there before may.
        reader.read();
        let was_quiet = reactor.is_polled() && !is_ready(&reactor.all);
        reader.send();
        let found = (reactor.has_data(), is_ready(&reactor.all));
        reader.poll();
        (was_quiet && reader.released() == released).then_some(found)
    });
    assert_eq!(found, [(true, false); 20]);
}

#[test]
fn pollers_that_stay_read_everything_themselves() {
    let (reader, _told) = Reader::new();
    let by_thread = trials(20, || {
        reader.claim();
        let released = reader.released();
        let before = reader.by_thread.load(Ordering::SeqCst);
        let began = Instant::now();
        while began.elapsed() < reader.reactor.patience * 3 {
            reader.send();
            reader.poll();
        }
        let by_thread = reader.by_thread.load(Ordering::SeqCst) - before;
        // A poller that does not get to run for as long counts as gone.
        (reader.released() == released).then_some(by_thread)
    });
    assert!(by_thread.iter().sum::<usize>() <= 1, "{by_thread:?}");
}

#[test]
fn when_pollers_are_gone_the_thread_reads_though_it_is_woken_all_the_time() {
    let (reader, told) = Reader::new();
    reader.claim();
    let released = reader.released();
    reader.send();
    // Each takes several system calls, and the thread's first look a part of the patience.
    let woken = (1..).find(|_| {
        reader.send_rare(b"rare");
        until(|| told.try_recv().is_ok());
        reader.released() > released
    });
    assert!(woken < Some(20_000), "{woken:?}");
    reader.await_arrival(1);
}

/// How long what is sent lies there where pollers have come for so long and come no more, the median of many; and the patience.
fn wait_after(is_left: bool, polled: impl Fn(Duration) -> Duration) -> (Duration, Duration) {
    let (reader, _told) = Reader::with(is_left);
    let patience = reader.reactor.patience;
    let mut times = trials(21, || {
        let (released, count) = (reader.released(), reader.arrived() + 1);
        reader.reactor.claims().needed = 1;
        reader.claim();
        let began = Instant::now();
        while began.elapsed() < polled(patience) {
            reader.reactor.polled();
        }
        let began = Instant::now();
        reader.send();
        let is_held = reader.released() == released;
        reader.await_arrival(count);
        is_held.then(|| began.elapsed())
    });
    times.sort();
    (times[10], patience)
}

#[test]
fn when_pollers_are_gone_the_thread_reads_after_the_patience() {
    for is_left in [false, true] {
        // For so long that the thread has looked while they came, also where it does not get to run at once.
        let (wait, patience) = wait_after(is_left, |patience| patience * 3);
        assert!(
            wait >= patience && wait < patience * 4,
            "{wait:?} of {patience:?}"
        );
    }
}

#[test]
fn when_pollers_do_not_come_again_after_a_claim_the_thread_reads_sooner() {
    for is_left in [false, true] {
        let (wait, patience) = wait_after(is_left, |_| Duration::ZERO);
        assert!(wait < patience, "{wait:?}");
    }
}

#[test]
fn a_poller_that_hands_back_is_replaced_at_once() {
    let (reader, _told) = Reader::new();
    let times = (1..=100).map(|count| {
        reader.claim();
        let began = Instant::now();
        reader.reactor.hand_back();
        assert!(!reader.reactor.is_polled());
        reader.send();
        reader.await_arrival(count);
        began.elapsed()
    });
    let quickest = times.min().unwrap();
    assert!(quickest < reader.reactor.patience, "{quickest:?}");
}

#[test]
fn what_lies_there_when_a_poller_hands_back_is_read() {
    let (reader, _told) = Reader::with(true);
    for count in 1..=100 {
        reader.claim();
        reader.send();
        reader.reactor.hand_back();
        reader.await_arrival(count);
    }
}

#[test]
fn a_short_claim_that_left_data_lying_makes_the_next_one_take_more_polls() {
    for is_left in [false, true] {
        let (reader, _told) = Reader::with(is_left);
        for (needed, more) in [
            (1, 4),
            (16, 64),
            (4096, MOST_NEEDED),
            (MOST_NEEDED, MOST_NEEDED),
        ] {
            assert_eq!(trials(3, || reader.leave(needed, true)), [more; 3]);
        }
    }
}

#[test]
fn a_short_claim_that_left_data_lying_is_not_repeated_before_a_while() {
    let (reader, _told) = Reader::new();
    trials(3, || reader.leave(1, true));
    let not_before = reader.reactor.claims().not_before;
    until(|| {
        reader.reactor.polled();
        reader.reactor.is_polled()
    });
    assert!(Instant::now() >= not_before);
}

#[test]
fn a_claim_takes_as_many_polls_as_are_needed() {
    let (reader, _told) = Reader::new();
    for needed in [8, 64] {
        reader.reactor.claims().needed = needed;
        let polls = reader.claim();
        assert!(polls > POLLS * (needed - 1), "{polls} for {needed}");
        reader.reactor.hand_back();
    }
}

#[test]
fn a_claim_that_left_nothing_lying_makes_the_next_one_take_fewer_polls() {
    let (reader, _told) = Reader::new();
    for (needed, fewer) in [(16, 8), (1, 1)] {
        assert_eq!(trials(3, || reader.leave(needed, false)), [fewer; 3]);
        reader.claim();
        reader.reactor.claims().needed = needed;
        reader.reactor.hand_back();
        assert_eq!(reader.needed(), fewer);
    }
}

#[test]
fn a_long_claim_was_right_though_it_left_data_lying() {
    let (reader, _told) = Reader::new();
    let learned = trials(3, || {
        let released = reader.released();
        reader.reactor.claims().needed = 16;
        reader.claim();
        let began = Instant::now();
        // The thread, too, gets a processor meanwhile.
        while began.elapsed() <= reader.reactor.patience * 8 {
            reader.poll();
        }
        let was_long = reader.released() == released;
        reader.send();
        until(|| reader.released() > released);
        was_long.then(|| reader.needed())
    });
    assert_eq!(learned, [8; 3]);
}

#[test]
fn what_is_rare_is_attended_whoever_polls() {
    let (reader, told) = Reader::new();
    for is_polled in [true, false] {
        for _ in 0..20 {
            reader.send_rare(b"rare");
            until(|| {
                if is_polled {
                    reader.claim();
                }
                told.try_recv().is_ok()
            });
        }
    }
}

/// Does as it is told, and counts how often.
#[derive(Default)]
struct Told {
    /// Answers so often that another thread is at it.
    refusals: AtomicUsize,
    panics: AtomicBool,
    /// Something has come in by another way than a descriptor.
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

    fn sleep(&self) -> bool {
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
    let (reader, told) = Reader::new();
    for bytes in [&b"panic"[..], b"calm", b"panic"] {
        reader.send_rare(bytes);
        assert_eq!(told.recv_timeout(LONG), Ok(2));
    }
    reactor.stop();
}

#[test]
fn where_another_thread_reads_the_thread_tries_again() {
    let (reactor, handler) = Told::default().start();
    handler.refusals.store(10, Ordering::SeqCst);
    let began = Instant::now();
    reactor.ring();
    until(|| handler.calls() == 11);
    // The other one may need this processor.
    assert!(began.elapsed() >= WAY * 10);
    reactor.stop();
}

#[test]
fn what_has_come_by_another_way_before_the_thread_sleeps_is_read() {
    let told = Told {
        has_some: AtomicBool::new(true),
        ..Told::default()
    };
    let (reactor, handler) = told.start();
    until(|| handler.calls() == 1);
    reactor.stop();
}

#[test]
fn a_poller_that_is_refused_is_there_as_well() {
    let (reader, _told) = Reader::new();
    let before = reader.reactor.polls.load(Ordering::SeqCst);
    (0..2 * YIELDS).for_each(|_| reader.reactor.give_way());
    let polls = reader.reactor.polls.load(Ordering::SeqCst) - before;
    assert_eq!(polls, 2 * YIELDS);
}

#[test]
fn a_machine_whose_calls_take_long_is_given_longer() {
    let (least, most) = (*PATIENCE.start(), *PATIENCE.end());
    let reactor = Reactor::new().unwrap();
    assert!(PATIENCE.contains(&reactor.patience));
    assert!(Duration::from_nanos(200) * CALLS <= least);
    assert!(Duration::from_micros(1) * CALLS >= most);
}

#[test]
fn the_thread_ends_when_it_is_stopped() {
    let (reactor, _handler) = Told::default().start();
    reactor.stop();
    until(|| Arc::strong_count(&reactor) == 1);
}

#[test]
fn the_thread_ends_with_its_handler() {
    let (reader, _told) = Reader::new();
    let reactor = Arc::downgrade(&reader.reactor);
    drop(reader);
    until(|| reactor.strong_count() == 0);
}
