//! Interposed functions that take a descriptor. Calls on RDS sockets (`AF_RDS`) go to functions with the same arguments in
//! `libpolyverbs_rds_sockets.so`; all others go to the C library after a check of one bit. That library is loaded when the
//! program creates its first RDS socket. Calls such as `poll`, which may wait for RDS sockets, are announced to it.

use std::ffi::{CStr, c_int, c_uint, c_ulong, c_void};
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use libc::{
    epoll_event, fd_set, iovec, mmsghdr, msghdr, nfds_t, off_t, pollfd, sigset_t, sockaddr,
    socklen_t, timespec, timeval,
};

use crate::next::{FIRST_VERSION, Next, call, text};
use crate::paths::Room;

const LIBRARY: &[u8] = b"libpolyverbs_rds_sockets.so";

/// A bit for each descriptor number that is an RDS socket. `libpolyverbs_rds_sockets.so` sets and clears the bits.
static DESCRIPTORS: [AtomicU64; 1024] = [const { AtomicU64::new(0) }; 1024];

fn is_ours(descriptor: c_int) -> bool {
    let descriptor = descriptor as u32;
    let word = DESCRIPTORS.get(descriptor as usize / 64);
    // A program can close a descriptor by a call that is not redirected. The kernel then reuses the number for another file.
    word.is_some_and(|word| word.load(Ordering::Relaxed) >> (descriptor % 64) & 1 != 0)
        && asked(&IS_OURS, descriptor as c_int).unwrap_or(true)
}

// Whether the library closes or replaces this descriptor: one of a socket, or one that it uses itself, which it refuses.
fn is_for_library(descriptor: c_int) -> bool {
    is_ours(descriptor) || asked(&IS_OWN, descriptor) == Some(true)
}

// What a function of the library answers about a descriptor; `None` where it is not loaded.
fn asked(function: &AtomicPtr<c_void>, descriptor: c_int) -> Option<bool> {
    let function = function.load(Ordering::Acquire);
    // SAFETY: the library's functions that are kept for this have this argument.
    let ask = || unsafe { call!(function => fn(descriptor: c_int) -> c_int) };
    (!function.is_null()).then(|| ask() != 0)
}

/// Functions of the library: the first checks that a descriptor is still a socket, the second whether the library itself uses one;
/// the other two report that a thread is about to sleep, and that it has woken.
static IS_OURS: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());
static IS_OWN: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());
static SLEEPS: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());
static IS_AWAKE: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());

/// A function of the C library and its counterpart in `libpolyverbs_rds_sockets.so`, with the name of the latter.
struct Function {
    next: Next,
    ours: AtomicPtr<c_void>,
    ours_name: &'static CStr,
}

impl Function {
    fn find(&self, is_ours: bool) -> *mut c_void {
        match is_ours {
            true => self.ours.load(Ordering::Relaxed),
            false => self.next.find(),
        }
    }
}

const DUP3_VERSION: &CStr = match cfg!(target_arch = "aarch64") {
    true => FIRST_VERSION,
    false => c"GLIBC_2.9",
};

macro_rules! version {
    () => {
        None
    };
    ($version:expr) => {
        Some($version)
    };
}

macro_rules! table {
    ($($name:ident $(@ $version:expr)?),* $(,)?) => {
        // The names are those of the C functions.
        #[allow(non_upper_case_globals)]
        mod function {
            use super::{AtomicPtr, DUP3_VERSION, FIRST_VERSION, Function, Next, ptr, text};

            $(pub(super) static $name: Function = Function {
                next: Next::with_version(
                    text(concat!(stringify!($name), "\0")),
                    version!($($version)?),
                ),
                ours: AtomicPtr::new(ptr::null_mut()),
                ours_name: text(concat!("polyverbs_rds_", stringify!($name), "\0")),
            };)*
            pub(super) static ALL: &[&Function] = &[$(&$name),*];
        }
    };
}

// The versions are those by which `libibverbs.so.1` interposes functions too: it keeps the descriptors of open devices.
table! {
    accept, accept4, bind, close @ FIRST_VERSION, close_range @ c"GLIBC_2.34",
    closefrom @ c"GLIBC_2.34", connect, dup, dup2 @ FIRST_VERSION, dup3 @ DUP3_VERSION, fcntl,
    fcntl64, getpeername, getsockname, getsockopt, ioctl, listen, read, readv, recv, recvfrom,
    recvmmsg, recvmsg, send, sendfile, sendfile64, sendmmsg, sendmsg, sendto, setsockopt, shutdown,
    write, writev, __read_chk, __recv_chk, __recvfrom_chk, socket, fclose, epoll_pwait,
    epoll_pwait2, epoll_wait, poll, ppoll, pselect, select, __poll_chk, __ppoll_chk,
}

// Defines interposed functions whose first argument is a descriptor. Functions that C declares with `...` take the argument
// in the same register.
macro_rules! functions {
    ($(fn $name:ident(@fd $(, $argument:ident: $type:ty)*) -> $answer:ty;)*) => {$(
        #[doc = concat!("`", stringify!($name), "`.")]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(fd: c_int $(, $argument: $type)*) -> $answer {
            // SAFETY: both functions have these arguments.
            unsafe {
                call!(function::$name.find(is_ours(fd)) => fn(fd: c_int $(, $argument: $type)*) -> $answer)
            }
        }
    )*};
}

functions! {
    fn accept(@fd, address: *mut sockaddr, length: *mut socklen_t) -> c_int;
    fn accept4(@fd, address: *mut sockaddr, length: *mut socklen_t, flags: c_int) -> c_int;
    fn bind(@fd, address: *const sockaddr, length: socklen_t) -> c_int;
    fn connect(@fd, address: *const sockaddr, length: socklen_t) -> c_int;
    fn dup(@fd) -> c_int;
    fn fcntl(@fd, command: c_int, argument: *mut c_void) -> c_int;
    fn fcntl64(@fd, command: c_int, argument: *mut c_void) -> c_int;
    fn getpeername(@fd, address: *mut sockaddr, length: *mut socklen_t) -> c_int;
    fn getsockname(@fd, address: *mut sockaddr, length: *mut socklen_t) -> c_int;
    fn getsockopt(@fd, level: c_int, name: c_int, value: *mut c_void, length: *mut socklen_t) -> c_int;
    fn ioctl(@fd, request: c_ulong, argument: *mut c_void) -> c_int;
    fn listen(@fd, backlog: c_int) -> c_int;
    fn read(@fd, target: *mut c_void, size: usize) -> isize;
    fn readv(@fd, list: *const iovec, count: c_int) -> isize;
    fn recv(@fd, target: *mut c_void, size: usize, flags: c_int) -> isize;
    fn recvfrom(@fd, target: *mut c_void, size: usize, flags: c_int, address: *mut sockaddr, length: *mut socklen_t) -> isize;
    fn recvmmsg(@fd, messages: *mut mmsghdr, count: c_uint, flags: c_int, time: *mut timespec) -> c_int;
    fn recvmsg(@fd, message: *mut msghdr, flags: c_int) -> isize;
    fn send(@fd, source: *const c_void, size: usize, flags: c_int) -> isize;
    fn sendfile(@fd, source: c_int, offset: *mut off_t, size: usize) -> isize;
    fn sendfile64(@fd, source: c_int, offset: *mut off_t, size: usize) -> isize;
    fn sendmmsg(@fd, messages: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int;
    fn sendmsg(@fd, message: *const msghdr, flags: c_int) -> isize;
    fn sendto(@fd, source: *const c_void, size: usize, flags: c_int, address: *const sockaddr, length: socklen_t) -> isize;
    fn setsockopt(@fd, level: c_int, name: c_int, value: *const c_void, length: socklen_t) -> c_int;
    fn shutdown(@fd, how: c_int) -> c_int;
    fn write(@fd, source: *const c_void, size: usize) -> isize;
    fn writev(@fd, list: *const iovec, count: c_int) -> isize;
    // Called by programs that were compiled with buffer checks: `room` is the size of the buffer at `target`.
    fn __read_chk(@fd, target: *mut c_void, size: usize, room: usize) -> isize;
    fn __recv_chk(@fd, target: *mut c_void, size: usize, room: usize, flags: c_int) -> isize;
    fn __recvfrom_chk(@fd, target: *mut c_void, size: usize, room: usize, flags: c_int, address: *mut sockaddr, length: *mut socklen_t) -> isize;
}

// Defines interposed functions that wait for descriptors of any kind. The kernel carries them out, with the file that the
// descriptor of an RDS socket is.
macro_rules! waits {
    ($(fn $name:ident($($argument:ident: $type:ty),*);)*) => {$(
        #[doc = concat!("`", stringify!($name), "`.")]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($argument: $type),*) -> c_int {
            let is_told = tell(&SLEEPS);
            // SAFETY: the function has these arguments.
            let answer = unsafe {
                call!(function::$name.find(false) => fn($($argument: $type),*) -> c_int)
            };
            if is_told {
                tell(&IS_AWAKE);
            }
            answer
        }
    )*};
}

waits! {
    fn epoll_pwait(fd: c_int, events: *mut epoll_event, count: c_int, time: c_int, signals: *const sigset_t);
    fn epoll_pwait2(fd: c_int, events: *mut epoll_event, count: c_int, time: *const timespec, signals: *const sigset_t);
    fn epoll_wait(fd: c_int, events: *mut epoll_event, count: c_int, time: c_int);
    fn poll(list: *mut pollfd, count: nfds_t, time: c_int);
    fn ppoll(list: *mut pollfd, count: nfds_t, time: *const timespec, signals: *const sigset_t);
    fn pselect(count: c_int, read: *mut fd_set, write: *mut fd_set, other: *mut fd_set, time: *const timespec, signals: *const sigset_t);
    fn select(count: c_int, read: *mut fd_set, write: *mut fd_set, other: *mut fd_set, time: *mut timeval);
    fn __poll_chk(list: *mut pollfd, count: nfds_t, time: c_int, room: usize);
    fn __ppoll_chk(list: *mut pollfd, count: nfds_t, time: *const timespec, signals: *const sigset_t, room: usize);
}

// Calls a function without arguments of `libpolyverbs_rds_sockets.so`. Returns `false` if that library is not loaded.
fn tell(function: &AtomicPtr<c_void>) -> bool {
    let function = function.load(Ordering::Acquire);
    if function.is_null() {
        return false;
    }
    // SAFETY: the library's functions that are kept as such have no arguments.
    unsafe { call!(function => fn() -> ()) };
    true
}

/// Interposes `socket`: creates RDS sockets itself.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    let is_ours = domain == libc::AF_RDS && load();
    // SAFETY: both functions have these arguments.
    unsafe {
        call!(function::socket.find(is_ours) => fn(domain: c_int, kind: c_int, protocol: c_int) -> c_int)
    }
}

/// `close`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn close(fd: c_int) -> c_int {
    // SAFETY: both functions have this argument.
    unsafe { call!(function::close.find(is_for_library(fd)) => fn(fd: c_int) -> c_int) }
}

/// Interposes `dup2`, where the old or the new descriptor may be an RDS socket.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dup2(old: c_int, new: c_int) -> c_int {
    let is_ours = is_ours(old) || is_for_library(new);
    // SAFETY: both functions have these arguments.
    unsafe { call!(function::dup2.find(is_ours) => fn(old: c_int, new: c_int) -> c_int) }
}

/// Interposes `dup3`, where the old or the new descriptor may be an RDS socket.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dup3(old: c_int, new: c_int, flags: c_int) -> c_int {
    let is_ours = is_ours(old) || is_for_library(new);
    // SAFETY: both functions have these arguments.
    unsafe {
        call!(function::dup3.find(is_ours) => fn(old: c_int, new: c_int, flags: c_int) -> c_int)
    }
}

/// Interposes `fclose`, which closes the stream's descriptor within the C library, where no function is interposed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fclose(stream: *mut libc::FILE) -> c_int {
    // SAFETY: the stream is open; one that has no descriptor gives -1.
    let is_ours = is_ours(unsafe { libc::fileno(stream) });
    // SAFETY: both functions have this argument.
    unsafe { call!(function::fclose.find(is_ours) => fn(stream: *mut libc::FILE) -> c_int) }
}

/// Interposes `close_range`, where any descriptor of the range may be an RDS socket.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    // SAFETY: both functions have these arguments.
    unsafe {
        call!(function::close_range.find(is_loaded()) => fn(first: c_uint, last: c_uint, flags: c_int) -> c_int)
    }
}

/// Interposes `closefrom`, where any of the descriptors may be an RDS socket.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn closefrom(first: c_int) {
    // SAFETY: both functions have these arguments.
    unsafe { call!(function::closefrom.find(is_loaded()) => fn(first: c_int) -> ()) }
}

fn is_loaded() -> bool {
    !function::socket.ours.load(Ordering::Relaxed).is_null()
}

// Loads `libpolyverbs_rds_sockets.so` from the directory of this library, once. Returns whether it is loaded. Threads that
// call it at the same time get the same library.
fn load() -> bool {
    if is_loaded() {
        return true;
    }
    let mut room = Room::new();
    let Some(path) = beside(&mut room) else {
        return false;
    };
    // SAFETY: the path is a text.
    let library = unsafe { libc::dlopen(path, libc::RTLD_NOW | libc::RTLD_NODELETE) };
    if library.is_null() {
        return false;
    }
    // SAFETY: the library is loaded, and the name is a text.
    let find = |name: &CStr| unsafe { libc::dlsym(library, name.as_ptr()) };
    let descriptors: *const [AtomicU64; 1024] = &raw const DESCRIPTORS;
    // SAFETY: the library's function of this name has this argument.
    unsafe {
        call!(find(c"polyverbs_rds_start") => fn(descriptors: *const [AtomicU64; 1024]) -> ());
    }
    IS_OURS.store(find(c"polyverbs_rds_is_ours"), Ordering::Release);
    IS_OWN.store(find(c"polyverbs_rds_is_own"), Ordering::Release);
    SLEEPS.store(find(c"polyverbs_rds_sleeps"), Ordering::Release);
    IS_AWAKE.store(find(c"polyverbs_rds_is_awake"), Ordering::Release);
    for function in function::ALL {
        function
            .ours
            .store(find(function.ours_name), Ordering::Relaxed);
    }
    is_loaded()
}

fn beside(room: &mut Room) -> Option<*const libc::c_char> {
    let mut about = MaybeUninit::<libc::Dl_info>::uninit();
    let own = &raw const DESCRIPTORS;
    // SAFETY: there is room for the answer, which is there unless it is zero, and names a text.
    let name = unsafe {
        let found = libc::dladdr(own.cast(), about.as_mut_ptr()) != 0;
        found.then(|| CStr::from_ptr(about.assume_init().dli_fname).to_bytes())?
    };
    let folder = name
        .iter()
        .rposition(|byte| *byte == b'/')
        .map_or(0, |slash| slash + 1);
    room.join(&name[..folder], LIBRARY)
}

// All functions are looked up before the program runs, because it may call them from signal handlers, where `dlsym` must
// not be called.
extern "C" fn look_up() {
    for function in function::ALL {
        function.next.find();
    }
}

#[used]
#[unsafe(link_section = ".init_array")]
static LOOK_UP: extern "C" fn() = look_up;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_are_ours_by_their_bit() {
        DESCRIPTORS[1].fetch_or(1 << 3, Ordering::Relaxed);
        assert!(is_ours(67));
        for other in [-1, 3, 66, 68, 65_535, 65_536, c_int::MAX, c_int::MIN] {
            assert!(!is_ours(other), "{other}");
        }
        DESCRIPTORS[1].fetch_and(!(1 << 3), Ordering::Relaxed);
    }
}
