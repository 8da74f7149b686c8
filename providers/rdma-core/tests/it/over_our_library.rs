//! Tests of the provider over the C library of this workspace.

use std::collections::BTreeSet;
use std::sync::Arc;

use capability_matrix::Matrix;
use polyverbs_layer::{Hooks, layered};
use rdma_core_provider::LibIbverbs;
use verbs_api::probe::Verdict;
use verbs_api::{Device, Registry};

use crate::common;

/// Hooks that change nothing.
struct Nothing;

impl Hooks for Nothing {}

/// Checks that exactly these rows of the device are verified, with and without a layer in front of it, and that no row is a
/// mismatch or cannot be verified.
fn check_verified(device: &str, rows: &str) {
    let registry = common::registry();
    let device = registry.device(device).unwrap();
    check_verified_of(device.clone(), rows);
    check_verified_of(layered(device, Arc::new(Nothing)), rows);
}

fn check_verified_of(device: Device, rows: &str) {
    let matrix = Matrix::verified(&[device], &mut |_| ()).unwrap();
    let of = |verdict| -> BTreeSet<_> {
        let found = matrix
            .probed()
            .filter(|(.., verified)| verified.verdict == verdict);
        found.map(|(row, ..)| row.name.as_str()).collect()
    };
    assert_eq!(of(Verdict::Mismatch), BTreeSet::new());
    assert_eq!(of(Verdict::NotVerifiable), BTreeSet::new());
    assert_eq!(of(Verdict::Verified), rows.split_whitespace().collect());
}

// covers 1.20
#[test]
fn reported_features_are_verified_and_others_refused() {
    let rows = "RC UC UD SEND SEND_WITH_IMM WRITE WRITE_WITH_IMM READ LOCAL_READ_SINK ATOMICS INLINE RNR_RETRY \
        REGIONS REREG_MR RESIZE_CQ SRQ MULTICAST WINDOW_1 WINDOW_2B xrc::XRC";
    check_verified("ib0@libibverbs", rows);
}

// covers 1.20
#[test]
fn iwarp_features_are_verified_and_others_refused() {
    let rows = "RC SEND WRITE WRITE_WITH_IMM READ LOCAL_READ_SINK ATOMICS INLINE REGIONS REREG_MR RESIZE_CQ SRQ WINDOW_2B";
    check_verified("iw0@libibverbs", rows);
}

fn refusal(file: &[u8]) -> String {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("libibverbs.so.1");
    std::fs::write(&path, file).unwrap();
    let refused = Registry::new().add_provider(LibIbverbs::in_file(&path));
    refused.unwrap_err().to_string()
}

// covers 1.20
#[test]
fn an_unusable_library_is_named_with_the_reason() {
    let said = refusal(b"");
    assert!(said.contains("libibverbs.so.1: file too short"), "{said}");
    let other = test_kit::libraries::built().with_file_name("libpolyverbs_redirect.so");
    let said = refusal(&std::fs::read(other).unwrap());
    assert!(said.contains("undefined symbol: ibv_"), "{said}");
    assert!(said.contains("rdma-core 32"), "{said}");
}

// covers 1.20
#[test]
fn devices_of_the_kernel_are_offered_or_absent_with_a_reason() {
    let mut registry = Registry::new();
    registry
        .add_provider(&rdma_core_provider::PROVIDER)
        .unwrap();
    let absent: Vec<_> = (registry.absent().iter())
        .map(|(_, absent)| (absent.what.to_string(), absent.why.to_string()))
        .collect();
    let of_kernel = std::fs::read_dir("/sys/class/infiniband");
    let mut of_kernel = of_kernel.into_iter().flatten().peekable();
    if of_kernel.peek().is_none() {
        let [(what, why)] = &absent[..] else {
            panic!("{absent:?}");
        };
        assert_eq!(what, "libibverbs.so.1");
        assert!(why.contains("/sys/class/infiniband"), "{why}");
    }
    for device in of_kernel {
        let name = device.unwrap().file_name().into_string().unwrap();
        let is_offered = registry.device(&name).is_some();
        let has_reason = absent
            .iter()
            .any(|(what, _)| *what == name || what == "libibverbs.so.1");
        assert!(is_offered != has_reason, "{name}: {absent:?}");
    }
}
