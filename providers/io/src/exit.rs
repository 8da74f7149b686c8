//! Flushes links when the process exits normally, so that their pending frames are sent.
// The system calls a function pointer of this module and keeps no other pointer.
#![allow(unsafe_code)]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Weak;
use std::sync::atomic::{AtomicBool, Ordering};

use verbs_api::provider::{Mutex, PerProcess};

use crate::IoHandler;

/// Makes the process flush the link `waiting`, if it still exists, when the process ends by `exit` or because `main`
/// returned. A child of a fork does not flush it, because the pending frames belong to its parent.
pub(crate) fn at_exit(waiting: Weak<dyn IoHandler>) {
    static IS_HOOKED: AtomicBool = AtomicBool::new(false);
    if !IS_HOOKED.load(Ordering::Acquire) {
        // SAFETY: `flush_all` takes no argument, and exists until the process ends or this library is unloaded: then the
        // system calls it before that. If the system has no room for it, nothing is flushed. A second call finds nothing to
        // flush.
        let _ = unsafe { libc::atexit(flush_all) };
        IS_HOOKED.store(true, Ordering::Release);
    }
    let mut all = ALL.lock();
    all.retain(|waiting| waiting.strong_count() > 0);
    all.push(waiting);
}

static ALL: PerProcess<Mutex<Vec<Weak<dyn IoHandler>>>> = PerProcess::new(Mutex::default);

extern "C" fn flush_all() {
    let Some(all) = ALL.made() else {
        return;
    };
    let all = std::mem::take(&mut *all.lock());
    for waiting in all.iter().filter_map(Weak::upgrade) {
        // A panic must not unwind into the system's code.
        let _ = catch_unwind(AssertUnwindSafe(|| waiting.flush_on_exit()));
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::io::Write;
    use std::process::{Command, Stdio};
    use std::sync::{Arc, RwLockReadGuard, RwLockWriteGuard};

    use verbs_api::provider::RwLock;

    use super::*;

    struct Prints(&'static str);

    impl IoHandler for Prints {
        fn attend(&self, _token: u64) {}

        fn flush_on_exit(&self) {
            // The test harness captures `println`.
            let _ = std::io::stdout().write_all(self.0.as_bytes());
        }
    }

    /// Exits while one of two handlers still exists. The test below runs this in a process of its own.
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

    /// Keeps other tests from starting a child process while the guard exists. A child that starts has all open descriptors
    /// for a moment, so that closing one in this process has no effect yet.
    pub(crate) fn no_child_starts() -> RwLockReadGuard<'static, ()> {
        STARTING.read()
    }

    /// Waits for the guards of [`no_child_starts`], and lets the test start a child process while the guard exists.
    pub(crate) fn a_child_starts() -> RwLockWriteGuard<'static, ()> {
        STARTING.write()
    }

    #[test]
    fn a_handler_that_exists_is_flushed_at_exit() {
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
