//! The page: a table for each group.

use std::fmt::Write;

use crate::results::Results;
use crate::rows::{Group, Row};

const BEGINNING: &str = "\
# Programs of other projects

Unmodified programs over our C libraries, under `polyverbs run`. Each row is one of `tests/peers/table/rows`, which says how
the program is installed, how it is run, and what it has to print. `tests/peers/table/run --page docs/programs.md` makes
this page from the last results.
";

pub(crate) fn text(groups: &[Group], results: &Results) -> String {
    let mut page = String::from(BEGINNING);
    for group in groups {
        // Writing to a string cannot fail.
        let _ = write!(page, "\n## {}\n\n", group.title);
        if !group.text.is_empty() {
            let _ = write!(page, "{}\n\n", group.text.trim());
        }
        page.push_str(
            "| program | devices | faults | result | settings |\n| --- | --- | --- | --- | --- |\n",
        );
        for row in &group.rows {
            let _ = writeln!(
                page,
                "| {} | {} | {} | {} | {} |",
                cell(&row.program),
                if row.on.is_empty() {
                    "all".to_owned()
                } else {
                    row.on.join(", ")
                },
                row.faults.as_deref().unwrap_or(""),
                cell(&result(group, row, results)),
                cell(&settings(row)),
            );
        }
    }
    page
}

/// The result of the row on all its devices.
fn result(group: &Group, row: &Row, results: &Results) -> String {
    let mut failures = Vec::new();
    for trial in group.of_row(row) {
        match results.of(&trial) {
            None => failures.push(format!("{}: not run", trial.name())),
            Some(outcome) if outcome.failure.is_some() => {
                failures.push(format!("{}: failed", trial.name()));
            }
            Some(_) => {}
        }
    }
    match (&row.refused, failures.is_empty()) {
        (_, false) => failures.join("; "),
        (Some(reason), true) => format!("refused: {reason}"),
        (None, true) => "ok".to_owned(),
    }
}

fn settings(row: &Row) -> String {
    match (&*row.options, &*row.settings) {
        ("", text) => text.to_owned(),
        (options, "") => format!("`{options}`"),
        (options, text) => format!("`{options}`: {text}"),
    }
}

fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace('\n', " ")
}
