//! The root of the API is small, and a glob import of it hides no name of the prelude.

use std::collections::BTreeSet;

use project::source::{parse, public_names};
use project::workspace_root;

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
    assert!(names.contains("open"), "{names:?}");
    assert!(names.len() <= MOST, "{}: {names:#?}", names.len());
}

#[test]
fn no_name_of_the_root_is_one_of_the_prelude() {
    let names = root_names();
    let prelude = PRELUDE.split_whitespace();
    let both: Vec<_> = prelude.filter(|name| names.contains(*name)).collect();
    assert!(both.is_empty(), "{both:?}");
}

/// The names that `use polyverbs::*` imports: those of the facade, and those of the API that it re-exports by a glob. A name of
/// the facade hides the same name of the API.
fn root_names() -> BTreeSet<String> {
    let facade = names_of("polyverbs");
    let globs = facade.iter().filter(|name| *name == "*").count();
    assert_eq!(globs, 1, "the facade has one glob: {facade:?}");
    let api = names_of("verbs-api");
    assert!(!api.iter().any(|name| name == "*"), "{api:?}");
    let names = facade.into_iter().chain(api);
    names.filter(|name| name != "*").collect()
}

fn names_of(package: &str) -> Vec<String> {
    let root = parse(&workspace_root().join(package).join("src/lib.rs"));
    let names = public_names(&root.items).into_iter();
    names.map(|it| it.name).collect()
}
