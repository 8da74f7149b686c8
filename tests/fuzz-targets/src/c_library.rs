//! The part that the targets of the C libraries share.
#![allow(unsafe_code)]

use std::sync::Once;

use crate::intruder::own_address;

/// The address numbers of the RoCE and the iWARP device of the libraries.
pub(crate) const ROCE: u8 = 4;
pub(crate) const IWARP: u8 = 5;

/// Gives the C libraries their devices.
pub(crate) fn configure() {
    static ONCE: Once = Once::new();
    let devices = format!(
        "[[device]]\naddress = \"{}\"\n[[device]]\ntransport = \"iwarp\"\naddress = \"{}\"\n",
        own_address(ROCE),
        own_address(IWARP)
    );
    // SAFETY: only the libraries read the environment, and they do so after this.
    ONCE.call_once(|| unsafe { std::env::set_var("POLYVERBS_CONFIG", devices) });
}

/// Calls a C function and returns its result; if `has_failed` says that it failed, checks that it set errno.
pub(crate) fn call<T: Copy>(has_failed: impl FnOnce(T) -> bool, call: impl FnOnce() -> T) -> T {
    // SAFETY: errno is a variable of the calling thread.
    unsafe { *libc::__errno_location() = 0 };
    let answer = call();
    if has_failed(answer) {
        assert_ne!(errno(), 0, "a failure without an error number");
    }
    answer
}

/// The error number of the last failed call.
pub(crate) fn errno() -> i32 {
    // SAFETY: errno is a variable of the calling thread.
    unsafe { *libc::__errno_location() }
}

/// Calls a C function that waits, again and again while a signal interrupts it: the clock of the fuzzer sends
/// some.
pub(crate) fn unbroken(mut of: impl FnMut() -> isize) -> isize {
    loop {
        let answer = of();
        if answer >= 0 || errno() != libc::EINTR {
            return answer;
        }
    }
}
