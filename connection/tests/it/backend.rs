//! Devices whose provider makes the connections.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;

use polyverbs::emulated::{EmulatedOptions, device};
use polyverbs::qp::QpAttributes;
use polyverbs::{Context, Qp, VerbError};
use polyverbs_connection::{ConnectError, Connector, InProcess, PrivateDataLimits};
use verbs_api::capability::{DeviceAttributes, Grant};
use verbs_api::provider::backend::{Backend, BringUp, ListenSink, Offer, Refusal, Sink, Token};
use verbs_api::provider::carrier::Carrier;
use verbs_api::provider::{ContextOps, DeviceOps, EventSink, Mutex};
use verbs_api::{Device, ids::Psn};

use crate::rig::{End, open};

/// An emulated device whose connections are made by another carrier.
struct Connecting {
    behind: Arc<dyn DeviceOps>,
    carrier: Option<Carrier>,
}

impl DeviceOps for Connecting {
    fn attributes(&self) -> DeviceAttributes {
        self.behind.attributes()
    }

    fn open(
        &self,
        grant: &Grant,
        events: Arc<dyn EventSink>,
    ) -> Result<Arc<dyn ContextOps>, VerbError> {
        self.behind.open(grant, events)
    }

    fn carrier(&self) -> Option<Carrier> {
        self.carrier.clone()
    }
}

fn connecting(kind: &str, carrier: Option<Carrier>) -> Context {
    let device = device(kind, &EmulatedOptions::default()).unwrap();
    let behind = Arc::clone(device.ops());
    open(&Device::of(Arc::new(Connecting { behind, carrier })))
}

/// The component that brings queue pairs up.
enum BroughtUp {
    /// The connector, with attributes that the network knows.
    WithChanges(fn([QpAttributes; 3]) -> [QpAttributes; 3]),
    /// The network; the queue holds the queue pairs of the next connects.
    By(Mutex<VecDeque<Qp>>),
}

/// The network of a provider.
struct Network {
    messages: Arc<InProcess>,
    brought_up: BroughtUp,
}

impl Network {
    fn new(brought_up: BroughtUp) -> Arc<Self> {
        Arc::new(Self {
            messages: InProcess::new(),
            brought_up,
        })
    }
}

impl Backend for Network {
    fn private_data(&self) -> PrivateDataLimits {
        self.messages.private_data()
    }

    fn listen(
        &self,
        at: SocketAddr,
        backlog: usize,
        sink: Arc<dyn ListenSink<Offer>>,
    ) -> Result<SocketAddr, ConnectError> {
        self.messages.listen(at, backlog, sink)
    }

    fn unlisten(&self, at: SocketAddr) {
        self.messages.unlisten(at);
    }

    fn connect(
        &self,
        to: SocketAddr,
        offer: Offer,
        sink: Arc<dyn Sink>,
    ) -> Result<Token, ConnectError> {
        self.messages.connect(to, offer, sink)
    }

    fn accept(&self, token: Token, offer: Offer, sink: Arc<dyn Sink>) -> Result<(), ConnectError> {
        self.messages.accept(token, offer, sink)
    }

    fn bring_up(&self, _: Token, planned: [QpAttributes; 3]) -> Result<BringUp, ConnectError> {
        Ok(match &self.brought_up {
            BroughtUp::WithChanges(change) => BringUp::Steps(Box::new(change(planned))),
            BroughtUp::By(next) => {
                let qp = next.lock().pop_front().unwrap();
                qp.modify_in_turn(planned).on_done(Result::unwrap);
                BringUp::ByBackend
            }
        })
    }

    fn complete(&self, token: Token) {
        self.messages.complete(token);
    }

    fn reject(&self, token: Token, why: Refusal, private_data: Vec<u8>) {
        self.messages.reject(token, why, private_data);
    }

    fn disconnect(&self, token: Token) {
        self.messages.disconnect(token);
    }

    fn forget(&self, token: Token) {
        self.messages.forget(token);
    }
}

/// Two ends on a device that connects over `network`.
fn ends(kind: &str, network: &Arc<Network>) -> [End; 2] {
    let backend = Arc::clone(network) as Arc<dyn Backend>;
    let context = connecting(kind, Some(Carrier::Backend(backend)));
    [(); 2].map(|()| End::of(&context))
}

/// Connects two ends, and sends a message from one to the other.
fn connect([active, passive]: &[End; 2]) {
    let _both = active.connected(passive, &passive.listen());
    let far = (passive, &passive.qp);
    active.say(&active.qp, far, b"hello", End::completion);
}

#[test]
fn a_backend_may_change_the_attributes_of_a_queue_pair() {
    let network = Network::new(BroughtUp::WithChanges(|[init, rtr, rts]| {
        let psn = Psn::new(0x77);
        let rtr = rtr.rq_psn(psn).min_rnr_timer(3);
        [init, rtr, rts.sq_psn(psn).timeout(9)]
    }));
    let ends = ends("ib0", &network);
    connect(&ends);
    for end in &ends {
        let now = end.qp.query().unwrap().attributes;
        assert_eq!((now.timeout, now.min_rnr_timer), (Some(9), Some(3)));
    }
}

#[test]
fn a_backend_brings_queue_pairs_up_itself() {
    for kind in ["ib0", "iw0"] {
        let network = Network::new(BroughtUp::By(Mutex::default()));
        let ends = ends(kind, &network);
        let BroughtUp::By(next) = &network.brought_up else {
            unreachable!()
        };
        let [active, passive] = &ends;
        let in_turn = [passive.qp.clone(), active.qp.clone()];
        next.lock().extend(in_turn);
        connect(&ends);
        assert!(next.lock().is_empty());
    }
}

#[test]
fn a_device_without_connections_has_no_connector() {
    let context = connecting("ib0", None);
    let refused = Connector::of(&context).err().unwrap();
    let expected = VerbError::UnsupportedVerb("connect");
    assert_eq!(refused, ConnectError::Verb(expected));
}
