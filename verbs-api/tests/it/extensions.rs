//! Registration of extensions: as a whole, without contradiction, and before the providers.

use std::any::Any;

use verbs_api::probe::{Outcome, Probe, Rig};
use verbs_api::provider::CONTRACT_VERSION;
use verbs_api::*;
use verbs_api::{
    capability::{Direction, ExtensionFeatures, ExtensionLimit, FeatureSet},
    extension::{
        ExtensionDescriptor, ExtensionOperation, Extensions, FeatureInfo, Part, WireOpcodes,
        extension_id, feature,
    },
    provider::RegistryError,
    wr::{self, WorkRequest},
};

use crate::mock;

bitflags::bitflags! {
    #[derive(Clone, Copy, Debug)]
    struct Acme: u64 {
        const TELEPORT = 1;
        const RECALL = 1 << 1;
    }
}

impl FeatureSet for Acme {
    const SET: &'static str = "acme";
}

bitflags::bitflags! {
    #[derive(Clone, Copy, Debug)]
    struct Other: u64 {
        const TELEPORT = 1;
    }
}

impl FeatureSet for Other {
    const SET: &'static str = "other";
}

const TELEPORT: FeatureInfo = feature!(Acme::TELEPORT, "bytes without a wire");
const RECALL: FeatureInfo = feature!(Acme::RECALL, "and back");
const ELSEWHERE: FeatureInfo = feature!(Other::TELEPORT, "the same in another set");
const FLUSH: FeatureInfo = feature!(Features::FLUSH, "a bit of the core");

fn nothing(_: &Rig) -> Outcome {
    Ok(())
}

const PROBES: &[Probe] = &[
    Probe::new(&TELEPORT, "acme.teleport", "1", "it arrives", nothing),
    Probe::new(&ELSEWHERE, "other.teleport", "1", "it arrives", nothing),
    Probe::new(&FLUSH, "acme.flush", "1", "it is there", nothing),
];

struct Fragment(Option<&'static str>);

impl Part for Fragment {
    fn family(&self) -> &'static str {
        "fragments"
    }

    fn check(&self, _: &ExtensionDescriptor) -> Result<(), String> {
        self.0.map_or(Ok(()), |missing| Err(missing.to_owned()))
    }
}

struct Foreign;

impl Part for Foreign {
    fn family(&self) -> &'static str {
        "fragments"
    }

    fn check(&self, _: &ExtensionDescriptor) -> Result<(), String> {
        Ok(())
    }
}

const fn plain(name: &'static str) -> ExtensionDescriptor {
    ExtensionDescriptor::new(name, "for tests").probes(PROBES)
}

fn leak(descriptor: ExtensionDescriptor) -> &'static ExtensionDescriptor {
    Box::leak(Box::new(descriptor))
}

fn acme() -> &'static ExtensionDescriptor {
    leak(plain("acme").features(&[TELEPORT]))
}

fn refused(extensions: &mut Extensions, descriptor: ExtensionDescriptor) -> String {
    let before: Vec<_> = extensions.iter().map(ExtensionDescriptor::name).collect();
    let refused = extensions.add(leak(descriptor)).unwrap_err().to_string();
    let after: Vec<_> = extensions.iter().map(ExtensionDescriptor::name).collect();
    assert_eq!(before, after, "nothing of it is visible");
    refused
}

// covers 1.17
#[test]
fn two_extensions_that_claim_the_same_are_both_named() {
    const WIRE: &[WireOpcodes] = &[WireOpcodes {
        transport: Transport::InfiniBand,
        first: 0xa0,
        last: 0xb7,
    }];
    const OVERLAPS: &[WireOpcodes] = &[WireOpcodes {
        transport: Transport::InfiniBand,
        first: 0xb0,
        last: 0xff,
    }];
    let mut extensions = Extensions::new();
    extensions.add(acme()).unwrap();
    let other = plain("other").features(&[ELSEWHERE]);
    extensions.add(leak(other.wire_opcodes(WIRE))).unwrap();
    extensions
        .add(leak(plain("flush").features(&[FLUSH])))
        .unwrap();
    for (claims, message) in [
        (
            plain("acme").features(&[TELEPORT]),
            "extensions acme and acme both claim the name acme",
        ),
        (
            plain("rival").features(&[TELEPORT]),
            "extensions acme and rival both claim the feature set acme",
        ),
        (
            plain("rival").features(&[FLUSH]),
            "extensions flush and rival both claim the feature core::FLUSH",
        ),
    ] {
        assert_eq!(refused(&mut extensions, claims), message);
    }
    let mut opcodes = Extensions::new();
    opcodes
        .add(leak(
            plain("other").features(&[ELSEWHERE]).wire_opcodes(WIRE),
        ))
        .unwrap();
    let rival = plain("rival").features(&[TELEPORT]).wire_opcodes(OVERLAPS);
    assert_eq!(
        refused(&mut opcodes, rival),
        "extensions other and rival both claim opcode 0xb0 of infiniband"
    );
}

// covers 1.17
#[test]
fn an_extension_without_a_mandatory_part_is_refused() {
    let mut extensions = Extensions::new();
    for (lacks, missing) in [
        (plain("").features(&[TELEPORT]), "a name"),
        (
            ExtensionDescriptor::new("acme", ""),
            "a line that says what it is",
        ),
        (plain("acme"), "a feature: nothing could be asked for"),
        (
            plain("acme").features(&[TELEPORT, RECALL]),
            "a probe that proves acme::RECALL",
        ),
        (
            plain("acme").features(&[TELEPORT, ELSEWHERE]),
            "one set of features: acme and other are two",
        ),
        (
            plain("acme")
                .features(&[TELEPORT])
                .parts(&[&Fragment(Some("a handler"))]),
            "a handler (of fragments)",
        ),
    ] {
        let name = lacks.name();
        let message = refused(&mut extensions, lacks);
        assert_eq!(message, format!("extension {name} lacks {missing}"));
    }
    let newer = plain("acme")
        .features(&[TELEPORT])
        .built_for(CONTRACT_VERSION + 1);
    let message = refused(&mut extensions, newer);
    assert!(
        message.contains("version 3") && message.contains("version 2"),
        "{message}"
    );
}

// covers 1.17
#[test]
fn two_names_with_one_number_on_the_wire_are_both_named() {
    // The numbers are hashes of the names; these two names have the same hash.
    assert_eq!(extension_id("costarring"), extension_id("liquid"));
    let mut extensions = Extensions::new();
    let first = plain("costarring").features(&[TELEPORT]);
    extensions.add(leak(first)).unwrap();
    assert_eq!(
        refused(&mut extensions, plain("liquid").features(&[ELSEWHERE])),
        "extensions costarring and liquid both claim the number 0x5e4daa9d on the wire"
    );
}

// covers 1.17
#[test]
fn operations_that_contradict_their_extension_are_refused() {
    static FIRST: ExtensionOperation = ExtensionOperation::new("acme", "JUMP", 1, &TELEPORT);
    static SAME_NUMBER: ExtensionOperation = ExtensionOperation::new("acme", "HOP", 1, &TELEPORT);
    static SAME_NAME: ExtensionOperation = ExtensionOperation::new("acme", "JUMP", 2, &TELEPORT);
    static UNTOLD: ExtensionOperation = ExtensionOperation::new("acme", "BACK", 3, &RECALL);
    static OF_ANOTHER: ExtensionOperation = ExtensionOperation::new("other", "LEAP", 4, &TELEPORT);
    let mut extensions = Extensions::new();
    let cases: [(&[&'static ExtensionOperation], &str); 4] = [
        (
            &[&FIRST, &SAME_NUMBER],
            "a name and a number for each operation: JUMP and HOP (1)",
        ),
        (
            &[&FIRST, &SAME_NAME],
            "a name and a number for each operation: JUMP and JUMP (2)",
        ),
        (&[&UNTOLD], "the feature RECALL that BACK takes"),
        (
            &[&OF_ANOTHER],
            "operation LEAP: it says that it is of other",
        ),
    ];
    for (operations, lacks) in cases {
        let operations = operations.to_vec().leak();
        let claims = plain("acme").features(&[TELEPORT]).operations(operations);
        assert_eq!(
            refused(&mut extensions, claims),
            format!("extension acme lacks {lacks}")
        );
    }
    let operations = vec![&FIRST].leak();
    let whole = plain("acme").features(&[TELEPORT]).operations(operations);
    extensions.add(leak(whole)).unwrap();
    assert_ne!(FIRST.bit(), Operations::empty());
}

// covers 1.17
#[test]
fn nothing_of_a_refused_extension_reaches_a_device() {
    let mut registry = Registry::new();
    registry.add_extension(acme()).unwrap();
    let rival = leak(plain("rival").features(&[TELEPORT]));
    registry.add_extension(rival).unwrap_err();
    let newer = plain("other").features(&[ELSEWHERE]);
    let newer = leak(newer.built_for(CONTRACT_VERSION + 1));
    registry.add_extension(newer).unwrap_err();
    assert_eq!(registry.extensions().len(), 1);
    for name in ["rival", "other"] {
        assert!(registry.extensions().find(name).is_none());
    }
    // A provider gets exactly the registered extensions.
    let provider = mock::provider("mock", &[&mock::device(mock::attributes("a"))]);
    registry.add_provider(provider).unwrap();
    assert_eq!(registry.devices().count(), 1);
}

#[test]
fn a_part_of_another_build_is_an_error() {
    let mut extensions = Extensions::new();
    let good = plain("acme")
        .features(&[TELEPORT])
        .parts(&[&Fragment(None)]);
    extensions.add(leak(good)).unwrap();
    let parts = extensions.parts::<Fragment>("fragments").unwrap();
    assert_eq!(parts.len(), 1);
    assert!(extensions.parts::<Fragment>("others").unwrap().is_empty());
    let foreign = plain("other").features(&[ELSEWHERE]).parts(&[&Foreign]);
    extensions.add(leak(foreign)).unwrap();
    let message = extensions.parts::<Fragment>("fragments").err().unwrap();
    assert!(message.to_string().contains("other") && message.to_string().contains("fragments"));
    let _: &dyn Any = &Foreign;
}

#[test]
fn extensions_come_before_the_devices_made_with_them() {
    let mut registry = Registry::new();
    let first = acme();
    registry.add_extension(first).unwrap();
    let provider = mock::provider("mock", &[&mock::device(mock::attributes("a"))]);
    registry.add_provider(provider).unwrap();
    // Adding the same extension again changes nothing; a new one would be missing from the devices.
    registry.add_extension(first).unwrap();
    let late = leak(plain("other").features(&[ELSEWHERE]));
    let error = registry.add_extension(late).unwrap_err();
    assert!(matches!(
        error,
        RegistryError::TooLate {
            extension: "other",
            ..
        }
    ));
    assert!(error.to_string().contains("the devices of mock are made"));
    assert_eq!(registry.extensions().len(), 1);
}

#[test]
fn numbers_of_an_extension_are_asked_for_like_others() {
    static MAX_DISTANCE: ExtensionLimit =
        ExtensionLimit::new("acme", "max_distance", Direction::LargerIsStronger);
    let mut attributes = mock::attributes("a");
    let wanted = |least| {
        Requirements::new()
            .needs(Acme::TELEPORT)
            .at_least(&MAX_DISTANCE, least)
    };
    let shortfall = wanted(1).check(&attributes).unwrap_err().to_string();
    assert_eq!(
        shortfall,
        "a: lacks acme::TELEPORT; max_distance: wanted at least 1, offered 0"
    );
    attributes.extensions.push(ExtensionFeatures {
        set: "acme",
        bits: 1,
        names: vec!["TELEPORT"],
        limits: vec![("max_distance", 7)],
    });
    assert!(wanted(7).check(&attributes).is_ok());
    assert!(wanted(8).check(&attributes).is_err());
    assert!(attributes.claims(&TELEPORT) && !attributes.claims(&RECALL));
}

#[test]
fn the_number_on_the_wire_is_made_of_the_name() {
    // These are the test vectors of FNV-1a.
    assert_eq!(extension_id(""), 0x811c_9dc5);
    assert_eq!(extension_id("a"), 0xe40c_292c);
    assert_eq!(extension_id("foobar"), 0xbf9c_f968);
}

/// Requests are moved after they are built, so an extension's must be no larger than the largest of the core.
#[test]
fn requests_of_extensions_make_no_request_larger() {
    assert!(size_of::<wr::ExtensionRequest<'_>>() <= size_of::<wr::FastRegister<'_>>());
    assert_eq!(
        size_of::<WorkRequest<'_>>(),
        size_of::<wr::FastRegister<'_>>() + 8
    );
}
