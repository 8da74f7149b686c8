//! Verbs that a provider's thread carries out, carried out by who waits for them instead: it has nothing else to do, and no thread
//! need be woken and wake it in turn.

use std::cell::RefCell;
use std::sync::{Arc, Weak};

/// Verbs that were started and that any thread may carry out.
pub trait Help: Send + Sync {
    /// Carries them out in turn until `is_done`, or until none is left that nobody else carries out.
    fn help(&self, is_done: &dyn Fn() -> bool);
}

thread_local! {
    static WANTED: RefCell<Option<Weak<dyn Help>>> = const { RefCell::new(None) };
}

/// For a provider that has just left a verb to a thread of its own: where this thread waits for it, it helps.
pub fn want_help(help: &Weak<dyn Help>) {
    WANTED.set(Some(Weak::clone(help)));
}

/// Helps whoever has asked this thread last.
pub(super) fn help_until(is_done: &dyn Fn() -> bool) {
    let wanted = WANTED.take().as_ref().and_then(Weak::upgrade);
    wanted
        .iter()
        .for_each(|help: &Arc<dyn Help>| help.help(is_done));
}
