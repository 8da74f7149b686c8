//! Three forms of the driver. Each lists all that it overrides.

use std::sync::Arc;

use polyverbs_engine::express::{self, Express};
use polyverbs_engine::management::ManagementAgents;
use polyverbs_engine::qp::{Qp, QpRef, Responder};
use polyverbs_engine::qpn::QpnPool;
use verbs_api::capability::{Mtu, PhysState};
use verbs_api::objects::management::AgentRegistration;
use verbs_api::provider::{AgentOps, AgentSink};
use verbs_api::qp::AddressVector;
use verbs_api::wr::{PostReason, WorkRequest};
use verbs_api::{Access, VerbError, WcStatus};

use crate::agents::ProgramAgent;
use crate::responder::Asker;
use crate::{Receiving, Sending, form};

form! {
    /// Overrides nothing.
    Plain:
}

form! {
    /// Numbers its queue pairs itself, checks requests, and has counters of its own.
    Partial:
    fn alloc_qpn(&self, _: &QpnPool) -> Option<u32> {
        self.0.take_number()
    }

    fn free_qpn(&self, _: &QpnPool, qpn: u32) {
        self.0.give_back(qpn);
    }

    fn check_post(&self, _: &Qp<Self>, request: &Request<'_>) -> Result<(), PostReason> {
        self.0.check_post(request)
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        self.0.counters()
    }
}

form! {
    /// Overrides whatever a transport without a wire may do differently.
    Full:
    fn alloc_qpn(&self, _: &QpnPool) -> Option<u32> {
        self.0.take_number()
    }

    fn free_qpn(&self, _: &QpnPool, qpn: u32) {
        self.0.give_back(qpn);
    }

    fn check_post(&self, _: &Qp<Self>, request: &Request<'_>) -> Result<(), PostReason> {
        self.0.check_post(request)
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        self.0.counters()
    }

    fn management(&self) -> Option<&dyn ManagementAgents> {
        Some(&self.0.agents)
    }

    fn register_agent(
        device: &Arc<Device<Self>>,
        _: AgentRegistration,
        sink: Arc<dyn AgentSink>,
    ) -> Result<Box<dyn AgentOps>, VerbError> {
        device.driver().0.hooks.note("register_agent");
        Ok(Box::new(ProgramAgent::new(sink)))
    }

    fn set_link_state(device: &Device<Self>, state: PhysState) {
        let common = &device.driver().0;
        common.hooks.note("set_link_state");
        common.agents.set_link(state);
    }

    fn express(
        qp: &Qp<Self>,
        half: &mut Requester<Self>,
        requests: &[WorkRequest<'_>],
        cx: &mut Cx<'_, Self>,
    ) -> usize {
        note(qp, "express");
        express::run(qp, half, requests, cx)
    }

    fn addresses_receives(&self) -> bool {
        false
    }

    fn path_mtu(&self, wanted: Mtu, active: Mtu, sl: u8) -> Mtu {
        self.0.hooks.note("path_mtu");
        // The transport has two virtual lanes: one for short packets, and one for long ones.
        let of_lane = if sl == SHORT_PACKETS { Mtu::Mtu256 } else { self.0.max_mtu };
        wanted.min(active).min(of_lane)
    }

    fn check_path(&self, path: &AddressVector) -> Result<(), VerbError> {
        self.0.hooks.note("check_path");
        match path.traffic_class {
            0 => Ok(()),
            _ => Err(VerbError::argument("traffic_class", "the transport has none")),
        }
    }

    fn before_flush(
        qp: &Qp<Self>,
        half: &mut Requester<Self>,
        _: WcStatus,
        _: &mut Cx<'_, Self>,
    ) {
        note(qp, "before_flush");
        half.direct = None;
    }

    fn disconnect(qp: &Qp<Self>, half: &mut Requester<Self>, _: &mut Cx<'_, Self>) {
        note(qp, "disconnect");
        half.driver.stop_waiting();
    }

    fn peer_ready(qp: &QpRef<Self>, cx: &mut Cx<'_, Self>) {
        note(qp, "peer_ready");
        requester::peer_ready(qp, cx);
    }
}

/// The service level whose virtual lane carries short packets only.
pub const SHORT_PACKETS: u8 = 1;

fn note(qp: &Qp<Full>, call: &'static str) {
    qp.device.driver().0.hooks.note(call);
}

impl Express for Full {
    const READ_SINK: Access = Access::LOCAL_WRITE;

    fn is_ready(qp: &Qp<Self>, _: &Sending, responder: &Responder<Self>) -> bool {
        responder.takes_express()
            && Asker::on(qp).is_at_other_end_of(&responder.driver)
            && responder.device.is_port_active()
    }

    fn permits(receiving: &Receiving) -> Access {
        receiving.access()
    }

    fn has_read_budget(_: &Sending, receiving: &Receiving) -> bool {
        receiving.has_read_budget()
    }
}
