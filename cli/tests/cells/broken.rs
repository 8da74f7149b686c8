//! Devices that break one rule: the cells that rest on it become mismatches, and no others do.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;
use std::sync::Mutex;

use polyverbs::rules::Rule;
use serde_json::Value;

use crate::table::{Found, Table, Verdict, verify};

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
    let rules = Mutex::new(resting(&table).into_iter());
    let wrong = Mutex::new(Vec::new());
    let take = || rules.lock().unwrap().next();
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while let Some((rule, cells)) = take() {
                    if let Err(what) = changes(&verify(&table, Some(rule)), &cells) {
                        wrong.lock().unwrap().push(format!("{rule}: {what}"));
                    }
                }
            });
        }
    });
    let wrong = wrong.into_inner().unwrap();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

fn changes(found: &Found, expected: &BTreeSet<(String, String)>) -> Result<(), String> {
    let of = |verdict: Verdict| {
        let cells = found.cells().filter(move |cell| cell.2 == verdict);
        let cells = cells.map(|(device, feature, _)| (device, feature));
        cells.collect::<BTreeSet<_>>()
    };
    let mismatches = of(Verdict::Mismatch);
    if mismatches != *expected {
        let told = found.each().filter(|cell| is_mismatch(cell.2));
        let told: Vec<_> = told.map(|(.., cell)| cell["because"].to_string()).collect();
        return Err(format!(
            "{mismatches:?} for {expected:?}\n    {}",
            told.join("\n    ")
        ));
    }
    if !of(Verdict::NotVerifiable).is_empty() {
        return Err("cells that cannot be verified any more".into());
    }
    if found.success {
        return Err("the command succeeded".into());
    }
    match found
        .each()
        .find(|cell| is_mismatch(cell.2) && !shows_evidence(cell.2))
    {
        None => Ok(()),
        Some((device, feature, cell)) => {
            Err(format!("{device} {feature} without evidence: {cell}"))
        }
    }
}

#[test]
fn every_format_shows_a_mismatch_and_the_command_fails() {
    let lines = [
        ("text", "✗ ib0 UD: claimed; core.ud-qkey: "),
        ("markdown", "* `UD` of `ib0`: core.ud-qkey: "),
        ("json", "\"verdict\": \"mismatch\""),
        ("html", "<details open class=\"wrong\" id=\"features-UD\">"),
    ];
    for (format, line) in lines {
        let command = ["matrix", "--verify", "--device", "ib0", "--format", format];
        let output = Command::new(env!("CARGO_BIN_EXE_polyverbs"))
            .args(command)
            .env("POLYVERBS_BREAKS", "datagram-qkey")
            .output()
            .unwrap();
        let shown = String::from_utf8(output.stdout).unwrap();
        assert_eq!(output.status.code(), Some(1), "{format}: {shown}");
        assert!(shown.contains(line), "{format}: {shown}");
    }
}

fn is_mismatch(cell: &Value) -> bool {
    cell["verdict"] == "mismatch"
}

// What is claimed and fails tells which probe found what, and where; what is not claimed and works, which probes passed.
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
