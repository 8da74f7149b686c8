//! Streams that had something lately: they are read without asking epoll for them.

use std::collections::VecDeque;
use std::sync::Arc;

use super::Stream;
use crate::codec::StreamCodec;

/// These streams, the one that is to be read next first, and how often each has had nothing since it had something.
pub(super) struct HotStreams<C: StreamCodec>(VecDeque<(Arc<Stream<C>>, u32)>);

impl<C: StreamCodec> Default for HotStreams<C> {
    fn default() -> Self {
        Self(VecDeque::with_capacity(MOST))
    }
}

impl<C: StreamCodec> HotStreams<C> {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// A stream of which epoll told has something.
    pub(super) fn remember(&mut self, stream: &Arc<Stream<C>>) {
        let is_known = self.0.iter().any(|(known, _)| Arc::ptr_eq(known, stream));
        if !is_known && stream.is_asked() {
            self.0.truncate(MOST - 1);
            self.0.push_front((Arc::clone(stream), 0));
        }
    }

    /// The next one, to be read and then [put back](Self::put_back).
    pub(super) fn next(&mut self) -> Option<(Arc<Stream<C>>, u32)> {
        self.0.pop_front()
    }

    /// Where `found`, it had something.
    pub(super) fn put_back(&mut self, stream: Arc<Stream<C>>, nothings: u32, found: bool) {
        let nothings = if found { 0 } else { nothings + 1 };
        if nothings < FORGOTTEN && stream.is_asked() {
            self.0.push_back((stream, nothings));
        }
    }
}

impl<C: StreamCodec> Stream<C> {
    // Whether its socket may have frames.
    pub(super) fn is_asked(&self) -> bool {
        self.channel.is_none() && !self.is_gone()
    }
}

const MOST: usize = 4;
/// How often one of them has nothing before it is asked for like the others.
const FORGOTTEN: u32 = 256;
