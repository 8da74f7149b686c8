//! Handlers of the program for signals of faults: they are called for faults that are not of ours.
//!
//! The functions here interpose those of the C library in programs that are linked with the library.
// These are functions of C, of which each has the contract of the one with its name.
#![allow(unsafe_code, clippy::missing_safety_doc)]

use std::ffi::c_int;
use std::mem;

use verbs_api::memory::copy;

use crate::errno::Errno;
use crate::kept::Next;

/// Accesses to registered memory outlive faults from now on.
///
/// # Errors
/// The handlers of the signals cannot be set.
pub(crate) fn outlive_faults() -> Result<(), Errno> {
    copy::outlive_faults(real_sigaction).map_err(|_| Errno::last())
}

unsafe extern "C" fn real_sigaction(
    signal: c_int,
    new: *const libc::sigaction,
    old: *mut libc::sigaction,
) -> c_int {
    type Sigaction =
        unsafe extern "C" fn(c_int, *const libc::sigaction, *mut libc::sigaction) -> c_int;
    static NEXT: Next = Next::new(c"sigaction");
    // SAFETY: the function of this name, which every C library has, called as the caller promises.
    unsafe { mem::transmute::<*mut libc::c_void, Sigaction>(NEXT.find())(signal, new, old) }
}

/// `sigaction`.
pub unsafe extern "C" fn sigaction(
    signal: c_int,
    new: *const libc::sigaction,
    old: *mut libc::sigaction,
) -> c_int {
    // SAFETY: as the caller promises.
    unsafe {
        match copy::program_action(signal, new, old) {
            Some(outcome) => outcome,
            None => real_sigaction(signal, new, old),
        }
    }
}

/// `signal`.
pub unsafe extern "C" fn signal(signal: c_int, handler: libc::sighandler_t) -> libc::sighandler_t {
    // SAFETY: an action of all zeros is one; both are readable and writable.
    unsafe {
        let (mut new, mut old): (libc::sigaction, libc::sigaction) = (mem::zeroed(), mem::zeroed());
        new.sa_sigaction = handler;
        new.sa_flags = libc::SA_RESTART;
        libc::sigaddset(&raw mut new.sa_mask, signal);
        match sigaction(signal, &raw const new, &raw mut old) {
            0 => old.sa_sigaction,
            _ => libc::SIG_ERR,
        }
    }
}

unsafe fn real_sigmask(how: c_int, new: *const libc::sigset_t, old: *mut libc::sigset_t) -> c_int {
    type Sigmask = unsafe extern "C" fn(c_int, *const libc::sigset_t, *mut libc::sigset_t) -> c_int;
    static NEXT: Next = Next::new(c"pthread_sigmask");
    // SAFETY: as for `real_sigaction`.
    unsafe { mem::transmute::<*mut libc::c_void, Sigmask>(NEXT.find())(how, new, old) }
}

/// `pthread_sigmask`, which blocks no signals of faults: programs block all signals in the threads that are not to handle them, and
/// the kernel ends a process in which a thread faults that has the signal blocked. A fault of the program's own ends the process in
/// any case, unless the program has a handler: that is called.
pub unsafe extern "C" fn pthread_sigmask(
    how: c_int,
    new: *const libc::sigset_t,
    old: *mut libc::sigset_t,
) -> c_int {
    // SAFETY: as the caller promises; the changed set is there during the call.
    unsafe {
        let mut changed = match new.as_ref() {
            Some(new) if how != libc::SIG_UNBLOCK => *new,
            _ => return real_sigmask(how, new, old),
        };
        for signal in [libc::SIGSEGV, libc::SIGBUS] {
            libc::sigdelset(&raw mut changed, signal);
        }
        real_sigmask(how, &raw const changed, old)
    }
}

/// `sigprocmask`.
pub unsafe extern "C" fn sigprocmask(
    how: c_int,
    new: *const libc::sigset_t,
    old: *mut libc::sigset_t,
) -> c_int {
    // SAFETY: as the caller promises.
    match unsafe { pthread_sigmask(how, new, old) } {
        0 => 0,
        errno => {
            Errno(errno).set();
            -1
        }
    }
}
