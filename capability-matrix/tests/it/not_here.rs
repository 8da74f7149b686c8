//! A feature that cannot be probed in the environment of a device is no mismatch, on any page.

use std::sync::Arc;

use capability_matrix::Matrix;
use polyverbs::capability::{Baseline, Mtu, PortState};
use polyverbs::probe::Verdict;
use polyverbs_io::sim::DatagramLink;

use crate::Simulated;

/// Checks that no feature of `ib0` is a mismatch, and that those that need a peer are not verifiable for this reason.
fn check(matrix: &Matrix, reason: &str) {
    let wrong: Vec<_> = matrix
        .mismatches()
        .map(|(row, _, found)| (&row.name, &found.because))
        .collect();
    assert!(wrong.is_empty(), "{wrong:?}");
    for name in Baseline::all().iter_names().map(|(name, _)| name) {
        let of_ib0 = matrix
            .probed()
            .find(|(row, column, _)| row.name == name && column.device.name == "ib0");
        let (.., found) = of_ib0.expect("a cell");
        // The device alone may show these.
        if !matches!(name, "INLINE" | "RESIZE_CQ" | "REREG_MR") {
            assert_eq!(found.verdict, Verdict::NotVerifiable, "{name}: {found:?}");
            assert!(found.because.contains(reason), "{name}: {}", found.because);
        }
    }
}

#[test]
fn a_device_whose_messages_get_lost_is_not_verifiable() {
    let loss = "drop=100%".parse().unwrap();
    let link = Arc::new(DatagramLink::new(Some(Mtu::Mtu4096), loss));
    let simulated = Simulated::with_infiniband(Some(link), PortState::Active);
    check(
        &simulated.verified(),
        "the two ends do not reach each other",
    );
}

#[test]
fn a_device_whose_port_is_down_is_not_verifiable_on_any_page() {
    let matrix = Simulated::with_infiniband(None, PortState::Down).verified();
    let reason = "port 1 is down: it carries no traffic";
    check(&matrix, reason);

    let text = matrix.to_text(200, false);
    assert!(
        text.contains(&format!("? ib0 RC: not verifiable here; {reason}")),
        "{text}"
    );
    let page = matrix.to_markdown();
    let (_, list) = page
        .split_once("## Not verifiable here\n\n")
        .expect("a heading");
    assert!(
        list.contains(&format!("* `RC` of `ib0`: {reason}")),
        "{list}"
    );
    let html = matrix.to_html();
    assert!(
        html.contains(&format!("cannot be verified here: {reason}")),
        "{html}"
    );
    assert!(html.contains("not verifiable here</span>"), "{html}");
    let json = matrix.to_json();
    let rows = json["rows"].as_array().unwrap();
    let cell = &rows.iter().find(|row| row["feature"] == "RC").unwrap()["cells"]["ib0"];
    assert_eq!(cell["verdict"], "not-verifiable");
    assert!(
        cell["because"].as_str().unwrap().starts_with(reason),
        "{cell}"
    );
    assert_eq!(cell["probes_failed"], 0);
}
