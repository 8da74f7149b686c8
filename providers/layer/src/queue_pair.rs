//! Queue pairs.

use std::sync::Arc;
use std::vec::IntoIter;

use verbs_api::ids::{Gid, Psn, Qpn};
use verbs_api::objects::{ObjectId, ObjectKind};
use verbs_api::provider::{AttachedCounts, PostOps, QpInit, QpOps, Reply, own};
use verbs_api::qp::{QpAttributes, QpCap, QpCounters, QpState, QpStatus, QpType};
use verbs_api::wr::{BindWindow, PostReason, ReceiveRequest, WorkRequest};
use verbs_api::{QpEndpoint, RKey, VerbError};

use crate::completion_queue::CompletionQueue;
use crate::hooks::{Answer, Arguments, Before, Call, Ended, Post, PostFate, Request};
use crate::object::Object;
use crate::open_layer::OpenLayer;
use crate::receive_queue::ReceiveQueue;
use crate::verb::Verb;

/// The result of posting: after a failure, how many requests were posted, and why the next was not.
pub(crate) type Posted = Result<(), (usize, PostReason)>;

pub(crate) struct QueuePair {
    inner: Arc<dyn QpOps>,
    open: Arc<OpenLayer>,
    object: Arc<Object>,
    cap: QpCap,
}

/// The attributes for the inner device, which knows only its own queues, and the numbers of the completion queues.
pub(crate) fn with_inner_queues(mut init: QpInit) -> Result<(QpInit, [u32; 2]), VerbError> {
    let send_cq: Arc<CompletionQueue> = own(&init.send_cq, "send_cq")?;
    let recv_cq: Arc<CompletionQueue> = own(&init.recv_cq, "recv_cq")?;
    init.send_cq = Arc::clone(&send_cq.inner);
    init.recv_cq = Arc::clone(&recv_cq.inner);
    if let Some(srq) = &init.srq {
        let srq: Arc<ReceiveQueue> = own(srq, "srq")?;
        init.srq = Some(Arc::clone(&srq.inner));
    }
    Ok((init, [send_cq.number(), recv_cq.number()]))
}

impl QueuePair {
    /// The reply by which the inner device returns a new queue pair.
    pub(crate) fn reply(
        open: Arc<OpenLayer>,
        (id, qp_type, queues): (ObjectId, QpType, [u32; 2]),
        reply: Reply<Arc<dyn QpOps>>,
    ) -> Reply<Arc<dyn QpOps>> {
        let verb = Verb::CreateQp;
        Reply::new(move |made: Result<Arc<dyn QpOps>, VerbError>| {
            let hooks = Arc::clone(&open.layer.hooks);
            reply.send(match made {
                Ok(inner) => {
                    let number = open.layer.next_number(ObjectKind::Qp);
                    let object = Object::new(ObjectKind::Qp, number, Some(id));
                    let object = Arc::new(object.qp_of(qp_type, queues));
                    if let Some(qp) = object.qp() {
                        qp.set_qp_num(inner.qp_num());
                    }
                    open.add_qp(&object, &inner);
                    let mut cap = inner.cap();
                    hooks.after(&mut Ended {
                        verb,
                        object: Some(&object),
                        error: None,
                        answer: Answer::Cap(&mut cap),
                    });
                    Ok(Arc::new(Self {
                        inner,
                        open,
                        object,
                        cap,
                    }) as _)
                }
                Err(error) => {
                    hooks.after(&mut Ended {
                        verb,
                        object: None,
                        error: Some(&error),
                        answer: Answer::None,
                    });
                    Err(error)
                }
            });
        })
    }

    fn call<'a>(&'a self, verb: Verb, arguments: Arguments<'a>) -> Call<'a> {
        Call {
            verb,
            open: Some(&self.open),
            on: Some(&self.object),
            arguments,
        }
    }

    /// A request of a post, as the hooks see it.
    fn one<'a>(&'a self, request: Request<'a>, index: usize, of: usize) -> Post<'a> {
        Post {
            verb: match request {
                Request::Send(_) => Verb::PostSend,
                Request::Receive(_) => Verb::PostRecv,
            },
            open: &self.open,
            on: &self.object,
            request,
            index,
            of,
        }
    }

    /// Modifies the queue pair with each of these attributes in turn, as the hooks have answered, until one modification fails.
    fn next_step(self: Arc<Self>, mut steps: IntoIter<(Before, QpAttributes)>, reply: Reply<()>) {
        let Some((before, step)) = steps.next() else {
            return reply.send(Ok(()));
        };
        let next = Arc::clone(&self);
        let then = Reply::new(move |result| match result {
            Ok(()) => next.next_step(steps, reply),
            Err(error) => reply.send(Err(error)),
        });
        self.modify_after(before, step, then);
    }

    fn modify_after(&self, before: Before, attributes: QpAttributes, reply: Reply<()>) {
        let verb = Verb::ModifyQp;
        let (open, object) = (Arc::clone(&self.open), Arc::clone(&self.object));
        let inner = Arc::clone(&self.inner);
        let on = Some(&self.object);
        self.open.carry_out(before, verb, on, reply, move |reply| {
            let then = Reply::new(move |result: Result<(), VerbError>| {
                if result.is_ok()
                    && attributes.qp_state == Some(QpState::Reset)
                    && let Some(qp) = object.qp()
                {
                    qp.reset();
                }
                open.layer.hooks.after(&mut Ended {
                    verb,
                    object: Some(&object),
                    error: result.as_ref().err(),
                    answer: Answer::QpChange(&attributes),
                });
                reply.send(result);
            });
            inner.modify(attributes, then);
        });
    }
}

impl OpenLayer {
    /// Asks the hooks about a request of a post, and blocks the poster as they say.
    pub(crate) fn ask(self: &Arc<Self>, post: &Post<'_>) -> PostFate {
        if self.is_removed() {
            return PostFate::refuse(PostReason::DeviceRemoved);
        }
        let fate = self.layer.hooks.post(post);
        self.layer.sleep(fate.delay);
        fate
    }
}

/// Posts requests one after the other, each after the hooks were asked: requests before one that is refused are posted. `seen` is
/// a request as the hooks see it.
pub(crate) fn one_by_one<'a, R>(
    open: &Arc<OpenLayer>,
    requests: &'a [R],
    seen: impl Fn(&'a R, usize) -> Post<'a>,
    post: impl Fn(&[R]) -> Posted,
) -> Posted {
    for (index, request) in requests.iter().enumerate() {
        let seen = seen(request, index);
        if let Some(reason) = open.ask(&seen).refusal {
            return Err((index, reason));
        }
        if let Err((_, reason)) = post(std::slice::from_ref(request)) {
            open.layer.hooks.not_posted(&seen);
            return Err((index, reason));
        }
    }
    Ok(())
}

impl PostOps for QueuePair {
    fn post_send(&self, requests: &[WorkRequest<'_>]) -> Posted {
        one_by_one(
            &self.open,
            requests,
            |request, index| self.one(Request::Send(request), index, requests.len()),
            |one| self.inner.poster().post_send(one),
        )
    }

    fn post_send_whole(&self, requests: &[WorkRequest<'_>]) -> Posted {
        let seen = |index: usize| self.one(Request::Send(&requests[index]), index, requests.len());
        let take_back = |end: usize| {
            (0..end).for_each(|index| self.open.layer.hooks.not_posted(&seen(index)));
        };
        for index in 0..requests.len() {
            if let Some(reason) = self.open.ask(&seen(index)).refusal {
                take_back(index);
                return Err((index, reason));
            }
        }
        let posted = self.inner.poster().post_send_whole(requests);
        posted.inspect_err(|_| take_back(requests.len()))
    }

    fn post_recv(&self, requests: &[ReceiveRequest<'_>]) -> Posted {
        one_by_one(
            &self.open,
            requests,
            |request, index| self.one(Request::Receive(request), index, requests.len()),
            |one| self.inner.poster().post_recv(one),
        )
    }
}

impl QpOps for QueuePair {
    fn poster(&self) -> &(dyn PostOps + 'static) {
        self
    }

    fn admit(&self, open: bool) {
        self.inner.admit(open && !self.open.is_removed());
    }

    fn qp_num(&self) -> Qpn {
        self.inner.qp_num()
    }

    fn starting_psn(&self) -> Psn {
        self.inner.starting_psn()
    }

    fn cap(&self) -> QpCap {
        self.cap
    }

    fn modify(&self, mut attributes: QpAttributes, reply: Reply<()>) {
        let call = &mut self.call(Verb::ModifyQp, Arguments::QpChange(&mut attributes));
        let before = self.open.before(call);
        self.modify_after(before, attributes, reply);
    }

    fn connect(self: Arc<Self>, peer: &QpEndpoint, mut steps: [QpAttributes; 3], reply: Reply<()>) {
        let mut answers = Vec::with_capacity(steps.len());
        for step in &mut steps {
            let call = &mut self.call(Verb::ModifyQp, Arguments::QpChange(step));
            answers.push(self.open.before(call));
        }
        let is_plain = |before: &Before| before.delay.is_zero() && before.refusal.is_none();
        if answers.iter().all(is_plain) {
            let then = self.open.telling(Verb::ModifyQp, Some(&self.object), reply);
            return Arc::clone(&self.inner).connect(peer, steps, then);
        }
        let steps: Vec<_> = answers.into_iter().zip(steps).collect();
        self.next_step(steps.into_iter(), reply);
    }

    fn keep_receives(&self) {
        self.inner.keep_receives();
    }

    fn query(&self) -> Result<QpStatus, VerbError> {
        let verb = Verb::QueryQp;
        self.open
            .before_direct(&mut self.call(verb, Arguments::None))?;
        let mut result = self.inner.query();
        let (error, answer) = match &mut result {
            Ok(status) => {
                // The device may not have carried out yet what the failure asked it for.
                if self.object.qp().is_some_and(|qp| qp.has_any_failed()) {
                    status.state = QpState::Err;
                }
                (None, Answer::Qp(status))
            }
            Err(error) => (Some(&*error), Answer::None),
        };
        self.open.layer.hooks.after(&mut Ended {
            verb,
            object: Some(&self.object),
            error,
            answer,
        });
        result
    }

    fn counters(&self) -> QpCounters {
        self.inner.counters()
    }

    fn attach_counter(&self, counts: AttachedCounts) -> Result<(), VerbError> {
        let verb = Verb::AttachCounter;
        self.open
            .before_direct(&mut self.call(verb, Arguments::None))?;
        self.inner.attach_counter(counts)
    }

    fn bind_mw(&self, bind: BindWindow<'_>) -> Result<RKey, PostReason> {
        let call = &mut self.call(Verb::BindMw, Arguments::Bind(&bind));
        self.open.before_direct(call).map_err(reason_of)?;
        self.inner.bind_mw(bind)
    }

    fn attach_multicast(&self, group: Gid, reply: Reply<()>) {
        let call = (Verb::AttachMcast, Arguments::Group(group));
        let inner = Arc::clone(&self.inner);
        self.open
            .carry_out_on(call, &self.object, reply, move |reply| {
                inner.attach_multicast(group, reply);
            });
    }

    fn detach_multicast(&self, group: Gid, reply: Reply<()>) {
        let call = (Verb::DetachMcast, Arguments::Group(group));
        let inner = Arc::clone(&self.inner);
        self.open
            .carry_out_on(call, &self.object, reply, move |reply| {
                inner.detach_multicast(group, reply);
            });
    }

    fn destroy(&self, reply: Reply<()>) {
        let inner = Arc::clone(&self.inner);
        let verb = Verb::DestroyQp;
        self.open
            .destroy(verb, &self.object, reply, move |reply| inner.destroy(reply));
    }
}

/// The reason for which a request is refused where a hook has given the error of a verb.
pub(crate) fn reason_of(error: VerbError) -> PostReason {
    match error {
        VerbError::Os { errno, .. } => PostReason::Os { errno },
        VerbError::DeviceRemoved => PostReason::DeviceRemoved,
        VerbError::InvalidState(state) => PostReason::InvalidState(state),
        _ => PostReason::Os {
            errno: libc::EINVAL,
        },
    }
}
