use super::*;

const PATIENCE: Duration = Duration::from_millis(2);
const FIRST_LOOK: Duration = Duration::from_micros(250);
/// A time between two readings of the clock that is too long for frequent polling.
const LATE: Duration = Duration::from_nanos(100_001);
/// The time between two polls of a program that spins.
const TURN: Duration = Duration::from_nanos(100);

/// A reactor in virtual time: one thread, and pollers that poll when a test says so.
struct Model {
    now: Time,
    claims: Claims,
    polls: u32,
    last_poll: Time,
    /// How often the input was claimed, and whether pollers own it.
    claimed: u32,
    is_polled: bool,
    /// Input has arrived that no poller has read.
    has_unread: bool,
    /// The pollers that the thread knows.
    known: Option<Pollers>,
}

impl Model {
    fn new() -> Self {
        Self {
            now: Time(1_000_000),
            claims: Claims::new(Time::default()),
            polls: 0,
            last_poll: Time::default(),
            claimed: 0,
            is_polled: false,
            has_unread: false,
            known: None,
        }
    }

    /// Polls some times at one moment.
    fn poll(&mut self, polls: u32) {
        for _ in 0..polls {
            (self.polls, self.last_poll) = (self.polls + 1, self.now);
            if self.polls.is_multiple_of(POLLS) && !self.is_polled && self.claims.claims(self.now) {
                (self.claimed, self.is_polled) = (self.claimed + 1, true);
                // A claim wakes the thread.
                self.wake();
            }
        }
    }

    /// Polls, turn after turn, until that claims the input. Returns how many polls it took.
    fn claim(&mut self) -> u32 {
        let (polls, claimed) = (self.polls, self.claimed);
        while self.claimed == claimed {
            assert!(self.polls - polls < 1_000_000, "nothing is claimed");
            self.poll(1);
            self.wait(TURN);
        }
        self.polls - polls
    }

    /// Wakes the thread, or ends its sleep.
    fn wake(&mut self) {
        self.known = self
            .is_polled
            .then(|| Pollers::of(self.known, self.claimed, self.polls, self.now));
        if let Some(pollers) = &mut self.known
            && pollers.are_gone(self.polls, self.now, PATIENCE)
        {
            self.is_polled = false;
            let was_worth_it = pollers.are_worth_it();
            (self.claims).taken_back(was_worth_it, self.has_unread, self.now, PATIENCE);
        }
    }

    /// Advances the time. The thread wakes when it must.
    fn wait(&mut self, time: Duration) {
        let until = self.now.after(time);
        while let Some(pollers) = self.known.filter(|_| self.is_polled) {
            let due = self.now.after(pollers.time_left(self.now, PATIENCE));
            if due > until {
                break;
            }
            self.now = due;
            self.wake();
        }
        self.now = until;
    }

    /// Returns how long it takes until the thread owns the input again, if no poller polls.
    fn wait_until_taken_back(&mut self) -> Duration {
        let began = self.now;
        while let Some(pollers) = self.known.filter(|_| self.is_polled) {
            self.wait(pollers.time_left(self.now, PATIENCE));
        }
        Duration::from_nanos(self.now.0 - began.0)
    }

    /// Polls for this time, once in each microsecond.
    fn keep_polling(&mut self, time: Duration) {
        let until = self.now.after(time);
        while self.now < until {
            self.poll(1);
            self.wait(Duration::from_micros(1));
        }
    }

    /// Claims the input after `needed` readings of the clock and leaves it at once, with unread input if `has_unread`.
    /// Returns how many readings the next claim takes.
    fn leave(&mut self, needed: u32, has_unread: bool) -> u32 {
        (self.claims.needed, self.claims.not_before) = (needed, Time::default());
        self.claim();
        self.has_unread = has_unread;
        self.wait_until_taken_back();
        self.claims.needed
    }
}

#[test]
fn rare_polls_claim_nothing() {
    let mut model = Model::new();
    for _ in 0..1000 {
        // All polls are this far apart, however many there are at a time.
        model.poll(POLLS - 1);
        model.wait(LATE);
        model.poll(1);
    }
    assert_eq!(model.claimed, 0);
}

#[test]
fn frequent_polls_claim_the_input() {
    let mut model = Model::new();
    model.poll(POLLS);
    assert_eq!(model.claimed, 0, "the last look at the clock was long ago");
    model.wait(SOON);
    model.poll(POLLS);
    assert_eq!((model.claimed, model.is_polled), (1, true));
    model.poll(POLLS * 100);
    assert_eq!(model.claimed, 1);
}

#[test]
fn pollers_that_stay_keep_the_input() {
    let mut model = Model::new();
    model.claim();
    model.has_unread = true;
    model.keep_polling(PATIENCE * 1000);
    assert_eq!((model.claimed, model.is_polled), (1, true));
    // Once the thread has seen that they stay, pollers may poll as rarely as once in each patience.
    for _ in 0..100 {
        model.wait(PATIENCE - Duration::from_micros(1));
        model.poll(1);
    }
    assert_eq!((model.claimed, model.is_polled), (1, true));
}

#[test]
fn the_thread_takes_over_a_patience_after_the_last_poll() {
    // The time at which the thread last saw a poll decides, and it checks once in each patience.
    for polled in [PATIENCE, PATIENCE * 3, PATIENCE * 3 + FIRST_LOOK] {
        let mut model = Model::new();
        model.claim();
        model.keep_polling(polled);
        model.wait_until_taken_back();
        let stayed_away = Duration::from_nanos(model.now.0 - model.last_poll.0);
        assert!(
            stayed_away >= PATIENCE && stayed_away <= PATIENCE * 2,
            "{stayed_away:?} after {polled:?}"
        );
    }
}

#[test]
fn being_woken_does_not_delay_the_take_over() {
    let mut model = Model::new();
    model.claim();
    model.keep_polling(PATIENCE * 3);
    model.wake();
    let began = model.now;
    while model.is_polled {
        model.now = model.now.after(Duration::from_micros(1));
        model.wake();
    }
    assert_eq!(model.now, began.after(PATIENCE));
}

#[test]
fn the_thread_takes_over_sooner_from_pollers_that_left() {
    let mut model = Model::new();
    model.poll(POLLS);
    model.poll(POLLS);
    assert!(model.is_polled);
    assert_eq!(model.wait_until_taken_back(), FIRST_LOOK);
}

#[test]
fn a_late_thread_checks_again_before_it_takes_over() {
    let mut model = Model::new();
    model.claim();
    // The thread does not run, but pollers do.
    model.now = model.now.after(PATIENCE * 10);
    model.poll(1);
    model.wake();
    assert!(model.is_polled);
}

#[test]
fn pollers_of_the_next_claim_are_new_ones() {
    let mut model = Model::new();
    model.claim();
    model.keep_polling(PATIENCE * 3);
    // A poller returns the input, and pollers claim it again before the thread checks.
    model.is_polled = false;
    model.claims.handed_back();
    model.claim();
    assert!(!model.known.unwrap().are_worth_it());
    assert!(model.wait_until_taken_back() <= FIRST_LOOK);
}

#[test]
fn unread_data_makes_the_next_claim_four_times_as_expensive() {
    let mut model = Model::new();
    for (needed, more) in [
        (1, 4),
        (16, 64),
        (128, MOST_NEEDED),
        (MOST_NEEDED, MOST_NEEDED),
    ] {
        assert_eq!(model.leave(needed, true), more);
    }
}

#[test]
fn unread_data_forbids_claims_for_a_while() {
    let mut model = Model::new();
    model.leave(1, true);
    assert_eq!(model.claims.not_before, model.now.after(PATIENCE * 4));
    let not_before = model.claims.not_before;
    model.claim();
    assert!(model.now >= not_before);
    assert!(model.now <= not_before.after(TURN * POLLS * 5));
}

#[test]
fn a_claim_takes_as_many_polls_as_are_needed() {
    for needed in [1, 8, 64, MOST_NEEDED] {
        let mut model = Model::new();
        model.claim();
        model.is_polled = false;
        model.claims.handed_back();
        model.claims.needed = needed;
        assert_eq!(model.claim(), POLLS * needed);
    }
}

#[test]
fn one_late_reading_of_the_clock_restarts_a_claim() {
    let mut model = Model::new();
    model.claims.needed = 8;
    model.poll(POLLS * 8);
    assert_eq!(model.claimed, 0);
    model.wait(LATE);
    model.poll(POLLS * 8);
    assert_eq!(model.claimed, 0);
    model.poll(POLLS);
    assert_eq!(model.claimed, 1);
}

#[test]
fn a_claim_that_read_everything_makes_the_next_one_cheaper() {
    let mut model = Model::new();
    for (needed, fewer) in [(16, 8), (1, 1)] {
        assert_eq!(model.leave(needed, false), fewer);
        model.claims.needed = needed;
        model.claims.handed_back();
        assert_eq!(model.claims.needed, fewer);
    }
}

#[test]
fn a_long_claim_was_right_though_it_left_data_unread() {
    let mut model = Model::new();
    model.claims.needed = 16;
    model.claim();
    model.keep_polling(PATIENCE * 8);
    model.has_unread = true;
    model.wait_until_taken_back();
    assert_eq!(model.claims.needed, 8);
}

#[test]
fn a_refused_thread_pauses_for_the_reader() {
    assert_eq!((pause(true), pause(false)), (Some(WAY), None));
    let pauses = (0..3 * YIELDS).filter(|refusals| pause_of_poller(*refusals).is_some());
    assert!(pauses.eq([YIELDS - 1, 2 * YIELDS - 1, 3 * YIELDS - 1]));
}

#[test]
fn patience_grows_with_the_duration_of_a_system_call() {
    let [quick, usual, slow] = [200, 500, 1000].map(|nanos| patience(Duration::from_nanos(nanos)));
    assert_eq!((quick, slow), (SHORTEST, LONGEST));
    assert_eq!(usual, Duration::from_millis(5));
}
