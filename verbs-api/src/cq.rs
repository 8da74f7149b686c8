//! Completion queues.

pub(crate) mod router;

use std::fmt;
use std::future::Future;
use std::os::fd::BorrowedFd;
use std::pin::Pin;
use std::sync::{Arc, OnceLock, Weak};
use std::task::{Context as TaskContext, Poll};
use std::time::Duration;

use futures_core::Stream;

use crate::capability::{BaselineGaps, DeviceAttributes, Limit};
use crate::channel::{ChannelObject, CompletionChannel};
use crate::context::Context;
use crate::contract::{CompletionSink, CqInit, CqOps};
use crate::control::{Reply, Started, Waiters, block_on, block_on_for, run_handler};
use crate::error::{ArgumentReason, VerbError};
use crate::lifecycle::{
    AnyObject, DestroyError, Extra, Handle, Object, ObjectBuilder, Ops, by_identity, destroy,
};
use crate::lock::Mutex;
use crate::notifier::Notifier;
use crate::object_id::{ObjectId, ObjectKind};
use crate::wc::{Completion, Notify};
use router::Router;

/// The options with which a completion queue is made. A number of entries converts into them.
///
/// ```no_run
/// # fn example(device: &verbs_api::Context) -> Result<(), Box<dyn std::error::Error>> {
/// use verbs_api::CqOptions;
/// let channel = device.create_completion_channel()?;
/// // The channel tells of the completions of both.
/// let sends = device.create_cq(CqOptions::new(256).channel(&channel)).wait()?;
/// let receives = device.create_cq(CqOptions::new(1024).channel(&channel).comp_vector(0)).wait()?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct CqOptions {
    cqe: u32,
    comp_vector: u32,
    channel: Option<CompletionChannel>,
}

impl CqOptions {
    /// Options for a queue of at least `cqe` entries.
    pub const fn new(cqe: u32) -> Self {
        Self {
            cqe,
            comp_vector: 0,
            channel: None,
        }
    }

    /// Sets the completion vector that delivers the queue's notifications, below `num_comp_vectors`; 0 by default.
    #[must_use]
    pub const fn comp_vector(mut self, comp_vector: u32) -> Self {
        self.comp_vector = comp_vector;
        self
    }

    /// Lets the queue's notifications go to `channel`.
    #[must_use]
    pub fn channel(mut self, channel: &CompletionChannel) -> Self {
        self.channel = Some(channel.clone());
        self
    }
}

impl From<u32> for CqOptions {
    fn from(cqe: u32) -> Self {
        Self::new(cqe)
    }
}

type CompletionHandler = Arc<dyn Fn(&Cq) + Send + Sync>;

// Where the provider's notifications go.
#[derive(Default)]
struct CqSink {
    object: OnceLock<Weak<CqObject>>,
    // Made with the first request that is submitted: a program that only polls has none.
    router: OnceLock<Router>,
    channel: Option<Weak<ChannelObject>>,
    handler: Mutex<Option<CompletionHandler>>,
    waiters: Waiters,
    notifier: Notifier,
}

impl CqSink {
    fn handler(&self) -> Option<CompletionHandler> {
        self.handler.lock().clone()
    }

    // Notifies the program: once for each time that it armed the queue.
    fn notify_program(&self) {
        self.notifier.raise();
        self.waiters.wake();
        let Some(object) = self.object.get() else {
            return;
        };
        if let Some(channel) = self.channel.as_ref().and_then(Weak::upgrade) {
            channel.extra.push(object);
        }
        if let Some(handler) = self.handler() {
            let object = Weak::clone(object);
            run_handler(move || {
                if let Some(object) = object.upgrade() {
                    handler(&Cq::of(object));
                }
            });
        }
    }
}

impl CompletionSink for CqSink {
    fn notify(&self) {
        let Some(router) = self.router.get() else {
            return self.notify_program();
        };
        if !router.on_notification() {
            return;
        }
        let object = self.object.get().cloned();
        // Run as a handler, which keeps the stack flat: polling may cause notifications of other queues.
        run_handler(move || {
            if let Some(object) = object.as_ref().and_then(Weak::upgrade)
                && let Some(router) = object.extra.router()
            {
                router.drain(&object);
            }
        });
    }
}

pub(crate) struct CqExtra {
    sink: Arc<CqSink>,
}

impl CqExtra {
    #[inline]
    fn router(&self) -> Option<&Router> {
        self.sink.router.get()
    }

    /// Returns the queue's router, and makes it if there is none.
    pub(crate) fn router_or_new(&self) -> &Router {
        self.sink.router.get_or_init(Router::new)
    }

    /// Ends the submitted requests of a queue pair that have not completed, because they never will.
    pub(crate) fn end_requests_of(&self, qp: ObjectId) {
        if let Some(router) = self.router() {
            router.end(qp);
        }
    }

    fn wake_all(&self) {
        self.sink.waiters.wake();
        if let Some(router) = self.router() {
            router.wake_all();
        }
    }
}

impl Extra for CqExtra {
    fn on_removed(&self) {
        self.sink.notify_program();
        self.wake_all();
    }

    fn on_destroyed(&self, _: ObjectId) {
        self.wake_all();
    }
}

impl Ops for dyn CqOps {
    fn destroy(&self, reply: Reply<()>) {
        CqOps::destroy(self, reply);
    }
}

pub(crate) type CqObject = Object<dyn CqOps, CqExtra>;

/// A completion queue. A clone is another handle of the same queue.
///
/// It is fastest where one thread polls it.
///
/// ```no_run
/// # fn example(device: &verbs_api::Context) -> Result<(), verbs_api::VerbError> {
/// use verbs_api::Completion;
/// let cq = device.create_cq(256).wait()?;
/// let mut slots: [Completion; 16] = Default::default();
/// for done in cq.poll(&mut slots)? {
///     assert!(done.status.is_success());
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
#[doc(alias = "ibv_cq")]
pub struct Cq {
    ops: Arc<dyn CqOps>,
    object: Arc<CqObject>,
}

impl Context {
    /// Makes a completion queue with [`CqOptions`], or with at least this many entries.
    #[doc(alias = "ibv_create_cq")]
    pub fn create_cq(&self, options: impl Into<CqOptions>) -> Started<Cq> {
        Cq::create(self, options.into())
    }

    /// Returns the completion queue with this identity; `None` if it was destroyed.
    #[doc(hidden)] // Tests look up by it whether a destroyed object is gone.
    pub fn find_cq(&self, id: ObjectId) -> Option<Cq> {
        Some(Cq::of(self.find(id)?))
    }
}

impl Cq {
    /// Returns the provider's implementation of the queue, for extensions.
    pub fn ops(&self) -> &Arc<dyn CqOps> {
        &self.ops
    }

    pub(crate) fn of(object: Arc<CqObject>) -> Self {
        Self {
            ops: Arc::clone(&object.ops),
            object,
        }
    }

    pub(crate) fn create(context: &Context, options: CqOptions) -> Started<Self> {
        match Self::start(context, options) {
            Ok(started) => started,
            Err(error) => Started::ready(Err(error)),
        }
    }

    fn start(context: &Context, options: CqOptions) -> Result<Started<Self>, VerbError> {
        let CqOptions {
            cqe,
            comp_vector,
            channel,
        } = options;
        let inner = &context.core;
        inner.check_open()?;
        check_cqe(cqe, inner.attributes())?;
        check_comp_vector(comp_vector, inner.attributes())?;
        let channel = channel
            .map(|channel| channel.object_of(context))
            .transpose()?;
        let parents = channel
            .iter()
            .map(|channel| Arc::clone(channel) as Arc<dyn AnyObject>);
        let builder = ObjectBuilder::new(inner, ObjectKind::Cq, parents)?;
        let channel = channel.as_ref().map(Arc::downgrade);
        let sink = Arc::new(CqSink {
            channel,
            ..CqSink::default()
        });
        let init = CqInit {
            id: builder.id(),
            cqe,
            comp_vector,
            sink: Arc::clone(&sink) as Arc<dyn CompletionSink>,
        };
        let (started, outcome) = inner.begin();
        context.ops().create_cq(
            init,
            Reply::new(move |result| {
                outcome.complete(result.map(|ops| {
                    let extra = CqExtra {
                        sink: Arc::clone(&sink),
                    };
                    let object = builder.finish(ops, extra);
                    let _ = sink.object.set(Arc::downgrade(&object));
                    Self::of(object)
                }));
            }),
        );
        Ok(started)
    }

    /// Returns the identity of the completion queue.
    pub fn id(&self) -> ObjectId {
        self.object.node.id()
    }

    /// Returns how many completions the queue has room for: at least as many as were asked for.
    pub fn cqe(&self) -> u32 {
        self.ops.cqe()
    }

    /// Fills `slots` from the front with completions of the queue, and returns the filled slots: none if nothing has
    /// completed. Allocates nothing. Buffers that are still in a slot from an earlier completion return to their pools.
    ///
    /// # Errors
    /// The queue overran, was destroyed, or its device was removed and every completion was fetched.
    #[doc(alias = "ibv_poll_cq")]
    #[inline(always)] // Short, and what its answers are passed through costs more than what it does.
    pub fn poll<'s>(&self, slots: &'s mut [Completion]) -> Result<&'s mut [Completion], VerbError> {
        if !self.object.node.is_live() {
            return self.poll_dead(slots);
        }
        if let Some(router) = self.object.extra.router() {
            return router.poll_program(&self.object, slots);
        }
        let filled = self.ops.poll(slots)?;
        let filled = &mut slots[..filled];
        filled.iter_mut().for_each(Completion::settle_loan);
        if !filled.is_empty() && self.object.extra.router().is_some() {
            return Ok(self.sift(filled));
        }
        Ok(filled)
    }

    // The first request was submitted while this thread polled.
    #[cold]
    fn sift<'s>(&self, polled: &'s mut [Completion]) -> &'s mut [Completion] {
        let router = self.object.extra.router_or_new();
        router.sift(&self.object, polled)
    }

    // After a removal, completions can still be fetched: they return buffers.
    #[cold]
    fn poll_dead<'s>(
        &self,
        slots: &'s mut [Completion],
    ) -> Result<&'s mut [Completion], VerbError> {
        if self.object.node.is_removed() {
            if let Some(router) = self.object.extra.router() {
                return router.poll_program(&self.object, slots);
            }
            let filled = self.ops.poll(slots)?;
            if filled > 0 {
                let filled = &mut slots[..filled];
                filled.iter_mut().for_each(Completion::settle_loan);
                return Ok(filled);
            }
        }
        Err(self.object.node.dead())
    }

    /// Arms the queue for one notification: on the descriptor, the channel, the handler, or the tasks that await it.
    ///
    /// Returns whether completions are present already, for which no notification may come: poll again.
    ///
    /// # Errors
    /// The queue was destroyed, its device removed, or the device refused.
    #[doc(alias = "ibv_req_notify_cq")]
    #[inline]
    pub fn arm(&self, notify: Notify) -> Result<bool, VerbError> {
        self.object.node.check_live()?;
        self.object.extra.sink.notifier.clear();
        self.ops.drain();
        if let Some(router) = self.object.extra.router() {
            // Whether a fetched completion was solicited is not known: any of them raises the notification.
            return Ok(router.arm_program(&self.object));
        }
        self.ops.arm(notify)
    }

    /// Returns the next completion: await it, or wait for it.
    pub fn next(&self) -> NextCompletion<'_> {
        NextCompletion { cq: self }
    }

    /// Returns the next completions, at least one and at most as many as `slots` holds: await them, or wait for them.
    ///
    /// ```no_run
    /// # fn example(cq: &verbs_api::Cq) -> Result<(), verbs_api::VerbError> {
    /// let mut slots: [verbs_api::Completion; 16] = Default::default();
    /// for done in cq.next_batch(&mut slots).wait()? {
    ///     println!("{}: {}", done.wr_id, done.status);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn next_batch<'s>(&self, slots: &'s mut [Completion]) -> NextBatch<'_, 's> {
        NextBatch {
            cq: self,
            slots: Some(slots),
        }
    }

    /// Returns every completion from now on as a stream, which ends with the error of a failed [`poll`](Self::poll).
    ///
    /// ```no_run
    /// # async fn example(cq: &verbs_api::Cq) -> Result<(), Box<dyn std::error::Error>> {
    /// use std::{future::poll_fn, pin::pin};
    /// use futures_core::Stream; // with `StreamExt` of the `futures` crate, `completions.next().await` does it
    /// let mut completions = pin!(cq.completions());
    /// while let Some(done) = poll_fn(|cx| completions.as_mut().poll_next(cx)).await {
    ///     println!("request {}", done?.wr_id);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn completions(&self) -> Completions<'_> {
        Completions {
            next: Some(self.next()),
        }
    }

    /// Sets a handler that is called at each notification: one for each [`arm`](Self::arm).
    ///
    /// The handler runs on the thread that reports the completion, with no lock held; it may start every verb, but wait for
    /// none. It should poll until the queue is empty, arm the queue, and poll again if `arm` returns that completions are
    /// present.
    ///
    /// ```no_run
    /// # fn example(cq: &verbs_api::Cq) -> Result<(), Box<dyn std::error::Error>> {
    /// use verbs_api::{Completion, completion::Notify};
    /// cq.on_completion(|cq| {
    ///     let mut slots: [Completion; 16] = Default::default();
    ///     loop {
    ///         while let Ok(done @ [_, ..]) = cq.poll(&mut slots) {
    ///             done.iter().for_each(|done| println!("request {}", done.wr_id));
    ///         }
    ///         if !matches!(cq.arm(Notify::Next), Ok(true)) {
    ///             break;
    ///         }
    ///     }
    /// });
    /// cq.arm(Notify::Next)?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn on_completion(&self, handler: impl Fn(&Self) + Send + Sync + 'static) {
        let handler: CompletionHandler = Arc::new(handler);
        let mut slot = self.object.extra.sink.handler.lock();
        let before = slot.replace(handler);
        drop(slot);
        drop(before);
    }

    /// Returns a descriptor that becomes readable at a notification and stays so until [`arm`](Self::arm).
    ///
    /// ```no_run
    /// # fn example(cq: &verbs_api::Cq) -> Result<(), Box<dyn std::error::Error>> {
    /// use rustix::event::{PollFd, PollFlags, poll};
    /// use verbs_api::{Completion, completion::Notify};
    /// let mut slots: [Completion; 16] = Default::default();
    /// if !cq.arm(Notify::Next)? {
    ///     // Nothing has completed yet: this thread may wait for the descriptor, and for others.
    ///     poll(&mut [PollFd::new(&cq.fd()?, PollFlags::IN)], None)?;
    /// }
    /// for done in cq.poll(&mut slots)? {
    ///     println!("request {}", done.wr_id);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The process is out of descriptors.
    pub fn fd(&self) -> Result<BorrowedFd<'_>, VerbError> {
        match self.ops.fd() {
            Some(own) => Ok(own),
            None => self.object.extra.sink.notifier.fd(),
        }
    }

    /// Changes the number of completions that the queue has room for, and keeps those that it contains; returns the new
    /// number.
    ///
    /// # Errors
    /// `cqe` is less than the completions in the queue, or beyond `max_cqe`: the queue is unchanged. A device with the gap
    /// `NO_RESIZE_CQ` has no such verb.
    #[doc(alias = "ibv_resize_cq")]
    pub fn resize(&self, cqe: u32) -> Started<u32> {
        let context = &self.object.context;
        let checked = (context.check_gap(BaselineGaps::NO_RESIZE_CQ))
            .and_then(|()| check_cqe(cqe, context.attributes()));
        let ticket = match checked.and_then(|()| self.object.begin_request()) {
            Ok(ticket) => ticket,
            Err(error) => return Started::ready(Err(error)),
        };
        let (started, outcome) = context.begin();
        let reply = Reply::new(move |result| {
            drop(ticket);
            outcome.complete(result);
        });
        self.ops.resize(cqe, reply);
        started
    }

    /// Destroys the queue. Fails with Busy while queue pairs use it.
    #[doc(alias = "ibv_destroy_cq")]
    pub fn destroy(self) -> Started<(), DestroyError<Self>> {
        destroy(self)
    }
}

// Vector 0 exists even if a provider reports none.
fn check_comp_vector(comp_vector: u32, attributes: &DeviceAttributes) -> Result<(), VerbError> {
    if comp_vector < attributes.limits.num_comp_vectors.max(1) {
        return Ok(());
    }
    let reason = ArgumentReason::OutOfRange {
        given: comp_vector.into(),
        least: 0,
        most: attributes.limits.num_comp_vectors.saturating_sub(1).into(),
    };
    Err(VerbError::argument("comp_vector", reason))
}

fn check_cqe(cqe: u32, attributes: &DeviceAttributes) -> Result<(), VerbError> {
    if cqe == 0 {
        return Err(VerbError::argument(
            "cqe",
            "is 0: a queue has at least one entry",
        ));
    }
    attributes
        .limits
        .check(Limit::MaxCqe, u64::from(cqe))
        .map_err(VerbError::Limit)
}

impl Handle for Cq {
    type Ops = dyn CqOps;
    type Extra = CqExtra;

    fn object(&self) -> &Arc<CqObject> {
        &self.object
    }
}

by_identity!(Cq: Handle::object);

impl fmt::Debug for Cq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.object.node.holder())
    }
}

/// The next completion of a queue: await it, or [`wait`](Self::wait) for it.
///
/// Dropping it loses no completion, because one is taken from the queue only when it is returned.
#[must_use = "nothing is fetched unless this is awaited or waited for"]
pub struct NextCompletion<'c> {
    cq: &'c Cq,
}

impl NextCompletion<'_> {
    /// Blocks this thread until there is a completion, and returns it.
    ///
    /// # Errors
    /// As [`Cq::poll`]; `WouldDeadlock` in a handler.
    pub fn wait(self) -> Result<Completion, VerbError> {
        block_on(self)
    }

    /// Blocks this thread like [`wait`](Self::wait), but for `time` at most; `None` if nothing has completed by then.
    ///
    /// # Errors
    /// As for [`wait`](Self::wait).
    pub fn wait_for(self, time: Duration) -> Result<Option<Completion>, VerbError> {
        block_on_for(self, time)
    }

    fn fetch(&self) -> Result<Option<Completion>, VerbError> {
        let mut slot = [Completion::default()];
        let filled = self.cq.poll(&mut slot)?.len();
        let [completion] = slot;
        Ok((filled == 1).then_some(completion))
    }
}

impl Future for NextCompletion<'_> {
    type Output = Result<Completion, VerbError>;

    fn poll(self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<Self::Output> {
        self.cq.poll_armed(cx, || self.fetch())
    }
}

/// The next completions of a queue, at least one: await them, or [`wait`](Self::wait) for them.
///
/// Dropping it loses no completion, because they are taken from the queue only when they are returned.
#[must_use = "nothing is fetched unless this is awaited or waited for"]
pub struct NextBatch<'c, 's> {
    cq: &'c Cq,
    slots: Option<&'s mut [Completion]>,
}

impl<'s> NextBatch<'_, 's> {
    /// Blocks this thread until there is a completion. Returns the filled slots, as [`Cq::poll`] does.
    ///
    /// # Errors
    /// As [`Cq::poll`]; `slots` is empty; `WouldDeadlock` in a handler.
    pub fn wait(self) -> Result<&'s mut [Completion], VerbError> {
        block_on(self)
    }

    /// Blocks this thread like [`wait`](Self::wait), but for `time` at most; `None` if nothing has completed by then.
    ///
    /// # Errors
    /// As for [`wait`](Self::wait).
    pub fn wait_for(self, time: Duration) -> Result<Option<&'s mut [Completion]>, VerbError> {
        block_on_for(self, time)
    }
}

impl<'s> Future for NextBatch<'_, 's> {
    type Output = Result<&'s mut [Completion], VerbError>;

    /// # Panics
    /// The future is polled again after it has returned its result.
    fn poll(self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<Self::Output> {
        let Self { cq, slots } = self.get_mut();
        let room = slots.take().expect("polled after it was ready");
        if room.is_empty() {
            return Poll::Ready(Err(VerbError::argument("slots", "has no room")));
        }
        let filled = cq.poll_armed(cx, || {
            let filled = cq.poll(room)?.len();
            Ok((filled > 0).then_some(filled))
        });
        match filled {
            Poll::Ready(filled) => Poll::Ready(filled.map(|filled| &mut room[..filled])),
            Poll::Pending => {
                *slots = Some(room);
                Poll::Pending
            }
        }
    }
}

/// The completions of a queue, one after the other, as a stream.
///
/// It ends after its first error. Dropping it loses no completion, because one is taken from the queue only when it is
/// returned.
#[must_use = "nothing is fetched unless this is polled"]
pub struct Completions<'c> {
    next: Option<NextCompletion<'c>>,
}

impl Stream for Completions<'_> {
    type Item = Result<Completion, VerbError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<Option<Self::Item>> {
        let Some(next) = &mut self.next else {
            return Poll::Ready(None);
        };
        let polled = Pin::new(next).poll(cx);
        if let Poll::Ready(Err(_)) = polled {
            self.next = None;
        }
        polled.map(Some)
    }
}

impl Cq {
    // Fetches; where there is nothing yet, has the task woken when there is.
    fn poll_armed<T>(
        &self,
        cx: &TaskContext<'_>,
        mut fetch: impl FnMut() -> Result<Option<T>, VerbError>,
    ) -> Poll<Result<T, VerbError>> {
        loop {
            if let Some(fetched) = fetch()? {
                return Poll::Ready(Ok(fetched));
            }
            // Registered before armed: no notification can come between.
            self.object.extra.sink.waiters.add(cx.waker());
            if !self.arm(Notify::Next)? {
                return Poll::Pending;
            }
        }
    }
}
