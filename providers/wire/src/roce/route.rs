//! What stands before BTH where no IP header does.
//!
//! RoCEv2 sends neither. A receive of a datagram has room for a GRH in front of the message all the same
//! ([`Grh::LEN`] octets), and finds the IP header in it: IPv6's, or IPv4's in the last 20 octets.

use crate::layout::{Octets, Reserved, header};

header! {
    /// Local route header (IBTA 7.7): InfiniBand's own links only.
    Lrh, LrhView: 8 octets {
        virtual_lane: u8 = 4, "Virtual lane.";
        link_version: u8 = 4, "Version of the link: 0.";
        service_level: u8 = 4, "Service level.";
        reserved2: Reserved = 2, "Zero.";
        next_header: u8 = 2, "Link next header: what follows.";
        dlid: u16 = 16, "The receiver's LID.";
        reserved5: Reserved = 5, "Zero.";
        packet_words: u16 = 11, "Length of the packet in words of four octets, VCRC not counted.";
        slid: u16 = 16, "The sender's LID.";
    }
}

header! {
    /// Global route header (IBTA 8.3): IPv6's shape.
    Grh, GrhView: 40 octets {
        ip_version: u8 = 4, "6.";
        traffic_class: u8 = 8, "Traffic class.";
        flow_label: u32 = 20, "Flow label.";
        payload_length: u16 = 16, "Octets behind this header, ICRC included.";
        next_header: u8 = 8, "0x1b: the transport of InfiniBand.";
        hop_limit: u8 = 8, "Hops left.";
        sgid: Octets<16> = 128, "The sender's GID.";
        dgid: Octets<16> = 128, "The receiver's GID.";
    }
}

header! {
    /// Reliable datagram extended transport header (IBTA 9.3.1), which stands before a
    /// [`Deth`](super::Deth). No reliable datagrams exist here: the header is for whoever looks at others'.
    Rdeth, RdethView: 4 octets {
        reserved: Reserved = 8, "Zero.";
        ee_context: u32 = 24, "End-to-end context: 24 bits.";
    }
}
