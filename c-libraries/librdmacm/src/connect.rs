//! Connecting, accepting, rejecting and disconnecting of identifiers.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::net::SocketAddr;
use std::sync::Arc;

use polyverbs_connection::ib::private;
use polyverbs_connection::{
    Accepted, ConnectError, Connection, ConnectionOptions, DatagramService, ReadLimits, flush,
};
use polyverbs_libibverbs::abi::IbvQpAttr;
use polyverbs_libibverbs::context;
use polyverbs_libibverbs::errno::Errno;
use polyverbs_libibverbs::qp;
use verbs_api::qp::{AddressVector, QpAttributes, QpState};
use verbs_api::{Access, PathOptions, Qp, Started, Transport, VerbError};

use crate::abi::{RdmaCmId, RdmaConnParam, event};
use crate::device::{CmDevice, Service};
use crate::errno::{self, done};
use crate::id::{self, Own};
use crate::qp::QKEY;
use crate::state::{Data, Inner, Part, PeerParams, State};
use crate::{bind, events};

// The parameters of a connection that the program passes, converted from `rdma_conn_param`.
struct ConnParams {
    private_data: Vec<u8>,
    reads: ReadLimits,
    retry_count: u8,
    rnr_retry_count: u8,
    flow_control: bool,
    qp_num: u32,
}

impl ConnParams {
    /// Converts the parameters of the program. Without any, defaults apply.
    ///
    /// # Safety
    /// `param` is null or readable, and so are its private data.
    unsafe fn read(
        param: *const RdmaConnParam,
        public: &RdmaCmId,
        device: &CmDevice,
    ) -> Result<Self, Errno> {
        const AS_MANY_AS_THERE_ARE: u8 = u8::MAX;
        // SAFETY: as the caller promises.
        let Some(param) = (unsafe { param.as_ref() }) else {
            if public.qp.is_null() && id::service(public) == Service::Connections {
                return Err(Errno::INVAL);
            }
            return Ok(Self {
                private_data: Vec::new(),
                reads: ReadLimits {
                    inbound: AS_MANY_AS_THERE_ARE,
                    outbound: AS_MANY_AS_THERE_ARE,
                },
                retry_count: 7,
                rnr_retry_count: FOREVER,
                flow_control: false,
                qp_num: 0,
            });
        };
        let limits = device.context.limits();
        let is_too_much =
            |wanted: u8, most: u32| wanted != AS_MANY_AS_THERE_ARE && u32::from(wanted) > most;
        if id::service(public) == Service::Connections
            && (is_too_much(param.responder_resources, limits.max_qp_rd_atom)
                || is_too_much(param.initiator_depth, limits.max_qp_init_rd_atom))
        {
            return Err(Errno::INVAL);
        }
        Ok(Self {
            // SAFETY: as the caller promises.
            private_data: unsafe { said(param.private_data, param.private_data_len) },
            reads: ReadLimits {
                inbound: param.responder_resources,
                outbound: param.initiator_depth,
            },
            retry_count: param.retry_count.min(7),
            rnr_retry_count: param.rnr_retry_count.min(7),
            // The messages have one bit of it.
            flow_control: param.flow_control & 1 != 0,
            qp_num: param.qp_num,
        })
    }

    fn options(&self, state: &State, named: &ConnectingQp, device: &CmDevice) -> ConnectionOptions {
        let mut path_options = path_options(state)
            .retry_cnt(self.retry_count)
            .rnr_retry(self.rnr_retry_count);
        if self.rnr_retry_count != FOREVER {
            path_options = path_options.min_rnr_timer(LONGEST_RNR_TIMER);
        }
        // The access that the program has granted when it modified its own QP to INIT.
        if named.is_programs
            && let Ok(now) = named.qp.query()
        {
            path_options = path_options.access(now.attributes.qp_access_flags.unwrap_or_default());
        }
        let options = ConnectionOptions::new()
            .path(path_options)
            .as_peer_asks()
            .reads(self.reads.inbound, self.reads.outbound)
            .flow_control(self.flow_control)
            .private_data(&self.private_data);
        match named.is_programs && device.transport() == Transport::InfiniBand {
            true => options.brought_up_by_program(state.psn),
            false => options,
        }
    }
}

// The ACK timeout of connections, 0.27 s in the encoding of verbs: a busy peer is not taken for a dead one.
const ACK_TIMEOUT: u8 = 16;

// As an RNR retry count, without limit.
const FOREVER: u8 = 7;

// 655 ms, as Linux's connection manager sets it: a peer that retries a few times waits as long as there. One that retries
// without limit is spared the wait.
const LONGEST_RNR_TIMER: u8 = 0;

// The access that Linux's connection manager grants to peers without asking the program.
const RIGHTS: Access = Access::REMOTE_WRITE
    .union(Access::REMOTE_READ)
    .union(Access::REMOTE_ATOMIC);

fn path_options(state: &State) -> PathOptions {
    PathOptions::new()
        .access(RIGHTS)
        .traffic_class(state.options.tos)
        .timeout(state.options.ack_timeout.unwrap_or(ACK_TIMEOUT))
}

unsafe fn said(private_data: *const c_void, length: u8) -> Vec<u8> {
    if private_data.is_null() {
        return Vec::new();
    }
    // SAFETY: so many bytes are readable, as the caller promises.
    unsafe { std::slice::from_raw_parts(private_data.cast(), length.into()) }.to_vec()
}

/// The QP to connect: that of the identifier, or one that the program names by its number.
struct ConnectingQp {
    qp: Qp,
    /// Whether the program names the QP by its number and modifies it itself.
    is_programs: bool,
}

impl ConnectingQp {
    unsafe fn of(public: &RdmaCmId, qp_num: u32) -> Result<Self, Errno> {
        if !public.qp.is_null() {
            return Ok(Self {
                // SAFETY: as the caller promises.
                qp: unsafe { qp::own(public.qp) }?.qp.clone(),
                is_programs: false,
            });
        }
        // SAFETY: the device is never closed.
        let state = unsafe { context::own(public.verbs) }?;
        Ok(Self {
            qp: state.shared.queue_pair(qp_num).ok_or(Errno::INVAL)?,
            is_programs: true,
        })
    }
}

/// Implements `rdma_connect`.
///
/// # Safety
/// `param` is null or readable, and so are its private data; the identifier is not destroyed during the call.
pub unsafe extern "C-unwind" fn connect(id: *mut RdmaCmId, param: *mut RdmaConnParam) -> c_int {
    // SAFETY: as the caller promises.
    done(unsafe { id::own(id) }.and_then(|(public, own)| {
        let state = own.inner.lock();
        let (Part::RouteResolved, Some(device), Some(to)) =
            (&state.part, state.device.clone(), state.remote)
        else {
            return Err(Errno::INVAL);
        };
        drop(state);
        // SAFETY: as the caller promises.
        let wanted = unsafe { ConnParams::read(param, public, &device) }?;
        if id::service(public) == Service::Datagrams {
            own.inner.lock().part = Part::Busy;
            let asked = id::connector(public, &device).resolve(to, &wanted.private_data);
            report_answer(&own.inner, &device, asked)?;
        } else {
            // SAFETY: as the caller promises.
            let named = unsafe { ConnectingQp::of(public, wanted.qp_num) }?;
            let mut state = own.inner.lock();
            let options = wanted.options(&state, &named, &device);
            state.part = Part::Busy;
            state.qp = Some((named.qp.open_device(), named.qp.id()));
            drop(state);
            begin(public, own, &device, &named, to, &options)?;
        }
        // SAFETY: as the caller promises.
        unsafe { events::complete(public, own) }
    }))
}

// The error number if the call fails at once because of an invalid argument: nothing has been sent. `None` for errors that
// an event reports.
fn refused_at_once(inner: &Arc<Inner>, error: &ConnectError) -> Option<Errno> {
    let is_argument = matches!(
        error,
        ConnectError::AddressInUse { .. }
            | ConnectError::Connected
            | ConnectError::PrivateData { .. }
            | ConnectError::Verb(_)
    );
    is_argument.then(|| {
        inner.lock().part = Part::RouteResolved;
        errno::of(error)
    })
}

fn begin(
    public: &mut RdmaCmId,
    own: &Own,
    device: &Arc<CmDevice>,
    named: &ConnectingQp,
    to: SocketAddr,
    options: &ConnectionOptions,
) -> Result<(), Errno> {
    let (transport, is_programs) = (device.transport(), named.is_programs);
    let connector = id::connector(public, device);
    let asked = bind::at_free_port(public, own, |port| {
        let options = options.clone().source_port(port);
        let (asked, withdrawal) = connector.begin_request(&named.qp, to, options)?;
        let asked = match asked.is_done() {
            true => Started::ready(Ok(asked.wait()?)),
            false => asked,
        };
        Ok((asked, withdrawal))
    });
    let asked = match asked {
        Ok((asked, withdrawal)) => {
            own.inner.lock().part = Part::Asking(withdrawal);
            asked
        }
        Err(error) => {
            if let Some(errno) = refused_at_once(&own.inner, &error) {
                return Err(errno);
            }
            Started::ready(Err(error))
        }
    };
    let weak = Arc::downgrade(&own.inner);
    asked.on_done(move |asked| {
        let Some(this) = weak.upgrade() else { return };
        match asked {
            Ok(accepted) => answered(&this, accepted, is_programs, transport),
            // The program has withdrawn the request.
            Err(ConnectError::Verb(VerbError::Canceled)) => {}
            Err(error) => failed(&this, &error, transport),
        }
    });
    Ok(())
}

fn answered(this: &Arc<Inner>, accepted: Accepted, is_programs: bool, transport: Transport) {
    let data = Data::Connection {
        private_data: accepted.private_data().to_vec(),
        peer: (&accepted).into(),
    };
    // On iWARP the device has modified the QP, so that the program need not.
    if is_programs && transport == Transport::InfiniBand {
        let mut state = this.lock();
        state.steps = accepted.steps().ok();
        state.part = Part::Answered(accepted);
        drop(state);
        return this.post(event::CONNECT_RESPONSE, 0, data);
    }
    let weak = Arc::downgrade(this);
    accepted.complete().on_done(move |done| {
        if let Some(this) = weak.upgrade() {
            established(&this, done, data, transport);
        }
    });
}

fn established(
    this: &Arc<Inner>,
    done: Result<Connection, ConnectError>,
    data: Data,
    transport: Transport,
) {
    match done {
        Ok(connection) => {
            joined(this, connection, || {
                this.post(event::ESTABLISHED, 0, data);
            });
        }
        Err(ConnectError::Aborted | ConnectError::TimedOut) if transport == Transport::Iwarp => {
            came_and_went(this, data);
        }
        // The program has destroyed the identifier.
        Err(ConnectError::Verb(VerbError::Canceled)) => {}
        Err(error) => failed(this, &error, transport),
    }
}

// Handles an iWARP connection that ended before it was fully established: the peer has closed it after its reply, or before
// its first message. Linux takes a connection for established once it has the reply, and some servers exit on any other
// event.
fn came_and_went(this: &Arc<Inner>, data: Data) {
    this.lock().part = Part::Over;
    flush_stream(this);
    this.post(event::ESTABLISHED, 0, data);
    this.end(0);
}

// Flushes the QP of an iWARP connection that has ended, as Linux's devices do. Programs that wait only for a completion
// would otherwise wait forever.
fn flush_stream(this: &Arc<Inner>) {
    let state = this.lock();
    let named = state.qp.clone();
    drop(state);
    if let Some((context, qp)) = named
        && let Some(qp) = context.find_qp(qp)
    {
        flush(&qp).on_done(|_| {});
    }
}

// Handles an established connection: calls the function that reports this, and only then lets its end be reported.
fn joined(this: &Arc<Inner>, connection: Connection, tell: impl FnOnce()) {
    let (ended, timewait_exit) = (connection.disconnected(), connection.timewait_exit());
    let mut state = this.lock();
    state.part = Part::Connected(Arc::new(connection));
    let device = state.device.clone();
    drop(state);
    tell();
    let Some(device) = device else { return };
    let transport = device.transport();
    let weak = Arc::downgrade(this);
    ended.on_done(move |ended| {
        let Some(this) = weak.upgrade() else { return };
        match (transport, ended) {
            (Transport::Iwarp, _) => {
                flush_stream(&this);
                this.end(0);
            }
            // The peer has not confirmed the end.
            (_, Err(ConnectError::TimedOut)) => this.end(-libc::ETIMEDOUT),
            _ => this.end(0),
        }
    });
    if transport == Transport::InfiniBand {
        let weak = Arc::downgrade(this);
        timewait_exit.on_done(move |outcome| {
            if let (Ok(()), Some(this)) = (outcome, weak.upgrade()) {
                this.post(event::TIMEWAIT_EXIT, 0, Data::None);
            }
        });
    }
}

fn failed(this: &Arc<Inner>, error: &ConnectError, transport: Transport) {
    let (event, status, private_data) = match error {
        ConnectError::Refused {
            reason,
            private_data,
        } => {
            let status = match transport {
                Transport::Iwarp => -libc::ECONNREFUSED,
                Transport::InfiniBand => reason.reject_reason().into(),
            };
            (event::REJECTED, status, private_data.clone())
        }
        // The stream has ended before the reply.
        ConnectError::Aborted if transport == Transport::Iwarp => {
            (event::REJECTED, -libc::ECONNRESET, Vec::new())
        }
        ConnectError::TimedOut | ConnectError::Unreachable(_) | ConnectError::Unsent(_) => {
            (event::UNREACHABLE, -errno::of(error).0, Vec::new())
        }
        _ => (event::CONNECT_ERROR, -errno::of(error).0, Vec::new()),
    };
    let data = Data::Connection {
        private_data,
        peer: PeerParams::NONE,
    };
    this.lock().part = Part::Over;
    this.post(event, status, data);
}

// Reports the answer to a datagram service request (SIDR) for the number and Q_Key of the peer's UD QP.
fn report_answer(
    inner: &Arc<Inner>,
    device: &Arc<CmDevice>,
    asked: Started<DatagramService, ConnectError>,
) -> Result<(), Errno> {
    if asked.is_done() {
        let answer = asked.wait();
        if let Some(errno) = answer
            .as_ref()
            .err()
            .and_then(|error| refused_at_once(inner, error))
        {
            return Err(errno);
        }
        told(inner, device, answer);
        return Ok(());
    }
    let (weak, device) = (Arc::downgrade(inner), Arc::clone(device));
    asked.on_done(move |answer| {
        if let Some(this) = weak.upgrade() {
            told(&this, &device, answer);
        }
    });
    Ok(())
}

fn told(this: &Arc<Inner>, device: &CmDevice, answer: Result<DatagramService, ConnectError>) {
    match answer {
        Ok(service) => {
            this.lock().part = Part::Datagrams;
            let data = Data::Datagrams {
                ah_attr: device.path(&AddressVector::new(service.address, service.gid, 1)),
                qp_num: service.qp_num.value(),
                qkey: service.qkey,
                private_data: service.private_data,
            };
            this.post(event::ESTABLISHED, 0, data);
        }
        Err(error) => {
            this.lock().part = Part::Over;
            let (status, private_data) = match error {
                ConnectError::Refused {
                    reason,
                    private_data,
                } => (reason.sidr_status().into(), private_data),
                error => (-errno::of(&error).0, Vec::new()),
            };
            let data = Data::Datagrams {
                private_data,
                ah_attr: events::no_path(),
                qp_num: 0,
                qkey: 0,
            };
            this.post(event::UNREACHABLE, status, data);
        }
    }
}

/// Implements `rdma_establish`, for a program that modifies its QP itself.
///
/// # Safety
/// The identifier is not destroyed during the call.
pub unsafe extern "C-unwind" fn establish(id: *mut RdmaCmId) -> c_int {
    // SAFETY: as the caller promises.
    done(unsafe { id::own(id) }.and_then(|(_, own)| {
        let inner = &own.inner;
        let mut state = inner.lock();
        let accepted = match std::mem::replace(&mut state.part, Part::Busy) {
            Part::Answered(accepted) => accepted,
            other => {
                state.part = other;
                return Err(Errno::INVAL);
            }
        };
        drop(state);
        match accepted.complete().wait() {
            Ok(connection) => {
                joined(inner, connection, || {});
                Ok(())
            }
            Err(error) => {
                inner.lock().part = Part::Over;
                Err(errno::of(&error))
            }
        }
    }))
}

/// Implements `rdma_accept`.
///
/// # Safety
/// `param` is null or readable, and so are its private data; the identifier is not destroyed during the call.
pub unsafe extern "C-unwind" fn accept(id: *mut RdmaCmId, param: *mut RdmaConnParam) -> c_int {
    // SAFETY: as the caller promises.
    done(unsafe { id::own(id) }.and_then(|(public, own)| {
        let inner = &own.inner;
        let device = inner.lock().device.clone().ok_or(Errno::INVAL)?;
        // SAFETY: as the caller promises.
        let wanted = unsafe { ConnParams::read(param, public, &device) }?;
        if !matches!(inner.lock().part, Part::Asked(_) | Part::Questioned(_)) {
            return Err(Errno::INVAL);
        }
        // SAFETY: as the caller promises.
        let named = unsafe { ConnectingQp::of(public, wanted.qp_num) }?;
        let mut state = inner.lock();
        match std::mem::replace(&mut state.part, Part::Busy) {
            Part::Questioned(question) => {
                state.part = Part::Datagrams;
                drop(state);
                let answered = question.answer(&named.qp, &wanted.private_data);
                answered.map_err(|error| {
                    inner.lock().part = Part::Over;
                    errno::of(&error)
                })
            }
            Part::Asked(incoming) => {
                let options = wanted.options(&state, &named, &device);
                state.qp = Some((named.qp.open_device(), named.qp.id()));
                drop(state);
                let data = Data::Connection {
                    private_data: Vec::new(),
                    peer: (&incoming).into(),
                };
                let weak = Arc::downgrade(inner);
                let transport = device.transport();
                let then = move |done| {
                    if let Some(this) = weak.upgrade() {
                        established(&this, done, data, transport);
                    }
                };
                match incoming.accept_then(&named.qp, options, then) {
                    Ok(withdrawal) => {
                        let mut state = inner.lock();
                        // The peer may have completed the connection already.
                        if matches!(state.part, Part::Busy) {
                            state.part = Part::Accepting(withdrawal);
                        }
                    }
                    Err(error) => {
                        inner.lock().part = Part::Over;
                        return Err(errno::of(&error));
                    }
                }
                // SAFETY: as the caller promises.
                unsafe { events::complete(public, own) }
            }
            other => {
                state.part = other;
                Err(Errno::INVAL)
            }
        }
    }))
}

/// Implements `rdma_reject`.
///
/// # Safety
/// `length` bytes of private data are readable, and the identifier is not destroyed during the call.
pub unsafe extern "C-unwind" fn reject(
    id: *mut RdmaCmId,
    private_data: *const c_void,
    length: u8,
) -> c_int {
    // SAFETY: as the caller promises.
    done(unsafe { id::own(id) }.and_then(|(public, own)| {
        // SAFETY: as the caller promises.
        let private_data = unsafe { said(private_data, length) };
        let mut state = own.inner.lock();
        let transport = state.device.as_ref().map(|device| device.transport());
        let most = match (transport, id::service(public)) {
            (Some(Transport::Iwarp), _) => usize::MAX,
            (_, Service::Connections) => private::REJ,
            (_, Service::Datagrams) => private::SIDR_REP,
        };
        if private_data.len() > most {
            return Err(Errno::INVAL);
        }
        let part = std::mem::replace(&mut state.part, Part::Over);
        let rejected = match part {
            Part::Asked(incoming) => {
                drop(state);
                incoming.reject(&private_data)
            }
            Part::Answered(accepted) => {
                drop(state);
                accepted.reject(&private_data)
            }
            Part::Questioned(question) => {
                drop(state);
                question.reject(&private_data)
            }
            // Over iWARP only the accepting side may reject.
            Part::Asking(withdrawal) if transport == Some(Transport::InfiniBand) => {
                drop(state);
                // If the answer has arrived, the identifier gets the part that it leads to.
                return withdrawal.withdraw().then_some(()).ok_or(Errno::INVAL);
            }
            other => {
                state.part = other;
                return Err(Errno::INVAL);
            }
        };
        rejected.map_err(|error| errno::of(&error))
    }))
}

/// Implements `rdma_disconnect`.
///
/// # Safety
/// The identifier is not destroyed during the call.
pub unsafe extern "C-unwind" fn disconnect(id: *mut RdmaCmId) -> c_int {
    // SAFETY: as the caller promises.
    done(unsafe { id::own(id) }.and_then(|(public, own)| {
        let inner = &own.inner;
        let state = inner.lock();
        let device = state.device.clone().ok_or(Errno::INVAL)?;
        let is_stream = device.transport() == Transport::Iwarp;
        let connection = match &state.part {
            Part::Connected(connection) => Arc::clone(connection),
            // The call succeeds where nothing is connected, as with the kernel.
            part if part.has_request() => {
                drop(state);
                return if is_stream { Ok(()) } else { inner.flush_qp() };
            }
            _ => return Err(Errno::INVAL),
        };
        // Whether the program has fetched the end of the connection already, so that no further event comes.
        let was_told = state.is_over && state.is_sync && state.waiting(inner) == 0;
        drop(state);
        if is_stream && !public.qp.is_null() {
            connection.disconnect().on_done(|_| {});
            inner.show_state(QpState::Err);
        } else {
            // Outstanding requests are flushed at once, whether the peer answers or not.
            inner.flush_qp()?;
            connection.end().on_done(|_| {});
        }
        if was_told {
            return Ok(());
        }
        // SAFETY: as the caller promises.
        unsafe { events::complete(public, own) }
    }))
}

/// Implements `rdma_init_qp_attr`: returns the attributes with which a program modifies the QP of a connection itself.
///
/// # Safety
/// `attr` and `mask` are null or writable, and the identifier is not destroyed during the call.
pub unsafe extern "C-unwind" fn init_qp_attr(
    id: *mut RdmaCmId,
    attr: *mut IbvQpAttr,
    mask: *mut c_int,
) -> c_int {
    // SAFETY: as the caller promises.
    done(unsafe { id::own(id) }.and_then(|(public, own)| {
        // SAFETY: as the caller promises.
        let (Some(attr), Some(mask)) = (unsafe { attr.as_mut() }, unsafe { mask.as_mut() }) else {
            return Err(Errno::INVAL);
        };
        let state = own.inner.lock();
        let device = state.device.clone().ok_or(Errno::INVAL)?;
        let code = u8::try_from(attr.qp_state).ok();
        let target = code.and_then(QpState::from_code).ok_or(Errno::INVAL)?;
        let step = match (target, id::service(public), device.transport()) {
            (QpState::Init, Service::Datagrams, _) => first_step().qkey(QKEY),
            (QpState::Init, ..) => first_step().qp_access_flags(RIGHTS),
            (QpState::Rtr | QpState::Rts, Service::Datagrams, _) => {
                let step = QpAttributes::new().qp_state(target);
                match target {
                    QpState::Rts => step.sq_psn(state.psn),
                    _ => step,
                }
            }
            // An iWARP QP gets its TCP connection when the connection is accepted or established.
            (QpState::Rtr | QpState::Rts, _, Transport::Iwarp) => QpAttributes::new(),
            (QpState::Rtr, ..) => steps(&state)?[1],
            (QpState::Rts, ..) => steps(&state)?[2],
            _ => return Err(Errno::INVAL),
        };
        drop(state);
        let qp_state = attr.qp_state;
        (*attr, *mask) = ((&step).into(), step.mask().bits() as c_int);
        if let Some(path) = step.ah_attr {
            attr.ah_attr = device.path(&path);
        }
        attr.qp_state = qp_state;
        Ok(())
    }))
}

fn first_step() -> QpAttributes {
    QpAttributes::new()
        .qp_state(QpState::Init)
        .pkey_index(0)
        .port_num(1)
}

fn steps(state: &State) -> Result<[QpAttributes; 3], Errno> {
    if let Some(steps) = state.steps {
        return Ok(steps);
    }
    let Part::Asked(incoming) = &state.part else {
        return Err(Errno::INVAL);
    };
    let options = ConnectionOptions::new()
        .path(path_options(state).min_rnr_timer(LONGEST_RNR_TIMER))
        .as_peer_asks()
        .brought_up_by_program(state.psn);
    let steps = incoming.steps(&options);
    steps.map_err(|error| errno::of(&error))
}
