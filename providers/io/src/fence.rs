//! The process-wide memory fence of Linux (`membarrier`). It executes a barrier on every thread of the process, so that a
//! thread that pins itself in the engine, which it does at every doorbell, needs no barrier of its own.

// The engine relies on the fence for memory safety.
#![allow(unsafe_code)]

use std::sync::atomic::{AtomicBool, Ordering};

use polyverbs_engine::pin;
use rustix::thread::{MembarrierCommand, membarrier};

static IS_OFFERED: AtomicBool = AtomicBool::new(false);

/// Gives the engine the system's fence for its pins, if the system has one. Children of a fork inherit it.
pub(crate) fn offer() {
    if IS_OFFERED.load(Ordering::Acquire) {
        return;
    }
    if membarrier(MembarrierCommand::RegisterPrivateExpedited).is_ok() {
        // SAFETY: after the registration, the system executes a barrier on all running threads before the call returns.
        unsafe { pin::use_process_fence(fence) };
    }
    // Threads that call this at the same time do the same work, and none of them waits for another.
    IS_OFFERED.store(true, Ordering::Release);
}

fn fence() {
    // The registration has succeeded, so this cannot fail; if it did, no thread could continue safely.
    membarrier(MembarrierCommand::PrivateExpedited).expect("a registered fence");
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::fork::tests::in_children_beside;

    /// Returns whether a callback that the engine defers runs at once, because no thread is pinned.
    fn runs_at_once() -> bool {
        let has_run = Arc::new(AtomicBool::new(false));
        let set = Arc::clone(&has_run);
        pin::after_grace(move || set.store(true, Ordering::SeqCst));
        has_run.load(Ordering::SeqCst)
    }

    #[test]
    fn a_child_waits_for_no_pin_of_its_parents_threads() {
        offer();
        let busy = || {
            let pinned = pin::pin();
            pin::after_grace(|| ());
            drop(pinned);
        };
        assert!(in_children_beside(busy, || {
            !pin::is_any_deferred() && runs_at_once()
        }));
    }
}
