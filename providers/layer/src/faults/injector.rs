//! Counts what a script is about, and makes happen what it says.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use verbs_api::VerbError;
use verbs_api::capability::{DeviceAttributes, PortState};
use verbs_api::completion::Completion;
use verbs_api::event::{EventSubject, EventType};
use verbs_api::ids::{LinkAddress, Port};
use verbs_api::objects::ObjectKind;
use verbs_api::provider::{Mutex, Operation as _};
use verbs_api::wr::PostReason;

use super::notation::{Act, Filter, Rule, What, When};
use crate::hooks::{
    Answer, Arguments, Before, Call, CompletionFate, Ended, Event, EventFate, Hooks, Polled, Post,
    PostFate, Request,
};
use crate::object::Object;
use crate::open_layer::OpenLayer;
use crate::verb::Verb;

/// A rule that has fired.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fired {
    /// Which rule of the script, counted from 0.
    pub rule: usize,
    /// The rule with the exact count, by which the run can be repeated.
    pub exactly: Rule,
}

type Log = Box<dyn Fn(&Fired) + Send + Sync>;

struct Counted {
    rule: Rule,
    seen: AtomicU64,
    fired: AtomicU64,
    is_off: AtomicBool,
}

/// Counts the occurrences of a script's rules in one process, and says what happens.
pub struct Injector {
    rules: Vec<Counted>,
    seed: u64,
    log: Log,
    /// The time of the first open, from which times are counted.
    begun: OnceLock<Duration>,
    state: Mutex<State>,
    itself: Weak<Self>,
}

#[derive(Default)]
struct State {
    open: Vec<Weak<OpenLayer>>,
    /// The ports that are down, by device.
    down: Vec<(String, Port)>,
    /// The addresses of peers, by device and number of the queue pair.
    peers: HashMap<(String, u32), IpAddr>,
}

/// What happens to a call of a library for C.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LibraryFate {
    /// How long the caller is blocked before.
    pub delay: Duration,
    /// The error number with which the call fails, after the delay.
    pub errno: Option<i32>,
}

/// What happens to an event of the connection manager.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CmFate {
    /// How long the caller is blocked before.
    pub delay: Duration,
    /// The code of the event that the program gets instead.
    pub instead: Option<u8>,
    /// The status that the event has instead.
    pub status: Option<i32>,
    /// Whether the program never gets the event.
    pub is_lost: bool,
}

/// What a rule's acts concern: the open device, and the objects at hand.
#[derive(Clone, Copy)]
struct Place<'a> {
    device: &'a str,
    open: Option<&'a Arc<OpenLayer>>,
    objects: &'a [Option<&'a Arc<Object>>],
}

impl Injector {
    pub(super) fn new(rules: Vec<Rule>, seed: u64, log: Log) -> Arc<Self> {
        let counted = |rule| Counted {
            rule,
            seen: AtomicU64::new(0),
            fired: AtomicU64::new(0),
            is_off: AtomicBool::new(false),
        };
        Arc::new_cyclic(|itself| Self {
            rules: rules.into_iter().map(counted).collect(),
            seed,
            log,
            begun: OnceLock::new(),
            state: Mutex::default(),
            itself: Weak::clone(itself),
        })
    }

    /// Returns the hooks for the device of this name.
    pub fn hooks(self: &Arc<Self>, device: String) -> Arc<dyn Hooks> {
        Arc::new(DeviceFaults {
            injector: Arc::clone(self),
            device,
        })
    }

    /// Returns each rule, and how often it has fired.
    pub fn fired(&self) -> Vec<(Rule, u64)> {
        let all = self.rules.iter();
        all.map(|counted| {
            let fired = counted.fired.load(Ordering::Relaxed);
            (counted.rule.clone(), fired)
        })
        .collect()
    }

    /// Says what happens to a call of a library for C, by the name in a script.
    pub fn library(&self, call: &str) -> LibraryFate {
        let mut fate = LibraryFate::default();
        self.each(
            |rule| matches!(rule.what, What::Library(known) if known == call),
            |acts| {
                for act in acts {
                    match *act {
                        Act::Errno(errno) => fate.errno = fate.errno.or(Some(errno)),
                        Act::Delay(time) => fate.delay += time,
                        _ => {}
                    }
                }
            },
        );
        fate
    }

    /// Says what happens to an event of the connection manager, by its code.
    pub fn cm_event(&self, code: u8) -> CmFate {
        let mut fate = CmFate::default();
        self.each(
            |rule| rule.what == What::Cm(code),
            |acts| {
                for act in acts {
                    match *act {
                        Act::Cm(event) => fate.instead = fate.instead.or(Some(event)),
                        Act::Errno(errno) => fate.status = fate.status.or(Some(-errno)),
                        Act::Delay(time) => fate.delay += time,
                        Act::Lost => fate.is_lost = true,
                        _ => {}
                    }
                }
            },
        );
        fate
    }

    /// Counts an occurrence for each rule that it fits, and calls `happen` with the acts of those that fire.
    fn each(&self, fits: impl Fn(&Rule) -> bool, mut happen: impl FnMut(&[Act])) {
        for (number, counted) in self.rules.iter().enumerate() {
            if !fits(&counted.rule) || counted.is_off.load(Ordering::Relaxed) {
                continue;
            }
            let count = counted.seen.fetch_add(1, Ordering::Relaxed) + 1;
            let Rule { when, chance, .. } = &counted.rule;
            let is_hit = chance.is_none_or(|chance| chance.hits(self.seed, number, count));
            if when.includes(count) && is_hit {
                self.note(number, count);
                happen(&counted.rule.acts);
            }
        }
    }

    fn note(&self, number: usize, count: u64) {
        let counted = &self.rules[number];
        counted.fired.fetch_add(1, Ordering::Relaxed);
        if counted.rule.acts.contains(&Act::Off) {
            counted.is_off.store(true, Ordering::Relaxed);
        }
        (self.log)(&Fired {
            rule: number,
            exactly: counted.rule.exactly(count),
        });
    }

    /// Schedules the rules with a time, when a device is opened.
    fn schedule(&self, device: &str, open: &Arc<OpenLayer>) {
        let clock = open.clock();
        let begun = *self.begun.get_or_init(|| clock.now());
        let passed = clock.now().saturating_sub(begun);
        for (number, counted) in self.rules.iter().enumerate() {
            let Rule { when, filter, .. } = &counted.rule;
            let has_fired = counted.fired.load(Ordering::Relaxed) > 0;
            let (When::Time(time), false) = (when, has_fired) else {
                continue;
            };
            if filter.dev.as_ref().is_some_and(|dev| dev != device) {
                continue;
            }
            let (injector, open) = (Weak::clone(&self.itself), Arc::downgrade(open));
            let due = move || {
                if let (Some(injector), Some(open)) = (injector.upgrade(), open.upgrade()) {
                    injector.at_time(number, &open);
                }
            };
            clock.after(time.saturating_sub(passed), Box::new(due));
        }
    }

    /// Makes a rule with a time happen on an open device. A device that is open several times reports events of ports and of
    /// itself to each of them.
    fn at_time(&self, number: usize, open: &Arc<OpenLayer>) {
        let Rule { filter, acts, .. } = &self.rules[number].rule;
        let place = Place {
            device: open.device(),
            open: Some(open),
            objects: &[],
        };
        let is_first = self
            .open_of(open.device())
            .first()
            .is_some_and(|first| Arc::ptr_eq(first, open));
        let happens = is_first || acts.iter().any(|act| matches!(act, Act::Event(event) | Act::BareEvent(event) if event.is_affiliated()));
        if happens && self.happen(acts, filter, place) {
            self.note(number, 1);
        }
    }

    fn open_of(&self, device: &str) -> Vec<Arc<OpenLayer>> {
        let state = self.state.lock();
        let open = state.open.iter().filter_map(Weak::upgrade);
        open.filter(|open| open.device() == device).collect()
    }

    /// Makes the events of a rule happen, those after a time later. Returns whether the first one concerned something.
    fn happen(&self, acts: &[Act], filter: &Filter, place: Place<'_>) -> bool {
        let mut has_happened = true;
        for (at, act) in acts.iter().enumerate() {
            match *act {
                Act::Event(event) => has_happened &= self.raise(event, true, filter, place),
                Act::BareEvent(event) => has_happened &= self.raise(event, false, filter, place),
                Act::After(time) => {
                    let rest: Vec<_> = acts[at + 1..].to_vec();
                    if let Some(open) = place.open.filter(|_| has_happened) {
                        self.later(time, rest, filter.clone(), open);
                    }
                    return has_happened;
                }
                _ => {}
            }
        }
        has_happened
    }

    fn later(&self, time: Duration, rest: Vec<Act>, filter: Filter, open: &Arc<OpenLayer>) {
        let (injector, late) = (Weak::clone(&self.itself), Arc::downgrade(open));
        let due = move || {
            if let (Some(injector), Some(open)) = (injector.upgrade(), late.upgrade()) {
                let place = Place {
                    device: open.device(),
                    open: Some(&open),
                    objects: &[],
                };
                injector.happen(&rest, &filter, place);
            }
        };
        open.clock().after(time, Box::new(due));
    }

    /// Raises an event, with what a device does when it occurs unless it is bare. Returns whether there is what it concerns.
    fn raise(&self, event: EventType, is_whole: bool, filter: &Filter, place: Place<'_>) -> bool {
        if !event.is_affiliated() {
            return self.raise_for_all(event, is_whole, place.device);
        }
        let (kind, number) = match event {
            EventType::CqErr => (ObjectKind::Cq, filter.cq),
            EventType::SrqErr | EventType::SrqLimitReached => (ObjectKind::Srq, filter.srq),
            _ => (ObjectKind::Qp, filter.qp),
        };
        let Some(open) = place.open else {
            return false;
        };
        let at_hand = place
            .objects
            .iter()
            .flatten()
            .find(|object| object.kind() == kind);
        let object = at_hand
            .map(|object| Arc::clone(object))
            .or_else(|| match number {
                Some(number) => open.object(kind, number),
                None => open.first(kind),
            });
        let Some(object) = object else {
            return false;
        };
        if is_whole {
            match event {
                EventType::CqErr => open.overrun_cq(&object),
                EventType::QpFatal | EventType::QpReqErr | EventType::QpAccessErr => {
                    open.fail_qp(&object);
                }
                _ => {}
            }
        }
        if let Some(id) = object.id() {
            open.raise(event, EventSubject::Object(id));
        }
        true
    }

    fn raise_for_all(&self, event: EventType, is_whole: bool, device: &str) -> bool {
        const PORT: Port = 1;
        let subject = match event {
            EventType::DeviceFatal => EventSubject::Device,
            _ => EventSubject::Port(PORT),
        };
        if is_whole {
            let port = (device.to_owned(), PORT);
            let mut state = self.state.lock();
            match event {
                EventType::PortErr if !state.down.contains(&port) => state.down.push(port),
                EventType::PortActive => state.down.retain(|down| *down != port),
                _ => {}
            }
        }
        let open = self.open_of(device);
        for open in &open {
            match event {
                EventType::DeviceFatal if is_whole => open.remove(),
                _ => open.raise(event, subject),
            }
        }
        !open.is_empty()
    }
}

/// The faults of one device.
struct DeviceFaults {
    injector: Arc<Injector>,
    device: String,
}

impl DeviceFaults {
    fn fits(&self, filter: &Filter, qp: Option<&Arc<Object>>) -> bool {
        let facts = qp.and_then(|qp| qp.qp());
        let is_peer = |wanted: IpAddr| {
            let state = self.injector.state.lock();
            let number = qp.map_or(0, |qp| qp.number());
            let known = state.peers.get(&(self.device.clone(), number));
            known == Some(&wanted)
        };
        filter.dev.as_ref().is_none_or(|dev| *dev == self.device)
            && filter
                .qp
                .is_none_or(|wanted| qp.is_some_and(|qp| qp.number() == wanted))
            && filter
                .qp_type
                .is_none_or(|wanted| facts.is_some_and(|qp| qp.qp_type() == wanted))
            && filter.peer.is_none_or(is_peer)
    }

    fn fits_call(&self, rule: &Rule, call: &Call<'_>) -> bool {
        let Filter {
            qp_type,
            cq,
            srq,
            to,
            ..
        } = &rule.filter;
        let on = |kind| call.on.filter(|object| object.kind() == kind);
        let is = |wanted: &Option<u32>, kind| {
            wanted.is_none_or(|wanted| on(kind).is_some_and(|object| object.number() == wanted))
        };
        let fits_arguments = match &call.arguments {
            // The queue pair is not there yet.
            Arguments::Qp(init) => {
                let is_type = qp_type.is_none_or(|wanted| init.qp_type == wanted);
                let dev = rule.filter.dev.as_ref();
                return rule.what == What::Verb(call.verb)
                    && is_type
                    && dev.is_none_or(|dev| *dev == self.device);
            }
            Arguments::QpChange(change) => to.is_none_or(|to| change.qp_state == Some(to)),
            _ => true,
        };
        rule.what == What::Verb(call.verb)
            && fits_arguments
            && is(cq, ObjectKind::Cq)
            && is(srq, ObjectKind::Srq)
            && self.fits(&rule.filter, on(ObjectKind::Qp))
    }

    /// Notes the address of a queue pair's peer, by which rules can choose it.
    fn note_peer(&self, call: &Call<'_>) {
        if let (Arguments::QpChange(change), Some(qp)) = (&call.arguments, call.on)
            && let Some(path) = change.ah_attr
            && let LinkAddress::Ip(peer) = path.address
        {
            let mut state = self.injector.state.lock();
            state.peers.insert((self.device.clone(), qp.number()), peer);
        }
    }
}

impl Hooks for DeviceFaults {
    fn opened(&self, open: &Arc<OpenLayer>) {
        let mut state = self.injector.state.lock();
        state.open.retain(|known| known.strong_count() > 0);
        state.open.push(Arc::downgrade(open));
        drop(state);
        self.injector.schedule(&self.device, open);
    }

    fn attributes(&self, attributes: &mut DeviceAttributes) {
        let state = self.injector.state.lock();
        for (number, port) in (1..).zip(&mut attributes.ports) {
            if state.down.contains(&(self.device.clone(), number)) {
                port.state = PortState::Down;
            }
        }
    }

    fn before(&self, call: &mut Call<'_>) -> Before {
        self.note_peer(call);
        let mut before = Before::default();
        let objects = [call.on];
        let place = Place {
            device: &self.device,
            open: call.open,
            objects: &objects,
        };
        let verb = call.verb.name();
        let filter = &Filter::default();
        self.injector.each(
            |rule| self.fits_call(rule, call),
            |acts| {
                for act in acts {
                    match *act {
                        Act::Errno(errno) if before.refusal.is_none() => {
                            before.refusal = Some(VerbError::Os { verb, errno });
                        }
                        Act::Delay(time) => before.delay += time,
                        _ => {}
                    }
                }
                self.injector.happen(acts, filter, place);
            },
        );
        before
    }

    fn after(&self, ended: &mut Ended<'_>) {
        match &mut ended.answer {
            Answer::Port(number, port) => {
                let state = self.injector.state.lock();
                if state.down.contains(&(self.device.clone(), *number)) {
                    port.state = PortState::Down;
                }
            }
            _ if ended.verb == Verb::DestroyQp && ended.error.is_none() => {
                let mut state = self.injector.state.lock();
                let number = ended.object.map_or(0, |qp| qp.number());
                state.peers.remove(&(self.device.clone(), number));
            }
            _ => {}
        }
    }

    fn post(&self, post: &Post<'_>) -> PostFate {
        let mut fate = PostFate::default();
        let objects = [Some(post.on)];
        let place = Place {
            device: &self.device,
            open: Some(post.open),
            objects: &objects,
        };
        let fits = |rule: &Rule| {
            let Filter { op, srq, .. } = &rule.filter;
            let is_op = |wanted| matches!(post.request, Request::Send(request) if request.wc_opcode() == wanted);
            let is_srq = |wanted| post.on.kind() == ObjectKind::Srq && post.on.number() == wanted;
            let qp = Some(post.on).filter(|object| object.kind() == ObjectKind::Qp);
            rule.what == What::Verb(post.verb)
                && op.is_none_or(is_op)
                && srq.is_none_or(is_srq)
                && self.fits(&rule.filter, qp)
        };
        self.injector.each(fits, |acts| {
            for act in acts {
                match *act {
                    Act::Errno(errno) if fate.refusal.is_none() => {
                        fate.refusal = Some(PostReason::Os { errno });
                    }
                    Act::Delay(time) => fate.delay += time,
                    _ => {}
                }
            }
            self.injector.happen(acts, &Filter::default(), place);
        });
        fate
    }

    // A rule has fired for the request all the same.
    fn not_posted(&self, _: &Post<'_>) {}

    fn completion(&self, at: &Polled<'_>, completion: &mut Completion) -> CompletionFate {
        // A completion that has failed already is not a fault of the script.
        if !completion.status.is_success() {
            return CompletionFate::Deliver;
        }
        let objects = [at.qp, Some(at.cq)];
        let place = Place {
            device: &self.device,
            open: Some(at.open),
            objects: &objects,
        };
        let opcode = completion.opcode;
        let fits = |rule: &Rule| {
            let What::Completion(op) = rule.what else {
                return false;
            };
            op.or(rule.filter.op).is_none_or(|wanted| wanted == opcode)
                && rule.filter.cq.is_none_or(|wanted| at.cq.number() == wanted)
                && self.fits(&rule.filter, at.qp)
        };
        let mut fate = CompletionFate::Deliver;
        self.injector.each(fits, |acts| {
            for act in acts {
                let is_decided = fate != CompletionFate::Deliver || !completion.status.is_success();
                match *act {
                    _ if is_decided => {}
                    Act::Status(status, vendor) => fate = CompletionFate::Fail(status, vendor),
                    Act::BareStatus(status, vendor) => {
                        completion.status = status;
                        completion.vendor_err = vendor;
                    }
                    Act::Lost => fate = CompletionFate::Lose,
                    Act::Hold(time) => fate = CompletionFate::Hold(time),
                    _ => {}
                }
            }
            self.injector.happen(acts, &Filter::default(), place);
        });
        fate
    }

    fn event(&self, event: &Event<'_>) -> EventFate {
        let objects = [event.object];
        let place = Place {
            device: &self.device,
            open: Some(event.open),
            objects: &objects,
        };
        let fits = |rule: &Rule| {
            let Filter {
                event: wanted,
                cq,
                srq,
                ..
            } = &rule.filter;
            let is = |wanted: &Option<u32>, kind| {
                let is = |object: &&Arc<Object>| {
                    object.kind() == kind && Some(object.number()) == *wanted
                };
                wanted.is_none() || event.object.is_some_and(|object| is(&object))
            };
            let qp = event
                .object
                .filter(|object| object.kind() == ObjectKind::Qp);
            rule.what == What::Event
                && !matches!(rule.when, When::Time(_))
                && wanted.is_none_or(|wanted| wanted == event.event)
                && is(cq, ObjectKind::Cq)
                && is(srq, ObjectKind::Srq)
                && self.fits(&rule.filter, qp)
        };
        let mut fate = EventFate::Deliver;
        self.injector.each(fits, |acts| {
            for act in acts {
                match *act {
                    Act::Lost => fate = EventFate::Lose,
                    Act::Delay(time) if fate == EventFate::Deliver => {
                        fate = EventFate::Delay(time);
                    }
                    _ => {}
                }
            }
            self.injector.happen(acts, &Filter::default(), place);
        });
        fate
    }
}
