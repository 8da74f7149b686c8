//! Figures next to their yardsticks, as a table for people and as JSON for programs.

use comfy_table::presets::ASCII_MARKDOWN;
use comfy_table::{CellAlignment, Table};
use serde_json::{Value, json};

/// The limit of a ratio, if there is one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Limit {
    /// The ratio is to be at most this.
    AtMost(f64),
    /// The ratio is to be at least this.
    AtLeast(f64),
    /// There is no limit: the figure is information.
    None,
}

impl Limit {
    /// Whether a ratio is within the limit; `None` where there is no limit.
    pub fn is_met(self, ratio: f64) -> Option<bool> {
        match self {
            Self::AtMost(limit) => Some(ratio <= limit),
            Self::AtLeast(limit) => Some(ratio >= limit),
            Self::None => None,
        }
    }

    fn text(self) -> String {
        match self {
            Self::AtMost(limit) => format!("<= {limit}"),
            Self::AtLeast(limit) => format!(">= {limit}"),
            Self::None => String::new(),
        }
    }

    fn json(self) -> Value {
        match self {
            Self::AtMost(limit) => json!({ "at_most": limit }),
            Self::AtLeast(limit) => json!({ "at_least": limit }),
            Self::None => Value::Null,
        }
    }
}

/// A number and its unit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Quantity(pub f64, pub &'static str);

impl Quantity {
    fn text(self) -> String {
        let Self(value, unit) = self;
        let digits = match value.abs() {
            1000.0.. => 0,
            100.0.. => 1,
            10.0.. => 2,
            _ => 3,
        };
        // A whole number needs no digits.
        let digits = if value.fract() == 0.0 { 0 } else { digits };
        format!("{value:.digits$} {unit}").trim_end().to_owned()
    }

    fn json(self) -> Value {
        json!({ "value": self.0, "unit": self.1 })
    }
}

/// One figure next to its yardstick.
#[derive(Clone, Debug)]
pub struct Row {
    /// The name of the measurement.
    pub name: String,
    /// The measured value.
    pub figure: Quantity,
    /// The name and the value of the yardstick.
    pub yardstick: (String, Quantity),
    /// Figure divided by yardstick, or yardstick by figure where more is better, computed within each sample.
    pub ratio: f64,
    /// The limit of the ratio.
    pub limit: Limit,
    /// Samples that count, and samples taken.
    pub samples: (usize, usize),
}

impl Row {
    fn cells(&self) -> [String; 7] {
        let (name, quantity) = &self.yardstick;
        let verdict = match self.limit.is_met(self.ratio) {
            Some(true) => "met",
            Some(false) => "not met",
            None => "",
        };
        [
            self.name.clone(),
            self.figure.text(),
            format!("{name} {}", quantity.text()),
            Quantity(self.ratio, "").text(),
            self.limit.text(),
            verdict.to_owned(),
            format!("{}/{}", self.samples.0, self.samples.1),
        ]
    }

    /// The row as JSON.
    pub fn json(&self) -> Value {
        let (counted, taken) = self.samples;
        json!({
            "name": self.name,
            "figure": self.figure.json(),
            "yardstick": { "name": self.yardstick.0, "value": self.yardstick.1.0, "unit": self.yardstick.1.1 },
            "ratio": self.ratio,
            "limit": self.limit.json(),
            "met": self.limit.is_met(self.ratio),
            "samples": { "counted": counted, "taken": taken },
        })
    }
}

/// The rows as a table of Markdown.
pub fn table(rows: &[Row]) -> String {
    let mut table = Table::new();
    table.load_preset(ASCII_MARKDOWN);
    table.set_header([
        "figure",
        "measured",
        "yardstick",
        "ratio",
        "limit",
        "verdict",
        "samples",
    ]);
    rows.iter().for_each(|row| {
        table.add_row(row.cells());
    });
    for column in [1, 3, 4] {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_met_up_to_itself() {
        assert_eq!(Limit::AtMost(1.0).is_met(1.0), Some(true));
        assert_eq!(Limit::AtMost(1.0).is_met(1.01), Some(false));
        assert_eq!(Limit::AtLeast(0.9).is_met(0.89), Some(false));
        assert_eq!(Limit::None.is_met(7.0), None);
    }

    #[test]
    fn a_row_shows_figure_yardstick_ratio_and_verdict() {
        let row = Row {
            name: "a write".to_owned(),
            figure: Quantity(12.345, "ns"),
            yardstick: ("an increment".to_owned(), Quantity(4.0, "ns")),
            ratio: 3.086,
            limit: Limit::AtMost(3.0),
            samples: (9, 11),
        };
        let table = table(std::slice::from_ref(&row));
        let expected = [
            "a write",
            "12.35 ns",
            "an increment 4 ns",
            "3.086",
            "<= 3",
            "not met",
            "9/11",
        ];
        for cell in expected {
            assert!(table.contains(cell), "{cell} in {table}");
        }
        assert_eq!(row.json()["met"], json!(false));
        assert_eq!(row.json()["samples"]["counted"], json!(9));
    }
}
