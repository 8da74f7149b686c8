//! Renders a matrix as text for a terminal.

use std::fmt::{self, Write as _};

use anstyle::{AnsiColor, Style};
use comfy_table::{
    CellAlignment, ColumnConstraint, ContentArrangement, Table, TableComponent, Width, presets,
};
use polyverbs::probe::{Verdict, Verified};

use crate::matrix::{Cell, Claim, Matrix, Row, Section};

/// The width in columns below which the descriptions of rows are left out.
const WIDE: usize = 64;
/// The width in columns from which on the columns of all devices have the same width.
const ROOMY: usize = 100;

const GOOD: Style = AnsiColor::Green.on_default();
const BAD: Style = AnsiColor::Red.on_default().bold();
const DOUBT: Style = AnsiColor::Yellow.on_default();
const DIM: Style = Style::new().dimmed();
const BOLD: Style = Style::new().bold();

impl Matrix {
    /// Renders a table for each section that has rows and, if probes were run, each mismatch with its evidence. The text is
    /// at most `width` columns wide where possible; with `colours` it contains escape sequences of a terminal.
    pub fn to_text(&self, width: usize, colours: bool) -> String {
        let mut text = String::new();
        for section in Section::ALL {
            if self.section(section).next().is_some() {
                let gap = if text.is_empty() { "" } else { "\n" };
                // Writing to a string cannot fail.
                let _ = writeln!(
                    text,
                    "{gap}{}",
                    self.section_to_text(section, width, colours)
                );
            }
        }
        if self.is_verified() {
            text.push('\n');
            self.findings(&mut text, width, colours);
        }
        text
    }

    /// Renders the table of one section, in `width` columns. Leaves out the descriptions of the rows if the width is small.
    pub fn section_to_text(&self, section: Section, width: usize, colours: bool) -> String {
        let rows: Vec<_> = self.section(section).collect();
        let table = self.text_table(section, rows, width);
        let plain = table.trim_fmt();
        if colours { coloured(&plain) } else { plain }
    }

    fn text_table(&self, section: Section, rows: Vec<&Row>, width: usize) -> Table {
        let is_wide = width >= WIDE;
        let mut table = Table::new();
        table.load_preset(presets::NOTHING);
        table.set_style(TableComponent::HeaderLines, '─');
        table.set_style(TableComponent::MiddleHeaderIntersections, '─');
        table
            .set_content_arrangement(ContentArrangement::Dynamic)
            .set_width(u16::try_from(width).unwrap_or(u16::MAX));
        let devices = self.columns.iter().map(|column| column.device.name.clone());
        table.set_header(
            [section.title().to_uppercase()]
                .into_iter()
                .chain(devices)
                .chain(is_wide.then(String::new)),
        );
        for row in rows {
            let cells = row.cells.iter().map(shown);
            table.add_row(
                [row.name.clone()]
                    .into_iter()
                    .chain(cells)
                    .chain(is_wide.then(|| row.about.to_owned())),
            );
        }
        let alignment = match section {
            Section::Limits => CellAlignment::Right,
            _ => CellAlignment::Center,
        };
        let last = self.columns.len() + 1;
        for (index, column) in table.column_iter_mut().enumerate() {
            if index > 0 && index < last {
                column.set_cell_alignment(alignment);
            }
            if is_wide && index == 0 {
                column.set_constraint(ColumnConstraint::ContentWidth);
            } else if width >= ROOMY && index < last {
                column.set_constraint(ColumnConstraint::LowerBoundary(Width::Fixed(10)));
            }
        }
        table
    }

    fn findings(&self, text: &mut String, width: usize, colours: bool) {
        for verdict in [Verdict::Mismatch, Verdict::NotVerifiable] {
            for (row, column, found) in self.probed() {
                if found.verdict == verdict {
                    let line = format!(
                        "{} {} {}: {}",
                        sign(verdict),
                        column.device.name,
                        row.name,
                        reason(found)
                    );
                    let style = style_of(verdict);
                    for part in wrapped(&line, width) {
                        let _ = match colours {
                            true => writeln!(text, "{style}{part}{style:#}"),
                            false => writeln!(text, "{part}"),
                        };
                    }
                }
            }
        }
        for part in wrapped(&self.summary(), width) {
            let _ = match colours {
                true => writeln!(text, "{BOLD}{part}{BOLD:#}"),
                false => writeln!(text, "{part}"),
            };
        }
    }

    /// Counts the cells of each verdict in one line of text.
    pub fn summary(&self) -> String {
        let tally = self.tally();
        let mut parts = vec![
            format!(
                "{} verified by {} probes",
                tally.verified, tally.probes_passed
            ),
            format!("{} refused", tally.refused),
            match tally.mismatch {
                0 => "no mismatch".to_owned(),
                count => format!("{count} mismatch{}", if count == 1 { "" } else { "es" }),
            },
        ];
        if tally.not_verifiable > 0 {
            parts.push(format!("{} not verifiable here", tally.not_verifiable));
        }
        format!("{}.", parts.join(", "))
    }
}

fn sign(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Verified => "✓",
        Verdict::Refused => "–",
        Verdict::Mismatch => "✗",
        Verdict::NotVerifiable => "?",
    }
}

fn style_of(verdict: Verdict) -> Style {
    match verdict {
        Verdict::Verified => GOOD,
        Verdict::Refused => DIM,
        Verdict::Mismatch => BAD,
        Verdict::NotVerifiable => DOUBT,
    }
}

/// The text of a cell: the sign of its verdict and how many of its probes passed or, if none were run, the claim.
fn shown(cell: &Cell) -> String {
    let Some(found) = cell.proof.probed() else {
        return cell.claim.to_string();
    };
    let ran = found.findings.iter().filter(|each| each.was_run()).count();
    match found.verdict {
        Verdict::Verified => format!("✓ {}/{ran}", found.passed()),
        Verdict::Mismatch => format!("✗ {}/{ran}", found.passed()),
        verdict => sign(verdict).to_owned(),
    }
}

fn reason(found: &Verified) -> String {
    let claim = match (found.verdict, found.claimed) {
        (Verdict::Mismatch, true) => "claimed; ",
        (Verdict::NotVerifiable, _) => "not verifiable here; ",
        _ => "",
    };
    format!("{claim}{}", found.because)
}

// Adds colours to a finished table, which is laid out without escape sequences. Each sign is coloured together with its
// numbers.
fn coloured(plain: &str) -> String {
    let mut text = String::new();
    for (index, line) in plain.lines().enumerate() {
        if index > 0 {
            text.push('\n');
        }
        if index < 2 {
            // Writing to a string cannot fail.
            let _ = write!(text, "{BOLD}{line}{BOLD:#}");
            continue;
        }
        let signs = [('✓', GOOD), ('✗', BAD)];
        let mut rest = line;
        while let Some((at, style)) = signs
            .iter()
            .filter_map(|(sign, style)| Some((rest.find(*sign)?, style)))
            .min_by_key(|(at, _)| *at)
        {
            let (before, marked) = rest.split_at(at);
            let counted = |letter: char| letter.is_ascii_digit() || " /✓✗".contains(letter);
            let length = marked
                .find(|letter| !counted(letter))
                .unwrap_or(marked.len());
            let (marked, behind) = marked.split_at(length);
            let spaces = marked.len() - marked.trim_end().len();
            let (marked, gap) = marked.split_at(marked.len() - spaces);
            let _ = write!(text, "{before}{style}{marked}{style:#}{gap}");
            rest = behind;
        }
        text.push_str(rest);
    }
    text
}

// Breaks a line into lines of at most `width` columns, of which the later ones are indented.
fn wrapped(line: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in line.split(' ') {
        let last = lines.len() - 1;
        let length = lines[last].chars().count() + 1 + word.chars().count();
        if lines[last].is_empty() {
            lines[last].push_str(word);
        } else if length <= width {
            lines[last].push(' ');
            lines[last].push_str(word);
        } else {
            lines.push(format!("    {word}"));
        }
    }
    lines
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
