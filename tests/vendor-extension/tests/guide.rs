//! The guide shows this crate: every file of it, all of each, and nothing else.

use std::collections::BTreeMap;
use std::path::Path;

const GUIDE: &str = include_str!("../../../docs/writing-an-extension.md");

/// The pieces of each file, in order: a line "`path`:" or "`path`, continued:" stands above each.
fn shown() -> BTreeMap<&'static str, Vec<String>> {
    let mut files: BTreeMap<_, Vec<String>> = BTreeMap::new();
    let mut lines = GUIDE.lines();
    let mut path = None;
    while let Some(line) = lines.next() {
        if line.starts_with("```") {
            let piece = lines.by_ref().take_while(|line| *line != "```");
            let piece: Vec<_> = piece.collect();
            if let Some(path) = path.take() {
                files.entry(path).or_default().push(piece.join("\n"));
            }
        } else if let Some(rest) = line.strip_prefix('`') {
            let named = rest.strip_suffix("`:");
            path = named.or_else(|| rest.strip_suffix("`, continued:"));
        }
    }
    files
}

#[test]
fn the_guide_shows_every_file_as_it_is() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let shown = shown();
    for (path, pieces) in &shown {
        let text = std::fs::read_to_string(folder.join(path)).unwrap();
        // There the project lies beside the crate, here around it.
        let text = text.replace("\"../../", "\"../polyverbs/");
        assert_eq!(pieces.join("\n\n") + "\n", text, "{path}");
    }
    let sources = ["src", "examples"].map(|sub| std::fs::read_dir(folder.join(sub)).unwrap());
    for source in sources.into_iter().flatten() {
        let path = source.unwrap().path();
        let path = path.strip_prefix(folder).unwrap().to_str().unwrap();
        let is_shown = shown.contains_key(path) || path == "examples/polyverbs-without.rs";
        assert!(is_shown, "{path} is not in the guide");
    }
}
