//! The fence that the system lends: it makes every thread of the process fence at once, so that a thread that pins
//! itself, which happens at every doorbell, need not.

// The engine trusts the fence.
#![allow(unsafe_code)]

use std::sync::atomic::{AtomicBool, Ordering};

use polyverbs_engine::pin;
use rustix::thread::{MembarrierCommand, membarrier};

static IS_OFFERED: AtomicBool = AtomicBool::new(false);

/// Gives the engine the system's fence, where the system has it. Children of a fork have it then, too.
pub(crate) fn offer() {
    if IS_OFFERED.load(Ordering::Acquire) {
        return;
    }
    if membarrier(MembarrierCommand::RegisterPrivateExpedited).is_ok() {
        // SAFETY: registered, the system has all running threads fence before it returns.
        unsafe { pin::use_process_fence(fence) };
    }
    // Threads that come here at the same moment do the same, and none of them waits.
    IS_OFFERED.store(true, Ordering::Release);
}

fn fence() {
    // Registered before: this cannot fail, and nothing could go on safely if it did.
    membarrier(MembarrierCommand::PrivateExpedited).expect("a registered fence");
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::fork::tests::in_children_beside;

    /// Whether a callback runs at once, which no other thread's pin delays.
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
