use super::*;
use crate::exit::tests::no_child_starts;
use crate::sockets::{FlowSockets, Transmit};
use crate::{Put, Readers, RecordMeta};

fn options(port: u16) -> GroupOptions {
    GroupOptions {
        patience: Duration::from_millis(100),
        ..GroupOptions::new(([127, 0, 3, 40], port).into())
    }
}

/// The part of a BTH that steers.
fn bth(qpn: u32) -> [u8; 12] {
    let mut bth = [0; 12];
    bth[4..8].copy_from_slice(&(0xff00_0000 | qpn).to_be_bytes());
    bth
}

fn send(flows: &FlowSockets, to: SocketAddr, bytes: &[u8]) {
    let sent = flows.of(0).unwrap().send(&[Transmit::new(to, bytes)]);
    assert_eq!(sent.unwrap(), 1);
}

fn arrivals(socket: &UdpSocket) -> Vec<Vec<u8>> {
    let (mut batch, mut all) = (ReceiveBatch::new(8, 65_535).unwrap(), Vec::new());
    while socket.receive(&mut batch).unwrap() > 0 {
        for message in batch.messages() {
            all.extend(message.datagrams().map(<[u8]>::to_vec));
        }
    }
    all
}

fn flows(of: &Lease) -> FlowSockets {
    FlowSockets::new(of.address(), 1, UdpOptions::default())
}

#[test]
fn each_range_has_its_own_datagrams() {
    let leases: Vec<_> = (0..63)
        .map(|_| Lease::join(options(47_001)).unwrap())
        .collect();
    let (flows, address) = (flows(&leases[0]), leases[0].address());
    let full = Lease::join(options(47_001)).unwrap_err();
    assert!(matches!(full, JoinError::Full(_)), "{full}");
    for lease in &leases {
        for qpn in [lease.range().first(), lease.range().end() - 1] {
            send(&flows, address, &bth(qpn));
        }
    }
    for lease in &leases {
        let expected =
            [lease.range().first(), lease.range().end() - 1].map(|qpn| bth(qpn).to_vec());
        assert_eq!(arrivals(lease.socket()), expected);
    }
    assert!(arrivals(leases[0].common()).is_empty());
}

#[test]
fn datagrams_to_no_range_arrive_at_the_common_socket() {
    let lease = Lease::join(options(47_002)).unwrap();
    let flows = flows(&lease);
    for bytes in [&bth(1)[..], &bth(0x3_ffff), b"", b"short"] {
        send(&flows, lease.address(), bytes);
    }
    assert_eq!(arrivals(lease.common()).len(), 4);
}

#[test]
fn datagrams_for_no_process_reach_none() {
    let lease = Lease::join(options(47_012)).unwrap();
    let flows = flows(&lease);
    let own = bth(lease.range().first());
    // The kernel chooses the socket for a range without one by the sender's port, among others.
    for range in lease.range().index() as u32 + 1..64 {
        send(&flows, lease.address(), &bth(range << QpnRange::SHIFT));
    }
    send(&flows, lease.address(), &own);
    assert_eq!(arrivals(lease.socket()), [own]);
    assert!(arrivals(lease.common()).is_empty());
}

/// A management datagram of a class to QP 1, from one communication id to another.
fn management(class: u8, attribute: u8, from: u32, to: u32) -> Vec<u8> {
    let mut datagram = [&bth(1)[..], &[0; 8 + 256]].concat();
    (datagram[21], datagram[37]) = (class, attribute);
    datagram[44..48].copy_from_slice(&from.to_be_bytes());
    datagram[48..52].copy_from_slice(&to.to_be_bytes());
    datagram
}

#[test]
fn answers_arrive_only_at_the_process_that_they_answer() {
    let [one, other] = [(); 2].map(|()| Lease::join(options(47_011)).unwrap());
    let flows = flows(&one);
    let [mine, its] = [&one, &other].map(|lease| lease.range().communication(7));
    let answers: Vec<_> = [0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x19, 0x1a]
        .map(|attribute| management(7, attribute, mine, its))
        .into_iter()
        .chain([management(7, 0x18, its, mine)])
        .collect();
    // These are requests, another class, and an answer to no process's message.
    let others = [
        management(7, 0x10, mine, its),
        management(7, 0x17, its, mine),
        management(4, 0x15, mine, its),
        management(7, 0x12, mine, 0),
    ];
    for datagram in answers.iter().chain(&others) {
        send(&flows, one.address(), datagram);
    }
    assert_eq!(arrivals(other.socket()), answers);
    assert_eq!(arrivals(one.common()), others);
    assert!(arrivals(one.socket()).is_empty());
}

#[test]
fn a_range_begins_empty() {
    let _open = no_child_starts();
    let first = Lease::join(options(47_003)).unwrap();
    let second = Lease::join(options(47_003)).unwrap();
    let (flows, range) = (flows(&first), second.range());
    drop(second);
    for _ in 0..100 {
        send(&flows, first.address(), &bth(range.first()));
    }
    let again = Lease::join(options(47_003)).unwrap();
    assert_eq!(again.range(), range);
    assert!(arrivals(again.socket()).is_empty());
}

#[test]
fn joining_a_port_that_is_in_use_reports_its_holder() {
    let _open = no_child_starts();
    let options = options(47_004);
    let held = UdpSocket::bind(options.address, &UdpOptions::default()).unwrap();
    let taken = Lease::join(options.clone()).unwrap_err();
    assert!(
        matches!(taken, JoinError::Taken(_, Holder::Somebody)),
        "{taken}"
    );
    drop(held);
    Lease::join(options).unwrap();
}

#[test]
fn joining_at_another_machines_address_is_an_error() {
    let options = GroupOptions::new(([203, 0, 113, 1], 47_005).into());
    let error = Lease::join(options).unwrap_err();
    assert!(matches!(error, JoinError::System(..)), "{error}");
}

#[test]
fn the_port_is_free_when_all_have_left() {
    let _open = no_child_starts();
    let options = options(47_006);
    let leases = [(); 3].map(|()| Lease::join(options.clone()).unwrap());
    drop(leases);
    UdpSocket::bind(options.address, &UdpOptions::default()).unwrap();
}

fn arrival_at(lease: &Lease) -> Arrival {
    Arrival {
        from: "127.0.0.1:50000".parse().unwrap(),
        to: lease.address(),
        traffic_class: 2,
        segment: 0,
    }
}

#[test]
fn a_datagram_is_forwarded_to_a_range_or_to_a_service() {
    let _open = no_child_starts();
    let [one, other] = [(); 2].map(|()| Lease::join(options(47_007)).unwrap());
    let (arrival, datagram) = (arrival_at(&one), [7; 60_000]);
    one.hand_to_range(other.range(), &arrival, &datagram)
        .unwrap();
    let mut taken = 0;
    let mut take = |mail: Mail<'_>| {
        let Mail::Datagram(handed, bytes) = mail else {
            panic!("{mail:?} instead of a datagram")
        };
        assert_eq!((handed, bytes), (arrival, &datagram[..]));
        taken += 1;
    };
    other.attend(&mut take).unwrap();
    one.attend(&mut take).unwrap();

    let nobody = one.hand_to_service(5, &arrival, &datagram).unwrap_err();
    assert!(matches!(nobody, HandError::Nobody), "{nobody}");
    let service = other.serve(5).unwrap();
    let second = one.serve(5).unwrap_err();
    assert_eq!(second.kind(), io::ErrorKind::AddrInUse);
    one.hand_to_service(5, &arrival, &datagram).unwrap();
    service.attend(&mut take).unwrap();
    assert_eq!(taken, 2);
    drop(service);
    one.serve(5).unwrap();
}

#[test]
fn connections_to_a_process_that_has_gone_are_dropped() {
    let _open = no_child_starts();
    let [one, other, third] = [(); 3].map(|()| Lease::join(options(47_013)).unwrap());
    let arrival = arrival_at(&one);
    for to in [&other, &third] {
        one.hand_to_range(to.range(), &arrival, b"datagram")
            .unwrap();
    }
    let gone = other.range();
    drop(other);
    one.attend(&mut |_| {}).unwrap();
    let kept = one.connections.lock();
    assert!(!kept.contains_key(&gone) && kept.contains_key(&third.range()));
}

#[test]
fn a_process_that_closes_its_oldest_connection_has_not_gone() {
    let _open = no_child_starts();
    let [one, other] = [(); 2].map(|()| Lease::join(options(47_016)).unwrap());
    let no_mail = &mut |mail: Mail<'_>| panic!("{mail:?}");
    one.send_message(other.range(), b"message").unwrap();
    let mut arrived = 0;
    other.attend(&mut |_| arrived += 1).unwrap();
    assert_eq!(arrived, 1);
    let name = one.group.options.range(other.range());
    let open = || Connection::to(&name, &Admission::default()).unwrap();
    let _many: Vec<_> = (0..128).map(|_| open()).collect();
    // The inbox accepts sixteen connections in a turn.
    for _ in 0..20 {
        other.attend(no_mail).unwrap();
        one.attend(no_mail).unwrap();
    }
    let gone = other.range();
    drop(other);
    let mut mails = Vec::new();
    while mails.is_empty() {
        one.attend(&mut |mail| mails.push(format!("{mail:?}")))
            .unwrap();
    }
    assert_eq!(mails, [format!("{:?}", Mail::Gone(gone))]);
}

#[test]
fn a_slow_process_loses_datagrams_and_holds_up_no_other() {
    let [one, other] = [(); 2].map(|()| Lease::join(options(47_008)).unwrap());
    let (arrival, datagram) = (arrival_at(&one), [0; 4096]);
    let hand = || one.hand_to_range(other.range(), &arrival, &datagram);
    let full = (0..100_000).find_map(|_| hand().err());
    assert!(matches!(full, Some(HandError::Full)), "{full:?}");
}

#[test]
fn invalid_messages_in_the_inbox_are_ignored() {
    let options = options(47_009);
    let lease = Lease::join(options.clone()).unwrap();
    let name = options.range(lease.range());
    let sender = Connection::to(&name, &options.admission).unwrap();
    for bytes in [
        &[VERSION][..],
        &[VERSION, HANDED],
        &[9, JOIN],
        &[VERSION, 200, 1],
        &[7; 100_000],
        b"",
    ] {
        sender.send(&[IoSlice::new(bytes)], &[]).unwrap();
    }
    lease.attend(&mut |_| panic!("a datagram")).unwrap();
}

#[test]
fn descriptors_of_the_wrong_kind_are_refused() {
    let options = options(47_010);
    let lease = Lease::join(options.clone()).unwrap();
    let duplicate = |of: BorrowedFd<'_>| Unshared::made(|| of.try_clone_to_owned()).unwrap();
    let other = UdpSocket::bind("127.0.3.40:0".parse().unwrap(), &UdpOptions::default());
    let wrong = [duplicate(other.unwrap().as_fd()), duplicate(lease.as_fd())];
    let Sockets { common, store } = lease.group.shared.sockets.as_ref().unwrap();
    let ends = store.as_ref().unwrap().ends().map(duplicate);
    let taken = |descriptors: Vec<_>| accept(descriptors, &options).is_some();
    assert!(taken(vec![duplicate(common.as_fd())]));
    let [inlet, outlet] = ends;
    assert!(taken(vec![duplicate(common.as_fd()), inlet, outlet]));
    assert!(!taken(Vec::new()));
    for wrong in wrong {
        assert!(!taken(vec![wrong]));
    }
    let store = SocketStore::new().unwrap();
    let other = UdpSocket::bind("127.0.3.40:0".parse().unwrap(), &UdpOptions::default());
    store.add(&other.unwrap()).unwrap();
    let error = store.socket(0, &options).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::InvalidData);
}

// A sandbox may refuse the steering program.
#[test]
fn processes_share_one_socket_without_steering() {
    let options = options(47_015);
    let common = UdpSocket::bind(options.address, &options.udp).unwrap();
    let store = None;
    let group = Arc::new(PortGroup {
        options,
        shared: Shared {
            sockets: Some(Sockets { common, store }),
            shm: None,
        },
        strangers: AtomicU64::new(0),
    });
    let leases = [(); 2].map(|()| Lease::in_group(Arc::clone(&group)).unwrap());
    let flows = flows(&leases[0]);
    for (reader, lease) in leases.iter().rev().zip(&leases) {
        let datagram = bth(lease.range().first());
        send(&flows, lease.address(), &datagram);
        assert_eq!(arrivals(reader.socket()), [datagram.to_vec()]);
    }
}

#[test]
fn a_port_has_as_many_sockets_as_its_highest_range_needs() {
    let _open = no_child_starts();
    let options = options(47_014);
    let leases = [(); 3].map(|()| Lease::join(options.clone()).unwrap());
    let store = |lease: &Lease| {
        let sockets = lease.group.shared.sockets.as_ref().unwrap();
        let store = sockets.store.as_ref().unwrap();
        (0..RANGES)
            .take_while(|number| store.socket(*number, &options).unwrap().is_some())
            .count()
    };
    assert_eq!(store(&leases[0]), 4);
    let [one, gone, other] = leases;
    let range = gone.range();
    drop(gone);
    // The kernel numbers the sockets of the others as before.
    let flows = flows(&one);
    for lease in [&one, &other] {
        let datagram = bth(lease.range().first());
        send(&flows, one.address(), &datagram);
        assert_eq!(arrivals(lease.socket()), [datagram.to_vec()]);
    }
    let again = Lease::join(options.clone()).unwrap();
    assert_eq!((again.range(), store(&again)), (range, 4));
}

/// Two processes that share only memory, both awake.
fn with_memory() -> [Lease; 2] {
    let options = GroupOptions::without_sockets([127, 0, 3, 41].into());
    let leases = [(); 2].map(|()| Lease::join(options.clone()).unwrap());
    assert!(leases.iter().all(Lease::open_memory));
    leases
}

fn put(from: &Lease, to: &Lease) -> Put {
    let (memory, meta) = (from.memory().unwrap(), RecordMeta::default());
    memory.put(to.range(), meta, b"head", 0, |_| {})
}

fn bells(lease: &Lease) -> usize {
    let (admission, mut bells) = (Admission::default(), 0);
    let mut take = |_: &Connection, bytes: &[u8]| bells += usize::from(bytes == [VERSION, BELL]);
    let attended = (lease.inbox).attend(&admission, &AtomicU64::new(0), &mut take);
    attended.unwrap();
    bells
}

#[test]
fn each_sleep_rings_one_bell() {
    let [one, other] = with_memory();
    for _ in 0..3 {
        assert!(!other.memory().unwrap().arm_bell(&mut Readers::default()));
        for _ in 0..5 {
            assert_eq!(put(&one, &other), Put::Taken);
            one.ring_bells();
        }
        assert_eq!(bells(&other), 1);
        while other
            .memory()
            .unwrap()
            .receive(&mut Readers::default(), &mut |_| {})
        {}
    }
    assert_eq!(bells(&one), 0);
}

#[test]
fn a_killed_writer_that_waited_keeps_no_reader_awake() {
    let [one, other] = with_memory();
    while put(&one, &other) == Put::Taken {}
    assert!(!one.memory().unwrap().arm_bell(&mut Readers::default()));
    // The process was killed: its inbox is gone, but its memory does not show that.
    let Lease { inbox, memory, .. } = one;
    drop(inbox);
    let _killed = memory;
    let memory = other.memory().unwrap();
    while memory.receive(&mut Readers::default(), &mut |_| {}) {}
    other.ring_bells();
    assert!(!memory.arm_bell(&mut Readers::default()));
}

#[test]
fn unread_records_of_a_killed_process_are_lost() {
    let [one, other] = with_memory();
    assert_eq!(put(&one, &other), Put::Taken);
    let unread = one.exchange(other.range()).unwrap();
    assert_eq!(unread.sent.wrapping_sub(unread.sent_answered), 1);
    // The process was killed: its inbox is gone, but its memory does not show that.
    let Lease {
        inbox,
        memory,
        range,
        ..
    } = other;
    drop(inbox);
    assert!(one.memory().unwrap().reaches(range));
    assert_eq!(one.exchange(range), None);
    drop(memory);
}
