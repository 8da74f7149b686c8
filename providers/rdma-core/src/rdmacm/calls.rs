//! The calls of librdmacm on live identifiers, and its events. No other module has pointers or error numbers of librdmacm.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_int};
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::ptr::{self, NonNull};
use std::slice;
use std::sync::Arc;

use polyverbs_abi::rdmacm::{
    Address, RdmaCmEvent, RdmaCmId, RdmaConnParam, RdmaEventChannel, RdmaParam, event, port_space,
};
use polyverbs_abi::{IbvAhAttr, IbvQpAttr, address};
use verbs_api::VerbError;
use verbs_api::qp::QpState;

use super::library::Cm;
use crate::verbs::{Zero as _, check, last_error, never_waits, nothing};

/// The longest time in milliseconds that resolving an address or a route may take.
const RESOLVE_MS: c_int = 5000;

/// An event channel of librdmacm.
pub(crate) struct Channel {
    cm: Cm,
    at: NonNull<RdmaEventChannel>,
}

// SAFETY: several threads may use a channel at the same time.
unsafe impl Send for Channel {}
// SAFETY: several threads may use a channel at the same time.
unsafe impl Sync for Channel {}

impl Channel {
    /// Opens a channel whose reads do not block.
    ///
    /// # Errors
    /// The kernel has no connection manager for user space, or this user may not use it.
    pub(crate) fn open(cm: Cm) -> Result<Arc<Self>, VerbError> {
        // SAFETY: the call has no argument.
        let made = unsafe { (cm.rdma_create_event_channel)() };
        let at = NonNull::new(made).ok_or_else(|| unopened(last_error("create_event_channel")))?;
        let channel = Self { cm, at };
        never_waits(channel.fd())?;
        Ok(Arc::new(channel))
    }

    /// Returns the descriptor of the channel, which is readable while it has an event.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor is open as long as the channel lives.
        unsafe { BorrowedFd::borrow_raw(self.at.as_ref().fd) }
    }

    /// Returns the next event; `None` if there is none. It has been acknowledged, so the caller may destroy identifiers.
    ///
    /// # Errors
    /// The channel reports no further events.
    pub(crate) fn next(self: &Arc<Self>) -> Result<Option<Event>, VerbError> {
        let mut taken = ptr::null_mut();
        // SAFETY: the channel lives as long as `self`, and there is room for the pointer.
        let answer = unsafe { (self.cm.rdma_get_cm_event)(self.at.as_ptr(), &raw mut taken) };
        if answer != 0 {
            return nothing("get_cm_event").map(|_| None);
        }
        let Some(event) = NonNull::new(taken) else {
            return Err(VerbError::Internal("librdmacm hands out no event"));
        };
        // SAFETY: the event is valid until it is acknowledged.
        let read = unsafe { self.read(event.as_ref()) };
        // SAFETY: this acknowledges the event that was taken, once. `read` is a copy of its contents.
        unsafe { (self.cm.rdma_ack_cm_event)(event.as_ptr()) };
        Ok(Some(read))
    }

    /// # Safety
    /// The event was taken and not acknowledged.
    unsafe fn read(self: &Arc<Self>, event: &RdmaCmEvent) -> Event {
        let (owner, asks) = match event.event {
            event::CONNECT_REQUEST => (event.listen_id, NonNull::new(event.id)),
            _ => (event.id, None),
        };
        let owner = NonNull::new(owner);
        // SAFETY: an identifier lives while it has events that are not acknowledged.
        let is_for_datagrams = owner.is_some_and(|id| unsafe { id.as_ref() }.ps == port_space::UDP);
        // SAFETY: the caller promises that the event is not acknowledged.
        let (said, private_data) = unsafe { read_param(&event.param, is_for_datagrams) };
        Event {
            of: Key(owner.map_or(0, |id| id.as_ptr().addr())),
            // The new identifier of a request belongs to the receiver of the event.
            asks: asks.map(|at| Id {
                channel: Arc::clone(self),
                at,
            }),
            kind: event.event,
            status: event.status,
            said,
            private_data,
        }
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        // SAFETY: the channel lives, and its identifiers do not, because each of them holds it.
        unsafe { (self.cm.rdma_destroy_event_channel)(self.at.as_ptr()) };
    }
}

fn unopened(error: VerbError) -> VerbError {
    let VerbError::Os { errno, .. } = error else {
        return error;
    };
    let at = "/dev/infiniband/rdma_cm";
    match errno {
        libc::EACCES | libc::EPERM => {
            VerbError::UnsupportedHere(format!("{at} may not be opened by this user"))
        }
        libc::ENOENT | libc::ENODEV => {
            VerbError::UnsupportedHere(format!("there is no {at}: load the module rdma_ucm"))
        }
        _ => error,
    }
}

/// # Safety
/// The parameters belong to an event of this kind of service that is not acknowledged.
unsafe fn read_param(param: &RdmaParam, is_for_datagrams: bool) -> (Said, Vec<u8>) {
    // SAFETY: both kinds consist of numbers and a pointer, and begin with the private data.
    let (conn, ud) = unsafe { (&param.conn, &param.ud) };
    let private_data = match conn.private_data.is_null() {
        true => Vec::new(),
        false => {
            let len = usize::from(conn.private_data_len);
            // SAFETY: the event has this many bytes until it is acknowledged.
            unsafe { slice::from_raw_parts(conn.private_data.cast::<u8>(), len) }.to_vec()
        }
    };
    let said = match is_for_datagrams {
        true => Said::Datagrams {
            path: ud.ah_attr,
            qp_num: ud.qp_num,
            qkey: ud.qkey,
        },
        false => Said::Connection {
            qp_num: conn.qp_num,
            responder_resources: conn.responder_resources,
            initiator_depth: conn.initiator_depth,
            retry_count: conn.retry_count,
            rnr_retry_count: conn.rnr_retry_count,
            flow_control: conn.flow_control != 0,
            srq: conn.srq != 0,
        },
    };
    (said, private_data)
}

/// Identifies an `rdma_cm_id` in events, as a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Key(usize);

/// An event of an `rdma_cm_id`.
pub(crate) struct Event {
    /// The identifier of the event; for a connection request, the listening one.
    pub(crate) of: Key,
    /// The identifier that a connection request has created; `None` for other events.
    pub(crate) asks: Option<Id>,
    /// The type of the event, one of `rdmacm::event`.
    pub(crate) kind: c_int,
    /// The status of the event: 0, a negative error number, or the reason of a rejection.
    pub(crate) status: c_int,
    pub(crate) said: Said,
    pub(crate) private_data: Vec<u8>,
}

/// The connection parameters of the peer in an event.
pub(crate) enum Said {
    Connection {
        qp_num: u32,
        responder_resources: u8,
        initiator_depth: u8,
        retry_count: u8,
        rnr_retry_count: u8,
        flow_control: bool,
        srq: bool,
    },
    Datagrams {
        path: IbvAhAttr,
        qp_num: u32,
        qkey: u32,
    },
}

/// Whether an identifier is for connections or for datagrams.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Service {
    Connections,
    Datagrams,
}

/// The connection parameters that this end sends with a request or an answer.
pub(crate) struct Terms<'a> {
    pub(crate) qp_num: u32,
    pub(crate) responder_resources: u8,
    pub(crate) initiator_depth: u8,
    pub(crate) retry_count: u8,
    pub(crate) rnr_retry_count: u8,
    pub(crate) flow_control: bool,
    pub(crate) srq: bool,
    pub(crate) private_data: &'a [u8],
}

impl<'a> Terms<'a> {
    /// Returns the parameters for resolving a datagram service, where `qp_num` is 0, or for the answer.
    pub(crate) const fn of_datagrams(qp_num: u32, private_data: &'a [u8]) -> Self {
        Self {
            qp_num,
            responder_resources: 0,
            initiator_depth: 0,
            retry_count: 0,
            rnr_retry_count: 0,
            flow_control: false,
            srq: false,
            private_data,
        }
    }
}

/// An `rdma_cm_id`, which is destroyed with the last handle. Each caller of a method holds one.
///
/// The destruction waits until the events of the identifier are acknowledged, which they are before [`Channel::next`] returns an
/// [`Event`].
pub(crate) struct Id {
    channel: Arc<Channel>,
    at: NonNull<RdmaCmId>,
}

// SAFETY: several threads may use an identifier at the same time.
unsafe impl Send for Id {}
// SAFETY: several threads may use an identifier at the same time.
unsafe impl Sync for Id {}

impl Id {
    pub(crate) fn create(channel: &Arc<Channel>, service: Service) -> Result<Self, VerbError> {
        let mut made = ptr::null_mut();
        let space = match service {
            Service::Connections => port_space::TCP,
            Service::Datagrams => port_space::UDP,
        };
        let create = channel.cm.rdma_create_id;
        // SAFETY: the channel lives as long as `channel`, and there is room for the pointer.
        check("create_id", unsafe {
            create(channel.at.as_ptr(), &raw mut made, ptr::null_mut(), space)
        })?;
        let at = NonNull::new(made).ok_or(VerbError::Internal("create_id made no identifier"))?;
        let channel = Arc::clone(channel);
        Ok(Self { channel, at })
    }

    pub(crate) fn key(&self) -> Key {
        Key(self.at.as_ptr().addr())
    }

    /// Returns the name of the device that the identifier is bound to; `None` if it is not bound.
    pub(crate) fn device(&self) -> Option<String> {
        // SAFETY: the identifier lives as long as `self`, and the library keeps its device open.
        let name = unsafe {
            let context = self.at.as_ref().verbs.as_ref()?;
            &context.device.as_ref()?.name
        };
        let name = name.map(|octet| octet as u8);
        let name = CStr::from_bytes_until_nul(&name).ok()?;
        Some(name.to_string_lossy().into_owned())
    }

    /// Returns the local address. No other thread may bind the identifier at the same time.
    pub(crate) fn local(&self) -> Option<SocketAddr> {
        // SAFETY: the identifier lives as long as `self`.
        address::read(unsafe { &self.at.as_ref().route.addr.src })
    }

    /// Returns the address of the peer. No other thread may bind the identifier at the same time.
    pub(crate) fn peer(&self) -> Option<SocketAddr> {
        // SAFETY: the identifier lives as long as `self`.
        address::read(unsafe { &self.at.as_ref().route.addr.dst })
    }

    pub(crate) fn bind(&self, to: SocketAddr) -> Result<(), VerbError> {
        let mut to = address::write(to);
        self.ask("bind_addr", |cm, id| {
            // SAFETY: the identifier lives as long as `self`, and the address has the length of its family.
            unsafe { (cm.rdma_bind_addr)(id, pointer(&mut to)) }
        })
    }

    pub(crate) fn listen(&self) -> Result<(), VerbError> {
        // 0 is the kernel's maximum.
        const BACKLOG: c_int = 0;
        self.ask("listen", |cm, id| {
            // SAFETY: the identifier lives as long as `self`.
            unsafe { (cm.rdma_listen)(id, BACKLOG) }
        })
    }

    pub(crate) fn resolve_addr(&self, from: SocketAddr, to: SocketAddr) -> Result<(), VerbError> {
        let (mut from, mut to) = (address::write(from), address::write(to));
        self.ask("resolve_addr", |cm, id| {
            // SAFETY: the identifier lives as long as `self`, and the addresses have the lengths of their families.
            unsafe { (cm.rdma_resolve_addr)(id, pointer(&mut from), pointer(&mut to), RESOLVE_MS) }
        })
    }

    pub(crate) fn resolve_route(&self) -> Result<(), VerbError> {
        self.ask("resolve_route", |cm, id| {
            // SAFETY: the identifier lives as long as `self`.
            unsafe { (cm.rdma_resolve_route)(id, RESOLVE_MS) }
        })
    }

    pub(crate) fn connect(&self, terms: &Terms<'_>) -> Result<(), VerbError> {
        let mut param = terms.in_c()?;
        self.ask("connect", |cm, id| {
            // SAFETY: the identifier lives as long as `self`, and so does the private data.
            unsafe { (cm.rdma_connect)(id, &raw mut param) }
        })
    }

    pub(crate) fn accept(&self, terms: &Terms<'_>) -> Result<(), VerbError> {
        let mut param = terms.in_c()?;
        self.ask("accept", |cm, id| {
            // SAFETY: the identifier lives as long as `self`, and so does the private data.
            unsafe { (cm.rdma_accept)(id, &raw mut param) }
        })
    }

    pub(crate) fn establish(&self) -> Result<(), VerbError> {
        self.ask("establish", |cm, id| {
            // SAFETY: the identifier lives as long as `self`.
            unsafe { (cm.rdma_establish)(id) }
        })
    }

    pub(crate) fn reject(&self, private_data: &[u8]) -> Result<(), VerbError> {
        let len = length(private_data)?;
        self.ask("reject", |cm, id| {
            // SAFETY: the identifier lives as long as `self`, and so does the private data.
            unsafe { (cm.rdma_reject)(id, private_data.as_ptr().cast(), len) }
        })
    }

    pub(crate) fn disconnect(&self) -> Result<(), VerbError> {
        self.ask("disconnect", |cm, id| {
            // SAFETY: the identifier lives as long as `self`.
            unsafe { (cm.rdma_disconnect)(id) }
        })
    }

    /// Returns the attributes that move a queue pair of this connection to a state (`rdma_init_qp_attr`).
    pub(crate) fn qp_attr(&self, state: QpState) -> Result<IbvQpAttr, VerbError> {
        let mut attr = IbvQpAttr::zero();
        attr.qp_state = state as c_int;
        let mut mask = 0;
        self.ask("init_qp_attr", |cm, id| {
            // SAFETY: the identifier lives as long as `self`, and there is room for the result.
            unsafe { (cm.rdma_init_qp_attr)(id, &raw mut attr, &raw mut mask) }
        })?;
        Ok(attr)
    }

    fn ask(
        &self,
        call: &'static str,
        ask: impl FnOnce(&Cm, *mut RdmaCmId) -> c_int,
    ) -> Result<(), VerbError> {
        check(call, ask(&self.channel.cm, self.at.as_ptr()))
    }
}

impl Drop for Id {
    fn drop(&mut self) {
        // SAFETY: the identifier lives, and this was its last handle.
        unsafe { (self.channel.cm.rdma_destroy_id)(self.at.as_ptr()) };
    }
}

impl Terms<'_> {
    fn in_c(&self) -> Result<RdmaConnParam, VerbError> {
        Ok(RdmaConnParam {
            private_data: self.private_data.as_ptr().cast(),
            private_data_len: length(self.private_data)?,
            responder_resources: self.responder_resources,
            initiator_depth: self.initiator_depth,
            flow_control: self.flow_control.into(),
            retry_count: self.retry_count,
            rnr_retry_count: self.rnr_retry_count,
            srq: self.srq.into(),
            qp_num: self.qp_num,
        })
    }
}

fn length(private_data: &[u8]) -> Result<u8, VerbError> {
    let too_long = |_| VerbError::argument("private_data", "is longer than 255 bytes");
    u8::try_from(private_data.len()).map_err(too_long)
}

fn pointer(address: &mut Address) -> *mut libc::sockaddr {
    ptr::from_mut(address).cast()
}
