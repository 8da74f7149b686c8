//! The memory layout of verbs objects: the public structure that a C program sees, then the library's own part.
//!
//! The addresses of live objects are recorded with their kinds. So a control verb fails, rather than crashes, with a
//! pointer to a destroyed object, to an object of another kind at the same address, or to something else. The data path
//! does not look up pointers.
//!
//! A child of a fork may destroy the objects that it has inherited from its parent. The child then only forgets the address
//! and leaves the object as it is, because a thread of the parent may have held a lock of the object when the process
//! forked.
#![allow(unsafe_code)]

use std::any::TypeId;
use std::collections::HashMap;

use verbs_api::provider::{ForkLock, forks};

use crate::errno::Errno;

/// The memory layout of a verbs object: the public C structure `C`, then the library's own part `T`.
#[repr(C)]
pub struct Object<C, T> {
    c: C,
    own: T,
}

/// The kind of a live object, and which process has made it.
#[derive(Clone, Copy, PartialEq)]
struct Known {
    /// The type of its public C structure.
    kind: TypeId,
    /// The number of forks between the first process and the one that made the object. An inherited object has a smaller
    /// number than an own one.
    forks: u64,
}

// The live objects, by the address of their public structure.
static LIVE: ForkLock<Option<HashMap<usize, Known>>> = ForkLock::new(None);

/// Records that a live object with the public structure `C` is at this address.
pub(crate) fn remember<C: 'static>(at: *mut C) -> *mut C {
    let known = Known {
        kind: TypeId::of::<C>(),
        forks: forks(),
    };
    (LIVE.lock().get_or_insert_default()).insert(at as usize, known);
    at
}

/// Removes the record of the object at this address. Returns whether this process has made the object; false for one that
/// it has inherited from its parent, and if there is none.
pub(crate) fn forget<C>(at: *mut C) -> bool {
    let known = LIVE
        .lock()
        .as_mut()
        .and_then(|live| live.remove(&(at as usize)));
    known.is_some_and(|known| known.forks == forks())
}

/// Whether the object at this address is live and inherited: made by the parent process before the fork.
pub fn is_parents<C>(at: *const C) -> bool {
    known(at).is_some_and(|known| known.forks != forks())
}

fn known<C>(at: *const C) -> Option<Known> {
    LIVE.lock().as_ref()?.get(&(at as usize)).copied()
}

/// Whether a live object of any kind is at this address.
pub(crate) fn is_live<C>(at: *const C) -> bool {
    known(at).is_some()
}

/// Checks that the pointer is one to a live object with the public structure `C`, and returns it.
///
/// # Errors
/// `EINVAL`: the pointer is null, or no live object of this kind is there.
pub fn check<C: 'static>(at: *const C) -> Result<*const C, Errno> {
    match known(at) {
        Some(known) if known.kind == TypeId::of::<C>() => Ok(at),
        _ => Err(Errno::INVAL),
    }
}

impl<C: 'static, T> Object<C, T> {
    /// Allocates and records an object. Returns the pointer to its public structure, for the program.
    pub fn create(c: C, own: T) -> *mut C {
        remember(Box::into_raw(Box::new(Self { c, own })).cast())
    }

    /// The library's own part of the object at the program's pointer.
    ///
    /// # Errors
    /// Those of [`check`].
    ///
    /// # Safety
    /// If a live object is at that address, [`create`](Self::create) of this type made it, and it is not destroyed while
    /// the result is used.
    pub unsafe fn own<'a>(at: *const C) -> Result<&'a T, Errno> {
        let at = check(at)?;
        // SAFETY: live, and of this type, as the caller promises.
        Ok(unsafe { Self::own_unchecked(at) })
    }

    /// The library's own part of the object at the program's pointer, without a check: for the data path.
    ///
    /// # Safety
    /// [`create`](Self::create) of this type made it, and it is not destroyed while the result is used.
    #[inline]
    pub unsafe fn own_unchecked<'a>(at: *const C) -> &'a T {
        // SAFETY: the object that `create` made begins there; only its first part is written by the program.
        unsafe { &(*at.cast::<Self>()).own }
    }

    /// Destroys an object: calls `end` to destroy the verbs object that it stands for, then frees it. For an object that
    /// this process has inherited, `end` is not called and the object is only forgotten.
    ///
    /// # Errors
    /// Those of [`check`], and those of `end`; in either case the object stays.
    ///
    /// # Safety
    /// As for [`destroy`](Self::destroy).
    pub unsafe fn end(at: *mut C, end: impl FnOnce(&T) -> Result<(), Errno>) -> Result<(), Errno> {
        // SAFETY: as the caller promises.
        let own = unsafe { Self::own(at) }?;
        if !is_parents(at) {
            end(own)?;
        }
        // SAFETY: as the caller promises.
        unsafe { Self::destroy(at) };
        Ok(())
    }

    /// Frees the object at the address. One that this process has inherited from its parent is only forgotten.
    ///
    /// # Safety
    /// As for [`own`](Self::own), and the program does not use the object after this call.
    pub unsafe fn destroy(at: *mut C) {
        if forget(at) {
            // SAFETY: `create` made it, it was live until now, and nobody else has it.
            drop(unsafe { Box::from_raw(at.cast::<Self>()) });
        }
    }
}
