//! Block loopback: a datagram queue pair that does not receive its own multicasts.
//!
//! Only its own multicasts are filtered: other queue pairs of the device receive them, and it still receives those of others
//! and all unicasts.
//!
//! ```no_run
//! use block_loopback::{BlockLoopback, LoopbackFeatures};
//! use verbs_api::{Features, QpOptions, Requirements, open};
//! let wanted = Requirements::new().needs(Features::MULTICAST).needs(LoopbackFeatures::BLOCK_MULTICAST);
//! let device = open(wanted)?;
//! let block = device.extension::<BlockLoopback>()?;
//! let (pd, cq) = (device.alloc_pd().wait()?, device.create_cq(64).wait()?);
//! let qp = pd.create_qp(QpOptions::ud(&cq).with(&block)).wait()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

mod emulation;
mod probes;

use bitflags::bitflags;
use verbs_api::qp::QpType;
use verbs_api::{
    Context, VerbError,
    capability::FeatureSet,
    extension::{
        Extension, ExtensionDescriptor, FeatureInfo, QpExtension, QpShape, Unsupported, feature,
        link_extension,
    },
};

pub use emulation::{EMULATION, InSoftware};
pub use probes::PROBES;

bitflags! {
    /// The features that the extension adds to a device.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
    pub struct LoopbackFeatures: u64 {
        /// A datagram queue pair can be created such that it does not receive its own multicasts.
        ///
        /// * Guarantees: a multicast of the queue pair to a group that it is attached to is not delivered to itself.
        /// * Limits: none.
        /// * Who: ConnectX; emulated InfiniBand devices; never iWARP, which has no datagrams.
        /// * Source: the creation flag that Linux calls block-multicast-loopback, and rdma-core self-multicast loopback.
        const BLOCK_MULTICAST = 1;
    }
}

impl FeatureSet for LoopbackFeatures {
    const SET: &'static str = "block-loopback";
}

pub(crate) const BLOCK_MULTICAST: FeatureInfo = feature!(
    LoopbackFeatures::BLOCK_MULTICAST,
    "datagram queue pairs that do not get their own multicasts"
);

/// The descriptor of the extension.
pub static EXTENSION: ExtensionDescriptor =
    ExtensionDescriptor::new("block-loopback", "multicasts kept from their own sender")
        .features(&[BLOCK_MULTICAST])
        .probes(PROBES)
        .parts(&[&EMULATION]);

link_extension!(EXTENSION);

/// The typed handle of block loopback. Pass it to [`QpOptions::with`](verbs_api::QpOptions::with) to make a queue pair that
/// does not receive its own multicasts.
#[derive(Clone, Copy, Debug)]
pub struct BlockLoopback(());

impl Extension for BlockLoopback {
    type Features = LoopbackFeatures;

    const NAME: &'static str = "block-loopback";
    const NEEDS: LoopbackFeatures = LoopbackFeatures::BLOCK_MULTICAST;

    fn load(context: &Context) -> Result<Self, Unsupported> {
        Self::require(context)?;
        Ok(Self(()))
    }
}

impl From<&BlockLoopback> for QpExtension {
    fn from(_: &BlockLoopback) -> Self {
        Self::new("block-loopback", &BLOCK_MULTICAST, 1).check(is_for_datagrams)
    }
}

fn is_for_datagrams(shape: &QpShape) -> Result<(), VerbError> {
    match shape.qp_type {
        QpType::Ud => Ok(()),
        _ => Err(VerbError::argument(
            "qp_type",
            "only UD queue pairs send multicasts whose loopback can be blocked",
        )),
    }
}
