//! The table, and what the command finds.

use std::process::{Command, Stdio};

use serde_json::Value;

/// `capability-matrix/cells.txt`.
pub(crate) struct Table {
    pub(crate) devices: Vec<String>,
    pub(crate) cells: Vec<Cell>,
}

/// What one device must be found to do.
pub(crate) struct Cell {
    pub(crate) feature: String,
    pub(crate) device: String,
    pub(crate) verdict: Verdict,
    pub(crate) rules: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Verdict {
    Verified,
    Refused,
    Mismatch,
    NotVerifiable,
}

impl Verdict {
    fn named(name: &str) -> Self {
        match name {
            "verified" => Self::Verified,
            "refused" => Self::Refused,
            "mismatch" => Self::Mismatch,
            "not-verifiable" => Self::NotVerifiable,
            other => panic!("no verdict: {other}"),
        }
    }
}

impl Table {
    pub(crate) fn read() -> Self {
        let text = include_str!("../../../capability-matrix/cells.txt");
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
                    verdict: Verdict::named(verdict),
                    rules: rules.map(str::to_owned).collect(),
                });
            }
        }
        Self { devices, cells }
    }
}

/// What a run of the command found.
pub(crate) struct Found {
    pub(crate) success: bool,
    pub(crate) page: Value,
}

/// Verifies the devices of the table, which break this rule.
pub(crate) fn verify(table: &Table, broken: Option<&str>) -> Found {
    let mut command = Command::new(env!("CARGO_BIN_EXE_polyverbs"));
    command.args(["matrix", "--verify", "--format", "json"]);
    for device in &table.devices {
        command.args(["--device", device]);
    }
    if let Some(rule) = broken {
        command.env("POLYVERBS_BREAKS", rule);
    }
    let output = command.stdin(Stdio::null()).output().unwrap();
    let page = serde_json::from_slice(&output.stdout).unwrap_or_else(|error| {
        let said = String::from_utf8_lossy(&output.stderr);
        panic!("{error} ({broken:?}): {said}")
    });
    Found {
        success: output.status.success(),
        page,
    }
}

impl Found {
    /// Each cell: device, feature and verdict.
    pub(crate) fn cells(&self) -> impl Iterator<Item = (String, String, Verdict)> {
        self.each().map(|(device, feature, cell)| {
            let verdict = cell["verdict"].as_str().expect("a verdict");
            (device.clone(), feature.to_owned(), Verdict::named(verdict))
        })
    }

    /// Each cell: device, feature and all that is told.
    pub(crate) fn each(&self) -> impl Iterator<Item = (&String, &str, &Value)> {
        let rows = self.page["rows"].as_array().expect("rows");
        rows.iter().flat_map(|row| {
            let feature = row["feature"].as_str().expect("a name");
            let cells = row["cells"].as_object().expect("cells");
            cells
                .iter()
                .map(move |(device, cell)| (device, feature, cell))
        })
    }
}
