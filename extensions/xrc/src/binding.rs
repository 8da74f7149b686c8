//! XRC on real devices: domains, queues and queue pairs of the library.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};

use rdma_core_provider::OpenDevice;
use rdma_core_provider::binding::{Binding, BindingPart, Described, Gains};
use rdma_core_provider::xrc::{OpenFlags, XrcQp, Xrcd};
use verbs_api::objects::{DeviceId, Holder};
use verbs_api::provider::{Mutex, PerProcess, Reply};
use verbs_api::{ErrorKind, Features, VerbError, extension::Held, ids::Qpn};

use crate::XrcFeatures;
use crate::opening::{FileId, OpenXrcd, Opening};

/// The implementation of XRC on devices of `libibverbs`.
pub struct OnDevices;

/// The part of the extension by which the provider of real devices finds its implementation.
pub static BINDING: BindingPart = BindingPart(&OnDevices);

impl Binding for OnDevices {
    fn gains(&self, device: &Described<'_>) -> Gains {
        let mut own = XrcFeatures::empty();
        let shares = device.attributes.features.contains(Features::SRQ);
        own.set(XrcFeatures::XRC, device.has_xrc && shares);
        Gains {
            own: own.bits(),
            ..Gains::default()
        }
    }
}

/// The openings of one XRC domain in this process.
#[derive(Default)]
struct Openings {
    /// How many openings are not closed.
    opened: usize,
    all: Vec<Weak<Xrcd>>,
}

impl Openings {
    /// Returns the shared receive queues and targets that were made in these openings and exist.
    fn members(&self) -> Vec<Holder> {
        let alive = self.all.iter().filter_map(Weak::upgrade);
        alive.flat_map(|xrcd| xrcd.members()).collect()
    }
}

struct Known {
    device: DeviceId,
    file: FileId,
    openings: Weak<Mutex<Openings>>,
}

// A child of a fork opens its own devices.
static KNOWN: PerProcess<Mutex<Vec<Known>>> = PerProcess::new(Mutex::default);

/// Returns the openings of the domain of a file on a device; for an anonymous domain a new, empty set.
fn openings_of(device: DeviceId, file: Option<FileId>) -> Arc<Mutex<Openings>> {
    let Some(file) = file else {
        return Arc::default();
    };
    let mut known = KNOWN.lock();
    known.retain(|one| one.openings.strong_count() > 0);
    let mut same = known
        .iter()
        .filter(|one| one.device == device && one.file == file);
    if let Some(openings) = same.find_map(|one| one.openings.upgrade()) {
        return openings;
    }
    let openings = Arc::default();
    known.push(Known {
        device,
        file,
        openings: Arc::downgrade(&openings),
    });
    openings
}

/// One opening of an XRC domain on a real device.
struct OnDevice {
    xrcd: Arc<Xrcd>,
    openings: Arc<Mutex<Openings>>,
}

/// Opens an XRC domain of the library.
pub(crate) fn open(
    device: &OpenDevice,
    id: DeviceId,
    file: Option<(OwnedFd, FileId)>,
    how: OpenXrcd<'_>,
    reply: Reply<Box<dyn Opening>>,
) {
    let (fd, file) = file.unzip();
    let then = move |opened: Result<Arc<Xrcd>, VerbError>| {
        reply.send(opened.map(|xrcd| {
            let openings = openings_of(id, file);
            let mut all = openings.lock();
            all.opened += 1;
            all.all.retain(|known| known.strong_count() > 0);
            all.all.push(Arc::downgrade(&xrcd));
            drop(all);
            Box::new(OnDevice { xrcd, openings }) as _
        }));
    };
    let flags = OpenFlags {
        create: how.create,
        exclusive: how.exclusive,
    };
    device.open_xrcd(fd, flags, Reply::new(then));
}

impl Opening for OnDevice {
    fn srq(&self) -> Held {
        Held::new(Arc::clone(&self.xrcd))
    }

    fn target(&self, existing: Option<Qpn>) -> Held {
        Held::new(XrcQp::Target(Arc::clone(&self.xrcd), existing))
    }

    fn close(&self) -> Result<(), Vec<Holder>> {
        let mut openings = self.openings.lock();
        let members = openings.members();
        if openings.opened == 1 && !members.is_empty() {
            return Err(members);
        }
        // The library's domain is closed with the last object that was made in this opening.
        if self.xrcd.members().is_empty() {
            match self.xrcd.close() {
                Err(error) if error.kind() == ErrorKind::Busy => return Err(Vec::new()),
                _ => {}
            }
        }
        openings.opened -= 1;
        Ok(())
    }

    fn forget(&self) {
        self.openings.lock().opened -= 1;
    }
}
