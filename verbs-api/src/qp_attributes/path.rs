//! Paths to the ports of peers.

use crate::ids::{Gid, LinkAddress, Port};

/// The path to a peer's port (`struct ibv_ah_attr`). Paths can be compared, so that a program can cache one address handle
/// for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[doc(alias = "ibv_ah_attr")]
pub struct AddressVector {
    /// The link address of the peer's port.
    pub address: LinkAddress,
    /// Whether packets have a routing header. On Ethernet every path has one; within an InfiniBand subnet the LID suffices.
    pub is_global: bool,
    /// The GID of the peer's port, or of a multicast group.
    pub dgid: Gid,
    /// The flow label of packets: 20 bits, in host byte order.
    pub flow_label: u32,
    /// Index of the GID in the local port's table that packets are sent from.
    pub sgid_index: u8,
    /// The local port, counted from 1.
    pub port_num: Port,
    /// The low bits of the local LID that packets are sent from, 0 to 2^lmc - 1.
    pub src_path_bits: u8,
    /// The traffic class of packets.
    pub traffic_class: u8,
    /// The hop limit of packets.
    pub hop_limit: u8,
    /// The service level of packets, 0 to 15.
    pub sl: u8,
    /// The static rate of packets as verbs encode it, 0 to 31; 0 for no limit.
    pub static_rate: u8,
}

impl AddressVector {
    /// Returns the path from the local port `port_num` to `address`, with a routing header.
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
