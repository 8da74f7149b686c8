//! A thread that waits for a verb carries it out itself where a provider's thread would have to be woken for it: that saves
//! two thread switches.

use std::cell::RefCell;
use std::sync::{Arc, Weak};

/// A queue of started verbs that any thread may carry out.
pub trait Help: Send + Sync {
    /// Carries them out in turn until `is_done`, or until those that are left are being carried out by other threads.
    fn help(&self, is_done: &dyn Fn() -> bool);
}

thread_local! {
    static WANTED: RefCell<Option<Weak<dyn Help>>> = const { RefCell::new(None) };
}

/// Called by a provider that has just queued a verb for its own thread: if the calling thread waits for it, it helps. A thread
/// that is ending has no place for the queue, and leaves the verb to the provider's thread.
pub fn want_help(help: &Weak<dyn Help>) {
    let _ = WANTED.try_with(|wanted| wanted.replace(Some(Weak::clone(help))));
}

/// Helps with the queue that was passed to `want_help` last on this thread.
pub(super) fn help_until(is_done: &dyn Fn() -> bool) {
    let wanted = WANTED.try_with(RefCell::take).ok().flatten();
    let wanted = wanted.as_ref().and_then(Weak::upgrade);
    wanted
        .iter()
        .for_each(|help: &Arc<dyn Help>| help.help(is_done));
}
