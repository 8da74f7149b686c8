//! Queue pairs.

use std::ffi::c_int;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Weak};

use polyverbs_abi::{IbvPd, IbvQp, IbvQpInitAttr, IbvRecvWr, IbvSendWr, qp_type};
use verbs_api::capability::{Features, Limits, Mtu};
use verbs_api::completion::WcOpcode;
use verbs_api::extension::{Held, QpExtension, QpVariant};
use verbs_api::ids::{Gid, Qpn};
use verbs_api::objects::ObjectKind;
use verbs_api::provider::{
    Mutex, Operation, PostOps, QpInit, QpOps, Reply, SpinLock, modify_in_turn, own,
};
use verbs_api::qp::{
    BadModify, QpAttributes, QpCap, QpEndpoint, QpState, QpStatus, QpType, check_modify_of,
};
use verbs_api::wr::{BindWindow, PostReason, ReceiveRequest, SendFlags, WorkRequest};
use verbs_api::{ErrorKind, RKey, VerbError};

use crate::completion_queue::CompletionQueue;
use crate::context::{Context, DeviceEvents};
use crate::outstanding::{Posted, Receives, Sent, send_queue};
use crate::port;
use crate::rdmacm::{Connected, Names};
use crate::receive_queue::{ReceiveQueue, post_all};
use crate::request::{self, Chain, LONGEST, OPERATIONS};
use crate::verbs::{Live, Poster, Zero as _, cookie};
use crate::watch::guarded;
use crate::xrc::{Member, XrcQp};

pub(crate) struct QueuePair {
    own: Arc<Own>,
    send_poster: Poster<IbvQp, IbvSendWr>,
    receive_poster: Poster<IbvQp, IbvRecvWr>,
    cap: QpCap,
    sq_sig_all: bool,
    /// Whether completions of the queue pair's send queue may arrive in another order than that of the requests.
    overtakes: bool,
}

/// The state of a queue pair that verbs in progress need even if the queue pair is dropped.
struct Own {
    qp: Live<IbvQp>,
    qp_num: u32,
    qp_type: QpType,
    variant: Option<&'static QpVariant>,
    /// The membership of an XRC target in its domain; `None` for other queue pairs.
    member: Mutex<Option<Member>>,
    context: Arc<Context>,
    sends: SpinLock<Sends>,
    /// The outstanding receives of the queue pair, or of its shared receive queue.
    receives: Arc<SpinLock<Receives>>,
    send_cq: Arc<CompletionQueue>,
    recv_cq: Arc<CompletionQueue>,
    has_srq: bool,
    /// The attributes that were set since the last reset.
    set: Mutex<QpAttributes>,
    /// The length of the longest datagram in bytes, which depends on the port and is known from INIT on.
    max_datagram: AtomicU32,
}

/// Who has refused a request.
enum Refused {
    Here(PostReason),
    /// The library refused it with this error number.
    ByLibrary(c_int),
}

/// The part of the send queue that posting threads use, under a lock.
struct Sends {
    is_open: bool,
    /// The state that the program has moved the queue pair to. Posting checks it, because a library may queue a request
    /// before the kernel finds that the state does not allow sends.
    led_to: QpState,
    posted: Posted,
}

impl Sends {
    fn check(&self) -> Result<(), PostReason> {
        match self.led_to {
            _ if !self.is_open => Err(PostReason::InvalidHandle),
            state @ (QpState::Reset | QpState::Init | QpState::Rtr) => {
                Err(PostReason::InvalidState(state))
            }
            _ => Ok(()),
        }
    }
}

impl QueuePair {
    pub(crate) fn create(
        context: Arc<Context>,
        pd: &Live<IbvPd>,
        init: QpInit,
    ) -> Result<Self, VerbError> {
        check_operations(&init)?;
        let xrc = xrc_of(&init, &context)?;
        let send_cq: Arc<CompletionQueue> = own(&init.send_cq, "send_cq")?;
        let recv_cq: Arc<CompletionQueue> = own(&init.recv_cq, "recv_cq")?;
        let srq: Option<Arc<ReceiveQueue>> = match &init.srq {
            Some(srq) => Some(own(srq, "srq")?),
            None => None,
        };
        let mut attr = IbvQpInitAttr {
            qp_context: cookie(init.id),
            cap: (&init.cap).into(),
            qp_type: type_in_c(init.qp_type, xrc)?,
            ..IbvQpInitAttr::zero()
        };
        let shared = srq.as_ref().map(|srq| &*srq.srq);
        let (qp, member) = match xrc {
            Some(XrcQp::Target(xrcd, existing)) => {
                let qp = xrcd.target(init.id, *existing)?;
                (qp, Some(xrcd.add(ObjectKind::Qp, init.id)))
            }
            _ => {
                let queues = (&*send_cq.cq, &*recv_cq.cq);
                (pd.create_qp(&mut attr, queues, shared)?, None)
            }
        };
        let qp_num = qp.number()?;
        let receives = match &srq {
            Some(srq) => Arc::clone(&srq.receives),
            None => Arc::new(SpinLock::new(Receives::new(attr.cap.max_recv_wr))),
        };
        let (posted, retiring) = send_queue(attr.cap.max_send_wr, init.reserved_wr);
        // A target may have several handles, and no request completes there.
        let is_alone = member.is_none();
        if is_alone {
            send_cq.add_sends(qp_num, retiring);
            recv_cq.add_receives(qp_num, &receives);
        }
        let (send_poster, receive_poster) = (qp.send_poster()?, qp.receive_poster()?);
        let own = Arc::new(Own {
            qp,
            qp_num,
            qp_type: init.qp_type,
            variant: init.extensions.iter().find_map(QpExtension::qp_variant),
            member: Mutex::new(member),
            context,
            sends: SpinLock::new(Sends {
                is_open: true,
                led_to: QpState::Reset,
                posted,
            }),
            receives,
            send_cq,
            recv_cq,
            has_srq: srq.is_some(),
            set: Mutex::default(),
            max_datagram: AtomicU32::new(0),
        });
        let overtakes = own.context.connections.are_brought_up_here();
        own.context.add(Arc::downgrade(&own) as _);
        if is_alone {
            let weak = Arc::downgrade(&own) as Weak<dyn Connected>;
            own.context.connections.states().insert(qp_num, weak);
        }
        Ok(Self {
            own,
            send_poster,
            receive_poster,
            cap: (&attr.cap).into(),
            sq_sig_all: init.sq_sig_all,
            overtakes,
        })
    }

    /// Takes entries of the ring for requests and adds the requests to a list. Returns why the request after the last one
    /// of the list was refused; `None` if none was.
    #[inline(always)]
    fn gather<'r, const LEN: usize>(
        &self,
        posted: &mut Posted,
        requests: &'r [WorkRequest<'_>],
        chain: &mut Chain<'r, LEN>,
    ) -> Result<(), PostReason> {
        for request in requests {
            if self.own.qp_type == QpType::Ud {
                self.own.check_datagram(request)?;
            }
            let sent = self.sent(request);
            let is_signaled = sent.is_overtaken || sent.flags.contains(SendFlags::SIGNALED);
            let number = posted.push(sent)?;
            let known = match request {
                WorkRequest::BindWindow(bind) => {
                    request::bound(bind, Some(bind.key())).map(|bound| posted.set_bound(bound))
                }
                _ => Ok(()),
            };
            let chained = known.and_then(|()| chain.push(request, number, is_signaled));
            if let Err(reason) = chained {
                posted.take_back(1);
                return Err(reason);
            }
        }
        Ok(())
    }

    /// Posts at most `LEN` requests with one doorbell. The caller holds the lock of the send queue, which is open.
    #[allow(unsafe_code)]
    #[inline(always)]
    fn post_list<const LEN: usize>(
        &self,
        posted: &mut Posted,
        requests: &[WorkRequest<'_>],
    ) -> Result<(), (usize, Refused)> {
        let mut chain = Chain::<LEN>::new();
        let gathered = self.gather(posted, requests, &mut chain);
        let len = chain.len();
        // SAFETY: an open queue pair is alive: it is closed, under its lock, before it is destroyed.
        if let Err((errno, before)) = unsafe { chain.post(&self.send_poster) } {
            posted.take_back(len - before);
            return Err((before, Refused::ByLibrary(errno)));
        }
        gathered.map_err(|reason| (len, Refused::Here(reason)))
    }

    fn post_lists(
        &self,
        posted: &mut Posted,
        requests: &[WorkRequest<'_>],
    ) -> Result<(), (usize, Refused)> {
        let mut done = 0;
        for some in requests.chunks(LONGEST) {
            self.post_list::<LONGEST>(posted, some)
                .map_err(|(before, refused)| (done + before, refused))?;
            done += some.len();
        }
        Ok(())
    }

    fn reason(&self, refused: Refused) -> PostReason {
        match refused {
            Refused::Here(reason) => reason,
            Refused::ByLibrary(errno) => refusal(errno, self.cap.max_send_wr),
        }
    }

    #[inline(always)]
    fn sent(&self, request: &impl Operation) -> Sent {
        let (common, opcode) = (request.common(), request.wc_opcode());
        let mut flags = common.flags;
        flags.set(
            SendFlags::SIGNALED,
            self.sq_sig_all || flags.contains(SendFlags::SIGNALED),
        );
        Sent {
            wr_id: common.wr_id,
            opcode,
            flags,
            loan: request.data().sges().loan,
            is_overtaken: self.overtakes && AWAITS_RESPONSE.contains(&opcode),
        }
    }
}

/// Returns the reason for an error number with which the library refused a request.
const fn refusal(errno: c_int, max: u32) -> PostReason {
    match errno {
        libc::ENOMEM => PostReason::QueueFull { max },
        _ => PostReason::Os { errno },
    }
}

/// The operations whose completion waits for the peer's response. On iWARP no other operation waits for the peer, so later
/// requests may complete before these, and not every driver holds their completions back.
const AWAITS_RESPONSE: [WcOpcode; 3] = [WcOpcode::RdmaRead, WcOpcode::CompSwap, WcOpcode::FetchAdd];

/// Refuses operations that the C interface cannot express; others that the device lacks are left to the device to refuse.
fn check_operations(init: &QpInit) -> Result<(), VerbError> {
    let missing = (init.operations - OPERATIONS).missing_features(Features::empty());
    if !missing.is_empty() {
        return Err(VerbError::Unsupported { missing });
    }
    Ok(())
}

/// Returns the XRC role that an extension gives the queue pair; `None` if there is none.
fn xrc_of<'i>(init: &'i QpInit, context: &Context) -> Result<Option<&'i XrcQp>, VerbError> {
    let held = match &init.extensions[..] {
        [] => return Ok(None),
        [one] if context.properties.has_xrc => one.held().and_then(Held::get::<XrcQp>),
        _ => None,
    };
    if let Some(XrcQp::Target(xrcd, _)) = held {
        xrcd.check_of(&context.live)?;
    }
    held.map(Some)
        .ok_or(VerbError::UnsupportedVerb("queue pairs of this kind"))
}

fn type_in_c(of: QpType, xrc: Option<&XrcQp>) -> Result<c_int, VerbError> {
    Ok(match (of, xrc) {
        (_, Some(XrcQp::Initiator)) => qp_type::XRC_SEND,
        (_, Some(XrcQp::Target(..))) => qp_type::XRC_RECV,
        (QpType::Rc, None) => qp_type::RC,
        (QpType::Uc, None) => qp_type::UC,
        (QpType::Ud, None) => qp_type::UD,
        _ => return Err(VerbError::UnsupportedVerb("queue pairs of this service")),
    })
}

impl Own {
    fn state(&self) -> Result<(QpState, bool), VerbError> {
        let attr = self.qp.query()?;
        let state = u8::try_from(attr.qp_state)
            .ok()
            .and_then(QpState::from_code);
        let mut state = state.ok_or(VerbError::Internal(
            "the library returned a state that verbs do not have",
        ))?;
        let connections = &self.context.connections;
        // Before the stream exists, an iWARP driver reports one state for all, which may be INIT; a driver that does not report
        // states leaves RESET.
        let is_unconnected = matches!(state, QpState::Reset | QpState::Init);
        if is_unconnected && connections.are_brought_up_here() {
            state = connections.states().get(self.qp_num).unwrap_or(state);
        }
        Ok((state, attr.sq_draining != 0))
    }

    fn check_datagram(&self, request: &WorkRequest<'_>) -> Result<(), PostReason> {
        let max = u64::from(self.max_datagram.load(Ordering::Relaxed));
        match request.data().len() {
            given if given > max && max > 0 => Err(PostReason::MessageTooLong { max, given }),
            _ => Ok(()),
        }
    }

    /// Checks a modify with these attributes in the state `from`. Returns the state that it leads to.
    fn check_step(&self, from: QpState, attributes: &QpAttributes) -> Result<QpState, BadModify> {
        let Limits {
            max_qp_init_rd_atom,
            max_qp_rd_atom,
            phys_port_cnt,
            ..
        } = self.context.properties.limits;
        let limits = (
            max_qp_init_rd_atom.into(),
            max_qp_rd_atom.into(),
            phys_port_cnt.into(),
        );
        check_modify_of(self.qp_type, self.variant, from, attributes, limits)
    }

    fn modify(&self, attributes: &QpAttributes) -> Result<(), VerbError> {
        let (state, _) = self.state()?;
        let to = self.check_step(state, attributes)?;
        if let Some(port) = attributes.port_num {
            let active_mtu = port::mtu(self.context.live.query_port(port)?.active_mtu);
            self.max_datagram
                .store(active_mtu.octets(), Ordering::Relaxed);
        }
        let attributes = &self.in_force(attributes);
        if to == QpState::Reset {
            self.sends.lock().led_to = to;
            self.keep_completions();
        }
        let modified = self.qp.modify(attributes);
        self.sends.lock().led_to = if modified.is_ok() { to } else { state };
        modified.map_err(|error| match self.has_overrun() {
            true => VerbError::CqOverrun,
            false => error,
        })?;
        self.context.connections.states().set(self.qp_num, to);
        if matches!(to, QpState::Reset | QpState::Err) && state == QpState::Init {
            self.call_off(&VerbError::Canceled);
        }
        self.keep(to, attributes);
        if to == QpState::Reset {
            self.forget_requests();
        }
        Ok(())
    }

    /// Stores state and attributes for later queries.
    fn keep(&self, state: QpState, attributes: &QpAttributes) {
        let mut set = self.set.lock();
        *set = match state {
            QpState::Reset => QpAttributes::new(),
            _ => set.merged(attributes),
        };
    }

    /// Returns the attributes with the path MTU reduced to the port's, if it is larger.
    fn in_force(&self, attributes: &QpAttributes) -> QpAttributes {
        let path_mtu = attributes.path_mtu.map(|mtu| self.carried_by_port(mtu));
        QpAttributes {
            path_mtu,
            ..*attributes
        }
    }

    /// Connects the queue pair, which is in INIT, with the queue pair `peer` of this process, once that connects to this
    /// one.
    fn meet(self: Arc<Self>, peer: Qpn, [rtr, rts]: [QpAttributes; 2], reply: Reply<()>) {
        let is_possible = self
            .check_step(QpState::Init, &rtr)
            .and_then(|state| self.check_step(state, &rts));
        if let Err(error) = is_possible {
            return reply.send(Err(error.into()));
        }
        let names = Names {
            own: self.qp_num,
            peer: peer.value(),
        };
        let reads = (rtr.max_dest_rd_atomic, rts.max_rd_atomic);
        let own = Arc::clone(&self);
        let then = move |done: Result<(), VerbError>| {
            if done.is_ok() {
                own.keep(QpState::Rts, &own.in_force(&rtr.merged(&rts)));
            }
            reply.send(done);
        };
        self.context
            .connections
            .meet(names, reads, Reply::new(then));
    }

    /// Cancels a connection of the queue pair that is not established yet; its reply is `why`.
    fn call_off(&self, why: &VerbError) {
        self.context.connections.call_off(self.qp_num, why);
    }

    fn has_overrun(&self) -> bool {
        [&self.send_cq, &self.recv_cq]
            .iter()
            .any(|cq| cq.has_overrun.load(Ordering::Relaxed))
    }

    /// Returns the path MTU, reduced to the port's if it is larger.
    fn carried_by_port(&self, path_mtu: Mtu) -> Mtu {
        let of_port = self.max_datagram.load(Ordering::Relaxed);
        let mut all = (1..=5).filter_map(Mtu::from_code);
        let of_port = all.find(|mtu| mtu.octets() == of_port);
        of_port.map_or(path_mtu, |of_port| path_mtu.min(of_port))
    }

    fn destroy(&self) -> Result<(), VerbError> {
        self.admit(false);
        self.keep_completions();
        // Another queue pair may get the number as soon as this one is destroyed, so its connection ends first.
        let state = self.context.connections.gone(self.qp_num);
        if let Err(error) = self.qp.destroy() {
            self.context
                .connections
                .states()
                .put_back(self.qp_num, state);
            return Err(error);
        }
        self.forget_requests();
        for cq in [&self.send_cq, &self.recv_cq] {
            cq.remove(self.qp_num);
        }
        drop(self.member.lock().take());
        Ok(())
    }

    /// Opens or closes the queue pair for posting.
    fn admit(&self, open: bool) {
        self.sends.lock().is_open = open;
        if !self.has_srq {
            self.receives.lock().is_open = open;
        }
    }

    fn keep_completions(&self) {
        for cq in [&self.send_cq, &self.recv_cq] {
            cq.keep_all();
        }
    }

    fn forget_requests(&self) {
        // The lock prevents posts in the meantime.
        let _sends = self.sends.lock();
        self.send_cq.forget_sends(self.qp_num);
        if !self.has_srq {
            self.receives.lock().clear();
        }
    }
}

impl DeviceEvents for Own {
    fn close(&self) {
        self.admit(false);
    }

    fn flush(&self) {
        self.send_cq.flush(self.qp_num, !self.has_srq);
        self.recv_cq.flush(self.qp_num, !self.has_srq);
        guarded(|| self.call_off(&VerbError::DeviceRemoved));
    }
}

impl Connected for Own {
    fn begun(&self) {
        self.sends.lock().led_to = QpState::Rts;
    }

    fn ended(self: Arc<Self>) {
        let own = Arc::clone(&self);
        self.context.run(move || {
            // The queue pair may have been reset or destroyed in the meantime.
            if own.context.connections.states().get(own.qp_num) == Some(QpState::Err) {
                let flushed = QpAttributes::new().qp_state(QpState::Err);
                let _ = own.qp.modify(&flushed);
            }
        });
    }
}

#[allow(unsafe_code)]
impl PostOps for QueuePair {
    #[inline]
    fn post_send(&self, requests: &[WorkRequest<'_>]) -> Result<(), (usize, PostReason)> {
        let mut sends = self.own.sends.lock();
        sends.check().map_err(|reason| (0, reason))?;
        // A single request skips the preparation for a list.
        let posted = match requests {
            [_] => self.post_list::<1>(&mut sends.posted, requests),
            _ => self.post_lists(&mut sends.posted, requests),
        };
        drop(sends);
        posted.map_err(|(before, refused)| (before, self.reason(refused)))
    }

    fn post_recv(&self, requests: &[ReceiveRequest<'_>]) -> Result<(), (usize, PostReason)> {
        let is_reset = || matches!(self.own.state(), Ok((QpState::Reset, _)));
        let refusal = |errno| match errno {
            libc::EINVAL if is_reset() => PostReason::InvalidState(QpState::Reset),
            _ => refusal(errno, self.cap.max_recv_wr),
        };
        // SAFETY: the receives are closed before the queue pair is destroyed.
        unsafe { post_all(&self.receive_poster, &self.own.receives, requests, refusal) }
    }
}

impl QpOps for QueuePair {
    fn poster(&self) -> &(dyn PostOps + 'static) {
        self
    }

    fn admit(&self, open: bool) {
        self.own.admit(open);
    }

    fn qp_num(&self) -> Qpn {
        Qpn::new(self.own.qp_num)
    }

    fn cap(&self) -> QpCap {
        self.cap
    }

    fn modify(&self, attributes: QpAttributes, reply: Reply<()>) {
        let own = Arc::clone(&self.own);
        self.own
            .context
            .start(reply, move || own.modify(&attributes));
    }

    fn connect(self: Arc<Self>, peer: &QpEndpoint, steps: [QpAttributes; 3], reply: Reply<()>) {
        if !self.own.context.connections.are_brought_up_here() {
            return modify_in_turn(self, steps, reply);
        }
        let (peer, [init, rtr, rts]) = (peer.qp_num, steps);
        let own = Arc::clone(&self.own);
        let then = move |done: Result<(), VerbError>| match done {
            Ok(()) => own.meet(peer, [rtr, rts], reply),
            Err(error) => reply.send(Err(error)),
        };
        self.modify(init, Reply::new(then));
    }

    fn query(&self) -> Result<QpStatus, VerbError> {
        let (state, sq_draining) = self.own.state()?;
        Ok(QpStatus {
            state,
            sq_draining,
            attributes: *self.own.set.lock(),
            cap: self.cap,
        })
    }

    fn bind_mw(&self, bind: BindWindow<'_>) -> Result<RKey, PostReason> {
        let window = request::window_of(&bind)?;
        let mut sends = self.own.sends.lock();
        sends.check()?;
        let bound = request::bound(&bind, None)?;
        let sent = self.sent(&bind);
        let is_signaled = sent.flags.contains(SendFlags::SIGNALED);
        let number = sends.posted.push(sent)?;
        sends.posted.set_bound(bound);
        let answer = request::bind_mw(&self.own.qp, &bind, number, is_signaled);
        if answer != Ok(0) {
            sends.posted.take_back(1);
        }
        drop(sends);
        match answer? {
            0 => {}
            errno => return Err(refusal(errno, self.cap.max_send_wr)),
        }
        // The library has chosen the key.
        let rkey = window.mw.rkey().map_err(|_| PostReason::InvalidHandle)?;
        Ok(RKey::new(rkey))
    }

    fn attach_multicast(&self, group: Gid, reply: Reply<()>) {
        let own = Arc::clone(&self.own);
        self.own.context.start(reply, move || {
            own.qp.attach(group).map_err(|error| match error.kind() {
                ErrorKind::Resources => VerbError::Resources(
                    "multicast groups, or room in this one (max_mcast_grp, max_mcast_qp_attach)",
                ),
                _ => error,
            })
        });
    }

    fn detach_multicast(&self, group: Gid, reply: Reply<()>) {
        let own = Arc::clone(&self.own);
        self.own.context.start(reply, move || own.qp.detach(group));
    }

    fn destroy(&self, reply: Reply<()>) {
        let own = Arc::clone(&self.own);
        self.own.context.destroy(reply, move || own.destroy());
    }
}
