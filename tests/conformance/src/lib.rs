//! The harness of the conformance suite: one body per behaviour, run on every kind of device.
//!
//! A body is a function that takes a [`Rig`]: two devices of one kind on one network in virtual
//! time, or a real device that is opened twice. [`cases!`] makes it a test for each [`Flavour`] and states what the device must have for
//! it. On a device that lacks that the body is not run; instead the device must refuse what it
//! lacks, naming it, with nothing created and no queue slot used: see [`refusal`]. So a device that
//! claims less passes no test for it silently, and one that claims more than it does fails.
//!
//! Where transports differ by their own rules, bodies and helpers look at the device's attributes,
//! never at the flavour.
#![forbid(unsafe_code)]

mod fast;
mod flavour;
mod needs;
mod pair;
mod probing;
pub mod refusal;
mod rig;
mod time;

pub use fast::Fast;
pub use flavour::{Fabric, Flavour, GivenDevice, OtherFlavour, Steer};
pub use needs::{ANY_DEVICE, Needs, needs, one_of};
pub use pair::{Pair, Side, open};
pub use probing::{examined, probe_rig};
pub use rig::{End, Region, Rig};
pub use waiting;

/// Runs `body` on a device of this flavour, or sees that the device refuses what it lacks.
pub fn run(flavour: Flavour, needs: Needs, body: fn(&Rig)) {
    let rig = Rig::new(flavour);
    match needs.missing_of(&rig.far.context) {
        None => body(&rig),
        Some(missing) => {
            println!("{flavour:?} lacks {missing}: it must refuse it");
            refusal::is_refused(&rig, &missing);
        }
    }
}

/// The modules of the suite that another crate's source does not include. The probes are not asked for: whoever has another
/// kind of device runs them in its own way.
pub fn left_out(source: &str) -> Vec<&'static str> {
    let modules = modules(include_str!("../tests/suite/main.rs"));
    let is_left = |name: &&str| *name != "probes" && !self::modules(source).any(|own| own == *name);
    modules.filter(is_left).collect()
}

fn modules(source: &str) -> impl Iterator<Item = &str> {
    let modules = source.lines().filter_map(|line| line.strip_prefix("mod "));
    modules.filter_map(|name| name.strip_suffix(';'))
}

/// Makes a test for each flavour out of each body that is named, in a module of the flavour's name.
///
/// ```text
/// cases! {
///     a_bound_window_cannot_be_bound_again: one_of(Features::WINDOW_2);
/// }
///
/// // covers 2.42
/// fn a_bound_window_cannot_be_bound_again(rig: &Rig) { … }
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

/// The same for bodies that steer their device, as only an emulated one lets them: [`End::steer`]. A crate that runs the suite
/// on a real device makes no test of these.
#[macro_export]
macro_rules! steered_cases {
    ($($list:tt)*) => {
        mod steered {
            use super::*;

            $crate::cases!($($list)*);
        }
    };
}

/// The part of [`cases!`] that is one flavour's.
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

/// One test of [`cases!`].
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
