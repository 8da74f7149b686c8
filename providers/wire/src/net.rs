//! What carries the two protocols: Ethernet, IP, UDP and TCP headers.
//!
//! RoCEv2's checksum covers the IP and UDP headers, and captures hold all of them. Every bit is kept, so that a packet
//! that is taken apart can be built again.

use crate::layout::{Octets, Reserved, header};

/// UDP's destination port of RoCEv2 (IBTA annex A17).
pub const ROCE_PORT: u16 = 4791;

/// Ethernet's types of what lies behind its header.
pub mod ethertype {
    /// IPv4.
    pub const IPV4: u16 = 0x0800;
    /// IPv6.
    pub const IPV6: u16 = 0x86dd;
    /// A VLAN tag.
    pub const VLAN: u16 = 0x8100;
    /// An outer VLAN tag, of a service provider.
    pub const SERVICE_VLAN: u16 = 0x88a8;
}

/// IP's numbers of what lies behind its header.
pub mod protocol {
    /// TCP.
    pub const TCP: u8 = 6;
    /// UDP.
    pub const UDP: u8 = 17;
}

header! {
    /// Ethernet II.
    Ethernet, EthernetView: 14 octets {
        destination: Octets<6> = 48, "The receiver.";
        source: Octets<6> = 48, "The sender.";
        ethertype: u16 = 16, "What follows: see [`ethertype`].";
    }
}

header! {
    /// A VLAN tag (IEEE 802.1Q), behind the addresses and the type that announces it.
    Vlan, VlanView: 4 octets {
        priority: u8 = 3, "Priority.";
        drop_eligible: bool = 1, "May be dropped.";
        id: u16 = 12, "The VLAN.";
        ethertype: u16 = 16, "What follows.";
    }
}

header! {
    /// Linux's cooked capture, first version (LINKTYPE_LINUX_SLL).
    Sll, SllView: 16 octets {
        packet_type: u16 = 16, "Whether the packet came, went, or passed.";
        device_type: u16 = 16, "ARPHRD_ type of the device.";
        address_length: u16 = 16, "Octets of the address that count.";
        address: Octets<8> = 64, "The sender's link-layer address.";
        protocol: u16 = 16, "What follows: an Ethernet type.";
    }
}

header! {
    /// Linux's cooked capture, second version (LINKTYPE_LINUX_SLL2).
    Sll2, Sll2View: 20 octets {
        protocol: u16 = 16, "What follows: an Ethernet type.";
        reserved: Reserved = 16, "Zero.";
        interface: u32 = 32, "The device.";
        device_type: u16 = 16, "ARPHRD_ type of the device.";
        packet_type: u8 = 8, "Whether the packet came, went, or passed.";
        address_length: u8 = 8, "Octets of the address that count.";
        address: Octets<8> = 64, "The sender's link-layer address.";
    }
}

header! {
    /// BSD's loopback (LINKTYPE_NULL, LINKTYPE_LOOP).
    Loopback, LoopbackView: 4 octets {
        family: Octets<4> = 32, "The address family: a number of the capturing system, in its byte order or in the network's.";
    }
}

impl Loopback {
    /// The Ethernet type of the packet that follows; `None` for an unknown address family.
    pub const fn ethertype(&self) -> Option<u16> {
        let family = u32::from_le_bytes(self.family.0);
        let family = if family < 0x1_0000 {
            family
        } else {
            family.swap_bytes()
        };
        match family {
            2 => Some(ethertype::IPV4),
            // Linux, NetBSD and OpenBSD, FreeBSD, macOS.
            10 | 24 | 28 | 30 => Some(ethertype::IPV6),
            _ => None,
        }
    }
}

header! {
    /// IPv4 without its options (RFC 791 section 3.1).
    Ipv4, Ipv4View: 20 octets {
        version: u8 = 4, "4.";
        header_words: u8 = 4, "Length of the header in words of four octets, options included: 5 without any.";
        dscp: u8 = 6, "Differentiated services code point.";
        ecn: u8 = 2, "Explicit congestion notification.";
        total_length: u16 = 16, "Octets of header and payload.";
        identification: u16 = 16, "Tells the fragments of one packet from those of others.";
        reserved: Reserved = 1, "Zero.";
        dont_fragment: bool = 1, "Not to be cut.";
        more_fragments: bool = 1, "Not the last fragment.";
        fragment_offset: u16 = 13, "Where the fragment lies, in units of eight octets.";
        time_to_live: u8 = 8, "Hops left.";
        protocol: u8 = 8, "What follows: see [`protocol`].";
        checksum: u16 = 16, "Ones' complement sum over the header.";
        source: Octets<4> = 32, "The sender.";
        destination: Octets<4> = 32, "The receiver.";
    }
}

header! {
    /// IPv6 (RFC 8200 section 3).
    Ipv6, Ipv6View: 40 octets {
        version: u8 = 4, "6.";
        traffic_class: u8 = 8, "Traffic class.";
        flow_label: u32 = 20, "Flow label.";
        payload_length: u16 = 16, "Octets behind this header.";
        next_header: u8 = 8, "What follows: see [`protocol`].";
        hop_limit: u8 = 8, "Hops left.";
        source: Octets<16> = 128, "The sender.";
        destination: Octets<16> = 128, "The receiver.";
    }
}

header! {
    /// UDP (RFC 768).
    Udp, UdpView: 8 octets {
        source_port: u16 = 16, "The sender's port.";
        destination_port: u16 = 16, "The receiver's port.";
        length: u16 = 16, "Octets of header and payload.";
        checksum: u16 = 16, "Ones' complement sum, or 0 for none.";
    }
}

header! {
    /// TCP without its options (RFC 9293 section 3.1).
    Tcp, TcpView: 20 octets {
        source_port: u16 = 16, "The sender's port.";
        destination_port: u16 = 16, "The receiver's port.";
        sequence: u32 = 32, "Number of the first octet, or of the SYN.";
        acknowledgment: u32 = 32, "The next number that the sender expects.";
        header_words: u8 = 4, "Length of the header in words of four octets, options included: 5 without any.";
        reserved: Reserved = 4, "Zero.";
        cwr: bool = 1, "Congestion window reduced.";
        ece: bool = 1, "Congestion was met.";
        urg: bool = 1, "The urgent pointer counts.";
        ack: bool = 1, "The acknowledgment counts.";
        psh: bool = 1, "To be handed on at once.";
        rst: bool = 1, "The connection is gone.";
        syn: bool = 1, "The connection begins.";
        fin: bool = 1, "The sender has no more.";
        window: u16 = 16, "Octets that the sender takes.";
        checksum: u16 = 16, "Ones' complement sum.";
        urgent: u16 = 16, "Where urgent data ends.";
    }
}

#[cfg(test)]
mod tests {
    use hex_literal::hex;

    use super::*;
    use crate::layout::Header;

    // The IPv4 and UDP headers of a packet that a ConnectX-4 sent.
    const CNP: [u8; 28] = hex!(
        "45c2003c718c4000 4011 9161 0a001101 0a001201" "0000 12b7 0028 0000"
    );

    #[test]
    fn headers_are_taken_apart_and_built_again() {
        let (ip, rest) = Ipv4::split(&CNP).unwrap();
        assert_eq!((ip.version, ip.header_words), (4, 5));
        assert_eq!((ip.dscp, ip.ecn), (0x30, 2));
        assert_eq!((ip.total_length, ip.identification), (60, 0x718c));
        assert!(ip.dont_fragment && !ip.more_fragments);
        assert_eq!(ip.protocol, protocol::UDP);
        assert_eq!(ip.source, Octets([10, 0, 17, 1]));
        let (udp, rest) = Udp::split(rest).unwrap();
        assert_eq!((udp.destination_port, udp.length), (ROCE_PORT, 40));
        assert!(rest.is_empty());

        let mut out = [0xa5; 28];
        let rest = ip.put(&mut out).unwrap();
        assert!(udp.put(rest).unwrap().is_empty());
        assert_eq!(out, CNP);
    }
}
