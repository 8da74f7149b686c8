//! The command `load`: a server with many clients, in two processes of this machine, next to processes that compute without a
//! pause. A peer without a processor answers late, and nothing is lost, so nothing should be sent again.

use std::hint::black_box;
use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, SocketAddr};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use polyverbs::connection::{ConnectionOptions, Connector};
use polyverbs::emulated::{EmulatedOptions, device};
use polyverbs::provider::Mutex;
use polyverbs::{
    Access, Completion, Context, PathOptions, Qp, QpOptions, RemoteAddress, WcStatus,
    wr::{self, ReceiveRequest},
};
use polyverbs_benches::rig::{LOCAL, Rig};
use polyverbs_benches::sample::median;

use crate::part::Part;
use crate::report::Limit::{FigureAtMost, RatioAtMost};
use crate::report::Row;

/// The number of clients, each with a queue pair of its own.
const CLIENTS: usize = 90;
/// How often each client asks, and the server's program answers.
const ROUNDS: usize = 50;
/// The bytes of a question and of an answer.
const MESSAGE: usize = 64;
/// The bytes that each client writes into the server's memory after its last round.
const WRITE: usize = 256 << 10;
/// The number of processes that compute without a pause.
const BUSY: usize = 2;
/// The UDP or TCP port of the devices, which differs from the port of RoCEv2, because a kernel driver may hold that port.
const PORT: u16 = 14_798;
const PEER: Access = Access::REMOTE_WRITE;
/// The requests that are no receives of the server.
const SENT: u64 = u64::MAX;

/// A server with 90 clients next to two busy processes, by turns with and without these
///
/// Each client connects, asks the server's program 50 times, and writes 256 KiB. Rows show the time of all with the busy
/// processes next to the time without them, and how many packets were sent again.
#[derive(Clone, clap::Args)]
pub(crate) struct Arguments {
    /// How often each case is measured with and without busy processes
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..))]
    turns: u64,
    /// Makes this process the server of the case with this name
    #[arg(long, hide = true, value_parser = Case::of_name)]
    serve: Option<Case>,
    /// Makes this process compute until it is killed
    #[arg(long, hide = true)]
    compute: bool,
}

#[derive(Clone, Copy)]
struct Case {
    device: &'static str,
    by_memory: bool,
}

impl Case {
    fn all() -> impl Iterator<Item = Self> {
        ["ib0", "iw0"]
            .into_iter()
            .flat_map(|device| [true, false].map(|by_memory| Self { device, by_memory }))
    }

    fn name(&self) -> String {
        let way = if self.by_memory { "memory" } else { "sockets" };
        format!("{}-{way}", self.device)
    }

    fn of_name(name: &str) -> Result<Self> {
        let case = Self::all().find(|case| case.name() == name);
        case.context("there is no such case")
    }

    fn open(&self, last: u8) -> Result<(Rig, Ipv4Addr)> {
        let address = Ipv4Addr::new(127, 0, 92, if self.by_memory { 1 } else { last });
        let options = EmulatedOptions {
            at: Some(SocketAddr::new(address.into(), PORT)),
            without_shared_memory: !self.by_memory,
            ..EmulatedOptions::default()
        };
        Ok((Rig::open(&device(self.device, &options)?)?, address))
    }

    // Prints the address at which this process listens, and answers until it is killed.
    fn serve(&self) -> Result<Vec<Row>> {
        let (rig, address) = self.open(2)?;
        let cq = rig.context.create_cq(4 * CLIENTS as u32).wait()?;
        let (_questions, region) = rig.memory(CLIENTS * MESSAGE, LOCAL)?;
        let (_target, target) = rig.memory(WRITE, LOCAL | PEER)?;
        let connector = Connector::of(&rig.context)?;
        let listener = connector.listen(SocketAddr::new(address.into(), 0), CLIENTS)?;
        println!("{}", listener.address());
        let qps = Arc::new(Mutex::new(Vec::<Qp>::new()));
        let answered = Arc::clone(&qps);
        let receive = move |qp: &Qp, place: u64| {
            let room = region.sge(place as usize * MESSAGE, MESSAGE as u32)?;
            anyhow::Ok(qp.post_receive(ReceiveRequest::new(place, room))?)
        };
        let receive_again = receive.clone();
        let context = rig.context.clone();
        let queue = cq.clone();
        thread::spawn(move || {
            let mut slots = std::array::from_fn::<_, 16, _>(|_| Completion::default());
            loop {
                for done in queue.next_batch(&mut slots).wait()? {
                    if done.wr_id == SENT || done.status != WcStatus::Success {
                        continue;
                    }
                    let qp = answered.lock()[done.wr_id as usize].clone();
                    receive_again(&qp, done.wr_id)?;
                    // The answer says how many packets this side has sent again.
                    let mut answer = [0; MESSAGE];
                    answer[..8].copy_from_slice(&retransmissions(&context).to_ne_bytes());
                    qp.post_one(wr::Send::new(&answer[..]).signaled(SENT))?;
                }
            }
            #[expect(unreachable_code, reason = "the type of the result")]
            anyhow::Ok(())
        });
        let mut connections = Vec::new();
        for place in 0..CLIENTS as u64 {
            let incoming = listener.next().wait()?;
            let qp = rig.pd.create_qp(QpOptions::rc(&cq)).wait()?;
            // The first question may come with the end of the handshake.
            qp.init(PathOptions::new()).wait()?;
            receive(&qp, place)?;
            qps.lock().push(qp.clone());
            let options = options().private_data(&target.remote(0).to_bytes());
            connections.push(incoming.accept(&qp, options).wait()?);
        }
        loop {
            thread::park();
        }
    }

    /// Runs the clients once, and returns the seconds that they took, and how many packets both sides sent again.
    fn turn(&self) -> Result<(f64, u64)> {
        let server = Server::start(self)?;
        let (rig, _) = self.open(1)?;
        let connector = Connector::of(&rig.context)?;
        let cq = rig.context.create_cq(4 * CLIENTS as u32).wait()?;
        let (memory, region) = rig.memory(CLIENTS * MESSAGE, LOCAL)?;
        let (_source, source) = rig.memory(WRITE, LOCAL)?;
        let mut qps = Vec::new();
        for _ in 0..CLIENTS {
            qps.push(rig.pd.create_qp(QpOptions::rc(&cq)).wait()?);
        }
        let began = Instant::now();
        let connecting = qps.iter();
        let connecting = connecting.map(|qp| connector.connect(qp, server.address, options()));
        let connecting: Vec<_> = connecting.collect();
        let mut connections = Vec::new();
        for one in connecting {
            connections.push(one.wait()?);
        }
        let mut slots = std::array::from_fn::<_, 16, _>(|_| Completion::default());
        let mut wait_for = |mut count: usize| {
            while count > 0 {
                for done in cq.next_batch(&mut slots).wait()? {
                    ensure!(done.status == WcStatus::Success, "{}", done.status);
                    count -= usize::from(done.wr_id != SENT);
                }
            }
            anyhow::Ok(())
        };
        for _ in 0..ROUNDS {
            for (place, qp) in qps.iter().enumerate() {
                let room = region.sge(place * MESSAGE, MESSAGE as u32)?;
                qp.post_receive(ReceiveRequest::new(place as u64, room))?;
                qp.post_one(wr::Send::new(&[7; MESSAGE]).signaled(SENT))?;
            }
            wait_for(CLIENTS)?;
        }
        for (qp, connection) in qps.iter().zip(&connections) {
            let target = connection.private_data().first_chunk();
            let target = target.context("the server has not given the address of its memory")?;
            let target = RemoteAddress::from_bytes(*target);
            let write = wr::Write::new(source.sge(0, WRITE as u32)?, target);
            qp.post_one(write.signaled(0))?;
        }
        wait_for(CLIENTS)?;
        let seconds = began.elapsed().as_secs_f64();
        let mut answer = [0; 8];
        let mut again = 0;
        for place in 0..CLIENTS {
            memory.read(place * MESSAGE, &mut answer)?;
            again = again.max(u64::from_ne_bytes(answer));
        }
        Ok((seconds, again + retransmissions(&rig.context)))
    }

    fn measure(&self, turns: u64) -> Result<Vec<Row>> {
        let (mut idle, mut busy, mut again) = (Vec::new(), Vec::new(), [0, 0]);
        for _ in 0..turns {
            let (seconds, sent_again) = self.turn()?;
            idle.push(seconds);
            again[0] += sent_again;
            let processes = Busy::start()?;
            let (seconds, sent_again) = self.turn()?;
            drop(processes);
            busy.push(seconds);
            again[1] += sent_again;
        }
        let name = self.name();
        let most = if self.by_memory { 2.0 } else { 3.0 };
        let counts = (idle.len(), idle.len());
        let time = Row::new(format!("{name}, next to {BUSY} busy"), median(busy), "s");
        let time = time.beside("alone", median(idle)).counted(counts);
        let sent_again = |when: &str, count: u64| {
            let row = Row::new(format!("{name}, sent again, {when}"), count as f64, "");
            // Over sockets a packet may be lost.
            row.counted(counts)
                .within(self.by_memory.then_some(FigureAtMost(0.0)))
        };
        Ok(vec![
            time.within(RatioAtMost(most)),
            sent_again("busy", again[1]),
            sent_again("alone", again[0]),
        ])
    }
}

fn options() -> ConnectionOptions {
    ConnectionOptions::new().path(PathOptions::new().access(PEER))
}

fn retransmissions(context: &Context) -> u64 {
    let counters = context.counters();
    let found = counters.iter().find(|(name, _)| *name == "retransmissions");
    found.map_or(0, |(_, count)| *count)
}

pub(crate) fn parts(arguments: &Arguments) -> Vec<Part> {
    if arguments.compute {
        return vec![Part::new("compute", || {
            loop {
                black_box(());
            }
        })];
    }
    if let Some(case) = arguments.serve {
        return vec![Part::new(case.name(), move || case.serve())];
    }
    let turns = arguments.turns;
    Case::all()
        .map(|case| Part::new(case.name(), move || case.measure(turns)))
        .collect()
}

/// A process of this program, which is killed on drop.
struct Process(Child);

impl Process {
    fn start(arguments: &[&str]) -> Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        let started = command.arg("load").args(arguments).stdout(Stdio::piped());
        Ok(Self(started.spawn()?))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

struct Busy(#[expect(dead_code, reason = "they are killed on drop")] [Process; BUSY]);

impl Busy {
    fn start() -> Result<Self> {
        let compute = || Process::start(&["--compute"]);
        Ok(Self([compute()?, compute()?]))
    }
}

/// The server's process, and the address at which it listens.
struct Server {
    _process: Process,
    address: SocketAddr,
}

impl Server {
    fn start(case: &Case) -> Result<Self> {
        let mut process = Process::start(&["--serve", &case.name()])?;
        let mut line = String::new();
        let output = process.0.stdout.take().context("the output is piped")?;
        BufReader::new(output).read_line(&mut line)?;
        let address = line.trim().parse();
        let address = address.context("the server has not given its address")?;
        Ok(Self {
            _process: process,
            address,
        })
    }
}
