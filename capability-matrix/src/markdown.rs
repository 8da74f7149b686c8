//! The matrix as Markdown.

use std::fmt::Write as _;

use crate::matrix::{Claim, Matrix, Row, Section};

impl Matrix {
    /// A heading and a table for each section that has rows.
    pub fn to_markdown(&self) -> String {
        let mut page = String::from("# What each device claims\n");
        for section in Section::ALL {
            if self.section(section).next().is_some() {
                // Writing to a string does not fail.
                let _ = write!(page, "\n## {}\n\n{}\n\n", section.title(), section.about());
                page.push_str(&self.section_to_markdown(section));
            }
        }
        page
    }

    /// The table of one section.
    pub fn section_to_markdown(&self, section: Section) -> String {
        let names: Vec<_> = self
            .columns
            .iter()
            .map(|column| format!("`{}`", column.device.name))
            .collect();
        let mut table = format!(
            "| | {} | |\n|---|{}---|\n",
            names.join(" | "),
            ":-:|".repeat(names.len())
        );
        for row in self.section(section) {
            let _ = writeln!(table, "| `{}` | {} | {} |", row.name, cells(row), row.about);
        }
        table
    }
}

fn cells(row: &Row) -> String {
    let cells = row.cells.iter().map(|cell| match &cell.claim {
        Claim::Yes => "yes".to_owned(),
        claim if claim.is_absent() => "–".to_owned(),
        Claim::Words(words) => words.join(" "),
        claim => format!("`{claim}`"),
    });
    cells.collect::<Vec<_>>().join(" | ")
}
