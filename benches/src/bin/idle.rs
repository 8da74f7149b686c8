//! Opens many connections over sockets, leaves them idle, and reports the memory and the processor time that they take.

use std::process::{Command, ExitCode};

use comfy_table::Table;
use comfy_table::presets::ASCII_MARKDOWN;
use polyverbs_benches::Outcome;
use polyverbs_benches::idle::{Idle, measure};
use rustix::process::{Resource, getrlimit};

const USAGE: &str = "\
Opens many connections over sockets, both ends in this process, and lets them be.

usage: idle [--count N] [--seconds S] [--device NAME]

  --count N      connections, 10,000 unless given; over TCP fewer where the process may not have so many sockets
  --seconds S    how long they are looked at, 5 unless given
  --device NAME  ib0 or iw0, both unless given
";

/// The most bytes that an end may occupy.
const MOST: f64 = 10.0 * 1024.0;
/// The share of a processor that may be measured although nothing happens.
const NOTHING: f64 = 0.001;
/// Sockets and files of the process in addition to those of connections.
const OTHERS: usize = 200;

struct Asked {
    count: usize,
    seconds: u64,
    device: Option<String>,
}

fn main() -> ExitCode {
    let Some(asked) = asked(std::env::args().skip(1)) else {
        print!("{USAGE}");
        return ExitCode::from(2);
    };
    match run(&asked) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(problem) => {
            eprintln!("idle: {problem}");
            ExitCode::FAILURE
        }
    }
}

fn asked(mut arguments: impl Iterator<Item = String>) -> Option<Asked> {
    let mut asked = Asked {
        count: 10_000,
        seconds: 5,
        device: None,
    };
    while let Some(option) = arguments.next() {
        let value = arguments.next()?;
        match option.as_str() {
            "--count" => asked.count = value.parse().ok().filter(|&count| count > 0)?,
            "--seconds" => asked.seconds = value.parse().ok().filter(|&seconds| seconds > 0)?,
            "--device" => asked.device = Some(value),
            _ => return None,
        }
    }
    Some(asked)
}

// Each device is measured in a process of its own, because one device would reuse, uncounted, the memory
// that another has freed.
fn run(asked: &Asked) -> Outcome<bool> {
    if let Some(device) = &asked.device {
        return show(asked, device);
    }
    let mut all = true;
    for device in ["ib0", "iw0"] {
        let status = Command::new(std::env::current_exe()?)
            .args(["--count", &asked.count.to_string()])
            .args(["--seconds", &asked.seconds.to_string()])
            .args(["--device", device])
            .status()?;
        all &= status.success();
    }
    Ok(all)
}

fn show(asked: &Asked, device: &str) -> Outcome<bool> {
    let idle = measure(device, count_of(device, asked.count), asked.seconds)?;
    let is_within = is_within(&idle);
    let end = idle.octets.map(|octets| octets / 2.0);
    let mut table = Table::new();
    table.load_preset(ASCII_MARKDOWN);
    table.set_header([
        "device",
        "connections",
        "KiB of each end",
        "processor, none open",
        "processor, all open",
        "within the bar",
    ]);
    table.add_row([
        device.to_owned(),
        idle.connections.to_string(),
        end.map_or("unknown".to_owned(), |end| format!("{:.2}", end / 1024.0)),
        format!("{:.3} %", idle.empty * 100.0),
        format!("{:.3} %", idle.open * 100.0),
        if is_within { "yes" } else { "no" }.to_owned(),
    ]);
    println!("{table}");
    Ok(is_within)
}

fn is_within(idle: &Idle) -> bool {
    idle.octets.is_some_and(|octets| octets / 2.0 < MOST) && idle.open < idle.empty + NOTHING
}

/// The number of connections, limited by the descriptors: over streams both ends of a connection are sockets of this process.
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
