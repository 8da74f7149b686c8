//! A target for which `Cargo.toml` disables tests has none.

use std::path::{Path, PathBuf};

use project::source::{documentation, examples, has_test, parse};
use project::{files, packages, workspace_root};
use serde_json::Value;

/// The files of a target: its main file, and the files below its folder unless they are programs of their own.
fn sources(target: &Value) -> Vec<PathBuf> {
    let main = PathBuf::from(target["src_path"].as_str().unwrap());
    if !main.ends_with("lib.rs") {
        return vec![main];
    }
    let folder = main.parent().unwrap();
    let mut files = files(folder, "rs");
    files.retain(|file| {
        let below = file.strip_prefix(folder).unwrap();
        !below.starts_with("bin") && below != Path::new("main.rs")
    });
    files
}

/// The targets of the workspace that are of one of these kinds.
fn targets(kinds: &[&str]) -> Vec<Value> {
    let packages = packages(&workspace_root());
    let targets = packages
        .iter()
        .flat_map(|package| package["targets"].as_array().unwrap());
    let targets = targets.filter(|target| kinds.contains(&target["kind"][0].as_str().unwrap()));
    targets.cloned().collect()
}

#[test]
fn a_target_that_is_not_tested_has_no_tests() {
    let mut targets = targets(&["lib", "cdylib", "staticlib", "bin"]);
    targets.retain(|target| target["test"] == false);
    let files: Vec<_> = targets.iter().flat_map(sources).collect();
    assert!(files.len() > 20);
    for file in files {
        assert!(
            !has_test(&parse(&file).items),
            "{} has tests, and the manifest says `test = false` for its target",
            file.display(),
        );
    }
}

#[test]
fn a_library_whose_examples_do_not_run_has_none() {
    let mut targets = targets(&["lib", "cdylib"]);
    targets.retain(|target| target["doctest"] == false);
    let files: Vec<_> = targets.iter().flat_map(sources).collect();
    assert!(files.len() > 20);
    for file in files {
        let documentation = documentation(&parse(&file));
        let examples: Vec<_> = documentation
            .iter()
            .flat_map(|it| examples(&it.docs))
            .collect();
        assert!(
            examples.is_empty(),
            "{} has examples, and the manifest says `doctest = false` for its target: {examples:?}",
            file.display(),
        );
    }
}
