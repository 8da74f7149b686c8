//! Nodes: their identity and their ports.

use polyverbs_wire::mad::smp::{self, NodeDescription, NodeInfo};

use crate::port::{Abilities, Event, Port};

/// What the agents have done with a MAD.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Processed {
    /// An answer has replaced the MAD: the caller sends it back.
    Reply,
    /// An agent has taken the MAD, and there is no answer.
    Consumed,
    /// The MAD is not for these agents: the caller gives it to the agents that programs have registered.
    Pass,
}

/// A channel adapter: its identity, its ports, and the agents that answer for them.
#[derive(Clone, Debug)]
pub struct Node {
    pub(crate) identity: NodeInfo,
    pub(crate) description: NodeDescription,
    ports: Vec<Port>,
}

impl Node {
    /// Creates a channel adapter whose ports, numbered from 1, are down.
    ///
    /// Of `identity` only the GUIDs, the number of P_Keys and the numbers of vendor and device are used.
    ///
    /// # Panics
    /// There are more than 254 ports, or a port has room for no P_Key or no GUID.
    pub fn adapter(identity: NodeInfo, description: NodeDescription, ports: &[Abilities]) -> Self {
        const ADAPTER: u8 = 1;
        assert!(
            ports.len() <= 254,
            "{} ports: at most 254 have numbers",
            ports.len()
        );
        let partitions = usize::from(identity.partition_cap);
        Self {
            identity: NodeInfo {
                base_version: 1,
                class_version: smp::CLASS_VERSION,
                node_type: ADAPTER,
                num_ports: ports.len() as u8,
                ..identity
            },
            description,
            ports: ports.iter().map(|it| Port::new(it, partitions)).collect(),
        }
    }

    /// Returns what the node is. The GUID and the number of a port are 0.
    pub fn identity(&self) -> &NodeInfo {
        &self.identity
    }

    /// Returns the port with this number; `None` if there is none.
    pub fn port(&self, number: u8) -> Option<&Port> {
        self.ports.get(usize::from(number).checked_sub(1)?)
    }

    /// Returns the port with this number, for its counters; `None` if there is none.
    pub fn port_mut(&mut self, number: u8) -> Option<&mut Port> {
        self.ports.get_mut(usize::from(number).checked_sub(1)?)
    }

    /// Returns the next event, with the number of its port; `None` if there is none.
    pub fn poll_event(&mut self) -> Option<(u8, Event)> {
        let mut ports = self.ports.iter_mut().zip(1..);
        ports.find_map(|(port, number)| Some((number, port.poll_event()?)))
    }
}
