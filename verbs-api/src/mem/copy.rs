//! The only code that accesses exposed memory.
//!
//! Memory with any remote right may be written by a peer at any instant, and in one process the peer is a thread of the
//! same program. A plain copy that races with such a write is a data race, so everything here is made of atomics or of
//! assembly, about which the compiler assumes nothing. A racing copy reads, or leaves in memory, some mixture of the two;
//! it is never undefined behaviour.
//!
//! Programs spin on the last byte of a message. Pieces are therefore written in ascending order,
//! and the piece that holds the last byte is written last, with release: a reader that sees it
//! (by an acquiring load, [`load_u64`]) sees the rest. That last piece never straddles an aligned word,
//! because the two halves of such a store may become visible in either order.
//!
//! An access to memory that the program has protected or unmapped faults. On x86-64 it is then repeated through the kernel,
//! if [`outlive_faults`] has been called.
//!
//! Two peers that access the same bytes with atomics of different sizes are outside the
//! language's memory model; every supported processor orders them as it orders equal ones.
//!
//! Sizes are bytes.

// Raw memory of the program is accessed by address; there is no safe type for it.
#![allow(unsafe_code)]

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
use super::faults;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
pub use super::signals::{outlive_faults, program_action};

/// Evaluates this expression if the access that was just made has faulted.
macro_rules! again {
    ($($instead:tt)*) => {
        #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
        if faults::are_noted() && faults::was_ours() {
            $($instead)*;
        }
    };
}

/// Aligned copies of up to this many bytes are made of single words.
const SMALL: usize = 64;

/// Copies bytes between two ranges, of which at least one is exposed memory, which peers may access at the same time.
///
/// Addresses ascend; the last byte is written last, with release ordering. Eight aligned bytes are written by one store.
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
    again!(faults::copy(dst, src, len));
}

/// Reads an 8-byte word of exposed memory, with acquire ordering.
///
/// # Safety
/// `word` must be readable and aligned to 8 bytes.
#[inline]
pub unsafe fn load_u64(word: *const u64) -> u64 {
    // SAFETY: readable and aligned by the caller's promise.
    let value = unsafe { load(word) };
    again!(return faults::load(word));
    value
}

/// Writes an 8-byte word of exposed memory, with release ordering.
///
/// # Safety
/// `word` must be writable and aligned to 8 bytes.
#[inline]
pub unsafe fn store_u64(word: *mut u64, value: u64) {
    // SAFETY: writable and aligned by the caller's promise.
    unsafe { store(word, value) };
    again!(faults::store(word, value));
}

/// Atomically replaces an 8-byte word of exposed memory by `swap` if it equals `compare`; returns its previous value.
///
/// # Safety
/// `word` must be readable, writable and aligned to 8 bytes.
#[inline]
pub unsafe fn compare_exchange_u64(word: *mut u64, compare: u64, swap: u64) -> u64 {
    // SAFETY: accessible and aligned by the caller's promise.
    let before = unsafe { compare_exchange(word, compare, swap) };
    again!(return faults::compare_exchange(word, compare, swap));
    before
}

/// Returns how many of the `len` bytes from `at` the process can read and, if `is_written`, write: all, or those before the
/// first page that it cannot. Costs an access to each page, and changes no byte, whatever other threads write there. Call
/// [`outlive_faults`] before, without which such a page ends the process. On other systems and processors this returns `len`.
///
/// # Safety
/// What can be written is the program's own memory, not that of a device.
#[must_use]
pub unsafe fn accessible(at: *const u8, len: usize, is_written: bool) -> usize {
    #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
    {
        let mut done = 0;
        while done < len {
            let byte = at.wrapping_add(done);
            // SAFETY: a fault is survived, and the byte does not change.
            unsafe {
                match is_written {
                    true => x86_64::touch_to_write(byte),
                    false => x86_64::touch(byte),
                }
            }
            again!(return done);
            done += faults::PAGE - byte.addr() % faults::PAGE;
        }
    }
    #[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
    let _ = (at, is_written);
    len
}

#[inline]
fn is_aligned(dst: *mut u8, src: *const u8) -> bool {
    (dst.addr() | src.addr()) & 7 == 0
}

/// Copies in words, then in pieces of 4, 2 and 1 bytes. Every store has release ordering, so that the last one has it
/// whichever piece that is.
///
/// # Safety
/// As [`copy`]; besides, both must be aligned to 8 bytes.
#[inline]
unsafe fn copy_aligned(dst: *mut u8, src: *const u8, len: usize) {
    let (quads, words) = (len & !31, len & !7);
    let mut at = 0;
    while at < quads {
        // SAFETY: `at + 32 <= len`, and the offset keeps the alignment to 8.
        unsafe { piece_32(dst.add(at), src.add(at)) }
        at += 32;
    }
    while at < words {
        // SAFETY: `at + 8 <= len`, and the offset keeps the alignment to 8.
        unsafe { piece_8(dst.add(at), src.add(at)) }
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
        unsafe { piece_4(dst, src) }
        at = 4;
    }
    if len & 2 != 0 {
        // SAFETY: `at + 2 <= len`, and `at` is 0 or 4.
        unsafe { piece_2(dst.add(at), src.add(at)) }
        at += 2;
    }
    if len & 1 != 0 {
        // SAFETY: `at + 1 == len`; a byte is always aligned.
        unsafe { piece_1(dst.add(at), src.add(at)) }
    }
}

/// Copies single bytes until both addresses are aligned to 8. If they never are at the same time, copies everything.
///
/// Returns how many bytes were copied.
///
/// # Safety
/// As [`copy`].
#[cfg(any(test, not(all(target_arch = "x86_64", target_os = "linux"))))]
unsafe fn copy_bytes(dst: *mut u8, src: *const u8, len: usize) -> usize {
    let mut at = 0;
    while at < len && !is_aligned(dst.wrapping_add(at), src.wrapping_add(at)) {
        // SAFETY: `at < len`; a byte is always aligned.
        unsafe { piece_1(dst.add(at), src.add(at)) }
        at += 1;
    }
    at
}

/// Copies bytes of any length and alignment, as [`copy`] does, in portable code.
///
/// # Safety
/// As [`copy`].
#[cfg(any(test, not(all(target_arch = "x86_64", target_os = "linux"))))]
unsafe fn copy_portable(dst: *mut u8, src: *const u8, len: usize) {
    // SAFETY: the caller's promise; the rest is aligned, or empty.
    unsafe {
        let done = copy_bytes(dst, src, len);
        copy_aligned(dst.add(done), src.add(done), len - done);
    }
}

#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
use atomics::{compare_exchange, load, piece_1, piece_2, piece_4, piece_8, piece_32, store};
#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
use copy_portable as copy_other;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
use x86_64::{
    compare_exchange, copy_other, load, piece_1, piece_2, piece_4, piece_8, piece_32, store,
};

#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
mod atomics {
    use core::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

    /// Defines a function that copies one piece by one load and one store, with release ordering.
    macro_rules! piece {
        ($name:ident, $atomic:ty) => {
            /// # Safety
            /// Both can be accessed, and are aligned to the size of the piece.
            #[inline]
            pub(super) unsafe fn $name(dst: *mut u8, src: *const u8) {
                // SAFETY: accessible and aligned by the caller's promise.
                unsafe {
                    let value = <$atomic>::from_ptr(src.cast_mut().cast()).load(Ordering::Relaxed);
                    <$atomic>::from_ptr(dst.cast()).store(value, Ordering::Release);
                }
            }
        };
    }

    piece!(piece_1, AtomicU8);
    piece!(piece_2, AtomicU16);
    piece!(piece_4, AtomicU32);
    piece!(piece_8, AtomicU64);

    /// # Safety
    /// As `piece_8`, for four words.
    #[inline]
    pub(super) unsafe fn piece_32(dst: *mut u8, src: *const u8) {
        for at in [0, 8, 16, 24] {
            // SAFETY: accessible and aligned by the caller's promise.
            unsafe { piece_8(dst.add(at), src.add(at)) }
        }
    }

    /// # Safety
    /// As [`super::load_u64`].
    #[inline]
    pub(super) unsafe fn load(word: *const u64) -> u64 {
        // SAFETY: readable and aligned by the caller's promise; an atomic load does not write.
        unsafe { AtomicU64::from_ptr(word.cast_mut()) }.load(Ordering::Acquire)
    }

    /// # Safety
    /// As [`super::store_u64`].
    #[inline]
    pub(super) unsafe fn store(word: *mut u64, value: u64) {
        // SAFETY: writable and aligned by the caller's promise.
        unsafe { AtomicU64::from_ptr(word) }.store(value, Ordering::Release);
    }

    /// # Safety
    /// As [`super::compare_exchange_u64`].
    #[inline]
    pub(super) unsafe fn compare_exchange(word: *mut u64, compare: u64, swap: u64) -> u64 {
        // SAFETY: accessible and aligned by the caller's promise.
        let word = unsafe { AtomicU64::from_ptr(word) };
        match word.compare_exchange(compare, swap, Ordering::AcqRel, Ordering::Acquire) {
            Ok(before) | Err(before) => before,
        }
    }
}

/// The copies for x86-64, where each load acquires and each store releases, and an access within an aligned 8-byte word is
/// atomic.
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod x86_64 {
    use core::arch::asm;
    use core::ops::Range;
    use core::sync::atomic::{Ordering, fence};

    /// A block of instructions that access exposed memory, and its operands. The block is listed in a section of the
    /// executable: a thread that faults in it continues at its end.
    macro_rules! access {
        ($($instruction:literal),+; $($operand:tt)*) => {
            asm!(
                "2:",
                $($instruction,)+
                "3:",
                ".pushsection polyverbs_access, \"aR\", @progbits",
                ".balign 4",
                ".long 2b - ., 3b - .",
                ".popsection",
                $($operand)*
            )
        };
    }

    /// Defines a function that copies one piece of any alignment.
    macro_rules! piece {
        ($name:ident, $($instruction:literal),+) => {
            /// # Safety
            /// Both can be accessed.
            #[inline]
            pub(super) unsafe fn $name(dst: *mut u8, src: *const u8) {
                // SAFETY: accessible by the caller's promise.
                unsafe {
                    access!($($instruction),+; piece = out(reg) _, src = in(reg) src, dst = in(reg) dst,
                        options(nostack, preserves_flags));
                }
            }
        };
    }

    piece!(piece_1, "mov {piece:l}, [{src}]", "mov [{dst}], {piece:l}");
    piece!(piece_2, "mov {piece:x}, [{src}]", "mov [{dst}], {piece:x}");
    piece!(piece_4, "mov {piece:e}, [{src}]", "mov [{dst}], {piece:e}");
    piece!(piece_8, "mov {piece}, [{src}]", "mov [{dst}], {piece}");
    // Four words. The compiler does not unroll a loop of assembly.
    piece!(
        piece_32,
        "mov {piece}, [{src}]",
        "mov [{dst}], {piece}",
        "mov {piece}, [{src} + 8]",
        "mov [{dst} + 8], {piece}",
        "mov {piece}, [{src} + 16]",
        "mov [{dst} + 16], {piece}",
        "mov {piece}, [{src} + 24]",
        "mov [{dst} + 24], {piece}"
    );

    /// # Safety
    /// As [`super::load_u64`].
    #[inline]
    pub(super) unsafe fn load(word: *const u64) -> u64 {
        let value;
        // SAFETY: readable by the caller's promise.
        unsafe {
            access!("mov {value}, [{word}]"; value = out(reg) value, word = in(reg) word,
                options(nostack, preserves_flags));
        }
        value
    }

    /// # Safety
    /// As [`super::store_u64`].
    #[inline]
    pub(super) unsafe fn store(word: *mut u64, value: u64) {
        // SAFETY: writable by the caller's promise.
        unsafe {
            access!("mov [{word}], {value}"; word = in(reg) word, value = in(reg) value,
                options(nostack, preserves_flags));
        }
    }

    /// # Safety
    /// As [`super::compare_exchange_u64`].
    #[inline]
    pub(super) unsafe fn compare_exchange(word: *mut u64, compare: u64, swap: u64) -> u64 {
        let before;
        // SAFETY: accessible by the caller's promise.
        unsafe {
            access!("lock cmpxchg [{word}], {swap}"; word = in(reg) word, swap = in(reg) swap,
                inout("rax") compare => before, options(nostack));
        }
        before
    }

    /// Reads a byte for the sake of a fault.
    ///
    /// # Safety
    /// A fault is survived.
    #[inline]
    pub(super) unsafe fn touch(byte: *const u8) {
        // SAFETY: the caller's promise.
        unsafe {
            access!("test byte ptr [{byte}], 0"; byte = in(reg) byte, options(nostack, readonly));
        }
    }

    /// Writes a byte as it is, at one moment, for the sake of a fault.
    ///
    /// # Safety
    /// A fault is survived.
    #[inline]
    pub(super) unsafe fn touch_to_write(byte: *const u8) {
        // SAFETY: the caller's promise.
        unsafe {
            access!("lock or byte ptr [{byte}], 0"; byte = in(reg) byte, options(nostack));
        }
    }

    /// Lengths in bytes for which `rep movsb` is faster than a loop of vectors: neither short, nor so long that source and
    /// target exceed a second-level cache.
    const STRING: Range<usize> = 2048..512 * 1024;

    /// Bytes of a cache line.
    const LINE: usize = 64;

    /// The processor first compares the addresses of loads and stores modulo this number of bytes.
    const PAGE: usize = 4096;

    /// Copies bytes where the length is not small or the addresses are not aligned.
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
        // SAFETY: `body + last == len`.
        unsafe {
            match last {
                8 => piece_8(dst.add(body), src.add(body)),
                _ => piece_1(dst.add(body), src.add(body)),
            }
        }
    }

    /// Copies everything before the last piece, which has to be written last.
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

    /// Whether the target is less than a cache line ahead of the source, modulo [`PAGE`]. The processor then takes each
    /// load for one of the stores just made, and `rep movsb` runs fifteen times slower.
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
            access!(
                "rep movsb";
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
                access!(
                    "movdqu {a}, [{src}]",
                    "movdqu {b}, [{src} + 16]",
                    "movdqu {c}, [{src} + 32]",
                    "movdqu {d}, [{src} + 48]",
                    "movdqu [{dst}], {a}",
                    "movdqu [{dst} + 16], {b}",
                    "movdqu [{dst} + 32], {c}",
                    "movdqu [{dst} + 48], {d}";
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

    /// Copies fewer than 64 bytes in pieces of 8, 4, 2 and 1 bytes of any alignment.
    ///
    /// # Safety
    /// As [`super::copy`].
    #[inline]
    unsafe fn copy_words(dst: *mut u8, src: *const u8, len: usize) {
        let mut at = 0;
        while at + 8 <= len {
            // SAFETY: `at + 8 <= len`.
            unsafe { piece_8(dst.add(at), src.add(at)) };
            at += 8;
        }
        if len & 4 != 0 {
            // SAFETY: at least four bytes remain.
            unsafe { piece_4(dst.add(at), src.add(at)) };
            at += 4;
        }
        if len & 2 != 0 {
            // SAFETY: at least two bytes remain.
            unsafe { piece_2(dst.add(at), src.add(at)) };
            at += 2;
        }
        if len & 1 != 0 {
            // SAFETY: one byte remains.
            unsafe { piece_1(dst.add(at), src.add(at)) }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::ptr;
    use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
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
            assert_eq!(compare_exchange_u64(at, 4, 9), 5);
            assert_eq!(compare_exchange_u64(at, 5, 4), 5);
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
