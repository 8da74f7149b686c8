//! Renders a matrix as Markdown.

use std::fmt::Write as _;

use polyverbs::probe::Verdict;

use crate::matrix::{Cell, Claim, Matrix, Row, Section};

impl Matrix {
    /// Renders a heading and a table for each section that has rows and, if probes were run, the reasons of mismatches.
    pub fn to_markdown(&self) -> String {
        let mut page = match self.is_verified() {
            true => format!("# What each device can do\n\n{}\n", self.summary()),
            false => String::from("# What each device claims\n"),
        };
        for section in Section::ALL {
            if self.section(section).next().is_some() {
                // Writing to a string cannot fail.
                let _ = write!(page, "\n## {}\n\n{}\n\n", section.title(), section.about());
                page.push_str(&self.section_to_markdown(section));
            }
        }
        self.reasons(&mut page, "Mismatches", Verdict::Mismatch);
        self.reasons(&mut page, "Not verifiable here", Verdict::NotVerifiable);
        page
    }

    // Adds a heading, and for each cell with this verdict the reason of it. Adds nothing if there is no such cell.
    fn reasons(&self, page: &mut String, title: &str, verdict: Verdict) {
        let mut heading = Some(format!("\n## {title}\n\n"));
        for (row, column, found) in self.probed() {
            if found.verdict == verdict {
                page.extend(heading.take());
                let because = inert(&found.because);
                let (feature, device) = (&row.name, &column.device.name);
                let _ = writeln!(page, "* `{feature}` of `{device}`: {because}");
            }
        }
    }

    /// Renders the table of one section.
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
            let about = inert(row.about);
            let _ = writeln!(table, "| `{}` | {} | {about} |", row.name, cells(row));
        }
        table
    }
}

fn cells(row: &Row) -> String {
    let cells = row.cells.iter().map(cell);
    cells.collect::<Vec<_>>().join(" | ")
}

fn cell(cell: &Cell) -> String {
    if let Some(found) = cell.proof.probed() {
        return match found.verdict {
            Verdict::Verified => format!("✓ {}", found.passed()),
            Verdict::Refused => "–".to_owned(),
            Verdict::Mismatch => "**mismatch**".to_owned(),
            Verdict::NotVerifiable => "?".to_owned(),
        };
    }
    match &cell.claim {
        Claim::Yes => "yes".to_owned(),
        claim if claim.is_absent() => "–".to_owned(),
        Claim::Words(words) => words.join(" "),
        claim => format!("`{claim}`"),
    }
}

// Escapes the characters that would end a table cell or begin an HTML tag.
fn inert(text: &str) -> String {
    text.replace('|', "\\|").replace('<', "&lt;")
}
