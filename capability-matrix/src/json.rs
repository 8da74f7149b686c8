//! Renders a matrix as JSON. `docs/capability-matrix.md` describes the schema.

use polyverbs::probe::Finding;
use serde_json::{Map, Value, json};

use crate::matrix::{Cell, Claim, Matrix, Row, Section};

/// The version of the schema. It changes when a member is removed or changes its meaning, not when one is added.
const SCHEMA: u32 = 1;

impl Matrix {
    /// Renders the matrix as a JSON object: the names of the devices, a row for each feature, the other claims, and the
    /// attributes that each device reports.
    pub fn to_json(&self) -> Value {
        let devices: Vec<_> = (self.columns.iter())
            .map(|column| &column.device.name)
            .collect();
        let reports: Vec<_> = (self.columns.iter())
            .map(|column| json!(column.device))
            .collect();
        let (features, others): (Vec<_>, Vec<_>) = self
            .rows
            .iter()
            .partition(|row| row.section == Section::Features);
        let tally = self.tally();
        json!({
            "schema": SCHEMA,
            "verified": self.is_verified(),
            "devices": devices,
            "rows": features.iter().map(|row| self.feature(row)).collect::<Vec<_>>(),
            "claims": others.iter().map(|row| self.other(row)).collect::<Vec<_>>(),
            "reports": reports,
            "tally": {
                "verified": tally.verified,
                "refused": tally.refused,
                "mismatch": tally.mismatch,
                "not-verifiable": tally.not_verifiable,
            },
        })
    }

    fn feature(&self, row: &Row) -> Value {
        json!({
            "feature": row.name,
            "extension": row.extension,
            "about": row.about,
            "cells": self.cells(row, feature_cell),
        })
    }

    fn other(&self, row: &Row) -> Value {
        json!({
            "section": row.section.title().to_lowercase(),
            "name": row.name,
            "about": row.about,
            "cells": self.cells(row, |cell| claim(&cell.claim)),
        })
    }

    fn cells(&self, row: &Row, value: impl Fn(&Cell) -> Value) -> Map<String, Value> {
        let cells = self.columns.iter().zip(&row.cells);
        cells
            .map(|(column, cell)| (column.device.name.clone(), value(cell)))
            .collect()
    }
}

fn claim(claim: &Claim) -> Value {
    match claim {
        Claim::Yes => json!(true),
        Claim::No => json!(false),
        Claim::Number(number) | Claim::Bits(number) => json!(number),
        Claim::Words(words) => json!(words),
    }
}

fn feature_cell(cell: &Cell) -> Value {
    let Some(found) = cell.proof.probed() else {
        return json!({ "claimed": !cell.claim.is_absent(), "verdict": "untested" });
    };
    json!({
        "claimed": found.claimed,
        "verdict": found.verdict.name(),
        "probes_passed": found.passed(),
        "probes_failed": found.failed(),
        "probes_refused": found.refused(),
        "because": found.because,
        "probes": found.findings.iter().map(probe).collect::<Vec<_>>(),
    })
}

fn probe(each: &Finding) -> Value {
    let evidence = each.evidence.as_ref();
    json!({
        "id": each.probe.id(),
        "rule": each.probe.rule(),
        "about": each.probe.about(),
        "result": each.result.name(),
        "evidence": evidence.map(|evidence| evidence.found()),
        "at": evidence.map(|evidence| evidence.at()),
    })
}
