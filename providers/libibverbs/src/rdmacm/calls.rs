//! The calls of librdmacm on identifiers that live, and its events: pointers and error numbers end here.
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

/// How long an address or a route may take to be found.
const RESOLVE_MS: c_int = 5000;

/// The queue of events of its identifiers.
pub(crate) struct Channel {
    cm: Cm,
    at: NonNull<RdmaEventChannel>,
}

// SAFETY: every thread may use a channel, several at a time.
unsafe impl Send for Channel {}
// SAFETY: as above.
unsafe impl Sync for Channel {}

impl Channel {
    /// One that never waits for an event.
    ///
    /// # Errors
    /// The kernel has no connection manager for user space, or this user may not use it.
    pub(crate) fn open(cm: Cm) -> Result<Arc<Self>, VerbError> {
        // SAFETY: it has no argument.
        let made = unsafe { (cm.rdma_create_event_channel)() };
        let at = NonNull::new(made).ok_or_else(|| unopened(last_error("create_event_channel")))?;
        let channel = Self { cm, at };
        never_waits(channel.fd())?;
        Ok(Arc::new(channel))
    }

    /// What becomes readable with an event.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: it is open as long as the channel lives.
        unsafe { BorrowedFd::borrow_raw(self.at.as_ref().fd) }
    }

    /// The next event, which has been acknowledged: identifiers may be destroyed by whoever gets it. `None` where there is none.
    ///
    /// # Errors
    /// There will be none any more.
    pub(crate) fn next(self: &Arc<Self>) -> Result<Option<Event>, VerbError> {
        let mut taken = ptr::null_mut();
        // SAFETY: it lives, and there is room.
        let answer = unsafe { (self.cm.rdma_get_cm_event)(self.at.as_ptr(), &raw mut taken) };
        if answer != 0 {
            return nothing("get_cm_event").map(|_| None);
        }
        let Some(event) = NonNull::new(taken) else {
            return Err(VerbError::Internal("librdmacm hands out no event"));
        };
        // SAFETY: it is this one's until it is acknowledged.
        let read = unsafe { self.read(event.as_ref()) };
        // SAFETY: the event that was taken, once. What was read of it are copies.
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
        // SAFETY: an identifier lives as long as events of it are not acknowledged.
        let is_for_datagrams = owner.is_some_and(|id| unsafe { id.as_ref() }.ps == port_space::UDP);
        // SAFETY: as the caller promises.
        let (said, private_data) = unsafe { read_param(&event.param, is_for_datagrams) };
        Event {
            of: Key(owner.map_or(0, |id| id.as_ptr().addr())),
            // A request makes an identifier, which is whoever's takes the event.
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
        // SAFETY: it lives, and its identifiers do not: each holds it.
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
/// It is of an event that is not acknowledged, of this kind of service.
unsafe fn read_param(param: &RdmaParam, is_for_datagrams: bool) -> (Said, Vec<u8>) {
    // SAFETY: both kinds are numbers and a pointer, and begin with the private data.
    let (conn, ud) = unsafe { (&param.conn, &param.ud) };
    let private_data = match conn.private_data.is_null() {
        true => Vec::new(),
        false => {
            let len = usize::from(conn.private_data_len);
            // SAFETY: as many bytes as the event says, until it is acknowledged.
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
        },
    };
    (said, private_data)
}

/// Which identifier an event is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Key(usize);

/// What happened to an identifier.
pub(crate) struct Event {
    /// Of a request, whoever listens.
    pub(crate) of: Key,
    /// The identifier that a request has made.
    pub(crate) asks: Option<Id>,
    /// One of `rdmacm::event`.
    pub(crate) kind: c_int,
    /// 0, an error number below zero, or the reason of a rejection.
    pub(crate) status: c_int,
    pub(crate) said: Said,
    pub(crate) private_data: Vec<u8>,
}

/// What an event says of the peer.
pub(crate) enum Said {
    Connection {
        qp_num: u32,
        responder_resources: u8,
        initiator_depth: u8,
        retry_count: u8,
        rnr_retry_count: u8,
    },
    Datagrams {
        path: IbvAhAttr,
        qp_num: u32,
        qkey: u32,
    },
}

/// What an identifier is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Service {
    Connections,
    Datagrams,
}

/// What one end says with a request or an answer.
pub(crate) struct Terms<'a> {
    pub(crate) qp_num: u32,
    pub(crate) responder_resources: u8,
    pub(crate) initiator_depth: u8,
    pub(crate) retry_count: u8,
    pub(crate) rnr_retry_count: u8,
    pub(crate) private_data: &'a [u8],
}

impl<'a> Terms<'a> {
    /// Those of a question for a datagram service, with no queue pair, and of its answer.
    pub(crate) const fn of_datagrams(qp_num: u32, private_data: &'a [u8]) -> Self {
        Self {
            qp_num,
            responder_resources: 0,
            initiator_depth: 0,
            retry_count: 0,
            rnr_retry_count: 0,
            private_data,
        }
    }
}

/// An identifier, destroyed with its last handle: whoever calls holds one.
///
/// That waits for events of it that are not acknowledged, which nobody holds who has an [`Event`].
pub(crate) struct Id {
    channel: Arc<Channel>,
    at: NonNull<RdmaCmId>,
}

// SAFETY: every thread may use an identifier, several at a time.
unsafe impl Send for Id {}
// SAFETY: as above.
unsafe impl Sync for Id {}

impl Id {
    pub(crate) fn create(channel: &Arc<Channel>, service: Service) -> Result<Self, VerbError> {
        let mut made = ptr::null_mut();
        let space = match service {
            Service::Connections => port_space::TCP,
            Service::Datagrams => port_space::UDP,
        };
        let create = channel.cm.rdma_create_id;
        // SAFETY: the channel lives, and there is room.
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

    /// The name of the device that it has come to, where it has.
    pub(crate) fn device(&self) -> Option<String> {
        // SAFETY: it lives, and so does the device that it is of: the library has opened it.
        let name = unsafe {
            let context = self.at.as_ref().verbs.as_ref()?;
            &context.device.as_ref()?.name
        };
        let name = name.map(|octet| octet as u8);
        let name = CStr::from_bytes_until_nul(&name).ok()?;
        Some(name.to_string_lossy().into_owned())
    }

    /// The address that it has on this side. Not while another thread gives it one.
    pub(crate) fn local(&self) -> Option<SocketAddr> {
        // SAFETY: it lives.
        address::read(unsafe { &self.at.as_ref().route.addr.src })
    }

    /// The peer's address. Not while another thread gives it one.
    pub(crate) fn peer(&self) -> Option<SocketAddr> {
        // SAFETY: it lives.
        address::read(unsafe { &self.at.as_ref().route.addr.dst })
    }

    pub(crate) fn bind(&self, to: SocketAddr) -> Result<(), VerbError> {
        let mut to = address::write(to);
        self.ask("bind_addr", |cm, id| {
            // SAFETY: it lives, and the address is as long as its family says.
            unsafe { (cm.rdma_bind_addr)(id, pointer(&mut to)) }
        })
    }

    pub(crate) fn listen(&self) -> Result<(), VerbError> {
        // As many requests as the kernel lets wait.
        const BACKLOG: c_int = 0;
        self.ask("listen", |cm, id| {
            // SAFETY: it lives.
            unsafe { (cm.rdma_listen)(id, BACKLOG) }
        })
    }

    pub(crate) fn resolve_addr(&self, from: SocketAddr, to: SocketAddr) -> Result<(), VerbError> {
        let (mut from, mut to) = (address::write(from), address::write(to));
        self.ask("resolve_addr", |cm, id| {
            // SAFETY: it lives, and the addresses are as long as their families say.
            unsafe { (cm.rdma_resolve_addr)(id, pointer(&mut from), pointer(&mut to), RESOLVE_MS) }
        })
    }

    pub(crate) fn resolve_route(&self) -> Result<(), VerbError> {
        self.ask("resolve_route", |cm, id| {
            // SAFETY: it lives.
            unsafe { (cm.rdma_resolve_route)(id, RESOLVE_MS) }
        })
    }

    pub(crate) fn connect(&self, terms: &Terms<'_>) -> Result<(), VerbError> {
        let mut param = terms.in_c()?;
        self.ask("connect", |cm, id| {
            // SAFETY: it lives, and so does the private data.
            unsafe { (cm.rdma_connect)(id, &raw mut param) }
        })
    }

    pub(crate) fn accept(&self, terms: &Terms<'_>) -> Result<(), VerbError> {
        let mut param = terms.in_c()?;
        self.ask("accept", |cm, id| {
            // SAFETY: it lives, and so does the private data.
            unsafe { (cm.rdma_accept)(id, &raw mut param) }
        })
    }

    pub(crate) fn establish(&self) -> Result<(), VerbError> {
        self.ask("establish", |cm, id| {
            // SAFETY: it lives.
            unsafe { (cm.rdma_establish)(id) }
        })
    }

    pub(crate) fn reject(&self, private_data: &[u8]) -> Result<(), VerbError> {
        let len = length(private_data)?;
        self.ask("reject", |cm, id| {
            // SAFETY: it lives, and so does the private data.
            unsafe { (cm.rdma_reject)(id, private_data.as_ptr().cast(), len) }
        })
    }

    pub(crate) fn disconnect(&self) -> Result<(), VerbError> {
        self.ask("disconnect", |cm, id| {
            // SAFETY: it lives.
            unsafe { (cm.rdma_disconnect)(id) }
        })
    }

    /// What a queue pair is to be modified with to get to this state.
    pub(crate) fn qp_attr(&self, state: QpState) -> Result<IbvQpAttr, VerbError> {
        let mut attr = IbvQpAttr::zero();
        attr.qp_state = state as c_int;
        let mut mask = 0;
        self.ask("init_qp_attr", |cm, id| {
            // SAFETY: it lives, and there is room.
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
        // SAFETY: it lives, and this was its last handle.
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
            flow_control: 1,
            retry_count: self.retry_count,
            rnr_retry_count: self.rnr_retry_count,
            srq: 0,
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
