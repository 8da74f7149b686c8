//! Interposed functions that take a path: paths below `/sys/class/infiniband*` and `/dev/infiniband` are redirected to the
//! directory that `polyverbs run` has made.
//!
//! All other paths are passed to the C library unchanged. Only a path that contains `infiniband`, or is relative and
//! contains `..`, is resolved to find out where it leads: relative to a directory, and with `.`, `..` and doubled slashes.

use std::ffi::{CStr, OsStr, c_char, c_int, c_uint, c_void};
use std::io::Write as _;
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::ptr;

use crate::live::Live;
use crate::next::{Next, call, text};

/// The environment variable, set by `polyverbs run`, that names the directory to which paths are redirected.
const ROOT: &CStr = c"POLYVERBS_ROOT";

pub(crate) const LONGEST: usize = libc::PATH_MAX as usize;

/// A buffer for a redirected path, of the longest length that the system accepts.
pub(crate) struct Room(MaybeUninit<[u8; LONGEST]>);

impl Room {
    pub(crate) const fn new() -> Self {
        Self(MaybeUninit::uninit())
    }

    /// Stores both parts, one after the other, as a C string and returns it. `None` if they are too long.
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
    // Classes of devices have longer names: `infiniband_verbs`, `infiniband_mad` and others.
    matches!(
        behind(b"/sys/class/infiniband"),
        Some(None | Some(b'/' | b'_'))
    ) || matches!(behind(b"/dev/infiniband"), Some(None | Some(b'/')))
}

// The value of `ROOT` in the current environment.
pub(crate) fn root<'a>() -> Option<&'a [u8]> {
    // SAFETY: a text, or null; whoever changes the environment meanwhile breaks every use of it.
    let value = unsafe { libc::getenv(ROOT.as_ptr()) };
    // SAFETY: not null, so it is a text.
    (!value.is_null()).then(|| unsafe { CStr::from_ptr(value) }.to_bytes())
}

/// The rest of a path that begins with the directory of `polyverbs run`; `None` if the path is not below that directory.
pub(crate) fn without_root(path: &[u8]) -> Option<&[u8]> {
    let rest = path.strip_prefix(root()?)?;
    matches!(rest.first(), None | Some(b'/')).then_some(rest)
}

/// An absolute path as the program sees it, without `.`, `..` and doubled slashes. The root directory has length 0.
pub(crate) struct Absolute {
    bytes: [u8; LONGEST],
    length: usize,
}

impl Absolute {
    fn root() -> Self {
        Self {
            bytes: [0; LONGEST],
            length: 0,
        }
    }

    pub(crate) fn path(&self) -> &[u8] {
        &self.bytes[..self.length]
    }

    fn push(&mut self, name: &[u8]) -> Option<()> {
        let end = self.length + 1 + name.len();
        let place = self.bytes.get_mut(self.length..end)?;
        let (slash, place) = place.split_first_mut()?;
        *slash = b'/';
        place.copy_from_slice(name);
        self.length = end;
        Some(())
    }

    /// Goes to the parent directory, as `..` does. Resolves symbolic links first where there may be any. `None` if that
    /// fails.
    fn pop(&mut self) -> Option<()> {
        let has_links = !is_redirected(self.path())
            && !matches!(self.path(), b"" | b"/dev" | b"/sys" | b"/sys/class");
        if has_links {
            let mut room = Room::new();
            let path = room.join(self.path(), b"")?;
            // SAFETY: the path is a text. These system calls pass by the functions here.
            unsafe {
                let flags = libc::O_PATH | libc::O_CLOEXEC;
                let folder = libc::syscall(libc::SYS_openat, libc::AT_FDCWD, path, flags) as c_int;
                let found = (folder >= 0).then(|| Self::of(folder));
                libc::syscall(libc::SYS_close, folder);
                *self = found??;
            }
        }
        self.length = self
            .path()
            .iter()
            .rposition(|byte| *byte == b'/')
            .unwrap_or(0);
        Some(())
    }

    /// The path, as the program sees it, of an open directory; `None` if the system does not report it or it is too long.
    pub(crate) fn of(folder: c_int) -> Option<Self> {
        let mut link = [0; 32];
        let name = match folder {
            libc::AT_FDCWD => c"/proc/self/cwd",
            _ => {
                write!(&mut link[..], "/proc/self/fd/{folder}").ok()?;
                CStr::from_bytes_until_nul(&link).ok()?
            }
        };
        let mut found = Self::root();
        let to = found.bytes.as_mut_ptr();
        // SAFETY: there is so much room.
        let length = unsafe {
            libc::syscall(
                libc::SYS_readlinkat,
                libc::AT_FDCWD,
                name.as_ptr(),
                to,
                LONGEST,
            )
        };
        let length = usize::try_from(length)
            .ok()
            .filter(|length| *length < LONGEST)?;
        found.length = if found.bytes[..length] == *b"/" {
            0
        } else {
            length
        };
        if let Some(rest) = without_root(found.path()) {
            let start = found.length - rest.len();
            found.bytes.copy_within(start..length, 0);
            found.length -= start;
        }
        Some(found)
    }
}

fn contains(path: &[u8], text: &[u8]) -> bool {
    path.windows(text.len()).any(|part| part == text)
}

/// The path to pass to the C library in place of this one: below the directory of `polyverbs run`, or outside of it if `..`
/// leads out. `None` if the path needs no change. It is stored in `room`.
fn resolve(folder: c_int, path: &[u8], room: &mut Room) -> Option<*const c_char> {
    let is_relative = path.first() != Some(&b'/');
    // Tools that walk directories compare the parent of a directory with the one that they came from.
    if path == b".." && folder != libc::AT_FDCWD {
        return None;
    }
    let may_lead = contains(path, b"infiniband") || (is_relative && contains(path, b".."));
    if !may_lead {
        return None;
    }
    let root = root()?;
    let mut found = match is_relative {
        true => Absolute::of(folder)?,
        false => Absolute::root(),
    };
    let mut was_redirected = false;
    for part in path.split(|byte| *byte == b'/') {
        was_redirected |= is_redirected(found.path());
        match part {
            b"" | b"." => {}
            b".." => found.pop()?,
            name => found.push(name)?,
        }
    }
    // A slash at the end makes the system follow a symbolic link and reject a file.
    if path.last() == Some(&b'/') || found.length == 0 {
        found.push(b"")?;
    }
    match is_redirected(found.path()) {
        true => room.join(root, found.path()),
        false if was_redirected => room.join(found.path(), b""),
        false => None,
    }
}

// SAFETY of the callers: null or a text.
pub(crate) unsafe fn redirect(
    folder: c_int,
    path: *const c_char,
    room: &mut Room,
) -> *const c_char {
    if path.is_null() {
        return path;
    }
    // SAFETY: as the caller promises.
    let bytes = unsafe { CStr::from_ptr(path) }.to_bytes();
    resolve(folder, bytes, room).unwrap_or(path)
}

// Defines interposed functions with a path argument. After `@path` and `@issm` the path is relative to the current directory, after
// `@at` to that of a descriptor; `@issm` may open a connection to the fabric instead. Functions that C declares with `...` take the mode in the same register.
macro_rules! functions {
    ($(fn $name:ident($($before:ident: $first:ty,)* @$kind:ident $(, $after:ident: $last:ty)*) -> $answer:ty;)*) => {$(
        function! { $kind $name($($before: $first,)*) ($($after: $last),*) -> $answer }
    )*};
}

macro_rules! function {
    (issm $name:ident($($before:ident: $first:ty,)*) ($($after:ident: $last:ty),*) -> $answer:ty) => {
        #[doc = concat!("`", stringify!($name), "`.")]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(path: *const c_char $(, $after: $last)*) -> $answer {
            static NEXT: Next = Next::new(text(concat!(stringify!($name), "\0")));
            let mut room = Room::new();
            // SAFETY: the C library's function of this name, which has these arguments.
            unsafe {
                if let Some(opened) = open_issm(path) {
                    return opened;
                }
                let path = redirect(libc::AT_FDCWD, path, &mut room);
                let live = Live::of(path);
                let path = live.as_ref().map_or(path, Live::path);
                call!(NEXT.find() => fn(path: *const c_char $(, $after: $last)*) -> $answer)
            }
        }
    };
    (file $name:ident($($before:ident: $first:ty,)*) ($($after:ident: $last:ty),*) -> $answer:ty) => {
        #[doc = concat!("`", stringify!($name), "`.")]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(
            $($before: $first,)* path: *const c_char $(, $after: $last)*
        ) -> $answer {
            static NEXT: Next = Next::new(text(concat!(stringify!($name), "\0")));
            let mut room = Room::new();
            // SAFETY: the C library's function of this name, which has these arguments.
            unsafe {
                let path = redirect(libc::AT_FDCWD, path, &mut room);
                let live = Live::of(path);
                let path = live.as_ref().map_or(path, Live::path);
                call!(NEXT.find() => fn($($before: $first,)* path: *const c_char $(, $after: $last)*) -> $answer)
            }
        }
    };
    (file_at $name:ident($($before:ident: $first:ty,)*) ($($after:ident: $last:ty),*) -> $answer:ty) => {
        #[doc = concat!("`", stringify!($name), "`.")]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(
            $($before: $first,)* folder: c_int, path: *const c_char $(, $after: $last)*
        ) -> $answer {
            static NEXT: Next = Next::new(text(concat!(stringify!($name), "\0")));
            let mut room = Room::new();
            // SAFETY: the C library's function of this name, which has these arguments.
            unsafe {
                let path = redirect(folder, path, &mut room);
                let live = Live::of(path);
                let path = live.as_ref().map_or(path, Live::path);
                call!(NEXT.find() => fn($($before: $first,)* folder: c_int, path: *const c_char $(, $after: $last)*) -> $answer)
            }
        }
    };
    (path $name:ident($($before:ident: $first:ty,)*) ($($after:ident: $last:ty),*) -> $answer:ty) => {
        #[doc = concat!("`", stringify!($name), "`.")]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(
            $($before: $first,)* path: *const c_char $(, $after: $last)*
        ) -> $answer {
            static NEXT: Next = Next::new(text(concat!(stringify!($name), "\0")));
            let mut room = Room::new();
            // SAFETY: the C library's function of this name, which has these arguments.
            unsafe {
                let path = redirect(libc::AT_FDCWD, path, &mut room);
                call!(NEXT.find() => fn($($before: $first,)* path: *const c_char $(, $after: $last)*) -> $answer)
            }
        }
    };
    (at $name:ident($($before:ident: $first:ty,)*) ($($after:ident: $last:ty),*) -> $answer:ty) => {
        #[doc = concat!("`", stringify!($name), "`.")]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(
            $($before: $first,)* folder: c_int, path: *const c_char $(, $after: $last)*
        ) -> $answer {
            static NEXT: Next = Next::new(text(concat!(stringify!($name), "\0")));
            let mut room = Room::new();
            // SAFETY: the C library's function of this name, which has these arguments.
            unsafe {
                let path = redirect(folder, path, &mut room);
                call!(NEXT.find() => fn($($before: $first,)* folder: c_int, path: *const c_char $(, $after: $last)*) -> $answer)
            }
        }
    };
}

/// The number in the name of a file that makes a program the subnet manager of a port: `/dev/infiniband/issm0`.
///
/// # Safety
/// The path is null or a text.
unsafe fn issm(path: *const c_char) -> Option<c_int> {
    if path.is_null() {
        return None;
    }
    // SAFETY: as the caller promises.
    let path = unsafe { CStr::from_ptr(path) }.to_bytes();
    let number = path.strip_prefix(b"/dev/infiniband/issm")?;
    std::str::from_utf8(number).ok()?.parse().ok()
}

/// Opens such a file: libibumad, which is loaded if a program knows its name, connects to the fabric.
///
/// # Safety
/// The path is null or a text.
unsafe fn open_issm(path: *const c_char) -> Option<c_int> {
    static OPEN: Next = Next::new(c"polyverbs_open_issm");
    // SAFETY: as the caller promises.
    let number = unsafe { issm(path) }?;
    let open = OPEN.find();
    if open.is_null() {
        return None;
    }
    // SAFETY: the function of libibumad, which has this argument.
    Some(unsafe { call!(open => fn(number: c_int) -> c_int) })
}

functions! {
    fn open(@issm, flags: c_int, mode: c_uint) -> c_int;
    fn open64(@issm, flags: c_int, mode: c_uint) -> c_int;
    fn __open_2(@issm, flags: c_int) -> c_int;
    fn __open64_2(@issm, flags: c_int) -> c_int;
    fn openat(@file_at, flags: c_int, mode: c_uint) -> c_int;
    fn openat64(@file_at, flags: c_int, mode: c_uint) -> c_int;
    fn __openat_2(@file_at, flags: c_int) -> c_int;
    fn __openat64_2(@file_at, flags: c_int) -> c_int;
    fn fopen(@file, mode: *const c_char) -> *mut c_void;
    fn fopen64(@file, mode: *const c_char) -> *mut c_void;
    fn opendir(@path) -> *mut c_void;
    fn scandir(@path, list: *mut c_void, choose: *const c_void, order: *const c_void) -> c_int;
    fn scandir64(@path, list: *mut c_void, choose: *const c_void, order: *const c_void) -> c_int;
    fn stat(@path, target: *mut c_void) -> c_int;
    fn stat64(@path, target: *mut c_void) -> c_int;
    fn lstat(@path, target: *mut c_void) -> c_int;
    fn lstat64(@path, target: *mut c_void) -> c_int;
    fn fstatat(@at, target: *mut c_void, flags: c_int) -> c_int;
    fn fstatat64(@at, target: *mut c_void, flags: c_int) -> c_int;
    fn __xstat(version: c_int, @path, target: *mut c_void) -> c_int;
    fn __xstat64(version: c_int, @path, target: *mut c_void) -> c_int;
    fn __lxstat(version: c_int, @path, target: *mut c_void) -> c_int;
    fn __lxstat64(version: c_int, @path, target: *mut c_void) -> c_int;
    fn __fxstatat(version: c_int, @at, target: *mut c_void, flags: c_int) -> c_int;
    fn __fxstatat64(version: c_int, @at, target: *mut c_void, flags: c_int) -> c_int;
    fn statx(@at, flags: c_int, mask: c_uint, target: *mut c_void) -> c_int;
    fn access(@path, mode: c_int) -> c_int;
    fn faccessat(@at, mode: c_int, flags: c_int) -> c_int;
    fn eaccess(@path, mode: c_int) -> c_int;
    fn euidaccess(@path, mode: c_int) -> c_int;
    fn chdir(@path) -> c_int;
    fn freopen(@file, mode: *const c_char, stream: *mut c_void) -> *mut c_void;
    fn freopen64(@file, mode: *const c_char, stream: *mut c_void) -> *mut c_void;
    fn inotify_add_watch(queue: c_int, @path, mask: c_uint) -> c_int;
    fn name_to_handle_at(@at, handle: *mut c_void, mount: *mut c_int, flags: c_int) -> c_int;
    fn pathconf(@path, name: c_int) -> isize;
    fn posix_spawn_file_actions_addchdir_np(actions: *mut c_void, @path) -> c_int;
    fn posix_spawn_file_actions_addopen(actions: *mut c_void, fd: c_int, @path, flags: c_int, mode: c_uint) -> c_int;
    fn scandirat(@at, list: *mut c_void, choose: *const c_void, order: *const c_void) -> c_int;
    fn scandirat64(@at, list: *mut c_void, choose: *const c_void, order: *const c_void) -> c_int;
    fn statvfs(@path, target: *mut c_void) -> c_int;
    fn statvfs64(@path, target: *mut c_void) -> c_int;
    fn statfs(@path, target: *mut c_void) -> c_int;
    fn statfs64(@path, target: *mut c_void) -> c_int;
    fn getxattr(@path, name: *const c_char, target: *mut c_void, size: usize) -> isize;
    fn lgetxattr(@path, name: *const c_char, target: *mut c_void, size: usize) -> isize;
    fn listxattr(@path, target: *mut c_char, size: usize) -> isize;
    fn llistxattr(@path, target: *mut c_char, size: usize) -> isize;
}

// Whether this is the directory of the program that `polyverbs run` started as this process: its name has the ID of the process
// before the last dot.
fn is_of(folder: &Path, process: u32) -> bool {
    let name = folder.file_name().and_then(OsStr::to_str);
    let name = name.and_then(|name| name.strip_prefix("polyverbs-run."));
    let of = name.and_then(|name| name.rsplit('.').nth(1));
    of == Some(&process.to_string())
}

// Runs when a program exits, and removes its directory. That of a killed process is removed by the next `polyverbs run`.
extern "C" fn ended() {
    let Some(root) = root() else {
        return;
    };
    let folder = Path::new(OsStr::from_bytes(root));
    if is_of(folder, std::process::id()) {
        // A failure cannot be reported at this point.
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
    fn only_the_file_of_a_subnet_manager_opens_a_connection() {
        let number = |path: &CStr| {
            // SAFETY: a text.
            unsafe { issm(path.as_ptr()) }
        };
        assert_eq!(number(c"/dev/infiniband/issm0"), Some(0));
        assert_eq!(number(c"/dev/infiniband/issm12"), Some(12));
        for path in [c"/dev/infiniband/issm", c"/dev/infiniband/umad0", c"issm0"] {
            assert_eq!(number(path), None, "{path:?}");
        }
        // SAFETY: null is allowed.
        assert_eq!(unsafe { issm(std::ptr::null()) }, None);
    }

    // `polyverbs run` ends the names with random letters.
    #[test]
    fn a_directory_is_removed_by_the_process_in_its_name() {
        let folder = Path::new("/dev/shm/polyverbs-run.4026531836.13292.lfNlKZ");
        assert!(is_of(folder, 13292));
        assert!(!is_of(folder, 13293));
        for other in ["/home/13292.x", "/run/polyverbs-run.13292"] {
            assert!(!is_of(Path::new(other), 13292), "{other}");
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
