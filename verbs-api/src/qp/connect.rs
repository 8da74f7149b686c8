//! Bringing queue pairs up: one source for every transport.

use std::sync::Arc;

use super::Qp;
use crate::access::Access;
use crate::capability::Mtu;
use crate::context::Context;
use crate::contract::modify_in_turn;
use crate::control::Started;
use crate::error::{ArgumentReason, VerbError};
use crate::ids::{Port, Psn};
use crate::lifecycle::Handle;
use crate::qp_attributes::{
    AddressVector, Half, QpAttrMask, QpAttributes, QpEndpoint, QpState, transition,
};
use crate::service::QpType;

/// The path of a queue pair to its peer, with which it is brought up: port, MTU, retries and timeouts, and what the peer may do.
///
/// ```
/// use verbs_api::{Access, PathOptions};
/// let options = PathOptions::new()
///     .access(Access::REMOTE_READ | Access::REMOTE_WRITE)
///     .timeout(12) // 4.096 µs x 2^12: about 17 ms
///     .rnr_retry(3);
/// assert_eq!((options.chosen_rnr_retry(), options.chosen_retry_cnt()), (3, 7));
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
#[must_use]
pub struct PathOptions {
    port_num: Option<Port>,
    pkey_index: Option<u16>,
    sgid_index: Option<u8>,
    access: Option<Access>,
    qkey: Option<u32>,
    path_mtu: Option<Mtu>,
    sq_psn: Option<Psn>,
    timeout: u8,
    retry_cnt: u8,
    rnr_retry: u8,
    min_rnr_timer: u8,
    max_rd_atomic: Option<u8>,
    max_dest_rd_atomic: Option<u8>,
    traffic_class: u8,
    hop_limit: u8,
}

impl Default for PathOptions {
    fn default() -> Self {
        Self {
            port_num: None,
            pkey_index: None,
            sgid_index: None,
            access: None,
            qkey: None,
            path_mtu: None,
            sq_psn: None,
            timeout: 14,
            retry_cnt: 7,
            rnr_retry: 7,
            min_rnr_timer: 12,
            max_rd_atomic: None,
            max_dest_rd_atomic: None,
            traffic_class: 0,
            hop_limit: 64,
        }
    }
}

macro_rules! setters {
    ($($(#[$doc:meta])* $name:ident: $ty:ty $(=> $wrap:ident)?;)*) => {
        $($(#[$doc])*
        pub const fn $name(mut self, $name: $ty) -> Self {
            self.$name = setters!(@value $name $($wrap)?);
            self
        })*
    };
    (@value $name:ident) => { $name };
    (@value $name:ident $wrap:ident) => { $wrap($name) };
}

impl PathOptions {
    /// Port 1, seven retries, everything else as the device has it. Peers may send, and do nothing with memory before
    /// [`access`](Self::access) grants it. What the program has set in INIT, by [`Qp::init`] for instance, stays as it is where
    /// the option is not set.
    pub fn new() -> Self {
        Self::default()
    }

    setters! {
        /// The local port, counted from 1.
        port_num: Port => Some;
        /// Index of the partition key. 0 unless set.
        pkey_index: u16 => Some;
        /// Index of the local GID; the port's
        /// [default](crate::capability::PortAttributes::default_gid_index) unless set.
        sgid_index: u8 => Some;
        /// What peers may do through the queue pair, with memory that grants it too. Nothing unless set.
        ///
        /// This concerns the peer's requests: responses to this side's own reads need no right here, on any transport.
        access: Access => Some;
        /// The Q_Key of datagrams. 0x1111_1111 unless set.
        qkey: u32 => Some;
        /// Payload bytes of one packet; the port's active MTU unless set.
        path_mtu: Mtu => Some;
        /// The first packet sequence number that it sends; that of its [`QpEndpoint`] unless set.
        sq_psn: Psn => Some;
        /// Acknowledge timeout, n up to 31: at least 4.096 µs x 2^n, up to four times that before the first response, after slow
        /// ones and after retries; 0 never times out. 14 unless set.
        timeout: u8;
        /// Retries after a timeout or a sequence error, 0 to 7. 7 unless set.
        retry_cnt: u8;
        /// Retries after the peer had no receive, 0 to 6; 7 without end, as unless set.
        rnr_retry: u8;
        /// How long a peer waits that found no receive: code 0 to 31. 12 (0.64 ms) unless set.
        min_rnr_timer: u8;
        /// Reads and atomics outstanding as initiator; what the device has, up to 16, unless set.
        max_rd_atomic: u8 => Some;
        /// Reads and atomics served at one time; what the device has, up to 16, unless set.
        max_dest_rd_atomic: u8 => Some;
        /// Traffic class.
        traffic_class: u8;
        /// Hop limit. 64 unless set.
        hop_limit: u8;
    }
}

impl PathOptions {
    /// The path MTU, if one was set.
    pub const fn chosen_path_mtu(&self) -> Option<Mtu> {
        self.path_mtu
    }

    /// The local port.
    pub const fn chosen_port(&self) -> Port {
        match self.port_num {
            Some(port) => port,
            None => 1,
        }
    }

    /// Retries after a timeout or a sequence error.
    pub const fn chosen_retry_cnt(&self) -> u8 {
        self.retry_cnt
    }

    /// Retries after the peer had no receive.
    pub const fn chosen_rnr_retry(&self) -> u8 {
        self.rnr_retry
    }

    /// The steps of [`Qp::connect`] for a reliable queue pair, for programs that modify it themselves: to INIT, to RTR and to
    /// RTS.
    ///
    /// # Errors
    /// There is no such port, or the device was removed.
    pub fn reliable_steps(
        &self,
        context: &Context,
        peer: &QpEndpoint,
    ) -> Result<[QpAttributes; 3], VerbError> {
        let own_psn = self.sq_psn.unwrap_or_default();
        self.steps(context, peer, own_psn, (true, true))
    }

    /// `asks` and `answers`: whether it gets the attributes of a requester and of a responder of reads.
    fn steps(
        &self,
        context: &Context,
        peer: &QpEndpoint,
        own_psn: Psn,
        (asks, answers): (bool, bool),
    ) -> Result<[QpAttributes; 3], VerbError> {
        let limits = context.limits();
        let port_num = self.chosen_port();
        let port = context.query_port(port_num)?;
        let path = AddressVector {
            sgid_index: self.sgid_index.unwrap_or(port.default_gid_index()),
            traffic_class: self.traffic_class,
            hop_limit: self.hop_limit,
            ..AddressVector::new(peer.address, peer.gid, port_num)
        };
        let mut rtr = QpAttributes::new()
            .qp_state(QpState::Rtr)
            .ah_attr(path)
            .path_mtu(self.path_mtu.unwrap_or(port.active_mtu))
            .dest_qp_num(peer.qp_num)
            .rq_psn(peer.sq_psn);
        let mut rts = QpAttributes::new()
            .qp_state(QpState::Rts)
            .sq_psn(self.sq_psn.unwrap_or(own_psn));
        if answers {
            rtr = rtr
                .max_dest_rd_atomic(default_depth(
                    self.max_dest_rd_atomic,
                    limits.max_qp_rd_atom,
                ))
                .min_rnr_timer(self.min_rnr_timer);
        }
        if asks {
            rts = rts
                .retry_cnt(self.retry_cnt)
                .rnr_retry(self.rnr_retry)
                .max_rd_atomic(default_depth(
                    self.max_rd_atomic,
                    limits.max_qp_init_rd_atom,
                ));
        }
        if asks || answers {
            rts = rts.timeout(self.timeout);
        }
        Ok([self.init_step(false), rtr, rts])
    }

    fn init_step(&self, is_for_datagrams: bool) -> QpAttributes {
        let init = QpAttributes::new()
            .qp_state(QpState::Init)
            .pkey_index(self.pkey_index.unwrap_or_default())
            .port_num(self.chosen_port());
        match is_for_datagrams {
            true => init.qkey(self.qkey.unwrap_or(0x1111_1111)),
            false => init.qp_access_flags(self.access.unwrap_or_default()),
        }
    }

    /// These options, and for those that are not set what the program has set in INIT.
    fn or_as_in_init(mut self, qp: &Qp) -> Result<Self, VerbError> {
        let status = qp.query()?;
        if status.state == QpState::Init {
            let set = status.attributes;
            self.port_num = self.port_num.or(set.port_num);
            self.pkey_index = self.pkey_index.or(set.pkey_index);
            self.access = self.access.or(set.qp_access_flags);
            self.qkey = self.qkey.or(set.qkey);
        }
        Ok(self)
    }
}

impl Qp {
    /// What a peer needs to know to connect to this queue pair through port 1, with the
    /// [default GID](crate::capability::PortAttributes::default_gid_index).
    ///
    /// # Errors
    /// The queue pair was destroyed, or its device removed.
    pub fn endpoint(&self) -> Result<QpEndpoint, VerbError> {
        let port = self.open_device().query_port(1)?;
        self.endpoint_at(1, port.default_gid_index())
    }

    /// The same through this port and its identifier of this index.
    ///
    /// # Errors
    /// There is no such port or identifier, the queue pair was destroyed, or its device removed.
    pub fn endpoint_at(&self, port_num: Port, sgid_index: u8) -> Result<QpEndpoint, VerbError> {
        self.object().node.check_live()?;
        let port = self.open_device().query_port(port_num)?;
        let gid = port
            .gid(sgid_index)
            .ok_or_else(|| VerbError::argument("sgid_index", "the port has no such identifier"))?;
        let (qp_num, sq_psn) = (self.qp_num(), self.sq_psn());
        Ok(QpEndpoint {
            qp_num,
            sq_psn,
            address: port.address,
            gid,
        })
    }

    /// Its role in its connection. A variant without the attributes of a responder is a requester only, one without those of a
    /// requester is a responder only.
    pub fn half(&self) -> Half {
        if self.variant().is_none() || self.qp_type() != QpType::Rc {
            return Half::Both;
        }
        let (answers, asks) = (self.answers(), self.asks());
        match (asks, answers) {
            (true, false) => Half::Requester,
            (false, true) => Half::Responder,
            _ => Half::Both,
        }
    }

    /// From RESET to INIT, where receives can be posted: a message may come with the connection. Connecting goes on from
    /// there, with options of its own: what they do not set stays as it is.
    ///
    /// ```no_run
    /// # use verbs_api::{wr::ReceiveRequest, PathOptions, Qp, QpEndpoint, Sge};
    /// # fn f(qp: &Qp, room: Sge, peer: QpEndpoint) -> Result<(), Box<dyn std::error::Error>> {
    /// qp.init(PathOptions::new()).wait()?;
    /// qp.post_receive(ReceiveRequest::new(1, room))?;
    /// qp.connect(&peer, PathOptions::new()).wait()?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// The queue pair is in another state, or there is no such port.
    pub fn init(&self, options: PathOptions) -> Started<()> {
        match options.or_as_in_init(self) {
            Ok(options) => self.modify(options.init_step(self.qp_type() == QpType::Ud)),
            Err(error) => Started::ready(Err(error)),
        }
    }

    /// Connects to a peer that connects to this queue pair in turn: from RESET to ready to send.
    ///
    /// One source for every transport; a device that has no use for an attribute ignores it.
    ///
    /// ```no_run
    /// # fn example(near: &verbs_api::Qp, far: &verbs_api::Qp) -> Result<(), Box<dyn std::error::Error>> {
    /// use verbs_api::{Access, PathOptions};
    /// let options = PathOptions::new().access(Access::REMOTE_WRITE);
    /// // Both are started before either is waited for: over streams each end waits for the other.
    /// let started = near.connect(&far.endpoint()?, options);
    /// far.connect(&near.endpoint()?, options).wait()?;
    /// started.wait()?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Of the first step that failed; the queue pair stays in the state that it had reached.
    pub fn connect(&self, peer: &QpEndpoint, options: PathOptions) -> Started<()> {
        let steps = match self.connect_steps(peer, options) {
            Ok(steps) => steps,
            Err(error) => return Started::ready(Err(error)),
        };
        let (ops, peer) = (Arc::clone(self.ops()), *peer);
        self.request(Ok(()), move |reply| ops.connect(&peer, steps, reply))
    }

    /// The steps of [`connect`](Self::connect) as attributes: to INIT, to RTR and to RTS.
    ///
    /// ```no_run
    /// # fn example(qp: &verbs_api::Qp, peer: verbs_api::QpEndpoint) -> Result<(), Box<dyn std::error::Error>> {
    /// use verbs_api::PathOptions;
    /// let [init, rtr, rts] = qp.connect_steps(&peer, PathOptions::new())?;
    /// qp.modify(init).wait()?;
    /// qp.modify(rtr.min_rnr_timer(20)).wait()?; // one attribute is not the default
    /// qp.modify(rts).wait()?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Datagrams have no peer; there is no such port; or the device was removed.
    pub fn connect_steps(
        &self,
        peer: &QpEndpoint,
        options: PathOptions,
    ) -> Result<[QpAttributes; 3], VerbError> {
        if self.qp_type() == QpType::Ud {
            let reason = "datagrams have no peer: activate it";
            return Err(VerbError::argument("qp_type", reason));
        }
        // Only reliable queue pairs have attributes of reads.
        let reliable = self.qp_type() == QpType::Rc;
        let halves = (reliable && self.asks(), reliable && self.answers());
        let options = options.or_as_in_init(self)?;
        options.steps(&self.open_device(), peer, self.sq_psn(), halves)
    }

    /// Modifies with each of these, until one fails: one control request.
    ///
    /// # Errors
    /// Of the first step that failed; the queue pair stays in the state that it had reached.
    pub fn modify_in_turn(&self, steps: [QpAttributes; 3]) -> Started<()> {
        let ops = Arc::clone(self.ops());
        let check = steps.iter().try_for_each(|step| self.check_step(step));
        self.request(check, move |reply| modify_in_turn(ops, steps, reply))
    }

    /// Brings a datagram queue pair from RESET to ready to send.
    ///
    /// ```no_run
    /// # fn example(pd: &verbs_api::Pd, cq: &verbs_api::Cq) -> Result<(), Box<dyn std::error::Error>> {
    /// use verbs_api::{PathOptions, QpOptions};
    /// let datagrams = pd.create_qp(QpOptions::ud(cq)).wait()?;
    /// datagrams.activate(PathOptions::new().qkey(0x1111_1111)).wait()?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Of the first step that failed; the queue pair stays in the state that it had reached.
    pub fn activate(&self, options: PathOptions) -> Started<()> {
        if self.qp_type() != QpType::Ud {
            let reason = "this service has a peer: connect it";
            return Started::ready(Err(VerbError::argument("qp_type", reason)));
        }
        let options = match options.or_as_in_init(self) {
            Ok(options) => options,
            Err(error) => return Started::ready(Err(error)),
        };
        self.modify_in_turn([
            options.init_step(true),
            QpAttributes::new().qp_state(QpState::Rtr),
            QpAttributes::new()
                .qp_state(QpState::Rts)
                .sq_psn(self.sq_psn()),
        ])
    }

    fn answers(&self) -> bool {
        self.takes(QpState::Init, QpState::Rtr, QpAttrMask::MAX_DEST_RD_ATOMIC)
    }

    fn asks(&self) -> bool {
        self.takes(QpState::Rtr, QpState::Rts, QpAttrMask::MAX_QP_RD_ATOMIC)
    }

    // Whether a transition demands this attribute, of the service or of the variant of it that this is.
    fn takes(&self, from: QpState, to: QpState, attribute: QpAttrMask) -> bool {
        transition(self.qp_type(), from, to).is_some_and(|of_service| {
            let of_this = match self.variant() {
                Some(variant) => variant.transition_of(from, to, of_service),
                None => of_service,
            };
            of_this.required.contains(attribute)
        })
    }
}

fn default_depth(wanted: Option<u8>, limit: u32) -> u8 {
    wanted.unwrap_or_else(|| limit.min(16) as u8)
}

/// Connects two queue pairs of this process with each other, and grants each what it may do with the memory behind the
/// other: [`Access::empty`] is enough for sends.
///
/// ```no_run
/// # fn example(pd: &verbs_api::Pd, cq: &verbs_api::Cq) -> Result<(), Box<dyn std::error::Error>> {
/// use verbs_api::{Access, QpOptions, connect_pair};
/// let near = pd.create_qp(QpOptions::rc(cq)).wait()?;
/// let far = pd.create_qp(QpOptions::rc(cq)).wait()?;
/// connect_pair(&near, &far, Access::REMOTE_READ | Access::REMOTE_WRITE).wait()?;
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`VerbError::InvalidArgument`] if the two cannot be connected: they are of different services or transports, are variants that do not fit together, or are one and the same. Neither has changed then. Otherwise
/// that of the first step that failed.
pub fn connect_pair(a: &Qp, b: &Qp, access: Access) -> Started<()> {
    connect_pair_with(a, b, PathOptions::new().access(access))
}

/// As [`connect_pair`], with all options for both: tests of programs with faults choose a short
/// [timeout](PathOptions::timeout), because a lost packet is sent again after that time.
///
/// ```no_run
/// # fn example(near: &verbs_api::Qp, far: &verbs_api::Qp) -> Result<(), Box<dyn std::error::Error>> {
/// use verbs_api::{PathOptions, qp::connect_pair_with};
/// connect_pair_with(near, far, PathOptions::new().timeout(1)).wait()?; // 8 µs
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// As for [`connect_pair`].
pub fn connect_pair_with(a: &Qp, b: &Qp, options: PathOptions) -> Started<()> {
    let endpoints = check_pair(a, b).and_then(|()| Ok((a.endpoint()?, b.endpoint()?)));
    let (at_a, at_b) = match endpoints {
        Ok(endpoints) => endpoints,
        Err(error) => return Started::ready(Err(error)),
    };
    // Both are started before either is waited for: a stream transport needs both ends.
    let (started, outcome) = a.object().context.begin();
    let first = a.connect(&at_b, options);
    let second = b.connect(&at_a, options);
    first.on_done(move |first| {
        second.on_done(move |second| outcome.complete(first.and(second)));
    });
    started
}

fn check_pair(a: &Qp, b: &Qp) -> Result<(), VerbError> {
    if a == b {
        let reason = "is one queue pair twice: give its own endpoint to `Qp::connect`";
        return Err(VerbError::argument("qp", reason));
    }
    let meet = match (a.half(), b.half()) {
        (Half::Both, Half::Both) => a.qp_type() == b.qp_type(),
        halves => matches!(
            halves,
            (Half::Requester, Half::Responder) | (Half::Responder, Half::Requester)
        ),
    };
    if !meet {
        let reason = ArgumentReason::NoPair(service(a), service(b));
        return Err(VerbError::argument("qp_type", reason));
    }
    check_devices(&a.open_device(), &b.open_device())
}

// Queue pairs of devices of two transports never meet.
fn check_devices(a: &Context, b: &Context) -> Result<(), VerbError> {
    let [one, other] = [a, b].map(|device| device.attributes().transport);
    if one != other {
        let reason = ArgumentReason::AnotherTransport(one, other);
        return Err(VerbError::argument("qp", reason));
    }
    Ok(())
}

fn service(qp: &Qp) -> &'static str {
    match (qp.variant(), qp.qp_type()) {
        (Some(variant), _) => variant.name(),
        (None, QpType::Rc) => "RC",
        (None, QpType::Uc) => "UC",
        (None, QpType::Ud) => "UD",
    }
}
