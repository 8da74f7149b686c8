//! The symbols of the library, each with its version, are those of Debian's two libraries.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::Command;

// Cargo puts the library beside the folder of this test.
fn library() -> PathBuf {
    let mut path = std::env::current_exe().unwrap();
    path.pop();
    path.pop();
    path.join("libpolyverbs_compat.so")
}

#[test]
fn every_symbol_has_the_version_that_programs_ask_for() {
    let library = library();
    let nm = Command::new("nm")
        .args(["-D", "--with-symbol-versions", "--defined-only"])
        .arg(&library)
        .output()
        .unwrap();
    assert!(nm.status.success(), "nm {}: {nm:?}", library.display());
    let listed = String::from_utf8(nm.stdout).unwrap();
    // The nodes themselves are listed as absolute.
    let exported: BTreeSet<&str> = listed
        .lines()
        .filter_map(|line| {
            let (kind, symbol) = line.split_once(' ')?.1.split_once(' ')?;
            (kind != "A").then_some(symbol)
        })
        .collect();
    let wanted: BTreeSet<&str> = [
        include_str!("../symbols/libibverbs.txt"),
        include_str!("../symbols/librdmacm.txt"),
    ]
    .iter()
    .flat_map(|list| list.lines())
    .collect();
    assert_eq!(wanted.len(), 248);
    assert_eq!(exported, wanted);
}
