//! A layer whose hooks do nothing changes nothing.

use std::sync::Arc;

use capability_matrix::{Matrix, Section};
use polyverbs::Device;
use polyverbs::emulated::{EmulatedOptions, device};
use polyverbs_layer::{Hooks, layered};

struct Nothing;

impl Hooks for Nothing {}

/// Every feature of a device with its verdict.
fn verdicts(device: &Device) -> Vec<(String, &'static str)> {
    let matrix = Matrix::verified(std::slice::from_ref(device), &mut |_| ()).unwrap();
    let wrong: Vec<_> = matrix
        .mismatches()
        .map(|(row, _, found)| (&row.name, &found.because))
        .collect();
    assert!(wrong.is_empty(), "{wrong:?}");
    let rows = matrix.section(Section::Features);
    rows.map(|row| {
        let proof = row.cells[0].proof.verdict().unwrap();
        (row.name.clone(), proof.name())
    })
    .collect()
}

#[test]
fn a_layered_device_has_the_verdicts_of_its_device() {
    for kind in ["ib0", "iw0"] {
        let plain = device(kind, &EmulatedOptions::default()).unwrap();
        let with_layer = layered(&plain, Arc::new(Nothing));
        assert_eq!(verdicts(&with_layer), verdicts(&plain), "{kind}");
    }
}

#[test]
fn layers_can_be_in_front_of_layers() {
    let plain = device("ib0", &EmulatedOptions::default()).unwrap();
    let twice = layered(&layered(&plain, Arc::new(Nothing)), Arc::new(Nothing));
    assert_eq!(verdicts(&twice), verdicts(&plain));
}
