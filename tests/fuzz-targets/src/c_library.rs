//! What targets of the C libraries have in common.
#![allow(unsafe_code)]

use std::sync::Once;

use crate::intruder::own_address;

/// Where the libraries have a RoCE and an iWARP device.
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
    // SAFETY: nothing but the libraries looks at the environment, and they do so behind this.
    ONCE.call_once(|| unsafe { std::env::set_var("POLYVERBS_CONFIG", devices) });
}

/// Calls a function of C, and answers what it answers; where `has_failed` says so it has said why.
pub(crate) fn call<T: Copy>(has_failed: impl FnOnce(T) -> bool, call: impl FnOnce() -> T) -> T {
    // SAFETY: the place is the calling thread's own.
    unsafe { *libc::__errno_location() = 0 };
    let answer = call();
    if has_failed(answer) {
        assert_ne!(errno(), 0, "a failure without an error number");
    }
    answer
}

/// Why the last call has failed.
pub(crate) fn errno() -> i32 {
    // SAFETY: as above.
    unsafe { *libc::__errno_location() }
}

/// Calls a function of C that waits, until it is not a signal that has ended it: the fuzzer's clock sends some.
pub(crate) fn unbroken(mut of: impl FnMut() -> isize) -> isize {
    loop {
        let answer = of();
        if answer >= 0 || errno() != libc::EINTR {
            return answer;
        }
    }
}
