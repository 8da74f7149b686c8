//! The kinds of devices that the suite runs on.

use std::fmt;
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::time::{Carried, Time};
// These are linked so that the devices have every optional feature that exists.
use block_loopback as _;
use bmme as _;
use emulated_ib::header::Header;
use emulated_ib::{InfiniBand, OnWire, RoceV2, WireOptions};
use emulated_iwarp::codec::{Receiving, Sending};
use emulated_iwarp::header::{self as iwarp_header, reset_header, stream_key};
use emulated_iwarp::{Iwarp, MpaCodec};
use masked_atomics as _;
use polyverbs_engine::device::{Device as Engine, DeviceOptions};
use polyverbs_engine::driver::Driver;
use polyverbs_engine::link::SharedLink;
use polyverbs_engine::trace::Trace;
use polyverbs_io::sim::{Between, DatagramLink, FaultSpec, Simulation, StreamLink};
use polyverbs_io::{through_datagrams, through_streams};
use polyverbs_wire::iwarp::Framing;
use verbs_api::provider::DeviceOps;
use verbs_api::provider::carrier::ReadyForms;
use verbs_api::{
    Features,
    capability::{Mtu, PortState},
    extension::Extensions,
    ids::LinkAddress,
};
use xrc as _;

/// Every frame is in transit for a while and no fault is injected into it.
fn under_way() -> FaultSpec {
    FaultSpec {
        delay: Between::exactly(Duration::from_micros(1)),
        ..FaultSpec::default()
    }
}

/// A kind of device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flavour {
    /// InfiniBand with windows of type 2B; each message is delivered whole and at once.
    Ib,
    /// InfiniBand like [`Flavour::Ib`], with windows of type 2A.
    Ib2a,
    /// InfiniBand without base memory management, windows and zero-based addresses.
    IbPlain,
    /// InfiniBand with base memory management and nothing else that is optional.
    IbBmme,
    /// InfiniBand over a datagram link: messages are segmented, and frames take time.
    IbFramed,
    /// InfiniBand over a datagram link on which every frame is encoded as RoCEv2 and decoded
    /// again.
    IbWire,
    /// InfiniBand over UDP, through real sockets and in real time.
    IbUdp,
    /// InfiniBand like [`Flavour::IbUdp`]; both devices are at one address, so they exchange records in shared memory.
    IbMemory,
    /// iWARP; each message is delivered whole and at once.
    Iwarp,
    /// iWARP without base memory management and the features that come with it: they become
    /// gaps of the transport.
    IwarpPlain,
    /// iWARP over a stream link: messages are segmented, and segments take time.
    IwarpFramed,
    /// InfiniBand; every queue pair is a low-latency one.
    IbLowLatency,
    /// iWARP; every queue pair is a low-latency one.
    IwarpLowLatency,
    /// iWARP over a stream link on which every segment is encoded as MPA and decoded again.
    IwWire,
    /// iWARP over TCP, through real sockets and in real time.
    IwTcp,
    /// A kind that the suite does not know: another crate brings its driver.
    Other(&'static OtherFlavour),
    /// An existing device, which no test can steer: the suite opens it twice and connects it to
    /// itself.
    Given(&'static GivenDevice),
}

/// A device that the suite does not build.
pub struct GivenDevice(pub Arc<dyn DeviceOps>);

impl PartialEq for GivenDevice {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for GivenDevice {}

impl fmt::Debug for GivenDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.attributes().name)
    }
}

/// A kind of device that the suite does not know.
pub struct OtherFlavour {
    /// The name of the kind in failure messages.
    pub name: &'static str,
    /// Makes two devices with these options.
    pub build: fn(DeviceOptions) -> Fabric,
}

impl PartialEq for OtherFlavour {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self, other)
    }
}

impl Eq for OtherFlavour {}

impl fmt::Debug for OtherFlavour {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

/// Operations by which a test steers a device without the program's knowledge.
pub trait Steer: DeviceOps {
    /// Removes the device.
    fn remove(&self);

    /// Takes the port up or down.
    fn set_port_state(&self, state: PortState);

    /// Makes control verbs take this long from now on.
    fn set_latency(&self, latency: Duration);

    /// How many memory keys are in use.
    fn keys_in_use(&self) -> usize;

    /// Reports to `trace` every operation that is executed by a queue pair made after this
    /// call.
    fn trace(&self, trace: Trace);

    /// Delivers the frames that have arrived.
    fn progress(&self);
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
        self.keys().in_use()
    }

    fn trace(&self, trace: Trace) {
        Self::trace(self, trace);
    }

    fn progress(&self) {
        self.network().progress();
    }
}

/// Two devices on a network, and the clock that drives them.
pub struct Fabric {
    pub(crate) time: Arc<Time>,
    pub(crate) near: DeviceUnderTest,
    pub(crate) far: DeviceUnderTest,
}

/// A device, and the handle that steers it unless the device is real.
#[derive(Clone)]
pub(crate) struct DeviceUnderTest {
    pub(crate) ops: Arc<dyn DeviceOps>,
    pub(crate) steer: Option<Arc<dyn Steer>>,
}

impl From<Arc<dyn Steer>> for DeviceUnderTest {
    fn from(device: Arc<dyn Steer>) -> Self {
        Self {
            ops: Arc::clone(&device) as _,
            steer: Some(device),
        }
    }
}

impl GivenDevice {
    fn fabric(&self) -> Fabric {
        let device = DeviceUnderTest {
            ops: Arc::clone(&self.0),
            steer: None,
        };
        Fabric {
            time: Arc::new(Time::Real { carried: None }),
            near: device.clone(),
            far: device,
        }
    }
}

impl Fabric {
    /// Two devices of this driver, which reach each other directly, in virtual time.
    pub fn direct<D: Driver>(driver: impl Fn(LinkAddress) -> D, options: DeviceOptions) -> Self {
        fabric(driver, None, options)
    }
}

impl Flavour {
    /// Whether every queue pair is a low-latency one.
    pub(crate) fn is_low_latency(self) -> bool {
        matches!(self, Self::IbLowLatency | Self::IwarpLowLatency)
    }

    pub(crate) fn build(self, qp_numbers: Option<(u32, u32)>) -> Fabric {
        let mut options = DeviceOptions::default();
        options.qp_numbers = qp_numbers.unwrap_or(options.qp_numbers);
        match self {
            Self::Ib | Self::IbLowLatency => fabric(|at| infiniband(at, false), None, options),
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
            Self::IbFramed => fabric(|at| infiniband(at, false), Some(datagrams()), options),
            Self::IbWire => {
                let link = through_datagrams(datagrams(), RoceV2::new(), 4791, None);
                fabric(|at| infiniband(at, false), Some(link), options)
            }
            Self::IbUdp => over_udp(&options, [0, 1]),
            Self::IbMemory => over_udp(&options, [0, 0]),
            Self::Iwarp | Self::IwarpLowLatency => fabric(iwarp, None, options),
            Self::IwarpPlain => fabric(
                iwarp,
                None,
                DeviceOptions {
                    extensions: Some(Extensions::new()),
                    ..options
                },
            ),
            Self::IwarpFramed => fabric(iwarp, Some(segments()), options),
            Self::IwWire => {
                let link = through_streams(segments(), MpaCodec, begin_stream);
                fabric(iwarp, Some(link), options)
            }
            Self::Other(other) => (other.build)(options),
            Self::Given(device) => device.fabric(),
            Self::IwTcp => over_tcp(&options),
        }
    }
}

fn datagrams() -> SharedLink<Header> {
    Arc::new(DatagramLink::new(Some(Mtu::Mtu1024), under_way()))
}

fn segments() -> SharedLink<iwarp_header::Header> {
    Arc::new(StreamLink::new(
        NonZeroUsize::new(1000),
        under_way(),
        stream_key,
        Some(reset_header),
    ))
}

// The stream has agreed on every option of the framing.
fn begin_stream(header: &iwarp_header::Header) -> (Sending, Receiving) {
    let framing = Framing {
        markers: true,
        crc: true,
    };
    let receiving = Receiving::new(framing, header.stream, ReadyForms::empty());
    (Sending::new(framing, usize::MAX), receiving)
}

fn over_udp(options: &DeviceOptions, hosts: [u8; 2]) -> Fabric {
    on_sockets(hosts, |address| {
        let wire = WireOptions::new(address);
        let on_wire = OnWire::new(|at| infiniband(at, false), wire, options.clone());
        let OnWire { device, link, .. } = on_wire.expect("an address of this machine");
        let carried = move || {
            let counts = link.counts();
            counts.sent + counts.delivered
        };
        (device, Box::new(carried))
    })
}

fn over_tcp(options: &DeviceOptions) -> Fabric {
    on_sockets([0, 1], |address| {
        let mut wire = emulated_iwarp::WireOptions::new(address);
        wire.markers = true;
        let on_wire = emulated_iwarp::OnWire::new(iwarp, wire, options.clone());
        let emulated_iwarp::OnWire { device, link, .. } =
            on_wire.expect("an address of this machine");
        let carried = move || {
            let counts = link.counts();
            counts.sent + counts.delivered + counts.lost
        };
        (device, Box::new(carried))
    })
}

// Each rig takes two addresses of its own, one for each of `hosts`, and so does each process as far as there are enough
// addresses.
fn on_sockets(
    hosts: [u8; 2],
    device_at: impl Fn(SocketAddr) -> (Arc<dyn Steer>, Carried),
) -> Fabric {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let rig = NEXT.fetch_add(1, Ordering::Relaxed) as u16;
    let device = |host: u8| {
        let [c, d] = (rig << 1 | u16::from(host)).to_be_bytes();
        let network = 32 + (std::process::id() % 128) as u8;
        device_at(SocketAddr::from(([127, network, c, d], PORT)))
    };
    let [(near, by_near), (far, by_far)] = hosts.map(device);
    let ends = [Arc::clone(&near), Arc::clone(&far)];
    let carried = move || {
        ends.iter().for_each(|end| end.progress());
        by_near() + by_far()
    };
    Fabric {
        time: Arc::new(Time::Real {
            carried: Some(Box::new(carried)),
        }),
        near: near.into(),
        far: far.into(),
    }
}

/// Differs from the port of RoCEv2, which a kernel driver may hold.
const PORT: u16 = 14791;

fn iwarp(address: LinkAddress) -> Iwarp {
    Iwarp::new(format!("{address:?}"), address)
}

fn infiniband(address: LinkAddress, windows_2a: bool) -> InfiniBand {
    InfiniBand {
        name: format!("{address:?}"),
        address,
        windows_2a,
        management: None,
        subnet: None,
    }
}

fn fabric<D: Driver>(
    driver: impl Fn(LinkAddress) -> D,
    link: Option<SharedLink<D::Header>>,
    options: DeviceOptions,
) -> Fabric {
    let simulation = Simulation::new();
    let network = simulation.network::<D>(link);
    let device = |at| -> Arc<dyn Steer> {
        let driver = driver(LinkAddress::InProcess(at));
        Engine::new(driver, &network, options.clone()).expect("a device that is consistent")
    };
    let (near, far) = (device(1), device(2));
    Fabric {
        time: Arc::new(Time::Virtual(simulation)),
        near: near.into(),
        far: far.into(),
    }
}
