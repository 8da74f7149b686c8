//! A device at an address, with one queue pair.

use std::net::SocketAddr;
use std::sync::Arc;

use emulated_ib::{InfiniBand, OnWire, WireOptions};
use polyverbs::provider::DeviceOps;
use polyverbs::qp::QpState;
use polyverbs::{
    Access, Completion, Context, Cq, Device, Memory, Mr, Pd, Qp, QpOptions, Requirements, Started,
    wr::ReceiveRequest,
};
use polyverbs_connection::{
    Accepted, ConnectError, Connection, ConnectionOptions, Connector, Incoming, Listener,
};
use polyverbs_engine::device::DeviceOptions;

pub(crate) struct End {
    pub(crate) wire: OnWire,
    pub(crate) context: Context,
    pub(crate) connector: Connector,
    pd: Pd,
    cq: Cq,
    pub(crate) qp: Qp,
    pub(crate) memory: Memory,
    pub(crate) mr: Mr,
}

/// A device without a connection manager.
pub(crate) fn device_at(address: SocketAddr) -> OnWire {
    let driver = |at| InfiniBand {
        name: format!("ib at {address}"),
        address: at,
        windows_2a: false,
        management: None,
    };
    OnWire::new(driver, WireOptions::new(address), DeviceOptions::default()).unwrap()
}

impl End {
    pub(crate) fn new(address: &str) -> Self {
        let wire = device_at(address.parse().unwrap());
        let device = Device::of(Arc::clone(&wire.device) as Arc<dyn DeviceOps>);
        let context = device.open(&Requirements::new()).unwrap();
        let pd = context.alloc_pd().wait().unwrap();
        let cq = context.create_cq(64).wait().unwrap();
        let qp = pd.create_qp(QpOptions::rc(&cq)).wait().unwrap();
        let memory = Memory::zeroed(4096).unwrap();
        let mr = pd.register(&memory, Access::LOCAL_WRITE).wait().unwrap();
        let connector = Connector::of(&context).unwrap();
        Self {
            wire,
            context,
            connector,
            pd,
            cq,
            qp,
            memory,
            mr,
        }
    }

    /// The address of this device with this port.
    pub(crate) fn at(&self, port: u16) -> SocketAddr {
        let ip = self.wire.link.lease().address().ip();
        SocketAddr::new(ip, port)
    }

    pub(crate) fn new_qp(&self) -> Qp {
        self.pd.create_qp(QpOptions::rc(&self.cq)).wait().unwrap()
    }

    /// Creates an unreliable connected queue pair.
    pub(crate) fn new_uc_qp(&self) -> Qp {
        self.pd.create_qp(QpOptions::uc(&self.cq)).wait().unwrap()
    }

    pub(crate) fn connect(
        &self,
        to: SocketAddr,
        options: ConnectionOptions,
    ) -> Started<Accepted, ConnectError> {
        self.connector.connect(&self.context, &self.qp, to, options)
    }

    pub(crate) fn accept(
        &self,
        incoming: Incoming,
        options: ConnectionOptions,
    ) -> Started<Connection, ConnectError> {
        incoming.accept(&self.context, &self.qp, options)
    }

    /// Connects both ends, and returns the connections.
    pub(crate) fn connected(&self, far: &Self, listener: &Listener) -> (Connection, Connection) {
        let (near, far, _) = self.connected_to(far, far.qp.clone(), listener);
        (near, far)
    }

    pub(crate) fn connected_to(
        &self,
        far: &Self,
        qp: Qp,
        listener: &Listener,
    ) -> (Connection, Connection, Qp) {
        let asked = self.connect(listener.address(), ConnectionOptions::new());
        let incoming = listener.next().wait().unwrap();
        let accepted = incoming.accept(&far.context, &qp, ConnectionOptions::new());
        let near = asked.wait().unwrap().complete().wait().unwrap();
        (near, accepted.wait().unwrap(), qp)
    }

    pub(crate) fn state(&self) -> QpState {
        self.qp.query().unwrap().state
    }

    pub(crate) fn post_receive(&self, wr_id: u64) {
        let room = self.mr.sge(0, 64).unwrap();
        self.qp
            .post_receive(ReceiveRequest::new(wr_id, room))
            .unwrap();
    }

    pub(crate) fn completion(&self) -> Completion {
        self.cq.next().wait().unwrap()
    }
}

pub(crate) fn error<T>(started: Started<T, ConnectError>) -> ConnectError {
    match started.wait() {
        Ok(_) => panic!("it succeeded"),
        Err(error) => error,
    }
}
