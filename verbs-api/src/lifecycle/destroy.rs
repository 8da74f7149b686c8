//! Destroying objects on request.

use std::fmt;
use std::sync::Arc;

use super::node::Refusal;
use super::object::{Extra, Object, Ops};
use crate::control::{Reply, Started};
use crate::error::{ErrorKind, VerbError};
use crate::object_id::{Holder, ObjectKind};

/// Why an object was not destroyed.
///
/// ```no_run
/// use verbs_api::{Context, DestroyError, VerbError};
///
/// fn close(device: Context) -> Result<(), VerbError> {
///     device.close().wait().map_err(DestroyError::into_verb_error)
/// }
/// ```
#[non_exhaustive]
pub enum DestroyError<T> {
    /// The object is in use. Nothing has changed, and the error contains the object.
    ///
    /// ```no_run
    /// # fn example(pd: verbs_api::Pd, region: verbs_api::Mr) -> Result<(), Box<dyn std::error::Error>> {
    /// use verbs_api::Busy;
    /// let pd = match pd.destroy().wait() {
    ///     Err(Busy { object, held_by }) => {
    ///         println!("the domain is in use by {held_by:?}");
    ///         object
    ///     }
    ///     ended => return Ok(ended?),
    /// };
    /// region.deregister().wait()?;
    /// pd.destroy().wait()?;
    /// # Ok(())
    /// # }
    /// ```
    Busy {
        /// The handle of the object, which is still alive.
        object: T,
        /// The users of the object: other objects, or control requests that have not ended.
        held_by: Vec<Holder>,
    },
    /// The destroy failed for another reason, and the handle is gone.
    Failed(VerbError),
}

impl<T> DestroyError<T> {
    /// Returns the kind of the error.
    pub const fn kind(&self) -> ErrorKind {
        match self {
            Self::Busy { .. } => ErrorKind::Busy,
            Self::Failed(error) => error.kind(),
        }
    }

    /// Returns the error without the object, whose handle is dropped.
    pub fn into_verb_error(self) -> VerbError {
        match self {
            Self::Busy { held_by, .. } => VerbError::Busy(held_by),
            Self::Failed(error) => error,
        }
    }
}

impl<T> From<VerbError> for DestroyError<T> {
    fn from(error: VerbError) -> Self {
        Self::Failed(error)
    }
}

impl<T> fmt::Display for DestroyError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Busy { held_by, .. } => VerbError::Busy(held_by.clone()).fmt(f),
            Self::Failed(error) => error.fmt(f),
        }
    }
}

impl<T> fmt::Debug for DestroyError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Busy { held_by, .. } => f
                .debug_struct("Busy")
                .field("held_by", held_by)
                .finish_non_exhaustive(),
            Self::Failed(error) => f.debug_tuple("Failed").field(error).finish(),
        }
    }
}

impl<T> std::error::Error for DestroyError<T> {}

/// A program's handle of an object that has a provider's part.
pub(crate) trait Handle: Send + 'static {
    type Ops: Ops + ?Sized;
    type Extra: Extra;
    fn object(&self) -> &Arc<Object<Self::Ops, Self::Extra>>;
}

/// Starts to destroy the object of `handle`. Fails with Busy, or is accepted, which invalidates every other handle.
pub(crate) fn destroy<H: Handle>(handle: H) -> Started<(), DestroyError<H>> {
    let object = Arc::clone(handle.object());
    let context = Arc::clone(&object.context);
    context.retry_deferred();
    match object.node.begin_destroy() {
        Ok(()) => {}
        Err(Refusal::Dead(error)) => return Started::ready(Err(DestroyError::Failed(error))),
        Err(Refusal::Busy(held_by)) => {
            return Started::ready(Err(DestroyError::Busy {
                object: handle,
                held_by: context.table().named(held_by),
            }));
        }
    }
    context.discard_events(object.node.id());
    // A removal of the device destroys the object, as requested. Memory, however, is the program's again only when the
    // provider says so: an access may be in progress.
    let removed = Arc::clone(&object);
    let (started, completer) = match object.node.kind() {
        ObjectKind::Mr => context.begin_kept(),
        _ => context.begin_or(move || {
            removed.node.abandon();
            removed.extra.on_destroyed(removed.node.id());
            Ok(())
        }),
    };
    let ops = Arc::clone(&object.ops);
    ops.admit(false);
    ops.destroy(Reply::new(move |result| match result {
        Ok(()) | Err(VerbError::DeviceRemoved) => {
            drop(handle);
            context.destroyed(object.node.kind());
            object.extra.on_destroyed(object.node.id());
            object
                .node
                .finish_destroy(move || completer.complete(Ok(())));
        }
        Err(error) => {
            object.revive();
            drop(object);
            completer.complete(Err(match error {
                VerbError::Busy(held_by) => DestroyError::Busy {
                    object: handle,
                    held_by: context.table().named(held_by),
                },
                error => DestroyError::Failed(error),
            }));
        }
    }));
    started
}
