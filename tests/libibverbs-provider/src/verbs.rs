//! The verbs of the library on objects that live: pointers and error numbers end here.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::io;
use std::mem;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::{self, NonNull};
use std::sync::{PoisonError, RwLock};

use polyverbs_abi::{
    IbvAh, IbvAhAttr, IbvAsyncEvent, IbvCompChannel, IbvContext, IbvCq, IbvDeviceAttr, IbvGid,
    IbvGidEntry, IbvMr, IbvMw, IbvMwBind, IbvPd, IbvPortAttr, IbvQp, IbvQpAttr, IbvQpInitAttr,
    IbvRecvWr, IbvSendWr, IbvSrq, IbvSrqAttr, IbvSrqInitAttr, IbvWc, Slot, ops,
};
use verbs_api::event::{EventSubject, EventType};
use verbs_api::ids::Gid;
use verbs_api::objects::{ObjectId, ObjectKind};
use verbs_api::provider::{MwType, RegionMemory};
use verbs_api::{Access, VerbError};

use crate::library::Library;

/// An object of the library, until it is destroyed.
///
/// The safe objects destroy nothing that something else is made of, but a program may poll, post and query on one thread
/// while another destroys: each use holds the lock, and none begins after the destruction has.
pub(crate) struct Live<T> {
    pub(crate) library: &'static Library,
    kind: ObjectKind,
    at: RwLock<Option<Pointer<T>>>,
}

struct Pointer<T>(NonNull<T>);

impl<T> Clone for Pointer<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Pointer<T> {}

// SAFETY: every thread may use an object of the library, several at a time.
unsafe impl<T> Send for Pointer<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Pointer<T> {}

impl<T> Live<T> {
    /// What a verb has made, or why it has not.
    fn new(
        library: &'static Library,
        kind: ObjectKind,
        verb: &'static str,
        made: *mut T,
    ) -> Result<Self, VerbError> {
        let made = NonNull::new(made).ok_or_else(|| last_error(verb))?;
        Ok(Self {
            library,
            kind,
            at: RwLock::new(Some(Pointer(made))),
        })
    }

    /// Uses it. It is not destroyed meanwhile.
    ///
    /// # Errors
    /// It was destroyed.
    pub(crate) fn with<R>(&self, using: impl FnOnce(*mut T) -> R) -> Result<R, VerbError> {
        let at = self.at.read().unwrap_or_else(PoisonError::into_inner);
        let pointer = at.ok_or(VerbError::InvalidHandle(self.kind))?;
        Ok(using(pointer.0.as_ptr()))
    }

    /// Destroys it, without the lock: that waits until events are acknowledged, whose handlers may use it.
    fn end(
        &self,
        verb: &'static str,
        destroy: unsafe extern "C" fn(*mut T) -> c_int,
    ) -> Result<(), VerbError> {
        let taken = self.write().take();
        let pointer = taken.ok_or(VerbError::InvalidHandle(self.kind))?;
        // SAFETY: it lives, and nobody else gets at it any more.
        let done = check(verb, unsafe { destroy(pointer.0.as_ptr()) });
        if done.is_err() {
            *self.write() = Some(pointer);
        }
        done
    }

    fn write(&self) -> std::sync::RwLockWriteGuard<'_, Option<Pointer<T>>> {
        self.at.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Structures of C that are numbers and pointers only: all zero is a value.
///
/// # Safety
/// It is.
pub(crate) unsafe trait Zero: Sized {
    fn zero() -> Self {
        // SAFETY: as the implementation promises.
        unsafe { mem::zeroed() }
    }
}

macro_rules! zero {
    ($($name:ty),*) => {
        // SAFETY: their fields are numbers, pointers, and structures of these.
        $(unsafe impl Zero for $name {})*
    };
}

zero!(
    IbvAsyncEvent,
    IbvDeviceAttr,
    IbvGid,
    IbvGidEntry,
    IbvPortAttr,
    IbvQpAttr,
    IbvQpInitAttr,
    IbvSendWr,
    IbvSrqAttr,
    IbvWc
);

fn last_error(verb: &'static str) -> VerbError {
    let errno = io::Error::last_os_error().raw_os_error();
    failed(verb, errno.unwrap_or(libc::EIO))
}

fn failed(verb: &'static str, errno: c_int) -> VerbError {
    match errno {
        libc::EOPNOTSUPP | libc::ENOSYS => VerbError::UnsupportedVerb(verb),
        libc::EBUSY => VerbError::Busy(Vec::new()),
        _ => VerbError::Os { verb, errno },
    }
}

/// What a verb answers that returns an error number; some return -1 and set `errno`.
fn check(verb: &'static str, answer: c_int) -> Result<(), VerbError> {
    match answer {
        0 => Ok(()),
        ..0 => Err(last_error(verb)),
        errno => Err(failed(verb, errno)),
    }
}

/// The object's identity, as the library keeps it for its owner.
pub(crate) fn cookie(id: ObjectId) -> *mut c_void {
    ptr::without_provenance_mut(id.index as usize | (id.generation as usize) << 32)
}

fn identity(cookie: *mut c_void) -> ObjectId {
    let bits = cookie.addr();
    ObjectId::new(bits as u32, (bits >> 32) as u32)
}

/// Every device that the library lists, opened; those that do not open are left out.
///
/// # Errors
/// The library cannot list any.
pub(crate) fn open_all(library: &'static Library) -> Result<Vec<Live<IbvContext>>, VerbError> {
    let mut count = 0;
    // SAFETY: room for the number.
    let list = unsafe { (library.ibv_get_device_list)(&raw mut count) };
    if list.is_null() {
        return Err(last_error("get_device_list"));
    }
    let devices = (0..count as usize).filter_map(|index| {
        // SAFETY: within the list, which is not freed before all are opened.
        let context = unsafe { (library.ibv_open_device)(*list.add(index)) };
        Live::new(library, ObjectKind::Context, "open_device", context).ok()
    });
    let devices = devices.collect();
    // SAFETY: it is the library's; a device that is open stays.
    unsafe { (library.ibv_free_device_list)(list) };
    Ok(devices)
}

/// The function in a place of the table that a context has.
macro_rules! op {
    ($context:expr, $place:ident: fn($($argument:ty),*) -> $answer:ty) => {{
        let slot: Slot = (*$context).ops[ops::$place];
        mem::transmute::<Slot, Option<unsafe extern "C" fn($($argument),*) -> $answer>>(slot)
    }};
}

impl Live<IbvContext> {
    /// The same device, opened once more.
    pub(crate) fn open_again(&self) -> Result<Self, VerbError> {
        let library = self.library;
        // SAFETY: an open device stays in the library's list of devices.
        let context = self.with(|at| unsafe { (library.ibv_open_device)((*at).device) })?;
        Self::new(library, ObjectKind::Context, "open_device", context)
    }

    pub(crate) fn close(&self) -> Result<(), VerbError> {
        self.end("close_device", self.library.ibv_close_device)
    }

    /// Its name, and whether it speaks iWARP.
    pub(crate) fn name(&self) -> Result<(String, bool), VerbError> {
        const IWARP: c_int = 1;
        self.with(|at| {
            // SAFETY: the context and its device live.
            let device = unsafe { &*(*at).device };
            let octets = device.name.iter().map(|&octet| octet as u8);
            let name: Vec<u8> = octets.take_while(|&octet| octet != 0).collect();
            let name = String::from_utf8_lossy(&name).into_owned();
            (name, device.transport_type == IWARP)
        })
    }

    pub(crate) fn num_comp_vectors(&self) -> Result<u32, VerbError> {
        // SAFETY: it lives.
        self.with(|at| u32::try_from(unsafe { (*at).num_comp_vectors }).unwrap_or(0))
    }

    /// The descriptor of its asynchronous events.
    pub(crate) fn async_fd(&self) -> Result<BorrowedFd<'_>, VerbError> {
        // SAFETY: it is open as long as the context is.
        self.with(|at| unsafe { BorrowedFd::borrow_raw((*at).async_fd) })
    }

    pub(crate) fn query_device(&self) -> Result<IbvDeviceAttr, VerbError> {
        let mut attr = IbvDeviceAttr::zero();
        // SAFETY: it lives, and there is room.
        check(
            "query_device",
            self.with(|at| unsafe { (self.library.ibv_query_device)(at, &raw mut attr) })?,
        )?;
        Ok(attr)
    }

    pub(crate) fn query_port(&self, port: u8) -> Result<IbvPortAttr, VerbError> {
        let mut attr = IbvPortAttr::zero();
        // SAFETY: it lives, and there is room.
        check(
            "query_port",
            self.with(|at| unsafe { (self.library.ibv_query_port)(at, port, &raw mut attr) })?,
        )?;
        Ok(attr)
    }

    /// An entry of a port's table; empty where the library has none.
    pub(crate) fn query_gid(&self, port: u8, index: u32) -> Result<IbvGidEntry, VerbError> {
        let mut entry = IbvGidEntry::zero();
        let size = size_of::<IbvGidEntry>();
        self.with(|at| {
            // SAFETY: it lives, and there is room.
            unsafe {
                (self.library._ibv_query_gid_ex)(at, port.into(), index, &raw mut entry, 0, size)
            }
        })?;
        Ok(entry)
    }

    pub(crate) fn query_pkey(&self, port: u8, index: c_int) -> Result<u16, VerbError> {
        let mut pkey = 0;
        // SAFETY: it lives, and there is room.
        check(
            "query_pkey",
            self.with(|at| unsafe {
                (self.library.ibv_query_pkey)(at, port, index, &raw mut pkey)
            })?,
        )?;
        Ok(u16::from_be(pkey))
    }

    /// Takes an event and acknowledges it when it was told; answers whether there was one.
    pub(crate) fn take_event(
        &self,
        tell: impl FnOnce(EventType, EventSubject),
    ) -> Result<bool, VerbError> {
        let mut event = IbvAsyncEvent::zero();
        // SAFETY: it lives, and there is room.
        if self.with(|at| unsafe { (self.library.ibv_get_async_event)(at, &raw mut event) })? != 0 {
            return Ok(false);
        }
        let known = u8::try_from(event.event_type)
            .ok()
            .and_then(EventType::from_code);
        if let Some(event_type) = known {
            tell(event_type, subject(event_type, event.element));
        }
        // SAFETY: the event that was taken.
        unsafe { (self.library.ibv_ack_async_event)(&raw mut event) };
        Ok(true)
    }

    pub(crate) fn alloc_pd(&self) -> Result<Live<IbvPd>, VerbError> {
        // SAFETY: it lives.
        let pd = self.with(|at| unsafe { (self.library.ibv_alloc_pd)(at) })?;
        Live::new(self.library, ObjectKind::Pd, "alloc_pd", pd)
    }

    pub(crate) fn create_channel(&self) -> Result<Live<IbvCompChannel>, VerbError> {
        // SAFETY: it lives.
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
                // SAFETY: both live, and outlive the queue.
                unsafe { create(at, cqe, cookie(id), channel, vector) }
            })
        })??;
        Live::new(self.library, ObjectKind::Cq, "create_cq", made)
    }
}

// SAFETY of the callers: the element of an event lives until the event is acknowledged.
fn subject(event_type: EventType, element: *mut c_void) -> EventSubject {
    match event_type {
        EventType::DeviceFatal => EventSubject::Device,
        _ if !event_type.is_affiliated() => EventSubject::Port(element.addr() as u8),
        EventType::CqErr => {
            // SAFETY: the event is about a completion queue.
            EventSubject::Object(identity(unsafe { (*element.cast::<IbvCq>()).cq_context }))
        }
        EventType::SrqErr | EventType::SrqLimitReached => {
            // SAFETY: it is about a shared receive queue.
            EventSubject::Object(identity(unsafe { (*element.cast::<IbvSrq>()).srq_context }))
        }
        // SAFETY: it is about a queue pair.
        _ => EventSubject::Object(identity(unsafe { (*element.cast::<IbvQp>()).qp_context })),
    }
}

impl Live<IbvCompChannel> {
    pub(crate) fn fd(&self) -> Result<BorrowedFd<'_>, VerbError> {
        // SAFETY: it is open as long as the channel lives.
        self.with(|at| unsafe { BorrowedFd::borrow_raw((*at).fd) })
    }

    /// Takes a notice and acknowledges it when the queue's owner was told; answers whether there was one.
    pub(crate) fn take_notice(&self, tell: impl FnOnce(ObjectId)) -> Result<bool, VerbError> {
        let (mut cq, mut cookie) = (ptr::null_mut(), ptr::null_mut());
        let get = self.library.ibv_get_cq_event;
        // SAFETY: it lives, and there is room.
        if self.with(|at| unsafe { get(at, &raw mut cq, &raw mut cookie) })? != 0 {
            return Ok(false);
        }
        tell(identity(cookie));
        // SAFETY: a queue lives until its notices are acknowledged.
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

impl Live<IbvPd> {
    pub(crate) fn dealloc(&self) -> Result<(), VerbError> {
        self.end("dealloc_pd", self.library.ibv_dealloc_pd)
    }

    /// Registers memory, which whoever keeps the region keeps as long.
    pub(crate) fn reg_mr(
        &self,
        memory: &RegionMemory,
        iova: u64,
        access: Access,
    ) -> Result<Live<IbvMr>, VerbError> {
        let (address, length) = (
            ptr::with_exposed_provenance_mut(memory.address()),
            memory.len(),
        );
        let register = self.library.ibv_reg_mr_iova2;
        // SAFETY: it lives; a `RegionMemory` is memory that a provider may use until it has answered the deregistration.
        let made = self.with(|at| unsafe { register(at, address, length, iova, access.bits()) })?;
        Live::new(self.library, ObjectKind::Mr, "reg_mr", made)
    }

    pub(crate) fn create_srq(
        &self,
        id: ObjectId,
        attr: IbvSrqAttr,
    ) -> Result<(Live<IbvSrq>, IbvSrqAttr), VerbError> {
        let mut init = IbvSrqInitAttr {
            srq_context: cookie(id),
            attr,
        };
        // SAFETY: it lives, and the sizes are written back.
        let made = self.with(|at| unsafe { (self.library.ibv_create_srq)(at, &raw mut init) })?;
        Ok((
            Live::new(self.library, ObjectKind::Srq, "create_srq", made)?,
            init.attr,
        ))
    }

    /// Makes a queue pair; `init` gets its sizes, and its queues are those given.
    pub(crate) fn create_qp(
        &self,
        init: &mut IbvQpInitAttr,
        (send_cq, recv_cq): (&Live<IbvCq>, &Live<IbvCq>),
        srq: Option<&Live<IbvSrq>>,
    ) -> Result<Live<IbvQp>, VerbError> {
        init.send_cq = send_cq.with(|cq| cq)?;
        init.recv_cq = recv_cq.with(|cq| cq)?;
        init.srq = srq.map_or(Ok(ptr::null_mut()), |srq| srq.with(|srq| srq))?;
        // SAFETY: it lives, and so do the queues: the safe objects destroy none that a queue pair is made of.
        let made = self.with(|at| unsafe { (self.library.ibv_create_qp)(at, init) })?;
        Live::new(self.library, ObjectKind::Qp, "create_qp", made)
    }

    pub(crate) fn alloc_mw(&self, mw_type: MwType) -> Result<Live<IbvMw>, VerbError> {
        let in_c = match mw_type {
            MwType::Type1 => 1,
            MwType::Type2 => 2,
        };
        let made = self.with(|at| {
            // SAFETY: it lives, and so does its context.
            unsafe {
                let alloc = op!((*at).context, ALLOC_MW: fn(*mut IbvPd, c_int) -> *mut IbvMw);
                alloc.map(|alloc| alloc(at, in_c))
            }
        })?;
        let verb = "alloc_mw";
        let made = made.ok_or(VerbError::UnsupportedVerb(verb))?;
        Live::new(self.library, ObjectKind::Mw, verb, made)
    }

    pub(crate) fn create_ah(&self, mut attr: IbvAhAttr) -> Result<Live<IbvAh>, VerbError> {
        // SAFETY: it lives.
        let made = self.with(|at| unsafe { (self.library.ibv_create_ah)(at, &raw mut attr) })?;
        Live::new(self.library, ObjectKind::Ah, "create_ah", made)
    }
}

/// What of a region is changed.
pub(crate) struct Change<'a> {
    pub(crate) memory: Option<&'a RegionMemory>,
    pub(crate) pd: Option<&'a Live<IbvPd>>,
    pub(crate) access: Option<Access>,
}

impl Live<IbvMr> {
    /// Its key: what local requests and peers name it by.
    pub(crate) fn keys(&self) -> Result<(u32, u32), VerbError> {
        // SAFETY: it lives.
        self.with(|at| unsafe { ((*at).lkey, (*at).rkey) })
    }

    pub(crate) fn rereg(&self, change: &Change<'_>) -> Result<(), VerbError> {
        const TRANSLATION: c_int = 1;
        const PD: c_int = 1 << 1;
        const ACCESS: c_int = 1 << 2;
        let mut flags = 0;
        let (mut address, mut length) = (ptr::null_mut(), 0);
        if let Some(memory) = change.memory {
            flags |= TRANSLATION;
            (address, length) = (
                ptr::with_exposed_provenance_mut(memory.address()),
                memory.len(),
            );
        }
        let mut pd = ptr::null_mut();
        if let Some(other) = change.pd {
            flags |= PD;
            pd = other.with(|pd| pd)?;
        }
        let access = change.access.map_or(0, |access| {
            flags |= ACCESS;
            access.bits() as c_int
        });
        let rereg = self.library.ibv_rereg_mr;
        // SAFETY: it lives, the domain too, and the memory is as for a registration.
        rereg_answer(self.with(|at| unsafe { rereg(at, flags, pd, address, length, access) })?)
    }

    pub(crate) fn dereg(&self) -> Result<(), VerbError> {
        self.end("dereg_mr", self.library.ibv_dereg_mr)
    }
}

// Below zero it says what has become of the region, and `errno` why. From -3 on the region is not what it was, and the
// error may not be of a kind that says it is.
fn rereg_answer(answer: c_int) -> Result<(), VerbError> {
    match answer {
        0 => Ok(()),
        -2..=-1 => Err(last_error("rereg_mr")),
        _ => Err(match last_error("rereg_mr") {
            VerbError::Os { verb, .. } => VerbError::Os {
                verb,
                errno: libc::EIO,
            },
            other => other,
        }),
    }
}

impl Live<IbvMw> {
    pub(crate) fn rkey(&self) -> Result<u32, VerbError> {
        // SAFETY: it lives.
        self.with(|at| unsafe { (*at).rkey })
    }

    pub(crate) fn dealloc(&self) -> Result<(), VerbError> {
        // SAFETY: it lives, and so does its context.
        let dealloc =
            self.with(|at| unsafe { op!((*at).context, DEALLOC_MW: fn(*mut IbvMw) -> c_int) })?;
        let verb = "dealloc_mw";
        self.end(verb, dealloc.ok_or(VerbError::UnsupportedVerb(verb))?)
    }
}

impl Live<IbvCq> {
    pub(crate) fn cqe(&self) -> Result<u32, VerbError> {
        // SAFETY: it lives.
        self.with(|at| unsafe { (*at).cqe } as u32)
    }

    /// Fills `entries` from the front; answers how many.
    pub(crate) fn poll(&self, entries: &mut [IbvWc]) -> Result<usize, VerbError> {
        let polled = self.with(|at| {
            // SAFETY: it lives, and so does its context. There is room for as many.
            unsafe {
                let poll = op!((*at).context, POLL_CQ: fn(*mut IbvCq, c_int, *mut IbvWc) -> c_int);
                poll.map(|poll| poll(at, entries.len() as c_int, entries.as_mut_ptr()))
            }
        })?;
        let polled = polled.ok_or(VerbError::UnsupportedVerb("poll_cq"))?;
        usize::try_from(polled).map_err(|_| VerbError::CqOverrun)
    }

    pub(crate) fn req_notify(&self, solicited_only: bool) -> Result<(), VerbError> {
        let answer = self.with(|at| {
            // SAFETY: it lives, and so does its context.
            unsafe {
                let notify = op!((*at).context, REQ_NOTIFY_CQ: fn(*mut IbvCq, c_int) -> c_int);
                notify.map(|notify| notify(at, solicited_only.into()))
            }
        })?;
        check("req_notify_cq", answer.unwrap_or(libc::EOPNOTSUPP))
    }

    pub(crate) fn resize(&self, cqe: u32) -> Result<(), VerbError> {
        let cqe = cqe.min(i32::MAX as u32) as c_int;
        // SAFETY: it lives.
        check(
            "resize_cq",
            self.with(|at| unsafe { (self.library.ibv_resize_cq)(at, cqe) })?,
        )
    }

    pub(crate) fn destroy(&self) -> Result<(), VerbError> {
        self.end("destroy_cq", self.library.ibv_destroy_cq)
    }
}

impl Live<IbvSrq> {
    /// The error number where it is refused.
    ///
    /// # Safety
    /// The request points to entries that live.
    pub(crate) unsafe fn post(&self, request: &mut IbvRecvWr) -> Result<c_int, VerbError> {
        self.with(|at| {
            let mut bad = ptr::null_mut();
            // SAFETY: it lives, and so does its context; the rest is the caller's.
            unsafe {
                let post = op!((*at).context, POST_SRQ_RECV: fn(*mut IbvSrq, *mut IbvRecvWr, *mut *mut IbvRecvWr) -> c_int);
                post.map_or(libc::EOPNOTSUPP, |post| post(at, request, &raw mut bad))
            }
        })
    }

    pub(crate) fn modify(&self, mut attr: IbvSrqAttr, mask: c_int) -> Result<(), VerbError> {
        // SAFETY: it lives.
        check(
            "modify_srq",
            self.with(|at| unsafe { (self.library.ibv_modify_srq)(at, &raw mut attr, mask) })?,
        )
    }

    pub(crate) fn query(&self) -> Result<IbvSrqAttr, VerbError> {
        let mut attr = IbvSrqAttr::zero();
        // SAFETY: it lives, and there is room.
        check(
            "query_srq",
            self.with(|at| unsafe { (self.library.ibv_query_srq)(at, &raw mut attr) })?,
        )?;
        Ok(attr)
    }

    pub(crate) fn destroy(&self) -> Result<(), VerbError> {
        self.end("destroy_srq", self.library.ibv_destroy_srq)
    }
}

impl Live<IbvQp> {
    pub(crate) fn number(&self) -> Result<u32, VerbError> {
        // SAFETY: it lives.
        self.with(|at| unsafe { (*at).qp_num })
    }

    /// The error number where it is refused.
    ///
    /// # Safety
    /// What the request points to lives.
    pub(crate) unsafe fn post_send(&self, request: &mut IbvSendWr) -> Result<c_int, VerbError> {
        self.with(|at| {
            let mut bad = ptr::null_mut();
            // SAFETY: it lives, and so does its context; the rest is the caller's.
            unsafe {
                let post = op!((*at).context, POST_SEND: fn(*mut IbvQp, *mut IbvSendWr, *mut *mut IbvSendWr) -> c_int);
                post.map_or(libc::EOPNOTSUPP, |post| post(at, request, &raw mut bad))
            }
        })
    }

    /// The error number where it is refused.
    ///
    /// # Safety
    /// The request points to entries that live.
    pub(crate) unsafe fn post_recv(&self, request: &mut IbvRecvWr) -> Result<c_int, VerbError> {
        self.with(|at| {
            let mut bad = ptr::null_mut();
            // SAFETY: it lives, and so does its context; the rest is the caller's.
            unsafe {
                let post = op!((*at).context, POST_RECV: fn(*mut IbvQp, *mut IbvRecvWr, *mut *mut IbvRecvWr) -> c_int);
                post.map_or(libc::EOPNOTSUPP, |post| post(at, request, &raw mut bad))
            }
        })
    }

    /// Binds a window of type 1; the error number where it is refused.
    ///
    /// # Safety
    /// The window and the region of the bind live.
    pub(crate) unsafe fn bind_mw(
        &self,
        mw: *mut IbvMw,
        bind: &mut IbvMwBind,
    ) -> Result<c_int, VerbError> {
        self.with(|at| {
            // SAFETY: it lives, and so does its context; the rest is the caller's.
            unsafe {
                let slot = op!((*at).context, BIND_MW: fn(*mut IbvQp, *mut IbvMw, *mut IbvMwBind) -> c_int);
                slot.map_or(libc::EOPNOTSUPP, |slot| slot(at, mw, bind))
            }
        })
    }

    pub(crate) fn modify(&self, attr: &mut IbvQpAttr, mask: c_int) -> Result<(), VerbError> {
        // SAFETY: it lives.
        check(
            "modify_qp",
            self.with(|at| unsafe { (self.library.ibv_modify_qp)(at, attr, mask) })?,
        )
    }

    /// Its state, and whether the send queue still drains.
    pub(crate) fn query(&self) -> Result<IbvQpAttr, VerbError> {
        const STATE: c_int = 1;
        let (mut attr, mut init) = (IbvQpAttr::zero(), IbvQpInitAttr::zero());
        let query = self.library.ibv_query_qp;
        // SAFETY: it lives, and there is room.
        check(
            "query_qp",
            self.with(|at| unsafe { query(at, &raw mut attr, STATE, &raw mut init) })?,
        )?;
        Ok(attr)
    }

    pub(crate) fn attach(&self, group: Gid) -> Result<(), VerbError> {
        let (group, attach) = (IbvGid { raw: group.0 }, self.library.ibv_attach_mcast);
        // SAFETY: it lives.
        check(
            "attach_mcast",
            self.with(|at| unsafe { attach(at, &raw const group, 0) })?,
        )
    }

    pub(crate) fn detach(&self, group: Gid) -> Result<(), VerbError> {
        let (group, detach) = (IbvGid { raw: group.0 }, self.library.ibv_detach_mcast);
        // SAFETY: it lives.
        check(
            "detach_mcast",
            self.with(|at| unsafe { detach(at, &raw const group, 0) })?,
        )
    }

    pub(crate) fn destroy(&self) -> Result<(), VerbError> {
        self.end("destroy_qp", self.library.ibv_destroy_qp)
    }
}

impl Live<IbvAh> {
    pub(crate) fn destroy(&self) -> Result<(), VerbError> {
        self.end("destroy_ah", self.library.ibv_destroy_ah)
    }
}

/// Has reads of a descriptor answer at once.
pub(crate) fn never_waits(fd: BorrowedFd<'_>) -> Result<(), VerbError> {
    let fd = fd.as_raw_fd();
    // SAFETY: flags of a descriptor that is open.
    let set = unsafe {
        libc::fcntl(
            fd,
            libc::F_SETFL,
            libc::fcntl(fd, libc::F_GETFL) | libc::O_NONBLOCK,
        )
    };
    if set < 0 {
        Err(last_error("fcntl"))
    } else {
        Ok(())
    }
}

/// Waits until a descriptor can be read, or its other end is gone; answers which.
pub(crate) fn wait_readable<const COUNT: usize>(fds: [BorrowedFd<'_>; COUNT]) -> [bool; COUNT] {
    let mut entries = fds.map(|fd| libc::pollfd {
        fd: fd.as_raw_fd(),
        events: libc::POLLIN,
        revents: 0,
    });
    // SAFETY: as many entries.
    unsafe { libc::poll(entries.as_mut_ptr(), COUNT as libc::nfds_t, -1) };
    entries.map(|entry| entry.revents != 0)
}
