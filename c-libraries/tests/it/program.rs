//! C programs that are linked with the library.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

/// Compiles `tests/NAME.c` into a folder of its own, with the library with which the program is linked.
pub(crate) fn compile(name: &str) -> PathBuf {
    compile_in(name, name)
}

/// As [`compile`], into the folder with this name.
pub(crate) fn compile_in(folder: &str, name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(folder);
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    let library = folder.join("libibverbs.so.1");
    fs::copy(test_kit::libraries::built(), &library).unwrap();
    let program = folder.join(name);
    let source = format!("{}/tests/{name}.c", env!("CARGO_MANIFEST_DIR"));
    let compiled = Command::new("cc")
        .args(["-O0", "-w", "-pthread", &source, "-o"])
        .args([&program, &library])
        .output()
        .unwrap();
    assert!(compiled.status.success(), "{compiled:?}");
    program
}

/// Runs a program with these devices. It must succeed and print exactly `text`. Returns its standard error.
#[track_caller]
pub(crate) fn must_print(program: &Path, arguments: &[&str], devices: &str, text: &str) -> String {
    command_must_print(
        &mut Command::new(program),
        program,
        arguments,
        devices,
        text,
    )
}

/// Runs a program as [`must_print`] does, with the library that `polyverbs run` preloads.
#[track_caller]
pub(crate) fn must_print_with_preload(
    program: &Path,
    arguments: &[&str],
    devices: &str,
    text: &str,
) -> String {
    let redirect = test_kit::libraries::built().with_file_name("libpolyverbs_redirect.so");
    let mut command = Command::new(program);
    command.env("LD_PRELOAD", redirect);
    command_must_print(&mut command, program, arguments, devices, text)
}

#[track_caller]
fn command_must_print(
    command: &mut Command,
    program: &Path,
    arguments: &[&str],
    devices: &str,
    text: &str,
) -> String {
    let ran = command
        .args(arguments)
        .env("LD_LIBRARY_PATH", program.parent().unwrap())
        .env("POLYVERBS_CONFIG", devices)
        // Programs count the bytes that are allocated. Freed memory in the cache of a thread would count as allocated.
        .env("GLIBC_TUNABLES", "glibc.malloc.tcache_count=0")
        .output()
        .unwrap();
    assert!(ran.status.success(), "{ran:?}");
    assert_eq!(String::from_utf8_lossy(&ran.stdout), text, "{ran:?}");
    String::from_utf8(ran.stderr).unwrap()
}
