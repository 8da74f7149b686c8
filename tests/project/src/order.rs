//! The order of the folders. The table in `docs/architecture.md` lists them from the ground up.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::{folder_of, shipped_dependencies, text};

/// The folders of tests, whose packages may depend on everything.
const TESTS: &str = "tests";

/// The rows of the table, each with its folders.
#[derive(Debug)]
pub struct Order(Vec<Vec<String>>);

impl Order {
    /// The order of a checkout.
    ///
    /// # Panics
    /// Its `docs/architecture.md` cannot be read.
    pub fn of(root: &Path) -> Self {
        let page = fs::read_to_string(root.join("docs/architecture.md")).unwrap();
        Self(page.lines().filter_map(folders).collect())
    }

    /// The packages that no row has, by their folders.
    pub fn without_row<'p>(&self, root: &Path, packages: &'p [Value]) -> Vec<&'p str> {
        let names = packages.iter().filter(|package| {
            let folder = folder_of(package);
            self.row_of(folder.strip_prefix(root).unwrap()).is_none()
        });
        names.map(|package| text(package, "name")).collect()
    }

    /// The dependencies, other than those for tests, on a package whose folder stands further down: one line each.
    pub fn arrows_back(&self, root: &Path, packages: &[Value]) -> Vec<String> {
        let mut found = Vec::new();
        for package in packages {
            let folder = folder_of(package);
            let folder = folder.strip_prefix(root).unwrap();
            if folder.starts_with(TESTS) {
                continue;
            }
            for dependency in shipped_dependencies(package) {
                let Some(path) = dependency["path"].as_str() else {
                    continue;
                };
                let needed = Path::new(path).strip_prefix(root).unwrap();
                if self.is_back(folder, needed) {
                    found.push(format!("{} -> {}", folder.display(), needed.display()));
                }
            }
        }
        found
    }

    fn is_back(&self, folder: &Path, needed: &Path) -> bool {
        let rows = self.row_of(folder).zip(self.row_of(needed));
        rows.is_some_and(|(own, needed)| needed > own)
    }

    /// The row of a folder: the one that lists it, else the one that lists the nearest folder above it.
    fn row_of(&self, folder: &Path) -> Option<usize> {
        let is_listed = |above: &Path| {
            let mut rows = self.0.iter();
            rows.position(|row| row.iter().any(|listed| Path::new(listed) == above))
        };
        folder.ancestors().find_map(is_listed)
    }
}

/// The folders in the first cell of a line of the table.
fn folders(line: &str) -> Option<Vec<String>> {
    let cell = line.strip_prefix("| `")?.split('|').next()?;
    let names = cell.split('`').filter_map(|word| word.strip_suffix('/'));
    let folders: Vec<_> = names.map(str::to_owned).collect();
    (!folders.is_empty()).then_some(folders)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order() -> Order {
        let page = "| folder | crate |\n| --- | --- |\n| `a/` | `x` |\n| `b/`, `c/` | same |\n| `a/d/` | `y` |\n";
        Order(page.lines().filter_map(folders).collect())
    }

    #[test]
    fn a_folder_belongs_to_the_nearest_one_that_is_listed() {
        let row = |folder: &str| order().row_of(Path::new(folder));
        assert_eq!(row("a/"), Some(0));
        assert_eq!(row("a/e/f"), Some(0));
        assert_eq!(row("a/d/f"), Some(2));
        assert_eq!(row("c"), Some(1));
        assert_eq!(row("ab"), None);
    }

    #[test]
    fn an_arrow_to_a_later_row_goes_back() {
        let is_back = |from: &str, to: &str| order().is_back(Path::new(from), Path::new(to));
        assert!(is_back("a", "b") && is_back("c", "a/d"));
        assert!(!is_back("b", "c") && !is_back("b", "a") && !is_back("a/d", "b/e"));
    }
}
