//! The verbs of the library on objects that live: pointers and error numbers end here.
#![allow(unsafe_code)]

/// The function in a place of the table that a context has.
macro_rules! op {
    ($context:expr, $place:ident: fn($($argument:ty),*) -> $answer:ty) => {{
        let slot: polyverbs_abi::Slot = (*$context).ops[polyverbs_abi::ops::$place];
        std::mem::transmute::<polyverbs_abi::Slot, Option<unsafe extern "C" fn($($argument),*) -> $answer>>(slot)
    }};
}

mod context;
mod domain;
mod queues;

use std::ffi::{c_int, c_void};
use std::io;
use std::mem;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::{self, NonNull};
use std::sync::{PoisonError, RwLock, RwLockWriteGuard};

use polyverbs_abi::{
    IbvAsyncEvent, IbvDeviceAttr, IbvGid, IbvGidEntry, IbvPortAttr, IbvQpAttr, IbvQpInitAttr,
    IbvSendWr, IbvSrqAttr, IbvWc,
};
use verbs_api::VerbError;
use verbs_api::objects::{ObjectId, ObjectKind};

use crate::library::Library;

pub(crate) use context::{List, Listed};
pub(crate) use domain::Change;

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

    /// Calls a verb that answers an error number.
    ///
    /// # Errors
    /// That of the verb, or it was destroyed.
    fn ask(&self, verb: &'static str, call: impl FnOnce(*mut T) -> c_int) -> Result<(), VerbError> {
        check(verb, self.with(call)?)
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

    fn write(&self) -> RwLockWriteGuard<'_, Option<Pointer<T>>> {
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
