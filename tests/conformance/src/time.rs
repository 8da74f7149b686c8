//! The clock of a rig: virtual time, or real time where there is a wire.

use std::thread;
use std::time::Duration;

use polyverbs_io::sim::Simulation;

/// How long a test waits in real time for a condition: long enough for every retry.
const MOST: Duration = Duration::from_secs(2);

/// The two kinds of time.
pub(crate) enum Time {
    /// Time passes only when the test advances it.
    Virtual(Simulation),
    /// Time passes by itself.
    Real,
}

impl Time {
    /// Advances time to the next event that is due; returns `false` if none is due.
    pub(crate) fn step(&self) -> bool {
        match self {
            Self::Virtual(simulation) => simulation
                .step()
                .expect("a network that has itself woken")
                .is_some(),
            Self::Real => {
                thread::sleep(Duration::from_micros(20));
                true
            }
        }
    }

    /// Lets time pass.
    pub(crate) fn run_for(&self, duration: Duration) {
        match self {
            Self::Virtual(simulation) => {
                simulation
                    .run_for(duration)
                    .expect("a network that has itself woken");
            }
            Self::Real => thread::sleep(duration.min(MOST)),
        }
    }

    /// Lets time pass until `done`, or until nothing is left to happen.
    pub(crate) fn run_until(&self, done: impl FnMut() -> bool) -> Result<(), String> {
        match self {
            Self::Virtual(simulation) => simulation
                .run_until(done)
                .map_err(|error| error.to_string()),
            Self::Real => {
                test_kit::waiting::until(done);
                Ok(())
            }
        }
    }
}
