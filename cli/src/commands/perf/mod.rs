//! `polyverbs perf`: the performance of a device, each figure beside the limit that bounds it.

mod figures;
mod local;
mod remote;
pub(crate) mod report;

use std::net::IpAddr;

use clap::ValueEnum;
use indicatif::ProgressBar;
use polyverbs::Device;
use polyverbs_benches::rig::Rig;

use super::network::{DeviceOptions, Endpoint, Limits};
use crate::interrupt::{self, Ending};
use crate::output::{device, parse_bytes, print_json, progress};

/// Measure a device, each figure beside the limit that it runs into
///
/// The yardstick is measured in the same run, before and after, by the same threads on the same kind of memory: an
/// absolute figure says more about the machine than about the device. Use a release build.
///
/// With an address it measures between two processes or machines: there the same command listens.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  polyverbs perf send-latency --device ib0
  polyverbs perf write-latency --device iw0 --size 8 --iters 1000000
  polyverbs perf bandwidth --device ib0 --size 64k
  polyverbs perf message-rate --device ib0 --json | jq .messages_per_second

Between two processes:
  polyverbs perf --listen 127.0.0.1:7472 --device ib0
  polyverbs perf send-latency 127.0.0.1:7472 --device ib0
  polyverbs perf read-bandwidth localhost:7472 --device ib0 --fault drop=1%")]
pub(crate) struct Arguments {
    /// What is measured
    #[arg(value_enum, required_unless_present = "listen")]
    test: Option<Test>,
    /// Where the other process listens; without one, both ends are in this process
    #[arg(value_name = "HOST:PORT")]
    to: Option<Endpoint>,
    #[command(flatten)]
    device: DeviceOptions,
    /// Take part in the measurements of others, at an address of this machine; port 0 has one assigned
    #[arg(long, value_name = "HOST:PORT", conflicts_with_all = ["test", "size", "iters"])]
    listen: Option<Endpoint>,
    /// End after so many connections
    #[arg(long, value_name = "N", requires = "listen")]
    connections: Option<u64>,
    #[command(flatten)]
    limits: Limits,
    /// Bytes of memory for all measurements at one time; those for which nothing is left are refused
    #[arg(long, value_name = "BYTES", requires = "listen", default_value = "1G", value_parser = parse_bytes)]
    max_bytes: u64,
    /// Local address, if not that of the route
    #[arg(long, value_name = "ADDRESS", requires = "to")]
    from: Option<IpAddr>,
    /// Bytes of each operation, up to 1G; atomics have 8 [default: 64 for send-latency and message-rate, 8 for the
    /// other latencies, 1M for bytes per second]
    #[arg(long, value_name = "BYTES", value_parser = parse_size)]
    size: Option<u32>,
    /// How many operations are measured [default: 200000; 2000 for bytes per second]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    iters: Option<u64>,
    /// Print a JSON object
    #[arg(long)]
    json: bool,
}

/// The measurements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Test {
    /// Half the round trip of a message between two threads
    SendLatency,
    /// A write, posted and polled by one thread
    WriteLatency,
    /// A read, posted and polled by one thread
    ReadLatency,
    /// A fetch-and-add, posted and polled by one thread
    AtomicLatency,
    /// Bytes per second of writes
    Bandwidth,
    /// Bytes per second of reads, from another process
    ReadBandwidth,
    /// Bytes per second of sends, to another process
    SendBandwidth,
    /// Writes per second: in one process in batches of 32 with one doorbell
    MessageRate,
}

impl Test {
    /// All of them, by number.
    const ALL: [Self; 8] = [
        Self::SendLatency,
        Self::WriteLatency,
        Self::ReadLatency,
        Self::AtomicLatency,
        Self::Bandwidth,
        Self::ReadBandwidth,
        Self::SendBandwidth,
        Self::MessageRate,
    ];

    fn number(self) -> u8 {
        Self::ALL.iter().position(|test| *test == self).unwrap_or(0) as u8
    }

    fn of_number(number: u8) -> Option<Self> {
        Self::ALL.get(usize::from(number)).copied()
    }

    fn counts_bytes(self) -> bool {
        matches!(
            self,
            Self::Bandwidth | Self::ReadBandwidth | Self::SendBandwidth
        )
    }

    // Whether the listening side notices each operation. Otherwise it has to poll all the time: its device needs that to make
    // progress.
    fn sends_messages(self) -> bool {
        matches!(self, Self::SendLatency | Self::SendBandwidth)
    }

    fn size(self) -> u32 {
        match self {
            Self::SendLatency | Self::MessageRate => 64,
            Self::WriteLatency | Self::ReadLatency | Self::AtomicLatency => 8,
            Self::Bandwidth | Self::ReadBandwidth | Self::SendBandwidth => 1 << 20,
        }
    }

    fn iterations(self) -> u64 {
        if self.counts_bytes() { 2000 } else { 200_000 }
    }

    fn name(self) -> &'static str {
        match self {
            Self::SendLatency => "send-latency",
            Self::WriteLatency => "write-latency",
            Self::ReadLatency => "read-latency",
            Self::AtomicLatency => "atomic-latency",
            Self::Bandwidth => "bandwidth",
            Self::ReadBandwidth => "read-bandwidth",
            Self::SendBandwidth => "send-bandwidth",
            Self::MessageRate => "message-rate",
        }
    }
}

/// A measurement to be taken.
struct Job<'d> {
    device: &'d Device,
    test: Test,
    size: u32,
    iterations: u64,
}

impl Job<'_> {
    fn needs_atomics(&self, rig: &Rig) -> anyhow::Result<()> {
        if !rig.has_atomics() {
            anyhow::bail!("{} has no atomic operations", self.device.name());
        }
        Ok(())
    }
}

fn parse_size(text: &str) -> Result<u32, String> {
    match parse_bytes(text)? {
        size @ 1..=LARGEST => Ok(size as u32),
        _ => Err("an operation has 1 byte to 1G".into()),
    }
}

/// A progress bar of this many operations.
fn bar(total: u64) -> ProgressBar {
    let bar = progress(total, "{bar:32.cyan/dim} {percent}%  {eta} left");
    let shown = bar.clone();
    interrupt::says(Ending::AtOnce, move || {
        let done = shown.position();
        shown.finish_and_clear();
        format!("{done} of {total} operations done, and no figure")
    });
    bar
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let options = &arguments.device;
    if let Some(listen) = &arguments.listen {
        let at = listen.own()?;
        let device = options.at(at.ip())?;
        return remote::listen(
            &device,
            at,
            arguments.connections,
            &arguments.limits.peers(),
            arguments.max_bytes,
            arguments.json,
        );
    }
    let Some(test) = arguments.test else {
        anyhow::bail!("nothing says what is measured");
    };
    let (device, to) = match &arguments.to {
        Some(to) => {
            let (device, to) = options.choose(to, arguments.from)?;
            (device, Some(to))
        }
        None if options.fault.is_some() => {
            anyhow::bail!("faults are those of the way to another process: name its address")
        }
        None => (device(&options.device)?, None),
    };
    let size = arguments.size.unwrap_or(test.size());
    if test == Test::AtomicLatency && size != 8 {
        anyhow::bail!("an atomic operation has 8 bytes, not {size}");
    }
    let job = Job {
        device: &device,
        test,
        size,
        iterations: arguments.iters.unwrap_or(test.iterations()),
    };
    let figures = match to {
        Some(to) => remote::measure(&job, to)?,
        None => local::measure(&job)?,
    };
    if arguments.json {
        let mut object = report::to_json(&device, test, size, &figures);
        if let Some(to) = to {
            object["to"] = to.to_string().into();
            object["fault"] = options.fault.map(|fault| fault.to_string()).into();
        }
        return print_json(&object);
    }
    report::print(&device, test, size, to, &figures)
}

/// Most bytes of one operation.
const LARGEST: u64 = 1 << 30;
