//! Interposed functions that look up paths within the C library, where no function is interposed. They are called with
//! paths in the directory that `polyverbs run` has made, or with lookup functions of this library, and that directory is
//! removed from the paths that they return.

use std::cell::Cell;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::{mem, ptr};

use crate::answers::strip;
use crate::lists;
use crate::next::{Next, call, text};
use crate::paths::{self, LONGEST, Room, redirect, root, without_root};

/// The `glob_t` of the C library.
#[repr(C)]
pub struct Glob {
    count: usize,
    paths: *mut *mut c_char,
    reserved: usize,
    flags: c_int,
    closedir: *const c_void,
    readdir: *const c_void,
    opendir: *const c_void,
    lstat: *const c_void,
    stat: *const c_void,
}

// Defines the interposed `glob` functions. The C library's own directory functions would see only the files of the system.
macro_rules! globs {
    ($($name:ident)*) => {$(
        #[doc = concat!("`", stringify!($name), "`.")]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(
            pattern: *const c_char,
            flags: c_int,
            failed: *const c_void,
            found: *mut Glob,
        ) -> c_int {
            static NEXT: Next = Next::new(text(concat!(stringify!($name), "\0")));
            // SAFETY: the C library's function of this name, which has these arguments.
            unsafe {
                if let Some(found) = found.as_mut().filter(|_| flags & libc::GLOB_ALTDIRFUNC == 0) {
                    found.closedir = lists::closedir as *const c_void;
                    found.readdir = lists::readdir as *const c_void;
                    found.opendir = paths::opendir as *const c_void;
                    found.lstat = paths::lstat as *const c_void;
                    found.stat = paths::stat as *const c_void;
                }
                let flags = flags | libc::GLOB_ALTDIRFUNC;
                call!(NEXT.find() => fn(pattern: *const c_char, flags: c_int, failed: *const c_void, found: *mut Glob) -> c_int)
            }
        }
    )*};
}

globs! { glob glob64 }

/// The `wordexp_t` of the C library.
#[repr(C)]
pub struct Words {
    count: usize,
    words: *mut *mut c_char,
    reserved: usize,
}

const WRDE_DOOFFS: c_int = 1;

/// Copies the words to `room`, with the directory of `polyverbs run` inserted before each word that begins with a
/// redirected path. `None` if the directory is not set, has characters that are special to a shell, or the result is too
/// long.
fn words_in_root(words: &[u8], room: &mut [u8; LONGEST]) -> Option<()> {
    let root = root()?;
    // Other characters may have a meaning to a shell.
    let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"/._-".contains(byte);
    if !root.iter().all(is_plain) {
        return None;
    }
    let mut length = 0;
    let mut add = |bytes: &[u8]| {
        // The last byte stays zero, to end the C string.
        let place = room[..LONGEST - 1].get_mut(length..length + bytes.len())?;
        place.copy_from_slice(bytes);
        length += bytes.len();
        Some(())
    };
    let mut before = b' ';
    for (at, byte) in words.iter().enumerate() {
        let begins = before.is_ascii_whitespace() || matches!(before, b'"' | b'\'');
        let leads = |to: &&[u8]| words[at..].starts_with(to);
        if begins
            && [&b"/sys/class/infiniband"[..], b"/dev/infiniband"]
                .iter()
                .any(leads)
        {
            add(root)?;
        }
        add(&[*byte])?;
        before = *byte;
    }
    Some(())
}

/// Interposes `wordexp`: words that are redirected paths are expanded in the directory of `polyverbs run`, and shown
/// without it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wordexp(words: *const c_char, found: *mut Words, flags: c_int) -> c_int {
    static NEXT: Next = Next::new(c"wordexp");
    let mut room = [0; LONGEST];
    // SAFETY: the C library's function of this name, which has these arguments, and makes texts that are the program's.
    unsafe {
        let written = words_in_root(CStr::from_ptr(words).to_bytes(), &mut room);
        let words = written.map_or(words, |()| room.as_ptr().cast());
        let answer = call!(NEXT.find() => fn(words: *const c_char, found: *mut Words, flags: c_int) -> c_int);
        if answer == 0 {
            let reserved = if flags & WRDE_DOOFFS == 0 {
                0
            } else {
                (*found).reserved
            };
            for place in reserved..reserved + (*found).count {
                strip(*(*found).words.add(place));
            }
        }
        answer
    }
}

/// The `struct FTW` of the C library.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Place {
    base: c_int,
    level: c_int,
}

type Visit = unsafe extern "C" fn(*const c_char, *const c_void, c_int, *mut Place) -> c_int;

thread_local! {
    /// The program's callback for the walk in progress, and the number of bytes at the beginning of each path that it does
    /// not get.
    static VISIT: Cell<(Option<Visit>, usize)> = const { Cell::new((None, 0)) };
}

unsafe extern "C" fn visit(
    path: *const c_char,
    about: *const c_void,
    kind: c_int,
    place: *mut Place,
) -> c_int {
    let (Some(function), hidden) = VISIT.get() else {
        return -1;
    };
    // SAFETY: all paths of this walk begin with the hidden bytes. `ftw` gives no place, and its function takes none.
    unsafe {
        let mut seen = place.as_ref().copied();
        if let Some(seen) = &mut seen {
            seen.base -= hidden as c_int;
        }
        let place = seen.as_mut().map_or(ptr::null_mut(), ptr::from_mut);
        function(path.add(hidden), about, kind, place)
    }
}

// The callback of `ftw`, which takes one argument less than that of `nftw`.
unsafe extern "C" fn visit_without_place(
    path: *const c_char,
    about: *const c_void,
    kind: c_int,
) -> c_int {
    // SAFETY: as the caller promises.
    unsafe { visit(path, about, kind, ptr::null_mut()) }
}

macro_rules! walks {
    ($(fn $name:ident(@path, @$visit:ident, $($argument:ident: $type:ty),*);)*) => {$(
        #[doc = concat!("`", stringify!($name), "`.")]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(
            path: *const c_char,
            function: *const c_void,
            $($argument: $type),*
        ) -> c_int {
            static NEXT: Next = Next::new(text(concat!(stringify!($name), "\0")));
            let mut room = Room::new();
            // SAFETY: the C library's function of this name, which has these arguments. The program's function takes those of
            // `Visit`, or fewer.
            unsafe {
                let path = redirect(libc::AT_FDCWD, path, &mut room);
                let hidden = hidden(path);
                let before = (hidden > 0).then(|| {
                    let function = mem::transmute::<*const c_void, Option<Visit>>(function);
                    VISIT.replace((function, hidden))
                });
                let function = before.map_or(function, |_| $visit as *const c_void);
                let answer = call!(NEXT.find() => fn(path: *const c_char, function: *const c_void, $($argument: $type),*) -> c_int);
                if let Some(before) = before {
                    VISIT.set(before);
                }
                answer
            }
        }
    )*};
}

/// The length of the directory of `polyverbs run` at the beginning of a path, in bytes; 0 if the path is not below it.
///
/// # Safety
/// `path` is null or a C string.
unsafe fn hidden(path: *const c_char) -> usize {
    if path.is_null() {
        return 0;
    }
    // SAFETY: as the caller promises.
    let path = unsafe { CStr::from_ptr(path) }.to_bytes();
    without_root(path).map_or(0, |rest| path.len() - rest.len())
}

walks! {
    fn ftw(@path, @visit_without_place, files: c_int);
    fn ftw64(@path, @visit_without_place, files: c_int);
    fn nftw(@path, @visit, files: c_int, flags: c_int);
    fn nftw64(@path, @visit, files: c_int, flags: c_int);
}

/// The first fields of the C library's `FTS`.
#[repr(C)]
pub struct Walk {
    current: *mut Entry,
    child: *mut Entry,
    array: *mut *mut Entry,
    device: libc::dev_t,
    path: *mut c_char,
}

/// The first fields of the C library's `FTSENT`.
#[repr(C)]
pub struct Entry {
    links: [*mut c_void; 3],
    number: libc::c_long,
    pointer: *mut c_void,
    access_path: *mut c_char,
    path: *mut c_char,
    error: c_int,
    folder: c_int,
    path_length: u16,
}

impl Walk {
    /// Removes the directory of `polyverbs run` from the path of the current entry, for the program.
    ///
    /// # Safety
    /// The walk is open.
    unsafe fn hide(&mut self) {
        // SAFETY: as the caller promises. The path of the current entry is the one of the walk.
        unsafe {
            let hidden = hidden(self.path);
            if let Some(entry) = self
                .current
                .as_mut()
                .filter(|entry| entry.path == self.path)
            {
                entry.move_path(hidden as isize);
            }
        }
    }

    /// Restores the path of the current entry that [`hide`](Self::hide) has shortened, so that the C library can continue
    /// the walk.
    ///
    /// # Safety
    /// The walk is open.
    unsafe fn show(&mut self) {
        // SAFETY: as the caller promises.
        unsafe {
            let hidden = hidden(self.path);
            let shown = self.path.wrapping_add(hidden);
            if let Some(entry) = self.current.as_mut().filter(|entry| entry.path == shown) {
                entry.move_path(-(hidden as isize));
            }
        }
    }
}

impl Entry {
    fn move_path(&mut self, by: isize) {
        if self.access_path == self.path {
            self.access_path = self.access_path.wrapping_offset(by);
        }
        self.path = self.path.wrapping_offset(by);
        self.path_length = self.path_length.wrapping_sub(by as u16);
    }
}

macro_rules! fts {
    ($($open:ident $read:ident $children:ident;)*) => {$(
        #[doc = concat!("`", stringify!($open), "`.")]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $open(
            paths: *const *mut c_char,
            options: c_int,
            order: *const c_void,
        ) -> *mut Walk {
            static NEXT: Next = Next::new(text(concat!(stringify!($open), "\0")));
            let mut rooms = [const { Room::new() }; PATHS];
            let mut redirected = [ptr::null::<c_char>(); PATHS + 1];
            // SAFETY: the C library's function of this name, which has these arguments. The list ends with a null.
            unsafe {
                let mut count = 0;
                while count < PATHS && !(*paths.add(count)).is_null() {
                    redirected[count] = redirect(libc::AT_FDCWD, *paths.add(count), &mut rooms[count]);
                    count += 1;
                }
                let paths = match (*paths.add(count)).is_null() {
                    true => redirected.as_ptr(),
                    false => paths.cast(),
                };
                call!(NEXT.find() => fn(paths: *const *const c_char, options: c_int, order: *const c_void) -> *mut Walk)
            }
        }

        #[doc = concat!("`", stringify!($read), "`.")]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $read(walk: *mut Walk) -> *mut Entry {
            static NEXT: Next = Next::new(text(concat!(stringify!($read), "\0")));
            // SAFETY: as above.
            unsafe {
                (*walk).show();
                let entry = call!(NEXT.find() => fn(walk: *mut Walk) -> *mut Entry);
                if !entry.is_null() {
                    (*walk).hide();
                }
                entry
            }
        }

        #[doc = concat!("`", stringify!($children), "`.")]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $children(walk: *mut Walk, options: c_int) -> *mut Entry {
            static NEXT: Next = Next::new(text(concat!(stringify!($children), "\0")));
            // SAFETY: as above.
            unsafe {
                (*walk).show();
                let first = call!(NEXT.find() => fn(walk: *mut Walk, options: c_int) -> *mut Entry);
                (*walk).hide();
                first
            }
        }
    )*};
}

/// The most starting paths of a walk that are redirected. If there are more, none is.
const PATHS: usize = 8;

fts! {
    fts_open fts_read fts_children;
    fts64_open fts64_read fts64_children;
}
