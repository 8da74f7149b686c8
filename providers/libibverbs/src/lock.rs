//! Locking a mutex whose holders leave nothing half done.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks it, also after a holder has panicked.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
