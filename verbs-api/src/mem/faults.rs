//! Lets a thread continue after an access to exposed memory has faulted.
//!
//! A program may protect registered memory, truncate its file, or unmap it by a call that is not interposed. A hardware
//! adapter does not notice, because it has the pages pinned. The access of a software device faults. Every block of
//! [`copy`](super::copy) that accesses exposed memory is listed in a section of the executable. Where one faults, the
//! handler of the signal notes the thread and lets it continue at the end of the block. The thread checks one flag after
//! each copy, and repeats the copy through the kernel, which also writes protected memory. Memory that no longer exists is
//! read as zeros, and a write to it is dropped.

#![allow(unsafe_code)]

use std::arch::asm;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt as _;
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::lock::Mutex;

/// A block of instructions that access exposed memory. Start and end are stored as distances from the fields themselves.
#[repr(C)]
struct Block {
    start: i32,
    end: i32,
}

fn absolute(relative: &i32) -> usize {
    ptr::from_ref(relative)
        .addr()
        .wrapping_add_signed(*relative as isize)
}

/// Returns the address of the instruction at which a thread continues that has faulted at the instruction `at`; `None` if
/// `at` is not in a listed block.
pub(super) fn way_out(at: usize) -> Option<usize> {
    let (first, last): (*const Block, *const Block);
    // SAFETY: the linker makes both symbols for the section to which `copy` adds a block for each access, and lays the blocks
    // out as an array between them.
    let blocks = unsafe {
        asm!(
            ".hidden __start_polyverbs_access, __stop_polyverbs_access",
            "lea {first}, [rip + __start_polyverbs_access]",
            "lea {last}, [rip + __stop_polyverbs_access]",
            first = out(reg) first,
            last = out(reg) last,
            options(nomem, nostack, preserves_flags),
        );
        std::slice::from_raw_parts(first, last.offset_from_unsigned(first))
    };
    let mut found = blocks
        .iter()
        .map(|block| absolute(&block.start)..absolute(&block.end));
    found
        .find(|block| block.contains(&at))
        .map(|block| block.end)
}

/// Threads whose accesses have faulted and which have not called [`was_ours`] since; 0 marks a free entry.
static FAULTED: [AtomicUsize; 64] = [const { AtomicUsize::new(0) }; 64];
/// The number of threads in [`FAULTED`].
static COUNT: AtomicUsize = AtomicUsize::new(0);

fn this_thread() -> usize {
    // SAFETY: it answers which thread calls; handlers of signals may call it.
    unsafe { libc::pthread_self() as usize }
}

/// Notes that the calling thread has faulted. The signal handler calls it.
pub(super) fn note() {
    let thread = this_thread();
    loop {
        for one in &FAULTED {
            match one.compare_exchange(0, thread, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => {
                    COUNT.fetch_add(1, Ordering::Relaxed);
                    return;
                }
                Err(already) if already == thread => return,
                Err(_) => {}
            }
        }
        // Others take themselves off as soon as they look.
        std::hint::spin_loop();
    }
}

/// Whether any thread has faulted and not noticed it. It costs one load after each access.
#[inline]
pub(super) fn are_noted() -> bool {
    COUNT.load(Ordering::Relaxed) != 0
}

/// Whether an access of this thread has faulted since its last call.
#[cold]
pub(super) fn was_ours() -> bool {
    let thread = this_thread();
    let is_noted = |one: &AtomicUsize| {
        let taken_off = one.compare_exchange(thread, 0, Ordering::Relaxed, Ordering::Relaxed);
        taken_off.is_ok()
    };
    let ours = FAULTED.iter().any(is_noted);
    if ours {
        COUNT.fetch_sub(1, Ordering::Relaxed);
    }
    ours
}

pub(super) const PAGE: usize = 4096;

/// The memory of this process, accessed through the kernel, which may read and write pages that are protected from the
/// process.
struct ByKernel(Option<File>);

impl ByKernel {
    fn new() -> Self {
        let memory = OpenOptions::new()
            .read(true)
            .write(true)
            .open("/proc/self/mem");
        Self(memory.ok())
    }

    fn read(&self, at: usize, into: &mut [u8]) {
        let read = |memory: &File| memory.read_exact_at(into, at as u64).ok();
        if self.0.as_ref().and_then(read).is_none() {
            into.fill(0);
        }
    }

    fn write(&self, at: usize, bytes: &[u8]) {
        let Some(memory) = &self.0 else { return };
        if memory.write_all_at(bytes, at as u64).is_ok() {
            return;
        }
        // The kernel does not write to a protected page that is shared, but it maps the page a second time.
        let within = at % PAGE;
        // SAFETY: a length of 0 unmaps nothing; the kernel refuses it for private memory.
        let page =
            unsafe { libc::syscall(libc::SYS_mremap, at - within, 0, PAGE, libc::MREMAP_MAYMOVE) };
        let Some(page) = usize::try_from(page).ok().filter(|page| *page != 0) else {
            return;
        };
        // SAFETY: the page was just mapped, and no other thread knows its address.
        unsafe {
            libc::syscall(
                libc::SYS_mprotect,
                page,
                PAGE,
                libc::PROT_READ | libc::PROT_WRITE,
            );
            let _ = memory.write_all_at(bytes, (page + within) as u64);
            libc::syscall(libc::SYS_munmap, page, PAGE);
        }
    }
}

/// Repeats a copy that faulted, through the kernel.
pub(super) fn copy(dst: *mut u8, src: *const u8, len: usize) {
    let (memory, mut piece) = (ByKernel::new(), [0; PAGE]);
    let (dst, src) = (dst.expose_provenance(), src.expose_provenance());
    let mut done = 0;
    while done < len {
        let left_of_page = |at: usize| PAGE - (at + done) % PAGE;
        let length = (len - done).min(left_of_page(dst)).min(left_of_page(src));
        let piece = &mut piece[..length];
        memory.read(src + done, piece);
        memory.write(dst + done, piece);
        done += length;
    }
}

/// Repeats the read of a word that faulted, through the kernel.
pub(super) fn load(word: *const u64) -> u64 {
    let mut bytes = [0; 8];
    ByKernel::new().read(word.expose_provenance(), &mut bytes);
    u64::from_ne_bytes(bytes)
}

/// Repeats the write of a word that faulted, through the kernel.
pub(super) fn store(word: *mut u64, value: u64) {
    ByKernel::new().write(word.expose_provenance(), &value.to_ne_bytes());
}

/// Repeats a compare-and-swap that faulted, through the kernel; returns the word's previous value.
pub(super) fn compare_exchange(word: *mut u64, compare: u64, swap: u64) -> u64 {
    // Atomic among those that are made again: a program that has protected the word does not change it meanwhile.
    static ALONE: Mutex<()> = Mutex::new(());
    let _alone = ALONE.lock();
    let before = load(word);
    if before == compare {
        store(word, swap);
    }
    before
}

#[cfg(test)]
mod tests {
    use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
    use std::ptr::with_exposed_provenance_mut as at;

    use libc::{MAP_ANONYMOUS, MAP_PRIVATE, MAP_SHARED, PROT_NONE, PROT_READ, PROT_WRITE};

    use super::super::copy::{accessible, outlive_faults};
    use super::PAGE;
    use crate::mem::Span;

    const PAGES: usize = 4;

    // Pages full of 7.
    struct Pages(usize);

    impl Pages {
        fn new(flags: i32, fd: i32) -> Self {
            outlive_faults(libc::sigaction).unwrap();
            // SAFETY: a new mapping, at an address that the kernel chooses.
            let made = unsafe {
                let rights = PROT_READ | PROT_WRITE;
                libc::mmap(std::ptr::null_mut(), PAGES * PAGE, rights, flags, fd, 0)
            };
            assert_ne!(made, libc::MAP_FAILED);
            let made = Self(made.expose_provenance());
            made.span().write(&[7; PAGES * PAGE]);
            made
        }

        fn protect(&self, rights: i32) {
            // SAFETY: the mapping is of this test alone.
            let done = unsafe { libc::mprotect(at(self.0), PAGES * PAGE, rights) };
            assert_eq!(done, 0);
        }

        // The tests check the bytes that they access, whatever has become of the mapping.
        fn span(&self) -> Span<'_> {
            // SAFETY: accesses outlive faults.
            unsafe { Span::new(at(self.0), PAGES * PAGE) }
        }
    }

    impl Drop for Pages {
        fn drop(&mut self) {
            // SAFETY: the mapping is of this test alone.
            unsafe { libc::munmap(at(self.0), PAGES * PAGE) };
        }
    }

    fn memory_file() -> OwnedFd {
        // SAFETY: the name is a text; the descriptor is new.
        unsafe { OwnedFd::from_raw_fd(libc::memfd_create(c"pages".as_ptr(), 0)) }
    }

    fn cut(file: &OwnedFd, length: usize) {
        rustix::fs::ftruncate(file, length as u64).unwrap();
    }

    fn bytes(span: Span<'_>) -> Vec<u8> {
        let mut bytes = vec![0; span.len()];
        span.read(&mut bytes);
        bytes
    }

    #[test]
    fn protected_memory_is_read_and_written() {
        let file = memory_file();
        cut(&file, PAGES * PAGE);
        let private = Pages::new(MAP_PRIVATE | MAP_ANONYMOUS, -1);
        let shared = Pages::new(MAP_SHARED, file.as_raw_fd());
        for pages in [&private, &shared] {
            for (rights, fill) in [(PROT_READ, 8), (PROT_NONE, 9)] {
                pages.protect(rights);
                for length in [1, 8, 63, 100, 3000, PAGE + 1] {
                    let part = pages.span().sub(PAGE - 24, length);
                    part.write(&vec![fill; length]);
                    assert_eq!(bytes(part), vec![fill; length], "{length}");
                    part.write(&vec![7; length]);
                }
                let word = pages.span().sub(64, 8);
                word.store_u64(5).unwrap();
                assert_eq!(word.update_u64(|word| Some(word + 1)), Some(5));
                assert_eq!(word.load_u64(), Some(6));
                word.write(&[7; 8]);
            }
            pages.protect(PROT_READ | PROT_WRITE);
            assert_eq!(bytes(pages.span()), [7; PAGES * PAGE]);
        }
    }

    #[test]
    fn accessible_bytes_are_counted_and_stay_as_they_are() {
        let pages = Pages::new(MAP_PRIVATE | MAP_ANONYMOUS, -1);
        // SAFETY: the mapping is of this test alone.
        let found = |from: usize, length, is_written| unsafe {
            accessible(at::<u8>(pages.0 + from), length, is_written)
        };
        let rest = PAGES * PAGE - 10;
        assert_eq!(
            (found(10, rest, false), found(10, rest, true)),
            (rest, rest)
        );
        // SAFETY: the mapping is of this test alone.
        let limit = |page: usize, rights| unsafe {
            libc::mprotect(at(pages.0 + page * PAGE), PAGE, rights)
        };
        assert_eq!((limit(2, PROT_READ), limit(3, PROT_NONE)), (0, 0));
        assert_eq!(found(10, rest, false), 3 * PAGE - 10);
        assert_eq!(found(10, rest, true), 2 * PAGE - 10);
        assert_eq!(found(2 * PAGE, 1, true), 0);
        assert_eq!(found(2 * PAGE - 1, 1, true), 1);
        assert_eq!(found(3 * PAGE, 0, true), 0);
        // SAFETY: as above.
        assert_eq!(unsafe { accessible(at(usize::MAX - 8), 9, false) }, 0);
        pages.protect(PROT_READ | PROT_WRITE);
        assert_eq!(bytes(pages.span()), [7; PAGES * PAGE]);
    }

    #[test]
    fn memory_that_is_gone_is_zeros_and_takes_no_write() {
        let file = memory_file();
        cut(&file, PAGES * PAGE);
        let pages = Pages::new(MAP_SHARED, file.as_raw_fd());
        cut(&file, PAGE);
        pages.span().write(&[8; PAGES * PAGE]);
        let (first, rest) = (pages.span().sub(0, PAGE), pages.span().sub(PAGE, PAGE * 3));
        assert_eq!(
            (bytes(first), bytes(rest)),
            (vec![8; PAGE], vec![0; PAGE * 3])
        );
        assert_eq!(rest.load_u64(), Some(0));
    }
}
