//! `libibverbs.so.1` and `librdmacm.so.1` in one file: every symbol of rdma-core 44, each with its version.
//!
//! A symbol is a jump to the entry of verbs, with the function that implements it, in the crates `polyverbs-libibverbs` and
//! `polyverbs-librdmacm`. A symbol that is not implemented fails as unsupported. A test compares the
//! symbols with the stored list.
// Versioned symbols can only be defined in assembly.
#![allow(unsafe_code)]

// Jumps to the entry of verbs with the function and its name.
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

/// Defines a symbol with a version. The assembler's name for it includes the version, since two versions of a name are two
/// symbols.
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

/// Defines a symbol that is not implemented: it fails as functions of its signature do.
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

/// Interposes a function of the C library. Only programs that are linked already find it: who is linked with this library gets
/// the C library's own.
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
interpose! { "shmat" => kept::shmat }
interpose! { "shmdt" => kept::shmdt }
#[cfg(target_arch = "x86_64")]
interpose! { "sigaction" => signals::sigaction }
#[cfg(target_arch = "x86_64")]
interpose! { "signal" => signals::signal }
#[cfg(target_arch = "x86_64")]
interpose! { "sigprocmask" => signals::sigprocmask }
// Of libpthread once, and of the C library since it has that within it.
#[cfg(target_arch = "x86_64")]
interpose! { "pthread_sigmask" => signals::pthread_sigmask }
#[cfg(target_arch = "x86_64")]
interpose! { "pthread_sigmask", "GLIBC_2.32" => signals::pthread_sigmask }
// For the library that `polyverbs run` preloads, which comes before a sanitizer's.
#[cfg(target_arch = "x86_64")]
interpose! { "polyverbs_sigaction" => signals::sigaction }
#[cfg(target_arch = "x86_64")]
interpose! { "polyverbs_signal" => signals::signal }
