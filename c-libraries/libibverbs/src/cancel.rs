//! Threads that the program cancels with `pthread_cancel`.
//!
//! The C library cancels a thread by unwinding its stack from the system call in which it sleeps. Rust frames with
//! destructors, such as those of locks, must not be unwound in this way. So verbs run with cancellation disabled, except
//! while they sleep in [`sleep_in`], whose frame stops the unwinding. The verb then returns an error through all Rust
//! frames, and `continue_unwinding` resumes the cancellation in the frame of the verb's entry, where nothing is left to be
//! dropped.
#![allow(unsafe_code)]

use std::arch::naked_asm;
use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::ptr;

use crate::errno::Errno;

const DISABLED: c_int = 1;

/// The exception object that the unwinder passes from frame to frame.
#[repr(C)]
struct Exception([u8; 0]);

thread_local! {
    // The cancellation state that the program has chosen for this thread, while the thread runs a verb. These variables
    // have no destructors, because a verb may be called when the thread ends.
    static PROGRAMS: Cell<c_int> = const { Cell::new(DISABLED) };
    static STOPPED: Cell<*mut Exception> = const { Cell::new(ptr::null_mut()) };
}

unsafe extern "C" {
    fn pthread_setcancelstate(state: c_int, before: *mut c_int) -> c_int;
    fn _Unwind_SetIP(frame: *mut c_void, address: usize);
}

unsafe extern "C-unwind" {
    fn _Unwind_Resume(exception: *mut Exception) -> !;
}

fn set_state(state: c_int) -> c_int {
    let mut before = 0;
    // SAFETY: room for the answer.
    unsafe { pthread_setcancelstate(state, &raw mut before) };
    before
}

/// Disables cancellation at the begin of a verb. Returns the value to pass to [`restore`]: a signal handler may call a verb
/// while another one runs.
#[inline]
pub(crate) fn disable() -> c_int {
    PROGRAMS.replace(set_state(DISABLED))
}

/// Restores the program's cancellation state at the end of a verb. `outer` is the result of [`disable`].
#[inline]
pub(crate) fn restore(outer: c_int) {
    set_state(PROGRAMS.replace(outer));
}

/// Resumes the cancellation of the thread that was stopped in the verb which now ends, if there was one.
///
/// # Safety
/// No frame up to that of the program has anything to drop.
#[inline]
pub(crate) unsafe extern "C-unwind" fn continue_unwinding() {
    let stopped = STOPPED.replace(ptr::null_mut());
    if !stopped.is_null() {
        // SAFETY: the exception that the unwinder handed to `personality`, once.
        unsafe { _Unwind_Resume(stopped) };
    }
}

/// Calls a function of the C library that may sleep. The program may cancel the thread meanwhile.
///
/// # Errors
/// The function's `errno`, if it returns a negative number; ECANCELED if the thread was cancelled.
///
/// # Safety
/// The function is a C function that takes these arguments. Its result is an `int`, or fits one.
pub unsafe fn sleep_in(function: *const c_void, arguments: [usize; 4]) -> Result<c_int, Errno> {
    let [first, second, third, fourth] = arguments;
    let before = set_state(PROGRAMS.get());
    // SAFETY: as the caller promises.
    let result = unsafe { call(first, second, third, fourth, function) };
    let errno = Errno::last();
    set_state(before);
    if !STOPPED.get().is_null() {
        return Err(Errno(libc::ECANCELED));
    }
    // The upper half of the register is undefined after a function that returns an `int`.
    match result as c_int {
        ..0 => Err(errno),
        result => Ok(result),
    }
}

/// The personality routine of the frame of [`call`]: a forced unwinding, by which the C library cancels a thread, continues
/// at [`landing`].
unsafe extern "C" fn personality(
    _version: c_int,
    actions: c_int,
    _class: u64,
    exception: *mut Exception,
    frame: *mut c_void,
) -> c_int {
    const CLEANUP_PHASE: c_int = 2;
    const FORCE_UNWIND: c_int = 8;
    const INSTALL_CONTEXT: c_int = 7;
    const CONTINUE_UNWIND: c_int = 8;
    if actions & (CLEANUP_PHASE | FORCE_UNWIND) != CLEANUP_PHASE | FORCE_UNWIND {
        return CONTINUE_UNWIND;
    }
    STOPPED.set(exception);
    // SAFETY: the frame is that of `call`, which `landing` ends.
    unsafe { _Unwind_SetIP(frame, (landing as *const c_void).addr()) };
    INSTALL_CONTEXT
}

// The assembly of `call`: makes a frame and calls the fifth argument, or leaves the frame with -1.
#[cfg(target_arch = "x86_64")]
macro_rules! frame {
    (call) => {
        "sub rsp, 8
        .cfi_adjust_cfa_offset 8
        call r8
        add rsp, 8
        .cfi_adjust_cfa_offset -8
        ret"
    };
    (fail) => {
        "mov rax, -1
        add rsp, 8
        ret"
    };
}
#[cfg(target_arch = "aarch64")]
macro_rules! frame {
    (call) => {
        "stp x29, x30, [sp, #-16]!
        .cfi_def_cfa_offset 16
        .cfi_offset x29, -16
        .cfi_offset x30, -8
        blr x4
        ldp x29, x30, [sp], #16
        .cfi_def_cfa_offset 0
        .cfi_restore x29
        .cfi_restore x30
        ret"
    };
    (fail) => {
        "mov x0, #-1
        ldp x29, x30, [sp], #16
        ret"
    };
}

#[unsafe(naked)]
unsafe extern "C" fn call(
    _first: usize,
    _second: usize,
    _third: usize,
    _fourth: usize,
    _function: *const c_void,
) -> isize {
    naked_asm!(
        ".cfi_startproc",
        // The encoding of the personality routine: a relative pointer to its address.
        ".cfi_personality 0x9b, polyverbs.cancel.personality",
        frame!(call),
        ".cfi_endproc",
        ".pushsection .data.rel.ro.polyverbs.cancel, \"aw\"",
        ".p2align 3",
        "polyverbs.cancel.personality: .quad {personality}",
        ".popsection",
        personality = sym personality,
    )
}

// Leaves the frame of `call` with the result -1, for a function that was unwound.
#[unsafe(naked)]
unsafe extern "C" fn landing() {
    naked_asm!(frame!(fail))
}
