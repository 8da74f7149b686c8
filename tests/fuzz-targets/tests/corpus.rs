//! The fuzzer's corpus, replayed.

use std::fs;
use std::path::{Path, PathBuf};

use fuzz_targets::TARGETS;

fn fuzz() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz")
}

#[test]
fn nothing_in_the_corpus_breaks_anything() {
    for (name, target) in TARGETS {
        let folder = fuzz().join("corpus").join(name);
        let files = fs::read_dir(&folder).unwrap_or_else(|error| panic!("{name}: {error}"));
        let mut count = 0;
        for file in files {
            let path = file.unwrap().path();
            println!("{}", path.display());
            target(&fs::read(path).unwrap());
            count += 1;
        }
        assert!(count > 0, "{name} has no corpus");
    }
}

#[test]
fn every_target_is_built_for_the_fuzzer() {
    let manifest = fs::read_to_string(fuzz().join("Cargo.toml")).unwrap();
    for (name, _) in TARGETS {
        let path = format!("fuzz_targets/{name}.rs");
        assert!(manifest.contains(&path), "{name} is not in fuzz/Cargo.toml");
        let source = fs::read_to_string(fuzz().join(path)).unwrap();
        assert!(source.contains(&format!("fuzz_targets::{name}")));
    }
    assert_eq!(manifest.matches("[[bin]]").count(), TARGETS.len());
}

#[test]
fn octets_of_every_small_size_break_nothing() {
    for (_, target) in TARGETS {
        for length in 0..300 {
            for octet in [0, 0xff, 0x41, 0x80] {
                target(&vec![octet; length]);
            }
        }
    }
}
