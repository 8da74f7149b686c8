//! Rigs of probes on devices of the suite.

use std::sync::Arc;

use low_latency_qp::{LowLatency, Watch};
use verbs_api::probe::{End, Evidence, Outcome, Probe, Rig, Verified, verify};
use verbs_api::provider::DeviceOps;
use verbs_api::{Device, OpenError, Requirements, capability::FeatureBits, extension::FeatureInfo};

use crate::Flavour;
use crate::flavour::Fabric;

/// The rig of the probes on two devices of this flavour, opened for every feature that they claim and for `beyond`.
pub(crate) fn rig_of(
    fabric: &Fabric,
    flavour: Flavour,
    beyond: &[FeatureBits],
) -> Result<Rig, Evidence> {
    let open = |ops: &Arc<dyn DeviceOps>| {
        let device = Device::of(Arc::clone(ops));
        let wanted = Requirements::everything_of(&device.attributes());
        device
            .open_beyond_claims(&wanted, beyond)
            .map_err(|error: OpenError| Evidence::not_here(error.to_string()))
    };
    let (near, far) = (open(&fabric.near.ops)?, open(&fabric.far.ops)?);
    let mut rig = Rig::new(near, far, Arc::clone(&fabric.time))?;
    if flavour.is_low_latency() {
        make_low_latency(&mut rig.near)?;
        make_low_latency(&mut rig.far)?;
    }
    Ok(rig)
}

fn make_low_latency(end: &mut End) -> Outcome {
    let progress = end.context.extension::<LowLatency>()?.watch(Watch::all())?;
    end.set_mode(move |options| options.with(&progress));
    Ok(())
}

/// The verdict of the probes about a feature of devices of this flavour.
pub fn examined(flavour: Flavour, feature: &FeatureInfo, probes: &[Probe]) -> Verified {
    let attributes = flavour.build(None).far.ops.attributes();
    let rig = |beyond: &[FeatureBits]| rig_of(&flavour.build(None), flavour, beyond);
    verify(&attributes, feature, probes, &rig, &mut |_| ())
}
