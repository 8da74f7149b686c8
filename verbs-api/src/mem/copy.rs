//! The only code that touches exposed memory.
//!
//! Memory with any remote right may be written by a peer at any instant, and in one process the
//! peer is a thread of the same program. A plain copy against such a write is a data race, so
//! everything here is made of relaxed atomics or of assembly, of which the compiler assumes
//! nothing. What a racing copy reads or leaves behind is some mixture of the two; it is never
//! undefined behaviour.
//!
//! Programs spin on the last byte of a message. Pieces are therefore written in ascending order,
//! and the piece that holds the last byte is written last, with release: a reader that sees it
//! (by an acquiring load, [`load_u64`]) sees the rest. That last piece never straddles an aligned word,
//! because the two halves of such a store may become visible in either order.
//!
//! Two peers that access the same bytes with atomics of different sizes are outside the
//! language's memory model; every supported processor orders them as it orders equal ones.
//!
//! Sizes are bytes.

// Raw memory of the program is accessed by address; there is no safe type for it.
#![allow(unsafe_code)]

use core::ptr;
use core::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering, fence};

/// Bytes up to which a copy is made of single words.
const SMALL: usize = 64;

/// Copies between two places of which at least one is exposed.
///
/// Ascending; the last byte is written last, with release. Eight aligned bytes are one store.
/// Where the regions overlap the result is unspecified (but defined behaviour).
///
/// # Safety
/// `src` must be readable and `dst` writable for `len` bytes until this returns. Nothing may
/// hold a Rust reference to the exposed part: only this module and other atomics may access it.
#[inline]
pub unsafe fn copy(dst: *mut u8, src: *const u8, len: usize) {
    if is_aligned(dst, src) && len <= SMALL {
        // SAFETY: the caller's promise; both are aligned to a word, as just tested.
        unsafe { copy_aligned(dst, src, len) }
    } else {
        // SAFETY: the caller's promise.
        unsafe { copy_other(dst, src, len) }
    }
}

/// Copies between two private places: no peer can write either.
///
/// # Safety
/// `src` must be readable and `dst` writable for `len` bytes, and no other thread may write
/// `src` or access `dst` until this returns. They may overlap.
#[inline]
pub unsafe fn copy_private(dst: *mut u8, src: *const u8, len: usize) {
    // SAFETY: the caller's promise is that of `ptr::copy`.
    unsafe { ptr::copy(src, dst, len) }
}

/// Reads an exposed word, with acquire.
///
/// # Safety
/// `word` must be readable and aligned to 8 bytes.
#[inline]
pub unsafe fn load_u64(word: *const u64) -> u64 {
    // SAFETY: readable and aligned by the caller's promise; an atomic load does not write.
    unsafe { AtomicU64::from_ptr(word.cast_mut()) }.load(Ordering::Acquire)
}

/// Writes an exposed word, with release.
///
/// # Safety
/// `word` must be writable and aligned to 8 bytes.
#[inline]
pub unsafe fn store_u64(word: *mut u64, value: u64) {
    // SAFETY: writable and aligned by the caller's promise.
    unsafe { AtomicU64::from_ptr(word) }.store(value, Ordering::Release);
}

/// Replaces an exposed word by `swap` if it equals `compare`; returns what was there before.
///
/// # Safety
/// `word` must be readable, writable and aligned to 8 bytes.
#[inline]
pub unsafe fn compare_exchange_u64(word: *mut u64, compare: u64, swap: u64) -> u64 {
    // SAFETY: accessible and aligned by the caller's promise.
    let word = unsafe { AtomicU64::from_ptr(word) };
    match word.compare_exchange(compare, swap, Ordering::AcqRel, Ordering::Acquire) {
        Ok(before) | Err(before) => before,
    }
}

/// Adds to an exposed word, modulo 2^64; returns what was there before.
///
/// # Safety
/// `word` must be readable, writable and aligned to 8 bytes.
#[inline]
pub unsafe fn fetch_add_u64(word: *mut u64, add: u64) -> u64 {
    // SAFETY: accessible and aligned by the caller's promise.
    unsafe { AtomicU64::from_ptr(word) }.fetch_add(add, Ordering::AcqRel)
}

#[inline]
fn is_aligned(dst: *mut u8, src: *const u8) -> bool {
    (dst.addr() | src.addr()) & 7 == 0
}

/// Moves one naturally aligned piece as one load and one store.
macro_rules! piece {
    ($atomic:ty, $dst:expr, $src:expr, $order:expr) => {{
        let value = <$atomic>::from_ptr($src.cast_mut().cast()).load(Ordering::Relaxed);
        <$atomic>::from_ptr($dst.cast()).store(value, $order);
    }};
}

/// Copies in words, then in pieces of 4, 2 and 1; every store has release, which costs nothing on
/// x86-64 and makes whichever piece is the last one right.
///
/// # Safety
/// As [`copy`]; besides, both must be aligned to 8 bytes.
#[inline]
unsafe fn copy_aligned(dst: *mut u8, src: *const u8, len: usize) {
    let words = len & !7;
    let mut at = 0;
    while at < words {
        // SAFETY: `at + 8 <= len`, and the offset keeps the alignment to 8.
        unsafe { piece!(AtomicU64, dst.add(at), src.add(at), Ordering::Release) }
        at += 8;
    }
    if len & 7 != 0 {
        // SAFETY: fewer than 8 bytes remain at an offset that is a multiple of 8.
        unsafe { copy_rest(dst.add(at), src.add(at), len & 7) }
    }
}

/// Copies fewer than 8 bytes.
///
/// # Safety
/// As [`copy`]; besides, both must be aligned to 8 bytes and `len` be less than 8.
#[inline]
unsafe fn copy_rest(dst: *mut u8, src: *const u8, len: usize) {
    let mut at = 0;
    if len & 4 != 0 {
        // SAFETY: `len >= 4` and offset 0 is aligned.
        unsafe { piece!(AtomicU32, dst, src, Ordering::Release) }
        at = 4;
    }
    if len & 2 != 0 {
        // SAFETY: `at + 2 <= len`, and `at` is 0 or 4.
        unsafe { piece!(AtomicU16, dst.add(at), src.add(at), Ordering::Release) }
        at += 2;
    }
    if len & 1 != 0 {
        // SAFETY: `at + 1 == len`; a byte is always aligned.
        unsafe { piece!(AtomicU8, dst.add(at), src.add(at), Ordering::Release) }
    }
}

/// Copies byte by byte until both sides are aligned to 8, as far as they ever are together.
///
/// Returns how many bytes were copied.
///
/// # Safety
/// As [`copy`].
#[cfg(any(test, not(target_arch = "x86_64")))]
unsafe fn copy_bytes(dst: *mut u8, src: *const u8, len: usize) -> usize {
    let mut at = 0;
    while at < len && !is_aligned(dst.wrapping_add(at), src.wrapping_add(at)) {
        // SAFETY: `at < len`; a byte is always aligned.
        unsafe { piece!(AtomicU8, dst.add(at), src.add(at), Ordering::Release) }
        at += 1;
    }
    at
}

/// What [`copy`] does for any length and alignment, in portable code.
///
/// # Safety
/// As [`copy`].
#[cfg(any(test, not(target_arch = "x86_64")))]
unsafe fn copy_portable(dst: *mut u8, src: *const u8, len: usize) {
    // SAFETY: the caller's promise; the rest is aligned, or empty.
    unsafe {
        let done = copy_bytes(dst, src, len);
        copy_aligned(dst.add(done), src.add(done), len - done);
    }
}

#[cfg(not(target_arch = "x86_64"))]
use copy_portable as copy_other;

#[cfg(target_arch = "x86_64")]
use x86_64::copy_other;

#[cfg(target_arch = "x86_64")]
mod x86_64 {
    use core::arch::asm;
    use core::ops::Range;

    use super::{AtomicU8, AtomicU64, Ordering, fence};

    /// Bytes for which the string instruction beats a loop of vectors: neither short, nor more than a second-level cache
    /// holds of both sides.
    const STRING: Range<usize> = 2048..512 * 1024;

    /// Bytes of a cache line.
    const LINE: usize = 64;

    /// Bytes after which the processor's first comparison of addresses repeats.
    const PAGE: usize = 4096;

    /// Copies what is not short and aligned.
    ///
    /// # Safety
    /// As [`super::copy`].
    pub(super) unsafe fn copy_other(dst: *mut u8, src: *const u8, len: usize) {
        if len == 0 {
            return;
        }
        let end_aligned = (dst.addr() + len) & 7 == 0;
        let last = if end_aligned && len >= 8 { 8 } else { 1 };
        let body = len - last;
        // SAFETY: the body is a part of both regions.
        unsafe { copy_body(dst, src, body) };
        // The stores of a string instruction are unordered among themselves, but all of them are
        // visible before those of a later instruction; this fence is for the compiler.
        fence(Ordering::Release);
        // SAFETY: `body + last == len`; `dst + body` is aligned to 8 if the last piece has 8.
        unsafe { copy_last(dst.add(body), src.add(body), last) };
    }

    /// Stores the last piece, one aligned word or one byte.
    ///
    /// # Safety
    /// As [`super::copy`]; `len` is 8 and `dst` aligned to 8, or `len` is 1.
    #[inline]
    unsafe fn copy_last(dst: *mut u8, src: *const u8, len: usize) {
        if len == 8 {
            // SAFETY: eight bytes on either side by the caller's promise, `dst` aligned.
            unsafe { AtomicU64::from_ptr(dst.cast()).store(load_word(src), Ordering::Release) }
        } else {
            // SAFETY: one byte on either side by the caller's promise.
            unsafe { piece!(AtomicU8, dst, src, Ordering::Release) }
        }
    }

    /// Copies all but the last piece.
    ///
    /// # Safety
    /// As [`super::copy`].
    #[inline]
    unsafe fn copy_body(mut dst: *mut u8, mut src: *const u8, mut len: usize) {
        let by_strings = STRING.contains(&len) && !is_just_ahead(dst, src);
        if len >= STRING.start {
            let head = dst.addr().wrapping_neg() % LINE;
            // SAFETY: `head` is less than a line and `len` more than one.
            unsafe {
                copy_words(dst, src, head);
                (dst, src) = (dst.add(head), src.add(head));
            }
            len -= head;
        }
        if by_strings {
            // SAFETY: the caller's promise.
            return unsafe { copy_string(dst, src, len) };
        }
        let vectors = len & !63;
        // SAFETY: `vectors` and the rest add up to `len`.
        unsafe {
            copy_vectors(dst, src, vectors);
            copy_words(dst.add(vectors), src.add(vectors), len - vectors);
        }
    }

    /// Whether the target is less than a line ahead of the source, as far as the address within a
    /// page tells. The processor then takes each load for one of the stores just made, and the
    /// string instruction runs fifteen times slower.
    #[inline]
    fn is_just_ahead(dst: *mut u8, src: *const u8) -> bool {
        let ahead = dst.addr().wrapping_sub(src.addr()) % PAGE;
        ahead != 0 && ahead < LINE
    }

    /// # Safety
    /// As [`super::copy`].
    #[inline]
    unsafe fn copy_string(dst: *mut u8, src: *const u8, len: usize) {
        // SAFETY: accesses exactly the two regions; the direction flag is clear by the ABI.
        unsafe {
            asm!(
                "rep movsb",
                inout("rcx") len => _,
                inout("rsi") src => _,
                inout("rdi") dst => _,
                options(nostack, preserves_flags),
            );
        }
    }

    /// Copies a multiple of 64 bytes in vectors of 16.
    ///
    /// # Safety
    /// As [`super::copy`]; `len` must be a multiple of 64.
    #[inline]
    unsafe fn copy_vectors(dst: *mut u8, src: *const u8, len: usize) {
        let mut at = 0;
        while at < len {
            // SAFETY: `at + 64 <= len`.
            unsafe {
                asm!(
                    "movdqu {a}, [{src}]",
                    "movdqu {b}, [{src} + 16]",
                    "movdqu {c}, [{src} + 32]",
                    "movdqu {d}, [{src} + 48]",
                    "movdqu [{dst}], {a}",
                    "movdqu [{dst} + 16], {b}",
                    "movdqu [{dst} + 32], {c}",
                    "movdqu [{dst} + 48], {d}",
                    src = in(reg) src.add(at),
                    dst = in(reg) dst.add(at),
                    a = out(xmm_reg) _,
                    b = out(xmm_reg) _,
                    c = out(xmm_reg) _,
                    d = out(xmm_reg) _,
                    options(nostack, preserves_flags),
                );
            }
            at += 64;
        }
    }

    /// Copies fewer than 64 bytes in pieces of 8, 4, 2 and 1 of any alignment.
    ///
    /// # Safety
    /// As [`super::copy`].
    #[inline]
    unsafe fn copy_words(dst: *mut u8, src: *const u8, len: usize) {
        let mut at = 0;
        while at + 8 <= len {
            // SAFETY: `at + 8 <= len`.
            unsafe { store_word(dst.add(at), load_word(src.add(at))) };
            at += 8;
        }
        if len & 4 != 0 {
            // SAFETY: at least four bytes remain.
            unsafe {
                asm!("mov {v:e}, [{s}]", "mov [{d}], {v:e}", v = out(reg) _,
                    s = in(reg) src.add(at), d = in(reg) dst.add(at),
                    options(nostack, preserves_flags));
            }
            at += 4;
        }
        if len & 2 != 0 {
            // SAFETY: at least two bytes remain.
            unsafe {
                asm!("mov {v:x}, [{s}]", "mov [{d}], {v:x}", v = out(reg) _,
                    s = in(reg) src.add(at), d = in(reg) dst.add(at),
                    options(nostack, preserves_flags));
            }
            at += 2;
        }
        if len & 1 != 0 {
            // SAFETY: one byte remains.
            unsafe { piece!(AtomicU8, dst.add(at), src.add(at), Ordering::Release) }
        }
    }

    /// Reads eight bytes at any alignment.
    ///
    /// # Safety
    /// `src` must be readable for 8 bytes.
    #[inline]
    unsafe fn load_word(src: *const u8) -> u64 {
        let value;
        // SAFETY: reads the eight bytes that the caller promised.
        unsafe {
            asm!("mov {v}, [{s}]", v = out(reg) value, s = in(reg) src,
                options(nostack, preserves_flags, readonly));
        }
        value
    }

    /// Writes eight bytes at any alignment.
    ///
    /// # Safety
    /// `dst` must be writable for 8 bytes.
    #[inline]
    unsafe fn store_word(dst: *mut u8, value: u64) {
        // SAFETY: writes the eight bytes that the caller promised.
        unsafe {
            asm!("mov [{d}], {v}", v = in(reg) value, d = in(reg) dst,
                options(nostack, preserves_flags));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;
    use std::thread;
    use std::vec::Vec;

    use super::*;

    type CopyFn = unsafe fn(*mut u8, *const u8, usize);

    fn pattern(len: usize) -> Vec<u8> {
        (0..len).map(|i| (i * 31 + i / 251 + 1) as u8).collect()
    }

    /// Copies `len` bytes between two offsets and checks what was and was not written.
    fn check(copy: CopyFn, len: usize, dst_at: usize, src_at: usize) {
        let src = pattern(src_at + len);
        let mut dst = vec![0xa5u8; dst_at + len + 16];
        // SAFETY: both vectors are long enough and nothing else uses them.
        unsafe { copy(dst.as_mut_ptr().add(dst_at), src.as_ptr().add(src_at), len) };
        assert_eq!(
            dst[dst_at..dst_at + len],
            src[src_at..],
            "{len} {dst_at} {src_at}"
        );
        assert!(
            dst[..dst_at]
                .iter()
                .chain(&dst[dst_at + len..])
                .all(|&b| b == 0xa5)
        );
    }

    #[test]
    fn every_short_length_and_alignment() {
        for copy in [copy as CopyFn, copy_portable] {
            for len in 0..200 {
                for at in 0..64 {
                    check(copy, len, at % 8, at / 8);
                }
            }
        }
    }

    #[test]
    fn long_lengths_around_the_changes_of_method() {
        for len in [
            1023,
            1024,
            1032,
            4096,
            (512 << 10) - 1,
            512 << 10,
            (512 << 10) + 9,
            (768 << 10) + 77,
        ] {
            for (dst_at, src_at) in [(0, 0), (1, 0), (0, 3), (5, 5)] {
                check(copy, len, dst_at, src_at);
                check(copy_private, len, dst_at, src_at);
                check(copy_portable, len, dst_at, src_at);
            }
        }
    }

    #[test]
    fn overlap_is_no_fault() {
        for len in [8, 24, 64, 100, 5000] {
            let mut memory = pattern(len + 8);
            let at = memory.as_mut_ptr();
            // SAFETY: both ranges lie within the vector.
            unsafe {
                copy(at.add(8), at, len);
                copy(at, at.add(8), len);
            }
        }
    }

    #[test]
    fn atomics_return_what_was_there() {
        let mut word = 5u64;
        let at = &raw mut word;
        // SAFETY: a local word, aligned, used by this thread alone.
        unsafe {
            assert_eq!(fetch_add_u64(at, u64::MAX), 5);
            assert_eq!(compare_exchange_u64(at, 5, 9), 4);
            assert_eq!(compare_exchange_u64(at, 4, 9), 4);
            assert_eq!(load_u64(at), 9);
            store_u64(at, 1);
            assert_eq!(load_u64(at), 1);
        }
    }

    /// A program that spins on the last byte finds all others in place.
    #[test]
    fn last_byte_is_last() {
        const ROUNDS: u8 = 200;
        for len in [8usize, 64, 71, 513, 4097, 70_000] {
            let mut target = vec![0u64; len.div_ceil(8)];
            let (base, last) = (target.as_mut_ptr().expose_provenance(), len - 1);
            let seen = AtomicBool::new(true);
            thread::scope(|scope| {
                scope.spawn(|| {
                    for round in 1..=ROUNDS {
                        while !seen.swap(false, Ordering::AcqRel) {
                            thread::yield_now();
                        }
                        let source = vec![round; len];
                        // SAFETY: the scope keeps the target; both sides use atomics only.
                        unsafe {
                            copy(ptr::with_exposed_provenance_mut(base), source.as_ptr(), len)
                        }
                    }
                });
                let byte = |at: usize, order| {
                    // SAFETY: within the target, which both threads access atomically.
                    unsafe { AtomicU8::from_ptr(ptr::with_exposed_provenance_mut(base + at)) }
                        .load(order)
                };
                for round in 1..=ROUNDS {
                    while byte(last, Ordering::Acquire) != round {
                        thread::yield_now();
                    }
                    assert!(
                        (0..len).all(|at| byte(at, Ordering::Relaxed) == round),
                        "{len}"
                    );
                    seen.store(true, Ordering::Release);
                }
            });
        }
    }
}
