//! Bringing queue pairs up, by the same calls on every transport.

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

/// The options with which a queue pair is connected to its peer: port, MTU, retries and timeouts, and the peer's access
/// rights.
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
    /// Options with port 1 and seven retries; everything else is the device's default. Peers may send, but may not access
    /// memory before [`access`](Self::access) permits it. An attribute that the program has set in INIT, for instance by
    /// [`Qp::init`], and that no option sets, is kept.
    pub fn new() -> Self {
        Self::default()
    }

    setters! {
        /// Sets the local port, counted from 1.
        port_num: Port => Some;
        /// Sets the index of the partition key. 0 by default.
        pkey_index: u16 => Some;
        /// Sets the index of the local GID. By default the port's
        /// [default](crate::capability::PortAttributes::default_gid_index) GID.
        sgid_index: u8 => Some;
        /// Sets the access rights that the queue pair permits its peer on memory that grants them too. None by default.
        ///
        /// Only requests of the peer need them; its responses to this queue pair's own reads do not, on any transport.
        access: Access => Some;
        /// Sets the Q_Key of a datagram queue pair. 0x1111_1111 by default.
        qkey: u32 => Some;
        /// Sets the path MTU. By default the port's active MTU.
        path_mtu: Mtu => Some;
        /// Sets the first PSN that the queue pair sends. By default the one in its [`QpEndpoint`].
        sq_psn: Psn => Some;
        /// Sets the timeout for acknowledgements to at least 4.096 µs x 2^n for the value n, up to 31; before the first
        /// response, after slow responses and after retries it may be up to four times as long. 0 never times out. 14 by
        /// default.
        timeout: u8;
        /// Sets the number of retries after a timeout or a sequence error, 0 to 7. 7 by default.
        retry_cnt: u8;
        /// Sets the number of retries after an RNR NAK, 0 to 6; 7, the default, retries without end.
        rnr_retry: u8;
        /// Sets the code, 0 to 31, of the time that the peer waits before it retries a message for which this queue pair
        /// had no receive (RNR NAK). 12 (0.64 ms) by default.
        min_rnr_timer: u8;
        /// Sets how many reads and atomics the queue pair may have outstanding as the requester. By default the device's
        /// limit, at most 16.
        max_rd_atomic: u8 => Some;
        /// Sets how many reads and atomics of the peer the queue pair executes at one time as the responder. By default the
        /// device's limit, at most 16.
        max_dest_rd_atomic: u8 => Some;
        /// Sets the traffic class of packets. 0 by default.
        traffic_class: u8;
        /// Sets the hop limit of packets. 64 by default.
        hop_limit: u8;
    }
}

impl PathOptions {
    /// Returns the path MTU; `None` if it was not set.
    pub const fn chosen_path_mtu(&self) -> Option<Mtu> {
        self.path_mtu
    }

    /// Returns the number of the local port.
    pub const fn chosen_port(&self) -> Port {
        match self.port_num {
            Some(port) => port,
            None => 1,
        }
    }

    /// Returns the number of retries after a timeout or a sequence error.
    pub const fn chosen_retry_cnt(&self) -> u8 {
        self.retry_cnt
    }

    /// Returns the number of retries after an RNR NAK.
    pub const fn chosen_rnr_retry(&self) -> u8 {
        self.rnr_retry
    }

    /// Returns the traffic class of packets.
    pub const fn chosen_traffic_class(&self) -> u8 {
        self.traffic_class
    }

    /// Returns the attributes with which [`Qp::connect`] modifies a reliable queue pair to INIT, to RTR and to RTS, for
    /// programs that modify it themselves.
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

    /// Returns the attributes for INIT, RTR and RTS. `asks` says whether they include those of a requester of reads,
    /// `answers` whether those of a responder.
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

    /// Returns these options; those that are not set are taken from the attributes that the program has set in INIT.
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
    /// Returns the endpoint by which a peer connects to this queue pair, at port 1 with its [default
    /// GID](crate::capability::PortAttributes::default_gid_index).
    ///
    /// # Errors
    /// The queue pair was destroyed, or its device removed.
    pub fn endpoint(&self) -> Result<QpEndpoint, VerbError> {
        let port = self.open_device().query_port(1)?;
        self.endpoint_at(1, port.default_gid_index())
    }

    /// Returns the endpoint by which a peer connects to this queue pair, at this port with the GID of this index.
    ///
    /// # Errors
    /// There is no such port or GID, the queue pair was destroyed, or its device removed.
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

    /// Returns the role of the queue pair in its connection. A variant without the attributes of a responder is a requester
    /// only, one without those of a requester is a responder only.
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

    /// Moves the queue pair from RESET to INIT, so that receives can be posted before it is connected and a message may
    /// follow at once. Connecting continues from INIT, and keeps attributes that its own options do not set.
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

    /// Connects the queue pair, from RESET or INIT to RTS, with a peer that connects to it in turn.
    ///
    /// It works alike on every transport; a device ignores attributes that it does not need.
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
    /// The error of the first step that failed; the queue pair stays in the state that it had reached.
    pub fn connect(&self, peer: &QpEndpoint, options: PathOptions) -> Started<()> {
        let steps = match self.connect_steps(peer, options) {
            Ok(steps) => steps,
            Err(error) => return Started::ready(Err(error)),
        };
        let (ops, peer) = (Arc::clone(self.ops()), *peer);
        self.request(Ok(()), move |reply| ops.connect(&peer, steps, reply))
    }

    /// Returns the attributes of the three steps of [`connect`](Self::connect): to INIT, to RTR and to RTS.
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
    /// The queue pair is a datagram one, which has no peer; there is no such port; or the device was removed.
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

    /// Modifies the queue pair with each of these attributes in turn, until one step fails. It is one control request.
    ///
    /// # Errors
    /// The error of the first step that failed; the queue pair stays in the state that it had reached.
    pub fn modify_in_turn(&self, steps: [QpAttributes; 3]) -> Started<()> {
        let ops = Arc::clone(self.ops());
        let check = steps.iter().try_for_each(|step| self.check_step(step));
        self.request(check, move |reply| modify_in_turn(ops, steps, reply))
    }

    /// Moves a datagram queue pair from RESET to RTS.
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
    /// The error of the first step that failed; the queue pair stays in the state that it had reached.
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

/// Connects two queue pairs of this process with each other, and permits each the rights `access` on the other's memory.
/// [`Access::empty`] is enough for sends.
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
/// [`VerbError::InvalidArgument`] if the two cannot be connected: they are of different services or transports, are
/// variants that do not fit together, or are the same queue pair; neither has changed then. Otherwise the error of the
/// first step that failed.
pub fn connect_pair(a: &Qp, b: &Qp, access: Access) -> Started<()> {
    connect_pair_with(a, b, PathOptions::new().access(access))
}

/// Connects two queue pairs as [`connect_pair`] does, with all options for both. Tests with lost packets choose a short
/// [timeout](PathOptions::timeout), after which a packet is retransmitted.
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
