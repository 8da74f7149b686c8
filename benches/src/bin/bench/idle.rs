//! The command `idle`: the memory and the processor time that many open connections take over which nothing is sent.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Result, ensure};
use polyverbs::connection::{Connection, ConnectionOptions, Connector, Listener};
use polyverbs::emulated::{self, EmulatedOptions};
use polyverbs::{
    Completion, Cq, Memory, Mr, Qp, QpOptions,
    wr::{self, ReceiveRequest},
};
use polyverbs_benches::memory::{resident, used};
use polyverbs_benches::rig::{LOCAL, Rig};
use polyverbs_benches::side::check;
use rustix::process::{Resource, getrlimit};

use crate::crowd::SLOTS;
use crate::part::Part;
use crate::report::Limit::FigureAtMost;
use crate::report::{Report, Row};

/// The pause between the last handshake and a measurement: it is longer than any timer of a handshake, so that no such
/// timer runs during the measurement.
const REST: Duration = Duration::from_secs(12);
/// The number of connections whose handshakes (MPA or CM) run at the same time.
const AT_ONCE: usize = 64;
/// One of this many connections carries a message after the measurement, to check that the connection works.
const SAMPLE: usize = 100;
/// The limit of the resident memory for each of the two ends of a connection, in KiB.
const MOST: f64 = 10.0;
/// By how much the processor load with idle connections may exceed that without them, in per cent of one processor.
const NOTHING: f64 = 0.1;
/// The number of file descriptors that are reserved for the process's files and sockets other than those of connections.
const OTHERS: usize = 200;

/// Many open connections over which nothing is sent, both ends in one process: their memory and processor time
#[derive(Clone, clap::Args)]
pub(crate) struct Arguments {
    /// How many connections are opened; on iw0 fewer if the process may not have two sockets for each
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..))]
    count: u32,
    /// For how many seconds the processor time is measured
    #[arg(long, value_name = "S", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..))]
    seconds: u64,
    /// The kind of emulated device; by default ib0 and then iw0, each in a process of its own
    #[arg(long, value_name = "NAME")]
    device: Option<String>,
}

pub(crate) fn parts(arguments: &Arguments) -> Vec<Part> {
    let Arguments { count, seconds, .. } = *arguments;
    match arguments.device.clone() {
        Some(device) => vec![Part::new(device.clone(), move || {
            measure(&device, count as usize, Duration::from_secs(seconds))
        })],
        None => ["ib0", "iw0"]
            .map(|device| Part::new(device, move || in_child(device, count, seconds)))
            .into(),
    }
}

// Each device is measured in a process of its own, because one device would reuse, uncounted, the memory that another has
// freed.
fn in_child(device: &str, count: u32, seconds: u64) -> Result<Vec<Row>> {
    let output = Command::new(std::env::current_exe()?)
        .args(["idle", "--json", "--device", device])
        .args(["--count", &count.to_string()])
        .args(["--seconds", &seconds.to_string()])
        .stderr(Stdio::inherit())
        .output()?;
    ensure!(output.status.success(), "the measurement failed");
    let report: Report = serde_json::from_slice(&output.stdout)?;
    Ok(report.rows)
}

/// Opens `wanted` connections between two devices of this process, which have an address of loopback each, and leaves them
/// idle. Returns rows of the resident memory per end, and of the processor load over `time`. Afterwards it sends a message
/// over some of the connections, to check that they work.
fn measure(device: &str, wanted: usize, time: Duration) -> Result<Vec<Row>> {
    let (near, far) = (Side::new(device, 1)?, Side::new(device, 2)?);
    let listener = far.connector.listen(SocketAddr::new(address(2), 0), 0)?;
    // The first connection makes the allocations of the first use, so that they are not counted.
    let mut crowd = Crowd::default();
    crowd.connect(&near, &far, &listener, 1)?;
    sleep(REST);
    let empty = load(time);
    let before = resident();
    let connections = count_of(device, wanted);
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
    let grown = after.zip(before);
    let each = grown.map(|(after, before)| {
        let octets = after.saturating_sub(before) as f64 / (2 * connections) as f64;
        let name = format!("{device}, {connections} connections, memory of each end");
        Row::new(name, octets / 1024.0, "KiB").within(FigureAtMost(MOST))
    });
    let processor = Row::new(format!("{device}, processor, all open"), open, "%")
        .beside("none open", empty)
        .within(FigureAtMost(empty + NOTHING));
    Ok(each.into_iter().chain([processor]).collect())
}

/// Returns how many of the `wanted` connections are opened. On `iw0` the limit of file descriptors bounds them, because
/// both ends of a connection are TCP sockets of this process.
fn count_of(device: &str, wanted: usize) -> usize {
    let most = getrlimit(Resource::Nofile).current;
    let most = most.map_or(usize::MAX, |most| {
        usize::try_from(most).unwrap_or(usize::MAX)
    });
    match device {
        "iw0" => wanted.min(most.saturating_sub(OTHERS) / 2),
        _ => wanted,
    }
}

/// Sleeps for `time` and returns the processor time that this process used meanwhile, in per cent of one processor.
fn load(time: Duration) -> f64 {
    let before = used();
    sleep(time);
    100.0 * (used() - before).as_secs_f64() / time.as_secs_f64()
}

fn address(number: u8) -> IpAddr {
    Ipv4Addr::new(127, 0, 31, number).into()
}

struct Side {
    connector: Connector,
    rig: Rig,
    cq: Cq,
    mr: Mr,
    _memory: Memory,
}

impl Side {
    fn new(device: &str, number: u8) -> Result<Self> {
        let options = EmulatedOptions::default();
        let device = emulated::device_at(device, address(number), &options)?;
        let rig = Rig::open(&device)?;
        let (memory, mr) = rig.memory(4096, LOCAL)?;
        Ok(Self {
            connector: Connector::of(&rig.context)?,
            cq: rig.context.create_cq(256).wait()?,
            rig,
            mr,
            _memory: memory,
        })
    }

    fn qp(&self) -> Result<Qp> {
        let options = QpOptions::rc(&self.cq)
            .max_send_wr(SLOTS)
            .max_recv_wr(SLOTS);
        Ok(self.rig.pd.create_qp(options).wait()?)
    }

    fn done(&self) -> Result<()> {
        let done: Completion = self.cq.next().wait()?;
        check(&done)
    }
}

/// The open connections of this process. `near` has the QPs of the sides that connected, `far` those of the sides that
/// accepted, both in the order of their creation.
#[derive(Default)]
struct Crowd {
    near: Vec<Qp>,
    far: Vec<Qp>,
    connections: Vec<Connection>,
}

impl Crowd {
    /// Opens `count` more connections from `near` to the listener of `far`, with all handshakes running at the same time.
    fn connect(
        &mut self,
        near: &Side,
        far: &Side,
        listener: &Listener,
        count: usize,
    ) -> Result<()> {
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

    /// Sends a message over every hundredth connection, and checks that the send and its receive succeed.
    fn use_some(&self, near: &Side, far: &Side) -> Result<()> {
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
