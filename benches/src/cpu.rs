//! Pins the threads of a measurement to a processor each.

use std::sync::OnceLock;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Returns the numbers of two processors: the first is for the measuring thread, the second for its partner thread.
///
/// Returns `None` where the process may use only one processor, or the system does not report which ones: a figure of two
/// threads is meaningless then.
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

/// Pins the calling thread to the first of the two processors of [`two`]; does nothing where that returns `None`.
pub fn pin() {
    if let Some([first, _]) = two() {
        pin_to(first);
    }
}

/// Pins the calling thread to the processor with the number `cpu`; returns whether that succeeded.
pub fn pin_to(cpu: usize) -> bool {
    let mut set = CpuSet::new();
    set.set(cpu);
    sched_setaffinity(None, &set).is_ok()
}
