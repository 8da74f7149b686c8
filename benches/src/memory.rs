//! The memory that the process occupies, and plain copies within it.
// The yardstick of bandwidth is a plain copy of the very octets that a request moves.
#![allow(unsafe_code)]

use std::fs;

use polyverbs::{Memory, OutOfRange};

/// Octets of memory that the process has in use, or `None` where the system does not tell.
pub fn resident() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kibibytes: u64 = line.trim().trim_end_matches("kB").trim().parse().ok()?;
    Some(kibibytes * 1024)
}

/// Copies `length` octets within memory, from one place of it to another, as `memcpy` does.
///
/// # Errors
/// One of the places lies outside, or they overlap.
///
/// # Safety
/// While this runs, nobody else reads or writes either place: no other thread, and no request.
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
    // SAFETY: both stretches lie within the memory, which lives as long as `memory`, and do not overlap; the caller
    // promises that nobody else accesses them.
    unsafe { std::ptr::copy_nonoverlapping(source, target, length) };
    Ok(())
}
