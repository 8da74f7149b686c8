//! Accepting a connection request: brings the queue pair up, sends the reply, and waits until the peer has completed.

use std::sync::Arc;

use verbs_api::provider::Mutex;
use verbs_api::provider::backend::{CmEvent, ConnectError, Offer, Refusal, Sink};
use verbs_api::{PathOptions, QpEndpoint, VerbError};

use super::connection::{Connection, settle};
use super::offer::refusal;
use super::request::Request;
use super::side::{Side, reject};
use super::target::Target;

/// Which of the two events have happened that an accept waits for: the queue pair is in RTS, and the peer has completed.
#[derive(Default)]
pub(super) struct AcceptProgress {
    queue_pair: bool,
    peer: bool,
}

#[derive(Clone)]
pub(super) struct Accept {
    pub(super) side: Arc<Side>,
    pub(super) target: Target,
    /// The private data of the peer's request.
    pub(super) private_data: Arc<[u8]>,
    pub(super) request: Arc<Request<Connection>>,
    pub(super) progress: Arc<Mutex<AcceptProgress>>,
    pub(super) brings_up: bool,
}

impl Accept {
    pub(super) fn begin(
        self,
        peer: &QpEndpoint,
        options: PathOptions,
        own: Offer,
        is_stream: bool,
    ) {
        if !self.brings_up {
            self.reached(|progress| progress.queue_pair = true);
            return self.send(own);
        }
        if self.side.backend.needs_init() {
            return match self.target.find() {
                Ok(qp) => {
                    let initialised = qp.init(options);
                    initialised.on_done(move |done| self.send_when(done, own));
                }
                Err(error) => self.fail(error),
            };
        }
        let up = match self.target.bring_up(&self.side, peer, options) {
            Ok(up) => up,
            Err(error) => return self.fail(error),
        };
        if is_stream {
            let this = self.clone();
            self.send(own);
            up.on_done(move |up| match up {
                Ok(()) => this.reached(|progress| progress.queue_pair = true),
                Err(error) => this.fail(ConnectError::in_queue_pair(error)),
            });
            return;
        }
        up.on_done(move |up| self.send_when(up, own));
    }

    /// Sends the reply to the peer if the queue pair was brought up (`done` is `Ok`); otherwise rejects the request.
    fn send_when(&self, done: Result<(), VerbError>, own: Offer) {
        match done {
            Ok(()) => {
                self.reached(|progress| progress.queue_pair = true);
                self.send(own);
            }
            Err(error) => self.fail(ConnectError::in_queue_pair(error)),
        }
    }

    fn send(&self, own: Offer) {
        let this = self.clone();
        self.side.wait_for(Box::new(move |event| {
            let Some(event) = this.request.or_cancel(event) else {
                return;
            };
            match event {
                // A peer that disconnects has completed before, even if that message was lost.
                CmEvent::Completed | CmEvent::Disconnected => {
                    this.reached(|progress| progress.peer = true)
                }
                other => this.end_queue_pair(refusal(other)),
            }
        }));
        let token = self.side.token();
        let sink = Arc::clone(&self.side) as Arc<dyn Sink>;
        if let Err(error) = token.and_then(|token| self.side.backend.accept(token, own, sink)) {
            let waiter = self.side.lock().waiter.take();
            drop(waiter);
            self.end_queue_pair(error);
        }
    }

    fn reached(&self, update: impl FnOnce(&mut AcceptProgress)) {
        let mut progress = self.progress.lock();
        update(&mut progress);
        let is_done = progress.queue_pair && progress.peer;
        drop(progress);
        if !is_done {
            return;
        }
        // The queue pair may have been destroyed meanwhile.
        let found = self.target.find().map(|_| ());
        let side = Arc::clone(&self.side);
        let settled = settle(side, &self.target, &self.private_data, found);
        self.request.end(settled);
    }

    fn fail(&self, error: ConnectError) {
        let _ = reject(&self.side, Refusal::Program, b"");
        self.request.end(Err(error));
    }

    /// Ends the accept with `error`, and flushes the queue pair, which may have been brought up already.
    fn end_queue_pair(&self, error: ConnectError) {
        if self.brings_up {
            self.target.flush_unasked();
        }
        self.request.end(Err(error));
    }
}
