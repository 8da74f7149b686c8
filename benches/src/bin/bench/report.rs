//! The report of a run: figures next to their yardsticks, as a Markdown table for people and as JSON for programs.

use comfy_table::presets::ASCII_MARKDOWN;
use comfy_table::{CellAlignment, Table};
use polyverbs_benches::sample::Samples;
use serde::{Deserialize, Serialize};

pub(crate) const NS: &str = "ns";
pub(crate) const US: &str = "us";
pub(crate) const GBS: &str = "GB/s";

/// The figures that one run of `bench` has measured.
#[derive(Deserialize, Serialize)]
pub(crate) struct Report {
    /// Whether the two threads of a measurement had a processor each during the whole run; if not, figures of two threads
    /// say nothing.
    pub(crate) apart: bool,
    pub(crate) rows: Vec<Row>,
}

impl Report {
    /// Returns the rows of the report as a Markdown table.
    pub(crate) fn table(&self) -> Table {
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
            "crossing",
        ]);
        table.add_rows(self.rows.iter().map(Row::cells));
        for column in [1, 3, 4] {
            if let Some(column) = table.column_mut(column) {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        table
    }
}

/// The largest or smallest value that a figure, or its ratio to the yardstick, should have. The limit of a figure is in the
/// unit of its row.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Limit {
    RatioAtMost(f64),
    RatioAtLeast(f64),
    FigureAtMost(f64),
    FigureAtLeast(f64),
}

/// The value of a figure, and its unit.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
struct Quantity {
    value: f64,
    unit: String,
}

impl Quantity {
    fn text(&self) -> String {
        let Self { value, unit } = self;
        let digits = match value.abs() {
            1000.0.. => 0,
            100.0.. => 1,
            10.0.. => 2,
            _ => 3,
        };
        // A whole number is shown without decimal places.
        let digits = if value.fract() == 0.0 { 0 } else { digits };
        format!("{value:.digits$} {unit}").trim_end().to_owned()
    }

    fn new(value: f64, unit: &str) -> Self {
        let unit = unit.to_owned();
        Self { value, unit }
    }
}

/// A yardstick's name and its measured value.
#[derive(Debug, Deserialize, Serialize)]
struct Yardstick {
    name: String,
    #[serde(flatten)]
    quantity: Quantity,
}

/// A row of the report: one figure, and its yardstick and limit if it has them.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct Row {
    /// The name of the part that measured this figure; `--only` selects parts by their names.
    pub(crate) part: String,
    name: String,
    figure: Quantity,
    yardstick: Option<Yardstick>,
    /// The figure divided by the yardstick: the median over the samples, or the quotient of the two values where there are
    /// no samples with a yardstick. `None` without a yardstick.
    ratio: Option<f64>,
    limit: Option<Limit>,
    met: Option<bool>,
    /// The number of samples that count, then the number of samples taken; `None` if the figure was measured once.
    samples: Option<(usize, usize)>,
    /// How long a cache line took from one of the two processors to the other, in nanoseconds, before and after the part of
    /// this row was measured: between distant processors, streams are several times slower.
    pub(crate) crossings_ns: [f64; 2],
}

impl Row {
    /// Returns a row with a figure, but no yardstick, limit or samples.
    pub(crate) fn new(name: impl Into<String>, value: f64, unit: &str) -> Self {
        Self {
            part: String::new(),
            name: name.into(),
            figure: Quantity::new(value, unit),
            yardstick: None,
            ratio: None,
            limit: None,
            met: None,
            samples: None,
            crossings_ns: [0.0; 2],
        }
    }

    /// Returns a row with the median figure of the samples and their number, but no yardstick.
    pub(crate) fn sampled(name: impl Into<String>, samples: &Samples, unit: &str) -> Self {
        Self::new(name, samples.figure(), unit).counted(samples.counts())
    }

    /// Returns a row with the median figure of the samples, their median yardstick under the name `yardstick`, and the
    /// median ratio.
    pub(crate) fn compared(
        name: impl Into<String>,
        samples: &Samples,
        unit: &str,
        yardstick: impl Into<String>,
    ) -> Self {
        Self {
            ratio: Some(samples.ratio()),
            ..Self::sampled(name, samples, unit).beside(yardstick, samples.yardstick())
        }
    }

    /// Adds a yardstick with this name and value, in the unit of the figure, and sets the ratio of figure to yardstick.
    pub(crate) fn beside(self, name: impl Into<String>, value: f64) -> Self {
        Self {
            ratio: Some(self.figure.value / value),
            yardstick: Some(Yardstick {
                name: name.into(),
                quantity: Quantity::new(value, &self.figure.unit),
            }),
            ..self
        }
    }

    /// Sets the row's number of samples that count, and its number of samples taken.
    pub(crate) fn counted(self, samples: (usize, usize)) -> Self {
        let samples = Some(samples);
        Self { samples, ..self }
    }

    /// Sets the limit of the row, and whether the row's figure or ratio meets the limit; with `None` the row has no
    /// limit. A row without a yardstick does not meet a limit of the ratio.
    pub(crate) fn within(self, limit: impl Into<Option<Limit>>) -> Self {
        let limit = limit.into();
        let (figure, ratio) = (self.figure.value, self.ratio.unwrap_or(f64::NAN));
        let is_met = |limit| match limit {
            Limit::RatioAtMost(most) => ratio <= most,
            Limit::RatioAtLeast(least) => ratio >= least,
            Limit::FigureAtMost(most) => figure <= most,
            Limit::FigureAtLeast(least) => figure >= least,
        };
        Self {
            limit,
            met: limit.map(is_met),
            ..self
        }
    }

    fn cells(&self) -> [String; 8] {
        let yardstick = |it: &Yardstick| format!("{} {}", it.name, it.quantity.text());
        let figure = |value| Quantity::new(value, &self.figure.unit).text();
        let limit = |limit| match limit {
            Limit::RatioAtMost(most) => format!("<= {most}"),
            Limit::RatioAtLeast(least) => format!(">= {least}"),
            Limit::FigureAtMost(most) => format!("<= {}", figure(most)),
            Limit::FigureAtLeast(least) => format!(">= {}", figure(least)),
        };
        let ratio = |ratio| Quantity::new(ratio, "").text();
        let verdict = |is_met| if is_met { "met" } else { "not met" }.to_owned();
        let samples = |(counted, taken)| format!("{counted}/{taken}");
        let [before, after] = self.crossings_ns;
        [
            self.name.clone(),
            self.figure.text(),
            self.yardstick.as_ref().map_or_else(String::new, yardstick),
            self.ratio.map_or_else(String::new, ratio),
            self.limit.map_or_else(String::new, limit),
            self.met.map_or_else(String::new, verdict),
            self.samples.map_or_else(String::new, samples),
            format!("{before:.0}, {after:.0} ns"),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_met_up_to_itself() {
        let row = || Row::new("a write", 12.0, NS).beside("an increment", 4.0);
        let is_met = |limit| row().within(limit).met;
        assert_eq!(is_met(Limit::RatioAtMost(3.0)), Some(true));
        assert_eq!(is_met(Limit::RatioAtMost(2.9)), Some(false));
        assert_eq!(is_met(Limit::RatioAtLeast(3.1)), Some(false));
        assert_eq!(is_met(Limit::FigureAtMost(12.0)), Some(true));
        assert_eq!(is_met(Limit::FigureAtLeast(12.1)), Some(false));
        assert_eq!(row().within(None::<Limit>).met, None);
    }

    #[test]
    fn a_row_shows_figure_yardstick_ratio_and_verdict() {
        let row = Row::new("a write", 12.345, NS)
            .beside("an increment", 4.0)
            .counted((9, 11))
            .within(Limit::RatioAtMost(3.0));
        let report = Report {
            apart: true,
            rows: vec![row],
        };
        let table = report.table().to_string();
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
        let json = serde_json::to_value(&report).unwrap();
        let row = &json["rows"][0];
        assert_eq!(row["figure"]["value"], 12.345);
        assert_eq!(row["yardstick"]["unit"], NS);
        assert_eq!(row["limit"]["ratio_at_most"], 3.0);
        assert_eq!(row["met"], false);
    }
}
