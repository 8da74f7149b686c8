//! A device on an IP network: iWARP over TCP.

use std::sync::Arc;

use polyverbs_engine::device::{Device, DeviceOptions};
use polyverbs_engine::link::SharedLink;
use polyverbs_engine::network::{Network, Progress};
use polyverbs_io::RealHost;
use polyverbs_io::TcpLink;
use polyverbs_io::emulated::EmulatedError;
use verbs_api::ids::LinkAddress;
use verbs_api::provider::errno_of;

use crate::codec::MpaCodec;
use crate::connection::FIRST_STREAM;
use crate::driver::{Iwarp, QpStreams};
use crate::header::Header;
use crate::rendezvous::Rendezvous;
use crate::sockets::KernelSockets;
pub use crate::sockets::{Sockets, StreamSocket};
use crate::streams::Streams;
pub use crate::streams::WireOptions;

/// An iWARP device on an IP network, and its link.
#[derive(Clone)]
pub struct OnWire {
    /// The device.
    pub device: Arc<Device<Iwarp>>,
    /// The TCP link of the device.
    pub link: Arc<TcpLink<MpaCodec>>,
}

impl OnWire {
    /// Creates a device at an address of this machine.
    ///
    /// Several processes may be at one address. The first one has the port on which queue pairs find each other; when it
    /// ends, another one takes the port.
    ///
    /// # Errors
    /// The address does not belong to this machine, its port cannot be used, or the engine refuses the device.
    pub fn new(
        driver: impl FnOnce(LinkAddress) -> Iwarp,
        wire: WireOptions,
        options: DeviceOptions,
    ) -> Result<Self, EmulatedError> {
        let link = TcpLink::new(MpaCodec, wire.address.ip(), wire.link)?;
        let sockets = KernelSockets {
            link: Arc::clone(&link),
            tap: wire.tap.clone(),
        };
        let carries = Arc::clone(&link) as SharedLink<Header>;
        let network = RealHost::network::<Iwarp>(Some(carries));
        let OnSockets {
            device, streams, ..
        } = OnSockets::new(sockets, &network, driver, wire, options)?;
        let progress: Arc<dyn Progress> = Arc::clone(&network) as _;
        let attended = Arc::downgrade(&streams);
        let attend = move |token| {
            if let Some(streams) = attended.upgrade() {
                streams.attend(token);
            }
        };
        link.start(Arc::downgrade(&progress), attend)?;
        Ok(Self { device, link })
    }
}

/// An iWARP device whose connections are made of [`Sockets`], which its owner watches.
pub struct OnSockets<S: Sockets> {
    /// The device.
    pub device: Arc<Device<Iwarp>>,
    streams: Arc<Streams<S>>,
    rendezvous: Arc<Rendezvous<S>>,
}

impl<S: Sockets> OnSockets<S> {
    /// Creates a device on a network. The link of the network has the connections that are attached to these sockets.
    ///
    /// # Errors
    /// The port of the address cannot be used, or the engine refuses the device.
    pub fn new(
        sockets: S,
        network: &Arc<Network<Device<Iwarp>>>,
        driver: impl FnOnce(LinkAddress) -> Iwarp,
        wire: WireOptions,
        options: DeviceOptions,
    ) -> Result<Self, EmulatedError> {
        let address = wire.address;
        let streams = Streams::new(sockets, wire);
        let rendezvous = Rendezvous::new(Arc::clone(&streams), address);
        let (first, end) = options.qp_numbers;
        let options = DeviceOptions {
            qp_numbers: (first, end.min(FIRST_STREAM)),
            ..options
        };
        let mut driver = driver(LinkAddress::Ip(address.ip()));
        driver.streams = Some(Arc::clone(&rendezvous) as Arc<dyn QpStreams>);
        let device = Device::new(driver, network, options)?;
        streams.bind(&device);
        if address.port() != 0 {
            match rendezvous.listen() {
                // Another process at this address has the port, and this one takes it over when that process ends.
                Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => {}
                listening => {
                    listening.map_err(|error| EmulatedError::Wire {
                        reason: format!("{address}: {error}"),
                        errno: errno_of(&error),
                    })?;
                }
            }
        }
        Ok(Self {
            device,
            streams,
            rendezvous,
        })
    }

    /// Handles a socket or listener for which the watched event has occurred. `token` is that with which it is watched.
    pub fn attend(&self, token: u64) {
        self.streams.attend(token);
    }

    /// Returns how many connections no queue pair uses yet. [`WireOptions::max_early`] limits those that peers have begun.
    pub fn early(&self) -> usize {
        self.streams.early()
    }

    /// Returns how many requests of peers wait for a queue pair. Each has come on a connection that no queue pair uses yet.
    pub fn callers(&self) -> usize {
        self.rendezvous.callers()
    }
}
