//! What a layer asks its hooks, and what they may answer.

use std::sync::Arc;
use std::time::Duration;

use verbs_api::capability::{DeviceAttributes, PortAttributes};
use verbs_api::completion::{Completion, Notify};
use verbs_api::event::{EventSubject, EventType};
use verbs_api::ids::{Gid, Port};
use verbs_api::memory::MwType;
use verbs_api::provider::{CqInit, MrChange, MrInit, QpInit, SrqInit};
use verbs_api::qp::{AddressVector, QpAttributes, QpCap, QpStatus};
use verbs_api::wr::{BindWindow, PostReason, ReceiveRequest, WorkRequest};
use verbs_api::{VerbError, WcStatus};

use crate::object::Object;
use crate::open_layer::OpenLayer;
use crate::verb::Verb;

/// The hooks of a layer. Each method has a default that changes nothing.
///
/// A device calls its hooks on the thread of the program that posts, polls or starts a verb, and on threads of the device for
/// events and answers; several threads at once, with no lock of the layer held. Hooks must not block.
pub trait Hooks: Send + Sync + 'static {
    /// The device was opened. `open` can raise events and fail queue pairs later, and is gone when the device is closed: hooks
    /// keep a weak reference.
    fn opened(&self, open: &Arc<OpenLayer>) {
        let _ = open;
    }

    /// Changes what the device reports about itself. The limits and features that a program is granted follow from it.
    fn attributes(&self, attributes: &mut DeviceAttributes) {
        let _ = attributes;
    }

    /// Asked before a verb is carried out. The hook may change the arguments, delay the verb, and refuse it; a refused verb does
    /// not reach the device.
    fn before(&self, call: &mut Call<'_>) -> Before {
        let _ = call;
        Before::default()
    }

    /// Told how a verb has ended. The hook may change an answer.
    fn after(&self, ended: &mut Ended<'_>) {
        let _ = ended;
    }

    /// Asked for each work request of a post, in order. A refusal ends the post with this request as the bad one; requests
    /// before it are posted.
    fn post(&self, post: &Post<'_>) -> PostFate {
        let _ = post;
        PostFate::default()
    }

    /// Told of a request that the hook has let pass, and that was not posted after all.
    fn not_posted(&self, post: &Post<'_>) {
        let _ = post;
    }

    /// Asked for each completion that a poll has taken from the device. The hook may change it in place.
    fn completion(&self, at: &Polled<'_>, completion: &mut Completion) -> CompletionFate {
        let _ = (at, completion);
        CompletionFate::Deliver
    }

    /// Asked for each asynchronous event of the device, except those that [`OpenLayer::raise`] adds.
    fn event(&self, event: &Event<'_>) -> EventFate {
        let _ = event;
        EventFate::Deliver
    }
}

/// A verb that a program has called.
pub struct Call<'a> {
    /// The verb.
    pub verb: Verb,
    /// The open device; `None` for the verb that opens it.
    pub open: Option<&'a Arc<OpenLayer>>,
    /// The object that the verb is called on: for `modify_qp` the queue pair, for `create_qp` the protection domain. `None` for
    /// verbs of the device.
    pub on: Option<&'a Arc<Object>>,
    /// The arguments.
    pub arguments: Arguments<'a>,
}

/// The arguments of a verb that hooks may see and change.
#[non_exhaustive]
pub enum Arguments<'a> {
    /// The verb has no arguments besides its object.
    None,
    /// Of `query_port`.
    Port(Port),
    /// Of `create_cq`.
    Cq(&'a mut CqInit),
    /// Of `resize_cq`: the least number of entries.
    Cqe(&'a mut u32),
    /// Of `req_notify_cq`.
    Notify(Notify),
    /// Of `reg_mr`.
    Mr(&'a mut MrInit),
    /// Of `rereg_mr`.
    MrChange(&'a mut MrChange),
    /// Of `alloc_mr`: the most pages.
    Pages(u32),
    /// Of `alloc_mw`.
    Mw(MwType),
    /// Of `bind_mw`.
    Bind(&'a BindWindow<'a>),
    /// Of `create_srq`.
    Srq(&'a mut SrqInit),
    /// Of `modify_srq`: the limit of the limit event, and the number of receives that the queue can hold.
    SrqChange(&'a mut Option<u32>, &'a mut Option<u32>),
    /// Of `create_qp`.
    Qp(&'a mut QpInit),
    /// Of `modify_qp`.
    QpChange(&'a mut QpAttributes),
    /// Of `create_ah`.
    Ah(&'a mut AddressVector),
    /// Of `attach_mcast` and `detach_mcast`.
    Group(Gid),
}

/// What happens to a verb before it is carried out. By default nothing.
#[derive(Debug, Default)]
pub struct Before {
    /// How long the verb is delayed. A verb with an answer is answered later; a direct call (posting, polling, arming and
    /// querying) blocks its caller.
    pub delay: Duration,
    /// The error with which the verb fails, after the delay.
    pub refusal: Option<VerbError>,
}

impl Before {
    /// Refuses the verb with this error.
    pub fn refuse(error: VerbError) -> Self {
        Self {
            refusal: Some(error),
            ..Self::default()
        }
    }
}

/// A verb that has ended, also one that a hook has refused.
pub struct Ended<'a> {
    /// The verb.
    pub verb: Verb,
    /// The object that the verb was called on, or has made: for `create_qp` the new queue pair. `None` for verbs of the device
    /// and for creations that have failed.
    pub object: Option<&'a Arc<Object>>,
    /// The error, if it has failed.
    pub error: Option<&'a VerbError>,
    /// The answer, which a hook may change.
    pub answer: Answer<'a>,
}

/// The answer of a verb.
#[non_exhaustive]
pub enum Answer<'a> {
    /// There is none besides success, or the verb has failed.
    None,
    /// Of `query_port`.
    Port(Port, &'a mut PortAttributes),
    /// Of `create_qp`: the sizes that the program gets.
    Cap(&'a mut QpCap),
    /// Of `query_qp`.
    Qp(&'a mut QpStatus),
    /// Of `modify_qp`: the attributes that were set.
    QpChange(&'a QpAttributes),
    /// Of `query_srq`: the number of receives that the queue can hold, and the limit.
    Srq(&'a mut (u32, u32)),
}

/// A work request that is being posted.
pub struct Post<'a> {
    /// The verb: `post_send`, `post_recv` or `post_srq_recv`.
    pub verb: Verb,
    /// The open device.
    pub open: &'a Arc<OpenLayer>,
    /// The queue pair or shared receive queue.
    pub on: &'a Arc<Object>,
    /// The request.
    pub request: Request<'a>,
    /// The position of the request in the program's list.
    pub index: usize,
    /// The number of requests in that list.
    pub of: usize,
}

/// A work request of either kind.
#[derive(Clone, Copy)]
pub enum Request<'a> {
    /// A request for a send queue.
    Send(&'a WorkRequest<'a>),
    /// A receive.
    Receive(&'a ReceiveRequest<'a>),
}

/// What happens to a work request. By default it is posted.
#[derive(Clone, Copy, Debug, Default)]
pub struct PostFate {
    /// How long the poster is blocked before.
    pub delay: Duration,
    /// Why the request is refused, after the delay.
    pub refusal: Option<PostReason>,
}

impl PostFate {
    /// Refuses the request for this reason.
    pub const fn refuse(reason: PostReason) -> Self {
        Self {
            delay: Duration::ZERO,
            refusal: Some(reason),
        }
    }
}

/// Where a completion comes from.
pub struct Polled<'a> {
    /// The open device.
    pub open: &'a Arc<OpenLayer>,
    /// The completion queue.
    pub cq: &'a Arc<Object>,
    /// The queue pair; `None` if it is destroyed already.
    pub qp: Option<&'a Arc<Object>>,
}

/// What happens to a completion.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CompletionFate {
    /// The program gets it, with the changes of the hook.
    #[default]
    Deliver,
    /// The request has failed with this status and this code of the device: the queue pair goes to ERR, and later requests
    /// of that queue are flushed.
    Fail(WcStatus, u32),
    /// The program never gets it. The buffers that it returns go back to their pools.
    Lose,
    /// The program gets it after this time, and the later completions of the queue pair after it.
    Hold(Duration),
}

/// An asynchronous event of the device.
pub struct Event<'a> {
    /// The open device.
    pub open: &'a Arc<OpenLayer>,
    /// The type of the event.
    pub event: EventType,
    /// The object, port or device that the event concerns.
    pub subject: EventSubject,
    /// The object that it concerns, if it concerns one.
    pub object: Option<&'a Arc<Object>>,
}

/// What happens to an asynchronous event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EventFate {
    /// The program gets it.
    #[default]
    Deliver,
    /// The program never gets it.
    Lose,
    /// The program gets it after this time.
    Delay(Duration),
}
