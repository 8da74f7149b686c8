//! Threads on processors of their own.

use std::sync::OnceLock;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// The two processors of a measurement: the one of this thread, and the one of its partner.
///
/// `None` where the process may use only one, or cannot find out: a figure of two threads is meaningless then.
pub fn two() -> Option<[usize; 2]> {
    // The system is queried only once, because a thread that is already pinned may use only one processor.
    static CPUS: OnceLock<Option<[usize; 2]>> = OnceLock::new();
    *CPUS.get_or_init(first_two)
}

fn first_two() -> Option<[usize; 2]> {
    let allowed = sched_getaffinity(None).ok()?;
    let mut cpus = (0..CpuSet::MAX_CPU).filter(|&cpu| allowed.is_set(cpu));
    Some([cpus.next()?, cpus.next()?])
}

/// Pins this thread to the first of its processors, where it may use two.
pub fn pin() {
    if let Some([first, _]) = two() {
        pin_to(first);
    }
}

/// Pins this thread to one processor; returns whether that succeeded.
pub fn pin_to(cpu: usize) -> bool {
    let mut set = CpuSet::new();
    set.set(cpu);
    sched_setaffinity(None, &set).is_ok()
}
