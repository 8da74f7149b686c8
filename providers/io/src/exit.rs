//! What is still to be done when the process ends by itself.
// The system calls a function back, and keeps no pointer but to that.
#![allow(unsafe_code)]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, Weak};

use verbs_api::provider::PerProcess;

use crate::{IoHandler, lock};

/// Flushes `waiting`, if it is still there, when the process ends by itself: by `exit`, or because `main` returned. Not in
/// a child that a fork made: what waits is its parent's.
pub(crate) fn at_exit(waiting: Weak<dyn IoHandler>) {
    static IS_HOOKED: AtomicBool = AtomicBool::new(false);
    if !IS_HOOKED.load(Ordering::Acquire) {
        // SAFETY: `flush_all` takes nothing, and is there until the process ends, or until this library is unloaded: then
        // it is called before. Where there is no room for it, nothing is flushed. A second call finds nothing to flush.
        let _ = unsafe { libc::atexit(flush_all) };
        IS_HOOKED.store(true, Ordering::Release);
    }
    let mut all = lock(&ALL);
    all.retain(|waiting| waiting.strong_count() > 0);
    all.push(waiting);
}

static ALL: PerProcess<Mutex<Vec<Weak<dyn IoHandler>>>> = PerProcess::new(Mutex::default);

extern "C" fn flush_all() {
    let Some(all) = ALL.made() else {
        return;
    };
    let all = std::mem::take(&mut *lock(all));
    for waiting in all.iter().filter_map(Weak::upgrade) {
        // Nothing is to unwind into the system's code.
        let _ = catch_unwind(AssertUnwindSafe(|| waiting.flush_on_exit()));
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::io::Write;
    use std::process::{Command, Stdio};
    use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

    use super::*;

    struct Prints(&'static str);

    impl IoHandler for Prints {
        fn attend(&self, _token: u64) {}

        fn flush_on_exit(&self) {
            // Not by `println`, which the harness keeps.
            let _ = std::io::stdout().write_all(self.0.as_bytes());
        }
    }

    /// What the test below runs in a process of its own.
    #[test]
    fn a_process_that_ends() {
        if std::env::var_os(CHILD).is_none() {
            return;
        }
        let [kept, gone] =
            ["flushed at the end", "never flushed"].map(|text| Arc::new(Prints(text)));
        for waiting in [&gone, &kept].map(Arc::downgrade) {
            at_exit(waiting);
        }
        drop(gone);
        std::process::exit(0);
    }

    static STARTING: RwLock<()> = RwLock::new(());

    /// Until it is dropped no child is started here: one has all open descriptors for a moment, and what is closed meanwhile is not.
    pub(crate) fn no_child_starts() -> RwLockReadGuard<'static, ()> {
        STARTING.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Until it is dropped a child may be started here that has all open descriptors.
    pub(crate) fn a_child_starts() -> RwLockWriteGuard<'static, ()> {
        STARTING.write().unwrap_or_else(PoisonError::into_inner)
    }

    #[test]
    fn what_is_still_there_is_flushed() {
        let starting = a_child_starts();
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "exit::tests::a_process_that_ends", "--nocapture"])
            .env(CHILD, "1")
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        drop(starting);
        let output = child.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(said.contains("flushed at the end"), "{said}");
        assert!(!said.contains("never flushed"), "{said}");
    }

    const CHILD: &str = "POLYVERBS_TEST_FLUSH_ON_EXIT";
}
