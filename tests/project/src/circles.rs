//! Circles of modules: modules of a library that depend on each other, directly or through others.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde_json::Value;

use crate::source::{Source, sources};
use crate::{folder_of, text};

type Graph = BTreeMap<String, BTreeSet<String>>;

/// Modules of the same parent that depend on each other.
#[derive(Debug)]
pub struct Circle {
    /// The parent, from the library on.
    pub parent: String,
    /// The modules: at least two.
    pub modules: BTreeSet<String>,
}

impl fmt::Display for Circle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {:?}", self.parent, self.modules)
    }
}

/// The circles in the libraries of these packages.
pub fn circles(packages: &[Value]) -> Vec<Circle> {
    let libraries = packages
        .iter()
        .filter(|package| folder_of(package).join("src/lib.rs").exists());
    libraries
        .flat_map(|package| circles_of(text(package, "name"), &library(package)))
        .collect()
}

/// The sources of a library, without those of programs next to it.
fn library(package: &Value) -> Vec<Source> {
    let mut sources = sources(&folder_of(package).join("src"));
    sources.retain(|source| {
        let first = source.module.first().map_or("", String::as_str);
        !source.is_test && !["bin", "main"].contains(&first)
    });
    sources
}

fn circles_of(library: &str, sources: &[Source]) -> Vec<Circle> {
    let mut found = Vec::new();
    for parent in parents(sources) {
        let name = [&[library.to_owned()][..], &parent].concat().join("::");
        let circles = circles_in(&graph(sources, &parent)).into_iter();
        found.extend(circles.map(|modules| Circle {
            parent: name.clone(),
            modules,
        }));
    }
    found
}

/// The modules that have modules in other files, the root among them.
fn parents(sources: &[Source]) -> BTreeSet<Vec<String>> {
    let above = |source: &Source| source.module.split_last().map(|(_, above)| above.to_vec());
    sources.iter().filter_map(above).collect()
}

/// The other modules that each module in a parent depends on; a module is a file, or a folder as a whole.
fn graph(sources: &[Source], parent: &[String]) -> Graph {
    let inside = |source: &Source| source.module.strip_prefix(parent)?.first().cloned();
    let mut graph: Graph = sources
        .iter()
        .filter_map(inside)
        .map(|name| (name, BTreeSet::new()))
        .collect();
    let modules: BTreeSet<_> = graph.keys().cloned().collect();
    let imported = imported_by(sources.iter().find(|source| source.module == parent));
    for source in sources {
        let Some(own) = inside(source) else { continue };
        for named in named_in(parent, source) {
            let module = imported.get(named).map_or(named, String::as_str);
            if modules.contains(module) && module != own {
                graph.get_mut(&own).unwrap().insert(module.to_owned());
            }
        }
    }
    graph
}

/// The names that a module imports from its inner modules, each with its module.
fn imported_by(parent: Option<&Source>) -> BTreeMap<&str, String> {
    let imports = parent.into_iter().flat_map(|parent| &parent.imports);
    let mut names = BTreeMap::new();
    for import in imports {
        let mut parts = import.path.iter().filter(|part| *part != "self");
        if let (Some(module), Some(_)) = (parts.next(), parts.next()) {
            names.insert(&import.name[..], module.clone());
        }
    }
    names
}

/// The names of a parent that a file of its inner modules uses.
fn named_in<'s>(parent: &[String], source: &'s Source) -> impl Iterator<Item = &'s str> {
    let home = [&["crate".to_owned()][..], parent].concat();
    let within = source
        .paths
        .iter()
        .filter_map(move |path| path.strip_prefix(&home[..])?.first());
    within.map(String::as_str)
}

/// The sets of modules that depend on each other.
fn circles_in(graph: &Graph) -> BTreeSet<BTreeSet<String>> {
    let reached: BTreeMap<_, _> = graph
        .keys()
        .map(|from| (from, reach(graph, from)))
        .collect();
    let circle = |(from, all): (&&String, &BTreeSet<String>)| {
        let is_back = |to: &&String| reached[*to].contains(*from);
        all.iter().filter(is_back).cloned().collect()
    };
    let circles = reached.iter().map(circle);
    circles
        .filter(|circle: &BTreeSet<String>| circle.len() > 1)
        .collect()
}

fn reach(graph: &Graph, from: &str) -> BTreeSet<String> {
    let mut reached = BTreeSet::new();
    let mut next: Vec<_> = graph[from].iter().collect();
    while let Some(module) = next.pop() {
        if reached.insert(module.clone()) {
            next.extend(&graph[module]);
        }
    }
    reached
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(of: &[&str]) -> BTreeSet<String> {
        of.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn a_circle_has_the_modules_that_reach_each_other() {
        let graph = Graph::from([
            ("a".into(), set(&["b"])),
            ("b".into(), set(&["c"])),
            ("c".into(), set(&["b", "d"])),
            ("d".into(), set(&[])),
        ]);
        assert_eq!(circles_in(&graph), BTreeSet::from([set(&["b", "c"])]));
    }

    #[test]
    fn a_name_that_the_parent_imports_leads_to_its_module() {
        let folder = tempfile::tempdir().unwrap();
        let files = [
            (
                "lib.rs",
                "mod a; mod b; mod c; pub use self::b::{B, C as D};",
            ),
            ("a.rs", "use crate::D;"),
            ("b.rs", "fn f() { crate::a::g() }"),
            ("c.rs", "use crate::B;"),
        ];
        for (name, text) in files {
            std::fs::write(folder.path().join(name), text).unwrap();
        }
        let circles = circles_of("l", &sources(folder.path()));
        let [circle] = &circles[..] else {
            panic!("{circles:?}");
        };
        assert_eq!(
            (&circle.parent[..], &circle.modules),
            ("l", &set(&["a", "b"]))
        );
    }
}
