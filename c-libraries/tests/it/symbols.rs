//! The symbols of the library, each with its version, are those of Debian 12's three libraries, those that later programs
//! import (the provider libraries with which perftest of Debian 13 is linked, and infiniband-diags), and those that
//! rdma-core 65 adds.

use std::collections::BTreeSet;

use object::Endianness;
use object::elf::{FileHeader64, SHN_ABS, SHN_UNDEF, SHT_DYNSYM};
use object::read::elf::{FileHeader as _, Sym as _};

/// The exported symbols, each with its version as a linker writes it: `@@` before the default version.
fn exported(library: &[u8]) -> BTreeSet<String> {
    let header = FileHeader64::<Endianness>::parse(library).unwrap();
    let endian = header.endian().unwrap();
    let sections = header.sections(endian, library).unwrap();
    let versions = sections.versions(endian, library).unwrap();
    let versions = versions.expect("a library whose symbols have versions");
    let symbols = sections.symbols(endian, library, SHT_DYNSYM).unwrap();
    let exported = symbols.enumerate().filter_map(|(index, symbol)| {
        // The versions themselves are listed as absolute.
        let shndx = symbol.st_shndx(endian);
        if shndx == SHN_UNDEF || shndx == SHN_ABS {
            return None;
        }
        let name = symbols.symbol_name(endian, symbol).unwrap();
        let version = versions.version_index(endian, index);
        let at = if version.is_hidden() { "@" } else { "@@" };
        let version = versions
            .version(version.into())
            .unwrap()
            .expect("a version");
        let text = |bytes| std::str::from_utf8(bytes).unwrap();
        Some(format!("{}{at}{}", text(name), text(version.name())))
    });
    exported.collect()
}

/// The symbols of libibverbs and librdmacm, one a line.
pub(crate) fn every_symbol() -> String {
    [
        include_str!("../../symbols/libibverbs.txt"),
        include_str!("../../symbols/librdmacm.txt"),
        include_str!("../../symbols/later.txt"),
        include_str!("../../symbols/rdma-core-65.txt"),
    ]
    .concat()
}

#[test]
fn every_symbol_has_the_version_that_programs_ask_for() {
    let exported = exported(&std::fs::read(test_kit::libraries::built()).unwrap());
    let every = every_symbol() + include_str!("../../symbols/libibumad.txt");
    let mut wanted: BTreeSet<String> = every.lines().map(str::to_owned).collect();
    assert_eq!(wanted.len(), 291 + 117);
    // Functions that replace the C library's in programs that are linked already, and three for the library that
    // `polyverbs run` preloads.
    let interposed = [
        "close",
        "dup2",
        "free",
        "mmap",
        "mmap64",
        "mremap",
        "munmap",
        "polyverbs_open_issm",
        "polyverbs_sigaction",
        "polyverbs_signal",
        "pthread_sigmask",
        "realloc",
        "shmat",
        "shmdt",
        "sigaction",
        "signal",
        "sigprocmask",
    ];
    wanted.extend(interposed.map(|name| format!("{name}@GLIBC_2.2.5")));
    let later = [
        "dup3@GLIBC_2.9",
        "pthread_sigmask@GLIBC_2.32",
        "close_range@GLIBC_2.34",
        "closefrom@GLIBC_2.34",
    ];
    wanted.extend(later.map(str::to_owned));
    assert_eq!(exported, wanted);
}
