//! Shared receive queues.

use std::fmt;
use std::sync::Arc;

use crate::capability::{Features, Limit};
use crate::context::Context;
use crate::contract::{SrqExtension, SrqInit, SrqOps};
use crate::control::{Reply, Started};
use crate::cq::Cq;
use crate::error::{ArgumentReason, VerbError};
use crate::lifecycle::{DestroyError, Handle, Object, ObjectBuilder, Ops, by_identity, destroy};
use crate::object_id::{ObjectId, ObjectKind};
use crate::pd::Pd;
use crate::post::{PostError, PostReason};
use crate::receive::{post_in_place, post_owned, post_receives};
use crate::wr::ReceiveRequest;

/// The options with which a shared receive queue is made.
///
/// ```no_run
/// # fn example(pd: &verbs_api::Pd) -> Result<(), Box<dyn std::error::Error>> {
/// use verbs_api::SrqOptions;
/// // An event tells that fewer than 64 receives are left: time to post more.
/// let srq = pd.create_srq(SrqOptions::new(1024).max_sge(2).srq_limit(64)).wait()?;
/// assert!(srq.query()?.max_wr >= 1024);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[doc(alias = "ibv_srq_init_attr")]
pub struct SrqOptions {
    pub(crate) max_wr: u32,
    pub(crate) max_sge: u32,
    pub(crate) srq_limit: u32,
}

impl SrqOptions {
    /// Options for a queue of at least `max_wr` receives, of one scatter/gather entry each.
    pub const fn new(max_wr: u32) -> Self {
        Self {
            max_wr,
            max_sge: 1,
            srq_limit: 0,
        }
    }

    /// Sets the least number of scatter/gather entries that a receive can have.
    #[must_use]
    pub const fn max_sge(mut self, max_sge: u32) -> Self {
        self.max_sge = max_sge;
        self
    }

    /// Raises one event when fewer than `srq_limit` receives are left; 0, the default, raises none.
    #[must_use]
    pub const fn srq_limit(mut self, srq_limit: u32) -> Self {
        self.srq_limit = srq_limit;
        self
    }

    pub(crate) fn check(&self) -> Result<(), VerbError> {
        if self.max_wr == 0 {
            return Err(VerbError::argument(
                "max_wr",
                "is 0: a queue holds at least one request",
            ));
        }
        check_limit(self.srq_limit, self.max_wr)
    }
}

fn check_limit(srq_limit: u32, max_wr: u32) -> Result<(), VerbError> {
    if srq_limit > max_wr {
        let reason = ArgumentReason::OutOfRange {
            given: srq_limit.into(),
            least: 0,
            most: max_wr.into(),
        };
        return Err(VerbError::argument("srq_limit", reason));
    }
    Ok(())
}

/// The result of [`Srq::query`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[doc(alias = "ibv_srq_attr")]
pub struct SrqStatus {
    /// Most receives that the queue can hold.
    pub max_wr: u32,
    /// Most scatter/gather entries of a receive.
    pub max_sge: u32,
    /// The armed limit of the limit event, 0 for none.
    pub srq_limit: u32,
    /// How many receives are posted and not taken by a message; `None` where the device does not count them.
    pub posted: Option<u32>,
}

impl Ops for dyn SrqOps {
    fn destroy(&self, reply: Reply<()>) {
        SrqOps::destroy(self, reply);
    }
}

pub(crate) type SrqObject = Object<dyn SrqOps>;

/// A shared receive queue, from which several queue pairs take their receives. A clone is another handle of the same queue.
///
/// ```no_run
/// # fn example(pd: &verbs_api::Pd, cq: &verbs_api::Cq, pool: &verbs_api::BufferPool)
/// #     -> Result<(), Box<dyn std::error::Error>> {
/// use verbs_api::{QpOptions, SrqOptions};
/// let srq = pd.create_srq(SrqOptions::new(64)).wait()?;
/// while let Some(buffer) = pool.take() {
///     srq.post_receive(buffer)?;
/// }
/// // Whichever of them a message comes for takes the next buffer.
/// let first = pd.create_qp(QpOptions::rc(cq).srq(&srq)).wait()?;
/// let second = pd.create_qp(QpOptions::rc(cq).srq(&srq)).wait()?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
#[doc(alias = "ibv_srq")]
pub struct Srq {
    ops: Arc<dyn SrqOps>,
    max_sge: u32,
    object: Arc<SrqObject>,
}

impl Context {
    /// Returns the shared receive queue with this identity; `None` if it was destroyed.
    #[doc(hidden)] // Tests look up by it whether a destroyed object is gone.
    pub fn find_srq(&self, id: ObjectId) -> Option<Srq> {
        Some(Srq::of(self.find(id)?))
    }
}

impl Pd {
    /// Makes a shared receive queue. Needs [`Features::SRQ`].
    ///
    /// # Errors
    /// The feature is missing, or a number is beyond its limit.
    #[doc(alias = "ibv_create_srq")]
    pub fn create_srq(&self, options: SrqOptions) -> Started<Srq> {
        self.make_srq(options, None)
    }

    /// Makes a shared receive queue with a mode of an extension. Such a queue has a completion queue of its own, `cq`,
    /// which is busy as long as this queue lives; the extension defines what completes there.
    ///
    /// # Errors
    /// As [`create_srq`](Self::create_srq); the extension's feature was not granted.
    pub fn create_srq_of(
        &self,
        extension: SrqExtension,
        options: SrqOptions,
        cq: &Cq,
    ) -> Started<Srq> {
        self.make_srq(options, Some((extension, cq)))
    }

    fn make_srq(&self, options: SrqOptions, of: Option<(SrqExtension, &Cq)>) -> Started<Srq> {
        let checks = || {
            self.context().require(Features::SRQ)?;
            self.check_limit(Limit::MaxSrqWr, u64::from(options.max_wr))?;
            self.check_limit(Limit::MaxSrqSge, u64::from(options.max_sge))?;
            options.check()?;
            let Some((extension, cq)) = &of else {
                return self.builder(ObjectKind::Srq);
            };
            let grant = &self.context().grant;
            grant.require(extension.extension(), extension.feature())?;
            if !Arc::ptr_eq(&cq.object().context, self.context()) {
                return Err(VerbError::argument("cq", ArgumentReason::AnotherDevice));
            }
            let parents = vec![Arc::clone(&self.object) as _, Arc::clone(cq.object()) as _];
            ObjectBuilder::new(self.context(), ObjectKind::Srq, parents)
        };
        let extension = of
            .as_ref()
            .map(|(extension, cq)| (extension.clone(), Arc::clone(cq.ops())));
        self.make(checks, move |pd, builder, outcome| {
            let SrqOptions {
                max_wr,
                max_sge,
                srq_limit,
            } = options;
            let init = SrqInit {
                id: builder.id(),
                max_wr,
                max_sge,
                srq_limit,
                extension,
            };
            let reply = Reply::new(move |result: Result<_, VerbError>| {
                outcome.complete(result.map(|ops| Srq::new(builder, ops)));
            });
            pd.ops.create_srq(init, reply);
        })
    }
}

impl Srq {
    pub(crate) fn new(builder: ObjectBuilder, ops: Arc<dyn SrqOps>) -> Self {
        Self::of(builder.finish(ops, ()))
    }

    pub(crate) fn of(object: Arc<SrqObject>) -> Self {
        let max_sge = object.ops.max_sge();
        Self {
            ops: Arc::clone(&object.ops),
            max_sge,
            object,
        }
    }

    pub(crate) fn object(&self) -> &Arc<SrqObject> {
        &self.object
    }

    /// Returns the provider's implementation of the queue, for extensions.
    pub fn ops(&self) -> &Arc<dyn SrqOps> {
        &self.ops
    }

    /// Returns how many scatter/gather entries a receive can have: at least as many as were asked for.
    pub fn max_sge(&self) -> u32 {
        self.max_sge
    }

    /// Returns the identity of the queue.
    pub fn id(&self) -> ObjectId {
        self.object.node.id()
    }

    /// Returns the number by which requests of peers name the queue (XRC); `None` for an ordinary one.
    #[doc(alias = "ibv_get_srq_num")]
    pub fn srq_num(&self) -> Option<u32> {
        self.ops.srq_num()
    }

    /// Posts one receive. A buffer of a [`BufferPool`](crate::BufferPool) converts into one.
    ///
    /// # Errors
    /// Why the receive was refused. It is dropped, and its buffers return to their pools.
    #[inline]
    #[doc(alias = "ibv_post_srq_recv")]
    pub fn post_receive<'a>(
        &self,
        request: impl Into<ReceiveRequest<'a>>,
    ) -> Result<(), PostError> {
        post_owned(request.into(), |request| {
            self.post_receive_in_place(request)
        })
    }

    /// Posts the receive that `request` refers to. Afterwards its buffers belong to the queue, and its data is empty.
    ///
    /// # Errors
    /// Why the receive was refused; it is unchanged and still has its buffers.
    #[doc(hidden)] // For the C library, whose caller owns the request.
    #[inline]
    pub fn post_receive_in_place(&self, request: &mut ReceiveRequest<'_>) -> Result<(), PostError> {
        let live = self.check_live();
        post_in_place(request, live, self.max_sge, |requests| {
            self.ops.post(requests)
        })
    }

    /// Posts receives in order, and removes those that were posted from the list.
    ///
    /// # Errors
    /// How many receives were posted, and why the next was refused: it is the first of those that remain in the list.
    #[inline]
    #[doc(alias = "ibv_post_srq_recv")]
    pub fn post_receives(&self, requests: &mut Vec<ReceiveRequest<'_>>) -> Result<(), PostError> {
        let live = self.check_live();
        post_receives(requests, live, self.max_sge, |requests| {
            self.ops.post(requests)
        })
    }

    /// Arms the limit event: one event is raised when fewer than `srq_limit` receives are left; 0 disarms it.
    ///
    /// ```no_run
    /// # fn example(device: &verbs_api::Context, srq: &verbs_api::Srq, pool: &verbs_api::BufferPool)
    /// #     -> Result<(), Box<dyn std::error::Error>> {
    /// use verbs_api::event::EventType;
    /// srq.arm_limit(16).wait()?;
    /// while device.next_event().wait()?.event_type() != EventType::SrqLimitReached {}
    /// while let Some(buffer) = pool.take() {
    ///     srq.post_receive(buffer)?;
    /// }
    /// srq.arm_limit(16).wait()?; // one event for each time
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The limit exceeds what the queue can hold.
    #[doc(alias = "ibv_modify_srq")]
    pub fn arm_limit(&self, srq_limit: u32) -> Started<()> {
        let size = self.ops.query();
        let check = size.and_then(|(max_wr, _)| check_limit(srq_limit, max_wr));
        self.modify(check, Some(srq_limit), None)
    }

    /// Changes the number of receives that the queue can hold.
    ///
    /// # Errors
    /// More receives than `max_wr` are posted, or it exceeds `max_srq_wr`: the queue is unchanged.
    #[doc(alias = "ibv_modify_srq")]
    pub fn resize(&self, max_wr: u32) -> Started<()> {
        let limits = &self.object.context.attributes().limits;
        let check = limits
            .check(Limit::MaxSrqWr, u64::from(max_wr))
            .map_err(VerbError::Limit);
        self.modify(check, None, Some(max_wr))
    }

    fn modify(
        &self,
        check: Result<(), VerbError>,
        srq_limit: Option<u32>,
        max_wr: Option<u32>,
    ) -> Started<()> {
        let ticket = match check.and_then(|()| self.object.begin_request()) {
            Ok(ticket) => ticket,
            Err(error) => return Started::ready(Err(error)),
        };
        let (started, outcome) = self.object.context.begin();
        let reply = Reply::new(move |result| {
            drop(ticket);
            outcome.complete(result);
        });
        self.ops.modify(srq_limit, max_wr, reply);
        started
    }

    /// Queries the sizes, the armed limit, and how many receives are posted.
    ///
    /// # Errors
    /// The queue was destroyed, or its device removed.
    #[doc(alias = "ibv_query_srq")]
    pub fn query(&self) -> Result<SrqStatus, VerbError> {
        self.object.node.check_live()?;
        let (max_wr, srq_limit) = self.ops.query()?;
        Ok(SrqStatus {
            max_wr,
            max_sge: self.max_sge,
            srq_limit,
            posted: self.ops.posted(),
        })
    }

    /// Destroys the queue. Fails with Busy while queue pairs use it.
    #[doc(alias = "ibv_destroy_srq")]
    pub fn destroy(self) -> Started<(), DestroyError<Self>> {
        destroy(self)
    }

    #[inline]
    fn check_live(&self) -> Result<(), PostReason> {
        if self.object.node.is_live() {
            Ok(())
        } else {
            Err(self.object.node.dead_reason())
        }
    }
}

impl Handle for Srq {
    type Ops = dyn SrqOps;
    type Extra = ();

    fn object(&self) -> &Arc<SrqObject> {
        &self.object
    }
}

by_identity!(Srq: Handle::object);

impl fmt::Debug for Srq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.object.node.holder())
    }
}
