//! The probes find every capability that a device has and does not claim.

use polyverbs::probe::Verdict;
use polyverbs::{
    Device, Features,
    capability::{Baseline, DeviceAttributes, FeatureSet},
    extension::{Extensions, FeatureInfo},
};

use crate::{Simulated, with_claims};

fn hide(told: &mut DeviceAttributes, feature: &FeatureInfo) {
    match feature.set {
        Features::SET => told.features -= Features::from_bits_retain(feature.bits),
        Baseline::SET => told.gaps |= Baseline::from_bits_retain(feature.bits).gaps(),
        set => {
            for known in told.extensions.iter_mut().filter(|known| known.set == set) {
                known.bits &= !feature.bits;
            }
        }
    }
}

fn claimed(device: &Device) -> Vec<FeatureInfo> {
    let told = device.attributes();
    let linked = Extensions::linked().unwrap();
    let of_extensions = linked
        .iter()
        .flat_map(|extension| extension.all_features().iter());
    polyverbs_probes::CORE_FEATURES
        .iter()
        .chain(of_extensions)
        .filter(|feature| told.claims(feature))
        .copied()
        .collect()
}

#[test]
fn an_unclaimed_feature_that_works_is_a_mismatch() {
    let mut missed = Vec::new();
    let simulated = Simulated::new();
    for device in &simulated.devices {
        for feature in claimed(device) {
            let hiding = with_claims(device, move |claimed| hide(claimed, &feature));
            if hiding.attributes().claims(&feature) {
                // No gap exists for this ability: a device cannot lack it.
                continue;
            }
            let found = simulated.examined(&hiding, &feature);
            if found.verdict != Verdict::Mismatch || found.claimed {
                missed.push(format!(
                    "{} {}: {:?}, {}",
                    device.name(),
                    feature.name,
                    found.verdict,
                    found.because
                ));
            }
        }
    }
    assert!(missed.is_empty(), "{missed:#?}");
}

#[test]
fn a_claimed_feature_that_fails_is_a_mismatch() {
    let simulated = Simulated::new();
    for device in &simulated.devices {
        let told = device.attributes();
        let lacking = polyverbs_probes::CORE_FEATURES
            .iter()
            .filter(|feature| !told.claims(feature));
        for &feature in lacking {
            let boasting = with_claims(device, move |claimed| boast(claimed, &feature));
            let found = simulated.examined(&boasting, &feature);
            assert_eq!(
                (found.claimed, found.verdict),
                (true, Verdict::Mismatch),
                "{} {}: {}",
                device.name(),
                feature.name,
                found.because
            );
        }
    }
}

fn boast(told: &mut DeviceAttributes, feature: &FeatureInfo) {
    match feature.set {
        Features::SET => told.features |= Features::from_bits_retain(feature.bits),
        _ => told.gaps -= Baseline::from_bits_retain(feature.bits).gaps(),
    }
}
