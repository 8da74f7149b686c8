//! What is still to be done when the process ends by itself.
// The system calls a function back, and keeps no pointer but to that.
#![allow(unsafe_code)]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, Once, PoisonError, Weak};

/// Something with last words.
pub trait LastWords: Send + Sync {
    /// The process ends, with other threads still running: says what waits to be said.
    fn say(&self);
}

/// Has `words` said when the process ends by itself, as long as there is one who has them: by `exit`, or because `main`
/// returned. Not in a child that a fork made: what waits is its parent's.
pub fn at_exit(words: Weak<dyn LastWords>) {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        // SAFETY: `say_all` takes nothing, and is there until the process ends, or until this library is unloaded: then
        // it is called before. Where there is no room for it, nothing is said.
        let _ = unsafe { libc::atexit(say_all) };
    });
    let mut all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
    all.retain(|(_, words)| words.strong_count() > 0);
    all.push((std::process::id(), words));
}

static ALL: Mutex<Vec<(u32, Weak<dyn LastWords>)>> = Mutex::new(Vec::new());

extern "C" fn say_all() {
    // A lock that another thread held when this process was forked stays held.
    let Ok(mut all) = ALL.try_lock() else {
        return;
    };
    let all = std::mem::take(&mut *all);
    let own = std::process::id();
    let own = all.iter().filter(|(process, _)| *process == own);
    for words in own.filter_map(|(_, words)| words.upgrade()) {
        // Nothing is to unwind into the system's code.
        let _ = catch_unwind(AssertUnwindSafe(|| words.say()));
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::process::Command;
    use std::sync::Arc;

    use super::*;

    struct Prints(&'static str);

    impl LastWords for Prints {
        fn say(&self) {
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
        let [kept, gone] = ["said at the end", "never said"].map(|text| Arc::new(Prints(text)));
        for words in [&gone, &kept] {
            let words: Arc<dyn LastWords> = Arc::clone(words) as _;
            at_exit(Arc::downgrade(&words));
        }
        drop(gone);
        std::process::exit(0);
    }

    #[test]
    fn who_is_still_there_says_his_last_words() {
        let output = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "exit::tests::a_process_that_ends", "--nocapture"])
            .env(CHILD, "1")
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(said.contains("said at the end"), "{said}");
        assert!(!said.contains("never said"), "{said}");
    }

    const CHILD: &str = "POLYVERBS_TEST_LAST_WORDS";
}
