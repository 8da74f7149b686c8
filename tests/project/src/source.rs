//! Rust source reduced to the code that ships: no comments, no literals, no test items.

use std::fs;
use std::path::{Path, PathBuf};

/// Blanks comments, string literals and character literals; the line structure stays.
pub fn without_comments_and_literals(text: &str) -> String {
    let chars: Vec<char> = text.chars().collect();
    let mut out = String::with_capacity(text.len());
    let mut at = 0;
    while at < chars.len() {
        match literal_or_comment(&chars, at) {
            Some(end) => {
                out.extend(chars[at..end].iter().filter(|&&c| c == '\n'));
                out.push(' ');
                at = end;
            }
            None => {
                out.push(chars[at]);
                at += 1;
            }
        }
    }
    out
}

/// Drops the items after `#[cfg(test)]` or `#[cfg(all(test, …))]`, and returns the names of the modules among them that are in
/// other files.
///
/// Expects text without comments and literals.
pub fn without_test_items(code: &str) -> (String, Vec<String>) {
    let mut kept = String::new();
    let mut modules = Vec::new();
    let mut rest = code;
    while let Some((before, after)) = rest.split_once("#[cfg(") {
        kept += before;
        let (condition, after) = after.split_once(")]").unwrap_or((after, ""));
        if !is_for_tests(condition) {
            rest = after;
            continue;
        }
        let (item, behind) = after.split_at(item_end(after));
        let declared = item
            .trim()
            .strip_suffix(';')
            .and_then(|item| item.rsplit_once("mod "));
        modules.extend(declared.map(|(_, name)| name.trim().to_owned()));
        rest = behind;
    }
    (kept + rest, modules)
}

/// Writes out the paths that a grouped `use` names: `std::{fs, net::X}` gives `std::fs` and
/// `std::net::X` too.
pub fn with_groups_spelled_out(code: &str, root: &str) -> String {
    let dense: String = code.chars().filter(|c| !c.is_whitespace()).collect();
    let mut out = code.to_owned();
    for after in dense.split(&format!("{root}::{{")).skip(1) {
        let mut depth = 0;
        let mut member = String::new();
        for c in after.chars() {
            match c {
                '{' => depth += 1,
                '}' if depth == 0 => break,
                '}' => depth -= 1,
                ',' if depth == 0 => {
                    out += &format!("\n{root}::{member}");
                    member.clear();
                    continue;
                }
                _ => {}
            }
            member.push(c);
        }
        out += &format!("\n{root}::{member}");
    }
    out
}

/// The names that the items of a file make public, without those that are hidden from its documentation; a glob is `*`.
///
/// Expects text without comments and literals.
pub fn public_names(code: &str) -> Vec<String> {
    let name = |path: &String| path.rsplit([' ', ':']).next().map(str::to_owned);
    public_paths(code).iter().filter_map(name).collect()
}

/// The public names with their paths: `a` where it is declared, `a::B` or `a::B as C` where it is imported from.
///
/// Expects text without comments and literals.
pub fn public_paths(code: &str) -> Vec<String> {
    let mut paths = Vec::new();
    let mut rest = code;
    while !rest.trim().is_empty() {
        let (item, behind) = rest.split_at(item_end(rest));
        paths.extend(public_paths_of(item));
        rest = behind;
    }
    paths
}

/// The documentation of each declaration of `name` in a file with its comments. A declaration is an item, a variant, or a
/// name that a macro is given to declare. The result has one line for each line of the documentation, without the slashes;
/// none where there is no documentation.
pub fn docs_of<'t>(text: &'t str, name: &str) -> Vec<Vec<&'t str>> {
    let mut found = Vec::new();
    let mut docs = Vec::new();
    for line in text.lines().map(str::trim) {
        if let Some(doc) = line.strip_prefix("///") {
            docs.push(doc.trim());
        } else if !line.starts_with("#[") && !line.starts_with("//") {
            let docs = std::mem::take(&mut docs);
            if declared(line) == Some(name) {
                found.push(docs);
            }
        }
    }
    found
}

/// Whether documentation has an example that compiles.
pub fn has_example(docs: &[&str]) -> bool {
    let fences = docs.iter().filter_map(|line| line.strip_prefix("```"));
    let mut opening = fences.step_by(2);
    opening.any(|info| {
        !["compile_fail", "ignore", "text"]
            .iter()
            .any(|word| info.contains(word))
    })
}

/// Whether `code` holds `token` as a path of its own, not as part of a longer word.
pub fn has_token(code: &str, token: &str) -> bool {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    code.match_indices(token).any(|(at, _)| {
        let before = code[..at].chars().next_back();
        let after = code[at + token.len()..].chars().next();
        !before.is_some_and(is_word) && !after.is_some_and(is_word)
    })
}

/// Every file of the folder, reduced to its code, except files that are built for tests only.
///
/// # Panics
/// A file cannot be read.
pub fn shipped_code(folder: &Path) -> Vec<(PathBuf, String)> {
    let mut paths = Vec::new();
    collect(folder, &mut paths);
    let mut code = Vec::new();
    let mut test_only = Vec::new();
    for path in paths {
        let text = without_comments_and_literals(&fs::read_to_string(&path).unwrap());
        let (kept, modules) = without_test_items(&text);
        let home = folder_of_children(&path);
        test_only.extend(modules.iter().map(|name| home.join(name)));
        code.push((path, kept));
    }
    let is_test = |path: &Path| {
        test_only
            .iter()
            .any(|module| path.with_extension("") == *module || path.starts_with(module))
    };
    code.retain(|(path, _)| !is_test(path));
    code
}

fn collect(folder: &Path, paths: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            collect(&path, paths);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            paths.push(path);
        }
    }
}

/// The folder of the modules that a file declares.
fn folder_of_children(path: &Path) -> PathBuf {
    let is_root = path
        .file_stem()
        .is_some_and(|stem| stem == "lib" || stem == "mod");
    if is_root {
        path.with_file_name("")
    } else {
        path.with_extension("")
    }
}

/// The words between `pub` and the name of an item.
const KEYWORDS: &[&str] = &[
    "async", "const", "enum", "extern", "fn", "mod", "static", "struct", "trait", "type", "union",
    "unsafe",
];

fn public_paths_of(item: &str) -> Vec<String> {
    let (attributes, item) = split_attributes(item.trim_start_matches([';', '\n', ' ']));
    let hidden = attributes.contains("doc(hidden)");
    let Some(public) = item.strip_prefix("pub ").filter(|_| !hidden) else {
        return Vec::new();
    };
    if let Some(tree) = public.trim_start().strip_prefix("use ") {
        let dense = tree.split_whitespace().collect::<Vec<_>>().join(" ");
        return imported(dense.trim_end_matches(';'), "");
    }
    declared(public).map(str::to_owned).into_iter().collect()
}

/// The name of a declaration, which follows its keywords.
fn declared(item: &str) -> Option<&str> {
    let item = item.strip_prefix("pub ").unwrap_or(item);
    let mut words = item.split(|c: char| !c.is_alphanumeric() && c != '_');
    words.find(|word| !word.is_empty() && !KEYWORDS.contains(word))
}

/// The attributes of an item, and the rest of it.
fn split_attributes(item: &str) -> (&str, &str) {
    let mut rest = item;
    while let Some(attribute) = rest.trim_start().strip_prefix('#') {
        let depth = |depth: &mut i32, c| {
            *depth += i32::from(c == '[') - i32::from(c == ']');
            Some((*depth, c))
        };
        let mut depths = attribute.chars().scan(0, depth);
        let end = depths.position(|at| at == (0, ']'));
        rest = &attribute[end.map_or(attribute.len(), |end| end + 1)..];
    }
    let attributes = item.len() - rest.len();
    (&item[..attributes], rest.trim_start())
}

/// The paths that a tree of `use` imports below `parent`.
fn imported(tree: &str, parent: &str) -> Vec<String> {
    let tree = tree.trim();
    if let Some(members) = tree
        .strip_prefix('{')
        .and_then(|tree| tree.strip_suffix('}'))
    {
        let members = members_of(members);
        return members
            .iter()
            .flat_map(|tree| imported(tree, parent))
            .collect();
    }
    let group = tree.find('{').unwrap_or(tree.len());
    if let Some(at) = tree[..group].find("::") {
        return imported(&tree[at + 2..], &joined(parent, &tree[..at]));
    }
    let path = match tree {
        "self" => parent.to_owned(),
        _ => joined(parent, tree),
    };
    let is_name = !tree.is_empty() && !tree.ends_with(" as _");
    is_name.then_some(path).into_iter().collect()
}

fn joined(parent: &str, name: &str) -> String {
    match parent {
        "" => name.to_owned(),
        _ => format!("{parent}::{name}"),
    }
}

/// The members of a group, split at the commas that are in no inner group.
fn members_of(group: &str) -> Vec<&str> {
    let mut depth = 0;
    let cut = |c| {
        depth += i32::from(c == '{') - i32::from(c == '}');
        c == ',' && depth == 0
    };
    group.split(cut).collect()
}

/// The end of the comment or literal that begins at `at`, if one does.
fn literal_or_comment(chars: &[char], at: usize) -> Option<usize> {
    let next = chars.get(at + 1).copied();
    let inside_word = at > 0 && (chars[at - 1].is_alphanumeric() || chars[at - 1] == '_');
    match (chars[at], next) {
        ('/', Some('/')) => Some(find(chars, at, |c| c == '\n')),
        ('/', Some('*')) => Some(block_comment(chars, at)),
        ('"', _) => Some(quoted(chars, at, '"')),
        ('r', Some('"' | '#')) if !inside_word => raw_string(chars, at + 1),
        ('b', Some('r')) if !inside_word => raw_string(chars, at + 2),
        ('\'', _) => character(chars, at),
        _ => None,
    }
}

fn find(chars: &[char], from: usize, is_end: impl Fn(char) -> bool) -> usize {
    chars[from..]
        .iter()
        .position(|&c| is_end(c))
        .map_or(chars.len(), |n| from + n)
}

fn block_comment(chars: &[char], at: usize) -> usize {
    let mut depth = 0;
    let mut here = at;
    while here + 1 < chars.len() {
        match (chars[here], chars[here + 1]) {
            ('/', '*') => depth += 1,
            ('*', '/') => depth -= 1,
            _ => {
                here += 1;
                continue;
            }
        }
        here += 2;
        if depth == 0 {
            return here;
        }
    }
    chars.len()
}

fn quoted(chars: &[char], at: usize, quote: char) -> usize {
    let mut here = at + 1;
    while here < chars.len() && chars[here] != quote {
        here += if chars[here] == '\\' { 2 } else { 1 };
    }
    (here + 1).min(chars.len())
}

/// The end of a raw string; `hashes` is the position at which the hashes, if any, begin.
fn raw_string(chars: &[char], hashes: usize) -> Option<usize> {
    let open = find(chars, hashes, |c| c != '#');
    if chars.get(open) != Some(&'"') {
        return None;
    }
    let end: Vec<char> = std::iter::once('"')
        .chain(std::iter::repeat_n('#', open - hashes))
        .collect();
    let body = &chars[open + 1..];
    let length = body.windows(end.len()).position(|window| window == end);
    Some(length.map_or(chars.len(), |n| open + 1 + n + end.len()))
}

/// The end of a character literal; a lifetime is no literal.
fn character(chars: &[char], at: usize) -> Option<usize> {
    let is_literal = chars.get(at + 1) == Some(&'\\') || chars.get(at + 2) == Some(&'\'');
    is_literal.then(|| quoted(chars, at, '\''))
}

/// Whether a `cfg` condition holds in test builds only.
fn is_for_tests(condition: &str) -> bool {
    let condition: String = condition.chars().filter(|c| !c.is_whitespace()).collect();
    let all_of = condition.strip_prefix("all(").unwrap_or(&condition);
    all_of
        .trim_end_matches(')')
        .split(',')
        .any(|part| part == "test")
}

/// The end of the item that begins in `code`: at its first `;` outside of brackets, or at the brace that closes its body.
fn item_end(code: &str) -> usize {
    let mut depth = 0_i32;
    for (at, c) in code.char_indices() {
        match c {
            '{' | '(' | '[' => depth += 1,
            '}' | ')' | ']' => depth -= 1,
            _ => {}
        }
        if depth <= 0 && matches!(c, ';' | '}') {
            return at + 1;
        }
    }
    code.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_literals_are_blanked_and_lifetimes_stay() {
        let text =
            "f(\"std::fs\", r#\"a\"b\"#, b'\\'', '{'); // std::net\n/* /* x */ y */ fn g<'a>() {}";
        let code = without_comments_and_literals(text);
        assert!(!code.contains("std") && !code.contains('x') && !code.contains('y'));
        assert_eq!(code.matches('{').count(), 1);
        assert!(code.contains("fn g<'a>() {}"));
    }

    #[test]
    fn test_items_are_dropped_whole() {
        let code = "fn a() {}\n#[cfg(test)]\nmod tests { fn b() { c() } }\n#[cfg(test)]\nmod far;\nfn d() {}";
        let (kept, modules) = without_test_items(code);
        assert!(kept.contains("fn a") && kept.contains("fn d") && !kept.contains("fn b"));
        assert_eq!(modules, ["far"]);
    }

    #[test]
    fn only_code_for_tests_alone_is_dropped() {
        let code = "#[cfg(all(test, not(loom)))] mod a { }\n#[cfg(not(test))] fn b() {}\n";
        let (kept, modules) = without_test_items(code);
        assert!(!kept.contains("mod a") && kept.contains("fn b"));
        assert!(modules.is_empty());
        assert!(!is_for_tests("any(test,unix)") && !is_for_tests("loom") && is_for_tests("test"));
    }

    #[test]
    fn grouped_imports_are_seen() {
        let code = with_groups_spelled_out("use std::{fmt, fs::{self, File},\n net};", "std");
        assert!(has_token(&code, "std::fs") && has_token(&code, "std::net"));
        assert!(!has_token(&code, "std::process"));
    }

    #[test]
    fn public_names_are_those_that_a_glob_import_brings() {
        let code = "#![deny(unsafe_code)] mod a; pub mod b; pub(crate) mod c; use d::E;
            pub use f::{self, G, h::{I as J, K}, L as _,};
            #[doc( )] #[doc(hidden)] pub use m; #[cfg(feature = )] pub unsafe fn n<T>(o: T) { p(); }
            #[derive(Debug)] pub struct Q(pub u8); pub const fn r() {} impl Q { pub fn s() {} } pub use t::*;";
        let names = public_names(code);
        assert_eq!(names, ["b", "f", "G", "J", "K", "n", "Q", "r", "*"]);
        let paths = public_paths(code);
        assert_eq!(paths[..4], ["b", "f", "f::G", "f::h::I as J"]);
    }

    #[test]
    fn the_documentation_of_a_name_precedes_its_declarations() {
        let text =
            "/// One.\n///\n/// ```no_run\n/// b();\n/// ```\n#[derive(Debug)]\npub struct A;\n
            enum B {\n    /// Two.\n    A,\n}\n/// Three.\nfn b() { A }\nimpl A {}\n";
        let docs = docs_of(text, "A");
        assert_eq!(docs[0][0], "One.");
        assert_eq!(docs[1..], [["Two."]]);
        assert!(has_example(&docs[0]) && !has_example(&docs[1]));
        assert!(docs_of(text, "C").is_empty());
    }

    #[test]
    fn an_example_that_does_not_compile_is_none() {
        let refused = ["```compile_fail,E0382", "a();", "```"];
        assert!(!has_example(&refused));
        assert!(has_example(
            &[&refused[..], &["```", "b();", "```"]].concat()
        ));
    }

    #[test]
    fn a_token_is_not_a_part_of_a_word() {
        assert!(has_token("x = libc::c_int;", "libc"));
        assert!(!has_token("glibc_version", "libc") && !has_token("my_std::fs", "std::fs"));
    }
}
