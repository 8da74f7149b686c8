//! The mandatory parts of a driver, and the calls of its overrides.

use acme_fabric::PROVIDER;
use verbs_api::{QpOptions, Registry, Requirements};

/// The functions in this text, each with whether it has a body.
fn functions(text: &str) -> Vec<(&str, bool)> {
    let functions = text.split(" fn ").skip(1);
    let named = functions.map(|function| {
        let (name, _) = function.split_once('(').unwrap();
        let end = function.find([';', '{']).unwrap();
        (name, function[end..].starts_with('{'))
    });
    named.collect()
}

/// The text between these two.
fn between<'t>(text: &'t str, begin: &str, end: &str) -> &'t str {
    let (_, rest) = text.split_once(begin).unwrap();
    rest.split_once(end).unwrap().0
}

// The compiler refuses an implementation that lacks a function without a default, and names the function (E0046).
// covers 6.03
#[test]
fn a_form_without_overrides_has_only_the_mandatory_parts() {
    let contract = include_str!("../../../../providers/engine/src/device/driver.rs");
    let contract = functions(between(contract, "pub trait Driver", "\n}\n"));
    let mandatory = contract.into_iter().filter(|(_, has_default)| !has_default);
    let mandatory: Vec<_> = mandatory.map(|(name, _)| name).collect();
    let here = include_str!("../src/driver.rs");
    let written = functions(between(here, "impl Driver for $name", "$($override)*"));
    let written: Vec<_> = written.into_iter().map(|(name, _)| name).collect();
    assert_eq!(mandatory, written);
    assert_eq!(written.len(), 7);
}

// covers 6.04
#[test]
fn overrides_of_a_linked_device_are_called() {
    let mut registry = Registry::new();
    registry.add_provider(&PROVIDER).unwrap();
    let context = registry.open(&Requirements::new()).unwrap();
    let pd = context.alloc_pd().wait().unwrap();
    let cq = context.create_cq(8).wait().unwrap();
    let create = || pd.create_qp(QpOptions::rc(&cq)).wait().unwrap();
    // The engine would count from a random number.
    let numbers: Vec<_> = (0..3).map(|_| create().qp_num().value()).collect();
    assert_eq!(numbers, [0x4000, 0x4001, 0x4002]);
}
