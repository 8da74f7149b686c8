//! Interposed functions that return a path to the program. If the path is below the directory that `polyverbs run` has
//! made, the program gets the path below `/sys` or `/dev` that this stands for.

use std::ffi::{CStr, c_char, c_int};
use std::ptr;

use crate::next::{Next, call, text};
use crate::paths::{Room, redirect, without_root};

/// Removes the directory that `polyverbs run` has made from the beginning of a path, in place, and returns the path. Other
/// paths stay as they are.
///
/// # Safety
/// `path` is null or a C string that may be changed.
pub(crate) unsafe fn strip(path: *mut c_char) -> *mut c_char {
    if !path.is_null() {
        // SAFETY: as the caller promises; the rest and its zero are a part of the text.
        unsafe {
            let whole = CStr::from_ptr(path).to_bytes();
            if let Some(rest) = without_root(whole) {
                let from = whole.len() - rest.len();
                ptr::copy(path.add(from), path, rest.len() + 1);
            }
        }
    }
    path
}

// Defines interposed functions that return a path as a C string.
macro_rules! texts {
    ($(fn $name:ident($($argument:ident: $type:ty),*);)*) => {$(
        #[doc = concat!("`", stringify!($name), "`.")]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($argument: $type),*) -> *mut c_char {
            static NEXT: Next = Next::new(text(concat!(stringify!($name), "\0")));
            // SAFETY: the C library's function of this name, which has these arguments; the answer is the program's to change.
            unsafe { strip(call!(NEXT.find() => fn($($argument: $type),*) -> *mut c_char)) }
        }
    )*};
    ($(fn $name:ident(@path $(, $argument:ident: $type:ty)*);)*) => {$(
        #[doc = concat!("`", stringify!($name), "`.")]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(path: *const c_char $(, $argument: $type)*) -> *mut c_char {
            static NEXT: Next = Next::new(text(concat!(stringify!($name), "\0")));
            let mut room = Room::new();
            // SAFETY: as above.
            unsafe {
                let path = redirect(libc::AT_FDCWD, path, &mut room);
                strip(call!(NEXT.find() => fn(path: *const c_char $(, $argument: $type)*) -> *mut c_char))
            }
        }
    )*};
}

texts! {
    fn realpath(@path, target: *mut c_char);
    fn __realpath_chk(@path, target: *mut c_char, room: usize);
    fn canonicalize_file_name(@path);
}

texts! {
    fn getcwd(target: *mut c_char, size: usize);
    fn __getcwd_chk(target: *mut c_char, size: usize, room: usize);
    fn getwd(target: *mut c_char);
    fn __getwd_chk(target: *mut c_char, room: usize);
    fn get_current_dir_name();
}

/// Interposes `readlinkat`: a relative or absolute path in the directory is resolved there, and a result below the
/// directory is shown without it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn readlinkat(
    folder: c_int,
    path: *const c_char,
    target: *mut c_char,
    size: usize,
) -> isize {
    static NEXT: Next = Next::new(c"readlinkat");
    let (mut room, mut link) = (Room::new(), [0u8; libc::PATH_MAX as usize]);
    // SAFETY: the C library's function of this name, which has these arguments; the caller has room for the answer.
    unsafe {
        let path = redirect(folder, path, &mut room);
        let (to, most): (*mut c_char, usize) = (link.as_mut_ptr().cast(), link.len());
        let length = call!(NEXT.find() => fn(folder: c_int, path: *const c_char, to: *mut c_char, most: usize) -> isize);
        let Some(found) = usize::try_from(length)
            .ok()
            .and_then(|length| link.get(..length))
        else {
            return length;
        };
        let found = without_root(found).unwrap_or(found);
        let length = found.len().min(size);
        // The kernel also refuses a buffer of length 0.
        if length == 0 {
            *libc::__errno_location() = libc::EINVAL;
            return -1;
        }
        ptr::copy_nonoverlapping(found.as_ptr().cast(), target, length);
        length as isize
    }
}

/// Interposes `__readlinkat_chk`, whose last argument is the size of the buffer at `target`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __readlinkat_chk(
    folder: c_int,
    path: *const c_char,
    target: *mut c_char,
    size: usize,
    room: usize,
) -> isize {
    // SAFETY: as the caller promises.
    unsafe { readlinkat(folder, path, target, size.min(room)) }
}

/// Interposes `readlink`, as [`readlinkat`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn readlink(path: *const c_char, target: *mut c_char, size: usize) -> isize {
    // SAFETY: as the caller promises.
    unsafe { readlinkat(libc::AT_FDCWD, path, target, size) }
}

/// Interposes `__readlink_chk`, whose last argument is the size of the buffer at `target`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __readlink_chk(
    path: *const c_char,
    target: *mut c_char,
    size: usize,
    room: usize,
) -> isize {
    // SAFETY: as the caller promises.
    unsafe { readlinkat(libc::AT_FDCWD, path, target, size.min(room)) }
}
