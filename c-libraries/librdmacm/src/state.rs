//! The state of an identifier, and its events.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::net::{IpAddr, SocketAddr};
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use polyverbs_connection::{
    Accepted, Connection, DatagramListener, DatagramQuestion, Incoming, Listener, ReadLimits,
};
use polyverbs_libibverbs::abi::{IbvAhAttr, IbvPd, IbvQpEx, IbvQpInitAttr};
use polyverbs_libibverbs::errno::Errno;
use polyverbs_libibverbs::events::Events;
use polyverbs_libibverbs::lock::lock;
use polyverbs_libibverbs::qp;
use verbs_api::objects::ObjectId;
use verbs_api::provider::random;
use verbs_api::qp::{QpAttributes, QpState};
use verbs_api::{Context, ids::Psn};

use crate::abi::{RdmaCmId, event};
use crate::device::CmDevice;
use crate::ports::{Port, Sharing};

/// What pending calls and events refer to.
pub struct Inner {
    // The address of the structure.
    at: AtomicUsize,
    // Events that wait or are not acknowledged.
    events: Mutex<usize>,
    is_acknowledged: Condvar,
    state: Mutex<State>,
}

/// The state of an identifier.
pub struct State {
    /// The queue of its events.
    pub channel: Arc<Events<Queued>>,
    /// Whether it is synchronous: calls wait for their outcome, and the channel is its own.
    pub is_sync: bool,
    /// Whether it gets no more events.
    pub is_destroyed: bool,
    /// Its device, once known.
    pub device: Option<Arc<CmDevice>>,
    /// Its address.
    pub local: Option<SocketAddr>,
    /// Whether the program left the port open.
    pub has_assigned_port: bool,
    /// Its port.
    pub(crate) port: Option<Port>,
    /// Listeners at that port that do not report requests yet.
    pub reserved: Vec<(Arc<CmDevice>, DeviceListener)>,
    /// The peer's address.
    pub remote: Option<SocketAddr>,
    /// How far the program has come with it, and its role.
    pub part: Part,
    /// The queue pair that it connects.
    pub qp: Option<(Context, ObjectId)>,
    /// Whether the end of its connection was reported.
    pub is_over: bool,
    /// Options that the program has set.
    pub options: Options,
    /// The PSN that it expects, for a queue pair that the program brings up.
    pub psn: Psn,
    /// The attributes of such a queue pair, once the peer is known.
    pub steps: Option<[QpAttributes; 3]>,
    /// The attributes of queue pairs for the listener's requests.
    pub template: Option<Template>,
    /// Groups that it has joined, one of them perhaps several times, and whether the queue pair is attached by that.
    pub groups: Vec<(IpAddr, bool)>,
}

impl State {
    /// How many events of this identifier were not fetched.
    pub fn waiting(&self, of: &Arc<Inner>) -> usize {
        self.channel.count(|queued| Arc::ptr_eq(&queued.of, of))
    }
}

/// Options of `rdma_set_option`.
#[derive(Clone, Copy, Default)]
pub struct Options {
    /// Type of service.
    pub tos: u8,
    /// ACK timeout.
    pub ack_timeout: Option<u8>,
    /// With which identifiers its port is shared.
    pub sharing: Sharing,
}

/// The attributes of a queue pair that is created later.
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
    /// A listener on one or several devices.
    Listening(Vec<DeviceListener>),
    /// A connection request.
    Asked(Incoming),
    /// A request for the queue pair that receives datagrams.
    Questioned(DatagramQuestion),
    /// A call is pending.
    Busy,
    /// The peer has accepted, and the program has to complete.
    Answered(Accepted),
    /// One side of a connection.
    Connected(Arc<Connection>),
    /// A datagram service, or the peer of one.
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

/// A listener on one device.
#[derive(Clone)]
pub enum DeviceListener {
    /// For connections.
    Connections(Arc<Listener>),
    /// For datagrams.
    Datagrams(Arc<DatagramListener>),
}

/// An event that was not fetched.
pub struct Queued {
    /// Its identifier.
    pub of: Arc<Inner>,
    /// Its type.
    pub event: c_int,
    /// 0, or a negative error number.
    pub status: c_int,
    /// Its parameters.
    pub data: Data,
}

/// The parameters of an event.
pub enum Data {
    /// None.
    None,
    /// A connection request.
    Request(Arc<CmDevice>, Incoming),
    /// A request for the queue pair that receives datagrams.
    Question(Arc<CmDevice>, DatagramQuestion),
    /// The peer's parameters of a connection.
    Connection {
        /// The peer's private data.
        private_data: Vec<u8>,
        /// From this side's point of view.
        reads: ReadLimits,
        /// The peer's queue pair.
        qp_num: u32,
    },
    /// How to reach a datagram queue pair.
    Datagrams {
        /// The peer's private data.
        private_data: Vec<u8>,
        /// The path.
        ah_attr: IbvAhAttr,
        /// The queue pair.
        qp_num: u32,
        /// Its Q_Key.
        qkey: u32,
    },
    /// How to reach a group, and the program's name for it.
    Group {
        /// The program's context.
        context: *mut c_void,
        /// The path.
        ah_attr: IbvAhAttr,
    },
}

// SAFETY: the pointer is the program's, and only handed back to it.
unsafe impl Send for Data {}

impl Inner {
    /// The state of an identifier whose structure does not exist yet.
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
                groups: Vec::new(),
            }),
        })
    }

    /// Locks the state.
    pub fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Records the program's structure.
    pub fn place(&self, at: *mut RdmaCmId) {
        self.at.store(at.expose_provenance(), Ordering::Release);
    }

    /// The program's structure.
    pub fn public(&self) -> *mut RdmaCmId {
        ptr::with_exposed_provenance_mut(self.at.load(Ordering::Acquire))
    }

    /// Queues an event.
    pub fn post(self: &Arc<Self>, event: c_int, status: c_int, data: Data) {
        let state = self.lock();
        if state.is_destroyed {
            // Dropped with no lock held.
            drop(state);
            return drop(data);
        }
        *lock(&self.events) += 1;
        state.channel.push(Queued {
            of: Arc::clone(self),
            event,
            status,
            data,
        });
    }

    /// An event was acknowledged, or will not be delivered.
    pub fn acknowledged(&self) {
        *lock(&self.events) -= 1;
        self.is_acknowledged.notify_all();
    }

    /// Waits until at most this many events are left.
    pub fn wait_for_acknowledgement(&self, left: impl Fn() -> usize) {
        let mut events = lock(&self.events);
        while *events > left() {
            let woken = self.is_acknowledged.wait(events);
            events = woken.unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Has the program's queue pair show its state, as after `ibv_modify_qp`.
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

    /// The connection of a queue pair has ended.
    pub fn end(self: &Arc<Self>) {
        let mut state = self.lock();
        let was_over = std::mem::replace(&mut state.is_over, true);
        drop(state);
        if !was_over {
            self.post(event::DISCONNECTED, 0, Data::None);
        }
    }
}

// Peers must not guess it.
fn some_psn() -> Psn {
    Psn::new(random() as u32 & 0xff_ffff)
}
