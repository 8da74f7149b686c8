//! The mandatory parts of a driver, and the calls of its overrides.

use polyverbs_engine::device::{Cx, Device};
use polyverbs_engine::driver::{Change, Driver, Executed};
use polyverbs_engine::link::Frame;
use polyverbs_engine::qp::{Qp, Requester, Responder};
use polyverbs_engine::request::Request;
use polyverbs_engine::time::Time;
use verbs_api::capability::DeviceAttributes;
use verbs_api::ids::LinkAddress;

/// A driver of the mandatory parts alone. Because it compiles, no other part is mandatory.
struct Halting;

impl Driver for Halting {
    type Header = ();
    type Requester = ();
    type Responder = ();

    fn attributes(&self) -> DeviceAttributes {
        todo!()
    }

    fn link_address(&self) -> LinkAddress {
        todo!()
    }

    fn execute(
        _: &Qp<Self>,
        _: &mut Requester<Self>,
        _: &Request<'_>,
        _: &mut Cx<'_, Self>,
    ) -> Executed {
        todo!()
    }

    fn pump(_: &Qp<Self>, _: &mut Requester<Self>, _: &mut Cx<'_, Self>) {}

    fn handle_timeout(_: &Qp<Self>, _: &mut Requester<Self>, _: Time, _: &mut Cx<'_, Self>) {}

    fn handle_frame(_: &Device<Self>, _: Frame<'_, ()>, _: &mut Cx<'_, Self>) {}

    fn modify(
        _: &Qp<Self>,
        _: &mut Requester<Self>,
        _: &mut Responder<Self>,
        _: &Change<'_>,
        _: &mut Cx<'_, Self>,
    ) {
    }
}

fn is_a_driver<D: Driver>() {}

/// The functions of the contract that have no default, in their order.
fn without_default(source: &str) -> Vec<&str> {
    let (_, contract) = source.split_once("pub trait Driver").unwrap();
    let (contract, _) = contract.split_once("\n}\n").unwrap();
    let functions = contract.split("\n    fn ").skip(1);
    let mandatory = functions.filter(|function| {
        let end = function.find([';', '{']).unwrap();
        function[end..].starts_with(';')
    });
    mandatory
        .map(|function| function.split_once('(').unwrap().0)
        .collect()
}

// The compiler refuses an implementation that lacks a function without a default, and names the function (E0046).
// covers 6.03
#[test]
fn a_driver_without_a_mandatory_part_is_refused_by_its_name() {
    is_a_driver::<Halting>();
    let source = include_str!("../../../providers/engine/src/driver.rs");
    let here = include_str!("contract.rs");
    let (_, halting) = here.split_once("impl Driver for Halting").unwrap();
    let (halting, _) = halting.split_once("\n}\n").unwrap();
    let functions = halting.split("\n    fn ").skip(1);
    let written: Vec<_> = functions
        .map(|function| function.split_once('(').unwrap().0)
        .collect();
    assert_eq!(without_default(source), written);
    assert_eq!(written.len(), 7);
}

// covers 6.04
#[test]
fn overrides_are_called_and_defaults_are_the_engines() {
    use acme_fabric::PROVIDER;
    use verbs_api::{QpOptions, Registry, Requirements};

    let mut registry = Registry::new();
    registry.add_provider(&PROVIDER).unwrap();
    let context = registry.open(&Requirements::new()).unwrap();
    let pd = context.alloc_pd().wait().unwrap();
    let cq = context.create_cq(8).wait().unwrap();
    let create = || pd.create_qp(QpOptions::rc(&cq)).wait().unwrap();
    // The engine counts from a random number, a driver of its own numbers from 0x4000: only one of them assigns the numbers.
    let numbers: Vec<_> = (0..3).map(|_| create().qp_num().value()).collect();
    let first = if cfg!(feature = "some") {
        0x4000
    } else {
        numbers[0]
    };
    assert!(first >= 0x11);
    assert_eq!(numbers, [first, first + 1, first + 2]);
}
