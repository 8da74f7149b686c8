//! Replays the corpus of the fuzzer.

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
fn random_bytes_break_no_target() {
    let runs = std::env::var("POLYVERBS_FUZZ_RUNS").map_or(50, |runs| {
        runs.parse()
            .expect("POLYVERBS_FUZZ_RUNS is a number of runs")
    });
    for (name, target) in TARGETS {
        for seed in 1..=runs {
            let mut state = seed;
            let octets = std::iter::repeat_with(|| {
                state = step(state);
                (state >> 32) as u8
            });
            println!("{name} {seed}");
            let length = 32 << (seed % 6);
            target(&octets.take(length).collect::<Vec<_>>());
        }
    }
}

// Knuth's MMIX generator.
const fn step(state: u64) -> u64 {
    state
        .wrapping_mul(6_364_136_223_846_793_005)
        .wrapping_add(1_442_695_040_888_963_407)
}

#[test]
fn inputs_of_every_small_size_break_no_target() {
    for (name, target) in TARGETS {
        // A target with a rig is slow to set up, and does not depend on single bytes.
        let is_set_up = name.ends_with("_peer") || name == "c_calls";
        let every = if is_set_up { 10 } else { 1 };
        for length in (0..300).step_by(every) {
            for octet in [0, 0xff, 0x41, 0x80] {
                target(&vec![octet; length]);
            }
        }
    }
}
