//! Two devices of one kind on one network, and a gate that holds the messages that the near one sends.

use std::net::SocketAddr;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use conformance::{End, Flavour, Rig};
use polyverbs::qp::QpState;
use polyverbs::{
    Access, Completion, Cq, Memory, Mr, Qp, QpOptions, Started, ids::LinkAddress,
    wr::ReceiveRequest,
};
use polyverbs_connection::{
    Accepted, ConnectError, Connection, ConnectionOptions, Connector, InProcess, Incoming,
    Listener, PrivateDataLimits, Refusal,
};
use verbs_api::provider::backend::Backend;

use crate::managed::{Clock, Gate, Managed};

/// A call about a peer that has vanished ends within this time.
const BOUND: Duration = Duration::from_secs(25);

/// Runs a test on every network: frames delivered within one process for both transports, InfiniBand over UDP, and iWARP
/// over TCP.
pub(crate) fn on_each(test: impl Fn(&Ends) + Sync) {
    on(
        &[Flavour::Ib, Flavour::Iwarp, Flavour::IbUdp, Flavour::IwTcp],
        test,
    );
}

/// Runs a test on the networks within a process, which are in virtual time.
pub(crate) fn on_virtual(test: impl Fn(&Ends) + Sync) {
    on(&[Flavour::Ib, Flavour::Iwarp], test);
}

/// Runs a test on the networks over sockets, where only the time of connection managers is virtual.
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

/// One end, with the objects that a test needs of it.
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
    network: Network,
}

/// The network that carries the messages of the connectors.
enum Network {
    InProcess(Arc<InProcess>),
    Sockets {
        clock: Arc<Clock>,
        /// The managers of the near end and of the far one.
        managers: [Managed; 2],
    },
}

impl Ends {
    pub(crate) fn new(flavour: Flavour) -> Self {
        let rig = Rig::new(flavour);
        let network = if rig.is_on_sockets() {
            let clock = Arc::new(Clock::default());
            let managers = [&rig.near, &rig.far].map(|end| Managed::new(&end.context, &clock));
            Network::Sockets { clock, managers }
        } else {
            Network::InProcess(InProcess::new())
        };
        let [near, far] = match &network {
            Network::Sockets { managers, .. } => {
                managers.each_ref().map(|manager| manager.connector.clone())
            }
            Network::InProcess(network) => {
                [(); 2].map(|()| Connector::new(Arc::clone(network) as Arc<dyn Backend>))
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
            network,
        }
    }

    /// Holds the messages of the near end from now on.
    pub(crate) fn hold(&self) {
        match &self.network {
            Network::InProcess(network) => network.pause(),
            Network::Sockets { managers, .. } => managers[0].gate.close(),
        }
    }

    /// Sends the messages that were held.
    pub(crate) fn release(&self) {
        match &self.network {
            Network::InProcess(network) => network.deliver(),
            Network::Sockets { managers, .. } => managers[0].gate.open(),
        }
    }

    /// The gate of the near end.
    ///
    /// # Panics
    /// The network has no sockets.
    pub(crate) fn gate(&self) -> &Gate {
        match &self.network {
            Network::Sockets { managers, .. } => &managers[0].gate,
            Network::InProcess(_) => panic!("a network without a gate"),
        }
    }

    /// Lets time pass until the connection managers have given up waiting for answers.
    pub(crate) fn expire(&self) {
        match &self.network {
            Network::InProcess(network) => {
                network.expire();
                network.deliver();
            }
            Network::Sockets { clock, .. } => clock.pass(BOUND),
        }
    }

    /// Lets time pass in steps, so that answers arrive in time.
    pub(crate) fn run_for(&self, time: Duration) {
        const STEP: Duration = Duration::from_millis(500);
        let Network::Sockets { clock, .. } = &self.network else {
            return self.rig.run_for(time);
        };
        let mut left = time;
        while !left.is_zero() {
            let step = left.min(STEP);
            clock.pass(step);
            self.settle();
            left -= step;
        }
    }

    /// Waits until the messages sent so far have arrived: on sockets, until the far end has answered a ping, which is the last
    /// message.
    pub(crate) fn settle(&self) {
        match &self.network {
            Network::InProcess(_) => self.rig.settle(),
            Network::Sockets { .. } => {
                let (context, to) = (&self.rig.near.context, self.listener.address());
                self.end(self.near.connector.ping(context, to));
            }
        }
    }

    /// Checks that no completion arrives.
    ///
    /// # Panics
    /// A completion arrives.
    pub(crate) fn nothing_on(&self, side: &Side) {
        self.settle();
        let mut slots = [Completion::default()];
        let found = side.cq.poll(&mut slots).unwrap();
        assert!(found.is_empty(), "unexpected: {found:?}");
    }

    /// Waits until the manager of the near end has handled this many rejections and ends of streams.
    pub(crate) fn wait_for_ends_heard(&self, count: usize) {
        if let Network::Sockets { managers, .. } = &self.network {
            test_kit::waiting::until(|| managers[0].gate.ends_heard() >= count);
        }
    }

    pub(crate) fn is_stream(&self) -> bool {
        matches!(self.flavour, Flavour::Iwarp | Flavour::IwTcp)
    }

    /// The reason that the peer receives when a program rejects.
    pub(crate) fn rejection(&self) -> Refusal {
        match self.near.connector.max_private_data() {
            PrivateDataLimits::IWARP => Refusal::ProgramOrBacklog,
            _ => Refusal::Program,
        }
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

    /// Starts a connect; returns it and the request at the listener.
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

    /// Checks that a message passes from the near queue pair to the far one.
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
        self.rig.wait_until(|| state(qp) == expected);
        assert_eq!(state(qp), expected);
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

/// The address of an end, with a port of its own.
pub(crate) fn address_of(end: &End) -> SocketAddr {
    match end.context.query_port(1).unwrap().address {
        LinkAddress::Ip(ip) => SocketAddr::new(ip, 0),
        _ => "10.0.0.1:0".parse().unwrap(),
    }
}

pub(crate) fn state(qp: &Qp) -> QpState {
    qp.query().unwrap().state
}
