//! The traced call: keeps the arguments and the result of a verb, and reports them before and after it.
//!
//! It is written in assembly because the same code serves verbs of any signature: it saves the six registers that hold
//! arguments, and does not interpret them.

use std::arch::naked_asm;

use super::{enter, leave};

/// The entry of a traced verb: not called from Rust.
///
/// # Safety
/// `r10` holds the function, `r11` its name as a string of C; everything else is as the function expects it.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
pub unsafe extern "C" fn round() {
    naked_asm!(
        "push rbp",
        "mov rbp, rsp",
        "sub rsp, 80",
        "mov [rbp - 8], r10",
        "mov [rbp - 16], r11",
        "mov [rbp - 64], rdi",
        "mov [rbp - 56], rsi",
        "mov [rbp - 48], rdx",
        "mov [rbp - 40], rcx",
        "mov [rbp - 32], r8",
        "mov [rbp - 24], r9",
        "call {enter}",
        "mov rdi, [rbp - 64]",
        "mov rsi, [rbp - 56]",
        "mov rdx, [rbp - 48]",
        "mov rcx, [rbp - 40]",
        "mov r8, [rbp - 32]",
        "mov r9, [rbp - 24]",
        "call [rbp - 8]",
        "mov [rbp - 72], rax",
        "mov rdi, [rbp - 16]",
        "lea rsi, [rbp - 64]",
        "mov rdx, rax",
        "call {leave}",
        "mov rax, [rbp - 72]",
        "leave",
        "ret",
        enter = sym enter,
        leave = sym leave,
    )
}

/// The entry of a traced verb: not called from Rust.
///
/// # Safety
/// `x16` holds the function, `x17` its name as a string of C; everything else is as the function expects it.
#[cfg(target_arch = "aarch64")]
#[unsafe(naked)]
pub unsafe extern "C" fn round() {
    naked_asm!(
        "stp x29, x30, [sp, #-96]!",
        "mov x29, sp",
        "stp x16, x17, [sp, #16]",
        "stp x0, x1, [sp, #32]",
        "stp x2, x3, [sp, #48]",
        "stp x4, x5, [sp, #64]",
        "bl {enter}",
        "ldp x0, x1, [sp, #32]",
        "ldp x2, x3, [sp, #48]",
        "ldp x4, x5, [sp, #64]",
        "ldr x16, [sp, #16]",
        "blr x16",
        "str x0, [sp, #80]",
        "mov x2, x0",
        "ldr x0, [sp, #24]",
        "add x1, sp, #32",
        "bl {leave}",
        "ldr x0, [sp, #80]",
        "ldp x29, x30, [sp], #96",
        "ret",
        enter = sym enter,
        leave = sym leave,
    )
}

/// The entry of a table that programs call through: the function, or the traced call to it while tracing is on.
macro_rules! slot {
    ($name:literal => $function:path) => {{
        static NAME: &std::ffi::CStr = match std::ffi::CStr::from_bytes_with_nul(concat!($name, "\0").as_bytes()) {
            Ok(name) => name,
            Err(_) => panic!("a name has no zero"),
        };

        #[cfg(target_arch = "x86_64")]
        #[unsafe(naked)]
        unsafe extern "C" fn traced() {
            std::arch::naked_asm!(
                "lea r10, [rip + {function}]",
                // The static is a pointer and a length.
                "mov r11, [rip + {name}]",
                "jmp {round}",
                function = sym $function,
                name = sym NAME,
                round = sym $crate::trace::entry::round,
            )
        }

        #[cfg(target_arch = "aarch64")]
        #[unsafe(naked)]
        unsafe extern "C" fn traced() {
            std::arch::naked_asm!(
                "adrp x16, {function}",
                "add x16, x16, :lo12:{function}",
                "adrp x17, {name}",
                "ldr x17, [x17, :lo12:{name}]",
                "b {round}",
                function = sym $function,
                name = sym NAME,
                round = sym $crate::trace::entry::round,
            )
        }

        if $crate::trace::is_on() {
            traced as $crate::abi::Slot
        } else {
            $function as $crate::abi::Slot
        }
    }};
}
pub(crate) use slot;
