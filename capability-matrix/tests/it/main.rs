//! The verdicts of the matrix on the default devices, and on devices that break a rule or whose attributes are false, and
//! their display on every page. Everything runs in virtual time.

mod browser;
mod cells;
mod claims;
mod hidden;
mod idle;
mod mismatches;
mod not_here;
mod page;
mod schema;

use std::sync::{Arc, LazyLock};

use capability_matrix::Matrix;
use emulated_ib::{InfiniBand, header::Header};
use emulated_iwarp::Iwarp;
use polyverbs::probe::{Evidence, Rig, Verified, verify};
use polyverbs::provider::{ContextOps, DeviceOps, EventSink};
use polyverbs::{
    Device, Features, VerbError,
    capability::{BaselineGaps, DeviceAttributes, FeatureBits, Grant, PortState},
    extension::{Extensions, FeatureInfo},
};
use polyverbs_engine::device::{Device as Engine, DeviceOptions};
use polyverbs_engine::link::SharedLink;
use polyverbs_io::emulated::FIRST_ADDRESS;
use polyverbs_io::sim::Simulation;

/// Devices in virtual time: each is on a network of its own, and all share the clock.
struct Simulated {
    simulation: Arc<Simulation>,
    devices: Vec<Device>,
}

impl Simulated {
    /// The default devices.
    fn new() -> Self {
        Self::with_infiniband(None, PortState::Active)
    }

    /// The default devices, with the port of `ib0` in this state, and a link of this kind in its network.
    fn with_infiniband(link: Option<SharedLink<Header>>, state: PortState) -> Self {
        let simulation = Simulation::new();
        let infiniband = InfiniBand {
            name: "ib0".into(),
            address: FIRST_ADDRESS,
            windows_2a: false,
            management: None,
            subnet: None,
        };
        let iwarp = Iwarp::new("iw0", FIRST_ADDRESS);
        let options = DeviceOptions::default;
        let infiniband = Engine::new(infiniband, &simulation.network(link), options()).unwrap();
        infiniband.set_port_state(state);
        let iwarp = Engine::new(iwarp, &simulation.network(None), options());
        Self {
            devices: vec![Device::of(infiniband), Device::of(iwarp.unwrap())],
            simulation: Arc::new(simulation),
        }
    }

    /// An InfiniBand device that does not claim its shared receive queues, and an iWARP device that claims datagrams.
    fn liars() -> Self {
        let mut simulated = Self::new();
        let [ib, iw] = &mut simulated.devices[..] else {
            unreachable!("two devices")
        };
        *ib = with_claims(ib, |claimed| claimed.features -= Features::SRQ);
        *iw = with_claims(iw, |claimed| claimed.gaps -= BaselineGaps::NO_UD);
        simulated
    }

    fn rig(&self, device: &Device, beyond: &[FeatureBits]) -> Result<Rig, Evidence> {
        Rig::of_device_in(device, beyond, Arc::clone(&self.simulation))
    }

    fn verified(&self) -> Matrix {
        let linked = Extensions::linked().unwrap();
        let rig = |device: &Device, beyond: &[_]| self.rig(device, beyond);
        Matrix::verified_with(&self.devices, &linked, rig, &mut |_| ())
    }

    /// The verdict of the probes on one feature of a device in this simulation.
    fn examined(&self, device: &Device, feature: &FeatureInfo) -> Verified {
        let linked = Extensions::linked().unwrap();
        let of_extensions = linked
            .iter()
            .flat_map(|extension| extension.all_probes().iter());
        let probes: Vec<_> = polyverbs_probes::CORE_PROBES
            .iter()
            .chain(of_extensions)
            .copied()
            .collect();
        let rig = |beyond: &[_]| self.rig(device, beyond);
        verify(&device.attributes(), feature, &probes, &rig, &mut |_| ())
    }
}

/// The matrix of the default devices. Every test of it shares one run of the probes.
static VERIFIED: LazyLock<Matrix> = LazyLock::new(|| Simulated::new().verified());

/// The matrix of the [liars](Simulated::liars), from one run as well.
static OF_LIARS: LazyLock<Matrix> = LazyLock::new(|| Simulated::liars().verified());

/// A device whose attributes differ from those of the device that it wraps.
struct WithClaims {
    device: Arc<dyn DeviceOps>,
    other: Box<dyn Fn(&mut DeviceAttributes) + Send + Sync>,
}

impl DeviceOps for WithClaims {
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

fn with_claims(
    device: &Device,
    other: impl Fn(&mut DeviceAttributes) + Send + Sync + 'static,
) -> Device {
    Device::of(Arc::new(WithClaims {
        device: Arc::clone(device.ops()),
        other: Box::new(other),
    }))
}

#[test]
fn the_simulated_devices_claim_what_the_default_ones_do() {
    let claims = |devices: &[Device]| Matrix::of(devices).unwrap().to_json();
    let registered = polyverbs::devices().unwrap();
    assert_eq!(claims(&Simulated::new().devices), claims(&registered));
}
