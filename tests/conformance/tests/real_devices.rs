//! The conformance suite on devices that were not made for it: its own modules, run on a device that is opened twice.
//!
//! `CONFORMANCE_DEVICE` names the device, of the library that `POLYVERBS_RDMA_CORE` names or the linker finds. Without it
//! the suite is run on the devices of this project's own C library, one of each kind. `CONFORMANCE_FAULTS` is
//! a file with the known faults of the device's driver.

use std::path::Path;
use std::sync::{MutexGuard, OnceLock};
use std::{env, fs};

use conformance::faults::Faults;
use conformance::{Flavour, GivenDevice, Needs, Outcome, Rig, examined};
use rdma_core_provider::{LibIbverbs, PROVIDER};
use verbs_api::Registry;
use verbs_api::extension::Extensions;
use verbs_api::provider::Mutex;

struct Setting {
    devices: Vec<GivenDevice>,
    faults: Faults,
}

fn setting() -> &'static Setting {
    static SETTING: OnceLock<Setting> = OnceLock::new();
    SETTING.get_or_init(|| Setting {
        devices: devices(),
        faults: faults(),
    })
}

fn devices() -> Vec<GivenDevice> {
    let wanted = env::var("CONFORMANCE_DEVICE").ok();
    let mut registry = Registry::new();
    for extension in Extensions::linked().unwrap().iter() {
        registry.add_extension(extension).unwrap();
    }
    let provider = match &wanted {
        Some(_) => &PROVIDER,
        None => LibIbverbs::in_file(test_kit::libraries::built_apart()),
    };
    registry.add_provider(provider).unwrap();
    let is_wanted = |name: &str| wanted.as_ref().is_none_or(|wanted| wanted == name);
    let devices: Vec<_> = registry
        .devices()
        .filter(|device| is_wanted(device.name()))
        .map(|device| GivenDevice(device.ops().clone()))
        .collect();
    let least = if wanted.is_some() { 1 } else { 2 };
    assert!(
        devices.len() >= least,
        "no device {wanted:?}; unusable are {:?}",
        registry.absent()
    );
    devices
}

fn faults() -> Faults {
    let Some(file) = env::var_os("CONFORMANCE_FAULTS") else {
        return Faults::default();
    };
    Faults::parse(&fs::read_to_string(file).unwrap()).unwrap()
}

/// Lets one case run at a time, because they share the limits of the device.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock()
}

/// Runs a body of a module of the suite.
fn run(module: &str, name: &str, needs: Needs, body: fn(&Rig) -> Outcome) {
    let _turn = turn();
    let Setting { devices, faults } = setting();
    let module = module.split("::").nth(1).unwrap();
    faults.run(&format!("{module}::{name}"), || {
        for device in devices {
            println!("on {device:?}");
            conformance::run(Flavour::Given(device), needs, body);
        }
    });
}

/// The macros by which the modules of the suite make tests of their bodies.
mod made {
    macro_rules! cases {
        ($($name:ident: $needs:expr;)*) => {
            mod real {
                use super::*;

                $(
                    #[test]
                    #[ignore = "needs minutes: tests/foreign runs it"]
                    fn $name() {
                        crate::run(module_path!(), stringify!($name), $needs, super::$name);
                    }
                )*
            }
        };
    }

    // A real device cannot be steered, so these cases make no tests.
    macro_rules! steered_cases {
        ($($name:ident: $needs:expr;)*) => {
            $(const _: (conformance::Needs, fn(&conformance::Rig) -> conformance::Outcome) = ($needs, $name);)*
        };
    }

    pub(crate) use {cases, steered_cases};
}

use made::{cases, steered_cases};

#[path = "suite/capabilities.rs"]
mod capabilities;
#[path = "suite/completions.rs"]
mod completions;
#[path = "suite/control.rs"]
mod control;
#[path = "suite/device.rs"]
mod device;
#[path = "suite/fast_register.rs"]
mod fast_register;
#[path = "suite/fmr_pool.rs"]
mod fmr_pool;
#[path = "suite/invalidate.rs"]
mod invalidate;
#[path = "suite/keys.rs"]
mod keys;
#[path = "suite/leaving.rs"]
mod leaving;
#[path = "suite/multicast.rs"]
mod multicast;
#[path = "suite/plans.rs"]
mod plans;
#[path = "suite/posting.rs"]
mod posting;
#[path = "suite/shared_receive.rs"]
mod shared_receive;
#[path = "suite/states.rs"]
mod states;
#[path = "suite/submitted.rs"]
mod submitted;
#[path = "suite/support.rs"]
mod support;
#[path = "suite/windows.rs"]
mod windows;

// covers 4.10 4.12
#[test]
#[ignore = "needs minutes: tests/foreign runs it"]
fn extended_connections_keep_the_promises_of_others() {
    let _turn = turn();
    for device in &setting().devices {
        let attributes = device.0.attributes();
        let claimed = xrc::EXTENSION.all_features().iter();
        for feature in claimed.filter(|feature| attributes.claims(feature)) {
            let here = xrc::CARRIED
                .iter()
                .filter(|probe| probe.not_here(&attributes, true).is_none());
            let found = examined(Flavour::Given(device), feature, xrc::CARRIED);
            assert_eq!(found.passed(), here.count(), "{}", found.because);
        }
    }
}

#[test]
fn all_of_the_suite_is_run() {
    let missing = conformance::left_out(include_str!("real_devices.rs"));
    assert!(missing.is_empty(), "{missing:?}");
}

#[test]
fn faults_are_of_cases_that_there_are() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let suite = folder.join("tests/suite");
    let is_there = |case: &str| {
        let (module, body) = case.split_once("::").unwrap();
        let source = fs::read_to_string(suite.join(module).with_extension("rs")).unwrap();
        source.contains(&format!("fn {body}(rig: &Rig) -> Outcome"))
    };
    for list in fs::read_dir(folder.join("faults")).unwrap() {
        let list = fs::read_to_string(list.unwrap().path()).unwrap();
        let faults = Faults::parse(&list).unwrap().faults;
        let cases = faults.iter().flat_map(|fault| &fault.cases);
        let gone: Vec<_> = cases.filter(|case| !is_there(case)).collect();
        assert!(gone.is_empty(), "{gone:?}");
    }
}
