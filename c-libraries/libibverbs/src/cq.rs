//! Completion queues and completion channels, for C programs.
#![allow(unsafe_code)]

use std::cell::UnsafeCell;
use std::collections::VecDeque;
use std::ffi::{c_int, c_void};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::{mem, ptr};

use verbs_api::provider::{Condvar, Mutex};
use verbs_api::{
    Completion, Cq, CqOptions,
    completion::{Notify, WcFlags},
    ids::Qpn,
};

use crate::abi::{IbvCompChannel, IbvContext, IbvCq, IbvCqEx, IbvCqInitAttrEx, IbvWc, Slot, cq_ex};
use crate::context;
use crate::device::ListedDevice;
use crate::entry::{direct, slot};
use crate::errno::{Errno, code, minus_one, pointer};
use crate::events::Events;
use crate::object::Object;

/// A completion channel: its public structure and the library's part.
type ChannelObject = Object<IbvCompChannel, Arc<Channel>>;

struct Channel {
    // The events that wait to be fetched: each is the address of its CQ.
    events: Events<usize>,
    queues: AtomicU32,
}

/// A CQ: its public structure, always that of an extended CQ, and the library's part.
type CqObject = Object<IbvCqEx, State>;

/// The library's part of a CQ.
pub struct State {
    /// The CQ of `verbs-api` that this one stands for.
    pub cq: Cq,
    channel: Option<Arc<Channel>>,
    // Events that the program has fetched and not acknowledged.
    unacknowledged: Mutex<u32>,
    acknowledged: Condvar,
    // Completions that were taken from the CQ while those of a reset QP were discarded. They are polled first.
    kept: Mutex<VecDeque<Completion>>,
    has_kept: AtomicBool,
    // The value of `ibv_wc.sl` for datagrams received on RoCE, see `packet_type`; 0 on other devices.
    packet_type: u8,
    // The completion that the `ibv_wc_read_*` calls read. Only the thread between `ibv_start_poll` and `ibv_end_poll`
    // accesses it.
    current: UnsafeCell<Completion>,
}

impl State {
    // Polls the CQ; kept completions come first.
    #[inline(always)]
    fn fetch<'s>(&self, slots: &'s mut [Completion]) -> Result<&'s mut [Completion], Errno> {
        if !self.has_kept.load(Ordering::Acquire) {
            return Ok(self.cq.poll(slots)?);
        }
        Ok(self.fetch_kept(slots))
    }

    #[cold]
    fn fetch_kept<'s>(&self, slots: &'s mut [Completion]) -> &'s mut [Completion] {
        let mut kept = self.kept.lock();
        let count = kept.len().min(slots.len());
        for (slot, done) in slots.iter_mut().zip(kept.drain(..count)) {
            *slot = done;
        }
        self.has_kept.store(!kept.is_empty(), Ordering::Release);
        &mut slots[..count]
    }

    /// Discards the completions of a QP that was reset, as drivers of hardware do.
    pub fn forget(&self, qp_num: Qpn) {
        let mut kept = self.kept.lock();
        let mut slot = [Completion::default()];
        while let Ok([done]) = self.cq.poll(&mut slot) {
            kept.push_back(mem::take(done));
        }
        kept.retain(|done| done.qp_num != qp_num);
        self.has_kept.store(!kept.is_empty(), Ordering::Release);
    }
}

/// The library's part of a CQ.
///
/// # Errors
/// The pointer is null, or the CQ was destroyed.
///
/// # Safety
/// The queue is not destroyed while the result is used.
pub unsafe fn own<'a>(cq: *const IbvCq) -> Result<&'a State, Errno> {
    // SAFETY: as the caller promises.
    unsafe { CqObject::own(cq.cast()) }
}

/// Implements `ibv_create_comp_channel`.
///
/// # Safety
/// The device is not closed during the call.
pub unsafe extern "C-unwind" fn create_channel(context: *mut IbvContext) -> *mut IbvCompChannel {
    // SAFETY: as the caller promises.
    pointer(unsafe { context::own(context) }.and_then(|_| {
        let channel = Arc::new(Channel {
            events: Events::new()?,
            queues: AtomicU32::new(0),
        });
        let c = IbvCompChannel {
            context,
            fd: channel.events.fd(),
            refcnt: 0,
        };
        Ok(ChannelObject::create(c, channel))
    }))
}

/// Implements `ibv_destroy_comp_channel`.
///
/// # Safety
/// The program does not use the structure after this call.
pub unsafe extern "C-unwind" fn destroy_channel(channel: *mut IbvCompChannel) -> c_int {
    let end = |own: &Arc<Channel>| match own.queues.load(Ordering::Acquire) {
        0 => Ok(()),
        _ => Err(Errno::BUSY),
    };
    // SAFETY: as the caller promises.
    code(unsafe { ChannelObject::end(channel, end) })
}

unsafe fn make(
    context: *mut IbvContext,
    options: CqOptions,
    cq_context: *mut c_void,
    channel: *mut IbvCompChannel,
    slots: [Slot; 18],
) -> Result<*mut IbvCqEx, Errno> {
    // SAFETY: as the caller promises.
    let state = unsafe { context::own(context) }?;
    let mut told = None;
    if !channel.is_null() {
        // SAFETY: as the caller promises.
        told = Some(Arc::clone(unsafe { ChannelObject::own(channel) }?));
    }
    let cq = state.context.create_cq(options).wait()?;
    let c = IbvCqEx {
        cq: IbvCq {
            context,
            channel,
            cq_context,
            handle: cq.id().index,
            cqe: cq.cqe() as c_int,
            mutex: libc::PTHREAD_MUTEX_INITIALIZER,
            cond: libc::PTHREAD_COND_INITIALIZER,
            comp_events_completed: 0,
            async_events_completed: 0,
        },
        comp_mask: 0,
        status: 0,
        wr_id: 0,
        slots,
    };
    let id = cq.id();
    let own = State {
        cq: cq.clone(),
        channel: told.clone(),
        unacknowledged: Mutex::default(),
        acknowledged: Condvar::new(),
        kept: Mutex::default(),
        has_kept: AtomicBool::new(false),
        packet_type: packet_type(state.shared.listed),
        current: UnsafeCell::default(),
    };
    let at = CqObject::create(c, own);
    state.place(id, at);
    if let Some(channel) = told {
        channel.queues.fetch_add(1, Ordering::AcqRel);
        let at = at.expose_provenance();
        cq.on_completion(move |_| channel.events.push(at));
    }
    Ok(at)
}

// The value of `ibv_wc.sl` for datagrams received on RoCE: which headers they had, as drivers of hardware report it (RoCEv2
// has no service level, and IBA A17.4.5.1 wants the completion to report this). UCX drops datagrams whose GRH does not
// match. On other devices the field is the service level, 0.
fn packet_type(listed: &ListedDevice) -> u8 {
    const UDP: u8 = 1 << 3;
    const OVER_IPV6: u8 = 1;
    const OVER_IPV4: u8 = 2;
    match listed.address() {
        _ if !listed.is_roce() => 0,
        IpAddr::V4(_) => UDP | OVER_IPV4,
        IpAddr::V6(_) => UDP | OVER_IPV6,
    }
}

/// Implements `ibv_create_cq`.
///
/// # Safety
/// Neither the device nor the channel is closed during the call.
pub unsafe extern "C-unwind" fn create(
    context: *mut IbvContext,
    cqe: c_int,
    cq_context: *mut c_void,
    channel: *mut IbvCompChannel,
    comp_vector: c_int,
) -> *mut IbvCq {
    let (Ok(cqe @ 1..), Ok(comp_vector)) = (u32::try_from(cqe), u32::try_from(comp_vector)) else {
        return pointer(Err(Errno::INVAL));
    };
    let options = CqOptions::new(cqe).comp_vector(comp_vector);
    let slots = [ptr::null(); 18];
    // SAFETY: as the caller promises.
    pointer(unsafe { make(context, options, cq_context, channel, slots) }).cast()
}

/// Implements `ibv_destroy_cq`. Waits until the program has acknowledged all events of the CQ that it has fetched.
///
/// # Safety
/// The program does not use the CQ after this call.
pub unsafe extern "C-unwind" fn destroy(cq: *mut IbvCq) -> c_int {
    let end = |state: &State| {
        // SAFETY: live, as was seen; a queue is live, so its device is.
        let device = unsafe { context::own((*cq).context) }?;
        device.end(state.cq.id(), state.cq.clone().destroy())?;
        if let Some(channel) = &state.channel {
            channel.events.remove(|&at| at == cq.addr());
            channel.queues.fetch_sub(1, Ordering::AcqRel);
        }
        let mut unacknowledged = state.unacknowledged.lock();
        while *unacknowledged > 0 {
            unacknowledged = state.acknowledged.wait(unacknowledged);
        }
        drop(unacknowledged);
        Ok(())
    };
    // SAFETY: as the caller promises.
    code(unsafe { CqObject::end(cq.cast(), end) })
}

/// Implements `ibv_resize_cq`.
///
/// # Safety
/// The queue is not destroyed during the call.
pub unsafe extern "C-unwind" fn resize(cq: *mut IbvCq, cqe: c_int) -> c_int {
    // SAFETY: as the caller promises.
    code(unsafe { own(cq) }.and_then(|state| {
        let cqe = u32::try_from(cqe).map_err(|_| Errno::INVAL)?;
        let made = state.cq.resize(cqe).wait()?;
        // SAFETY: live, as was seen.
        unsafe { (*cq).cqe = made as c_int };
        Ok(())
    }))
}

fn imm_data(done: &Completion) -> u32 {
    match done.invalidated_rkey() {
        Some(rkey) => rkey.value(),
        None => u32::from_ne_bytes(done.imm_data),
    }
}

fn sl(done: &Completion, packet_type: u8) -> u8 {
    match done.wc_flags.contains(WcFlags::GRH) {
        true => packet_type,
        false => 0,
    }
}

// Linux's rxe sets the GRH flag on all receives, also of connected QPs, and programs written for it compare all flags
// (async-rdma does).
fn wc_flags(done: &Completion, packet_type: u8) -> u32 {
    let is_roce = packet_type != 0;
    let received = match is_roce && done.opcode.is_receive() {
        true => done.wc_flags | WcFlags::GRH,
        false => done.wc_flags,
    };
    u32::from(received.bits())
}

fn wc(done: &Completion, packet_type: u8) -> IbvWc {
    IbvWc {
        wr_id: done.wr_id,
        status: done.status as c_int,
        opcode: c_int::from(done.opcode.code()),
        vendor_err: done.vendor_err,
        byte_len: done.byte_len,
        imm_data: imm_data(done),
        qp_num: done.qp_num.value(),
        src_qp: done.src_qp.value(),
        wc_flags: wc_flags(done, packet_type),
        pkey_index: done.pkey_index,
        slid: done.slid,
        sl: sl(done, packet_type),
        dlid_path_bits: done.dlid_path_bits,
    }
}

/// Implements the slot `poll_cq` of `ibv_context_ops`.
///
/// # Safety
/// The queue is live, and `count` entries from `target` are writable.
pub unsafe extern "C" fn poll(cq: *mut IbvCq, count: c_int, target: *mut IbvWc) -> c_int {
    // Programs ask for many completions and mostly get one, so few slots are initialised at a time.
    let mut slots: [Completion; 4] = Default::default();
    let wanted = usize::try_from(count).unwrap_or(0);
    // SAFETY: as the caller promises.
    let found = direct("ibv_poll_cq", || unsafe {
        let state = CqObject::own_unchecked(cq.cast());
        poll_through(state, &mut slots, target, wanted)
    });
    // Completions own buffers only in Rust programs, so nothing has to be dropped here.
    mem::forget(slots);
    found.unwrap_or_else(|errno| -errno.0)
}

#[inline]
unsafe fn poll_through(
    state: &State,
    slots: &mut [Completion],
    target: *mut IbvWc,
    wanted: usize,
) -> c_int {
    let mut found = 0;
    while found < wanted {
        let room = slots.len().min(wanted - found);
        let Ok(filled) = state.fetch(&mut slots[..room]) else {
            return if found == 0 { -1 } else { found as c_int };
        };
        for done in filled.iter() {
            // SAFETY: fewer than the program has room for.
            unsafe { target.add(found).write(wc(done, state.packet_type)) };
            found += 1;
        }
        if filled.len() < room {
            break;
        }
    }
    found as c_int
}

/// Implements the slot `req_notify_cq` of `ibv_context_ops`.
///
/// # Safety
/// The queue is live.
pub unsafe extern "C" fn req_notify(cq: *mut IbvCq, solicited_only: c_int) -> c_int {
    // SAFETY: as the caller promises.
    let state = unsafe { CqObject::own_unchecked(cq.cast()) };
    let what = match solicited_only {
        0 => Notify::Next,
        _ => Notify::Solicited,
    };
    let armed = direct("ibv_req_notify_cq", || {
        code(state.cq.arm(what).map(drop).map_err(Errno::from))
    });
    armed.unwrap_or_else(Errno::set)
}

/// Implements `ibv_get_cq_event`.
///
/// # Safety
/// `cq` and `cq_context` are writable, and the channel is not destroyed during the call.
pub unsafe extern "C-unwind" fn get_event(
    channel: *mut IbvCompChannel,
    cq: *mut *mut IbvCq,
    cq_context: *mut *mut c_void,
) -> c_int {
    // SAFETY: as the caller promises.
    minus_one(unsafe { ChannelObject::own(channel) }.and_then(|own| {
        loop {
            let at = own.events.next()?;
            let at: *mut IbvCq = ptr::with_exposed_provenance_mut(at);
            // SAFETY: a queue takes its events back when it is destroyed.
            if let Ok(state) = unsafe { self::own(at) } {
                *state.unacknowledged.lock() += 1;
                // SAFETY: live; and as the caller promises.
                unsafe {
                    cq.write(at);
                    cq_context.write((*at).cq_context);
                }
                return Ok(0);
            }
        }
    }))
}

/// Implements `ibv_ack_cq_events`.
///
/// # Safety
/// The queue is not destroyed without waiting for this.
pub unsafe extern "C-unwind" fn ack_events(cq: *mut IbvCq, count: u32) {
    // SAFETY: as the caller promises.
    let Ok(state) = (unsafe { own(cq) }) else {
        return;
    };
    let mut unacknowledged = state.unacknowledged.lock();
    *unacknowledged = unacknowledged.saturating_sub(count);
    if *unacknowledged == 0 {
        state.acknowledged.notify_all();
    }
}

fn extended() -> [Slot; 18] {
    let mut slots = [ptr::null(); 18];
    slots[cq_ex::START_POLL] = slot!(direct "ibv_start_poll" ("cq attr") Number => start_poll);
    slots[cq_ex::NEXT_POLL] = slot!(direct "ibv_next_poll" ("cq") Number => advance);
    slots[cq_ex::END_POLL] = slot!(direct "ibv_end_poll" ("cq") Nothing => end_poll);
    slots[cq_ex::READ_OPCODE] = slot!(direct "ibv_wc_read_opcode" ("cq") Plain => read_opcode);
    slots[cq_ex::READ_VENDOR_ERR] =
        slot!(direct "ibv_wc_read_vendor_err" ("cq") Plain => read_vendor_err);
    slots[cq_ex::READ_BYTE_LEN] =
        slot!(direct "ibv_wc_read_byte_len" ("cq") Plain => read_byte_len);
    slots[cq_ex::READ_IMM_DATA] =
        slot!(direct "ibv_wc_read_imm_data" ("cq") Plain => read_imm_data);
    slots[cq_ex::READ_QP_NUM] = slot!(direct "ibv_wc_read_qp_num" ("cq") Plain => read_qp_num);
    slots[cq_ex::READ_SRC_QP] = slot!(direct "ibv_wc_read_src_qp" ("cq") Plain => read_src_qp);
    slots[cq_ex::READ_WC_FLAGS] =
        slot!(direct "ibv_wc_read_wc_flags" ("cq") Plain => read_wc_flags);
    slots[cq_ex::READ_SLID] = slot!(direct "ibv_wc_read_slid" ("cq") Plain => read_zero);
    slots[cq_ex::READ_SL] = slot!(direct "ibv_wc_read_sl" ("cq") Plain => read_sl);
    slots[cq_ex::READ_DLID_PATH_BITS] =
        slot!(direct "ibv_wc_read_dlid_path_bits" ("cq") Plain => read_zero);
    slots
}

// Byte length, immediate data, both QP numbers, LID, service level, path bits.
const STANDARD_FLAGS: u64 = 0x7f;
const FLAGS: u32 = 1;
const PARENT_DOMAIN: u32 = 1 << 1;
// Single-threaded use; ignore overruns.
const KNOWN_FLAGS: u32 = 3;

/// Implements the slot `create_cq_ex` of `verbs_context`.
///
/// # Safety
/// `attr` is null or readable, and none of the objects in it is destroyed during the call.
pub unsafe extern "C-unwind" fn create_ex(
    context: *mut IbvContext,
    attr: *mut IbvCqInitAttrEx,
) -> *mut IbvCqEx {
    // SAFETY: as the caller promises.
    let made = unsafe { attr.as_ref() }
        .ok_or(Errno::INVAL)
        .and_then(|attr| {
            let unknown = attr.comp_mask & !(FLAGS | PARENT_DOMAIN) != 0;
            let flags = attr.comp_mask & FLAGS != 0 && attr.flags & !KNOWN_FLAGS != 0;
            if unknown || flags || attr.wc_flags & !STANDARD_FLAGS != 0 {
                return Err(Errno::OPNOTSUPP);
            }
            if attr.cqe == 0 {
                return Err(Errno::INVAL);
            }
            let options = CqOptions::new(attr.cqe).comp_vector(attr.comp_vector);
            // SAFETY: as the caller promises.
            unsafe { make(context, options, attr.cq_context, attr.channel, extended()) }
        });
    pointer(made)
}

// Polls the next completion and makes it the current one. Returns 0, or ENOENT if there is none.
unsafe extern "C" fn advance(cq: *mut IbvCqEx) -> c_int {
    // SAFETY: as the caller promises.
    let state = unsafe { CqObject::own_unchecked(cq) };
    let advanced = direct("ibv_next_poll", || {
        let mut slot = [Completion::default()];
        match state.fetch(&mut slot) {
            Err(errno) => errno.0,
            Ok([]) => libc::ENOENT,
            Ok(_) => {
                let [done] = slot;
                // SAFETY: between start and end of a poll the queue is the caller's alone.
                unsafe {
                    (*cq).status = done.status as c_int;
                    (*cq).wr_id = done.wr_id;
                    *state.current.get() = done;
                }
                0
            }
        }
    });
    advanced.unwrap_or_else(|errno| errno.0)
}

unsafe extern "C" fn start_poll(cq: *mut IbvCqEx, attr: *const u32) -> c_int {
    // SAFETY: as the manual page has it: null or an attribute.
    if unsafe { attr.as_ref() }.is_some_and(|&comp_mask| comp_mask != 0) {
        return libc::EINVAL;
    }
    // SAFETY: as the caller promises.
    unsafe { advance(cq) }
}

extern "C" fn end_poll(_: *mut IbvCqEx) {}

extern "C" fn read_zero(_: *mut IbvCqEx) -> u32 {
    0
}

unsafe extern "C" fn read_sl(cq: *mut IbvCqEx) -> u8 {
    // SAFETY: between start and end of a poll the queue is the caller's alone.
    let (state, done) = unsafe {
        let state = CqObject::own_unchecked(cq);
        (state, &*state.current.get())
    };
    sl(done, state.packet_type)
}

unsafe extern "C" fn read_wc_flags(cq: *mut IbvCqEx) -> u32 {
    // SAFETY: between start and end of a poll the queue is the caller's alone.
    let (state, done) = unsafe {
        let state = CqObject::own_unchecked(cq);
        (state, &*state.current.get())
    };
    wc_flags(done, state.packet_type)
}

macro_rules! readers {
    ($($name:ident: $ty:ty = $read:expr;)*) => {$(
        unsafe extern "C" fn $name(cq: *mut IbvCqEx) -> $ty {
            // SAFETY: between start and end of a poll the queue is the caller's alone.
            let done = unsafe { &*CqObject::own_unchecked(cq).current.get() };
            let read: fn(&Completion) -> $ty = $read;
            read(done)
        }
    )*};
}

readers! {
    read_opcode: c_int = |done| c_int::from(done.opcode.code());
    read_vendor_err: u32 = |done| done.vendor_err;
    read_byte_len: u32 = |done| done.byte_len;
    read_imm_data: u32 = imm_data;
    read_qp_num: u32 = |done| done.qp_num.value();
    read_src_qp: u32 = |done| done.src_qp.value();
}

const _: () = assert!(
    WcFlags::GRH.bits() == 1 && WcFlags::WITH_IMM.bits() == 2 && WcFlags::WITH_INV.bits() == 8
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_32_bits_of_a_vendor_error_are_reported() {
        let mut done = Completion::default();
        done.vendor_err = 0x8123_4567;
        assert_eq!(wc(&done, 0).vendor_err, 0x8123_4567);
    }
}
