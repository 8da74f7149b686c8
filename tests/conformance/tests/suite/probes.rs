//! The probes of the core and of every extension on every kind of device: each claimed feature is proven, and each other one
//! is refused.

use conformance::{Flavour, examined};
use polyverbs_probes::{CORE_FEATURES, CORE_PROBES};
use verbs_api::extension::{ExtensionDescriptor, Extensions};
use verbs_api::probe::{Verdict, Verified};

fn cells(flavour: Flavour) -> Vec<(String, Verified)> {
    let extensions = Extensions::linked().expect("extensions that fit together");
    let of_core = CORE_FEATURES.iter().map(|feature| {
        let name = format!("{}::{}", feature.set, feature.name);
        (name, examined(flavour, feature, CORE_PROBES))
    });
    let all: Vec<_> = extensions.iter().collect();
    of_core.chain(cells_of(flavour, &all)).collect()
}

fn cells_of(flavour: Flavour, extensions: &[&ExtensionDescriptor]) -> Vec<(String, Verified)> {
    let mut cells = Vec::new();
    for extension in extensions {
        for feature in extension.all_features() {
            let name = format!("{}::{}", feature.set, feature.name);
            cells.push((name, examined(flavour, feature, extension.all_probes())));
        }
    }
    cells
}

// covers 4.42
fn is_as_claimed(flavour: Flavour) {
    let mut wrong = Vec::new();
    for (name, cell) in cells(flavour) {
        let expected = match cell.claimed {
            true => Verdict::Verified,
            false => Verdict::Refused,
        };
        if cell.verdict != expected {
            wrong.push(format!("{name}: {:?}, {}", cell.verdict, cell.because));
        }
    }
    assert!(wrong.is_empty(), "{flavour:?}: {wrong:#?}");
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
    an_iwarp_device_is_what_it_claims Iwarp;
    an_iwarp_device_without_extensions_is_what_it_claims IwarpPlain;
    an_iwarp_device_over_a_stream_is_what_it_claims IwarpFramed;
}

// covers 4.08
#[test]
fn extended_connections_reach_over_udp() {
    let wrong: Vec<_> = cells_of(Flavour::IbUdp, &[&xrc::EXTENSION])
        .into_iter()
        .filter(|(_, cell)| cell.verdict != Verdict::Verified)
        .map(|(name, cell)| format!("{name}: {:?}, {}", cell.verdict, cell.because))
        .collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

// Extended reliable connections keep the promises of the other features as well.
// covers 4.10 4.12
#[test]
fn extended_connections_keep_the_promises_of_others() {
    for flavour in [Flavour::Ib, Flavour::IbFramed, Flavour::IbWire] {
        let [feature] = xrc::EXTENSION.all_features() else {
            panic!("one feature")
        };
        let found = examined(flavour, feature, xrc::CARRIED);
        assert_eq!(found.passed(), xrc::CARRIED.len(), "{}", found.because);
    }
}
