//! Finds the `// covers` lines of the workspace.
//!
//! A line `// covers 2.24 2.25` stands above a test's `#[test]`. Comments and attributes may lie
//! between, and several such lines add up. A file under `tests/conformance/` holds test bodies that
//! are made into one test for each device by a macro; there the function alone will do, and so it will
//! for the probes of the core and of extensions, which the conformance suite runs on each device.

use std::{fs, io, path::Path};

use crate::files;

/// How many lines of code, comments not counted, may stand between a `// covers` line and its `fn`.
const REACH: usize = 6;

/// The folder whose functions are test bodies without a `#[test]` of their own.
const CONFORMANCE: &str = "tests/conformance/";

/// The folder of an extension whose functions are probes.
const PROBES: &str = "/src/probes/";

/// The folder of the core's probes.
const CORE_PROBES: &str = "probes/src/";

/// One `// covers` line.
#[derive(Debug, PartialEq, Eq)]
pub struct Claim {
    /// The file, relative to the workspace, with `/` between folders.
    pub file: String,
    /// The line, counted from 1.
    pub line: usize,
    /// The ids, as written.
    pub ids: Vec<String>,
    /// The test's function; `None` if no test follows.
    pub test: Option<String>,
}

/// Scans every Rust file below `root`, build folders and hidden ones left out.
///
/// # Errors
/// The error of reading a file.
pub fn scan(root: &Path) -> io::Result<Vec<Claim>> {
    let mut claims = Vec::new();
    for path in files(root, "rs") {
        let relative = path.strip_prefix(root).unwrap_or(&path);
        let parts: Vec<_> = relative.iter().map(|part| part.to_string_lossy()).collect();
        claims.extend(scan_text(&parts.join("/"), &fs::read_to_string(&path)?));
    }
    Ok(claims)
}

/// Scans one file's text.
pub fn scan_text(file: &str, text: &str) -> Vec<Claim> {
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let mut claims = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        if let Some(ids) = covers(line) {
            claims.push(Claim {
                file: file.to_owned(),
                line: at + 1,
                ids,
                test: test_below(&lines[at + 1..], holds_bodies(file)),
            });
        }
    }
    claims
}

fn holds_bodies(file: &str) -> bool {
    let is_probe =
        file.starts_with(CORE_PROBES) || (file.starts_with("extensions/") && file.contains(PROBES));
    file.starts_with(CONFORMANCE) || is_probe
}

/// The ids of a `// covers` line, or `None` for any other line.
fn covers(line: &str) -> Option<Vec<String>> {
    let ids = line.strip_prefix("// covers ")?;
    let split = ids.split([' ', ',']).filter(|id| !id.is_empty());
    Some(split.map(str::to_owned).collect())
}

fn test_below(lines: &[&str], body_is_enough: bool) -> Option<String> {
    let mut is_test = body_is_enough;
    let code = lines
        .iter()
        .filter(|line| !line.starts_with("//") && !line.is_empty());
    for line in code.take(REACH) {
        is_test |= line.starts_with("#[test]");
        if let Some(name) = function(line) {
            return is_test.then(|| name.to_owned());
        }
    }
    None
}

/// The name of the function whose definition begins in this line.
fn function(line: &str) -> Option<&str> {
    let (before, after) = line.split_once("fn ")?;
    let is_head = |word: &str| {
        matches!(word, "async" | "unsafe" | "const") || word.starts_with("pub") || word == "#[test]"
    };
    if !before.split_whitespace().all(is_head) {
        return None;
    }
    let name = after
        .split(|c: char| !c.is_alphanumeric() && c != '_')
        .next()?;
    (!name.is_empty()).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(file: &str, text: &str) -> Vec<(Vec<String>, Option<String>)> {
        scan_text(file, text)
            .into_iter()
            .map(|claim| (claim.ids, claim.test))
            .collect()
    }

    fn one(file: &str, text: &str) -> Option<String> {
        let mut found = found(file, text);
        assert_eq!(found.len(), 1);
        found.remove(0).1
    }

    #[test]
    fn a_test_is_found_past_comments_and_attributes() {
        let text = "  // covers 2.24, 2.25\n  /// Doc.\n  #[ignore]\n  #[test]\n  fn fence() {}\n";
        let ids = vec!["2.24".to_owned(), "2.25".to_owned()];
        assert_eq!(found("a.rs", text), [(ids, Some("fence".to_owned()))]);
    }

    #[test]
    fn several_lines_belong_to_one_test() {
        let text = "// covers 2.24\n// covers 3.S\n#[test]\nfn both() {}\n";
        let tests: Vec<_> = found("a.rs", text)
            .into_iter()
            .map(|(_, test)| test)
            .collect();
        assert_eq!(tests, [Some("both".to_owned()), Some("both".to_owned())]);
    }

    #[test]
    fn a_function_that_is_no_test_covers_nothing() {
        assert_eq!(
            one(
                "a.rs",
                "// covers 2.24\nfn helper() {}\n#[test]\nfn t() {}\n"
            ),
            None
        );
    }

    #[test]
    fn a_test_out_of_reach_covers_nothing() {
        let far = "let a = 1;\n".repeat(REACH);
        assert_eq!(
            one(
                "a.rs",
                &format!("// covers 2.24\n{far}#[test]\nfn t() {{}}\n")
            ),
            None
        );
    }

    #[test]
    fn a_conformance_body_needs_no_attribute() {
        let text = "// covers 2.24\npub(crate) fn fence(device: &Device) {}\n";
        assert_eq!(
            one("tests/conformance/src/keys.rs", text),
            Some("fence".to_owned())
        );
        assert_eq!(one("tests/other/src/keys.rs", text), None);
        let probe = Some("fence".to_owned());
        assert_eq!(one("extensions/bmme/src/probes/keys.rs", text), probe);
        assert_eq!(one("extensions/bmme/src/handle.rs", text), None);
    }

    #[test]
    fn a_call_or_a_word_is_no_definition() {
        assert_eq!(function("let f: fn (u8) = g;"), None);
        assert_eq!(function("pub unsafe fn f<T>() {"), Some("f"));
    }
}
