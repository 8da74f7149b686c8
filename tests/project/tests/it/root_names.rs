//! The root of the API is small, and a glob import of it hides nothing that every program has.

use std::{fs, path::Path};

use project::source::{public_names, without_comments_and_literals};

/// How many names the root has at most.
const MOST: usize = 60;

/// The names that the preludes of `std` bring into every program; of the macros, only the derives.
const PRELUDE: &str = "
    Send Sized Sync Copy Drop Fn FnMut FnOnce AsyncFn AsyncFnMut AsyncFnOnce Unpin
    drop align_of align_of_val size_of size_of_val
    Box ToOwned Clone PartialEq PartialOrd Eq Ord AsRef AsMut Into From Default
    Iterator Extend IntoIterator DoubleEndedIterator ExactSizeIterator
    Option Some None Result Ok Err String ToString Vec
    TryFrom TryInto FromIterator Future IntoFuture
    Debug Hash";

#[test]
fn the_root_has_sixty_names_at_most() {
    let names = root_names();
    assert!(names.iter().any(|name| name == "open"), "{names:?}");
    assert!(names.len() <= MOST, "{}: {names:#?}", names.len());
}

#[test]
fn no_name_of_the_root_is_one_of_the_prelude() {
    let names = root_names();
    let prelude = PRELUDE.split_whitespace();
    let both: Vec<_> = prelude
        .filter(|name| names.iter().any(|own| own == name))
        .collect();
    assert!(both.is_empty(), "{both:?}");
}

/// The names that `use polyverbs::*` imports: those of the facade, and those of the API that it re-exports by a glob.
fn root_names() -> Vec<String> {
    let mut names = names_of("polyverbs");
    let own = names.len();
    names.retain(|name| name != "*");
    assert_eq!(own - names.len(), 1, "the facade has one glob: {names:?}");
    names.extend(names_of("verbs-api"));
    assert!(!names.iter().any(|name| name == "*"), "{names:?}");
    names
}

fn names_of(package: &str) -> Vec<String> {
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    let text = fs::read_to_string(root.join(package).join("src/lib.rs")).unwrap();
    public_names(&without_comments_and_literals(&text))
}
