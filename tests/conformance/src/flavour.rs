//! The kinds of devices that the suite runs on.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

// Linked: what devices have with everything that there is.
use bmme as _;
use emulated_ib::InfiniBand;
use emulated_iwarp::Iwarp;
use emulated_iwarp::header::{reset_header, stream_key};
use masked_atomics as _;
use polyverbs_engine::device::{Device as Engine, DeviceOptions};
use polyverbs_engine::driver::Driver;
use polyverbs_engine::link::SharedLink;
use polyverbs_engine::trace::Trace;
use polyverbs_links::{
    Between, DatagramLink, DatagramOptions, Simulation, StreamLink, StreamOptions,
};
use verbs_api::provider::DeviceOps;
use verbs_api::{Extensions, Features, LinkAddress, Mtu, PortState};

/// How long a frame is under way on a link.
fn under_way() -> Between<Duration> {
    Between::new(Duration::from_micros(1), Duration::from_micros(1))
}

/// A kind of device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flavour {
    /// InfiniBand with windows of type 2B; frames are handed over whole, at once.
    Ib,
    /// The same with windows of type 2A.
    Ib2a,
    /// The same without base memory management, windows and zero-based addresses.
    IbPlain,
    /// InfiniBand with base memory management and nothing else that is optional.
    IbBmme,
    /// InfiniBand over a datagram link: messages are cut, and frames take time.
    IbFramed,
    /// iWARP; messages are handed over whole, at once.
    Iwarp,
    /// The same without base memory management and what comes with it: gaps of the transport.
    IwarpPlain,
    /// iWARP over a stream link: messages are cut, and segments take time.
    IwarpFramed,
}

/// What a test does to a device behind the program's back.
pub trait Steer: DeviceOps {
    /// The device is gone.
    fn remove(&self);

    /// The port goes up or down.
    fn set_port_state(&self, state: PortState);

    /// Control verbs take this long from now on.
    fn set_latency(&self, latency: Duration);

    /// Memory keys in use.
    fn keys_in_use(&self) -> usize;

    /// Tells of every operation that queue pairs made from now on execute.
    fn trace(&self, trace: Trace);
}

impl<D: Driver> Steer for Engine<D> {
    fn remove(&self) {
        Self::remove(self);
    }

    fn set_port_state(&self, state: PortState) {
        Self::set_port_state(self, state);
    }

    fn set_latency(&self, latency: Duration) {
        self.commands().set_latency(latency);
    }

    fn keys_in_use(&self) -> usize {
        self.keys().len()
    }

    fn trace(&self, trace: Trace) {
        Self::trace(self, trace);
    }
}

/// Two devices on a network, and their time.
pub(crate) struct Fabric {
    pub(crate) simulation: Simulation,
    pub(crate) near: Arc<dyn Steer>,
    pub(crate) far: Arc<dyn Steer>,
}

impl Flavour {
    pub(crate) fn build(self, qp_numbers: Option<(u32, u32)>) -> Fabric {
        let mut options = DeviceOptions::default();
        options.qp_numbers = qp_numbers.unwrap_or(options.qp_numbers);
        match self {
            Self::Ib => fabric(|at| infiniband(at, false), None, options),
            Self::Ib2a => fabric(|at| infiniband(at, true), None, options),
            Self::IbPlain => fabric(
                |at| infiniband(at, false),
                None,
                DeviceOptions {
                    extensions: Some(Extensions::new()),
                    ..options
                },
            ),
            Self::IbBmme => {
                let without = Features::all() - Features::BMME;
                fabric(
                    |at| infiniband(at, false),
                    None,
                    DeviceOptions { without, ..options },
                )
            }
            Self::IbFramed => {
                let link = DatagramLink::new(DatagramOptions {
                    max_frame: Some(Mtu::Mtu1024),
                    delay: under_way(),
                    ..DatagramOptions::default()
                });
                fabric(|at| infiniband(at, false), Some(Arc::new(link)), options)
            }
            Self::Iwarp => fabric(iwarp, None, options),
            Self::IwarpPlain => fabric(
                iwarp,
                None,
                DeviceOptions {
                    extensions: Some(Extensions::new()),
                    ..options
                },
            ),
            Self::IwarpFramed => {
                let stream = StreamOptions {
                    max_frame: NonZeroUsize::new(1000),
                    delay: under_way(),
                    ..StreamOptions::default()
                };
                let link = StreamLink::new(stream, stream_key, Some(reset_header));
                fabric(iwarp, Some(Arc::new(link)), options)
            }
        }
    }
}

fn iwarp(address: LinkAddress) -> Iwarp {
    Iwarp::new(format!("{address:?}"), address)
}

fn infiniband(address: LinkAddress, windows_2a: bool) -> InfiniBand {
    InfiniBand {
        name: format!("{address:?}"),
        address,
        windows_2a,
    }
}

fn fabric<D: Driver>(
    driver: impl Fn(LinkAddress) -> D,
    link: Option<SharedLink<D::Header>>,
    options: DeviceOptions,
) -> Fabric {
    let mut simulation = Simulation::new();
    let network = simulation.network::<D>(link);
    let device = |at| -> Arc<dyn Steer> {
        let driver = driver(LinkAddress::InProcess(at));
        Engine::new(driver, &network, options.clone()).expect("a device that is consistent")
    };
    let (near, far) = (device(1), device(2));
    Fabric {
        simulation,
        near,
        far,
    }
}
