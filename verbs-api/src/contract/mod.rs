//! What a device implements, object by object: see [`provider`](crate::provider), where vendors find it.

pub mod backend;
pub mod carrier;
mod extension;
mod thread;

use std::array::IntoIter;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use carrier::Carrier;
pub use extension::{QpExtension, QpShape, SrqExtension};
pub use thread::{start_thread, wait_for_threads};

use crate::access::Access;
use crate::ah::AhOps;
use crate::as_any::AsAny;
use crate::capability::{DeviceAttributes, Grant, PortAttributes};
use crate::control::Reply;
use crate::error::VerbError;
use crate::event_type::{EventSubject, EventType};
use crate::ids::{Gid, LKey, Port, Psn, Qpn, RKey};
use crate::mem::{MwType, RegionMemory};
use crate::object_id::ObjectId;
use crate::post::PostReason;
use crate::qp_attributes::{AddressVector, QpAttributes, QpCap, QpCounters, QpEndpoint, QpStatus};
use crate::random::random;
use crate::service::QpType;
use crate::wc::{Completion, Notify};
use crate::wr::{BindWindow, ReceiveRequest, WorkRequest};

/// A device that can be opened.
pub trait DeviceOps: AsAny {
    /// What the device tells about itself, now.
    fn attributes(&self) -> DeviceAttributes;

    /// Opens the device for what is granted. Events go to `events`.
    ///
    /// # Errors
    /// The device is gone or out of resources.
    fn open(
        &self,
        grant: &Grant,
        events: Arc<dyn EventSink>,
    ) -> Result<Arc<dyn ContextOps>, VerbError>;

    /// Names and values of the device's own counters.
    fn counters(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }

    /// How connections are made; `None` where the device supports none, and connecting is refused.
    fn carrier(&self) -> Option<Carrier> {
        None
    }

    /// Whether the device does nothing more until a program asks it for something: no message and no timeout is pending. A
    /// device that does not know answers `false`: the conformance probes then wait fifty milliseconds where they check that
    /// something does not happen.
    fn is_idle(&self) -> bool {
        false
    }
}

/// Receives a provider's asynchronous events. Called with no lock held.
pub trait EventSink: Send + Sync + 'static {
    /// An event has occurred.
    fn event(&self, event: EventType, subject: EventSubject);
}

/// Notified by a provider when an armed completion queue has a completion. Called with no lock held.
pub trait CompletionSink: Send + Sync + 'static {
    /// The armed queue that this sink belongs to has a completion.
    fn notify(&self);
}

/// An open device.
pub trait ContextOps: AsAny {
    /// What a port tells about itself, now.
    ///
    /// # Errors
    /// There is no such port, or the device was removed.
    fn query_port(&self, port: Port) -> Result<PortAttributes, VerbError>;

    /// Makes a protection domain.
    fn alloc_pd(&self, reply: Reply<Arc<dyn PdOps>>);

    /// Makes a completion queue.
    fn create_cq(&self, _init: CqInit, reply: Reply<Arc<dyn CqOps>>) {
        reply.unsupported("create_cq");
    }

    /// Closes the context. Everything made from it is gone already.
    fn close(&self) {}
}

/// What a completion queue is made of.
pub struct CqInit {
    /// Its identity in events.
    pub id: ObjectId,
    /// Entries, at least.
    pub cqe: u32,
    /// Which of the device's completion vectors delivers its notifications, below
    /// [`num_comp_vectors`](crate::capability::Limits::num_comp_vectors).
    pub comp_vector: u32,
    /// Notified when the queue is armed and has a completion.
    pub sink: Arc<dyn CompletionSink>,
}

/// A completion queue.
pub trait CqOps: AsAny {
    /// Entries that it holds.
    fn cqe(&self) -> u32;

    /// Fills `completions` from the front; returns how many.
    ///
    /// # Errors
    /// The queue overran.
    fn poll(&self, completions: &mut [Completion]) -> Result<usize, VerbError>;

    /// Arms the queue for one notification. Returns whether completions are present already.
    ///
    /// # Errors
    /// The device refused: no notification will come.
    fn arm(&self, notify: Notify) -> Result<bool, VerbError>;

    /// The queue's own descriptor, readable from a notification until [`drain`](Self::drain). The sink is notified all the
    /// same. Where this is `None`, the safe layer makes a descriptor when a program asks for one.
    fn fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Reads the notifications from the descriptor, before the queue is armed again. Never blocks.
    fn drain(&self) {}

    /// Changes the number of entries.
    fn resize(&self, _cqe: u32, reply: Reply<u32>) {
        reply.unsupported("resize_cq");
    }

    /// Destroys it.
    fn destroy(&self, reply: Reply<()>);
}

/// What a memory region is made of.
#[derive(Clone, Debug)]
pub struct MrInit {
    /// Its identity in events and in answers that name holders.
    pub id: ObjectId,
    /// The memory.
    pub memory: RegionMemory,
    /// The address of the first byte as requests name it.
    pub iova: u64,
    /// Rights, checked to be legal together.
    pub access: Access,
    /// Only requests that handed buffers over may name it.
    ///
    /// A program holds its buffers as exclusive slices. A device that cannot tell such a region from others gives it a local
    /// key that no other region of the context has ever had: a program may still have entries with keys that are gone.
    pub private: bool,
}

/// Changes of a memory region; what is `None` stays as it is.
#[derive(Clone)]
pub struct MrChange {
    /// Memory and the address of its first byte.
    pub translation: Option<(RegionMemory, u64)>,
    /// Whether the keys stay as they are with other memory, if the device can do that.
    pub keeps_keys: bool,
    /// Protection domain.
    pub pd: Option<Arc<dyn PdOps>>,
    /// Rights.
    pub access: Option<Access>,
}

/// What a queue pair is made of.
#[derive(Clone)]
pub struct QpInit {
    /// Its identity in events.
    pub id: ObjectId,
    /// Service.
    pub qp_type: QpType,
    /// Where sends complete.
    pub send_cq: Arc<dyn CqOps>,
    /// Where receives complete.
    pub recv_cq: Arc<dyn CqOps>,
    /// Where receives come from, if not from a queue of its own.
    pub srq: Option<Arc<dyn SrqOps>>,
    /// Sizes, at least.
    pub cap: QpCap,
    /// How many of `cap.max_send_wr` only requests with [`SendFlags::RESERVED`](crate::wr::SendFlags::RESERVED) may take.
    pub reserved_wr: u32,
    /// Every request completes with a completion.
    pub sq_sig_all: bool,
    /// Operations that it will do, checked against the grant.
    pub operations: crate::service::Operations,
    /// Flags and modes of extensions, checked against the grant: a provider honours each or refuses.
    pub extensions: Vec<QpExtension>,
}

/// What a shared receive queue is made of.
#[derive(Clone)]
pub struct SrqInit {
    /// Its identity in events.
    pub id: ObjectId,
    /// Requests, at least.
    pub max_wr: u32,
    /// Entries of a request.
    pub max_sge: u32,
    /// Limit event, 0 for none.
    pub srq_limit: u32,
    /// What an extension makes of it, checked against the grant, and where its receives complete: a provider honours it or
    /// refuses. Without one they complete where the receives of its queue pairs do.
    pub extension: Option<(SrqExtension, Arc<dyn CqOps>)>,
}

/// A protection domain.
pub trait PdOps: AsAny {
    /// Registers memory.
    fn reg_mr(&self, init: MrInit, reply: Reply<Arc<dyn MrOps>>);

    /// Allocates a key without memory, for `max_num_sg` pages, blocks or elements.
    fn alloc_mr(&self, _id: ObjectId, _max_num_sg: u32, reply: Reply<Arc<dyn MrOps>>) {
        reply.unsupported("alloc_mr");
    }

    /// Makes a window.
    fn alloc_mw(&self, _id: ObjectId, _mw_type: MwType, reply: Reply<Arc<dyn MwOps>>) {
        reply.unsupported("alloc_mw");
    }

    /// Makes a shared receive queue.
    fn create_srq(&self, _init: SrqInit, reply: Reply<Arc<dyn SrqOps>>) {
        reply.unsupported("create_srq");
    }

    /// Makes a queue pair.
    fn create_qp(&self, init: QpInit, reply: Reply<Arc<dyn QpOps>>);

    /// Makes an address handle.
    fn create_ah(&self, _path: AddressVector, reply: Reply<Arc<dyn AhOps>>) {
        reply.unsupported("create_ah");
    }

    /// Deallocates the domain.
    fn dealloc(&self, reply: Reply<()>);
}

/// A memory region, or a key that can be given one.
pub trait MrOps: AsAny {
    /// Local key, with the key byte as of the last registration that the provider has carried out.
    fn lkey(&self) -> LKey;

    /// Remote key; 0 where no remote access was granted.
    fn rkey(&self) -> RKey;

    /// Changes memory, domain or rights, and answers when no access to memory that was replaced is in progress any more. A
    /// failure named `InvalidArgument`, `Busy` or `Unsupported` leaves the region as it was. Bound windows are as for
    /// [`dereg`](Self::dereg).
    fn rereg(&self, _change: MrChange, reply: Reply<()>) {
        reply.unsupported("rereg_mr");
    }

    /// Revokes the keys at once, and answers when no access is in progress any more, which a removal of the device does
    /// not shorten.
    ///
    /// While windows are bound to it, a device that knows of them answers `Busy`, with the holders that it can name or
    /// none, and changes nothing. A device that cannot know deregisters the region; those windows then open nothing. The
    /// safe layer counts no bound windows: once this has succeeded it may free the memory.
    fn dereg(&self, reply: Reply<()>);
}

/// A memory window.
pub trait MwOps: AsAny {
    /// Its key now. A window of type 1 that was never bound has one that opens nothing.
    fn rkey(&self) -> RKey;

    /// Deallocates the window, unbinding it if it is bound.
    fn dealloc(&self, reply: Reply<()>);
}

/// A shared receive queue.
pub trait SrqOps: AsAny {
    /// Posts receives in order.
    ///
    /// # Errors
    /// How many were posted, and why the next was not.
    fn post(&self, requests: &[ReceiveRequest<'_>]) -> Result<(), (usize, PostReason)>;

    /// Sets the limit event, 0 for none; or the size.
    fn modify(&self, srq_limit: Option<u32>, max_wr: Option<u32>, reply: Reply<()>);

    /// Entries of a request: at least what was asked for.
    fn max_sge(&self) -> u32;

    /// The number by which requests of peers name it, where an extension gives it one.
    fn srq_num(&self) -> Option<u32> {
        None
    }

    /// Size, and the armed limit (0 for none).
    ///
    /// # Errors
    /// The device refused, or is gone.
    fn query(&self) -> Result<(u32, u32), VerbError>;

    /// Receives that are posted and not taken; `None` where the device does not count them.
    fn posted(&self) -> Option<u32> {
        None
    }

    /// Destroys it.
    fn destroy(&self, reply: Reply<()>);
}

/// The data path of a queue pair.
pub trait PostOps: Send + Sync {
    /// Posts send requests in order, with one doorbell. Arguments have been checked against the rules of the queue
    /// pair; state, room and keys have not. The window and the region of a [bind](BindWindow::mw) are of this context and
    /// were not destroyed when that was checked; whether they are of the queue pair's domain was not.
    ///
    /// # Errors
    /// How many were posted, and why the next was not.
    fn post_send(&self, requests: &[WorkRequest<'_>]) -> Result<(), (usize, PostReason)>;

    /// Posts all of these requests, or none. A provider that cannot do so refuses more than one.
    ///
    /// # Errors
    /// The first request that cannot be posted, and why: nothing was posted.
    fn post_send_whole(&self, requests: &[WorkRequest<'_>]) -> Result<(), (usize, PostReason)> {
        match requests {
            [] | [_] => self.post_send(requests),
            _ => Err((
                0,
                PostReason::Os {
                    errno: libc::EOPNOTSUPP,
                },
            )),
        }
    }

    /// Posts receives in order.
    ///
    /// # Errors
    /// How many were posted, and why the next was not.
    fn post_recv(&self, requests: &[ReceiveRequest<'_>]) -> Result<(), (usize, PostReason)>;
}

/// Modifies a queue pair with each of these, until one fails.
pub fn modify_in_turn<T: QpOps + ?Sized>(qp: Arc<T>, steps: [QpAttributes; 3], reply: Reply<()>) {
    next_step(qp, steps.into_iter(), reply);
}

fn next_step<T: QpOps + ?Sized>(
    qp: Arc<T>,
    mut steps: IntoIter<QpAttributes, 3>,
    reply: Reply<()>,
) {
    let Some(step) = steps.next() else {
        return reply.send(Ok(()));
    };
    let next = Arc::clone(&qp);
    let then = Reply::new(move |result| match result {
        Ok(()) => next_step(next, steps, reply),
        Err(error) => reply.send(Err(error)),
    });
    qp.modify(step, then);
}

/// A queue pair.
pub trait QpOps: AsAny {
    /// The data path: fetched once, then used for every request. It may be a part of the provider's object that is stored
    /// apart from the rest.
    fn poster(&self) -> &(dyn PostOps + 'static);

    /// Whether requests are accepted from now on. While closed, every post fails with [`PostReason::InvalidHandle`] and
    /// consumes nothing, including the posts of other threads that begin after this has returned. Queue pairs are made open.
    /// Called before [`destroy`](Self::destroy), again if that was refused, and at the removal of the device.
    fn admit(&self, open: bool);

    /// Its number.
    fn qp_num(&self) -> Qpn;

    /// The PSN that it begins to send with where the program names none: one that peers cannot guess.
    fn starting_psn(&self) -> Psn {
        Psn::new(random() as u32)
    }

    /// Sizes: at least what was asked for.
    fn cap(&self) -> QpCap;

    /// Changes attributes and state: [`check_modify`](crate::qp::check_modify) under the provider's lock.
    fn modify(&self, attributes: QpAttributes, reply: Reply<()>);

    /// Connects to a peer that connects to this one in turn: from RESET to ready to send. `steps` are what it is modified
    /// with, one after the other, which is what this does by default; a device whose queue pairs are not brought up so
    /// takes from them what it needs.
    ///
    /// The answer is that of the first step that failed; the queue pair stays in the state that it had reached.
    fn connect(self: Arc<Self>, peer: &QpEndpoint, steps: [QpAttributes; 3], reply: Reply<()>) {
        let _ = peer;
        modify_in_turn(self, steps, reply);
    }

    /// See [`Qp::keep_receives`](crate::Qp::keep_receives). By default nothing, for devices that keep them anyway.
    fn keep_receives(&self) {}

    /// State, attributes and sizes.
    ///
    /// # Errors
    /// The device refused, or is gone.
    fn query(&self) -> Result<QpStatus, VerbError>;

    /// Its counters.
    fn counters(&self) -> QpCounters {
        QpCounters::default()
    }

    /// Binds a window of type 1 through this queue pair's send queue: completes with a completion where signaled. Answers
    /// the key that the device gives it, which may be another than [`BindWindow::key`].
    ///
    /// # Errors
    /// As for a posted request.
    fn bind_mw(&self, _bind: BindWindow<'_>) -> Result<RKey, PostReason> {
        Err(PostReason::OperationNotEnabled {
            missing: crate::service::Operations::BIND_MW,
        })
    }

    /// Joins a multicast group.
    fn attach_multicast(&self, _group: Gid, reply: Reply<()>) {
        reply.unsupported("attach_mcast");
    }

    /// Leaves a multicast group.
    fn detach_multicast(&self, _group: Gid, reply: Reply<()>) {
        reply.unsupported("detach_mcast");
    }

    /// Destroys it.
    fn destroy(&self, reply: Reply<()>);
}
