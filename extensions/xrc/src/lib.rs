//! Extended reliable connections (XRC): one connection between two nodes that reaches every process of the peer.
//!
//! A [domain](Xrcd) joins shared receive queues and the *targets* that may deliver to them; contexts share it by a file. An
//! *initiator* sends; each of its requests names the shared receive queue at the peer. A target has no queues of its own and
//! belongs to the domain: every process that opens the domain may open the target.
//!
//! ```no_run
//! use verbs_api::{PathOptions, Features, QpOptions, Requirements, SrqOptions, open, wr};
//! use xrc::{OpenXrcd, Xrc, XrcFeatures, remote_srqn};
//! let device = open(Requirements::new().needs(Features::SRQ).needs(XrcFeatures::XRC))?;
//! let xrc = device.extension::<Xrc>()?;
//! let (pd, cq) = (device.alloc_pd().wait()?, device.create_cq(64).wait()?);
//!
//! let domain = xrc.open(OpenXrcd::anonymous()).wait()?;
//! let srq = domain.create_srq(&pd, SrqOptions::new(64), &cq).wait()?;
//! let target = domain.create_target().wait()?;
//!
//! let initiator = pd.create_qp(QpOptions::rc(&cq).with(&xrc)).wait()?;
//! initiator.connect(&target.endpoint()?, PathOptions::new()).wait()?;
//! target.connect(&initiator.endpoint()?, PathOptions::new()).wait()?;
//! initiator.post_one(wr::Send::new(b"hello").with(remote_srqn(srq.number())))?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! A target carries out requests in the protection domain of the shared receive queue that they name; this includes reads,
//! writes and atomics.
//!
//! The Cargo feature `rdma-core`, which is on by default, is for XRC on real devices: the crate then names their provider.
#![forbid(unsafe_code)]

#[cfg(feature = "rdma-core")]
mod binding;
mod domain;
mod emulation;
mod objects;
mod opening;
mod probes;
mod qp_types;
mod remote;
mod target;

use bitflags::bitflags;
use verbs_api::{
    capability::FeatureSet,
    extension::{
        ExtensionDescriptor, FeatureInfo, RequestAttribute, RequestAttributeKind, feature,
        link_extension,
    },
};

#[cfg(feature = "rdma-core")]
pub use binding::{BINDING, OnDevices};
pub use emulation::{EMULATION, InSoftware};
pub use objects::{Xrc, XrcSrq, Xrcd};
pub use opening::OpenXrcd;
pub use probes::{CARRIED, PROBES};
pub use qp_types::{INITIATOR, TARGET};

bitflags! {
    /// The features that the extension adds to a device.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
    pub struct XrcFeatures: u64 {
        /// Extended reliable connections.
        ///
        /// * Guarantees: domains, their shared receive queues, initiators and targets.
        /// * Limits: those of queue pairs, domains and shared receive queues.
        /// * Who: devices of `libibverbs` with `IBV_DEVICE_XRC`, such as ConnectX; emulated InfiniBand devices; never iWARP,
        ///   whose streams name no receive queue.
        /// * Source: InfiniBand's annex A14; `ibv_open_xrcd`.
        const XRC = 1;
    }
}

impl FeatureSet for XrcFeatures {
    const SET: &'static str = "xrc";
}

pub(crate) const XRC: FeatureInfo = feature!(
    XrcFeatures::XRC,
    "one connection that reaches many shared receive queues"
);

/// The descriptor of the extension.
pub static EXTENSION: ExtensionDescriptor =
    ExtensionDescriptor::new("xrc", "extended reliable connections")
        .features(&[XRC])
        .probes(PROBES)
        .parts(&[
            &EMULATION,
            #[cfg(feature = "rdma-core")]
            &BINDING,
        ]);

link_extension!(EXTENSION);

/// The attribute that every request of an initiator has: the number of the shared receive queue at the peer.
pub static REMOTE_SRQN: RequestAttributeKind = RequestAttributeKind::new("xrc", "remote_srqn");

/// Directs a request to the shared receive queue with this [number](XrcSrq::number) at the peer.
pub fn remote_srqn(number: u32) -> RequestAttribute {
    REMOTE_SRQN.with(number)
}
