//! Hostile TCP connections to the port by which iWARP's queue pairs find each other; a fuzzer makes up their bytes.
//!
//! Three hosts have a device each. The program of one of them, the victim, connects a queue pair to an honest host, whose address is
//! lower or higher, so that it begins their stream or accepts it, and another queue pair to a hostile host. Hostile hosts connect to the
//! victim, accept its streams, and send any bytes, which may name any queue pairs. TCP is simulated, and the time is virtual.
//!
//! Nothing panics. The victim keeps a limited number of streams and requests, and of each stream at most the bytes of an MPA request.
//! It sends at most one MPA message on a stream, and a reply only after a whole request. No queue pair gets a stream of another address
//! than that to which its program connects it. The two honest queue pairs find each other.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use emulated_iwarp::header::Header;
use emulated_iwarp::wire::{OnSockets, Sockets, StreamSocket};
use emulated_iwarp::{Iwarp, MpaCodec, WireOptions};
use polyverbs_engine::device::DeviceOptions;
use polyverbs_engine::link::{Deliver, Frame, Link, SharedLink};
use polyverbs_engine::time::Time;
use polyverbs_io::sim::Simulation;
use polyverbs_io::{Announcement, Attachment, Received, StreamError};
use polyverbs_wire::iwarp::start::{self, Enhanced, Kind, MAX_START_LEN, Start};
use verbs_api::provider::{DeviceOps, Mutex};
use verbs_api::qp::connect_pair;
use verbs_api::{PathOptions, Qp, QpEndpoint, QpOptions, ids::LinkAddress};

use crate::program::{Program, RIGHTS};
use crate::script::Script;

/// Sends the bytes of a fuzzer to a device whose queue pairs are found by their numbers.
pub fn run(octets: &[u8]) {
    let mut script = Script::new(octets);
    let rig = Rig::new();
    let how = script.octet();
    let honest = match how & 1 {
        0 => LOW,
        _ => HIGH,
    };
    let (near, far) = (rig.qp(VICTIM), rig.qp(honest));
    let connect = || {
        let connected = connect_pair(&near, &far, RIGHTS);
        connected.wait().expect("a connection");
        rig.settle();
    };
    if how & 2 == 0 {
        connect();
    }
    let other = rig.qp(VICTIM);
    if how & 4 == 0 {
        let to = address(HOSTILE[usize::from(how >> 6)]);
        rig.connect(&other, &far, to);
    }
    let numbers = [&near, &other, &far].map(|qp| qp.qp_num().value());
    let mut streams = Vec::new();
    while !script.is_over() {
        rig.step(&mut streams, numbers, &mut script);
        rig.check();
    }
    if how & 2 != 0 {
        connect();
    }
    let has_met = || rig.wire.lock().has_connected([VICTIM, honest]);
    for _ in 0..ATTEMPTS {
        if !has_met() {
            rig.pass(ATTEMPT);
        }
    }
    assert!(has_met(), "the honest queue pairs do not find each other");
    rig.check();
}

struct Rig {
    simulation: Simulation,
    wire: Arc<Wire>,
    hosts: BTreeMap<IpAddr, Host>,
}

/// An iWARP device and its program.
struct Host {
    device: OnSockets<Tcp>,
    program: Program,
}

impl Rig {
    fn new() -> Self {
        let simulation = Simulation::new();
        let wire = Arc::new(Wire::default());
        let link = Arc::clone(&wire) as SharedLink<Header>;
        let network = simulation.network::<Iwarp>(Some(link));
        let host = |number| {
            let address = address(number);
            let mut options = WireOptions::new(SocketAddr::new(address, PORT));
            options.max_early = MAX_EARLY;
            let tcp = Tcp(Arc::clone(&wire), address);
            let driver = |at| Iwarp::new(format!("iw at {address}"), at);
            let device = OnSockets::new(tcp, &network, driver, options, DeviceOptions::default());
            let device = device.expect("a device");
            let ops = Arc::clone(&device.device) as Arc<dyn DeviceOps>;
            let program = Program::new(ops);
            (address, Host { device, program })
        };
        let hosts = [LOW, VICTIM, HIGH].map(host).into();
        for number in HOSTILE {
            wire.lock()
                .backlogs
                .insert(address(number), VecDeque::new());
        }
        Self {
            simulation,
            wire,
            hosts,
        }
    }

    fn qp(&self, number: u8) -> Qp {
        let program = &self.hosts[&address(number)].program;
        program.qp(QpOptions::rc(&program.cq))
    }

    // Has the program connect a queue pair to a host whose queue pair has the number of `far`.
    fn connect(&self, qp: &Qp, far: &Qp, to: IpAddr) {
        let peer = QpEndpoint {
            address: LinkAddress::Ip(to),
            gid: to.into(),
            ..far.endpoint().expect("a queue pair")
        };
        let connected = qp.connect(&peer, PathOptions::new().access(RIGHTS));
        connected.wait().expect("a queue pair that is ready");
        self.settle();
    }

    fn step(&self, streams: &mut Vec<Place>, numbers: [u32; 3], script: &mut Script<'_>) {
        for number in HOSTILE {
            let accepted = std::iter::from_fn(|| self.wire.lock().accept(address(number)));
            streams.extend(accepted);
        }
        let how = script.octet();
        let which = usize::from(script.octet());
        let stream = streams.get(which % streams.len().max(1)).copied();
        match (how, stream) {
            (0..64, _) => {
                let from = address(HOSTILE[which % HOSTILE.len()]);
                let begun = self.wire.lock().connect(from, address(VICTIM));
                streams.extend(begun);
            }
            (64..96, Some(stream)) => self.wire.lock().close(stream),
            (96..160, Some(stream)) => {
                let bytes = message(numbers, script);
                let at = usize::from(script.octet()).min(bytes.len());
                let (part, rest) = bytes.split_at(at);
                self.wire.lock().send(stream, part);
                self.settle();
                self.check();
                self.wire.lock().send(stream, rest);
            }
            (160..176, _) => self.pass(ATTEMPT * (1 << (how & 7))),
            (_, Some(stream)) => {
                let bytes = script.octets(usize::from(how & 31));
                self.wire.lock().send(stream, bytes);
            }
            (_, None) => {}
        }
        self.settle();
    }

    fn pass(&self, time: Duration) {
        let end = self.simulation.now().after(time);
        while self.simulation.now() < end {
            let passed = self.simulation.run_for(ATTEMPT);
            passed.expect("jobs that end");
            self.settle();
        }
    }

    // Has the devices attend to their sockets until nothing waits there.
    fn settle(&self) {
        loop {
            let ready = self.wire.lock().ready();
            let Some((at, token)) = ready else { return };
            self.hosts[&at].device.attend(token);
        }
    }

    fn check(&self) {
        let device = &self.hosts[&address(VICTIM)].device;
        let wire = self.wire.lock();
        let of_victim = wire.ends_of(address(VICTIM));
        let early: Vec<_> = of_victim.filter(|(_, end)| end.is(Use::Early)).collect();
        assert_eq!(early.len(), device.early());
        let accepted = early.iter().filter(|(began, _)| !began).count();
        assert!(accepted <= MAX_EARLY, "{accepted} streams");
        assert!(device.callers() <= accepted);
        for (_, end) in early {
            assert!(end.received.len() <= MAX_START_LEN);
        }
        for (began, end) in wire.ends_of(address(VICTIM)) {
            end.check_sent(began);
        }
    }
}

// An MPA message that names queue pairs: one of the victim's and that of the honest host, or others.
fn message([near, other, theirs]: [u32; 3], script: &mut Script<'_>) -> Vec<u8> {
    let how = script.octet();
    let own = match how & 32 {
        0 => near,
        _ => other,
    };
    let number = |named: u32, bit: u8, script: &mut Script<'_>| match how & bit {
        0 => named,
        _ => named.wrapping_add(u32::from(script.octet())),
    };
    let names = [number(own, 1, script), number(theirs, 2, script)];
    let names = [
        &b"polyqpqp"[..],
        &names[0].to_be_bytes(),
        &names[1].to_be_bytes(),
    ]
    .concat();
    let enhanced = Enhanced {
        peer_to_peer: how & 4 == 0,
        rtr_write: how & 8 == 0,
        ..Enhanced::default()
    };
    let kind = match how & 16 {
        0 => Kind::Request,
        _ => Kind::Reply,
    };
    let private_data = &names[..names.len() - usize::from(how >> 6)];
    let start = Start::new(kind, Some(enhanced), private_data);
    let mut bytes = [0; MAX_START_LEN];
    let length = start.and_then(|start| start.encode(&mut bytes));
    bytes[..length.expect("a short message")].to_vec()
}

/// TCP between the hosts. The frames of queue pairs are dropped.
#[derive(Default)]
struct Wire(Mutex<State>);

#[derive(Default)]
struct State {
    /// Each connection: the end that began it, and the end that accepts it.
    connections: Vec<[End; 2]>,
    /// The connections that the listener at each address has not accepted.
    backlogs: BTreeMap<IpAddr, VecDeque<usize>>,
    /// What the device at each address watches, by token.
    watched: BTreeMap<(IpAddr, u64), Watched>,
}

/// One end of a connection.
struct End {
    address: IpAddr,
    used: Use,
    /// Bytes that have arrived and were not received.
    arrived: VecDeque<u8>,
    received: Vec<u8>,
    sent: Vec<u8>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Use {
    /// The end is in a listener's backlog.
    Unaccepted,
    /// The end is open, and no queue pair uses it.
    Early,
    Attached,
    Closed,
}

/// An end by the numbers of its connection and of the end in it.
type Place = (usize, usize);

#[derive(Clone, Copy, PartialEq, Eq)]
enum Watched {
    Connecting(Place),
    Listener,
    Socket(Place),
}

impl Wire {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock()
    }
}

impl State {
    /// Connects to a listener; `None` if no host listens at the address.
    fn connect(&mut self, from: IpAddr, to: IpAddr) -> Option<Place> {
        let number = self.connections.len();
        self.backlogs.get_mut(&to)?.push_back(number);
        let ends = [(from, Use::Early), (to, Use::Unaccepted)];
        self.connections
            .push(ends.map(|(address, used)| End::new(address, used)));
        Some((number, 0))
    }

    fn accept(&mut self, at: IpAddr) -> Option<Place> {
        let number = self.backlogs.get_mut(&at)?.pop_front()?;
        self.connections[number][1].used = Use::Early;
        Some((number, 1))
    }

    fn end(&mut self, (connection, end): Place) -> &mut End {
        &mut self.connections[connection][end]
    }

    fn peer(&self, (connection, end): Place) -> &End {
        &self.connections[connection][1 - end]
    }

    fn send(&mut self, (connection, end): Place, bytes: &[u8]) {
        let ends = &mut self.connections[connection];
        if !ends[end].is(Use::Closed) {
            ends[end].sent.extend(bytes);
            ends[1 - end].arrived.extend(bytes);
        }
    }

    fn close(&mut self, place: Place) {
        self.end(place).used = Use::Closed;
    }

    /// The first watched socket at which an event waits.
    fn ready(&self) -> Option<(IpAddr, u64)> {
        let is_ready = |(at, on): &(&(IpAddr, u64), &Watched)| match **on {
            Watched::Connecting(_) => true,
            Watched::Listener => !self.backlogs[&at.0].is_empty(),
            Watched::Socket((connection, end)) => {
                let has_arrived = !self.connections[connection][end].arrived.is_empty();
                has_arrived || self.peer((connection, end)).is(Use::Closed)
            }
        };
        self.watched.iter().find(is_ready).map(|(at, _)| *at)
    }

    /// The ends of an address, each with whether it has begun its connection.
    fn ends_of(&self, address: IpAddr) -> impl Iterator<Item = (bool, &End)> {
        let connections = self.connections.iter();
        let all = connections.flat_map(|[begun, accepted]| [(true, begun), (false, accepted)]);
        all.filter(move |(_, end)| end.address == address)
    }

    /// Returns whether queue pairs of two hosts have the two ends of a connection.
    fn has_connected(&self, hosts: [u8; 2]) -> bool {
        let is_used = |ends: &[End; 2], by: IpAddr| {
            let mut ends = ends.iter();
            ends.any(|end| end.address == by && end.is(Use::Attached))
        };
        let by_both = |ends| hosts.into_iter().all(|host| is_used(ends, address(host)));
        self.connections.iter().any(by_both)
    }
}

impl End {
    fn new(address: IpAddr, used: Use) -> Self {
        Self {
            address,
            used,
            arrived: VecDeque::new(),
            received: Vec::new(),
            sent: Vec::new(),
        }
    }

    fn is(&self, used: Use) -> bool {
        self.used == used
    }

    // Checks that this end has sent what MPA prescribes: one request if it `began` the connection, otherwise one reply to a request.
    fn check_sent(&self, began: bool) {
        if self.sent.is_empty() {
            return;
        }
        let whole = |bytes| start::decode(bytes).ok().flatten();
        let (sent, length) = whole(&self.sent).expect("an MPA message");
        assert_eq!(length, self.sent.len(), "more than one message");
        if began {
            return assert_eq!(sent.kind, Kind::Request);
        }
        assert_eq!(sent.kind, Kind::Reply);
        let asked = whole(&self.received).map(|(request, _)| request.kind);
        assert_eq!(asked, Some(Kind::Request), "a reply without a request");
    }
}

// Queue pairs that have found each other need nothing more from their link.
impl Link<Header> for Wire {
    fn max_frame(&self) -> Option<usize> {
        None
    }

    fn send(&self, _: Frame<'_, Header>, _: Time) {}

    fn progress(&self, _: Time, _: &dyn Deliver<Header>) -> bool {
        false
    }

    fn next_due(&self) -> Option<Time> {
        None
    }
}

/// TCP as the host at an address uses it.
struct Tcp(Arc<Wire>, IpAddr);

impl Tcp {
    fn socket(&self, place: Place) -> Socket {
        Socket(Arc::clone(&self.0), place)
    }

    fn watch(&self, token: u64, on: Watched) {
        self.0.lock().watched.insert((self.1, token), on);
    }

    fn unwatch(&self, is_it: impl Fn(Watched) -> bool) {
        let watched = &mut self.0.lock().watched;
        watched.retain(|(at, _), on| *at != self.1 || !is_it(*on));
    }
}

impl Sockets for Tcp {
    type Socket = Socket;
    type Listener = ();

    fn listen(&self, at: SocketAddr) -> io::Result<((), SocketAddr)> {
        self.0.lock().backlogs.insert(at.ip(), VecDeque::new());
        Ok(((), at))
    }

    fn accept(&self, (): &()) -> io::Result<Option<(Socket, SocketAddr)>> {
        let mut wire = self.0.lock();
        let accepted = wire.accept(self.1);
        Ok(accepted.map(|place| {
            let from = wire.peer(place).address;
            (self.socket(place), SocketAddr::new(from, 50_000))
        }))
    }

    fn connect(&self, local: SocketAddr, to: SocketAddr) -> io::Result<Socket> {
        let place = self.0.lock().connect(local.ip(), to.ip());
        let place = place.ok_or(io::ErrorKind::ConnectionRefused)?;
        Ok(self.socket(place))
    }

    fn watch(&self, socket: &Socket, token: u64, is_connecting: bool) -> io::Result<()> {
        let on = match is_connecting {
            true => Watched::Connecting(socket.1),
            false => Watched::Socket(socket.1),
        };
        self.watch(token, on);
        Ok(())
    }

    fn unwatch(&self, socket: &Socket) {
        let Socket(_, place) = *socket;
        self.unwatch(|on| [Watched::Connecting(place), Watched::Socket(place)].contains(&on));
    }

    fn watch_listener(&self, (): &(), token: u64) -> io::Result<()> {
        self.watch(token, Watched::Listener);
        Ok(())
    }

    fn unwatch_listener(&self, (): &()) -> io::Result<()> {
        self.unwatch(|on| on == Watched::Listener);
        Ok(())
    }

    fn announce(&self, _: &Socket) -> Option<Announcement> {
        None
    }

    fn admits(&self, _: &Socket) -> bool {
        true
    }

    fn attach(&self, attachment: Attachment<MpaCodec, Socket>) -> io::Result<()> {
        let Socket(_, place) = *attachment.socket;
        let mut wire = self.0.lock();
        let from = LinkAddress::Ip(wire.peer(place).address);
        assert_eq!(from, attachment.peer, "the address of the stream's peer");
        wire.send(place, &attachment.last);
        wire.end(place).used = Use::Attached;
        Ok(())
    }
}

/// One end of a connection, which closes with this value unless it is attached.
struct Socket(Arc<Wire>, Place);

impl StreamSocket for Socket {
    fn connected(&self) -> Result<bool, StreamError> {
        Ok(true)
    }

    fn receive(&self, into: &mut [u8]) -> Result<Received, StreamError> {
        let mut wire = self.0.lock();
        let is_over = wire.peer(self.1).is(Use::Closed);
        let end = wire.end(self.1);
        let length = end.arrived.len().min(into.len());
        let bytes: Vec<u8> = end.arrived.drain(..length).collect();
        into[..length].copy_from_slice(&bytes);
        end.received.extend(bytes);
        Ok(match length {
            0 if is_over => Received::End,
            0 => Received::Nothing,
            _ => Received::Bytes(length),
        })
    }

    fn send_first(&self, bytes: &[u8]) {
        self.0.lock().send(self.1, bytes);
    }

    fn finish(&self) {
        self.abort();
    }

    fn abort(&self) {
        self.0.lock().close(self.1);
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        let mut wire = self.0.lock();
        if wire.end(self.1).is(Use::Early) {
            wire.close(self.1);
        }
    }
}

fn address(number: u8) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(10, 0, 0, number))
}

const LOW: u8 = 2;
const VICTIM: u8 = 4;
const HIGH: u8 = 6;
/// Hostile hosts, whose queue pairs begin streams to the victim or wait for them.
const HOSTILE: [u8; 4] = [1, 3, 5, 7];
const PORT: u16 = 24_791;
const MAX_EARLY: usize = 8;
/// The time after which a queue pair tries again to connect, and how often it does within the time that it waits for its peer.
const ATTEMPT: Duration = Duration::from_millis(50);
const ATTEMPTS: usize = 1000;
