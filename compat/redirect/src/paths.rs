//! Functions that take a path: paths below `/sys/class/infiniband*` and `/dev/infiniband` lead to the folder that `run` has made.
//! All other paths are passed on unchanged, after a look at their first characters.

use std::ffi::{CStr, OsStr, c_char, c_int, c_uint, c_void};
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::ptr;

use crate::next::{Next, call, text};

/// The environment variable that names the folder. `polyverbs run` sets it.
const ROOT: &CStr = c"POLYVERBS_ROOT";

const LONGEST: usize = libc::PATH_MAX as usize;

/// A buffer for a path.
pub(crate) struct Room(MaybeUninit<[u8; LONGEST]>);

impl Room {
    pub(crate) fn new() -> Self {
        Self(MaybeUninit::uninit())
    }

    /// Both parts, one after the other, and the terminating zero. `None` where they are too long.
    pub(crate) fn join(&mut self, root: &[u8], path: &[u8]) -> Option<*const c_char> {
        let length = root.len() + path.len();
        if length >= LONGEST {
            return None;
        }
        let at = self.0.as_mut_ptr().cast::<u8>();
        // SAFETY: both and the zero fit, as was seen.
        unsafe {
            ptr::copy_nonoverlapping(root.as_ptr(), at, root.len());
            ptr::copy_nonoverlapping(path.as_ptr(), at.add(root.len()), path.len());
            at.add(length).write(0);
        }
        Some(at.cast_const().cast())
    }
}

fn is_redirected(path: &[u8]) -> bool {
    let behind = |prefix: &[u8]| path.strip_prefix(prefix).map(|rest| rest.first().copied());
    // The names of classes go on: `infiniband_verbs`, `infiniband_mad` and others.
    matches!(
        behind(b"/sys/class/infiniband"),
        Some(None | Some(b'/' | b'_'))
    ) || matches!(behind(b"/dev/infiniband"), Some(None | Some(b'/')))
}

// The value of `ROOT` in the current environment.
fn root<'a>() -> Option<&'a [u8]> {
    // SAFETY: a text, or null; whoever changes the environment meanwhile breaks every use of it.
    let value = unsafe { libc::getenv(ROOT.as_ptr()) };
    // SAFETY: not null, so it is a text.
    (!value.is_null()).then(|| unsafe { CStr::from_ptr(value) }.to_bytes())
}

// SAFETY of the callers: null or a text.
unsafe fn redirect(path: *const c_char, room: &mut Room) -> *const c_char {
    if path.is_null() {
        return path;
    }
    // SAFETY: as the caller promises.
    let bytes = unsafe { CStr::from_ptr(path) }.to_bytes();
    if !is_redirected(bytes) {
        return path;
    }
    let there = root().and_then(|root| room.join(root, bytes));
    there.unwrap_or(path)
}

// Functions with a path among their arguments. Those that C declares with `...` take the mode in the same register.
macro_rules! functions {
    ($(fn $name:ident($($before:ident: $first:ty,)* @path $(, $after:ident: $last:ty)*) -> $answer:ty;)*) => {$(
        #[doc = concat!("`", stringify!($name), "`.")]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(
            $($before: $first,)* path: *const c_char $(, $after: $last)*
        ) -> $answer {
            static NEXT: Next = Next::new(text(concat!(stringify!($name), "\0")));
            let mut room = Room::new();
            // SAFETY: the C library's function of this name, which has these arguments.
            unsafe {
                let path = redirect(path, &mut room);
                call!(NEXT.find() => fn($($before: $first,)* path: *const c_char $(, $after: $last)*) -> $answer)
            }
        }
    )*};
}

functions! {
    fn open(@path, flags: c_int, mode: c_uint) -> c_int;
    fn open64(@path, flags: c_int, mode: c_uint) -> c_int;
    fn __open_2(@path, flags: c_int) -> c_int;
    fn __open64_2(@path, flags: c_int) -> c_int;
    fn openat(folder: c_int, @path, flags: c_int, mode: c_uint) -> c_int;
    fn openat64(folder: c_int, @path, flags: c_int, mode: c_uint) -> c_int;
    fn __openat_2(folder: c_int, @path, flags: c_int) -> c_int;
    fn __openat64_2(folder: c_int, @path, flags: c_int) -> c_int;
    fn fopen(@path, mode: *const c_char) -> *mut c_void;
    fn fopen64(@path, mode: *const c_char) -> *mut c_void;
    fn opendir(@path) -> *mut c_void;
    fn scandir(@path, list: *mut c_void, choose: *const c_void, order: *const c_void) -> c_int;
    fn scandir64(@path, list: *mut c_void, choose: *const c_void, order: *const c_void) -> c_int;
    fn stat(@path, target: *mut c_void) -> c_int;
    fn stat64(@path, target: *mut c_void) -> c_int;
    fn lstat(@path, target: *mut c_void) -> c_int;
    fn lstat64(@path, target: *mut c_void) -> c_int;
    fn fstatat(folder: c_int, @path, target: *mut c_void, flags: c_int) -> c_int;
    fn fstatat64(folder: c_int, @path, target: *mut c_void, flags: c_int) -> c_int;
    fn __xstat(version: c_int, @path, target: *mut c_void) -> c_int;
    fn __xstat64(version: c_int, @path, target: *mut c_void) -> c_int;
    fn __lxstat(version: c_int, @path, target: *mut c_void) -> c_int;
    fn __lxstat64(version: c_int, @path, target: *mut c_void) -> c_int;
    fn __fxstatat(version: c_int, folder: c_int, @path, target: *mut c_void, flags: c_int) -> c_int;
    fn __fxstatat64(version: c_int, folder: c_int, @path, target: *mut c_void, flags: c_int) -> c_int;
    fn statx(folder: c_int, @path, flags: c_int, mask: c_uint, target: *mut c_void) -> c_int;
    fn access(@path, mode: c_int) -> c_int;
    fn faccessat(folder: c_int, @path, mode: c_int, flags: c_int) -> c_int;
    fn eaccess(@path, mode: c_int) -> c_int;
    fn euidaccess(@path, mode: c_int) -> c_int;
    fn chdir(@path) -> c_int;
    fn statfs(@path, target: *mut c_void) -> c_int;
    fn statfs64(@path, target: *mut c_void) -> c_int;
    fn getxattr(@path, name: *const c_char, target: *mut c_void, size: usize) -> isize;
    fn lgetxattr(@path, name: *const c_char, target: *mut c_void, size: usize) -> isize;
    fn listxattr(@path, target: *mut c_char, size: usize) -> isize;
    fn llistxattr(@path, target: *mut c_char, size: usize) -> isize;
    fn readlink(@path, target: *mut c_char, size: usize) -> isize;
    fn readlinkat(folder: c_int, @path, target: *mut c_char, size: usize) -> isize;
    fn __readlink_chk(@path, target: *mut c_char, size: usize, room: usize) -> isize;
    fn realpath(@path, target: *mut c_char) -> *mut c_char;
    fn __realpath_chk(@path, target: *mut c_char, room: usize) -> *mut c_char;
    fn canonicalize_file_name(@path) -> *mut c_char;
}

// Runs when a program exits. The process that `run` became, whose number the folder has in its name, removes the folder; the
// folder of a killed process is removed by the next `run`.
extern "C" fn ended() {
    let Some(root) = root() else {
        return;
    };
    let folder = Path::new(OsStr::from_bytes(root));
    let own = folder.extension().and_then(OsStr::to_str) == Some(&std::process::id().to_string());
    let ours = folder
        .file_name()
        .is_some_and(|name| name.as_bytes().starts_with(b"polyverbs-run."));
    if own && ours {
        // A failure cannot be reported any more.
        let _ = std::fs::remove_dir_all(folder);
    }
}

#[used]
#[unsafe(link_section = ".fini_array")]
static ENDED: extern "C" fn() = ended;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_paths_of_rdma_devices_are_redirected() {
        for path in [
            "/sys/class/infiniband",
            "/sys/class/infiniband/ib0/device",
            "/sys/class/infiniband_verbs/ib0",
            "/dev/infiniband/rdma_cm",
            "/dev/infiniband",
        ] {
            assert!(is_redirected(path.as_bytes()), "{path}");
        }
        for path in [
            "",
            "/sys/class",
            "/sys/class/infinibands",
            "/dev/infinibandwagon",
            "sys/class/infiniband",
        ] {
            assert!(!is_redirected(path.as_bytes()), "{path}");
        }
    }

    #[test]
    fn a_path_that_is_too_long_is_not_redirected() {
        let mut room = Room::new();
        assert!(
            room.join(&[b'/'; LONGEST / 2], &[b'a'; LONGEST / 2])
                .is_none()
        );
        let joined = room.join(b"/run", b"/dev/infiniband").unwrap();
        // SAFETY: a text in the room.
        assert_eq!(unsafe { CStr::from_ptr(joined) }, c"/run/dev/infiniband");
    }
}
