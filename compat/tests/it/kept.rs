//! What a C program gives up while it is registered stays until it is deregistered.

use std::path::Path;
use std::process::Command;
use std::{env, fs};

#[test]
fn memory_that_a_program_gives_up_stays_until_it_is_deregistered() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("kept");
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    let library = folder.join("libibverbs.so.1");
    fs::copy(built_library::built(), &library).unwrap();
    let program = folder.join("kept");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/kept.c");
    let compiled = Command::new("cc")
        .args(["-O0", "-w", source, "-o"])
        .args([&program, &library])
        .output()
        .unwrap();
    assert!(compiled.status.success(), "{compiled:?}");
    let ran = Command::new(&program)
        .env("LD_LIBRARY_PATH", &folder)
        .env(
            "POLYVERBS_CONFIG",
            "[[device]]\nname = \"ib0\"\nwire = false\n",
        )
        .output()
        .unwrap();
    assert!(ran.status.success(), "{ran:?}");
    assert_eq!(
        String::from_utf8_lossy(&ran.stdout),
        "all kept\n",
        "{ran:?}"
    );
}
