//! Completion channels: one place for the notifications of many queues.

use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::os::fd::BorrowedFd;
use std::pin::Pin;
use std::sync::{Arc, MutexGuard, Weak};
use std::task::{Context as TaskContext, Poll};
use std::time::Duration;

use crate::context::Context;
use crate::control::{Reply, Started, Waiters, block_on, block_on_for};
use crate::cq::{Cq, CqObject};
use crate::error::{ArgumentReason, VerbError};
use crate::lifecycle::{
    Ack, AnyObject, DestroyError, Extra, Handle, Object, ObjectBuilder, Ops, by_identity, destroy,
};
use crate::lock::Mutex;
use crate::notifier::Notifier;
use crate::object_id::{ObjectId, ObjectKind};

// A channel has no provider's part.
pub(crate) struct NoOps;

impl Ops for NoOps {
    fn destroy(&self, reply: Reply<()>) {
        reply.send(Ok(()));
    }
}

#[derive(Default)]
pub(crate) struct ChannelQueue {
    // Each queue at most once.
    waiting: Mutex<VecDeque<Weak<CqObject>>>,
    waiters: Waiters,
    notifier: Notifier,
}

impl ChannelQueue {
    pub(crate) fn push(&self, cq: &Weak<CqObject>) {
        let mut waiting = self.lock();
        if !waiting.iter().any(|known| known.ptr_eq(cq)) {
            waiting.push_back(Weak::clone(cq));
        }
        self.notifier.raise();
        drop(waiting);
        self.waiters.wake();
    }

    fn pop(&self) -> Option<CqEvent> {
        loop {
            let mut waiting = self.lock();
            let object = waiting.pop_front()?;
            if waiting.is_empty() {
                self.notifier.clear();
            }
            drop(waiting);
            let Some(object) = object.upgrade() else {
                continue;
            };
            if let Some(ack) = Ack::new(Arc::clone(&object) as Arc<dyn AnyObject>) {
                return Some(CqEvent {
                    cq: Cq::of(object),
                    _ack: ack,
                });
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Weak<CqObject>>> {
        self.waiting.lock()
    }
}

impl Extra for ChannelQueue {
    fn on_removed(&self) {
        self.waiters.wake();
        self.notifier.raise();
    }

    fn on_destroyed(&self, _: ObjectId) {
        self.waiters.wake();
    }
}

pub(crate) type ChannelObject = Object<NoOps, ChannelQueue>;

/// A completion channel: one descriptor, and one place to await, for the notifications of many completion queues. A clone
/// is another handle of the same channel.
///
/// [`Context::create_completion_channel`] makes one; a completion queue is attached by
/// [`CqOptions::channel`](crate::CqOptions::channel).
///
/// ```no_run
/// # fn example(channel: &verbs_api::event::CompletionChannel) -> Result<(), Box<dyn std::error::Error>> {
/// use verbs_api::{Completion, completion::Notify};
/// let mut slots: [Completion; 16] = Default::default();
/// loop {
///     let event = channel.next().wait()?; // of whichever queue has one
///     event.cq().arm(Notify::Next)?;
///     while let done @ [_, ..] = event.cq().poll(&mut slots)? {
///         println!("{} completions of {:?}", done.len(), event.cq());
///     }
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
#[doc(alias = "ibv_comp_channel")]
pub struct CompletionChannel {
    object: Arc<ChannelObject>,
}

impl Context {
    /// Makes a completion channel, which delivers the notifications of many completion queues.
    ///
    /// # Errors
    /// The device was removed, or the context closed.
    #[doc(alias = "ibv_create_comp_channel")]
    pub fn create_completion_channel(&self) -> Result<CompletionChannel, VerbError> {
        Ok(CompletionChannel::new(
            self.builder(ObjectKind::CompletionChannel)?,
        ))
    }
}

impl CompletionChannel {
    pub(crate) fn new(builder: ObjectBuilder) -> Self {
        let extra = ChannelQueue::default();
        Self {
            object: builder.finish(Arc::new(NoOps), extra),
        }
    }

    pub(crate) fn object_of(&self, context: &Context) -> Result<Arc<ChannelObject>, VerbError> {
        if Arc::ptr_eq(&self.object.context, &context.core) {
            Ok(Arc::clone(&self.object))
        } else {
            Err(VerbError::argument(
                "channel",
                ArgumentReason::AnotherDevice,
            ))
        }
    }

    /// Returns the identity of the channel.
    pub fn id(&self) -> ObjectId {
        self.object.node.id()
    }

    /// Returns the next notification of a completion queue of this channel; `None` if none is pending.
    #[doc(alias = "ibv_get_cq_event")]
    pub fn poll_event(&self) -> Option<CqEvent> {
        self.object.extra.pop()
    }

    /// Returns the next notification of a completion queue of this channel: await it, or wait for it.
    pub fn next(&self) -> NextCqEvent<'_> {
        NextCqEvent { channel: self }
    }

    /// Returns a descriptor that is readable while notifications are pending.
    ///
    /// # Errors
    /// The process is out of descriptors.
    pub fn fd(&self) -> Result<BorrowedFd<'_>, VerbError> {
        let queue = &self.object.extra;
        let waiting = queue.lock();
        let fd = queue.notifier.fd()?;
        if !waiting.is_empty() {
            queue.notifier.raise();
        }
        Ok(fd)
    }

    /// Destroys the channel. Fails with Busy while completion queues use it.
    #[doc(alias = "ibv_destroy_comp_channel")]
    pub fn destroy(self) -> Started<(), DestroyError<Self>> {
        destroy(self)
    }
}

impl Handle for CompletionChannel {
    type Ops = NoOps;
    type Extra = ChannelQueue;

    fn object(&self) -> &Arc<ChannelObject> {
        &self.object
    }
}

by_identity!(CompletionChannel: Handle::object);

impl fmt::Debug for CompletionChannel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.object.node.holder())
    }
}

/// A notification of a completion queue. Dropping it acknowledges it; the queue cannot be destroyed before that.
#[doc(alias = "ibv_ack_cq_events")]
pub struct CqEvent {
    cq: Cq,
    _ack: Ack,
}

impl CqEvent {
    /// Returns the completion queue that the notification is of.
    pub fn cq(&self) -> &Cq {
        &self.cq
    }
}

impl fmt::Debug for CqEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("CqEvent").field(&self.cq).finish()
    }
}

/// The next notification of a channel: await it, or [`wait`](Self::wait) for it.
#[must_use = "nothing is fetched unless this is awaited or waited for"]
pub struct NextCqEvent<'c> {
    channel: &'c CompletionChannel,
}

impl NextCqEvent<'_> {
    /// Blocks this thread until a queue of the channel has a notification.
    ///
    /// # Errors
    /// The channel was destroyed or its device removed; `WouldDeadlock` in a handler.
    pub fn wait(self) -> Result<CqEvent, VerbError> {
        block_on(self)
    }

    /// Blocks this thread like [`wait`](Self::wait), but for `time` at most; `None` if no queue has a notification by then.
    ///
    /// # Errors
    /// As for [`wait`](Self::wait).
    pub fn wait_for(self, time: Duration) -> Result<Option<CqEvent>, VerbError> {
        block_on_for(self, time)
    }
}

impl Future for NextCqEvent<'_> {
    type Output = Result<CqEvent, VerbError>;

    fn poll(self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<Self::Output> {
        let object = &self.channel.object;
        object.extra.waiters.add(cx.waker());
        match object.extra.pop() {
            Some(event) => Poll::Ready(Ok(event)),
            None if object.node.is_live() => Poll::Pending,
            None => Poll::Ready(Err(object.node.dead())),
        }
    }
}
