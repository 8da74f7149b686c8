//! Open devices, their events, and the objects that are created from them.

use std::ffi::{c_char, c_int, c_void};
use std::io;
use std::iter;
use std::os::fd::BorrowedFd;
use std::ptr::{self, NonNull};

use polyverbs_abi::{
    IbvAsyncEvent, IbvCompChannel, IbvContext, IbvCq, IbvDevice, IbvDeviceAttr, IbvGidEntry, IbvPd,
    IbvPortAttr, IbvQp, IbvSrq,
};
use verbs_api::VerbError;
use verbs_api::event::{EventSubject, EventType};
use verbs_api::objects::{ObjectId, ObjectKind};

use super::{Live, Zero as _, cookie, failed, identity, last_error};
use crate::library::{Library, errno};

/// The list of devices that the library returns.
pub(crate) struct List {
    library: &'static Library,
    at: *mut *mut IbvDevice,
    len: usize,
}

impl List {
    /// Gets the present list of devices from the library.
    ///
    /// # Errors
    /// The library cannot list devices.
    pub(crate) fn of(library: &'static Library) -> Result<Self, VerbError> {
        let mut count = 0;
        // SAFETY: there is room for the number.
        let at = unsafe { (library.ibv_get_device_list)(&raw mut count) };
        if at.is_null() {
            return Err(last_error("get_device_list"));
        }
        let len = usize::try_from(count).unwrap_or(0);
        Ok(Self { library, at, len })
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = Listed<'_>> {
        (0..self.len).filter_map(|index| {
            // SAFETY: the index is within the list, and a device lives as long as its list.
            let device = NonNull::new(unsafe { *self.at.add(index) })?;
            Some(Listed { list: self, device })
        })
    }
}

impl Drop for List {
    fn drop(&mut self) {
        // SAFETY: the list is the library's; a device that is open stays alive.
        unsafe { (self.library.ibv_free_device_list)(self.at) };
    }
}

/// A device of the library's list.
pub(crate) struct Listed<'l> {
    list: &'l List,
    device: NonNull<IbvDevice>,
}

impl Listed<'_> {
    fn device(&self) -> &IbvDevice {
        // SAFETY: the device lives as long as its list.
        unsafe { self.device.as_ref() }
    }

    pub(crate) fn name(&self) -> String {
        text(&self.device().name)
    }

    /// Returns the name of the device's file below `/dev/infiniband`.
    pub(crate) fn file(&self) -> String {
        text(&self.device().dev_name)
    }

    pub(crate) fn open(&self) -> Result<Live<IbvContext>, VerbError> {
        let library = self.list.library;
        // SAFETY: the device lives. The error number is cleared, because the call does not set it
        // in each case.
        let context = unsafe {
            *libc::__errno_location() = 0;
            (library.ibv_open_device)(self.device.as_ptr())
        };
        Live::new(library, ObjectKind::Context, "open_device", context)
    }

    /// Whether a context belongs to this device, and not to an earlier one with the same name.
    pub(crate) fn is_of(&self, context: &Live<IbvContext>) -> bool {
        // SAFETY: `with` keeps the object alive.
        let device = context.with(|at| unsafe { (*at).device });
        device == Ok(self.device.as_ptr())
    }
}

fn text(octets: &[c_char]) -> String {
    let octets = octets.iter().map(|&octet| octet as u8);
    let text: Vec<u8> = octets.take_while(|&octet| octet != 0).collect();
    String::from_utf8_lossy(&text).into_owned()
}

impl Live<IbvContext> {
    /// Opens the device of this context another time.
    pub(crate) fn open_again(&self) -> Result<Self, VerbError> {
        let library = self.library;
        // SAFETY: an open device stays in the library's list of devices.
        let context = self.with(|at| unsafe { (library.ibv_open_device)((*at).device) })?;
        Self::new(library, ObjectKind::Context, "open_device", context)
    }

    pub(crate) fn close(&self) -> Result<(), VerbError> {
        self.end("close_device", self.library.ibv_close_device)
    }

    /// Returns the name of the device in the library.
    pub(crate) fn name(&self) -> Result<String, VerbError> {
        // SAFETY: the context and its device live.
        self.with(|at| text(unsafe { &(*(*at).device).name }))
    }

    /// Whether the device is an iWARP device.
    pub(crate) fn is_iwarp(&self) -> Result<bool, VerbError> {
        const IWARP: c_int = 1;
        // SAFETY: the context and its device live.
        self.with(|at| unsafe { (*(*at).device).transport_type == IWARP })
    }

    pub(crate) fn num_comp_vectors(&self) -> Result<u32, VerbError> {
        // SAFETY: `with` keeps the object alive.
        self.with(|at| u32::try_from(unsafe { (*at).num_comp_vectors }).unwrap_or(0))
    }

    /// Returns the descriptor that is readable while the device has asynchronous events.
    pub(crate) fn async_fd(&self) -> Result<BorrowedFd<'_>, VerbError> {
        // SAFETY: the descriptor is open as long as the context is.
        self.with(|at| unsafe { BorrowedFd::borrow_raw((*at).async_fd) })
    }

    pub(crate) fn query_device(&self) -> Result<IbvDeviceAttr, VerbError> {
        let mut attr = IbvDeviceAttr::zero();
        // SAFETY: `ask` keeps the object alive, and there is room for the result.
        self.ask("query_device", |at| unsafe {
            (self.library.ibv_query_device)(at, &raw mut attr)
        })?;
        Ok(attr)
    }

    pub(crate) fn query_port(&self, port: u8) -> Result<IbvPortAttr, VerbError> {
        let mut attr = IbvPortAttr::zero();
        // SAFETY: `ask` keeps the object alive, and there is room for the result.
        self.ask("query_port", |at| unsafe {
            (self.library.ibv_query_port)(at, port, &raw mut attr)
        })?;
        Ok(attr)
    }

    /// Returns an entry of a port's GID table; an empty one if the library has none.
    pub(crate) fn query_gid(&self, port: u8, index: u32) -> Result<IbvGidEntry, VerbError> {
        let mut entry = IbvGidEntry::zero();
        let size = size_of::<IbvGidEntry>();
        self.with(|at| {
            // SAFETY: `with` keeps the object alive, and there is room for the result.
            unsafe {
                (self.library._ibv_query_gid_ex)(at, port.into(), index, &raw mut entry, 0, size)
            }
        })?;
        Ok(entry)
    }

    /// Returns the GID table entries of all `ports` ports that are not empty.
    pub(crate) fn query_gid_table(&self, ports: u8) -> Result<Vec<IbvGidEntry>, VerbError> {
        const MOST: c_int = 0xffff;
        let mut room = 0;
        for port in 1..=ports {
            room += self.query_port(port)?.gid_tbl_len.clamp(0, MOST) as usize;
        }
        // The kernel refuses a query without room.
        if room == 0 {
            return Ok(Vec::new());
        }
        let mut table = Vec::from_iter(iter::repeat_with(IbvGidEntry::zero).take(room));
        let (query, size) = (self.library._ibv_query_gid_table, size_of::<IbvGidEntry>());
        // SAFETY: `with` keeps the object alive, and there is room for this many entries of this
        // size.
        let filled = self.with(|at| unsafe { query(at, table.as_mut_ptr(), room, 0, size) })?;
        match usize::try_from(filled) {
            Ok(filled) => table.truncate(filled),
            Err(_) => return Err(failed("query_gid_table", filled.unsigned_abs() as c_int)),
        }
        table.retain(|entry| (entry.gid_index as usize) < room);
        Ok(table)
    }

    pub(crate) fn query_pkey(&self, port: u8, index: c_int) -> Result<u16, VerbError> {
        let mut pkey = 0;
        // SAFETY: `ask` keeps the object alive, and there is room for the result.
        self.ask("query_pkey", |at| unsafe {
            (self.library.ibv_query_pkey)(at, port, index, &raw mut pkey)
        })?;
        Ok(u16::from_be(pkey))
    }

    /// Reads an asynchronous event, passes it to the closure, and acknowledges it. Returns whether there was one.
    pub(crate) fn take_event(
        &self,
        tell: impl FnOnce(EventType, EventSubject),
    ) -> Result<bool, VerbError> {
        let mut event = IbvAsyncEvent::zero();
        // SAFETY: `with` keeps the object alive, and there is room for the result.
        if self.with(|at| unsafe { (self.library.ibv_get_async_event)(at, &raw mut event) })? != 0 {
            return nothing("get_async_event");
        }
        let known = u8::try_from(event.event_type)
            .ok()
            .and_then(EventType::from_code);
        if let Some(event_type) = known {
            // SAFETY: the element belongs to the event, which was not acknowledged yet.
            let subject = unsafe { subject(event_type, event.element) };
            tell(event_type, subject);
        }
        // SAFETY: this acknowledges the event that was taken.
        unsafe { (self.library.ibv_ack_async_event)(&raw mut event) };
        Ok(true)
    }

    pub(crate) fn alloc_pd(&self) -> Result<Live<IbvPd>, VerbError> {
        // SAFETY: `with` keeps the object alive.
        let pd = self.with(|at| unsafe { (self.library.ibv_alloc_pd)(at) })?;
        Live::new(self.library, ObjectKind::Pd, "alloc_pd", pd)
    }

    pub(crate) fn create_channel(&self) -> Result<Live<IbvCompChannel>, VerbError> {
        // SAFETY: `with` keeps the object alive.
        let channel = self.with(|at| unsafe { (self.library.ibv_create_comp_channel)(at) })?;
        Live::new(
            self.library,
            ObjectKind::CompletionChannel,
            "create_comp_channel",
            channel,
        )
    }

    pub(crate) fn create_cq(
        &self,
        cqe: u32,
        id: ObjectId,
        channel: &Live<IbvCompChannel>,
        comp_vector: u32,
    ) -> Result<Live<IbvCq>, VerbError> {
        let create = self.library.ibv_create_cq;
        let (cqe, vector) = (cqe.min(i32::MAX as u32) as c_int, comp_vector as c_int);
        let made = self.with(|at| {
            channel.with(|channel| {
                // SAFETY: both objects live, and outlive the queue.
                unsafe { create(at, cqe, cookie(id), channel, vector) }
            })
        })??;
        Live::new(self.library, ObjectKind::Cq, "create_cq", made)
    }
}

/// Converts the error of a read: returns false if the descriptor had nothing to read, and an error if it is unusable.
pub(crate) fn nothing(verb: &'static str) -> Result<bool, VerbError> {
    let errno = errno().unwrap_or(libc::EIO);
    match io::Error::from_raw_os_error(errno).kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(false),
        _ => Err(last_error(verb)),
    }
}

/// Converts the element of a C event to the subject of the event.
///
/// # Safety
/// The element belongs to an event of this type that is not acknowledged yet.
unsafe fn subject(event_type: EventType, element: *mut c_void) -> EventSubject {
    match event_type {
        EventType::DeviceFatal => EventSubject::Device,
        _ if !event_type.is_affiliated() => EventSubject::Port(element.addr() as u8),
        EventType::CqErr => {
            // SAFETY: the subject of the event is a completion queue.
            EventSubject::Object(identity(unsafe { (*element.cast::<IbvCq>()).cq_context }))
        }
        EventType::SrqErr | EventType::SrqLimitReached => {
            // SAFETY: the subject of the event is a shared receive queue.
            EventSubject::Object(identity(unsafe { (*element.cast::<IbvSrq>()).srq_context }))
        }
        // SAFETY: the subject of the event is a queue pair.
        _ => EventSubject::Object(identity(unsafe { (*element.cast::<IbvQp>()).qp_context })),
    }
}

impl Live<IbvCompChannel> {
    pub(crate) fn fd(&self) -> Result<BorrowedFd<'_>, VerbError> {
        // SAFETY: the descriptor is open as long as the channel lives.
        self.with(|at| unsafe { BorrowedFd::borrow_raw((*at).fd) })
    }

    /// Reads a notification and acknowledges it. Returns whether there was one.
    pub(crate) fn take_notice(&self) -> Result<bool, VerbError> {
        let (mut cq, mut cookie) = (ptr::null_mut(), ptr::null_mut());
        let get = self.library.ibv_get_cq_event;
        // SAFETY: `with` keeps the object alive, and there is room for the result.
        if self.with(|at| unsafe { get(at, &raw mut cq, &raw mut cookie) })? != 0 {
            return nothing("get_cq_event");
        }
        // SAFETY: a queue lives until its notifications are acknowledged.
        unsafe { (self.library.ibv_ack_cq_events)(cq, 1) };
        Ok(true)
    }

    pub(crate) fn destroy(&self) -> Result<(), VerbError> {
        self.end(
            "destroy_comp_channel",
            self.library.ibv_destroy_comp_channel,
        )
    }
}
