//! What the contract demands of a driver, and that an override is what is called.

use std::path::Path;
use std::process::Command;

/// The parts that have no default, each as a driver might write it.
const MANDATORY: [(&str, &str); 7] = [
    (
        "attributes",
        "fn attributes(&self) -> DeviceAttributes { todo!() }",
    ),
    (
        "link_address",
        "fn link_address(&self) -> LinkAddress { todo!() }",
    ),
    (
        "execute",
        "fn execute(_: &Qp<Self>, _: &mut Requester<Self>, _: &Request<'_>, _: &mut Cx<'_, Self>) -> Executed { todo!() }",
    ),
    (
        "pump",
        "fn pump(_: &Qp<Self>, _: &mut Requester<Self>, _: &mut Cx<'_, Self>) {}",
    ),
    (
        "handle_timeout",
        "fn handle_timeout(_: &Qp<Self>, _: &mut Requester<Self>, _: Time, _: &mut Cx<'_, Self>) {}",
    ),
    (
        "handle_frame",
        "fn handle_frame(_: &Device<Self>, _: Frame<'_, ()>, _: &mut Cx<'_, Self>) {}",
    ),
    (
        "modify",
        "fn modify(_: &Qp<Self>, _: &mut Requester<Self>, _: &mut Responder<Self>, _: &Change<'_>, _: &mut Cx<'_, Self>) {}",
    ),
];

const USES: &str = "\
#![allow(unused_imports)]
use polyverbs_engine::{device::{Cx, Device}, driver::{Change, Driver, Executed}, link::Frame};
use polyverbs_engine::{qp::{Qp, Requester, Responder}, request::Request, time::Time};
use verbs_api::{capability::DeviceAttributes, ids::LinkAddress};
";

/// What the compiler says to a driver without `missing`; `None` where it takes it.
fn refusal(package: &Path, missing: &str) -> Option<String> {
    let parts = MANDATORY.iter().filter(|(name, _)| *name != missing);
    let parts: Vec<_> = parts.map(|(_, part)| *part).collect();
    let types = "type Header = (); type Requester = (); type Responder = ();";
    let source = format!(
        "{USES}\npub struct Halting;\nimpl Driver for Halting {{\n{types}\n{}\n}}\n",
        parts.join("\n")
    );
    std::fs::write(package.join("src/lib.rs"), source).unwrap();
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap();
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["check", "--quiet", "--offline", "--target-dir"]);
    cargo.arg(target).current_dir(package);
    let output = cargo.output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    (!output.status.success()).then_some(said)
}

// covers 6.03
#[test]
fn a_driver_without_a_mandatory_part_is_refused_by_its_name() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let root = here.join("../..").canonicalize().unwrap();
    let package = Path::new(env!("CARGO_TARGET_TMPDIR")).join("halting");
    std::fs::create_dir_all(package.join("src")).unwrap();
    let manifest = format!(
        "[package]\nname = \"halting\"\nedition = \"2024\"\n\n[dependencies]\n\
         verbs-api = {{ path = {:?} }}\npolyverbs-engine = {{ path = {:?} }}\n\n[workspace]\n",
        root.join("verbs-api"),
        root.join("providers/engine"),
    );
    std::fs::write(package.join("Cargo.toml"), manifest).unwrap();
    // The versions that this crate was built with are here, whatever the network says.
    std::fs::copy(here.join("Cargo.lock"), package.join("Cargo.lock")).unwrap();

    assert_eq!(
        refusal(&package, "nothing"),
        None,
        "a driver with all of them is one"
    );
    for (missing, _) in MANDATORY {
        let said = refusal(&package, missing).unwrap_or_else(|| panic!("taken without {missing}"));
        let named = format!("missing: `{missing}`");
        assert!(said.contains("E0046") && said.contains(&named), "{said}");
    }
}

// covers 6.04
#[test]
fn what_is_overridden_is_called_and_the_rest_is_the_engines() {
    use acme_fabric::PROVIDER;
    use verbs_api::{QpOptions, Registry, Requirements};

    let mut registry = Registry::new();
    registry.add_provider(&PROVIDER).unwrap();
    let context = registry.open(&Requirements::new()).unwrap();
    let pd = context.alloc_pd().wait().unwrap();
    let cq = context.create_cq(8).wait().unwrap();
    let create = || pd.create_qp(QpOptions::rc(&cq)).wait().unwrap();
    // The engine counts from a random number, a driver of its own numbers from 0x4000: books are kept by one of them.
    let numbers: Vec<_> = (0..3).map(|_| create().qp_num().value()).collect();
    let first = if cfg!(feature = "some") {
        0x4000
    } else {
        numbers[0]
    };
    assert!(first >= 0x11);
    assert_eq!(numbers, [first, first + 1, first + 2]);
}
