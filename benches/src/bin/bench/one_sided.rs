//! The command `one-sided`: the time of an RDMA write to a process whose program is busy with something else. The two
//! processes are connected by shared memory in some cases, and by sockets in the others.

use std::hint::black_box;
use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, SocketAddr};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use polyverbs::connection::{ConnectionOptions, Connector};
use polyverbs::emulated::{EmulatedOptions, device};
use polyverbs::{Access, Completion, PathOptions, RemoteAddress, wr};
use polyverbs_benches::cpu;
use polyverbs_benches::rig::{LOCAL, Rig};
use polyverbs_benches::side::Side;

use crate::part::Part;
use crate::report::Limit::FigureAtMost;
use crate::report::{Row, US};

/// The limit of the 99th percentile of the time of a write, in microseconds, in each case: device, kind of connection
/// and work of the target.
const LIMIT: f64 = 100.0;
/// For how long the target's program polls before it turns to other work.
const POLLS: Duration = Duration::from_millis(5);
/// For how long the target's program computes or sleeps before it polls again.
const AWAY: Duration = Duration::from_millis(100);
/// The number of bytes of each write.
const BYTES: usize = 64;
/// The UDP or TCP port of the devices, which differs from the port of RoCEv2, because a kernel driver may hold that
/// port.
const PORT: u16 = 14_799;
/// The access rights that the target grants to the requester.
const PEER: Access = Access::REMOTE_WRITE;

/// Writes of 64 bytes, one after another, to a process whose program does something else meanwhile
///
/// The target process alternately polls its completion queue for 5 ms and computes or sleeps for 100 ms; or it polls only a
/// completion queue on which nothing ever completes. Requester and target have a processor each.
#[derive(Clone, clap::Args)]
pub(crate) struct Arguments {
    /// For how many seconds the requester writes to each target
    #[arg(long, value_name = "S", default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..))]
    seconds: u64,
    /// Makes this process the target of the writes of the case with this name; the requester starts such a process for
    /// each case
    #[arg(long, hide = true, value_parser = Case::of_name)]
    target: Option<Case>,
}

/// What the program of the target does while the requester writes.
#[derive(Clone, Copy)]
enum Work {
    Computes,
    Sleeps,
    PollsAnotherQueue,
}

#[derive(Clone, Copy)]
struct Case {
    device: &'static str,
    by_memory: bool,
    work: Work,
}

impl Case {
    fn all() -> impl Iterator<Item = Self> {
        let works = [Work::Computes, Work::Sleeps, Work::PollsAnotherQueue];
        ["ib0", "iw0"].into_iter().flat_map(move |device| {
            [true, false].into_iter().flat_map(move |by_memory| {
                works.map(|work| Self {
                    device,
                    by_memory,
                    work,
                })
            })
        })
    }

    /// Returns the name of the case, which is also the name of the report's part about this case:
    /// `ib0-memory-computes`, for example.
    fn name(&self) -> String {
        let way = if self.by_memory { "memory" } else { "sockets" };
        let work = match self.work {
            Work::Computes => "computes",
            Work::Sleeps => "sleeps",
            Work::PollsAnotherQueue => "polls-another-queue",
        };
        format!("{}-{way}-{work}", self.device)
    }

    fn of_name(name: &str) -> Result<Self> {
        let case = Self::all().find(|case| case.name() == name);
        case.context("there is no such case")
    }

    fn target_address(&self) -> Ipv4Addr {
        Ipv4Addr::new(127, 0, 91, if self.by_memory { 11 } else { 12 })
    }

    // Prints the address at which this process listens, accepts a connection, and works until the process is killed.
    fn be_target(&self) -> Result<Vec<Row>> {
        let address = self.target_address();
        let end = End::new(self, address)?;
        let another = end.rig.context.create_cq(16).wait()?;
        let connector = Connector::of(&end.rig.context)?;
        let listener = connector.listen(SocketAddr::new(address.into(), 0), 1)?;
        println!("{}", listener.address());
        let incoming = listener.next().wait()?;
        let accepted = incoming.accept(&end.side.qp, end.options());
        let _connection = accepted.wait()?;
        cpu::pin();
        let polled = match self.work {
            Work::PollsAnotherQueue => &another,
            _ => &end.side.cq,
        };
        let mut slots = [Completion::default()];
        loop {
            let began = Instant::now();
            while began.elapsed() < POLLS {
                polled.poll(&mut slots)?;
            }
            let began = Instant::now();
            match self.work {
                Work::Computes => while black_box(began.elapsed()) < AWAY {},
                Work::Sleeps => thread::sleep(AWAY),
                Work::PollsAnotherQueue => {}
            }
        }
    }

    fn measure(&self, time: Duration) -> Result<Vec<Row>> {
        let cpus = cpu::two().context("requester and target need a processor each")?;
        let target = Target::start(self)?;
        let end = End::new(self, REQUESTER)?;
        let connector = Connector::of(&end.rig.context)?;
        let connecting = connector.connect(&end.side.qp, target.address, end.options());
        let connection = connecting.wait()?;
        let peer = connection.private_data().first_chunk();
        let peer = peer.context("the target has not given the address of its memory")?;
        let peer = RemoteAddress::from_bytes(*peer);
        // This thread is pinned only after the target process was started, so that the target may use both processors.
        cpu::pin_to(cpus[1]);
        let mut times = Vec::new();
        let mut slot = [Completion::default()];
        let began = Instant::now();
        while began.elapsed() < time {
            let began = Instant::now();
            end.side
                .post(wr::Write::new(&[7; BYTES], peer).signaled(0))?;
            end.side.complete(&mut slot)?;
            times.push(began.elapsed().as_nanos() as f64 / 1e3);
        }
        times.sort_by(f64::total_cmp);
        Ok(self.rows(&times))
    }

    /// Returns rows with the 99 % and 99.9 % quantiles and the maximum of the times of writes. `times` is in microseconds,
    /// in ascending order.
    fn rows(&self, times: &[f64]) -> Vec<Row> {
        let at =
            |thousandths: usize| times[(times.len() * thousandths / 1000).min(times.len() - 1)];
        let row = |quantile: &str, thousandths| {
            let name = format!("{}, {quantile}", self.name());
            let row = Row::new(name, at(thousandths), US).beside("median", at(500));
            row.counted((times.len(), times.len()))
        };
        vec![
            row("99 %", 990).within(FigureAtMost(LIMIT)),
            row("99.9 %", 999),
            row("longest", 1000),
        ]
    }
}

pub(crate) fn parts(arguments: &Arguments) -> Vec<Part> {
    if let Some(case) = arguments.target {
        return vec![Part::new(case.name(), move || case.be_target())];
    }
    let time = Duration::from_secs(arguments.seconds);
    Case::all()
        .map(|case| Part::new(case.name(), move || case.measure(time)))
        .collect()
}

const REQUESTER: Ipv4Addr = Ipv4Addr::new(127, 0, 91, 11);

struct End {
    rig: Rig,
    side: Side,
}

impl End {
    fn new(case: &Case, address: Ipv4Addr) -> Result<Self> {
        let options = EmulatedOptions {
            at: Some(SocketAddr::new(address.into(), PORT)),
            without_shared_memory: !case.by_memory,
            ..EmulatedOptions::default()
        };
        let rig = Rig::open(&device(case.device, &options)?)?;
        let side = Side::new(&rig, BYTES, LOCAL | PEER, [16, 16])?;
        Ok(Self { rig, side })
    }

    /// Returns the options with which requester or target connects or accepts: they grant the peer RDMA writes, and
    /// send the address and the R_Key of this process's memory to the peer as private data.
    fn options(&self) -> ConnectionOptions {
        ConnectionOptions::new()
            .path(PathOptions::new().access(PEER))
            .private_data(&self.side.region.remote(0).to_bytes())
    }
}

/// The target's process, and the address at which it listens for the connection. The process is killed on drop.
struct Target {
    process: Child,
    address: SocketAddr,
}

impl Target {
    fn start(case: &Case) -> Result<Self> {
        let mut process = Command::new(std::env::current_exe()?)
            .args(["one-sided", "--target", &case.name()])
            .stdout(Stdio::piped())
            .spawn()?;
        let mut line = String::new();
        let output = process.stdout.take().context("the output is piped")?;
        BufReader::new(output).read_line(&mut line)?;
        let address = line.trim().parse();
        let address = address.context("the target has not given its address")?;
        Ok(Self { process, address })
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
