//! How a provider recognises its own objects.

use std::any::Any;
use std::sync::Arc;

use crate::error::{ArgumentReason, VerbError};

/// Lets a provider recognise its own objects when the safe layer hands them back.
pub trait AsAny: Any + Send + Sync {
    /// The object itself.
    fn as_any(self: Arc<Self>) -> Arc<dyn Any + Send + Sync>;
}

impl<T: Any + Send + Sync> AsAny for T {
    fn as_any(self: Arc<Self>) -> Arc<dyn Any + Send + Sync> {
        self
    }
}

/// The provider's own type of an object that comes back to it, or an error where another provider made it.
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
