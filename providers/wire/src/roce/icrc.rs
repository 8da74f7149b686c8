//! The invariant CRC (IBTA 7.8; annex A17 for RoCEv2).
//!
//! It is the CRC-32 of Ethernet over eight bytes of ones, which stand for the local route header that RoCE does not have,
//! and then over everything from the IP header to the pad. The fields that routers change count as ones: IP's traffic
//! class, hop limit and checksum, IPv6's flow label, UDP's checksum, and the BTH byte with FECN and BECN.
//!
//! # Where the receiver cannot see the IP header
//!
//! A plain UDP socket neither sets nor shows IPv4's identification. A sender whose socket is not connected and forbids
//! fragmentation sends 0 in it, or with segmentation offload the index of the datagram in the call, and it knows all other
//! fields. A receiver computes the ICRC for the identification that it expects. If that ICRC is not the received one,
//! [`Recovery`] finds the identification for which it would be, if there is one. Only 16 of the 32 bits then remain as a
//! check, so [`step_is_plausible`] says whether the peer may have reached that identification.

use core::net::{IpAddr, SocketAddr};
use core::time::Duration;

use once_cell::race::OnceBox;

use super::bth::{Bth, BthView};
use super::route::{Grh, GrhView};
use crate::layout::{Header, Octets};
use crate::net::{Ipv4, Ipv4View, Ipv6, Ipv6View, Udp, UdpView, protocol};

/// An ICRC whose computation is in progress: the bytes passed so far are covered.
#[derive(Clone, Debug)]
pub struct Icrc(crc32fast::Hasher);

/// The fields of the IP and UDP headers that the ICRC covers and that may differ between packets of a flow.
///
/// All other fields are fixed: there are no IP options and no fragments. Both addresses are IPv4, or both are IPv6.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Envelope {
    /// The sender's IP address and UDP port.
    pub source: SocketAddr,
    /// The receiver's IP address and UDP port. The port is 4791 unless both ends agreed on another.
    pub destination: SocketAddr,
    /// Identification of the IPv4 header. IPv6 has none, and ignores this.
    pub identification: u16,
}

// The CRC state after the eight bytes of ones. It is a static because creating a hasher checks which instructions the
// processor has. Making it takes no lock, which a child of a fork could find held by a thread of its parent.
static AFTER_LOCAL_ROUTE: OnceBox<crc32fast::Hasher> = OnceBox::new();

fn after_local_route() -> crc32fast::Hasher {
    let make = || Box::new(crc32fast::Hasher::new_with_initial(0x2144_df1c));
    AFTER_LOCAL_ROUTE.get_or_init(make).clone()
}

impl Icrc {
    /// Begins the ICRC of a UDP datagram of `datagram_len` bytes, ICRC included: covers its IP, UDP and BTH headers. The
    /// caller then passes the bytes after the BTH to [`update`](Self::update).
    #[inline(always)]
    pub fn new(envelope: &Envelope, datagram_len: usize, bth: &BthView) -> Self {
        let udp_len = Udp::LEN + datagram_len;
        let udp = Udp {
            source_port: envelope.source.port(),
            destination_port: envelope.destination.port(),
            length: udp_len as u16,
            checksum: u16::MAX,
        }
        .to_view();
        let (IpAddr::V4(source), IpAddr::V4(destination)) =
            (envelope.source.ip(), envelope.destination.ip())
        else {
            return Self::between_ipv6(envelope, &udp, bth);
        };
        let ip = Ipv4 {
            version: 4,
            header_words: 5,
            total_length: (Ipv4::LEN + udp_len) as u16,
            identification: envelope.identification,
            dont_fragment: true,
            protocol: protocol::UDP,
            source: Octets(source.octets()),
            destination: Octets(destination.octets()),
            ..Ipv4::default()
        };
        Self::of_ipv4(&ip.to_view(), &[], &udp, bth)
    }

    #[inline(never)]
    fn between_ipv6(envelope: &Envelope, udp: &UdpView, bth: &BthView) -> Self {
        let octets = |end: SocketAddr| match end.ip() {
            IpAddr::V4(ip) => Octets(ip.to_ipv6_mapped().octets()),
            IpAddr::V6(ip) => Octets(ip.octets()),
        };
        let ip = Ipv6 {
            version: 6,
            payload_length: udp.length(),
            next_header: protocol::UDP,
            source: octets(envelope.source),
            destination: octets(envelope.destination),
            ..Ipv6::default()
        };
        Self::of_ipv6(&ip.to_view(), &[], udp, bth)
    }

    /// Begins the ICRC of a captured IPv4 packet: covers its headers up to the BTH.
    #[inline(always)]
    pub fn of_ipv4(ip: &Ipv4View, options: &[u8], udp: &UdpView, bth: &BthView) -> Self {
        const BEHIND_IP: usize = Ipv4::LEN;
        let mut octets = [0; BEHIND_IP + COVERED_LEN];
        octets[..BEHIND_IP].copy_from_slice(&ip.0);
        octets[BEHIND_IP..].copy_from_slice(&masked(udp, bth));
        octets[1] = 0xff; // Type of service.
        octets[8] = 0xff; // Time to live.
        octets[10..12].fill(0xff); // Checksum.
        Self::around(&octets, BEHIND_IP, options)
    }

    /// Begins the ICRC of a captured IPv6 packet: covers its headers up to the BTH.
    #[inline]
    pub fn of_ipv6(ip: &Ipv6View, extensions: &[u8], udp: &UdpView, bth: &BthView) -> Self {
        const BEHIND_IP: usize = Ipv6::LEN;
        let mut octets = [0; BEHIND_IP + COVERED_LEN];
        octets[..BEHIND_IP].copy_from_slice(&ip.0);
        octets[BEHIND_IP..].copy_from_slice(&masked(udp, bth));
        octets[0] |= 0x0f; // Traffic class and flow label.
        octets[1..4].fill(0xff);
        octets[7] = 0xff; // Hop limit.
        Self::around(&octets, BEHIND_IP, extensions)
    }

    // Covers the masked headers. Options and extension headers are between the IP header and the UDP header.
    #[inline(always)]
    fn around(octets: &[u8], behind_ip: usize, options: &[u8]) -> Self {
        let mut icrc = Self(after_local_route());
        if options.is_empty() {
            icrc.update(octets);
        } else {
            icrc.update(&octets[..behind_ip]);
            icrc.update(options);
            icrc.update(&octets[behind_ip..]);
        }
        icrc
    }

    /// Begins the ICRC of a captured RoCEv1 packet: covers its GRH and BTH. The same fields are masked as with IPv6.
    pub fn of_grh(grh: &GrhView, bth: &BthView) -> Self {
        const BEHIND_GRH: usize = Grh::LEN;
        let mut octets = [0; BEHIND_GRH + Bth::LEN];
        octets[..BEHIND_GRH].copy_from_slice(&grh.0);
        octets[BEHIND_GRH..].copy_from_slice(&bth.0);
        octets[0] |= 0x0f;
        octets[1..4].fill(0xff);
        octets[7] = 0xff;
        octets[BEHIND_GRH + 4] = 0xff;
        Self::around(&octets, BEHIND_GRH, &[])
    }

    /// Covers the next bytes of the packet. The caller may divide them into pieces of any size.
    #[inline]
    pub fn update(&mut self, octets: &[u8]) {
        self.0.update(octets);
    }

    /// Returns the ICRC in the byte order of the wire: least significant byte first.
    #[inline]
    pub fn finish(self) -> [u8; 4] {
        self.0.finalize().to_le_bytes()
    }
}

const COVERED_LEN: usize = Udp::LEN + Bth::LEN;

#[inline(always)]
fn masked(udp: &UdpView, bth: &BthView) -> [u8; COVERED_LEN] {
    let mut octets = [0; COVERED_LEN];
    octets[..Udp::LEN].copy_from_slice(&udp.0);
    octets[Udp::LEN..].copy_from_slice(&bth.0);
    octets[6..8].fill(0xff); // UDP's checksum.
    // FECN, BECN, and the reserved bits of the same byte.
    octets[Udp::LEN + 4] = 0xff;
    octets
}

/// Finds the IPv4 identification for which a received ICRC is right, in datagrams of one length.
///
/// The CRC is linear: the ICRCs for two identifications differ by the difference of the identifications, as a polynomial,
/// times a power of x that depends on how many bytes follow the identification. So the difference of two ICRCs times the
/// inverse of that power is the difference of their identifications. If this product has degree 16 or more, the packet is
/// damaged. Computing the power takes some microseconds, checking a packet some tens of nanoseconds, so a receiver keeps
/// one `Recovery` for each length of datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recovery(u32);

impl Recovery {
    /// Prepares the recovery for datagrams of `datagram_len` bytes, ICRC included.
    pub fn for_datagrams_of(datagram_len: usize) -> Self {
        // Bytes from the end of the identification to the end of the ICRC.
        let behind = Ipv4::LEN - 6 + Udp::LEN + datagram_len;
        let power = (8 * behind as u64 % ORDER) as u32;
        Self(power_of_x(ORDER as u32 - power))
    }

    /// Returns the identification for which the ICRC `received` is right; `None` if there is none. `computed` is the ICRC
    /// of the datagram for an identification of 0.
    #[inline]
    pub fn identification(self, received: [u8; 4], computed: [u8; 4]) -> Option<u16> {
        let difference = u32::from_le_bytes(received) ^ u32::from_le_bytes(computed);
        let found = multiply(difference, self.0);
        // The highest bit is the first coefficient, because bytes are sent with the least significant bit first.
        (found & 0xffff == 0).then_some(((found >> 16) as u16).swap_bytes())
    }
}

/// Returns whether the identification of a sender that counts its packets may have advanced from `last` to `now` within
/// `pause`.
///
/// Linux adds one for each packet, and after a pause a random step of at most one for each tick of its clock.
pub fn step_is_plausible(last: u16, now: u16, pause: Duration) -> bool {
    let allowed = 64 + pause.as_millis() * 11 / 10;
    u128::from(now.wrapping_sub(last)) <= allowed
}

/// The CRC-32 polynomial; the lowest bit is the coefficient of x^31.
const POLYNOMIAL: u32 = 0xedb8_8320;

/// The number of different powers of x, after which they repeat; it has this value because the polynomial is primitive.
const ORDER: u64 = u32::MAX as u64;

/// Returns the product of two polynomials, modulo [`POLYNOMIAL`].
const fn multiply(one: u32, mut other: u32) -> u32 {
    let mut product = 0;
    let mut bit = 1 << 31;
    while bit != 0 {
        if one & bit != 0 {
            product ^= other;
        }
        other = if other & 1 == 0 {
            other >> 1
        } else {
            other >> 1 ^ POLYNOMIAL
        };
        bit >>= 1;
    }
    product
}

/// Returns x to the power of `exponent`, modulo [`POLYNOMIAL`].
const fn power_of_x(mut exponent: u32) -> u32 {
    let (mut square, mut power) = (1 << 30, 1 << 31);
    while exponent != 0 {
        if exponent & 1 == 1 {
            power = multiply(power, square);
        }
        square = multiply(square, square);
        exponent >>= 1;
    }
    power
}

#[cfg(test)]
mod tests;
