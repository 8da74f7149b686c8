//! What lets programs that are built with a sanitizer run over our libraries.
//!
//! A sanitizer's library interposes functions of the C library too, and comes before our libraries. It looks up options that a
//! program is built with by the name of a function, which it finds here, since this library comes first.

use std::ffi::{c_char, c_int};
use std::ptr;

use libc::sighandler_t;

use crate::next::{Next, call, text};

/// AddressSanitizer refuses to start after a preloaded library. This one allocates nothing, and every function that it
/// interposes calls the sanitizer's, so that it may come first.
#[unsafe(no_mangle)]
pub extern "C" fn __asan_default_options() -> *const c_char {
    c"verify_asan_link_order=0".as_ptr()
}

/// ThreadSanitizer sees the allocations and copies of our libraries but not their locks, which are not those of the C library,
/// and would report races that are none.
#[unsafe(no_mangle)]
pub extern "C" fn __tsan_default_suppressions() -> *const c_char {
    text(concat!(include_str!("../thread-sanitizer.supp"), "\0")).as_ptr()
}

// `libibverbs.so.1` handles faults of registered memory, and interposes the functions that set handlers. A sanitizer's functions
// call those of the C library directly, so `libibverbs.so.1` has its own under another name too.
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
