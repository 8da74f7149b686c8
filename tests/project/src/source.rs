//! Rust source as the checks read it: the paths that code names, its public names, its tests, its documentation.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use proc_macro2::{Delimiter, Group, TokenStream, TokenTree};
use quote::ToTokens;
use syn::parse::Parser;
use syn::punctuated::Punctuated;
use syn::spanned::Spanned;
use syn::{
    Attribute, Expr, ExprLit, File, Ident, Item, ItemConst, ItemEnum, ItemFn, ItemMod, ItemStatic,
    ItemStruct, ItemTrait, ItemType, ItemUnion, ItemUse, Lit, Meta, MetaNameValue, Token, UseTree,
    Visibility,
};

use crate::files;

/// One file of a folder of sources.
#[derive(Debug)]
pub struct Source {
    /// The path of the file.
    pub path: PathBuf,
    /// The module that the file is, from the root of its crate, if the folder has the root of a crate.
    pub module: Vec<String>,
    /// Whether the whole file is for tests: by its place, or because its module is declared for them.
    pub is_test: bool,
    /// The number of lines.
    pub lines: usize,
    /// The number of lines in items for tests.
    pub test_lines: usize,
    /// The paths that its other items name. Paths within the crate begin with `crate`.
    pub paths: BTreeSet<Vec<String>>,
    /// The names that its other items import.
    pub imports: Vec<Name>,
}

/// A name that an item brings into its module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Name {
    /// The name; `*` for all names of a module.
    pub name: String,
    /// The path from which it is imported; the name alone where it is declared.
    pub path: Vec<String>,
}

/// Documentation, and the item, the variant or the declaration within a macro that it belongs to.
#[derive(Debug)]
pub struct Documented {
    /// The name; empty for documentation at the top of a module.
    pub name: String,
    /// The lines.
    pub docs: Vec<String>,
}

/// The sources of a folder.
///
/// # Panics
/// A file cannot be read or parsed.
pub fn sources(folder: &Path) -> Vec<Source> {
    let mut sources = Vec::new();
    let mut test_modules = Vec::new();
    for path in files(folder, "rs") {
        let within = path.strip_prefix(folder).unwrap();
        let mut code = Code::default();
        let module = module_of(within);
        let file = parse(&path);
        code.add(&module, &file.items);
        test_modules.extend(
            code.test_modules
                .iter()
                .map(|name| children_of(&path).join(name)),
        );
        sources.push(Source {
            module,
            is_test: is_place_of_tests(within),
            lines: fs::read_to_string(&path).unwrap().lines().count(),
            test_lines: code.test_lines,
            paths: code.paths,
            imports: imports(&file.items),
            path,
        });
    }
    for source in &mut sources {
        let mut modules = test_modules.iter();
        source.is_test |= modules.any(|module| {
            source.path.with_extension("") == *module || source.path.starts_with(module)
        });
    }
    sources
}

/// A file of Rust.
///
/// # Panics
/// It cannot be read or parsed.
pub fn parse(path: &Path) -> File {
    let text = fs::read_to_string(path).unwrap();
    syn::parse_file(&text).unwrap_or_else(|error| {
        let at = error.span().start().line;
        panic!("{}:{at}: {error}", path.display())
    })
}

/// The names that the items of a file make public, without those that are hidden from its documentation.
pub fn public_names(items: &[Item]) -> Vec<Name> {
    let shown = items.iter().filter(|item| !is_hidden(item));
    shown.flat_map(public_names_of).collect()
}

/// Whether one of the items is a test, or has one in it. Tests that a macro writes for others do not count.
pub fn has_test(items: &[Item]) -> bool {
    items.iter().any(|item| match item {
        Item::Fn(function) => function.attrs.iter().any(|it| it.path().is_ident("test")),
        Item::Mod(ItemMod { content, .. }) => {
            content.as_ref().is_some_and(|(_, items)| has_test(items))
        }
        // A macro that is defined has a name, one that is called has none.
        Item::Macro(call) if call.ident.is_none() => marks_test(call.mac.tokens.clone()),
        _ => false,
    })
}

/// All documentation in a file.
pub fn documentation(file: &File) -> Vec<Documented> {
    let mut found = Vec::new();
    add_documentation(file.to_token_stream(), &mut found);
    found
}

/// The examples in documentation that rustdoc compiles, each by the words after its opening fence.
pub fn examples(docs: &[String]) -> impl Iterator<Item = &str> {
    let fences = docs.iter().filter_map(|line| line.strip_prefix("```"));
    fences.step_by(2).filter(|words| {
        let mut words = words.split(',');
        words.all(|word| {
            ["", "rust", "no_run", "should_panic", "compile_fail"].contains(&word)
                || word.starts_with('E')
        })
    })
}

/// The code of a file without its items for tests.
#[derive(Default)]
struct Code {
    paths: BTreeSet<Vec<String>>,
    test_lines: usize,
    // The modules in files of their own that are built for tests only.
    test_modules: Vec<String>,
}

impl Code {
    fn add(&mut self, module: &[String], items: &[Item]) {
        for item in items {
            let tokens = item.to_token_stream();
            match item {
                _ if self.counts_as_test(&tokens) => {
                    self.test_modules.extend(declared_module(item))
                }
                Item::Mod(ItemMod {
                    ident,
                    content: Some((_, items)),
                    ..
                }) => {
                    self.add(&[module, &[ident.to_string()]].concat(), items);
                }
                Item::Impl(block) => {
                    let mut block = block.clone();
                    block
                        .items
                        .retain(|member| !self.counts_as_test(&member.to_token_stream()));
                    self.add_paths(module, block.to_token_stream());
                }
                _ => self.add_paths(module, tokens),
            }
        }
    }

    /// Counts the lines of an item if it is for tests, and returns whether it is.
    fn counts_as_test(&mut self, item: &TokenStream) -> bool {
        let is_test = attributes(item).iter().any(is_for_tests);
        if is_test {
            let span = item.span();
            self.test_lines += span.end().line - span.start().line + 1;
        }
        is_test
    }

    fn add_paths(&mut self, module: &[String], code: TokenStream) {
        let mut paths = Vec::new();
        add_paths(code, &[], &mut paths);
        let paths = paths.into_iter().map(|path| from_root(module, path));
        self.paths.extend(paths.filter(|path| !path.is_empty()));
    }
}

/// The paths in tokens, which may be those of a macro. `above` is the path before a group of imports.
fn add_paths(code: TokenStream, above: &[String], found: &mut Vec<Vec<String>>) {
    let mut path = above.to_vec();
    let mut colons = 0;
    for token in code {
        let continues = colons == 2;
        colons = match &token {
            TokenTree::Punct(mark) if mark.as_char() == ':' => colons + 1,
            _ => 0,
        };
        match token {
            TokenTree::Ident(name) => {
                if !continues {
                    found.push(std::mem::replace(&mut path, above.to_vec()));
                }
                path.push(name.to_string());
            }
            TokenTree::Group(group) => {
                let above = if continues { &path[..] } else { &[] };
                add_paths(group.stream(), above, found);
            }
            _ if colons > 0 => {}
            _ => found.push(std::mem::replace(&mut path, above.to_vec())),
        }
    }
    found.push(path);
}

/// A path that a module names; one within the crate is spelled out from the root of the crate.
fn from_root(module: &[String], path: Vec<String>) -> Vec<String> {
    let own = usize::from(path.first().is_some_and(|first| first == "self"));
    let up = path[own..]
        .iter()
        .take_while(|part| *part == "super")
        .count();
    if own + up == 0 {
        return path;
    }
    let home = &module[..module.len().saturating_sub(up)];
    [&["crate".to_owned()][..], home, &path[own + up..]].concat()
}

fn module_of(file: &Path) -> Vec<String> {
    let file = file.with_extension("");
    let names = file.iter().map(|name| name.to_string_lossy().into_owned());
    let mut module: Vec<_> = names.collect();
    let is_root = module.len() == 1 && module[0] == "lib";
    module.pop_if(|last| last == "mod" || is_root);
    module
}

/// The folder of the modules that a file declares.
fn children_of(path: &Path) -> PathBuf {
    let stem = path.file_stem().unwrap();
    match ["lib", "main", "mod"].iter().any(|root| stem == *root) {
        true => path.with_file_name(""),
        false => path.with_extension(""),
    }
}

fn is_place_of_tests(file: &Path) -> bool {
    file.iter().any(|part| part == "tests") || file.ends_with("tests.rs")
}

fn declared_module(item: &Item) -> Option<String> {
    match item {
        Item::Mod(ItemMod {
            ident,
            content: None,
            ..
        }) => Some(ident.to_string()),
        _ => None,
    }
}

/// The attributes with which an item begins.
fn attributes(item: &TokenStream) -> Vec<Attribute> {
    let is_of_attribute = |token: &TokenTree| match token {
        TokenTree::Punct(mark) => mark.as_char() == '#',
        TokenTree::Group(group) => group.delimiter() == Delimiter::Bracket,
        _ => false,
    };
    let tokens = item.clone().into_iter().take_while(is_of_attribute);
    Attribute::parse_outer.parse2(tokens.collect()).unwrap()
}

fn is_for_tests(attribute: &Attribute) -> bool {
    let condition = attribute.parse_args();
    attribute.path().is_ident("cfg") && condition.is_ok_and(|it| holds_in_tests_only(&it))
}

fn holds_in_tests_only(condition: &Meta) -> bool {
    let all = Punctuated::<Meta, Token![,]>::parse_terminated;
    match condition {
        Meta::Path(name) => name.is_ident("test"),
        Meta::List(list) if list.path.is_ident("all") => {
            let parts = list.parse_args_with(all);
            parts.is_ok_and(|parts| parts.iter().any(holds_in_tests_only))
        }
        _ => false,
    }
}

fn is_hidden(item: &Item) -> bool {
    let is = |word: Ident| word == "hidden";
    let mut attributes = attributes(&item.to_token_stream()).into_iter();
    attributes.any(|it| it.path().is_ident("doc") && it.parse_args().is_ok_and(is))
}

fn public_names_of(item: &Item) -> Vec<Name> {
    let (visibility, name) = match item {
        Item::Use(ItemUse {
            vis: Visibility::Public(_),
            tree,
            ..
        }) => return imported(tree, &[]),
        Item::Const(ItemConst { vis, ident, .. })
        | Item::Enum(ItemEnum { vis, ident, .. })
        | Item::Mod(ItemMod { vis, ident, .. })
        | Item::Static(ItemStatic { vis, ident, .. })
        | Item::Struct(ItemStruct { vis, ident, .. })
        | Item::Trait(ItemTrait { vis, ident, .. })
        | Item::Type(ItemType { vis, ident, .. })
        | Item::Union(ItemUnion { vis, ident, .. }) => (vis, ident),
        Item::Fn(ItemFn { vis, sig, .. }) => (vis, &sig.ident),
        _ => return Vec::new(),
    };
    let is_public = matches!(visibility, Visibility::Public(_));
    let declared = is_public.then(|| named(name, &[], name));
    declared.into_iter().collect()
}

fn imports(items: &[Item]) -> Vec<Name> {
    let trees = items.iter().filter_map(|item| match item {
        Item::Use(ItemUse { tree, .. }) => Some(tree),
        _ => None,
    });
    trees.flat_map(|tree| imported(tree, &[])).collect()
}

/// The names that a tree of `use` imports from below `above`.
fn imported(tree: &UseTree, above: &[String]) -> Vec<Name> {
    match tree {
        UseTree::Path(part) => imported(&part.tree, &[above, &[part.ident.to_string()]].concat()),
        UseTree::Group(group) => {
            let trees = group.items.iter();
            trees.flat_map(|tree| imported(tree, above)).collect()
        }
        UseTree::Name(name) if name.ident == "self" => match above.split_last() {
            Some((name, above)) => vec![named(name, above, name)],
            None => Vec::new(),
        },
        UseTree::Name(name) => vec![named(&name.ident, above, &name.ident)],
        UseTree::Rename(it) if it.rename == "_" => Vec::new(),
        UseTree::Rename(it) => vec![named(&it.rename, above, &it.ident)],
        UseTree::Glob(_) => vec![named("*", above, "*")],
    }
}

fn named(name: impl ToString, above: &[String], declared: impl ToString) -> Name {
    Name {
        name: name.to_string(),
        path: [above, &[declared.to_string()]].concat(),
    }
}

/// Whether tokens of a macro have the mark of a test in them.
fn marks_test(code: TokenStream) -> bool {
    let mut groups = code.into_iter().filter_map(|token| match token {
        TokenTree::Group(group) => Some(group),
        _ => None,
    });
    groups.any(|group| match group.delimiter() {
        Delimiter::Bracket => group.stream().to_string() == "test",
        _ => marks_test(group.stream()),
    })
}

fn add_documentation(code: TokenStream, found: &mut Vec<Documented>) {
    let (mut above, mut inner) = (Vec::new(), Vec::new());
    let mut mark = ' ';
    for token in code {
        match token {
            TokenTree::Punct(punct) => {
                mark = punct.as_char();
                continue;
            }
            TokenTree::Group(group) => match (documented(&group), mark) {
                (Some(lines), '#') => above.extend(lines),
                (Some(lines), '!') => inner.extend(lines),
                _ => add_documentation(group.stream(), found),
            },
            TokenTree::Ident(name) if !is_keyword(&name) && !above.is_empty() => {
                let docs = std::mem::take(&mut above);
                found.push(Documented {
                    name: name.to_string(),
                    docs,
                });
            }
            _ => {}
        }
        mark = ' ';
    }
    found.push(Documented {
        name: String::new(),
        docs: inner,
    });
}

/// The lines of documentation that an attribute holds.
fn documented(attribute: &Group) -> Option<Vec<String>> {
    let MetaNameValue { path, value, .. } = match attribute.delimiter() {
        Delimiter::Bracket => syn::parse2(attribute.stream()).ok()?,
        _ => return None,
    };
    match value {
        Expr::Lit(ExprLit {
            lit: Lit::Str(text),
            ..
        }) if path.is_ident("doc") => Some(
            text.value()
                .lines()
                .map(|line| line.trim().to_owned())
                .collect(),
        ),
        _ => None,
    }
}

fn is_keyword(word: &Ident) -> bool {
    syn::parse2::<Ident>(word.to_token_stream()).is_err()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(text: &str) -> File {
        syn::parse_file(text).unwrap()
    }

    fn code(module: &[&str], text: &str) -> Code {
        let module: Vec<_> = module.iter().map(|name| (*name).to_owned()).collect();
        let mut code = Code::default();
        code.add(&module, &file(text).items);
        code
    }

    fn has(code: &Code, path: &str) -> bool {
        let parts: Vec<_> = path.split("::").map(str::to_owned).collect();
        code.paths.contains(&parts)
    }

    #[test]
    fn comments_and_literals_name_no_path() {
        let text = "/* std::a */ fn f<'a>() { g(\"std::b\", r#\"std::\"c\"#, b'\\''); } // std::d";
        let code = code(&[], text);
        assert!(has(&code, "g") && !code.paths.iter().any(|path| path[0] == "std"));
    }

    #[test]
    fn paths_of_groups_and_of_macros_are_seen() {
        let text = "use std::{fmt, fs::{self, File},\n net}; fn f() { say!(crate::{a, b::c}); }
            macro_rules! m { () => { $crate::d::e() } }";
        let code = code(&[], text);
        let paths = [
            "std::fs",
            "std::fs::File",
            "std::net",
            "crate::a",
            "crate::b::c",
            "crate::d::e",
        ];
        assert!(
            paths.iter().all(|path| has(&code, path)),
            "{:?}",
            code.paths
        );
    }

    #[test]
    fn paths_to_parents_begin_at_the_root() {
        let text = "use super::x; use super::super::y; use self::z; mod inner { use super::w; }";
        let code = code(&["a", "b"], text);
        let paths = [
            "crate::a::x",
            "crate::y",
            "crate::a::b::z",
            "crate::a::b::w",
        ];
        assert!(
            paths.iter().all(|path| has(&code, path)),
            "{:?}",
            code.paths
        );
    }

    #[test]
    fn items_for_tests_are_lines_of_tests_and_name_no_path() {
        let text = "fn a() {}\n#[cfg(test)]\nmod tests {\n    use b::c;\n}\n#[cfg(test)]\nmod far;\n
            impl A {\n    #[cfg(all(test, not(loom)))]\n    fn d() { e::f() }\n    fn g() { h::i() }\n}\n
            #[cfg(any(test, unix))] fn j() { k::l() } #[cfg(not(test))] fn m() { n::o() }";
        let code = code(&[], text);
        assert_eq!(
            (code.test_lines, &code.test_modules[..]),
            (8, &["far".to_owned()][..])
        );
        assert!(!has(&code, "b::c") && !has(&code, "e::f"));
        assert!(has(&code, "h::i") && has(&code, "k::l") && has(&code, "n::o"));
    }

    #[test]
    fn public_names_are_those_that_a_glob_import_brings() {
        let items = file(
            "#![deny(unsafe_code)] mod a; pub mod b; pub(crate) mod c; use d::E;
            pub use f::{self, G, h::{I as J, K}, L as _,};
            #[doc()] #[doc(hidden)] pub use m; #[cfg(feature = \"x\")] pub unsafe fn n<T>(o: T) { p(); }
            #[derive(Debug)] pub struct Q(pub u8); pub const fn r() {} impl Q { pub fn s() {} } pub use t::*;",
        )
        .items;
        let public = public_names(&items);
        let names: Vec<_> = public.iter().map(|it| &it.name[..]).collect();
        assert_eq!(names, ["b", "f", "G", "J", "K", "n", "Q", "r", "*"]);
        assert_eq!(public[3].path, ["f", "h", "I"]);
    }

    #[test]
    fn tests_are_found_but_in_macros_that_write_them() {
        assert!(has_test(&file("mod a { #[test] fn b() {} }").items));
        assert!(has_test(
            &file("proptest! { #[test] fn a(b in 0..1) {} }").items
        ));
        assert!(!has_test(
            &file("macro_rules! a { () => { #[test] fn b() {} } } fn test() {}").items
        ));
    }

    #[test]
    fn documentation_belongs_to_the_name_that_follows() {
        let text = "//! Top.\n/// One.\n///\n/// ```no_run\n/// b();\n/// ```\n#[derive(Debug)]\npub struct A;
            enum B {\n    /// Two.\n    A,\n}\n/// Three.\nfn b() { A }\nflags! {\n    /// Four.\n    pub struct C;\n}\n";
        let documentation = documentation(&file(text));
        let of = |name| documentation.iter().filter(move |it| it.name == name);
        let docs: Vec<_> = of("A").map(|it| &it.docs[..]).collect();
        assert_eq!(
            (&docs[0][0][..], docs[1]),
            ("One.", &["Two.".to_owned()][..])
        );
        assert_eq!(examples(docs[0]).collect::<Vec<_>>(), ["no_run"]);
        assert_eq!(of("C").next().unwrap().docs, ["Four."]);
        assert_eq!(of("").flat_map(|it| &it.docs).collect::<Vec<_>>(), ["Top."]);
        assert!(of("D").next().is_none());
    }

    #[test]
    fn only_fences_of_rust_begin_examples() {
        let lines =
            "```text\n```\n```compile_fail,E0382\n```\n```ignore\n```\n```\n```\n```sh\n```";
        let docs: Vec<_> = lines.lines().map(str::to_owned).collect();
        assert_eq!(
            examples(&docs).collect::<Vec<_>>(),
            ["compile_fail,E0382", ""]
        );
    }
}
