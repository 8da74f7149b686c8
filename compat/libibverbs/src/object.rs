//! How an object of a C program stands for one of ours: the structure that the program sees comes first, ours behind it.
//!
//! The addresses of live objects are known, so that a control verb with a pointer to something that was destroyed, or
//! that was never ours, is an error and not a crash. The data path looks no pointer up.
#![allow(unsafe_code)]

use std::collections::HashSet;
use std::sync::{Mutex, MutexGuard};

use crate::errno::Errno;
use crate::lock::lock;

/// An object as it lies in memory.
#[repr(C)]
pub struct Object<C, T> {
    c: C,
    own: T,
}

static LIVE: Mutex<Option<HashSet<usize>>> = Mutex::new(None);

fn live() -> MutexGuard<'static, Option<HashSet<usize>>> {
    lock(&LIVE)
}

/// Remembers the address of a live object.
pub(crate) fn remember<C>(at: *mut C) -> *mut C {
    live().get_or_insert_default().insert(at as usize);
    at
}

/// Forgets an address. Answers whether it was known.
pub(crate) fn forget<C>(at: *mut C) -> bool {
    live()
        .as_mut()
        .is_some_and(|known| known.remove(&(at as usize)))
}

/// The pointer itself, where it is one to a live object.
///
/// # Errors
/// It is null, or nothing of ours is there any more.
pub fn check<C>(at: *const C) -> Result<*const C, Errno> {
    let known = live()
        .as_ref()
        .is_some_and(|known| known.contains(&(at as usize)));
    if known { Ok(at) } else { Err(Errno::INVAL) }
}

impl<C, T> Object<C, T> {
    /// A new object. The pointer is what the program gets.
    pub fn create(c: C, own: T) -> *mut C {
        remember(Box::into_raw(Box::new(Self { c, own })).cast())
    }

    /// Ours, behind a pointer of the program.
    ///
    /// # Errors
    /// As [`check`].
    ///
    /// # Safety
    /// Where something live is at that address, [`create`](Self::create) of this type made it, and it is not destroyed
    /// while the answer is used.
    pub unsafe fn own<'a>(at: *const C) -> Result<&'a T, Errno> {
        let at = check(at)?;
        // SAFETY: live, and of this type, as the caller promises.
        Ok(unsafe { Self::own_unchecked(at) })
    }

    /// The same without a look: for the data path.
    ///
    /// # Safety
    /// [`create`](Self::create) of this type made it, and it is not destroyed while the answer is used.
    #[inline]
    pub unsafe fn own_unchecked<'a>(at: *const C) -> &'a T {
        // SAFETY: the object that `create` made begins there; only its first part is written by the program.
        unsafe { &(*at.cast::<Self>()).own }
    }

    /// Ends the object that is at the address.
    ///
    /// # Safety
    /// As for [`own`](Self::own), and nobody uses the object any more.
    pub unsafe fn destroy(at: *mut C) {
        if forget(at) {
            // SAFETY: `create` made it, it was live until now, and nobody else has it.
            drop(unsafe { Box::from_raw(at.cast::<Self>()) });
        }
    }
}
