//! Virtual time: a clock that a test sets, and what drives networks by it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use polyverbs_engine::driver::Driver;
use polyverbs_engine::link::SharedLink;
use polyverbs_engine::network::{Network, Progress};
use polyverbs_engine::time::{Host, Time};
use thiserror::Error;

/// A host whose time stands still until it is set.
#[derive(Debug)]
pub struct VirtualHost {
    now: AtomicU64,
    wake: AtomicU64,
}

impl VirtualHost {
    /// A host whose time is 0.
    pub fn new() -> Arc<Self> {
        Arc::new(Self {
            now: AtomicU64::new(0),
            wake: AtomicU64::new(Time::NEVER.0),
        })
    }

    /// Lets time pass. Does nothing of what becomes due.
    pub fn advance(&self, duration: Duration) {
        self.set(self.now().after(duration));
    }

    /// Lets time pass until `now`; it never goes back.
    pub fn set(&self, now: Time) {
        self.now.fetch_max(now.0, Ordering::SeqCst);
    }

    /// The earliest moment that was noted and not taken yet.
    pub fn next_wake(&self) -> Option<Time> {
        Some(Time(self.wake.load(Ordering::SeqCst))).filter(|at| *at != Time::NEVER)
    }

    fn take_wake(&self) {
        self.wake.store(Time::NEVER.0, Ordering::SeqCst);
    }
}

impl Host for VirtualHost {
    fn now(&self) -> Time {
        Time(self.now.load(Ordering::SeqCst))
    }

    fn wake_at(&self, at: Time) {
        self.wake.fetch_min(at.0, Ordering::SeqCst);
    }
}

/// Networks that run in virtual time, on the thread of the caller.
///
/// A network is called as a real timer thread would call it: when the earliest moment that it had noted has come, and
/// at no other time. So a network that forgets to have itself woken is found out, with
/// [`NotWoken`](SimulationError::NotWoken), instead of hanging one day.
///
/// Who changes a link at run time (ends a stall, say) calls the network's `progress` then.
///
/// ```
/// # use std::time::Duration;
/// use polyverbs_sim::{Bound, Simulation};
///
/// let mut simulation = Simulation::new();
/// // … simulation.network::<MyDriver>(Some(link)), devices, requests …
/// let ran = simulation.run_until_idle(Bound::steps(10_000))?;
/// assert_eq!(ran.steps, 0, "nothing was posted");
/// simulation.run_for(Duration::from_millis(5))?;
/// # Ok::<(), polyverbs_sim::SimulationError>(())
/// ```
pub struct Simulation {
    host: Arc<VirtualHost>,
    networks: Vec<Arc<dyn Progress>>,
}

/// How far a simulation may go before it counts as one that never ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bound {
    /// Moments at which something is done.
    pub steps: u64,
    /// Virtual time.
    pub time: Duration,
}

/// How far a simulation went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ran {
    /// Moments at which something was done.
    pub steps: u64,
    /// Virtual time.
    pub time: Duration,
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
    /// The bound was reached.
    #[error("still not idle after {} steps and {:?} of virtual time; something is due at {next:?}", ran.steps, ran.time)]
    OutOfBound {
        /// How far it went.
        ran: Ran,
        /// When something is due next.
        next: Time,
    },
}

impl Simulation {
    /// A simulation without networks, at time 0.
    pub fn new() -> Self {
        Self {
            host: VirtualHost::new(),
            networks: Vec::new(),
        }
    }

    /// The clock of all its networks.
    pub fn host(&self) -> &Arc<VirtualHost> {
        &self.host
    }

    /// A network in this simulation; direct without a link.
    pub fn network<D: Driver>(&mut self, link: Option<SharedLink<D::Header>>) -> Arc<Network<D>> {
        let network = Network::new(Arc::clone(&self.host) as Arc<dyn Host>, link);
        self.add(Arc::clone(&network) as Arc<dyn Progress>);
        network
    }

    /// Drives `network` too. It must have been made with this simulation's [`host`](Self::host).
    pub fn add(&mut self, network: Arc<dyn Progress>) {
        self.networks.push(network);
    }

    /// Now.
    pub fn now(&self) -> Time {
        self.host.now()
    }

    /// Lets time pass and does nothing: what becomes due is late.
    pub fn advance(&self, duration: Duration) {
        self.host.advance(duration);
    }

    /// Goes on until nothing is due any more.
    ///
    /// # Errors
    /// Something is still due when the bound is reached, or was forgotten.
    pub fn run_until_idle(&self, bound: Bound) -> Result<Ran, SimulationError> {
        self.run(bound, self.now().after(bound.time), |_| false)
    }

    /// Goes on until `done` says so or nothing is due any more; `done` is asked after each step.
    ///
    /// # Errors
    /// Something is still due when the bound is reached, or was forgotten.
    pub fn run_until(
        &self,
        bound: Bound,
        mut done: impl FnMut() -> bool,
    ) -> Result<Ran, SimulationError> {
        if done() {
            return Ok(Ran::default());
        }
        self.run(bound, self.now().after(bound.time), |_| done())
    }

    /// Does everything that becomes due within `duration`; then that much time has passed.
    ///
    /// # Errors
    /// There was more to do than a million steps, or something was forgotten.
    pub fn run_for(&self, duration: Duration) -> Result<Ran, SimulationError> {
        let (began, end) = (self.now(), self.now().after(duration));
        let ran = self.run(Bound::default(), end, |next| next > end)?;
        self.host.set(end);
        Ok(Ran {
            time: since(began, self.now()),
            ..ran
        })
    }

    /// Does what is due next, and lets time pass until then. `None` where nothing is due.
    ///
    /// # Errors
    /// Something is due that was forgotten.
    pub fn step(&self) -> Result<Option<Time>, SimulationError> {
        let Some(at) = self.next()? else {
            return Ok(None);
        };
        self.host.set(at);
        self.host.take_wake();
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
    fn run(
        &self,
        bound: Bound,
        end: Time,
        mut stop: impl FnMut(Time) -> bool,
    ) -> Result<Ran, SimulationError> {
        let (began, mut steps) = (self.now(), 0);
        loop {
            let ran = Ran {
                steps,
                time: since(began, self.now()),
            };
            let Some(next) = self.next()? else {
                return Ok(ran);
            };
            if stop(next) {
                return Ok(ran);
            }
            if steps >= bound.steps || next > end {
                return Err(SimulationError::OutOfBound { ran, next });
            }
            self.step()?;
            steps += 1;
        }
    }

    /// When something happens next.
    fn next(&self) -> Result<Option<Time>, SimulationError> {
        let (wake, now) = (self.host.next_wake(), self.now());
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

impl Default for Simulation {
    fn default() -> Self {
        Self::new()
    }
}

impl Bound {
    /// So many steps, and whatever time they take.
    pub const fn steps(steps: u64) -> Self {
        Self {
            steps,
            time: Duration::MAX,
        }
    }
}

impl Default for Bound {
    /// A million steps.
    fn default() -> Self {
        Self::steps(1_000_000)
    }
}

fn since(began: Time, now: Time) -> Duration {
    Duration::from_nanos(now.0 - began.0)
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    /// Does what is due, and has each thing repeated until its count is used up.
    struct Ticks {
        host: Arc<VirtualHost>,
        due: Mutex<Vec<(Time, u32)>>,
        done: Mutex<Vec<Time>>,
        is_forgetful: bool,
    }

    impl Ticks {
        fn new(simulation: &mut Simulation, is_forgetful: bool) -> Arc<Self> {
            let host = Arc::clone(simulation.host());
            let ticks = Arc::new(Self {
                host,
                due: Mutex::default(),
                done: Mutex::default(),
                is_forgetful,
            });
            simulation.add(Arc::clone(&ticks) as Arc<dyn Progress>);
            ticks
        }

        fn set(&self, at: Time, count: u32) {
            self.due.lock().unwrap().push((at, count));
            if !self.is_forgetful {
                self.host.wake_at(at);
            }
        }

        fn done(&self) -> Vec<u64> {
            self.done.lock().unwrap().iter().map(|at| at.0).collect()
        }
    }

    impl Progress for Ticks {
        fn next_timeout(&self) -> Option<Time> {
            self.due.lock().unwrap().iter().map(|(at, _)| *at).min()
        }

        fn handle_timeout(&self, now: Time) {
            let due: Vec<_> = self
                .due
                .lock()
                .unwrap()
                .extract_if(.., |(at, _)| *at <= now)
                .collect();
            for (_, count) in due {
                self.done.lock().unwrap().push(now);
                if count > 1 {
                    self.set(Time(now.0 + 10), count - 1);
                }
            }
        }
    }

    #[test]
    fn everything_happens_when_it_is_due() {
        let mut simulation = Simulation::new();
        let [one, other] = [(); 2].map(|()| Ticks::new(&mut simulation, false));
        one.set(Time(7), 3);
        other.set(Time(12), 1);
        let ran = simulation.run_until_idle(Bound::steps(10)).unwrap();
        assert_eq!(
            ran,
            Ran {
                steps: 4,
                time: Duration::from_nanos(27)
            }
        );
        assert_eq!((one.done(), other.done()), (vec![7, 17, 27], vec![12]));
        assert_eq!(simulation.step(), Ok(None));
    }

    #[test]
    fn what_never_ends_reaches_the_bound() {
        let mut simulation = Simulation::new();
        let ticks = Ticks::new(&mut simulation, false);
        ticks.set(Time(0), u32::MAX);
        let error = simulation.run_until_idle(Bound::steps(5)).unwrap_err();
        let ran = Ran {
            steps: 5,
            time: Duration::from_nanos(40),
        };
        assert_eq!(
            error,
            SimulationError::OutOfBound {
                ran,
                next: Time(50)
            }
        );
        let bound = Bound {
            time: Duration::from_nanos(100),
            ..Bound::default()
        };
        assert!(simulation.run_until_idle(bound).is_err());
        assert_eq!(simulation.now(), Time(140));
    }

    #[test]
    fn a_while_ends_when_it_is_over() {
        let mut simulation = Simulation::new();
        let ticks = Ticks::new(&mut simulation, false);
        ticks.set(Time(10), 100);
        let ran = simulation.run_for(Duration::from_nanos(35)).unwrap();
        assert_eq!(
            ran,
            Ran {
                steps: 3,
                time: Duration::from_nanos(35)
            }
        );
        assert_eq!(
            (ticks.done(), simulation.now()),
            (vec![10, 20, 30], Time(35))
        );
    }

    #[test]
    fn a_condition_ends_the_run() {
        let mut simulation = Simulation::new();
        let ticks = Ticks::new(&mut simulation, false);
        ticks.set(Time(10), 100);
        let ran = simulation
            .run_until(Bound::default(), || ticks.done().len() == 4)
            .unwrap();
        assert_eq!(ran.steps, 4);
        assert_eq!(
            simulation.run_until(Bound::default(), || true),
            Ok(Ran::default())
        );
    }

    #[test]
    fn time_that_passes_makes_things_late() {
        let mut simulation = Simulation::new();
        let ticks = Ticks::new(&mut simulation, false);
        ticks.set(Time(10), 1);
        simulation.advance(Duration::from_nanos(25));
        assert_eq!(simulation.step(), Ok(Some(Time(25))));
        assert_eq!(ticks.done(), [25]);
        simulation.host().set(Time(3));
        assert_eq!(simulation.now(), Time(25));
    }

    #[test]
    fn who_forgets_to_be_woken_is_found_out() {
        let mut simulation = Simulation::new();
        let ticks = Ticks::new(&mut simulation, true);
        ticks.set(Time(10), 1);
        let error = simulation.run_until_idle(Bound::default()).unwrap_err();
        assert_eq!(
            error,
            SimulationError::NotWoken {
                due: Time(10),
                now: Time(0),
                wake: None
            }
        );
        simulation.host().wake_at(Time(20));
        assert!(matches!(
            simulation.step(),
            Err(SimulationError::NotWoken {
                wake: Some(Time(20)),
                ..
            })
        ));
        simulation.host().wake_at(Time(10));
        assert_eq!(simulation.step(), Ok(Some(Time(10))));
    }
}
