//! Completion queues.

use std::fmt;
use std::future::Future;
use std::os::fd::BorrowedFd;
use std::pin::Pin;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::task::{Context as TaskContext, Poll};
use std::time::Duration;

use crate::capability::Limit;
use crate::channel::{ChannelObject, CompletionChannel};
use crate::completion::{Completion, Notify};
use crate::context::Context;
use crate::control::{Started, Waiters, block_on, block_on_for, run_handler};
use crate::error::VerbError;
use crate::notifier::Notifier;
use crate::objects::{
    AnyObject, Birth, DestroyError, Extra, Handle, Object, ObjectId, ObjectKind, Ticket, destroy,
};
use crate::provider::{CompletionSink, CqInit, CqOps, Reply};

/// What a completion queue is made of. A number of entries converts into it.
#[derive(Clone, Debug)]
pub struct CqOptions {
    cqe: u32,
    channel: Option<CompletionChannel>,
}

impl CqOptions {
    /// A queue of `cqe` entries at least.
    pub const fn new(cqe: u32) -> Self {
        Self { cqe, channel: None }
    }

    /// A queue whose notices go to `channel`.
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

// Whom a notice of the provider reaches.
#[derive(Default)]
struct CqSink {
    object: OnceLock<Weak<CqObject>>,
    channel: Option<Weak<ChannelObject>>,
    handler: Mutex<Option<CompletionHandler>>,
    waiters: Waiters,
    notifier: Notifier,
}

impl CqSink {
    fn handler(&self) -> Option<CompletionHandler> {
        self.handler
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

impl CompletionSink for CqSink {
    fn notify(&self) {
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

pub(crate) struct CqExtra {
    sink: Arc<CqSink>,
}

impl Extra for CqExtra {
    fn on_removed(&self) {
        self.sink.notify();
    }
}

pub(crate) type CqObject = Object<dyn CqOps, CqExtra>;

/// A completion queue. Cloning shares it.
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

impl Cq {
    /// The provider's part, for extensions.
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
        let CqOptions { cqe, channel } = options;
        let inner = &context.inner;
        inner.check_open()?;
        check_cqe(cqe, inner.attributes())?;
        let channel = channel
            .map(|channel| channel.object_of(context))
            .transpose()?;
        let parents = channel
            .iter()
            .map(|channel| Arc::clone(channel) as Arc<dyn AnyObject>);
        let birth = Birth::new(inner, ObjectKind::Cq, parents)?;
        let channel = channel.as_ref().map(Arc::downgrade);
        let sink = Arc::new(CqSink {
            channel,
            ..CqSink::default()
        });
        let init = CqInit {
            id: birth.id(),
            cqe,
            sink: Arc::clone(&sink) as Arc<dyn CompletionSink>,
        };
        let (started, outcome) = inner.begin();
        inner.create_cq(
            init,
            Reply::new(move |result| {
                outcome.complete(result.map(|ops| {
                    let extra = CqExtra {
                        sink: Arc::clone(&sink),
                    };
                    let object = birth.finish(|node| Object { ops, node, extra });
                    let _ = sink.object.set(Arc::downgrade(&object));
                    Self::of(object)
                }));
            }),
        );
        Ok(started)
    }

    /// Its identity.
    pub fn id(&self) -> ObjectId {
        self.object.node.id()
    }

    /// Entries that it holds: at least what was asked for.
    pub fn cqe(&self) -> u32 {
        self.ops.cqe()
    }

    /// Fills `slots` from the front, and answers those that were filled: none where nothing has
    /// completed. Allocates nothing. Buffers that a filled slot still held go back to their pools.
    ///
    /// # Errors
    /// The queue overran, was destroyed, or its device was removed and every completion was fetched.
    #[doc(alias = "ibv_poll_cq")]
    #[inline(always)] // Short, and what its answers are passed through costs more than what it does.
    pub fn poll<'s>(&self, slots: &'s mut [Completion]) -> Result<&'s mut [Completion], VerbError> {
        if !self.object.node.is_live() {
            return self.poll_dead(slots);
        }
        let filled = self.ops.poll(slots)?;
        let filled = &mut slots[..filled];
        filled.iter_mut().for_each(Completion::settle_loan);
        Ok(filled)
    }

    // After a removal, what has completed can still be fetched: buffers come back with it.
    #[cold]
    fn poll_dead<'s>(
        &self,
        slots: &'s mut [Completion],
    ) -> Result<&'s mut [Completion], VerbError> {
        if self.object.node.is_removed() {
            let filled = self.ops.poll(slots)?;
            if filled > 0 {
                let filled = &mut slots[..filled];
                filled.iter_mut().for_each(Completion::settle_loan);
                return Ok(filled);
            }
        }
        Err(self.object.node.dead())
    }

    /// Asks for one notice: through the descriptor, the channel, the handler, or to those who await.
    ///
    /// Answers whether completions are there already, which may raise no notice: poll again.
    ///
    /// # Errors
    /// The queue was destroyed, or its device removed.
    #[doc(alias = "ibv_req_notify_cq")]
    #[inline]
    pub fn arm(&self, notify: Notify) -> Result<bool, VerbError> {
        self.object.node.check_live()?;
        self.object.extra.sink.notifier.clear();
        Ok(self.ops.arm(notify))
    }

    /// The next completion: await it, or wait for it.
    pub fn next(&self) -> NextCompletion<'_> {
        NextCompletion { cq: self }
    }

    /// Calls `handler` at each notice: one for each [`arm`](Self::arm).
    ///
    /// It runs on the thread that brings the completion, with no lock held; every verb may be
    /// started in it and none waited for. It polls until nothing is left, arms, and polls once more
    /// where that answers that completions are there already.
    pub fn on_completion(&self, handler: impl Fn(&Self) + Send + Sync + 'static) {
        let handler: CompletionHandler = Arc::new(handler);
        let mut slot = self
            .object
            .extra
            .sink
            .handler
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let before = slot.replace(handler);
        drop(slot);
        drop(before);
    }

    /// A descriptor that becomes readable at a notice and stays so until [`arm`](Self::arm).
    ///
    /// # Errors
    /// The process is out of descriptors.
    pub fn fd(&self) -> Result<BorrowedFd<'_>, VerbError> {
        self.object.extra.sink.notifier.fd()
    }

    /// Changes the number of entries, keeping those that wait; answers how many there are now.
    ///
    /// # Errors
    /// Fewer than wait, or beyond `max_cqe`: the queue is as it was.
    #[doc(alias = "ibv_resize_cq")]
    pub fn resize(&self, cqe: u32) -> Started<u32> {
        let node = &self.object.node;
        let object = Arc::clone(&self.object) as Arc<dyn AnyObject>;
        let ticket =
            match check_cqe(cqe, node.context().attributes()).and_then(|()| Ticket::new(object)) {
                Ok(ticket) => ticket,
                Err(error) => return Started::ready(Err(error)),
            };
        let (started, outcome) = node.context().begin();
        let reply = Reply::new(move |result| {
            drop(ticket);
            outcome.complete(result);
        });
        self.ops.resize(cqe, reply);
        started
    }

    /// Destroys the queue: Busy while queue pairs use it.
    #[doc(alias = "ibv_destroy_cq")]
    pub fn destroy(self) -> Started<(), DestroyError<Self>> {
        destroy(self)
    }
}

fn check_cqe(cqe: u32, attributes: &crate::capability::DeviceAttributes) -> Result<(), VerbError> {
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

impl fmt::Debug for Cq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.object.node.holder())
    }
}

/// The next completion of a queue: await it, or [`wait`](Self::wait) for it.
///
/// Dropped, it loses nothing: a completion is fetched only when it is handed out.
#[must_use = "nothing is fetched unless this is awaited or waited for"]
pub struct NextCompletion<'c> {
    cq: &'c Cq,
}

impl NextCompletion<'_> {
    /// Waits in this thread.
    ///
    /// # Errors
    /// As [`Cq::poll`]; `WouldDeadlock` in a handler.
    pub fn wait(self) -> Result<Completion, VerbError> {
        block_on(self)
    }

    /// The same for `time` at most; `None` where nothing has completed by then.
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
        loop {
            if let Some(completion) = self.fetch()? {
                return Poll::Ready(Ok(completion));
            }
            // Registered before armed: no notice can come between.
            self.cq.object.extra.sink.waiters.add(cx.waker());
            if !self.cq.arm(Notify::Next)? {
                return Poll::Pending;
            }
        }
    }
}
