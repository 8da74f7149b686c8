//! A device on an IP network: iWARP over TCP.

use std::sync::Arc;

use polyverbs_engine::device::{Device, DeviceOptions};
use polyverbs_engine::link::SharedLink;
use polyverbs_engine::network::Progress;
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
        let ip = wire.address.ip();
        let address = wire.address;
        let link = TcpLink::new(MpaCodec, ip, wire.link)?;
        let streams = Streams::new(Arc::clone(&link), wire);
        let rendezvous = Rendezvous::new(Arc::clone(&streams), address);
        let carries = Arc::clone(&link) as SharedLink<Header>;
        let network = RealHost::network::<Iwarp>(Some(carries));
        let (first, end) = options.qp_numbers;
        let options = DeviceOptions {
            qp_numbers: (first, end.min(FIRST_STREAM)),
            ..options
        };
        let mut driver = driver(LinkAddress::Ip(ip));
        driver.streams = Some(Arc::clone(&rendezvous) as Arc<dyn QpStreams>);
        let device = Device::new(driver, &network, options)?;
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
