//! Performance management (IBTA 16.1): the counters of ports.

use crate::layout::{Octets, Reserved, header};
use crate::mad::attributes;

/// The management class of performance management.
pub const PERF_CLASS: u8 = 0x04;

/// The class version of such MADs in the MAD header.
pub const CLASS_VERSION: u8 = 1;

/// Bits of the capability mask in the class's [`ClassPortInfo`](crate::mad::ClassPortInfo).
pub mod capability {
    /// [`PortCountersExtended`](super::PortCountersExtended) has all its counters.
    pub const EXTENDED_WIDTH: u16 = 1 << 9;
    /// [`PortCounters`](super::PortCounters) has `xmit_wait`.
    pub const XMIT_WAIT: u16 = 1 << 12;
}

header! {
    /// The part of a MAD of performance management after the MAD header (IBTA 16.1.1).
    Perf, PerfView: 232 octets {
        reserved: Octets<40> = 320, "Zero.";
        data: Octets<192> = 1536, "The attribute.";
    }
}

attributes! {
    PortSamplesControl = 0x0010;
    PortCounters = 0x0012;
    PortCountersExtended = 0x001d;
}

header! {
    /// Control of counters that run for a chosen time (IBTA 16.1.3.2).
    PortSamplesControl, PortSamplesControlView: 68 octets {
        op_code: u8 = 8, "0; other values are the vendor's.";
        port_select: u8 = 8, "The number of the port.";
        tick: u8 = 8, "The unit of times, a number of the standard's table.";
        reserved5: Reserved = 5, "Zero.";
        counter_width: u8 = 3, "The width of the counters: 16 bits and 4 for each unit.";
        reserved2: Reserved = 2, "Zero.";
        counter_mask0: u8 = 3, "The abilities of counter 0.";
        counter_masks1to9: u32 = 27, "The abilities of counters 1 to 9, three bits each.";
        reserved1: Reserved = 1, "Zero.";
        counter_masks10to14: u16 = 15, "The abilities of counters 10 to 14, three bits each.";
        sample_mechanisms: u8 = 8, "The number of sets of counters after the first.";
        reserved6: Reserved = 6, "Zero.";
        sample_status: u8 = 2, "0 done, 1 started, 2 running.";
        option_mask: u64 = 64, "The optional counters that can be selected, one bit each.";
        vendor_mask: u64 = 64, "The vendor's counters that can be selected, one bit each.";
        sample_start: u32 = 32, "The time from the request to the beginning of the sample.";
        sample_interval: u32 = 32, "The length of the sample.";
        tag: u16 = 16, "A number that the requester chooses and the result repeats.";
        counter_select: [u16; 15] = 240, "What each counter counts.";
    }
}

header! {
    /// Counters of a port, which stop at their largest value (IBTA 16.1.3.5). A write sets the selected ones.
    PortCounters, PortCountersView: 44 octets {
        reserved8: Reserved = 8, "Zero.";
        port_select: u8 = 8, "The number of the port.";
        counter_select: u16 = 16, "The counters that a write sets, one bit each, in the order of the fields.";
        symbol_errors: u16 = 16, "Errors of the link's symbols.";
        link_error_recoveries: u8 = 8, "How often the link has recovered from errors.";
        link_downed: u8 = 8, "How often the link went down because it did not recover.";
        rcv_errors: u16 = 16, "Received packets with an error.";
        rcv_remote_physical_errors: u16 = 16, "Received packets that a switch had marked as damaged.";
        rcv_switch_relay_errors: u16 = 16, "Received packets that the switch could not forward.";
        xmit_discards: u16 = 16, "Packets that were not sent because the port was down or congested.";
        xmit_constraint_errors: u8 = 8, "Packets that were not sent because of partitions or filters.";
        rcv_constraint_errors: u8 = 8, "Received packets that were dropped because of partitions or filters.";
        counter_select2: u8 = 8, "More counters that a write sets: 1 for `xmit_wait`.";
        local_link_integrity_errors: u8 = 4, "How often the errors of the link reached the threshold.";
        excessive_buffer_overrun_errors: u8 = 4, "How often the overruns of the buffer reached the threshold.";
        qp1_dropped: u16 = 16, "Packets to QP 1 that were dropped for want of resources.";
        vl15_dropped: u16 = 16, "Packets of virtual lane 15 that were dropped for want of resources.";
        xmit_data: u32 = 32, "Words of four bytes that were sent, from the first byte of each packet to its invariant CRC.";
        rcv_data: u32 = 32, "Words of four bytes that were received, counted as those that were sent.";
        xmit_pkts: u32 = 32, "Packets that were sent.";
        rcv_pkts: u32 = 32, "Packets that were received.";
        xmit_wait: u32 = 32, "Ticks during which a packet waited for credit.";
    }
}

header! {
    /// Wide counters of a port, which stop at their largest value (IBTA 16.1.4.11). A write sets the selected ones.
    PortCountersExtended, PortCountersExtendedView: 72 octets {
        reserved8: Reserved = 8, "Zero.";
        port_select: u8 = 8, "The number of the port.";
        counter_select: u16 = 16, "The counters that a write sets, one bit each, in the order of the fields.";
        counter_select2: u32 = 32, "Counters that a write sets and that are not among these.";
        xmit_data: u64 = 64, "Words of four bytes that were sent: see [`PortCounters::xmit_data`].";
        rcv_data: u64 = 64, "Words of four bytes that were received.";
        xmit_pkts: u64 = 64, "Packets that were sent.";
        rcv_pkts: u64 = 64, "Packets that were received.";
        unicast_xmit_pkts: u64 = 64, "Packets that were sent to one port.";
        unicast_rcv_pkts: u64 = 64, "Packets that were received and were for this port alone.";
        multicast_xmit_pkts: u64 = 64, "Packets that were sent to a multicast group.";
        multicast_rcv_pkts: u64 = 64, "Packets that were received for a multicast group.";
    }
}

#[cfg(test)]
mod tests {
    use hex_literal::hex;

    use super::*;
    use crate::layout::Header;
    use crate::mad::ClassPortInfo;

    // The layouts are those of opensm's `ib_types.h`.
    #[test]
    fn counters_have_the_order_of_the_standard() {
        let counters = PortCounters {
            port_select: 1,
            counter_select: 0xffff,
            symbol_errors: 2,
            link_error_recoveries: 3,
            link_downed: 4,
            rcv_errors: 5,
            rcv_remote_physical_errors: 6,
            rcv_switch_relay_errors: 7,
            xmit_discards: 8,
            xmit_constraint_errors: 9,
            rcv_constraint_errors: 10,
            counter_select2: 1,
            local_link_integrity_errors: 11,
            excessive_buffer_overrun_errors: 12,
            qp1_dropped: 13,
            vl15_dropped: 14,
            xmit_data: 15,
            rcv_data: 16,
            xmit_pkts: 17,
            rcv_pkts: 18,
            xmit_wait: 19,
            ..PortCounters::default()
        };
        let octets = hex!(
            "00 01 ffff 0002 03 04 0005 0006 0007 0008 09 0a 01 bc 000d 000e"
            "0000000f 00000010 00000011 00000012 00000013"
        );
        assert_eq!(counters.to_view().0, octets);

        let counters = PortCountersExtended {
            port_select: 1,
            counter_select: 0xff,
            xmit_data: 2,
            multicast_rcv_pkts: 3,
            ..PortCountersExtended::default()
        };
        let octets = counters.to_view().0;
        assert_eq!(octets[..16], hex!("00 01 00ff 00000000 0000000000000002"));
        assert_eq!(octets[64..], hex!("0000000000000003"));
    }

    #[test]
    fn the_class_port_info_has_its_fields_at_their_places() {
        let info = ClassPortInfo {
            base_version: 1,
            class_version: CLASS_VERSION,
            capability_mask: capability::EXTENDED_WIDTH | capability::XMIT_WAIT,
            capability_mask2: 1,
            resp_time_value: 18,
            redirect_gid: Octets([0xaa; 16]),
            redirect_traffic_class: 2,
            redirect_sl: 3,
            redirect_flow_label: 4,
            redirect_lid: 5,
            redirect_p_key: 6,
            redirect_qp: 7,
            redirect_q_key: 8,
            trap_gid: Octets([0xbb; 16]),
            trap_traffic_class: 9,
            trap_sl: 10,
            trap_flow_label: 11,
            trap_lid: 12,
            trap_p_key: 13,
            trap_hop_limit: 14,
            trap_qp: 15,
            trap_q_key: 16,
            ..ClassPortInfo::default()
        };
        let octets = hex!(
            "01 01 1200 00000032"
            "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa 02300004 0005 0006 00000007 00000008"
            "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb 09a0000b 000c 000d 0e00000f 00000010"
        );
        assert_eq!(info.to_view().0, octets);
    }

    #[test]
    fn the_sample_control_has_its_fields_at_their_places() {
        let control = PortSamplesControl {
            port_select: 1,
            counter_width: 4,
            counter_mask0: 5,
            sample_status: 2,
            sample_start: 6,
            sample_interval: 7,
            tag: 8,
            counter_select: [1, 2, 3, 4, 5, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9],
            ..PortSamplesControl::default()
        };
        let octets = hex!(
            "00 01 00 04 28000000 0000 00 02 0000000000000000 0000000000000000 00000006 00000007 0008"
            "0001 0002 0003 0004 0005 0000 0000 0000 0000 0000 0000 0000 0000 0000 0009"
        );
        assert_eq!(control.to_view().0, octets);
    }
}
