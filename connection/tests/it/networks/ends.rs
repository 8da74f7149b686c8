//! Two devices of one kind on one network, and a gate that holds the messages that the near one sends.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use conformance::{Flavour, Rig};
use polyverbs::qp::QpState;
use polyverbs::{Completion, Qp, QpOptions, Started};
use polyverbs_connection::{
    Accepted, ConnectError, Connection, ConnectionOptions, Connector, InProcess, Incoming,
    Listener, PrivateDataLimits, Refusal,
};
use verbs_api::provider::backend::Backend;

use crate::managed::{Clock, Gate, Managed};
use crate::rig::{End, state};

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

pub(crate) struct Ends {
    pub(crate) flavour: Flavour,
    pub(crate) rig: Rig,
    pub(crate) near: End,
    pub(crate) far: End,
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
        let contexts = [&rig.near.context, &rig.far.context];
        let [near, far] = [0, 1].map(|end| {
            let connector = match &network {
                Network::Sockets { managers, .. } => managers[end].connector.clone(),
                Network::InProcess(network) => {
                    Connector::new(contexts[end], Arc::clone(network) as Arc<dyn Backend>)
                }
            };
            End::new(contexts[end], connector)
        });
        let listener = far.listen();
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
                self.end(self.near.connector.ping(self.listener.address()));
            }
        }
    }

    /// Checks that no completion arrives.
    ///
    /// # Panics
    /// A completion arrives.
    pub(crate) fn nothing_on(&self, end: &End) {
        self.settle();
        assert!(end.nothing_completed());
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
        self.qp_of(&self.near)
    }

    pub(crate) fn far_qp(&self) -> Qp {
        self.qp_of(&self.far)
    }

    fn qp_of(&self, end: &End) -> Qp {
        let created = end.pd.create_qp(QpOptions::rc(&end.cq));
        self.rig.finish(created).unwrap()
    }

    pub(crate) fn request(&self, qp: &Qp) -> Started<Accepted, ConnectError> {
        self.request_with(qp, ConnectionOptions::new())
    }

    pub(crate) fn request_with(
        &self,
        qp: &Qp,
        options: ConnectionOptions,
    ) -> Started<Accepted, ConnectError> {
        let to = self.listener.address();
        self.near.connector.request(qp, to, options)
    }

    /// Requests a connection; returns that and the request at the listener.
    pub(crate) fn ask(&self, qp: &Qp) -> (Started<Accepted, ConnectError>, Incoming) {
        let asked = self.request(qp);
        (asked, self.end(self.listener.next()))
    }

    pub(crate) fn accept(&self, incoming: Incoming, qp: &Qp) -> Started<Connection, ConnectError> {
        incoming.accept(qp, ConnectionOptions::new())
    }

    /// Both ends of a connection.
    pub(crate) fn connected(&self, near: &Qp, far: &Qp) -> (Connection, Connection) {
        let (to, options) = (self.listener.address(), ConnectionOptions::new());
        let connecting = self.near.connector.connect(near, to, options);
        let accepting = self.accept(self.end(self.listener.next()), far);
        (self.end(connecting), self.end(accepting))
    }

    pub(crate) fn end<T: Send + 'static>(&self, started: Started<T, ConnectError>) -> T {
        match self.rig.outcome(started).unwrap() {
            Ok(result) => result,
            Err(error) => panic!("{:?}: {error}", self.flavour),
        }
    }

    pub(crate) fn error<T: Send + 'static>(
        &self,
        started: Started<T, ConnectError>,
    ) -> ConnectError {
        match self.rig.outcome(started).unwrap() {
            Ok(_) => panic!("{:?}: it succeeded", self.flavour),
            Err(error) => error,
        }
    }

    /// Checks that a message passes from the near queue pair to the far one.
    pub(crate) fn talk(&self, near: &Qp, far: &Qp) {
        let next = |end: &End| self.take(end, 1).remove(0);
        self.near.say(near, (&self.far, far), b"hello", next);
    }

    pub(crate) fn take(&self, end: &End, count: usize) -> Vec<Completion> {
        self.rig.take(&end.cq, count).unwrap()
    }

    pub(crate) fn wait_for_state(&self, qp: &Qp, expected: QpState) {
        let reached = self.rig.until("the state", || state(qp) == expected);
        reached.unwrap_or_else(|_| panic!("{}, not {expected}", state(qp)));
    }
}
