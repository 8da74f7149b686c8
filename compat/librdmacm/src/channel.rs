//! Channels, and the events of identifiers that come out of them.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::ptr;
use std::sync::Arc;

use polyverbs_connection::ReadLimits;
use polyverbs_libibverbs::abi::{IbvAhAttr, IbvGid, IbvGlobalRoute};
use polyverbs_libibverbs::errno::Errno;
use polyverbs_libibverbs::events::Events;
use polyverbs_libibverbs::object::Object;
use verbs_api::qp::QpState;

use crate::abi::{RdmaCmEvent, RdmaConnParam, RdmaEventChannel, RdmaParam, RdmaUdParam, event};
use crate::errno::done;
use crate::id;
use crate::state::{Data, Inner, Part, Queued};

/// A channel as it lies in memory.
type ChannelObject = Object<RdmaEventChannel, Arc<Events<Queued>>>;

/// Number of the queue pair that groups are sent to.
const GROUP: u32 = 0xff_ffff;
/// The key of datagrams in the port space of UDP.
pub const QKEY: u32 = 0x0123_4567;

/// An event as it lies in memory.
type EventObject = Object<RdmaCmEvent, Fetched>;

struct Fetched {
    of: Arc<Inner>,
    // What the event points to.
    _private_data: Box<[u8]>,
}

/// A channel of its own.
///
/// # Errors
/// The process has no descriptor left.
pub fn make() -> Result<*mut RdmaEventChannel, Errno> {
    let events = Arc::new(Events::new()?);
    Ok(ChannelObject::create(
        RdmaEventChannel { fd: events.fd() },
        events,
    ))
}

/// The queue behind a pointer of the program.
///
/// # Errors
/// It is null, or the channel was destroyed.
///
/// # Safety
/// Nobody destroys the channel meanwhile.
pub unsafe fn events(channel: *const RdmaEventChannel) -> Result<Arc<Events<Queued>>, Errno> {
    // SAFETY: as the caller promises.
    unsafe { ChannelObject::own(channel) }.cloned()
}

/// `rdma_create_event_channel`.
pub extern "C" fn create() -> *mut RdmaEventChannel {
    polyverbs_libibverbs::errno::pointer(make())
}

/// `rdma_destroy_event_channel`.
///
/// # Safety
/// Nobody uses the structure any more.
pub unsafe extern "C" fn destroy(channel: *mut RdmaEventChannel) {
    // SAFETY: as the caller promises.
    if let Ok(events) = unsafe { events(channel) } {
        // Requests that nobody looked at are refused.
        for queued in events.take(|_| true) {
            queued.of.acknowledged();
        }
        // SAFETY: as the caller promises.
        unsafe { ChannelObject::destroy(channel) };
    } else {
        Errno::INVAL.set();
    }
}

/// `rdma_get_cm_event`.
///
/// # Safety
/// `event` is null or writable, and nobody destroys the channel meanwhile.
pub unsafe extern "C" fn get_event(
    channel: *mut RdmaEventChannel,
    event: *mut *mut RdmaCmEvent,
) -> c_int {
    // SAFETY: as the caller promises.
    let fetched = unsafe { event.as_mut() }
        .ok_or(Errno::INVAL)
        .and_then(|place| {
            // SAFETY: as the caller promises.
            *place = unsafe { fetch(channel) }?;
            Ok(())
        });
    done(fetched)
}

/// The next event.
///
/// # Errors
/// There is none and the channel does not wait, or a signal came.
///
/// # Safety
/// Nobody destroys the channel meanwhile.
pub unsafe fn fetch(channel: *mut RdmaEventChannel) -> Result<*mut RdmaCmEvent, Errno> {
    // SAFETY: as the caller promises.
    let events = unsafe { events(channel) }?;
    loop {
        // What cannot be handed out is given up, and the next one is looked at.
        if let Ok(fetched) = hand_out(events.next()?) {
            return Ok(fetched);
        }
    }
}

fn hand_out(queued: Queued) -> Result<*mut RdmaCmEvent, Errno> {
    let Queued {
        of,
        event,
        status,
        data,
    } = queued;
    let mut public = RdmaCmEvent {
        id: of.public(),
        listen_id: ptr::null_mut(),
        event,
        status,
        param: no_param(),
    };
    let mut private_data = Vec::new();
    match data {
        Data::None => {}
        Data::Request(device, incoming) => {
            private_data = incoming.private_data().to_vec();
            public.param.conn = conn_param(incoming.offered_reads(), incoming.remote_qpn().value());
            if let Some(count) = incoming.offered_retry_cnt() {
                public.param.conn.retry_count = count;
            }
            if let Some(count) = incoming.offered_rnr_retry() {
                public.param.conn.rnr_retry_count = count;
            }
            public.listen_id = public.id;
            let asked = Part::Asked(incoming);
            public.id = id::child(&of, &device, asked).inspect_err(|_| of.acknowledged())?;
        }
        Data::Question(device, question) => {
            private_data = question.private_data().to_vec();
            public.param.ud = ud_param(no_path(), 0, 0);
            public.listen_id = public.id;
            let asked = Part::Questioned(question);
            public.id = id::child(&of, &device, asked).inspect_err(|_| of.acknowledged())?;
        }
        Data::Connection {
            private_data: said,
            reads,
            qp_num,
        } => {
            private_data = said;
            public.param.conn = conn_param(reads, qp_num);
        }
        Data::Datagrams {
            private_data: said,
            ah_attr,
            qp_num,
            qkey,
        } => {
            private_data = said;
            public.param.ud = ud_param(ah_attr, qp_num, qkey);
        }
        Data::Group { context, ah_attr } => {
            public.param.ud = ud_param(ah_attr, GROUP, QKEY);
            public.param.ud.private_data = context;
        }
    }
    if event == event::ESTABLISHED {
        of.show_state(QpState::Rts);
    }
    let private_data = private_data.into_boxed_slice();
    if !private_data.is_empty() {
        // Both kinds of parameters begin with it.
        public.param.conn.private_data = private_data.as_ptr().cast();
        public.param.conn.private_data_len = u8::try_from(private_data.len()).unwrap_or(u8::MAX);
    }
    let fetched = Fetched {
        of,
        _private_data: private_data,
    };
    Ok(EventObject::create(public, fetched))
}

const fn no_param() -> RdmaParam {
    // SAFETY: numbers and a pointer, for which zero is a value.
    unsafe { std::mem::zeroed() }
}

const fn no_path() -> IbvAhAttr {
    IbvAhAttr {
        grh: IbvGlobalRoute {
            dgid: IbvGid { raw: [0; 16] },
            flow_label: 0,
            sgid_index: 0,
            hop_limit: 0,
            traffic_class: 0,
        },
        dlid: 0,
        sl: 0,
        src_path_bits: 0,
        static_rate: 0,
        is_global: 0,
        port_num: 1,
    }
}

const fn conn_param(reads: ReadLimits, qp_num: u32) -> RdmaConnParam {
    RdmaConnParam {
        private_data: ptr::null(),
        private_data_len: 0,
        responder_resources: reads.inbound,
        initiator_depth: reads.outbound,
        flow_control: 0,
        retry_count: 7,
        rnr_retry_count: 7,
        srq: 0,
        qp_num,
    }
}

const fn ud_param(ah_attr: IbvAhAttr, qp_num: u32, qkey: u32) -> RdmaUdParam {
    RdmaUdParam {
        private_data: ptr::null(),
        private_data_len: 0,
        ah_attr,
        qp_num,
        qkey,
    }
}

/// `rdma_ack_cm_event`.
///
/// # Safety
/// Nobody uses the event any more.
pub unsafe extern "C" fn ack_event(event: *mut RdmaCmEvent) -> c_int {
    // SAFETY: as the caller promises.
    done(unsafe { EventObject::own(event) }.map(|fetched| {
        let of = Arc::clone(&fetched.of);
        // SAFETY: as the caller promises.
        unsafe { EventObject::destroy(event) };
        of.acknowledged();
    }))
}
