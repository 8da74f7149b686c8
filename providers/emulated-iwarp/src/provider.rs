//! The provider of the device, which is registered if this crate is linked and named.

use std::num::NonZeroUsize;
use std::sync::Arc;

use polyverbs_engine::device::Device;
use polyverbs_engine::link::SharedLink;
use polyverbs_io::emulated::{
    EmulatedError, EmulatedKind, EmulatedOptions, EmulatedProvider, FIRST_ADDRESS, LinkedKind,
};
use polyverbs_io::sim::{Contract, StreamLink};
use verbs_api::inventory;
use verbs_api::provider::DeviceOps;

use crate::Iwarp;
use crate::header::{Header, reset_header, stream_key};
#[cfg(feature = "sockets")]
use crate::{OnWire, WireOptions};

/// An emulated iWARP device.
pub struct EmulatedIwarp;

/// The registered provider of emulated iWARP devices.
pub static PROVIDER: EmulatedProvider<EmulatedIwarp> = EmulatedProvider(EmulatedIwarp);

inventory::submit! { LinkedKind(&PROVIDER.0) }
verbs_api::provider::link_provider!(PROVIDER);

/// The payload bytes of a segment: the rest of a TCP segment of 1,460 bytes after MPA without markers and 18 bytes of DDP
/// (RFC 5044 section 4.1).
const MAX_SEGMENT: NonZeroUsize = NonZeroUsize::new(1436).unwrap();

impl EmulatedKind for EmulatedIwarp {
    fn name(&self) -> &'static str {
        "iw0"
    }

    fn provider(&self) -> &'static str {
        "emulated-iwarp"
    }

    fn make(&self, options: &EmulatedOptions) -> Result<Arc<dyn DeviceOps>, EmulatedError> {
        options.check(Contract::Stream)?;
        let name = options
            .name
            .clone()
            .unwrap_or_else(|| self.name().to_owned());
        let driver = |address| Iwarp::new(name, address);
        #[cfg(feature = "sockets")]
        if let Some(at) = options.at {
            let mut wire = WireOptions::new(at);
            wire.link.faults = options.faults;
            wire.link.memory = !options.without_shared_memory;
            wire.crc = !options.without_crc;
            wire.speaks_first = options.speaks_first;
            wire.tap = options.tap.as_ref().map(|tap| Arc::clone(&tap.0) as _);
            return Ok(OnWire::new(driver, wire, options.engine())?.device);
        }
        #[cfg(not(feature = "sockets"))]
        if let Some(at) = options.at {
            return Err(EmulatedError::WithoutSockets(at));
        }
        let link = (options.framed || !options.faults.is_none()).then(|| -> SharedLink<Header> {
            Arc::new(StreamLink::new(
                Some(MAX_SEGMENT),
                options.faults,
                stream_key,
                Some(reset_header),
            ))
        });
        Ok(Device::new(
            driver(FIRST_ADDRESS),
            &options.network(link),
            options.engine(),
        )?)
    }
}
