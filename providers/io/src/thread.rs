//! How soon the calling thread comes when it is woken.

use nix::sys::prctl::set_timerslack;

/// Has the calling thread come soon when it is woken, on a busy processor too, for the price of short turns, and in time when
/// it has slept.
pub(crate) fn prefer_short_turns() {
    let _ = set_timerslack(1000);
    if let Ok(nice) = rustix::process::getpriority_process(None) {
        crate::sockets::sys::set_turn(SHORTEST_TURN, nice);
    }
}

/// What kernels grant, in nanoseconds.
const SHORTEST_TURN: u64 = 100_000;
