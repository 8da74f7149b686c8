//! The matrix as JSON.

use serde_json::{Map, Value, json};

use crate::matrix::{Cell, Claim, Matrix, Proof, Row};

impl Matrix {
    /// An object with `devices`, as `polyverbs devices --json` has them, and `rows`, each with a cell for each device.
    pub fn to_json(&self) -> Value {
        let devices: Vec<_> = self
            .columns
            .iter()
            .map(|column| json!(column.device))
            .collect();
        let rows: Vec<_> = self.rows.iter().map(|row| self.row(row)).collect();
        json!({ "devices": devices, "rows": rows })
    }

    fn row(&self, row: &Row) -> Value {
        let cells = self.columns.iter().zip(&row.cells);
        let cells: Map<_, _> = cells
            .map(|(column, each)| (column.device.name.clone(), cell(each)))
            .collect();
        json!({
            "section": row.section.title().to_lowercase(),
            "name": row.name,
            "about": row.about,
            "cells": cells,
        })
    }
}

fn cell(cell: &Cell) -> Value {
    let claim = match &cell.claim {
        Claim::Yes => json!(true),
        Claim::No => json!(false),
        Claim::Number(number) | Claim::Bits(number) => json!(number),
        Claim::Words(words) => json!(words),
    };
    let proof = match cell.proof {
        Proof::Untested => "untested",
    };
    json!({ "claim": claim, "proof": proof })
}
