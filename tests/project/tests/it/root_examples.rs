//! Every name of the root has an example: a program that uses it finds lines to begin with.

use std::{fs, path::Path};

use project::source::{docs_of, has_example, public_paths, without_comments_and_literals};

#[test]
fn every_name_of_the_root_has_an_example() {
    let without = [names_without("verbs-api"), names_without("polyverbs")].concat();
    assert!(without.is_empty(), "no example: {without:#?}");
}

fn names_without(package: &str) -> Vec<String> {
    let workspace = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    let sources = workspace.join(package).join("src");
    let root = fs::read_to_string(sources.join("lib.rs")).unwrap();
    let mut paths = public_paths(&without_comments_and_literals(&root));
    // A glob re-exports the names of another package.
    paths.retain(|path| !path.ends_with("::*"));
    assert!(!paths.is_empty(), "{package}");
    paths.retain(|path| !is_shown(&sources, &root, path));
    paths
}

/// Whether the name has an example at its declaration, which is in the root or in the module from which the root imports
/// it. A module in files of its own needs none, because a program uses the names in it.
fn is_shown(sources: &Path, root: &str, path: &str) -> bool {
    let declared = path.split(" as ").next().unwrap_or(path);
    let has_example_in =
        |text: &str, name| docs_of(text, name).iter().any(|docs| has_example(docs));
    match declared.split_once("::") {
        Some((module, within)) => {
            let name = within.rsplit("::").next().unwrap_or(within);
            let files = files_of(sources, module);
            files.iter().any(|text| has_example_in(text, name))
        }
        None => has_example_in(root, declared) || !files_of(sources, declared).is_empty(),
    }
}

/// The contents of the files of a module.
fn files_of(sources: &Path, module: &str) -> Vec<String> {
    let own = sources.join(format!("{module}.rs"));
    let folder = fs::read_dir(sources.join(module)).into_iter().flatten();
    let children = folder.map(|entry| entry.unwrap().path());
    let files = children.chain([own]).filter(|path| path.is_file());
    files
        .map(|path| fs::read_to_string(path).unwrap())
        .collect()
}
