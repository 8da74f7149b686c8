//! The verbs of the library on live objects. No other module has pointers or error numbers of the library.
#![allow(unsafe_code)]

/// Returns a function of the table in a context.
macro_rules! op {
    ($context:expr, $place:ident: fn($($argument:ty),*) -> $answer:ty) => {{
        let slot: polyverbs_abi::Slot = (*$context).ops[polyverbs_abi::ops::$place];
        std::mem::transmute::<polyverbs_abi::Slot, Option<unsafe extern "C" fn($($argument),*) -> $answer>>(slot)
    }};
}

/// Returns a function of the extended table of a context; `None` if the device's driver has no such table or a shorter one.
macro_rules! extended_op {
    ($context:expr, $place:ident: fn($($argument:ty),*) -> $answer:ty) => {{
        let slot: polyverbs_abi::Slot = $crate::verbs::extended_slot($context, polyverbs_abi::verbs::$place);
        std::mem::transmute::<polyverbs_abi::Slot, Option<unsafe extern "C" fn($($argument),*) -> $answer>>(slot)
    }};
}

mod context;
mod domain;
mod queues;
mod xrc;

use std::ffi::{c_int, c_void};
use std::mem;
use std::os::fd::BorrowedFd;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use polyverbs_abi::{
    IbvAsyncEvent, IbvContext, IbvDeviceAttr, IbvGid, IbvGidEntry, IbvPortAttr, IbvQpAttr,
    IbvQpInitAttr, IbvQpInitAttrEx, IbvQpOpenAttr, IbvSendWr, IbvSrqAttr, IbvSrqInitAttrEx, Slot,
    VerbsContext,
};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use verbs_api::VerbError;
use verbs_api::objects::{ObjectId, ObjectKind};

use crate::library::{Library, errno};

pub(crate) use context::{List, Listed, nothing};
pub(crate) use domain::Change;
pub(crate) use queues::{Poller, Poster};

/// An object of the library, until it is destroyed.
///
/// The safe objects destroy nothing that another object uses. But a program may poll, post and query on one thread while
/// another thread destroys the object: once the destruction has begun, further uses are refused, and it waits for the uses
/// in progress.
pub(crate) struct Live<T> {
    pub(crate) library: &'static Library,
    kind: ObjectKind,
    at: NonNull<T>,
    uses: Uses,
}

// SAFETY: several threads may use an object of the library at the same time.
unsafe impl<T> Send for Live<T> {}
// SAFETY: several threads may use an object of the library at the same time.
unsafe impl<T> Sync for Live<T> {}

/// Counts the uses of an object that are in progress, and whether further ones are refused.
#[derive(Default)]
struct Uses(AtomicU32);

impl Uses {
    const ENDED: u32 = 1 << 31;

    /// Begins a use; returns false if uses are refused.
    fn begin(&self) -> bool {
        let is_over = self.0.fetch_add(1, Ordering::Acquire) & Self::ENDED != 0;
        if is_over {
            self.end();
        }
        !is_over
    }

    fn end(&self) {
        self.0.fetch_sub(1, Ordering::Release);
    }

    /// Refuses further uses, and waits until those in progress have ended. Returns false if uses were refused before.
    fn close(&self) -> bool {
        let before = self.0.fetch_or(Self::ENDED, Ordering::Acquire);
        while self.0.load(Ordering::Acquire) != Self::ENDED {
            std::thread::yield_now();
        }
        before & Self::ENDED == 0
    }

    fn open(&self) {
        self.0.fetch_and(!Self::ENDED, Ordering::Release);
    }
}

/// A use of an object, which keeps it from being destroyed.
pub(crate) struct Held<T>(Arc<Live<T>>);

impl<T> Held<T> {
    pub(crate) fn pointer(&self) -> *mut T {
        self.0.at.as_ptr()
    }
}

impl<T> Drop for Held<T> {
    fn drop(&mut self) {
        self.0.uses.end();
    }
}

struct Use<'l>(&'l Uses);

impl Drop for Use<'_> {
    fn drop(&mut self) {
        self.0.end();
    }
}

impl<T> Live<T> {
    /// Wraps the object that a verb has created, or returns the verb's error.
    fn new(
        library: &'static Library,
        kind: ObjectKind,
        verb: &'static str,
        made: *mut T,
    ) -> Result<Self, VerbError> {
        Ok(Self {
            library,
            kind,
            at: NonNull::new(made).ok_or_else(|| last_error(verb))?,
            uses: Uses::default(),
        })
    }

    fn gone(&self) -> VerbError {
        VerbError::InvalidHandle(self.kind)
    }

    /// Calls `using` with a pointer to the object, which is not destroyed meanwhile.
    ///
    /// # Errors
    /// The object was destroyed.
    pub(crate) fn with<R>(&self, using: impl FnOnce(*mut T) -> R) -> Result<R, VerbError> {
        if !self.uses.begin() {
            return Err(self.gone());
        }
        let _use = Use(&self.uses);
        Ok(using(self.at.as_ptr()))
    }

    /// Begins a use of the object, which is not destroyed before the use ends.
    ///
    /// # Errors
    /// The object was destroyed.
    pub(crate) fn hold(self: &Arc<Self>) -> Result<Held<T>, VerbError> {
        match self.uses.begin() {
            true => Ok(Held(Arc::clone(self))),
            false => Err(self.gone()),
        }
    }

    /// Calls a verb that returns an error number.
    ///
    /// # Errors
    /// The verb failed, or the object was destroyed.
    fn ask(&self, verb: &'static str, call: impl FnOnce(*mut T) -> c_int) -> Result<(), VerbError> {
        check(verb, self.with(call)?)
    }

    /// Destroys the object, after its uses in progress have ended.
    fn end(
        &self,
        verb: &'static str,
        destroy: unsafe extern "C" fn(*mut T) -> c_int,
    ) -> Result<(), VerbError> {
        if !self.uses.close() {
            return Err(self.gone());
        }
        // SAFETY: the object lives, and it is no longer in use.
        let done = check(verb, unsafe { destroy(self.at.as_ptr()) });
        if done.is_err() {
            self.uses.open();
        }
        done
    }
}

/// Structures of C that consist of numbers and pointers only, so that all bits zero are a value.
///
/// # Safety
/// All bits zero are a value of the type.
pub(crate) unsafe trait Zero: Sized {
    fn zero() -> Self {
        // SAFETY: the implementation promises that all bits zero are a value.
        unsafe { mem::zeroed() }
    }
}

macro_rules! zero {
    ($($name:ty),*) => {
        // SAFETY: the fields are numbers, pointers, and structures of these.
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
    IbvQpInitAttrEx,
    IbvQpOpenAttr,
    IbvSendWr,
    IbvSrqAttr,
    IbvSrqInitAttrEx
);

/// Returns a function of the extended table in front of a context; null if there is none.
///
/// # Safety
/// The context is alive.
unsafe fn extended_slot(context: *mut IbvContext, place: usize) -> Slot {
    const IS_EXTENDED: usize = usize::MAX;
    // SAFETY: the caller promises that the context is alive.
    if unsafe { (*context).abi_compat }.addr() != IS_EXTENDED {
        return ptr::null();
    }
    const CONTEXT: usize = mem::offset_of!(VerbsContext, context);
    const SIZE: usize = CONTEXT - mem::offset_of!(VerbsContext, sz);
    let begins = place * size_of::<Slot>();
    // SAFETY: an extended context is the end of such a structure, which states its size. An older library's lacks the first
    // slots, so nothing before the wanted one may be touched.
    unsafe {
        let size = context.byte_sub(SIZE).cast::<usize>().read();
        match size >= size_of::<VerbsContext>() - begins {
            true => context.byte_sub(CONTEXT - begins).cast::<Slot>().read(),
            false => ptr::null(),
        }
    }
}

pub(crate) fn last_error(verb: &'static str) -> VerbError {
    let errno = errno();
    // Some verbs fail without setting `errno`.
    let errno = errno.filter(|errno| *errno > 0);
    failed(verb, errno.unwrap_or(libc::EIO))
}

fn failed(verb: &'static str, errno: c_int) -> VerbError {
    match errno {
        libc::EOPNOTSUPP | libc::ENOSYS => VerbError::UnsupportedVerb(verb),
        libc::EBUSY => VerbError::Busy(Vec::new()),
        _ => VerbError::Os { verb, errno },
    }
}

/// Converts the return value of a verb: an error number, 0, or -1 with the error number in `errno`.
pub(crate) fn check(verb: &'static str, answer: c_int) -> Result<(), VerbError> {
    match answer {
        0 => Ok(()),
        ..0 => Err(last_error(verb)),
        errno => Err(failed(verb, errno)),
    }
}

/// Packs the identity of an object into the pointer that the library keeps for the object's owner.
pub(crate) fn cookie(id: ObjectId) -> *mut c_void {
    ptr::without_provenance_mut(id.index as usize | (id.generation as usize) << 32)
}

fn identity(cookie: *mut c_void) -> ObjectId {
    let bits = cookie.addr();
    ObjectId::new(bits as u32, (bits >> 32) as u32)
}

/// Makes reads of a descriptor nonblocking.
pub(crate) fn never_waits(fd: BorrowedFd<'_>) -> Result<(), VerbError> {
    fcntl_getfl(fd)
        .and_then(|flags| fcntl_setfl(fd, flags | OFlags::NONBLOCK))
        .map_err(|error| VerbError::os("fcntl", error))
}
