//! The links of the documents lead to existing files, and to existing headings in them.

use std::fs;

use project::{files, workspace_root};

#[test]
fn each_link_between_documents_leads_to_a_file_and_a_heading() {
    let mut count = 0;
    let mut broken = Vec::new();
    for document in files(&workspace_root(), "md") {
        let text = fs::read_to_string(&document).unwrap();
        for link in links(&text).filter(|link| !link.contains("://")) {
            count += 1;
            let (file, heading) = link.split_once('#').unwrap_or((link, ""));
            let target = match file {
                "" => document.clone(),
                file => document.with_file_name("").join(file),
            };
            let is_there = match heading {
                "" => target.exists(),
                heading => fs::read_to_string(&target)
                    .is_ok_and(|text| headings(&text).any(|there| there == heading)),
            };
            if !is_there {
                broken.push(format!("{}: {link}", document.display()));
            }
        }
    }
    assert!(count > 0, "no link was found");
    assert!(broken.is_empty(), "{broken:#?}");
}

#[test]
fn a_link_and_a_heading_are_found() {
    let text = "# Some `code`, and more\nSee [this](a.md#b), `[not](this)` and [that](c.md).\n";
    assert_eq!(links(text).collect::<Vec<_>>(), ["a.md#b", "c.md"]);
    assert_eq!(headings(text).collect::<Vec<_>>(), ["some-code-and-more"]);
}

/// The targets of the links of a text; links in code are left out.
fn links(text: &str) -> impl Iterator<Item = &str> {
    let prose = text.split('`').step_by(2);
    prose.flat_map(|prose| {
        let behind = prose.split("](").skip(1);
        behind.filter_map(|behind| Some(behind.split_once(')')?.0))
    })
}

/// The names by which links refer to headings, as forges make them.
fn headings(text: &str) -> impl Iterator<Item = String> {
    let headings = text.lines().filter(|line| line.starts_with('#'));
    headings.map(|heading| {
        let words = heading.trim_start_matches('#').trim().to_lowercase();
        words
            .chars()
            .filter_map(|letter| match letter {
                ' ' => Some('-'),
                '-' | '_' => Some(letter),
                letter => letter.is_alphanumeric().then_some(letter),
            })
            .collect()
    })
}
