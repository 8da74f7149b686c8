//! What is still to be done when the process ends by itself.
// The system calls a function back, and keeps no pointer but to that.
#![allow(unsafe_code)]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, Once, Weak};

use crate::{IoHandler, lock};

/// Flushes `waiting`, if it is still there, when the process ends by itself: by `exit`, or because `main` returned. Not in
/// a child that a fork made: what waits is its parent's.
pub(crate) fn at_exit(waiting: Weak<dyn IoHandler>) {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        // SAFETY: `flush_all` takes nothing, and is there until the process ends, or until this library is unloaded: then
        // it is called before. Where there is no room for it, nothing is flushed.
        let _ = unsafe { libc::atexit(flush_all) };
    });
    let mut all = lock(&ALL);
    all.retain(|(_, waiting)| waiting.strong_count() > 0);
    all.push((std::process::id(), waiting));
}

static ALL: Mutex<Vec<(u32, Weak<dyn IoHandler>)>> = Mutex::new(Vec::new());

extern "C" fn flush_all() {
    // A lock that another thread held when this process was forked stays held.
    let Ok(mut all) = ALL.try_lock() else {
        return;
    };
    let all = std::mem::take(&mut *all);
    let own = std::process::id();
    let own = all.iter().filter(|(process, _)| *process == own);
    for waiting in own.filter_map(|(_, waiting)| waiting.upgrade()) {
        // Nothing is to unwind into the system's code.
        let _ = catch_unwind(AssertUnwindSafe(|| waiting.flush_on_exit()));
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::io::Write;
    use std::process::{Command, Stdio};
    use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

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

    #[test]
    fn what_is_still_there_is_flushed() {
        let starting = STARTING.write().unwrap_or_else(PoisonError::into_inner);
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
