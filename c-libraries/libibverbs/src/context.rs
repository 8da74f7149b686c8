//! Open devices and their asynchronous events.
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
use crate::setup;
use crate::sinks::Sinks;

/// The layout of an open device.
#[repr(C)]
pub struct OpenContext {
    verbs: VerbsContext,
    own: State,
}

/// Our part of it.
pub struct State {
    /// The open device.
    pub context: Context,
    /// What it shares with its imports.
    pub shared: Arc<Shared>,
    cmd_fd: Unshared,
}

/// What an open device and its imports share.
pub struct Shared {
    context: Context,
    /// The device.
    pub listed: &'static ListedDevice,
    _device: Arc<Device>,
    // The file that stands for the device: duplicates of its descriptor refer to the same file.
    file: u64,
    events: Arc<Events<AsyncEvent>>,
    // The structures that events refer to.
    elements: Mutex<HashMap<ObjectId, usize>>,
    unacknowledged: Mutex<Vec<(IbvAsyncEvent, AsyncEvent)>>,
    handles: AtomicU32,
    /// Protection domains by handle.
    pub pds: Mutex<HashMap<u32, Pd>>,
    /// Regions by handle.
    pub mrs: Mutex<HashMap<u32, Mr>>,
    /// Second keys for the sinks of reads, on devices that need them.
    pub sinks: Option<Arc<Sinks>>,
    /// Device memory by handle.
    pub dms: Mutex<HashMap<u32, Memory>>,
    /// Queue pairs by number: a program may name a queue pair so when it connects.
    pub qps: Mutex<HashMap<u32, Qp>>,
}

// All open devices, among which an import finds its own. A child of a fork has none of its parent's.
static OPEN: PerProcess<Mutex<Vec<Weak<Shared>>>> = PerProcess::new(Mutex::default);

impl Shared {
    /// An unused number for an object that the device gives none.
    pub fn next_handle(&self) -> u32 {
        self.handles.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// The queue pair with this number, of any context that has opened this device.
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

// The inode of the file behind a descriptor.
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
    setup::complain(format_args!(
        "a device cannot be opened without two pipes, and the system refuses one: {error}"
    ));
    errno
}

const CONTEXT: usize = offset_of!(VerbsContext, context);

impl State {
    /// Opens a device.
    ///
    /// # Errors
    /// The device cannot be opened, or there is no file descriptor left.
    pub fn open(listed: &'static ListedDevice) -> Result<Self, Errno> {
        let (device, context) = listed.open()?;
        // A file that is no other's: the end of a pipe, because some sandboxes refuse memfd_create.
        let cmd_fd = Unshared::made(|| Ok(io::pipe()?.0.into()));
        let cmd_fd = cmd_fd.map_err(|error| without_pipe(Errno(errno_of(&error))))?;
        let events = Arc::new(Events::new().map_err(without_pipe)?);
        let told = Arc::clone(&events);
        context.on_event(move |event| told.push(event));
        let shared = Arc::new(Shared {
            sinks: Sinks::of(&context),
            context,
            _device: device,
            listed,
            file: file_of(cmd_fd.as_fd().as_raw_fd())?,
            events,
            elements: Mutex::default(),
            unacknowledged: Mutex::default(),
            handles: AtomicU32::new(0),
            pds: Mutex::default(),
            mrs: Mutex::default(),
            dms: Mutex::default(),
            qps: Mutex::default(),
        });
        let mut open = OPEN.lock();
        open.retain(|known| known.strong_count() > 0);
        open.push(Arc::downgrade(&shared));
        drop(open);
        Ok(Self::of(shared, cmd_fd))
    }

    /// The open device of a descriptor or of its duplicate. The library owns the descriptor from then on.
    ///
    /// # Errors
    /// It is no open device's.
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

    /// Remembers the structure of an object.
    pub fn place<C>(&self, id: ObjectId, at: *mut C) {
        self.shared
            .elements
            .lock()
            .insert(id, at.expose_provenance());
    }

    /// Destroys an object that has events. Discards those not fetched, and waits for those fetched and not acknowledged.
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

    /// The structure of an object.
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

/// Our part of an open device.
///
/// # Errors
/// The pointer is null, or the device was closed.
///
/// # Safety
/// The device is not closed while the result is used.
pub unsafe fn own<'a>(context: *const IbvContext) -> Result<&'a State, Errno> {
    object::check(context)?;
    // SAFETY: live, so it is what `create` made: the public part lies at that place of it.
    Ok(unsafe { &(*context.byte_sub(CONTEXT).cast::<OpenContext>()).own })
}

/// The tables of functions that programs call.
pub struct Tables {
    /// `ibv_context_ops`, in the context.
    pub ops: [Slot; OPS_SLOTS],
    /// `verbs_context`, in front of it.
    pub verbs: [Slot; VERBS_SLOTS],
}

/// Makes the structure of an open device, and returns the program's pointer to it.
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

/// Frees the structure, unless it is a parent's: that is forgotten.
///
/// # Safety
/// [`create`] made it, it is live, and it is not used any more.
pub unsafe fn destroy(context: *mut IbvContext) {
    if object::forget(context) {
        // SAFETY: as the caller promises.
        drop(unsafe { Box::from_raw(context.byte_sub(CONTEXT).cast::<OpenContext>()) });
    }
}

/// `ibv_get_async_event`.
///
/// # Safety
/// `event` is null or writable, and the device is not closed meanwhile.
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

/// `ibv_ack_async_event`. The event does not name its open device: it is looked for on all.
///
/// # Safety
/// `event` is null, or was filled by [`get_async_event`].
pub unsafe extern "C-unwind" fn ack_async_event(event: *mut IbvAsyncEvent) {
    // SAFETY: as the caller promises.
    let Some(event) = (unsafe { event.as_ref() }) else {
        return;
    };
    // Queue pairs, completion queues and shared receive queues begin with their context.
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

/// `ibv_fork_init`: does nothing. Memory is not pinned, so forks need no care.
pub extern "C-unwind" fn fork_init() -> c_int {
    0
}

/// `ibv_is_fork_initialized`: not needed.
pub extern "C-unwind" fn is_fork_initialized() -> c_int {
    2
}
