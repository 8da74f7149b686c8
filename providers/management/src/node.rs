//! Nodes: their identity and their ports.

use polyverbs_wire::mad::smp::{self, NodeDescription, NodeInfo};

use crate::port::{Abilities, Event, Port};
use crate::switch::{Switch, SwitchAbilities};

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

/// A channel adapter or a switch: its identity, its ports, and the agents that answer for them.
#[derive(Clone, Debug)]
pub struct Node {
    pub(crate) identity: NodeInfo,
    pub(crate) description: NodeDescription,
    pub(crate) switch: Option<Switch>,
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
            switch: None,
            ports: ports.iter().map(|it| Port::new(it, partitions)).collect(),
        }
    }

    /// Creates a switch. The first of `ports` is its own port 0, which is always active; the others are down.
    ///
    /// # Panics
    /// There is no port 0, there are more than 254 others, or a port has room for no P_Key or no GUID.
    pub fn switch(
        identity: NodeInfo,
        description: NodeDescription,
        abilities: &SwitchAbilities,
        ports: &[Abilities],
    ) -> Self {
        const SWITCH: u8 = 2;
        let (_, external) = ports.split_first().expect("a switch has a port 0");
        let adapter = Self::adapter(identity, description, external);
        let mut ports: Vec<_> = ports
            .iter()
            .map(|it| Port::new(it, usize::from(identity.partition_cap)))
            .collect();
        ports[0].be_own_port();
        Self {
            identity: NodeInfo {
                node_type: SWITCH,
                ..adapter.identity
            },
            switch: Some(Switch::new(abilities, identity.partition_cap)),
            ports,
            ..adapter
        }
    }

    /// Returns the number of the port that has the LID of this one: port 0 of a switch.
    pub fn own_port(&self, number: u8) -> u8 {
        if self.switch.is_some() { 0 } else { number }
    }

    /// Returns the port by which a switch forwards packets with this LID; `None` if it does not.
    pub fn forward(&self, lid: u16) -> Option<u8> {
        self.switch.as_ref()?.forward(lid)
    }

    /// Returns the ports by which a switch forwards packets with this multicast LID.
    pub fn forward_multicast(&self, lid: u16) -> Vec<u8> {
        let switch = self.switch.as_ref();
        switch.map_or_else(Vec::new, |it| {
            it.forward_multicast(lid, self.identity.num_ports)
        })
    }

    /// Says that the state of a switch's port has changed, not by a subnet manager, which then reads it in SwitchInfo.
    pub fn note_port_state_change(&mut self) {
        if let Some(switch) = &mut self.switch {
            switch.info.port_state_change = true;
        }
    }

    fn index(&self, number: u8) -> Option<usize> {
        match self.switch {
            Some(_) => Some(number.into()),
            None => usize::from(number).checked_sub(1),
        }
    }

    /// Returns what the node is. The GUID and the number of a port are 0.
    pub fn identity(&self) -> &NodeInfo {
        &self.identity
    }

    /// Returns the port with this number; `None` if there is none.
    pub fn port(&self, number: u8) -> Option<&Port> {
        self.ports.get(self.index(number)?)
    }

    /// Returns the port with this number, for its counters; `None` if there is none.
    pub fn port_mut(&mut self, number: u8) -> Option<&mut Port> {
        let index = self.index(number)?;
        self.ports.get_mut(index)
    }

    /// Returns the next event, with the number of its port; `None` if there is none.
    pub fn poll_event(&mut self) -> Option<(u8, Event)> {
        let first = if self.switch.is_some() { 0 } else { 1 };
        let mut ports = self.ports.iter_mut().zip(first..);
        ports.find_map(|(port, number)| Some((number, port.poll_event()?)))
    }
}
