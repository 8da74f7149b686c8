//! Takes the headers of a packet from the link layer up to the transport that is dissected further.
//!
//! Each step takes one header and returns which protocol follows it. If a step cannot continue, it returns the reason, and
//! the summary counts the packet as passed over for this reason.

use polyverbs_wire::layout::Header;
use polyverbs_wire::net::{
    Erspan3, Ethernet, Geneve, Gre, Ipv4, Ipv6, Ipv6Extension, Loopback, ROCE_PORT, Sll, Sll2,
    Snap, Udp, Vxlan, ethertype, protocol, tunnel_port,
};
use polyverbs_wire::roce::Grh;

use crate::file::{Captured, LinkType};
use crate::form::{Hex, Ip, Layer, Link};

/// The headers of a packet up to its transport, and the position after them.
#[derive(Debug)]
pub(crate) struct Layers<'o> {
    pub(crate) link: Link,
    /// The headers between the link-layer header and the last IP header.
    pub(crate) between: Vec<Layer>,
    pub(crate) ip: Option<Ip>,
    octets: &'o [u8],
    is_cut: bool,
    /// The offset of the first byte that no step has taken.
    at: usize,
    /// The offset at which the packet ends according to its headers so far. The capture may have fewer bytes, and padding
    /// after the packet.
    end: usize,
}

/// A protocol that is dissected further. The position is then at the beginning of its content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Transport {
    /// RoCEv2: a datagram to its port. Its UDP header comes next.
    RoceV2,
    /// RoCEv1. The BTH comes next, after the GRH.
    RoceV1,
    /// TCP. The TCP header comes next.
    Tcp,
    /// A fragment of an IP packet. Its payload comes next.
    Fragment(Fragment),
}

/// The packet to which an IP fragment belongs, and the fragment's position in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fragment {
    pub(crate) identification: u32,
    pub(crate) protocol: u8,
    /// The offset of the fragment in the payload of the packet, in bytes.
    pub(crate) offset: u32,
    pub(crate) is_last: bool,
}

/// The reason why a packet is not dissected further, as the summary counts it.
pub(crate) type Reason = String;

enum Next {
    Ethernet,
    Ethertype(u16),
    Protocol(u8),
    Transport(Transport),
}

impl<'o> Layers<'o> {
    /// Takes the headers of a packet. The result has the transport, or the reason why the packet is not dissected further.
    pub(crate) fn of(captured: &'o Captured) -> (Self, Result<Transport, Reason>) {
        let mut layers = Self {
            link: Link::Short,
            between: Vec::new(),
            ip: None,
            octets: &captured.octets,
            is_cut: captured.is_cut(),
            at: 0,
            end: captured.octets.len().max(captured.original_len as usize),
        };
        let transport = layers.walk(captured.link_type);
        (layers, transport)
    }

    /// The captured bytes after the headers, up to the end of the packet.
    pub(crate) fn rest(&self) -> &'o [u8] {
        self.octets.get(self.at..self.captured_end()).unwrap_or(&[])
    }

    /// Returns whether the capture, or a switch that mirrored the packet, has cut the packet.
    pub(crate) const fn is_cut(&self) -> bool {
        self.is_cut
    }

    /// How many bytes at the end of the packet were not captured.
    pub(crate) fn missing(&self) -> usize {
        self.end.saturating_sub(self.octets.len())
    }

    /// The captured bytes after the end of the packet: padding of short frames, and frame check sequences.
    pub(crate) fn trailer(&self) -> &'o [u8] {
        &self.octets[self.captured_end().max(self.at)..]
    }

    fn captured_end(&self) -> usize {
        self.end.min(self.octets.len())
    }

    fn walk(&mut self, link_type: LinkType) -> Result<Transport, Reason> {
        let mut next = self.link(link_type)?;
        loop {
            next = match next {
                Next::Ethernet => self.inner_ethernet()?,
                Next::Ethertype(number) => self.ethertype(number)?,
                Next::Protocol(number) => self.protocol(number)?,
                Next::Transport(transport) => return Ok(transport),
            };
        }
    }

    fn link(&mut self, link_type: LinkType) -> Result<Next, Reason> {
        match link_type {
            LinkType::Ethernet => {
                let header = self.take()?;
                self.link = Link::Ethernet(header);
                self.ethertype_or_length(header.ethertype)
            }
            LinkType::Sll => {
                let header: Sll = self.take()?;
                self.link = Link::Sll(header);
                Ok(Next::Ethertype(header.protocol))
            }
            LinkType::Sll2 => {
                let header: Sll2 = self.take()?;
                self.link = Link::Sll2(header);
                Ok(Next::Ethertype(header.protocol))
            }
            LinkType::Loopback => {
                let header: Loopback = self.take()?;
                self.link = Link::Loopback(header);
                let ethertype = header.ethertype();
                ethertype
                    .map(Next::Ethertype)
                    .ok_or_else(|| "loopback without IP".to_owned())
            }
            LinkType::Raw => {
                self.link = Link::Raw;
                self.ip_by_version("raw link without IP")
            }
            LinkType::Other(number) => {
                self.link = Link::Other(number);
                Err(format!("link type {number}"))
            }
            LinkType::Undescribed => {
                self.link = Link::Undescribed;
                Err("an interface that the file does not describe".to_owned())
            }
        }
    }

    fn inner_ethernet(&mut self) -> Result<Next, Reason> {
        let header: Ethernet = self.take()?;
        self.between.push(Layer::Ethernet(header));
        self.ethertype_or_length(header.ethertype)
    }

    fn ethertype_or_length(&mut self, number: u16) -> Result<Next, Reason> {
        if number > ethertype::MAX_LENGTH {
            return Ok(Next::Ethertype(number));
        }
        self.end = self.end.min(self.at + usize::from(number));
        let header: Snap = self.peek()?;
        if (header.dsap, header.ssap, header.oui) != (0xaa, 0xaa, 0) {
            return Err("IEEE 802.2".to_owned());
        }
        self.push(header, Layer::Snap);
        Ok(Next::Ethertype(header.ethertype))
    }

    fn ethertype(&mut self, number: u16) -> Result<Next, Reason> {
        match number {
            ethertype::IPV4 => self.ipv4(),
            ethertype::IPV6 => self.ipv6(),
            ethertype::ROCE_V1 => self.grh(),
            ethertype::ETHERNET => Ok(Next::Ethernet),
            ethertype::MPLS | ethertype::MPLS_MULTICAST => {
                let label = self.take_layer(Layer::Mpls)?;
                if label.bottom {
                    self.ip_by_version("MPLS without IP")
                } else {
                    Ok(Next::Ethertype(number))
                }
            }
            ethertype::PPPOE_SESSION => match self.take_layer(Layer::Pppoe)?.protocol {
                0x21 => Ok(Next::Ethertype(ethertype::IPV4)),
                0x57 => Ok(Next::Ethertype(ethertype::IPV6)),
                other => Err(format!("PPP protocol {other:#06x}")),
            },
            number if is_vlan(number) => {
                let tag = self.take_layer(Layer::Vlan)?;
                self.ethertype_or_length(tag.ethertype)
            }
            number => Err(ethertype_name(number)),
        }
    }

    fn ip_by_version(&mut self, otherwise: &str) -> Result<Next, Reason> {
        let first = self.rest().first().ok_or_else(|| self.too_short())?;
        match first >> 4 {
            4 => Ok(Next::Ethertype(ethertype::IPV4)),
            6 => Ok(Next::Ethertype(ethertype::IPV6)),
            _ => Err(otherwise.to_owned()),
        }
    }

    fn ipv4(&mut self) -> Result<Next, Reason> {
        let start = self.at;
        let header: Ipv4 = self.peek()?;
        let len = 4 * usize::from(header.header_words);
        if header.version != 4 || len < Ipv4::LEN {
            return Err("an IPv4 header that is not valid".to_owned());
        }
        let options = self.peek_bytes(Ipv4::LEN, len - Ipv4::LEN)?;
        self.outer_ip();
        self.at += len;
        // The length is 0 in captures of packets that an adapter segments.
        if header.total_length != 0 {
            self.end = start + usize::from(header.total_length).max(len);
        }
        self.ip = Some(Ip::V4 { header, options });
        if header.more_fragments || header.fragment_offset != 0 {
            return Ok(Next::Transport(Transport::Fragment(Fragment {
                identification: header.identification.into(),
                protocol: header.protocol,
                offset: 8 * u32::from(header.fragment_offset),
                is_last: !header.more_fragments,
            })));
        }
        Ok(Next::Protocol(header.protocol))
    }

    fn ipv6(&mut self) -> Result<Next, Reason> {
        let header: Ipv6 = self.peek()?;
        if header.version != 6 {
            return Err("an IPv6 header that is not valid".to_owned());
        }
        self.outer_ip();
        self.at += Ipv6::LEN;
        if header.payload_length != 0 {
            self.end = self.at + usize::from(header.payload_length);
        }
        let start = self.at;
        let next = self.ipv6_extensions(header.next_header);
        let extensions = self.octets[start..self.at].into();
        self.ip = Some(Ip::V6 { header, extensions });
        next
    }

    // Takes the extension headers, up to that of a fragment, and returns which protocol follows them.
    fn ipv6_extensions(&mut self, mut next: u8) -> Result<Next, Reason> {
        loop {
            let header: Ipv6Extension = match next {
                protocol::HOP_BY_HOP
                | protocol::ROUTING
                | protocol::FRAGMENT
                | protocol::AUTHENTICATION
                | protocol::DESTINATION_OPTIONS => self.peek()?,
                other => return Ok(Next::Protocol(other)),
            };
            let len = extension_len(next, &header);
            self.peek_bytes(0, len)?;
            self.at += len;
            let is_fragment = next == protocol::FRAGMENT
                && (header.more_fragments || header.fragment_offset != 0);
            if is_fragment {
                return Ok(Next::Transport(Transport::Fragment(Fragment {
                    identification: header.identification,
                    protocol: header.next_header,
                    offset: 8 * u32::from(header.fragment_offset),
                    is_last: !header.more_fragments,
                })));
            }
            next = header.next_header;
        }
    }

    fn grh(&mut self) -> Result<Next, Reason> {
        let header: Grh = self.peek()?;
        if header.next_header != protocol::INFINIBAND {
            return Err("RoCEv1 without the transport of InfiniBand".to_owned());
        }
        self.outer_ip();
        self.at += Grh::LEN;
        self.end = self.at + usize::from(header.payload_length);
        self.ip = Some(Ip::Grh { header });
        Ok(Next::Transport(Transport::RoceV1))
    }

    // Moves the IP header so far, if there is one, to the layers: it is that of a tunnel.
    fn outer_ip(&mut self) {
        self.between.extend(self.ip.take().map(Layer::Ip));
    }

    fn protocol(&mut self, number: u8) -> Result<Next, Reason> {
        match number {
            protocol::IPV4 => Ok(Next::Ethertype(ethertype::IPV4)),
            protocol::IPV6 => Ok(Next::Ethertype(ethertype::IPV6)),
            protocol::GRE => self.gre(),
            protocol::TCP => Ok(Next::Transport(Transport::Tcp)),
            protocol::UDP => self.udp(),
            number => Err(protocol_name(number)),
        }
    }

    fn udp(&mut self) -> Result<Next, Reason> {
        let header: Udp = self.peek()?;
        if header.destination_port == ROCE_PORT {
            return Ok(Next::Transport(Transport::RoceV2));
        }
        let after = self.at + Udp::LEN;
        match header.destination_port {
            tunnel_port::VXLAN | tunnel_port::VXLAN_LINUX => {
                let vxlan: Vxlan = self.peek_at(after)?;
                if vxlan.flags != 0x08 {
                    return Err(format!("VXLAN with flags {:#04x}", vxlan.flags));
                }
                self.tunnel(header);
                self.take_layer(Layer::Vxlan)?;
                Ok(Next::Ethernet)
            }
            tunnel_port::GENEVE => {
                let geneve: Geneve = self.peek_at(after)?;
                let len = 4 * usize::from(geneve.option_words);
                let options = self.peek_bytes(Udp::LEN + Geneve::LEN, len)?;
                self.tunnel(header);
                self.push(geneve, |header| Layer::Geneve { header, options });
                self.at += len;
                Ok(Next::Ethertype(geneve.ethertype))
            }
            tunnel_port::MPLS => {
                self.tunnel(header);
                Ok(Next::Ethertype(ethertype::MPLS))
            }
            _ => {
                let (from, to) = (header.source_port, header.destination_port);
                let port = if to >= FIRST_EPHEMERAL {
                    from.min(to)
                } else {
                    to
                };
                Err(format!("UDP port {port}"))
            }
        }
    }

    fn tunnel(&mut self, udp: Udp) {
        self.outer_ip();
        self.push(udp, Layer::Udp);
    }

    fn gre(&mut self) -> Result<Next, Reason> {
        let header: Gre = self.peek()?;
        if header.version != 0 || header.routing {
            return Err("GRE with source routes, or of another version".to_owned());
        }
        let words = [header.checksum, header.key, header.sequence];
        let len = 4 * words.into_iter().filter(|has| *has).count();
        let fields = self.peek_bytes(Gre::LEN, len)?;
        self.outer_ip();
        self.push(header, |header| Layer::Gre { header, fields });
        self.at += len;
        match header.ethertype {
            // The first version has no header.
            ethertype::ERSPAN if !header.sequence => Ok(Next::Ethernet),
            ethertype::ERSPAN => {
                let header = self.take_layer(Layer::Erspan2)?;
                self.is_cut |= header.truncated;
                Ok(Next::Ethernet)
            }
            ethertype::ERSPAN_3 => self.erspan_3(),
            other => Ok(Next::Ethertype(other)),
        }
    }

    fn erspan_3(&mut self) -> Result<Next, Reason> {
        let header: Erspan3 = self.peek()?;
        let len = if header.subheader { 8 } else { 0 };
        let subheader = self.peek_bytes(Erspan3::LEN, len)?;
        self.push(header, |header| Layer::Erspan3 { header, subheader });
        self.is_cut |= header.truncated;
        self.at += len;
        match header.frame_type {
            0 => Ok(Next::Ethernet),
            2 => self.ip_by_version("ERSPAN without IP"),
            other => Err(format!("ERSPAN with frame type {other}")),
        }
    }

    fn take_layer<H: Header>(&mut self, layer: impl FnOnce(H) -> Layer) -> Result<H, Reason> {
        let header = self.take()?;
        self.between.push(layer(header));
        Ok(header)
    }

    fn push<H: Header>(&mut self, header: H, layer: impl FnOnce(H) -> Layer) {
        self.at += H::LEN;
        self.between.push(layer(header));
    }

    fn take<H: Header>(&mut self) -> Result<H, Reason> {
        let header = self.peek()?;
        self.at += H::LEN;
        Ok(header)
    }

    fn peek<H: Header>(&self) -> Result<H, Reason> {
        self.peek_at(self.at)
    }

    fn peek_at<H: Header>(&self, at: usize) -> Result<H, Reason> {
        let octets = self.octets.get(at..self.captured_end());
        let header = octets.and_then(H::split);
        header
            .map(|(header, _)| header)
            .ok_or_else(|| self.too_short())
    }

    // Returns `len` bytes that follow the next header, which has `after` bytes. Neither is taken.
    fn peek_bytes(&self, after: usize, len: usize) -> Result<Hex, Reason> {
        let octets = self.rest().get(after..after + len);
        octets.map(Hex::from).ok_or_else(|| self.too_short())
    }

    /// Returns the reason for a packet whose next header is not complete.
    pub(crate) fn too_short(&self) -> Reason {
        if self.is_cut && self.missing() > 0 {
            CUT.to_owned()
        } else {
            "too short for its headers".to_owned()
        }
    }
}

/// The reason for a packet that the capture has cut within its headers.
pub(crate) const CUT: &str = "cut within its headers";

/// The lowest port that is taken to be a client's: the other port then names the service.
const FIRST_EPHEMERAL: u16 = 0x8000;

/// Returns the length in bytes of an IPv6 extension header. `number` is the header's own protocol number.
pub(crate) fn extension_len(number: u8, header: &Ipv6Extension) -> usize {
    match number {
        protocol::FRAGMENT => Ipv6Extension::LEN,
        protocol::AUTHENTICATION => 4 * (usize::from(header.length) + 2),
        _ => 8 * (usize::from(header.length) + 1),
    }
}

fn is_vlan(number: u16) -> bool {
    matches!(number, ethertype::VLAN | ethertype::SERVICE_VLAN)
        || ethertype::VENDOR_VLANS.contains(&number)
}

fn ethertype_name(number: u16) -> String {
    let name = match number {
        0x0806 => "ARP",
        0x8808 => "Ethernet flow control",
        0x8809 => "Ethernet slow protocols",
        0x8863 => "PPPoE discovery",
        0x88cc => "LLDP",
        0x88e5 => "MACsec",
        0x88e7 => "IEEE 802.1ah",
        0x88f7 => "PTP",
        0x894f => "NSH",
        number => return format!("Ethernet type {number:#06x}"),
    };
    name.to_owned()
}

fn protocol_name(number: u8) -> String {
    let name = match number {
        1 => "ICMP",
        2 => "IGMP",
        50 => "ESP",
        protocol::AUTHENTICATION => "AH",
        58 => "ICMPv6",
        59 => "IPv6 without a next header",
        89 => "OSPF",
        132 => "SCTP",
        number => return format!("IP protocol {number}"),
    };
    name.to_owned()
}
