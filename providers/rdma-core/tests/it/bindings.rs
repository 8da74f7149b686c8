//! Bindings of extensions on devices of this workspace's C library.

use polyverbs::emulated::{self, EmulatedOptions};
use rdma_core_provider::binding::{Binding, BindingPart, Described, Gains};
use rdma_core_provider::{LibIbverbs, OpenDevice};
use verbs_api::capability::{Direction, ExtensionLimit, FeatureSet};
use verbs_api::extension::{ExtensionDescriptor, FeatureInfo, feature};
use verbs_api::probe::Probe;
use verbs_api::{Registry, Requirements};

use crate::common;

bitflags::bitflags! {
    #[derive(Clone, Copy, Debug)]
    struct Acme: u64 {
        const HERE = 1;
        const ELSEWHERE = 2;
    }
}

impl FeatureSet for Acme {
    const SET: &'static str = "acme";
}

const HERE: FeatureInfo = feature!(Acme::HERE, "devices of this project's library have it");
const ELSEWHERE: FeatureInfo = feature!(Acme::ELSEWHERE, "those of others have it");

static DEPTH: ExtensionLimit = ExtensionLimit::new(Acme::SET, "depth", Direction::LargerIsStronger);

static EXTENSION: ExtensionDescriptor = ExtensionDescriptor::new("acme", "an example")
    .features(&[HERE, ELSEWHERE])
    .limits(&[DEPTH])
    .probes(&[
        Probe::new(&HERE, "acme.here", "none", "nothing", |_| Ok(())),
        Probe::new(&ELSEWHERE, "acme.elsewhere", "none", "nothing", |_| Ok(())),
    ])
    .parts(&[&BindingPart(&OfVendor)]);

/// A binding that reads the description of a device and the device itself.
struct OfVendor;

impl Binding for OfVendor {
    fn gains(&self, device: &Described<'_>) -> Gains {
        const POLYVERBS: u32 = 0x02_70_76;
        let is_open = device.with_context(|context| !context.is_null());
        let own = match (device.vendor_id, is_open) {
            (POLYVERBS, Ok(true)) => Acme::HERE,
            _ => Acme::ELSEWHERE,
        };
        Gains {
            own: own.bits(),
            limits: vec![(DEPTH.name, 7)],
        }
    }
}

// covers 1.17
#[test]
fn a_device_claims_the_features_that_a_binding_gives_it() {
    let mut registry = Registry::new();
    registry.add_extension(&EXTENSION).unwrap();
    let provider = LibIbverbs::in_file(test_kit::libraries::built_apart());
    registry.add_provider(provider).unwrap();
    let attributes = registry.device("ib0@libibverbs").unwrap().attributes();
    assert!(attributes.claims(&HERE) && !attributes.claims(&ELSEWHERE));
    assert_eq!(attributes.limit((&DEPTH).into()), 7);
}

// covers 1.17
#[test]
fn a_device_claims_no_feature_without_its_extension() {
    let registry = common::registry();
    let attributes = registry.device("ib0@libibverbs").unwrap().attributes();
    assert!(!attributes.claims(&HERE) && !attributes.claims(&ELSEWHERE));
}

static UNTOLD: ExtensionDescriptor = ExtensionDescriptor::new("untold", "an example")
    .features(&[HERE])
    .probes(&[Probe::new(&HERE, "untold.here", "none", "nothing", |_| {
        Ok(())
    })])
    .parts(&[&BindingPart(&TooMuch)]);

struct TooMuch;

impl Binding for TooMuch {
    fn gains(&self, _: &Described<'_>) -> Gains {
        Gains {
            own: Acme::all().bits(),
            ..Gains::default()
        }
    }
}

// covers 1.17
#[test]
fn an_undeclared_feature_bit_is_refused_with_its_value() {
    let mut registry = Registry::new();
    registry.add_extension(&UNTOLD).unwrap();
    let provider = LibIbverbs::in_file(test_kit::libraries::built_apart());
    registry.add_provider(provider).unwrap();
    // Another registry without this extension uses the same provider.
    assert!(common::registry().absent().is_empty());
    assert!(registry.device("ib0@libibverbs").is_none());
    let absent = registry.absent();
    let said = absent.iter().map(|(_, absent)| absent.why.to_string());
    assert!(said.clone().count() > 0);
    for said in said {
        assert!(said.contains("untold") && said.contains("0x2"), "{said}");
    }
}

// covers 1.17
#[test]
fn only_the_provider_of_a_device_gives_access_to_it() {
    let context = common::open("ib0@libibverbs");
    let device = OpenDevice::of(&context).unwrap();
    assert_eq!(device.with_context(|at| at.is_null()), Ok(false));
    let emulated = emulated::device("ib0", &EmulatedOptions::default()).unwrap();
    let emulated = emulated.open(&Requirements::new()).unwrap();
    assert!(OpenDevice::of(&emulated).is_none());
}
