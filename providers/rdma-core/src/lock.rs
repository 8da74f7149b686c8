//! Locking a mutex whose data is valid even after its holder has panicked.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks the mutex, even if a holder has panicked.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
