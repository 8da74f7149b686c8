//! The layout of objects: the structure that a C program sees, then our object.
//!
//! The addresses of live objects are recorded, so that a control verb with a pointer to a destroyed object, or to none of ours,
//! fails and does not crash. The data path looks up no pointers.
//!
//! A child of a fork may destroy the objects that it has inherited. That leaves those of its parent as they are: the child only
//! forgets the address, because a thread of the parent may have held a lock of the object when the process forked.
#![allow(unsafe_code)]

use std::collections::HashMap;

use verbs_api::provider::{ForkLock, forks};

use crate::errno::Errno;

/// The layout of an object.
#[repr(C)]
pub struct Object<C, T> {
    c: C,
    own: T,
}

// For each address how many forks came before the object was made.
static LIVE: ForkLock<Option<HashMap<usize, u64>>> = ForkLock::new(None);

/// Records the address of a live object.
pub(crate) fn remember<C>(at: *mut C) -> *mut C {
    (LIVE.lock().get_or_insert_default()).insert(at as usize, forks());
    at
}

/// Removes an address. Returns whether an object of this process was recorded there, and not one of its parent's.
pub(crate) fn forget<C>(at: *mut C) -> bool {
    let known = LIVE
        .lock()
        .as_mut()
        .and_then(|live| live.remove(&(at as usize)));
    known == Some(forks())
}

/// Whether a live object is there that this process has inherited from its parent.
pub fn is_parents<C>(at: *const C) -> bool {
    let known = made_after(at);
    known.is_some_and(|known| known != forks())
}

fn made_after<C>(at: *const C) -> Option<u64> {
    LIVE.lock().as_ref()?.get(&(at as usize)).copied()
}

/// The pointer itself, if it is one to a live object.
///
/// # Errors
/// It is null, or no live object is there.
pub fn check<C>(at: *const C) -> Result<*const C, Errno> {
    made_after(at).map(|_| at).ok_or(Errno::INVAL)
}

impl<C, T> Object<C, T> {
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
