//! The modules of a crate do not depend on each other in circles: the reader of one has to read few others with it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::slice;

use project::packages;
use project::source::{public_paths, shipped_code, with_groups_spelled_out};

/// The largest number of modules that may depend on each other.
const MOST: usize = 3;

type Graph = BTreeMap<String, BTreeSet<String>>;

#[test]
fn no_circle_of_modules_is_larger_than_three() {
    let mut found = Vec::new();
    for (name, src) in crates() {
        let sources = sources(&src);
        for parent in parents(&sources) {
            let circles = circles(&graph(&sources, &parent));
            let place = [slice::from_ref(&name), &parent[..]].concat().join("::");
            let large = circles.into_iter().filter(|all| all.len() > MOST);
            found.extend(large.map(|all| format!("{place}: {} {all:?}", all.len())));
        }
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn a_circle_is_found_with_the_modules_that_are_in_it() {
    let needs = |of: &[&str]| of.iter().map(|name| (*name).to_owned()).collect();
    let graph = Graph::from([
        ("a".into(), needs(&["b"])),
        ("b".into(), needs(&["c"])),
        ("c".into(), needs(&["b", "d"])),
        ("d".into(), needs(&[])),
    ]);
    let expected: BTreeSet<String> = needs(&["b", "c"]);
    assert_eq!(circles(&graph), [expected]);
}

/// The libraries of the workspace: name and folder of the sources.
fn crates() -> Vec<(String, PathBuf)> {
    let packages = packages().into_iter();
    let crates = packages.map(|package| {
        let manifest = Path::new(package["manifest_path"].as_str().unwrap());
        let name = package["name"].as_str().unwrap().to_owned();
        (name, manifest.with_file_name("src"))
    });
    crates
        .filter(|(_, src)| src.join("lib.rs").exists())
        .collect()
}

/// A file of a crate: the module that it is, and its code with every path from the root.
struct Source {
    module: Vec<String>,
    code: String,
}

fn sources(src: &Path) -> Vec<Source> {
    let sources = shipped_code(src).into_iter().filter_map(|(path, code)| {
        let within = path.strip_prefix(src).unwrap().with_extension("");
        let mut module: Vec<_> = within
            .iter()
            .map(|name| name.to_str().unwrap().to_owned())
            .collect();
        module.pop_if(|last| last == "mod" || (last == "lib" && within.components().count() == 1));
        let is_program = module
            .first()
            .is_some_and(|first| first == "main" || first == "bin");
        let code = from_root(&module, &code);
        (!is_program).then_some(Source { module, code })
    });
    sources.collect()
}

/// Rewrites paths to parents as paths from the root.
fn from_root(module: &[String], code: &str) -> String {
    let mut code: String = code.split_whitespace().collect::<Vec<_>>().join(" ");
    for up in (1..=module.len()).rev() {
        code = code.replace(&"super::".repeat(up), &prefix(&module[..module.len() - up]));
    }
    code
}

fn prefix(module: &[String]) -> String {
    let names = module.iter().map(|name| format!("{name}::"));
    format!("crate::{}", names.collect::<String>())
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
    let given_out = sources.iter().find(|source| source.module == parent);
    let given_out = given_out
        .map(|source| given_out_by(&source.code))
        .unwrap_or_default();
    for source in sources {
        let Some(own) = inside(source) else { continue };
        for named in named_in(parent, &source.code) {
            let module = given_out.get(&named).unwrap_or(&named);
            if modules.contains(module) && *module != own {
                graph.get_mut(&own).unwrap().insert(module.clone());
            }
        }
    }
    graph
}

/// The names that a module re-exports from its inner modules, each with its module.
fn given_out_by(code: &str) -> BTreeMap<String, String> {
    let mut code = code
        .replace("pub(crate) use", "use")
        .replace("pub(super) use", "use");
    code = code.replace("pub use", "use").replace("use ", "pub use ");
    let mut names = BTreeMap::new();
    for path in public_paths(&code) {
        let path = path.trim_start_matches("self::").to_owned();
        if let Some((module, rest)) = path.split_once("::") {
            let name = rest.rsplit([' ', ':']).next().unwrap_or(rest);
            names.insert(name.to_owned(), module.to_owned());
        }
    }
    names
}

/// The modules of a parent that the code names.
fn named_in(parent: &[String], code: &str) -> BTreeSet<String> {
    let mut code = code.to_owned();
    for len in 0..=parent.len() {
        code = with_groups_spelled_out(&code, prefix(&parent[..len]).trim_end_matches("::"));
    }
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let prefix = prefix(parent);
    let behind = code.match_indices(&prefix).filter(|(at, _)| {
        let before = code[..*at].chars().next_back();
        !before.is_some_and(|c| is_word(c) || c == ':')
    });
    let names = behind.map(|(at, token)| {
        let rest = &code[at + token.len()..];
        rest.split(|c| !is_word(c))
            .next()
            .unwrap_or(rest)
            .to_owned()
    });
    names.filter(|name| !name.is_empty()).collect()
}

/// The sets of modules that depend on each other, directly or indirectly; the largest circle first.
fn circles(graph: &Graph) -> Vec<BTreeSet<String>> {
    let reached: BTreeMap<_, _> = graph
        .keys()
        .map(|from| (from, reach(graph, from)))
        .collect();
    let mut circles = BTreeSet::new();
    for (from, all) in &reached {
        let is_back = |to: &&String| reached[*to].contains(*from);
        let circle: BTreeSet<_> = all.iter().filter(is_back).cloned().collect();
        if circle.len() > 1 {
            circles.insert(circle);
        }
    }
    let mut circles: Vec<_> = circles.into_iter().collect();
    circles.sort_by_key(|circle| std::cmp::Reverse(circle.len()));
    circles
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
