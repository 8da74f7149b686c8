//! The table of `docs/capability-matrix.md` matches the findings of the probes.
//!
//! Run with `POLYVERBS_WRITE_TABLE=1` to write it again.

use std::path::PathBuf;

use capability_matrix::Section;

use crate::VERIFIED;

const BEGIN: &str = "<!-- matrix: begin -->\n";
const END: &str = "<!-- matrix: end -->";

#[test]
fn the_table_of_the_page_matches_the_probes() {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../docs/capability-matrix.md");
    let page = std::fs::read_to_string(&path).unwrap();
    let (before, rest) = page
        .split_once(BEGIN)
        .expect("the page has the marker where it begins");
    let (table, after) = rest
        .split_once(END)
        .expect("the page has the marker where it ends");
    let sections = [Section::Features, Section::Gaps];
    let tables = sections.map(|section| {
        format!(
            "**{}.** {}\n\n{}",
            section.title(),
            section.about(),
            VERIFIED.section_to_markdown(section)
        )
    });
    let expected = tables.join("\n");
    if std::env::var_os("POLYVERBS_WRITE_TABLE").is_some() {
        std::fs::write(path, format!("{before}{BEGIN}{expected}{END}{after}")).unwrap();
    } else {
        let remedy = "POLYVERBS_WRITE_TABLE=1 cargo test -p capability-matrix --test it page";
        assert!(
            table == expected,
            "the page has another table; run {remedy}"
        );
    }
}
