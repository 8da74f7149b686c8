use std::thread;

use crate::GroupOptions;
use crate::sockets::Offload;
use polyverbs_engine::link::OwnedFrame;
use test_kit::waiting::{PATIENCE, until};

use super::*;
use crate::{Opened, TxMeta};

/// A format with a queue pair where RoCEv2 has it, a number, and a checksum over the datagram and its envelope.
#[derive(Clone, Debug)]
struct Toy;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Header {
    qpn: u32,
    number: u32,
    service: u8,
}

const UNSPEAKABLE: u32 = u32::MAX;
const SENDER: u32 = 9;
/// The service in the header of a refusal.
const REFUSED: u8 = u8::MAX;
const HEAD: usize = 9;

fn sum(envelope: &Envelope, bytes: &[u8]) -> [u8; 4] {
    let text = format!("{envelope:?}");
    let bytes = text.bytes().chain(bytes.iter().copied());
    let fold = |sum: u32, byte| (sum ^ u32::from(byte)).wrapping_mul(0x0100_0193);
    bytes.fold(0x811c_9dc5, fold).to_be_bytes()
}

impl DatagramCodec for Toy {
    type Header = Header;
    const OVERHEAD: usize = 16;

    fn tx_meta(&self, header: &Header) -> TxMeta {
        TxMeta {
            sender: SENDER,
            flow: header.qpn,
            traffic_class: 2,
            hop_limit: 0,
        }
    }

    fn encode_header(&self, header: &Header, _payload: usize, into: &mut [u8]) -> Option<usize> {
        if header.number == UNSPEAKABLE {
            return None;
        }
        into[..4].copy_from_slice(&header.number.to_be_bytes());
        into[4..8].copy_from_slice(&(0xff00_0000 | header.qpn).to_be_bytes());
        into[8] = header.service;
        Some(HEAD)
    }

    fn trailer(&self, _payload: usize) -> usize {
        4
    }

    fn seal(&self, envelope: &Envelope, payload_end: usize, datagram: &mut [u8]) {
        let sum = sum(envelope, &datagram[..payload_end]);
        datagram[payload_end..].copy_from_slice(&sum);
    }

    fn open<'d>(&self, arrival: &Arrival, datagram: &'d [u8]) -> Option<Opened<'d, Header>> {
        let (covered, found) = datagram.split_last_chunk::<4>()?;
        let (head, payload) = covered.split_at_checked(HEAD)?;
        let envelope = Envelope {
            from: arrival.from,
            to: arrival.to,
            identification: arrival.segment,
        };
        Some(Opened {
            header: self.open_record(arrival, head)?,
            payload,
            damaged: sum(&envelope, covered) != *found,
        })
    }

    fn open_record(&self, arrival: &Arrival, header: &[u8]) -> Option<Header> {
        assert_eq!(arrival.traffic_class, 2);
        let word = |at: usize| Some(u32::from_be_bytes(header.get(at..at + 4)?.try_into().ok()?));
        Some(Header {
            number: word(0)?,
            qpn: word(4)? & 0xff_ffff,
            service: *header.get(8)?,
        })
    }

    fn refusal(&self, sender: u32, errno: i32) -> Header {
        Header {
            qpn: sender,
            number: errno as u32,
            service: REFUSED,
        }
    }

    fn address_of_group(&self, group: Gid) -> Option<IpAddr> {
        let [.., a, b, c, d] = group.0;
        Some([a, b, c, d].into())
    }

    fn common(&self, datagram: &[u8]) -> Common {
        match datagram.get(8) {
            Some(&service) if service != 0 => Common::Service(service.into()),
            _ => Common::Anybody,
        }
    }
}

/// A network of one device, which keeps delivered frames and delivers when it is called.
#[derive(Default)]
struct Sink {
    frames: Mutex<Vec<OwnedFrame<Header>>>,
    link: Mutex<Weak<UdpLink<Toy>>>,
}

impl Sink {
    fn of(link: &Arc<UdpLink<Toy>>) -> Arc<Self> {
        let sink = Arc::new(Self::default());
        *sink.link.lock() = Arc::downgrade(link);
        sink
    }

    fn numbers(&self) -> Vec<u32> {
        self.frames
            .lock()
            .iter()
            .map(|frame| frame.header.number)
            .collect()
    }

    /// Polls once, as a thread of a program does.
    fn poll(&self) {
        self.progress();
        if let Some(link) = self.link.lock().upgrade() {
            link.reactor.polled();
        }
    }

    fn await_frames(&self, count: usize) {
        until(|| self.frames.lock().len() >= count);
    }
}

impl Deliver<Header> for Sink {
    fn deliver(&self, frame: Frame<'_, Header>, _now: Time) {
        self.frames.lock().push(frame.to_owned());
    }
}

impl Progress for Sink {
    fn next_timeout(&self) -> Option<Time> {
        None
    }

    fn handle_timeout(&self, _now: Time) {}

    fn progress(&self) -> bool {
        let link = self.link.lock().upgrade();
        while link.as_ref().is_some_and(|link| link.progress(NOW, self)) {}
        true
    }
}

const NOW: Time = Time(0);

fn link_with(ip: &str, port: u16, options: UdpLinkOptions) -> Arc<UdpLink<Toy>> {
    let address = SocketAddr::new(ip.parse().unwrap(), port);
    let lease = Lease::join(GroupOptions::new(address)).unwrap();
    UdpLink::new(lease, Toy, options).unwrap()
}

fn link(ip: &str, port: u16) -> Arc<UdpLink<Toy>> {
    link_with(ip, port, UdpLinkOptions::default())
}

fn address(of: &UdpLink<Toy>) -> LinkAddress {
    LinkAddress::Ip(of.lease().address().ip())
}

fn frame<'p>(
    from: &UdpLink<Toy>,
    to: &UdpLink<Toy>,
    number: u32,
    payload: &'p [u8],
) -> Frame<'p, Header> {
    Frame {
        from: address(from),
        to: address(to),
        header: Header {
            qpn: to.lease().range().first() + 7,
            number,
            service: 0,
        },
        payload: if payload.is_empty() {
            Payload::Empty
        } else {
            Payload::Bytes(payload)
        },
        damaged: false,
    }
}

fn all(link: &Arc<UdpLink<Toy>>, count: usize) -> Vec<OwnedFrame<Header>> {
    let sink = Sink::of(link);
    until(|| {
        sink.progress();
        sink.frames.lock().len() >= count
    });
    std::mem::take(&mut *sink.frames.lock())
}

#[test]
fn frames_arrive_as_they_were_sent() {
    for (one, other) in [("127.0.3.80", "127.0.3.81"), ("::1", "::1")] {
        let (one, other) = (
            link(one, 47_080),
            link(other, 47_081 - u16::from(one != "::1")),
        );
        // IPv6 has one address on loopback, so two devices cannot share a port there.
        let to = if address(&one) == address(&other) {
            &one
        } else {
            &other
        };
        let payloads: Vec<Vec<u8>> = [0, 1, 64, 4096].map(|length| vec![7; length]).into();
        for (number, payload) in payloads.iter().enumerate() {
            one.send(frame(&one, to, number as u32, payload), NOW);
        }
        one.flush();
        let frames = all(to, 4);
        for (frame, payload) in frames.iter().zip(&payloads) {
            assert_eq!((frame.from, frame.to), (address(&one), address(to)));
            assert_eq!(frame.payload, *payload);
            assert!(!frame.damaged);
        }
        let numbers: Vec<_> = frames.iter().map(|frame| frame.header.number).collect();
        assert_eq!(numbers, [0, 1, 2, 3]);
        let counts = one.counts();
        assert_eq!(
            (counts.sent + counts.by_memory, to.counts().delivered),
            (4, 4)
        );
    }
}

#[test]
fn a_long_message_arrives_with_and_without_segmentation() {
    let (one, other) = (link("127.0.3.82", 47_080), link("127.0.3.83", 47_080));
    let options = UdpLinkOptions {
        udp: UdpOptions {
            offload: Offload::NONE,
            ..UdpOptions::default()
        },
        ..UdpLinkOptions::default()
    };
    let plain = link_with("127.0.3.84", 47_080, options);
    let payload = vec![3; 4096];
    for from in [&one, &plain] {
        for number in 0..200 {
            from.send(frame(from, &other, number, &payload), NOW);
        }
        from.flush();
        let frames = all(&other, 200);
        assert!(frames.iter().map(|frame| frame.header.number).eq(0..200));
        assert!(
            frames
                .iter()
                .all(|frame| !frame.damaged && frame.payload == payload)
        );
    }
}

#[test]
fn a_damaged_frame_arrives_as_damaged() {
    let (one, other) = (link("127.0.3.85", 47_080), link("127.0.3.86", 47_080));
    for (number, damaged) in [(1, false), (2, true), (3, false)] {
        let frame = Frame {
            damaged,
            ..frame(&one, &other, number, b"bytes")
        };
        one.send(frame, NOW);
    }
    one.flush();
    let found: Vec<_> = all(&other, 3)
        .iter()
        .map(|frame| (frame.header.number, frame.damaged))
        .collect();
    assert_eq!(found, [(1, false), (2, true), (3, false)]);
    assert_eq!(other.counts().damaged, 1);
}

#[test]
fn frames_that_cannot_be_encoded_or_sent_are_counted() {
    let one = link("127.0.3.87", 47_080);
    one.send(frame(&one, &one, UNSPEAKABLE, b""), NOW);
    for to in [
        LinkAddress::InProcess(3),
        LinkAddress::Ip("::1".parse().unwrap()),
    ] {
        let frame = Frame {
            to,
            ..frame(&one, &one, 1, b"")
        };
        one.send(frame, NOW);
    }
    one.send(frame(&one, &one, 2, b""), NOW);
    assert_eq!(all(&one, 1)[0].header.number, 2);
    let counts = one.counts();
    assert_eq!((counts.formless, counts.by_memory), (3, 1));
}

#[test]
fn a_sender_is_notified_once_of_what_the_system_refuses() {
    let one = link("127.0.3.129", 47_080);
    // Datagrams to a broadcast address need an option of the socket.
    let to = LinkAddress::Ip("255.255.255.255".parse().unwrap());
    for number in 0..3 {
        let refused = Frame {
            to,
            ..frame(&one, &one, number, b"")
        };
        one.send(refused, NOW);
    }
    assert!(one.flush());
    let notified = all(&one, 1);
    let header = Header {
        qpn: SENDER,
        number: libc::EACCES as u32,
        service: REFUSED,
    };
    let found: Vec<_> = notified.iter().map(|it| (it.from, it.header)).collect();
    assert_eq!(found, [(to, header)]);
    assert_eq!(one.counts().refused, 3);
    assert!(!one.flush());
}

// covers 3.56 3.59
#[test]
fn malformed_datagrams_are_counted_and_dropped() {
    let one = link("127.0.3.88", 47_080);
    let from = UdpSocket::bind("127.0.3.88:0".parse().unwrap(), &UdpOptions::default()).unwrap();
    let steered = (0xff00_0000 | one.lease().range().first()).to_be_bytes();
    let nonsense = [&[0; 4][..], &steered, &[0; 3]].concat();
    let transmit = crate::sockets::Transmit::new(one.lease().address(), &nonsense);
    from.send(&[transmit]).unwrap();
    let sink = Sink::of(&one);
    until(|| {
        sink.progress();
        one.counts().malformed > 0
    });
    assert!(sink.numbers().is_empty());
}

#[test]
fn the_thread_delivers_while_no_thread_polls() {
    let (one, other) = (link("127.0.3.89", 47_080), link("127.0.3.90", 47_080));
    let sink = Sink::of(&other);
    let network: Arc<dyn Progress> = Arc::clone(&sink) as _;
    other.start(Arc::downgrade(&network)).unwrap();
    for number in 0..50 {
        one.send(frame(&one, &other, number, b"woken"), NOW);
        one.flush();
        sink.await_frames(number as usize + 1);
    }
}

#[test]
fn at_one_address_frames_use_memory_and_no_checksum() {
    let (one, other) = (link("127.0.3.165", 47_080), link("127.0.3.165", 47_080));
    let payload: Vec<u8> = (0..4096).map(|at| at as u8).collect();
    for (from, to) in [(&one, &other), (&other, &one), (&one, &one)] {
        for number in 0..100 {
            from.send(
                frame(from, to, number, &payload[..number as usize * 40]),
                NOW,
            );
        }
        from.flush();
        let frames = all(to, 100);
        for (number, frame) in frames.iter().enumerate() {
            assert_eq!(frame.header.number as usize, number);
            assert_eq!(frame.payload, payload[..number * 40]);
            assert!(!frame.damaged);
        }
    }
    assert_eq!((one.counts().sent, one.counts().by_memory), (0, 200));
    assert_eq!((other.counts().sent, other.counts().by_memory), (0, 100));
}

#[test]
fn a_process_without_shared_memory_uses_sockets_both_ways() {
    let options = UdpLinkOptions {
        memory: false,
        ..UdpLinkOptions::default()
    };
    let one = link("127.0.3.166", 47_080);
    let other = link_with("127.0.3.166", 47_080, options);
    for (from, to) in [(&one, &other), (&other, &one)] {
        from.send(frame(from, to, 1, b"over a socket"), NOW);
        from.flush();
        assert_eq!(all(to, 1)[0].payload, b"over a socket");
        assert_eq!((from.counts().sent, from.counts().by_memory), (1, 0));
    }
}

#[test]
fn a_damaged_record_arrives_as_damaged() {
    let (one, other) = (link("127.0.3.167", 47_080), link("127.0.3.167", 47_080));
    let damaged = Frame {
        damaged: true,
        ..frame(&one, &other, 1, b"bytes")
    };
    one.send(damaged, NOW);
    one.flush();
    assert!(all(&other, 1)[0].damaged);
    assert_eq!((one.counts().sent, one.counts().by_memory), (0, 1));
}

#[test]
fn the_thread_reads_memory_while_no_thread_polls() {
    let Processes {
        links: [one, other],
        sinks,
    } = Processes::at("127.0.3.168");
    for number in 0..200 {
        one.send(frame(&one, &other, number, b"woken"), NOW);
        one.flush();
        sinks[1].await_frames(number as usize + 1);
        other.send(frame(&other, &one, number, b"as well"), NOW);
        other.flush();
        sinks[0].await_frames(number as usize + 1);
    }
    assert_eq!(one.counts().by_memory, 200);
}

#[test]
fn the_thread_delivers_records_after_a_poller_has_left() {
    let Processes {
        links: [one, other],
        sinks,
    } = Processes::at("127.0.3.170");
    for number in 0..3000 {
        one.send(frame(&one, &other, number, b"called"), NOW);
        one.flush();
        // The program polls some times, and then waits for memory that a peer writes.
        for _ in 0..number % 40 {
            sinks[1].poll();
        }
        sinks[1].await_frames(number as usize + 1);
    }
}

#[test]
fn frames_wait_for_room_in_memory_up_to_a_limit() {
    let (one, other) = (link("127.0.3.169", 47_080), link("127.0.3.169", 47_080));
    let payload = vec![1; 4096];
    let most = 3000;
    for number in 0..most {
        one.send(frame(&one, &other, number, &payload), NOW);
        one.flush();
    }
    let counts = one.counts();
    let kept = most - counts.overrun as u32;
    assert!(counts.overrun > 0 && counts.by_memory < u64::from(kept));
    let (senders, sink) = (Sink::of(&one), Sink::of(&other));
    until(|| {
        sink.progress();
        senders.progress();
        sink.numbers().len() >= kept as usize
    });
    assert!(sink.numbers().into_iter().eq(0..kept));
    one.send(frame(&one, &other, 7, b"again"), NOW);
    one.flush();
    assert_eq!(all(&other, 1)[0].payload, b"again");
    assert_eq!(one.counts().by_memory, u64::from(kept) + 1);
}

/// Two leases of one port, which stand for two processes, each with a thread that reads.
struct Processes {
    links: [Arc<UdpLink<Toy>>; 2],
    sinks: [Arc<Sink>; 2],
}

impl Processes {
    fn at(address: &str) -> Self {
        let links = [(); 2].map(|()| link(address, 47_080));
        let sinks = links.each_ref().map(Sink::of);
        for (link, sink) in links.iter().zip(&sinks) {
            let network: Arc<dyn Progress> = Arc::clone(sink) as _;
            link.start(Arc::downgrade(&network)).unwrap();
        }
        Self { links, sinks }
    }
}

#[test]
fn a_datagram_reaches_its_process_whichever_one_reads_it() {
    let processes = Processes::at("127.0.3.91");
    let ([one, other], sinks) = (&processes.links, &processes.sinks);
    let from = link("127.0.3.92", 47_080);
    other.serve(5).unwrap();
    assert!(one.serve(5).is_err());
    let of = |service: u8| {
        let header = Header {
            qpn: 1,
            number: service.into(),
            service,
        };
        Frame {
            header,
            ..frame(&from, one, 0, b"request")
        }
    };
    // The kernel wakes one of the two. On a busy machine some datagrams may be lost, as datagrams may.
    until(|| {
        from.send(of(5), NOW);
        from.flush();
        sinks[1].frames.lock().len() >= 20
    });
    assert!(sinks[0].numbers().is_empty());
    // No process serves this service, so the process that is woken delivers the datagram.
    from.send(of(6), NOW);
    from.flush();
    until(|| sinks.iter().any(|sink| sink.numbers().contains(&6)));
    other.withdraw(5);
    one.serve(5).unwrap();
    from.send(of(5), NOW);
    from.flush();
    until(|| sinks[0].numbers().contains(&5));
}

#[test]
fn cm_messages_within_an_address_use_local_sockets() {
    let processes = Processes::at("127.0.3.93");
    let ([one, other], sinks) = (&processes.links, &processes.sinks);
    other.serve(5).unwrap();
    let request = Header {
        qpn: 1,
        number: 7,
        service: 5,
    };
    // Any user of the machine can send from the address, from another port.
    let forger = std::net::UdpSocket::bind("127.0.3.93:0").unwrap();
    let (from, to) = (forger.local_addr().unwrap(), other.lease().address());
    let forged = Header {
        number: 6,
        ..request
    };
    let forged = frame_of(one, forged);
    let forged = datagram(&Toy, &forged, &envelope(from, to, 0)).unwrap();
    forger.send_to(&forged, to).unwrap();
    until(|| [one, other].iter().any(|link| link.counts().forged == 1));

    one.send(frame_of(other, request), NOW);
    until(|| sinks[1].numbers() == [7]);
    assert!(sinks[0].numbers().is_empty());
    assert_eq!(one.counts().sent, 0);
    // A process can address itself, and a service that no process serves.
    other.send(frame_of(one, request), NOW);
    let nobody = Header {
        service: 6,
        ..request
    };
    one.send(frame_of(one, nobody), NOW);
    until(|| sinks.iter().map(|sink| sink.numbers().len()).sum::<usize>() == 3);
    assert_eq!(sinks[0].numbers(), [7]);
}

fn frame_of(to: &Arc<UdpLink<Toy>>, header: Header) -> Frame<'static, Header> {
    Frame {
        header,
        ..frame(to, to, 0, b"request")
    }
}

#[test]
fn many_requests_wait_for_a_process_that_reads_none() {
    let [one, other] = [(); 2].map(|()| link("127.0.3.165", 47_081));
    let from = link("127.0.3.166", 47_081);
    other.serve(5).unwrap();
    let header = Header {
        qpn: 1,
        number: 5,
        service: 5,
    };
    for _ in 0..100 {
        let request = frame(&from, &one, 0, b"request");
        from.send(Frame { header, ..request }, NOW);
    }
    from.flush();
    until(|| {
        one.attend(COMMON);
        let counts = one.counts();
        counts.handed + counts.lost >= 100
    });
    assert_eq!((one.counts().handed, one.counts().lost), (100, 0));
    let other_sink = Sink::of(&other);
    until(|| {
        other.attend(SERVICES);
        other_sink.progress();
        other_sink.numbers().len() >= 100
    });
}

#[test]
fn datagrams_that_the_kernel_joins_reach_their_processes() {
    let processes = Processes::at("127.0.3.163");
    let ([one, other], sinks) = (&processes.links, &processes.sinks);
    other.serve(5).unwrap();
    let from = UdpSocket::bind("127.0.3.164:0".parse().unwrap(), &UdpOptions::default()).unwrap();
    let of = |link: &UdpLink<Toy>| link.lease().range().first() + 7;
    let datagram = |(segment, (qpn, service)): (usize, (u32, u8))| {
        let header = Header {
            qpn,
            number: qpn,
            service,
        };
        let mut bytes = vec![0; 13];
        Toy.encode_header(&header, 0, &mut bytes).unwrap();
        let envelope = envelope(from.local(), one.lease().address(), segment as u16);
        Toy.seal(&envelope, HEAD, &mut bytes);
        bytes
    };
    // A message to the common queue pair follows other datagrams, and others follow it.
    let (mine, its) = ((of(one), 0), (of(other), 0));
    for call in [
        [mine, (1, 5), its],
        [its, mine, (1, 5)],
        [(1, 5), mine, its],
    ] {
        let bytes = call
            .into_iter()
            .enumerate()
            .map(datagram)
            .collect::<Vec<_>>()
            .concat();
        let mut transmit = crate::sockets::Transmit::new(one.lease().address(), &bytes);
        transmit.segment = 13;
        transmit.traffic_class = 2;
        from.send(&[transmit]).unwrap();
    }
    let expected = [(0, mine.0, 3), (1, its.0, 3), (1, 1, 3), (0, 1, 0)];
    let count = |sink: usize, number| {
        let frames = sinks[sink].frames.lock();
        let is_it = |frame: &&OwnedFrame<Header>| frame.header.number == number && !frame.damaged;
        frames.iter().filter(is_it).count()
    };
    until(|| expected.map(|(sink, number, _)| (sink, number, count(sink, number))) == expected);
}

#[test]
fn a_group_is_joined_and_left() {
    let (one, other) = (link("127.0.3.93", 47_080), link("127.0.3.94", 47_080));
    let group: IpAddr = "239.255.47.95".parse().unwrap();
    other.join(group.into()).unwrap();
    other.join(group.into()).unwrap();
    let to_group = || Frame {
        to: LinkAddress::Ip(group),
        header: Header {
            qpn: 0xff_ffff,
            number: 1,
            service: 0,
        },
        ..frame(&one, &other, 1, b"all")
    };
    one.send(to_group(), NOW);
    one.flush();
    let arrived = all(&other, 1);
    assert_eq!(
        (arrived[0].to, arrived[0].damaged),
        (address(&other), false)
    );
    other.leave(group.into());
    one.send(to_group(), NOW);
    one.send(frame(&one, &other, 2, b""), NOW);
    one.flush();
    assert_eq!(all(&other, 1)[0].header.number, 2);
    assert!(one.join(IpAddr::from([10, 0, 0, 1]).into()).is_err());
}

/// Makes another thread leave a group during a delivery, and waits until it has left.
struct Leaver {
    link: Arc<UdpLink<Toy>>,
    group: IpAddr,
    left: Mutex<Vec<bool>>,
}

impl Deliver<Header> for Leaver {
    fn deliver(&self, _frame: Frame<'_, Header>, _now: Time) {
        let (done, heard) = std::sync::mpsc::channel();
        let (link, group) = (Arc::clone(&self.link), self.group);
        thread::spawn(move || {
            link.leave(group.into());
            let _ = done.send(());
        });
        self.left.lock().push(heard.recv_timeout(PATIENCE).is_ok());
    }
}

#[test]
fn a_group_is_left_during_a_delivery_to_it() {
    let (one, other) = (link("127.0.3.95", 47_080), link("127.0.3.96", 47_080));
    let group: IpAddr = "239.255.47.96".parse().unwrap();
    other.join(group.into()).unwrap();
    let header = Header {
        qpn: 0xff_ffff,
        number: 1,
        service: 0,
    };
    let to_group = Frame {
        to: LinkAddress::Ip(group),
        header,
        ..frame(&one, &other, 1, b"all")
    };
    one.send(to_group, NOW);
    one.flush();
    let leaver = Leaver {
        link: Arc::clone(&other),
        group,
        left: Mutex::default(),
    };
    until(|| {
        Link::progress(&*other, NOW, &leaver);
        !leaver.left.lock().is_empty()
    });
    assert_eq!(*leaver.left.lock(), [true]);
}

#[derive(Default)]
struct Notes(Mutex<Vec<(Way, u16, usize)>>);

impl DatagramTap for Notes {
    fn datagram(&self, way: Way, envelope: &Envelope, _class: u8, datagram: &[u8]) {
        self.0
            .lock()
            .push((way, envelope.identification, datagram.len()));
    }
}

#[test]
fn a_tap_sees_both_ends() {
    let notes = Arc::new(Notes::default());
    let options = UdpLinkOptions {
        tap: Some(Arc::clone(&notes) as _),
        ..UdpLinkOptions::default()
    };
    let one = link_with("127.0.3.95", 47_080, options);
    for number in 0..2 {
        one.send(frame(&one, &one, number, b"1234"), NOW);
    }
    one.flush();
    all(&one, 2);
    let sent = [0, 1].map(|number| (Way::Out, number, 17));
    let arrived = [0, 1].map(|number| (Way::In, number, 17));
    assert_eq!(*notes.0.lock(), [sent, arrived].concat());
}

#[test]
fn a_tap_sees_the_datagrams_of_a_link_without_a_wire() {
    let (notes, sink) = (Arc::new(Notes::default()), Sink::default());
    let model = crate::sim::DatagramLink::new(None, "corrupt=100%".parse().unwrap());
    let tap = Arc::clone(&notes) as _;
    let link = crate::through_datagrams(Arc::new(model), Toy, 4791, Some(tap));
    for number in [1, UNSPEAKABLE] {
        let header = Header {
            qpn: 7,
            number,
            service: 0,
        };
        let [from, to] = [1, 2].map(LinkAddress::InProcess);
        let (payload, damaged) = (Payload::Bytes(b"1234"), false);
        let frame = Frame {
            from,
            to,
            header,
            payload,
            damaged,
        };
        link.send(frame, NOW);
    }
    assert!(link.progress(NOW, &sink));
    assert_eq!(sink.numbers(), [1]);
    assert!(sink.frames.lock()[0].damaged);
    assert_eq!(*notes.0.lock(), [(Way::In, 0, 17)]);
}

#[test]
fn the_largest_frame_is_what_the_interface_carries() {
    let options = UdpLinkOptions {
        max_frame: Some(Mtu::Mtu1024),
        ..UdpLinkOptions::default()
    };
    let one = link_with("127.0.3.96", 47_080, options);
    assert_eq!(one.max_frame(), Some(1024));
    assert_eq!(link("127.0.3.97", 47_080).max_frame(), Some(4096));
    let (four, six) = (IpAddr::from([127, 0, 0, 1]), "::1".parse().unwrap());
    // A link of 1,500 bytes carries a path MTU of 1,024.
    assert_eq!(largest_frame(1500, four, 60), Some(Mtu::Mtu1024));
    assert_eq!(largest_frame(4096 + 88, four, 60), Some(Mtu::Mtu4096));
    assert_eq!(largest_frame(4096 + 88, six, 60), Some(Mtu::Mtu2048));
    assert_eq!(largest_frame(300, four, 60), None);
}

#[test]
fn flows_keep_their_order_with_many_senders() {
    let (one, other) = (link("127.0.3.98", 47_080), link("127.0.3.99", 47_080));
    thread::scope(|scope| {
        for thread in 0..4_u32 {
            let (one, other) = (&one, &other);
            scope.spawn(move || {
                for number in 0..250 {
                    let mut frame = frame(one, other, thread << 16 | number, b"in order");
                    frame.header.qpn += thread;
                    one.send(frame, NOW);
                    one.flush();
                }
            });
        }
        let mut next = [0; 4];
        for frame in all(&other, 1000) {
            let thread = (frame.header.number >> 16) as usize;
            assert_eq!(frame.header.number & 0xffff, next[thread]);
            next[thread] += 1;
        }
        assert_eq!(next, [250; 4]);
    });
}
