//! How long a write takes whose target is busy with something else: it computes, sleeps, or polls another queue. The two
//! ends are processes, connected by shared memory and by sockets.

use std::env::Args;
use std::hint::{black_box, spin_loop};
use std::io::{BufRead, BufReader};
use std::iter::Skip;
use std::net::{Ipv4Addr, SocketAddr};
use std::process::{Child, Command, ExitCode, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use comfy_table::Table;
use comfy_table::presets::ASCII_MARKDOWN;
use polyverbs::connection::{ConnectionOptions, Connector};
use polyverbs::emulated::{EmulatedOptions, device};
use polyverbs::{
    Access, Completion, Context, Cq, Memory, Mr, PathOptions, Qp, QpOptions, RemoteAddress,
    Requirements, wr,
};
use polyverbs_benches::{Outcome, command, cpu};
use serde_json::json;

const USAGE: &str = "\
Measures writes of 64 bytes, one after another, to a process whose program does something else meanwhile.

usage: one_sided [--seconds S] [--json]

  --seconds S  how long each target is written to, 3 unless given
  --json       for programs

The program of the target polls its queue for 5 ms again and again, and in between computes or sleeps for 100 ms; or it
polls a queue where nothing ever completes. Requester and target have a processor each.
";

/// The limit of the 99th percentile of each, in microseconds.
const BAR: f64 = 100.0;
const POLLS: Duration = Duration::from_millis(5);
const AWAY: Duration = Duration::from_millis(100);
const BYTES: usize = 64;
/// Differs from the port of RoCEv2, which a kernel driver may hold.
const PORT: u16 = 14_799;
const DEVICES: [&str; 2] = ["ib0", "iw0"];
const TARGETS: [&str; 3] = ["computes", "sleeps", "polls another queue"];

struct Options {
    time: Duration,
    json: bool,
    /// Makes this process a target: the device, its address and what the target does.
    target: Option<[String; 3]>,
}

fn main() -> ExitCode {
    command::run("one_sided", USAGE, options, |options| {
        match &options.target {
            Some([device, address, does]) => be_target(device, address.parse()?, does),
            None => measure(options),
        }
    })
}

fn options(mut arguments: Skip<Args>) -> Result<Option<Options>, String> {
    let mut options = Options {
        time: Duration::from_secs(3),
        json: false,
        target: None,
    };
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().ok_or(format!("{argument} needs a value"));
        match argument.as_str() {
            "--seconds" => options.time = Duration::from_secs(command::count(&value()?)?),
            "--json" => options.json = true,
            "--target" => options.target = Some([value()?, value()?, value()?]),
            "--help" | "-h" => return Ok(None),
            other => return Err(format!("unknown argument {other}")),
        }
    }
    Ok(Some(options))
}

struct End {
    context: Context,
    cq: Cq,
    qp: Qp,
    _memory: Memory,
    mr: Mr,
}

impl End {
    fn new(name: &str, address: Ipv4Addr, by_memory: bool) -> Outcome<Self> {
        let options = EmulatedOptions {
            at: Some(SocketAddr::new(address.into(), PORT)),
            without_shared_memory: !by_memory,
            ..EmulatedOptions::default()
        };
        let context = device(name, &options)?.open(&Requirements::new())?;
        let pd = context.alloc_pd().wait()?;
        let cq = context.create_cq(16).wait()?;
        let qp = pd.create_qp(QpOptions::rc(&cq)).wait()?;
        let memory = Memory::zeroed(BYTES)?;
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let mr = pd.register(&memory, access).wait()?;
        Ok(Self {
            context,
            cq,
            qp,
            _memory: memory,
            mr,
        })
    }

    /// The options with which the peer may write to this end.
    fn options(&self) -> ConnectionOptions {
        ConnectionOptions::new()
            .path(PathOptions::new().access(Access::REMOTE_WRITE))
            .private_data(&self.mr.remote(0).to_bytes())
    }
}

fn target_address(by_memory: bool) -> Ipv4Addr {
    Ipv4Addr::new(127, 0, 91, if by_memory { 11 } else { 12 })
}

const REQUESTER: Ipv4Addr = Ipv4Addr::new(127, 0, 91, 11);

// Prints the address at which it listens, and does its work until it is killed.
fn be_target(device: &str, address: Ipv4Addr, does: &str) -> Outcome<()> {
    let end = End::new(device, address, address == REQUESTER)?;
    let another = end.context.create_cq(16).wait()?;
    let connector = Connector::of(&end.context)?;
    let listener = connector.listen(SocketAddr::new(address.into(), 0), 1)?;
    println!("{}", listener.address());
    let incoming = listener.next().wait()?;
    let accepted = incoming.accept(&end.qp, end.options());
    let _connection = accepted.wait()?;
    if let Some([cpu, _]) = cpu::two() {
        cpu::pin_to(cpu);
    }
    let mut slots = [Completion::default()];
    loop {
        let began = Instant::now();
        let polled = if does == TARGETS[2] {
            &another
        } else {
            &end.cq
        };
        while began.elapsed() < POLLS {
            polled.poll(&mut slots)?;
        }
        let began = Instant::now();
        match does {
            "computes" => while black_box(began.elapsed()) < AWAY {},
            "sleeps" => thread::sleep(AWAY),
            _ => {}
        }
    }
}

struct Target {
    process: Child,
    address: SocketAddr,
}

impl Target {
    fn start(device: &str, by_memory: bool, does: &str) -> Outcome<Self> {
        let address = target_address(by_memory).to_string();
        let mut process = Command::new(std::env::current_exe()?)
            .args(["--target", device, &address, does])
            .stdout(Stdio::piped())
            .spawn()?;
        let mut said = String::new();
        let output = process.stdout.take().ok_or("the target says nothing")?;
        BufReader::new(output).read_line(&mut said)?;
        let address = said.trim().parse()?;
        Ok(Self { process, address })
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The duration of each write, the shortest first.
struct Times(Vec<Duration>);

impl Times {
    fn of(device: &str, by_memory: bool, does: &str, time: Duration) -> Outcome<Self> {
        let target = Target::start(device, by_memory, does)?;
        let end = End::new(device, REQUESTER, by_memory)?;
        let (connector, qp) = (Connector::of(&end.context)?, &end.qp);
        let connecting = connector.connect(qp, target.address, end.options());
        let connection = connecting.wait()?;
        let peer = connection.private_data().first_chunk();
        let peer = RemoteAddress::from_bytes(*peer.ok_or("the target does not say where")?);
        // The target process has started before this thread is pinned, so it may use both processors.
        if let Some([_, cpu]) = cpu::two() {
            cpu::pin_to(cpu);
        }
        let mut times = Vec::new();
        let mut slots = [Completion::default()];
        let began = Instant::now();
        while began.elapsed() < time {
            let began = Instant::now();
            qp.post_one(wr::Write::new(&[7; BYTES], peer).signaled(0))?;
            while end.cq.poll(&mut slots)?.is_empty() {
                spin_loop();
            }
            times.push(began.elapsed());
            if !slots[0].status.is_success() {
                return Err(format!("a write ended: {:?}", slots[0]).into());
            }
        }
        times.sort();
        Ok(Self(times))
    }

    /// The quantile of so many thousandths, in microseconds.
    fn at(&self, thousandths: usize) -> f64 {
        let place = (self.0.len() * thousandths / 1000).min(self.0.len() - 1);
        self.0[place].as_nanos() as f64 / 1e3
    }
}

fn measure(options: &Options) -> Outcome<()> {
    cpu::two().ok_or("it takes two processors")?;
    let mut table = Table::new();
    table.load_preset(ASCII_MARKDOWN);
    let mut rows = Vec::new();
    table.set_header([
        "device",
        "by",
        "the target",
        "writes",
        "median",
        "99 %",
        "99.9 %",
        "longest",
        "bar",
    ]);
    for device in DEVICES {
        for by_memory in [true, false] {
            for does in TARGETS {
                let time = options.time;
                let by = if by_memory { "memory" } else { "sockets" };
                let times = thread::scope(|scope| {
                    let taken = scope.spawn(|| {
                        Times::of(device, by_memory, does, time).map_err(|error| error.to_string())
                    });
                    taken.join().unwrap_or_else(|_| Err("it panicked".into()))
                });
                let times = times
                    .map_err(|problem| format!("{device} by {by}, the target {does}: {problem}"))?;
                let [median, p99, p999, longest] = [500, 990, 999, 1000].map(|at| times.at(at));
                let is_met = p99 <= BAR;
                let micros = |value: f64| format!("{value:.2} us");
                table.add_row([
                    device.to_owned(),
                    by.to_owned(),
                    does.to_owned(),
                    times.0.len().to_string(),
                    micros(median),
                    micros(p99),
                    micros(p999),
                    micros(longest),
                    if is_met { "met" } else { "missed" }.to_owned(),
                ]);
                rows.push(json!({
                    "device": device, "by": by, "target": does, "writes": times.0.len(),
                    "median_us": median, "p99_us": p99, "p999_us": p999, "longest_us": longest,
                    "bar_us": BAR, "met": is_met,
                }));
            }
        }
    }
    match options.json {
        true => println!("{:#}", json!({ "rows": rows })),
        false => println!("{table}"),
    }
    Ok(())
}
