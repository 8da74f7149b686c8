//! Streams that had something lately: whoever has the turn looks at them without asking epoll.
//!
//! One at which pollers find something again and again is *left* to them: it is not watched until the thread is to sleep,
//! which it does when they are gone. Otherwise the kernel would tell epoll of all that arrives, and that the epoll in which
//! the thread sleeps: at the sender's cost, a twentieth of a conversation's.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use polyverbs_sockets::{Source, Watch};

use super::{Stream, lock};
use crate::wire::codec::StreamCodec;

/// These streams, the one that is to be looked at next first.
pub(super) struct Lately<C: StreamCodec>(VecDeque<Recent<C>>);

/// One of them.
pub(super) struct Recent<C: StreamCodec> {
    pub(super) stream: Arc<Stream<C>>,
    /// How often it has had nothing since it had something.
    nothings: u32,
    /// How often it has had something since the thread slept; at [`OFTEN`] it is left to pollers.
    finds: u32,
}

impl<C: StreamCodec> Default for Lately<C> {
    fn default() -> Self {
        Self(VecDeque::with_capacity(MOST))
    }
}

impl<C: StreamCodec> Lately<C> {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// A stream of which epoll told has something.
    pub(super) fn remember(&mut self, stream: &Arc<Stream<C>>, watch: &Watch) {
        let mut known = self.0.iter().map(|recent| &recent.stream);
        if known.any(|known| Arc::ptr_eq(known, stream)) || !stream.is_asked() {
            return;
        }
        for mut recent in self.0.drain((MOST - 1).min(self.0.len())..) {
            recent.watch(watch);
        }
        self.0.push_front(Recent {
            stream: Arc::clone(stream),
            nothings: 0,
            finds: 0,
        });
    }

    /// The next one, to be looked at and then [put back](Self::put_back).
    pub(super) fn next(&mut self) -> Option<Recent<C>> {
        self.0.pop_front()
    }

    /// Where `found`, it had something. Call it with the turn.
    pub(super) fn put_back(&mut self, mut recent: Recent<C>, found: bool, watch: &Watch) {
        recent.nothings = if found { 0 } else { recent.nothings + 1 };
        if recent.nothings == FORGOTTEN || !recent.stream.is_asked() {
            return recent.watch(watch);
        }
        if found && recent.finds < OFTEN {
            recent.finds += 1;
            if recent.finds == OFTEN && !recent.leave(watch) {
                recent.finds = 0;
            }
        }
        self.0.push_back(recent);
    }

    /// The thread is about to sleep.
    pub(super) fn watch(&mut self, watch: &Watch) {
        for recent in &mut self.0 {
            recent.watch(watch);
        }
    }
}

impl<C: StreamCodec> Recent<C> {
    // Whether it could be left to pollers.
    fn leave(&self, watch: &Watch) -> bool {
        // Of room only the watch tells.
        let outgoing = lock(&self.stream.outgoing);
        // Where the thread does not stand back it may have seen to all streams already, before it sleeps.
        watch.stood_back()
            && !outgoing.wants_word
            && watch.remove(&*self.stream.socket, Source::Stream).is_ok()
    }

    fn watch(&mut self, watch: &Watch) {
        if std::mem::take(&mut self.finds) == OFTEN {
            // It is watched already where it has waited for room since.
            let _ = watch.add(&*self.stream.socket, self.stream.key, Source::Stream);
        }
    }
}

impl<C: StreamCodec> Stream<C> {
    // Whether its socket may have frames.
    pub(super) fn is_asked(&self) -> bool {
        !self.reads_memory.load(Ordering::Relaxed) && !self.is_gone()
    }
}

const MOST: usize = 4;
/// How often one of them has nothing before it is asked for like the others.
const FORGOTTEN: u32 = 256;
const OFTEN: u32 = 64;
