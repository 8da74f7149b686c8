//! Devices at ports of a fabric that another thread holds, with real sockets.

use std::io::{self, PipeWriter};
use std::os::fd::AsFd as _;
use std::thread::{self, JoinHandle};

use polyverbs_fabric::FabricName;
use polyverbs_fabric::client::{self, Connection, Querier};
use polyverbs_fabric::process::Process;
use polyverbs_fabric::protocol::Request;
use polyverbs_fabric::query::{self, Route};
use polyverbs_io::emulated::{EmulatedError, EmulatedKind as _, EmulatedOptions, FabricPlace};
use polyverbs_io::sim::Contract;
use polyverbs_wire::layout::Octets;
use polyverbs_wire::mad::smp::{
    LinearForwardingTable, PhysicalState, PortInfo, PortState as State, SwitchInfo,
};
use test_kit::waiting::{until, until_some};
use verbs_api::capability::{PortAttributes, PortState};
use verbs_api::event::EventType;
use verbs_api::ids::LinkAddress;
use verbs_api::wr;
use verbs_api::{
    Access, Completion, Context, Cq, Device, Memory, Mr, PathOptions, Pd, Qp, QpEndpoint,
    QpOptions, Requirements, WcStatus,
};

const TOPOLOGY: &str = "Switch 4 \"S\"\n[1] \"A\"[1]\n[2] \"B\"[1]\n\nCa 1 \"A\"\n\nCa 1 \"B\"\n";
/// The exponents of a time that no machine exceeds, and of one that is over soon.
const PATIENT: u8 = 24;
const IMPATIENT: u8 = 10;
/// The ways from A to the nodes, and their LIDs.
const NODES: [(&[u8], u16); 3] = [(&[], 1), (&[1], 3), (&[1, 2], 2)];

/// A thread that holds a fabric, which ends when this is dropped.
struct Held {
    name: FabricName,
    stop: Option<PipeWriter>,
    thread: Option<JoinHandle<()>>,
}

impl Held {
    fn new(name: &FabricName) -> Self {
        let topology = TOPOLOGY.parse().unwrap();
        // The former holder's thread may end a moment later than its name.
        let process = until_some(|| Process::new(&topology, name.clone()).ok());
        let (stopped, stop) = io::pipe().unwrap();
        let thread = thread::spawn(move || process.run(Some(stopped.as_fd())).unwrap());
        Self {
            name: name.clone(),
            stop: Some(stop),
            thread: Some(thread),
        }
    }

    /// Configures all ports as a subnet manager does.
    fn manage(&self) {
        let mut querier = Querier::attach(&self.name, "A", 1).unwrap();
        let table = |ports: &[(usize, u8)]| {
            let ports_of_lids = Octets([0xff; 64]);
            let mut table = LinearForwardingTable {
                ports: ports_of_lids,
            };
            ports
                .iter()
                .for_each(|(lid, port)| table.ports.0[*lid] = *port);
            table
        };
        let switch = Route::Directed(vec![1]);
        query::set(&mut querier, &switch, 0, &table(&[(1, 1), (2, 2), (3, 0)])).unwrap();
        let info: SwitchInfo = query::get(&mut querier, &switch, 0).unwrap();
        let info = SwitchInfo {
            linear_fdb_top: 3,
            ..info
        };
        query::set(&mut querier, &switch, 0, &info).unwrap();
        for state in [State::NO_CHANGE, State::ARMED, State::ACTIVE] {
            for (way, lid) in NODES {
                let ports: &[u32] = if way == [1] { &[0, 1, 2] } else { &[1] };
                for port in ports {
                    let lid = if way == [1] && *port > 0 { 0 } else { lid };
                    let is_own = way == [1] && *port == 0;
                    let state = if is_own { State::NO_CHANGE } else { state };
                    configure(&mut querier, way, *port, lid, state);
                }
            }
        }
    }

    fn set_link(&self, node: &str, is_up: bool) {
        let connection = Connection::open(&self.name).unwrap();
        let request = Request::SetLink {
            node: node.to_owned(),
            port: 1,
            is_up,
        };
        client::ask(connection.as_fd(), &request).unwrap();
    }
}

fn configure(querier: &mut Querier, way: &[u8], port: u32, lid: u16, state: State) {
    let way = Route::Directed(way.to_vec());
    let info: PortInfo = query::get(querier, &way, port).unwrap();
    let wanted = PortInfo {
        lid,
        sm_lid: if lid == 0 { 0 } else { 1 },
        port_state: state,
        physical_state: PhysicalState::NO_CHANGE,
        ..info
    };
    query::set(querier, &way, port, &wanted).unwrap();
}

impl Drop for Held {
    fn drop(&mut self) {
        self.stop.take();
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

/// A program with a queue pair at a node.
struct End {
    context: Context,
    _pd: Pd,
    cq: Cq,
    qp: Qp,
    memory: Memory,
    mr: Mr,
}

impl End {
    fn new(name: &FabricName, node: &str) -> Self {
        let options = EmulatedOptions {
            fabric: Some(FabricPlace {
                socket: Some(name.to_string()),
                node: node.to_owned(),
            }),
            ..EmulatedOptions::default()
        };
        let device = Device::of(emulated_ib::PROVIDER.0.make(&options).unwrap());
        let context = device.open(&Requirements::new()).unwrap();
        let pd = context.alloc_pd().wait().unwrap();
        let cq = context.create_cq(16).wait().unwrap();
        let qp = pd.create_qp(QpOptions::rc(&cq)).wait().unwrap();
        let memory = Memory::zeroed(8192).unwrap();
        let mr = pd.register(&memory, Access::LOCAL_WRITE | Access::REMOTE_WRITE);
        Self {
            context,
            cq,
            qp,
            memory,
            mr: mr.wait().unwrap(),
            _pd: pd,
        }
    }

    fn port(&self) -> PortAttributes {
        self.context.query_port(1).unwrap()
    }

    /// Connects to a queue pair whose acknowledges are waited for 4.096 µs × 2^`timeout`, twice.
    fn connect(&self, peer: QpEndpoint, timeout: u8) {
        let path = PathOptions::new()
            .access(Access::REMOTE_WRITE)
            .timeout(timeout)
            .retry_cnt(1);
        self.qp.connect(&peer, path).wait().unwrap();
    }

    fn write(&self, to: &Self, length: u32) -> WcStatus {
        let local = self.mr.sge(0, length).unwrap();
        let write = wr::Write::new(local, to.mr.remote(4096));
        self.qp.post_one(write.signaled(1)).unwrap();
        let mut slots = [Completion::default()];
        let polled = || {
            self.cq
                .poll(&mut slots)
                .unwrap()
                .first()
                .map(|it| it.status)
        };
        until_some(polled)
    }

    fn next_event(&self) -> EventType {
        until_some(|| self.context.poll_event()).event_type()
    }

    fn counter(&self, name: &str) -> u64 {
        let counters = self.context.counters();
        counters.iter().find(|it| it.0 == name).unwrap().1
    }
}

struct Rig {
    held: Option<Held>,
    name: FabricName,
    a: End,
    b: End,
}

impl Rig {
    /// A and B are active and connected.
    fn new(name: &str, timeout: u8) -> Self {
        let name: FabricName = format!("polyverbs-test-ib-{name}.{}", std::process::id())
            .parse()
            .unwrap();
        let held = Held::new(&name);
        let [a, b] = ["A", "B"].map(|node| End::new(&name, node));
        held.manage();
        for end in [&a, &b] {
            // It is the last event of the configuration.
            while end.next_event() != EventType::PortActive {}
        }
        a.connect(b.qp.endpoint().unwrap(), timeout);
        b.connect(a.qp.endpoint().unwrap(), timeout);
        let held = Some(held);
        Self { held, name, a, b }
    }
}

// covers 6.21, 8.73
#[test]
fn queue_pairs_in_a_fabric_reach_each_other_by_lid() {
    let rig = Rig::new("lid", PATIENT);
    let (a, b) = (&rig.a, &rig.b);
    assert_eq!(a.port().address, LinkAddress::Lid(1));
    assert_eq!(b.qp.endpoint().unwrap().address, LinkAddress::Lid(2));
    a.memory.write(0, b"by LID").unwrap();
    let packets = |end: &End| {
        (
            end.counter("port_xmit_packets"),
            end.counter("port_rcv_packets"),
        )
    };
    assert_eq!(a.write(b, 6), WcStatus::Success);
    assert_eq!(b.memory.to_vec(4096, 6).unwrap(), b"by LID");
    // One write, and one acknowledge.
    assert_eq!((packets(a), packets(b)), ((1, 1), (1, 1)));
    // LRH, BTH, RETH, two words of payload, ICRC.
    assert_eq!(a.counter("port_xmit_data"), 12);
}

#[test]
fn a_lid_to_which_no_table_leads_does_not_answer() {
    let rig = Rig::new("nowhere", IMPATIENT);
    let mut querier = Querier::attach(&rig.name, "A", 1).unwrap();
    let switch = Route::Directed(vec![1]);
    let mut table: LinearForwardingTable = query::get(&mut querier, &switch, 0).unwrap();
    table.ports.0[2] = 0xff;
    query::set(&mut querier, &switch, 0, &table).unwrap();
    // A later change that the device shows, so that it knows the earlier one.
    let own = Route::Directed(Vec::new());
    let info: PortInfo = query::get(&mut querier, &own, 1).unwrap();
    let wanted = PortInfo {
        sm_sl: 3,
        port_state: State::NO_CHANGE,
        physical_state: PhysicalState::NO_CHANGE,
        ..info
    };
    query::set(&mut querier, &own, 1, &wanted).unwrap();
    until(|| rig.a.port().subnet.sm_sl == 3);
    assert_eq!(rig.a.write(&rig.b, 8), WcStatus::RetryExcErr);
    assert_eq!(rig.b.counter("port_rcv_packets"), 0);
    assert_eq!(rig.b.port().state, PortState::Active);
}

// covers 5.23, 6.20
#[test]
fn a_port_that_goes_down_ends_connections_as_a_timeout() {
    let rig = Rig::new("down", IMPATIENT);
    rig.held.as_ref().unwrap().set_link("B", false);
    assert_eq!(rig.b.next_event(), EventType::PortErr);
    assert_eq!(rig.b.port().state, PortState::Down);
    assert_eq!(rig.a.port().state, PortState::Active);
    assert_eq!(rig.a.write(&rig.b, 8), WcStatus::RetryExcErr);
    rig.held.as_ref().unwrap().set_link("B", true);
    until(|| rig.b.port().state == PortState::Init);
}

#[test]
fn a_device_outlives_the_process_that_holds_its_fabric() {
    let mut rig = Rig::new("dies", IMPATIENT);
    rig.held.take();
    for end in [&rig.a, &rig.b] {
        assert_eq!(end.next_event(), EventType::PortErr);
        assert_eq!(end.port().state, PortState::Down);
    }
    assert_eq!(rig.a.write(&rig.b, 8), WcStatus::RetryExcErr);
    // Another process holds the fabric: no subnet manager has been there yet.
    let held = Held::new(&rig.name);
    assert_eq!(rig.b.next_event(), EventType::LidChange);
    assert_eq!(rig.b.next_event(), EventType::SmChange);
    until(|| rig.a.port().state == PortState::Init);
    held.manage();
    until(|| rig.b.port().state == PortState::Active);
    assert_eq!(rig.b.port().address, LinkAddress::Lid(2));
}

#[test]
fn a_place_that_is_not_there_is_an_error_that_names_it() {
    let made = |fabric| {
        let options = EmulatedOptions {
            fabric: Some(fabric),
            ..EmulatedOptions::default()
        };
        emulated_ib::PROVIDER
            .0
            .make(&options)
            .err()
            .unwrap()
            .to_string()
    };
    let nowhere = FabricPlace {
        socket: Some("polyverbs-test-ib-nowhere".to_owned()),
        node: "A".to_owned(),
    };
    let said = made(nowhere.clone());
    assert!(
        said.contains("no adapter A in a fabric polyverbs-test-ib-nowhere"),
        "{said}"
    );
    let options = EmulatedOptions {
        fabric: Some(nowhere),
        managed: true,
        ..EmulatedOptions::default()
    };
    let refused = options.check(Contract::Datagram);
    assert!(matches!(refused, Err(EmulatedError::Fabric)));
}
