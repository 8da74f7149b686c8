//! What is known of an identifier, and what happens to it: the ground that its verbs stand on.
#![allow(unsafe_code)]

use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::net::{IpAddr, SocketAddr};
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use polyverbs_connection::{
    Accepted, Connection, DatagramListener, DatagramQuestion, Incoming, Listener, ReadLimits,
};
use polyverbs_libibverbs::abi::{IbvAhAttr, IbvPd, IbvQpInitAttr};
use polyverbs_libibverbs::events::Events;
use polyverbs_libibverbs::lock::lock;
use verbs_api::objects::ObjectId;
use verbs_api::qp::{QpAttributes, QpState};
use verbs_api::{Context, ids::Psn};

use crate::abi::{RdmaCmId, event};
use crate::device::CmDevice;
use crate::ports::{Port, Sharing};
use crate::random::random;

/// What requests under way and events refer to.
pub struct Inner {
    // Where the structure is.
    at: AtomicUsize,
    // Events that wait or were not acknowledged.
    events: Mutex<usize>,
    is_acknowledged: Condvar,
    state: Mutex<State>,
}

/// What is known of an identifier.
pub struct State {
    /// Where its events go.
    pub channel: Arc<Events<Queued>>,
    /// Whether calls wait for what they bring about: then the channel is its own.
    pub is_sync: bool,
    /// Whether nobody is to be told of anything more.
    pub is_destroyed: bool,
    /// The device, as soon as that is known.
    pub device: Option<Arc<CmDevice>>,
    /// The own address.
    pub local: Option<SocketAddr>,
    /// Whether the program left the port open.
    pub has_assigned_port: bool,
    /// The port that it was bound to.
    pub(crate) port: Option<Port>,
    /// Listeners that nobody hears yet, at such a port.
    pub reserved: Vec<(Arc<CmDevice>, DeviceListener)>,
    /// The peer's.
    pub remote: Option<SocketAddr>,
    /// Whether `rdma_resolve_route` was called.
    pub has_route: bool,
    /// What it has become.
    pub part: Part,
    /// The queue pair that it connects.
    pub qp: Option<(Context, ObjectId)>,
    /// Whether the end of its connection was told.
    pub is_over: bool,
    /// Options that the program has set.
    pub options: Options,
    /// The first packet sequence number that a queue pair takes which the program brings up.
    pub psn: Psn,
    /// How such a one is brought up, once the peer is known.
    pub steps: Option<[QpAttributes; 3]>,
    /// What queue pairs are made with for those who ask a listener.
    pub template: Option<Template>,
    /// Groups that were joined, and whether the queue pair is attached.
    pub groups: HashMap<IpAddr, bool>,
}

impl State {
    /// How many events of its identifier nobody has fetched.
    pub fn waiting(&self, of: &Arc<Inner>) -> usize {
        self.channel.count(|queued| Arc::ptr_eq(&queued.of, of))
    }
}

/// What `rdma_set_option` sets.
#[derive(Clone, Copy, Default)]
pub struct Options {
    /// Type of service.
    pub tos: u8,
    /// Acknowledge timeout.
    pub ack_timeout: Option<u8>,
    /// With whom its port may be shared.
    pub sharing: Sharing,
}

/// Attributes of queue pairs that are made later.
pub struct Template(pub IbvQpInitAttr, pub *mut IbvPd);
// SAFETY: the pointers are the program's.
unsafe impl Send for Template {}

/// What an identifier has become.
pub enum Part {
    /// Nothing yet.
    Nothing,
    /// A listener, at one device or several.
    Listening(Vec<DeviceListener>),
    /// Somebody asks it for a connection.
    Asked(Incoming),
    /// Somebody asks it which queue pair takes datagrams.
    Questioned(DatagramQuestion),
    /// Something is under way.
    Busy,
    /// The peer has accepted, and the program has to say that it is ready.
    Answered(Accepted),
    /// One end of a connection.
    Connected(Arc<Connection>),
    /// It knows how to reach a queue pair for datagrams, or is one.
    Datagrams,
}

/// One device's part of a listener.
#[derive(Clone)]
pub enum DeviceListener {
    /// For connections.
    Connections(Arc<Listener>),
    /// For datagrams.
    Datagrams(Arc<DatagramListener>),
}

/// Something that has happened and nobody has fetched.
pub struct Queued {
    /// To which identifier.
    pub of: Arc<Inner>,
    /// What.
    pub event: c_int,
    /// 0, or why not.
    pub status: c_int,
    /// What goes with it.
    pub data: Data,
}

/// What goes with an event.
pub enum Data {
    /// Nothing.
    None,
    /// Somebody asks for a connection.
    Request(Arc<CmDevice>, Incoming),
    /// Somebody asks for the queue pair of datagrams.
    Question(Arc<CmDevice>, DatagramQuestion),
    /// What the peer of a connection said.
    Connection {
        /// The program's.
        private_data: Vec<u8>,
        /// From this side's point of view.
        reads: ReadLimits,
        /// Its queue pair.
        qp_num: u32,
    },
    /// How datagrams go there.
    Datagrams {
        /// The program's.
        private_data: Vec<u8>,
        /// The path.
        ah_attr: IbvAhAttr,
        /// The queue pair.
        qp_num: u32,
        /// Its key.
        qkey: u32,
    },
    /// The same for a group, with what the program named it.
    Group {
        /// The program's.
        context: *mut c_void,
        /// The path.
        ah_attr: IbvAhAttr,
    },
}

// SAFETY: the pointer is the program's, and only handed back to it.
unsafe impl Send for Data {}

impl Inner {
    /// Of an identifier whose structure is not there yet.
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
                has_route: false,
                part: Part::Nothing,
                is_over: false,
                options: Options::default(),
                psn: some_psn(),
                steps: None,
                qp: None,
                template: None,
                groups: HashMap::new(),
            }),
        })
    }

    /// What is known of it.
    pub fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// The program's structure is there.
    pub fn place(&self, at: *mut RdmaCmId) {
        self.at.store(at.expose_provenance(), Ordering::Release);
    }

    /// Where the program's structure is.
    pub fn public(&self) -> *mut RdmaCmId {
        ptr::with_exposed_provenance_mut(self.at.load(Ordering::Acquire))
    }

    /// Something has happened.
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

    /// An event was acknowledged, or is not handed out any more.
    pub fn acknowledged(&self) {
        *lock(&self.events) -= 1;
        self.is_acknowledged.notify_all();
    }

    /// Waits until no more events than these are left.
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
            && polyverbs_libibverbs::object::check(public.qp).is_ok()
        {
            // SAFETY: live, as was seen.
            unsafe { (*public.qp).state = state as c_int };
        }
    }

    /// A queue pair's connection has ended.
    pub fn end(self: &Arc<Self>) {
        let mut state = self.lock();
        let was_over = std::mem::replace(&mut state.is_over, true);
        drop(state);
        if !was_over {
            self.post(event::DISCONNECTED, 0, Data::None);
        }
    }
}

// Not to be guessed by peers.
fn some_psn() -> Psn {
    Psn::new(random() & 0xff_ffff)
}
