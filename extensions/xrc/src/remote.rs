//! Handles of targets that other processes at the device's address have made.
//!
//! The process that has made a target keeps its queue pair until the last handle is closed, whatever process has it. It reports
//! the target's events to the processes that have handles. If it ends, the target ends, and the handles report that.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, Weak};
use std::time::Duration;

use polyverbs_engine::emulation::{Domains, QpHandle};
use verbs_api::event::{EventSubject, EventType};
use verbs_api::objects::ObjectId;
use verbs_api::provider::{Condvar, EventSink, Mutex, PostOps, QpOps, Reply, random};
use verbs_api::qp::{QpAttributes, QpCap, QpState, QpStatus};
use verbs_api::wr::{PostReason, ReceiveRequest, WorkRequest};
use verbs_api::{Operations, VerbError, ids::Qpn};

use crate::domain::Domain;

/// The part of a domain by which its processes have handles of one another's targets.
#[derive(Default)]
pub(crate) struct Remote {
    /// By which other processes are reached.
    domains: Mutex<Option<Arc<Domains>>>,
    /// The handles of this process, by their tokens.
    opened: Mutex<HashMap<u64, Weak<RemoteTarget>>>,
    /// The domain itself, while other processes have handles of its targets.
    kept: Mutex<Option<Arc<Domain>>>,
}

impl Remote {
    pub(crate) fn publish(&self, to: &Arc<Domains>) {
        *self.domains.lock() = Some(Arc::clone(to));
    }

    pub(crate) fn domains(&self) -> Option<Arc<Domains>> {
        self.domains.lock().clone()
    }
}

/// A handle of a target of another process.
pub(crate) struct RemoteTarget {
    domain: Arc<Domain>,
    qpn: Qpn,
    id: ObjectId,
    events: Arc<dyn EventSink>,
    /// Names the handle between the two processes.
    token: u64,
    answer: Mutex<Answer>,
    answered: Condvar,
}

/// What the process that has the target has answered.
#[derive(Clone, Copy, Debug, Default)]
struct Answer {
    /// How many answers have come.
    count: u32,
    /// The state of the target; `None` if there is no such target.
    state: Option<QpState>,
    is_gone: bool,
}

const OPEN: u8 = 1;
const QUERY: u8 = 2;
const CLOSE: u8 = 3;
const STATE: u8 = 4;
const EVENT: u8 = 5;
/// The code of a target that does not exist.
const NONE: u8 = u8::MAX;

fn message(kind: u8, token: u64, qpn: u32, code: u8) -> Vec<u8> {
    let (token, qpn) = (token.to_ne_bytes(), qpn.to_ne_bytes());
    [&[kind, code], &token[..], &qpn[..]].concat()
}

impl RemoteTarget {
    /// Opens a handle of the target with this number.
    ///
    /// # Errors
    /// The domain has no such target in the process that has this number, or that process does not answer.
    pub(crate) fn open(
        domain: &Arc<Domain>,
        qpn: Qpn,
        handle: &QpHandle<'_>,
    ) -> Result<Arc<Self>, VerbError> {
        let opened = Arc::new(Self {
            domain: Arc::clone(domain),
            qpn,
            id: handle.id,
            events: Arc::clone(handle.events),
            token: random(),
            answer: Mutex::default(),
            answered: Condvar::new(),
        });
        let known = &domain.remote.opened;
        known.lock().insert(opened.token, Arc::downgrade(&opened));
        match opened.ask(OPEN).and_then(|answer| answer.state) {
            Some(_) => Ok(opened),
            None => Err(VerbError::argument(
                "qp_num",
                "the domain has no target of this number",
            )),
        }
    }

    fn send(&self, kind: u8) {
        let message = message(kind, self.token, self.qpn.value(), 0);
        self.domain.send_message(self.qpn.value(), &message);
    }

    // Asks the process that has the target, repeatedly, since a message may be lost. Returns its answer; `None` if none comes.
    fn ask(&self, kind: u8) -> Option<Answer> {
        let before = self.answer.lock().count;
        for _ in 0..TRIES {
            self.send(kind);
            let is_silent = |answer: &mut Answer| answer.count == before && !answer.is_gone;
            let answer = self.answer.lock();
            let answer = *(self.answered).wait_timeout_while(answer, PATIENCE, is_silent);
            if answer.is_gone {
                return None;
            }
            if answer.count != before {
                return Some(answer);
            }
        }
        None
    }

    fn note(&self, state: Option<QpState>) {
        let mut answer = self.answer.lock();
        answer.count = answer.count.wrapping_add(1);
        answer.state = state;
        self.answered.notify_all();
    }

    fn note_end(&self) {
        let was_gone = std::mem::replace(&mut self.answer.lock().is_gone, true);
        self.answered.notify_all();
        if !was_gone {
            let subject = EventSubject::Object(self.id);
            self.events.event(EventType::QpFatal, subject);
        }
    }
}

impl Drop for RemoteTarget {
    fn drop(&mut self) {
        self.domain.remote.opened.lock().remove(&self.token);
        self.send(CLOSE);
    }
}

impl QpOps for RemoteTarget {
    fn poster(&self) -> &(dyn PostOps + 'static) {
        self
    }

    // A target has no requests.
    fn admit(&self, _: bool) {}

    fn qp_num(&self) -> Qpn {
        self.qpn
    }

    fn cap(&self) -> QpCap {
        QpCap::default()
    }

    fn modify(&self, _: QpAttributes, reply: Reply<()>) {
        let what = "a modify of a target that another process has made";
        reply.send(Err(VerbError::UnsupportedHere(what.to_owned())));
    }

    fn query(&self) -> Result<QpStatus, VerbError> {
        let state = self.ask(QUERY).and_then(|answer| answer.state);
        Ok(QpStatus {
            state: state.unwrap_or(QpState::Err),
            sq_draining: false,
            attributes: QpAttributes::new(),
            cap: QpCap::default(),
        })
    }

    fn destroy(&self, reply: Reply<()>) {
        self.domain.remote.opened.lock().remove(&self.token);
        self.send(CLOSE);
        reply.send(Ok(()));
    }
}

impl PostOps for RemoteTarget {
    fn post_send(&self, _: &[WorkRequest<'_>]) -> Result<(), (usize, PostReason)> {
        let missing = Operations::empty();
        Err((0, PostReason::OperationNotEnabled { missing }))
    }

    fn post_recv(&self, _: &[ReceiveRequest<'_>]) -> Result<(), (usize, PostReason)> {
        Err((0, PostReason::NoReceives))
    }
}

/// Sends the events of a target to a handle of another process.
struct Reports {
    domain: Weak<Domain>,
    to: u32,
    token: u64,
    qpn: u32,
}

impl EventSink for Reports {
    fn event(&self, event: EventType, _: EventSubject) {
        if let Some(domain) = self.domain.upgrade() {
            let message = message(EVENT, self.token, self.qpn, event.code());
            domain.send_message(self.to, &message);
        }
    }
}

/// Handles a message of the process with the number `from`.
pub(crate) fn handle_message(domain: &Domain, from: u32, bytes: &[u8]) {
    let Some(([kind, code, token @ ..], rest)) = bytes.split_first_chunk::<10>() else {
        return;
    };
    let Some(qpn) = rest.first_chunk() else {
        return;
    };
    let (token, qpn) = (u64::from_ne_bytes(*token), u32::from_ne_bytes(*qpn));
    let opened = || {
        let opened = domain.remote.opened.lock();
        opened.get(&token).and_then(Weak::upgrade)
    };
    match *kind {
        OPEN => {
            let reports = Reports {
                domain: domain
                    .shared()
                    .as_ref()
                    .map(Arc::downgrade)
                    .unwrap_or_default(),
                to: from,
                token,
                qpn,
            };
            let target = domain.find_target(qpn);
            match target.is_some_and(|target| target.add_remote(from, token, Arc::new(reports))) {
                true => {
                    *domain.remote.kept.lock() = domain.shared();
                    answer(domain, from, token, qpn);
                }
                false => domain.send_message(from, &message(STATE, token, qpn, NONE)),
            }
        }
        QUERY => answer(domain, from, token, qpn),
        CLOSE => close(domain, |process, known| (process, known) == (from, token)),
        STATE => {
            if let Some(opened) = opened() {
                opened.note(QpState::from_code(*code));
            }
        }
        EVENT => {
            if let (Some(opened), Some(event)) = (opened(), EventType::from_code(*code)) {
                let subject = EventSubject::Object(opened.id);
                opened.events.event(event, subject);
            }
        }
        _ => {}
    }
}

fn answer(domain: &Domain, to: u32, token: u64, qpn: u32) {
    let real = domain.find_target(qpn).and_then(|target| target.real());
    let state = real.and_then(|real| real.query().ok());
    let code = state.map_or(NONE, |status| status.state as u8);
    domain.send_message(to, &message(STATE, token, qpn, code));
}

// Removes handles of other processes, and the targets of which they were the last.
fn close(domain: &Domain, which: impl Fn(u32, u64) -> bool) {
    let mut is_kept = false;
    for (qpn, target) in domain.targets() {
        if let Some(real) = target.remove_remote(&which) {
            domain.remove_target(qpn);
            real.destroy(Reply::new(drop));
        }
        is_kept |= target.has_remote();
    }
    if !is_kept {
        let kept = domain.remote.kept.lock().take();
        drop(kept);
    }
}

/// Notes that the process with these numbers has gone.
pub(crate) fn handle_gone(domain: &Domain, numbers: &Range<u32>) {
    close(domain, |process, _| numbers.contains(&process));
    let opened: Vec<_> = {
        let opened = domain.remote.opened.lock();
        opened.values().filter_map(Weak::upgrade).collect()
    };
    for one in opened {
        if numbers.contains(&one.qpn.value()) {
            one.note_end();
        }
    }
}

/// How long a process waits for the answer of another before it asks again, and how often it asks.
const PATIENCE: Duration = Duration::from_millis(500);
const TRIES: u32 = 10;
