//! The layout of objects: the structure that a C program sees, then our object.
//!
//! The addresses of live objects are recorded with their kinds, so that a control verb with a pointer to a destroyed object, to
//! one of another kind that was made in its place, or to none of ours, fails and does not crash. The data path looks up no pointers.
//!
//! A child of a fork may destroy the objects that it has inherited. That leaves those of its parent as they are: the child only
//! forgets the address, because a thread of the parent may have held a lock of the object when the process forked.
#![allow(unsafe_code)]

use std::any::TypeId;
use std::collections::HashMap;

use verbs_api::provider::{ForkLock, forks};

use crate::errno::Errno;

/// The layout of an object.
#[repr(C)]
pub struct Object<C, T> {
    c: C,
    own: T,
}

/// The kind of a live object, and the process that made it.
#[derive(Clone, Copy, PartialEq)]
struct Known {
    /// The type of its structure.
    kind: TypeId,
    /// How many forks came before the object was made.
    forks: u64,
}

// By address.
static LIVE: ForkLock<Option<HashMap<usize, Known>>> = ForkLock::new(None);

/// Records the address of a live object.
pub(crate) fn remember<C: 'static>(at: *mut C) -> *mut C {
    let known = Known {
        kind: TypeId::of::<C>(),
        forks: forks(),
    };
    (LIVE.lock().get_or_insert_default()).insert(at as usize, known);
    at
}

/// Removes an address. Returns whether an object of this process was recorded there, and not one of its parent's.
pub(crate) fn forget<C>(at: *mut C) -> bool {
    let known = LIVE
        .lock()
        .as_mut()
        .and_then(|live| live.remove(&(at as usize)));
    known.is_some_and(|known| known.forks == forks())
}

/// Whether a live object is there that this process has inherited from its parent.
pub fn is_parents<C>(at: *const C) -> bool {
    known(at).is_some_and(|known| known.forks != forks())
}

fn known<C>(at: *const C) -> Option<Known> {
    LIVE.lock().as_ref()?.get(&(at as usize)).copied()
}

/// Whether a live object of any kind is there.
pub(crate) fn is_live<C>(at: *const C) -> bool {
    known(at).is_some()
}

/// The pointer itself, if it is one to a live object of this kind.
///
/// # Errors
/// It is null, or no live object of this kind is there.
pub fn check<C: 'static>(at: *const C) -> Result<*const C, Errno> {
    match known(at) {
        Some(known) if known.kind == TypeId::of::<C>() => Ok(at),
        _ => Err(Errno::INVAL),
    }
}

impl<C: 'static, T> Object<C, T> {
    /// Allocates an object, and returns the program's pointer to it.
    pub fn create(c: C, own: T) -> *mut C {
        remember(Box::into_raw(Box::new(Self { c, own })).cast())
    }

    /// Our object behind a program's pointer.
    ///
    /// # Errors
    /// Those of [`check`].
    ///
    /// # Safety
    /// If a live object is at that address, [`create`](Self::create) of this type made it, and it is not destroyed while the
    /// result is used.
    pub unsafe fn own<'a>(at: *const C) -> Result<&'a T, Errno> {
        let at = check(at)?;
        // SAFETY: live, and of this type, as the caller promises.
        Ok(unsafe { Self::own_unchecked(at) })
    }

    /// Our object behind a program's pointer, without a look-up: for the data path.
    ///
    /// # Safety
    /// [`create`](Self::create) of this type made it, and it is not destroyed while the result is used.
    #[inline]
    pub unsafe fn own_unchecked<'a>(at: *const C) -> &'a T {
        // SAFETY: the object that `create` made begins there; only its first part is written by the program.
        unsafe { &(*at.cast::<Self>()).own }
    }

    /// Ends what an object stands for, and frees it. A parent's object is only forgotten, and nothing ends.
    ///
    /// # Errors
    /// Those of [`check`], and those of `end`: the object stays.
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

    /// Frees the object at the address, unless it is a parent's: that is forgotten.
    ///
    /// # Safety
    /// As for [`own`](Self::own), and the object is not used any more.
    pub unsafe fn destroy(at: *mut C) {
        if forget(at) {
            // SAFETY: `create` made it, it was live until now, and nobody else has it.
            drop(unsafe { Box::from_raw(at.cast::<Self>()) });
        }
    }
}
