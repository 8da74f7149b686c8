//! Checksums of remote memory: the device at the other end computes the CRC-32C of a range, and four bytes travel back.
//!
//! ```no_run
//! use acme_checksum::{Checksum, Checksums};
//! use verbs_api::{QpOptions, Requirements, open};
//! # fn example(sink: verbs_api::Sge, log: verbs_api::RemoteAddress) -> Result<(), Box<dyn std::error::Error>> {
//! let device = open(Requirements::new().needs(Checksums::RANGE))?;
//! let checksum = device.extension::<Checksum>()?;
//! let (pd, cq) = (device.alloc_pd().wait()?, device.create_cq(64).wait()?);
//! let qp = pd.create_qp(QpOptions::rc(&cq).operations(&checksum)).wait()?;
//! let range = checksum.range(log, 4096);
//! qp.post_one(range.request(sink).signaled(7))?;
//! # Ok(())
//! # }
//! ```
#![forbid(unsafe_code)]

mod emulation;
mod handle;
mod probes;
mod request;

use bitflags::bitflags;
use verbs_api::{
    capability::{Direction, ExtensionLimit, FeatureSet},
    extension::{ExtensionDescriptor, FeatureInfo, feature, link_extension},
};

pub use handle::Checksum;
pub use request::{CHECKSUM, Range};

bitflags! {
    /// What a device can do with checksums.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Checksums: u64 {
        /// The CRC-32C of a remote range, in one request.
        ///
        /// * Guarantees: the checksum of the range after all earlier writes of the queue have been placed.
        /// * Limits: [`MAX_RANGE`]; it counts as a read for `max_qp_rd_atom` and `max_qp_init_rd_atom`.
        /// * Who: Acme's adapters from firmware 12 on; emulated devices.
        /// * Source: Acme Programmer's Manual, chapter 7.
        const RANGE = 1;
    }
}

impl FeatureSet for Checksums {
    const SET: &'static str = "acme-checksum";
}

const RANGE: FeatureInfo = feature!(
    Checksums::RANGE,
    "the checksum of a remote range, in one request"
);

/// Bytes of the longest range.
pub static MAX_RANGE: ExtensionLimit =
    ExtensionLimit::new(Checksums::SET, "max_range", Direction::LargerIsStronger);

/// The extension.
pub static EXTENSION: ExtensionDescriptor =
    ExtensionDescriptor::new("acme-checksum", "checksums of remote memory")
        .features(&[RANGE])
        .limits(&[MAX_RANGE])
        .operations(&[&CHECKSUM])
        .probes(probes::PROBES)
        .parts(&[&emulation::EMULATION]);

link_extension!(EXTENSION);
