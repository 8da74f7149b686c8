//! The stored pages and the workspace's `// covers` lines are in order.

use std::{collections::BTreeMap, fs};

use project::{Index, files, index::SECTIONS, workspace_root};

#[test]
fn stored_pages_are_up_to_date() {
    let docs = workspace_root().join("docs");
    let sections = files(&docs.join(SECTIONS), "md").into_iter();
    let stored = sections.chain([docs.join("features.md")]).map(|path| {
        let place = path.strip_prefix(&docs).unwrap().to_str().unwrap();
        (place.to_owned(), fs::read_to_string(&path).unwrap())
    });
    let stored: BTreeMap<_, _> = stored.collect();
    let pages = Index::of_workspace().unwrap().pages();
    let places = pages.keys().chain(stored.keys());
    let stale: Vec<_> = places
        .filter(|place| pages.get(*place) != stored.get(*place))
        .collect();
    assert!(
        stale.is_empty(),
        "run `cargo run -p project --bin feature-index` to write these pages below docs/, which are out of date: {stale:?}"
    );
}

#[test]
fn covers_lines_and_exemptions_are_in_order() {
    let problems = Index::of_workspace().unwrap().problems();
    assert!(problems.is_empty(), "{problems:#?}");
}

#[test]
fn every_applicable_row_is_covered() {
    let index = Index::of_workspace().unwrap();
    assert!(index.uncovered().is_empty(), "{:#?}", index.uncovered());
}
