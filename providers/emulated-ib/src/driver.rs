//! The driver: this transport's implementation of the engine's contract.

use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use polyverbs_engine::claims::check_reach;
use polyverbs_engine::device::Device;
use polyverbs_engine::driver::{Change, Driver, Executed};
use polyverbs_engine::express;
use polyverbs_engine::link::{Frame, Note};
use polyverbs_engine::management::ManagementAgents;
use polyverbs_engine::payload::Payload;
use polyverbs_engine::request::{Op, Request};
use polyverbs_engine::time::Time;
use polyverbs_management::address::SMI_QP;
use polyverbs_wire::mad::GSI_QP;
use verbs_api::objects::management::AgentRegistration;
use verbs_api::provider::carrier::{Carrier, ManagementPort};
use verbs_api::provider::{AgentOps, AgentSink};
use verbs_api::qp::{AddressVector, QpState, QpType};
use verbs_api::{
    Features, VerbError, WcStatus,
    capability::{DeviceAttributes, Mtu, PhysState},
    ids::{LinkAddress, Qpn},
    wr::{PostReason, WorkRequest},
};

use crate::header::{Body, Header, IpFields};
use crate::requester::Requester;
use crate::responder::{Responder, respond};
use crate::subnet::{self, Subnet};
use crate::{Cx, Qp, QpRef, Receiving, Sending, answer, caps, datagram, relay, requester};

/// The greatest distance from the expected PSN at which a request whose ICRC could not be verified is accepted.
const UNVERIFIED_PSN_RANGE: i32 = 1024;

static NEXT_EPOCH: AtomicU64 = AtomicU64::new(1);

/// Queue pair 1 of a device on an IP network, as the driver calls it.
pub trait ManagementQp: ManagementPort + Debug {
    /// Handles a frame that has arrived for queue pair 1.
    fn handle(self: Arc<Self>, device: &Device<InfiniBand>, frame: &Frame<'_, Header>);

    /// Reports to the connection manager that a connected queue pair has received its first packet.
    fn note_traffic(self: Arc<Self>, device: &Device<InfiniBand>, qp: Qpn);

    /// Reports to the connection manager that the system refuses, with this error number, to send management datagrams to
    /// an address.
    fn note_refusal(self: Arc<Self>, device: &Device<InfiniBand>, to: LinkAddress, errno: i32);
}

/// The driver of a device with InfiniBand's transport.
#[derive(Clone, Debug)]
pub struct InfiniBand {
    /// The name of the device.
    pub name: String,
    /// The address of the device on its network.
    pub address: LinkAddress,
    /// Whether the device has windows of type 2A instead of 2B.
    pub windows_2a: bool,
    /// Queue pair 1 for management datagrams, on an IP network only.
    pub management: Option<Arc<dyn ManagementQp>>,
    /// The port, if a subnet manager configures it; `None` for a port that is active from the beginning, as on Ethernet.
    pub subnet: Option<Subnet>,
}

impl Driver for InfiniBand {
    type Header = Header;
    type Requester = Requester;
    type Responder = Responder;

    fn attributes(&self) -> DeviceAttributes {
        let attributes = caps::attributes(&self.name, self.address, self.windows_2a);
        match &self.subnet {
            #[cfg(feature = "fabric")]
            Some(Subnet::Fabric(port)) => port.identify(attributes),
            _ => attributes,
        }
    }

    fn link_address(&self) -> LinkAddress {
        self.address
    }

    fn addresses_receives(&self) -> bool {
        true
    }

    #[inline]
    fn execute(qp: &Qp, half: &mut Sending, request: &Request<'_>, cx: &mut Cx<'_>) -> Executed {
        requester::execute(qp, half, request, cx)
    }

    #[inline]
    fn waits(half: &Sending) -> bool {
        requester::waits(half)
    }

    #[inline]
    fn express(
        qp: &Qp,
        half: &mut Sending,
        requests: &[WorkRequest<'_>],
        cx: &mut Cx<'_>,
    ) -> usize {
        if qp.qp_type != QpType::Rc {
            return 0;
        }
        express::run(qp, half, requests, cx)
    }

    fn pump(qp: &Qp, half: &mut Sending, cx: &mut Cx<'_>) {
        requester::pump(qp, half, cx);
    }

    fn handle_timeout(qp: &Qp, half: &mut Sending, now: Time, cx: &mut Cx<'_>) {
        requester::handle_timeout(qp, half, now, cx);
    }

    fn settle(qp: &Qp, cx: &mut Cx<'_>) {
        answer::acknowledge(qp, cx);
    }

    fn handle_frame(device: &Device<Self>, frame: Frame<'_, Header>, cx: &mut Cx<'_>) {
        // A frame with a wrong checksum is ignored (IBTA 9.6.1).
        if frame.damaged || !device.is_port_active() {
            return handle_unusual(device, &frame, cx);
        }
        let header = frame.header;
        if let Body::Refused(errno) = header.body {
            return handle_refusal(device, frame.from, header.dest_qp, errno, cx);
        }
        if header.dest_qp <= GSI_QP {
            return handle_management(device, &frame, cx);
        }
        if matches!(header.body, Body::Datagram(..)) {
            return datagram::receive(device, &frame, cx);
        }
        // A frame of another service is ignored by this queue pair (IBTA 9.6.1.2).
        let fits = |qp: &&Qp| {
            // For these two kinds the packet does not say whether it belongs to XRC.
            let any_service = matches!(header.body, Body::Congestion | Body::ExtensionResponse(..));
            any_service || qp.qp_type == header.service && qp.carries_srqn == header.xrc.is_some()
        };
        let Some(qp) = device.pinned_qp(header.dest_qp, cx.pin).filter(fits) else {
            return;
        };
        if header.ip.met_congestion() {
            answer::notify_congestion(qp, &frame, cx);
        }
        if header.body.is_request() {
            let mut half = qp.responder();
            let expected = half.driver.rest.peer_address == Some(frame.from)
                && header.may_come_from(half.driver.rest.peer_qpn);
            let believed = !header.icrc_unverified
                || header.psn.distance_from(half.driver.expected).abs() <= UNVERIFIED_PSN_RANGE;
            // An XRC initiator receives no requests.
            let takes = !qp.carries_srqn || qp.is_target();
            if !expected || !believed || !takes {
                half.counters.dropped += 1;
                return;
            }
            let response = respond(qp, &mut half, &header, &frame.payload, None, cx);
            answer::send(qp, &mut half, &header, response, cx);
            drop(half);
            if let Some((psn, aeth)) = header.acknowledges {
                let body = Body::Acknowledge;
                let ack = Header::new(qp.qp_type, header.src_qp, qp.qpn, psn, body);
                handle_answer(qp, frame.from, &Header { aeth, ..ack }, &Payload::Empty, cx);
            }
        } else {
            handle_answer(qp, frame.from, &header, &frame.payload, cx);
        }
    }

    fn handle_note(device: &Device<Self>, note: Note<'_>, cx: &mut Cx<'_>) {
        relay::handle_note(device, note, cx);
    }

    fn modify(
        qp: &Qp,
        sending: &mut Sending,
        receiving: &mut Receiving,
        change: &Change<'_>,
        _: &mut Cx<'_>,
    ) {
        let given = change.given;
        if matches!(change.to, QpState::Reset | QpState::Err) {
            relay::end(qp, receiving);
        }
        let (tx, rx) = (&mut sending.driver, &mut receiving.driver);
        rx.epoch = NEXT_EPOCH.fetch_add(1, Ordering::Relaxed);
        let set = |to: &mut u8, from: Option<u8>| *to = from.unwrap_or(*to);
        set(&mut tx.rest.timeout, given.timeout);
        set(&mut tx.rest.retry_cnt, given.retry_cnt);
        set(&mut tx.rest.rnr_retry, given.rnr_retry);
        set(&mut tx.rest.max_rd_atomic, given.max_rd_atomic);
        set(&mut rx.rest.max_dest_rd_atomic, given.max_dest_rd_atomic);
        set(&mut rx.rest.min_rnr_timer, given.min_rnr_timer);
        if let Some(access) = given.qp_access_flags {
            rx.access = access;
        }
        if let Some(qkey) = given.qkey {
            (tx.rest.qkey, rx.rest.qkey) = (qkey, qkey);
        }
        if let Some(mtu) = given.path_mtu {
            let shift = mtu.octets().trailing_zeros() as u8;
            (tx.mtu_shift, rx.mtu_shift) = (shift, shift);
        }
        if let Some(qpn) = given.dest_qp_num {
            (tx.rest.peer_qpn, rx.rest.peer_qpn) = (qpn.value(), qpn.value());
        }
        if let Some(path) = given.ah_attr {
            (tx.rest.peer_address, rx.rest.peer_address) = (Some(path.address), Some(path.address));
            let ip = IpFields {
                traffic_class: match qp.qp_type {
                    // RC reacts to congestion, so routers may mark its packets instead of dropping them.
                    QpType::Rc => IpFields::capable(path.traffic_class),
                    _ => path.traffic_class,
                },
                hop_limit: path.hop_limit,
            };
            (tx.rest.ip, rx.rest.ip) = (ip, ip);
            sending.direct = None;
        }
        if let Some(psn) = given.rq_psn {
            (rx.expected, rx.rest.msn) = (psn, 0);
        }
        if let Some(psn) = given.sq_psn {
            tx.begin(psn, qp.device.address());
        }
        if qp.qp_type == QpType::Ud && change.to == QpState::Rtr {
            let mtu = qp.device.port_attributes().active_mtu;
            tx.mtu_shift = mtu.octets().trailing_zeros() as u8;
        }
    }

    fn check_post(&self, qp: &Qp, request: &Request<'_>) -> Result<(), PostReason> {
        if let Op::Read(_, Some(_)) = request.op {
            let missing = Features::READ_WITH_INVALIDATE;
            return Err(PostReason::Unsupported { missing });
        }
        if qp.qp_type == QpType::Ud {
            let max = qp.device.network().link().and_then(|link| link.max_frame());
            let max = max.unwrap_or(Mtu::Mtu4096.octets() as usize) as u64;
            if request.length > max {
                return Err(PostReason::MessageTooLong {
                    max,
                    given: request.length,
                });
            }
        }
        Ok(())
    }

    fn management(&self) -> Option<&dyn ManagementAgents> {
        self.subnet.as_ref().map(Subnet::agents)
    }

    fn set_link_state(device: &Device<Self>, state: PhysState) {
        match &device.driver().subnet {
            Some(subnet) => subnet.set_link(state),
            None => device.follow_link(state),
        }
    }

    fn path_mtu(&self, wanted: Mtu, active: Mtu, sl: u8) -> Mtu {
        match &self.subnet {
            Some(subnet) => subnet.path_mtu(wanted.min(active), sl),
            None => wanted.min(active),
        }
    }

    fn register_agent(
        device: &Arc<Device<Self>>,
        registration: AgentRegistration,
        sink: Arc<dyn AgentSink>,
    ) -> Result<Box<dyn AgentOps>, VerbError> {
        match &device.driver().subnet {
            Some(Subnet::Own(port)) => subnet::register(device, port, registration, sink),
            // Agents in a fabric belong to its process.
            _ => Err(VerbError::UnsupportedVerb("register_agent")),
        }
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        self.subnet.as_ref().map_or_else(Vec::new, Subnet::counters)
    }

    fn carrier(device: &Device<Self>) -> Option<Carrier> {
        let driver = device.driver();
        match (&driver.management, &driver.subnet) {
            (Some(management), _) => Some(Carrier::Datagrams(Arc::clone(management) as _)),
            // Addresses of a connection manager are not known in a fabric.
            #[cfg(feature = "fabric")]
            (None, Some(Subnet::Fabric(_))) => None,
            _ => Some(Carrier::InProcess),
        }
    }

    fn check_path(&self, path: &AddressVector) -> Result<(), VerbError> {
        #[cfg(feature = "fabric")]
        if let Some(Subnet::Fabric(port)) = &self.subnet {
            port.prepare(path.address);
        }
        // A path to a LID has no routing header unless it leaves the subnet.
        if self.subnet.is_some() && matches!(path.address, LinkAddress::Lid(_)) {
            return Ok(());
        }
        if !path.is_global {
            let reason = "every path on Ethernet has a routing header";
            return Err(VerbError::argument("is_global", reason));
        }
        check_reach(self.address, path)
    }

    // The first packet counts as an RTU, which may have been lost or overtaken (IBTA 12.9.7).
    fn first_arrival(qp: &Qp, _: &mut Cx<'_>) {
        if qp.qp_type == QpType::Ud {
            return;
        }
        if let Some(management) = qp.device.driver().management.clone() {
            management.note_traffic(&qp.device, Qpn::new(qp.qpn));
        }
    }

    // Resumes a peer that waits for this queue pair at once, without waiting for the peer's timer.
    fn peer_ready(qp: &QpRef, cx: &mut Cx<'_>) {
        if qp.device.network().link().is_some() {
            return;
        }
        let (qpn, address) = {
            let half = qp.responder();
            (half.driver.rest.peer_qpn, half.driver.rest.peer_address)
        };
        let peer = address
            .and_then(|address| qp.device.network().device(address))
            .and_then(|device| device.qp(qpn));
        if let Some(peer) = peer {
            cx.effects.resume(peer.into_owner());
        }
    }

    fn before_flush(_: &Qp, half: &mut Sending, _: WcStatus, _: &mut Cx<'_>) {
        half.direct = None;
    }
}

// Handles a frame that is damaged, or arrives at a port that is not active. Of these only subnet management passes.
#[cold]
fn handle_unusual(device: &Device<InfiniBand>, frame: &Frame<'_, Header>, cx: &mut Cx<'_>) {
    if !frame.damaged && frame.header.dest_qp == SMI_QP {
        handle_management(device, frame, cx);
    }
}

// Handles a frame for queue pair 0 or 1. Without a subnet there are only connection managers, at queue pair 1.
#[cold]
fn handle_management(device: &Device<InfiniBand>, frame: &Frame<'_, Header>, cx: &mut Cx<'_>) {
    let driver = device.driver();
    match &driver.subnet {
        Some(Subnet::Own(port)) => return subnet::handle(device, port, frame, cx),
        // The process that holds the fabric has both queue pairs.
        #[cfg(feature = "fabric")]
        Some(Subnet::Fabric(_)) => return,
        None => {}
    }
    if let (GSI_QP, Some(management)) = (frame.header.dest_qp, driver.management.clone()) {
        management.handle(device, frame);
    }
}

// Handles the system's refusal to send frames of the queue pair `qpn`. A message of an unreliable service counts as sent.
#[cold]
fn handle_refusal(
    device: &Device<InfiniBand>,
    to: LinkAddress,
    qpn: u32,
    errno: i32,
    cx: &mut Cx<'_>,
) {
    if let (GSI_QP, Some(management)) = (qpn, device.driver().management.clone()) {
        return management.note_refusal(device, to, errno);
    }
    let is_reliable = |qp: &&Qp| qp.qp_type == QpType::Rc;
    let Some(qp) = device.pinned_qp(qpn, cx.pin).filter(is_reliable) else {
        return;
    };
    let mut half = qp.requester();
    if half.driver.rest.peer_address == Some(to) {
        requester::handle_refusal(qp, &mut half, errno, cx);
    }
}

fn handle_answer(
    qp: &Qp,
    from: LinkAddress,
    header: &Header,
    payload: &Payload<'_>,
    cx: &mut Cx<'_>,
) {
    let mut half = qp.requester();
    let rest = &half.driver.rest;
    if rest.peer_address == Some(from) && header.may_come_from(rest.peer_qpn) {
        if matches!(header.body, Body::Congestion) || header.ip.met_congestion() {
            requester::slow_down(&mut half);
        }
        requester::handle_answer(qp, &mut half, header, payload, cx);
    }
}
