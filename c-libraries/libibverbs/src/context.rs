//! Contexts, the open devices of a C program, and their asynchronous events.
#![allow(unsafe_code)]

use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::io;
use std::mem::offset_of;
use std::os::fd::{AsFd as _, AsRawFd as _, FromRawFd as _, OwnedFd};
use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Weak};

use polyverbs::emulated::Unshared;
use polyverbs_configuration::complain;
use verbs_api::objects::ObjectId;
use verbs_api::provider::{Mutex, PerProcess, errno_of};
use verbs_api::{
    Context, DestroyError, Device, Memory, Mr, Pd, Qp, Started,
    event::{AsyncEvent, EventSubject},
};

use crate::abi::{IbvAsyncEvent, IbvContext, OPS_SLOTS, Slot, VERBS_SLOTS, VerbsContext};
use crate::device::ListedDevice;
use crate::errno::{Errno, minus_one};
use crate::events::Events;
use crate::object;
use crate::odp::OnDemand;
use crate::sinks::Sinks;

/// The memory layout of a context: the public structures, then the library's part.
#[repr(C)]
pub struct OpenContext {
    verbs: VerbsContext,
    own: State,
}

/// The library's part of a context.
pub struct State {
    /// The context of `verbs-api` that this one stands for.
    pub context: Context,
    /// The state that it shares with the contexts that were imported from it.
    pub shared: Arc<Shared>,
    cmd_fd: Unshared,
}

/// The state that a context shares with all contexts that were imported from it.
pub struct Shared {
    context: Context,
    /// The device in the list of devices that the program has.
    pub listed: &'static ListedDevice,
    /// The device, which exists as long as its contexts do.
    pub device: Arc<Device>,
    // The inode of the file of `cmd_fd`, by which an import recognizes duplicates of the descriptor.
    file: u64,
    events: Arc<Events<AsyncEvent>>,
    // The addresses of the public structures of objects, for their asynchronous events.
    elements: Mutex<HashMap<ObjectId, usize>>,
    unacknowledged: Mutex<Vec<(IbvAsyncEvent, AsyncEvent)>>,
    handles: AtomicU32,
    /// The protection domains, by the handle that programs import them by.
    pub pds: Mutex<HashMap<u32, Pd>>,
    /// The MRs, by the handle that programs import them by.
    pub mrs: Mutex<HashMap<u32, Mr>>,
    /// Second keys for the destination buffers of RDMA reads; `None` if the device needs none.
    pub sinks: Option<Arc<Sinks>>,
    /// The regions whose pages a program may ask to be prefetched.
    pub on_demand: OnDemand,
    /// The allocations of device memory, by the handle that programs import them by.
    pub dms: Mutex<HashMap<u32, Memory>>,
    /// The QPs by number, because `rdma_accept` and `rdma_connect` may get only the number of a QP.
    pub qps: Mutex<HashMap<u32, Qp>>,
}

// The open devices of this process, among which an import finds its own. A child of a fork begins without any.
static OPEN: PerProcess<Mutex<Vec<Weak<Shared>>>> = PerProcess::new(Mutex::default);

impl Shared {
    /// A new handle for an object that has no number of its own.
    pub fn next_handle(&self) -> u32 {
        self.handles.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// The QP with this number, in any context of this device in this process; `None` if there is none.
    pub fn queue_pair(&self, qp_num: u32) -> Option<Qp> {
        let open: Vec<_> = OPEN.lock().iter().filter_map(Weak::upgrade).collect();
        let mut same = open.iter().filter(|open| ptr::eq(open.listed, self.listed));
        same.find_map(|open| open.qps.lock().get(&qp_num).cloned())
    }
}

// SAFETY: the pointers in the events are used as numbers only.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

// The inode of the file that a descriptor refers to.
fn file_of(fd: c_int) -> Result<u64, Errno> {
    // SAFETY: numbers only, for which zero is a value.
    let mut found: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: room for the answer.
    if unsafe { libc::fstat(fd, &raw mut found) } < 0 {
        return Err(Errno::last());
    }
    Ok(found.st_ino)
}

fn without_pipe(errno: Errno) -> Errno {
    let error = io::Error::from_raw_os_error(errno.0);
    complain(format_args!(
        "a device cannot be opened without two pipes, and the system refuses one: {error}"
    ));
    errno
}

const CONTEXT: usize = offset_of!(VerbsContext, context);

impl State {
    /// Opens a device.
    ///
    /// # Errors
    /// The device cannot be opened, or the process cannot open further files.
    pub fn open(listed: &'static ListedDevice) -> Result<Self, Errno> {
        let (device, context) = listed.open()?;
        // A file of its own: the end of a pipe, because some sandboxes refuse `memfd_create`.
        let cmd_fd = Unshared::made(|| Ok(io::pipe()?.0.into()));
        let cmd_fd = cmd_fd.map_err(|error| without_pipe(Errno(errno_of(&error))))?;
        let events = Arc::new(Events::new().map_err(without_pipe)?);
        let told = Arc::clone(&events);
        context.on_event(move |event| told.push(event));
        let shared = Arc::new(Shared {
            sinks: Sinks::of(&context),
            context,
            device,
            listed,
            file: file_of(cmd_fd.as_fd().as_raw_fd())?,
            events,
            elements: Mutex::default(),
            unacknowledged: Mutex::default(),
            handles: AtomicU32::new(0),
            pds: Mutex::default(),
            mrs: Mutex::default(),
            on_demand: OnDemand::default(),
            dms: Mutex::default(),
            qps: Mutex::default(),
        });
        let mut open = OPEN.lock();
        open.retain(|known| known.strong_count() > 0);
        open.push(Arc::downgrade(&shared));
        drop(open);
        Ok(Self::of(shared, cmd_fd))
    }

    /// Another context of the open device that this descriptor, a `cmd_fd` or its duplicate, belongs to. The library closes
    /// the descriptor with the context.
    ///
    /// # Errors
    /// `EBADF`: the descriptor is not that of an open device.
    pub fn import(cmd_fd: c_int) -> Result<Self, Errno> {
        let file = file_of(cmd_fd)?;
        let open = OPEN.lock();
        let mut shared = open.iter().filter_map(Weak::upgrade);
        let shared = shared.find(|shared| shared.file == file);
        drop(open);
        let shared = shared.ok_or(Errno(libc::EBADF))?;
        // SAFETY: the program gives the descriptor to the library.
        let cmd_fd = Unshared::made(|| Ok(unsafe { OwnedFd::from_raw_fd(cmd_fd) }));
        Ok(Self::of(shared, cmd_fd.map_err(|_| Errno::last())?))
    }

    fn of(shared: Arc<Shared>, cmd_fd: Unshared) -> Self {
        Self {
            context: shared.context.clone(),
            shared,
            cmd_fd,
        }
    }

    /// Records the address of an object's public structure, for the object's asynchronous events.
    pub fn place<C>(&self, id: ObjectId, at: *mut C) {
        self.shared
            .elements
            .lock()
            .insert(id, at.expose_provenance());
    }

    /// Destroys an object that can have asynchronous events, by `destruction`: discards its events that the program has not
    /// fetched, and waits until the program has acknowledged those that it has.
    ///
    /// # Errors
    /// The object is in use.
    pub fn end<T: Send + 'static>(
        &self,
        id: ObjectId,
        destruction: Started<(), DestroyError<T>>,
    ) -> Result<(), Errno> {
        let about = |event: &AsyncEvent| event.subject() == EventSubject::Object(id);
        self.shared.events.remove(about);
        destruction.wait()?;
        self.shared.elements.lock().remove(&id);
        Ok(())
    }

    /// The address of an object's public structure; null if none was recorded.
    pub fn element(&self, id: ObjectId) -> *mut c_void {
        let at = self
            .shared
            .elements
            .lock()
            .get(&id)
            .copied()
            .unwrap_or_default();
        ptr::with_exposed_provenance_mut(at)
    }
}

/// The library's part of a context.
///
/// # Errors
/// The pointer is null, or the context was closed.
///
/// # Safety
/// The context is not closed while the result is used.
pub unsafe fn own<'a>(context: *const IbvContext) -> Result<&'a State, Errno> {
    object::check(context)?;
    // SAFETY: live, so it is what `create` made: the public part lies at that place of it.
    Ok(unsafe { &(*context.byte_sub(CONTEXT).cast::<OpenContext>()).own })
}

/// The operation tables of a context, through which programs call verbs.
pub struct Tables {
    /// The table `ibv_context_ops`, in `ibv_context`.
    pub ops: [Slot; OPS_SLOTS],
    /// The table in `verbs_context`, which is located before `ibv_context`.
    pub verbs: [Slot; VERBS_SLOTS],
}

/// Allocates the public structures of a context, and returns the pointer for the program.
pub fn create(own: State, tables: Tables) -> *mut IbvContext {
    let limits = own.context.limits();
    let open = Box::new(OpenContext {
        verbs: VerbsContext {
            slots: tables.verbs,
            sz: size_of::<VerbsContext>(),
            context: IbvContext {
                device: own.shared.listed.as_public(),
                ops: tables.ops,
                cmd_fd: own.cmd_fd.as_fd().as_raw_fd(),
                async_fd: own.shared.events.fd(),
                num_comp_vectors: c_int::try_from(limits.num_comp_vectors).unwrap_or(c_int::MAX),
                mutex: libc::PTHREAD_MUTEX_INITIALIZER,
                abi_compat: ptr::without_provenance_mut(usize::MAX),
            },
        },
        own,
    });
    // SAFETY: within what was allocated.
    let at = unsafe { Box::into_raw(open).byte_add(CONTEXT) };
    object::remember(at.cast::<IbvContext>())
}

/// Frees a context. One that this process has inherited from its parent is only forgotten.
///
/// # Safety
/// [`create`] made it, it is live, and the program does not use it after this call.
pub unsafe fn destroy(context: *mut IbvContext) {
    if object::forget(context) {
        // SAFETY: as the caller promises.
        drop(unsafe { Box::from_raw(context.byte_sub(CONTEXT).cast::<OpenContext>()) });
    }
}

/// Implements `ibv_get_async_event`.
///
/// # Safety
/// `event` is null or writable, and the device is not closed during the call.
pub unsafe extern "C-unwind" fn get_async_event(
    context: *mut IbvContext,
    event: *mut IbvAsyncEvent,
) -> c_int {
    // SAFETY: as the caller promises.
    minus_one(unsafe { own(context) }.and_then(|state| {
        if event.is_null() {
            return Err(Errno::INVAL);
        }
        let found = state.shared.events.next()?;
        let element = match found.subject() {
            EventSubject::Object(id) => state.element(id),
            EventSubject::Port(port) => ptr::without_provenance_mut(usize::from(port)),
            EventSubject::Device => ptr::null_mut(),
        };
        let told = IbvAsyncEvent {
            element,
            event_type: c_int::from(found.event_type().code()),
        };
        // SAFETY: as the caller promises.
        unsafe { event.write(told) };
        if matches!(found.subject(), EventSubject::Object(_)) {
            state.shared.unacknowledged.lock().push((told, found));
        }
        Ok(0)
    }))
}

/// Implements `ibv_ack_async_event`. The event names no context; the context is found through the object of the event.
///
/// # Safety
/// `event` is null, or was filled by [`get_async_event`].
pub unsafe extern "C-unwind" fn ack_async_event(event: *mut IbvAsyncEvent) {
    // SAFETY: as the caller promises.
    let Some(event) = (unsafe { event.as_ref() }) else {
        return;
    };
    // These event types have a QP, CQ or SRQ, whose public structures begin with their context.
    if !matches!(event.event_type, 0..=7 | 14..=16) || !object::is_live(event.element) {
        return;
    }
    // SAFETY: live, so the first field is there.
    let context = unsafe { *event.element.cast::<*mut IbvContext>() };
    // SAFETY: an object is live, so its device is.
    if let Ok(state) = unsafe { own(context) } {
        let mut waiting = state.shared.unacknowledged.lock();
        let place = waiting.iter().position(|(known, _)| {
            (known.element, known.event_type) == (event.element, event.event_type)
        });
        let acknowledged = place.map(|place| waiting.swap_remove(place));
        drop(waiting);
        drop(acknowledged);
    }
}

/// Implements `ibv_fork_init`, which has nothing to do: memory is not pinned, so forks need no care.
pub extern "C-unwind" fn fork_init() -> c_int {
    0
}

/// Implements `ibv_is_fork_initialized`: returns `IBV_FORK_UNNEEDED`.
pub extern "C-unwind" fn is_fork_initialized() -> c_int {
    2
}
