//! The locks of the standard library, without poisoning.
//!
//! A panic releases a lock that the thread holds, and the next thread that takes the lock finds the value as it is. A poisoned
//! lock would turn the panic of one handler into a panic of every later verb of the device, and no lock here has a caller that
//! could do better than to continue. The reasons for these locks are in `docs/decisions.md`, 72.

// No other module names the types that are wrapped here.
#![allow(clippy::disallowed_types)]

use std::sync::{self, MutexGuard, PoisonError, RwLockReadGuard, RwLockWriteGuard, TryLockError};
use std::time::Duration;

/// A lock whose waiters sleep. A panic of its holder releases it.
#[derive(Debug, Default)]
pub struct Mutex<T>(sync::Mutex<T>);

impl<T> Mutex<T> {
    /// Creates a free lock.
    pub const fn new(value: T) -> Self {
        Self(sync::Mutex::new(value))
    }

    /// Waits until the lock is free and takes it.
    #[inline]
    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the lock if it is free.
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        match self.0.try_lock() {
            Ok(guard) => Some(guard),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Returns the value of a lock that no other thread can reach.
    pub fn get_mut(&mut self) -> &mut T {
        self.0.get_mut().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the value.
    pub fn into_inner(self) -> T {
        self.0.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A lock that one writer holds, or several readers. A panic of its holder releases it.
#[derive(Debug, Default)]
pub struct RwLock<T>(sync::RwLock<T>);

impl<T> RwLock<T> {
    /// Creates a free lock.
    pub const fn new(value: T) -> Self {
        Self(sync::RwLock::new(value))
    }

    /// Waits until no writer holds the lock and takes it for reading.
    #[inline]
    pub fn read(&self) -> RwLockReadGuard<'_, T> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the lock is free and takes it for writing.
    pub fn write(&self) -> RwLockWriteGuard<'_, T> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Lets threads sleep until the value of a [`Mutex`] has changed.
#[derive(Debug, Default)]
pub struct Condvar(sync::Condvar);

impl Condvar {
    /// Creates one for which no thread waits.
    pub const fn new() -> Self {
        Self(sync::Condvar::new())
    }

    /// Wakes one thread that waits.
    pub fn notify_one(&self) {
        self.0.notify_one();
    }

    /// Wakes all threads that wait.
    pub fn notify_all(&self) {
        self.0.notify_all();
    }

    /// Waits for a notification; returns without one, too.
    pub fn wait<'m, T>(&self, guard: MutexGuard<'m, T>) -> MutexGuard<'m, T> {
        self.0.wait(guard).unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits as long as the condition holds.
    pub fn wait_while<'m, T>(
        &self,
        guard: MutexGuard<'m, T>,
        condition: impl FnMut(&mut T) -> bool,
    ) -> MutexGuard<'m, T> {
        let waited = self.0.wait_while(guard, condition);
        waited.unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a notification, but no longer than `time`; returns without one, too.
    pub fn wait_timeout<'m, T>(
        &self,
        guard: MutexGuard<'m, T>,
        time: Duration,
    ) -> MutexGuard<'m, T> {
        let waited = self.0.wait_timeout(guard, time);
        waited.unwrap_or_else(PoisonError::into_inner).0
    }

    /// Waits as long as the condition holds, but no longer than `time`.
    pub fn wait_timeout_while<'m, T>(
        &self,
        guard: MutexGuard<'m, T>,
        time: Duration,
        condition: impl FnMut(&mut T) -> bool,
    ) -> MutexGuard<'m, T> {
        let waited = self.0.wait_timeout_while(guard, time, condition);
        waited.unwrap_or_else(PoisonError::into_inner).0
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    /// Panics on another thread while `holds` holds a lock.
    fn panic_in<'l, G>(holds: impl FnOnce() -> G + Send + 'l) {
        thread::scope(|scope| {
            let panics = scope.spawn(|| {
                let _guard = holds();
                panic!("expected");
            });
            assert!(panics.join().is_err());
        });
    }

    #[test]
    fn a_panic_releases_a_mutex_and_its_value_stays() {
        let mut mutex = Mutex::new(1);
        panic_in(|| mutex.lock());
        *mutex.lock() += 1;
        *mutex.try_lock().unwrap() += 1;
        *mutex.get_mut() += 1;
        let changed = Condvar::new();
        let value = changed.wait_while(mutex.lock(), |value| *value != 4);
        drop(changed.wait_timeout_while(value, Duration::MAX, |value| *value != 4));
        assert_eq!(mutex.into_inner(), 4);
    }

    #[test]
    fn a_panic_releases_a_lock_of_readers_and_its_value_stays() {
        let lock = RwLock::new(1);
        panic_in(|| lock.write());
        assert_eq!(*lock.read(), 1);
        *lock.write() += 1;
        assert_eq!(*lock.read(), 2);
    }

    #[test]
    fn a_held_mutex_is_not_taken_twice() {
        let mutex = Mutex::new(());
        let held = mutex.lock();
        assert!(mutex.try_lock().is_none());
        drop(held);
        assert!(mutex.try_lock().is_some());
    }
}
