//! A port of an InfiniBand network: a subnet manager configures it, by management datagrams (MADs) to queue pairs 0 and 1.
//!
//! The agents that answer are those of [`polyverbs_management`]. This module gives them the MADs that arrive, and sends their
//! answers, in the call that has delivered the MAD. Read [`polyverbs_engine::management`] first.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use polyverbs_engine::effects::Effects;
use polyverbs_engine::link::{Frame, OwnedFrame};
use polyverbs_engine::management::{Arrival, Handled, ManagementAgents, PortChange};
use polyverbs_engine::network::Member;
use polyverbs_engine::payload::Payload;
use polyverbs_engine::time::Time;
use polyverbs_management::address::{SMI_QP, is_admitted};
use polyverbs_management::{Abilities, Event, NextHop, Node, Port};
use polyverbs_wire::layout::Octets;
use polyverbs_wire::mad::smp::{self, NodeDescription, NodeInfo, PhysicalState, PortInfo};
use polyverbs_wire::mad::{GSI_Q_KEY, GSI_QP, MAD_LEN};
use verbs_api::capability::{
    self, GidEntry, GidType, Mtu, PhysState, PortAttributes, PortCaps, PortState,
};
use verbs_api::event::EventType;
use verbs_api::ids::{Gid, Guid, LinkAddress, Psn};
use verbs_api::provider::{Mutex, random};
use verbs_api::qp::QpType;

use crate::header::{Body, Header, SendExtra};
use crate::{Cx, Device};

mod counters;
use counters::PortTotals;
#[cfg(feature = "fabric")]
mod fabric;
#[cfg(feature = "fabric")]
pub use fabric::{FabricLink, FabricPort};
mod link;
pub use link::SubnetLink;
mod programs;
pub(crate) use programs::register;
use programs::{Programs, agent_address, moment};

/// The number of the only port.
const PORT: u8 = 1;

/// Who has the state of a port that a subnet manager configures.
#[derive(Clone, Debug)]
pub enum Subnet {
    /// The device itself.
    Own(Arc<SubnetPort>),
    /// The process that holds a fabric.
    #[cfg(feature = "fabric")]
    Fabric(Arc<FabricPort>),
}

impl Subnet {
    pub(crate) fn agents(&self) -> &dyn ManagementAgents {
        match self {
            Self::Own(port) => &**port,
            #[cfg(feature = "fabric")]
            Self::Fabric(port) => &**port,
        }
    }

    /// Brings the link into this state. A port that a subnet manager has disabled stays so until one enables it.
    pub(crate) fn set_link(&self, state: PhysState) {
        match self {
            Self::Own(port) => port.set_link(state),
            #[cfg(feature = "fabric")]
            Self::Fabric(port) => port.set_link(state),
        }
    }

    /// Returns names and values of what the port has sent and received since it was made.
    pub(crate) fn counters(&self) -> Vec<(&'static str, u64)> {
        let totals = match self {
            Self::Own(port) => port.totals.read(),
            #[cfg(feature = "fabric")]
            Self::Fabric(port) => port.totals(),
        };
        vec![
            ("port_xmit_data", totals.xmit_data),
            ("port_xmit_packets", totals.xmit_pkts),
            ("port_rcv_data", totals.rcv_data),
            ("port_rcv_packets", totals.rcv_pkts),
            ("port_rcv_errors", totals.rcv_errors),
        ]
    }

    /// Returns the largest packets of a service level, whose path carries `most` at most. Without a lane for it there are
    /// none, and a queue pair gets the smallest ones.
    pub(crate) fn path_mtu(&self, most: Mtu, sl: u8) -> Mtu {
        let lane = match self {
            Self::Own(port) => port.lane(sl),
            #[cfg(feature = "fabric")]
            Self::Fabric(port) => port.lane(sl),
        };
        lane.map_or(Mtu::Mtu256, |_| most)
    }
}

/// The port of a device on an InfiniBand network, and the agents that answer for it.
pub struct SubnetPort {
    node: Mutex<Node>,
    programs: Mutex<Programs>,
    totals: PortTotals,
    next_psn: AtomicU32,
}

impl SubnetPort {
    /// Creates the port of a device with this GUID, whose link is up: a subnet manager has not found it yet, so that it has no
    /// LID and carries no data.
    pub fn new(name: &str, guid: Guid) -> Self {
        let guid = u64::from_be_bytes(guid.0);
        let identity = NodeInfo {
            system_image_guid: guid,
            node_guid: guid,
            partition_cap: 32,
            ..NodeInfo::default()
        };
        let name = &name.as_bytes()[..name.len().min(64)];
        let description = NodeDescription {
            text: Octets::padded(name).unwrap_or_default(),
        };
        let port = Self {
            node: Mutex::new(Node::adapter(identity, description, &[abilities(guid)])),
            programs: Mutex::default(),
            totals: PortTotals::default(),
            next_psn: AtomicU32::new(random() as u32),
        };
        port.set_link(PhysState::LinkUp);
        port
    }

    /// Returns the LID of the port; 0 as long as it has none.
    pub fn lid(&self) -> u16 {
        self.with_port(|port| port.info().lid).unwrap_or_default()
    }

    /// Returns the virtual lane of a service level; `None` if the port has no such lane.
    fn lane(&self, sl: u8) -> Option<u8> {
        self.with_port(|port| lane(port.sl_to_vl(), port.info().operational_vls, sl))?
    }

    /// Whether this LID is one of the port's, of which it has 2^LMC.
    fn has_lid(&self, lid: u16) -> bool {
        let is_own = |port: &mut Port| {
            let info = port.info();
            info.lid != 0 && lid >> info.lmc == info.lid >> info.lmc
        };
        self.with_port(is_own).unwrap_or_default()
    }

    /// Brings the link into this state. A port that a subnet manager has disabled stays so until one enables it.
    pub(crate) fn set_link(&self, state: PhysState) {
        self.with_port(|port| {
            let own = *port.info();
            match state {
                PhysState::Disabled | PhysState::Sleep => take_down(port, &own),
                // The other end of the link is a port of the same kind.
                _ => port.link_up(&own),
            }
        });
    }

    fn with_port<T>(&self, work: impl FnOnce(&mut Port) -> T) -> Option<T> {
        self.node.lock().port_mut(PORT).map(work)
    }

    fn psn(&self) -> Psn {
        Psn::new(self.next_psn.fetch_add(1, Ordering::Relaxed))
    }
}

fn take_down(port: &mut Port, own: &PortInfo) {
    if own.physical_state != PhysicalState::DISABLED {
        port.link_down();
    }
}

/// The lane of data to which a port's table leads a service level, if the port uses so many (IBTA 7.6.6). `vls` is the code for
/// that number.
fn lane(table: &[u8; 16], vls: u8, sl: u8) -> Option<u8> {
    let vl = *table.get(usize::from(sl))?;
    let used = match vls {
        0 => return Some(vl),
        5 => 15,
        code => 1 << (code - 1).min(3),
    };
    Some(vl).filter(|vl| *vl < used)
}

/// Four lanes of 25 Gbit/s, packets of 4096 bytes, and eight virtual lanes.
const fn abilities(guid: u64) -> Abilities {
    Abilities {
        guid,
        widths: 0b11,
        speeds: 0b111,
        extended_speeds: 0b11,
        mtu: Mtu::Mtu4096 as u8,
        vls: 4,
        guids: 8,
        capability_mask: smp::capability::SL_MAPPING
            | smp::capability::SYSTEM_IMAGE_GUID
            | smp::capability::EXTENDED_SPEEDS
            | smp::capability::CM
            | smp::capability::CLIENT_REREGISTRATION,
    }
}

impl ManagementAgents for SubnetPort {
    fn handle_mad(&self, mad: &mut [u8; MAD_LEN], arrival: &Arrival, now: Time) -> Handled {
        if !is_admitted(mad, arrival.qpn, arrival.q_key) {
            return Handled::Consumed;
        }
        let mut node = self.node.lock();
        if let Some(port) = node.port_mut(PORT) {
            port.totals = self.totals.read();
        }
        let mut next = node.receive(PORT, mad, moment(now));
        if next == NextHop::Here {
            let from = agent_address(arrival.from, (arrival.src_qp, arrival.q_key));
            next = match self.programs.lock().receive(mad, &from) {
                true => node.refuse(PORT, mad),
                false => NextHop::Dropped,
            };
        }
        match next {
            NextHop::Address | NextHop::Port(_) => Handled::Answered,
            NextHop::Here | NextHop::Lid(_) | NextHop::Dropped => Handled::Consumed,
        }
    }

    fn poll_change(&self) -> Option<PortChange> {
        let mut node = self.node.lock();
        let (_, event) = node.poll_event()?;
        Some(PortChange::Event(match event {
            Event::LidChange => EventType::LidChange,
            Event::SmChange => EventType::SmChange,
            Event::PkeyChange => EventType::PkeyChange,
            Event::GidChange => EventType::GidChange,
            Event::ClientReregister => EventType::ClientReregister,
            Event::PortActive => EventType::PortActive,
            Event::PortErr => EventType::PortErr,
            Event::Retrain => {
                let state = node.port(PORT)?.info().physical_state;
                return Some(PortChange::Link(PhysState::from_code(state.0)?));
            }
        }))
    }

    fn describe(&self, port: &mut PortAttributes) {
        self.with_port(|state| describe(state.info(), state.guids(), state.p_keys(), port));
    }
}

fn describe(info: &PortInfo, guids: &[u64], p_keys: &[u16], port: &mut PortAttributes) {
    let mtu = |code, otherwise| Mtu::from_code(code).unwrap_or(otherwise);
    let gid = |guid: &u64| {
        let gid = match guid {
            0 => Gid::default(),
            _ => Gid((u128::from(info.gid_prefix) << 64 | u128::from(*guid)).to_be_bytes()),
        };
        GidEntry::new(gid, GidType::Ib)
    };
    port.state = PortState::from_code(info.port_state.0).unwrap_or_default();
    port.phys_state = PhysState::from_code(info.physical_state.0).unwrap_or_default();
    port.caps = PortCaps::INFINIBAND;
    port.max_mtu = mtu(info.mtu_cap, port.max_mtu);
    port.active_mtu = mtu(info.neighbor_mtu, port.active_mtu);
    port.address = LinkAddress::Lid(info.lid);
    port.subnet = capability::Subnet {
        lmc: info.lmc,
        sm_lid: info.sm_lid,
        sm_sl: info.sm_sl,
        prefix: info.gid_prefix,
    };
    port.gids = guids.iter().map(gid).collect();
    port.pkeys = p_keys.to_vec();
}

impl fmt::Debug for SubnetPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SubnetPort").finish_non_exhaustive()
    }
}

/// Handles a frame that has arrived for queue pair 0 or 1, and sends the answer before it returns. While the port is not active,
/// only subnet management passes (IBTA 7.2.7).
pub(crate) fn handle(
    device: &Device,
    subnet: &SubnetPort,
    frame: &Frame<'_, Header>,
    cx: &mut Cx<'_>,
) {
    let Body::Datagram(q_key, ..) = frame.header.body else {
        return;
    };
    let arrival = Arrival {
        qpn: frame.header.dest_qp,
        q_key,
        from: frame.from,
        src_qp: frame.header.src_qp,
    };
    if !passes(device, arrival.qpn) || frame.payload.len() != MAD_LEN {
        return;
    }
    if arrival.qpn == GSI_QP && q_key != GSI_Q_KEY {
        return device.note_qkey_violation();
    }
    let mut mad = [0; MAD_LEN];
    frame.payload.read(&mut mad);
    let handled = device.handle_mad(&mut mad, &arrival, cx);
    if handled == Handled::Answered {
        let ends = Ends {
            to: arrival.from,
            dest_qp: arrival.src_qp,
            src_qp: arrival.qpn,
            q_key: if arrival.qpn == GSI_QP { GSI_Q_KEY } else { 0 },
        };
        let now = cx.moment();
        subnet.send_mad(device, &ends, &mad, now, &mut cx.effects);
    }
    for (sink, event) in subnet.take_events() {
        cx.effects.later(move |_| sink.event(event));
    }
}

/// The queue pairs between which a MAD goes, and the port of its destination.
struct Ends {
    to: LinkAddress,
    dest_qp: u32,
    src_qp: u32,
    q_key: u32,
}

impl SubnetPort {
    /// Sends a MAD, which is lost if the state of the port lets it not pass: only subnet management passes a port that is not
    /// active (IBTA 7.2.7). Without a link the receiving device takes it by an effect.
    fn send_mad(
        &self,
        device: &Device,
        ends: &Ends,
        mad: &[u8; MAD_LEN],
        now: Time,
        effects: &mut Effects,
    ) {
        if !passes(device, ends.src_qp) {
            return;
        }
        let body = Body::Datagram(ends.q_key, SendExtra::Nothing, None);
        let frame = Frame {
            from: device.address(),
            to: ends.to,
            header: Header::new(QpType::Ud, ends.src_qp, ends.dest_qp, self.psn(), body),
            payload: Payload::Bytes(mad),
            damaged: false,
        };
        let network = device.network();
        if let Some(link) = network.link() {
            return link.send(frame, now);
        }
        if let Some(peer) = network.device(ends.to) {
            let frame: OwnedFrame<Header> = frame.to_owned();
            effects.later(move |_| peer.handle_frame(frame.as_frame(), now));
        }
    }
}

/// Whether the state of the port lets MADs of this queue pair pass.
fn passes(device: &Device, qpn: u32) -> bool {
    match qpn {
        SMI_QP => device.is_link_up(),
        _ => device.is_port_active(),
    }
}
