//! Connections that are open and carry nothing: the memory and the processor time that they take.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::thread::sleep;
use std::time::Duration;

use polyverbs::connection::{Connection, ConnectionOptions, Connector, Listener};
use polyverbs::emulated::{self, EmulatedOptions};
use polyverbs::{
    Access, Completion, Cq, Memory, Mr, Pd, Qp, QpOptions, Requirements, WcStatus,
    wr::{self, ReceiveRequest},
};

use crate::Outcome;
use crate::crowd::SLOTS;
use crate::memory::{resident, used};

/// How long the devices are given to become idle after connecting: longer than any timer of a handshake.
const REST: Duration = Duration::from_secs(12);
/// Connections that are being made at one time.
const AT_ONCE: usize = 64;
/// One of so many connections is used afterwards.
const SAMPLE: usize = 100;

struct Side {
    connector: Connector,
    pd: Pd,
    cq: Cq,
    mr: Mr,
    _memory: Memory,
}

/// The result of a measurement.
#[derive(Clone, Copy, Debug)]
pub struct Idle {
    /// The number of connections.
    pub connections: usize,
    /// Bytes of this process for each connection, its two ends together; kernel memory of sockets is not included.
    pub octets: Option<f64>,
    /// The share of one processor that both devices took with no connection.
    pub empty: f64,
    /// The share of one processor that both devices took with all connections open.
    pub open: f64,
}

/// Connects so many pairs between two devices of this process at two addresses of loopback, leaves them idle for
/// `seconds`, and sends a message on some of them, to check that they work.
///
/// # Errors
/// The system or the devices refuse, or a connection does not work.
pub fn measure(device: &str, connections: usize, seconds: u64) -> Outcome<Idle> {
    let time = Duration::from_secs(seconds);
    let (near, far) = (Side::new(device, 1)?, Side::new(device, 2)?);
    let listener = far.connector.listen(far_address(), 0)?;
    // The first connection makes everything that is allocated on first use.
    let mut crowd = Crowd::default();
    crowd.connect(&near, &far, &listener, 1)?;
    sleep(REST);
    let empty = load(time);
    let before = resident();
    let mut left = connections;
    while left > 0 {
        let now = AT_ONCE.min(left);
        crowd.connect(&near, &far, &listener, now)?;
        left -= now;
    }
    sleep(REST);
    let after = resident();
    let open = load(time);
    crowd.use_some(&near, &far)?;
    let grown = after
        .zip(before)
        .map(|(after, before)| after.saturating_sub(before));
    Ok(Idle {
        connections,
        octets: grown.map(|octets| octets as f64 / connections as f64),
        empty,
        open,
    })
}

fn load(time: Duration) -> f64 {
    let before = used();
    sleep(time);
    (used() - before).as_secs_f64() / time.as_secs_f64()
}

fn address(number: u8) -> IpAddr {
    Ipv4Addr::new(127, 0, 31, number).into()
}

fn far_address() -> SocketAddr {
    SocketAddr::new(address(2), 0)
}

impl Side {
    fn new(device: &str, number: u8) -> Outcome<Self> {
        let options = EmulatedOptions::default();
        let device = emulated::device_at(device, address(number), &options)?;
        let context = device.open(&Requirements::new())?;
        let pd = context.alloc_pd().wait()?;
        let cq = context.create_cq(256).wait()?;
        let memory = Memory::zeroed(4096)?;
        let mr = pd.register(&memory, Access::LOCAL_WRITE).wait()?;
        Ok(Self {
            connector: Connector::of(&context)?,
            pd,
            cq,
            mr,
            _memory: memory,
        })
    }

    fn qp(&self) -> Outcome<Qp> {
        let options = QpOptions::rc(&self.cq)
            .max_send_wr(SLOTS)
            .max_recv_wr(SLOTS);
        Ok(self.pd.create_qp(options).wait()?)
    }

    fn done(&self) -> Outcome<()> {
        let done: Completion = self.cq.next().wait()?;
        match done.status {
            WcStatus::Success => Ok(()),
            status => Err(format!("a message ended as {status:?}").into()),
        }
    }
}

/// Connections; the ends of each side in the order in which they were made.
#[derive(Default)]
struct Crowd {
    near: Vec<Qp>,
    far: Vec<Qp>,
    connections: Vec<Connection>,
}

impl Crowd {
    /// Connects so many more pairs, all at the same time.
    fn connect(
        &mut self,
        near: &Side,
        far: &Side,
        listener: &Listener,
        count: usize,
    ) -> Outcome<()> {
        let mut asked = Vec::with_capacity(count);
        for _ in 0..count {
            let qp = near.qp()?;
            let (to, options) = (listener.address(), ConnectionOptions::new());
            asked.push(near.connector.connect(&qp, to, options));
            self.near.push(qp);
        }
        let mut accepted = Vec::with_capacity(count);
        for _ in 0..count {
            let (incoming, qp) = (listener.next().wait()?, far.qp()?);
            accepted.push(incoming.accept(&qp, ConnectionOptions::new()));
            self.far.push(qp);
        }
        for connecting in asked.into_iter().chain(accepted) {
            self.connections.push(connecting.wait()?);
        }
        Ok(())
    }

    /// Sends a message on some of the connections.
    fn use_some(&self, near: &Side, far: &Side) -> Outcome<()> {
        for qp in &self.far {
            let room = far.mr.sge(0, 64)?;
            qp.post_receive(ReceiveRequest::new(1, room))?;
        }
        for qp in self.near.iter().step_by(SAMPLE) {
            qp.post_one(wr::Send::new(near.mr.sge(0, 64)?).signaled(2))?;
            far.done()?;
            near.done()?;
        }
        Ok(())
    }
}
