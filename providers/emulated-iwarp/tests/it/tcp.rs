//! Two devices on an IP network of one machine: streams over TCP, in real time.

use std::io::{BufRead, BufReader, Lines};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::{Arc, Barrier};

use bmme as _;
use emulated_iwarp::terminate::TerminateCode;
use emulated_iwarp::{Iwarp, OnWire, WireOptions};
use polyverbs_engine::device::DeviceOptions;
use polyverbs_io::sim::{FaultSpec, Rate};
use test_kit::waiting::{until, until_some};
use verbs_api::provider::carrier::{Carrier, StreamListener, StreamSink};
use verbs_api::provider::{DeviceOps, Mutex};
use verbs_api::qp::{QpAttributes, QpState};
use verbs_api::{
    Access, Completion, Context, Cq, Device, Memory, Mr, PathOptions, Qp, QpEndpoint, QpOptions,
    RemoteAddress, Requirements, VerbError, WcStatus,
    ids::Qpn,
    wr::{self, ReceiveRequest},
};

const ALL: Access = Access::LOCAL_WRITE
    .union(Access::REMOTE_WRITE)
    .union(Access::REMOTE_READ);

/// Held while a process is being started.
static STARTING: Mutex<()> = Mutex::new(());

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
        Self::with(address, octets, change, DeviceOptions::default())
    }

    fn with(
        address: &str,
        octets: usize,
        change: impl FnOnce(&mut WireOptions),
        options: DeviceOptions,
    ) -> Self {
        let device_options = options;
        let address: SocketAddr = address.parse().unwrap();
        let mut options = WireOptions::new(address);
        change(&mut options);
        let driver = |at| Iwarp::new(format!("iw at {address}"), at);
        let wire = OnWire::new(driver, options, device_options).unwrap();
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
        until_some(|| {
            let mut slot = [Completion::default()];
            let is_done = !self.cq.poll(&mut slot).unwrap().is_empty();
            let [done] = slot;
            is_done.then_some(done)
        })
    }

    fn wait_for_state(&self, state: QpState) {
        until(|| self.qp.query().unwrap().state == state);
    }

    fn terminated(&self) -> Option<TerminateCode> {
        let qp = self.wire.device.qp(self.qp.qp_num().value()).unwrap();
        Iwarp::terminated(&qp).map(|said| said.code())
    }

    fn remote(&self) -> RemoteAddress {
        self.mr.remote(0)
    }
}

fn connect(near: &End, far: &End) {
    try_to_connect(near, far).unwrap();
}

fn try_to_connect(near: &End, far: &End) -> Result<(), VerbError> {
    let (at_near, at_far) = (near.qp.endpoint().unwrap(), far.qp.endpoint().unwrap());
    let options = PathOptions::new().access(Access::REMOTE_WRITE | Access::REMOTE_READ);
    near.qp.connect(&at_far, options).wait()?;
    far.qp.connect(&at_near, options).wait()
}

fn pattern(octets: usize, seed: u8) -> Vec<u8> {
    (0..octets)
        .map(|at| (at as u8).wrapping_mul(31) ^ (at >> 8) as u8 ^ (at >> 16) as u8 ^ seed)
        .collect()
}

const LARGE: usize = 8 << 20;

#[test]
fn messages_longer_than_the_backlog_arrive_whole() {
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
        near.qp.post_one(wr::Send::new(all).signaled(1)).unwrap();
        assert_eq!(near.completion().status, WcStatus::Success);
        let done = far.completion();
        assert_eq!((done.wr_id, done.byte_len as usize), (7, LARGE));
        assert!(far.memory.to_vec(0, LARGE).unwrap() == pattern(LARGE, 1));

        // A write in one direction and a read of its bytes in the other: both ends send tagged segments at the same time.
        near.memory.write(0, &pattern(LARGE, 2)).unwrap();
        let half = near.mr.sge(0, LARGE as u32 / 2).unwrap();
        let sink = near.mr.sge(LARGE / 2, LARGE as u32 / 2).unwrap();
        let write = wr::Write::new(half, far.remote()).signaled(2);
        near.qp.post_one(write).unwrap();
        near.qp
            .post_one(wr::Read::new(sink, far.remote()).signaled(3))
            .unwrap();
        let back = far.mr.sge(LARGE / 2, 1 << 20).unwrap();
        let onto = near.mr.remote(LARGE as u64 / 2);
        far.qp
            .post_one(wr::Read::new(back, near.remote()).signaled(4))
            .unwrap();
        assert_eq!(near.completion().wr_id, 2);
        assert_eq!(near.completion().status, WcStatus::Success);
        assert_eq!(far.completion().status, WcStatus::Success);
        let expected = pattern(LARGE / 2, 2);
        assert!(near.memory.to_vec(LARGE / 2, LARGE / 2).unwrap() == expected);
        assert!(far.memory.to_vec(LARGE / 2, 1 << 20).unwrap() == expected[..1 << 20]);
        // Writes of one side and its answers to the other side's reads do not mix.
        let data = far.mr.sge(0, 1 << 20).unwrap();
        let again = near.mr.sge(0, 1 << 20).unwrap();
        near.qp
            .post_one(wr::Read::new(again, far.remote()).signaled(5))
            .unwrap();
        far.qp
            .post_one(wr::Write::new(data, onto).signaled(6))
            .unwrap();
        assert_eq!(near.completion().status, WcStatus::Success);
        assert_eq!(far.completion().status, WcStatus::Success);
    }
}

/// Posts a write, even if the connection has ended, and polls for completions.
fn write_and_poll(near: &End, far: &End, length: u32) {
    let data = near.mr.sge(0, length).unwrap();
    let _ = near
        .qp
        .post_one(wr::Write::new(data, far.remote()).signaled(1));
    let mut slots: [Completion; 8] = std::array::from_fn(|_| Completion::default());
    near.cq.poll(&mut slots).unwrap();
}

#[test]
fn with_checksums_a_flipped_bit_ends_in_a_terminate() {
    let far = End::new("127.0.6.22:6001", 1 << 16, |_| {});
    let near = End::new("127.0.6.21:6001", 1 << 16, |wire| {
        wire.link.faults = FaultSpec {
            flip: Rate::percent(5),
            ..FaultSpec::default()
        };
    });
    connect(&near, &far);
    until(|| {
        write_and_poll(&near, &far, 4096);
        near.qp.query().unwrap().state != QpState::Rts
            && far.qp.query().unwrap().state == QpState::Err
    });
    let code = near.terminated().expect("the peer sent a Terminate");
    // Either the checksum is wrong, or the flipped bit is in a length, which makes another frame with a wrong checksum.
    assert_eq!((code.layer, code.etype), (2, 0));
}

#[test]
fn a_reset_moves_both_ends_to_err() {
    let far = End::new("127.0.6.32:6001", 1 << 16, |_| {});
    let near = End::new("127.0.6.31:6001", 1 << 16, |wire| {
        wire.link.faults.reset_after = Some(20);
    });
    connect(&near, &far);
    let room = far.mr.sge(0, 64).unwrap();
    far.qp.post_receive(ReceiveRequest::new(9, room)).unwrap();
    until(|| {
        write_and_poll(&near, &far, 64);
        near.qp.query().unwrap().state == QpState::Err
    });
    far.wait_for_state(QpState::Err);
    let done = far.completion();
    assert_eq!((done.wr_id, done.status), (9, WcStatus::WrFlushErr));
}

// ---- processes at one address

const ADDRESS: &str = "POLYVERBS_TEST_ADDRESS";
const PEER: &str = "POLYVERBS_TEST_PEER";
const MEMORY: &str = "POLYVERBS_TEST_MEMORY";

/// Runs as a separate process: returns each message until the process is killed.
#[test]
#[ignore = "a process of the other tests"]
fn echo() {
    let Ok(address) = std::env::var(ADDRESS) else {
        return;
    };
    let peer: u32 = std::env::var(PEER).unwrap().parse().unwrap();
    let defaults = DeviceOptions::default();
    let (first, _) = defaults.qp_numbers;
    let options = DeviceOptions {
        qp_numbers: (first, first + 1000),
        ..defaults
    };
    let change = |wire: &mut WireOptions| wire.link.memory = std::env::var_os(MEMORY).is_some();
    let end = End::with(&address, LARGE, change, options);
    println!("\nqp {}", end.qp.qp_num().value());
    let room = end.mr.sge(0, LARGE as u32).unwrap();
    end.connect_to(Qpn::new(peer));
    end.qp.post_receive(ReceiveRequest::new(1, room)).unwrap();
    println!("listens");
    loop {
        let done = end.completion();
        if done.wr_id != 1 || done.status != WcStatus::Success {
            continue;
        }
        // The receive is posted before the echo, because the next message comes when the echo has arrived.
        end.qp.post_receive(ReceiveRequest::new(1, room)).unwrap();
        let data = end.mr.sge(0, done.byte_len).unwrap();
        end.qp.post_one(wr::Send::new(data)).unwrap();
    }
}

/// This process, and another one that echoes.
struct Echoed {
    end: End,
    other: Child,
    _said: Lines<BufReader<ChildStdout>>,
}

impl Drop for Echoed {
    fn drop(&mut self) {
        let _ = self.other.kill();
        let _ = self.other.wait();
    }
}

impl End {
    // Connects to a queue pair of another process at this address.
    fn connect_to(&self, qp_num: Qpn) {
        let peer = QpEndpoint {
            qp_num,
            ..self.qp.endpoint().unwrap()
        };
        self.qp.connect(&peer, PathOptions::new()).wait().unwrap();
    }
}

impl Echoed {
    fn at(address: &str, [here, there]: [bool; 2]) -> Self {
        // The queue pair with the lower number begins the stream, and the first process listens.
        let defaults = DeviceOptions::default();
        let (first, end) = defaults.qp_numbers;
        let options = DeviceOptions {
            qp_numbers: (first + 1000, end),
            ..defaults
        };
        let own = End::with(address, LARGE, |wire| wire.link.memory = here, options);
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args(["--exact", "tcp::echo", "--ignored", "--nocapture"])
            .env(ADDRESS, address)
            .env(PEER, own.qp.qp_num().value().to_string())
            .stdout(Stdio::piped());
        if there {
            command.env(MEMORY, "yes");
        }
        // The new process has all open descriptors for a moment, and keeps those open that are closed in the meantime.
        let starting = STARTING.lock();
        let mut other = command.spawn().unwrap();
        drop(starting);
        let mut said = BufReader::new(other.stdout.take().unwrap()).lines();
        let mut after = |word: &str| {
            let line = said.find_map(|line| Some(line.ok()?.strip_prefix(word)?.to_owned()));
            line.unwrap()
        };
        let number = after("qp ").parse().unwrap();
        own.connect_to(Qpn::new(number));
        after("listens");
        Self {
            end: own,
            other,
            _said: said,
        }
    }

    fn echo(&self, length: usize, seed: u8) {
        let end = &self.end;
        end.memory.write(0, &pattern(length, seed)).unwrap();
        let room = end.mr.sge(LARGE / 2, length as u32).unwrap();
        end.qp.post_receive(ReceiveRequest::new(1, room)).unwrap();
        let data = end.mr.sge(0, length as u32).unwrap();
        end.qp.post_one(wr::Send::new(data).signaled(2)).unwrap();
        let mut done = [end.completion(), end.completion()];
        done.sort_by_key(|done| done.wr_id);
        let told = done.map(|done| (done.wr_id, done.status));
        assert_eq!(told, [(1, WcStatus::Success), (2, WcStatus::Success)]);
        let found = end.memory.to_vec(LARGE / 2, length);
        assert!(found.unwrap() == pattern(length, seed));
    }

    fn by_memory(&self) -> u64 {
        self.end.wire.link.counts().by_memory
    }
}

#[test]
fn processes_share_memory_only_if_both_want_it() {
    for (number, wanted) in [[true; 2], [true, false], [false, true]]
        .into_iter()
        .enumerate()
    {
        let echoed = Echoed::at(&format!("127.0.6.{}:6001", 41 + number), wanted);
        for turn in 0..300 {
            let length = [64, 1, 5000, 100_000][turn % 4];
            echoed.echo(length, turn as u8);
        }
        echoed.echo(LARGE / 2, 1);
        assert_eq!(echoed.by_memory(), u64::from(wanted == [true; 2]));
    }
}

#[test]
fn a_killed_peer_is_noticed_over_memory_and_over_tcp() {
    for (number, memory) in [true, false].into_iter().enumerate() {
        let mut echoed = Echoed::at(&format!("127.0.6.{}:6001", 51 + number), [memory; 2]);
        (0..100).for_each(|turn| echoed.echo(64, turn));
        assert_eq!(echoed.by_memory(), u64::from(memory));
        let end = &echoed.end;
        let room = end.mr.sge(0, 64).unwrap();
        end.qp.post_receive(ReceiveRequest::new(9, room)).unwrap();
        echoed.other.kill().unwrap();
        let done = echoed.end.completion();
        assert_eq!((done.wr_id, done.status), (9, WcStatus::WrFlushErr));
        echoed.end.wait_for_state(QpState::Err);
    }
}

#[test]
fn sending_to_a_killed_peer_fails() {
    for (number, memory) in [true, false].into_iter().enumerate() {
        let mut echoed = Echoed::at(&format!("127.0.6.{}:6001", 61 + number), [memory; 2]);
        (0..100).for_each(|turn| echoed.echo(64, turn));
        let end = &echoed.end;
        echoed.other.kill().unwrap();
        let failed = until_some(|| {
            let data = end.mr.sge(0, 1 << 20).unwrap();
            let _ = end.qp.post_one(wr::Send::new(data).signaled(3));
            let mut slots: [Completion; 8] = std::array::from_fn(|_| Completion::default());
            let done = end.cq.poll(&mut slots).unwrap();
            done.iter()
                .map(|done| done.status)
                .find(|status| *status != WcStatus::Success)
        });
        assert_eq!(failed, WcStatus::WrFlushErr);
        echoed.end.wait_for_state(QpState::Err);
    }
}

/// A listener that is still handling a connection.
struct Slow(Arc<Barrier>);

impl StreamListener for Slow {
    fn accepted(&self, _stream: Qpn, _from: SocketAddr) -> Option<Arc<dyn StreamSink>> {
        self.0.wait();
        self.0.wait();
        None
    }
}

#[test]
fn a_port_is_free_when_unlisten_has_returned() {
    let _open = STARTING.lock();
    let end = End::new("127.0.6.71:6001", 64, |_| {});
    let Some(Carrier::Streams(port)) = end.wire.device.carrier() else {
        panic!("the device carries no streams")
    };
    let turns = Arc::new(Barrier::new(2));
    let at = port
        .listen(
            "127.0.6.71:0".parse().unwrap(),
            Arc::new(Slow(Arc::clone(&turns))),
        )
        .unwrap();
    let _asks = TcpStream::connect(at).unwrap();
    turns.wait();
    port.unlisten(at);
    let again = TcpListener::bind(at);
    turns.wait();
    again.expect("the port is free");
}

#[test]
fn a_device_takes_over_the_port_of_an_ended_one() {
    let [near, first, second] = ["127.0.6.80:6001", "127.0.6.81:6001", "127.0.6.81:6001"]
        .map(|address| End::new(address, 64, |_| {}));
    drop(first);
    let remote = second.remote();
    near.memory.write(0, &pattern(64, 1)).unwrap();
    // A thread of the first device may still use the port, and refuses queue pairs that the device does not have.
    let is_written = || {
        try_to_connect(&near, &second).ok()?;
        let all = near.mr.sge(0, 64).unwrap();
        let write = wr::Write::new(all, remote).signaled(1);
        near.qp.post_one(write).ok()?;
        (near.completion().status == WcStatus::Success).then_some(())
    };
    until(|| {
        let is_written = is_written().is_some();
        if !is_written {
            for end in [&near, &second] {
                let reset = QpAttributes::new().qp_state(QpState::Reset);
                end.qp.modify(reset).wait().unwrap();
            }
        }
        is_written
    });
    until(|| second.memory.to_vec(0, 64).unwrap() == pattern(64, 1));
}
