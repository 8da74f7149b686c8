//! Virtual time: a clock that a test sets, and what drives networks by it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
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

/// Networks that run in virtual time, on the thread of the caller.
///
/// A network is called as a real timer thread would call it: when the earliest moment that it had noted has come, and
/// at no other time. So a network that forgets to have itself woken is found out, with
/// [`NotWoken`](SimulationError::NotWoken), instead of hanging one day.
///
/// ```
/// # use std::time::Duration;
/// use polyverbs_sim::Simulation;
///
/// let mut simulation = Simulation::new();
/// // … simulation.network::<MyDriver>(Some(link)), devices, requests …
/// simulation.run_until_idle()?;
/// simulation.run_for(Duration::from_millis(5))?;
/// # Ok::<(), polyverbs_sim::SimulationError>(())
/// ```
pub struct Simulation {
    host: Arc<VirtualHost>,
    networks: Vec<Arc<dyn Progress>>,
}

/// The clock of a simulation: it stands still until it is set.
struct VirtualHost {
    now: AtomicU64,
    /// The earliest moment that was noted and not taken yet; [`Time::NEVER`] for none.
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
        let random = &mut *self.random.lock().unwrap_or_else(PoisonError::into_inner);
        random.random()
    }
}

/// Why a simulation did not come to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum SimulationError {
    /// Something is due, and the host was never told: on a real host it would not happen.
    #[error("something is due at {due:?}, and nobody noted it: {now:?}, next wake-up {wake:?}")]
    NotWoken {
        /// When it is due.
        due: Time,
        /// The time.
        now: Time,
        /// What was noted instead.
        wake: Option<Time>,
    },
    /// It took a million steps: it will never end.
    #[error("still not idle after {MOST_STEPS} steps; something is due at {next:?}")]
    Endless {
        /// When something is due next.
        next: Time,
    },
}

/// Frames that were sent arrive within this time. Retries that never end go on for longer.
const SETTLING: Duration = Duration::from_millis(20);

/// Moments at which something is done, in one run.
const MOST_STEPS: u32 = 1_000_000;

impl Simulation {
    /// A simulation without networks, at time 0, in which keys, queue pair numbers and PSNs are those of seed 0.
    pub fn new() -> Self {
        Self::with_seed(0)
    }

    /// The same with other keys, queue pair numbers and PSNs.
    pub fn with_seed(seed: u64) -> Self {
        let host = VirtualHost {
            now: AtomicU64::new(0),
            wake: AtomicU64::new(Time::NEVER.0),
            random: Mutex::new(SmallRng::seed_from_u64(seed)),
        };
        Self {
            host: Arc::new(host),
            networks: Vec::new(),
        }
    }

    /// A network in this simulation; direct without a link.
    pub fn network<D: Driver>(
        &mut self,
        link: Option<SharedLink<D::Header>>,
    ) -> Arc<Network<Device<D>>> {
        let network = Network::new(Arc::clone(&self.host) as Arc<dyn Host>, link);
        self.networks
            .push(Arc::clone(&network) as Arc<dyn Progress>);
        network
    }

    /// Now.
    pub fn now(&self) -> Time {
        self.host.now()
    }

    /// Goes on until nothing is due any more.
    ///
    /// # Errors
    /// It never ends, or something that is due was forgotten.
    pub fn run_until_idle(&self) -> Result<(), SimulationError> {
        self.run(|_| false)
    }

    /// Goes on until `done` says so or nothing is due any more; `done` is asked at least once, and before each step.
    ///
    /// # Errors
    /// It never ends, or something that is due was forgotten.
    pub fn run_until(&self, mut done: impl FnMut() -> bool) -> Result<(), SimulationError> {
        if done() {
            return Ok(());
        }
        self.run(|_| done())
    }

    /// Does everything that becomes due within `duration`; then that much time has passed.
    ///
    /// # Errors
    /// It never ends, or something that is due was forgotten.
    pub fn run_for(&self, duration: Duration) -> Result<(), SimulationError> {
        let end = self.now().after(duration);
        self.run(|next| next > end)?;
        self.set(end);
        Ok(())
    }

    /// Does what is due next, and lets time pass until then. `None` where nothing is due.
    ///
    /// # Errors
    /// Something that is due was forgotten.
    pub fn step(&self) -> Result<Option<Time>, SimulationError> {
        let Some(at) = self.next()? else {
            return Ok(None);
        };
        self.set(at);
        self.host.wake.store(Time::NEVER.0, Ordering::SeqCst);
        let now = self.now();
        for network in &self.networks {
            network.handle_timeout(now);
        }
        if let Some(at) = self.next_timeout() {
            self.host.wake_at(at);
        }
        Ok(Some(now))
    }

    /// Steps until `stop`, told the next moment, says so.
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

    /// Lets time pass; it never goes back.
    fn set(&self, now: Time) {
        self.host.now.fetch_max(now.0, Ordering::SeqCst);
    }

    /// When something happens next.
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
        self.networks
            .iter()
            .filter_map(|network| network.next_timeout())
            .min()
    }
}

/// The probes of a simulated device run in its virtual time, on the thread of the caller:
/// [`Rig::of_device_in`](verbs_api::probe::Rig::of_device_in) takes the simulation that the device is in.
impl Pace for Simulation {
    fn until(&self, done: &mut dyn FnMut() -> bool) -> bool {
        let mut is_done = false;
        loop {
            let ran = self.run_until(|| {
                is_done = is_done || done();
                is_done
            });
            // Other threads of the process may hold up a callback with a pin. `done` is asked after that: it sees what a
            // callback that has ended did, and what such a callback made due is due now.
            let is_any_deferred = pin::is_any_deferred();
            is_done = is_done || done();
            let is_idle = !is_any_deferred && matches!(self.next(), Ok(None));
            if is_done || is_idle || ran.is_err() {
                return is_done;
            }
            thread::yield_now();
        }
    }

    /// # Panics
    /// The simulation does not come to its end.
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
    use std::sync::{Mutex, mpsc};

    use super::*;

    /// Does what is due, and has each thing repeated until its count is used up.
    struct Ticks {
        host: Arc<VirtualHost>,
        due: Mutex<Vec<(Time, u32)>>,
        done: Mutex<Vec<u64>>,
        is_forgetful: bool,
    }

    impl Ticks {
        fn new(simulation: &mut Simulation, is_forgetful: bool) -> Arc<Self> {
            let ticks = Arc::new(Self {
                host: Arc::clone(&simulation.host),
                due: Mutex::default(),
                done: Mutex::default(),
                is_forgetful,
            });
            simulation.networks.push(Arc::clone(&ticks) as _);
            ticks
        }

        /// A simulation in which something is to be done so often, at first at `at`.
        fn alone(at: u64, count: u32, is_forgetful: bool) -> (Simulation, Arc<Self>) {
            let mut simulation = Simulation::new();
            let ticks = Self::new(&mut simulation, is_forgetful);
            ticks.set(Time(at), count);
            (simulation, ticks)
        }

        fn set(&self, at: Time, count: u32) {
            self.due.lock().unwrap().push((at, count));
            if !self.is_forgetful {
                self.host.wake_at(at);
            }
        }

        fn done(&self) -> Vec<u64> {
            self.done.lock().unwrap().clone()
        }
    }

    impl Progress for Ticks {
        fn next_timeout(&self) -> Option<Time> {
            self.due.lock().unwrap().iter().map(|(at, _)| *at).min()
        }

        fn handle_timeout(&self, now: Time) {
            let mut all = self.due.lock().unwrap();
            let due: Vec<_> = all.extract_if(.., |(at, _)| *at <= now).collect();
            drop(all);
            for (_, count) in due {
                self.done.lock().unwrap().push(now.0);
                if count > 1 {
                    self.set(Time(now.0 + 10), count - 1);
                }
            }
        }
    }

    #[test]
    fn everything_happens_when_it_is_due() {
        let (mut simulation, one) = Ticks::alone(7, 3, false);
        let other = Ticks::new(&mut simulation, false);
        other.set(Time(12), 1);
        simulation.run_until_idle().unwrap();
        assert_eq!((one.done(), other.done()), (vec![7, 17, 27], vec![12]));
        assert_eq!((simulation.now(), simulation.step()), (Time(27), Ok(None)));
    }

    #[test]
    fn what_never_ends_is_found_out() {
        let (simulation, _) = Ticks::alone(0, u32::MAX, false);
        let next = Time(10 * u64::from(MOST_STEPS));
        let endless = Err(SimulationError::Endless { next });
        assert_eq!(simulation.run_until_idle(), endless);
    }

    #[test]
    fn a_while_ends_when_it_is_over() {
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
            "nothing is to be expected"
        );
    }

    #[test]
    fn time_that_passes_makes_things_late() {
        let (simulation, ticks) = Ticks::alone(10, 1, false);
        simulation.set(Time(25));
        assert_eq!(simulation.step(), Ok(Some(Time(25))));
        assert_eq!(ticks.done(), [25]);
    }

    #[test]
    fn who_forgets_to_be_woken_is_found_out() {
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
