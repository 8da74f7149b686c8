//! Makes programs that are built with a sanitizer work with these libraries.
//!
//! A sanitizer's library interposes functions of the C library too, and its functions come before those of these libraries.
//! It looks up options by the name of a function, and finds the functions here, because this library is preloaded.

use std::ffi::{c_char, c_int};
use std::ptr;

use libc::sighandler_t;

use crate::next::{Next, call, text};

/// The default options of AddressSanitizer: it may be loaded after a preloaded library, which it otherwise refuses. This
/// library allocates nothing, and its functions call those of the sanitizer, so the order does no harm.
#[unsafe(no_mangle)]
pub extern "C" fn __asan_default_options() -> *const c_char {
    c"verify_asan_link_order=0".as_ptr()
}

/// The default suppressions of ThreadSanitizer, which would report false races: it sees the memory accesses of these
/// libraries but not their locks, which are not those of the C library.
#[unsafe(no_mangle)]
pub extern "C" fn __tsan_default_suppressions() -> *const c_char {
    text(concat!(include_str!("../thread-sanitizer.supp"), "\0")).as_ptr()
}

// Defines interposed functions that set signal handlers. For SIGSEGV and SIGBUS they call those of `libibverbs.so.1`, which
// handles faults of registered memory. It exports them under a second name, because a sanitizer's functions would call
// those of the C library directly.
macro_rules! handlers {
    ($(fn $name:ident($($argument:ident: $type:ty),*) -> $answer:ty;)*) => {$(
        #[doc = concat!("`", stringify!($name), "`.")]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(signal: c_int, $($argument: $type),*) -> $answer {
            static NEXT: Next = Next::new(text(concat!(stringify!($name), "\0")));
            static OURS: Next = Next::new(text(concat!("polyverbs_", stringify!($name), "\0")));
            let ours = match signal {
                libc::SIGSEGV | libc::SIGBUS => OURS.find(),
                _ => ptr::null_mut(),
            };
            let address = if ours.is_null() { NEXT.find() } else { ours };
            // SAFETY: both functions have these arguments.
            unsafe { call!(address => fn(signal: c_int, $($argument: $type),*) -> $answer) }
        }
    )*};
}

handlers! {
    fn sigaction(new: *const libc::sigaction, old: *mut libc::sigaction) -> c_int;
    fn signal(handler: sighandler_t) -> sighandler_t;
}
