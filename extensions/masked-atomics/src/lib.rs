//! Masked atomics: compare-and-swap on some bits, and fetch-and-add on several fields of one word.
//!
//! * A [`MaskedCompareSwap`] compares and replaces only the bits that its masks name.
//! * A [`MaskedFetchAdd`] adds field by field: each bit of its mask is the *highest* bit of a field, and no carry leaves
//!   a field. Mask 0 is one field of 64 bits, all ones is an exclusive or.
//!
//! Both return the original eight bytes. On iWARP they are encoded as in RFC 7306; InfiniBand has no public encoding, and there
//! they are encoded like other extensions' operations.
//!
//! ```no_run
//! use masked_atomics::{MaskedAtomics, MaskedFetchAdd, MaskedFeatures};
//! use verbs_api::{QpOptions, Requirements, open};
//! # fn example(sink: verbs_api::Sge, counters: verbs_api::RemoteAddress) -> Result<(), Box<dyn std::error::Error>> {
//! let device = open(Requirements::new().needs(MaskedFeatures::MASKED_64))?;
//! let masked = device.extension::<MaskedAtomics>()?;
//! let (pd, cq) = (device.alloc_pd().wait()?, device.create_cq(64).wait()?);
//! let qp = pd.create_qp(QpOptions::rc(&cq).operations(&masked)).wait()?;
//! // Four counters of 16 bits in one word: add one to each.
//! let add = MaskedFetchAdd::new(counters, 0x0001_0001_0001_0001).fields(0x8000_8000_8000_8000);
//! qp.post_one(add.request(sink).signaled(7))?;
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
    capability::FeatureSet,
    extension::{ExtensionDescriptor, FeatureInfo, feature, link_extension},
};

pub use emulation::{EMULATION, InSoftware};
pub use handle::MaskedAtomics;
pub use probes::PROBES;
pub use request::{COMPARE_SWAP, FETCH_ADD, MaskedCompareSwap, MaskedFetchAdd};

bitflags! {
    /// The features that the extension adds to a device.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
    pub struct MaskedFeatures: u64 {
        /// Masked compare-and-swap and masked fetch-and-add on eight bytes.
        ///
        /// * Guarantees: both operations, atomic as far as the device's `masked_atomic_cap` says.
        /// * Limits: eight bytes, 8-aligned; they share `max_qp_rd_atom` and `max_qp_init_rd_atom` with reads.
        /// * Who: ConnectX and later in an encoding of their own; iWARP devices with RFC 7306; emulated devices.
        /// * Source: RFC 7306 section 5.1; the verbs that Linux calls masked atomics.
        const MASKED_64 = 1;
    }
}

impl FeatureSet for MaskedFeatures {
    const SET: &'static str = "masked-atomics";
}

pub(crate) const MASKED_64: FeatureInfo = feature!(
    MaskedFeatures::MASKED_64,
    "atomics on some bits, or on several fields, of eight bytes"
);

/// The descriptor of the extension.
pub static EXTENSION: ExtensionDescriptor = ExtensionDescriptor::new(
    "masked-atomics",
    "masked compare-and-swap and fetch-and-add",
)
.features(&[MASKED_64])
.operations(&[&COMPARE_SWAP, &FETCH_ADD])
.probes(PROBES)
.parts(&[&EMULATION]);

link_extension!(EXTENSION);
