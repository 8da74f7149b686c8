//! A link together with the thread that reads it.

use std::sync::{Arc, OnceLock};

use polyverbs_engine::link::{Deliver, Frame, Link, TrySend};
use polyverbs_engine::time::Time;
use polyverbs_sockets::IoHandler;

/// A link, with the thread that reads it while nobody polls: that ends with the network that has this.
pub struct WatchedLink<L> {
    link: Arc<L>,
    handler: OnceLock<Arc<dyn IoHandler>>,
}

impl<L> WatchedLink<L> {
    /// A link whose thread is not there yet: it needs the network, and the network this.
    pub fn new(link: Arc<L>) -> Self {
        Self {
            link,
            handler: OnceLock::new(),
        }
    }

    /// What the link was started with. Only the first is kept.
    pub fn keep(&self, handler: Arc<dyn IoHandler>) {
        let _ = self.handler.set(handler);
    }
}

impl<H: 'static, L: Link<H>> Link<H> for WatchedLink<L> {
    fn inner(&self) -> Option<&dyn Link<H>> {
        Some(&*self.link)
    }

    fn max_frame(&self) -> Option<usize> {
        self.link.max_frame()
    }

    fn send(&self, frame: Frame<'_, H>, now: Time) {
        self.link.send(frame, now);
    }

    fn try_send(&self, frame: Frame<'_, H>, now: Time) -> TrySend {
        self.link.try_send(frame, now)
    }

    fn progress(&self, now: Time, network: &dyn Deliver<H>) -> bool {
        self.link.progress(now, network)
    }

    fn next_due(&self) -> Option<Time> {
        self.link.next_due()
    }
}
