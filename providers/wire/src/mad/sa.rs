//! Requests to the administrator of a subnet, SA (IBTA 15.2): records of paths, groups and everything else that it knows.

use crate::layout::{Octets, Reserved, header};
use crate::mad::attributes;

/// The management class of MADs to and from the SA.
pub const SA_CLASS: u8 = 0x03;

/// The class version of such MADs in the MAD header.
pub const CLASS_VERSION: u8 = 2;

/// The status codes of the SA (IBTA 15.2.3), the upper eight bits of the status.
pub mod status {
    /// The SA has no room for the record.
    pub const NO_RESOURCES: u16 = 0x0100;
    /// The request is invalid.
    pub const REQUEST_INVALID: u16 = 0x0200;
    /// No record matches.
    pub const NO_RECORDS: u16 = 0x0300;
    /// Several records match, and the method returns one.
    pub const TOO_MANY_RECORDS: u16 = 0x0400;
    /// A GID is invalid.
    pub const REQUEST_INVALID_GID: u16 = 0x0500;
    /// The component mask lacks components that the request needs.
    pub const INSUFFICIENT_COMPONENTS: u16 = 0x0600;
    /// The requester may not do this.
    pub const DENIED: u16 = 0x0700;
}

header! {
    /// The part of an SA's MAD after the MAD header (IBTA 15.2.1.1). Each segment of a longer message has it.
    SaMad, SaMadView: 232 octets {
        rmpp: Octets<12> = 96, "The header of RMPP, an [`Rmpp`](super::rmpp::Rmpp).";
        sm_key: u64 = 64, "The key that makes the requester trusted; 0 for none.";
        attribute_offset: u16 = 16, "The distance between the records of an answer, in units of eight bytes.";
        reserved: Reserved = 16, "Zero.";
        component_mask: u64 = 64, "The fields of the record that the request states, one bit each.";
        data: Octets<200> = 1600, "A record, or a segment of a message.";
    }
}

attributes! {
    PathRecord = 0x0035;
    McMemberRecord = 0x0038;
}

/// How a request compares a record's MTU, rate or lifetime with its own.
pub mod selector {
    /// The record's value is larger.
    pub const LARGER: u8 = 0;
    /// The record's value is smaller.
    pub const SMALLER: u8 = 1;
    /// The record's value is the same.
    pub const EXACTLY: u8 = 2;
    /// The record has the largest possible MTU or rate, or the smallest possible lifetime.
    pub const BEST: u8 = 3;
}

header! {
    /// A path between two ports (IBTA 15.2.5.16). The bit of each field in the component mask is at the end of its line.
    PathRecord, PathRecordView: 64 octets {
        service_id: u64 = 64, "The service for which the path is used: bits 0 and 1.";
        dgid: Octets<16> = 128, "The GID of the destination: bit 2.";
        sgid: Octets<16> = 128, "The GID of the source: bit 3.";
        dlid: u16 = 16, "The LID of the destination: bit 4.";
        slid: u16 = 16, "The LID of the source: bit 5.";
        raw_traffic: bool = 1, "Whether the path is for raw packets: bit 6.";
        reserved3: Reserved = 3, "Zero.";
        flow_label: u32 = 20, "The flow label: bit 8.";
        hop_limit: u8 = 8, "The hop limit; 0 or 1 within a subnet: bit 9.";
        traffic_class: u8 = 8, "The traffic class: bit 10.";
        reversible: bool = 1, "Whether packets in the other direction can take the same path: bit 11.";
        num_path: u8 = 7, "In a request, the largest number of paths to return: bit 12.";
        p_key: u16 = 16, "The P_Key: bit 13.";
        qos_class: u16 = 12, "The class of service: bit 14.";
        sl: u8 = 4, "The service level: bit 15.";
        mtu_selector: u8 = 2, "How to compare the path MTU: see [`selector`], bit 16.";
        mtu: u8 = 6, "The path MTU, coded as in the verbs: bit 17.";
        rate_selector: u8 = 2, "How to compare the rate: see [`selector`], bit 18.";
        rate: u8 = 6, "The static rate, coded as in the verbs: bit 19.";
        packet_life_time_selector: u8 = 2, "How to compare the lifetime: see [`selector`], bit 20.";
        packet_life_time: u8 = 6, "How long a packet may take on the path, n for 4.096 µs × 2^n: bit 21.";
        preference: u8 = 8, "The order of several paths in an answer; 0 is the best.";
        reserved48: Octets<6> = 48, "Zero.";
    }
}

header! {
    /// A member of a multicast group (IBTA 15.2.5.17). The bit of each field in the component mask is at the end of its line.
    McMemberRecord, McMemberRecordView: 56 octets {
        mgid: Octets<16> = 128, "The GID of the group: bit 0.";
        port_gid: Octets<16> = 128, "The GID of the member: bit 1.";
        q_key: u32 = 32, "The Q_Key of the group: bit 2.";
        mlid: u16 = 16, "The multicast LID: bit 3.";
        mtu_selector: u8 = 2, "How to compare the MTU: see [`selector`], bit 4.";
        mtu: u8 = 6, "The MTU of the group, coded as in the verbs: bit 5.";
        traffic_class: u8 = 8, "The traffic class: bit 6.";
        p_key: u16 = 16, "The P_Key: bit 7.";
        rate_selector: u8 = 2, "How to compare the rate: see [`selector`], bit 8.";
        rate: u8 = 6, "The static rate, coded as in the verbs: bit 9.";
        packet_life_time_selector: u8 = 2, "How to compare the lifetime: see [`selector`], bit 10.";
        packet_life_time: u8 = 6, "How long a packet may take within the group, n for 4.096 µs × 2^n: bit 11.";
        sl: u8 = 4, "The service level: bit 12.";
        flow_label: u32 = 20, "The flow label: bit 13.";
        hop_limit: u8 = 8, "The hop limit: bit 14.";
        scope: u8 = 4, "The scope of the group's address: bit 15.";
        join_state: u8 = 4, "Full member 1, non-member 2, sender only 4: bit 16.";
        proxy_join: bool = 1, "Whether another port joins for the member: bit 17.";
        reserved23: Reserved = 23, "Zero.";
        reserved32: Reserved = 32, "Fills the record to a multiple of eight bytes.";
    }
}

#[cfg(test)]
mod tests {
    use hex_literal::hex;

    use super::*;
    use crate::layout::Header;
    use crate::mad::rmpp::{Rmpp, rmpp_type};
    use crate::mad::{self, Attribute, MAD_LEN, MadHeader, method};

    // A request for a path and its answer, from Wireshark's sample capture of InfiniBand (`infiniband.pcap`), without the zeros
    // at their ends.
    const REQUEST: &[u8] = &hex!(
        "0103020100000000 0000000bb9647f9e 0035000000000000"
        "000000000000000000000000 0000000000000000 0000 0000 000000000000340c"
        "0000000000000000 fe800000000000000002c90300001895 fe800000000000000002c9020024f636"
        "0000 0000 00000000 00 01 ffff"
    );
    const ANSWER: &[u8] = &hex!(
        "0103028100000000 0000000bb9647f9e 0035000000000000"
        "000000000000000000000000 0000000000000000 0008 0000 000000000000340c"
        "0000000000000000 fe800000000000000002c90300001895 fe800000000000000002c9020024f636"
        "0002 0004 00000000 00 80 ffff 0000 84 83 92"
    );

    fn decoded(front: &[u8]) -> (MadHeader, SaMad) {
        let octets: [u8; MAD_LEN] = Octets::padded(front).unwrap().0;
        let mad = mad::decode(&octets).unwrap();
        let (header, request) = (MadHeader::of(mad.header), Octets(*mad.data).header());
        assert_eq!(mad::encode(&header, &SaMad::to_view(&request).0), octets);
        (header, request)
    }

    #[test]
    fn a_captured_request_for_a_path_is_decoded() {
        let (header, request) = decoded(REQUEST);
        assert_eq!(
            (header.management_class, header.class_version, header.method),
            (SA_CLASS, CLASS_VERSION, method::GET)
        );
        assert_eq!(header.attribute_id, PathRecord::ID);
        // The kernel's connection manager states both GIDs, traffic class, number of paths and P_Key.
        assert_eq!(
            request.component_mask,
            1 << 2 | 1 << 3 | 1 << 10 | 1 << 12 | 1 << 13
        );
        assert_eq!(request.rmpp.header::<Rmpp>(), Rmpp::default());
        let path: PathRecord = request.data.header();
        assert_eq!(path.dgid, Octets(hex!("fe800000000000000002c90300001895")));
        assert_eq!(path.sgid, Octets(hex!("fe800000000000000002c9020024f636")));
        assert_eq!((path.num_path, path.p_key), (1, 0xffff));
    }

    #[test]
    fn the_captured_answer_has_lids_mtu_rate_and_lifetime() {
        let (header, answer) = decoded(ANSWER);
        assert_eq!(header.method, method::GET | method::RESPONSE);
        assert_eq!(
            usize::from(answer.attribute_offset) * 8,
            <PathRecord as Header>::LEN
        );
        let path: PathRecord = answer.data.header();
        assert_eq!((path.dlid, path.slid), (2, 4));
        assert_eq!((path.reversible, path.num_path), (true, 0));
        assert_eq!((path.mtu_selector, path.mtu), (selector::EXACTLY, 4));
        assert_eq!((path.rate_selector, path.rate), (selector::EXACTLY, 3));
        assert_eq!(
            (path.packet_life_time_selector, path.packet_life_time),
            (selector::EXACTLY, 18)
        );
    }

    // The layout is that of opensm's `ib_types.h`.
    #[test]
    fn a_group_member_has_its_fields_at_their_places() {
        let member = McMemberRecord {
            mgid: Octets([0xff; 16]),
            port_gid: Octets([0xfe; 16]),
            q_key: 0x0b1b,
            mlid: 0xc003,
            mtu_selector: selector::EXACTLY,
            mtu: 4,
            traffic_class: 1,
            p_key: 0xffff,
            rate_selector: selector::SMALLER,
            rate: 3,
            packet_life_time_selector: selector::BEST,
            packet_life_time: 18,
            sl: 5,
            flow_label: 6,
            hop_limit: 7,
            scope: 2,
            join_state: 1,
            proxy_join: true,
            ..McMemberRecord::default()
        };
        let octets = hex!(
            "ffffffffffffffffffffffffffffffff fefefefefefefefefefefefefefefefe"
            "00000b1b c003 84 01 ffff 43 d2 50000607 21 80 0000 00000000"
        );
        assert_eq!(member.to_view().0, octets);
    }

    #[test]
    fn a_segment_has_the_header_of_rmpp_before_that_of_the_sa() {
        let segment = SaMad {
            rmpp: Octets::holding(&Rmpp {
                version: 1,
                packet_type: rmpp_type::DATA,
                response_time: 31,
                is_last: true,
                is_active: true,
                segment_number: 2,
                length: 0x54,
                ..Rmpp::default()
            }),
            sm_key: 1,
            ..SaMad::default()
        };
        let front = hex!("01 01 fd 00 00000002 00000054 0000000000000001 0000");
        assert_eq!(segment.to_view().0[..front.len()], front);
    }
}
