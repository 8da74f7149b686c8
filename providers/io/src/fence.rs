//! The fence that the system lends: it makes every thread of the process fence at once, so that a thread that pins
//! itself, which happens at every doorbell, need not.

// The engine trusts the fence.
#![allow(unsafe_code)]

use std::sync::Once;

use polyverbs_engine::pin;
use rustix::thread::{MembarrierCommand, membarrier};

static OFFERED: Once = Once::new();

/// Gives the engine the system's fence, where the system has it; once per process.
pub(crate) fn offer() {
    OFFERED.call_once(|| {
        if membarrier(MembarrierCommand::RegisterPrivateExpedited).is_ok() {
            // SAFETY: registered, the system has all running threads fence before it returns.
            unsafe { pin::use_process_fence(fence) };
        }
    });
}

fn fence() {
    // Registered before: this cannot fail, and nothing could go on safely if it did.
    membarrier(MembarrierCommand::PrivateExpedited).expect("a registered fence");
}
