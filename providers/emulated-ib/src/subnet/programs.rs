//! The agents of programs at a port: the MADs that they send and receive, and their outstanding requests.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};
use std::time::Duration;

use polyverbs_engine::effects::Effects;
use polyverbs_engine::time::Time;
use polyverbs_management::address::{SMI_QP, is_subnet_management};
use polyverbs_management::agent_table::{
    Limits, Patience, RegisterError, Registration, Request, SendError, Timeout,
};
use polyverbs_management::route::{self, Place};
use polyverbs_management::{Address, AgentId, AgentTable, GlobalRoute, NextHop, Recipient};
use polyverbs_wire::mad::{self, GSI_QP, MAD_LEN};
use verbs_api::VerbError;
use verbs_api::ids::{Gid, LinkAddress, Qpn};
use verbs_api::objects::management::{AgentEvent, AgentRegistration, MadAddress, MadPatience};
use verbs_api::provider::{AgentOps, AgentSink};
use verbs_api::qp::AddressVector;

use super::{Ends, PORT, SubnetPort};
use crate::Device;

/// How much the programs of a port may keep.
const LIMITS: Limits = Limits {
    agents: 1024,
    outstanding: 4096,
};

/// The agents of programs at a port.
pub(super) struct Programs {
    table: AgentTable<Arc<dyn AgentSink>>,
    /// The time of the next job that looks for timeouts; `None` if there is none.
    armed: Option<Duration>,
    /// Events that sinks get when no lock is held.
    events: VecDeque<(Arc<dyn AgentSink>, AgentEvent)>,
}

impl Default for Programs {
    fn default() -> Self {
        Self {
            table: AgentTable::new(LIMITS),
            armed: None,
            events: VecDeque::new(),
        }
    }
}

impl Programs {
    /// Gives a MAD to the agent that it is for. Returns whether no agent takes it, so that a request is to be refused.
    pub(super) fn receive(&mut self, mad: &[u8; MAD_LEN], from: &Address) -> bool {
        match self.table.receive(mad, from) {
            Recipient::Requester(agent) | Recipient::Agent(agent) => {
                let event = AgentEvent::Received {
                    mad: *mad,
                    from: to_verbs(from),
                };
                self.note(agent, event);
                false
            }
            Recipient::Nobody => true,
            Recipient::Unmatched => false,
        }
    }

    fn note(&mut self, agent: AgentId, event: AgentEvent) {
        if let Some(sink) = self.table.owner(agent) {
            self.events.push_back((Arc::clone(sink), event));
        }
    }

    /// Ends the requests whose time is over, and returns those that are sent again.
    fn expire(&mut self, now: Duration) -> Vec<Request> {
        let mut again = Vec::new();
        while let Some(timeout) = self.table.poll_timeout(now) {
            match timeout {
                Timeout::Retry(request) => again.push(request),
                Timeout::Expired(Request { agent, mad, to }) => {
                    let to = to_verbs(&to);
                    self.note(agent, AgentEvent::TimedOut { mad, to });
                }
            }
        }
        again
    }

    /// Flushes all outstanding requests, because the device is gone.
    fn flush(&mut self) {
        for Request { agent, mad, to } in self.table.flush() {
            let to = to_verbs(&to);
            self.note(agent, AgentEvent::Flushed { mad, to });
        }
    }
}

impl SubnetPort {
    /// Takes the events that wait for sinks.
    pub(super) fn take_events(&self) -> VecDeque<(Arc<dyn AgentSink>, AgentEvent)> {
        std::mem::take(&mut self.programs.lock().events)
    }

    /// Sends a MAD of an agent. A MAD that cannot leave because of the state of the port is lost.
    fn transmit(&self, device: &Device, mut mad: [u8; MAD_LEN], to: &Address) {
        let now = device.network().timers().now();
        let next = self.node.lock().send(PORT, &mut mad, moment(now));
        let mut effects = Effects::default();
        match next {
            NextHop::Address | NextHop::Port(_) => {
                let ends = Ends {
                    to: link_address(to),
                    dest_qp: to.qpn,
                    src_qp: queue_pair(&mad),
                    q_key: to.q_key,
                };
                self.send_mad(device, &ends, &mad, now, &mut effects);
            }
            NextHop::Here => self.deliver_here(&mut mad),
            // The agents of the port have taken it, and do not answer.
            NextHop::Lid(_) | NextHop::Dropped => {}
        }
        device.follow_agents(&mut effects);
        effects.run();
        self.report_events();
    }

    /// Gives a MAD of an agent that has no hop to make to the agents of this port.
    fn deliver_here(&self, mad: &mut [u8; MAD_LEN]) {
        let own = Address {
            lid: self.lid(),
            ..Address::default()
        };
        let is_refused = self.programs.lock().receive(mad, &own);
        let next = is_refused.then(|| self.node.lock().refuse(PORT, mad));
        if next == Some(NextHop::Here) {
            self.programs.lock().receive(mad, &own);
        }
    }

    /// Gives the events to the sinks. The caller holds no lock.
    fn report_events(&self) {
        for (sink, event) in self.take_events() {
            sink.event(event);
        }
    }

    /// Schedules a job for the time at which the first request times out.
    fn arm(self: &Arc<Self>, device: &Arc<Device>) {
        let mut programs = self.programs.lock();
        let Some(deadline) = programs.table.next_deadline() else {
            return;
        };
        if programs.armed.is_some_and(|armed| armed <= deadline) {
            return;
        }
        programs.armed = Some(deadline);
        drop(programs);
        let (port, weak) = (Arc::clone(self), Arc::downgrade(device));
        let job = move |now| port.expire(&weak, now);
        let at = Time::default().after(deadline);
        device.network().timers().add(at, Box::new(job));
    }

    fn expire(self: &Arc<Self>, device: &Weak<Device>, now: Time) {
        let mut programs = self.programs.lock();
        programs.armed = None;
        let Some(device) = device.upgrade().filter(|device| !device.is_removed()) else {
            programs.flush();
            drop(programs);
            return self.report_events();
        };
        let again = programs.expire(moment(now));
        drop(programs);
        for Request { mad, to, .. } in again {
            self.transmit(&device, mad, &to);
        }
        self.report_events();
        self.arm(&device);
    }
}

/// An agent of a program.
struct ProgramAgent {
    device: Weak<Device>,
    port: Arc<SubnetPort>,
    id: AgentId,
}

/// Registers an agent of a program at the port of a device.
///
/// # Errors
/// Another agent has one of the methods, the class does not exist, or there are too many agents.
pub(crate) fn register(
    device: &Arc<Device>,
    port: &Arc<SubnetPort>,
    registration: AgentRegistration,
    sink: Arc<dyn AgentSink>,
) -> Result<Box<dyn AgentOps>, VerbError> {
    let registration = Registration {
        class: registration.class,
        class_version: registration.class_version,
        oui: registration.oui,
        methods: registration.methods,
        takes_segments: registration.takes_segments,
    };
    let registered = port.programs.lock().table.register(sink, registration);
    let id = registered.map_err(|error| match error {
        RegisterError::Class => VerbError::argument("class", "no agent can have it"),
        RegisterError::InUse => VerbError::argument("methods", "another agent has one of them"),
        RegisterError::Full => VerbError::Resources("agents of the port"),
    })?;
    Ok(Box::new(ProgramAgent {
        device: Arc::downgrade(device),
        port: Arc::clone(port),
        id,
    }))
}

impl AgentOps for ProgramAgent {
    fn send(
        &self,
        mad: &[u8; MAD_LEN],
        to: &MadAddress,
        patience: Option<MadPatience>,
    ) -> Result<u64, VerbError> {
        let device = self.device.upgrade().filter(|device| !device.is_removed());
        let device = device.ok_or(VerbError::DeviceRemoved)?;
        let (mut mad, to) = (*mad, to_agents(to));
        check_route(&mad)?;
        let now = moment(device.network().timers().now());
        let patience = patience.map(|it| Patience {
            timeout: it.timeout,
            retries: it.retries,
        });
        let mut programs = self.port.programs.lock();
        let prepared = programs.table.send(self.id, &mut mad, &to, patience, now);
        drop(programs);
        prepared.map_err(refusal)?;
        let (_, transaction_id) = transaction(&mad);
        self.port.transmit(&device, mad, &to);
        self.port.arm(&device);
        device.network().send_off();
        Ok(transaction_id)
    }

    fn cancel(&self, class: u8, transaction_id: u64) -> bool {
        let mut programs = self.port.programs.lock();
        let Some(request) = programs.table.cancel(self.id, class, transaction_id) else {
            return false;
        };
        let Request { mad, to, .. } = request;
        let to = to_verbs(&to);
        programs.note(self.id, AgentEvent::Flushed { mad, to });
        drop(programs);
        self.port.report_events();
        true
    }
}

impl Drop for ProgramAgent {
    fn drop(&mut self) {
        let sink = self.port.programs.lock().table.unregister(self.id);
        // The sink is dropped with the lock released.
        drop(sink);
    }
}

/// Checks that the directed route of a MAD, if it has one, begins at this port.
fn check_route(mad: &[u8; MAD_LEN]) -> Result<(), VerbError> {
    let place = Place {
        is_switch: false,
        ports: PORT,
    };
    match route::depart(&mut { *mad }, place, PORT) {
        NextHop::Dropped => {
            let reason = "it is none, or its directed route does not begin at this port";
            Err(VerbError::argument("mad", reason))
        }
        _ => Ok(()),
    }
}

fn refusal(error: SendError) -> VerbError {
    match error {
        SendError::Agent => VerbError::Internal("an agent that is not registered"),
        SendError::Mad => VerbError::argument("mad", "its base version is not 1"),
        SendError::Duplicate => {
            VerbError::argument("transaction_id", "a request with it waits for an answer")
        }
        SendError::Full => VerbError::Resources("outstanding requests of the agent"),
    }
}

/// The class and the transaction ID of a MAD; zeros if it is none, which its agent could not have sent.
fn transaction(mad: &[u8; MAD_LEN]) -> (u8, u64) {
    mad::decode(mad).map_or((0, 0), |it| {
        (it.header.management_class(), it.header.transaction_id())
    })
}

/// The queue pair of this port by which a MAD leaves.
fn queue_pair(mad: &[u8; MAD_LEN]) -> u32 {
    let (class, _) = transaction(mad);
    match is_subnet_management(class) {
        true => SMI_QP,
        false => GSI_QP,
    }
}

/// A moment as the agents have it.
pub(super) fn moment(now: Time) -> Duration {
    Duration::from_nanos(now.0)
}

// A LID identifies a port. A port of an in-process network without one has a global route with its number instead.
const IN_PROCESS: u64 = 0xfd << 56;

/// The address of a port as the agents have it.
pub(super) fn agent_address(address: LinkAddress, (qpn, q_key): (u32, u32)) -> Address {
    let (lid, global) = match address {
        LinkAddress::Lid(lid) => (lid, None),
        LinkAddress::InProcess(number) => {
            let gid = u128::from(IN_PROCESS) << 64 | u128::from(number);
            let route = GlobalRoute {
                gid: gid.to_be_bytes(),
                ..GlobalRoute::default()
            };
            (0, Some(route))
        }
        _ => (0, None),
    };
    Address {
        qpn,
        q_key,
        lid,
        global,
        ..Address::default()
    }
}

fn link_address(address: &Address) -> LinkAddress {
    match &address.global {
        Some(route) => LinkAddress::InProcess(u128::from_be_bytes(route.gid) as u64),
        None => LinkAddress::Lid(address.lid),
    }
}

fn to_agents(to: &MadAddress) -> Address {
    Address {
        sl: to.path.sl,
        path_bits: to.path.src_path_bits,
        pkey_index: to.pkey_index,
        ..agent_address(to.path.address, (to.qpn.value(), to.qkey))
    }
}

fn to_verbs(address: &Address) -> MadAddress {
    MadAddress {
        path: AddressVector {
            is_global: false,
            sl: address.sl,
            src_path_bits: address.path_bits,
            ..AddressVector::new(link_address(address), Gid::default(), PORT)
        },
        qpn: Qpn::new(address.qpn),
        qkey: address.q_key,
        pkey_index: address.pkey_index,
    }
}
