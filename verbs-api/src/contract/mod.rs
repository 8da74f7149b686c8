//! The traits that a provider implements, object by object: see [`provider`](crate::provider), where vendors find them.

pub mod backend;
pub mod carrier;
mod extension;
mod thread;

use std::array::IntoIter;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use carrier::Carrier;
pub use extension::{QpExtension, QpShape, SrqExtension};
pub use thread::{only_started_threads_are_left, start_thread, wait_for_threads};

use crate::access::Access;
use crate::ah::AhOps;
use crate::as_any::AsAny;
use crate::capability::{DeviceAttributes, Grant, PortAttributes};
use crate::control::Reply;
use crate::counts::AttachedCounts;
use crate::error::VerbError;
use crate::event_type::{EventSubject, EventType};
use crate::ids::{Gid, LKey, Port, Psn, Qpn, RKey};
use crate::mad::{AgentEvent, AgentRegistration, MAD_LEN, MadAddress, MadPatience};
use crate::mem::{MwType, RegionMemory};
use crate::object_id::ObjectId;
use crate::post::PostReason;
use crate::qp_attributes::{AddressVector, QpAttributes, QpCap, QpCounters, QpEndpoint, QpStatus};
use crate::random::random;
use crate::service::QpType;
use crate::wc::{Completion, Notify};
use crate::wr::{BindWindow, ReceiveRequest, WorkRequest};

/// The provider's part of a device that can be opened.
pub trait DeviceOps: AsAny {
    /// Returns the present attributes of the device.
    fn attributes(&self) -> DeviceAttributes;

    /// Opens the device with these features granted. Asynchronous events go to `events`.
    ///
    /// # Errors
    /// The device is gone or out of resources.
    fn open(
        &self,
        grant: &Grant,
        events: Arc<dyn EventSink>,
    ) -> Result<Arc<dyn ContextOps>, VerbError>;

    /// Returns names and values of the device's own counters.
    fn counters(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }

    /// Returns how connections are made; `None` where the device supports none, and connecting is refused.
    fn carrier(&self) -> Option<Carrier> {
        None
    }

    /// Whether the device has no message and no timeout pending, so that it does nothing until a program posts a request or
    /// starts a verb. A device that does not know answers `false`: the conformance probes then wait fifty milliseconds
    /// where they check that something does not happen.
    fn is_idle(&self) -> bool {
        false
    }
}

/// Receives a provider's asynchronous events. Called with no lock held.
pub trait EventSink: Send + Sync + 'static {
    /// Called when an asynchronous event has occurred; `subject` is the object, port or device that it concerns.
    fn event(&self, event: EventType, subject: EventSubject);
}

/// Notified by a provider when an armed completion queue has a completion. Called with no lock held.
pub trait CompletionSink: Send + Sync + 'static {
    /// Called when the armed completion queue that this sink belongs to has a completion.
    fn notify(&self);
}

/// The provider's part of an open device.
pub trait ContextOps: AsAny {
    /// Queries the present attributes of a port.
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

    /// Registers an agent of the program with queue pairs 0 and 1 of a port. It ends when the returned value is dropped.
    ///
    /// # Errors
    /// The port has no agents, another agent has one of the methods, or the class does not exist.
    fn register_agent(
        &self,
        _port: Port,
        _registration: AgentRegistration,
        _sink: Arc<dyn AgentSink>,
    ) -> Result<Box<dyn AgentOps>, VerbError> {
        Err(VerbError::UnsupportedVerb("register_agent"))
    }

    /// Returns the open device that this one forwards to, if it is a wrapper of a layer in front of another device. Requests and
    /// extensions name such an object, and a provider finds its own by [`own_in_layers`](crate::provider::own_in_layers).
    fn inner(&self) -> Option<&Arc<dyn ContextOps>> {
        None
    }

    /// Closes the context. Everything that was made from it has been destroyed before.
    fn close(&self) {}
}

/// The provider's part of an agent that a program has registered. Its drop ends the agent, whose requests are forgotten.
pub trait AgentOps: Send + Sync + 'static {
    /// Sends a MAD and returns its transaction ID: see [`ManagementAgent::send`](crate::objects::management::ManagementAgent::send). The
    /// caller may be in a handler and holds no lock.
    ///
    /// # Errors
    /// The MAD cannot be sent.
    fn send(
        &self,
        mad: &[u8; MAD_LEN],
        to: &MadAddress,
        patience: Option<MadPatience>,
    ) -> Result<u64, VerbError>;

    /// Gives a request that waits for an answer back to the agent as flushed. Returns whether there was one.
    fn cancel(&self, class: u8, transaction_id: u64) -> bool;
}

/// Receives what happens to an agent. Called with no lock held, on the thread that has delivered the MAD.
pub trait AgentSink: Send + Sync + 'static {
    /// Called when a MAD has arrived for the agent, or a request of the agent has ended without an answer.
    fn event(&self, event: AgentEvent);
}

/// The arguments with which a provider makes a completion queue.
pub struct CqInit {
    /// The queue's identity, which events about it name.
    pub id: ObjectId,
    /// The least number of completions that the queue must have room for.
    pub cqe: u32,
    /// Which of the device's completion vectors delivers its notifications, below
    /// [`num_comp_vectors`](crate::capability::Limits::num_comp_vectors).
    pub comp_vector: u32,
    /// Notified when the queue is armed and has a completion.
    pub sink: Arc<dyn CompletionSink>,
}

/// The provider's part of a completion queue.
pub trait CqOps: AsAny {
    /// Returns how many entries the queue has room for.
    fn cqe(&self) -> u32;

    /// Fills `completions` from the front with completions of the queue; returns how many it filled.
    ///
    /// # Errors
    /// The queue overran.
    fn poll(&self, completions: &mut [Completion]) -> Result<usize, VerbError>;

    /// Arms the queue for one notification. Returns whether completions are present already, for which no notification may
    /// come.
    ///
    /// # Errors
    /// The device refused: no notification will come.
    fn arm(&self, notify: Notify) -> Result<bool, VerbError>;

    /// Returns the provider's own descriptor for the queue's notifications, which is readable from a notification until
    /// [`drain`](Self::drain). The sink is notified as well. If this is `None`, the safe layer makes a descriptor when a
    /// program asks for one.
    fn fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Reads all notifications from the descriptor of [`fd`](Self::fd), before the queue is armed again. Never blocks.
    fn drain(&self) {}

    /// Changes the queue's capacity to at least this many entries. Replies with the new capacity.
    fn resize(&self, _cqe: u32, reply: Reply<u32>) {
        reply.unsupported("resize_cq");
    }

    /// Destroys the completion queue.
    fn destroy(&self, reply: Reply<()>);
}

/// The arguments with which a provider makes a memory region.
#[derive(Clone, Debug)]
pub struct MrInit {
    /// The region's identity, which events about it name, and errors that list the users of an object.
    pub id: ObjectId,
    /// The memory of the region.
    pub memory: RegionMemory,
    /// The address by which requests name the first byte of the region.
    pub iova: u64,
    /// The access rights, which the safe layer has checked to be legal together.
    pub access: Access,
    /// Whether the pages of the memory need not be present while the region exists.
    pub on_demand: bool,
    /// Whether the region holds the buffers of a buffer pool: only requests that own such a buffer may name it.
    ///
    /// The program accesses buffers that are not posted as exclusive slices. A device that cannot distinguish such a region
    /// from others gives it a local key that no other region of the context has ever had: a program may still have entries
    /// with keys that are gone.
    pub private: bool,
}

/// Changes of a memory region (`ibv_rereg_mr`); a field that is `None` is not changed.
#[derive(Clone)]
pub struct MrChange {
    /// The new memory, and the address by which requests name its first byte.
    pub translation: Option<(RegionMemory, u64)>,
    /// Whether the keys shall stay the same although the memory changes, if the device can do that.
    pub keeps_keys: bool,
    /// The region's new protection domain.
    pub pd: Option<Arc<dyn PdOps>>,
    /// The region's new access rights.
    pub access: Option<Access>,
}

/// The arguments with which a provider makes a queue pair.
#[derive(Clone)]
pub struct QpInit {
    /// The queue pair's identity, which events about it name.
    pub id: ObjectId,
    /// The service type of the queue pair.
    pub qp_type: QpType,
    /// The completion queue for the requests of the send queue.
    pub send_cq: Arc<dyn CqOps>,
    /// The completion queue for the receives.
    pub recv_cq: Arc<dyn CqOps>,
    /// The shared receive queue that receives come from; `None` if the queue pair has a receive queue of its own.
    pub srq: Option<Arc<dyn SrqOps>>,
    /// The least sizes of the queue pair's queues.
    pub cap: QpCap,
    /// How many of the `cap.max_send_wr` send queue entries only requests with
    /// [`SendFlags::RESERVED`](crate::wr::SendFlags::RESERVED) may take.
    pub reserved_wr: u32,
    /// Whether every request is signaled, even without the flag.
    pub sq_sig_all: bool,
    /// The operations that the queue pair must be able to execute, checked against the features granted.
    pub operations: crate::service::Operations,
    /// Flags and modes of extensions, checked against the features granted: a provider honours each or refuses to make the
    /// queue pair.
    pub extensions: Vec<QpExtension>,
}

/// The arguments with which a provider makes a shared receive queue.
#[derive(Clone)]
pub struct SrqInit {
    /// The queue's identity, which events about it name.
    pub id: ObjectId,
    /// The least number of receives that can be posted at one time.
    pub max_wr: u32,
    /// The least number of scatter/gather entries that a receive can have.
    pub max_sge: u32,
    /// The limit event is raised when fewer receives than this are left; 0 for no event.
    pub srq_limit: u32,
    /// The mode of an extension, checked against the features granted, and the completion queue for the receives of this
    /// queue; a provider honours it or refuses to make the queue. If `None`, a receive completes on the receive CQ of the
    /// queue pair that took it.
    pub extension: Option<(SrqExtension, Arc<dyn CqOps>)>,
}

/// The provider's part of a protection domain.
pub trait PdOps: AsAny {
    /// Registers memory in this domain.
    fn reg_mr(&self, init: MrInit, reply: Reply<Arc<dyn MrOps>>);

    /// Allocates a key without memory (`ibv_alloc_mr`), for fast-registers of up to `max_num_sg` pages, blocks or elements.
    fn alloc_mr(&self, _id: ObjectId, _max_num_sg: u32, reply: Reply<Arc<dyn MrOps>>) {
        reply.unsupported("alloc_mr");
    }

    /// Makes a memory window in this domain.
    fn alloc_mw(&self, _id: ObjectId, _mw_type: MwType, reply: Reply<Arc<dyn MwOps>>) {
        reply.unsupported("alloc_mw");
    }

    /// Makes a shared receive queue in this domain.
    fn create_srq(&self, _init: SrqInit, reply: Reply<Arc<dyn SrqOps>>) {
        reply.unsupported("create_srq");
    }

    /// Makes a queue pair in this domain.
    fn create_qp(&self, init: QpInit, reply: Reply<Arc<dyn QpOps>>);

    /// Makes an address handle in this domain.
    fn create_ah(&self, _path: AddressVector, reply: Reply<Arc<dyn AhOps>>) {
        reply.unsupported("create_ah");
    }

    /// Deallocates this protection domain.
    fn dealloc(&self, reply: Reply<()>);
}

/// The provider's part of a memory region, or of an allocated key, to which a fast-register gives memory.
pub trait MrOps: AsAny {
    /// Returns the local key. Of an allocated key, the low byte is that of the last fast-register that the provider has
    /// executed.
    fn lkey(&self) -> LKey;

    /// Returns the remote key; 0 where no remote access was granted.
    fn rkey(&self) -> RKey;

    /// Changes memory, domain or rights. Replies when no access to replaced memory is in progress. If it fails with
    /// `InvalidArgument`, `Busy` or `Unsupported`, the region is unchanged. Bound windows are treated as by
    /// [`dereg`](Self::dereg).
    fn rereg(&self, _change: MrChange, reply: Reply<()>) {
        reply.unsupported("rereg_mr");
    }

    /// Returns the region or key that this one forwards to, if it is a wrapper of a layer in front of another device. Requests and
    /// extensions name such an object, and a provider finds its own by [`own_in_layers`](crate::provider::own_in_layers).
    fn inner(&self) -> Option<&Arc<dyn MrOps>> {
        None
    }

    /// Revokes the keys at once. Replies when no access to the memory is in progress; a removal of the device does not
    /// shorten this.
    ///
    /// If windows are bound to the region, a device that knows of them replies with `Busy`, which lists the windows that it
    /// can name, and changes nothing. A device that does not know of them deregisters the region; those windows then grant
    /// no access. The safe layer counts no bound windows: once this has succeeded it may free the memory.
    fn dereg(&self, reply: Reply<()>);
}

/// The provider's part of a memory window.
pub trait MwOps: AsAny {
    /// Returns the window's present key. The key of a type 1 window that was never bound grants no access.
    fn rkey(&self) -> RKey;

    /// Returns the window that this one forwards to, if it is a wrapper of a layer in front of another device. Requests and
    /// extensions name such an object, and a provider finds its own by [`own_in_layers`](crate::provider::own_in_layers).
    fn inner(&self) -> Option<&Arc<dyn MwOps>> {
        None
    }

    /// Deallocates the window, unbinding it if it is bound.
    fn dealloc(&self, reply: Reply<()>);
}

/// The provider's part of a shared receive queue.
pub trait SrqOps: AsAny {
    /// Posts receives in order, until one is refused.
    ///
    /// # Errors
    /// How many were posted, and why the next was not.
    fn post(&self, requests: &[ReceiveRequest<'_>]) -> Result<(), (usize, PostReason)>;

    /// Sets the limit for the limit event (0 for no event), or the number of receives that the queue can hold; `None`
    /// leaves it as it is.
    fn modify(&self, srq_limit: Option<u32>, max_wr: Option<u32>, reply: Reply<()>);

    /// Returns how many scatter/gather entries a receive can have: at least as many as were asked for.
    fn max_sge(&self) -> u32;

    /// Returns the number by which requests of peers name the queue (XRC); `None` where no extension gives it one.
    fn srq_num(&self) -> Option<u32> {
        None
    }

    /// Returns the number of receives that the queue can hold, and the armed limit of the limit event (0 for none).
    ///
    /// # Errors
    /// The device refused, or is gone.
    fn query(&self) -> Result<(u32, u32), VerbError>;

    /// Returns how many receives are posted and not taken by a message; `None` where the device does not count them.
    fn posted(&self) -> Option<u32> {
        None
    }

    /// Destroys the shared receive queue.
    fn destroy(&self, reply: Reply<()>);
}

/// The data path of a provider's queue pair: posting requests.
pub trait PostOps: Send + Sync {
    /// Posts send requests in order, with one doorbell. The caller has checked the arguments against the rules of the queue
    /// pair, but not its state, the room in its queue, or the keys. It has also checked that the window and region of a
    /// [bind](BindWindow::mw) are of this context and not destroyed, but not that they are of the queue pair's domain.
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

    /// Posts receives in order, until one is refused.
    ///
    /// # Errors
    /// How many were posted, and why the next was not.
    fn post_recv(&self, requests: &[ReceiveRequest<'_>]) -> Result<(), (usize, PostReason)>;
}

/// Modifies a queue pair with each of these attributes in turn, until one modification fails. Replies when the last has
/// ended.
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

/// The provider's part of a queue pair.
pub trait QpOps: AsAny {
    /// Returns the data path, which the safe layer fetches once and then uses for every request. It may be stored apart
    /// from the rest of the provider's object.
    fn poster(&self) -> &(dyn PostOps + 'static);

    /// Opens or closes the queue pair for posting. While it is closed, every post fails with [`PostReason::InvalidHandle`]
    /// and consumes nothing; this includes posts of other threads that begin after this has returned. New queue pairs are
    /// open. The safe layer closes one before [`destroy`](Self::destroy) and at the removal of the device, and opens it
    /// again if the destroy was refused.
    fn admit(&self, open: bool);

    /// Returns the queue pair number.
    fn qp_num(&self) -> Qpn;

    /// Returns the first PSN that the queue pair sends with if the program sets none: one that peers cannot guess.
    fn starting_psn(&self) -> Psn {
        Psn::new(random() as u32)
    }

    /// Returns the actual sizes of the queues: at least as large as asked for.
    fn cap(&self) -> QpCap;

    /// Changes attributes and state. The provider calls [`check_modify`](crate::qp::check_modify) under its own lock.
    fn modify(&self, attributes: QpAttributes, reply: Reply<()>);

    /// Connects the queue pair, from RESET to RTS, with a peer that connects to it in turn. By default it is modified with
    /// each of `steps`; a device that does not bring queue pairs up in steps takes from them the attributes that it needs.
    ///
    /// Replies with the error of the first step that failed; the queue pair stays in the state that it had reached.
    fn connect(self: Arc<Self>, peer: &QpEndpoint, steps: [QpAttributes; 3], reply: Reply<()>) {
        let _ = peer;
        modify_in_turn(self, steps, reply);
    }

    /// See [`Qp::keep_receives`](crate::Qp::keep_receives). Does nothing by default, for devices that always keep receives.
    fn keep_receives(&self) {}

    /// Queries state, attributes and sizes of the queue pair.
    ///
    /// # Errors
    /// The device refused, or is gone.
    fn query(&self) -> Result<QpStatus, VerbError>;

    /// Returns the queue pair's counters, such as of packets that were retransmitted.
    fn counters(&self) -> QpCounters {
        QpCounters::default()
    }

    /// Counts these operations of the queue pair from now on, until it is destroyed; then drops `counts`.
    ///
    /// # Errors
    /// `InvalidState`: the queue pair is neither in RESET nor in INIT. `Busy`: one of the operations is counted already.
    fn attach_counter(&self, counts: AttachedCounts) -> Result<(), VerbError> {
        let _ = counts;
        Err(VerbError::UnsupportedVerb("qp_attach_comp_cntr"))
    }

    /// Posts the bind of a type 1 window to this queue pair's send queue. Returns the window's new key, which the device
    /// chooses and which may differ from [`BindWindow::key`].
    ///
    /// # Errors
    /// As for a posted request.
    fn bind_mw(&self, _bind: BindWindow<'_>) -> Result<RKey, PostReason> {
        Err(PostReason::OperationNotEnabled {
            missing: crate::service::Operations::BIND_MW,
        })
    }

    /// Attaches the queue pair to a multicast group.
    fn attach_multicast(&self, _group: Gid, reply: Reply<()>) {
        reply.unsupported("attach_mcast");
    }

    /// Detaches the queue pair from a multicast group.
    fn detach_multicast(&self, _group: Gid, reply: Reply<()>) {
        reply.unsupported("detach_mcast");
    }

    /// Destroys the queue pair.
    fn destroy(&self, reply: Reply<()>);
}
