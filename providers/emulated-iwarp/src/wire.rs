//! A device on an IP network: iWARP over TCP.

use std::net::SocketAddr;
use std::sync::Arc;

use polyverbs_engine::device::{Device, DeviceOptions};
use polyverbs_engine::link::SharedLink;
use polyverbs_engine::network::Progress;
use polyverbs_io::RealHost;
use polyverbs_io::emulated::EmulatedError;
use polyverbs_io::{TcpLink, TcpLinkOptions, TcpOptions, TcpTap};
use verbs_api::ids::LinkAddress;
use verbs_api::provider::carrier::{StreamPort, StreamWishes};

use crate::codec::MpaCodec;
use crate::driver::Iwarp;
use crate::header::Header;
use crate::rendezvous::Rendezvous;
use crate::streams::{FIRST_STREAM, Streams};

/// What a device on an IP network is made with.
#[derive(Clone)]
#[non_exhaustive]
pub struct WireOptions {
    /// Its address, and the port by which queue pairs find each other that name each other by number; 0 where
    /// connections are made by a connection manager only.
    pub address: SocketAddr,
    /// Of the streams: how much waits, and what happens to bytes.
    pub link: TcpLinkOptions,
    /// Of the sockets.
    pub tcp: TcpOptions,
    /// Checksums in the frames of both directions. A peer that wants them has them in any case.
    pub crc: bool,
    /// Markers in what this device receives.
    pub markers: bool,
    /// Where it is asked for a connection, it sends before its peer has: see [`StreamWishes::speaks_first`].
    pub speaks_first: bool,
    /// Most bytes of a DDP segment, where the path carries more.
    pub max_segment: usize,
    /// Streams that no queue pair has yet: one more takes the place of one that has said too little for too long.
    pub max_early: usize,
    /// Is told of what passes through the sockets.
    pub tap: Option<Arc<dyn TcpTap>>,
}

impl WireOptions {
    /// At this address and port, with checksums and without markers.
    pub fn new(address: SocketAddr) -> Self {
        Self {
            address,
            link: TcpLinkOptions::default(),
            tcp: TcpOptions::default(),
            crc: true,
            markers: false,
            speaks_first: false,
            max_segment: u16::MAX.into(),
            max_early: MAX_EARLY,
            tap: None,
        }
    }
}

const MAX_EARLY: usize = 4096;

/// The port by which queue pairs find each other, where none is named.
pub const PORT: u16 = 4791;

/// A device on an IP network, and what carries its frames.
#[derive(Clone)]
pub struct OnWire {
    /// The device.
    pub device: Arc<Device<Iwarp>>,
    /// Its link.
    pub link: Arc<TcpLink<MpaCodec>>,
    /// Its streams, from their first byte.
    pub streams: Arc<Streams>,
}

impl OnWire {
    /// A device at an address of this machine.
    ///
    /// Several processes may be at one address. The port by which queue pairs find each other is that of the first.
    ///
    /// # Errors
    /// The address is not this machine's, or the engine refuses.
    pub fn new(
        driver: impl FnOnce(LinkAddress) -> Iwarp,
        wire: WireOptions,
        options: DeviceOptions,
    ) -> Result<Self, EmulatedError> {
        let failed = |error: std::io::Error| EmulatedError::Wire(error.to_string());
        let ip = wire.address.ip();
        let link = TcpLink::new(MpaCodec, ip, wire.link).map_err(failed)?;
        let wishes = StreamWishes {
            crc: wire.crc,
            markers: wire.markers,
            speaks_first: wire.speaks_first,
        };
        let port = wire.address.port();
        let streams = Streams::new(
            Arc::clone(&link),
            ip,
            wire.tcp,
            wishes,
            (wire.max_segment, wire.max_early),
            wire.tap,
        );
        let rendezvous = Rendezvous::new(Arc::clone(&streams), port);
        if port != 0 {
            match streams.listen(wire.address, rendezvous.listener()) {
                // Another process at this address has it: whoever names a queue pair by number finds those there.
                Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => {}
                listening => {
                    let taken = |error| EmulatedError::Wire(format!("{}: {error}", wire.address));
                    listening.map_err(taken)?;
                }
            }
        }
        let carries = Arc::clone(&link) as SharedLink<Header>;
        let network = RealHost::network::<Iwarp>(Some(carries));
        let (first, end) = options.qp_numbers;
        let options = DeviceOptions {
            qp_numbers: (first, end.min(FIRST_STREAM)),
            ..options
        };
        let mut driver = driver(LinkAddress::Ip(ip));
        driver.rendezvous = Some(rendezvous);
        let device = Device::new(driver, &network, options)?;
        streams.bind(&device);
        let progress: Arc<dyn Progress> = Arc::clone(&network) as _;
        let attended = Arc::downgrade(&streams);
        let attend = move |token| {
            if let Some(streams) = attended.upgrade() {
                streams.attend(token);
            }
        };
        let handler = link
            .start(Arc::downgrade(&progress), attend)
            .map_err(failed)?;
        network.keep(Arc::new(handler));
        Ok(Self {
            device,
            link,
            streams,
        })
    }
}
