//! The state of an identifier (`rdma_cm_id`), and its events.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::net::{IpAddr, SocketAddr};
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, MutexGuard};

use polyverbs_connection::{
    Accepted, Connection, DatagramListener, DatagramQuestion, Incoming, Listener, ReadLimits,
    Withdrawal,
};
use polyverbs_libibverbs::abi::{IbvAhAttr, IbvPd, IbvQpEx, IbvQpInitAttr};
use polyverbs_libibverbs::errno::Errno;
use polyverbs_libibverbs::events::Events;
use polyverbs_libibverbs::qp;
use verbs_api::objects::ObjectId;
use verbs_api::provider::{Condvar, Mutex, random};
use verbs_api::qp::{QpAttributes, QpState};
use verbs_api::{Context, ids::Psn};

use crate::abi::{RdmaCmId, event};
use crate::device::CmDevice;
use crate::info::Resolved;
use crate::ports::{Port, Sharing};

/// The state of an identifier that pending calls, callbacks and events refer to.
pub struct Inner {
    // The address of the public structure.
    at: AtomicUsize,
    // The number of events that were not fetched, or were fetched and not acknowledged.
    events: Mutex<usize>,
    is_acknowledged: Condvar,
    state: Mutex<State>,
}

/// The state of an identifier that its lock protects.
pub struct State {
    /// The channel's queue, to which events of the identifier are added.
    pub channel: Arc<Events<Queued>>,
    /// Whether the identifier is synchronous: it has a channel of its own, and its calls wait for their outcome.
    pub is_sync: bool,
    /// Whether the identifier is being destroyed and gets no further events.
    pub is_destroyed: bool,
    /// The device of the identifier; `None` until it is bound.
    pub device: Option<Arc<CmDevice>>,
    /// The local address and port; `None` until the identifier is bound.
    pub local: Option<SocketAddr>,
    /// Whether the port was assigned, because the program left it open.
    pub has_assigned_port: bool,
    /// The port that the identifier has taken in this process.
    pub(crate) port: Option<Port>,
    /// Listeners at the port, each with its device, whose requests are not reported before `rdma_listen`.
    pub reserved: Vec<(Arc<CmDevice>, DeviceListener)>,
    /// The peer's address and port; `None` if none was resolved.
    pub remote: Option<SocketAddr>,
    /// How far the program has come with it, and its role.
    pub part: Part,
    /// The context and ID of the QP that the identifier connects.
    pub qp: Option<(Context, ObjectId)>,
    /// Whether the end of the connection was reported.
    pub is_over: bool,
    /// The options that the program has set.
    pub options: Options,
    /// The PSN that this side expects of the peer, for a QP that the program modifies itself.
    pub psn: Psn,
    /// The attributes for INIT, RTR and RTS of a QP that the program modifies itself; `None` until the peer is known.
    pub steps: Option<[QpAttributes; 3]>,
    /// For a listener: the attributes of QPs that are created for its requests.
    pub template: Option<Template>,
    /// The resolution of a name by `rdma_resolve_addrinfo`.
    pub lookup: Lookup,
    /// Groups that it has joined, one of them perhaps several times, and whether the queue pair is attached by that.
    pub groups: Vec<(IpAddr, bool)>,
}

impl State {
    /// The number of events of this identifier that the program has not fetched.
    pub fn waiting(&self, of: &Arc<Inner>) -> usize {
        self.channel.count(|queued| Arc::ptr_eq(&queued.of, of))
    }
}

/// The resolution of a name for an identifier.
#[derive(Default)]
pub enum Lookup {
    /// None was started, or the last has failed.
    #[default]
    Idle,
    /// A thread resolves the name.
    Running,
    /// The program has not fetched the result.
    Done(Resolved),
}

/// The options that `rdma_set_option` sets.
#[derive(Clone, Copy, Default)]
pub struct Options {
    /// The type of service of packets, which becomes their traffic class.
    pub tos: u8,
    /// The ACK timeout in the encoding of verbs, 4.096 µs × 2^n; `None` if the program has not set it.
    pub ack_timeout: Option<u8>,
    /// Which other identifiers may share the port.
    pub sharing: Sharing,
}

/// The attributes and the PD of a QP that is created for each request of a listener.
pub struct Template(pub IbvQpInitAttr, pub *mut IbvPd);
// SAFETY: the pointers are the program's.
unsafe impl Send for Template {}

/// The state of an identifier, which decides on the calls that are allowed, as that of Linux's core does.
pub enum Part {
    /// It was created.
    Idle,
    /// It has an address.
    Bound,
    /// `rdma_resolve_addr` has succeeded.
    AddressResolved,
    /// `rdma_resolve_route` has succeeded: the identifier may connect.
    RouteResolved,
    /// The identifier listens, on one or several devices.
    Listening(Vec<DeviceListener>),
    /// The identifier stands for a connection request that the program has not answered.
    Asked(Incoming),
    /// The identifier stands for a datagram service request (SIDR) that the program has not answered.
    Questioned(DatagramQuestion),
    /// A call such as `rdma_accept` is in progress.
    Busy,
    /// The peer has not answered the identifier's connection request yet.
    Asking(Withdrawal),
    /// The program has accepted the peer's request, and the peer has not completed the connection yet.
    Accepting(Withdrawal),
    /// The peer has accepted the connection, and the program has to call `rdma_establish`.
    Answered(Accepted),
    /// The identifier is one side of an established connection.
    Connected(Arc<Connection>),
    /// The identifier is a datagram service, or uses one.
    Datagrams,
    /// A request that was refused or has failed: the identifier can only be destroyed.
    Over,
}

impl Part {
    /// Whether the identifier has asked for something, or is asked.
    pub const fn has_request(&self) -> bool {
        !matches!(
            self,
            Self::Idle
                | Self::Bound
                | Self::AddressResolved
                | Self::RouteResolved
                | Self::Listening(_)
        )
    }
}

/// A listener on one device, for either kind of service.
#[derive(Clone)]
pub enum DeviceListener {
    /// The listener is for connection requests.
    Connections(Arc<Listener>),
    /// The listener is for datagram service requests (SIDR).
    Datagrams(Arc<DatagramListener>),
}

/// An event that the program has not fetched.
pub struct Queued {
    /// The identifier that the event belongs to.
    pub of: Arc<Inner>,
    /// The type, a value of `enum rdma_cm_event_type`.
    pub event: c_int,
    /// The status that the program gets: 0, a negative error number, or the peer's reason for a rejection.
    pub status: c_int,
    /// The parameters of the event.
    pub data: Data,
}

/// The parameters of an event, by its type.
pub enum Data {
    /// The event has no parameters.
    None,
    /// A connection request, and the device that got it.
    Request(Arc<CmDevice>, Incoming),
    /// A datagram service request (SIDR), and the device that got it.
    Question(Arc<CmDevice>, DatagramQuestion),
    /// The connection parameters of the peer.
    Connection {
        /// The private data of the peer.
        private_data: Vec<u8>,
        /// The other parameters of the peer.
        peer: PeerParams,
    },
    /// The destination of datagrams to a peer's service.
    Datagrams {
        /// The private data of the peer.
        private_data: Vec<u8>,
        /// The attributes of an address handle for the peer.
        ah_attr: IbvAhAttr,
        /// The number of the peer's QP.
        qp_num: u32,
        /// The Q_Key of the peer's QP.
        qkey: u32,
    },
    /// The argument of an event that the program has written itself.
    User(u64),
    /// The destination of datagrams to a multicast group that was joined.
    Group {
        /// The context that the program passed when it joined the group.
        context: *mut c_void,
        /// The attributes of an address handle for the group.
        ah_attr: IbvAhAttr,
    },
}

// SAFETY: the pointer is the program's, and only handed back to it.
unsafe impl Send for Data {}

/// What the peer's request or reply says, apart from its private data.
#[derive(Clone, Copy)]
pub struct PeerParams {
    /// The numbers of RDMA reads that may be outstanding, from this side's point of view.
    pub reads: ReadLimits,
    /// The number of the peer's QP.
    pub qp_num: u32,
    /// Whether the peer's program asks for end-to-end flow control.
    pub flow_control: bool,
    /// Whether the peer's QP has an SRQ.
    pub srq: bool,
}

impl PeerParams {
    /// No parameters: the peer has sent none.
    pub const NONE: Self = Self {
        reads: ReadLimits {
            inbound: 0,
            outbound: 0,
        },
        qp_num: 0,
        flow_control: false,
        srq: false,
    };
}

impl From<&Accepted> for PeerParams {
    fn from(accepted: &Accepted) -> Self {
        Self {
            reads: accepted.reads(),
            qp_num: accepted.remote_qpn().value(),
            flow_control: accepted.offered_flow_control(),
            srq: accepted.offered_srq(),
        }
    }
}

impl From<&Incoming> for PeerParams {
    fn from(incoming: &Incoming) -> Self {
        Self {
            reads: incoming.offered_reads(),
            qp_num: incoming.remote_qpn().value(),
            flow_control: incoming.offered_flow_control(),
            srq: incoming.offered_srq(),
        }
    }
}

impl Inner {
    /// The state of a new identifier, whose public structure does not exist yet.
    pub fn new(channel: Arc<Events<Queued>>, is_sync: bool) -> Arc<Self> {
        Arc::new(Self {
            at: AtomicUsize::new(0),
            events: Mutex::new(0),
            is_acknowledged: Condvar::new(),
            state: Mutex::new(State {
                channel,
                is_sync,
                is_destroyed: false,
                device: None,
                local: None,
                has_assigned_port: false,
                port: None,
                reserved: Vec::new(),
                remote: None,
                part: Part::Idle,
                is_over: false,
                options: Options::default(),
                psn: some_psn(),
                steps: None,
                qp: None,
                template: None,
                lookup: Lookup::Idle,
                groups: Vec::new(),
            }),
        })
    }

    /// Locks the state of the identifier.
    pub fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Stores the address of the public structure.
    pub fn place(&self, at: *mut RdmaCmId) {
        self.at.store(at.expose_provenance(), Ordering::Release);
    }

    /// The address of the public structure.
    pub fn public(&self) -> *mut RdmaCmId {
        ptr::with_exposed_provenance_mut(self.at.load(Ordering::Acquire))
    }

    /// Queues an event for the program, unless the identifier is being destroyed.
    pub fn post(self: &Arc<Self>, event: c_int, status: c_int, data: Data) {
        let state = self.lock();
        if state.is_destroyed {
            // The parameters are dropped while no lock is held.
            drop(state);
            return drop(data);
        }
        *self.events.lock() += 1;
        state.channel.push(Queued {
            of: Arc::clone(self),
            event,
            status,
            data,
        });
    }

    /// Notes that the program has acknowledged an event, or will not get it.
    pub fn acknowledged(&self) {
        *self.events.lock() -= 1;
        self.is_acknowledged.notify_all();
    }

    /// Waits until at most as many events as `left` returns are unfetched or unacknowledged.
    pub fn wait_for_acknowledgement(&self, left: impl Fn() -> usize) {
        let mut events = self.events.lock();
        while *events > left() {
            events = self.is_acknowledged.wait(events);
        }
    }

    /// Stores the state of the program's QP in its public structure, as `ibv_modify_qp` does.
    pub fn show_state(&self, state: QpState) {
        // SAFETY: the identifier is not destroyed before the event is acknowledged for which this is called, or while
        // the program calls.
        if let Some(public) = unsafe { self.public().as_ref() }
            && polyverbs_libibverbs::object::check::<IbvQpEx>(public.qp.cast()).is_ok()
        {
            // SAFETY: live, as was seen.
            unsafe { (*public.qp).state = state as c_int };
        }
    }

    /// Flushes the identifier's own queue pair, if it has one: requests complete, in order.
    ///
    /// # Errors
    /// The device was removed.
    pub fn flush_qp(&self) -> Result<(), Errno> {
        // SAFETY: as in `show_state`.
        let shown = unsafe { self.public().as_ref() }.map_or(ptr::null_mut(), |public| public.qp);
        // SAFETY: the program does not destroy the queue pair while it calls.
        if let Ok(own) = unsafe { qp::own(shown) } {
            own.qp
                .modify(QpAttributes::new().qp_state(QpState::Err))
                .wait()?;
            self.show_state(QpState::Err);
        }
        Ok(())
    }

    /// Handles that the peer has withdrawn its connection request, which the program can no longer answer.
    pub fn withdrawn(self: &Arc<Self>) {
        // The reason of the REJ by which a request is withdrawn: the peer waits no longer.
        const TIMEOUT: c_int = 4;
        let mut state = self.lock();
        if !matches!(state.part, Part::Asked(_)) {
            return;
        }
        let part = std::mem::replace(&mut state.part, Part::Over);
        drop(state);
        drop(part);
        let data = Data::Connection {
            private_data: Vec::new(),
            peer: PeerParams::NONE,
        };
        self.post(event::REJECTED, TIMEOUT, data);
    }

    /// Handles the end of the connection: reports it to the program, once.
    pub fn end(self: &Arc<Self>, status: c_int) {
        let mut state = self.lock();
        let was_over = std::mem::replace(&mut state.is_over, true);
        drop(state);
        if !was_over {
            self.post(event::DISCONNECTED, status, Data::None);
        }
    }
}

// The initial PSN is random, because peers must not be able to guess it.
fn some_psn() -> Psn {
    Psn::new(random() as u32 & 0xff_ffff)
}
