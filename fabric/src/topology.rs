//! Topologies: the nodes of a fabric and the links between their ports, as a text in the format of ibsim and ibnetdiscover.
//!
//! A record describes one node, and an empty line ends it:
//!
//! ```text
//! Switch 8 "S1"                      # "first switch"
//! [1] "A"[1]
//! [8] "S2"[8]                        # 4xHDR
//!
//! Ca 1 "A"
//! [1] "S1"[1]
//! ```
//!
//! The first line has the kind of the node, the number of its ports, and its name. The other lines are links, each with the
//! port and the neighbor's name and port. A link may stand at both of its ends, but then both lines must agree. A comment may
//! carry the description of the node, and width and speed of a link, where ibnetdiscover prints them. The GUIDs of a node are in
//! lines before its record, such as `caguid=0x10`.

mod parse;
mod write;

use std::collections::BTreeMap;

/// The kind of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeKind {
    /// A channel adapter, with ports from 1.
    Adapter,
    /// A switch, whose port 0 is its own management port.
    Switch,
}

/// The width and speed of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// The number of lanes: 1, 2, 4, 8 or 12.
    pub lanes: u8,
    /// The speed of each lane.
    pub speed: Speed,
}

impl Default for Rate {
    /// 4xEDR.
    fn default() -> Self {
        Self {
            lanes: 4,
            speed: Speed::Edr,
        }
    }
}

/// The speed of a lane, slowest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[expect(missing_docs, reason = "the names are those of the standard")]
pub enum Speed {
    Sdr,
    Ddr,
    Qdr,
    Fdr,
    Edr,
    Hdr,
    Ndr,
}

impl Speed {
    const ALL: [(Self, &'static str); 7] = [
        (Self::Sdr, "SDR"),
        (Self::Ddr, "DDR"),
        (Self::Qdr, "QDR"),
        (Self::Fdr, "FDR"),
        (Self::Edr, "EDR"),
        (Self::Hdr, "HDR"),
        (Self::Ndr, "NDR"),
    ];
}

/// One end of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct End {
    /// The index of the node in [`Topology::nodes`].
    pub node: usize,
    /// The number of the port.
    pub port: u8,
}

/// The link of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    /// The other end.
    pub to: End,
    /// Width and speed.
    pub rate: Rate,
}

/// A node of a topology.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeSpec {
    /// The kind of the node.
    pub kind: NodeKind,
    /// The name by which links refer to the node, which is unique.
    pub name: String,
    /// The description of the node, for people.
    pub description: String,
    /// The number of ports; port 0 of a switch is not counted.
    pub ports: u8,
    /// The GUID of the node.
    pub guid: u64,
    /// The GUID of the system to which the node belongs.
    pub system_guid: u64,
    /// The GUIDs of the ports: of ports 1 and on of an adapter, of port 0 of a switch.
    pub port_guids: Vec<u64>,
    /// The vendor's number.
    pub vendor: u32,
    /// The vendor's number of the device.
    pub device: u16,
    /// The links by port.
    pub links: BTreeMap<u8, Link>,
}

/// The nodes of a fabric and their links. Each link is in the lists of both of its ends.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Topology {
    /// The nodes, in the order of the text.
    pub nodes: Vec<NodeSpec>,
}

/// The first fault of a text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{line}: {message}")]
pub struct TopologyError {
    /// The line, counted from 1.
    pub line: usize,
    /// The fault in words.
    pub message: String,
}

impl Topology {
    /// Returns the node with this name, with its index; `None` if there is none.
    pub fn node(&self, name: &str) -> Option<(usize, &NodeSpec)> {
        let mut nodes = self.nodes.iter().enumerate();
        nodes.find(|(_, node)| node.name == name)
    }
}

/// The most ports of a node: numbers up to 254 are ports.
pub(crate) const MOST_PORTS: u8 = 254;
/// The most nodes: as many as there are unicast LIDs.
const MOST_NODES: usize = 0xbfff;
