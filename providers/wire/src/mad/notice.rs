//! Notices (IBTA 13.4.8.2): a trap carries one to the subnet manager, which forwards it to subscribers in a report.
//!
//! [`Notice::trap_number`] determines the form of [`Notice::details`].

use crate::layout::{Octets, Reserved, header};
use crate::mad::attributes;

attributes! {
    Notice = 0x0002;
}

header! {
    /// An event: its kind, and the port that reports it. In a report, the GID of the issuer follows.
    Notice, NoticeView: 64 octets {
        is_generic: bool = 1, "Whether `trap_number` is one of the standard; otherwise it and `producer_type` are the vendor's.";
        notice_type: u8 = 7, "0 fatal, 1 urgent, 2 security, 3 subnet management, 4 informational.";
        producer_type: u32 = 24, "1 channel adapter, 2 switch, 3 router, 4 class manager.";
        trap_number: u16 = 16, "The kind of event: see [`trap`].";
        issuer_lid: u16 = 16, "The LID of the port that reports the event.";
        toggle: bool = 1, "Alternates with each new notice of the port's notice queue.";
        count: u16 = 15, "The number of notices in that queue.";
        details: Octets<54> = 432, "More about the event; its form depends on `trap_number`.";
    }
}

/// The traps of subnet management (IBTA 14.2.5.1).
pub mod trap {
    /// A port of a switch went up or down: [`LinkState`](super::LinkState).
    pub const LINK_STATE: u16 = 128;
    /// Too many errors of the link: [`LinkErrors`](super::LinkErrors).
    pub const LOCAL_LINK_INTEGRITY: u16 = 129;
    /// Too many overruns of the buffer: [`LinkErrors`](super::LinkErrors).
    pub const BUFFER_OVERRUN: u16 = 130;
    /// The other end of the link does not update its credits: [`LinkErrors`](super::LinkErrors).
    pub const FLOW_CONTROL: u16 = 131;
    /// A port or a node has changed: [`LocalChange`](super::LocalChange).
    pub const LOCAL_CHANGE: u16 = 144;
    /// An SMP had a wrong M_Key: [`MKeyViolation`](super::MKeyViolation).
    pub const M_KEY: u16 = 256;
    /// A packet had a wrong P_Key: [`KeyViolation`](super::KeyViolation).
    pub const P_KEY: u16 = 257;
    /// A packet had a wrong Q_Key: [`KeyViolation`](super::KeyViolation).
    pub const Q_KEY: u16 = 258;
}

header! {
    /// The details of [`trap::LINK_STATE`].
    LinkState, LinkStateView: 2 octets {
        lid: u16 = 16, "The LID of the switch.";
    }
}

header! {
    /// The details of [`trap::LOCAL_LINK_INTEGRITY`], [`trap::BUFFER_OVERRUN`] and [`trap::FLOW_CONTROL`].
    LinkErrors, LinkErrorsView: 5 octets {
        reserved: Reserved = 16, "Zero.";
        lid: u16 = 16, "The LID of the port.";
        port_num: u8 = 8, "The number of the port.";
    }
}

header! {
    /// The details of [`trap::LOCAL_CHANGE`].
    LocalChange, LocalChangeView: 14 octets {
        reserved16: Reserved = 16, "Zero.";
        lid: u16 = 16, "The LID of the port.";
        reserved8: Reserved = 8, "Zero.";
        reserved7: Reserved = 7, "Zero.";
        other_changes: bool = 1, "Whether one of the changes is that of a bit below.";
        capability_mask: u32 = 32, "The port's capability mask after the change.";
        reserved12: Reserved = 12, "Zero.";
        sm_priority: bool = 1, "The priority of the port's subnet manager has changed.";
        link_speed_enabled: bool = 1, "The enabled speeds have changed.";
        link_width_enabled: bool = 1, "The enabled widths have changed.";
        node_description: bool = 1, "The node description has changed.";
        capability_mask2: u16 = 16, "The port's second capability mask after the change.";
    }
}

header! {
    /// The details of [`trap::M_KEY`]: the SMP that was refused.
    MKeyViolation, MKeyViolationView: 54 octets {
        reserved16: Reserved = 16, "Zero.";
        lid: u16 = 16, "The LID of the sender.";
        dr_slid: u16 = 16, "The SMP's `dr_slid`, if it was directed.";
        method: u8 = 8, "The SMP's method.";
        reserved8: Reserved = 8, "Zero.";
        attribute_id: u16 = 16, "The SMP's attribute.";
        attribute_modifier: u32 = 32, "The SMP's attribute modifier.";
        m_key: u64 = 64, "The SMP's M_Key.";
        reserved8b: Reserved = 8, "Zero.";
        is_directed: bool = 1, "Whether the SMP was directed.";
        is_truncated: bool = 1, "Whether `return_path` is a part of the path.";
        hop_count: u8 = 6, "The number of hops in `return_path`.";
        return_path: Octets<30> = 240, "The SMP's return path.";
    }
}

header! {
    /// The details of [`trap::P_KEY`] and [`trap::Q_KEY`]: the packet with the wrong key.
    KeyViolation, KeyViolationView: 50 octets {
        reserved16: Reserved = 16, "Zero.";
        source_lid: u16 = 16, "The sender's LID.";
        destination_lid: u16 = 16, "The receiver's LID.";
        key: u32 = 32, "The key.";
        sl: u8 = 4, "The packet's service level.";
        reserved4: Reserved = 4, "Zero.";
        source_qp: u32 = 24, "The number of the sender's queue pair.";
        reserved8: Reserved = 8, "Zero.";
        destination_qp: u32 = 24, "The number of the receiver's queue pair.";
        source_gid: Octets<16> = 128, "The sender's GID.";
        destination_gid: Octets<16> = 128, "The receiver's GID.";
    }
}

#[cfg(test)]
mod tests {
    use hex_literal::hex;

    use super::*;
    use crate::layout::Header;

    // The layouts are those of opensm's `ib_types.h`.
    #[test]
    fn a_notice_has_its_fields_at_their_places() {
        let notice = Notice {
            is_generic: true,
            notice_type: 4,
            producer_type: 1,
            trap_number: trap::LOCAL_CHANGE,
            issuer_lid: 7,
            toggle: true,
            count: 2,
            details: Octets::holding(&LocalChange {
                lid: 7,
                other_changes: true,
                capability_mask: 0x0200_0002,
                node_description: true,
                ..LocalChange::default()
            }),
        };
        let front = hex!("84000001 0090 0007 8002 0000 0007 00 01 02000002 0001 0000");
        assert_eq!(notice.to_view().0[..24], front);
        assert_eq!(notice.to_view().0[24..], [0; 40]);
    }

    #[test]
    fn details_of_a_wrong_key_are_at_their_places() {
        let violation = MKeyViolation {
            lid: 3,
            dr_slid: 0xffff,
            method: 2,
            attribute_id: 0x15,
            attribute_modifier: 1,
            m_key: 9,
            is_directed: true,
            hop_count: 2,
            return_path: Octets::padded(&[0, 6, 1]).unwrap(),
            ..MKeyViolation::default()
        };
        let front = hex!("0000 0003 ffff 02 00 0015 00000001 0000000000000009 00 82 000601");
        assert_eq!(violation.to_view().0[..front.len()], front);

        let violation = KeyViolation {
            source_lid: 3,
            destination_lid: 4,
            key: 0x8001_0000,
            sl: 5,
            source_qp: 6,
            destination_qp: 7,
            source_gid: Octets([0xaa; 16]),
            ..KeyViolation::default()
        };
        let front = hex!("0000 0003 0004 80010000 50 000006 00 000007");
        assert_eq!(violation.to_view().0[..front.len()], front);
        assert_eq!(violation.to_view().0[18..34], [0xaa; 16]);
    }
}
