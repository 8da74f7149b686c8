//! The time of a rig: virtual, or that of the clock where there is a wire.

use std::thread;
use std::time::Duration;

use polyverbs_sim::Simulation;

/// How long is waited on the clock for what a test lets pass: long enough for every retry.
const MOST: Duration = Duration::from_secs(2);

/// How time passes.
pub(crate) enum Time {
    /// When it is told to.
    Virtual(Simulation),
    /// By itself.
    Real,
}

impl Time {
    /// Lets one moment pass at which something is due; `false` where nothing is.
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

    /// Lets time pass until `done`, or until nothing is due any more.
    pub(crate) fn run_until(&self, done: impl FnMut() -> bool) -> Result<(), String> {
        match self {
            Self::Virtual(simulation) => simulation
                .run_until(done)
                .map_err(|error| error.to_string()),
            Self::Real => {
                waiting::until(done);
                Ok(())
            }
        }
    }
}
