//! The events that programs fetch, and that synchronous calls wait for.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::ptr;

use polyverbs_libibverbs::abi::{IbvAhAttr, IbvGid, IbvGlobalRoute};
use polyverbs_libibverbs::errno::Errno;
use polyverbs_libibverbs::faults;
use verbs_api::qp::QpState;

use crate::abi::{
    RdmaCmEvent, RdmaCmId, RdmaConnParam, RdmaEventChannel, RdmaParam, RdmaUdParam, event,
};
use crate::errno::done;
use crate::id::Own;
use crate::qp::QKEY;
use crate::state::{Data, Part, PeerParams, Queued};
use crate::{channel, id};

/// The QP number to which multicast datagrams are sent.
const GROUP: u32 = 0xff_ffff;

/// Implements `rdma_get_cm_event`.
///
/// # Safety
/// `event` is null or writable, and the channel is not destroyed during the call.
pub unsafe extern "C-unwind" fn get_event(
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

/// Waits for the next event of a channel and makes its structure.
///
/// # Errors
/// There is no event and the channel is nonblocking, or a signal arrived.
///
/// # Safety
/// The channel is not destroyed during the call.
pub unsafe fn fetch(channel: *mut RdmaEventChannel) -> Result<*mut RdmaCmEvent, Errno> {
    // SAFETY: as the caller promises.
    let events = unsafe { channel::events(channel) }?;
    loop {
        let mut queued = events.next()?;
        if !fail(&mut queued) {
            queued.of.acknowledged();
            continue;
        }
        // An event whose structure cannot be made, for example because its identifier was destroyed, is dropped.
        if let Ok(fetched) = hand_out(queued) {
            return Ok(fetched);
        }
    }
}

/// Changes an event as the script of faults says. Returns whether the program gets the event.
fn fail(queued: &mut Queued) -> bool {
    let Ok(code) = u8::try_from(queued.event) else {
        return true;
    };
    let fate = faults::of_cm_event(code);
    if !fate.delay.is_zero() {
        std::thread::sleep(fate.delay);
    }
    if let Some(instead) = fate.instead {
        queued.event = instead.into();
        queued.status = status_of(queued.event);
        if queued.status != 0 {
            // The connection is not there, so neither are the requests of its queue pair.
            let _ = queued.of.flush_qp();
            queued.data = Data::None;
        }
    }
    queued.status = fate.status.unwrap_or(queued.status);
    !fate.is_lost
}

/// The status that Linux gives an event of this kind most often.
const fn status_of(event: c_int) -> c_int {
    match event {
        event::ADDR_ERROR | event::ROUTE_ERROR | event::MULTICAST_ERROR => -libc::EHOSTUNREACH,
        event::CONNECT_ERROR => -libc::ECONNRESET,
        event::UNREACHABLE => -libc::ETIMEDOUT,
        // The peer's program has refused: IB_CM_REJ_CONSUMER_DEFINED.
        event::REJECTED => 28,
        _ => 0,
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
        Data::User(argument) => public.param.arg = argument,
        Data::Request(device, incoming) => {
            private_data = incoming.private_data().to_vec();
            public.param.conn = conn_param((&incoming).into());
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
            peer,
        } => {
            private_data = said;
            public.param.conn = conn_param(peer);
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
    match event {
        event::ESTABLISHED => of.show_state(QpState::Rts),
        // As rdma-core's library does. A queue pair of a removed device has nothing to flush.
        event::REJECTED => _ = of.flush_qp(),
        _ => {}
    }
    Ok(channel::make_event(of, public, private_data.into()))
}

const fn no_param() -> RdmaParam {
    // SAFETY: numbers and a pointer, for which zero is a value.
    unsafe { std::mem::zeroed() }
}

pub(crate) const fn no_path() -> IbvAhAttr {
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

fn conn_param(peer: PeerParams) -> RdmaConnParam {
    RdmaConnParam {
        private_data: ptr::null(),
        private_data_len: 0,
        responder_resources: peer.reads.inbound,
        initiator_depth: peer.reads.outbound,
        flow_control: peer.flow_control.into(),
        retry_count: 7,
        rnr_retry_count: 7,
        srq: peer.srq.into(),
        qp_num: peer.qp_num,
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

/// Ends a call on a synchronous identifier: waits for its event, which the identifier keeps until its next call. Returns at
/// once for an identifier that is not synchronous.
///
/// # Errors
/// The status of the event.
///
/// # Safety
/// The identifier is not destroyed during the call.
pub unsafe fn complete(public: &mut RdmaCmId, own: &Own) -> Result<(), Errno> {
    if !own.inner.lock().is_sync {
        return Ok(());
    }
    if !public.event.is_null() {
        // SAFETY: the identifier's own.
        unsafe { channel::ack_event(public.event) };
        public.event = ptr::null_mut();
    }
    // SAFETY: as the caller promises.
    public.event = unsafe { fetch(public.channel) }?;
    // SAFETY: just fetched.
    let (event, status) = unsafe { ((*public.event).event, (*public.event).status) };
    match status {
        0 => Ok(()),
        _ if event == event::REJECTED => Err(Errno(libc::ECONNREFUSED)),
        status => Err(Errno(status.abs())),
    }
}
