//! Two devices on an IP network of one machine: streams over TCP, in real time.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bmme as _;
use emulated_iwarp::terminate::TerminateCode;
use emulated_iwarp::{Iwarp, OnWire, WireOptions};
use polyverbs_engine::device::DeviceOptions;
use polyverbs_links::{Rate, StreamFaults};
use verbs_api::provider::DeviceOps;
use verbs_api::qp::QpState;
use verbs_api::{
    Access, Completion, ConnectOptions, Context, Cq, Device, Memory, Mr, Qp, QpOptions, Read,
    ReceiveRequest, RemoteAddress, Requirements, Send, WcStatus, Write,
};

const ALL: Access = Access::LOCAL_WRITE
    .union(Access::REMOTE_WRITE)
    .union(Access::REMOTE_READ);

struct End {
    wire: OnWire,
    _context: Context,
    cq: Cq,
    qp: Qp,
    memory: Memory,
    mr: Mr,
}

impl End {
    fn new(address: &str, octets: usize, change: impl FnOnce(&mut WireOptions)) -> Self {
        let address: SocketAddr = address.parse().unwrap();
        let mut options = WireOptions::new(address);
        change(&mut options);
        let driver = |at| Iwarp::new(format!("iw at {address}"), at);
        let wire = OnWire::new(driver, options, DeviceOptions::default()).unwrap();
        let device = Device::of(Arc::clone(&wire.device) as Arc<dyn DeviceOps>);
        let context = device.open(&Requirements::new()).unwrap();
        let pd = context.alloc_pd().wait().unwrap();
        let cq = context.create_cq(256).wait().unwrap();
        let qp = pd.create_qp(QpOptions::rc(&cq)).wait().unwrap();
        let memory = Memory::zeroed(octets).unwrap();
        let mr = pd.register(&memory, ALL).wait().unwrap();
        Self {
            wire,
            _context: context,
            cq,
            qp,
            memory,
            mr,
        }
    }

    fn completion(&self) -> Completion {
        let began = Instant::now();
        loop {
            let mut slot = [Completion::default()];
            if !self.cq.poll(&mut slot).unwrap().is_empty() {
                let [done] = slot;
                return done;
            }
            assert!(began.elapsed() < LONG);
            std::thread::yield_now();
        }
    }

    fn wait_for_state(&self, state: QpState) {
        let began = Instant::now();
        while self.qp.query().unwrap().state != state {
            assert!(began.elapsed() < LONG);
            std::thread::yield_now();
        }
    }

    fn terminates(&self) -> [Option<TerminateCode>; 2] {
        let qp = self.wire.device.qp(self.qp.qp_num().value()).unwrap();
        let said = Iwarp::last_terminate(&qp);
        [said.sent, said.received].map(|said| said.map(|said| said.error))
    }

    fn remote(&self) -> RemoteAddress {
        self.mr.remote(0)
    }
}

fn connect(near: &End, far: &End) {
    let (at_near, at_far) = (near.qp.endpoint().unwrap(), far.qp.endpoint().unwrap());
    let options = ConnectOptions::new();
    near.qp.connect(&at_far, options).wait().unwrap();
    far.qp.connect(&at_near, options).wait().unwrap();
}

fn pattern(octets: usize, seed: u8) -> Vec<u8> {
    (0..octets)
        .map(|at| (at as u8).wrapping_mul(31) ^ (at >> 8) as u8 ^ (at >> 16) as u8 ^ seed)
        .collect()
}

const LONG: Duration = Duration::from_secs(30);
const LARGE: usize = 8 << 20;

#[test]
fn messages_longer_than_what_may_wait_arrive_whole() {
    for (number, (crc, markers, segment)) in [
        (true, false, 65_535),
        (false, false, 65_535),
        (true, true, 1460),
    ]
    .into_iter()
    .enumerate()
    {
        let change = |wire: &mut WireOptions| {
            (wire.crc, wire.markers, wire.max_segment) = (crc, markers, segment);
            wire.link.backlog = 100_000;
        };
        let near = End::new(&format!("127.0.6.{}:6001", 2 * number + 1), LARGE, change);
        let far = End::new(&format!("127.0.6.{}:6001", 2 * number + 2), LARGE, change);
        connect(&near, &far);
        near.memory.write(0, &pattern(LARGE, 1)).unwrap();
        let all = near.mr.sge(0, LARGE as u32).unwrap();
        let room = far.mr.sge(0, LARGE as u32).unwrap();
        far.qp.post_receive(ReceiveRequest::new(7, room)).unwrap();
        near.qp.post_one(Send::new(all).signaled(1)).unwrap();
        assert_eq!(near.completion().status, WcStatus::Success);
        let done = far.completion();
        assert_eq!((done.wr_id, done.byte_len as usize), (7, LARGE));
        assert!(far.memory.to_vec(0, LARGE).unwrap() == pattern(LARGE, 1));

        // A write one way and a read of what it wrote the other: both ends send tagged segments at once.
        near.memory.write(0, &pattern(LARGE, 2)).unwrap();
        let half = near.mr.sge(0, LARGE as u32 / 2).unwrap();
        let sink = near.mr.sge(LARGE / 2, LARGE as u32 / 2).unwrap();
        let write = Write::new(half, far.remote()).signaled(2);
        near.qp.post_one(write).unwrap();
        near.qp
            .post_one(Read::new(sink, far.remote()).signaled(3))
            .unwrap();
        let back = far.mr.sge(LARGE / 2, 1 << 20).unwrap();
        let onto = near.mr.remote(LARGE as u64 / 2);
        far.qp
            .post_one(Read::new(back, near.remote()).signaled(4))
            .unwrap();
        assert_eq!(near.completion().wr_id, 2);
        assert_eq!(near.completion().status, WcStatus::Success);
        assert_eq!(far.completion().status, WcStatus::Success);
        let expected = pattern(LARGE / 2, 2);
        assert!(near.memory.to_vec(LARGE / 2, LARGE / 2).unwrap() == expected);
        assert!(far.memory.to_vec(LARGE / 2, 1 << 20).unwrap() == expected[..1 << 20]);
        // Writes of one side and answers of the same side to the other's reads do not mix.
        let data = far.mr.sge(0, 1 << 20).unwrap();
        let again = near.mr.sge(0, 1 << 20).unwrap();
        near.qp
            .post_one(Read::new(again, far.remote()).signaled(5))
            .unwrap();
        far.qp.post_one(Write::new(data, onto).signaled(6)).unwrap();
        assert_eq!(near.completion().status, WcStatus::Success);
        assert_eq!(far.completion().status, WcStatus::Success);
    }
}

#[test]
fn a_flipped_bit_ends_in_a_terminate_where_there_are_checksums() {
    let far = End::new("127.0.6.22:6001", 1 << 16, |_| {});
    let near = End::new("127.0.6.21:6001", 1 << 16, |wire| {
        wire.link.faults = StreamFaults {
            flip: Rate::percent(5),
            ..StreamFaults::default()
        };
    });
    connect(&near, &far);
    let began = Instant::now();
    while near.qp.query().unwrap().state == QpState::Rts
        || far.qp.query().unwrap().state != QpState::Err
    {
        assert!(began.elapsed() < LONG);
        let data = near.mr.sge(0, 4096).unwrap();
        let _ = near.qp.post_one(Write::new(data, far.remote()).signaled(1));
        let mut slots: [Completion; 8] = std::array::from_fn(|_| Completion::default());
        near.cq.poll(&mut slots).unwrap();
    }
    let [sent, _] = far.terminates();
    let [_, received] = near.terminates();
    let code = sent.expect("a last word");
    // A wrong checksum; or a length that makes another frame of what follows, which has a wrong one then.
    assert_eq!((code.layer, code.etype), (2, 0));
    assert_eq!(received, Some(code));
}

#[test]
fn a_reset_ends_both_ends_in_time() {
    let far = End::new("127.0.6.32:6001", 1 << 16, |_| {});
    let near = End::new("127.0.6.31:6001", 1 << 16, |wire| {
        wire.link.faults.reset_after = Some(20);
    });
    connect(&near, &far);
    let room = far.mr.sge(0, 64).unwrap();
    far.qp.post_receive(ReceiveRequest::new(9, room)).unwrap();
    let began = Instant::now();
    while near.qp.query().unwrap().state != QpState::Err {
        assert!(began.elapsed() < LONG);
        let data = near.mr.sge(0, 64).unwrap();
        let _ = near.qp.post_one(Write::new(data, far.remote()).signaled(1));
        let mut slots: [Completion; 8] = std::array::from_fn(|_| Completion::default());
        near.cq.poll(&mut slots).unwrap();
    }
    far.wait_for_state(QpState::Err);
    let done = far.completion();
    assert_eq!((done.wr_id, done.status), (9, WcStatus::WrFlushErr));
    assert!(began.elapsed() < Duration::from_secs(10));
}
