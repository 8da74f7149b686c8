//! The guide shows this crate: every file, completely, and nothing else.

#[path = "../../guide.rs"]
mod guide;

const GUIDE: &str = include_str!("../../../../docs/writing-a-provider.md");

#[test]
fn the_guide_shows_every_file_as_it_is() {
    guide::shows(GUIDE, env!("CARGO_MANIFEST_DIR"), &[]);
}
