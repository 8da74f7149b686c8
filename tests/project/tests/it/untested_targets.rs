//! A target for which `Cargo.toml` disables tests has none.

use std::fs;
use std::path::{Path, PathBuf};

use project::packages;
use serde_json::Value;

/// The files of a target: its main file, and the files below its folder unless they are programs of their own.
fn sources(target: &Value) -> Vec<PathBuf> {
    let main = PathBuf::from(target["src_path"].as_str().unwrap());
    let is_library = main.file_name().is_some_and(|name| name == "lib.rs");
    let mut files = vec![main.clone()];
    if is_library {
        let folder = main.parent().unwrap();
        collect(folder, &mut files);
        files.retain(|file| {
            let below = file.strip_prefix(folder).unwrap();
            !below.starts_with("bin") && below != Path::new("main.rs")
        });
    }
    files
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            collect(&path, files);
        } else if path.extension().is_some_and(|is| is == "rs") {
            files.push(path);
        }
    }
}

/// Whether a line of documentation begins an example that cargo would run.
fn begins_example(line: &str) -> bool {
    let documented = line.trim_start().strip_prefix("//");
    let documented = documented.and_then(|rest| rest.strip_prefix(['/', '!']));
    let language = documented.and_then(|rest| rest.trim_start().strip_prefix("```"));
    matches!(
        language,
        Some("rust" | "no_run" | "should_panic" | "compile_fail")
    )
}

/// Whether this line marks a test of the file, and not one that a macro writes for others.
fn is_test(line: &str) -> bool {
    ["#[test]", "    #[test]"].contains(&line)
}

#[test]
fn a_target_that_is_not_tested_has_no_tests() {
    let packages = packages();
    let targets = packages
        .iter()
        .flat_map(|package| package["targets"].as_array().unwrap());
    let mut seen = 0;
    for target in targets {
        let kind = target["kind"][0].as_str().unwrap();
        if !["lib", "cdylib", "staticlib", "bin"].contains(&kind) || target["test"] == true {
            continue;
        }
        for file in sources(target) {
            seen += 1;
            let text = fs::read_to_string(&file).unwrap();
            assert!(
                !text.lines().any(is_test),
                "{} has tests, and the manifest says `test = false` for {}",
                file.display(),
                target["name"],
            );
        }
    }
    assert!(seen > 20);
}

#[test]
fn a_library_whose_examples_do_not_run_has_none() {
    let packages = packages();
    let targets = packages
        .iter()
        .flat_map(|package| package["targets"].as_array().unwrap());
    let mut seen = 0;
    for target in targets.filter(|target| target["doctest"] == false) {
        if !["lib", "cdylib"].contains(&target["kind"][0].as_str().unwrap()) {
            continue;
        }
        for file in sources(target) {
            seen += 1;
            let text = fs::read_to_string(&file).unwrap();
            let example = text.lines().find(|line| begins_example(line));
            assert_eq!(
                example,
                None,
                "{}: the manifest says `doctest = false` for {}",
                file.display(),
                target["name"],
            );
        }
    }
    assert!(seen > 20);
}
