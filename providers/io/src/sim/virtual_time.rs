//! Virtual time: a clock that a test advances, and the loop that drives networks by it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use polyverbs_engine::device::Device;
use polyverbs_engine::driver::Driver;
use polyverbs_engine::link::SharedLink;
use polyverbs_engine::network::{Network, Progress};
use polyverbs_engine::pin;
use polyverbs_engine::time::{Host, Time};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use thiserror::Error;
use verbs_api::probe::Pace;
use verbs_api::provider::Mutex;

/// Networks that run in virtual time, on the thread that advances it.
///
/// A simulation calls a network exactly as a real timer thread would: at the earliest time for which the network has
/// requested a wake-up, and at no other time. So a network that forgets to request a wake-up causes an error,
/// [`NotWoken`](SimulationError::NotWoken), instead of a rare hang.
///
/// ```
/// # use std::time::Duration;
/// use polyverbs_io::sim::Simulation;
///
/// let simulation = Simulation::new();
/// // … simulation.network::<MyDriver>(Some(link)), devices, requests …
/// simulation.run_until_idle()?;
/// simulation.run_for(Duration::from_millis(5))?;
/// # Ok::<(), polyverbs_io::sim::SimulationError>(())
/// ```
pub struct Simulation {
    host: Arc<VirtualHost>,
    networks: Mutex<Vec<Arc<dyn Progress>>>,
}

/// The clock of a simulation. It stands still until the simulation sets it.
struct VirtualHost {
    now: AtomicU64,
    /// The earliest time for which a network has requested a wake-up that has not happened yet; [`Time::NEVER`] if there is
    /// none.
    wake: AtomicU64,
    random: Mutex<SmallRng>,
}

impl Host for VirtualHost {
    fn now(&self) -> Time {
        Time(self.now.load(Ordering::SeqCst))
    }

    fn wake_at(&self, at: Time) {
        self.wake.fetch_min(at.0, Ordering::SeqCst);
    }

    fn random(&self) -> u64 {
        let random = &mut *self.random.lock();
        random.random()
    }
}

/// The reason why a simulation did not finish.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum SimulationError {
    /// A network has a job that is due, but has requested no wake-up for it: on a real host the job would not run.
    #[error("a job is due at {due:?}, but requested no wake-up: now {now:?}, next {wake:?}")]
    NotWoken {
        /// The time at which the job is due.
        due: Time,
        /// The current virtual time.
        now: Time,
        /// The earliest wake-up that was requested; `None` if there is none.
        wake: Option<Time>,
    },
    /// The simulation took a million steps and is not idle, so it will probably never end.
    #[error("still not idle after {MOST_STEPS} steps; the next job is due at {next:?}")]
    Endless {
        /// The time at which the next job is due.
        next: Time,
    },
}

/// The virtual time that [`settle`](Pace::settle) runs: frames that were sent arrive within it. Retries without a limit
/// take longer.
const SETTLING: Duration = Duration::from_millis(20);

/// The virtual time after which a probe reports that an expected event did not happen. Retries without an end take longer.
const PATIENCE: Duration = Duration::from_secs(30);

/// The most steps of one run before it is given up.
const MOST_STEPS: u32 = 1_000_000;

impl Simulation {
    /// Creates a simulation without networks, at time 0. Keys, QP numbers and PSNs are random numbers with seed 0.
    pub fn new() -> Self {
        Self::with_seed(0)
    }

    /// Creates a simulation without networks, at time 0. Keys, QP numbers and PSNs are random numbers with this seed.
    pub fn with_seed(seed: u64) -> Self {
        let host = VirtualHost {
            now: AtomicU64::new(0),
            wake: AtomicU64::new(Time::NEVER.0),
            random: Mutex::new(SmallRng::seed_from_u64(seed)),
        };
        Self {
            host: Arc::new(host),
            networks: Mutex::default(),
        }
    }

    /// Creates a network in this simulation. If `link` is `None`, its devices exchange messages directly, without frames.
    pub fn network<D: Driver>(
        &self,
        link: Option<SharedLink<D::Header>>,
    ) -> Arc<Network<Device<D>>> {
        let network = Network::new(Arc::clone(&self.host) as Arc<dyn Host>, link);
        self.add(Arc::clone(&network) as Arc<dyn Progress>);
        network
    }

    fn add(&self, network: Arc<dyn Progress>) {
        let mut networks = self.networks.lock();
        networks.push(network);
    }

    // Jobs that run may add networks, so the simulation calls the networks without holding the lock.
    fn networks(&self) -> Vec<Arc<dyn Progress>> {
        let networks = self.networks.lock();
        networks.clone()
    }

    /// Returns the current virtual time.
    pub fn now(&self) -> Time {
        self.host.now()
    }

    /// Advances the time from one job to the next, until no job is left.
    ///
    /// # Errors
    /// The run does not end, or a network has requested no wake-up for a job that is due.
    pub fn run_until_idle(&self) -> Result<(), SimulationError> {
        self.run(|_| false)
    }

    /// Advances the time from one job to the next, until `done` returns `true` or no job is left. `done` is called at least
    /// once, and before each step.
    ///
    /// # Errors
    /// The run does not end, or a network has requested no wake-up for a job that is due.
    pub fn run_until(&self, mut done: impl FnMut() -> bool) -> Result<(), SimulationError> {
        if done() {
            return Ok(());
        }
        self.run(|_| done())
    }

    /// Runs every job that becomes due within `duration`, in order, and then sets the time to the end of `duration`.
    ///
    /// # Errors
    /// The run does not end, or a network has requested no wake-up for a job that is due.
    pub fn run_for(&self, duration: Duration) -> Result<(), SimulationError> {
        let end = self.now().after(duration);
        self.run(|next| next > end)?;
        self.set(end);
        Ok(())
    }

    /// Advances the time to the next requested wake-up, and runs the jobs that are due then. Returns the new time; `None`
    /// if no wake-up was requested.
    ///
    /// # Errors
    /// A network has requested no wake-up for a job that is due.
    pub fn step(&self) -> Result<Option<Time>, SimulationError> {
        let Some(at) = self.next()? else {
            return Ok(None);
        };
        self.set(at);
        self.host.wake.store(Time::NEVER.0, Ordering::SeqCst);
        let now = self.now();
        for network in self.networks() {
            network.handle_timeout(now);
        }
        if let Some(at) = self.next_timeout() {
            self.host.wake_at(at);
        }
        Ok(Some(now))
    }

    /// Takes steps until `stop` returns `true` for the time of the next one, or no job is left.
    fn run(&self, mut stop: impl FnMut(Time) -> bool) -> Result<(), SimulationError> {
        for _ in 0..MOST_STEPS {
            match self.next()? {
                Some(next) if !stop(next) => self.step()?,
                _ => return Ok(()),
            };
        }
        let next = self.next()?.unwrap_or(Time::NEVER);
        Err(SimulationError::Endless { next })
    }

    /// Advances the clock to `now`, unless it is later already.
    fn set(&self, now: Time) {
        self.host.now.fetch_max(now.0, Ordering::SeqCst);
    }

    /// Returns the time of the next wake-up; `None` if there is none.
    fn next(&self) -> Result<Option<Time>, SimulationError> {
        let wake = Time(self.host.wake.load(Ordering::SeqCst));
        let (wake, now) = (Some(wake).filter(|at| *at != Time::NEVER), self.now());
        match self.next_timeout() {
            Some(due) if wake.is_none_or(|at| at > due.max(now)) => {
                Err(SimulationError::NotWoken { due, now, wake })
            }
            _ => Ok(wake),
        }
    }

    fn next_timeout(&self) -> Option<Time> {
        self.networks()
            .iter()
            .filter_map(|network| network.next_timeout())
            .min()
    }
}

/// Makes the probes of a simulated device run in its virtual time, on the thread of the caller:
/// [`Rig::of_device_in`](verbs_api::probe::Rig::of_device_in) takes the simulation that the device is in.
impl Pace for Simulation {
    fn until(&self, done: &mut dyn FnMut() -> bool) -> bool {
        let end = self.now().after(PATIENCE);
        let mut is_done = false;
        let mut is_late = false;
        loop {
            let ran = self.run(|next| {
                is_done = is_done || done();
                is_late = next > end;
                is_done || is_late
            });
            // Other threads of the process may delay a callback with a pin. `done` is called after that check: it sees the
            // effects of a callback that has run, and whatever such a callback made due is due now.
            let is_any_deferred = pin::is_any_deferred();
            is_done = is_done || done();
            let is_idle = !is_any_deferred && matches!(self.next(), Ok(None));
            if is_done || is_idle || is_late || ran.is_err() {
                return is_done;
            }
            thread::yield_now();
        }
    }

    /// Runs for 20 ms of virtual time, so that all frames that were sent arrive.
    ///
    /// # Panics
    /// A network has requested no wake-up for a job that is due, or the run does not end.
    fn settle(&self) {
        let settled = self.run_for(SETTLING);
        settled.unwrap_or_else(|error| panic!("{error}"));
    }
}

impl Default for Simulation {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use verbs_api::provider::Mutex;

    use super::*;

    /// A network with repeated tasks: each runs as often as its count says.
    struct Ticks {
        host: Arc<VirtualHost>,
        due: Mutex<Vec<(Time, u32)>>,
        done: Mutex<Vec<u64>>,
        is_forgetful: bool,
    }

    impl Ticks {
        fn new(simulation: &Simulation, is_forgetful: bool) -> Arc<Self> {
            let ticks = Arc::new(Self {
                host: Arc::clone(&simulation.host),
                due: Mutex::default(),
                done: Mutex::default(),
                is_forgetful,
            });
            simulation.add(Arc::clone(&ticks) as _);
            ticks
        }

        /// Creates a simulation with one task, which runs `count` times, first at `at`.
        fn alone(at: u64, count: u32, is_forgetful: bool) -> (Simulation, Arc<Self>) {
            let simulation = Simulation::new();
            let ticks = Self::new(&simulation, is_forgetful);
            ticks.set(Time(at), count);
            (simulation, ticks)
        }

        fn set(&self, at: Time, count: u32) {
            self.due.lock().push((at, count));
            if !self.is_forgetful {
                self.host.wake_at(at);
            }
        }

        fn done(&self) -> Vec<u64> {
            self.done.lock().clone()
        }
    }

    impl Progress for Ticks {
        fn next_timeout(&self) -> Option<Time> {
            self.due.lock().iter().map(|(at, _)| *at).min()
        }

        fn handle_timeout(&self, now: Time) {
            let mut all = self.due.lock();
            let due: Vec<_> = all.extract_if(.., |(at, _)| *at <= now).collect();
            drop(all);
            for (_, count) in due {
                self.done.lock().push(now.0);
                if count > 1 {
                    self.set(Time(now.0 + 10), count - 1);
                }
            }
        }
    }

    #[test]
    fn everything_happens_when_it_is_due() {
        let (simulation, one) = Ticks::alone(7, 3, false);
        let other = Ticks::new(&simulation, false);
        other.set(Time(12), 1);
        simulation.run_until_idle().unwrap();
        assert_eq!((one.done(), other.done()), (vec![7, 17, 27], vec![12]));
        assert_eq!((simulation.now(), simulation.step()), (Time(27), Ok(None)));
    }

    #[test]
    fn an_endless_run_is_an_error() {
        let (simulation, _) = Ticks::alone(0, u32::MAX, false);
        let next = Time(10 * u64::from(MOST_STEPS));
        let endless = Err(SimulationError::Endless { next });
        assert_eq!(simulation.run_until_idle(), endless);
    }

    #[test]
    fn running_for_a_duration_ends_at_its_end() {
        let (simulation, ticks) = Ticks::alone(10, 100, false);
        simulation.run_for(Duration::from_nanos(35)).unwrap();
        assert_eq!(ticks.done(), [10, 20, 30]);
        assert_eq!(simulation.now(), Time(35));
    }

    #[test]
    fn a_condition_ends_the_run() {
        let (simulation, ticks) = Ticks::alone(10, 100, false);
        for count in [4, 4, 6] {
            simulation
                .run_until(|| ticks.done().len() == count)
                .unwrap();
            assert_eq!(ticks.done().len(), count);
        }
    }

    #[test]
    fn a_callback_that_waits_for_another_thread_is_waited_for() {
        let (simulation, _) = Ticks::alone(10, 1, false);
        let (send, receive) = mpsc::channel();
        let (pinned, is_pinned) = mpsc::channel();
        let (go_on, goes_on) = mpsc::channel::<()>();
        let other = thread::spawn(move || {
            let pin = pin::pin();
            pinned.send(()).unwrap();
            goes_on.recv().unwrap();
            drop(pin);
        });
        is_pinned.recv().unwrap();
        pin::after_grace(move || send.send(()).unwrap());
        let mut asked = 0;
        assert!(simulation.until(&mut || {
            asked += 1;
            // Everything that was due is done by now.
            if asked == 5 {
                go_on.send(()).unwrap();
            }
            receive.try_recv().is_ok()
        }));
        other.join().unwrap();
        assert!(
            !simulation.until(&mut || false),
            "nothing is left to happen"
        );
    }

    #[test]
    fn time_set_past_a_wake_up_makes_it_late() {
        let (simulation, ticks) = Ticks::alone(10, 1, false);
        simulation.set(Time(25));
        assert_eq!(simulation.step(), Ok(Some(Time(25))));
        assert_eq!(ticks.done(), [25]);
    }

    #[test]
    fn a_missing_wake_up_is_an_error() {
        let (simulation, _) = Ticks::alone(10, 1, true);
        let (due, now) = (Time(10), Time(0));
        for wake in [None, Some(Time(20))] {
            wake.iter().for_each(|at| simulation.host.wake_at(*at));
            let error = SimulationError::NotWoken { due, now, wake };
            assert_eq!(simulation.run_until_idle(), Err(error));
        }
        simulation.host.wake_at(Time(10));
        assert_eq!(simulation.step(), Ok(Some(Time(10))));
    }

    #[test]
    fn random_numbers_follow_from_the_seed() {
        let numbers = |seed| {
            let host = Simulation::with_seed(seed).host;
            [host.random(), host.random()]
        };
        assert_eq!(numbers(7), numbers(7));
        assert_ne!(numbers(7), numbers(8));
        assert_ne!(numbers(7)[0], numbers(7)[1]);
    }
}
