//! Rows and claims joined: the page and its problems.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write,
};

use crate::{
    rows::{Row, Rows, is_never_exempt},
    scan::Claim,
};

const HEAD: &str = "\
# Features and the tests that cover them

Generated from `tests/project/rows.toml` and from the `// covers` lines of the tests; do not
edit. `cargo test -p project` fails while this page is out of date and
`cargo run -p project --bin feature-index` writes it anew. A test under `tests/conformance/` and a probe are run
once for each device.
";

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
        let open = |row: &&Row| row.not_yet.is_none() && !self.tests.contains_key(&row.id);
        self.rows
            .iter()
            .filter(open)
            .map(|row| row.id.as_str())
            .collect()
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

    /// The page.
    pub fn page(&self) -> String {
        let mut page = HEAD.to_owned();
        page += &self.summary();
        for group in &self.rows.groups {
            page += &format!(
                "\n## {}\n\n| id | feature | what it promises | tests |\n",
                group.title
            );
            page += "| --- | --- | --- | --- |\n";
            for row in &group.rows {
                let tests = self.tests_cell(row);
                page += &format!(
                    "| {} | {} | {} | {tests} |\n",
                    row.id, row.feature, row.says
                );
            }
        }
        page
    }

    fn summary(&self) -> String {
        let total = self.rows.iter().count();
        let exempt = self.rows.iter().filter(|row| row.not_yet.is_some()).count();
        let uncovered = self.uncovered().len();
        format!(
            "\n{total} rows: {} covered, {exempt} that cannot apply yet, {uncovered} uncovered.\n",
            total - exempt - uncovered
        )
    }

    fn tests_cell(&self, row: &Row) -> String {
        let mut cell = String::new();
        if let Some(reason) = &row.not_yet {
            cell = format!("not yet: {reason}");
        }
        for test in self.tests.get(&row.id).into_iter().flatten() {
            let gap = if cell.is_empty() { "" } else { "<br>" };
            let _ = write!(cell, "{gap}`{test}`");
        }
        if cell.is_empty() {
            "**uncovered**".to_owned()
        } else {
            cell
        }
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
        row.not_yet.as_ref()?;
        let id = &row.id;
        if is_never_exempt(id) {
            return Some(format!("rows.toml: {id} may not be exempt"));
        }
        let test = self.tests.get(id)?.first()?;
        Some(format!(
            "rows.toml: {id} is exempt and yet covered by {test}"
        ))
    }
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
        };
        let group = crate::rows::Group {
            title: "g".to_owned(),
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

    #[test]
    fn a_covered_row_is_listed_with_its_test() {
        let index = index("3.01", None, "3.01", Some("t"));
        assert!(index.problems().is_empty() && index.uncovered().is_empty());
        assert!(index.page().contains("| 3.01 | f | s | `a.rs::t` |"));
    }

    #[test]
    fn an_unknown_id_is_a_problem() {
        let index = index("3.01", None, "3.99", Some("t"));
        assert_eq!(index.problems(), ["a.rs:3: no row 3.99"]);
        assert_eq!(index.uncovered(), ["3.01"]);
        assert!(index.page().contains("| **uncovered** |"));
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
}
