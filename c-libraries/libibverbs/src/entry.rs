//! The common entry of verbs that a program calls: of all exported symbols, and of the operation tables' slots that are not
//! on the data path.
//!
//! The entry enables thread cancellation only while the verb sleeps, turns a panic into an error, and reports the call to
//! the trace. One function does this for verbs of any signature: it passes on the six argument registers, which are enough
//! for every verb, and does not interpret them. Verbs of the data path do without it while tracing is off; those that may
//! panic run in `direct`.
#![allow(unsafe_code)]

use std::arch::naked_asm;
use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::cancel;
use crate::errno::Errno;
use crate::faults;
use crate::trace::{self, Function};

/// A verb of any signature, as a function of the six argument registers.
type Verb = unsafe extern "C-unwind" fn(u64, u64, u64, u64, u64, u64) -> u64;

// Runs a verb. The first six arguments are the registers of the program's call; `round` adds the verb, 0 if there
// is none, and its [`Function`]. Without a verb the call fails as unsupported.
unsafe extern "C-unwind" fn enter(
    first: u64,
    second: u64,
    third: u64,
    fourth: u64,
    fifth: u64,
    sixth: u64,
    verb: Option<Verb>,
    function: &'static Function,
) -> u64 {
    let outer = cancel::disable();
    let called = catch_unwind(AssertUnwindSafe(|| {
        let is_traced = trace::is_on();
        let result = match faults::of_call(function.name) {
            Some(errno) => function.fail(errno),
            None => match verb {
                // SAFETY: the verb gets the registers as its caller has filled them.
                Some(verb) => unsafe { verb(first, second, third, fourth, fifth, sixth) },
                None => function.fail(Errno::OPNOTSUPP),
            },
        };
        if is_traced {
            let arguments = [first, second, third, fourth, fifth, sixth];
            trace::leave(function, arguments, result);
        }
        result
    }));
    let result = called.unwrap_or_else(|panic| {
        trace::panicked(function.name, panic);
        function.fail(Errno(libc::EIO))
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
pub(crate) fn direct(name: &str, verb: impl FnOnce() -> c_int) -> Result<c_int, Errno> {
    catch_unwind(AssertUnwindSafe(verb)).map_err(|panic| {
        trace::panicked(name, panic);
        let error = Errno(libc::EIO);
        error.set();
        error
    })
}

/// Passes a program's call of a verb to `enter`, which runs the verb with thread cancellation disabled, catches its
/// panics and traces the call. The exported symbols jump here with the call's registers unchanged; Rust code does not
/// call this.
///
/// # Safety
/// `r10` holds the address of the function that implements the verb, or 0 for a verb that fails as unsupported; `r11`
/// holds the address of its [`Function`]; all other registers and the stack are as the implementing function expects
/// them.
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

/// Passes a program's call of a verb to `enter`, which runs the verb with thread cancellation disabled, catches its
/// panics and traces the call. The exported symbols jump here with the call's registers unchanged; Rust code does not
/// call this.
///
/// # Safety
/// `x16` holds the address of the function that implements the verb, or 0 for a verb that fails as unsupported; `x17`
/// holds the address of its [`Function`]; all other registers and the stack are as the implementing function expects
/// them.
#[cfg(target_arch = "aarch64")]
#[unsafe(naked)]
pub unsafe extern "C" fn round() {
    naked_asm!("mov x6, x16", "mov x7, x17", "b {enter}", enter = sym enter)
}

/// Expands to assembly that jumps to [`round`](crate::entry::round) with the address of the function that implements a
/// verb (0 if the argument is missing) and the address of the verb's `Function`. The operands of the assembly are
/// `verb`, `function` and `round`.
#[cfg(target_arch = "x86_64")]
#[doc(hidden)]
#[macro_export]
macro_rules! jump {
    (@function) => {
        "lea r11, [rip + {function}]\njmp {round}"
    };
    () => {
        concat!("xor r10d, r10d\n", $crate::jump!(@function))
    };
    ($verb:path) => {
        concat!("lea r10, [rip + {verb}]\n", $crate::jump!(@function))
    };
}

/// Expands to assembly that jumps to [`round`](crate::entry::round) with the address of the function that implements a
/// verb (0 if the argument is missing) and the address of the verb's `Function`. The operands of the assembly are
/// `verb`, `function` and `round`.
#[cfg(target_arch = "aarch64")]
#[doc(hidden)]
#[macro_export]
macro_rules! jump {
    (@function) => {
        "adrp x17, {function}\nadd x17, x17, :lo12:{function}\nb {round}"
    };
    () => {
        concat!("mov x16, xzr\n", $crate::jump!(@function))
    };
    ($verb:path) => {
        concat!("adrp x16, {verb}\nadd x16, x16, :lo12:{verb}\n", $crate::jump!(@function))
    };
}

/// Expands to an entry of a table of function pointers by which programs call verbs; an entry without a verb fails as
/// unsupported. While tracing is off, the entry of a verb of the data path, marked `direct`, is the verb itself: an
/// `extern "C"` function, which must not panic.
macro_rules! slot {
    (direct $name:literal ($arguments:literal) $answer:ident => $verb:path) => {
        match $crate::trace::is_on() {
            true => $crate::entry::slot!($name ($arguments) $answer => $verb),
            false => $verb as $crate::abi::Slot,
        }
    };
    ($name:literal ($arguments:literal) $answer:ident $(=> $verb:path)?) => {{
        static FUNCTION: $crate::trace::Function = $crate::trace::Function::new(
            $name,
            Some($arguments),
            $crate::trace::Answer::$answer,
        );

        #[unsafe(naked)]
        unsafe extern "C" fn entered() {
            std::arch::naked_asm!(
                $crate::jump!($($verb)?),
                $(verb = sym $verb,)?
                function = sym FUNCTION,
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
            (slot!("number" ("") Number => panics), libc::EIO as u64),
            (slot!("pointer" ("") Pointer => panics), 0),
            (slot!("minus_one" ("") MinusOne => panics), u64::MAX),
            (
                slot!("count" ("") Count => panics),
                -i64::from(libc::EIO) as u64,
            ),
        ];
        for (slot, result) in entries {
            assert_eq!(call(slot), result);
            assert_eq!(Errno::last(), Errno(libc::EIO));
        }
        let panics = || panic!("a fault of the library");
        assert_eq!(
            super::direct("ibv_post_send", panics),
            Err(Errno(libc::EIO))
        );
    }
}
