//! Locking a mutex that a panic does not poison.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks it, also after a holder has panicked.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
