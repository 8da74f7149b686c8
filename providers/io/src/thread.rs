//! Makes the scheduler run the calling thread soon after a wake-up.

use std::num::NonZeroU64;

use rustix::process::getpriority_process;
use rustix::thread::set_current_timer_slack;

/// Asks the scheduler to run the calling thread soon after a wake-up, also on a busy processor, in exchange for shorter
/// time slices; and to end its sleeps within a microsecond of the requested time.
pub(crate) fn prefer_short_turns() {
    let _ = set_current_timer_slack(NonZeroU64::new(1000));
    if let Ok(nice) = getpriority_process(None) {
        crate::sockets::sys::set_turn(SHORTEST_TURN, nice);
    }
}

/// The shortest time slice that kernels grant, in nanoseconds.
const SHORTEST_TURN: u64 = 100_000;
