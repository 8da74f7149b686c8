//! Queue pairs, for C programs.
#![allow(unsafe_code)]

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use block_loopback::BlockLoopback;
use verbs_api::objects::ObjectKind;
use verbs_api::qp::{QpAttrMask, QpAttributes, QpCap, QpState, QpType};
use verbs_api::{
    Access, DestroyError, Operations, Qp, QpOptions, Started, Transport, VerbError,
    capability::{Baseline, BaselineGaps, Mtu},
    ids::{Gid, Psn, Qpn},
};

use crate::abi::{
    IbvContext, IbvEce, IbvGid, IbvPd, IbvQp, IbvQpAttr, IbvQpEx, IbvQpInitAttr, Slot, qp_type,
};
use crate::builder::Builder;
use crate::device::ListedDevice;
use crate::errno::{Errno, code, minus_one, pointer};
use crate::object::Object;
use crate::sinks::Sinks;
use crate::{ah, context, cq, mr, pd, srq, trace};

/// A QP: its public structure, always that of an extended QP, and the library's part.
pub type QpObject = Object<IbvQpEx, State>;

/// The library's part of a QP.
pub struct State {
    /// The QP of `verbs-api` that this one stands for.
    pub qp: Qp,
    /// The actual sizes of the QP. Counts and lengths in work requests are compared with them before anything is read that
    /// they describe.
    pub cap: QpCap,
    /// Whether every request is signaled (`sq_sig_all`).
    pub sq_sig_all: bool,
    /// Whether the QP was created with send operations, so that the program may use the `ibv_wr_*` calls.
    pub is_extended: bool,
    /// Second keys for the destination buffers of RDMA reads; `None` if the device needs none.
    pub sinks: Option<Arc<Sinks>>,
    /// The requests that the program builds by `ibv_wr_*` calls. Only the thread between `ibv_wr_start` and
    /// `ibv_wr_complete` accesses them.
    pub builder: UnsafeCell<Builder>,
}

/// The library's part of a QP.
///
/// # Errors
/// The pointer is null, or the QP was destroyed.
///
/// # Safety
/// The QP is not destroyed while the result is used.
pub unsafe fn own<'a>(qp: *const IbvQp) -> Result<&'a State, Errno> {
    // SAFETY: as the caller promises.
    unsafe { QpObject::own(qp.cast()) }
}

/// The arguments for creating a QP.
pub struct CreateArguments<'a> {
    /// The attributes that all variants of the call have; the actual sizes are written back to them.
    pub init: &'a mut IbvQpInitAttr,
    /// The send operations that the program named (`send_ops_flags`); `None` if it named none.
    pub operations: Option<Operations>,
    /// Whether the QP does not receive the multicast datagrams that it sends.
    pub blocks_loopback: bool,
    /// The functions of an extended QP, which the `ibv_wr_*` calls use.
    pub slots: [Slot; 21],
}

/// Creates a QP.
///
/// # Errors
/// An object in the attributes does not exist, or the device does not support an attribute.
///
/// # Safety
/// None of the objects in the attributes is destroyed during the call.
pub unsafe fn make(pd: *mut IbvPd, arguments: CreateArguments<'_>) -> Result<*mut IbvQpEx, Errno> {
    // SAFETY: as the caller promises.
    let own = unsafe { pd::own(pd) }?;
    let init = arguments.init;
    // SAFETY: as the caller promises.
    let send_cq = unsafe { cq::own(init.send_cq) }?;
    let recv_cq = match init.qp_type {
        qp_type::XRC_SEND => send_cq,
        // SAFETY: as the caller promises.
        _ => unsafe { cq::own(init.recv_cq) }?,
    };
    // SAFETY: live, as `own` has seen.
    let public = unsafe { (*pd).context };
    // SAFETY: a domain is live, so its device is.
    let device = unsafe { context::own(public) }?;
    refuse_by_profile(device, init)?;
    let (kind, mut options) = match init.qp_type {
        qp_type::RC => (QpType::Rc, QpOptions::rc(&send_cq.cq)),
        qp_type::UC => (QpType::Uc, QpOptions::uc(&send_cq.cq)),
        qp_type::UD => (QpType::Ud, QpOptions::ud(&send_cq.cq)),
        qp_type::XRC_SEND => {
            let xrc: ::xrc::Xrc = device.context.extension().map_err(|_| Errno::OPNOTSUPP)?;
            (QpType::Rc, QpOptions::rc(&send_cq.cq).with(&xrc))
        }
        _ => return Err(Errno::OPNOTSUPP),
    };
    let mut cap = QpCap::from(&init.cap);
    // An atomic write carries its data in the work request.
    if arguments
        .operations
        .is_some_and(|all| all.contains(Operations::ATOMIC_WRITE))
    {
        cap.max_inline_data = cap.max_inline_data.max(size_of::<u64>() as u32);
    }
    options = options.recv_cq(&recv_cq.cq).cap(cap);
    if !init.srq.is_null() {
        // SAFETY: as the caller promises.
        options = options.srq(unsafe { srq::own(init.srq) }?);
    }
    if arguments.blocks_loopback {
        let block: BlockLoopback = device.context.extension().map_err(|_| Errno::OPNOTSUPP)?;
        options = options.with(&block);
    }
    let sq_sig_all = init.sq_sig_all != 0;
    if sq_sig_all {
        options = options.sq_sig_all();
    }
    let is_extended = arguments.operations.is_some();
    // If the program named no operations, it may use all that the device supports.
    let operations = arguments
        .operations
        .unwrap_or_else(|| everything(kind, &device.context));
    let qp = own.create_qp(options.operations(operations)).wait()?;
    if device.context.attributes().transport == Transport::Iwarp {
        make_idle(&qp)?;
    }
    init.cap = (&qp.cap()).into();
    let mut public = public_part(public, &qp, init.qp_type, init.qp_context);
    (public.qp.pd, public.qp.srq) = (pd, init.srq);
    (public.qp.send_cq, public.qp.recv_cq) = (init.send_cq, init.recv_cq);
    public.slots = arguments.slots;
    Ok(place(device, public, qp, sq_sig_all, is_extended))
}

/// Refuses a QP as the driver of a card does, before the device itself is asked.
fn refuse_by_profile(device: &context::State, init: &IbvQpInitAttr) -> Result<(), Errno> {
    let listed = device.shared.listed;
    let has = Baseline::of(device.context.attributes());
    let has_type = match init.qp_type {
        qp_type::RC => has.contains(Baseline::RC),
        qp_type::UC => has.contains(Baseline::UC),
        qp_type::UD => has.contains(Baseline::UD),
        _ => true,
    };
    let has_srq = !init.srq.is_null();
    let refusal = listed
        .configured()
        .qp_refusal(has_type, has_srq, init.cap.max_recv_wr);
    refuse(listed, "create_qp", refusal)
}

/// Fails a verb with the error number of a quirk, if there is one, and notes it in the trace.
fn refuse(listed: &ListedDevice, verb: &str, refusal: Option<(i32, String)>) -> Result<(), Errno> {
    let Some((errno, quirk)) = refusal else {
        return Ok(());
    };
    let what = format!("{verb} fails with error number {errno}");
    trace::quirk(&listed.name().to_string_lossy(), &quirk, &what);
    Err(Errno(errno))
}

/// Refuses a query as the driver of a card does that does not know all attributes.
fn refuse_query(device: &context::State, mask: c_int) -> Result<(), Errno> {
    let listed = device.shared.listed;
    let refusal = listed.configured().query_refusal(mask as u32);
    refuse(listed, "query_qp", refusal)
}

/// Moves a new iWARP QP to the state that verbs call INIT: iWARP has no earlier one. The QP stays in RESET if its CQ has
/// overrun.
fn make_idle(qp: &Qp) -> Result<(), Errno> {
    let idle = QpAttributes::new().qp_state(QpState::Init);
    let idle = idle.pkey_index(0).port_num(1);
    match qp.modify(idle.qp_access_flags(Access::empty())).wait() {
        Ok(()) | Err(VerbError::CqOverrun) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Creates the public structure of an XRC target QP, which has neither a protection domain nor queues.
///
/// # Errors
/// The device was closed.
///
/// # Safety
/// The device is not closed during the call.
pub unsafe fn target(
    context: *mut IbvContext,
    qp: Qp,
    qp_context: *mut c_void,
) -> Result<*mut IbvQpEx, Errno> {
    // SAFETY: as the caller promises.
    let device = unsafe { context::own(context) }?;
    let mut public = public_part(context, &qp, qp_type::XRC_RECV, qp_context);
    public.qp.state = qp.query()?.state as c_int;
    Ok(place(device, public, qp, false, false))
}

fn public_part(
    context: *mut IbvContext,
    qp: &Qp,
    qp_type: c_int,
    qp_context: *mut c_void,
) -> IbvQpEx {
    IbvQpEx {
        qp: IbvQp {
            context,
            qp_context,
            pd: ptr::null_mut(),
            send_cq: ptr::null_mut(),
            recv_cq: ptr::null_mut(),
            srq: ptr::null_mut(),
            handle: qp.id().index,
            qp_num: qp.qp_num().value(),
            state: QpState::Reset as c_int,
            qp_type,
            mutex: libc::PTHREAD_MUTEX_INITIALIZER,
            cond: libc::PTHREAD_COND_INITIALIZER,
            events_completed: 0,
        },
        comp_mask: 0,
        wr_id: 0,
        wr_flags: 0,
        slots: [ptr::null(); 21],
    }
}

fn place(
    device: &context::State,
    public: IbvQpEx,
    qp: Qp,
    sq_sig_all: bool,
    is_extended: bool,
) -> *mut IbvQpEx {
    let id = qp.id();
    device
        .shared
        .qps
        .lock()
        .insert(qp.qp_num().value(), qp.clone());
    let state = State {
        cap: qp.cap(),
        qp,
        sq_sig_all,
        is_extended,
        sinks: device.shared.sinks.clone(),
        builder: UnsafeCell::default(),
    };
    let at = QpObject::create(public, state);
    device.place(id, at);
    at
}

fn everything(kind: QpType, context: &verbs_api::Context) -> Operations {
    let (features, gaps) = (context.features(), context.attributes().gaps);
    let of_service = kind.operations().iter();
    of_service
        .filter(|operation| {
            operation.missing_features(features).is_empty()
                && !CLOSED
                    .iter()
                    .any(|(gap, closed)| gaps.contains(*gap) && closed.contains(*operation))
        })
        .collect()
}

// The send operations that a device with one of these gaps does not support.
const CLOSED: [(BaselineGaps, Operations); 3] = [
    (
        BaselineGaps::NO_SEND_WITH_IMMEDIATE,
        Operations::SEND_WITH_IMM,
    ),
    (
        BaselineGaps::NO_WRITE_WITH_IMMEDIATE,
        Operations::WRITE_WITH_IMM,
    ),
    (
        BaselineGaps::NO_ATOMICS,
        Operations::ATOMIC_CMP_AND_SWP.union(Operations::ATOMIC_FETCH_AND_ADD),
    ),
];

/// Implements `ibv_create_qp`.
///
/// # Safety
/// `init` is null or writable, and none of the objects in it is destroyed during the call.
pub unsafe extern "C-unwind" fn create(pd: *mut IbvPd, init: *mut IbvQpInitAttr) -> *mut IbvQp {
    // SAFETY: as the caller promises.
    let made = unsafe { init.as_mut() }
        .ok_or(Errno::INVAL)
        .and_then(|init| {
            let arguments = CreateArguments {
                init,
                operations: None,
                blocks_loopback: false,
                slots: [ptr::null(); 21],
            };
            // SAFETY: as the caller promises.
            unsafe { make(pd, arguments) }
        });
    pointer(made).cast()
}

/// Implements `ibv_destroy_qp`. Waits until the program has acknowledged all asynchronous events of the QP that it has
/// fetched.
///
/// # Safety
/// The program does not use the QP after this call.
pub unsafe extern "C-unwind" fn destroy(qp: *mut IbvQp) -> c_int {
    let end = |state: &State| {
        // SAFETY: live, as was seen; a queue pair is live, so its device is.
        let device = unsafe { context::own((*qp).context) }?;
        device.end(state.qp.id(), destruction(&state.qp))?;
        device.shared.qps.lock().remove(&state.qp.qp_num().value());
        Ok(())
    };
    // SAFETY: as the caller promises.
    code(unsafe { QpObject::end(qp.cast(), end) })
}

// Retries while the connection manager, which the program does not see, still runs a control verb on the QP.
fn destruction(qp: &Qp) -> Started<(), DestroyError<Qp>> {
    let began = Instant::now();
    loop {
        let destruction = qp.clone().destroy();
        if !destruction.is_done() {
            return destruction;
        }
        match destruction.wait() {
            Err(DestroyError::Busy { ref held_by, .. })
                if held_by.iter().all(|by| by.kind == ObjectKind::Request)
                    && began.elapsed() < PATIENCE =>
            {
                thread::sleep(PAUSE);
            }
            result => return Started::ready(result),
        }
    }
}

const PATIENCE: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_micros(50);

fn state_of(code: c_int) -> Result<QpState, Errno> {
    let code = u8::try_from(code).map_err(|_| Errno::INVAL)?;
    QpState::from_code(code).ok_or(Errno::INVAL)
}

/// The attributes of a call that the device uses. Linux drops those that only the other side of an XRC connection has, and
/// RoCE devices ignore the path migration state, so both are removed here.
fn honoured(kind: c_int, given: u32) -> Result<QpAttrMask, Errno> {
    const STANDARD: u32 = (1 << 21) - 1;
    const PATH_MIG_STATE: u32 = 1 << 18;
    if given & !STANDARD != 0 {
        return Err(Errno::OPNOTSUPP);
    }
    let ignored = match kind {
        qp_type::UD => 0,
        _ => PATH_MIG_STATE,
    };
    let given = QpAttrMask::from_bits(given & !ignored).ok_or(Errno::INVAL)?;
    let of_other_half = match kind {
        qp_type::XRC_SEND => QpAttrMask::MAX_DEST_RD_ATOMIC | QpAttrMask::MIN_RNR_TIMER,
        qp_type::XRC_RECV => {
            QpAttrMask::MAX_QP_RD_ATOMIC | QpAttrMask::RETRY_CNT | QpAttrMask::RNR_RETRY
        }
        _ => QpAttrMask::empty(),
    };
    Ok(given - of_other_half)
}

fn attributes(
    context: &verbs_api::Context,
    attr: &IbvQpAttr,
    given: QpAttrMask,
) -> Result<QpAttributes, Errno> {
    let has = |attribute| given.contains(attribute);
    let mut wanted = QpAttributes::new();
    if has(QpAttrMask::STATE) {
        wanted.qp_state = Some(state_of(attr.qp_state)?);
    }
    if has(QpAttrMask::CUR_STATE) {
        wanted.cur_qp_state = Some(state_of(attr.cur_qp_state)?);
    }
    if has(QpAttrMask::ACCESS_FLAGS) {
        // For an MR it is an error to grant access without the access that it requires, but not for a QP.
        wanted.qp_access_flags = Some(mr::rights(attr.qp_access_flags)?);
    }
    if has(QpAttrMask::AV) {
        wanted.ah_attr = Some(ah::path(context, &attr.ah_attr)?);
    }
    if has(QpAttrMask::PATH_MTU) {
        let code = u8::try_from(attr.path_mtu).map_err(|_| Errno::INVAL)?;
        wanted.path_mtu = Some(Mtu::from_code(code).ok_or(Errno::INVAL)?);
    }
    wanted.en_sqd_async_notify =
        has(QpAttrMask::EN_SQD_ASYNC_NOTIFY).then_some(attr.en_sqd_async_notify != 0);
    wanted.pkey_index = has(QpAttrMask::PKEY_INDEX).then_some(attr.pkey_index);
    wanted.port_num = has(QpAttrMask::PORT).then_some(attr.port_num);
    wanted.qkey = has(QpAttrMask::QKEY).then_some(attr.qkey);
    wanted.timeout = has(QpAttrMask::TIMEOUT).then_some(attr.timeout);
    wanted.retry_cnt = has(QpAttrMask::RETRY_CNT).then_some(attr.retry_cnt);
    wanted.rnr_retry = has(QpAttrMask::RNR_RETRY).then_some(attr.rnr_retry);
    wanted.rq_psn = has(QpAttrMask::RQ_PSN).then_some(Psn::new(attr.rq_psn));
    wanted.max_rd_atomic = has(QpAttrMask::MAX_QP_RD_ATOMIC).then_some(attr.max_rd_atomic);
    // The field has five bits in a packet; kernel devices ignore the others, too.
    wanted.min_rnr_timer = has(QpAttrMask::MIN_RNR_TIMER).then_some(attr.min_rnr_timer & 0x1f);
    wanted.sq_psn = has(QpAttrMask::SQ_PSN).then_some(Psn::new(attr.sq_psn));
    wanted.max_dest_rd_atomic =
        has(QpAttrMask::MAX_DEST_RD_ATOMIC).then_some(attr.max_dest_rd_atomic);
    wanted.dest_qp_num = has(QpAttrMask::DEST_QPN).then_some(Qpn::new(attr.dest_qp_num));
    Ok(wanted)
}

/// Implements `ibv_modify_qp`.
///
/// # Safety
/// `attr` is null or readable, and the queue pair is not destroyed during the call.
pub unsafe extern "C-unwind" fn modify(
    qp: *mut IbvQp,
    attr: *mut IbvQpAttr,
    given: c_int,
) -> c_int {
    // SAFETY: as the caller promises.
    code(unsafe { own(qp) }.and_then(|state| {
        // SAFETY: as the caller promises.
        let attr = unsafe { attr.as_ref() }.ok_or(Errno::INVAL)?;
        // SAFETY: live, as was seen; a queue pair is live, so its device is.
        let device = unsafe { context::own((*qp).context) }?;
        // SAFETY: live, as was seen.
        let given = honoured(unsafe { (*qp).qp_type }, given as u32)?;
        let wanted = attributes(&device.context, attr, given)?;
        let new_state = wanted.qp_state;
        state.qp.modify(wanted).wait()?;
        if new_state == Some(QpState::Reset) {
            // SAFETY: live, as was seen; queues outlive a queue pair that uses them.
            let queues = unsafe { [cq::own((*qp).send_cq), cq::own((*qp).recv_cq)] };
            for queue in queues.into_iter().flatten() {
                queue.forget(state.qp.qp_num());
            }
        }
        if let Some(new_state) = new_state {
            // SAFETY: live, as was seen.
            unsafe { (*qp).state = new_state as c_int };
        }
        Ok(())
    }))
}

/// Implements `ibv_query_qp`.
///
/// # Safety
/// `attr` and `init` are null or writable, and the queue pair is not destroyed during the call.
pub unsafe extern "C-unwind" fn query(
    qp: *mut IbvQp,
    attr: *mut IbvQpAttr,
    mask: c_int,
    init: *mut IbvQpInitAttr,
) -> c_int {
    // SAFETY: as the caller promises.
    code(unsafe { own(qp) }.and_then(|state| {
        // SAFETY: live, as was seen; a queue pair is live, so its device is.
        refuse_query(unsafe { context::own((*qp).context) }?, mask)?;
        // SAFETY: as the caller promises.
        let (Some(attr), Some(init)) = (unsafe { attr.as_mut() }, unsafe { init.as_mut() }) else {
            return Err(Errno::INVAL);
        };
        let found = state.qp.query()?;
        *attr = IbvQpAttr {
            qp_state: found.state as c_int,
            cur_qp_state: found.state as c_int,
            cap: (&found.cap).into(),
            sq_draining: found.sq_draining.into(),
            ..(&found.attributes).into()
        };
        // SAFETY: live, as was seen.
        let public = unsafe { &mut *qp };
        public.state = found.state as c_int;
        *init = IbvQpInitAttr {
            qp_context: public.qp_context,
            send_cq: public.send_cq,
            recv_cq: public.recv_cq,
            srq: public.srq,
            cap: (&found.cap).into(),
            qp_type: public.qp_type,
            sq_sig_all: c_int::from(state.sq_sig_all),
        };
        Ok(())
    }))
}

unsafe fn group(qp: *mut IbvQp, gid: *const IbvGid) -> Result<(Qp, Gid), Errno> {
    // SAFETY: as the caller promises.
    let (state, gid) = unsafe { (own(qp)?, gid.as_ref()) };
    Ok((state.qp.clone(), Gid(gid.ok_or(Errno::INVAL)?.raw)))
}

/// Implements `ibv_attach_mcast`.
///
/// # Safety
/// `gid` is null or readable, and the queue pair is not destroyed during the call.
pub unsafe extern "C-unwind" fn attach_mcast(
    qp: *mut IbvQp,
    gid: *const IbvGid,
    _lid: u16,
) -> c_int {
    // SAFETY: as the caller promises.
    code(unsafe { group(qp, gid) }.and_then(|(qp, group)| {
        // Linux's core remembers the groups of a queue pair, and does not ask the driver again.
        if qp.is_attached(group) {
            return Ok(());
        }
        Ok(qp.attach_multicast(group).wait()?)
    }))
}

/// Implements `ibv_detach_mcast`.
///
/// # Safety
/// As for [`attach_mcast`].
pub unsafe extern "C-unwind" fn detach_mcast(
    qp: *mut IbvQp,
    gid: *const IbvGid,
    _lid: u16,
) -> c_int {
    // SAFETY: as the caller promises.
    code(unsafe { group(qp, gid) }.and_then(|(qp, group)| Ok(qp.detach_multicast(group).wait()?)))
}

/// Implements `ibv_qp_to_qp_ex`: returns null if the QP was created without send operations.
///
/// # Safety
/// The QP is not destroyed during the call.
pub unsafe extern "C-unwind" fn to_qp_ex(qp: *mut IbvQp) -> *mut IbvQpEx {
    // SAFETY: as the caller promises.
    match unsafe { own(qp) } {
        Ok(state) if state.is_extended => qp.cast(),
        _ => ptr::null_mut(),
    }
}

/// Implements `ibv_query_ece`: reports that no vendor options (enhanced connection establishment) are supported.
///
/// # Safety
/// `ece` is null or writable, and the QP is not destroyed during the call.
pub unsafe extern "C-unwind" fn query_ece(qp: *mut IbvQp, ece: *mut IbvEce) -> c_int {
    // SAFETY: as the caller promises.
    code(unsafe { own(qp) }.and_then(|_| {
        // SAFETY: as the caller promises.
        let ece = unsafe { ece.as_mut() }.ok_or(Errno::INVAL)?;
        (ece.vendor_id, ece.options) = (0, 0);
        Ok(())
    }))
}

/// Implements `ibv_set_ece`: accepts only an empty set of vendor options.
///
/// # Safety
/// As for [`query_ece`].
pub unsafe extern "C-unwind" fn set_ece(qp: *mut IbvQp, ece: *mut IbvEce) -> c_int {
    // SAFETY: as the caller promises.
    let (known, ece) = unsafe { (own(qp), ece.as_ref()) };
    code(match (known, ece) {
        (Err(errno), _) => Err(errno),
        (Ok(_), Some(IbvEce { vendor_id: 0, .. })) => Ok(()),
        (Ok(_), Some(_)) => Err(Errno::OPNOTSUPP),
        (Ok(_), None) => Err(Errno::INVAL),
    })
}

/// Implements `ibv_query_qp_data_in_order`: returns 0, because the library does not guarantee the order in which data
/// become visible.
pub extern "C-unwind" fn query_data_in_order(_: *mut IbvQp, _op: c_int, _flags: u32) -> c_int {
    minus_one(Ok(0))
}

#[cfg(test)]
mod tests {
    use polyverbs::emulated::{self, EmulatedOptions};
    use verbs_api::Requirements;

    use super::*;

    #[test]
    fn attributes_are_dropped_as_by_linux() {
        let (state, migration, beyond) = (QpAttrMask::STATE, 1 << 18, 1 << 21);
        let initiator =
            QpAttrMask::MAX_QP_RD_ATOMIC | QpAttrMask::RETRY_CNT | QpAttrMask::RNR_RETRY;
        let target = QpAttrMask::MAX_DEST_RD_ATOMIC | QpAttrMask::MIN_RNR_TIMER;
        let all = state | initiator | target;
        for (kind, counted) in [
            (qp_type::RC, all),
            (qp_type::XRC_SEND, state | initiator),
            (qp_type::XRC_RECV, state | target),
        ] {
            assert_eq!(honoured(kind, all.bits() | migration), Ok(counted));
            let refused = honoured(kind, all.bits() | beyond);
            assert_eq!(refused, Err(Errno::OPNOTSUPP));
        }
        let of_datagrams = honoured(qp_type::UD, state.bits() | migration);
        assert_eq!(of_datagrams, Err(Errno::INVAL));
    }

    #[test]
    fn destroying_a_queue_pair_waits_for_verbs_of_its_connection() {
        let options = EmulatedOptions {
            command_latency: Duration::from_millis(500),
            ..EmulatedOptions::default()
        };
        let device = emulated::device("ib0", &options).unwrap();
        let context = device.open(&Requirements::new()).unwrap();
        let cq = context.create_cq(16).wait().unwrap();
        let pd = context.alloc_pd().wait().unwrap();
        let qp = pd.create_qp(QpOptions::rc(&cq)).wait().unwrap();
        let changing = qp.modify(QpAttributes::new().qp_state(QpState::Reset));
        let refused = qp.clone().destroy().wait();
        assert!(matches!(refused, Err(DestroyError::Busy { .. })));
        destruction(&qp).wait().unwrap();
        changing.wait().unwrap();
        cq.destroy().wait().unwrap();
    }
}
