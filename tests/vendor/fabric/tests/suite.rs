//! The conformance suite on the devices of this driver: its own modules, run on another kind of device.

use std::sync::Arc;

use acme_fabric::{Common, Form, Full, Partial, Plain};
use conformance::{Fabric, Flavour, OtherFlavour, examined};
use polyverbs_engine::device::DeviceOptions;
use polyverbs_probes::{CORE_FEATURES, CORE_PROBES};
use verbs_api::extension::Extensions;
use verbs_api::probe::Verdict;

const PLAIN: Flavour = Flavour::Other(&OtherFlavour {
    name: "plain",
    build: build::<Plain>,
});
const PARTIAL: Flavour = Flavour::Other(&OtherFlavour {
    name: "partial",
    build: build::<Partial>,
});
const FULL: Flavour = Flavour::Other(&OtherFlavour {
    name: "full",
    build: build::<Full>,
});

fn build<D: Form>(options: DeviceOptions) -> Fabric {
    let numbers = options.qp_numbers;
    let driver = |address| {
        let name = format!("{address:?}");
        D::from(Common::new(name, address, numbers, Arc::default()))
    };
    Fabric::direct(driver, options)
}

/// The macros by which the modules of the suite make tests of their bodies.
mod made {
    macro_rules! cases {
        ($($list:tt)*) => {
            crate::cases_of!(plain PLAIN: $($list)*);
            crate::cases_of!(partial PARTIAL: $($list)*);
            crate::cases_of!(full FULL: $($list)*);
        };
    }

    macro_rules! cases_of {
        ($module:ident $flavour:ident: $($name:ident: $needs:expr;)*) => {
            mod $module {
                use super::*;

                $(
                    #[test]
                    fn $name() {
                        conformance::run(crate::$flavour, $needs, super::$name);
                    }
                )*
            }
        };
    }

    macro_rules! steered_cases {
        ($($list:tt)*) => {
            mod steered {
                use super::*;

                cases!($($list)*);
            }
        };
    }

    pub(crate) use {cases, cases_of, steered_cases};
}

use made::{cases, cases_of, steered_cases};

#[path = "../../../conformance/tests/suite/capabilities.rs"]
mod capabilities;
#[path = "../../../conformance/tests/suite/completions.rs"]
mod completions;
#[path = "../../../conformance/tests/suite/control.rs"]
mod control;
#[path = "../../../conformance/tests/suite/device.rs"]
mod device;
#[path = "../../../conformance/tests/suite/fast_register.rs"]
mod fast_register;
#[path = "../../../conformance/tests/suite/fmr_pool.rs"]
mod fmr_pool;
#[path = "../../../conformance/tests/suite/invalidate.rs"]
mod invalidate;
#[path = "../../../conformance/tests/suite/keys.rs"]
mod keys;
#[path = "../../../conformance/tests/suite/leaving.rs"]
mod leaving;
#[path = "../../../conformance/tests/suite/multicast.rs"]
mod multicast;
#[path = "../../../conformance/tests/suite/plans.rs"]
mod plans;
#[path = "../../../conformance/tests/suite/posting.rs"]
mod posting;
#[path = "../../../conformance/tests/suite/shared_receive.rs"]
mod shared_receive;
#[path = "../../../conformance/tests/suite/states.rs"]
mod states;
#[path = "../../../conformance/tests/suite/submitted.rs"]
mod submitted;
#[path = "../../../conformance/tests/suite/support.rs"]
mod support;
#[path = "../../../conformance/tests/suite/windows.rs"]
mod windows;

// covers 6.05
#[test]
fn claims_of_each_form_are_verified_and_the_rest_is_refused() {
    for form in [PLAIN, PARTIAL, FULL] {
        is_as_claimed(form);
    }
}

fn is_as_claimed(form: Flavour) {
    let mut wrong = Vec::new();
    let mut check = |probes, feature| {
        let cell = examined(form, feature, probes);
        let expected = match cell.claimed {
            true => Verdict::Verified,
            false => Verdict::Refused,
        };
        if cell.verdict != expected {
            wrong.push(format!(
                "{}: {:?}, {}",
                feature.name, cell.verdict, cell.because
            ));
        }
    };
    for feature in CORE_FEATURES {
        check(CORE_PROBES, feature);
    }
    for extension in Extensions::linked().unwrap().iter() {
        for feature in extension.all_features() {
            check(extension.all_probes(), feature);
        }
    }
    assert!(wrong.is_empty(), "{form:?}: {wrong:#?}");
}

#[test]
fn all_of_the_suite_is_run() {
    let missing = conformance::left_out(include_str!("suite.rs"));
    assert!(missing.is_empty(), "{missing:?}");
}
