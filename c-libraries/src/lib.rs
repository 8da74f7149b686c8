//! `libibverbs.so.1`, `librdmacm.so.1` and `libibumad.so.3` in one file: every symbol of rdma-core 44 and 65, each with its
//! version.
//!
//! A symbol is a jump to the entry of verbs, with the function that implements it, in the crates `polyverbs-libibverbs`,
//! `polyverbs-librdmacm` and `polyverbs-libibumad`. A symbol that is not implemented fails as unsupported. `symbols.rs` is the
//! table of all functions. A test compares the symbols with the stored list.
// Versioned symbols can only be defined in assembly.
#![allow(unsafe_code)]

/// Defines a symbol of a version, which calls the function that implements it, if any. Its name in the assembler includes the
/// version, because one name can have several versions.
macro_rules! symbol {
    ($name:ident $at:literal $version:literal $(=> $implementation:path)?) => {
        core::arch::global_asm!(
            ".text",
            ".p2align 4",
            concat!(".globl polyverbs.", stringify!($name), ".", $version),
            concat!(".type polyverbs.", stringify!($name), ".", $version, ",@function"),
            concat!("polyverbs.", stringify!($name), ".", $version, ":"),
            polyverbs_libibverbs::jump!($($implementation)?),
            concat!(".size polyverbs.", stringify!($name), ".", $version, ", . - polyverbs.", stringify!($name), ".", $version),
            concat!(".symver polyverbs.", stringify!($name), ".", $version, ", ", stringify!($name), $at, $version, ", remove"),
            $(verb = sym $implementation,)?
            function = sym FUNCTION,
            round = sym polyverbs_libibverbs::entry::round,
        );
    };
}

/// Defines functions, each with a symbol for every version. One without an implementation fails as functions of its signature
/// do.
macro_rules! functions {
    ($(
        $name:ident ($arguments:literal) $answer:ident: $($at:literal $version:literal $(=> $implementation:path)?),+;
    )*) => {
        $(
            mod $name {
                use super::*;

                static FUNCTION: Function =
                    Function::new(stringify!($name), Some($arguments), Answer::$answer);

                $(symbol! { $name $at $version $(=> $implementation)? })+
            }
        )*
    };
}

/// Defines functions of these versions that are not implemented, and whose arguments the trace does not show.
macro_rules! private_functions {
    (@one [$($at:literal $version:literal),+] $answer:ident $name:ident) => {
        mod $name {
            use super::*;

            static FUNCTION: Function = Function::new(stringify!($name), None, Answer::$answer);

            $(symbol! { $name $at $version })+
        }
    };
    ($versions:tt $($answer:ident: $($name:ident),+;)*) => {
        $($(private_functions! { @one $versions $answer $name })+)*
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
    ($name:literal => $module:ident::$function:ident $(in $library:ident)?) => {
        interpose! { $name, c_library!() => $module::$function $(in $library)? }
    };
    ($name:literal, $version:expr => $module:ident::$function:ident) => {
        interpose! { $name, $version => $module::$function in polyverbs_libibverbs }
    };
    ($name:literal, $version:expr => $module:ident::$function:ident in $library:ident) => {
        core::arch::global_asm!(
            ".text",
            ".p2align 4",
            concat!(".globl polyverbs.", $name, ".", $version),
            concat!(".type polyverbs.", $name, ".", $version, ",@function"),
            concat!("polyverbs.", $name, ".", $version, ":"),
            concat!(branch!(), " {function}"),
            concat!(".size polyverbs.", $name, ".", $version, ", . - polyverbs.", $name, ".", $version),
            concat!(".symver polyverbs.", $name, ".", $version, ", ", $name, "@", $version, ", remove"),
            function = sym $library::$module::$function,
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
// glibc has this function in libpthread or, since 2.32, in the C library, so it has two versions.
#[cfg(target_arch = "x86_64")]
interpose! { "pthread_sigmask" => signals::pthread_sigmask }
#[cfg(target_arch = "x86_64")]
interpose! { "pthread_sigmask", "GLIBC_2.32" => signals::pthread_sigmask }
// Called by the library that `polyverbs run` preloads, in place of opening a file.
interpose! { "polyverbs_open_issm" => devices::open_issm in polyverbs_libibumad }
// Called by the library that `polyverbs run` preloads, because a sanitizer's functions come before those of this library.
#[cfg(target_arch = "x86_64")]
interpose! { "polyverbs_sigaction" => signals::sigaction }
#[cfg(target_arch = "x86_64")]
interpose! { "polyverbs_signal" => signals::signal }

/// Runs when the library is loaded.
#[used]
#[unsafe(link_section = ".init_array")]
static LOADED: extern "C" fn() = polyverbs_libibverbs::first_thread::notice_its_end;
