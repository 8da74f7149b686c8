//! `polyverbs copy`: copies a file over a device, and verifies it.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use polyverbs::Device;
use polyverbs::emulated::{self, EmulatedOptions, FaultSpec};
use serde_json::{Value, json};

use crate::interrupt::{self, Ending};
use crate::output::{
    AlreadyReported, BAD, BOLD, DIM, GOOD, count, format_bytes, parse_bytes, print_json, progress,
    rate, say, seconds, width, wrapped,
};
use crate::transfer::{self, Algorithm, Copied, CopyOptions, Digest, WINDOW};

/// Copy a file over a device, and compare what arrived
///
/// A client lends the file to a server, a part at a time and each part under a fresh key; the server fetches it in pieces
/// and returns the keys. Both are threads of this process, and each opens the device. The same code runs on every
/// transport: examples/copy.rs is a short form of it.
#[derive(clap::Args)]
#[command(after_help = format!("\
Faults, separated by commas:
{}
Examples:
  polyverbs copy FILE --device ib0 --to COPY
  polyverbs copy FILE --device iw0 --to COPY --json | jq .counters
  polyverbs copy FILE --device ib0 --to COPY --fault drop=5%
  polyverbs copy FILE --device ib0 --to /dev/null --piece 64k --depth 16", faults()))]
pub(crate) struct Arguments {
    /// The file to copy
    file: PathBuf,
    /// Name of the device to copy over
    #[arg(long, value_name = "NAME")]
    device: String,
    /// File that the copy is written to; an existing one is replaced
    #[arg(long, value_name = "PATH")]
    to: PathBuf,
    /// Run over a link with these faults: an emulated device of this kind is made for it
    #[arg(long, value_name = "FAULTS")]
    fault: Option<FaultSpec>,
    /// Bytes that one RDMA read fetches: up to 1M
    #[arg(long, value_name = "BYTES", default_value = "256k", value_parser = parse_piece)]
    piece: u32,
    /// RDMA reads that are outstanding at one time
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=1024))]
    depth: u32,
    /// Digest by which the bytes of both sides are compared
    #[arg(long, value_name = "NAME", value_enum, default_value_t)]
    digest: Algorithm,
    /// Print the result as a JSON object
    #[arg(long)]
    json: bool,
}

pub(crate) fn parse_piece(text: &str) -> Result<u32, String> {
    match parse_bytes(text)? {
        piece @ 1.. if piece <= u64::from(WINDOW) => Ok(piece as u32),
        _ => Err(format!("a piece has 1 to {WINDOW} bytes")),
    }
}

fn faults() -> String {
    let mut text = String::new();
    for form in emulated::FORMS {
        let link = match form.contract {
            None => "",
            Some(emulated::Contract::Datagram) => " (InfiniBand)",
            Some(emulated::Contract::Stream) => " (iWARP)",
        };
        text.push_str(&format!("  {:<12} {}{link}\n", form.name, form.meaning));
    }
    text
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let device = match arguments.fault {
        None => crate::output::device(&arguments.device)?,
        Some(faults) => faulty(&arguments.device, faults)?,
    };
    let options = CopyOptions {
        piece: arguments.piece,
        depth: arguments.depth,
    };
    let Arguments {
        file, to, digest, ..
    } = arguments;
    let run = copy(&device, file, to, options, *digest)?;
    if arguments.json {
        print_json(&to_json(&device, arguments, &run))?;
    } else {
        print(&device, &run)?;
    }
    if run.copied.is_intact() {
        return Ok(());
    }
    if arguments.json {
        return Err(AlreadyReported.into());
    }
    anyhow::bail!(
        "the digests differ: {} was left as it was",
        arguments.to.display(),
    )
}

// A device of its own, so that the links of registered devices stay as they are.
fn faulty(name: &str, faults: FaultSpec) -> anyhow::Result<Device> {
    crate::output::device(name)?;
    anyhow::ensure!(
        emulated::kind(name).is_some(),
        "{name} is no emulated device: it has no faults"
    );
    let options = EmulatedOptions {
        faults,
        ..EmulatedOptions::default()
    };
    Ok(emulated::device(name, &options)?)
}

/// The result of copying a file over a device, and how much each counter of the device has grown meanwhile.
pub(crate) struct Run {
    pub(crate) copied: Copied,
    counters: Vec<(&'static str, u64)>,
}

pub(crate) fn copy(
    device: &Device,
    from: &Path,
    to: &Path,
    options: CopyOptions,
    algorithm: Algorithm,
) -> anyhow::Result<Run> {
    let before = device.counters();
    let total = std::fs::metadata(from).map_or(0, |file| file.len());
    let bar = progress(
        total,
        "{bar:32.cyan/dim} {bytes:>10} of {total_bytes}  {bytes_per_sec}  {eta} left",
    );
    // The bar is full when it is cleared.
    let done = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&done);
    let what = to.display().to_string();
    interrupt::says(Ending::ByItself, move || {
        let copied = format_bytes(counted.load(Ordering::Relaxed));
        format!(
            "{copied} of {} copied, and {what} is as it was",
            format_bytes(total)
        )
    });
    let copied = transfer::copy(device, from, to, options, algorithm, |bytes| {
        done.store(bytes, Ordering::Relaxed);
        bar.set_position(bytes);
    });
    bar.finish_and_clear();
    let copied = copied.map_err(anyhow::Error::from_boxed)?;
    let counted = |(name, after): (&'static str, u64)| {
        let before = before
            .iter()
            .find(|(known, _)| *known == name)
            .map_or(0, |(_, count)| *count);
        (name, after - before)
    };
    Ok(Run {
        copied,
        counters: device.counters().into_iter().map(counted).collect(),
    })
}

/// Prints the result of copying a file as text, in two lines.
pub(crate) fn print(device: &Device, run: &Run) -> anyhow::Result<()> {
    let Copied {
        bytes,
        windows,
        pieces,
        elapsed,
        ..
    } = run.copied;
    let speed = bytes as f64 / elapsed.as_secs_f64();
    say!(
        "{BOLD}{}{BOLD:#}  {} in {}, {}; {}, {}",
        device.name(),
        format_bytes(bytes),
        seconds(elapsed),
        rate(speed),
        count(windows, "window"),
        count(pieces, "piece"),
    )?;
    let indent = device.name().len();
    print_digests(&run.copied)?;
    let counters = run.counters.iter().filter(|(_, count)| *count > 0);
    let counters: Vec<_> = counters
        .map(|(name, count)| format!("{name} {count}"))
        .collect();
    let counters = counters.iter().map(String::as_str);
    let counters = wrapped(counters, ", ", indent + 2, width());
    say!("{:indent$}  {DIM}{counters}{DIM:#}", "")?;
    Ok(())
}

/// Prints both digests, in one line if they are equal.
pub(crate) fn print_digests(copied: &Copied) -> anyhow::Result<()> {
    let name = copied.algorithm.name();
    let [client, server] = [copied.client_digest, copied.server_digest].map(hexadecimal);
    if copied.is_intact() {
        say!("{name} {server} {GOOD}equal{GOOD:#}")?;
    } else {
        say!("client {name} {client}")?;
        say!("server {name} {server} {BAD}DIFFERENT{BAD:#}")?;
    }
    Ok(())
}

fn to_json(device: &Device, arguments: &Arguments, run: &Run) -> Value {
    let Copied {
        bytes,
        windows,
        pieces,
        elapsed,
        ..
    } = run.copied;
    let counters: serde_json::Map<_, _> = run
        .counters
        .iter()
        .map(|&(name, count)| (name.to_owned(), json!(count)))
        .collect();
    json!({
        "file": arguments.file.to_string_lossy(),
        "to": arguments.to.to_string_lossy(),
        "device": device.name(),
        "transport": device.attributes().transport.name(),
        "fault": arguments.fault.map(|fault| fault.to_string()),
        "bytes": bytes,
        "piece": arguments.piece,
        "depth": arguments.depth,
        "window": WINDOW,
        "windows": windows,
        "pieces": pieces,
        "digests": digests_to_json(&run.copied),
        "seconds": elapsed.as_secs_f64(),
        "bytes_per_second": bytes as f64 / elapsed.as_secs_f64(),
        "counters": counters,
    })
}

/// Returns both digests as a JSON object.
pub(crate) fn digests_to_json(copied: &Copied) -> Value {
    json!({
        "algorithm": copied.algorithm.name(),
        "client": hexadecimal(copied.client_digest),
        "server": hexadecimal(copied.server_digest),
        "equal": copied.is_intact(),
    })
}

pub(crate) fn hexadecimal(digest: Digest) -> String {
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}
