//! One end of connections: an open device, with the objects that a test needs of it.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use emulated_ib::InfiniBand;
use emulated_iwarp::Iwarp;
use polyverbs::provider::DeviceOps;
use polyverbs::qp::QpState;
use polyverbs::{
    Access, Completion, Context, Cq, Device, Memory, Mr, Pd, Qp, QpOptions, Requirements, Started,
    ids::LinkAddress,
    wr::{self, ReceiveRequest},
};
use polyverbs_connection::{
    Accepted, ConnectError, Connection, ConnectionOptions, Connector, Listener,
};
use polyverbs_engine::device::DeviceOptions;

/// The UDP port of RoCEv2.
const ROCE_PORT: u16 = 4791;

pub(crate) struct End {
    pub(crate) context: Context,
    pub(crate) connector: Connector,
    pub(crate) pd: Pd,
    pub(crate) cq: Cq,
    /// A queue pair; more are made by [`new_qp`](Self::new_qp).
    pub(crate) qp: Qp,
    pub(crate) memory: Memory,
    pub(crate) mr: Mr,
}

/// A RoCE device over UDP. It has a connection manager once a connector was made for it.
pub(crate) fn udp_device(ip: &str) -> Device {
    let address = SocketAddr::new(ip.parse().unwrap(), ROCE_PORT);
    let driver = |at| InfiniBand {
        name: format!("ib at {ip}"),
        address: at,
        windows_2a: false,
        management: None,
        subnet: None,
    };
    let wire = emulated_ib::WireOptions::new(address);
    let made = emulated_ib::OnWire::new(driver, wire, DeviceOptions::default());
    Device::of(made.unwrap().device as Arc<dyn DeviceOps>)
}

/// An iWARP device over TCP, with changed options.
pub(crate) fn tcp_device(
    ip: &str,
    change: impl FnOnce(&mut emulated_iwarp::WireOptions),
) -> Device {
    let address = SocketAddr::new(ip.parse().unwrap(), 0);
    let mut wire = emulated_iwarp::WireOptions::new(address);
    change(&mut wire);
    let driver = |at| Iwarp::new(format!("iw at {ip}"), at);
    let made = emulated_iwarp::OnWire::new(driver, wire, DeviceOptions::default());
    Device::of(made.unwrap().device as Arc<dyn DeviceOps>)
}

pub(crate) fn open(device: &Device) -> Context {
    device.open(&Requirements::new()).unwrap()
}

impl End {
    pub(crate) fn new(context: &Context, connector: Connector) -> Self {
        let pd = context.alloc_pd().wait().unwrap();
        let cq = context.create_cq(1024).wait().unwrap();
        let qp = pd.create_qp(QpOptions::rc(&cq)).wait().unwrap();
        let memory = Memory::zeroed(4096).unwrap();
        let mr = pd.register(&memory, Access::LOCAL_WRITE).wait().unwrap();
        Self {
            context: context.clone(),
            connector,
            pd,
            cq,
            qp,
            memory,
            mr,
        }
    }

    /// An end whose connector is the one that fits its device.
    pub(crate) fn of(context: &Context) -> Self {
        Self::new(context, Connector::of(context).unwrap())
    }

    pub(crate) fn udp(ip: &str) -> Self {
        Self::of(&open(&udp_device(ip)))
    }

    pub(crate) fn tcp(ip: &str) -> Self {
        Self::of(&open(&tcp_device(ip, |_| {})))
    }

    /// The address of the device, with this port.
    pub(crate) fn at(&self, port: u16) -> SocketAddr {
        let ip = match self.context.query_port(1).unwrap().address {
            LinkAddress::Ip(ip) => ip,
            // On a network within the process a program may listen at any address.
            _ => Ipv4Addr::new(10, 0, 0, 1).into(),
        };
        SocketAddr::new(ip, port)
    }

    pub(crate) fn listen(&self) -> Listener {
        self.connector.listen(self.at(0), 0).unwrap()
    }

    pub(crate) fn new_qp(&self) -> Qp {
        self.pd.create_qp(QpOptions::rc(&self.cq)).wait().unwrap()
    }

    /// Requests a connection of the queue pair of this end.
    pub(crate) fn request(
        &self,
        to: SocketAddr,
        options: ConnectionOptions,
    ) -> Started<Accepted, ConnectError> {
        self.connector.request(&self.qp, to, options)
    }

    /// Connects the queue pair of this end with that of another one.
    pub(crate) fn connected(&self, far: &Self, listener: &Listener) -> (Connection, Connection) {
        self.connected_to(&far.qp, listener)
    }

    pub(crate) fn connected_to(&self, far: &Qp, listener: &Listener) -> (Connection, Connection) {
        let (to, options) = (listener.address(), ConnectionOptions::new);
        let connecting = self.connector.connect(&self.qp, to, options());
        let incoming = listener.next().wait().unwrap();
        let accepting = incoming.accept(far, options());
        (connecting.wait().unwrap(), accepting.wait().unwrap())
    }

    /// Posts a receive of 64 bytes at the start of the memory.
    pub(crate) fn post_receive(&self, qp: &Qp, wr_id: u64) {
        let room = self.mr.sge(0, 64).unwrap();
        qp.post_receive(ReceiveRequest::new(wr_id, room)).unwrap();
    }

    pub(crate) fn completion(&self) -> Completion {
        self.cq.next().wait().unwrap()
    }

    pub(crate) fn nothing_completed(&self) -> bool {
        let mut slots = [Completion::default()];
        self.cq.poll(&mut slots).unwrap().is_empty()
    }

    /// How often the queue pair of this end retries after a timeout, and after an RNR NAK.
    pub(crate) fn retry_counts(&self) -> (Option<u8>, Option<u8>) {
        let has = self.qp.query().unwrap().attributes;
        (has.retry_cnt, has.rnr_retry)
    }

    /// Sends a message to a queue pair of another end, and checks that it arrives. `next` takes a completion from an end.
    pub(crate) fn say(
        &self,
        qp: &Qp,
        (far, peer): (&Self, &Qp),
        text: &[u8],
        next: impl Fn(&Self) -> Completion,
    ) {
        far.post_receive(peer, 7);
        self.memory.write(1024, text).unwrap();
        let data = self.mr.sge(1024, text.len() as u32).unwrap();
        qp.post_one(wr::Send::new(data).signaled(8)).unwrap();
        let done = next(far);
        assert_eq!((done.wr_id, done.status.is_success()), (7, true));
        assert_eq!(done.byte_len as usize, text.len());
        assert_eq!(far.memory.to_vec(0, text.len()).unwrap(), text);
        assert!(next(self).status.is_success());
    }
}

pub(crate) fn state(qp: &Qp) -> QpState {
    qp.query().unwrap().state
}

/// The error of a call that fails.
pub(crate) fn error<T>(started: Started<T, ConnectError>) -> ConnectError {
    match started.wait() {
        Ok(_) => panic!("it succeeded"),
        Err(error) => error,
    }
}
