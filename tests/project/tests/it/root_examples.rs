//! Every name of the root has an example: a program that uses it finds lines to begin with.

use std::path::PathBuf;

use project::source::{Documented, Name, documentation, examples, parse, public_names};
use project::{files, workspace_root};

#[test]
fn every_name_of_the_root_has_an_example() {
    let without = [names_without("verbs-api"), names_without("polyverbs")].concat();
    assert!(without.is_empty(), "no example: {without:#?}");
}

fn names_without(package: &str) -> Vec<String> {
    let sources = Sources::of(package);
    let mut names = public_names(&parse(&sources.folder.join("lib.rs")).items);
    // A glob re-exports the names of another package.
    names.retain(|it| it.name != "*");
    assert!(!names.is_empty(), "{package}");
    names.retain(|it| !sources.show(it));
    names.into_iter().map(|it| it.path.join("::")).collect()
}

/// The documentation in the sources of a package, by files.
struct Sources {
    folder: PathBuf,
    files: Vec<(PathBuf, Vec<Documented>)>,
}

impl Sources {
    fn of(package: &str) -> Self {
        let folder = workspace_root().join(package).join("src");
        let files = files(&folder, "rs").into_iter();
        let files = files.map(|path| (path.clone(), documentation(&parse(&path))));
        Self {
            files: files.collect(),
            folder,
        }
    }

    /// Whether the name has an example at its declaration, which is in the root or in the module from which the root imports
    /// it. A module in files of its own needs none, because a program uses the names in it.
    fn show(&self, name: &Name) -> bool {
        match &name.path[..] {
            [declared] => {
                self.module(declared).next().is_some() || self.has_example("lib", declared)
            }
            [module, .., declared] => self.has_example(module, declared),
            [] => false,
        }
    }

    fn has_example(&self, module: &str, name: &str) -> bool {
        let documentation = self.module(module).flatten();
        let mut own = documentation.filter(|it| it.name == name);
        own.any(|it| examples(&it.docs).any(|words| !words.contains("compile_fail")))
    }

    /// The documentation in each file of a module.
    fn module(&self, name: &str) -> impl Iterator<Item = &Vec<Documented>> {
        let module = self.folder.join(name);
        let files = self.files.iter().filter(move |(path, _)| {
            path.with_extension("") == module || path.starts_with(&module)
        });
        files.map(|(_, documentation)| documentation)
    }
}
