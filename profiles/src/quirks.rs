//! The rules of a profile as hooks of the layer in front of its device.
//!
//! Everything that is counted is counted for one device of one process.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;

use nix::errno::Errno;
use polyverbs::capability::DeviceAttributes;
use polyverbs::completion::WcOpcode;
use polyverbs::ids::{Gid, Qpn};
use polyverbs::objects::{ObjectId, ObjectKind};
use polyverbs::provider::{MrInit, Mutex, Operation as _, QpInit};
use polyverbs::qp::{QpAttributes, QpState, QpType};
use polyverbs::wr::{PostReason, SendFlags, WorkRequest};
use polyverbs::{Completion, Limit, VerbError};
use polyverbs_layer::{
    Answer, Arguments, Before, Call, CompletionFate, Ended, Hooks, Polled, Post, PostFate, Request,
    Verb,
};

use crate::profile::Quirk;
use crate::rule::{Counted, Queue, Rule};

/// Told each time that a program meets a quirk: its name, and what happened.
pub type Met = Arc<dyn Fn(&str, &str) + Send + Sync>;

/// The rules that a device obeys.
pub(crate) struct Quirks {
    rules: Vec<Rule>,
    max_qp_wr: u64,
    max_init_rd_atom: u8,
    own_gids: Vec<Gid>,
    met: Met,
    /// Whether a rule needs to know which requests are outstanding.
    tracks: bool,
    state: Mutex<State>,
}

/// What the objects of the device use.
#[derive(Default)]
struct State {
    /// The use of objects that are being made, and of those that exist.
    uses: HashMap<ObjectId, Use>,
    exist: HashSet<ObjectId>,
    /// How many reads and atomics each queue pair serves since its RTR.
    served: HashMap<ObjectId, u64>,
    /// The requests that are outstanding, by queue pair and queue.
    outstanding: HashMap<(ObjectId, Queue), VecDeque<Outstanding>>,
    /// The queue pairs of the device, by number.
    qp_nums: HashMap<ObjectId, Qpn>,
}

#[derive(Clone, Copy)]
struct Use {
    kind: ObjectKind,
    bytes: u64,
    requests: u64,
    /// Whether each request of a queue pair completes with a completion.
    is_signaled: bool,
}

/// A request that was posted and has not completed.
struct Outstanding {
    wr_id: u64,
    bytes: u64,
    is_signaled: bool,
    fate: Option<CompletionFate>,
}

impl Quirks {
    /// Makes the hooks of these quirks for a device with these attributes; `None` if no quirk needs any.
    pub(crate) fn of<'a>(
        quirks: impl Iterator<Item = &'a Quirk>,
        device: &DeviceAttributes,
        met: Met,
    ) -> Option<Arc<Self>> {
        let rules: Vec<_> = quirks.map(|quirk| quirk.rule).collect();
        let is_for_c_only = |rule: &Rule| {
            matches!(
                rule,
                Rule::QpTypeRefused { .. } | Rule::ChecksUnused { .. } | Rule::QueryQpMask { .. }
            )
        };
        if rules.iter().all(is_for_c_only) {
            return None;
        }
        let tracks = rules.iter().any(|rule| {
            matches!(
                rule,
                Rule::UsableWr { .. }
                    | Rule::ChainMax { .. }
                    | Rule::InflightBytes { .. }
                    | Rule::LoopbackLost
            )
        });
        let gids = device.ports.iter().flat_map(|port| &port.gids);
        Some(Arc::new(Self {
            rules,
            max_qp_wr: device.limits.value(Limit::MaxQpWr),
            max_init_rd_atom: u8::try_from(device.limits.max_qp_init_rd_atom).unwrap_or(u8::MAX),
            own_gids: gids.map(|entry| entry.gid).collect(),
            met,
            tracks,
            state: Mutex::default(),
        }))
    }

    fn met(&self, rule: &Rule, what: &str) {
        (self.met)(&rule.name(), what);
    }

    /// Refuses a verb by a rule.
    fn refuse(&self, rule: &Rule, verb: Verb, errno: Errno) -> Before {
        self.met(rule, &format!("{} fails with {errno:?}", verb.name()));
        Before::refuse(VerbError::os(verb.name(), std::io::Error::from(errno)))
    }

    /// Refuses a request by a rule.
    fn refuse_post(&self, rule: &Rule, verb: Verb, errno: Errno) -> PostFate {
        self.met(rule, &format!("{} fails with {errno:?}", verb.name()));
        PostFate::refuse(PostReason::Os {
            errno: errno as i32,
        })
    }

    fn before_create_qp(&self, init: &QpInit) -> Option<Before> {
        let verb = Verb::CreateQp;
        let cap = &init.cap;
        let requests = u64::from(cap.max_send_wr) + u64::from(cap.max_recv_wr);
        let wanted = Use {
            kind: ObjectKind::Qp,
            bytes: 0,
            requests,
            is_signaled: init.sq_sig_all,
        };
        for rule in &self.rules {
            match *rule {
                Rule::MaxQpWrOffBy { entries, errno } => {
                    let most = self.max_qp_wr.saturating_sub(entries);
                    if u64::from(cap.max_send_wr.max(cap.max_recv_wr)) > most {
                        return Some(self.refuse(rule, verb, errno));
                    }
                }
                Rule::InlineByType { rc, uc, ud, errno } => {
                    let most = match init.qp_type {
                        QpType::Rc => rc,
                        QpType::Uc => uc,
                        QpType::Ud => ud,
                        _ => None,
                    };
                    if most.is_some_and(|most| u64::from(cap.max_inline_data) > most) {
                        return Some(self.refuse(rule, verb, errno));
                    }
                }
                _ => {}
            }
        }
        self.take(verb, init.id, wanted)
    }

    fn before_reg_mr(&self, init: &MrInit) -> Option<Before> {
        for rule in &self.rules {
            if let Rule::MrAccessRefused { access, errno } = *rule
                && init.access.intersects(access)
            {
                return Some(self.refuse(rule, Verb::RegMr, errno));
            }
        }
        let wanted = Use {
            kind: ObjectKind::Mr,
            bytes: init.memory.len() as u64,
            requests: 0,
            is_signaled: false,
        };
        self.take(Verb::RegMr, init.id, wanted)
    }

    /// Checks an object that is about to be made against the budgets.
    fn take(&self, verb: Verb, id: ObjectId, wanted: Use) -> Option<Before> {
        let mut state = self.state.lock();
        for rule in &self.rules {
            let Rule::Budget { of, most, errno } = *rule else {
                continue;
            };
            let Some(more) = wanted.of(of) else { continue };
            let existing = state.exist.iter().filter_map(|id| state.uses.get(id));
            let used: u64 = existing.filter_map(|it| it.of(of)).sum();
            if used + more > most {
                drop(state);
                return Some(self.refuse(rule, verb, errno));
            }
        }
        state.uses.insert(id, wanted);
        None
    }

    fn before_modify_qp(&self, qp: ObjectId, change: &mut QpAttributes) -> Option<Before> {
        for rule in &self.rules {
            if let Rule::RdAtomicClamped = rule
                && let Some(asked) = change.max_rd_atomic
                && asked > self.max_init_rd_atom
            {
                change.max_rd_atomic = Some(self.max_init_rd_atom);
                let most = self.max_init_rd_atom;
                self.met(rule, &format!("max_rd_atomic is {most} instead of {asked}"));
            }
        }
        let wanted = change.max_dest_rd_atomic.map(u64::from)?;
        let mut state = self.state.lock();
        for rule in &self.rules {
            if let Rule::Budget {
                of: Counted::ResRdAtom,
                most,
                errno,
            } = *rule
            {
                let others = state.served.iter().filter(|(id, _)| **id != qp);
                let used: u64 = others.map(|(_, served)| served).sum();
                if used + wanted > most {
                    drop(state);
                    return Some(self.refuse(rule, Verb::ModifyQp, errno));
                }
            }
        }
        state.served.insert(qp, wanted);
        None
    }

    /// Judges a request that is posted, and remembers it until it completes.
    fn judge(&self, qp: ObjectId, queue: Queue, post: &Post<'_>) -> PostFate {
        let (wr_id, length, num_sge, is_inline) = match post.request {
            Request::Send(request) => {
                let data = request.data();
                let is_inline = matches!(data, polyverbs::wr::Data::Inline(_));
                let num_sge = if is_inline { 1 } else { data.num_sge() };
                (request.common().wr_id, data.len(), num_sge, is_inline)
            }
            Request::Receive(receive) => {
                let data = &receive.data;
                (receive.wr_id, data.len(), data.num_sge(), false)
            }
        };
        for rule in &self.rules {
            match *rule {
                Rule::ZeroSge { on, errno } if on == queue && num_sge == 0 => {
                    return self.refuse_post(rule, post.verb, errno);
                }
                Rule::InlinePost { errno } if is_inline => {
                    return self.refuse_post(rule, post.verb, errno);
                }
                _ => {}
            }
        }
        if !self.tracks {
            return PostFate::default();
        }
        let mut state = self.state.lock();
        let is_signaled = match post.request {
            Request::Receive(_) => true,
            Request::Send(request) => {
                let is_asked = request.common().flags.contains(SendFlags::SIGNALED);
                is_asked || state.uses.get(&qp).is_some_and(|qp| qp.is_signaled)
            }
        };
        let outstanding = state.outstanding.entry((qp, queue)).or_default();
        let mut fate = None;
        for rule in &self.rules {
            match *rule {
                Rule::UsableWr { send, recv, errno } => {
                    let most = if queue == Queue::Send { send } else { recv };
                    if most.is_some_and(|most| outstanding.len() as u64 >= most) {
                        drop(state);
                        return self.refuse_post(rule, post.verb, errno);
                    }
                }
                Rule::ChainMax { most, status }
                    if queue == Queue::Send && post.of as u64 > most =>
                {
                    fate = Some((*rule, status));
                }
                Rule::InflightBytes { most, status } if queue == Queue::Send => {
                    let in_flight: u64 = outstanding.iter().map(|it| it.bytes).sum();
                    if in_flight + length > most {
                        fate = Some((*rule, status));
                    }
                }
                Rule::LoopbackLost if queue == Queue::Send && self.is_to_itself(post) => {
                    outstanding.push_back(Outstanding {
                        wr_id,
                        bytes: length,
                        is_signaled,
                        fate: Some(CompletionFate::Lose),
                    });
                    drop(state);
                    self.met(rule, "a datagram to the own device is lost");
                    return PostFate::default();
                }
                _ => {}
            }
        }
        outstanding.push_back(Outstanding {
            wr_id,
            bytes: length,
            is_signaled,
            fate: fate.map(|(_, status)| CompletionFate::Fail(status, 0)),
        });
        drop(state);
        if let Some((rule, status)) = fate {
            self.met(&rule, &format!("request {wr_id} fails: {status}"));
        }
        PostFate::default()
    }

    /// Forgets a request that has completed; returns what becomes of its completion.
    fn completed(
        &self,
        qp: ObjectId,
        queue: Queue,
        completion: &Completion,
    ) -> Option<CompletionFate> {
        let mut state = self.state.lock();
        let outstanding = state.outstanding.get_mut(&(qp, queue))?;
        // A request that is not signaled has a completion only if it has failed.
        let place = outstanding.iter().position(|it| {
            it.wr_id == completion.wr_id && (it.is_signaled || !completion.status.is_success())
        })?;
        // Requests before it that were not signaled have completed too.
        outstanding.drain(..=place).next_back()?.fate
    }

    fn is_own(&self, qp_num: Qpn) -> bool {
        let state = self.state.lock();
        state.qp_nums.values().any(|own| *own == qp_num)
    }

    /// Whether a request is a datagram to a GID of this device.
    fn is_to_itself(&self, post: &Post<'_>) -> bool {
        let Request::Send(request) = post.request else {
            return false;
        };
        let destination = match request {
            WorkRequest::Send(send) => send.destination,
            WorkRequest::SendWithImmediate(send) => send.destination,
            _ => None,
        };
        destination.is_some_and(|to| self.own_gids.contains(&to.ah.path().dgid))
    }

    fn has_loopback(&self) -> bool {
        self.rules.contains(&Rule::LoopbackLost)
    }
}

impl Use {
    /// How much the object has of what a budget counts; `None` if it has none of it.
    fn of(&self, counted: Counted) -> Option<u64> {
        match (counted, self.kind) {
            (Counted::Qp, ObjectKind::Qp)
            | (Counted::Cq, ObjectKind::Cq)
            | (Counted::Mr, ObjectKind::Mr) => Some(1),
            (Counted::MrBytes, ObjectKind::Mr) => Some(self.bytes),
            (Counted::WrTotal, ObjectKind::Qp) => Some(self.requests),
            _ => None,
        }
    }
}

impl Hooks for Quirks {
    fn attributes(&self, attributes: &mut DeviceAttributes) {
        if !self.rules.contains(&Rule::AttributesRemaining) {
            return;
        }
        let state = self.state.lock();
        for (limit, kind) in [
            (Limit::MaxQp, ObjectKind::Qp),
            (Limit::MaxCq, ObjectKind::Cq),
            (Limit::MaxMr, ObjectKind::Mr),
        ] {
            let existing = state.exist.iter().filter_map(|id| state.uses.get(id));
            let used = existing.filter(|it| it.kind == kind).count() as u64;
            let value = attributes.limits.value(limit);
            attributes.limits.set(limit, value.saturating_sub(used));
        }
    }

    fn before(&self, call: &mut Call<'_>) -> Before {
        let on = call.on.and_then(|object| object.id());
        let answer = match (&mut call.arguments, on) {
            (Arguments::Qp(init), _) => self.before_create_qp(init),
            (Arguments::Mr(init), _) => self.before_reg_mr(init),
            (Arguments::Cq(init), _) => {
                let wanted = Use {
                    kind: ObjectKind::Cq,
                    bytes: 0,
                    requests: 0,
                    is_signaled: false,
                };
                self.take(Verb::CreateCq, init.id, wanted)
            }
            (Arguments::QpChange(change), Some(qp)) => self.before_modify_qp(qp, change),
            _ => None,
        };
        answer.unwrap_or_default()
    }

    fn after(&self, ended: &mut Ended<'_>) {
        let Some((object, id)) = ended.object.and_then(|it| Some((it, it.id()?))) else {
            return;
        };
        let mut state = self.state.lock();
        match (ended.verb, ended.error) {
            (Verb::CreateQp | Verb::CreateCq | Verb::RegMr, None) => {
                state.exist.insert(id);
                if let Some(qp) = object.qp() {
                    state.qp_nums.insert(id, qp.qp_num());
                }
            }
            (Verb::DestroyQp | Verb::DestroyCq | Verb::DeregMr, None) => {
                state.exist.remove(&id);
                state.uses.remove(&id);
                state.served.remove(&id);
                state.qp_nums.remove(&id);
                state.outstanding.retain(|(qp, _), _| *qp != id);
            }
            (Verb::ModifyQp, None) => {
                let is_reset = matches!(
                    ended.answer,
                    Answer::QpChange(QpAttributes {
                        qp_state: Some(QpState::Reset),
                        ..
                    })
                );
                if is_reset {
                    state.served.remove(&id);
                    state.outstanding.retain(|(qp, _), _| *qp != id);
                }
            }
            _ => {}
        }
    }

    fn post(&self, post: &Post<'_>) -> PostFate {
        let queue = match post.verb {
            Verb::PostSend => Queue::Send,
            Verb::PostRecv => Queue::Recv,
            _ => return PostFate::default(),
        };
        match post.on.id() {
            Some(qp) => self.judge(qp, queue, post),
            None => PostFate::default(),
        }
    }

    fn not_posted(&self, post: &Post<'_>) {
        let Some(qp) = post.on.id() else { return };
        let (queue, wr_id) = match post.request {
            Request::Send(request) => (Queue::Send, request.common().wr_id),
            Request::Receive(receive) => (Queue::Recv, receive.wr_id),
        };
        let mut state = self.state.lock();
        if let Some(outstanding) = state.outstanding.get_mut(&(qp, queue))
            && let Some(place) = outstanding.iter().rposition(|it| it.wr_id == wr_id)
        {
            outstanding.remove(place);
        }
    }

    fn completion(&self, at: &Polled<'_>, completion: &mut Completion) -> CompletionFate {
        let Some(qp) = at.qp.and_then(|qp| qp.id()) else {
            return CompletionFate::Deliver;
        };
        let queue = match completion.opcode.is_receive() {
            true => Queue::Recv,
            false => Queue::Send,
        };
        let fate = match self.tracks {
            true => self.completed(qp, queue, completion),
            false => None,
        };
        let is_datagram = at.qp.and_then(|qp| qp.qp()).map(|qp| qp.qp_type()) == Some(QpType::Ud);
        if self.has_loopback()
            && is_datagram
            && queue == Queue::Recv
            && self.is_own(completion.src_qp)
        {
            return CompletionFate::Lose;
        }
        if let Some(fate) = fate
            && (completion.status.is_success() || fate == CompletionFate::Lose)
        {
            return fate;
        }
        if self.rules.contains(&Rule::ErrorWc) && !completion.status.is_success() {
            self.met(&Rule::ErrorWc, "a failed completion has another opcode");
            if queue == Queue::Send {
                completion.opcode = WcOpcode::Send;
            }
            completion.byte_len = u32::MAX;
        }
        CompletionFate::Deliver
    }
}
