//! The modules of a crate do not depend on each other in large circles: the reader of one has to read few others with it.

use project::circles::circles;
use project::{packages, workspace_root};

/// The largest number of modules that may depend on each other.
const MOST: usize = 2;

#[test]
fn no_circle_has_more_than_two_modules() {
    let circles = circles(&packages(&workspace_root()));
    let large = circles.iter().filter(|circle| circle.modules.len() > MOST);
    let large: Vec<_> = large.map(ToString::to_string).collect();
    assert!(large.is_empty(), "move an item out of each of: {large:#?}");
}
