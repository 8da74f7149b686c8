//! Threads on processors of their own.

use std::sync::OnceLock;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// The two processors of a measurement: of this thread, and of its partner.
///
/// `None` where the process may use only one, or cannot tell: a figure of two threads says nothing then.
pub fn two() -> Option<[usize; 2]> {
    // Asked once: whoever is pinned already may use only one.
    static CPUS: OnceLock<Option<[usize; 2]>> = OnceLock::new();
    *CPUS.get_or_init(first_two)
}

fn first_two() -> Option<[usize; 2]> {
    let allowed = sched_getaffinity(None).ok()?;
    let mut cpus = (0..CpuSet::MAX_CPU).filter(|&cpu| allowed.is_set(cpu));
    Some([cpus.next()?, cpus.next()?])
}

/// Keeps this thread on one processor; answers whether that could be done.
pub fn pin_to(cpu: usize) -> bool {
    let mut set = CpuSet::new();
    set.set(cpu);
    sched_setaffinity(None, &set).is_ok()
}
