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
