//! `libibverbs.so.1` and `librdmacm.so.1` in one file: every symbol of rdma-core 44, each with its version.
//!
//! Each symbol is a jump to `entry::round`, which calls the function that implements it, in the crates
//! `polyverbs-libibverbs` and `polyverbs-librdmacm`. A symbol that is not implemented fails with EOPNOTSUPP. A test
//! compares the symbols with the stored list.
// Versioned symbols can only be defined in assembly.
#![allow(unsafe_code)]

// Jumps to `entry::round` with the function and its name in two scratch registers.
#[cfg(target_arch = "x86_64")]
macro_rules! jump {
    ($name:literal, $version:literal) => {
        concat!(
            "lea r10, [rip + {function}]\n",
            "lea r11, [rip + polyverbs.text.",
            $name,
            ".",
            $version,
            "]\n",
            "jmp {round}"
        )
    };
}
#[cfg(target_arch = "aarch64")]
macro_rules! jump {
    ($name:literal, $version:literal) => {
        concat!(
            "adrp x16, {function}\n",
            "add x16, x16, :lo12:{function}\n",
            "adrp x17, polyverbs.text.",
            $name,
            ".",
            $version,
            "\n",
            "add x17, x17, :lo12:polyverbs.text.",
            $name,
            ".",
            $version,
            "\n",
            "b {round}"
        )
    };
}

/// Defines a symbol of this version, which calls `function`. Its name in the assembler includes the version, because one
/// name can have several versions.
macro_rules! symbol {
    ($name:literal $at:literal $version:literal => $function:path) => {
        core::arch::global_asm!(
            ".section .rodata.polyverbs, \"a\"",
            concat!("polyverbs.text.", $name, ".", $version, ": .asciz \"", $name, "\""),
            ".text",
            ".p2align 4",
            concat!(".globl polyverbs.", $name, ".", $version),
            concat!(".type polyverbs.", $name, ".", $version, ",@function"),
            concat!("polyverbs.", $name, ".", $version, ":"),
            jump!($name, $version),
            concat!(".size polyverbs.", $name, ".", $version, ", . - polyverbs.", $name, ".", $version),
            concat!(".symver polyverbs.", $name, ".", $version, ", ", $name, $at, $version, ", remove"),
            function = sym $function,
            round = sym polyverbs_libibverbs::entry::round,
        );
    };
}

/// Defines a symbol that is not implemented. It calls the function `answer`, which returns the error value of its
/// signature.
macro_rules! absent {
    ($name:literal $at:literal $version:literal => $answer:ident) => {
        symbol! { $name $at $version => polyverbs_libibverbs::absent::$answer }
    };
}

mod symbols;

#[cfg(target_arch = "x86_64")]
macro_rules! c_library {
    () => {
        "GLIBC_2.2.5"
    };
}
#[cfg(target_arch = "aarch64")]
macro_rules! c_library {
    () => {
        "GLIBC_2.17"
    };
}

/// Interposes a function of the C library at run time. The version is not the default one, so that the linker does not
/// choose it for programs that are linked with this library.
macro_rules! interpose {
    ($name:literal => $module:ident::$function:ident) => {
        interpose! { $name, c_library!() => $module::$function }
    };
    ($name:literal, $version:expr => $module:ident::$function:ident) => {
        core::arch::global_asm!(
            ".text",
            ".p2align 4",
            concat!(".globl polyverbs.", $name, ".", $version),
            concat!(".type polyverbs.", $name, ".", $version, ",@function"),
            concat!("polyverbs.", $name, ".", $version, ":"),
            concat!(branch!(), " {function}"),
            concat!(".size polyverbs.", $name, ".", $version, ", . - polyverbs.", $name, ".", $version),
            concat!(".symver polyverbs.", $name, ".", $version, ", ", $name, "@", $version, ", remove"),
            function = sym polyverbs_libibverbs::$module::$function,
        );
    };
}

#[cfg(target_arch = "x86_64")]
macro_rules! branch {
    () => {
        "jmp"
    };
}
#[cfg(target_arch = "aarch64")]
macro_rules! branch {
    () => {
        "b"
    };
}

interpose! { "close" => descriptors::close }
#[cfg(target_arch = "x86_64")]
interpose! { "close_range", "GLIBC_2.34" => descriptors::close_range }
#[cfg(target_arch = "x86_64")]
interpose! { "closefrom", "GLIBC_2.34" => descriptors::closefrom }
interpose! { "dup2" => descriptors::dup2 }
#[cfg(target_arch = "x86_64")]
interpose! { "dup3", "GLIBC_2.9" => descriptors::dup3 }
#[cfg(target_arch = "aarch64")]
interpose! { "dup3" => descriptors::dup3 }
interpose! { "free" => kept::free }
interpose! { "mmap" => kept::mmap }
interpose! { "mmap64" => kept::mmap }
interpose! { "mremap" => kept::mremap }
interpose! { "munmap" => kept::munmap }
interpose! { "realloc" => kept::realloc }
interpose! { "shmdt" => kept::shmdt }
#[cfg(target_arch = "x86_64")]
interpose! { "sigaction" => signals::sigaction }
#[cfg(target_arch = "x86_64")]
interpose! { "signal" => signals::signal }
#[cfg(target_arch = "x86_64")]
interpose! { "sigprocmask" => signals::sigprocmask }
// glibc has this function in libpthread or, since 2.32, in the C library, so it has two versions.
#[cfg(target_arch = "x86_64")]
interpose! { "pthread_sigmask" => signals::pthread_sigmask }
#[cfg(target_arch = "x86_64")]
interpose! { "pthread_sigmask", "GLIBC_2.32" => signals::pthread_sigmask }
// Called by the library that `polyverbs run` preloads, because a sanitizer's functions come before those of this library.
#[cfg(target_arch = "x86_64")]
interpose! { "polyverbs_sigaction" => signals::sigaction }
#[cfg(target_arch = "x86_64")]
interpose! { "polyverbs_signal" => signals::signal }
