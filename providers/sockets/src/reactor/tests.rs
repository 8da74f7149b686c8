use std::sync::atomic::AtomicUsize;
use std::sync::{Mutex, PoisonError, mpsc};
use std::time::Instant;

use super::*;
use crate::{Piece, ReceiveBatch, Transmit, UdpOptions, UdpSocket, is_memory_checked};

/// Reads one socket, and counts who did.
struct Reader {
    watch: Arc<Watch>,
    socket: UdpSocket,
    batch: Mutex<ReceiveBatch>,
    arrived: AtomicUsize,
    by_thread: AtomicUsize,
    progressed: AtomicUsize,
    tidied: AtomicUsize,
    attended: mpsc::Sender<u64>,
    rare: UdpSocket,
}

const LONG: Duration = Duration::from_secs(20);

impl Reader {
    fn new() -> (Arc<Self>, mpsc::Receiver<u64>) {
        let socket = || UdpSocket::bind("127.0.3.30:0".parse().unwrap(), &UdpOptions::default());
        let (attended, told) = mpsc::channel();
        let reader = Arc::new(Self {
            watch: Arc::new(Watch::new().unwrap()),
            socket: socket().unwrap(),
            batch: Mutex::new(ReceiveBatch::new(4, 65_535)),
            arrived: AtomicUsize::new(0),
            by_thread: AtomicUsize::new(0),
            progressed: AtomicUsize::new(0),
            tidied: AtomicUsize::new(0),
            attended,
            rare: socket().unwrap(),
        });
        let watch = &reader.watch;
        watch.add(&reader.socket, 1, Source::Data).unwrap();
        watch.add(&reader.rare, 2, Source::Shared).unwrap();
        let duty = Arc::downgrade(&reader);
        watch.start(duty).unwrap();
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
        let pieces = [Piece::from(&b"datagram"[..])];
        let transmit = Transmit::new(self.socket.local(), &pieces);
        self.rare.send(&[transmit]).unwrap();
    }

    fn arrived(&self) -> usize {
        self.arrived.load(Ordering::SeqCst)
    }

    fn await_arrival(&self, count: usize) -> Duration {
        let began = Instant::now();
        while self.arrived() < count {
            assert!(began.elapsed() < LONG, "{} of {count}", self.arrived());
            thread::yield_now();
        }
        began.elapsed()
    }

    /// Polls for so long.
    fn poll_for(&self, time: Duration) {
        let began = Instant::now();
        while began.elapsed() < time {
            self.watch.poll(|| self.read());
        }
    }

    /// Polls where nothing comes, until the thread stands back.
    fn poll_until_noticed(&self) {
        let began = Instant::now();
        while !self.watch.stands_back() {
            assert!(began.elapsed() < LONG);
            self.watch.poll(|| self.read());
        }
    }
}

impl Duty for Reader {
    fn progress(&self) {
        let count = self.read();
        self.by_thread.fetch_add(count, Ordering::SeqCst);
        self.progressed.fetch_add(1, Ordering::SeqCst);
    }

    fn tidy(&self) {
        self.tidied.fetch_add(1, Ordering::SeqCst);
    }

    fn attend(&self, token: u64) {
        let mut batch = self.batch.lock().unwrap_or_else(PoisonError::into_inner);
        self.rare.receive(&mut batch).unwrap();
        let _ = self.attended.send(token);
        assert!(batch.messages().all(|message| message.octets != b"panic"));
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.watch.stop();
    }
}

#[test]
fn while_nobody_polls_the_thread_reads() {
    let (reader, _told) = Reader::new();
    for count in 1..=500 {
        reader.send();
        reader.await_arrival(count);
    }
    assert_eq!(reader.by_thread.load(Ordering::SeqCst), 500);
}

#[test]
fn while_somebody_polls_the_thread_stands_back() {
    let (reader, _told) = Reader::new();
    reader.poll_for(Duration::from_millis(50));
    let before = reader.by_thread.load(Ordering::SeqCst);
    for count in 1..=200 {
        reader.send();
        reader.poll_for(Duration::from_micros(200));
        reader.await_arrival(count);
    }
    let by_thread = reader.by_thread.load(Ordering::SeqCst) - before;
    // A poller that does not get to run for a millisecond counts as gone.
    assert!(by_thread < 100, "{by_thread} of 200 by the thread");
}

/// Something has always come in by other ways than a descriptor.
#[derive(Default)]
struct NeverEmpty {
    rounds: AtomicUsize,
}

impl Duty for NeverEmpty {
    fn progress(&self) {}

    fn attend(&self, _token: u64) {}

    fn sleep(&self) -> bool {
        self.rounds.fetch_add(1, Ordering::SeqCst);
        true
    }
}

#[test]
fn the_thread_leaves_the_processor_to_a_poller_that_has_the_turn() {
    let watch = Arc::new(Watch::new().unwrap());
    let duty = Arc::new(NeverEmpty::default());
    let rounds = || duty.rounds.load(Ordering::SeqCst);
    let began = Instant::now();
    let weak = Arc::downgrade(&duty);
    watch
        .poll(|| {
            watch.start(weak).unwrap();
            while rounds() < 500 {
                assert!(began.elapsed() < LONG);
                thread::sleep(WAY);
            }
        })
        .unwrap();
    watch.stop();
    assert!(began.elapsed() >= WAY * 499, "{:?}", began.elapsed());
}

#[test]
fn who_polls_where_nothing_wakes_the_thread_is_noticed() {
    let (reader, _told) = Reader::new();
    reader.poll_until_noticed();
}

#[test]
fn what_comes_while_the_thread_stands_back_does_not_wake_it() {
    let (reader, _told) = Reader::new();
    let would_wake = || has_events(&reader.watch.outer);
    let comes = |_| {
        reader.poll_until_noticed();
        let wakes = reader.watch.poll(|| {
            let may_tell = reader.watch.stands_back() && !would_wake();
            reader.send();
            may_tell.then(&would_wake)
        });
        reader.watch.poll(|| reader.read());
        reader.watch.hand_back();
        let began = Instant::now();
        while reader.watch.stands_back() {
            assert!(began.elapsed() < LONG);
            thread::yield_now();
        }
        wakes.flatten()
    };
    let woken: Vec<_> = (0..10_000).filter_map(comes).take(20).collect();
    assert_eq!(woken, [false; 20]);
}

#[test]
fn the_thread_tidies_up_behind_pollers_that_stay() {
    let (reader, _told) = Reader::new();
    let began = Instant::now();
    while reader.tidied.load(Ordering::SeqCst) < 10 {
        assert!(began.elapsed() < LONG);
        reader.send();
        reader.poll_for(Duration::from_millis(5));
    }
}

#[test]
fn who_has_said_that_it_would_sleep_does_not_only_poll() {
    let (reader, _told) = Reader::new();
    let watch = &reader.watch;
    let began = Instant::now();
    for _ in 0..3 {
        while !watch.is_polled_only() {
            assert!(began.elapsed() < LONG);
            watch.poll(|| reader.read());
        }
        watch.hand_back();
        for _ in 1..UNHEARD {
            assert!(!watch.is_polled_only());
            watch.poll(|| reader.read());
        }
        assert!(!watch.is_polled_only());
    }
}

#[test]
fn who_only_sends_for_a_while_is_not_replaced() {
    if is_memory_checked() {
        // There is no poller who makes no pause then.
        sends_between_polls();
        return;
    }
    // Who has no processor for a while is replaced rightly: tried again, with another watch.
    let (began, mut by_thread) = (Instant::now(), Vec::new());
    while by_thread.len() < 5 {
        by_thread.extend(sends_between_polls());
        assert!(
            began.elapsed() < 6 * LONG,
            "no processor for 8 ms at a time, but {by_thread:?}"
        );
    }
    assert!(by_thread.iter().sum::<usize>() <= 1, "{by_thread:?}");
}

// How much came by the thread; `None` where there was a pause that a poller does not make.
fn sends_between_polls() -> Option<usize> {
    const PAUSE: Duration = Duration::from_micros(500);
    let (reader, _told) = Reader::new();
    let mut last = Instant::now();
    let mut is_there_for = |time: Duration, what: &dyn Fn()| {
        let began = Instant::now();
        while began.elapsed() < time {
            what();
            if std::mem::replace(&mut last, Instant::now()).elapsed() > PAUSE {
                return None;
            }
        }
        Some(())
    };
    let poll = || {
        reader.watch.poll(|| reader.read());
    };
    is_there_for(Duration::from_millis(5), &poll)?;
    let before = reader.by_thread.load(Ordering::SeqCst);
    reader.send();
    is_there_for(Duration::from_millis(3), &|| reader.watch.stay())?;
    is_there_for(Duration::from_micros(100), &poll)?;
    assert_eq!(reader.arrived(), 1);
    Some(reader.by_thread.load(Ordering::SeqCst) - before)
}

#[test]
fn a_poller_that_vanished_is_replaced() {
    let (reader, _told) = Reader::new();
    for count in 1..=20 {
        reader.poll_for(Duration::from_millis(3));
        reader.send();
        reader.await_arrival(count);
    }
}

#[test]
fn who_hands_back_is_replaced_and_may_come_again() {
    let (reader, _told) = Reader::new();
    for count in 1..=500 {
        reader.watch.poll(|| reader.read());
        reader.watch.hand_back();
        reader.send();
        reader.await_arrival(count);
    }
}

#[test]
fn what_a_poller_leaves_is_done_though_its_epoch_has_been_seen() {
    let (reader, _told) = Reader::new();
    let progressed = || reader.progressed.load(Ordering::SeqCst);
    for _ in 0..100 {
        let before = progressed();
        reader.watch.leave();
        let began = Instant::now();
        while progressed() == before {
            assert!(began.elapsed() < LONG);
            thread::yield_now();
        }
    }
}

#[test]
fn who_leaves_data_lying_is_stood_back_for_ever_shorter_and_who_polls_longer_again() {
    for call in [Duration::ZERO, Duration::from_micros(20), LONG] {
        let mut patience = Patience::new(call);
        let cycles = (0..100).take_while(|_| {
            patience.grow();
            patience.learn(true);
            patience.suffices()
        });
        assert!((1..10).contains(&cycles.count()));
        // Data that wakes the thread in vain, but not where every other wakes it for good.
        for _ in 0..100 {
            patience.learn(false);
            patience.learn(true);
            assert!(!patience.suffices());
        }
        (0..Patience::QUICKER).for_each(|_| patience.learn(false));
        assert!(patience.suffices());
        (0..20).for_each(|_| patience.grow());
        assert_eq!(patience.time, patience.most);
    }
}

#[test]
fn a_machine_whose_calls_take_long_is_given_longer() {
    let of = |nanoseconds| {
        let patience = Patience::new(Duration::from_nanos(nanoseconds));
        (patience.least.as_micros(), patience.most.as_micros())
    };
    assert_eq!(of(0), (20, 2_000));
    assert_eq!(of(200), (20, 2_000));
    assert_eq!(of(300), (30, 3_000));
    assert_eq!(of(2_000), (200, 8_000));
    // But never for ever.
    assert_eq!(of(1_000_000_000), (500, 8_000));
}

#[test]
fn a_poll_that_takes_long_is_not_taken_over() {
    let (reader, _told) = Reader::new();
    // `None` where the thread did not stand back in the first place, or was about to end that when the poll began.
    let stays_back = |_| {
        reader.poll_for(Duration::from_millis(5));
        let stays_back = reader.watch.poll(|| {
            thread::sleep(Duration::from_millis(5));
            let began = reader.watch.stands_back();
            reader.send();
            thread::sleep(Duration::from_millis(20));
            began.then(|| reader.watch.stands_back())
        });
        stays_back.flatten()
    };
    let stayed_back: Vec<_> = (0..100).filter_map(stays_back).take(10).collect();
    assert_eq!(stayed_back, [true; 10]);
}

#[test]
fn what_nobody_has_read_is_there() {
    let (reader, _told) = Reader::new();
    let arrives = reader.watch.poll(|| {
        let before = reader.watch.has_data();
        reader.send();
        let after = reader.watch.has_data();
        (before, after)
    });
    assert_eq!(arrives, Some((false, true)));
}

#[test]
fn what_is_rare_is_attended_to_even_while_somebody_polls() {
    let (reader, told) = Reader::new();
    let pieces = [Piece::from(&b"rare"[..])];
    let transmit = Transmit::new(reader.rare.local(), &pieces);
    for _ in 0..20 {
        reader.socket.send(&[transmit]).unwrap();
        let began = Instant::now();
        while told.try_recv().is_err() {
            reader.poll_for(Duration::from_micros(100));
            assert!(began.elapsed() < LONG);
        }
    }
}

#[test]
fn a_panic_does_not_end_the_thread() {
    let (reader, told) = Reader::new();
    for octets in [&b"panic"[..], b"calm", b"panic"] {
        let pieces = [Piece::from(octets)];
        let transmit = Transmit::new(reader.rare.local(), &pieces);
        reader.socket.send(&[transmit]).unwrap();
        assert_eq!(told.recv_timeout(LONG), Ok(2));
    }
}

#[test]
fn one_thread_at_a_time_has_the_turn() {
    let watch = Watch::new().unwrap();
    let inner = watch.poll(|| (watch.poll(|| ()), watch.visit(|| ())));
    assert_eq!(inner, Some((None, None)));
    // Who is refused is there as well.
    assert_eq!(watch.epoch(), 2);
    assert_eq!(watch.poll(|| ()), Some(()));
}

#[test]
fn the_thread_ends_with_its_duty() {
    let (reader, _told) = Reader::new();
    let watch = Arc::downgrade(&reader.watch);
    drop(reader);
    let began = Instant::now();
    while watch.strong_count() > 0 {
        assert!(began.elapsed() < LONG);
        thread::sleep(Duration::from_millis(1));
    }
}
