//! Completion queues: completions that a poll takes from the device pass the hooks, and wait here while they are held.

use std::collections::VecDeque;
use std::mem;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use verbs_api::VerbError;
use verbs_api::WcStatus;
use verbs_api::completion::{Completion, Notify};
use verbs_api::provider::{CompletionSink, CqOps, Mutex, Reply};

use crate::hooks::{Arguments, Call, CompletionFate, Polled};
use crate::object::{Object, Queue};
use crate::open_layer::OpenLayer;
use crate::verb::Verb;

pub(crate) struct CompletionQueue {
    pub(crate) inner: Arc<dyn CqOps>,
    open: Arc<OpenLayer>,
    object: Arc<Object>,
    held: Mutex<VecDeque<Held>>,
    notice: Arc<Notice>,
}

/// A completion that a hook holds back, or that waits after one of the same queue pair.
struct Held {
    completion: Completion,
    due: Duration,
}

/// Notifies the program when a held completion is due and the queue is armed.
struct Notice {
    sink: Arc<dyn CompletionSink>,
    is_armed: AtomicBool,
}

impl Notice {
    fn due(&self) {
        if self.is_armed.swap(false, Ordering::AcqRel) {
            self.sink.notify();
        }
    }
}

/// The queue of a queue pair whose request has completed.
fn queue_of(completion: &Completion) -> Queue {
    match completion.opcode.is_receive() {
        true => Queue::Receive,
        false => Queue::Send,
    }
}

impl CompletionQueue {
    pub(crate) fn new(
        inner: Arc<dyn CqOps>,
        open: Arc<OpenLayer>,
        object: Arc<Object>,
        sink: Arc<dyn CompletionSink>,
    ) -> Self {
        Self {
            inner,
            open,
            object,
            held: Mutex::default(),
            notice: Arc::new(Notice {
                sink,
                is_armed: AtomicBool::new(false),
            }),
        }
    }

    pub(crate) fn number(&self) -> u32 {
        self.object.number()
    }

    fn call(&self, verb: Verb) -> Result<(), VerbError> {
        self.open.before_direct(&mut Call {
            verb,
            open: Some(&self.open),
            on: Some(&self.object),
            arguments: Arguments::None,
        })
    }

    /// Asks the hooks about a completion. Returns how long it is held; `None` if the program does not get it.
    fn judge(&self, completion: &mut Completion) -> Option<Duration> {
        let qp = self.open.qp(completion.qp_num);
        let queue = queue_of(completion);
        // A request that was posted after a failed one is flushed, also if the device has executed the request by now.
        let facts = qp.as_ref().and_then(|qp| qp.qp());
        if facts.is_some_and(|qp| qp.has_failed(queue)) && completion.status.is_success() {
            completion.status = WcStatus::WrFlushErr;
            return Some(Duration::ZERO);
        }
        let at = Polled {
            open: &self.open,
            cq: &self.object,
            qp: qp.as_ref(),
        };
        match self.open.layer.hooks.completion(&at, completion) {
            CompletionFate::Deliver => Some(Duration::ZERO),
            CompletionFate::Fail(status, vendor_err) => {
                completion.status = status;
                completion.vendor_err = vendor_err;
                if let Some(qp) = &qp {
                    self.open.fail_after(qp, queue);
                }
                Some(Duration::ZERO)
            }
            CompletionFate::Lose => None,
            CompletionFate::Hold(time) => Some(time),
        }
    }

    /// Moves the held completions that are due to the front of `completions`; returns how many. Those of one queue pair are due
    /// in their order.
    fn release(held: &mut VecDeque<Held>, now: Duration, completions: &mut [Completion]) -> usize {
        let mut released = 0;
        let mut place = 0;
        while place < held.len() && released < completions.len() {
            if held[place].due > now {
                place += 1;
            } else if let Some(due) = held.remove(place) {
                completions[released] = due.completion;
                released += 1;
            }
        }
        released
    }

    /// Whether a completion that is held could be polled now.
    fn has_due(&self) -> bool {
        let now = self.open.layer.clock.now();
        self.held.lock().iter().any(|held| held.due <= now)
    }
}

impl CqOps for CompletionQueue {
    fn cqe(&self) -> u32 {
        self.inner.cqe()
    }

    fn poll(&self, completions: &mut [Completion]) -> Result<usize, VerbError> {
        // The flushed completions of a removed device can still be polled.
        if !self.open.is_removed() {
            self.call(Verb::PollCq)?;
        }
        if self.object.has_overrun() {
            return Err(VerbError::CqOverrun);
        }
        let clock = &self.open.layer.clock;
        let released = Self::release(&mut self.held.lock(), clock.now(), completions);
        let found = match self.inner.poll(&mut completions[released..]) {
            Ok(found) => found,
            Err(_) if released > 0 => 0,
            Err(error) => return Err(error),
        };
        let mut ready = released;
        for place in released..released + found {
            let mut completion = mem::take(&mut completions[place]);
            // No lock is held here: what a hook does may notify the program, which polls in its handler.
            let Some(hold) = self.judge(&mut completion) else {
                continue;
            };
            let mut held = self.held.lock();
            let mut of_qp = held.iter().rev();
            let earlier = of_qp.find(|held| held.completion.qp_num == completion.qp_num);
            let earlier = earlier.map(|held| held.due);
            if hold.is_zero() && earlier.is_none() {
                completions[ready] = completion;
                ready += 1;
                continue;
            }
            let now = clock.now();
            let due = now.saturating_add(hold).max(earlier.unwrap_or_default());
            held.push_back(Held { completion, due });
            drop(held);
            let notice = Arc::clone(&self.notice);
            clock.after(due.saturating_sub(now), Box::new(move || notice.due()));
        }
        Ok(ready)
    }

    fn arm(&self, notify: Notify) -> Result<bool, VerbError> {
        self.open.before_direct(&mut Call {
            verb: Verb::ReqNotifyCq,
            open: Some(&self.open),
            on: Some(&self.object),
            arguments: Arguments::Notify(notify),
        })?;
        self.notice.is_armed.store(true, Ordering::Release);
        let is_present = self.inner.arm(notify)?;
        Ok(is_present || self.has_due())
    }

    // The safe layer makes a descriptor of the sink, which is notified of completions that were held too.
    fn fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn drain(&self) {
        self.inner.drain();
    }

    fn resize(&self, mut cqe: u32, reply: Reply<u32>) {
        let verb = Verb::ResizeCq;
        let before = self.open.before(&mut Call {
            verb,
            open: Some(&self.open),
            on: Some(&self.object),
            arguments: Arguments::Cqe(&mut cqe),
        });
        let inner = Arc::clone(&self.inner);
        let (open, object) = (Arc::clone(&self.open), Arc::clone(&self.object));
        let on = Some(&self.object);
        self.open.carry_out(before, verb, on, reply, move |reply| {
            inner.resize(cqe, open.telling(verb, Some(&object), reply));
        });
    }

    fn destroy(&self, reply: Reply<()>) {
        let inner = Arc::clone(&self.inner);
        let verb = Verb::DestroyCq;
        self.open
            .destroy(verb, &self.object, reply, move |reply| inner.destroy(reply));
    }
}
