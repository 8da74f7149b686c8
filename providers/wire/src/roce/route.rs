//! What stands before BTH where no IP header does.
//!
//! RoCEv2 sends none. A receive of a datagram has room for a GRH in front of the message all the same
//! ([`Grh::LEN`] octets), and finds the IP header in it: IPv6's, or IPv4's in the last 20 octets.

use crate::layout::{Octets, header};

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
