//! Rows and claims joined: the pages and their problems.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    rows::{Group, Row, Rows, is_never_exempt},
    scan::Claim,
};

const HEAD: &str = "\
# Features and the tests that cover them

Open the page of a section to find the tests that prove a feature: each feature has a number, a promise, and the list of its
tests. Tests name features in `// covers` lines; [CONTRIBUTING.md](../CONTRIBUTING.md#tests) has the convention.

These pages are generated from `tests/project/rows.toml` and from the `// covers` lines; do not edit them.
`cargo test -p project` fails while a page is out of date, and `cargo run -p project --bin feature-index` writes them anew.
";

const SECTION_HEAD: &str = "\
The features of this section, and the tests that prove each of them. A test under `tests/conformance/` and a probe are run once
for each device. This page is generated; [the index](../features.md) says how.
";

/// The place of the index of the pages, below the folder of documents.
const INDEX: &str = "features.md";

/// The folder of the pages of the sections, below the folder of documents.
pub const SECTIONS: &str = "features";

/// Which test covers which row.
#[derive(Debug)]
pub struct Index {
    rows: Rows,
    claims: Vec<Claim>,
    tests: BTreeMap<String, BTreeSet<String>>,
}

impl Index {
    /// Joins rows with the claims that were found.
    pub fn new(rows: Rows, claims: Vec<Claim>) -> Self {
        let mut tests: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for claim in &claims {
            let Some(test) = &claim.test else { continue };
            for id in &claim.ids {
                let name = format!("{}::{test}", claim.file);
                tests.entry(id.clone()).or_default().insert(name);
            }
        }
        Self {
            rows,
            claims,
            tests,
        }
    }

    /// The index of the workspace that this crate was built in.
    ///
    /// # Errors
    /// A malformed `rows.toml` or an unreadable source file.
    pub fn of_workspace() -> Result<Self, Box<dyn std::error::Error>> {
        Ok(Self::new(
            Rows::load()?,
            crate::scan::scan(&crate::workspace_root())?,
        ))
    }

    /// The ids of the rows that apply and that no test covers.
    pub fn uncovered(&self) -> Vec<&str> {
        let rows = self.rows.iter().filter(|row| self.is_uncovered(row));
        rows.map(|row| row.id.as_str()).collect()
    }

    /// Every breach of the convention, one line each.
    pub fn problems(&self) -> Vec<String> {
        let mut problems: Vec<String> = self
            .claims
            .iter()
            .flat_map(|c| self.claim_problems(c))
            .collect();
        problems.extend(self.rows.iter().filter_map(|row| self.row_problem(row)));
        problems
    }

    /// The pages, by their places below the folder of documents: the index, and a page for each section.
    pub fn pages(&self) -> BTreeMap<String, String> {
        let mut pages = BTreeMap::from([(INDEX.to_owned(), self.contents())]);
        for groups in self.sections() {
            pages.insert(place(groups[0].section()), self.section_page(groups));
        }
        pages
    }

    /// The groups of each section.
    fn sections(&self) -> impl Iterator<Item = &[Group]> {
        let groups = &self.rows.groups;
        groups.chunk_by(|one, next| one.section() == next.section())
    }

    fn contents(&self) -> String {
        let mut page = HEAD.to_owned();
        page += "\n| section | features | covered | cannot apply yet | not done | uncovered |\n";
        page += "| --- | ---: | ---: | ---: | ---: | ---: |\n";
        for groups in self.sections() {
            let name = groups[0].section();
            let counts = self.counts(groups);
            page += &format!("| [{name}]({}) {counts}\n", place(name));
        }
        page += &format!("| all {}\n", self.counts(&self.rows.groups));
        let rows = self.rows.iter();
        let missing = rows.filter_map(|row| Some((row, row.missing.as_ref()?)));
        let missing: Vec<_> = missing
            .map(|(row, missing)| format!("- {} {}: {missing}\n", row.id, row.feature))
            .collect();
        if !missing.is_empty() {
            page += &format!("\n## Not done\n\n{}", missing.concat());
        }
        page
    }

    /// The counts of some groups, as the cells of a row of the table.
    fn counts(&self, groups: &[Group]) -> String {
        let rows: Vec<_> = groups.iter().flat_map(|group| &group.rows).collect();
        let count = |is: &dyn Fn(&Row) -> bool| rows.iter().filter(|row| is(row)).count();
        format!(
            "| {} | {} | {} | {} | {} |",
            rows.len(),
            count(&|row| self.tests.contains_key(&row.id)),
            count(&|row| row.not_yet.is_some()),
            count(&|row| row.missing.is_some()),
            count(&|row| self.is_uncovered(row)),
        )
    }

    fn section_page(&self, groups: &[Group]) -> String {
        let mut page = format!("# {}\n\n{SECTION_HEAD}", groups[0].section());
        for group in groups {
            let mut level = "##";
            if let Some(heading) = group.heading() {
                page += &format!("\n## {}\n", capitalized(heading));
                level = "###";
            }
            for row in &group.rows {
                page += &format!("\n{level} {} {}\n\n{}\n\n", row.id, row.feature, row.says);
                page += &self.evidence(row);
            }
        }
        page
    }

    /// The tests of a row, or the reason why it has none, as lines.
    fn evidence(&self, row: &Row) -> String {
        match (self.tests.get(&row.id), &row.not_yet, &row.missing) {
            (Some(tests), ..) => tests.iter().map(|test| format!("- `{test}`\n")).collect(),
            (None, Some(reason), _) => format!("Cannot apply yet: {reason}\n"),
            (None, None, Some(work)) => format!("Not done: {work}\n"),
            (None, None, None) => "**Uncovered.**\n".to_owned(),
        }
    }

    fn is_uncovered(&self, row: &Row) -> bool {
        !row.is_exempt() && !self.tests.contains_key(&row.id)
    }

    fn claim_problems(&self, claim: &Claim) -> Vec<String> {
        let place = format!("{}:{}", claim.file, claim.line);
        let is_known = |id: &&String| self.rows.iter().any(|row| row.id == **id);
        let unknown = claim.ids.iter().filter(|id| !is_known(id));
        let mut problems: Vec<_> = unknown.map(|id| format!("{place}: no row {id}")).collect();
        if claim.test.is_none() {
            problems.push(format!("{place}: no test follows this line"));
        }
        if claim.ids.is_empty() {
            problems.push(format!("{place}: names no row"));
        }
        problems
    }

    fn row_problem(&self, row: &Row) -> Option<String> {
        let id = &row.id;
        if !row.is_exempt() {
            return None;
        }
        if is_never_exempt(id) {
            return Some(format!("rows.toml: {id} may not be exempt"));
        }
        let test = self.tests.get(id)?.first()?;
        Some(format!(
            "rows.toml: {id} is exempt and yet covered by {test}"
        ))
    }
}

/// The place of the page of a section: its number and its words.
fn place(section: &str) -> String {
    let words = section.split(|c: char| !c.is_alphanumeric());
    let words: Vec<_> = words.filter(|word| !word.is_empty()).collect();
    format!("{SECTIONS}/{}.md", words.join("-").to_lowercase())
}

fn capitalized(words: &str) -> String {
    let (first, rest) = words.split_at(words.chars().next().map_or(0, char::len_utf8));
    first.to_uppercase() + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    fn index(id: &str, not_yet: Option<&str>, covers: &str, test: Option<&str>) -> Index {
        let row = Row {
            id: id.to_owned(),
            feature: "f".to_owned(),
            says: "s".to_owned(),
            not_yet: not_yet.map(str::to_owned),
            missing: None,
        };
        let group = Group {
            title: "3. Work requests: the RC requester".to_owned(),
            rows: vec![row],
        };
        let claim = Claim {
            file: "a.rs".to_owned(),
            line: 3,
            ids: vec![covers.to_owned()],
            test: test.map(str::to_owned),
        };
        Index::new(
            Rows {
                groups: vec![group],
            },
            vec![claim],
        )
    }

    fn page_of(index: &Index) -> String {
        index.pages().remove("features/3-work-requests.md").unwrap()
    }

    #[test]
    fn a_covered_row_is_listed_with_its_test() {
        let index = index("3.01", None, "3.01", Some("t"));
        assert!(index.problems().is_empty() && index.uncovered().is_empty());
        let page = page_of(&index);
        assert!(page.starts_with("# 3. Work requests\n"), "{page}");
        let row = "## The RC requester\n\n### 3.01 f\n\ns\n\n- `a.rs::t`\n";
        assert!(page.contains(row), "{page}");
        let line = "[3. Work requests](features/3-work-requests.md) | 1 | 1 | 0 | 0 | 0 |";
        assert!(index.pages()["features.md"].contains(line));
    }

    #[test]
    fn an_unknown_id_is_a_problem() {
        let index = index("3.01", None, "3.99", Some("t"));
        assert_eq!(index.problems(), ["a.rs:3: no row 3.99"]);
        assert_eq!(index.uncovered(), ["3.01"]);
        assert!(page_of(&index).contains("\n\n**Uncovered.**\n"));
    }

    #[test]
    fn a_line_without_a_test_is_a_problem() {
        let index = index("3.01", None, "3.01", None);
        assert_eq!(index.problems(), ["a.rs:3: no test follows this line"]);
        assert_eq!(index.uncovered(), ["3.01"]);
    }

    #[test]
    fn a_stale_exemption_is_a_problem() {
        let index = index("3.01", Some("no such thing"), "3.01", Some("t"));
        assert_eq!(
            index.problems(),
            ["rows.toml: 3.01 is exempt and yet covered by a.rs::t"]
        );
    }

    #[test]
    fn exempting_a_required_row_is_a_problem() {
        let index = index("3.40", Some("no such thing"), "3.40", None);
        assert!(
            index
                .problems()
                .contains(&"rows.toml: 3.40 may not be exempt".to_owned())
        );
    }

    #[test]
    fn a_row_that_is_not_done_says_so_on_both_pages() {
        let mut index = index("3.01", None, "3.02", Some("t"));
        index.rows.groups[0].rows[0].missing = Some("the work".to_owned());
        assert!(index.uncovered().is_empty());
        assert!(page_of(&index).contains("\n\nNot done: the work\n"));
        let contents = &index.pages()["features.md"];
        assert!(
            contents.contains("| all | 1 | 0 | 0 | 1 | 0 |"),
            "{contents}"
        );
        assert!(
            contents.ends_with("## Not done\n\n- 3.01 f: the work\n"),
            "{contents}"
        );
    }
}
