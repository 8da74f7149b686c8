//! A device on an IP network: RoCEv2 over UDP.

use std::net::SocketAddr;
use std::sync::Arc;

use polyverbs_engine::device::{Device, DeviceOptions};
use polyverbs_engine::link::SharedLink;
use polyverbs_engine::network::Progress;
use polyverbs_io::RealHost;
use polyverbs_io::emulated::EmulatedError;
use polyverbs_io::sim::{FaultSpec, FaultyLink};
use polyverbs_io::{GroupOptions, Lease, UdpLink, UdpLinkOptions};
use verbs_api::ids::LinkAddress;

use crate::InfiniBand;
use crate::codec::RoceV2;
use crate::driver::ManagementQp;
use crate::header::Header;
use crate::management::Management;

/// Options of an InfiniBand device on an IP network.
#[derive(Clone)]
#[non_exhaustive]
pub struct WireOptions {
    /// The UDP port that the device shares with other processes, and the users whose processes are admitted.
    pub group: GroupOptions,
    /// Options of the sockets, and the largest path MTU.
    pub link: UdpLinkOptions,
    /// The faults that are injected into frames before these are sent by sockets or through shared memory.
    pub faults: FaultSpec,
}

impl WireOptions {
    /// Creates the default options for this address and port. RoCEv2's port is [`ROCE_PORT`](polyverbs_io::emulated::ROCE_PORT).
    pub fn new(address: SocketAddr) -> Self {
        Self {
            group: GroupOptions::new(address),
            link: UdpLinkOptions::default(),
            faults: FaultSpec::default(),
        }
    }
}

/// An InfiniBand device on an IP network, and its link.
#[derive(Clone)]
pub struct OnWire {
    /// The device.
    pub device: Arc<Device<InfiniBand>>,
    /// The link of the device, which has its counters, its services and its range of queue pair numbers.
    pub link: Arc<UdpLink<RoceV2>>,
}

impl OnWire {
    /// Creates a device at an address of this machine. Its queue pair numbers are from the range that the process leases
    /// for the shared port.
    ///
    /// # Errors
    /// The port is taken or has no range left, the interface carries no frame, or the engine refuses the device.
    pub fn new(
        driver: impl FnOnce(LinkAddress) -> InfiniBand,
        wire: WireOptions,
        options: DeviceOptions,
    ) -> Result<Self, EmulatedError> {
        let mut bound = None;
        let managed = |address, link: &Arc<UdpLink<RoceV2>>| {
            let management = Management::new(Arc::clone(link));
            bound = Some(Arc::clone(&management));
            InfiniBand {
                management: Some(management as Arc<dyn ManagementQp>),
                ..driver(address)
            }
        };
        let made = Self::make(managed, wire, options, |link| link)?;
        if let Some(management) = bound {
            management.bind(&made.device);
        }
        made.start()
    }

    /// Creates a device whose link is around that of an IP network, and which has no queue pair 1.
    #[cfg(feature = "fabric")]
    pub(crate) fn within(
        driver: impl FnOnce(LinkAddress) -> InfiniBand,
        wire: WireOptions,
        options: DeviceOptions,
        around: impl FnOnce(SharedLink<Header>) -> SharedLink<Header>,
    ) -> Result<Self, EmulatedError> {
        Self::make(|address, _| driver(address), wire, options, around)?.start()
    }

    fn make(
        driver: impl FnOnce(LinkAddress, &Arc<UdpLink<RoceV2>>) -> InfiniBand,
        wire: WireOptions,
        options: DeviceOptions,
        around: impl FnOnce(SharedLink<Header>) -> SharedLink<Header>,
    ) -> Result<Self, EmulatedError> {
        let lease = Lease::join(wire.group)?;
        let (address, range) = (lease.address(), lease.range());
        let link = UdpLink::new(lease, RoceV2::new(), wire.link)?;
        let carries = Arc::clone(&link) as SharedLink<Header>;
        let carries = if wire.faults.is_none() {
            carries
        } else {
            Arc::new(FaultyLink::new(carries, wire.faults))
        };
        let network = RealHost::network::<InfiniBand>(Some(around(carries)));
        // The numbers of the leased range, but at most as many as the options ask for.
        let (first, behind) = options.qp_numbers;
        let end = range
            .end()
            .min(range.first() + behind.saturating_sub(first));
        let options = DeviceOptions {
            qp_numbers: (range.first(), end),
            ..options
        };
        let driver = driver(LinkAddress::Ip(address.ip()), &link);
        let device = Device::new(driver, &network, options)?;
        Ok(Self { device, link })
    }

    /// Has the link deliver frames to the device.
    fn start(self) -> Result<Self, EmulatedError> {
        let progress: Arc<dyn Progress> = Arc::clone(self.device.network()) as _;
        self.link.start(Arc::downgrade(&progress))?;
        Ok(self)
    }
}
