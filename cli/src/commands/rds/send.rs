//! `polyverbs rds send`: sends a file in messages.

use std::fs::File;
use std::io::{self, Read, Write as _};
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use polyverbs_rds::{RdsError, Wait};
use serde_json::json;

use super::super::network::{Endpoint, parse_seconds};
use super::{Common, described, parse_message, peer};
use crate::interrupt::{self, Ending};
use crate::output::{BOLD, count, format_bytes, progress, rate, say, seconds};

/// Send a file in messages, and wait until the peer's host has acknowledged all of them
///
/// An acknowledged message has been put into the queue of the receiving socket. A message to a port without a socket is
/// acknowledged too, and dropped. An empty file is one empty message.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  polyverbs rds send FILE 127.0.0.2:4000 --device ib0
  polyverbs rds send FILE 192.0.2.7:4000 --device iw0 --from 192.0.2.1 --message-size 1M
  date | polyverbs rds send - 127.0.0.2:4000 --device ib0")]
pub(super) struct Arguments {
    /// The file to send; - is standard input
    file: PathBuf,
    /// Host and port of the receiving socket
    #[arg(value_name = "HOST:PORT")]
    to: Endpoint,
    #[command(flatten)]
    common: Common,
    /// Local address to send from; by default that of the route
    #[arg(long, value_name = "ADDRESS")]
    from: Option<IpAddr>,
    /// Bytes of each message but the last one, up to 1M
    #[arg(long, value_name = "BYTES", default_value = "64k", value_parser = |text: &str| parse_message(text, 1))]
    message_size: usize,
    /// Seconds in which the peer has to accept or acknowledge a message
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = parse_seconds)]
    timeout: Duration,
}

/// How many messages are sent before the first one must be acknowledged.
const WINDOW: usize = 16;

pub(super) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let common = &arguments.common;
    let (to, from) = peer(common, &arguments.to.clone().into(), 0, arguments.from)?;
    let name = arguments.file.display();
    let cannot_read = || format!("cannot read {name}");
    let is_piped = arguments.file.as_os_str() == "-";
    let (mut file, total): (Box<dyn Read>, _) = match is_piped {
        true => (Box::new(io::stdin()), None),
        false => {
            let file = File::open(&arguments.file).with_context(cannot_read)?;
            let total = file.metadata().with_context(cannot_read)?.len();
            (Box::new(file), Some(total))
        }
    };
    let socket = common.bind(from)?;
    socket.set_options(|options| {
        options.send_buffer = options.send_buffer.max(WINDOW * arguments.message_size);
    });
    let template = match total {
        Some(_) => "{bar:32.cyan/dim} {bytes:>10} of {total_bytes}  {bytes_per_sec}  {eta} left",
        None => "{bytes:>10}  {bytes_per_sec}",
    };
    let bar = progress(total.unwrap_or(0), template);
    let bytes = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&bytes);
    interrupt::says(Ending::AtOnce, move || {
        let sent = format_bytes(counted.load(Ordering::Relaxed));
        format!("{sent} sent, and not all acknowledged")
    });
    let late = |error, what: &str| match error {
        RdsError::TimedOut => anyhow::anyhow!("{to} {what} for {}", seconds(arguments.timeout)),
        error => error.into(),
    };
    let began = Instant::now();
    socket.set_write_timeout(Some(arguments.timeout));
    let (mut message, mut messages) = (Vec::new(), 0);
    loop {
        message.clear();
        let piece = file.by_ref().take(arguments.message_size as u64);
        let length = { piece }
            .read_to_end(&mut message)
            .with_context(cannot_read)?;
        if length == 0 && messages > 0 {
            break;
        }
        let sent = socket.send_to(&message, to);
        sent.map_err(|error| late(error, "takes nothing"))?;
        messages += 1;
        let sent = bytes.fetch_add(length as u64, Ordering::Relaxed) + length as u64;
        bar.set_position(sent);
    }
    let flushed = socket.flush(Wait::Until(Instant::now() + arguments.timeout));
    bar.finish_and_clear();
    flushed.map_err(|error| late(error, "does not acknowledge everything"))?;
    let (bytes, elapsed) = (bytes.load(Ordering::Relaxed), began.elapsed());
    let speed = bytes as f64 / elapsed.as_secs_f64();
    let mut figures = described(common, &socket);
    figures["file"] = arguments.file.to_string_lossy().into();
    figures["to"] = json!(to);
    figures["messages"] = messages.into();
    figures["bytes"] = bytes.into();
    figures["seconds"] = elapsed.as_secs_f64().into();
    figures["bytes_per_second"] = speed.into();
    let text = format!(
        "{BOLD}{}{BOLD:#}  {}, {} in {}, {}; all acknowledged",
        common.device.device,
        count(messages, "message"),
        format_bytes(bytes),
        seconds(elapsed),
        rate(speed),
    );
    say!("{}", common.end(&socket, figures, &text)?)?;
    Ok(())
}
