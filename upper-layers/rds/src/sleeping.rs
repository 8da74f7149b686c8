//! Threads of the program that sleep until something changes at a socket.
//!
//! While programs poll, the threads of nodes leave the completion queues to them, and look only now and then whether they still do.
//! A thread that sleeps in a call of its own, as in `poll`, therefore says so.

use std::sync::atomic::{AtomicUsize, Ordering};

use crate::node;

static SLEEPING: AtomicUsize = AtomicUsize::new(0);

/// A thread that sleeps, or is about to: as long as there is one, each change at a socket is told at once
/// ([`RdsSocket::on_change`](crate::RdsSocket::on_change)). Making one takes no lock, so that a signal handler may.
#[derive(Debug)]
#[must_use = "changes are told at once as long as it is there"]
pub struct Sleeping(());

impl Sleeping {
    #[expect(missing_docs)]
    #[expect(clippy::new_without_default, reason = "making one has an effect")]
    pub fn new() -> Self {
        SLEEPING.fetch_add(1, Ordering::SeqCst);
        node::look_at_once();
        Self(())
    }

    /// Ends one that was forgotten ([`std::mem::forget`]): for those who can keep none.
    pub fn forgotten_is_over() {
        drop(Self(()));
    }

    /// Whether there is one in this process.
    pub(crate) fn is_any() -> bool {
        SLEEPING.load(Ordering::SeqCst) > 0
    }
}

impl Drop for Sleeping {
    fn drop(&mut self) {
        SLEEPING.fetch_sub(1, Ordering::SeqCst);
    }
}
