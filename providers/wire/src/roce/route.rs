//! The global route header (GRH), which precedes the BTH if a packet has no IP header.
//!
//! RoCEv2 does not send it. A receive of a UD message nevertheless has room for a GRH in front of the message ([`Grh::LEN`]
//! bytes). The receiver finds the IP header there: that of IPv6, or that of IPv4 in the last 20 bytes.

use crate::layout::{Octets, header};

header! {
    /// Global route header (IBTA 8.3), which has the layout of IPv6's header.
    Grh, GrhView: 40 octets {
        ip_version: u8 = 4, "Version of IP: 6.";
        traffic_class: u8 = 8, "Traffic class.";
        flow_label: u32 = 20, "Flow label.";
        payload_length: u16 = 16, "The number of bytes after this header, the ICRC included.";
        next_header: u8 = 8, "The protocol that follows: 0x1b for the transport of InfiniBand.";
        hop_limit: u8 = 8, "Hops left.";
        sgid: Octets<16> = 128, "The sender's GID.";
        dgid: Octets<16> = 128, "The receiver's GID.";
    }
}
