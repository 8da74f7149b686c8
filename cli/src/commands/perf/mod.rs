//! `polyverbs perf`: how fast a device is, each figure beside the limit that it runs into.

mod figures;
mod pair;
mod report;
mod tests;
mod yardstick;

use clap::ValueEnum;

use crate::output::{device, parse_octets, print_json};
use tests::Job;

/// Measure a device, each figure beside the limit that it runs into
///
/// The yardstick is measured in the same run, before and after, by the same threads on the same kind of memory: an
/// absolute figure says more about the machine than about the device. Use a release build.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  polyverbs perf send-latency --device ib0
  polyverbs perf write-latency --device iw0 --size 8 --iters 1000000
  polyverbs perf bandwidth --device ib0 --size 64k
  polyverbs perf message-rate --device ib0 --json | jq .messages_per_second")]
pub(crate) struct Arguments {
    /// What is measured
    #[arg(value_enum)]
    test: Test,
    /// The device
    #[arg(long, value_name = "NAME")]
    device: String,
    /// Octets of each operation, up to 1G; atomics have 8 [default: 64 for send-latency and message-rate, 8 for the
    /// other latencies, 1M for bandwidth]
    #[arg(long, value_name = "OCTETS", value_parser = parse_size)]
    size: Option<u32>,
    /// How many operations are measured [default: 200000; 2000 for bandwidth]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    iters: Option<u64>,
    /// Print a JSON object
    #[arg(long)]
    json: bool,
}

/// What is measured.
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
    /// Octets per second of writes
    Bandwidth,
    /// Writes per second, in batches of 32 with one doorbell
    MessageRate,
}

impl Test {
    fn size(self) -> u32 {
        match self {
            Self::SendLatency | Self::MessageRate => 64,
            Self::WriteLatency | Self::ReadLatency | Self::AtomicLatency => 8,
            Self::Bandwidth => 1 << 20,
        }
    }

    fn iterations(self) -> u64 {
        match self {
            Self::Bandwidth => 2000,
            _ => 200_000,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::SendLatency => "send-latency",
            Self::WriteLatency => "write-latency",
            Self::ReadLatency => "read-latency",
            Self::AtomicLatency => "atomic-latency",
            Self::Bandwidth => "bandwidth",
            Self::MessageRate => "message-rate",
        }
    }
}

fn parse_size(text: &str) -> Result<u32, String> {
    match parse_octets(text)? {
        size @ 1..=0x4000_0000 => Ok(size as u32),
        _ => Err("an operation has 1 octet to 1G".into()),
    }
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let device = device(&arguments.device)?;
    let Arguments { test, .. } = *arguments;
    let size = arguments.size.unwrap_or(test.size());
    if test == Test::AtomicLatency && size != 8 {
        anyhow::bail!("an atomic operation has 8 octets, not {size}");
    }
    let iterations = arguments.iters.unwrap_or(test.iterations());
    let figures = tests::run(&Job {
        device: &device,
        test,
        size,
        iterations,
    })?;
    if arguments.json {
        return print_json(&report::to_json(&device, test, size, &figures));
    }
    report::print(&device, test, size, &figures)
}
