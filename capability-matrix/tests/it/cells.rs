//! The cells that must be verified: the checked-in table of them matches the findings of the probes.

#[cfg(debug_assertions)]
mod broken;
mod table;

use std::collections::{BTreeMap, BTreeSet};

use table::{Table, cells_of};

use crate::VERIFIED;

#[test]
fn the_devices_verify_as_the_table_says() {
    let table = Table::read();
    let found: BTreeSet<_> = cells_of(&VERIFIED).collect();
    let expected: BTreeSet<_> = table
        .cells
        .iter()
        .map(|cell| {
            (
                cell.device.clone(),
                cell.feature.clone(),
                cell.verdict.clone(),
            )
        })
        .collect();
    let unexpected: Vec<_> = found.difference(&expected).collect();
    let missing: Vec<_> = expected.difference(&found).collect();
    assert!(
        unexpected.is_empty() && missing.is_empty(),
        "found, and not in the table: {unexpected:#?}\nin the table, and not found: {missing:#?}"
    );
}

#[test]
fn every_cell_that_must_be_verified_has_a_rule() {
    let table = Table::read();
    let bare = table
        .cells
        .iter()
        .filter(|cell| cell.verdict == "verified" && cell.rules.is_empty());
    let bare: Vec<_> = bare.map(|cell| (&cell.feature, &cell.device)).collect();
    assert!(
        bare.is_empty(),
        "cells that no broken rule would change: {bare:?}"
    );
}

#[test]
fn every_rule_belongs_to_one_feature() {
    let table = Table::read();
    let mut of: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for cell in &table.cells {
        for rule in &cell.rules {
            of.entry(rule).or_default().insert(&cell.feature);
        }
    }
    of.retain(|_, features| features.len() > 1);
    assert!(of.is_empty(), "rules of several features: {of:#?}");
}
