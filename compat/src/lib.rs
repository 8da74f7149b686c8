//! `libibverbs.so.1` and `librdmacm.so.1`, one file: every symbol of rdma-core 44, each with its version.
//!
//! A symbol is a jump to the function that does its work, in the crates `polyverbs-libibverbs` and
//! `polyverbs-librdmacm`. What is not there answers that it is not supported and, with `POLYVERBS_TRACE` set, tells its name. A test compares the symbols with the stored
//! list.
// Symbols with versions can only be written in assembly.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr;

use polyverbs_libibverbs::errno::Errno;

#[cfg(target_arch = "x86_64")]
macro_rules! jump {
    () => {
        "jmp {function}"
    };
}
#[cfg(target_arch = "aarch64")]
macro_rules! jump {
    () => {
        "b {function}"
    };
}

// The name of a symbol becomes the first argument.
#[cfg(target_arch = "x86_64")]
macro_rules! load {
    ($name:literal, $version:literal) => {
        concat!("lea rdi, [rip + polyverbs.text.", $name, ".", $version, "]")
    };
}
#[cfg(target_arch = "aarch64")]
macro_rules! load {
    ($name:literal, $version:literal) => {
        concat!(
            "adrp x0, polyverbs.text.",
            $name,
            ".",
            $version,
            "\nadd x0, x0, :lo12:polyverbs.text.",
            $name,
            ".",
            $version
        )
    };
}

/// A symbol with a version, and the function that it is. The assembler's own name for it has the version in it, since two
/// versions of a name are two symbols.
macro_rules! symbol {
    ($name:literal $at:literal $version:literal => $function:path) => {
        core::arch::global_asm!(
            ".text",
            ".p2align 4",
            concat!(".globl polyverbs.", $name, ".", $version),
            concat!(".type polyverbs.", $name, ".", $version, ",@function"),
            concat!("polyverbs.", $name, ".", $version, ":"),
            jump!(),
            concat!(".size polyverbs.", $name, ".", $version, ", . - polyverbs.", $name, ".", $version),
            concat!(".symver polyverbs.", $name, ".", $version, ", ", $name, $at, $version, ", remove"),
            function = sym $function,
        );
    };
}

/// A symbol that is not there: it answers as such functions do that fail.
macro_rules! absent {
    ($name:literal $at:literal $version:literal => $answer:ident) => {
        core::arch::global_asm!(
            ".section .rodata.polyverbs, \"a\"",
            concat!("polyverbs.text.", $name, ".", $version, ": .asciz \"", $name, "\""),
            ".text",
            ".p2align 4",
            concat!(".globl polyverbs.", $name, ".", $version),
            concat!(".type polyverbs.", $name, ".", $version, ",@function"),
            concat!("polyverbs.", $name, ".", $version, ":"),
            load!($name, $version),
            jump!(),
            concat!(".size polyverbs.", $name, ".", $version, ", . - polyverbs.", $name, ".", $version),
            concat!(".symver polyverbs.", $name, ".", $version, ", ", $name, $at, $version, ", remove"),
            function = sym $crate::$answer,
        );
    };
}

mod symbols;

fn tell(name: *const c_char) {
    if std::env::var_os("POLYVERBS_TRACE").is_some() {
        // SAFETY: a text beside the code that calls.
        let name = unsafe { CStr::from_ptr(name) };
        eprintln!("polyverbs: {} is not supported", name.to_string_lossy());
    }
    Errno::OPNOTSUPP.set();
}

// For functions that answer an error number.
extern "C" fn number(name: *const c_char) -> c_int {
    tell(name);
    libc::EOPNOTSUPP
}

// For functions that answer -1.
extern "C" fn minus_one(name: *const c_char) -> c_int {
    tell(name);
    -1
}

// For functions that answer a pointer.
extern "C" fn null(name: *const c_char) -> *mut c_void {
    tell(name);
    ptr::null_mut()
}

// For functions that answer nothing, or a number that is 0 where there is none.
extern "C" fn nothing(name: *const c_char) -> c_int {
    tell(name);
    0
}
