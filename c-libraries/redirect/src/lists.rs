//! Interposed functions that list a directory. The directories `/sys/class` and `/dev` are the system's own, and the C library
//! lists them. After their last entry the program gets one for each directory that `polyverbs run` has made below them.

use std::cell::UnsafeCell;
use std::ffi::{CStr, c_char, c_int, c_long, c_void};
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

use libc::dirent64;

use crate::next::{Next, call, text};
use crate::paths::{Absolute, Room, root};

/// A directory that may stand below `/sys/class` or `/dev`, with the entry that lists it.
struct Added {
    parent: &'static [u8],
    /// Both begin with a slash and end with a zero.
    path: &'static CStr,
    /// The program owns an entry until it reads the next one, and may change it: tools cut names.
    entry: UnsafeCell<dirent64>,
}

// SAFETY: this library writes an entry only when it returns it, with the same bytes each time.
unsafe impl Sync for Added {}

impl Added {
    const fn new(parent: &'static [u8], path: &'static CStr) -> Self {
        Self {
            parent,
            path,
            entry: UnsafeCell::new(entry(path.to_bytes(), parent.len() + 1)),
        }
    }

    /// Whether `polyverbs run` has made this directory and the system has none of this name.
    fn is_listed(&self, room: &mut Room) -> bool {
        let made = root().and_then(|root| room.join(root, self.path.to_bytes()));
        made.is_some_and(exists) && !exists(self.path.as_ptr())
    }
}

// The entry of a directory whose name begins at `start` of its path.
const fn entry(path: &[u8], start: usize) -> dirent64 {
    let mut name = [0; 256];
    let mut at = start;
    while at < path.len() {
        name[at - start] = path[at] as c_char;
        at += 1;
    }
    dirent64 {
        // Programs take an entry with the number 0 for a deleted one.
        d_ino: 1,
        d_off: i64::MAX,
        d_reclen: size_of::<dirent64>() as u16,
        d_type: libc::DT_DIR,
        d_name: name,
    }
}

static ADDED: [Added; 4] = [
    Added::new(b"/sys/class", c"/sys/class/infiniband"),
    Added::new(b"/sys/class", c"/sys/class/infiniband_mad"),
    Added::new(b"/sys/class", c"/sys/class/infiniband_verbs"),
    Added::new(b"/dev", c"/dev/infiniband"),
];

// By a system call, which passes by the functions of this library. The path is a text.
fn exists(path: *const c_char) -> bool {
    // SAFETY: as said above.
    unsafe { libc::syscall(libc::SYS_faccessat, libc::AT_FDCWD, path, libc::F_OK) == 0 }
}

/// A directory that a program has listed to the system's last entry, and the place in [`ADDED`] where its listing goes on.
struct Ended {
    stream: AtomicPtr<c_void>,
    next: AtomicUsize,
}

/// Directories that are being listed at one time. If there are more, the program sees the system's entries alone.
static ENDED: [Ended; 16] = [const {
    Ended {
        stream: AtomicPtr::new(ptr::null_mut()),
        next: AtomicUsize::new(0),
    }
}; 16];

impl Ended {
    /// The listing of this stream. A program reads one stream by one thread at a time.
    fn of(stream: *mut c_void) -> Option<&'static Self> {
        let known = |ended: &&Self| ended.stream.load(Ordering::Acquire) == stream;
        let is_taken = |ended: &&Self| {
            let stream = (ptr::null_mut(), stream);
            let taken = ended.stream.compare_exchange(
                stream.0,
                stream.1,
                Ordering::AcqRel,
                Ordering::Relaxed,
            );
            taken.is_ok()
        };
        ENDED.iter().find(known).or_else(|| {
            let ended = ENDED.iter().find(is_taken)?;
            ended.next.store(0, Ordering::Relaxed);
            Some(ended)
        })
    }

    /// Forgets the listing of this stream, which the program closes or reads again from another place.
    fn forget(stream: *mut c_void) {
        for ended in &ENDED {
            let _ = ended.stream.compare_exchange(
                stream,
                ptr::null_mut(),
                Ordering::AcqRel,
                Ordering::Relaxed,
            );
        }
    }
}

/// The next entry that this library adds to the listing of an open directory; `None` if there is none.
///
/// # Safety
/// The stream is open.
unsafe fn added(stream: *mut c_void) -> Option<&'static Added> {
    root()?;
    // SAFETY: as the caller promises.
    let folder = Absolute::of(unsafe { libc::dirfd(stream.cast()) })?;
    if !ADDED.iter().any(|added| added.parent == folder.path()) {
        return None;
    }
    let ended = Ended::of(stream)?;
    let mut room = Room::new();
    loop {
        let added = ADDED.get(ended.next.fetch_add(1, Ordering::Relaxed))?;
        if added.parent == folder.path() && added.is_listed(&mut room) {
            return Some(added);
        }
    }
}

// Calls a function that lists, and another one if the listing of the system has ended without an error. Neither changes
// `errno` then.
unsafe fn listed<T>(
    list: impl FnOnce() -> Option<T>,
    add: impl FnOnce() -> Option<T>,
) -> Option<T> {
    // SAFETY: the address is that of this thread's number.
    unsafe {
        let errno = libc::__errno_location();
        let before = errno.replace(0);
        let mut found = list();
        if found.is_none() && *errno == 0 {
            found = add();
            *errno = 0;
        }
        if *errno == 0 {
            *errno = before;
        }
        found
    }
}

// Entries have one layout on processors of 64 bits, whether a program was built for large files or not.
macro_rules! lists {
    ($($name:ident $into:ident;)*) => {$(
        #[doc = concat!("`", stringify!($name), "`.")]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(stream: *mut c_void) -> *mut dirent64 {
            static NEXT: Next = Next::new(text(concat!(stringify!($name), "\0")));
            // SAFETY: the C library's function of this name, which has this argument. The program passes an open stream.
            unsafe {
                let list = || {
                    let entry = call!(NEXT.find() => fn(stream: *mut c_void) -> *mut dirent64);
                    (!entry.is_null()).then_some(entry)
                };
                let add = || {
                    let added = added(stream)?;
                    let entry = added.entry.get();
                    entry.write(self::entry(added.path.to_bytes(), added.parent.len() + 1));
                    Some(entry)
                };
                listed(list, add).unwrap_or(ptr::null_mut())
            }
        }

        #[doc = concat!("`", stringify!($into), "`, which stores the entry in memory of the program.")]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $into(
            stream: *mut c_void,
            entry: *mut dirent64,
            found: *mut *mut dirent64,
        ) -> c_int {
            static NEXT: Next = Next::new(text(concat!(stringify!($into), "\0")));
            // SAFETY: as above. The program has room for an entry.
            unsafe {
                let failed = call!(NEXT.find() => fn(stream: *mut c_void, entry: *mut dirent64, found: *mut *mut dirent64) -> c_int);
                if failed == 0 && (*found).is_null() {
                    let errno = *libc::__errno_location();
                    if let Some(added) = added(stream) {
                        entry.write(self::entry(added.path.to_bytes(), added.parent.len() + 1));
                        *found = entry;
                    }
                    *libc::__errno_location() = errno;
                }
                failed
            }
        }
    )*};
}

lists! {
    readdir readdir_r;
    readdir64 readdir64_r;
}

// Defines interposed functions after which a stream is read from another place, or not at all.
macro_rules! moves {
    ($(fn $name:ident(stream $(, $argument:ident: $type:ty)*) -> $answer:ty;)*) => {$(
        #[doc = concat!("`", stringify!($name), "`.")]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(stream: *mut c_void $(, $argument: $type)*) -> $answer {
            static NEXT: Next = Next::new(text(concat!(stringify!($name), "\0")));
            Ended::forget(stream);
            // SAFETY: the C library's function of this name, which has these arguments.
            unsafe { call!(NEXT.find() => fn(stream: *mut c_void $(, $argument: $type)*) -> $answer) }
        }
    )*};
}

moves! {
    fn closedir(stream) -> c_int;
    fn rewinddir(stream) -> ();
    fn seekdir(stream, place: c_long) -> ();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_added_entry_has_the_last_part_of_its_path() {
        for added in &ADDED {
            // SAFETY: nothing else uses the entries here.
            let entry = unsafe { &*added.entry.get() };
            // SAFETY: a text that ends in the field.
            let name = unsafe { CStr::from_ptr(entry.d_name.as_ptr()) };
            let whole = [added.parent, b"/", name.to_bytes()].concat();
            assert_eq!(whole, added.path.to_bytes());
            assert_eq!(entry.d_type, libc::DT_DIR);
        }
    }

    #[test]
    fn a_closed_stream_makes_room_for_another() {
        let stream = |number: usize| ptr::without_provenance_mut::<c_void>(number);
        for number in 1..=ENDED.len() {
            assert!(Ended::of(stream(number)).is_some());
        }
        assert!(Ended::of(stream(100)).is_none());
        Ended::forget(stream(1));
        assert!(Ended::of(stream(100)).is_some());
        for number in 1..=100 {
            Ended::forget(stream(number));
        }
    }
}
