//! The size of a checkout, in the figures by which versions of it are compared.

use std::fmt;
use std::fs;
use std::path::Path;

use serde::Serialize;
use toml::Table;

use crate::circles::circles;
use crate::order::Order;
use crate::source::{Source, sources};
use crate::{files, packages};

/// The figures.
#[derive(Debug, Serialize)]
pub struct Size {
    /// Lines of Rust that are not of tests, comments and empty ones among them.
    pub product_lines: usize,
    /// Lines of Rust below a folder `tests`, in a file `tests.rs`, in an item for tests, or in the file of such a module.
    pub test_lines: usize,
    /// Packages of the workspace.
    pub packages: usize,
    /// Packages outside of the workspace.
    pub packages_outside: usize,
    /// Circles of modules in the libraries of the workspace.
    pub circles: usize,
    /// The modules of the largest circle.
    pub largest_circle: usize,
    /// Dependencies that go against the order of the folders.
    pub arrows_back: usize,
}

impl Size {
    /// The figures of the checkout in a folder, whose path is absolute.
    ///
    /// # Panics
    /// The folder has no workspace, or a file in it cannot be read or parsed.
    pub fn of(root: &Path) -> Self {
        let packages = packages(root);
        let circles = circles(&packages);
        let lines = sources(root).iter().map(lines).collect::<Vec<_>>();
        Self {
            product_lines: lines.iter().map(|(product, _)| product).sum(),
            test_lines: lines.iter().map(|(_, tests)| tests).sum(),
            packages: packages.len(),
            packages_outside: manifests_of_packages(root) - packages.len(),
            circles: circles.len(),
            largest_circle: circles.iter().map(|it| it.modules.len()).max().unwrap_or(0),
            arrows_back: Order::of(root).arrows_back(root, &packages).len(),
        }
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "lines of product    {:>7}", self.product_lines)?;
        writeln!(f, "lines of tests      {:>7}", self.test_lines)?;
        writeln!(
            f,
            "crates              {:>7}, and {} outside of the workspace",
            self.packages, self.packages_outside
        )?;
        writeln!(
            f,
            "circles of modules  {:>7}, the largest of {}",
            self.circles, self.largest_circle
        )?;
        write!(f, "arrows back         {:>7}", self.arrows_back)
    }
}

/// The lines of product and of tests in a file.
fn lines(source: &Source) -> (usize, usize) {
    match source.is_test {
        true => (0, source.lines),
        false => (source.lines - source.test_lines, source.test_lines),
    }
}

fn manifests_of_packages(root: &Path) -> usize {
    let mut manifests = files(root, "toml");
    manifests.retain(|path| {
        let is_package = |text: String| text.parse::<Table>().unwrap().contains_key("package");
        path.ends_with("Cargo.toml") && is_package(fs::read_to_string(path).unwrap())
    });
    manifests.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_of_tests_by_its_file_or_by_its_item() {
        let folder = tempfile::tempdir().unwrap();
        let files = [
            ("a/tests/b.rs", "fn c() {}\n\n"),
            ("d/tests.rs", "// e\n"),
            (
                "f/mod.rs",
                "// g\n#[cfg(test)]\nmod h;\n#[cfg(test)]\nfn i() {\n}\nfn j() {}\n",
            ),
            ("f/h.rs", "fn k() {}\n"),
            ("f/h/l.rs", "fn m() {}\n"),
        ];
        for (name, text) in files {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let lines: Vec<_> = sources(folder.path()).iter().map(lines).collect();
        assert_eq!(lines, [(0, 2), (0, 1), (0, 1), (0, 1), (2, 5)]);
    }
}
