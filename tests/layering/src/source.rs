//! Rust source reduced to the code that ships: no comments, no literals, no test items.

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

/// Drops the items behind `#[cfg(test)]` or `#[cfg(all(test, …))]` and names the modules among them that lie in other files.
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

/// Where the paths that a grouped `use` names would stand: `std::{fs, net::X}` gives `std::fs` and
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

/// Whether `code` holds `token` as a path of its own, not as part of a longer word.
pub fn has_token(code: &str, token: &str) -> bool {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    code.match_indices(token).any(|(at, _)| {
        let before = code[..at].chars().next_back();
        let after = code[at + token.len()..].chars().next();
        !before.is_some_and(is_word) && !after.is_some_and(is_word)
    })
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

/// `hashes` is where the hashes, if any, begin.
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

/// A character literal; a lifetime is none.
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

/// Where the item that begins in `code` ends: at its first `;` outside of brackets or at the brace
/// that closes its body.
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
    fn only_what_tests_alone_have_is_dropped() {
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
    fn a_token_is_not_a_part_of_a_word() {
        assert!(has_token("x = libc::c_int;", "libc"));
        assert!(!has_token("glibc_version", "libc") && !has_token("my_std::fs", "std::fs"));
    }
}
