//! The table, and the findings of the probes.

use capability_matrix::Matrix;

/// The table of `capability-matrix/cells.txt`.
pub(crate) struct Table {
    pub(crate) cells: Vec<Cell>,
}

/// The verdict that one device must get on one feature.
pub(crate) struct Cell {
    pub(crate) feature: String,
    pub(crate) device: String,
    /// The name of the verdict.
    pub(crate) verdict: String,
    pub(crate) rules: Vec<String>,
}

impl Table {
    pub(crate) fn read() -> Self {
        let text = include_str!("../../../cells.txt");
        let mut lines = text
            .lines()
            .filter(|line| !line.starts_with('#'))
            .map(|line| line.split_whitespace().map(str::to_owned))
            .filter_map(|mut words| Some((words.next()?, words.collect::<Vec<_>>())));
        let (first, devices) = lines.next().expect("a line of devices");
        assert_eq!(first, "feature");
        let mut cells = Vec::new();
        for (feature, row) in lines {
            assert_eq!(row.len(), devices.len(), "cells of {feature}");
            for (device, cell) in devices.iter().zip(row) {
                let (verdict, rules) = cell.split_once(':').unwrap_or((&cell, ""));
                let rules = rules.split(',').filter(|rule| !rule.is_empty());
                cells.push(Cell {
                    feature: feature.clone(),
                    device: device.clone(),
                    verdict: verdict.to_owned(),
                    rules: rules.map(str::to_owned).collect(),
                });
            }
        }
        Self { cells }
    }
}

/// Each cell that was probed: device, feature and the name of the verdict.
pub(crate) fn cells_of(matrix: &Matrix) -> impl Iterator<Item = (String, String, String)> {
    matrix.probed().map(|(row, column, found)| {
        let verdict = found.verdict.name().to_owned();
        (column.device.name.clone(), row.name.clone(), verdict)
    })
}
