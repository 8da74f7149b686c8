//! The devices that a C program can list and open.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_int, c_void};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use polyverbs::emulated::has_descriptors;
use polyverbs_configuration::{
    Device as Configured, LinkLayer, Met, Profile, TransportName, complain,
};
use rdma_core_provider::LibIbverbs;
use verbs_api::provider::{MadeOnce, Mutex, PerProcess, RegistryError, wait_for_threads};
use verbs_api::{
    Context, Device, Registry, Requirements, Transport, extension::Extensions, ids::LinkAddress,
};

use crate::abi::{IbvDevice, Slot};
use crate::errno::Errno;
use crate::faults;
use crate::setup::{self, configuration};
use crate::trace;

/// A device in the list. Its layout is that of rdma-core's `verbs_device` at the beginning, because libraries of vendors
/// compare its `ops` pointer with their own table.
#[repr(C)]
pub struct ListedDevice {
    public: IbvDevice,
    ops: *const VendorOps,
    _refcount: c_int,
    _entry: [Slot; 2],
    _sysfs: Slot,
    _core_support: u64,
    configured: Configured,
    transport: Transport,
    guid: u64,
    // The emulated device. It is created when the program first opens it, and again in each child of a fork, where its
    // threads do not exist. The contexts keep it, so that its descriptors and threads end with the last of them.
    made: PerProcess<Mutex<Weak<Device>>>,
    // The device of the system; `None` for an emulated one.
    of_system: Option<Device>,
    // Some programs try again and again to open a device.
    is_reported: AtomicBool,
}

// SAFETY: what the pointers name is static, and what changes is behind a lock.
unsafe impl Send for ListedDevice {}
// SAFETY: as above.
unsafe impl Sync for ListedDevice {}

#[repr(C)]
struct VendorOps {
    name: *const c_char,
    _rest: [Slot; 63],
}
// SAFETY: the only pointer is to a literal.
unsafe impl Sync for VendorOps {}

static VENDOR_OPS: VendorOps = VendorOps {
    name: c"polyverbs".as_ptr(),
    _rest: [ptr::null(); 63],
};

fn fill(target: &mut [c_char], text: &str) {
    let room = target.len() - 1;
    for (place, byte) in target[..room].iter_mut().zip(text.bytes()) {
        *place = byte as c_char;
    }
}

/// Returns the function that writes each quirk of a device that the program meets to the trace.
fn met(device: String) -> Met {
    Arc::new(move |quirk, what| trace::quirk(&device, quirk, what))
}

impl ListedDevice {
    fn new(configured: Configured) -> Self {
        let name = &configured.name;
        let (transport, node_type, transport_type) = match configured.transport {
            TransportName::Roce | TransportName::Infiniband => (Transport::InfiniBand, 1, 0),
            TransportName::Iwarp => (Transport::Iwarp, 4, 1),
        };
        let of_profile = configured.taken_on().and_then(Profile::transport_type);
        let transport_type = of_profile.unwrap_or(transport_type);
        let mut public = IbvDevice {
            _dummy: [ptr::null(); 2],
            node_type,
            transport_type,
            name: [0; 64],
            dev_name: [0; 64],
            dev_path: [0; 256],
            ibdev_path: [0; 256],
        };
        fill(&mut public.name, name);
        fill(&mut public.dev_name, name);
        fill(
            &mut public.dev_path,
            &format!("/sys/class/infiniband_verbs/{name}"),
        );
        fill(
            &mut public.ibdev_path,
            &format!("/sys/class/infiniband/{name}"),
        );
        Self {
            public,
            ops: &raw const VENDOR_OPS,
            _refcount: 1,
            _entry: [ptr::null(); 2],
            _sysfs: ptr::null(),
            _core_support: 0,
            transport,
            guid: u64::from_ne_bytes(configured.guid()),
            made: PerProcess::new(Mutex::default),
            of_system: None,
            is_reported: AtomicBool::new(false),
            configured,
        }
    }

    /// A device of the system's library.
    fn of_system(device: Device) -> Self {
        let attributes = device.attributes();
        let port = attributes.ports.first();
        let address = port.and_then(|port| match port.address {
            LinkAddress::Ip(address) => Some(address),
            _ => port.gids.iter().find_map(|entry| entry.ip),
        });
        let name = device.name().split('@').next().unwrap_or_default();
        let configured = Configured {
            name: name.to_owned(),
            transport: match attributes.transport {
                Transport::Iwarp => TransportName::Iwarp,
                _ => TransportName::Roce,
            },
            address: address.unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED)),
            ..Configured::default()
        };
        Self {
            guid: u64::from_ne_bytes(attributes.node_guid.0),
            of_system: Some(device),
            ..Self::new(configured)
        }
    }

    /// The pointer to the device that the program gets.
    pub fn as_public(&self) -> *mut IbvDevice {
        (&raw const self.public).cast_mut()
    }

    /// The name of the device.
    pub fn name(&self) -> &CStr {
        // SAFETY: `fill` leaves the last byte zero.
        unsafe { CStr::from_ptr(self.public.name.as_ptr()) }
    }

    /// The GUID of the device, in network byte order.
    pub fn guid(&self) -> u64 {
        self.guid
    }

    /// The transport of the device.
    pub fn transport(&self) -> Transport {
        self.transport
    }

    /// Whether the device is RoCE and reports Ethernet as its link layer.
    pub(crate) fn is_roce(&self) -> bool {
        self.transport == Transport::InfiniBand
            && self.configured.link_layer() == LinkLayer::Ethernet
    }

    /// The IP address of the device.
    pub fn address(&self) -> IpAddr {
        self.configured.address
    }

    /// The configuration of the device.
    pub fn configured(&self) -> &Configured {
        &self.configured
    }

    /// Writes to standard error why the device cannot be used; only the first time for each device.
    pub fn report(&self, why: fmt::Arguments<'_>) {
        report_once(&self.is_reported, why);
    }

    /// Whether this process has opened the device and not closed it yet.
    fn is_open(&self) -> bool {
        let made = self.made.made();
        made.is_some_and(|made| made.lock().strong_count() > 0)
    }

    /// Checks that opening the device leaves at least a quarter of the process's descriptors to the program; a device that
    /// is open already needs none. A caller that opens all devices calls this first. The first device that is left out is
    /// reported on standard error.
    ///
    /// # Errors
    /// `EMFILE`: too few descriptors are left.
    pub fn room(&self) -> Result<(), Errno> {
        static IS_REPORTED: AtomicBool = AtomicBool::new(false);
        if self.is_open() || has_descriptors() {
            return Ok(());
        }
        let name = &self.configured.name;
        report_once(
            &IS_REPORTED,
            format_args!(
                "{name} and later devices are left out, so that the program has descriptors: raise `ulimit -n`"
            ),
        );
        Err(Errno(libc::EMFILE))
    }

    // The emulated device, which belongs to the process that created it.
    fn device(&self) -> Result<Arc<Device>, Errno> {
        let mut made = self.made.lock();
        if let Some(device) = made.upgrade() {
            return Ok(device);
        }
        // From now on the program, or an rsocket, may register memory.
        #[cfg(target_arch = "x86_64")]
        crate::signals::outlive_faults()?;
        let make = || {
            let met = met(self.configured.name.clone());
            let fabric = configuration().fabric.as_ref();
            self.configured.make(setup::tap(), fabric, met)
        };
        let device = match &self.of_system {
            Some(device) => device.clone(),
            None => make().map_err(|error| {
                self.report(format_args!("{error}"));
                Errno(error.errno().unwrap_or(libc::ENODEV))
            })?,
        };
        let device = Arc::new(match faults::injector() {
            Some(injector) => injector.on(&device),
            None => device,
        });
        *made = Arc::downgrade(&device);
        Ok(device)
    }

    /// Opens the device with all its features. The device stays as long as the first value of the result exists.
    ///
    /// # Errors
    /// The device cannot be created.
    pub fn open(&self) -> Result<(Arc<Device>, Context), Errno> {
        let device = self.device()?;
        let context = device.open(&Requirements::everything_of(&device.attributes()))?;
        Ok((device, context))
    }
}

/// All devices of the configuration, in its order.
pub fn devices() -> &'static [ListedDevice] {
    static DEVICES: MadeOnce<Vec<ListedDevice>> = MadeOnce::new();
    DEVICES.get_or_make(|| {
        if let Some(file) = &configuration().over_system {
            return of_system(file).unwrap_or_else(|error| {
                complain(format_args!("{}: {error}", file.display()));
                Vec::new()
            });
        }
        let known = configuration().devices.iter();
        known.cloned().map(ListedDevice::new).collect()
    })
}

/// The devices that the system's library lists. One that cannot be used is reported on standard error.
fn of_system(file: &Path) -> Result<Vec<ListedDevice>, RegistryError> {
    let mut registry = Registry::new();
    for extension in Extensions::linked()?.iter() {
        registry.add_extension(extension)?;
    }
    registry.add_provider(LibIbverbs::apart(file))?;
    for (_, absent) in registry.absent() {
        complain(format_args!("{}: {}", absent.what, absent.why));
    }
    let devices = registry.devices().cloned();
    Ok(devices.map(ListedDevice::of_system).collect())
}

/// How long the close of the last device waits for the threads of devices to end.
const ENDING: Duration = Duration::from_secs(1);

/// Whether the program has closed a device without destroying its objects, so that the threads of that device do not end.
static HAS_ORPHANS: PerProcess<AtomicBool> = PerProcess::new(AtomicBool::default);

/// Notes that a device is about to be closed whose objects the program has not destroyed.
pub(crate) fn leave_orphans() {
    HAS_ORPHANS.store(true, Ordering::Relaxed);
}

/// Ends the close of a device: if no other device is open, waits until the threads of devices have ended, so that the
/// library has no open descriptor from then on.
pub fn closed() {
    if !devices().iter().any(ListedDevice::is_open) && !HAS_ORPHANS.load(Ordering::Relaxed) {
        wait_for_threads(ENDING);
    }
}

/// The device with this name; `None` if there is none.
pub(crate) fn named(name: &str) -> Option<&'static ListedDevice> {
    devices()
        .iter()
        .find(|device| device.configured.name == name)
}

/// The device that the program's pointer refers to.
///
/// # Errors
/// The pointer is not to a device of the list.
pub fn listed(device: *const IbvDevice) -> Result<&'static ListedDevice, Errno> {
    let mut all = devices().iter();
    all.find(|known| ptr::eq(&raw const known.public, device))
        .ok_or(Errno::INVAL)
}

/// Implements `ibv_get_device_list`: a null-terminated array.
///
/// # Safety
/// `count` is null or writable.
pub unsafe extern "C-unwind" fn get_device_list(count: *mut c_int) -> *mut *mut IbvDevice {
    let devices = devices();
    // SAFETY: room for the pointers and the null, zeroed.
    let list: *mut *mut IbvDevice =
        unsafe { libc::calloc(devices.len() + 1, size_of::<*mut IbvDevice>()) }.cast();
    if list.is_null() {
        Errno::NOMEM.set();
        return list;
    }
    for (place, device) in devices.iter().enumerate() {
        // SAFETY: within what was allocated. Programs read the structure only.
        unsafe { *list.add(place) = device.as_public() };
    }
    if !count.is_null() {
        // SAFETY: as the caller promises.
        unsafe { *count = devices.len() as c_int };
    }
    list
}

/// Implements `ibv_free_device_list`.
///
/// # Safety
/// The list is null, or was returned by [`get_device_list`].
pub unsafe extern "C-unwind" fn free_device_list(list: *mut *mut IbvDevice) {
    // SAFETY: `calloc` made it.
    unsafe { libc::free(list.cast()) };
}

/// Implements `ibv_get_device_name`: returns the name in the structure, which a program may have made itself for its tests.
///
/// # Safety
/// `device` is null or the structure of a device, whose name is read as long as the result is in use.
pub unsafe extern "C-unwind" fn get_device_name(device: *const IbvDevice) -> *const c_char {
    if device.is_null() {
        Errno::INVAL.set();
        return ptr::null();
    }
    // SAFETY: as the caller promises.
    unsafe { &raw const (*device).name }.cast()
}

/// Implements `ibv_get_device_guid`.
pub extern "C-unwind" fn get_device_guid(device: *const IbvDevice) -> u64 {
    listed(device).map_or(0, ListedDevice::guid)
}

/// Implements `ibv_get_device_index`.
pub extern "C-unwind" fn get_device_index(device: *const IbvDevice) -> c_int {
    let place = devices()
        .iter()
        .position(|known| ptr::eq(&raw const known.public, device));
    place.map_or_else(
        || {
            Errno::INVAL.set();
            -1
        },
        |place| place as c_int,
    )
}

/// Implements `ibv_get_sysfs_path`.
pub extern "C-unwind" fn get_sysfs_path() -> *const c_char {
    c"/sys".as_ptr()
}

/// Implements `ibv_read_sysfs_file` for the few attributes that programs read through the library.
///
/// # Safety
/// `dir` and `file` are C strings, and `size` bytes from `target` are writable.
pub unsafe extern "C-unwind" fn read_sysfs_file(
    dir: *const c_char,
    file: *const c_char,
    target: *mut c_char,
    size: usize,
) -> c_int {
    if dir.is_null() || file.is_null() || target.is_null() || size == 0 {
        return -1;
    }
    // SAFETY: a text, as the caller promises.
    let file = unsafe { CStr::from_ptr(file) };
    let Some(text) = (file.to_bytes() == b"board_id").then_some(c"polyverbs".to_bytes()) else {
        return -1;
    };
    let length = text.len().min(size - 1);
    // SAFETY: `length` and the zero behind it fit.
    unsafe {
        ptr::copy_nonoverlapping(text.as_ptr().cast(), target, length);
        *target.add(length) = 0;
    }
    length as c_int
}

/// Implements `ibv_register_driver` and `verbs_register_driver_34`, which libraries of vendors call when they are loaded;
/// it has no effect.
pub extern "C-unwind" fn register_driver(_: *const c_void) {}

// No lock is held during the write: a child of a fork could find it held by a thread of its parent.
fn report_once(is_reported: &AtomicBool, why: fmt::Arguments<'_>) {
    if !is_reported.swap(true, Ordering::Relaxed) {
        complain(why);
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
    use std::thread;

    use test_kit::waiting::in_a_child;

    use super::*;

    /// A text whose writer is blocked until the test has gone on.
    struct Blocked(Cell<Option<(SyncSender<()>, Receiver<()>)>>);

    impl fmt::Display for Blocked {
        fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
            if let Some((begun, go_on)) = self.0.take() {
                begun.send(()).unwrap();
                go_on.recv().unwrap();
            }
            Ok(())
        }
    }

    #[test]
    fn a_child_reports_devices_while_a_thread_of_its_parent_does() {
        let new = || ListedDevice::new(devices()[0].configured.clone());
        let (listed, other) = (new(), new());
        let (begun, begins) = sync_channel(1);
        let (go_on, goes_on) = sync_channel(1);
        thread::scope(|scope| {
            scope.spawn(|| {
                let blocked = Blocked(Cell::new(Some((begun, goes_on))));
                listed.report(format_args!("{blocked}"));
            });
            begins.recv().unwrap();
            let has_ended = in_a_child(|| {
                listed.report(format_args!("not written"));
                other.report(format_args!("written by a child of a test"));
                true
            });
            go_on.send(()).unwrap();
            assert!(has_ended);
        });
    }

    #[test]
    fn a_device_ends_with_the_last_context_that_is_closed() {
        let listed = ListedDevice::new(devices()[0].configured.clone());
        let (first, _context) = listed.open().unwrap();
        let (second, context) = listed.open().unwrap();
        assert!(Arc::ptr_eq(&first, &second));
        let made = Arc::downgrade(&first);
        drop(first);
        assert!(made.upgrade().is_some());
        drop((second, context));
        assert!(made.upgrade().is_none());
        listed.open().unwrap();
    }

    // The test suite of sideway does this.
    #[test]
    fn a_device_structure_made_by_a_program_keeps_its_name() {
        let mut made = ListedDevice::new(devices()[0].configured.clone());
        fill(&mut made.public.name, "mock7\0");
        // SAFETY: `made` is there until the end of the test.
        let name = unsafe { CStr::from_ptr(get_device_name(made.as_public())) };
        assert_eq!(name, c"mock7");
        // SAFETY: null is allowed.
        assert!(unsafe { get_device_name(ptr::null()) }.is_null());
    }
}
