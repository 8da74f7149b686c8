//! Two devices of one kind on one network, and a gate that keeps what the near one says.

use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use conformance::{End, Flavour, Rig};
use polyverbs::qp::QpState;
use polyverbs::{
    Access, Completion, Cq, Memory, Mr, Qp, QpOptions, Started, ids::LinkAddress,
    wr::ReceiveRequest,
};
use polyverbs_connection::{
    Accepted, ConnectError, Connection, ConnectionOptions, Connector, InProcess, Incoming,
    Listener, ib, mpa,
};
use verbs_api::ids::Qpn;
use verbs_api::provider::backend::Backend;
use verbs_api::provider::carrier::{
    Carrier, ManagementPort, ManagementSink, StreamAgreed, StreamClose, StreamListener, StreamPort,
    StreamSink, StreamWishes,
};

/// Runs a test on every network: frames handed over in one process for both transports, InfiniBand over UDP, and iWARP
/// over TCP.
pub(crate) fn on_each(test: impl Fn(&Ends) + Sync) {
    on(
        &[Flavour::Ib, Flavour::Iwarp, Flavour::IbUdp, Flavour::IwTcp],
        test,
    );
}

/// The same where there are sockets.
pub(crate) fn on_sockets(test: impl Fn(&Ends) + Sync) {
    on(&[Flavour::IbUdp, Flavour::IwTcp], test);
}

pub(crate) fn on(flavours: &[Flavour], test: impl Fn(&Ends) + Sync) {
    let test = &test;
    thread::scope(|scope| {
        for &flavour in flavours {
            let run = move || test(&Ends::new(flavour));
            thread::Builder::new()
                .name(format!("{flavour:?}"))
                .spawn_scoped(scope, run)
                .unwrap();
        }
    });
}

/// One end, with what a test needs of it.
pub(crate) struct Side {
    pub(crate) connector: Connector,
    pub(crate) cq: Cq,
    memory: Memory,
    mr: Mr,
}

pub(crate) struct Ends {
    pub(crate) flavour: Flavour,
    pub(crate) rig: Rig,
    pub(crate) near: Side,
    pub(crate) far: Side,
    pub(crate) listener: Listener,
    gate: Gate,
    // Agents do not own their port.
    _port: Option<Box<dyn Send + Sync>>,
}

enum Gate {
    InProcess(Arc<InProcess>),
    Wire(Arc<Kept>),
}

type Said = Box<dyn FnOnce() + Send>;

/// What is kept until the gate is opened.
#[derive(Default)]
struct Kept {
    is_closed: Mutex<bool>,
    said: Mutex<Vec<Said>>,
    /// Attribute ids of management datagrams that get lost, by bit.
    loses: Mutex<u64>,
    sent: [AtomicU8; 32],
}

impl Kept {
    fn say(&self, what: impl FnOnce() + Send + 'static) {
        let is_closed = self.is_closed.lock().unwrap();
        if *is_closed {
            self.said.lock().unwrap().push(Box::new(what));
        } else {
            drop(is_closed);
            what();
        }
    }
}

struct GatedPort(Arc<dyn ManagementPort>, Arc<Kept>);

impl ManagementPort for GatedPort {
    fn address(&self) -> IpAddr {
        self.0.address()
    }

    fn communication_ids(&self) -> (u32, u32) {
        self.0.communication_ids()
    }

    fn attach(&self, make: &mut dyn FnMut() -> Arc<dyn ManagementSink>) -> Arc<dyn ManagementSink> {
        self.0.attach(make)
    }

    fn send(&self, to: IpAddr, datagram: &[u8]) {
        let attribute = datagram[17];
        self.1.sent[usize::from(attribute & 31)].fetch_add(1, Ordering::SeqCst);
        if *self.1.loses.lock().unwrap() >> (attribute & 31) & 1 == 1 {
            return;
        }
        let (port, datagram) = (Arc::clone(&self.0), datagram.to_vec());
        self.1.say(move || port.send(to, &datagram));
    }

    fn progress(&self) {
        self.0.progress();
    }

    fn serve(&self, service: u64) -> std::io::Result<()> {
        self.0.serve(service)
    }

    fn withdraw(&self, service: u64) {
        self.0.withdraw(service);
    }

    fn now(&self) -> Duration {
        self.0.now()
    }

    fn wake_at(&self, at: Duration) {
        self.0.wake_at(at);
    }
}

struct GatedStreams(Arc<dyn StreamPort>, Arc<Kept>);

impl StreamPort for GatedStreams {
    fn address(&self) -> IpAddr {
        self.0.address()
    }

    fn wishes(&self) -> StreamWishes {
        self.0.wishes()
    }

    fn listen(&self, at: SocketAddr, sink: Arc<dyn StreamListener>) -> std::io::Result<SocketAddr> {
        self.0.listen(at, sink)
    }

    fn unlisten(&self, at: SocketAddr) {
        self.0.unlisten(at);
    }

    fn connect(&self, to: SocketAddr, sink: Arc<dyn StreamSink>) -> std::io::Result<Qpn> {
        self.0.connect(to, sink)
    }

    fn send(&self, stream: Qpn, bytes: &[u8]) {
        let (port, bytes) = (Arc::clone(&self.0), bytes.to_vec());
        self.1.say(move || port.send(stream, &bytes));
    }

    fn agree(&self, stream: Qpn, agreed: StreamAgreed, last: &[u8], rest: &[u8]) {
        self.0.agree(stream, agreed, last, rest);
    }

    fn carries(&self, qp: Qpn) -> bool {
        self.0.carries(qp)
    }

    fn close(&self, stream: Qpn, how: StreamClose) {
        let port = Arc::clone(&self.0);
        self.1.say(move || port.close(stream, how));
    }

    fn now(&self) -> Duration {
        self.0.now()
    }

    fn wake_at(&self, stream: Qpn, at: Duration) {
        self.0.wake_at(stream, at);
    }
}

impl Ends {
    pub(crate) fn new(flavour: Flavour) -> Self {
        let rig = Rig::new(flavour);
        let kept = Arc::new(Kept::default());
        let mut held: Option<Box<dyn Send + Sync>> = None;
        let (near, far, gate) = match rig.near.context.carrier() {
            Some(Carrier::InProcess) => {
                let network = InProcess::new();
                let connector = || Connector::new(Arc::clone(&network) as Arc<dyn Backend>);
                (connector(), connector(), Gate::InProcess(network))
            }
            None => panic!("no carrier"),
            Some(carrier) => {
                let near: Arc<dyn Backend> = match carrier {
                    Carrier::Datagrams(port) => {
                        let gated: Arc<dyn ManagementPort> =
                            Arc::new(GatedPort(port, Arc::clone(&kept)));
                        let agent = ib::Agent::of(&gated).unwrap();
                        held = Some(Box::new(gated));
                        agent
                    }
                    Carrier::Streams(port) => {
                        let gated: Arc<dyn StreamPort> =
                            Arc::new(GatedStreams(port, Arc::clone(&kept)));
                        let agent = mpa::Agent::new(&gated);
                        held = Some(Box::new(gated));
                        agent
                    }
                    other => panic!("{other:?}"),
                };
                let far = Connector::of(&rig.far.context).unwrap();
                (Connector::new(near), far, Gate::Wire(kept))
            }
        };
        let (near, far) = (Side::new(near, &rig.near), Side::new(far, &rig.far));
        let listener = far.connector.listen(address_of(&rig.far), 0).unwrap();
        Self {
            flavour,
            rig,
            near,
            far,
            listener,
            gate,
            _port: held,
        }
    }

    /// From now on nobody hears what the near end says.
    pub(crate) fn hold(&self) {
        match &self.gate {
            Gate::InProcess(network) => network.pause(),
            Gate::Wire(kept) => *kept.is_closed.lock().unwrap() = true,
        }
    }

    /// What was held is heard now.
    pub(crate) fn release(&self) {
        match &self.gate {
            Gate::InProcess(network) => network.deliver(),
            Gate::Wire(kept) => {
                *kept.is_closed.lock().unwrap() = false;
                let said = std::mem::take(&mut *kept.said.lock().unwrap());
                said.into_iter().for_each(|said| said());
            }
        }
    }

    /// Management datagrams of the near end with this attribute id get lost.
    pub(crate) fn lose(&self, attribute: u16) {
        if let Gate::Wire(kept) = &self.gate {
            *kept.loses.lock().unwrap() |= 1 << (attribute & 31);
        }
    }

    /// How many of them the near end has sent.
    pub(crate) fn sent(&self, attribute: u16) -> u8 {
        match &self.gate {
            Gate::Wire(kept) => kept.sent[usize::from(attribute & 31)].load(Ordering::SeqCst),
            Gate::InProcess(_) => 0,
        }
    }

    /// Nobody answers any more, or has long enough: in one process time is told to have passed.
    pub(crate) fn expire(&self) {
        if let Gate::InProcess(network) = &self.gate {
            network.expire();
            network.deliver();
        }
    }

    pub(crate) fn is_stream(&self) -> bool {
        matches!(self.flavour, Flavour::Iwarp | Flavour::IwTcp)
    }

    pub(crate) fn near_qp(&self) -> Qp {
        qp(&self.rig, &self.rig.near, &self.near)
    }

    pub(crate) fn far_qp(&self) -> Qp {
        qp(&self.rig, &self.rig.far, &self.far)
    }

    pub(crate) fn connect(&self, qp: &Qp) -> Started<Accepted, ConnectError> {
        self.connect_with(qp, ConnectionOptions::new())
    }

    pub(crate) fn connect_with(
        &self,
        qp: &Qp,
        options: ConnectionOptions,
    ) -> Started<Accepted, ConnectError> {
        let (context, to) = (&self.rig.near.context, self.listener.address());
        self.near.connector.connect(context, qp, to, options)
    }

    /// A connect that has been asked for, and the request.
    pub(crate) fn ask(&self, qp: &Qp) -> (Started<Accepted, ConnectError>, Incoming) {
        let asked = self.connect(qp);
        (asked, self.end(self.listener.next()))
    }

    pub(crate) fn accept(&self, incoming: Incoming, qp: &Qp) -> Started<Connection, ConnectError> {
        incoming.accept(&self.rig.far.context, qp, ConnectionOptions::new())
    }

    /// Both ends of a connection.
    pub(crate) fn connected(&self, near: &Qp, far: &Qp) -> (Connection, Connection) {
        let (asked, incoming) = self.ask(near);
        let accepted = self.accept(incoming, far);
        let pending = self.end(asked);
        let at_near = self.end(pending.complete());
        (at_near, self.end(accepted))
    }

    pub(crate) fn end<T: Send + 'static>(&self, started: Started<T, ConnectError>) -> T {
        match self.rig.outcome(started) {
            Ok(result) => result,
            Err(error) => panic!("{:?}: {error}", self.flavour),
        }
    }

    pub(crate) fn error<T: Send + 'static>(
        &self,
        started: Started<T, ConnectError>,
    ) -> ConnectError {
        match self.rig.outcome(started) {
            Ok(_) => panic!("{:?}: it succeeded", self.flavour),
            Err(error) => error,
        }
    }

    /// Whether a message passes from the near queue pair to the far one.
    pub(crate) fn talk(&self, near: &Qp, far: &Qp) {
        self.far.post_receive(far, 7);
        self.near.memory.write(0, b"hello").unwrap();
        let data = self.near.mr.sge(0, 5).unwrap();
        near.post_one(polyverbs::wr::Send::new(data).signaled(8))
            .unwrap();
        let done = self.rig.take(&self.far.cq, 1);
        assert_eq!((done[0].wr_id, done[0].status.is_success()), (7, true));
        assert!(self.rig.take(&self.near.cq, 1)[0].status.is_success());
        assert_eq!(self.far.memory.to_vec(0, 5).unwrap(), b"hello");
    }

    pub(crate) fn take(&self, side: &Side, count: usize) -> Vec<Completion> {
        self.rig.take(&side.cq, count)
    }

    pub(crate) fn wait_for_state(&self, qp: &Qp, expected: QpState) {
        let began = Instant::now();
        while state(qp) != expected {
            self.rig.settle();
            assert!(began.elapsed() < Duration::from_secs(20), "{:?}", state(qp));
        }
    }
}

impl Side {
    fn new(connector: Connector, end: &End) -> Self {
        let cq = end.cq(1024);
        let memory = Memory::zeroed(4096).unwrap();
        let mr = end
            .pd
            .register(&memory, Access::LOCAL_WRITE)
            .wait()
            .unwrap();
        Self {
            connector,
            cq,
            memory,
            mr,
        }
    }

    pub(crate) fn post_receive(&self, qp: &Qp, wr_id: u64) {
        let room = self.mr.sge(0, 64).unwrap();
        qp.post_receive(ReceiveRequest::new(wr_id, room)).unwrap();
    }
}

fn qp(rig: &Rig, end: &End, side: &Side) -> Qp {
    rig.finish(end.pd.create_qp(QpOptions::rc(&side.cq)))
}

/// Where an end is, with a port of its own.
pub(crate) fn address_of(end: &End) -> SocketAddr {
    match end.context.query_port(1).unwrap().address {
        LinkAddress::Ip(ip) => SocketAddr::new(ip, 0),
        _ => "10.0.0.1:0".parse().unwrap(),
    }
}

pub(crate) fn state(qp: &Qp) -> QpState {
    qp.query().unwrap().state
}
