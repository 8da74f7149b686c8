//! The path from a queue pair's handle to the provider's data path: one pointer.

// The pointer is into the provider's object, which the field `object` keeps alive.
#![allow(unsafe_code)]

use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::Arc;

use super::pair::QpObject;
use crate::contract::PostOps;

/// A queue pair's object, and a direct pointer to the provider's data path in it.
#[derive(Clone)]
pub(super) struct Poster {
    at: NonNull<dyn PostOps>,
    object: Arc<QpObject>,
}

// SAFETY: gives out shared references only, to what is `Sync`, and counts as an `Arc` does.
unsafe impl Send for Poster {}
// SAFETY: as above.
unsafe impl Sync for Poster {}

impl Poster {
    pub(super) fn new(object: Arc<QpObject>) -> Self {
        let at = NonNull::from(object.ops.poster());
        Self { at, object }
    }

    #[inline]
    pub(super) fn poster(&self) -> &dyn PostOps {
        // SAFETY: borrowed from the provider's object, which is shared, and so neither moved nor changed exclusively,
        // for as long as `object` holds it; and that is as long as this lives.
        unsafe { self.at.as_ref() }
    }

    pub(super) const fn object(&self) -> &Arc<QpObject> {
        &self.object
    }
}

impl Deref for Poster {
    type Target = QpObject;

    fn deref(&self) -> &QpObject {
        &self.object
    }
}
