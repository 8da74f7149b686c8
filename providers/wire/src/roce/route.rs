//! What stands before BTH where no IP header does.
//!
//! RoCEv2 sends neither. A receive of a datagram has room for a GRH in front of the message all the same
//! ([`Grh::LEN`] octets), and finds the IP header in it: IPv6's, or IPv4's in the last 20 octets.

use crate::layout::{Octets, Reserved, header};

header! {
    /// Local route header (IBTA 7.7): InfiniBand's own links only.
    Lrh, LrhView: 8 octets {
        /// Virtual lane.
        virtual_lane: u8 = 4,
        /// Version of the link: 0.
        link_version: u8 = 4,
        /// Service level.
        service_level: u8 = 4,
        /// Zero.
        reserved2: Reserved = 2,
        /// Link next header: what follows.
        next_header: u8 = 2,
        /// The receiver's LID.
        dlid: u16 = 16,
        /// Zero.
        reserved5: Reserved = 5,
        /// Length of the packet in words of four octets, VCRC not counted.
        packet_words: u16 = 11,
        /// The sender's LID.
        slid: u16 = 16,
    }
}

header! {
    /// Global route header (IBTA 8.3): IPv6's shape.
    Grh, GrhView: 40 octets {
        /// 6.
        ip_version: u8 = 4,
        /// Traffic class.
        traffic_class: u8 = 8,
        /// Flow label.
        flow_label: u32 = 20,
        /// Octets behind this header, ICRC included.
        payload_length: u16 = 16,
        /// 0x1b: the transport of InfiniBand.
        next_header: u8 = 8,
        /// Hops left.
        hop_limit: u8 = 8,
        /// The sender's GID.
        sgid: Octets<16> = 128,
        /// The receiver's GID.
        dgid: Octets<16> = 128,
    }
}

header! {
    /// Reliable datagram extended transport header (IBTA 9.3.1), which stands before a
    /// [`Deth`](super::Deth). No reliable datagrams exist here: the header is for whoever looks at others'.
    Rdeth, RdethView: 4 octets {
        /// Zero.
        reserved: Reserved = 8,
        /// End-to-end context: 24 bits.
        ee_context: u32 = 24,
    }
}
