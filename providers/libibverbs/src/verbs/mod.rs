//! The verbs of the library on objects that live: pointers and error numbers end here.
#![allow(unsafe_code)]

/// The function in a place of the table that a context has.
macro_rules! op {
    ($context:expr, $place:ident: fn($($argument:ty),*) -> $answer:ty) => {{
        let slot: polyverbs_abi::Slot = (*$context).ops[polyverbs_abi::ops::$place];
        std::mem::transmute::<polyverbs_abi::Slot, Option<unsafe extern "C" fn($($argument),*) -> $answer>>(slot)
    }};
}

/// The function in a place of the extended table; none where the library's drivers know no such table, or a shorter one.
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
use std::io;
use std::mem;
use std::os::fd::{AsRawFd as _, BorrowedFd};
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use polyverbs_abi::{
    IbvAsyncEvent, IbvContext, IbvDeviceAttr, IbvGid, IbvGidEntry, IbvPortAttr, IbvQpAttr,
    IbvQpInitAttr, IbvQpInitAttrEx, IbvQpOpenAttr, IbvSendWr, IbvSrqAttr, IbvSrqInitAttrEx, Slot,
    VerbsContext,
};
use verbs_api::VerbError;
use verbs_api::objects::{ObjectId, ObjectKind};

use crate::library::Library;

pub(crate) use context::{List, Listed, nothing};
pub(crate) use domain::Change;
pub(crate) use queues::{Poller, Poster};

/// An object of the library, until it is destroyed.
///
/// The safe objects destroy nothing that something else is made of, but a program may poll, post and query on one thread
/// while another destroys: none begins after the destruction has, and it waits for those that have.
pub(crate) struct Live<T> {
    pub(crate) library: &'static Library,
    kind: ObjectKind,
    at: NonNull<T>,
    uses: Uses,
}

// SAFETY: every thread may use an object of the library, several at a time.
unsafe impl<T> Send for Live<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Live<T> {}

/// How many use an object right now, and whether nobody begins to any more.
#[derive(Default)]
struct Uses(AtomicU32);

impl Uses {
    const ENDED: u32 = 1 << 31;

    /// Begins one, unless it is over.
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

    /// Nobody begins any more, and nobody is left when this returns; `false` where it was over already.
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

/// An object that is not destroyed as long as this is there.
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
    /// What a verb has made, or why it has not.
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

    /// Uses it. It is not destroyed meanwhile.
    ///
    /// # Errors
    /// It was destroyed.
    pub(crate) fn with<R>(&self, using: impl FnOnce(*mut T) -> R) -> Result<R, VerbError> {
        if !self.uses.begin() {
            return Err(self.gone());
        }
        let _use = Use(&self.uses);
        Ok(using(self.at.as_ptr()))
    }

    /// Keeps it from being destroyed.
    ///
    /// # Errors
    /// It was destroyed.
    pub(crate) fn hold(self: &Arc<Self>) -> Result<Held<T>, VerbError> {
        match self.uses.begin() {
            true => Ok(Held(Arc::clone(self))),
            false => Err(self.gone()),
        }
    }

    /// Calls a verb that answers an error number.
    ///
    /// # Errors
    /// That of the verb, or it was destroyed.
    fn ask(&self, verb: &'static str, call: impl FnOnce(*mut T) -> c_int) -> Result<(), VerbError> {
        check(verb, self.with(call)?)
    }

    /// Destroys it.
    fn end(
        &self,
        verb: &'static str,
        destroy: unsafe extern "C" fn(*mut T) -> c_int,
    ) -> Result<(), VerbError> {
        if !self.uses.close() {
            return Err(self.gone());
        }
        // SAFETY: it lives, and nobody else uses it any more.
        let done = check(verb, unsafe { destroy(self.at.as_ptr()) });
        if done.is_err() {
            self.uses.open();
        }
        done
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
    IbvQpInitAttrEx,
    IbvQpOpenAttr,
    IbvSendWr,
    IbvSrqAttr,
    IbvSrqInitAttrEx
);

/// A place of the table in front of a context: null where there is none.
///
/// # Safety
/// The context lives.
unsafe fn extended_slot(context: *mut IbvContext, place: usize) -> Slot {
    const IS_EXTENDED: usize = usize::MAX;
    // SAFETY: it lives.
    if unsafe { (*context).abi_compat }.addr() != IS_EXTENDED {
        return ptr::null();
    }
    // SAFETY: an extended context is the end of such a structure, which says how much of it is there, counted from the end.
    unsafe {
        let table = context.byte_sub(mem::offset_of!(VerbsContext, context));
        let table = table.cast::<VerbsContext>();
        let needed = size_of::<VerbsContext>() - place * size_of::<Slot>();
        match (*table).sz >= needed {
            true => (*table).slots[place],
            false => ptr::null(),
        }
    }
}

pub(crate) fn last_error(verb: &'static str) -> VerbError {
    let errno = io::Error::last_os_error().raw_os_error();
    // Not every verb that fails says why.
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

/// What a verb answers that returns an error number; some return -1 and set `errno`.
pub(crate) fn check(verb: &'static str, answer: c_int) -> Result<(), VerbError> {
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
