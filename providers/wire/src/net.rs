//! The headers below both RoCEv2 and iWARP: Ethernet, IP, UDP and TCP, and those of tunnels in captures.
//!
//! RoCEv2's checksum covers the IP and UDP headers, and captures hold all of them. Every bit is kept, so that a packet that was
//! decoded can be encoded again.

use crate::layout::{Octets, Reserved, header};

/// The UDP destination port of RoCEv2 (IBTA annex A17).
pub const ROCE_PORT: u16 = 4791;

/// The EtherTypes: numbers that say which protocol follows an Ethernet header.
pub mod ethertype {
    /// The EtherType of IPv4.
    pub const IPV4: u16 = 0x0800;
    /// The EtherType of IPv6.
    pub const IPV6: u16 = 0x86dd;
    /// The EtherType that announces a VLAN tag.
    pub const VLAN: u16 = 0x8100;
    /// The EtherType that announces an outer VLAN tag, of a service provider.
    pub const SERVICE_VLAN: u16 = 0x88a8;
    /// The EtherTypes by which several vendors announced outer VLAN tags before the standard.
    pub const VENDOR_VLANS: [u16; 3] = [0x9100, 0x9200, 0x9300];
    /// The EtherType of an Ethernet frame within GRE or Geneve.
    pub const ETHERNET: u16 = 0x6558;
    /// The EtherType of MPLS.
    pub const MPLS: u16 = 0x8847;
    /// The EtherType of multicast MPLS.
    pub const MPLS_MULTICAST: u16 = 0x8848;
    /// The EtherType of a session of PPP over Ethernet.
    pub const PPPOE_SESSION: u16 = 0x8864;
    /// The EtherType of ERSPAN of the first and second version, within GRE.
    pub const ERSPAN: u16 = 0x88be;
    /// The EtherType of ERSPAN of the third version, within GRE.
    pub const ERSPAN_3: u16 = 0x22eb;
    /// The EtherType of RoCEv1.
    pub const ROCE_V1: u16 = 0x8915;
    /// The largest value of an EtherType field that is the length of an IEEE 802.3 frame; larger values are EtherTypes.
    pub const MAX_LENGTH: u16 = 0x05dc;
}

/// IP's protocol numbers, which say which protocol follows an IP header.
pub mod protocol {
    /// The protocol number of hop-by-hop options, an extension header of IPv6.
    pub const HOP_BY_HOP: u8 = 0;
    /// The protocol number of IPv4 within IP.
    pub const IPV4: u8 = 4;
    /// The protocol number of TCP.
    pub const TCP: u8 = 6;
    /// The protocol number of UDP.
    pub const UDP: u8 = 17;
    /// The protocol number of InfiniBand's transport, after a GRH.
    pub const INFINIBAND: u8 = 27;
    /// The protocol number of IPv6 within IP.
    pub const IPV6: u8 = 41;
    /// The protocol number of the routing header, an extension header of IPv6.
    pub const ROUTING: u8 = 43;
    /// The protocol number of the fragment header, an extension header of IPv6.
    pub const FRAGMENT: u8 = 44;
    /// The protocol number of GRE.
    pub const GRE: u8 = 47;
    /// The protocol number of the authentication header, an extension header of IPv6.
    pub const AUTHENTICATION: u8 = 51;
    /// The protocol number of destination options, an extension header of IPv6.
    pub const DESTINATION_OPTIONS: u8 = 60;
}

/// The UDP destination ports of tunnels.
pub mod tunnel_port {
    /// The UDP port of Geneve.
    pub const GENEVE: u16 = 6081;
    /// The UDP port of MPLS.
    pub const MPLS: u16 = 6635;
    /// The UDP port of VXLAN.
    pub const VXLAN: u16 = 4789;
    /// The UDP port that Linux uses for VXLAN by default.
    pub const VXLAN_LINUX: u16 = 8472;
}

header! {
    /// The header of Ethernet II.
    Ethernet, EthernetView: 14 octets {
        destination: Octets<6> = 48, "The receiver's MAC address.";
        source: Octets<6> = 48, "The sender's MAC address.";
        ethertype: u16 = 16, "The protocol that follows: see [`ethertype`].";
    }
}

header! {
    /// A VLAN tag (IEEE 802.1Q), which follows the addresses and the EtherType that announces it.
    Vlan, VlanView: 4 octets {
        priority: u8 = 3, "Priority.";
        drop_eligible: bool = 1, "Whether the frame may be dropped when there is congestion.";
        id: u16 = 12, "The number of the VLAN.";
        ethertype: u16 = 16, "The protocol that follows, as an Ethernet type.";
    }
}

header! {
    /// The header of Linux's cooked capture, first version (LINKTYPE_LINUX_SLL).
    Sll, SllView: 16 octets {
        packet_type: u16 = 16, "Whether the device received, sent, or only saw the packet.";
        device_type: u16 = 16, "The type of the network device: an ARPHRD_ number of Linux.";
        address_length: u16 = 16, "The number of bytes of the sender's link-layer address.";
        address: Octets<8> = 64, "The sender's link-layer address.";
        protocol: u16 = 16, "The protocol that follows, as an Ethernet type.";
    }
}

header! {
    /// The header of Linux's cooked capture, second version (LINKTYPE_LINUX_SLL2).
    Sll2, Sll2View: 20 octets {
        protocol: u16 = 16, "The protocol that follows, as an Ethernet type.";
        reserved: Reserved = 16, "Zero.";
        interface: u32 = 32, "The index of the network device.";
        device_type: u16 = 16, "The type of the network device: an ARPHRD_ number of Linux.";
        packet_type: u8 = 8, "Whether the device received, sent, or only saw the packet.";
        address_length: u8 = 8, "The number of bytes of the sender's link-layer address.";
        address: Octets<8> = 64, "The sender's link-layer address.";
    }
}

header! {
    /// The header of BSD's loopback interface (LINKTYPE_NULL, LINKTYPE_LOOP).
    Loopback, LoopbackView: 4 octets {
        family: Octets<4> = 32, "The address family: a number of the capturing system, in its byte order or in the network's.";
    }
}

impl Loopback {
    /// Returns the EtherType of the packet that follows; `None` if the address family is unknown.
    pub const fn ethertype(&self) -> Option<u16> {
        let family = u32::from_le_bytes(self.family.0);
        let family = if family < 0x1_0000 {
            family
        } else {
            family.swap_bytes()
        };
        match family {
            2 => Some(ethertype::IPV4),
            // The numbers of `AF_INET6` on Linux, NetBSD and OpenBSD, FreeBSD, and macOS.
            10 | 24 | 28 | 30 => Some(ethertype::IPV6),
            _ => None,
        }
    }
}

header! {
    /// The headers LLC and SNAP (IEEE 802.2), in a frame that has a length in place of an EtherType.
    Snap, SnapView: 8 octets {
        dsap: u8 = 8, "0xaa: SNAP follows.";
        ssap: u8 = 8, "0xaa: SNAP follows.";
        control: u8 = 8, "3: an unnumbered frame.";
        oui: u32 = 24, "The organisation that assigns the types: 0 for Ethernet's.";
        ethertype: u16 = 16, "The protocol that follows, as an Ethernet type.";
    }
}

header! {
    /// An MPLS label (RFC 3032).
    Mpls, MplsView: 4 octets {
        label: u32 = 20, "The value of the label.";
        traffic_class: u8 = 3, "Traffic class.";
        bottom: bool = 1, "Whether this is the last label of the stack.";
        time_to_live: u8 = 8, "Hops left.";
    }
}

header! {
    /// The header of a session of PPP over Ethernet (RFC 2516), with PPP's protocol field.
    Pppoe, PppoeView: 8 octets {
        version: u8 = 4, "Version of PPPoE: 1.";
        kind: u8 = 4, "Type of PPPoE: 1.";
        code: u8 = 8, "0: data of a session.";
        session: u16 = 16, "The number of the session.";
        length: u16 = 16, "Length of the PPP packet in bytes, its protocol field included.";
        protocol: u16 = 16, "The protocol that follows: 0x21 for IPv4, 0x57 for IPv6.";
    }
}

header! {
    /// The GRE header without its optional fields (RFC 2784, RFC 2890).
    Gre, GreView: 4 octets {
        checksum: bool = 1, "A checksum follows.";
        routing: bool = 1, "Source routes follow.";
        key: bool = 1, "A key follows.";
        sequence: bool = 1, "A sequence number follows.";
        reserved: Reserved = 9, "Zero.";
        version: u8 = 3, "Version of GRE: 0.";
        ethertype: u16 = 16, "The protocol that follows, as an Ethernet type.";
    }
}

header! {
    /// The header of ERSPAN, second version.
    Erspan2, Erspan2View: 8 octets {
        version: u8 = 4, "The value 1, which marks the second version of ERSPAN.";
        vlan: u16 = 12, "The VLAN of the mirrored frame.";
        class_of_service: u8 = 3, "The priority of the mirrored frame.";
        encapsulation: u8 = 2, "How the mirrored frame carried its VLAN tag.";
        truncated: bool = 1, "Whether the mirrored frame was cut.";
        session: u16 = 10, "The number of the mirroring session.";
        reserved: Reserved = 12, "Zero.";
        index: u32 = 20, "The port where the frame was mirrored, and its direction.";
    }
}

header! {
    /// The header of ERSPAN, third version, without its optional subheader.
    Erspan3, Erspan3View: 12 octets {
        version: u8 = 4, "The value 2, which marks the third version of ERSPAN.";
        vlan: u16 = 12, "The VLAN of the mirrored frame.";
        class_of_service: u8 = 3, "The priority of the mirrored frame.";
        integrity: u8 = 2, "Whether the mirrored frame was too short, too long or damaged.";
        truncated: bool = 1, "Whether the mirrored frame was cut.";
        session: u16 = 10, "The number of the mirroring session.";
        timestamp: u32 = 32, "When the frame was mirrored, in the unit that `granularity` gives.";
        group_tag: u16 = 16, "The security group of the mirrored frame.";
        protocol_data_unit: bool = 1, "Whether the mirrored data is an Ethernet frame.";
        frame_type: u8 = 5, "0 for Ethernet, 2 for IP.";
        hardware: u8 = 6, "The engine of the switch that mirrored the frame.";
        direction: bool = 1, "Whether the mirrored frame left the port.";
        granularity: u8 = 2, "The unit of the timestamp.";
        subheader: bool = 1, "Whether a subheader of eight bytes follows.";
    }
}

header! {
    /// The VXLAN header (RFC 7348).
    Vxlan, VxlanView: 8 octets {
        flags: u8 = 8, "0x08: the identifier is valid.";
        reserved: Reserved = 24, "Zero.";
        vni: u32 = 24, "The number of the virtual network.";
        reserved_too: Reserved = 8, "Zero.";
    }
}

header! {
    /// The Geneve header without its options (RFC 8926).
    Geneve, GeneveView: 8 octets {
        version: u8 = 2, "Version of Geneve: 0.";
        option_words: u8 = 6, "Length of the options in words of four bytes.";
        control: bool = 1, "Whether this is a control packet.";
        critical: bool = 1, "Whether some option is one that the receiver must understand.";
        reserved: Reserved = 6, "Zero.";
        ethertype: u16 = 16, "The protocol that follows, as an Ethernet type.";
        vni: u32 = 24, "The number of the virtual network.";
        reserved_too: Reserved = 8, "Zero.";
    }
}

header! {
    /// The IPv4 header without its options (RFC 791 section 3.1).
    Ipv4, Ipv4View: 20 octets {
        version: u8 = 4, "Version of IP: 4.";
        header_words: u8 = 4, "Length of the header in words of four bytes, options included: 5 without any.";
        dscp: u8 = 6, "Differentiated services code point.";
        ecn: u8 = 2, "Explicit congestion notification.";
        total_length: u16 = 16, "The length of header and payload, in bytes.";
        identification: u16 = 16, "A number that all fragments of one packet have in common.";
        reserved: Reserved = 1, "Zero.";
        dont_fragment: bool = 1, "Routers must not fragment the packet.";
        more_fragments: bool = 1, "Whether more fragments of the packet follow.";
        fragment_offset: u16 = 13, "The fragment's offset in the packet, in units of eight bytes.";
        time_to_live: u8 = 8, "Hops left.";
        protocol: u8 = 8, "The protocol that follows: see [`protocol`].";
        checksum: u16 = 16, "The ones' complement sum over the header.";
        source: Octets<4> = 32, "The sender's address.";
        destination: Octets<4> = 32, "The receiver's address.";
    }
}

header! {
    /// The IPv6 header (RFC 8200 section 3).
    Ipv6, Ipv6View: 40 octets {
        version: u8 = 4, "Version of IP: 6.";
        traffic_class: u8 = 8, "Traffic class.";
        flow_label: u32 = 20, "Flow label.";
        payload_length: u16 = 16, "The number of bytes after this header.";
        next_header: u8 = 8, "The protocol that follows: see [`protocol`].";
        hop_limit: u8 = 8, "Hops left.";
        source: Octets<16> = 128, "The sender's address.";
        destination: Octets<16> = 128, "The receiver's address.";
    }
}

header! {
    /// The first eight bytes of an IPv6 extension header (RFC 8200 section 4), read as a fragment header.
    Ipv6Extension, Ipv6ExtensionView: 8 octets {
        next_header: u8 = 8, "The protocol that follows.";
        length: u8 = 8, "Length in units of eight bytes, without the first eight; reserved in a fragment header.";
        fragment_offset: u16 = 13, "The fragment's offset in the packet, in units of eight bytes.";
        reserved: Reserved = 2, "Zero.";
        more_fragments: bool = 1, "Whether more fragments of the packet follow.";
        identification: u32 = 32, "A number that all fragments of one packet have in common.";
    }
}

header! {
    /// The UDP header (RFC 768).
    Udp, UdpView: 8 octets {
        source_port: u16 = 16, "The sender's port.";
        destination_port: u16 = 16, "The receiver's port.";
        length: u16 = 16, "Length of header and payload, in bytes.";
        checksum: u16 = 16, "Ones' complement sum, or 0 for none.";
    }
}

header! {
    /// The TCP header without its options (RFC 9293 section 3.1).
    Tcp, TcpView: 20 octets {
        source_port: u16 = 16, "The sender's port.";
        destination_port: u16 = 16, "The receiver's port.";
        sequence: u32 = 32, "The sequence number of the first byte, or of the SYN.";
        acknowledgment: u32 = 32, "The sequence number of the next byte that the sender expects.";
        header_words: u8 = 4, "Length of the header in words of four bytes, options included: 5 without any.";
        reserved: Reserved = 4, "Zero.";
        cwr: bool = 1, "The sender has reduced its congestion window.";
        ece: bool = 1, "The sender has received a packet that met congestion.";
        urg: bool = 1, "Whether `urgent` is valid.";
        ack: bool = 1, "Whether `acknowledgment` is valid.";
        psh: bool = 1, "The receiver passes the data to the program at once.";
        rst: bool = 1, "The sender aborts the connection.";
        syn: bool = 1, "The connection begins.";
        fin: bool = 1, "The sender has no more data.";
        window: u16 = 16, "Bytes that the sender is ready to receive.";
        checksum: u16 = 16, "Ones' complement sum.";
        urgent: u16 = 16, "The end of the urgent data, relative to `sequence`.";
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
    fn decoded_headers_encode_to_the_same_bytes() {
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
