//! A subnet: the nodes of a topology, the links between their ports, and the MADs that are on their way.
//!
//! Management datagrams (MADs) move from port to port until they come to an agent of a node, which answers, or to a node whose
//! programs they are for. All of that happens within the call that injects a MAD, so that an answer leaves as soon as its
//! request has come.

use std::collections::{HashMap, VecDeque};
use std::fmt::Debug;
use std::time::Duration;

use polyverbs_management::address::{is_admitted, is_subnet_management};
use polyverbs_management::{
    Abilities, Address, Carried, Event, GlobalRoute, NextHop, Node, Port, SwitchAbilities,
};
use polyverbs_wire::layout::Octets;
use polyverbs_wire::mad::notice::{KeyViolation, trap};
use polyverbs_wire::mad::perf::PERF_CLASS;
use polyverbs_wire::mad::smp::{
    MAX_UNICAST_LID, NodeDescription, NodeInfo, PERMISSIVE_LID, PhysicalState, PortInfo, PortState,
    capability,
};
use polyverbs_wire::mad::{GSI_Q_KEY, GSI_QP, MAD_LEN, method};
use serde::{Deserialize, Serialize};

use crate::topology::{End, NodeKind, NodeSpec, Rate, Speed, Topology};
use crate::traps::Traps;

/// A MAD that has arrived for the programs of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// The port.
    pub at: End,
    /// The MAD.
    pub mad: [u8; MAD_LEN],
    /// Its sender.
    pub from: Address,
}

/// A MAD between two ports, with what its packet's headers say.
#[derive(Clone, Copy, Debug)]
struct Packet {
    mad: [u8; MAD_LEN],
    source: u16,
    destination: u16,
    sl: u8,
    source_qp: u32,
    destination_qp: u32,
    q_key: u32,
    grh: Option<GlobalRoute>,
    /// How many links the packet may still cross.
    budget: u8,
}

impl Packet {
    fn is_smp(&self) -> bool {
        is_subnet_management(self.mad[1])
    }

    /// The packet with the answer that has replaced the MAD.
    fn answered(self, own_lid: u16) -> Self {
        let path = if self.destination == PERMISSIVE_LID {
            own_lid
        } else {
            self.destination
        };
        Self {
            source: path,
            destination: self.source,
            source_qp: self.destination_qp,
            destination_qp: self.source_qp,
            budget: MOST_LINKS,
            ..self
        }
    }
}

/// A node and the other ends of its links.
#[derive(Debug)]
struct Station {
    name: String,
    kind: NodeKind,
    node: Node,
    /// By port. The link of port 0 is unused.
    peers: Vec<Option<End>>,
}

/// A fault of a link, which a port reports when there have been too many.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LinkError {
    /// Packets do not arrive as they were sent.
    Integrity,
    /// Packets come without credits for them.
    Overrun,
    /// The other end does not update its credits.
    FlowControl,
}

/// What the devices of programs at a port have sent and received, which they count themselves. The numbers only grow.
pub trait Traffic: Debug + Send {
    /// Returns the numbers, in the order of [`Carried`].
    fn read(&self) -> [u64; Carried::COUNT];
}

/// The traffic of a port, and how much of it is in the totals of the port.
#[derive(Debug)]
struct Counted {
    traffic: Box<dyn Traffic>,
    seen: [u64; Carried::COUNT],
}

/// The nodes and links of a subnet.
#[derive(Debug)]
pub struct Subnet {
    stations: Vec<Station>,
    moving: VecDeque<(End, Packet)>,
    arrived: VecDeque<Arrival>,
    events: VecDeque<(End, Event)>,
    traps: Traps,
    traffic: HashMap<End, Counted>,
    version: u64,
}

impl Subnet {
    /// Creates the nodes of a topology, and brings their links up.
    pub fn new(topology: &Topology) -> Self {
        let mut subnet = Self {
            stations: topology.nodes.iter().map(Station::new).collect(),
            moving: VecDeque::new(),
            arrived: VecDeque::new(),
            events: VecDeque::new(),
            traps: Traps::default(),
            traffic: HashMap::new(),
            version: 0,
        };
        for (node, spec) in topology.nodes.iter().enumerate() {
            for &port in spec.links.keys() {
                subnet.train(End { node, port });
            }
        }
        subnet.collect_events();
        subnet
    }

    /// Returns the names and the kinds of the nodes.
    pub fn nodes(&self) -> impl Iterator<Item = (&str, NodeKind)> {
        self.stations.iter().map(|it| (&*it.name, it.kind))
    }

    /// Returns the node with this name, with its index; `None` if there is none.
    pub fn named(&self, name: &str) -> Option<(usize, &Node)> {
        let mut stations = self.stations.iter().enumerate();
        let (index, station) = stations.find(|(_, station)| station.name == name)?;
        Some((index, &station.node))
    }

    /// Returns the node with this index; `None` if there is none.
    pub fn node(&self, index: usize) -> Option<&Node> {
        Some(&self.stations.get(index)?.node)
    }

    /// Says whether a port has a subnet manager, which is a bit of its capability mask.
    pub fn set_sm(&mut self, at: End, is_sm: bool) {
        if let Some(port) = self.port_mut(at) {
            port.set_sm(is_sm);
        }
        if let (Some(port), Some(kind)) = (self.port(at), self.kind(at)) {
            let info = *port.info();
            self.traps.capability_mask(at, kind, &info);
        }
    }

    /// Has the counters of a port show what the devices of programs there have sent and received.
    pub fn count_traffic(&mut self, at: End, traffic: Box<dyn Traffic>) {
        let seen = traffic.read();
        self.traffic.insert(at, Counted { traffic, seen });
    }

    /// Returns a number that is another one when ports, tables or links may have changed.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Returns the port of an adapter to which packets of data with this LID go from a port, by the tables of the switches
    /// between; `None` if no port has the LID, a table does not lead there, or a port on the way is not active.
    pub fn destination(&self, from: End, lid: u16) -> Option<End> {
        let is_active = |at: End| {
            let state = self.port(at).map(|port| port.info().port_state);
            state == Some(PortState::ACTIVE)
        };
        let mut out = from;
        if self.is_own_lid(from, lid) && is_active(from) {
            return Some(from);
        }
        for _ in 0..MOST_LINKS {
            let at = self
                .peer(out)
                .filter(|at| is_active(out) && is_active(*at))?;
            if self.is_own_lid(at, lid) {
                return Some(at).filter(|at| !self.is_switch(*at));
            }
            let station = self.stations.get(at.node)?;
            let port = station.node.forward(lid).filter(|port| *port > 0)?;
            out = End { port, ..at };
        }
        None
    }

    /// Cuts the link of a port, or joins it again. Nothing happens if the port has none.
    pub fn set_link(&mut self, at: End, is_up: bool) {
        self.version += 1;
        let ends = [Some(at), self.peer(at)];
        if is_up {
            self.train(at);
        } else {
            for end in ends.into_iter().flatten() {
                if let Some(port) = self.port_mut(end) {
                    port.link_down();
                }
            }
        }
        for end in ends.into_iter().flatten() {
            self.report_link_state(end);
        }
        self.collect_events();
    }

    /// Lets a switch say that the state of one of its ports has changed, not by the subnet manager.
    fn report_link_state(&mut self, at: End) {
        if !self.is_switch(at) {
            return;
        }
        if let Some(station) = self.stations.get_mut(at.node) {
            station.node.note_port_state_change();
        }
        let own = End { port: 0, ..at };
        if let Some(port) = self.port(own) {
            let info = *port.info();
            self.traps.link_state(own, &info);
        }
    }

    /// Returns the time at which [`expire`](Self::expire) is to be called; `None` if no trap waits.
    pub fn next_deadline(&self) -> Option<Duration> {
        self.traps.next_deadline()
    }

    /// Sends the traps whose time has come.
    pub fn expire(&mut self, now: Duration) {
        let stations = &self.stations;
        let timeout = |at: End| {
            let port = stations.get(at.node).and_then(|it| it.node.port(at.port));
            port.map_or(0, |port| port.info().subnet_timeout)
        };
        // 4.096 µs × 2^n. A port whose subnet manager has not set it does not flood the subnet.
        let period = |at| Duration::from_nanos(4096 << timeout(at)).max(SHORTEST_PERIOD);
        for (at, mad) in self.traps.due(now, period) {
            let lid = self.port(at).map_or(0, |port| port.info().sm_lid);
            let to = Address {
                lid,
                ..Address::default()
            };
            self.send(at, mad, &to, now);
        }
    }

    /// Sends a MAD of a program by a port.
    pub fn send(&mut self, at: End, mut mad: [u8; MAD_LEN], to: &Address, now: Duration) {
        self.prepare(at, &mad);
        let Some(station) = self.stations.get_mut(at.node) else {
            return;
        };
        let next = station.node.send(at.port, &mut mad, now);
        self.settle(at.node);
        let packet = self.packet(at, mad, to);
        self.follow(at, packet, next);
        self.run(now);
    }

    /// Makes a node ready for a MAD: its counters are read, or it is configured.
    fn prepare(&mut self, at: End, mad: &[u8; MAD_LEN]) {
        if is_subnet_management(mad[1]) && mad[3] == method::SET {
            self.version += 1;
        }
        if mad[1] == PERF_CLASS {
            self.count(at.node);
        }
    }

    /// Adds what devices of programs have counted since to the totals of a node's ports.
    pub fn count(&mut self, node: usize) {
        let of_node = self.traffic.iter_mut().filter(|(at, _)| at.node == node);
        for (at, counted) in of_node {
            let now = counted.traffic.read();
            let port = self.stations[node].node.port_mut(at.port);
            if let Some(port) = port {
                port.totals.add_growth(&counted.seen, &now);
            }
            counted.seen = now;
        }
    }

    /// Answers a request that no program takes, as agents answer attributes that they do not know.
    pub fn refuse(&mut self, arrival: &Arrival, now: Duration) {
        let Some(station) = self.stations.get_mut(arrival.at.node) else {
            return;
        };
        let mut mad = arrival.mad;
        let next = station.node.refuse(arrival.at.port, &mut mad);
        let packet = self.packet(arrival.at, mad, &arrival.from);
        self.follow(arrival.at, packet, next);
        self.run(now);
    }

    /// Returns the next MAD for the programs of a port; `None` if there is none.
    pub fn poll_arrival(&mut self) -> Option<Arrival> {
        self.arrived.pop_front()
    }

    /// Returns the next event of a port; `None` if there is none.
    pub fn poll_event(&mut self) -> Option<(End, Event)> {
        self.events.pop_front()
    }

    /// The packet of a MAD that leaves a port for this address.
    fn packet(&self, at: End, mad: [u8; MAD_LEN], to: &Address) -> Packet {
        Packet {
            mad,
            source: self.own_lid(at) | u16::from(to.path_bits),
            destination: to.lid,
            sl: to.sl,
            source_qp: if is_subnet_management(mad[1]) {
                0
            } else {
                GSI_QP
            },
            destination_qp: to.qpn,
            q_key: to.q_key,
            grh: to.global.map(|route| GlobalRoute {
                gid: self.gid(at, route.gid_index),
                ..route
            }),
            budget: MOST_LINKS,
        }
    }

    fn run(&mut self, now: Duration) {
        while let Some((at, packet)) = self.moving.pop_front() {
            self.arrive(at, packet, now);
        }
    }

    fn arrive(&mut self, at: End, mut packet: Packet, now: Duration) {
        if packet.destination > MAX_UNICAST_LID && packet.destination != PERMISSIVE_LID {
            return self.multicast(at, packet);
        }
        if packet.destination != PERMISSIVE_LID && !self.is_own_lid(at, packet.destination) {
            return self.forward(at, packet);
        }
        if !is_admitted(&packet.mad, packet.destination_qp, packet.q_key) {
            return self.note_q_key(at, &packet);
        }
        let own = self.own_end(at);
        self.traps.repress(own, &packet.mad);
        self.prepare(at, &packet.mad);
        let Some(station) = self.stations.get_mut(at.node) else {
            return;
        };
        let request = packet.mad;
        let refused = |node: &Node| node.port(own.port).map(|port| port.info().m_key_violations);
        let before = refused(&station.node);
        let next = station.node.receive(at.port, &mut packet.mad, now);
        let is_refused = refused(&station.node) > before;
        self.settle(at.node);
        if is_refused && let Some((kind, info)) = self.described(own) {
            let source = packet.source;
            self.traps.m_key(own, kind, &info, source, &request);
        }
        let is_answer = is_response(&packet.mad) && !is_response(&request);
        if is_answer {
            packet = packet.answered(self.own_lid(at));
        }
        self.follow(at, packet, next);
    }

    /// Counts a packet that queue pair 1 has dropped for its Q_Key, and reports it to the subnet manager.
    fn note_q_key(&mut self, at: End, packet: &Packet) {
        if packet.destination_qp != GSI_QP || packet.q_key == GSI_Q_KEY {
            return;
        }
        let own = self.own_end(at);
        if let Some(port) = self.port_mut(own) {
            port.note_q_key_violation();
        }
        let violation = KeyViolation {
            source_lid: packet.source,
            destination_lid: packet.destination,
            key: packet.q_key,
            sl: packet.sl,
            source_qp: packet.source_qp,
            destination_qp: packet.destination_qp,
            source_gid: Octets(packet.grh.map(|route| route.gid).unwrap_or_default()),
            ..KeyViolation::default()
        };
        if let Some((kind, info)) = self.described(own) {
            self.traps.q_key(own, kind, &info, &violation);
        }
    }

    fn described(&self, at: End) -> Option<(NodeKind, PortInfo)> {
        Some((self.kind(at)?, *self.port(at)?.info()))
    }

    /// Has a port count an error of its link, as if the cable were bad, and report it to the subnet manager.
    pub fn fail_link(&mut self, at: End, error: LinkError) {
        let own = self.own_end(at);
        let Some(port) = self.port_mut(at) else {
            return;
        };
        let number = match error {
            LinkError::Integrity => {
                port.totals.local_link_integrity_errors += 1;
                trap::LOCAL_LINK_INTEGRITY
            }
            LinkError::Overrun => {
                port.totals.excessive_buffer_overrun_errors += 1;
                trap::BUFFER_OVERRUN
            }
            LinkError::FlowControl => trap::FLOW_CONTROL,
        };
        if let Some((kind, info)) = self.described(own) {
            self.traps.link_errors(number, own, at.port, kind, &info);
        }
    }

    /// Forwards a packet by the table of a switch. An adapter drops it.
    fn forward(&mut self, at: End, packet: Packet) {
        let station = self.stations.get(at.node);
        match station.and_then(|it| it.node.forward(packet.destination)) {
            Some(port) if port > 0 => self.transmit(End { port, ..at }, packet),
            _ => {
                if let Some(port) = self.port_mut(at) {
                    port.totals.rcv_switch_relay_errors += 1;
                }
            }
        }
    }

    /// Forwards a packet by the multicast table of a switch. No program receives MADs by multicast.
    fn multicast(&mut self, at: End, packet: Packet) {
        let station = self.stations.get(at.node);
        let ports = station.map(|it| it.node.forward_multicast(packet.destination));
        for port in ports.unwrap_or_default() {
            if port > 0 && port != at.port {
                self.transmit(End { port, ..at }, packet);
            }
        }
    }

    /// Moves a packet on from the port at which it is.
    fn follow(&mut self, at: End, packet: Packet, next: NextHop) {
        match next {
            NextHop::Port(port) => {
                let directed = Packet {
                    source: PERMISSIVE_LID,
                    destination: PERMISSIVE_LID,
                    ..packet
                };
                self.transmit(End { port, ..at }, directed);
            }
            NextHop::Lid(lid) => {
                let source = self.own_lid(at);
                let routed = Packet {
                    source,
                    destination: lid,
                    ..packet
                };
                self.route(at, routed);
            }
            NextHop::Address => self.route(at, packet),
            NextHop::Here => self.hand_over(at, packet),
            NextHop::Dropped => {}
        }
    }

    /// Sends a packet to its destination LID, which may be that of the port itself.
    fn route(&mut self, at: End, packet: Packet) {
        if self.is_own_lid(at, packet.destination) {
            self.moving.push_back((at, packet));
        } else if self.is_switch(at) {
            self.forward(at, packet);
        } else {
            self.transmit(at, packet);
        }
    }

    fn hand_over(&mut self, at: End, packet: Packet) {
        let own = self.own_lid(at);
        let from = Address {
            qpn: packet.source_qp,
            q_key: packet.q_key,
            lid: packet.source,
            sl: packet.sl,
            path_bits: (packet.destination ^ own) as u8 & 0x7f,
            pkey_index: 0,
            global: packet.grh,
        };
        let from = if packet.destination == PERMISSIVE_LID {
            Address {
                path_bits: 0,
                ..from
            }
        } else {
            from
        };
        self.arrived.push_back(Arrival {
            at,
            mad: packet.mad,
            from,
        });
    }

    /// Sends a packet out of a port, to the other end of its link.
    fn transmit(&mut self, at: End, packet: Packet) {
        let is_smp = packet.is_smp();
        let can_send = self.port(at).is_some_and(|port| {
            let info = port.info();
            info.physical_state == PhysicalState::LINK_UP
                && (is_smp || info.port_state == PortState::ACTIVE)
        });
        let (Some(to), Some(budget)) = (self.peer(at), packet.budget.checked_sub(1)) else {
            return;
        };
        if !can_send {
            if let Some(port) = self.port_mut(at) {
                port.totals.xmit_discards += 1;
            }
            return;
        }
        let words = u64::from(MAD_WORDS) + if packet.grh.is_some() { GRH_WORDS } else { 0 };
        if let Some(port) = self.port_mut(at) {
            port.totals.xmit_data += words;
            port.totals.xmit_pkts += 1;
            port.totals.unicast_xmit_pkts += 1;
        }
        if let Some(port) = self.port_mut(to) {
            port.totals.rcv_data += words;
            port.totals.rcv_pkts += 1;
            port.totals.unicast_rcv_pkts += 1;
        }
        self.moving.push_back((to, Packet { budget, ..packet }));
    }

    /// Brings the link of a port up, unless one of its ends is disabled.
    fn train(&mut self, at: End) {
        let Some(to) = self.peer(at) else {
            return;
        };
        let (Some(one), Some(other)) = (self.port(at), self.port(to)) else {
            return;
        };
        let (one, other) = (*one.info(), *other.info());
        if [&one, &other]
            .iter()
            .any(|it| it.physical_state == PhysicalState::DISABLED)
        {
            return;
        }
        for (end, neighbor) in [(at, other), (to, one)] {
            if let Some(port) = self.port_mut(end) {
                port.link_up(&neighbor);
            }
        }
    }

    /// Carries out what a MAD has done to the links of a node.
    fn settle(&mut self, node: usize) {
        while let Some((port, event)) = self
            .stations
            .get_mut(node)
            .and_then(|it| it.node.poll_event())
        {
            let at = End { node, port };
            if event != Event::Retrain {
                self.events.push_back((at, event));
                continue;
            }
            if let Some(peer) = self.peer(at)
                && let Some(port) = self.port_mut(peer)
            {
                port.link_down();
                self.train(at);
                self.report_link_state(peer);
                self.settle_peer(peer.node, node);
            }
        }
    }

    /// Collects the events of the other end of a link that was taken down.
    fn settle_peer(&mut self, peer: usize, node: usize) {
        if peer != node {
            self.settle(peer);
        }
    }

    fn collect_events(&mut self) {
        for node in 0..self.stations.len() {
            self.settle(node);
        }
    }

    fn peer(&self, at: End) -> Option<End> {
        *self
            .stations
            .get(at.node)?
            .peers
            .get(usize::from(at.port))?
    }

    fn port(&self, at: End) -> Option<&Port> {
        self.stations.get(at.node)?.node.port(at.port)
    }

    fn port_mut(&mut self, at: End) -> Option<&mut Port> {
        self.stations.get_mut(at.node)?.node.port_mut(at.port)
    }

    fn kind(&self, at: End) -> Option<NodeKind> {
        Some(self.stations.get(at.node)?.kind)
    }

    fn is_switch(&self, at: End) -> bool {
        self.kind(at) == Some(NodeKind::Switch)
    }

    fn own_end(&self, at: End) -> End {
        let port = if self.is_switch(at) { 0 } else { at.port };
        End { port, ..at }
    }

    /// The port with the LID of this one, which is port 0 at a switch.
    fn own_port(&self, at: End) -> Option<&Port> {
        let node = &self.stations.get(at.node)?.node;
        node.port(node.own_port(at.port))
    }

    fn own_lid(&self, at: End) -> u16 {
        self.own_port(at).map_or(0, |port| port.info().lid)
    }

    fn is_own_lid(&self, at: End, lid: u16) -> bool {
        self.own_port(at).is_some_and(|port| {
            let info = port.info();
            info.lid != 0 && lid >> info.lmc == info.lid >> info.lmc
        })
    }

    fn gid(&self, at: End, index: u8) -> [u8; 16] {
        let mut gid = [0; 16];
        if let Some(port) = self.port(at) {
            let guid = port.guids().get(usize::from(index)).copied();
            gid[..8].copy_from_slice(&port.info().gid_prefix.to_be_bytes());
            gid[8..].copy_from_slice(&guid.unwrap_or_default().to_be_bytes());
        }
        gid
    }
}

impl Station {
    fn new(spec: &NodeSpec) -> Self {
        let identity = NodeInfo {
            system_image_guid: spec.system_guid,
            node_guid: spec.guid,
            partition_cap: PARTITIONS,
            device_id: spec.device,
            vendor_id: spec.vendor,
            ..NodeInfo::default()
        };
        let bytes = spec.description.as_bytes();
        let text = Octets::padded(&bytes[..bytes.len().min(64)]).unwrap_or_default();
        let description = NodeDescription { text };
        let ports = 1..=spec.ports;
        let node = match spec.kind {
            NodeKind::Adapter => {
                let ports: Vec<_> = ports.map(|port| abilities(spec, port)).collect();
                Node::adapter(identity, description, &ports)
            }
            NodeKind::Switch => {
                let ports = (0..=spec.ports).map(|port| switch_abilities(spec, port));
                Node::switch(identity, description, &TABLES, &ports.collect::<Vec<_>>())
            }
        };
        let mut peers = vec![None; usize::from(spec.ports) + 1];
        for (&port, link) in &spec.links {
            peers[usize::from(port)] = Some(link.to);
        }
        Self {
            name: spec.name.clone(),
            kind: spec.kind,
            node,
            peers,
        }
    }
}

fn abilities(spec: &NodeSpec, port: u8) -> Abilities {
    let rate = spec.links.get(&port).map(|link| link.rate);
    let (widths, speeds, extended_speeds) = codes(rate.unwrap_or_default());
    let guid = spec.port_guids.get(usize::from(port) - 1);
    Abilities {
        guid: guid.copied().unwrap_or(spec.guid),
        widths,
        speeds,
        extended_speeds,
        mtu: MTU_4096,
        vls: FOUR_LANES,
        guids: GUIDS,
        capability_mask: capability::TRAP
            | capability::SL_MAPPING
            | capability::SYSTEM_IMAGE_GUID
            | capability::EXTENDED_SPEEDS
            | capability::CM
            | capability::CAPABILITY_MASK_NOTICE
            | capability::CLIENT_REREGISTRATION,
    }
}

/// Port 0 of a switch speaks for all of its ports.
fn switch_abilities(spec: &NodeSpec, port: u8) -> Abilities {
    let guid = spec.port_guids.first().copied().unwrap_or(spec.guid);
    let external = Abilities {
        guid,
        guids: 1,
        capability_mask: 0,
        ..abilities(spec, port.max(1))
    };
    if port > 0 {
        return external;
    }
    Abilities {
        capability_mask: capability::TRAP
            | capability::SL_MAPPING
            | capability::SYSTEM_IMAGE_GUID
            | capability::EXTENDED_SPEEDS
            | capability::CAPABILITY_MASK_NOTICE
            | capability::CLIENT_REREGISTRATION,
        ..external
    }
}

/// The widths, speeds and extended speeds of PortInfo: one width, and all speeds up to that of the link.
fn codes(rate: Rate) -> (u8, u8, u8) {
    let width = match rate.lanes {
        1 => 1,
        8 => 4,
        12 => 8,
        2 => 16,
        _ => 2,
    };
    let extended = match rate.speed {
        Speed::Sdr | Speed::Ddr | Speed::Qdr => 0,
        Speed::Fdr => 1,
        Speed::Edr => 3,
        Speed::Hdr => 7,
        Speed::Ndr => 15,
    };
    let speeds = match rate.speed {
        Speed::Sdr => 1,
        Speed::Ddr => 3,
        _ => 7,
    };
    (width, speeds, extended)
}

fn is_response(mad: &[u8; MAD_LEN]) -> bool {
    mad[3] & method::RESPONSE != 0
}

/// How many links a packet crosses before it is dropped, because forwarding tables may lead in a circle. A directed route has
/// 63 at most on each way.
const MOST_LINKS: u8 = 128;
/// The 4-byte words of a MAD's packet, from LRH to ICRC, and of a GRH.
const MAD_WORDS: u8 = 72;
const GRH_WORDS: u64 = 10;
const SHORTEST_PERIOD: Duration = Duration::from_millis(100);
const PARTITIONS: u16 = 32;
/// All unicast LIDs, and as many multicast LIDs as usual switches have.
const TABLES: SwitchAbilities = SwitchAbilities {
    unicast_lids: 0xc000,
    multicast_lids: 0x400,
};
const GUIDS: u8 = 8;
/// The codes of PortInfo.
const MTU_4096: u8 = 5;
const FOUR_LANES: u8 = 3;
