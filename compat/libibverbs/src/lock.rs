//! Locks that a panic does not poison.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// The lock, whatever became of who had it.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
