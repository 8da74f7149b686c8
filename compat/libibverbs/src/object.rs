//! The layout of objects: the structure that a C program sees, then our object.
//!
//! The addresses of live objects are recorded, so that a control verb with a pointer to a destroyed object, or to none of ours,
//! fails and does not crash. The data path looks up no pointers.
#![allow(unsafe_code)]

use std::collections::HashSet;
use std::sync::{Mutex, MutexGuard};

use crate::errno::Errno;
use crate::lock::lock;

/// The layout of an object.
#[repr(C)]
pub struct Object<C, T> {
    c: C,
    own: T,
}

static LIVE: Mutex<Option<HashSet<usize>>> = Mutex::new(None);

fn live() -> MutexGuard<'static, Option<HashSet<usize>>> {
    lock(&LIVE)
}

/// Records the address of a live object.
pub(crate) fn remember<C>(at: *mut C) -> *mut C {
    live().get_or_insert_default().insert(at as usize);
    at
}

/// Removes an address. Returns whether it was recorded.
pub(crate) fn forget<C>(at: *mut C) -> bool {
    live()
        .as_mut()
        .is_some_and(|known| known.remove(&(at as usize)))
}

/// The pointer itself, if it is one to a live object.
///
/// # Errors
/// It is null, or no live object is there.
pub fn check<C>(at: *const C) -> Result<*const C, Errno> {
    let known = live()
        .as_ref()
        .is_some_and(|known| known.contains(&(at as usize)));
    if known { Ok(at) } else { Err(Errno::INVAL) }
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

    /// Frees the object at the address.
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
