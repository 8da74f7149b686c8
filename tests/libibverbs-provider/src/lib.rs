//! A provider over `libibverbs.so.1`: rdma-core's, or ours under `polyverbs run`.
//!
//! It is a test of the provider contract: a device that is not the engine, through an interface that was there before. The
//! library is loaded when devices are asked for, so that nothing of it is needed to build this. Its devices are called
//! `hw-` and their own name, and claim what the library says of them; what it does not say, a trial tells.
//!
//! By hand, over the C library of this workspace:
//!
//! ```sh
//! cargo build && cargo build -p libibverbs-provider
//! target/debug/polyverbs run -- target/debug/matrix
//! target/debug/polyverbs run -- target/debug/exchange
//! ```
//!
//! The first tries every claim; the second does what no probe looks at. Without `polyverbs run` both use the devices that
//! rdma-core has.
//!
//! | module | holds |
//! | --- | --- |
//! | `library` | the file, loaded, and the functions in it |
//! | `verbs/` | those functions on objects that live: pointers end here |
//! | `device`, `trial` | devices, what they claim, and what only a trial tells |
//! | `context`, `watch` | open devices: a thread for verbs that block, and one for events and notices |
//! | `domain` | protection domains, regions, address handles |
//! | `completion_queue`, `outstanding` | completions, and the requests that they are of |
//! | `queue_pair`, `request`, `receive_queue`, `window` | posting, and what a request is in C |
//!
//! iWARP devices are [left out](left_out): their queue pairs are connected by `librdmacm`, which this does not load, and the
//! rest takes queue pairs that are connected.
#![deny(unsafe_code)]

mod completion_queue;
mod context;
mod device;
mod domain;
mod library;
mod outstanding;
mod queue_pair;
mod receive_queue;
mod request;
mod trial;
mod verbs;
mod watch;
mod window;

use std::sync::Arc;

use verbs_api::VerbError;
use verbs_api::extension::Extensions;
use verbs_api::provider::{DeviceOps, Provider};

use device::Device;
use library::Library;

/// The devices of `libibverbs.so.1`.
pub struct LibIbverbs;

/// The provider.
pub static PROVIDER: LibIbverbs = LibIbverbs;

impl Provider for LibIbverbs {
    fn name(&self) -> &'static str {
        "libibverbs"
    }

    fn devices(&self, _: &Extensions) -> Result<Vec<Arc<dyn DeviceOps>>, VerbError> {
        let devices = verbs::open_all(Library::get()?)?.into_iter();
        let devices = devices.map(|context| Device::new(self.name(), context));
        let devices: Vec<_> = devices.collect::<Result<_, _>>()?;
        let claimed = devices.into_iter().flatten();
        Ok(claimed.map(|device| Arc::new(device) as _).collect())
    }
}

/// Devices of the library that the provider leaves out, and why.
///
/// # Errors
/// The library cannot be loaded, or lists no devices.
pub fn left_out() -> Result<Vec<(String, &'static str)>, VerbError> {
    const WHY: &str =
        "an iWARP device: its queue pairs are connected by librdmacm, which is not loaded";
    let mut left = Vec::new();
    for context in verbs::open_all(Library::get()?)? {
        let (name, is_iwarp) = context.name()?;
        context.close()?;
        if is_iwarp {
            left.push((name, WHY));
        }
    }
    Ok(left)
}
