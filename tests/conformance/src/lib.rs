//! The harness of the conformance suite: one body per behaviour, run on every kind of device.
//!
//! A body is a function that takes a [`Rig`]: two devices of one kind on one network in virtual time, or a real device that is
//! opened twice. The rig is that of the probes, and a body returns an [`Outcome`] as a probe does: what it states it asserts, and
//! an error of the rig ends it. [`cases!`] makes it a test for each [`Flavour`] and states the requirements that a device must meet
//! to run it.
//! On a device that does not meet them the body is not run; instead the device must refuse each missing feature by name, with
//! nothing created and no queue slot used: see [`refusal`]. A device that claims less than another therefore passes no test
//! silently, and a device that claims more than it does fails.
//!
//! Where transports differ by their own rules, bodies and helpers consult the device's attributes, never the flavour.
#![forbid(unsafe_code)]

pub mod faults;
mod flavour;
mod needs;
mod probing;
pub mod refusal;
mod rig;
mod time;

pub use flavour::{Fabric, Flavour, GivenDevice, OtherFlavour, Steer};
pub use needs::{ANY_DEVICE, Needs, needs, one_of};
pub use probing::examined;
pub use rig::{End, Rig};
pub use test_kit::waiting;
pub use verbs_api::probe::{Evidence, Fast, Outcome, Pair, Region, Side, open};

/// Runs `body` on a device of this flavour, or checks that the device refuses the features that it lacks.
///
/// # Panics
/// The body ends with an error, or the device does not refuse them.
pub fn run(flavour: Flavour, needs: Needs, body: fn(&Rig) -> Outcome) {
    let rig = Rig::new(flavour);
    let outcome = match needs.missing_of(&rig.far.context) {
        None => body(&rig),
        Some(missing) => {
            println!("{flavour:?} lacks {missing}: it must refuse it");
            refusal::is_refused(&rig, &missing)
        }
    };
    outcome.unwrap_or_else(|evidence| panic!("{evidence}"));
}

/// The modules of the suite that the source of another crate does not include. The module of the probes is not counted: a crate
/// that tests another kind of device runs the probes in its own way.
pub fn left_out(source: &str) -> Vec<&'static str> {
    let modules = modules(include_str!("../tests/suite/main.rs"));
    let is_left = |name: &&str| *name != "probes" && !self::modules(source).any(|own| own == *name);
    modules.filter(is_left).collect()
}

fn modules(source: &str) -> impl Iterator<Item = &str> {
    let modules = source.lines().filter_map(|line| line.strip_prefix("mod "));
    modules.filter_map(|name| name.strip_suffix(';'))
}

/// Makes each named body a test for each flavour, in a module of the flavour's name.
///
/// ```text
/// cases! {
///     a_bound_window_cannot_be_bound_again: one_of(Features::WINDOW_2);
/// }
///
/// // covers 2.42
/// fn a_bound_window_cannot_be_bound_again(rig: &Rig) -> Outcome { … }
/// ```
#[macro_export]
macro_rules! cases {
    ($($list:tt)*) => {
        $crate::cases_of!(ib Ib: $($list)*);
        $crate::cases_of!(ib_2a Ib2a: $($list)*);
        $crate::cases_of!(ib_plain IbPlain: $($list)*);
        $crate::cases_of!(ib_bmme IbBmme: $($list)*);
        $crate::cases_of!(ib_framed IbFramed: $($list)*);
        $crate::cases_of!(ib_wire IbWire: $($list)*);
        $crate::cases_of!(#[ignore = "needs a minute: tests/foreign runs it"] ib_udp IbUdp: $($list)*);
        $crate::cases_of!(iwarp Iwarp: $($list)*);
        $crate::cases_of!(iwarp_plain IwarpPlain: $($list)*);
        $crate::cases_of!(iwarp_framed IwarpFramed: $($list)*);
        $crate::cases_of!(ib_low_latency IbLowLatency: $($list)*);
        $crate::cases_of!(iwarp_low_latency IwarpLowLatency: $($list)*);
        $crate::cases_of!(iw_wire IwWire: $($list)*);
        $crate::cases_of!(#[ignore = "needs a minute: tests/foreign runs it"] iw_tcp IwTcp: $($list)*);
    };
}

/// Makes tests as [`cases!`] does of bodies that steer their device ([`End::steer`]), which only an emulated device allows. A
/// crate that runs the suite on a real device makes no tests of them.
#[macro_export]
macro_rules! steered_cases {
    ($($list:tt)*) => {
        mod steered {
            use super::*;

            $crate::cases!($($list)*);
        }
    };
}

/// Expands the part of [`cases!`] that belongs to one flavour.
#[macro_export]
macro_rules! cases_of {
    ($(#[$ignored:meta])? $module:ident $flavour:ident: $($name:ident: $needs:expr;)*) => {
        $crate::cases_of!(@ [$(#[$ignored])?] $module $flavour: $($name: $needs;)*);
    };
    (@ $ignored:tt $module:ident $flavour:ident: $($name:ident: $needs:expr;)*) => {
        mod $module {
            use super::*;

            $($crate::case!($ignored $flavour $name $needs);)*
        }
    };
}

/// Expands to one test of [`cases!`].
#[macro_export]
macro_rules! case {
    ([$(#[$ignored:meta])?] $flavour:ident $name:ident $needs:expr) => {
        #[test]
        $(#[$ignored])?
        fn $name() {
            $crate::run($crate::Flavour::$flavour, $needs, super::$name);
        }
    };
}
