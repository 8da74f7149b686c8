//! Devices that are not what they say, and what every page shows of them.

mod browser;
mod hidden;
mod pages;
mod schema;

use std::sync::Arc;

use capability_matrix::Matrix;
use polyverbs::probe::{Rig, Verified, verify};
use polyverbs::provider::{ContextOps, DeviceOps, EventSink};
use polyverbs::{
    Device, Features, VerbError,
    capability::{BaselineGaps, DeviceAttributes, Grant},
    extension::{Extensions, FeatureInfo},
};

/// A device that tells something else about itself than the one behind it does.
struct Telling {
    device: Arc<dyn DeviceOps>,
    other: Box<dyn Fn(&mut DeviceAttributes) + Send + Sync>,
}

impl DeviceOps for Telling {
    fn attributes(&self) -> DeviceAttributes {
        let mut attributes = self.device.attributes();
        (self.other)(&mut attributes);
        attributes
    }

    fn open(
        &self,
        grant: &Grant,
        events: Arc<dyn EventSink>,
    ) -> Result<Arc<dyn ContextOps>, VerbError> {
        self.device.open(grant, events)
    }
}

fn telling(
    device: &Device,
    other: impl Fn(&mut DeviceAttributes) + Send + Sync + 'static,
) -> Device {
    Device::of(Arc::new(Telling {
        device: Arc::clone(device.ops()),
        other: Box::new(other),
    }))
}

/// InfiniBand's that keeps its shared receive queues to itself, and iWARP's that says that it has datagrams.
fn liars() -> Vec<Device> {
    let devices = polyverbs::devices().unwrap();
    let of = |name: &str| {
        devices
            .iter()
            .find(|device| device.name() == name)
            .expect("a default device")
    };
    vec![
        telling(of("ib0"), |told| told.features -= Features::SRQ),
        telling(of("iw0"), |told| told.gaps -= BaselineGaps::NO_UD),
    ]
}

/// What the probes say of one feature.
fn examined(device: &Device, feature: &FeatureInfo) -> Verified {
    let linked = Extensions::linked().unwrap();
    let of_extensions = linked
        .iter()
        .flat_map(|extension| extension.all_probes().iter());
    let probes: Vec<_> = polyverbs::probe::CORE_PROBES
        .iter()
        .chain(of_extensions)
        .copied()
        .collect();
    let rig = |beyond: &[_]| Rig::of_device(device, beyond);
    verify(&device.attributes(), feature, &probes, &rig, &mut |_| ())
}

fn verified(devices: &[Device]) -> Matrix {
    Matrix::verified(devices, &mut |_| ()).unwrap()
}
