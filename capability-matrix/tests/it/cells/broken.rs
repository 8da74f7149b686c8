//! Devices that break one rule: the cells that depend on it become mismatches, and no others do.

use std::collections::{BTreeMap, BTreeSet};

use capability_matrix::Matrix;
use polyverbs::provider::Mutex;
use polyverbs_engine::rules::{Rule, break_rule};
use serde_json::Value;

use super::table::{Table, cells_of};
use crate::Simulated;

/// The cells that must change, by rule.
fn resting(table: &Table) -> BTreeMap<&str, BTreeSet<(String, String)>> {
    let mut resting: BTreeMap<&str, BTreeSet<_>> = BTreeMap::new();
    for cell in &table.cells {
        for rule in &cell.rules {
            let cells = resting.entry(rule).or_default();
            cells.insert((cell.device.clone(), cell.feature.clone()));
        }
    }
    resting
}

/// The matrix of devices that break this rule. In virtual time they do everything on this thread.
fn verified_without(rule: Rule) -> Matrix {
    break_rule(Some(rule));
    let matrix = Simulated::new().verified();
    break_rule(None);
    matrix
}

#[test]
fn the_table_names_every_rule() {
    let table = Table::read();
    let named: BTreeSet<_> = resting(&table).into_keys().collect();
    let all: BTreeSet<_> = Rule::ALL.iter().map(|rule| rule.name()).collect();
    assert_eq!(named, all);
}

#[test]
fn a_broken_rule_changes_exactly_its_cells() {
    let table = Table::read();
    let resting = resting(&table);
    let rules = Mutex::new(Rule::ALL.iter());
    let wrong = Mutex::new(Vec::new());
    let take = || rules.lock().next();
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while let Some(&rule) = take() {
                    let expected = &resting[rule.name()];
                    if let Err(what) = changes(&verified_without(rule), expected) {
                        wrong.lock().push(format!("{}: {what}", rule.name()));
                    }
                }
            });
        }
    });
    let wrong = wrong.into_inner();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

fn changes(found: &Matrix, expected: &BTreeSet<(String, String)>) -> Result<(), String> {
    let of = |verdict: &str| {
        let cells = cells_of(found).filter(|cell| cell.2 == verdict);
        let cells = cells.map(|(device, feature, _)| (device, feature));
        cells.collect::<BTreeSet<_>>()
    };
    let mismatches = of("mismatch");
    if mismatches != *expected {
        let told = found.mismatches();
        let told: Vec<_> = told.map(|(.., verified)| &*verified.because).collect();
        return Err(format!(
            "{mismatches:?} for {expected:?}\n    {}",
            told.join("\n    ")
        ));
    }
    if !of("not-verifiable").is_empty() {
        return Err("cells that can no longer be verified".into());
    }
    let page = found.to_json();
    let rows = page["rows"].as_array().expect("rows");
    let cell = |(device, feature): &(String, String)| {
        let row = rows.iter().find(|row| row["feature"] == **feature);
        &row.expect("a row for each feature")["cells"][device]
    };
    match expected.iter().find(|at| !shows_evidence(cell(at))) {
        None => Ok(()),
        Some(at) => Err(format!("{at:?} without evidence: {}", cell(at))),
    }
}

// Whether a mismatch has evidence: for a claimed feature the probe that failed and its finding, for an unclaimed one the probes
// that passed.
fn shows_evidence(cell: &Value) -> bool {
    let probes = cell["probes"].as_array();
    let mut probes = probes.into_iter().flatten();
    let says = |value: &Value| value.as_str().is_some_and(|text| !text.is_empty());
    let shown = match cell["claimed"] == true {
        true => probes.any(|probe| {
            probe["result"] == "failed" && says(&probe["evidence"]) && says(&probe["at"])
        }),
        false => probes.any(|probe| probe["result"] == "passed"),
    };
    shown && says(&cell["because"])
}
