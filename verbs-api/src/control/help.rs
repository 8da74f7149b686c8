//! A thread that waits for a verb carries it out itself where a provider's thread would have to be woken for it: that saves
//! two thread switches.

use std::cell::RefCell;
use std::sync::{Arc, Weak};

/// A provider's queue of started verbs, which any thread may execute.
pub trait Help: Send + Sync {
    /// Executes the queued verbs in turn until `is_done` returns true, or until other threads are executing all that are
    /// left.
    fn help(&self, is_done: &dyn Fn() -> bool);
}

thread_local! {
    static WANTED: RefCell<Option<Weak<dyn Help>>> = const { RefCell::new(None) };
}

/// Called by a provider that has just queued a verb for its own thread: if the calling thread waits for the verb, it
/// executes queued verbs itself. A thread that is ending has no thread-local storage for this, and leaves the verb to the
/// provider's thread.
pub fn want_help(help: &Weak<dyn Help>) {
    let _ = WANTED.try_with(|wanted| wanted.replace(Some(Weak::clone(help))));
}

/// Executes verbs of the queue that was last passed to [`want_help`] on this thread, until `is_done` returns true.
pub(super) fn help_until(is_done: &dyn Fn() -> bool) {
    let wanted = WANTED.try_with(RefCell::take).ok().flatten();
    let wanted = wanted.as_ref().and_then(Weak::upgrade);
    wanted
        .iter()
        .for_each(|help: &Arc<dyn Help>| help.help(is_done));
}
