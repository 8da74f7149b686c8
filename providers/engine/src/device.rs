//! A software device: the state that all open contexts of the device share.

pub mod driver;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use driver::Driver;
use verbs_api::objects::ObjectId;
use verbs_api::provider::{EventSink, QpInit};
use verbs_api::qp::{QpCap, QpCounters, QpType};
use verbs_api::{
    ArgumentReason, Features, Limit, Operations, Transport, VerbError,
    capability::{
        AtomicScope, Baseline, BaselineGaps, DeviceAttributes, GidSlot, Identity, Limits, Mtu,
        PhysState, PortAttributes, PortState,
    },
    event::{EventSubject, EventType},
    extension::{ExtensionOperation, Extensions},
    ids::{Gid, LinkAddress},
};

use crate::commands::Commands;
use crate::directory::Directory;
use crate::effects::Effects;
use crate::emulation::{
    DomainId, Domains, EMULATED, Emulations, Neighbours, OperationRef, QpExtensions, Target,
};
use crate::key_table::KeyTable;
use crate::link::{Frame, Note};
use crate::management::{Arrival, Handled, MAD_LEN, ManagementAgents, PortChange};
use crate::network::{Member, Network, Polled, Progress};
use crate::operation::{MaskedAtomics, OperationEmulation};
use crate::pin::{Pin, pin};
use crate::pool::Pool;
use crate::qp::{Qp, QpParts, QpRef};
use crate::qpn::QpnPool;
use crate::quota::Quota;
use crate::rules::{self, Rule};
use crate::sync::Mutex;
use crate::time::Time;
use crate::trace::Trace;

/// Options of a device that apply whatever its driver is.
#[derive(Clone)]
pub struct DeviceOptions {
    /// The command latency: the time that each control verb takes.
    pub command_latency: Duration,
    /// Whether a request keeps its slot of the send queue, as on hardware, until the program has polled its completion or
    /// that of a later request. If `false`, the slot is free as soon as the request has completed.
    pub strict_signaling: bool,
    /// The extensions that the device emulates; `None` for all that are linked into the program.
    pub extensions: Option<Extensions>,
    /// Features that the device neither reports nor offers, although its driver and extensions have them.
    pub without: Features,
    /// Upper bounds for the limits that the device reports: each limit is the smaller of the driver's value and the one
    /// given here.
    pub limits: Vec<(Limit, u64)>,
    /// Abilities of the baseline that the device lacks although its driver has them.
    pub gaps: BaselineGaps,
    /// What the device reports in place of what it is.
    pub appearance: Appearance,
    /// The numbers that new queue pairs get: the first, and the one after the last.
    pub qp_numbers: (u32, u32),
}

/// What a device reports in place of what it is, so that it looks like a device of another kind. A field that is `None` changes nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Appearance {
    /// The vendor and the model.
    pub identity: Option<Identity>,
    /// With respect to what atomics are atomic. The processor's own instructions carry them out in any case.
    pub atomic_cap: Option<AtomicScope>,
    /// The MTU that the port has at present, if it is smaller than the one that its link carries.
    pub active_mtu: Option<Mtu>,
    /// The layout of the port's GID table.
    pub gids: Option<Vec<GidSlot>>,
}

impl Appearance {
    fn apply(&self, attributes: &mut DeviceAttributes) {
        if let Some(identity) = &self.identity {
            attributes.identity.clone_from(identity);
        }
        if let Some(scope) = self.atomic_cap {
            attributes.atomic_cap = scope;
        }
        for port in &mut attributes.ports {
            if let Some(mtu) = self.active_mtu {
                port.active_mtu = port.active_mtu.min(mtu);
            }
            if let Some(slots) = &self.gids {
                port.gids = GidSlot::lay_out(slots, &port.gids);
            }
        }
    }
}

impl Default for DeviceOptions {
    /// No latency, slots freed at once, the linked extensions with every feature, the driver's own limits, and almost all
    /// queue pair numbers.
    fn default() -> Self {
        Self {
            command_latency: Duration::ZERO,
            strict_signaling: false,
            extensions: None,
            without: Features::empty(),
            limits: Vec::new(),
            gaps: BaselineGaps::empty(),
            appearance: Appearance::default(),
            qp_numbers: (0x11, 0xff_ffff),
        }
    }
}

/// A software device, which all programs' contexts share. `D` is the driver of its transport.
pub struct Device<D: Driver> {
    pub(crate) me: Weak<Self>,
    driver: D,
    attributes: Mutex<DeviceAttributes>,
    limits: Limits,
    features: Features,
    pub(crate) emulations: Emulations,
    keys: KeyTable,
    network: Arc<Network<Self>>,
    commands: Arc<Commands>,
    qpns: QpnPool,
    pub(crate) pool: Pool<Qp<D>>,
    // The queue pairs by number: the queue pair of each arriving frame is found here.
    qps: Directory<Qp<D>>,
    groups: Mutex<HashMap<Gid, Vec<QpRef<D>>>>,
    listeners: Mutex<Vec<Weak<dyn EventSink>>>,
    retired: Mutex<QpCounters>,
    pub(crate) next_pd: AtomicU32,
    removed: AtomicBool,
    port_active: AtomicBool,
    address: LinkAddress,
    pub(crate) pds: Arc<Quota>,
    pub(crate) mrs: Arc<Quota>,
    pub(crate) mws: Arc<Quota>,
    pub(crate) ahs: Arc<Quota>,
    pub(crate) cqs: Arc<Quota>,
    pub(crate) srqs: Arc<Quota>,
    queue_pairs: Arc<Quota>,
    pub(crate) windows: Mutex<HashMap<u32, ObjectId>>,
    qkey_violations: AtomicU64,
    /// The numbers of queue pairs and shared receive queues of this device: the first, and the one after the last.
    numbers: (u32, u32),
    pub(crate) domains: Arc<Domains>,
    pub(crate) tracer: OnceLock<Trace>,
    pub(crate) strict_signaling: bool,
}

impl<D: Driver> Device<D> {
    /// Creates a device with this driver and adds it to the network.
    ///
    /// # Errors
    /// The driver's attributes lack a part or contradict the transport, or the network has a device at this address
    /// already.
    pub fn new(
        driver: D,
        network: &Arc<Network<Self>>,
        options: DeviceOptions,
    ) -> Result<Arc<Self>, VerbError> {
        let mut attributes = driver.attributes();
        check_description(&attributes)?;
        let addresses_receives = driver.addresses_receives();
        let emulations = claim(&mut attributes, &options, addresses_receives)?;
        for &(limit, most) in &options.limits {
            attributes.limits.lower(limit, most);
        }
        attributes.gaps |= options.gaps;
        if attributes.gaps.contains(BaselineGaps::NO_ATOMICS) {
            attributes.atomic_cap = AtomicScope::None;
        }
        options.appearance.apply(&mut attributes);
        let served =
            u64::from(attributes.limits.max_qp) * u64::from(attributes.limits.max_qp_rd_atom);
        attributes.limits.lower(Limit::MaxResRdAtom, served);
        let most = network.link().and_then(|link| link.max_frame());
        for port in &mut attributes.ports {
            if let Some(agents) = driver.management() {
                agents.describe(port);
            }
            port.active_mtu = carried(port.active_mtu, most);
        }
        let is_active = attributes.ports[0].state.is_active();
        let address = driver.link_address();
        let limits = attributes.limits;
        let (first, end) = options.qp_numbers;
        let device = Arc::new_cyclic(|me| Self {
            me: me.clone(),
            limits,
            features: attributes.features,
            keys: KeyTable::new(limits.max_mr.saturating_add(limits.max_mw), || {
                network.timers().random()
            }),
            attributes: Mutex::new(attributes),
            driver,
            emulations,
            network: Arc::clone(network),
            commands: Commands::new(
                Arc::clone(network) as Arc<dyn Progress>,
                Arc::clone(network.timers()),
                options.command_latency,
            ),
            qpns: QpnPool::new(first, end, network.timers().random() as u32),
            pool: Pool::default(),
            qps: Directory::new(),
            groups: Mutex::default(),
            listeners: Mutex::default(),
            retired: Mutex::default(),
            next_pd: AtomicU32::new(1),
            removed: AtomicBool::new(false),
            port_active: AtomicBool::new(is_active),
            address,
            pds: Quota::new(limits.max_pd, "max_pd"),
            mrs: Quota::new(limits.max_mr, "max_mr"),
            mws: Quota::new(limits.max_mw, "max_mw"),
            ahs: Quota::new(limits.max_ah, "max_ah"),
            cqs: Quota::new(limits.max_cq, "max_cq"),
            srqs: Quota::new(limits.max_srq, "max_srq"),
            queue_pairs: Quota::new(limits.max_qp, "max_qp"),
            windows: Mutex::default(),
            qkey_violations: AtomicU64::new(0),
            numbers: (first, end),
            domains: Arc::new(Domains::new(me.clone() as Weak<dyn Neighbours>)),
            tracer: OnceLock::new(),
            strict_signaling: options.strict_signaling,
        });
        if !network.join(address, &device) {
            return Err(VerbError::argument("address", "has a device already"));
        }
        Ok(device)
    }

    /// The driver of the device's transport.
    #[inline]
    pub fn driver(&self) -> &D {
        &self.driver
    }

    /// The network to which the device belongs.
    #[inline]
    pub fn network(&self) -> &Arc<Network<Self>> {
        &self.network
    }

    /// The table of the device's memory keys.
    #[inline]
    pub fn keys(&self) -> &KeyTable {
        &self.keys
    }

    /// The table of memory keys if work requests may register, invalidate and bind keys on this device; `None` otherwise.
    #[inline]
    pub fn memory_management(&self) -> Option<&KeyTable> {
        self.features.intersects(EMULATED).then_some(&self.keys)
    }

    /// Returns the device's emulation of an extension's operation; `None` if the device does not have the operation.
    pub fn operation(
        &self,
        operation: &'static ExtensionOperation,
    ) -> Option<&'static dyn OperationEmulation> {
        let is_it = |emulation: &&OperationRef| emulation.operation() == operation;
        self.emulations.operations.iter().find(is_it).copied()
    }

    /// Returns the device's emulation of the operation with these numbers on the wire; `None` if the device does not have
    /// it.
    pub fn operation_numbered(
        &self,
        extension: u32,
        operation: u16,
    ) -> Option<&'static dyn OperationEmulation> {
        let numbers = (extension, operation);
        let numbers_of = |of: &ExtensionOperation| (of.extension_id(), of.number());
        let is_it = |emulation: &&OperationRef| numbers_of(emulation.operation()) == numbers;
        self.emulations.operations.iter().find(is_it).copied()
    }

    /// Returns the device's emulation of masked atomics; `None` if it has none.
    pub fn masked_atomics(&self) -> Option<&'static dyn MaskedAtomics> {
        self.emulations.masked_atomics
    }

    /// The features that the device reports.
    pub fn features(&self) -> Features {
        self.features
    }

    /// Checks that the device reports the `needed` features. The device refuses any other feature, even if the program was
    /// granted it.
    pub(crate) fn check_claimed(&self, needed: Features) -> Result<(), VerbError> {
        let missing = needed - self.features;
        if missing.is_empty() {
            Ok(())
        } else {
            Err(VerbError::Unsupported { missing })
        }
    }

    /// Checks that the device reports no gap in this part of the baseline. The device refuses a part with a gap, even if
    /// the program was granted it.
    pub(crate) fn check_baseline(&self, taken: Baseline) -> Result<(), VerbError> {
        let gaps = self.attributes.lock().gaps & taken.gaps();
        if gaps.is_empty() {
            Ok(())
        } else {
            Err(VerbError::BaselineGap(gaps))
        }
    }

    /// The limits of the device.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// The command interface, which carries out the device's control verbs.
    pub fn commands(&self) -> &Arc<Commands> {
        &self.commands
    }

    /// Calls `trace` with every operation that queue pairs created from now on execute. These queue pairs do not use
    /// [`Driver::express`], which reports nothing. Only the first call has an effect.
    pub fn trace(&self, trace: Trace) {
        let _ = self.tracer.set(trace);
    }

    /// Returns whether the device was removed.
    pub fn is_removed(&self) -> bool {
        self.removed.load(Ordering::Acquire)
    }

    /// Returns the current attributes of the device and its port.
    pub(crate) fn attributes(&self) -> DeviceAttributes {
        let mut attributes = self.attributes.lock().clone();
        attributes.ports[0].qkey_viol_cntr = self.qkey_violations.load(Ordering::Relaxed) as u32;
        attributes
    }

    /// Returns the current attributes of the port.
    pub fn port_attributes(&self) -> PortAttributes {
        self.attributes().ports.swap_remove(0)
    }

    /// Returns the sum of the counters of all queue pairs that the device has or had.
    pub(crate) fn counters(&self) -> QpCounters {
        // The pin ends after the lock, as pins do.
        let _pin = pin();
        let (mut all, live) = {
            let retired = self.retired.lock();
            (*retired, self.qps.all())
        };
        for qp in live {
            all.add(&qp.counters());
        }
        all
    }

    /// Reports the device's own events, such as port changes and its removal, to `events` from now on.
    pub(crate) fn listen(&self, events: &Arc<dyn EventSink>) {
        self.listeners.lock().push(Arc::downgrade(events));
    }

    /// Stops reporting the device's own events to `events`.
    pub(crate) fn listen_no_more(&self, events: &Arc<dyn EventSink>) {
        let mut listeners = self.listeners.lock();
        listeners.retain(|listener| !std::ptr::addr_eq(listener.as_ptr(), Arc::as_ptr(events)));
    }

    /// Counts a received datagram with a wrong Q_Key, for the port attribute of such violations.
    pub fn note_qkey_violation(&self) {
        self.qkey_violations.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the queue pair with this number, which stays valid as long as the thread is pinned; `None` if there is none.
    #[inline]
    pub fn pinned_qp<'p>(&self, qpn: u32, pin: &'p Pin) -> Option<&'p Qp<D>> {
        self.qps.get(qpn, pin).map(|qp| &**qp)
    }

    /// Returns a counted reference to the queue pair with this number; `None` if there is none.
    pub fn qp(&self, qpn: u32) -> Option<QpRef<D>> {
        self.qps.find(qpn)
    }

    /// Returns references to all queue pairs.
    pub fn all_qps(&self) -> Vec<QpRef<D>> {
        self.qps.all()
    }

    /// The numbers of queue pairs and shared receive queues of this device: the first, and the one after the last. Other
    /// processes at the device's address have other numbers.
    pub fn numbers(&self) -> (u32, u32) {
        self.numbers
    }

    /// The domains that this device shares with other processes at its address.
    pub fn domains(&self) -> &Domains {
        &self.domains
    }

    /// Makes a stand-in for the queue pair `qpn` of another process, ready to receive requests that name `target`. No frame
    /// finds it, and it reports no events. It ends when the result is dropped.
    pub fn stand_in(&self, qpn: u32, target: &Target) -> Option<QpRef<D>> {
        let init = QpInit {
            id: ObjectId::new(0, 0),
            qp_type: QpType::Rc,
            send_cq: Arc::clone(&target.cq) as _,
            recv_cq: Arc::clone(&target.cq) as _,
            srq: None,
            cap: QpCap::default(),
            reserved_wr: 0,
            sq_sig_all: false,
            operations: Operations::empty(),
            extensions: Vec::new(),
        };
        let parts = QpParts {
            send_cq: Arc::clone(&target.cq),
            recv_cq: Arc::clone(&target.cq),
            srq: None,
            extensions: Some(QpExtensions::of_stand_in()),
            events: Arc::new(NoEvents),
        };
        let qp = Qp::new(&self.me.upgrade()?, qpn, target.srq.pd, &init, parts);
        qp.be_ready();
        Some(qp)
    }

    /// Returns references to the queue pairs that are attached to this multicast group.
    pub fn group(&self, group: Gid) -> Vec<QpRef<D>> {
        let groups = self.groups.lock();
        if rules::is_broken(Rule::GroupMembersOnly) {
            return groups.values().flatten().cloned().collect();
        }
        groups.get(&group).cloned().unwrap_or_default()
    }

    pub(crate) fn make_qp(
        self: &Arc<Self>,
        pd: u32,
        init: &QpInit,
        parts: QpParts,
    ) -> Result<QpRef<D>, VerbError> {
        self.queue_pairs.take()?;
        let Some(qpn) = self.driver.alloc_qpn(&self.qpns) else {
            self.queue_pairs.give_back();
            return Err(VerbError::Resources("queue pair numbers"));
        };
        let qp = Qp::new(self, qpn, pd, init, parts);
        self.qps.insert(qpn, &qp);
        Ok(qp)
    }

    pub(crate) fn forget_qp(&self, qp: &Qp<D>) {
        let removed = {
            // A thread that sums the counters finds this queue pair either in the directory or in `retired`.
            let mut retired = self.retired.lock();
            let removed = self.qps.remove(qp.qpn);
            if removed.is_some() {
                retired.add(&qp.counters());
            }
            removed
        };
        if let Some(removed) = removed {
            drop(removed);
            self.driver.free_qpn(&self.qpns, qp.qpn);
            self.queue_pairs.give_back();
        }
    }

    /// Returns the identifier under which the device stores the members of a multicast group, and by which frames name it:
    /// that of the IP address by which the network carries it. `None` if `group` is no group. The program may name the group
    /// by another identifier.
    pub fn carried_group(&self, group: Gid) -> Option<Gid> {
        let address = group.group_address()?;
        let link = self.network.link();
        Some(
            link.map_or(address, |link| link.group_address(address))
                .into(),
        )
    }

    fn named(&self, group: Gid) -> Result<Gid, VerbError> {
        self.carried_group(group)
            .ok_or_else(|| VerbError::argument("gid", "is no multicast group"))
    }

    pub(crate) fn join_group(&self, group: Gid, qp: &QpRef<D>) -> Result<(), VerbError> {
        let group = self.named(group)?;
        if qp.qp_type != QpType::Ud {
            let reason = "only UD queue pairs join multicast groups";
            return Err(VerbError::argument("qp", reason));
        }
        self.check_claimed(Features::MULTICAST)?;
        let mut groups = self.groups.lock();
        if !groups.contains_key(&group) && groups.len() >= self.limits.max_mcast_grp as usize {
            return Err(VerbError::Resources("multicast groups (max_mcast_grp)"));
        }
        if let (false, Some(link)) = (groups.contains_key(&group), self.network.link()) {
            link.join(group)?;
        }
        let members = groups.entry(group).or_default();
        if members.iter().any(|member| member.qpn == qp.qpn) {
            return Err(VerbError::argument("gid", "is attached already"));
        }
        if members.len() >= self.limits.max_mcast_qp_attach as usize {
            let what = "attachments of the group (max_mcast_qp_attach)";
            return Err(VerbError::Resources(what));
        }
        members.push(qp.clone());
        Ok(())
    }

    pub(crate) fn leave_group(&self, group: Gid, qpn: u32) -> Result<(), VerbError> {
        let group = self.named(group)?;
        let mut groups = self.groups.lock();
        let attached = groups.get_mut(&group).and_then(|members| {
            let index = members.iter().position(|member| member.qpn == qpn)?;
            Some((members, index))
        });
        let (members, index) = attached.ok_or(VerbError::argument("gid", "is not attached"))?;
        members.remove(index);
        if members.is_empty() {
            groups.remove(&group);
            if let Some(link) = self.network.link() {
                link.leave(group);
            }
        }
        Ok(())
    }

    // Calls the driver, with `now` if the link needs the exact time, and then runs the effects with no lock held.
    #[inline]
    fn call(&self, now: Time, driver: impl FnOnce(&mut Cx<'_, D>)) {
        let now = self.network.needs_precise_clock().then_some(now);
        Cx::run(self, now, driver);
    }

    /// Sets the state of the port, and reports a change to the programs. Queue pairs keep their state. While the port is
    /// not active, InfiniBand's frames are lost, and requests of iWARP wait.
    pub fn set_port_state(&self, state: PortState) {
        let mut attributes = self.attributes.lock();
        let port = &mut attributes.ports[0];
        port.phys_state = match state {
            PortState::Down => PhysState::Disabled,
            _ => PhysState::LinkUp,
        };
        let before = std::mem::replace(&mut port.state, state);
        let changed = before.is_active() != state.is_active();
        drop(attributes);
        self.port_active.store(state.is_active(), Ordering::Relaxed);
        if changed {
            let event = match state.is_active() {
                true => EventType::PortActive,
                false => EventType::PortErr,
            };
            self.tell(event, EventSubject::Port(1));
        }
    }

    /// Returns whether the physical link of the port is up, so that subnet management passes whatever the state of the port.
    pub fn is_link_up(&self) -> bool {
        self.attributes.lock().ports[0].phys_state == PhysState::LinkUp
    }

    /// Sets the speed of the port that its attributes report, in Mb/s, and reports a change to the programs. Frames are not delayed
    /// for it.
    pub fn set_port_speed(&self, speed: u64) {
        let before = std::mem::replace(&mut self.attributes.lock().ports[0].speed, speed);
        if before != speed {
            self.tell(EventType::DeviceSpeedChange, EventSubject::Device);
        }
    }

    /// Returns whether the port is active and so carries frames.
    #[inline]
    pub fn is_port_active(&self) -> bool {
        self.port_active.load(Ordering::Relaxed)
    }

    /// The device's address on the network.
    #[inline]
    pub fn address(&self) -> LinkAddress {
        self.address
    }

    /// Removes the device, as if it were unplugged: pending verbs end with an error, all queue pairs fail and are flushed,
    /// and programs get an event. Later calls do nothing.
    pub fn remove(&self) {
        if self.removed.swap(true, Ordering::AcqRel) {
            return;
        }
        self.commands.remove();
        let mut effects = Effects::default();
        for qp in self.qps.all() {
            qp.remove(&mut effects);
        }
        effects.run();
        self.network.progress();
        self.tell(EventType::DeviceRemoved, EventSubject::Device);
    }

    /// Handles a MAD that has arrived for queue pair 0 or 1 of this device: its agents answer, and the port follows the changes
    /// that the MAD has made. The caller holds no lock that [`Driver::set_link_state`] takes.
    pub fn handle_mad(
        &self,
        mad: &mut [u8; MAD_LEN],
        arrival: &Arrival,
        cx: &mut Cx<'_, D>,
    ) -> Handled {
        let Some(agents) = self.driver().management() else {
            return Handled::Consumed;
        };
        let handled = agents.handle_mad(mad, arrival, cx.now());
        self.follow(agents, &mut cx.effects);
        handled
    }

    /// Has the driver bring the link into this state, and lets the port follow.
    pub fn set_link_state(&self, state: PhysState) {
        D::set_link_state(self, state);
        let mut effects = Effects::default();
        self.follow_agents(&mut effects);
        effects.run();
    }

    /// Lets a port without agents follow its link: it is down while the link is disabled, and active otherwise.
    pub fn follow_link(&self, state: PhysState) {
        self.set_port_state(match state {
            PhysState::Disabled => PortState::Down,
            _ => PortState::Active,
        });
    }

    /// Lets the port follow the changes that its agents have made without a MAD that has arrived.
    pub fn follow_agents(&self, effects: &mut Effects) {
        if let Some(agents) = self.driver().management() {
            self.follow(agents, effects);
        }
    }

    /// Makes the attributes of the port those that the agents describe, and then reports the changes by events.
    fn follow(&self, agents: &dyn ManagementAgents, effects: &mut Effects) {
        let mut events = Vec::new();
        while let Some(change) = agents.poll_change() {
            match change {
                PortChange::Event(event) => events.push(event),
                PortChange::Link(state) => D::set_link_state(self, state),
            }
        }
        self.describe_port(agents);
        let listeners = self.listeners();
        for event in events {
            for listener in &listeners {
                effects.event(listener, event, EventSubject::Port(1));
            }
        }
    }

    /// Makes the attributes of the port those that the agents describe.
    fn describe_port(&self, agents: &dyn ManagementAgents) {
        let most = self.network.link().and_then(|link| link.max_frame());
        let mut attributes = self.attributes.lock();
        let port = &mut attributes.ports[0];
        agents.describe(port);
        port.active_mtu = carried(port.active_mtu, most);
        let is_active = port.state.is_active();
        self.port_active.store(is_active, Ordering::Relaxed);
    }

    /// Returns the sinks of the device's own events.
    fn listeners(&self) -> Vec<Arc<dyn EventSink>> {
        let listeners = self.listeners.lock();
        listeners.iter().filter_map(Weak::upgrade).collect()
    }

    fn tell(&self, event: EventType, subject: EventSubject) {
        for listener in self.listeners() {
            listener.event(event, subject);
        }
    }
}

impl<D: Driver> Device<D> {
    // Passes a message of another process to its domain: the identity of the domain, a number of the process, and the rest.
    fn pass_to_domain(&self, message: &[u8]) {
        let parts = message.split_first_chunk().and_then(|(id, rest)| {
            let (from, rest) = rest.split_first_chunk()?;
            Some((self.domains.domain(id)?, u32::from_ne_bytes(*from), rest))
        });
        if let Some((domain, from, rest)) = parts {
            let rest = rest.to_vec();
            // The domain may destroy queue pairs, so no lock is held.
            let job = move |_| domain.handle_message(from, &rest);
            self.network.serve_later(Box::new(job));
        }
    }
}

impl<D: Driver> Neighbours for Device<D> {
    fn send_message(&self, number: u32, domain: &DomainId, message: &[u8]) {
        if let Some(link) = self.network.link() {
            let from = self.numbers.0.to_ne_bytes();
            link.send_message(number, [&[TO_DOMAIN], &domain[..], &from, message].concat());
            self.network.progress();
        }
    }
}

/// The first byte of a message to a domain. The messages of drivers begin with another one.
const TO_DOMAIN: u8 = 0;

/// The sink of a stand-in, whose events are reported by the queue pair for which it stands.
struct NoEvents;

impl EventSink for NoEvents {
    fn event(&self, _: EventType, _: EventSubject) {}
}

// Returns the largest MTU that is at most `active` and whose payload fits into a frame of `most` bytes; `None` is no bound.
fn carried(active: Mtu, most: Option<usize>) -> Mtu {
    let fits = |mtu: &Mtu| *mtu <= active && most.is_none_or(|most| mtu.octets() as usize <= most);
    (1..=5)
        .rev()
        .filter_map(Mtu::from_code)
        .find(fits)
        .unwrap_or(Mtu::Mtu256)
}

// Checks the attributes that every driver must state. The engine's verbs support exactly one port, number 1.
fn check_description(attributes: &DeviceAttributes) -> Result<(), VerbError> {
    if attributes.name.is_empty() {
        return Err(VerbError::argument("name", "is empty"));
    }
    let [port] = &attributes.ports[..] else {
        return Err(VerbError::argument("ports", "a device has one"));
    };
    if port.port != 1 || attributes.limits.phys_port_cnt != 1 {
        let reason = "the port is number 1, and phys_port_cnt counts it";
        return Err(VerbError::argument("ports", reason));
    }
    if port.gids.is_empty() || port.pkeys.is_empty() {
        let reason = "port 1 has at least one identifier and one partition key";
        return Err(VerbError::argument("ports", reason));
    }
    Ok(())
}

// Adds the features of the emulations, and lists features that the transport demands and the device lacks as gaps.
fn claim(
    attributes: &mut DeviceAttributes,
    options: &DeviceOptions,
    addresses_receives: bool,
) -> Result<Emulations, VerbError> {
    let linked = || Extensions::linked().map_err(|error| VerbError::argument("extensions", error));
    let extensions = options.extensions.clone().map_or_else(linked, Ok)?;
    let emulations =
        Emulations::plug(&extensions, attributes, options.without, addresses_receives)?;
    attributes.features -= options.without;
    let features = attributes.features;
    if !features.contains(Features::BMME) {
        attributes.limits.max_fast_reg_page_list_len = 0;
    }
    if !features.intersects(Features::WINDOW_1 | Features::WINDOW_2) {
        attributes.limits.max_mw = 0;
    }
    if features.contains(Features::WINDOW_2A | Features::WINDOW_2B) {
        let reason = "a device has windows of type 2A or of type 2B, not both";
        return Err(VerbError::argument("features", reason));
    }
    if attributes.transport == Transport::Iwarp {
        let missing = Features::IWARP_MANDATORY - features;
        if features.contains(Features::BMME) && !missing.is_empty() {
            // On iWARP these features come with BMME.
            let reason = ArgumentReason::Lacks(missing);
            return Err(VerbError::argument("features", reason));
        }
        let gaps = [
            (Features::BMME, BaselineGaps::NO_BMME),
            (
                Features::LOCAL_INVALIDATE_FENCE,
                BaselineGaps::NO_LOCAL_INVALIDATE_FENCE,
            ),
            (Features::WINDOW_2B, BaselineGaps::NO_WINDOW_2B),
            (Features::ZBVA, BaselineGaps::NO_ZBVA),
            (
                Features::READ_WITH_INVALIDATE,
                BaselineGaps::NO_READ_WITH_INVALIDATE,
            ),
        ];
        for (feature, gap) in gaps {
            attributes.gaps.set(gap, missing.contains(feature));
        }
    }
    Ok(emulations)
}

impl<D: Driver> Member for Device<D> {
    type Header = D::Header;
    type Qp = Qp<D>;

    #[inline]
    fn takes(&self, address: LinkAddress) -> bool {
        self.address == address && !self.is_removed()
    }

    fn handle_frame(&self, frame: Frame<'_, D::Header>, now: Time) {
        self.call(now, |cx| D::handle_frame(self, frame, cx));
    }

    fn handle_note(&self, note: Note<'_>, now: Time) {
        match note {
            Note::Message([TO_DOMAIN, message @ ..]) => self.pass_to_domain(message),
            Note::Message(_) => self.call(now, |cx| D::handle_note(self, note, cx)),
            Note::Gone { first, end } => {
                self.call(now, |cx| D::handle_note(self, note, cx));
                let domains = self.domains.domains();
                let job = move |_| domains.iter().for_each(|one| one.handle_gone(first..end));
                self.network.serve_later(Box::new(job));
            }
        }
    }

    fn settle(qp: &QpRef<D>, now: Time) {
        qp.device.call(now, |cx| D::settle(qp, cx));
    }
}

impl<D: Driver> Polled for Device<D> {
    fn poll(&self) -> bool {
        self.network.poll_for(self)
    }

    fn hand_back(&self) {
        self.network.hand_back();
    }
}

/// The context of one call into the engine: the device, the pin that keeps memory mapped, the effects to run, and the time.
pub struct Cx<'p, D: Driver> {
    /// The device on which the call operates.
    pub device: &'p Device<D>,
    /// The thread's pin, which keeps the memory that key checks return mapped during the call.
    pub pin: &'p Pin,
    /// Actions that the call postpones until it holds no lock.
    pub effects: Effects,
    now: Option<Time>,
    soon: Option<Time>,
}

impl<'p, D: Driver> Cx<'p, D> {
    /// Creates the context of a call at an unknown time. The host's clock is read only if the call needs the time.
    #[inline]
    pub fn new(device: &'p Device<D>, pin: &'p Pin) -> Self {
        Self {
            device,
            pin,
            effects: Effects::default(),
            now: None,
            soon: None,
        }
    }

    /// Creates the context of a call that takes place at `now`.
    pub fn at(device: &'p Device<D>, pin: &'p Pin, now: Time) -> Self {
        Self {
            now: Some(now),
            soon: Some(now),
            ..Self::new(device, pin)
        }
    }

    /// Creates the context of a call at an unknown time that is not after `soon`, which serves as its approximate time.
    pub fn around(device: &'p Device<D>, pin: &'p Pin, soon: Time) -> Self {
        Self {
            soon: Some(soon),
            ..Self::new(device, pin)
        }
    }

    /// Returns the current time. It is read at most once, so it is the same for the whole call.
    pub fn now(&mut self) -> Time {
        *self
            .now
            .get_or_insert_with(|| self.device.network.timers().now())
    }

    /// Returns a time that is not before now and at most some milliseconds later, for timers that are often set and rarely
    /// expire.
    pub fn soon(&mut self) -> Time {
        *self
            .soon
            .get_or_insert_with(|| self.device.network.timers().soon())
    }

    /// Returns the time to pass to the link: the exact one if the link needs that, otherwise the approximate one.
    pub fn moment(&mut self) -> Time {
        match self.device.network.needs_precise_clock() {
            true => self.now(),
            false => self.soon(),
        }
    }

    /// Runs `work` with a new context, and then the effects that `work` has added, with no lock held. `now` is the time of
    /// the call if the caller knows it. Returns the result of `work`.
    #[inline]
    pub fn run<T>(
        device: &Device<D>,
        now: Option<Time>,
        work: impl FnOnce(&mut Cx<'_, D>) -> T,
    ) -> T {
        let pin = pin();
        let mut cx = Cx {
            now,
            soon: now,
            ..Cx::new(device, &pin)
        };
        let done = work(&mut cx);
        let effects = cx.effects;
        drop(pin);
        effects.run();
        done
    }

    /// The key table of the device.
    #[inline]
    pub fn keys(&self) -> &'p KeyTable {
        &self.device.keys
    }
}
