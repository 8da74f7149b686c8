//! Devices on an IP network: with real sockets, in real time.

// This crate is linked so that devices have the features of base memory management.
use bmme as _;

use std::collections::HashSet;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use emulated_ib::{InfiniBand, OnWire, WireOptions};
use polyverbs_engine::device::DeviceOptions;
use polyverbs_engine::link::Link;
use polyverbs_io::UdpCounts;
use polyverbs_io::sim::{FaultSpec, Rate};
use test_kit::waiting::until;
use verbs_api::provider::DeviceOps;
use verbs_api::qp::AddressVector;
use verbs_api::{
    Access, Completion, Context, Cq, Device, Memory, Mr, Operations, PathOptions, Pd, Qp,
    QpEndpoint, QpOptions, Requirements, WcStatus,
    capability::Mtu,
    completion::WcFlags,
    ids::LinkAddress,
    wr::{self, ReceiveRequest, UdDestination, WorkRequest},
};

const SIZE: usize = 4 << 20;
const QKEY: u32 = 7;

struct End {
    wire: OnWire,
    _context: Context,
    pd: Pd,
    cq: Cq,
    qp: Qp,
    memory: Memory,
    mr: Mr,
}

impl End {
    fn new(address: &str, change: impl FnOnce(&mut WireOptions)) -> Self {
        let address: SocketAddr = address.parse().unwrap();
        let mut options = WireOptions::new(address);
        change(&mut options);
        let driver = |at| InfiniBand {
            name: format!("ib at {address}"),
            address: at,
            windows_2a: false,
            management: None,
            subnet: None,
        };
        let wire = OnWire::new(driver, options, DeviceOptions::default()).unwrap();
        let device = Device::of(wire.device.clone() as std::sync::Arc<dyn DeviceOps>);
        let context = device
            .open(&Requirements::everything_of(&device.attributes()))
            .unwrap();
        let pd = context.alloc_pd().wait().unwrap();
        let cq = context.create_cq(1024).wait().unwrap();
        let options = QpOptions::rc(&cq)
            .operations(Operations::SEND_WITH_INV)
            .max_send_wr(256)
            .max_recv_wr(256);
        let qp = pd.create_qp(options).wait().unwrap();
        let memory = Memory::zeroed(SIZE).unwrap();
        let rights = Access::LOCAL_WRITE
            | Access::REMOTE_WRITE
            | Access::REMOTE_READ
            | Access::REMOTE_ATOMIC;
        let mr = pd.register(&memory, rights).wait().unwrap();
        Self {
            wire,
            _context: context,
            pd,
            cq,
            qp,
            memory,
            mr,
        }
    }

    fn take(&self, count: usize) -> Vec<Completion> {
        let mut taken = Vec::new();
        until(|| {
            let mut slot = [Completion::default()];
            if !self.cq.poll(&mut slot).unwrap().is_empty() {
                taken.extend(slot);
            }
            taken.len() >= count
        });
        taken
    }

    fn run<'a>(&self, request: impl Into<WorkRequest<'a>>) -> Completion {
        self.qp.post_one(request.into()).unwrap();
        self.take(1).remove(0)
    }

    fn succeeds<'a>(&self, request: impl Into<WorkRequest<'a>>) {
        assert_eq!(self.run(request).status, WcStatus::Success);
    }

    fn counts(&self) -> UdpCounts {
        self.wire.link.counts()
    }
}

fn open() -> PathOptions {
    PathOptions::new().access(Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC)
}

fn connect(near: &End, far: &End, options: PathOptions) {
    let (a, b) = (near.qp.endpoint().unwrap(), far.qp.endpoint().unwrap());
    near.qp.connect(&b, options).wait().unwrap();
    far.qp.connect(&a, options).wait().unwrap();
}

fn octets(length: usize, seed: usize) -> Vec<u8> {
    (0..length)
        .map(|at| ((at + seed) * 7 + at / 251) as u8)
        .collect()
}

fn everything(near: &End, far: &End) {
    let half = SIZE / 2;
    for length in [0, 1, 255, 256, 257, 4096, 4097, 65_536] {
        let data = octets(length, length);
        near.memory.write(0, &data).unwrap();
        let local = near.mr.sge(0, length as u32).unwrap();
        let remote = far.mr.remote(half as u64);
        near.succeeds(wr::Write::new(local, remote).signaled(1));
        assert_eq!(far.memory.to_vec(half, length).unwrap(), data);
        let sink = near.mr.sge(half, length as u32).unwrap();
        near.succeeds(wr::Read::new(sink, remote).signaled(2));
        assert_eq!(near.memory.to_vec(half, length).unwrap(), data);
        let room = far.mr.sge(0, half as u32).unwrap();
        far.qp.post_receive(ReceiveRequest::new(3, room)).unwrap();
        near.succeeds(wr::SendWithImmediate::new(local, *b"imm!").signaled(4));
        let received = far.take(1).remove(0);
        assert_eq!((received.wr_id, received.byte_len), (3, length as u32));
        assert!(received.wc_flags.contains(WcFlags::WITH_IMM));
        assert_eq!(received.imm_data, *b"imm!");
        assert_eq!(far.memory.to_vec(0, length).unwrap(), data);
    }
    far.memory.write(0, &7_u64.to_ne_bytes()).unwrap();
    let result = near.mr.sge(0, 8).unwrap();
    near.succeeds(wr::FetchAdd::new(result, far.mr.remote(0), 5).signaled(5));
    assert_eq!(near.memory.to_vec(0, 8).unwrap(), 7_u64.to_ne_bytes());
    near.succeeds(wr::CompareSwap::new(result, far.mr.remote(0), 12, 99).signaled(6));
    assert_eq!(near.memory.to_vec(0, 8).unwrap(), 12_u64.to_ne_bytes());
    assert_eq!(far.memory.to_vec(0, 8).unwrap(), 99_u64.to_ne_bytes());
}

#[test]
fn a_write_that_the_system_refuses_to_send_fails_with_the_cause() {
    let near = End::new("127.0.20.90:14791", |_| {});
    // Datagrams to a broadcast address need an option of the socket.
    let everywhere = IpAddr::from(Ipv4Addr::BROADCAST);
    let elsewhere = QpEndpoint {
        address: LinkAddress::Ip(everywhere),
        gid: everywhere.into(),
        ..near.qp.endpoint().unwrap()
    };
    // This timeout takes hours.
    let connected = near.qp.connect(&elsewhere, open().timeout(31));
    connected.wait().unwrap();
    let (local, remote) = (near.mr.sge(0, 8).unwrap(), near.mr.remote(8));
    let failed = near.run(wr::Write::new(local, remote).signaled(1));
    assert_eq!(failed.status, WcStatus::RetryExcErr);
    let cause = io::Error::from_raw_os_error(failed.vendor_err as i32);
    assert_eq!(cause.kind(), io::ErrorKind::PermissionDenied);
    assert_eq!(near.counts().refused, 8);
}

// A peer that has stored the queue pair numbers of one process must not take those of the range's next holder for them.
#[test]
fn devices_start_at_different_queue_pair_numbers() {
    // The distances from the first number of the range, of which there are 63.
    let numbers: HashSet<u32> = (0..64)
        .map(|_| {
            let end = End::new("127.0.39.1:14791", |_| {});
            end.qp.qp_num().value() - end.wire.link.lease().range().first()
        })
        .collect();
    assert!(numbers.len() > 32, "{numbers:?}");
}

#[test]
fn two_devices_exchange_all_operations_over_sockets() {
    let near = End::new("127.0.10.1:14791", |_| {});
    let far = End::new("127.0.10.2:14791", |_| {});
    connect(&near, &far, open());
    everything(&near, &far);
    everything(&far, &near);
    assert_eq!(near.counts().malformed + near.counts().damaged, 0);
}

#[test]
fn every_path_mtu_carries_messages_of_every_length() {
    for code in 1..=5 {
        let near = End::new("127.0.11.1:14791", |_| {});
        let far = End::new("127.0.11.2:14791", |_| {});
        let mtu = Mtu::from_code(code).unwrap();
        connect(&near, &far, open().path_mtu(mtu));
        everything(&near, &far);
    }
}

#[test]
fn devices_of_ipv6_are_found_as_well() {
    let near = End::new("[::1]:14791", |_| {});
    let far = End::new("[::1]:14791", |_| {});
    connect(&near, &far, open());
    everything(&near, &far);
}

// One frame in a hundred is lost, duplicated or overtaken.
fn faulty(corrupt: Rate, seed: u64) -> impl FnOnce(&mut WireOptions) {
    move |options| {
        options.faults = FaultSpec {
            drop: Rate::percent(1),
            duplicate: Rate::percent(1),
            reorder: Rate::percent(1),
            corrupt,
            seed,
            ..FaultSpec::default()
        };
    }
}

#[test]
fn lost_duplicate_reordered_and_damaged_frames_are_recovered() {
    let faulty = |seed| faulty(Rate::percent(1), seed);
    let near = End::new("127.0.12.1:14791", faulty(1));
    let far = End::new("127.0.12.2:14791", faulty(2));
    connect(&near, &far, open().timeout(14));
    for _ in 0..8 {
        everything(&near, &far);
    }
    assert!(near.counts().damaged + far.counts().damaged > 0);
}

fn one_of_each(near: &End, far: &End, length: usize) {
    let half = SIZE / 2;
    let data = octets(length, length);
    near.memory.write(0, &data).unwrap();
    let local = near.mr.sge(0, length as u32).unwrap();
    near.succeeds(wr::Write::new(local, far.mr.remote(half as u64)).signaled(1));
    assert!(far.memory.to_vec(half, length).unwrap() == data);
    let sink = near.mr.sge(half, length as u32).unwrap();
    near.succeeds(wr::Read::new(sink, far.mr.remote(half as u64)).signaled(2));
    assert!(near.memory.to_vec(half, length).unwrap() == data);
    let room = far.mr.sge(0, half as u32).unwrap();
    far.qp.post_receive(ReceiveRequest::new(3, room)).unwrap();
    near.succeeds(wr::Send::new(local).signaled(4));
    far.take(1);
    assert!(far.memory.to_vec(0, length).unwrap() == data);
}

#[test]
fn long_messages_arrive_whole_at_every_path_mtu() {
    for code in 1..=5 {
        let near = End::new("127.0.15.1:14791", |_| {});
        let far = End::new("127.0.15.2:14791", |_| {});
        let mtu = Mtu::from_code(code).unwrap();
        connect(&near, &far, open().path_mtu(mtu));
        one_of_each(&near, &far, 1 << 20);
        one_of_each(&far, &near, (1 << 20) + 77);
    }
}

#[test]
fn in_memory_long_messages_take_fewer_pieces_than_packets() {
    for code in 1..=5 {
        let near = End::new("127.0.40.1:14791", |_| {});
        let far = End::new("127.0.40.1:14791", |_| {});
        let mtu = Mtu::from_code(code).unwrap();
        connect(&near, &far, open().path_mtu(mtu).timeout(20));
        everything(&near, &far);
        one_of_each(&near, &far, (1 << 20) + 77);
        let (sent, packets) = (
            near.counts().by_memory,
            2 * (1 << 20) / u64::from(mtu.octets()),
        );
        assert!(sent < packets / 4, "{sent} for more than {packets} packets");
        assert_eq!(near.qp.counters().retransmissions, 0);
    }
}

#[test]
fn lost_duplicate_and_reordered_pieces_in_memory_are_recovered() {
    for code in [1, 3, 5] {
        let near = End::new("127.0.40.2:14791", faulty(Rate::percent(1), code.into()));
        let far = End::new("127.0.40.2:14791", faulty(Rate::percent(1), 9));
        let mtu = Mtu::from_code(code).unwrap();
        connect(&near, &far, open().path_mtu(mtu).timeout(14));
        for _ in 0..4 {
            everything(&near, &far);
            one_of_each(&near, &far, 1 << 20);
        }
        let (memory, counters) = (near.counts().by_memory, near.qp.counters());
        assert!(
            memory > 0 && counters.retransmissions > 0,
            "{memory} {counters:?}"
        );
    }
}

#[test]
fn a_receiver_with_a_small_buffer_receives_everything() {
    let little = |options: &mut WireOptions| options.group.udp.receive_buffer = 16 << 10;
    for code in [1, 3, 5] {
        let near = End::new("127.0.16.1:14791", little);
        let far = End::new("127.0.16.2:14791", little);
        let mtu = Mtu::from_code(code).unwrap();
        // The long timeout keeps the test independent of how soon a loaded machine answers.
        connect(&near, &far, open().path_mtu(mtu).timeout(16));
        one_of_each(&near, &far, 1 << 20);
    }
}

#[test]
fn long_messages_survive_faults() {
    let faulty = |seed| faulty(Rate::of_millionths(1000), seed);
    for code in [1, 3, 5] {
        let near = End::new("127.0.17.1:14791", faulty(code.into()));
        let far = End::new("127.0.17.2:14791", faulty(7));
        let mtu = Mtu::from_code(code).unwrap();
        // The long timeout keeps the test independent of how soon a loaded machine answers.
        connect(&near, &far, open().path_mtu(mtu).timeout(16));
        one_of_each(&near, &far, 1 << 20);
    }
}

// After many single messages a receiver must still learn the traffic class of a datagram.
#[test]
fn a_datagram_after_many_messages_has_its_traffic_class() {
    let near = End::new("127.0.18.1:14791", |_| {});
    let far = End::new("127.0.18.2:14791", |_| {});
    connect(&near, &far, open());
    let receive = |qp: &Qp| {
        let room = far.mr.sge(0, 64).unwrap();
        qp.post_receive(ReceiveRequest::new(9, room)).unwrap();
    };
    let data = near.mr.sge(0, 8).unwrap();
    for _ in 0..300 {
        receive(&far.qp);
        near.qp.post_one(wr::Send::new(data)).unwrap();
        far.take(1);
    }
    let [from, to] = [&near, &far].map(|end| {
        let qp = end.pd.create_qp(QpOptions::ud(&end.cq)).wait().unwrap();
        qp.activate(PathOptions::new().qkey(QKEY)).wait().unwrap();
        qp
    });
    let endpoint = to.endpoint().unwrap();
    let path = AddressVector {
        traffic_class: 0x68,
        ..AddressVector::new(endpoint.address, endpoint.gid, 1)
    };
    let destination = UdDestination {
        ah: near.pd.create_ah(path).wait().unwrap(),
        remote_qpn: to.qp_num(),
        remote_qkey: QKEY,
    };
    for _ in 0..100 {
        receive(&to);
        from.post_one(wr::Send::new(data).to(&destination)).unwrap();
        far.take(1);
        assert_eq!(far.memory.to_vec(20, 2).unwrap(), [0x45, 0x68]);
    }
}

#[test]
fn a_peer_that_is_gone_ends_in_a_completion() {
    let near = End::new("127.0.13.1:14791", |_| {});
    let far = End::new("127.0.13.2:14791", |_| {});
    connect(&near, &far, PathOptions::new().timeout(8).retry_cnt(2));
    drop(far);
    let data = near.mr.sge(0, 8).unwrap();
    let done = near.run(wr::Send::new(data).signaled(1));
    assert_eq!(done.status, WcStatus::RetryExcErr);
}

#[test]
fn a_program_that_sleeps_is_woken() {
    let near = End::new("127.0.14.1:14791", |_| {});
    let far = End::new("127.0.14.2:14791", |_| {});
    connect(&near, &far, open());
    far.qp
        .post_receive(ReceiveRequest::new(9, far.mr.sge(0, 64).unwrap()))
        .unwrap();
    let data = near.mr.sge(0, 8).unwrap();
    near.memory.write(0, b"a letter").unwrap();
    near.qp.post_one(wr::Send::new(data)).unwrap();
    // The far end polls only after the thread of its device has placed the message.
    until(|| far.memory.to_vec(0, 8).unwrap() == b"a letter");
    let received = far.take(1).remove(0);
    assert_eq!(received.wr_id, 9);
}

#[test]
fn a_program_that_stops_polling_still_acknowledges() {
    let near = End::new("127.0.19.1:14791", |_| {});
    let far = End::new("127.0.19.2:14791", |_| {});
    // No frame is retransmitted.
    connect(&near, &far, PathOptions::new().timeout(0));
    let data = near.mr.sge(0, 8).unwrap();
    for _ in 0..20 {
        // The poller polls until the thread leaves all input to pollers.
        let input = far.wire.link.input().unwrap();
        until(|| {
            // A claim may take a thousand polls in a row.
            (0..10_000).any(|_| {
                let mut slot = [Completion::default()];
                assert!(far.cq.poll(&mut slot).unwrap().is_empty());
                input.is_polled()
            })
        });
        let room = far.mr.sge(0, 64).unwrap();
        far.qp.post_receive(ReceiveRequest::new(9, room)).unwrap();
        near.qp.post_one(wr::Send::new(data).signaled(1)).unwrap();
        far.take(1);
        assert_eq!(near.take(1)[0].status, WcStatus::Success);
    }
}
