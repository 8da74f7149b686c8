//! Paths to the ports of peers.

use crate::ids::{Gid, LinkAddress, Port};

/// A path to a peer's port. Equal paths need one address handle: a path is the key of a cache of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[doc(alias = "ibv_ah_attr")]
pub struct AddressVector {
    /// The peer's address on the link.
    pub address: LinkAddress,
    /// Whether packets have a routing header. On Ethernet every path has one; within an InfiniBand subnet the LID suffices.
    pub is_global: bool,
    /// The peer's global identifier, or that of a multicast group.
    pub dgid: Gid,
    /// Flow label: 20 bits, host order here.
    pub flow_label: u32,
    /// Index of the own identifier to send from.
    pub sgid_index: u8,
    /// The own port.
    pub port_num: Port,
    /// Low bits of the own LID to send from, 0 to 2^lmc - 1.
    pub src_path_bits: u8,
    /// Traffic class.
    pub traffic_class: u8,
    /// Hop limit.
    pub hop_limit: u8,
    /// Service level, 0 to 15.
    pub sl: u8,
    /// Static rate, 0 to 31.
    pub static_rate: u8,
}

impl AddressVector {
    /// The path from `port_num` to `address`, with a routing header.
    pub const fn new(address: LinkAddress, dgid: Gid, port_num: Port) -> Self {
        Self {
            address,
            is_global: true,
            dgid,
            flow_label: 0,
            sgid_index: 0,
            port_num,
            src_path_bits: 0,
            traffic_class: 0,
            hop_limit: 64,
            sl: 0,
            static_rate: 0,
        }
    }
}
