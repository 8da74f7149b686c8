//! Shared receive queues.

use std::collections::{HashSet, VecDeque};
use std::sync::{Arc, Weak};

use verbs_api::memory::Loan;
use verbs_api::objects::ObjectId;
use verbs_api::provider::{EventSink, Reply, SrqInit, SrqOps};
use verbs_api::{
    VerbError,
    event::{EventSubject, EventType},
    wr::{PostReason, ReceiveRequest},
};

use crate::commands::{Commands, out_of_range};
use crate::effects::{Effects, QpActions};
use crate::loans;
use crate::lock::{Lock, LockClass};
use crate::quota::Place;
use crate::receive_ring::Receive;
use crate::rules::{self, Rule};

/// The registration of a shared receive queue, by which requests of peers that name its number find it. Dropping it ends
/// that.
pub trait NamedSrq: Send + Sync {
    /// Returns the number by which requests name the queue.
    fn srq_num(&self) -> u32;
}

/// The error of taking a receive from a shared receive queue that has failed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SrqFailed;

/// A shared receive queue.
pub struct Srq {
    me: Weak<Self>,
    id: ObjectId,
    /// The protection domain against which the entries of its receives are checked.
    pub pd: u32,
    max_sge: u32,
    events: Arc<dyn EventSink>,
    commands: Arc<Commands>,
    state: Lock<State>,
    _place: Place,
}

#[derive(Default)]
struct State {
    queue: VecDeque<Receive>,
    max_wr: u32,
    limit: u32,
    destroyed: bool,
    failed: bool,
    starved: Starved,
    /// The registration by which requests that name the queue find it; `None` if requests do not name it.
    name: Option<Box<dyn NamedSrq>>,
}

/// Queue pairs that found no receive in the shared queue, in order. Each is listed once, however often it tries.
#[derive(Default)]
struct Starved {
    queue: Vec<Weak<dyn QpActions>>,
    known: HashSet<usize>,
}

impl Starved {
    fn add(&mut self, qp: Weak<dyn QpActions>) {
        // The weak reference keeps its address from being reused.
        if self.known.insert(qp.as_ptr().cast::<()>() as usize) {
            self.queue.push(qp);
        }
    }

    fn take(&mut self) -> Vec<Weak<dyn QpActions>> {
        self.known.clear();
        std::mem::take(&mut self.queue)
    }
}

impl Srq {
    pub(crate) fn new(
        init: &SrqInit,
        pd: u32,
        events: Arc<dyn EventSink>,
        commands: Arc<Commands>,
        place: Place,
    ) -> Arc<Self> {
        let state = State {
            queue: VecDeque::with_capacity(init.max_wr.min(1024) as usize),
            max_wr: init.max_wr,
            limit: init.srq_limit,
            ..State::default()
        };
        Arc::new_cyclic(|me| Self {
            me: me.clone(),
            id: init.id,
            pd,
            max_sge: init.max_sge,
            events,
            commands,
            state: Lock::new(LockClass::Receive, state),
            _place: place,
        })
    }

    pub(crate) fn set_name(&self, name: Box<dyn NamedSrq>) {
        self.state.lock().name = Some(name);
    }

    /// Takes the next posted receive. If there is none, this returns `None`, and the queue pair `waiting` is resumed when a
    /// receive has been posted.
    ///
    /// # Errors
    /// The queue has failed. The queue pair that needs a receive then fails, too.
    pub(crate) fn take(
        &self,
        waiting: Option<Weak<dyn QpActions>>,
        effects: &mut Effects,
    ) -> Result<Option<Receive>, SrqFailed> {
        let mut state = self.state.lock();
        if state.failed {
            return Err(SrqFailed);
        }
        let Some(receive) = state.queue.pop_front() else {
            if let Some(qp) = waiting {
                state.starved.add(qp);
            }
            return Ok(None);
        };
        if (state.queue.len() as u32) < state.limit && !rules::is_broken(Rule::SrqLimitEvent) {
            state.limit = 0;
            drop(state);
            let subject = EventSubject::Object(self.id);
            effects.event(&self.events, EventType::SrqLimitReached, subject);
        }
        Ok(Some(receive))
    }

    /// Fails the queue: an event reports that to the program, and each of its queue pairs fails when it next needs a
    /// receive.
    ///
    /// An emulated queue never fails by itself; this is for tests of programs that handle such a failure.
    pub fn fail(&self) {
        if !std::mem::replace(&mut self.state.lock().failed, true) {
            let subject = EventSubject::Object(self.id);
            self.events.event(EventType::SrqErr, subject);
        }
    }

    /// Returns whether no receive is posted.
    pub fn is_empty(&self) -> bool {
        self.state.lock().queue.is_empty()
    }
}

impl SrqOps for Srq {
    fn post(&self, requests: &[ReceiveRequest<'_>]) -> Result<(), (usize, PostReason)> {
        let mut state = self.state.lock();
        let mut result = Ok(());
        for (index, request) in requests.iter().enumerate() {
            if state.destroyed {
                result = Err((index, PostReason::InvalidHandle));
                break;
            }
            if state.queue.len() as u32 >= state.max_wr {
                result = Err((index, PostReason::QueueFull { max: state.max_wr }));
                break;
            }
            state.queue.push_back(Receive::of(request));
        }
        let starved = match state.queue.is_empty() {
            true => Vec::new(),
            false => state.starved.take(),
        };
        drop(state);
        let mut effects = Effects::default();
        for qp in starved.iter().filter_map(Weak::upgrade) {
            effects.resume(qp);
        }
        effects.run();
        result
    }

    fn modify(&self, srq_limit: Option<u32>, max_wr: Option<u32>, reply: Reply<()>) {
        let Some(srq) = self.me.upgrade() else { return };
        self.commands.run(reply, move || {
            let mut state = srq.state.lock();
            let posted = state.queue.len() as u32;
            if let Some(max_wr) = max_wr.filter(|&max_wr| max_wr < posted) {
                return Err(out_of_range("max_wr", max_wr, posted, u64::MAX));
            }
            let size = max_wr.unwrap_or(state.max_wr);
            if let Some(limit) = srq_limit.filter(|&limit| limit > size) {
                return Err(out_of_range("srq_limit", limit, 0u8, size));
            }
            state.max_wr = size;
            state.limit = srq_limit.unwrap_or(state.limit);
            Ok(())
        });
    }

    fn max_sge(&self) -> u32 {
        self.max_sge
    }

    fn srq_num(&self) -> Option<u32> {
        let state = self.state.lock();
        state.name.as_ref().map(|name| name.srq_num())
    }

    fn query(&self) -> Result<(u32, u32), VerbError> {
        let state = self.state.lock();
        Ok((state.max_wr, state.limit))
    }

    fn posted(&self) -> Option<u32> {
        Some(self.state.lock().queue.len() as u32)
    }

    fn destroy(&self, reply: Reply<()>) {
        let Some(srq) = self.me.upgrade() else { return };
        self.commands.run_last(reply, move |reply| {
            let mut state = srq.state.lock();
            state.destroyed = true;
            let queue = std::mem::take(&mut state.queue);
            let name = state.name.take();
            drop(state);
            drop(name);
            for receive in queue {
                loans::release(Loan::from_bits(receive.loan));
            }
            reply.send(Ok(()));
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Waits;

    impl QpActions for Waits {
        fn flush(self: Arc<Self>, _: &mut Effects) {}
        fn resume(self: Arc<Self>, _: &mut Effects) {}
        fn fatal(self: Arc<Self>, _: &mut Effects) {}
    }

    fn weak(qp: &Arc<Waits>) -> Weak<dyn QpActions> {
        let qp: Weak<Waits> = Arc::downgrade(qp);
        qp
    }

    #[test]
    fn a_queue_pair_that_retries_waits_once() {
        let qps = [Arc::new(Waits), Arc::new(Waits)];
        let mut starved = Starved::default();
        for _ in 0..2 {
            for _ in 0..1000 {
                qps.iter().for_each(|qp| starved.add(weak(qp)));
            }
            assert_eq!(starved.take().len(), 2);
        }
    }
}
