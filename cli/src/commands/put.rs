//! `polyverbs put`: sends a file to another process or machine.

use std::io::Write as _;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde_json::json;

use super::copy::{digests_to_json, print_digests};
use super::network::{DeviceOptions, Endpoint, parse_seconds};
use crate::interrupt::{self, Ending};
use crate::output::{
    AlreadyReported, BOLD, count, format_bytes, print_json, progress, rate, say, seconds,
};
use crate::transfer::{Algorithm, network};

/// Send a file to `polyverbs serve`, and compare what arrived
///
/// The server fetches the file in pieces, under fresh keys, and answers with the length and digest of what it has stored.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  polyverbs put FILE 127.0.0.1:4420 --device ib0
  polyverbs put FILE localhost:4420 --device iw0
  polyverbs put FILE 192.0.2.7:4420 --device ib0 --fault drop=1%,reorder=1%")]
pub(crate) struct Arguments {
    /// The file to send
    file: PathBuf,
    /// Host and port of the server
    #[arg(value_name = "HOST:PORT")]
    to: Endpoint,
    #[command(flatten)]
    device: DeviceOptions,
    /// Local address to send from; by default that of the route
    #[arg(long, value_name = "ADDRESS")]
    from: Option<IpAddr>,
    /// Seconds for which a server without a free place is asked again
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = parse_seconds)]
    timeout: Duration,
    /// Digest by which the bytes of both sides are compared
    #[arg(long, value_name = "NAME", value_enum, default_value_t)]
    digest: Algorithm,
    /// Print the result as a JSON object
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let total = std::fs::metadata(&arguments.file).map_or(0, |file| file.len());
    let (device, to) = arguments.device.choose(&arguments.to, arguments.from)?;
    let bar = progress(
        total,
        "{bar:32.cyan/dim} {bytes:>10} of {total_bytes}  {bytes_per_sec}  {eta} left",
    );
    // The bar is full when it is cleared.
    let sent = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&sent);
    interrupt::says(Ending::ByItself, move || {
        let sent = counted.load(Ordering::Relaxed);
        // The answer may be on its way.
        let stored = match sent < total {
            true => "nothing is stored",
            false => "it may be stored",
        };
        let (sent, total) = (format_bytes(sent), format_bytes(total));
        format!("{sent} of {total} sent, and {stored}")
    });
    let Arguments {
        file,
        timeout,
        digest,
        ..
    } = arguments;
    let copied = network::put(&device, file, to, *timeout, *digest, |bytes| {
        sent.store(bytes, Ordering::Relaxed);
        bar.set_position(bytes);
    });
    bar.finish_and_clear();
    let copied = copied.map_err(anyhow::Error::from_boxed)?;
    let speed = copied.bytes as f64 / copied.elapsed.as_secs_f64();
    if arguments.json {
        let counters: serde_json::Map<_, _> = device
            .counters()
            .into_iter()
            .map(|(name, count)| (name.to_owned(), json!(count)))
            .collect();
        print_json(&json!({
            "file": arguments.file.to_string_lossy(),
            "to": to,
            "device": device.name(),
            "transport": device.attributes().transport.name(),
            "fault": arguments.device.fault.map(|fault| fault.to_string()),
            "bytes": copied.bytes,
            "windows": copied.windows,
            "digests": digests_to_json(&copied),
            "seconds": copied.elapsed.as_secs_f64(),
            "bytes_per_second": speed,
            "counters": counters,
        }))?;
        return copied
            .is_intact()
            .then_some(())
            .ok_or(AlreadyReported.into());
    }
    say!(
        "{BOLD}{}{BOLD:#}  {} in {}, {}; {}",
        device.name(),
        format_bytes(copied.bytes),
        seconds(copied.elapsed),
        rate(speed),
        count(copied.windows, "window"),
    )?;
    print_digests(&copied)?;
    anyhow::ensure!(copied.is_intact(), "the digests differ");
    Ok(())
}
