//! The matrix as text for a terminal.

use std::fmt::{self, Write as _};

use comfy_table::{
    CellAlignment, ColumnConstraint, ContentArrangement, Table, TableComponent, Width, presets,
};

use crate::matrix::{Claim, Matrix, Section};

/// Columns that the text fits.
const WIDTH: u16 = 100;

impl Matrix {
    /// A table for each section that has rows, at most 100 columns wide.
    pub fn to_text(&self) -> String {
        let mut text = String::new();
        for section in Section::ALL {
            if self.section(section).next().is_some() {
                let gap = if text.is_empty() { "" } else { "\n" };
                // Writing to a string does not fail.
                let _ = writeln!(text, "{gap}{}", self.section_to_text(section));
            }
        }
        text
    }

    /// The table of one section, at most 100 columns wide.
    pub fn section_to_text(&self, section: Section) -> String {
        let mut table = Table::new();
        table.load_preset(presets::NOTHING);
        table.set_style(TableComponent::HeaderLines, '─');
        table.set_style(TableComponent::MiddleHeaderIntersections, '─');
        table
            .set_content_arrangement(ContentArrangement::Dynamic)
            .set_width(WIDTH);
        let devices = self.columns.iter().map(|column| column.device.name.clone());
        table.set_header(
            [section.title().to_uppercase()]
                .into_iter()
                .chain(devices)
                .chain([String::new()]),
        );
        for row in self.section(section) {
            let cells = row.cells.iter().map(|cell| cell.claim.to_string());
            table.add_row(
                [row.name.clone()]
                    .into_iter()
                    .chain(cells)
                    .chain([row.about.to_owned()]),
            );
        }
        let alignment = match section {
            Section::Limits => CellAlignment::Right,
            _ => CellAlignment::Center,
        };
        let last = self.columns.len() + 1;
        for (index, column) in table.column_iter_mut().enumerate() {
            if index == 0 {
                column.set_constraint(ColumnConstraint::ContentWidth);
            } else if index < last {
                column.set_cell_alignment(alignment);
                column.set_constraint(ColumnConstraint::LowerBoundary(Width::Fixed(10)));
            }
        }
        table.trim_fmt()
    }
}

impl fmt::Display for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Yes => f.write_str("yes"),
            Self::Number(number) => write!(f, "{number}"),
            Self::Bits(bits) => write!(f, "{bits:#x}"),
            Self::Words(words) if !words.is_empty() => f.write_str(&words.join(" ")),
            Self::No | Self::Words(_) => f.write_str("–"),
        }
    }
}
