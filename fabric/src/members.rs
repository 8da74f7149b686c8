//! Members: the programs that are attached to ports, and the agents that they have registered.
//!
//! A [`Fabric`] is a subnet with its members. It has no socket, clock or thread: the caller passes in what members ask for, with
//! the time, and takes out what they get. It calls [`Fabric::expire`] at the time that [`Fabric::next_deadline`] names.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::net::Ipv4Addr;
use std::time::Duration;

use polyverbs_management::agent_table::{
    Limits, Patience, RegisterError, Registration as Table, SendError, Timeout,
};
use polyverbs_management::rmpp::{self, Progress, Receiver, Sender};
use polyverbs_management::{Address, AgentId, AgentTable, Port, Recipient};
use polyverbs_wire::mad::rmpp::rmpp_type;
use polyverbs_wire::mad::{MAD_LEN, MadHeader, method};
use serde::{Deserialize, Serialize};

use crate::protocol::{MOST_ROUTES, Notice, PortEvent, PortReport, Route};
use crate::subnet::{Arrival, LinkError, Subnet, Traffic};
use crate::topology::{End, NodeKind, Topology};
use crate::transfers::{self, Arriving, Key, Leaving, Transfers};

/// The number of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MemberId(u64);

/// Which requests of others an agent of a member takes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Registration {
    /// The management class.
    pub class: u8,
    /// The version of the class.
    pub class_version: u8,
    /// The vendor of the class, if the class has one.
    pub oui: [u8; 3],
    /// The methods, as a set of bits.
    pub methods: u128,
    /// Whether the fabric makes segments of the agent's long messages, and messages of segments, instead of the program.
    pub is_segmented_here: bool,
}

/// A MAD, or a message of several segments, that a member sends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outgoing {
    /// The number of the agent.
    pub agent: u32,
    /// How many milliseconds an answer is waited for; 0 if none is.
    pub timeout_ms: u32,
    /// How often a request is repeated.
    pub retries: u32,
    /// The receiver.
    pub to: Address,
    /// The bytes.
    pub data: Vec<u8>,
}

/// A MAD, or a message of several segments, that a member gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delivery {
    /// The number of the agent.
    pub agent: u32,
    /// 0 if the MAD has arrived. Otherwise the MAD is the header of the agent's own request, which has ended with this error
    /// number.
    pub status: u32,
    /// The sender; of a request that comes back, its receiver.
    pub from: Address,
    /// The bytes.
    pub data: Vec<u8>,
}

/// The reason why a member does not get what it asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The fabric has no such node or port, or the port is not an adapter's.
    #[error("there is no such port of an adapter")]
    NoPort,
    /// The program has not attached itself to a port.
    #[error("the program is not attached to a port")]
    NotAttached,
    /// The member has no such agent.
    #[error("there is no such agent")]
    NoAgent,
    /// The member has as many agents as it may have.
    #[error("a member has at most {MOST_AGENTS} agents")]
    TooManyAgents,
    /// The agent cannot be registered.
    #[error(transparent)]
    Registration(#[from] RegisterError),
    /// The MAD cannot be sent.
    #[error(transparent)]
    Send(#[from] SendError),
    /// The data is no MAD.
    #[error("the data is not a MAD")]
    NoMad,
    /// There is no memory for the counters of a port.
    #[error("there is no memory for the counters of the port")]
    NoMemory,
    /// Another member is the subnet manager of the port.
    #[error("the port has a subnet manager already")]
    HasSm,
}

#[derive(Debug)]
struct Member {
    at: End,
    agents: BTreeMap<u32, AgentId>,
    is_sm: bool,
    device: Option<Device>,
}

/// The notices that a member with a verbs device has had.
#[derive(Debug)]
struct Device {
    /// The version of the subnet that the member knows; `None` if it does not know any.
    version: Option<u64>,
    told: Option<Notice>,
    events: Vec<PortEvent>,
}

/// A member and the number that it knows its agent by.
#[derive(Clone, Copy, Debug)]
struct Owner {
    member: MemberId,
    agent: u32,
    is_segmented_here: bool,
}

/// A subnet and its members.
#[derive(Debug)]
pub struct Fabric {
    subnet: Subnet,
    members: BTreeMap<MemberId, Member>,
    last_member: u64,
    tables: HashMap<End, AgentTable<Owner>>,
    transfers: Transfers,
    deliveries: VecDeque<(MemberId, Delivery)>,
    carriers: Carriers,
    /// The time of the last notices.
    told: Option<Duration>,
}

impl Fabric {
    /// Creates a fabric without members. Frames of verbs devices are carried between the addresses that follow `seed`.
    pub fn new(topology: &Topology, seed: u32) -> Self {
        Self {
            carriers: Carriers::new(topology, seed),
            told: None,
            subnet: Subnet::new(topology),
            members: BTreeMap::new(),
            last_member: 0,
            tables: HashMap::new(),
            transfers: Transfers::default(),
            deliveries: VecDeque::new(),
        }
    }

    /// Returns the nodes and links.
    pub fn subnet(&self) -> &Subnet {
        &self.subnet
    }

    /// Cuts or joins the link of a port.
    pub fn set_link(&mut self, at: End, is_up: bool) {
        self.subnet.set_link(at, is_up);
    }

    /// Has a port count an error of its link and report it.
    pub fn fail_link(&mut self, at: End, error: LinkError) {
        self.subnet.fail_link(at, error);
    }

    /// Returns the adapter with this name, or the first one if the name is empty.
    pub fn adapter(&self, name: &str) -> Option<usize> {
        let mut nodes = self.subnet.nodes().enumerate();
        let (index, _) = nodes.find(|(_, (known, kind))| {
            *kind == NodeKind::Adapter && (name.is_empty() || name == *known)
        })?;
        Some(index)
    }

    /// Attaches a program to a port of an adapter.
    ///
    /// # Errors
    /// There is no such port.
    pub fn attach(&mut self, node: &str, port: u8) -> Result<MemberId, Refusal> {
        let node = self.adapter(node).ok_or(Refusal::NoPort)?;
        let has_port = |it: &polyverbs_management::Node| it.port(port).is_some();
        self.subnet
            .node(node)
            .filter(|it| port > 0 && has_port(it))
            .ok_or(Refusal::NoPort)?;
        self.last_member += 1;
        let member = MemberId(self.last_member);
        let at = End { node, port };
        self.members.insert(
            member,
            Member {
                at,
                agents: BTreeMap::new(),
                is_sm: false,
                device: None,
            },
        );
        Ok(member)
    }

    /// Returns the port at which a member is.
    ///
    /// # Errors
    /// There is no such member.
    pub fn port_of(&self, id: MemberId) -> Result<End, Refusal> {
        Ok(self.members.get(&id).ok_or(Refusal::NotAttached)?.at)
    }

    /// Has the counters of a port show what the verbs devices there have counted.
    pub fn count_traffic(&mut self, at: End, traffic: Box<dyn Traffic>) {
        self.subnet.count_traffic(at, traffic);
    }

    /// Returns a port of an adapter with its present counters; `None` if there is none.
    pub fn counted_port(&mut self, node: &str, number: u8) -> Option<&Port> {
        let node = self.adapter(node)?;
        self.subnet.count(node);
        self.subnet.node(node)?.port(number)
    }

    /// Says that a member has a verbs device. Returns the address of its frames, and the port as it is; changes follow by
    /// [`poll_notice`](Self::poll_notice).
    ///
    /// # Errors
    /// There is no such member.
    pub fn carry(&mut self, id: MemberId) -> Result<(Ipv4Addr, Notice), Refusal> {
        let member = self.members.get_mut(&id).ok_or(Refusal::NotAttached)?;
        let at = member.at;
        let device = |version, told| Device {
            version,
            told,
            events: Vec::new(),
        };
        member.device = Some(device(None, None));
        // The others get a notice of the new device; this one has the reply.
        for other in self.members.values_mut() {
            if let Some(device) = &mut other.device {
                device.version = None;
            }
        }
        let notice = self.notice(at).ok_or(Refusal::NoPort)?;
        let version = Some(self.subnet.version());
        if let Some(member) = self.members.get_mut(&id) {
            member.device = Some(device(version, Some(notice.clone())));
        }
        Ok((self.carriers.of(at), notice))
    }

    /// Returns where the LIDs of ports with verbs devices lead from the port of a member.
    ///
    /// # Errors
    /// There is no such member.
    pub fn routes(&self, id: MemberId) -> Result<Vec<Route>, Refusal> {
        Ok(self.routes_from(self.port_of(id)?))
    }

    fn routes_from(&self, at: End) -> Vec<Route> {
        let devices = self.members.values().filter(|it| it.device.is_some());
        let ends: BTreeSet<(usize, u8)> = devices.map(|it| (it.at.node, it.at.port)).collect();
        let ends = ends.into_iter().map(|(node, port)| End { node, port });
        let routes = ends.flat_map(|to| {
            let info = self.subnet.node(to.node).and_then(|it| it.port(to.port));
            let (lid, lmc) = info.map_or((0, 0), |port| (port.info().lid, port.info().lmc));
            // A port without a LID has none of its 2^LMC either.
            let count = if lid == 0 { 0 } else { 1u32 << lmc };
            (0..count).filter_map(move |path| {
                let lid = lid.checked_add(path as u16)?;
                let is_reached = self.subnet.destination(at, lid) == Some(to);
                // A frame that arrives names the first LID of its sender.
                (path == 0 || is_reached).then(|| Route(lid, self.carriers.of(to), is_reached))
            })
        });
        routes.take(MOST_ROUTES).collect()
    }

    fn notice(&self, at: End) -> Option<Notice> {
        let port = self.subnet.node(at.node)?.port(at.port)?;
        Some(Notice {
            port: PortReport::new(port),
            sl_to_vl: *port.sl_to_vl(),
            events: Vec::new(),
            routes: self.routes_from(at),
        })
    }

    /// Returns the next notice for a member with a verbs device; `None` if there is none.
    /// While a subnet manager is at work the notices wait a moment, so that each covers many changes.
    pub fn poll_notice(&mut self, now: Duration) -> Option<(MemberId, Notice)> {
        self.collect_events();
        // All members get their notices at one time.
        let is_going_on = self.told == Some(now);
        if self.next_notice().is_none_or(|due| due > now) && !is_going_on {
            return None;
        }
        let version = self.subnet.version();
        while let Some((id, at)) = self.untold() {
            // The pause before the next notices follows changes that show nothing, too.
            self.told = Some(now);
            let mut notice = self.notice(at)?;
            let device = self.members.get_mut(&id)?.device.as_mut()?;
            device.version = Some(version);
            let events = std::mem::take(&mut device.events);
            if events.is_empty() && device.told.as_ref() == Some(&notice) {
                continue;
            }
            device.told = Some(notice.clone());
            notice.events = events;
            return Some((id, notice));
        }
        None
    }

    /// Takes a notice back that the member had no room for, and which it gets with a later one.
    pub fn keep_notice(&mut self, id: MemberId, notice: Notice) {
        let device = self.members.get_mut(&id).and_then(|it| it.device.as_mut());
        if let Some(device) = device {
            let later = std::mem::replace(&mut device.events, notice.events);
            device.events.extend(later);
            device.events.truncate(MOST_EVENTS);
            (device.version, device.told) = (None, None);
        }
    }

    /// A member that does not know the present version, or all events.
    fn untold(&self) -> Option<(MemberId, End)> {
        let version = Some(self.subnet.version());
        let is_untold = |it: &Device| it.version != version || !it.events.is_empty();
        let mut members = self.members.iter();
        let (id, member) =
            members.find(|(_, member)| member.device.as_ref().is_some_and(is_untold))?;
        Some((*id, member.at))
    }

    /// The time of the next notices; `None` if every member knows everything.
    fn next_notice(&self) -> Option<Duration> {
        self.untold()?;
        Some(self.told.map_or(Duration::ZERO, |told| told + PAUSE))
    }

    /// Keeps the events of ports for the members with verbs devices there.
    fn collect_events(&mut self) {
        while let Some((at, event)) = self.subnet.poll_event() {
            let Some(event) = PortEvent::of(event) else {
                continue;
            };
            let here = self.members.values_mut().filter(|it| it.at == at);
            for device in here.filter_map(|it| it.device.as_mut()) {
                if device.events.len() < MOST_EVENTS {
                    device.events.push(event);
                }
            }
        }
    }

    /// Detaches a program, with its agents. Without effect if it is not attached.
    pub fn detach(&mut self, id: MemberId) {
        let Some(member) = self.members.remove(&id) else {
            return;
        };
        if let Some(table) = self.tables.get_mut(&member.at) {
            for agent in member.agents.values() {
                table.unregister(*agent);
                self.transfers.forget(member.at, *agent);
            }
        }
        if member.is_sm {
            self.subnet.set_sm(member.at, false);
        }
        if member.device.is_some() {
            // The others learn that this device is gone.
            let devices = self
                .members
                .values_mut()
                .filter_map(|it| it.device.as_mut());
            devices.for_each(|device| device.version = None);
        }
    }

    /// Registers an agent, and returns its number: the lowest that the member does not use.
    ///
    /// # Errors
    /// The member has too many agents, or another agent of the port has registered one of the methods.
    pub fn register(&mut self, id: MemberId, wanted: &Registration) -> Result<u32, Refusal> {
        let member = self.members.get_mut(&id).ok_or(Refusal::NotAttached)?;
        let free = (0..MOST_AGENTS).find(|number| !member.agents.contains_key(number));
        let agent = free.ok_or(Refusal::TooManyAgents)?;
        let table = self.tables.entry(member.at);
        let table = table.or_insert_with(|| AgentTable::new(LIMITS));
        let registration = Table {
            class: wanted.class,
            class_version: wanted.class_version,
            oui: wanted.oui,
            methods: wanted.methods,
            takes_segments: !wanted.is_segmented_here,
        };
        let owner = Owner {
            member: id,
            agent,
            is_segmented_here: wanted.is_segmented_here,
        };
        let known = table.register(owner, registration)?;
        member.agents.insert(agent, known);
        Ok(agent)
    }

    /// Ends the registration of an agent.
    ///
    /// # Errors
    /// The member has no such agent.
    pub fn unregister(&mut self, id: MemberId, agent: u32) -> Result<(), Refusal> {
        let member = self.members.get_mut(&id).ok_or(Refusal::NotAttached)?;
        let known = member.agents.remove(&agent).ok_or(Refusal::NoAgent)?;
        if let Some(table) = self.tables.get_mut(&member.at) {
            table.unregister(known);
        }
        self.transfers.forget(member.at, known);
        Ok(())
    }

    /// Says that a member is the subnet manager of its port, until it is detached.
    ///
    /// # Errors
    /// Another member is.
    pub fn become_sm(&mut self, id: MemberId) -> Result<(), Refusal> {
        let at = self.members.get(&id).ok_or(Refusal::NotAttached)?.at;
        if self.members.values().any(|it| it.is_sm && it.at == at) {
            return Err(Refusal::HasSm);
        }
        if let Some(member) = self.members.get_mut(&id) {
            member.is_sm = true;
        }
        self.subnet.set_sm(at, true);
        Ok(())
    }

    /// Sends a MAD of a member.
    ///
    /// # Errors
    /// The data is no MAD, or the request cannot wait for an answer.
    pub fn send(&mut self, id: MemberId, sent: &Outgoing, now: Duration) -> Result<(), Refusal> {
        let member = self.members.get(&id).ok_or(Refusal::NotAttached)?;
        let (at, agent) = (member.at, member.agents.get(&sent.agent));
        let agent = *agent.ok_or(Refusal::NoAgent)?;
        let table = self.tables.get_mut(&at).ok_or(Refusal::NoAgent)?;
        let owner = table.owner(agent).ok_or(Refusal::NoAgent)?;
        if owner.is_segmented_here && rmpp::is_wanted(&sent.data) {
            return self.send_message(at, agent, sent, now);
        }
        let mut mad = padded(&sent.data)?;
        table.send(agent, &mut mad, &sent.to, patience(sent), now)?;
        self.subnet.send(at, mad, &sent.to, now);
        self.dispatch(now);
        Ok(())
    }

    /// Sends a message in segments. A request waits for its answer as one MAD does, but is not repeated as a whole.
    fn send_message(
        &mut self,
        at: End,
        agent: AgentId,
        sent: &Outgoing,
        now: Duration,
    ) -> Result<(), Refusal> {
        if !self.transfers.has_room(at) {
            return Err(SendError::Full.into());
        }
        let mut front = padded(&sent.data[..sent.data.len().min(MAD_LEN)])?;
        let table = self.tables.get_mut(&at).ok_or(Refusal::NoAgent)?;
        let patience = patience(sent).map(|it| Patience { retries: 0, ..it });
        table.send(agent, &mut front, &sent.to, patience, now)?;
        let mut data = sent.data.clone();
        data[..MadHeader::LEN].copy_from_slice(&front[..MadHeader::LEN]);
        let leaving = Leaving {
            agent,
            to: sent.to,
            sender: Sender::new(&data, now).ok_or(Refusal::NoMad)?,
            first: front,
        };
        let key = Key::of(at, &front, &sent.to);
        self.transfers.leaving.insert(key, leaving);
        self.send_segments(key, now);
        self.dispatch(now);
        Ok(())
    }

    fn send_segments(&mut self, key: Key, now: Duration) {
        while let Some(it) = self.transfers.leaving.get_mut(&key)
            && let Some(segment) = it.sender.next_segment()
        {
            self.subnet.send(key.at(), segment, &it.to, now);
        }
    }

    /// Returns the time at which [`expire`](Self::expire) is to be called; `None` if nothing waits.
    pub fn next_deadline(&self) -> Option<Duration> {
        let tables = self.tables.values();
        let deadlines = tables.filter_map(AgentTable::next_deadline);
        let others = [
            self.transfers.next_deadline(),
            self.subnet.next_deadline(),
            self.next_notice(),
        ];
        deadlines.chain(others.into_iter().flatten()).min()
    }

    /// Repeats the requests whose time is over, or gives them back to their members.
    pub fn expire(&mut self, now: Duration) {
        let mut over = Vec::new();
        for (at, table) in &mut self.tables {
            let timeouts = std::iter::from_fn(|| table.poll_timeout(now));
            over.extend(timeouts.map(|it| (*at, it)));
        }
        for (at, timeout) in over {
            match timeout {
                Timeout::Retry(request) => self.subnet.send(at, request.mad, &request.to, now),
                Timeout::Expired(request) => {
                    let header = &request.mad[..MadHeader::LEN];
                    self.give(at, request.agent, TIMED_OUT, &request.to, header);
                }
            }
        }
        self.subnet.expire(now);
        let (failed, repeated) = self.transfers.expire(now);
        for (key, it) in failed {
            self.fail(key, &it);
        }
        for key in repeated {
            self.send_segments(key, now);
        }
        self.dispatch(now);
    }

    /// Gives the header of a message that has not arrived back to its member.
    fn fail(&mut self, key: Key, it: &Leaving) {
        let header = &it.first[..MadHeader::LEN];
        self.give(key.at(), it.agent, TIMED_OUT, &it.to, header);
    }

    /// Returns the next MAD for a member; `None` if there is none.
    pub fn poll_delivery(&mut self) -> Option<(MemberId, Delivery)> {
        self.deliveries.pop_front()
    }

    /// Gives the MADs that have arrived to the agents that they are for.
    fn dispatch(&mut self, now: Duration) {
        while let Some(arrival) = self.subnet.poll_arrival() {
            self.receive(&arrival, now);
        }
        self.collect_events();
    }

    fn receive(&mut self, arrival: &Arrival, now: Duration) {
        if transfers::is_segment(&arrival.mad) && self.receive_segment(arrival, now).is_some() {
            return;
        }
        let table = self.tables.get_mut(&arrival.at);
        let recipient = table.map(|it| it.receive(&arrival.mad, &arrival.from));
        match recipient.unwrap_or(Recipient::Nobody) {
            Recipient::Requester(agent) | Recipient::Agent(agent) => {
                self.give(arrival.at, agent, 0, &arrival.from, &arrival.mad);
            }
            Recipient::Nobody => self.subnet.refuse(arrival, now),
            Recipient::Unmatched => {}
        }
    }

    /// Takes a segment or an acknowledgement; `None` if an agent handles the segments of its messages itself.
    fn receive_segment(&mut self, arrival: &Arrival, now: Duration) -> Option<()> {
        let rmpp = rmpp::header_of(&arrival.mad)?;
        let key = Key::of(arrival.at, &arrival.mad, &arrival.from);
        if rmpp.packet_type == rmpp_type::DATA {
            return self.receive_data(key, arrival, now);
        }
        let key = key.acknowledged();
        let leaving = self.transfers.leaving.get_mut(&key)?;
        let progress = leaving.sender.take(&rmpp, now);
        match progress {
            Progress::Goes => self.send_segments(key, now),
            Progress::Done => {
                self.transfers.leaving.remove(&key);
            }
            Progress::Failed => {
                if let Some(leaving) = self.transfers.leaving.remove(&key) {
                    self.fail(key, &leaving);
                }
            }
        }
        Some(())
    }

    fn receive_data(&mut self, key: Key, arrival: &Arrival, now: Duration) -> Option<()> {
        if !self.transfers.arriving.contains_key(&key) {
            let agent = self.recipient(arrival)?;
            let owner = self.tables.get(&arrival.at)?.owner(agent)?;
            if !owner.is_segmented_here {
                return None;
            }
            if !self.transfers.has_room(arrival.at) {
                return Some(());
            }
            let receiver = Receiver::new(now);
            let arriving = Arriving { agent, receiver };
            self.transfers.arriving.insert(key, arriving);
        }
        let arriving = self.transfers.arriving.get_mut(&key)?;
        let received = arriving.receiver.take(&arrival.mad, now);
        let (agent, deadline) = (arriving.agent, arriving.receiver.deadline());
        if let Some(acknowledgement) = received.acknowledgement {
            self.subnet
                .send(arrival.at, acknowledgement, &arrival.from, now);
        }
        let table = self.tables.get_mut(&arrival.at)?;
        match received.message {
            Some(message) => {
                // The request that the message answers no longer waits.
                table.receive(&arrival.mad, &arrival.from);
                self.give(arrival.at, agent, 0, &arrival.from, &message);
            }
            None => table.postpone(&arrival.mad, &arrival.from, deadline),
        }
        Some(())
    }

    /// The agent for which a segment is.
    fn recipient(&mut self, arrival: &Arrival) -> Option<AgentId> {
        let table = self.tables.get_mut(&arrival.at)?;
        if arrival.mad[3] & method::RESPONSE != 0 {
            return table.requester(&arrival.mad, &arrival.from);
        }
        match table.receive(&arrival.mad, &arrival.from) {
            Recipient::Agent(agent) => Some(agent),
            _ => None,
        }
    }

    fn give(&mut self, at: End, agent: AgentId, status: u32, from: &Address, data: &[u8]) {
        let owner = self.tables.get(&at).and_then(|it| it.owner(agent));
        if let Some(&Owner { member, agent, .. }) = owner {
            let delivery = Delivery {
                agent,
                status,
                from: *from,
                data: data.to_vec(),
            };
            self.deliveries.push_back((member, delivery));
        }
    }
}

/// The addresses between which frames of verbs devices are carried: one of the loopback network for each port of an adapter.
#[derive(Debug)]
struct Carriers {
    seed: u32,
    /// The number of the first port by node.
    first: Vec<u32>,
}

impl Carriers {
    fn new(topology: &Topology, seed: u32) -> Self {
        let mut next = 0;
        let first = topology.nodes.iter().map(|node| {
            let first = next;
            if node.kind == NodeKind::Adapter {
                next += u32::from(node.ports);
            }
            first
        });
        let first = first.collect();
        Self { seed, first }
    }

    fn of(&self, at: End) -> Ipv4Addr {
        let first = self.first.get(at.node).copied().unwrap_or_default();
        let number = first + u32::from(at.port);
        let offset = self.seed.wrapping_add(number) % CARRIERS;
        Ipv4Addr::from_bits(FIRST_CARRIER + offset)
    }
}

fn patience(sent: &Outgoing) -> Option<Patience> {
    (sent.timeout_ms > 0).then(|| Patience {
        timeout: Duration::from_millis(sent.timeout_ms.into()),
        retries: sent.retries,
    })
}

/// A MAD that is shorter ends with zeros.
fn padded(data: &[u8]) -> Result<[u8; MAD_LEN], Refusal> {
    let mut mad = [0; MAD_LEN];
    let place = mad.get_mut(..data.len()).ok_or(Refusal::NoMad)?;
    place.copy_from_slice(data);
    if data.len() < MadHeader::LEN {
        return Err(Refusal::NoMad);
    }
    Ok(mad)
}

/// 127.1.0.0 and on, up to 127.254.255.255: programs use the addresses before, and the last one is no machine's.
const FIRST_CARRIER: u32 = 0x7f01_0000;
const CARRIERS: u32 = 0x00fe_0000;
/// The time between notices.
const PAUSE: Duration = Duration::from_millis(5);
/// The most events that wait for a member that does not read. Later ones are lost.
const MOST_EVENTS: usize = 256;
/// The most agents of a member, as Linux has it.
const MOST_AGENTS: u32 = 32;
const LIMITS: Limits = Limits {
    agents: 256,
    outstanding: 4096,
};
/// The error number of a request that has had no answer: `ETIMEDOUT`.
pub const TIMED_OUT: u32 = 110;
