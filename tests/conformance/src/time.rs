//! The clock of a rig: virtual time, or real time where there is a wire.

use std::thread;
use std::time::{Duration, Instant};

use polyverbs_io::sim::Simulation;
use verbs_api::probe::Pace;

/// How long a test lets real time pass at most.
const MOST: Duration = Duration::from_secs(2);

/// How long a test of a real device waits to check that nothing happens: the device delivers frames by itself and does not
/// report how many are in transit.
const A_REAL_WHILE: Duration = Duration::from_millis(100);

/// How long sockets must carry nothing until the rig assumes that everything has arrived.
const QUIET: Duration = Duration::from_millis(40);

/// How many frames, sent and delivered, the rig waits for at most: more than any test has on their way. Sockets over which a
/// request is retried without end never carry nothing.
const MOST_CARRIED: u64 = 1000;

/// The two kinds of time.
pub(crate) enum Time {
    /// Time passes only when the test advances it.
    Virtual(Simulation),
    /// Time passes by itself.
    Real {
        /// Present where the frames go over sockets of this process.
        carried: Option<Carried>,
    },
}

/// Lets both devices deliver the frames that have arrived, and returns how much their links have carried so far.
pub(crate) type Carried = Box<dyn Fn() -> u64 + Send + Sync>;

impl Time {
    /// Advances time to the next event that is due; returns `false` if none is due.
    pub(crate) fn step(&self) -> bool {
        match self {
            Self::Virtual(simulation) => simulation
                .step()
                .expect("a network that has itself woken")
                .is_some(),
            Self::Real { .. } => {
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
            Self::Real { .. } => thread::sleep(duration.min(MOST)),
        }
    }
}

impl Pace for Time {
    fn until(&self, done: &mut dyn FnMut() -> bool) -> bool {
        match self {
            Self::Virtual(simulation) => simulation.until(done),
            Self::Real { .. } => {
                test_kit::waiting::until(done);
                true
            }
        }
    }

    fn settle(&self) {
        match self {
            Self::Virtual(simulation) => simulation.settle(),
            Self::Real { carried: None } => thread::sleep(A_REAL_WHILE),
            Self::Real {
                carried: Some(carried),
            } => settle_sockets(&**carried),
        }
    }
}

// However busy the machine is, this waits until the links have carried nothing for a while, although both devices were
// polled, or so much that the frames that were on their way are part of it.
fn settle_sockets(carried: &dyn Fn() -> u64) {
    let first = carried();
    let (mut seen, mut since) = (first, Instant::now());
    test_kit::waiting::until(|| {
        let now = carried();
        if now != seen {
            (seen, since) = (now, Instant::now());
        }
        since.elapsed() >= QUIET || now - first >= MOST_CARRIED
    });
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    #[test]
    fn sockets_settle_although_requests_are_retried_without_end() {
        let frames = AtomicU64::new(0);
        settle_sockets(&|| frames.fetch_add(1, Ordering::Relaxed));
    }
}
