//! The base transport header (IBTA 9.2).
//!
//! ```text
//! +--------+-+-+--+----+----------------+
//! | opcode |S|M|P | TV |      P_Key     |
//! +--------+-+-+--+----+----------------+
//! |F|B| rsv|        destination QP      |
//! +--------+----------------------------+
//! |A| rsv  |             PSN            |
//! +--------+----------------------------+
//! ```

use super::opcode::Opcode;
use crate::layout::{Reserved, header};

header! {
    /// The base transport header, with which every InfiniBand and RoCE packet begins.
    Bth, BthView: 12 octets {
        opcode: Opcode = 8, "The kind of packet: operation and transport service.";
        solicited: bool = 1, "The sender asks for a solicited event at the receiver.";
        mig_req: bool = 1, "Migration state; to be ignored where there is no path migration.";
        pad_count: u8 = 2, "Bytes of zeros after the payload, which pad it to a multiple of four.";
        transport_version: u8 = 4, "Version of the transport: 0.";
        p_key: u16 = 16, "The P_Key: the partition; its highest bit marks a full member.";
        fecn: bool = 1, "FECN: this packet has met congestion.";
        becn: bool = 1, "BECN: packets of the opposite direction have met congestion.";
        reserved6: Reserved = 6, "Zero; the ICRC covers neither these bits nor the two before them.";
        dest_qp: u32 = 24, "The destination queue pair's number, or [`MULTICAST_QP`] for a multicast group: 24 bits.";
        ack_req: bool = 1, "The requester asks for an acknowledge.";
        reserved7: Reserved = 7, "Zero.";
        psn: u32 = 24, "The packet sequence number: 24 bits.";
    }
}

/// The destination QP number of datagrams to multicast groups.
pub const MULTICAST_QP: u32 = 0xff_ffff;

/// The P_Key of the default partition, with full membership.
pub const DEFAULT_P_KEY: u16 = 0xffff;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::Header;

    #[test]
    fn each_flag_sets_its_own_bit() {
        let set = |change: fn(&mut Bth)| {
            let mut bth = Bth::default();
            change(&mut bth);
            u128::from_be_bytes({
                let mut all = [0; 16];
                all[4..].copy_from_slice(&bth.to_view().0);
                all
            })
        };
        assert_eq!(set(|bth| bth.solicited = true), 1 << 87);
        assert_eq!(set(|bth| bth.mig_req = true), 1 << 86);
        assert_eq!(set(|bth| bth.pad_count = 3), 3 << 84);
        assert_eq!(set(|bth| bth.transport_version = 0xf), 0xf << 80);
        assert_eq!(set(|bth| bth.fecn = true), 1 << 63);
        assert_eq!(set(|bth| bth.becn = true), 1 << 62);
        assert_eq!(set(|bth| bth.ack_req = true), 1 << 31);
        assert_eq!(set(|bth| bth.psn = u32::MAX), 0xff_ffff);
    }
}
