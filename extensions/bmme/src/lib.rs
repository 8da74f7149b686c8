//! Base memory management: keys without memory, fast-register, local and remote invalidate, windows of type 2.
//!
//! The feature bits and the work requests belong to the core. This crate adds them to software devices, and has the typed
//! [handle](Bmme), the [probes](PROBES) that verify each bit, and a [pool](FmrPool) that hands out fresh keys and invalidates
//! old ones off the data path. Link it to enable it: name it once, `use bmme as _;`.
#![forbid(unsafe_code)]

mod emulation;
mod fmr_pool;
mod handle;
mod probes;

use verbs_api::{
    Features,
    extension::{ExtensionDescriptor, FeatureInfo, feature, link_extension},
};

pub use emulation::{EMULATION, OnKeyTable};
pub use fmr_pool::{Fmr, FmrError, FmrMapping, FmrPool, FmrPoolOptions};
pub use handle::Bmme;
pub use probes::PROBES;

pub(crate) const BMME: FeatureInfo = feature!(
    Features::BMME,
    "keys registered and invalidated by work requests"
);
pub(crate) const FENCE: FeatureInfo = feature!(
    Features::LOCAL_INVALIDATE_FENCE,
    "a local invalidate can wait for earlier reads"
);
pub(crate) const WINDOW_1: FeatureInfo = feature!(Features::WINDOW_1, "windows bound by a verb");
pub(crate) const WINDOW_2A: FeatureInfo = feature!(
    Features::WINDOW_2A,
    "windows bound by request, checked by queue pair"
);
pub(crate) const WINDOW_2B: FeatureInfo = feature!(
    Features::WINDOW_2B,
    "windows bound by request, checked by queue pair and domain"
);
pub(crate) const READ_WITH_INVALIDATE: FeatureInfo = feature!(
    Features::READ_WITH_INVALIDATE,
    "a read ends the key of its sink by itself"
);
pub(crate) const ZBVA: FeatureInfo = feature!(
    Features::ZBVA,
    "addresses of a region or window may count from zero"
);
pub(crate) const BLOCK_LIST: FeatureInfo = feature!(
    Features::BLOCK_LIST,
    "fast-register of blocks of any one size"
);
pub(crate) const SG_GAPS: FeatureInfo = feature!(
    Features::SG_GAPS,
    "fast-register of pieces of any sizes, with gaps"
);

/// The descriptor of the extension.
pub static EXTENSION: ExtensionDescriptor =
    ExtensionDescriptor::new("bmme", "base memory management")
        .features(&[
            BMME,
            FENCE,
            WINDOW_1,
            WINDOW_2A,
            WINDOW_2B,
            READ_WITH_INVALIDATE,
            ZBVA,
            BLOCK_LIST,
            SG_GAPS,
        ])
        .probes(PROBES)
        .parts(&[&EMULATION]);

link_extension!(EXTENSION);
