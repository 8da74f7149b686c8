//! Lets a provider downcast its own objects.

use std::any::Any;
use std::sync::Arc;

use crate::error::{ArgumentReason, VerbError};

/// Lets a provider downcast an object of its own that the safe layer passes back to it as a trait object.
pub trait AsAny: Any + Send + Sync {
    /// Returns the object as `Any`, so that it can be downcast.
    fn as_any(self: Arc<Self>) -> Arc<dyn Any + Send + Sync>;
}

impl<T: Any + Send + Sync> AsAny for T {
    fn as_any(self: Arc<Self>) -> Arc<dyn Any + Send + Sync> {
        self
    }
}

/// Downcasts a trait object to the provider's own type, also if layers have wrapped it. `inner` returns the object that a
/// wrapper forwards to, such as [`AhOps::inner`](crate::provider::AhOps::inner).
///
/// # Errors
/// The object belongs to another provider.
pub fn own_in_layers<T: Any + Send + Sync, O: AsAny + ?Sized>(
    object: &Arc<O>,
    argument: &'static str,
    inner: impl Fn(&O) -> Option<&Arc<O>>,
) -> Result<Arc<T>, VerbError> {
    let mut innermost = object;
    while let Some(within) = inner(innermost) {
        innermost = within;
    }
    own(innermost, argument)
}

/// Downcasts a trait object to the provider's own type.
///
/// # Errors
/// The object belongs to another provider.
pub fn own<T: Any + Send + Sync, O: AsAny + ?Sized>(
    object: &Arc<O>,
    argument: &'static str,
) -> Result<Arc<T>, VerbError> {
    Arc::clone(object)
        .as_any()
        .downcast()
        .map_err(|_| VerbError::argument(argument, ArgumentReason::AnotherProvider))
}
