//! Queue pairs: the handle, posting, and control verbs.

use std::sync::{Arc, Weak};
use std::{fmt, mem, slice};

use super::QpOptions;
use super::options::{rules, why_closed};
use super::poster::Poster;
use crate::capability::{BaselineGaps, Features};
use crate::context::{Context, Opened};
use crate::contract::{QpInit, QpOps};
use crate::control::{Reply, Started};
use crate::counter::CompletionCounter;
use crate::counts::CountedOperations;
use crate::cq::CqObject;
use crate::error::{ArgumentReason, VerbError};
use crate::ids::{Gid, Psn, Qpn, RKey};
use crate::lifecycle::{
    AnyObject, DestroyError, Extra, Handle, Object, ObjectBuilder, Ops, Reserved, by_identity,
    destroy,
};
use crate::lock::Mutex;
use crate::mem::MwType;
use crate::object_id::{ObjectId, ObjectKind};
use crate::operation::{ExtensionOperation, RequestAttribute};
use crate::pd::Pd;
use crate::portable::{Lowered, Portable};
use crate::post::{PostError, PostReason, QpRules};
use crate::qp_attributes::{QpAttributes, QpCap, QpCounters, QpState, QpStatus, QpVariant};
use crate::receive::{post_in_place, post_owned, post_receives};
use crate::service::{Operations, QpType};
use crate::wr::requests::{Common, Operation, Special};
use crate::wr::{Batch, BindWindow, ReceiveRequest, WorkRequest};

pub(crate) struct QpExtra {
    opened: Arc<Opened>,
    rules: Arc<QpRules>,
    sq_psn: Psn,
    attachments: Mutex<Vec<Attachment>>,
    queues: Queues,
}

/// Weak references to the completion queues of a queue pair; the strong ones are the queue pair's holds on its parents.
#[derive(Clone)]
pub(super) struct Queues {
    pub(super) send: Weak<CqObject>,
    pub(super) recv: Weak<CqObject>,
}

impl Queues {
    // Ends the futures of outstanding requests: they will not complete.
    fn end_requests_of(&self, qp: ObjectId) {
        for queue in [&self.send, &self.recv]
            .into_iter()
            .filter_map(Weak::upgrade)
        {
            queue.extra.end_requests_of(qp);
        }
    }
}

struct Attachment {
    group: Gid,
    // Its entry in the list of holders; `None` until the provider has attached.
    hold: Option<AttachmentHold>,
}

struct AttachmentHold {
    slot: u32,
    _reserved: Reserved,
}

impl Extra for QpExtra {
    fn on_destroyed(&self, id: ObjectId) {
        self.queues.end_requests_of(id);
    }
}

impl Ops for dyn QpOps {
    fn destroy(&self, reply: Reply<()>) {
        QpOps::destroy(self, reply);
    }

    fn admit(&self, open: bool) {
        QpOps::admit(self, open);
    }

    fn number(&self) -> Option<u32> {
        Some(self.qp_num().value())
    }
}

pub(crate) type QpObject = Object<dyn QpOps, QpExtra>;

/// A queue pair. A clone is another handle of the same queue pair.
///
/// Every thread may post; posts of several threads to one queue are executed one after the other, and those of one thread
/// in their order. Posting allocates no memory.
///
/// ```no_run
/// # fn example(pd: &verbs_api::Pd, cq: &verbs_api::Cq, peer: verbs_api::QpEndpoint)
/// #     -> Result<(), Box<dyn std::error::Error>> {
/// use verbs_api::{PathOptions, QpOptions, wr};
/// let qp = pd.create_qp(QpOptions::rc(cq).max_send_wr(128)).wait()?;
/// println!("the peer connects to {:?}", qp.endpoint()?);
/// qp.connect(&peer, PathOptions::new()).wait()?;
/// qp.post_one(wr::Send::new(b"hello").signaled(7))?;
/// # Ok(())
/// # }
/// ```
///
/// Destroying consumes the handle:
///
/// ```compile_fail
/// fn after_destroy(qp: verbs_api::Qp) {
///     let destroyed = qp.destroy();
///     qp.query().unwrap(); // the handle is gone
/// }
/// ```
#[derive(Clone)]
#[doc(alias = "ibv_qp")]
pub struct Qp {
    // What posting needs is one pointer away, and the handle is small: a program may have many.
    object: Poster,
    rules: Arc<QpRules>,
}

impl Context {
    /// Returns the queue pair with this identity; `None` if it was destroyed.
    pub fn find_qp(&self, id: ObjectId) -> Option<Qp> {
        Some(Qp::of(self.find(id)?))
    }
}

impl Pd {
    /// Makes a queue pair in RESET. It supports all operations of `options`, or creation fails.
    ///
    /// # Errors
    /// A feature or baseline ability is missing, the service does not have an operation, a number exceeds its limit, or a
    /// queue is of another device.
    #[doc(alias = "ibv_create_qp")]
    #[doc(alias = "ibv_create_qp_ex")]
    pub fn create_qp(&self, options: QpOptions) -> Started<Qp> {
        Qp::create(self, options)
    }
}

impl Qp {
    pub(crate) fn of(object: Arc<QpObject>) -> Self {
        Self {
            rules: Arc::clone(&object.extra.rules),
            object: Poster::new(object),
        }
    }

    pub(crate) fn create(pd: &Pd, options: QpOptions) -> Started<Self> {
        match Self::start(pd, options) {
            Ok(started) => started,
            Err(error) => Started::ready(Err(error)),
        }
    }

    fn start(pd: &Pd, options: QpOptions) -> Result<Started<Self>, VerbError> {
        let context = pd.context();
        let attributes = context.attributes();
        let operations = options.granted_operations(context)?;
        let cap = options.checked_cap(&attributes.limits)?;
        options.check_extensions(&context.grant, cap)?;
        let variant = options.variant();
        let QpOptions {
            qp_type,
            send_cq,
            recv_cq,
            srq,
            sq_sig_all,
            reserved: reserved_wr,
            extensions,
            ..
        } = options;
        let srq_context = srq.as_ref().map(|srq| &srq.object().context);
        let contexts = [
            ("send_cq", Some(&send_cq.object().context)),
            ("recv_cq", Some(&recv_cq.object().context)),
            ("srq", srq_context),
        ];
        for (argument, other) in contexts {
            if other.is_some_and(|other| !Arc::ptr_eq(other, context)) {
                return Err(VerbError::argument(argument, ArgumentReason::AnotherDevice));
            }
        }
        let mut parents: Vec<Arc<dyn AnyObject>> = vec![
            Arc::clone(&pd.object) as _,
            Arc::clone(send_cq.object()) as _,
            Arc::clone(recv_cq.object()) as _,
        ];
        parents.extend(
            srq.iter()
                .map(|srq| Arc::clone(srq.object()) as Arc<dyn AnyObject>),
        );
        let builder = ObjectBuilder::new(context, ObjectKind::Qp, parents)?;
        let rules = rules(qp_type, pd.id(), operations, context, &cap, srq.is_some());
        let rules = variant.map_or(rules, |variant| rules.of_variant(variant));
        let init = QpInit {
            id: builder.id(),
            qp_type,
            send_cq: Arc::clone(&send_cq.object().ops),
            recv_cq: Arc::clone(&recv_cq.object().ops),
            srq: srq.as_ref().map(|srq| Arc::clone(&srq.object().ops)),
            cap,
            reserved_wr,
            sq_sig_all,
            operations,
            extensions,
        };
        let queues = Queues {
            send: Arc::downgrade(send_cq.object()),
            recv: Arc::downgrade(recv_cq.object()),
        };
        let opened = Arc::clone(&pd.object.extra.opened);
        let (started, outcome) = context.begin();
        pd.object.ops.create_qp(
            init,
            Reply::new(move |result| {
                outcome.complete(result.map(|ops| Self::made(builder, ops, rules, queues, opened)));
            }),
        );
        Ok(started)
    }

    fn made(
        builder: ObjectBuilder,
        ops: Arc<dyn QpOps>,
        mut rules: QpRules,
        queues: Queues,
        opened: Arc<Opened>,
    ) -> Self {
        // The sizes that the device made are at least those asked for, and all of them may be used.
        let cap = ops.cap();
        rules.max_recv_sge = cap.max_recv_sge;
        rules.max_inline_data = cap.max_inline_data;
        rules.max_send_sge = cap.max_send_sge;
        rules.max_sge_rd = rules.max_sge_rd.min(cap.max_send_sge);
        let sq_psn = ops.starting_psn();
        let attachments = Mutex::default();
        let extra = QpExtra {
            opened,
            rules: builder.context().share_rules(rules),
            sq_psn,
            attachments,
            queues,
        };
        Self::of(builder.finish(ops, extra))
    }

    /// Returns the identity of the queue pair.
    pub fn id(&self) -> ObjectId {
        self.object.node.id()
    }

    /// Returns the 24-bit queue pair number.
    pub fn qp_num(&self) -> Qpn {
        self.ops().qp_num()
    }

    /// Returns the service type of the queue pair.
    pub fn qp_type(&self) -> QpType {
        self.rules.qp_type
    }

    /// Returns the variant of its service that an extension made of the queue pair; `None` for an ordinary one.
    pub fn variant(&self) -> Option<&'static QpVariant> {
        self.rules.variant
    }

    /// Returns the operations that the queue pair was created for.
    pub fn operations(&self) -> Operations {
        self.rules.operations | self.rules.special_operations
    }

    /// Returns whether its receives come from a shared receive queue.
    pub fn has_srq(&self) -> bool {
        self.rules.has_srq
    }

    /// Returns the actual sizes of the queues: at least as large as asked for.
    pub fn cap(&self) -> QpCap {
        self.ops().cap()
    }

    /// Posts the requests of a batch in order, with one doorbell, and removes those that were posted from the batch.
    ///
    /// # Errors
    /// How many requests were posted, and why the next was refused: it is the first of those that remain in the batch, with
    /// its buffers. The device executes those that were posted.
    #[doc(alias = "ibv_post_send")]
    #[inline]
    pub fn post(&self, batch: &mut Batch<'_>) -> Result<(), PostError> {
        let requests = &mut batch.requests;
        let mut valid = 0;
        let mut refusal = None;
        for request in requests.iter_mut() {
            if let Err(reason) = self.check(request) {
                refusal = Some(PostError {
                    index: valid,
                    reason: self.refused(reason),
                });
                break;
            }
            if !request.common().special.is_empty()
                && let Err(reason) = self.prepare(request)
            {
                refusal = Some(PostError {
                    index: valid,
                    reason,
                });
                break;
            }
            valid += 1;
        }
        if valid > 0
            && let Err((posted, reason)) = self.object.poster().post_send(&requests[..valid])
        {
            take_back(&mut requests[posted..valid]);
            valid = posted;
            refusal = Some(PostError {
                index: posted,
                reason: self.refused(reason),
            });
        }
        requests.drain(..valid);
        refusal.map_or(Ok(()), Err)
    }

    /// Posts all requests of a batch and empties it, or posts none of them.
    ///
    /// # Errors
    /// Which request cannot be posted, and why. None was posted: the batch is unchanged and still has its buffers.
    #[doc(alias = "ibv_wr_complete")]
    pub fn post_whole(&self, batch: &mut Batch<'_>) -> Result<(), PostError> {
        let requests = &mut batch.requests;
        for (index, request) in requests.iter().enumerate() {
            let checked = self.check(request);
            checked.map_err(|reason| PostError {
                index,
                reason: self.refused(reason),
            })?;
        }
        let mut prepared = 0;
        let posted = requests.iter_mut().try_for_each(|request| {
            self.prepare(request).map_err(|reason| (prepared, reason))?;
            prepared += 1;
            Ok(())
        });
        let posted = posted.and_then(|()| {
            let posted = self.object.poster().post_send_whole(requests);
            posted.map_err(|(index, reason)| (index, self.refused(reason)))
        });
        match posted {
            Ok(()) => requests.clear(),
            Err(_) => take_back(&mut requests[..prepared]),
        }
        posted.map_err(|(index, reason)| PostError { index, reason })
    }

    /// Posts one request to the send queue.
    ///
    /// # Errors
    /// Why the request was refused. It is dropped, and its buffers return to their pools.
    #[doc(alias = "ibv_post_send")]
    #[inline(always)] // The request is built where it is used: moving it costs as much as a lock.
    pub fn post_one<'a>(&self, request: impl Into<WorkRequest<'a>>) -> Result<(), PostError> {
        let mut request = request.into();
        let lends = request.common().special.contains(Special::LENDS);
        let posted = self.post_in_place(&mut request);
        if !lends {
            // Only buffers are owned: this saves the look at which operation and which data it is.
            mem::forget(request);
        }
        posted
    }

    /// Posts the request that `request` refers to. Afterwards its buffers belong to the device, and its data is empty.
    ///
    /// # Errors
    /// Why the request was refused; it is unchanged and still has its buffers.
    #[doc(hidden)] // For the C library, whose caller owns the request.
    pub fn post_in_place(&self, request: &mut WorkRequest<'_>) -> Result<(), PostError> {
        self.check(request).map_err(|reason| self.refused(reason))?;
        let special = request.common().special;
        if !special.is_empty() {
            self.prepare(request)?;
        }
        let posted = self.object.poster().post_send(slice::from_ref(request));
        if special.contains(Special::LENDS) {
            request.data_mut().end_loan(posted.is_ok());
        }
        posted.map_err(|(_, reason)| self.refused(reason).into())
    }

    /// Posts a portable operation as one or more requests, as this device needs. It has one completion with the operation's
    /// `wr_id`, also if it fails.
    ///
    /// # Errors
    /// Why the operation was refused; no part of it was posted.
    #[inline]
    pub fn post_portable(&self, operation: impl Portable) -> Result<(), PostError> {
        self.post_lowered(self.lower(&operation)?)
    }

    pub(super) fn lower<'a>(&self, operation: &'a impl Portable) -> Result<Lowered<'a>, PostError> {
        Ok(operation.lower(self.rules.features)?)
    }

    pub(super) fn post_lowered(&self, lowered: Lowered<'_>) -> Result<(), PostError> {
        let Lowered { first, second } = lowered;
        self.check(&first)?;
        let poster = self.object.poster();
        let posted = match second {
            None => poster.post_send(slice::from_ref(&first)),
            Some(second) => {
                self.check(&second)?;
                poster.post_send(&[first, second])
            }
        };
        posted.map_err(|(_, reason)| self.refused(reason).into())
    }

    /// Posts one receive. A buffer of a [`BufferPool`](crate::BufferPool) converts into one.
    ///
    /// Post several in advance: a message for which no receive is posted is retried, lost or ends the connection, depending
    /// on service and transport.
    ///
    /// # Errors
    /// Why the receive was refused. It is dropped, and its buffers return to their pools.
    #[doc(alias = "ibv_post_recv")]
    #[inline]
    pub fn post_receive<'a>(
        &self,
        request: impl Into<ReceiveRequest<'a>>,
    ) -> Result<(), PostError> {
        post_owned(request.into(), |request| {
            self.post_receive_in_place(request)
        })
    }

    /// Posts the receive that `request` refers to. Afterwards its buffers belong to the device, and its data is empty.
    ///
    /// # Errors
    /// Why the receive was refused; it is unchanged and still has its buffers.
    #[doc(hidden)] // For the C library, whose caller owns the request.
    #[inline]
    pub fn post_receive_in_place(&self, request: &mut ReceiveRequest<'_>) -> Result<(), PostError> {
        let accepts = self.check_receive();
        let max_sge = self.rules.max_recv_sge;
        post_in_place(request, accepts, max_sge, |requests| {
            self.post_recv(requests)
        })
    }

    /// Posts receives in order, and removes those that were posted from the list.
    ///
    /// # Errors
    /// How many receives were posted, and why the next was refused: it is the first of those that remain in the list.
    #[doc(alias = "ibv_post_recv")]
    #[inline]
    pub fn post_receives(&self, requests: &mut Vec<ReceiveRequest<'_>>) -> Result<(), PostError> {
        let accepts = self.check_receive();
        let max_sge = self.rules.max_recv_sge;
        post_receives(requests, accepts, max_sge, |requests| {
            self.post_recv(requests)
        })
    }

    /// Binds a window of type 1, and returns its new key. [`BindWindow::unbind`] unbinds it. Needs [`Features::WINDOW_1`].
    ///
    /// The bind is in force for requests that are posted later to the same queue pair. A peer that learns the key in
    /// another way may use it once the bind has completed.
    ///
    /// ```no_run
    /// # fn example(pd: &verbs_api::Pd, qp: &verbs_api::Qp, cq: &verbs_api::Cq, region: &verbs_api::Mr)
    /// #     -> Result<(), Box<dyn std::error::Error>> {
    /// use verbs_api::{Access, memory::MwType, wr::BindWindow};
    /// let window = pd.alloc_mw(MwType::Type1).wait()?;
    /// let bind = BindWindow::new(&window, region, region.iova(), 64).access(Access::REMOTE_WRITE);
    /// let rkey = qp.bind_mw(bind.signaled(1))?;
    /// cq.next().wait()?.success()?;
    /// println!("peers write these 64 bytes with {rkey}");
    /// qp.bind_mw(BindWindow::unbind(&window).signaled(2))?; // and no longer
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As for a posted request; or the window is of type 2.
    #[doc(alias = "ibv_bind_mw")]
    pub fn bind_mw(&self, bind: BindWindow<'_>) -> Result<RKey, PostError> {
        let missing = Features::WINDOW_1 - self.rules.features;
        if !missing.is_empty() {
            return Err(PostReason::Unsupported { missing }.into());
        }
        let has_sends = self.rules.variant.is_none_or(QpVariant::has_sends);
        let of_service = self.rules.qp_type.operations();
        if !has_sends || !of_service.contains(Operations::BIND_MW) {
            let missing = Operations::BIND_MW;
            return Err(PostReason::OperationNotEnabled { missing }.into());
        }
        bind.validate(&self.rules)?;
        bind.check_handles(&self.object.context)?;
        if bind.window_type() != Some(MwType::Type1) {
            return Err(PostReason::WindowType.into());
        }
        let bound = self.ops().bind_mw(bind);
        bound.map_err(|reason| self.refused(reason).into())
    }

    /// Changes attributes and state of the queue pair (`ibv_modify_qp`).
    ///
    /// ```no_run
    /// # fn example(qp: &verbs_api::Qp) -> Result<(), Box<dyn std::error::Error>> {
    /// use verbs_api::qp::{QpAttributes, QpState};
    /// // Everything outstanding is flushed; then the queue pair can be connected anew.
    /// qp.modify(QpAttributes::new().qp_state(QpState::Err)).wait()?;
    /// qp.modify(QpAttributes::new().qp_state(QpState::Reset)).wait()?;
    /// assert_eq!(qp.query()?.state, QpState::Reset);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`BadModify`](crate::qp::BadModify) names the states and the attributes that are missing,
    /// forbidden or out of range; nothing was changed. Some devices do not modify to RTR:
    /// [`BaselineGaps::NO_MODIFY_TO_RTR`].
    #[doc(alias = "ibv_modify_qp")]
    pub fn modify(&self, attributes: QpAttributes) -> Started<()> {
        let ops = Arc::clone(self.ops());
        if attributes.qp_state != Some(QpState::Reset) {
            let check = self.check_step(&attributes);
            return self.request(check, move |reply| ops.modify(attributes, reply));
        }
        let (id, queues) = (self.id(), self.queues().clone());
        self.request(Ok(()), move |reply| {
            let reset = Reply::new(move |result: Result<(), VerbError>| {
                if result.is_ok() {
                    queues.end_requests_of(id);
                }
                reply.send(result);
            });
            ops.modify(attributes, reset);
        })
    }

    /// Makes the queue pair keep its posted receives if the peer closes the connection in good order, because the
    /// connection manager reports the disconnect and the program flushes them. Without this call, a transport that notices
    /// the close itself, as iWARP does, flushes them. Connection managers call it before RTR; RESET clears it.
    pub fn keep_receives(&self) {
        self.ops().keep_receives();
    }

    // Refuses a step that queue pairs of the device do not support.
    pub(super) fn check_step(&self, attributes: &QpAttributes) -> Result<(), VerbError> {
        let context = &self.object.context;
        match attributes.qp_state {
            Some(QpState::Rtr) => context.check_gap(BaselineGaps::NO_MODIFY_TO_RTR),
            _ => Ok(()),
        }
    }

    // Starts one control request on this queue pair, which is its holder until it has ended.
    pub(super) fn request(
        &self,
        check: Result<(), VerbError>,
        start: impl FnOnce(Reply<()>),
    ) -> Started<()> {
        let ticket = match check.and_then(|()| self.object.object().begin_request()) {
            Ok(ticket) => ticket,
            Err(error) => return Started::ready(Err(error)),
        };
        let (started, outcome) = self.object.context.begin();
        start(Reply::new(move |result| {
            drop(ticket);
            outcome.complete(result);
        }));
        started
    }

    /// Queries state, attributes and sizes of the queue pair (`ibv_query_qp`).
    ///
    /// # Errors
    /// The queue pair was destroyed, or its device removed.
    #[doc(alias = "ibv_query_qp")]
    pub fn query(&self) -> Result<QpStatus, VerbError> {
        self.object.node.check_live()?;
        self.ops().query()
    }

    /// Returns what the queue pair has counted since it was created.
    pub fn counters(&self) -> QpCounters {
        self.ops().counters()
    }

    /// Lets a counter count these operations of the queue pair, which must be in RESET or INIT. Several queue pairs may have the
    /// same counter. It is detached when the queue pair is destroyed. Needs [`Features::COMPLETION_COUNTERS`].
    ///
    /// # Errors
    /// `InvalidState`: the queue pair is in another state. `Busy`: a counter counts one of the operations already. The counter is of
    /// another device, or `operations` is empty.
    #[doc(alias = "ibv_qp_attach_comp_cntr")]
    pub fn attach_completion_counter(
        &self,
        counter: &CompletionCounter,
        operations: CountedOperations,
    ) -> Result<(), VerbError> {
        self.object.node.check_live()?;
        let attached = counter.attached(operations, &self.object.context)?;
        self.ops().attach_counter(attached)
    }

    /// Attaches the queue pair to a multicast group. It cannot be destroyed until it is detached. Needs
    /// [`Features::MULTICAST`].
    ///
    /// ```no_run
    /// # fn example(datagrams: &verbs_api::Qp) -> Result<(), Box<dyn std::error::Error>> {
    /// use std::net::IpAddr;
    /// use verbs_api::ids::Gid;
    /// let group = Gid::from("239.1.1.1".parse::<IpAddr>()?);
    /// datagrams.attach_multicast(group).wait()?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The queue pair is not a datagram one, `group` is not a multicast GID, or the queue pair is attached already.
    #[doc(alias = "ibv_attach_mcast")]
    pub fn attach_multicast(&self, group: Gid) -> Started<()> {
        let check = self.check_attach(group);
        let accepted = check.is_ok();
        let object = Arc::clone(self.object.object());
        let ops = Arc::clone(self.ops());
        let before = self.request(check, move |reply| {
            ops.attach_multicast(
                group,
                Reply::new(move |result| {
                    object.extra.attached(&object, group, result.is_ok());
                    drop(object);
                    reply.send(result);
                }),
            );
        });
        // Refused because the handle is dead: no request was started that would remove the entry.
        if accepted && !self.object.node.is_live() {
            self.object.extra.forget_unattached(group);
        }
        before
    }

    fn check_attach(&self, group: Gid) -> Result<(), VerbError> {
        self.object.context.require(Features::MULTICAST)?;
        if self.rules.qp_type != QpType::Ud {
            return Err(VerbError::argument("qp_type", "multicast is for datagrams"));
        }
        if !group.is_multicast() {
            let reason = "is no multicast group, as ff0e::1 and ::ffff:239.1.1.1 are";
            return Err(VerbError::argument("gid", reason));
        }
        self.object.node.check_live()?;
        let mut attachments = self.object.extra.attachments();
        if attachments.iter().any(|known| known.group == group) {
            return Err(VerbError::argument("gid", "was joined already"));
        }
        attachments.push(Attachment { group, hold: None });
        Ok(())
    }

    /// Whether the queue pair is attached to a multicast group that the program named by this GID.
    pub fn is_attached(&self, group: Gid) -> bool {
        let attachments = self.object.extra.attachments();
        attachments.iter().any(|known| known.group == group)
    }

    /// Detaches the queue pair from a multicast group.
    ///
    /// # Errors
    /// The queue pair is not attached to the group.
    #[doc(alias = "ibv_detach_mcast")]
    pub fn detach_multicast(&self, group: Gid) -> Started<()> {
        let check = if self.is_attached(group) {
            Ok(())
        } else {
            Err(VerbError::argument("gid", "was not joined"))
        };
        let object = Arc::clone(self.object.object());
        let ops = Arc::clone(self.ops());
        self.request(check, move |reply| {
            ops.detach_multicast(
                group,
                Reply::new(move |result| {
                    if result.is_ok() {
                        object.extra.detached(&object, group);
                    }
                    drop(object);
                    reply.send(result);
                }),
            );
        })
    }

    /// Destroys the queue pair. Fails with Busy while it is attached to multicast groups or a control request on it has not
    /// ended. Outstanding requests end without a completion; their buffers return to their pools.
    #[doc(alias = "ibv_destroy_qp")]
    pub fn destroy(self) -> Started<(), DestroyError<Self>> {
        destroy(self)
    }

    /// Returns the open device that the queue pair belongs to.
    pub fn open_device(&self) -> Context {
        Context {
            core: Arc::clone(&self.object.context),
            opened: Arc::clone(&self.object.extra.opened),
        }
    }

    pub(super) fn ops(&self) -> &Arc<dyn QpOps> {
        &self.object.object().ops
    }

    pub(super) fn queues(&self) -> &Queues {
        &self.object.extra.queues
    }

    pub(super) fn sq_psn(&self) -> Psn {
        self.object.extra.sq_psn
    }

    #[inline]
    fn check_live(&self) -> Result<(), PostReason> {
        if self.object.node.is_live() {
            Ok(())
        } else {
            Err(self.object.node.dead_reason())
        }
    }

    // If the handle is dead, that is the reason, whatever else is wrong.
    #[cold]
    fn refused(&self, reason: PostReason) -> PostReason {
        self.check_live().err().unwrap_or(reason)
    }

    #[inline]
    fn post_recv(&self, requests: &[ReceiveRequest<'_>]) -> Result<(), (usize, PostReason)> {
        let posted = self.object.poster().post_recv(requests);
        posted.map_err(|(index, reason)| (index, self.refused(reason)))
    }

    #[inline]
    fn check_receive(&self) -> Result<(), PostReason> {
        if self.rules.has_srq {
            Err(self.refused(PostReason::HasSrq))
        } else if self.rules.variant.is_some() {
            Err(self.refused(PostReason::NoReceives))
        } else {
            Ok(())
        }
    }

    #[inline]
    fn check(&self, request: &WorkRequest<'_>) -> Result<(), PostReason> {
        // The common ones are matched once, the others again at each step.
        match request {
            WorkRequest::Write(write) => self.check_one(write),
            WorkRequest::Send(send) => self.check_one(send),
            WorkRequest::Read(read) => self.check_one(read),
            other => self.check_other(other),
        }
    }

    // Out of line: with another arm the compiler would dispatch the common ones through a jump table.
    #[inline(never)]
    fn check_other(&self, request: &WorkRequest<'_>) -> Result<(), PostReason> {
        self.check_one(request)?;
        match request {
            WorkRequest::BindWindow(bind) => bind.check_handles(&self.object.context),
            _ => Ok(()),
        }
    }

    #[inline]
    fn check_one(&self, request: &impl Operation) -> Result<(), PostReason> {
        let operation = request.operation();
        if !self.rules.operations.contains(operation) {
            return self.check_special(request);
        }
        request.validate(&self.rules)
    }

    // A request on a variant, which must carry its attribute; or an operation that the queue pair was not created for.
    #[cold]
    fn check_special(&self, request: &impl Operation) -> Result<(), PostReason> {
        let operation = request.operation();
        if !self.rules.special_operations.contains(operation) {
            return Err(why_closed(&self.rules, operation));
        }
        let needed = self.rules.variant.and_then(QpVariant::request_attribute);
        let given = request.common().attribute().map(RequestAttribute::kind);
        if let Some(needed) = needed
            && !is_local(operation)
            && given != Some(needed)
        {
            return Err(PostReason::Extension {
                extension: needed.extension(),
                reason: "a request lacks the attribute that all of this queue pair carry",
            });
        }
        request.validate(&self.rules)
    }

    #[inline]
    fn prepare(&self, request: &mut WorkRequest<'_>) -> Result<(), PostReason> {
        let special = request.common().special;
        if special.contains(Special::ATTRIBUTE) {
            self.check_attribute(request.common())?;
        }
        if special.contains(Special::LENDS) {
            self.check_sink(request)?;
            request.data_mut().lend();
        }
        Ok(())
    }

    fn check_sink(&self, request: &WorkRequest<'_>) -> Result<(), PostReason> {
        let is_read = matches!(
            request,
            WorkRequest::Read(_) | WorkRequest::ReadWithInvalidate(_)
        );
        if is_read && !self.rules.reads_into_buffers {
            return Err(PostReason::PrivateReadSink);
        }
        Ok(())
    }

    #[cold]
    fn check_attribute(&self, common: &Common) -> Result<(), PostReason> {
        let taken = self.rules.variant.and_then(QpVariant::request_attribute);
        match common.attribute().map(RequestAttribute::kind) {
            Some(kind) if taken != Some(kind) => Err(PostReason::Extension {
                extension: kind.extension(),
                reason: "a request has an attribute that this queue pair does not take",
            }),
            _ => Ok(()),
        }
    }
}

// Whether the operation is carried out locally.
fn is_local(operation: Operations) -> bool {
    let of_core = Operations::BIND_MW | Operations::LOCAL_INV | Operations::FAST_REGISTER;
    let mut of_extensions = operation.of_extensions();
    of_core.contains(operation) || of_extensions.any(ExtensionOperation::is_local)
}

#[cold]
fn take_back(requests: &mut [WorkRequest<'_>]) {
    requests
        .iter_mut()
        .filter(|request| request.common().special.contains(Special::LENDS))
        .for_each(|request| request.data_mut().take_back());
}

impl QpExtra {
    fn attachments(&self) -> std::sync::MutexGuard<'_, Vec<Attachment>> {
        self.attachments.lock()
    }

    fn attached(&self, object: &Arc<QpObject>, group: Gid, success: bool) {
        let hold = success.then(|| {
            let context = &object.context;
            let reserved = context.table().reserve(ObjectKind::Multicast).ok()?;
            let slot = object.node.add_holder(reserved.user());
            Some(AttachmentHold {
                slot,
                _reserved: reserved,
            })
        });
        match hold.flatten() {
            Some(hold) => {
                let mut attachments = self.attachments();
                if let Some(known) = attachments.iter_mut().find(|known| known.group == group) {
                    known.hold = Some(hold);
                }
            }
            None => self.forget_unattached(group),
        }
    }

    fn detached(&self, object: &Arc<QpObject>, group: Gid) {
        let mut attachments = self.attachments();
        let place = attachments.iter().position(|known| known.group == group);
        let attachment = place.map(|place| attachments.swap_remove(place));
        drop(attachments);
        if let Some(hold) = attachment.and_then(|attachment| attachment.hold) {
            object.node.remove_holder(hold.slot);
        }
    }

    fn forget_unattached(&self, group: Gid) {
        self.attachments()
            .retain(|known| known.group != group || known.hold.is_some());
    }
}

impl Handle for Qp {
    type Ops = dyn QpOps;
    type Extra = QpExtra;

    fn object(&self) -> &Arc<QpObject> {
        self.object.object()
    }
}

by_identity!(Qp: Handle::object);

impl fmt::Debug for Qp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} ({:?} {})",
            self.object.node.holder(),
            self.rules.qp_type,
            self.qp_num()
        )
    }
}
