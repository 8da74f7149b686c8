//! Programs that are built with a sanitizer, over the real libraries.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use super::Folder;

const POLYVERBS: &str = env!("CARGO_BIN_EXE_polyverbs");

/// Compiles `tests/c/NAME.c` with these flags.
fn compile(folder: &Folder, name: &str, flags: &[&str]) -> PathBuf {
    let (library, program) = (folder.path("libibverbs.so.1"), folder.path(name));
    if !library.exists() {
        symlink(test_kit::libraries::built(), &library).unwrap();
    }
    let source = format!("{}/tests/c/{name}.c", env!("CARGO_MANIFEST_DIR"));
    let mut cc = Command::new("cc");
    cc.args(["-g", "-O1", "-w", "-pthread"]).args(flags);
    let built = cc.arg(source).arg("-o").args([&program, &library]);
    let built = built.output().unwrap();
    assert!(built.status.success(), "{built:?}");
    program
}

fn run(program: &Path, address: &str, options: &[(&str, &str)]) -> Output {
    let mut run = Command::new(POLYVERBS);
    let device = format!("name=ib0,address={address}");
    run.args(["run", "--device", &device, "--"]);
    run.arg(program).arg(address);
    run.envs(options.iter().copied());
    // The folders that cargo sets for tests would come before the libraries.
    run.env_remove("LD_LIBRARY_PATH");
    run.output().unwrap()
}

#[track_caller]
fn is_well(ran: &Output) {
    assert!(ran.status.success(), "{ran:?}");
    assert_eq!(
        String::from_utf8_lossy(&ran.stdout),
        "all well\n",
        "{ran:?}"
    );
    assert_eq!(String::from_utf8_lossy(&ran.stderr), "", "{ran:?}");
}

/// The flags of each sanitizer, also with its runtime linked statically.
const SANITIZERS: &[&[&str]] = &[
    &[],
    &["-fsanitize=address"],
    &["-fsanitize=address,undefined"],
    &["-fsanitize=address", "-static-libasan"],
    &["-fsanitize=leak"],
    &["-fsanitize=thread"],
    &["-fsanitize=thread", "-static-libtsan"],
];

#[test]
fn a_program_built_with_a_sanitizer_runs_without_a_report() {
    for flags in SANITIZERS {
        let folder = Folder::new();
        let program = compile(&folder, "faults", flags);
        is_well(&run(&program, "127.0.61.1", &[]));
    }
}

#[test]
fn options_of_sanitizers_that_the_user_sets_are_kept() {
    let folder = Folder::new();
    let program = compile(&folder, "faults", &["-fsanitize=address"]);
    let ran = run(&program, "127.0.61.2", &[("ASAN_OPTIONS", "help=1")]);
    let said = String::from_utf8_lossy(&ran.stderr);
    assert!(
        ran.status.success() && said.contains("Available flags"),
        "{said}"
    );
    let program = compile(&folder, "faults", &["-fsanitize=thread"]);
    let races = folder.path("races");
    fs::write(&races, "nonsense\n").unwrap();
    let options = format!("suppressions={}", races.display());
    let ran = run(&program, "127.0.61.2", &[("TSAN_OPTIONS", &options)]);
    let said = String::from_utf8_lossy(&ran.stderr);
    assert!(said.contains("failed to parse suppressions"), "{said}");
}
