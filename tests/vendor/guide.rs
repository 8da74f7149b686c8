// The test that a guide shows a crate: the crates that guides show include this file.

use std::collections::BTreeMap;
use std::path::Path;

/// The pieces of each file, in order: a line "`path`:" or "`path`, continued:" stands above each.
fn pieces(guide: &str) -> BTreeMap<&str, Vec<String>> {
    let mut files: BTreeMap<_, Vec<String>> = BTreeMap::new();
    let mut lines = guide.lines();
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

/// A line of a manifest as the guide shows it: there the crate depends on packages, here on the folders they are made from.
fn as_published(line: &str) -> String {
    match line.split_once("{ version = \"0.1\", path = ") {
        Some((name, _)) => format!("{name}\"0.1\""),
        None => line.to_owned(),
    }
}

/// Checks that the guide shows the crate in this folder: every file that it shows is there as shown, and the only sources
/// that it leaves out are those in `left_out`.
pub fn shows(guide: &str, folder: &str, left_out: &[&str]) {
    let folder = Path::new(folder);
    let shown = pieces(guide);
    for (path, pieces) in &shown {
        let text = std::fs::read_to_string(folder.join(path)).unwrap();
        let text: String = text.lines().map(|line| as_published(line) + "\n").collect();
        assert_eq!(pieces.join("\n\n") + "\n", text, "{path}");
    }
    let sources = ["src", "examples"].map(|sub| std::fs::read_dir(folder.join(sub)).unwrap());
    for source in sources.into_iter().flatten() {
        let path = source.unwrap().path();
        let path = path.strip_prefix(folder).unwrap().to_str().unwrap();
        let is_known = shown.contains_key(path) || left_out.contains(&path);
        assert!(is_known, "{path} is not in the guide");
    }
}
