//! The guide shows this crate: every file, completely, and nothing else.

#[path = "../../guide.rs"]
mod guide;

const GUIDE: &str = include_str!("../../../../docs/writing-an-extension.md");

#[test]
fn the_guide_shows_every_file_as_it_is() {
    guide::shows(
        GUIDE,
        env!("CARGO_MANIFEST_DIR"),
        &["examples/without-checksums.rs"],
    );
}

#[test]
fn nothing_of_the_project_knows_of_it() {
    let root = std::path::PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../..");
    let mut folders: Vec<_> = ["verbs-api", "providers", "extensions", "polyverbs"]
        .into_iter()
        .chain(["capability-matrix", "cli", "tests/conformance"])
        .map(|folder| root.join(folder))
        .collect();
    let mut seen = 0;
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path
                .extension()
                .is_some_and(|is| is == "rs" || is == "toml")
            {
                let text = std::fs::read_to_string(&path).unwrap().to_lowercase();
                assert!(!text.contains("acme-checksum"), "{}", path.display());
                assert!(!text.contains("acme_checksum"), "{}", path.display());
                seen += 1;
            }
        }
    }
    assert!(seen > 100, "{seen} files were compared");
}
