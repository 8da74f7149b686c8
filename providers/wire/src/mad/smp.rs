//! Subnet management packets, SMPs (IBTA 14.2): the MADs by which a subnet manager configures nodes, ports and switches.
//!
//! An SMP is routed by LID, or *directed*: it names the port by which it leaves each node ([`Hops`]), so that it needs no
//! configured switch. An attribute is at the front of the [data](Smp::data); its doc says what the attribute modifier selects.

use core::fmt;

use crate::layout::{Octets, Reserved, header, newtype_field};
use crate::mad::{MadHeader, attributes};

/// The management class of SMPs that are routed by LID.
pub const LID_CLASS: u8 = 0x01;

/// The management class of directed SMPs.
pub const DIRECTED_CLASS: u8 = 0x81;

/// The class version of SMPs in the MAD header.
pub const CLASS_VERSION: u8 = 1;

/// The permissive LID, which in a directed SMP says that there is no LID-routed part before or after the directed one.
pub const PERMISSIVE_LID: u16 = 0xffff;

/// The largest LID of a single port.
pub const MAX_UNICAST_LID: u16 = 0xbfff;

header! {
    /// The part of an SMP after the MAD header (IBTA 14.2.1.1, 14.2.1.2). SMPs that are routed by LID use only `m_key` and `data`.
    Smp, SmpView: 232 octets {
        m_key: u64 = 64, "The sender's M_Key, which the receiver may demand.";
        dr_slid: u16 = 16, "The requester's LID, if the way to the first directed hop is routed by LID; else [`PERMISSIVE_LID`].";
        dr_dlid: u16 = 16, "The responder's LID, if the way after the last directed hop is routed by LID; else [`PERMISSIVE_LID`].";
        reserved: Octets<28> = 224, "Zero.";
        data: Octets<64> = 512, "The attribute.";
        initial_path: Octets<64> = 512, "The port by which the request leaves each node. The first entry is not used.";
        return_path: Octets<64> = 512, "The port by which the request has entered each node. The first entry is not used.";
    }
}

/// The place of a directed SMP on its path, which is part of its MAD header (IBTA 14.2.1.2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Hops {
    /// Whether the SMP is on its way back to the requester, which is the highest bit of the status.
    pub is_returning: bool,
    /// The hop pointer, an index of the paths.
    pub pointer: u8,
    /// The hop count: how many entries of the paths are used.
    pub count: u8,
}

impl Hops {
    /// The largest hop count.
    pub const MAX_COUNT: u8 = 63;

    /// The bit of a directed SMP's status that marks the way back.
    pub const RETURNING: u16 = 0x8000;

    /// Decodes the place from the header of a directed SMP.
    pub const fn of(header: &MadHeader) -> Self {
        let [pointer, count] = header.class_specific.to_be_bytes();
        Self {
            is_returning: header.status & Self::RETURNING != 0,
            pointer,
            count,
        }
    }

    /// Writes the place into the header of a directed SMP, and leaves the status code as it is.
    pub const fn put(self, header: &mut MadHeader) {
        header.class_specific = u16::from_be_bytes([self.pointer, self.count]);
        header.status &= !Self::RETURNING;
        if self.is_returning {
            header.status |= Self::RETURNING;
        }
    }
}

attributes! {
    NodeDescription = 0x0010;
    NodeInfo = 0x0011;
    SwitchInfo = 0x0012;
    GuidInfo = 0x0014;
    PortInfo = 0x0015;
    PKeyTable = 0x0016;
    SlToVlTable = 0x0017;
    VlArbitrationTable = 0x0018;
    LinearForwardingTable = 0x0019;
    MulticastForwardingTable = 0x001b;
    SmInfo = 0x0020;
}

header! {
    /// The name of a node for people (IBTA 14.2.5.2).
    NodeDescription, NodeDescriptionView: 64 octets {
        text: Octets<64> = 512, "The name in UTF-8, followed by zeros.";
    }
}

header! {
    /// The kind and the identity of a node (IBTA 14.2.5.3).
    NodeInfo, NodeInfoView: 40 octets {
        base_version: u8 = 8, "Version of the MAD format: 1.";
        class_version: u8 = 8, "[`CLASS_VERSION`].";
        node_type: u8 = 8, "1 channel adapter, 2 switch, 3 router.";
        num_ports: u8 = 8, "The number of ports; port 0 of a switch is not counted.";
        system_image_guid: u64 = 64, "The GUID of the system to which the node belongs.";
        node_guid: u64 = 64, "The GUID of the node.";
        port_guid: u64 = 64, "The GUID of the port by which the request came in; of port 0, if the node is a switch.";
        partition_cap: u16 = 16, "The number of entries of each port's P_Key table.";
        device_id: u16 = 16, "The vendor's number of the device.";
        revision: u32 = 32, "The revision of the device.";
        local_port_num: u8 = 8, "The port by which the request came in.";
        vendor_id: u32 = 24, "The vendor's number: 24 bits.";
    }
}

header! {
    /// The abilities and the state of a switch (IBTA 14.2.5.4).
    SwitchInfo, SwitchInfoView: 20 octets {
        linear_fdb_cap: u16 = 16, "The number of LIDs that the linear forwarding table can have.";
        random_fdb_cap: u16 = 16, "The number of entries that the random forwarding table can have.";
        multicast_fdb_cap: u16 = 16, "The number of LIDs that the multicast forwarding table can have.";
        linear_fdb_top: u16 = 16, "The largest LID of the linear forwarding table that is used.";
        default_port: u8 = 8, "The port of LIDs that are not in the random forwarding table.";
        default_multicast_primary_port: u8 = 8, "The port of multicast LIDs that are in no table.";
        default_multicast_not_primary_port: u8 = 8, "The same, for packets from the primary port.";
        life_time_value: u8 = 5, "How long a packet may wait in the switch: n for 4.096 µs × 2^n.";
        port_state_change: bool = 1, "Whether a port has changed its state. Writing 1 clears the bit.";
        optimized_sl_to_vl_programming: u8 = 2, "Which ports one write of an SL-to-VL table can name.";
        lids_per_port: u16 = 16, "How many LIDs the random forwarding table can have for each port.";
        partition_enforcement_cap: u16 = 16, "The number of P_Keys that each port can enforce.";
        inbound_enforcement_cap: bool = 1, "Whether ports can check the P_Keys of packets that they receive.";
        outbound_enforcement_cap: bool = 1, "Whether ports can check the P_Keys of packets that they send.";
        filter_raw_inbound_cap: bool = 1, "Whether ports can drop raw packets that they receive.";
        filter_raw_outbound_cap: bool = 1, "Whether ports can drop raw packets that they send.";
        enhanced_port0: bool = 1, "Whether port 0 is able to send and receive data.";
        reserved3: Reserved = 3, "Zero.";
        reserved8: Reserved = 8, "Zero.";
        multicast_fdb_top: u16 = 16, "The largest LID of the multicast forwarding table that is used.";
    }
}

header! {
    /// GUIDs of a port (IBTA 14.2.5.5). The attribute modifier is the block of eight.
    GuidInfo, GuidInfoView: 64 octets {
        guids: [u64; 8] = 512, "The GUIDs. The first of block 0 is the port's own, which cannot be written.";
    }
}

newtype_field! {
    /// The state of a port's link (IBTA 7.2.7). In a write, 0 leaves it as it is.
    PortState(u8) = 4
}

impl PortState {
    /// In a write: the state does not change.
    pub const NO_CHANGE: Self = Self(0);
    /// There is no link.
    pub const DOWN: Self = Self(1);
    /// There is a link, which carries only SMPs until a subnet manager has configured the port.
    pub const INIT: Self = Self(2);
    /// The port receives data, and sends none.
    pub const ARMED: Self = Self(3);
    /// The port sends and receives data.
    pub const ACTIVE: Self = Self(4);
}

impl fmt::Display for PortState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match *self {
            Self::NO_CHANGE => "no change",
            Self::DOWN => "down",
            Self::INIT => "init",
            Self::ARMED => "armed",
            Self::ACTIVE => "active",
            _ => "reserved",
        })
    }
}

newtype_field! {
    /// The state of a port's connection to the cable (IBTA 5.9). In a write, 0 leaves it as it is.
    PhysicalState(u8) = 4
}

impl PhysicalState {
    /// In a write: the state does not change.
    pub const NO_CHANGE: Self = Self(0);
    /// The port saves power until it sees a signal.
    pub const SLEEP: Self = Self(1);
    /// The port looks for another port at the end of its cable.
    pub const POLLING: Self = Self(2);
    /// The port is switched off.
    pub const DISABLED: Self = Self(3);
    /// Both ends of the cable agree on the width and the speed of their link.
    pub const LINK_UP: Self = Self(5);
}

impl fmt::Display for PhysicalState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match *self {
            Self::NO_CHANGE => "no change",
            Self::SLEEP => "sleep",
            Self::POLLING => "polling",
            Self::DISABLED => "disabled",
            Self(4) => "training",
            Self::LINK_UP => "link up",
            Self(6) => "link error recovery",
            _ => "reserved",
        })
    }
}

/// Bits of [`PortInfo::capability_mask`](crate::mad::smp::PortInfo::capability_mask).
pub mod capability {
    /// A subnet manager runs on this port.
    pub const IS_SM: u32 = 1 << 1;
    /// The port sends traps.
    pub const TRAP: u32 = 1 << 3;
    /// The port maps service levels to virtual lanes by a table.
    pub const SL_MAPPING: u32 = 1 << 6;
    /// The port refuses to have a subnet manager.
    pub const SM_DISABLED: u32 = 1 << 10;
    /// The system has an image GUID.
    pub const SYSTEM_IMAGE_GUID: u32 = 1 << 11;
    /// The extended link speeds are supported.
    pub const EXTENDED_SPEEDS: u32 = 1 << 14;
    /// A communication manager runs on this port.
    pub const CM: u32 = 1 << 16;
    /// The port sends a trap when its capability mask changes.
    pub const CAPABILITY_MASK_NOTICE: u32 = 1 << 22;
    /// Programs on this port register again on demand of the subnet manager.
    pub const CLIENT_REREGISTRATION: u32 = 1 << 25;
}

header! {
    /// The abilities and the state of a port (IBTA 14.2.5.6).
    ///
    /// The attribute modifier is the port, or 0 for the port by which the request came in; its highest bit says that the requester
    /// knows the extended speeds. Widths are bits: 1 for 1x, 2 for 4x, 4 for 8x, 8 for 12x.
    PortInfo, PortInfoView: 64 octets {
        m_key: u64 = 64, "The key that writes need; 0 for none.";
        gid_prefix: u64 = 64, "The upper half of the port's GIDs.";
        lid: u16 = 16, "The first LID of the port.";
        sm_lid: u16 = 16, "The LID of the subnet manager.";
        capability_mask: u32 = 32, "The abilities of the port: see [`capability`].";
        diag_code: u16 = 16, "Result of the vendor's diagnosis; 0 is good.";
        m_key_lease_period: u16 = 16, "After how many seconds the protection by the M_Key ends, unless its owner shows up; 0 for never.";
        local_port_num: u8 = 8, "The port by which the request came in.";
        link_width_enabled: u8 = 8, "The widths that the link may have. In a write, 0 changes nothing and 255 enables all.";
        link_width_supported: u8 = 8, "The widths that the port supports.";
        link_width_active: u8 = 8, "The width of the link.";
        link_speed_supported: u8 = 4, "The speeds that the port supports: 1 for 2.5, 2 for 5, 4 for 10 Gbit/s per lane.";
        port_state: PortState = 4, "The state of the link.";
        physical_state: PhysicalState = 4, "The state of the connection.";
        link_down_default_state: PhysicalState = 4, "The state of the connection after the link has gone down.";
        m_key_protect_bits: u8 = 2, "Who may read without the M_Key: 0 and 1 everyone, though 1 hides the key; 2 and 3 no one.";
        reserved3: Reserved = 3, "Zero.";
        lmc: u8 = 3, "The port has 2^n LIDs.";
        link_speed_active: u8 = 4, "The speed of the link.";
        link_speed_enabled: u8 = 4, "The speeds that the link may have. In a write, 0 changes nothing and 15 enables all.";
        neighbor_mtu: u8 = 4, "The largest packets that the port may send, coded as in the verbs: 1 for 256 bytes to 5 for 4096 bytes.";
        sm_sl: u8 = 4, "The service level of MADs to the subnet manager.";
        vl_cap: u8 = 4, "The virtual lanes that the port has: 1 for one, 2 for two, 3 for four, 4 for eight, 5 for fifteen.";
        init_type: u8 = 4, "The kind of initialization that the port wishes for.";
        vl_high_limit: u8 = 8, "How much the high priority lanes may send before the low ones: units of 4 KiB.";
        vl_arbitration_high_cap: u8 = 8, "The number of entries of the arbitration table for high priority.";
        vl_arbitration_low_cap: u8 = 8, "The number of entries of the arbitration table for low priority.";
        init_type_reply: u8 = 4, "The kind of initialization that the subnet manager has done.";
        mtu_cap: u8 = 4, "The largest packets that the port can receive, coded as `neighbor_mtu`.";
        vl_stall_count: u8 = 3, "How many packets in a row a switch drops before the lane counts as stalled.";
        hoq_life: u8 = 5, "How long a packet may wait at the head of a lane's queue: n for 4.096 µs × 2^n.";
        operational_vls: u8 = 4, "The virtual lanes in use, coded as `vl_cap`. In a write, 0 changes nothing.";
        partition_enforcement_inbound: bool = 1, "Whether a switch checks the P_Keys of packets that the port receives.";
        partition_enforcement_outbound: bool = 1, "Whether a switch checks the P_Keys of packets that the port sends.";
        filter_raw_inbound: bool = 1, "Whether a switch drops raw packets that the port receives.";
        filter_raw_outbound: bool = 1, "Whether a switch drops raw packets that the port sends.";
        m_key_violations: u16 = 16, "SMPs with a wrong M_Key. Writing 0 clears the counter.";
        p_key_violations: u16 = 16, "Packets with a wrong P_Key. Writing 0 clears the counter.";
        q_key_violations: u16 = 16, "Packets with a wrong Q_Key. Writing 0 clears the counter.";
        guid_cap: u8 = 8, "The number of the port's GUIDs.";
        client_reregister: bool = 1, "In a write: programs on this port shall register again with the subnet administrator.";
        multicast_p_key_trap_suppression: u8 = 2, "Whether the port sends no traps about P_Keys of multicast packets.";
        subnet_timeout: u8 = 5, "How long a packet may take through the subnet: n for 4.096 µs × 2^n.";
        reserved3b: Reserved = 3, "Zero.";
        resp_time_value: u8 = 5, "How soon the port answers SMPs: n for 4.096 µs × 2^n.";
        local_phy_errors: u8 = 4, "How many errors of the link make a trap.";
        overrun_errors: u8 = 4, "How many overruns of the buffer make a trap.";
        max_credit_hint: u16 = 16, "The largest credit that the port can use.";
        reserved8: Reserved = 8, "Zero.";
        link_round_trip_latency: u32 = 24, "The time to the other end and back, in units of the link's symbols.";
        capability_mask2: u16 = 16, "More abilities of the port.";
        link_speed_ext_active: u8 = 4, "The extended speed of the link; 0 if `link_speed_active` is its speed.";
        link_speed_ext_supported: u8 = 4, "The extended speeds that the port supports: 1 for 14, 2 for 25, 4 for 50, 8 for 100 Gbit/s per lane.";
        reserved3c: Reserved = 3, "Zero.";
        link_speed_ext_enabled: u8 = 5, "The extended speeds that the link may have. In a write, 0 changes nothing and 31 enables all.";
    }
}

header! {
    /// P_Keys of a port (IBTA 14.2.5.7). The attribute modifier has the block of 32 in its lower half and a switch's port in its
    /// upper half.
    PKeyTable, PKeyTableView: 64 octets {
        p_keys: [u16; 32] = 512, "The P_Keys; 0 for an empty entry.";
    }
}

header! {
    /// The virtual lane of each service level (IBTA 14.2.5.8). For a switch, the attribute modifier has the input port in bits 8 to 15
    /// and the output port in bits 0 to 7.
    SlToVlTable, SlToVlTableView: 8 octets {
        vls: [u8; 16] = 64, "The virtual lanes, by service level. Lane 15 drops the packet.";
    }
}

header! {
    /// The order in which virtual lanes send (IBTA 14.2.5.9). The upper half of the attribute modifier is 1 or 2 for the entries of low
    /// priority, 3 or 4 for those of high priority; its lower half is a switch's port.
    VlArbitrationTable, VlArbitrationTableView: 64 octets {
        entries: Octets<64> = 512, "32 entries of two bytes: the lane, and how much it may send, in units of 64 bytes.";
    }
}

header! {
    /// Ports of a switch for LIDs (IBTA 14.2.5.10). The attribute modifier is the block of 64 LIDs.
    LinearForwardingTable, LinearForwardingTableView: 64 octets {
        ports: Octets<64> = 512, "The port for each LID; 255 for none.";
    }
}

header! {
    /// Ports of a switch for multicast LIDs (IBTA 14.2.5.12). The attribute modifier has the block of 32 LIDs in its nine lowest bits,
    /// and in its four highest bits which 16 ports these are.
    MulticastForwardingTable, MulticastForwardingTableView: 64 octets {
        port_masks: [u16; 32] = 512, "The ports for each LID, one bit each.";
    }
}

header! {
    /// A subnet manager (IBTA 14.2.5.13).
    SmInfo, SmInfoView: 24 octets {
        guid: u64 = 64, "The GUID of the port on which it runs.";
        sm_key: u64 = 64, "Its SM_Key.";
        act_count: u32 = 32, "A counter that shows that it is alive.";
        priority: u8 = 4, "Its priority: of two managers, that with the larger one is the master.";
        sm_state: u8 = 4, "0 inactive, 1 discovering, 2 standby, 3 master.";
        reserved: Reserved = 24, "Zero.";
    }
}

#[cfg(test)]
mod tests;
