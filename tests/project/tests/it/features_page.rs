//! The stored page and the workspace's `// covers` lines are in order.

use project::{Index, page_path};

#[test]
fn stored_page_is_up_to_date() {
    let stored = std::fs::read_to_string(page_path()).unwrap_or_default();
    let page = Index::of_workspace().unwrap().page();
    let differs = page
        .lines()
        .zip(stored.lines())
        .find(|(new, old)| new != old);
    assert!(
        stored == page,
        "docs/features.md is out of date, run `cargo run -p project --bin feature-index` to write it; \
         first difference (new, stored): {differs:#?}"
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
