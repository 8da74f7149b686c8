//! The probes of the core and of every extension on every kind of device: each claimed feature is proven, and each other one
//! is refused.

use conformance::{Flavour, examined};
use polyverbs_probes::{CORE_FEATURES, CORE_PROBES};
use verbs_api::Features;
use verbs_api::capability::{Baseline, FeatureSet as _};
use verbs_api::extension::{Extensions, FeatureInfo};
use verbs_api::probe::{Probe, Verdict};

// covers 4.08 4.42
fn is_as_claimed(flavour: Flavour) {
    let extensions = Extensions::linked().expect("extensions that fit together");
    let of_core = CORE_FEATURES.iter().map(|feature| (feature, CORE_PROBES));
    let of_extensions = extensions.iter().flat_map(|extension| {
        let features = extension.all_features().iter();
        features.map(|feature| (feature, extension.all_probes()))
    });
    let wrong: Vec<_> = of_core
        .chain(of_extensions)
        .filter_map(|(feature, probes)| fault(flavour, feature, probes))
        .collect();
    assert!(wrong.is_empty(), "{flavour:?}: {wrong:#?}");
}

/// Returns how the verdict of the probes on a feature of devices of this flavour differs from the claim.
fn fault(flavour: Flavour, feature: &FeatureInfo, probes: &[Probe]) -> Option<String> {
    let cell = examined(flavour, feature, probes);
    let expected = match cell.claimed {
        true => Verdict::Verified,
        false => Verdict::Refused,
    };
    // A probe of an extension's own feature that is left out counts as one that failed, unless the device hides what it needs.
    let of_feature = probes.iter().filter(|probe| probe.proves(feature)).count();
    let may_lack =
        [Features::SET, Baseline::SET].contains(&feature.set) || flavour == Flavour::IbBmme;
    let is_whole = !cell.claimed || may_lack || cell.passed() == of_feature;
    if cell.verdict == expected && is_whole {
        return None;
    }
    let (set, name) = (feature.set, feature.name);
    Some(format!(
        "{set}::{name}: {:?}, {}",
        cell.verdict, cell.because
    ))
}

macro_rules! flavours {
    ($($name:ident $flavour:ident;)*) => {
        $(
            #[test]
            fn $name() {
                is_as_claimed(Flavour::$flavour);
            }
        )*
    };
}

flavours! {
    an_infiniband_device_is_what_it_claims Ib;
    one_with_windows_of_type_2a_is_what_it_claims Ib2a;
    one_without_extensions_is_what_it_claims IbPlain;
    one_that_hides_most_is_what_it_claims IbBmme;
    one_over_a_link_is_what_it_claims IbFramed;
    one_whose_frames_are_octets_is_what_it_claims IbWire;
    one_of_low_latency_is_what_it_claims IbLowLatency;
    an_iwarp_device_is_what_it_claims Iwarp;
    an_iwarp_device_without_extensions_is_what_it_claims IwarpPlain;
    an_iwarp_device_of_low_latency_is_what_it_claims IwarpLowLatency;
    an_iwarp_device_over_a_stream_is_what_it_claims IwarpFramed;
    an_iwarp_device_whose_segments_are_octets_is_what_it_claims IwWire;
    an_infiniband_device_over_udp_is_what_it_claims IbUdp;
    an_infiniband_device_in_shared_memory_is_what_it_claims IbMemory;
    an_iwarp_device_over_tcp_is_what_it_claims IwTcp;
}

// Extended reliable connections keep the promises of the other features as well.
// covers 4.10 4.12
#[test]
fn extended_connections_keep_the_promises_of_others() {
    for flavour in [
        Flavour::Ib,
        Flavour::IbFramed,
        Flavour::IbWire,
        Flavour::IbUdp,
        Flavour::IbMemory,
    ] {
        let [feature] = xrc::EXTENSION.all_features() else {
            panic!("one feature")
        };
        let found = examined(flavour, feature, xrc::CARRIED);
        assert_eq!(found.passed(), xrc::CARRIED.len(), "{}", found.because);
    }
}
