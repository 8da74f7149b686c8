//! An open device with a layer, as its hooks see it.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use verbs_api::VerbError;
use verbs_api::event::{EventSubject, EventType};
use verbs_api::ids::Qpn;
use verbs_api::objects::{ObjectId, ObjectKind};
use verbs_api::provider::{EventSink, Mutex, QpOps, Reply, RwLock};
use verbs_api::qp::{QpAttributes, QpState};

use crate::clock::{Clock, Job};
use crate::hooks::{Answer, Arguments, Before, Call, Ended, Event, EventFate, Hooks};
use crate::object::{Object, Queue};
use crate::verb::Verb;

/// The layer in front of one device.
pub(crate) struct Layer {
    pub(crate) hooks: Arc<dyn Hooks>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) name: String,
    numbers: Mutex<HashMap<ObjectKind, u32>>,
    open: AtomicU32,
}

impl Layer {
    pub(crate) fn new(name: String, hooks: Arc<dyn Hooks>, clock: Arc<dyn Clock>) -> Self {
        Self {
            hooks,
            clock,
            name,
            numbers: Mutex::default(),
            open: AtomicU32::new(0),
        }
    }

    /// Returns the number of the next object of a kind.
    pub(crate) fn next_number(&self, kind: ObjectKind) -> u32 {
        let mut numbers = self.numbers.lock();
        let number = numbers.entry(kind).or_default();
        *number += 1;
        *number
    }

    /// Blocks the caller for the delay that a hook has asked for.
    pub(crate) fn sleep(&self, time: Duration) {
        if !time.is_zero() {
            self.clock.sleep(time);
        }
    }
}

/// A queue pair that exists, by which completions find it.
struct Known {
    object: Arc<Object>,
    ops: Weak<dyn QpOps>,
}

/// An open device with a layer. Hooks use it to raise events, to fail queue pairs and to remove the device.
pub struct OpenLayer {
    pub(crate) layer: Arc<Layer>,
    sink: Arc<dyn EventSink>,
    qps: RwLock<HashMap<Qpn, Known>>,
    /// The completion queues, shared receive queues and queue pairs, which events name by identity.
    objects: RwLock<HashMap<ObjectId, Arc<Object>>>,
    is_removed: AtomicBool,
    is_closed: AtomicBool,
}

impl OpenLayer {
    pub(crate) fn new(layer: Arc<Layer>, sink: Arc<dyn EventSink>) -> Self {
        layer.open.fetch_add(1, Ordering::Relaxed);
        Self {
            layer,
            sink,
            qps: RwLock::default(),
            objects: RwLock::default(),
            is_removed: AtomicBool::new(false),
            is_closed: AtomicBool::new(false),
        }
    }

    /// Returns the name of the device.
    pub fn device(&self) -> &str {
        &self.layer.name
    }

    /// Returns the clock of the layer.
    pub fn clock(&self) -> &Arc<dyn Clock> {
        &self.layer.clock
    }

    /// Raises an event, of which no hook is asked. An event of an object that does not exist is dropped.
    pub fn raise(&self, event: EventType, subject: EventSubject) {
        if !self.is_closed.load(Ordering::Acquire) {
            self.sink.event(event, subject);
        }
    }

    /// Returns the object of this kind with this number, if it exists and has events.
    pub fn object(&self, kind: ObjectKind, number: u32) -> Option<Arc<Object>> {
        let objects = self.objects.read();
        let mut all = objects.values();
        all.find(|object| object.kind() == kind && object.number() == number)
            .cloned()
    }

    /// Returns the object of this kind that was made first, of those that exist and have events.
    pub fn first(&self, kind: ObjectKind) -> Option<Arc<Object>> {
        let objects = self.objects.read();
        let of_kind = objects.values().filter(|object| object.kind() == kind);
        of_kind.min_by_key(|object| object.number()).cloned()
    }

    /// Moves a queue pair to ERR, as a failed request does: requests of both queues are flushed.
    pub fn fail_qp(&self, object: &Object) {
        if let Some(qp) = object.qp() {
            self.fail(qp.qp_num());
        }
    }

    /// Makes a completion queue unusable: each poll fails as after an overrun.
    pub fn overrun_cq(&self, object: &Object) {
        object.set_overrun();
    }

    /// Removes the device: its queue pairs are closed and go to ERR, the removal is reported, and from then on every verb
    /// answers that the device was removed.
    pub fn remove(&self) {
        if self.is_removed.swap(true, Ordering::AcqRel) {
            return;
        }
        let known = self.qps.read();
        let qps: Vec<_> = known.values().filter_map(|qp| qp.ops.upgrade()).collect();
        drop(known);
        for qp in &qps {
            qp.admit(false);
            to_error(&**qp);
        }
        self.raise(EventType::DeviceRemoved, EventSubject::Device);
    }

    pub(crate) fn is_removed(&self) -> bool {
        self.is_removed.load(Ordering::Acquire)
    }

    /// Handles the failure of a request that the device has executed.
    pub(crate) fn fail_after(&self, object: &Object, queue: Queue) {
        if let Some(qp) = object.qp() {
            qp.set_failed(queue);
            self.fail(qp.qp_num());
        }
    }

    fn fail(&self, qp_num: Qpn) {
        let ops = self.qps.read().get(&qp_num).and_then(|qp| qp.ops.upgrade());
        if let Some(ops) = ops {
            to_error(&*ops);
        }
    }

    pub(crate) fn qp(&self, qp_num: Qpn) -> Option<Arc<Object>> {
        let qps = self.qps.read();
        qps.get(&qp_num).map(|qp| Arc::clone(&qp.object))
    }

    pub(crate) fn add_qp(&self, object: &Arc<Object>, ops: &Arc<dyn QpOps>) {
        let known = Known {
            object: Arc::clone(object),
            ops: Arc::downgrade(ops),
        };
        self.qps.write().insert(ops.qp_num(), known);
        self.add(object);
    }

    /// Makes an object known that events name.
    pub(crate) fn add(&self, object: &Arc<Object>) {
        if let Some(id) = object.id() {
            self.objects.write().insert(id, Arc::clone(object));
        }
    }

    pub(crate) fn forget(&self, object: &Arc<Object>) {
        if let Some(id) = object.id() {
            self.objects.write().remove(&id);
        }
        if let Some(qp) = object.qp() {
            let mut qps = self.qps.write();
            // The number may belong to a newer queue pair already, or to another handle of a shared one.
            let is_this = |known: &Known| Arc::ptr_eq(&known.object, object);
            if qps.get(&qp.qp_num()).is_some_and(is_this) {
                qps.remove(&qp.qp_num());
            }
        }
    }

    pub(crate) fn closed(&self) {
        if self.is_closed.swap(true, Ordering::AcqRel) {
            return;
        }
        if self.layer.open.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.layer.clock.clear();
        }
    }

    /// Asks the hooks before a verb.
    pub(crate) fn before(self: &Arc<Self>, call: &mut Call<'_>) -> Before {
        if self.is_removed() {
            return Before::refuse(VerbError::DeviceRemoved);
        }
        let before = self.layer.hooks.before(call);
        // A hook may have removed the device.
        match self.is_removed() {
            true => Before::refuse(VerbError::DeviceRemoved),
            false => before,
        }
    }

    /// Asks the hooks before a direct call, and blocks for the delay that they ask for.
    pub(crate) fn before_direct(self: &Arc<Self>, call: &mut Call<'_>) -> Result<(), VerbError> {
        let Before { delay, refusal } = self.before(call);
        self.layer.sleep(delay);
        match refusal {
            Some(error) => {
                self.refused(call.verb, call.on, &error);
                Err(error)
            }
            None => Ok(()),
        }
    }

    fn refused(&self, verb: Verb, on: Option<&Arc<Object>>, error: &VerbError) {
        self.layer.hooks.after(&mut Ended {
            verb,
            object: on,
            error: Some(error),
            answer: Answer::None,
        });
    }

    /// Carries a verb out as the hooks have answered: after a delay, or not at all. `on` is the object that it is called on.
    pub(crate) fn carry_out<T: Send + 'static>(
        self: &Arc<Self>,
        before: Before,
        verb: Verb,
        on: Option<&Arc<Object>>,
        reply: Reply<T>,
        go: impl FnOnce(Reply<T>) + Send + 'static,
    ) {
        let (open, on) = (Arc::clone(self), on.cloned());
        let then = move || match before.refusal {
            Some(error) => {
                open.refused(verb, on.as_ref(), &error);
                reply.send(Err(error));
            }
            None => go(reply),
        };
        self.later(before.delay, Box::new(then));
    }

    /// Carries out a verb on an object; the hooks cannot change its arguments.
    pub(crate) fn carry_out_on<T: Send + 'static>(
        self: &Arc<Self>,
        (verb, arguments): (Verb, Arguments<'_>),
        on: &Arc<Object>,
        reply: Reply<T>,
        go: impl FnOnce(Reply<T>) + Send + 'static,
    ) {
        let before = self.before(&mut Call {
            verb,
            open: Some(self),
            on: Some(on),
            arguments,
        });
        let (open, object) = (Arc::clone(self), Arc::clone(on));
        self.carry_out(before, verb, Some(on), reply, move |reply| {
            go(open.telling(verb, Some(&object), reply));
        });
    }

    /// Destroys an object: it is forgotten when the device has answered that it is gone.
    pub(crate) fn destroy(
        self: &Arc<Self>,
        verb: Verb,
        on: &Arc<Object>,
        reply: Reply<()>,
        go: impl FnOnce(Reply<()>) + Send + 'static,
    ) {
        let (open, object) = (Arc::clone(self), Arc::clone(on));
        if self.is_removed() {
            // The object of a removed device is destroyed all the same.
            return go(Reply::new(move |_| {
                open.forget(&object);
                reply.send(Err(VerbError::DeviceRemoved));
            }));
        }
        let gone = Reply::new(move |result: Result<(), VerbError>| {
            if result.is_ok() {
                open.forget(&object);
            }
            reply.send(result);
        });
        self.carry_out_on((verb, Arguments::None), on, gone, go);
    }

    pub(crate) fn later(&self, delay: Duration, job: Job) {
        match delay.is_zero() {
            true => job(),
            false => self.layer.clock.after(delay, job),
        }
    }

    /// The reply to a verb that makes an object: it numbers and wraps what the device has made.
    pub(crate) fn wrapping<T: ?Sized + 'static>(
        self: &Arc<Self>,
        (verb, kind): (Verb, ObjectKind),
        reply: Reply<Arc<T>>,
        wrap: impl FnOnce(Arc<T>, Arc<Self>, u32) -> (Arc<T>, Arc<Object>) + Send + 'static,
    ) -> Reply<Arc<T>> {
        let open = Arc::clone(self);
        Reply::new(move |made: Result<Arc<T>, VerbError>| {
            let hooks = Arc::clone(&open.layer.hooks);
            let made = made.map(|inner| {
                let number = open.layer.next_number(kind);
                wrap(inner, open, number)
            });
            let (object, error) = match &made {
                Ok((_, object)) => (Some(object), None),
                Err(error) => (None, Some(error)),
            };
            hooks.after(&mut Ended {
                verb,
                object,
                error,
                answer: Answer::None,
            });
            reply.send(made.map(|(wrapped, _)| wrapped));
        })
    }

    /// The reply to a verb on an object, which reports its outcome to the hooks.
    pub(crate) fn telling<T: 'static>(
        self: &Arc<Self>,
        verb: Verb,
        object: Option<&Arc<Object>>,
        reply: Reply<T>,
    ) -> Reply<T> {
        let (open, object) = (Arc::clone(self), object.cloned());
        Reply::new(move |result: Result<T, VerbError>| {
            open.layer.hooks.after(&mut Ended {
                verb,
                object: object.as_ref(),
                error: result.as_ref().err(),
                answer: Answer::None,
            });
            reply.send(result);
        })
    }
}

impl Drop for OpenLayer {
    fn drop(&mut self) {
        self.closed();
    }
}

fn to_error(qp: &dyn QpOps) {
    let error = QpAttributes::new().qp_state(QpState::Err);
    // A queue pair that cannot be modified is destroyed or in ERR.
    qp.modify(error, Reply::new(|_| ()));
}

/// Passes the events of the device on to the program, as the hooks say.
pub(crate) struct Events(pub(crate) Weak<OpenLayer>);

impl EventSink for Events {
    fn event(&self, event: EventType, subject: EventSubject) {
        let Some(open) = self.0.upgrade().filter(|open| !open.is_removed()) else {
            return;
        };
        let object = match subject {
            EventSubject::Object(id) => open.objects.read().get(&id).cloned(),
            _ => None,
        };
        let fate = open.layer.hooks.event(&Event {
            open: &open,
            event,
            subject,
            object: object.as_ref(),
        });
        match fate {
            EventFate::Deliver => open.raise(event, subject),
            EventFate::Lose => {}
            EventFate::Delay(time) => {
                let late = Arc::downgrade(&open);
                let raise = move || {
                    if let Some(open) = late.upgrade() {
                        open.raise(event, subject);
                    }
                };
                open.layer.clock.after(time, Box::new(raise));
            }
        }
    }
}
