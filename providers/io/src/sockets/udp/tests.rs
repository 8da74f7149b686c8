use std::io::ErrorKind;
use std::process::Command;

use rustix::net::{RecvFlags, recv};
use test_kit::waiting::until;

use super::*;
use crate::sockets::receive::Message;

const V4: &str = "127.0.3.1:0";
const V6: &str = "[::1]:0";

fn socket(local: &str) -> UdpSocket {
    with(local, Offload::default())
}

fn with(local: &str, offload: Offload) -> UdpSocket {
    let options = UdpOptions {
        offload,
        ..UdpOptions::default()
    };
    UdpSocket::bind(local.parse().unwrap(), &options).unwrap()
}

/// Receives `count` datagrams, and calls `each` with each datagram and its message.
fn receive(socket: &UdpSocket, count: usize, mut each: impl FnMut(&Message<'_>, &[u8])) {
    let mut batch = ReceiveBatch::new(4, 65_535).unwrap();
    let mut seen = 0;
    until(|| {
        socket.receive(&mut batch).unwrap();
        for message in batch.messages() {
            for datagram in message.datagrams() {
                each(&message, datagram);
                seen += 1;
            }
        }
        seen >= count
    });
}

fn transmit<'a>(to: &UdpSocket, bytes: &'a [u8]) -> Transmit<'a> {
    Transmit::new(to.local(), bytes)
}

#[test]
fn a_datagram_arrives_with_its_sender() {
    for local in [V4, V6] {
        let (from, to) = (socket(local), socket(local));
        assert_eq!(from.send(&[transmit(&to, b"a datagram")]).unwrap(), 1);
        receive(&to, 1, |message, datagram| {
            assert_eq!(datagram, b"a datagram");
            assert_eq!(message.from, from.local());
            assert_eq!(message.traffic_class, 0);
        });
    }
}

#[test]
fn the_traffic_class_arrives_whichever_came_first() {
    const CLASSES: [u8; 5] = [0, 1, 2, 3, 0x68 | 2];
    for (local, hop_limit) in [(V4, 0), (V4, 9), (V6, 0), (V6, 9)] {
        for first in 0..CLASSES.len() {
            let (from, to) = (socket(local), socket(local));
            let mut classes = CLASSES;
            classes.rotate_left(first);
            let of = |traffic_class| Transmit {
                traffic_class,
                hop_limit,
                ..transmit(&to, b"x")
            };
            for class in classes {
                from.send(&[of(class)]).unwrap();
                from.send(&[of(class), of(classes[0])]).unwrap();
                let mut arrived = Vec::new();
                receive(&to, 3, |message, _| arrived.push(message.traffic_class));
                assert_eq!(arrived, [class, class, classes[0]]);
            }
        }
    }
}

#[test]
fn segments_cut_by_the_kernel_arrive_as_datagrams() {
    let bytes: Vec<u8> = (0..60_004_u32).map(|at| (at % 251) as u8).collect();
    for local in [V4, V6] {
        for offload in [Offload::default(), Offload::NONE] {
            let (from, to) = (socket(local), with(local, offload));
            assert!(from.can_segment());
            assert_eq!(to.joins(), offload.joining);
            let transmit = Transmit {
                segment: 4156,
                traffic_class: 2,
                ..transmit(&to, &bytes)
            };
            from.send(&[transmit]).unwrap();
            let (mut arrived, mut lengths) = (Vec::new(), Vec::new());
            receive(&to, 15, |message, datagram| {
                assert_eq!(message.traffic_class, 2);
                let is_joined = message.bytes.len() > message.segment;
                assert_eq!(is_joined, offload.joining);
                arrived.extend_from_slice(datagram);
                lengths.push(datagram.len());
            });
            assert_eq!(arrived, bytes);
            assert!(lengths[..14].iter().all(|&length| length == 4156));
        }
    }
}

#[test]
fn a_batch_goes_out_in_order() {
    let (from, to) = (socket(V4), socket(V4));
    let numbers: Vec<_> = (0..100_u32).map(u32::to_be_bytes).collect();
    let transmits: Vec<_> = numbers.iter().map(|number| transmit(&to, number)).collect();
    assert_eq!(from.send(&transmits).unwrap(), 100);
    let mut next = 0_u32;
    receive(&to, 100, |_, datagram| {
        assert_eq!(datagram, next.to_be_bytes());
        next += 1;
    });
}

#[test]
fn an_empty_socket_answers_at_once() {
    let mut batch = ReceiveBatch::new(4, 2048).unwrap();
    assert_eq!(socket(V4).receive(&mut batch).unwrap(), 0);
    assert_eq!(batch.messages().count(), 0);
}

#[test]
fn messages_that_do_not_fit_are_left_out_and_counted() {
    let (from, to) = (socket(V4), with(V4, Offload::NONE));
    for bytes in [&[1; 10][..], &[2; 11], &[3; 10]] {
        from.send(&[transmit(&to, bytes)]).unwrap();
    }
    let mut batch = ReceiveBatch::new(3, 10).unwrap();
    let (mut arrived, mut truncated) = (Vec::new(), 0);
    while to.receive(&mut batch).unwrap() > 0 {
        arrived.extend(batch.messages().map(|message| message.bytes[0]));
        truncated += batch.truncated();
    }
    assert_eq!((arrived, truncated), (vec![1, 3], 1));
}

#[test]
fn a_datagram_that_is_too_long_is_refused() {
    let (from, to) = (socket(V4), socket(V4));
    let bytes = vec![0; MAX_BYTES + 1];
    assert!(matches!(
        from.send(&[transmit(&to, &bytes)]),
        Err(SendError::Refused(error)) if verbs_api::provider::errno_of(&error) == libc::EMSGSIZE
    ));
    assert_eq!(from.send(&[transmit(&to, &bytes[..MAX_BYTES])]).unwrap(), 1);
}

#[test]
fn a_refusal_reports_how_many_were_sent_before_it() {
    let (from, to) = (socket(V4), socket(V4));
    let bytes = vec![0; MAX_BYTES + 1];
    let transmits = [
        transmit(&to, &bytes[..4]),
        transmit(&to, &bytes),
        transmit(&to, &bytes[..4]),
    ];
    assert_eq!(from.send(&transmits).unwrap(), 1);
}

#[test]
fn an_impossible_segment_is_refused_and_nothing_is_sent() {
    let (from, to) = (socket(V4), socket(V4));
    let bytes = vec![0; 60_000];
    let unusable = Transmit {
        // 60,000 bytes in datagrams of 1 byte are more datagrams than a call may have.
        segment: 1,
        ..transmit(&to, &bytes[..])
    };
    assert!(matches!(
        from.send(&[unusable]),
        Err(SendError::NoSegmentation)
    ));
    assert!(!from.can_segment());
    let mut batch = ReceiveBatch::new(1, 65_535).unwrap();
    assert_eq!(to.receive(&mut batch).unwrap(), 0);
}

#[test]
fn a_missing_receiver_is_no_error() {
    let (from, gone) = (socket(V4), socket(V4).local());
    for _ in 0..5 {
        assert_eq!(from.send(&[Transmit::new(gone, b"x")]).unwrap(), 1);
        let mut batch = ReceiveBatch::new(1, 100).unwrap();
        assert_eq!(from.receive(&mut batch).unwrap(), 0);
    }
}

#[test]
fn an_address_of_another_machine_is_refused() {
    let bound = UdpSocket::bind("203.0.113.1:0".parse().unwrap(), &UdpOptions::default());
    assert_eq!(bound.unwrap_err().kind(), ErrorKind::AddrNotAvailable);
    let taken = socket(V4);
    let bound = UdpSocket::bind(taken.local(), &UdpOptions::default());
    assert_eq!(bound.unwrap_err().kind(), ErrorKind::AddrInUse);
}

#[test]
fn the_mtu_of_loopback_is_known() {
    for local in [V4, V6] {
        assert!(interface_mtu(local.parse().unwrap()).unwrap() >= 16_384);
    }
}

/// An interface with an IPv4 and an IPv6 address, until it is dropped.
struct Interface(String);

impl Interface {
    fn new(mtu: u32, addresses: [&str; 2]) -> Self {
        let name = format!("pv{}", std::process::id());
        let this = Self(name.clone());
        ip(&format!(
            "link add {name} mtu {mtu} type veth peer name {name}b"
        ));
        ip(&format!("addr add {}/24 dev {name}", addresses[0]));
        ip(&format!("addr add {}/64 dev {name} nodad", addresses[1]));
        ip(&format!("link set {name}b up"));
        ip(&format!("link set {name} up"));
        this
    }
}

impl Drop for Interface {
    fn drop(&mut self) {
        ip(&format!("link del {}", self.0));
    }
}

fn ip(arguments: &str) {
    let status = Command::new("ip").args(arguments.split(' ')).status();
    assert!(status.unwrap().success(), "ip {arguments}");
}

// The route from the machine to itself has the MTU of loopback, whatever the address.
#[test]
#[ignore = "needs root and ip: tests/foreign runs it"]
fn the_mtu_of_an_interface_is_not_that_of_loopback() {
    let addresses = ["198.18.77.1", "fd77::1"];
    let _interface = Interface::new(1500, addresses);
    for address in addresses {
        let local = SocketAddr::new(address.parse().unwrap(), 0);
        assert_eq!(interface_mtu(local).unwrap(), 1500, "{address}");
    }
}

/// A checksum over the IP header relies on this. The test reads the packets as a dissector does, which needs the right to
/// open a raw socket.
#[test]
#[ignore = "needs root: tests/foreign runs it"]
fn the_identification_is_0_and_df_is_set() {
    let raw = socket_with(
        AddressFamily::INET,
        SocketType::RAW,
        SocketFlags::NONBLOCK,
        Some(rustix::net::ipproto::UDP),
    )
    .expect("the right to open a raw socket");
    let (from, to) = (socket("127.0.3.2:0"), socket("127.0.3.2:0"));
    let bytes = [0; 3000];
    for segment in [0, 0, 1000] {
        let transmit = Transmit {
            segment,
            ..transmit(&to, &bytes[..])
        };
        from.send(&[transmit]).unwrap();
    }
    let (mut seen, mut packet) = (0, [0; 65_535]);
    while seen < 3 {
        let (length, _) = recv(&raw, &mut packet[..], RecvFlags::empty()).expect("three packets");
        let ours =
            packet[12..16] == [127, 0, 3, 2] && packet[22..24] == to.local().port().to_be_bytes();
        if length >= 28 && ours {
            assert_eq!(packet[4..8], [0, 0, 0x40, 0]);
            seen += 1;
        }
    }
}

#[test]
fn the_source_for_an_address_of_this_machine_is_the_address() {
    let source = |to: &str| source_of(to.parse().unwrap());
    assert_eq!(source("127.0.0.1:1").unwrap().to_string(), "127.0.0.1");
    assert_eq!(source("[::1]:1").unwrap().to_string(), "::1");
    // This address is reserved for documentation: if there is a route at all, it does not begin there.
    assert!(source("192.0.2.1:1").map_or(true, |from| from.to_string() != "192.0.2.1"));
}
