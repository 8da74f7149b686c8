//! The probes of extensions, run by the clock of a rig.

use std::time::Duration;

use verbs_api::probe::{Evidence, Pace, Probe, Rig, Verified, verify};
use verbs_api::provider::DeviceOps;
use verbs_api::{Device, OpenError, Requirements, capability::FeatureBits, extension::FeatureInfo};

use std::sync::Arc;

use crate::Flavour;
use crate::time::Time;

/// The clock of a fabric: virtual time passes while a probe waits.
struct Paced(Time);

impl Pace for Paced {
    fn until(&self, done: &mut dyn FnMut() -> bool) -> bool {
        match &self.0 {
            Time::Virtual(simulation) => simulation.until(done),
            Time::Real => self.0.run_until(done).is_ok(),
        }
    }

    fn settle(&self) {
        match &self.0 {
            Time::Virtual(simulation) => simulation.settle(),
            Time::Real => self.0.run_for(Duration::from_millis(20)),
        }
    }
}

/// Two devices of this flavour, opened for every feature that they claim and for `beyond`.
///
/// # Errors
/// The devices cannot be opened.
pub fn probe_rig(flavour: Flavour, beyond: &[FeatureBits]) -> Result<Rig, Evidence> {
    let fabric = flavour.build(None);
    let open = |ops: Arc<dyn DeviceOps>| {
        let device = Device::of(ops);
        let wanted = Requirements::everything_of(&device.attributes());
        device
            .open_beyond_claims(&wanted, beyond)
            .map_err(|error: OpenError| Evidence::not_here(error.to_string()))
    };
    let (near, far) = (open(fabric.near.ops)?, open(fabric.far.ops)?);
    Rig::new(near, far, Paced(fabric.time))
}

/// The verdict of the probes about a feature of devices of this flavour.
pub fn examined(flavour: Flavour, feature: &FeatureInfo, probes: &[Probe]) -> Verified {
    let attributes = flavour.build(None).far.ops.attributes();
    let rig = |beyond: &[FeatureBits]| probe_rig(flavour, beyond);
    verify(&attributes, feature, probes, &rig, &mut |_| ())
}
