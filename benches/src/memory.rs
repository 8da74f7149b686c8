//! The memory and the processor time that this process uses, and plain copies within registered memory.
// The yardstick of bandwidth is a plain copy of the same bytes that a request moves.
#![allow(unsafe_code)]

use std::fs;
use std::time::Duration;

use polyverbs::{Memory, memory::OutOfRange};

/// Returns the resident set size of this process in bytes (`VmRSS` of `/proc/self/status`), or `None` where the system does
/// not report it.
pub fn resident() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kibibytes: u64 = line.trim().trim_end_matches("kB").trim().parse().ok()?;
    Some(kibibytes * 1024)
}

/// Returns the processor time that all threads of this process together have used since the process began.
pub fn used() -> Duration {
    let used = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(
        used.tv_sec.unsigned_abs(),
        used.tv_nsec.unsigned_abs() as u32,
    )
}

/// Copies `length` bytes within `memory`, from the offset `from` to the offset `to`, with `memcpy`.
///
/// # Errors
/// The source or the target of the copy is not within the memory, or the two overlap.
///
/// # Safety
/// During the copy, no other thread and no request reads or writes its source or target.
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
