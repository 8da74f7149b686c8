//! The common entry of verbs that a program calls: of all exported symbols, and of the operation tables' slots that are not
//! on the data path.
//!
//! The entry enables thread cancellation only while the verb sleeps, turns a panic into an error, and reports the call to
//! the trace. One function does this for verbs of any signature: it passes on the six argument registers, which are enough
//! for every verb, and does not interpret them. Verbs of the data path do without it while tracing is off; those that may
//! panic run in `direct`.
#![allow(unsafe_code)]

use std::arch::naked_asm;
use std::ffi::{CStr, c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::errno::Errno;
use crate::{cancel, trace};

/// A verb of any signature, as a function of the six argument registers.
type Verb = unsafe extern "C-unwind" fn(u64, u64, u64, u64, u64, u64) -> u64;

// Runs a verb. The first six arguments are the registers of the program's call; `round` adds the verb and its name.
unsafe extern "C-unwind" fn enter(
    first: u64,
    second: u64,
    third: u64,
    fourth: u64,
    fifth: u64,
    sixth: u64,
    verb: Verb,
    name: *const c_char,
) -> u64 {
    let outer = cancel::disable();
    let called = catch_unwind(AssertUnwindSafe(|| {
        let is_traced = trace::is_on();
        // SAFETY: the verb gets the registers as its caller has filled them.
        let result = unsafe { verb(first, second, third, fourth, fifth, sixth) };
        if is_traced {
            let arguments = [first, second, third, fourth, fifth, sixth];
            // SAFETY: the name that the entry has passed.
            unsafe { trace::leave(name, arguments, result) };
        }
        result
    }));
    let result = called.unwrap_or_else(|panic| {
        // SAFETY: as above.
        unsafe { trace::panicked(name, panic) }
    });
    cancel::restore(outer);
    // SAFETY: nothing is left to be dropped here, and below is the frame of `round`.
    unsafe { cancel::continue_unwinding() };
    result
}

/// Calls a verb of the data path, of which the entry only catches panics.
///
/// # Errors
/// EIO if the verb panics, which is reported to the trace.
#[inline(always)]
pub(crate) fn direct(name: &'static CStr, verb: impl FnOnce() -> c_int) -> Result<c_int, Errno> {
    catch_unwind(AssertUnwindSafe(verb)).map_err(|panic| {
        // SAFETY: the name stays.
        unsafe { trace::panicked(name.as_ptr(), panic) };
        Errno(libc::EIO)
    })
}

/// Passes a call of a verb to `enter`. Exported symbols jump here; Rust code does not call it.
///
/// # Safety
/// `r10` holds the function that implements the verb, `r11` its name as a C string; everything else is as that function
/// expects it.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
pub unsafe extern "C" fn round() {
    naked_asm!(
        ".cfi_startproc",
        "sub rsp, 8",
        ".cfi_adjust_cfa_offset 8",
        "push r11",
        ".cfi_adjust_cfa_offset 8",
        "push r10",
        ".cfi_adjust_cfa_offset 8",
        "call {enter}",
        "add rsp, 24",
        ".cfi_adjust_cfa_offset -24",
        "ret",
        ".cfi_endproc",
        enter = sym enter,
    )
}

/// Passes a call of a verb to `enter`. Exported symbols jump here; Rust code does not call it.
///
/// # Safety
/// `x16` holds the function that implements the verb, `x17` its name as a C string; everything else is as that function
/// expects it.
#[cfg(target_arch = "aarch64")]
#[unsafe(naked)]
pub unsafe extern "C" fn round() {
    naked_asm!("mov x6, x16", "mov x7, x17", "b {enter}", enter = sym enter)
}

/// Makes the entry of a verb for a slot of an operation table. For a verb of the data path, marked `direct`, it is the
/// implementing function itself while tracing is off; that function has type `extern "C"` and must not panic.
macro_rules! slot {
    (direct $name:literal => $function:path) => {
        match $crate::trace::is_on() {
            true => $crate::entry::slot!($name => $function),
            false => $function as $crate::abi::Slot,
        }
    };
    ($name:literal => $function:path) => {{
        static NAME: &std::ffi::CStr = match std::ffi::CStr::from_bytes_with_nul(concat!($name, "\0").as_bytes()) {
            Ok(name) => name,
            Err(_) => panic!("a name has no zero"),
        };

        #[cfg(target_arch = "x86_64")]
        #[unsafe(naked)]
        unsafe extern "C" fn entered() {
            std::arch::naked_asm!(
                "lea r10, [rip + {function}]",
                // The static is a pointer and a length, of which the pointer is loaded.
                "mov r11, [rip + {name}]",
                "jmp {round}",
                function = sym $function,
                name = sym NAME,
                round = sym $crate::entry::round,
            )
        }

        #[cfg(target_arch = "aarch64")]
        #[unsafe(naked)]
        unsafe extern "C" fn entered() {
            std::arch::naked_asm!(
                "adrp x16, {function}",
                "add x16, x16, :lo12:{function}",
                "adrp x17, {name}",
                "ldr x17, [x17, :lo12:{name}]",
                "b {round}",
                function = sym $function,
                name = sym NAME,
                round = sym $crate::entry::round,
            )
        }

        entered as $crate::abi::Slot
    }};
}
pub(crate) use slot;

#[cfg(test)]
mod tests {
    use std::ffi::{c_int, c_void};
    use std::mem::transmute;

    use crate::abi::Slot;
    use crate::errno::Errno;

    unsafe extern "C-unwind" fn panics(_: *mut c_void) -> c_int {
        panic!("a fault of the library");
    }

    #[test]
    fn a_verb_that_panics_fails_with_eio_as_its_signature_says() {
        // SAFETY: a function of one pointer, whose result is a number or a pointer.
        let call = |slot| unsafe { transmute::<Slot, extern "C" fn(Slot) -> u64>(slot)(slot) };
        let entries = [
            (slot!("ibv_destroy_cq" => panics), libc::EIO as u64),
            (slot!("ibv_alloc_pd" => panics), 0),
            (slot!("rdma_listen" => panics), u64::MAX),
            (slot!("ibv_poll_cq" => panics), -i64::from(libc::EIO) as u64),
        ];
        for (slot, result) in entries {
            assert_eq!(call(slot), result);
            assert_eq!(Errno::last(), Errno(libc::EIO));
        }
        let panics = || panic!("a fault of the library");
        assert_eq!(
            super::direct(c"ibv_post_send", panics),
            Err(Errno(libc::EIO))
        );
    }
}
