//! A program whose first thread ends by `pthread_exit` goes on until its other threads have ended. The threads of devices do not
//! end by themselves, and they block signals, so that the process would never end. A thread that is started when the first one
//! ends therefore ends the process when the program has no thread left, as the C library does in a process without devices.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::ptr;
use std::thread;
use std::time::Duration;

use verbs_api::provider::{only_started_threads_are_left, start_thread};

/// How often the threads of the process are counted, after the first one has ended.
const EVERY: Duration = Duration::from_millis(50);

/// Arranges that the end of this thread is noticed if it is the first of the process. The library calls this when it is loaded,
/// which the first thread does unless the program opens the library itself.
pub extern "C" fn notice_its_end() {
    let mut key = MaybeUninit::uninit();
    // SAFETY: the system writes the key if it succeeds, and it is read then. A value that is not null makes the C library call
    // the function when the thread ends, but not when the process does.
    unsafe {
        let is_first = libc::gettid() == libc::getpid();
        if is_first && libc::pthread_key_create(key.as_mut_ptr(), Some(ends)) == 0 {
            libc::pthread_setspecific(key.assume_init(), ptr::without_provenance(1));
        }
    }
}

unsafe extern "C" fn ends(_: *mut c_void) {
    // Without a thread to wait, the process goes on as long as the devices do.
    let _ = start_thread("first-thread", || {
        while !only_started_threads_are_left() {
            thread::sleep(EVERY);
        }
        // SAFETY: as after the end of the last thread, the program's handlers run here, and no thread of the program does.
        unsafe { libc::exit(0) }
    });
}
