//! The memory and the time that the process takes, and plain copies within memory.
// The yardstick of bandwidth is a plain copy of the same bytes that a request moves.
#![allow(unsafe_code)]

use std::fs;
use std::time::Duration;

use polyverbs::{Memory, memory::OutOfRange};

/// Bytes of memory that the process has in use, or `None` where the system does not report it.
pub fn resident() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kibibytes: u64 = line.trim().trim_end_matches("kB").trim().parse().ok()?;
    Some(kibibytes * 1024)
}

/// Time on processors that the process has used so far, all threads together.
pub fn used() -> Duration {
    let used = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(
        used.tv_sec.unsigned_abs(),
        used.tv_nsec.unsigned_abs() as u32,
    )
}

/// Copies `length` bytes within memory, from one place of it to another, as `memcpy` does.
///
/// # Errors
/// One of the places is outside the memory, or they overlap.
///
/// # Safety
/// While this runs, no other thread and no request reads or writes either place.
pub unsafe fn plain_copy(
    memory: &Memory,
    from: usize,
    to: usize,
    length: usize,
) -> Result<(), OutOfRange> {
    let (source, target) = (memory.range(from, length)?, memory.range(to, length)?);
    if from.abs_diff(to) < length {
        return Err(OutOfRange {
            offset: to,
            length,
            size: memory.len(),
        });
    }
    let source = std::ptr::with_exposed_provenance::<u8>(source.address() as usize);
    let target = std::ptr::with_exposed_provenance_mut::<u8>(target.address() as usize);
    // SAFETY: both ranges are within the memory, which lives as long as `memory`, and do not overlap; the caller
    // promises that no thread or request accesses them.
    unsafe { std::ptr::copy_nonoverlapping(source, target, length) };
    Ok(())
}
