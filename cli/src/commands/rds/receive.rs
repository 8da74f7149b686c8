//! `polyverbs rds receive`: receives the messages to a socket, and writes them to a file or counts them.

use std::fs::File;
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use polyverbs_rds::MAX_MESSAGE;
use serde_json::json;

use super::super::network::Host;
use super::{Common, described, own};
use crate::interrupt::{self, Ending};
use crate::output::{BOLD, count, format_bytes, say, seconds};

/// Receive messages, and say from whom
///
/// The first line of output has the socket's address. Messages are written to the file as they arrive, one after the other;
/// those of several senders are mixed.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  polyverbs rds receive 127.0.0.2:4000 --device ib0
  polyverbs rds receive 127.0.0.2:4000 --device iw0 --count 1 --to COPY
  polyverbs rds receive 127.0.0.2:4000 --device ib0 --to - | wc -c")]
pub(super) struct Arguments {
    /// An address of this machine; without a port one is assigned
    #[arg(value_name = "HOST[:PORT]")]
    at: Host,
    #[command(flatten)]
    common: Common,
    /// End after this many messages
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// File for the bytes; - is standard output, and then everything else is printed to standard error
    #[arg(long, value_name = "FILE")]
    to: Option<PathBuf>,
}

pub(super) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let common = &arguments.common;
    let socket = common.bind(own(&arguments.at, 0)?)?;
    let to = arguments.to.as_deref();
    let is_piped = to.is_some_and(|to| to.as_os_str() == "-");
    let refused = || match to {
        Some(to) if !is_piped => format!("cannot write {}", to.display()),
        _ => "cannot write to standard output".to_owned(),
    };
    let mut into: Box<dyn Write> = match to {
        _ if is_piped => Box::new(io::stdout()),
        None => Box::new(io::sink()),
        Some(to) => {
            let file = File::create(to);
            Box::new(file.with_context(refused)?)
        }
    };
    let tell = |line: &str| match is_piped {
        true => writeln!(anstream::stderr(), "{line}"),
        false => say!("{line}"),
    };
    let first = described(common, &socket);
    match common.json {
        true => tell(&json!({ "listening": first["from"] }).to_string())?,
        false => tell(&format!(
            "{BOLD}{}{BOLD:#}  receives at {}",
            common.device.device,
            first["from"].as_str().unwrap_or_default()
        ))?,
    }
    let messages = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&messages);
    interrupt::says(Ending::AtOnce, move || {
        let received = counted.load(Ordering::Relaxed);
        format!("{} received", count(received, "message"))
    });
    let (mut room, mut bytes, mut began) = (vec![0; MAX_MESSAGE], 0, None);
    while arguments
        .count
        .is_none_or(|most| messages.load(Ordering::Relaxed) < most)
    {
        let received = socket.recv_from(&mut room)?;
        let Some(from) = received.from else { continue };
        began = began.or_else(|| Some(Instant::now()));
        into.write_all(&room[..received.length])
            .with_context(refused)?;
        bytes += received.length as u64;
        messages.fetch_add(1, Ordering::Relaxed);
        match common.json {
            true => tell(&json!({ "from": from, "bytes": received.length }).to_string())?,
            false => tell(&format!("{from}  {}", format_bytes(received.length as u64)))?,
        }
    }
    into.flush().with_context(refused)?;
    let elapsed = began.map_or(Duration::ZERO, |began| began.elapsed());
    let messages = messages.load(Ordering::Relaxed);
    let figures = json!({
        "messages": messages,
        "bytes": bytes,
        "seconds": elapsed.as_secs_f64(),
    });
    let text = format!(
        "{}, {} in {}",
        count(messages, "message"),
        format_bytes(bytes),
        seconds(elapsed)
    );
    tell(&common.end(&socket, figures, &text)?)?;
    Ok(())
}
