//! `polyverbs serve`: stores the files that `polyverbs put` sends.

use std::io::Write as _;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use polyverbs::connection::{ConnectError, Connector, Incoming, Listener};
use serde_json::json;

use super::copy::{hexadecimal, parse_piece};
use super::network::{DeviceOptions, Endpoint};
use crate::interrupt::{self, Ending};
use crate::output::{BOLD, GOOD, complain, count, format_bytes, rate, say, seconds};
use crate::transfer::network::{Store, Stored, clean};
use crate::transfer::{CopyOptions, requirements};

/// Store the files that `polyverbs put` sends
///
/// They come from other processes and machines. The first line says where it listens. A file that does not arrive whole is not there afterwards; what a server that was
/// killed has left in the folder, the next one removes.
#[derive(clap::Args)]
#[command(
    override_usage = "polyverbs serve --device NAME --listen HOST:PORT --dir DIR [OPTIONS]",
    after_help = "\
Examples:
  polyverbs serve --device ib0 --listen 127.0.0.1:4420 --dir IN
  polyverbs serve --device iw0 --listen [::1]:0 --dir IN --files 1 --json"
)]
pub(crate) struct Arguments {
    #[command(flatten)]
    device: DeviceOptions,
    /// An address of this machine, and a port; port 0 has one assigned
    #[arg(long, value_name = "HOST:PORT")]
    listen: Endpoint,
    /// Where files go; one of the same name is replaced
    #[arg(long, value_name = "DIR")]
    dir: PathBuf,
    /// End after so many connections
    #[arg(long, value_name = "N")]
    files: Option<u64>,
    /// Bytes of one read: up to 1M
    #[arg(long, value_name = "BYTES", default_value = "256k", value_parser = parse_piece)]
    piece: u32,
    /// Reads in flight
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=1024))]
    depth: u32,
    /// Print a JSON object in each line
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    anyhow::ensure!(
        arguments.dir.is_dir(),
        "{} is no folder",
        arguments.dir.display()
    );
    clean(&arguments.dir).map_err(anyhow::Error::from_boxed)?;
    let listen = arguments.listen.own()?;
    let device = arguments.device.at(listen.ip())?;
    let context = device.open(&requirements())?;
    let listener = Connector::of(&context)?.listen(listen, 0)?;
    let store = Arc::new(Store {
        device,
        folder: arguments.dir.clone(),
        options: CopyOptions {
            piece: arguments.piece,
            depth: arguments.depth,
        },
    });
    if arguments.json {
        say!("{}", json!({ "listening": listener.address() }))?;
    } else {
        say!(
            "{BOLD}{}{BOLD:#}  listens at {}",
            store.device.name(),
            listener.address()
        )?;
    }
    std::io::stdout().flush()?;
    let stored = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&stored);
    interrupt::says(Ending::ByItself, move || {
        format!("{} stored", count(counted.load(Ordering::SeqCst), "file"))
    });
    let mut failures = 0;
    let mut running = Vec::new();
    for _ in 0..arguments.files.unwrap_or(u64::MAX) {
        let Some(incoming) = next(&listener)? else {
            break;
        };
        let (store, stored) = (Arc::clone(&store), Arc::clone(&stored));
        let is_json = arguments.json;
        running.push(thread::spawn(move || {
            let is_stored = take(&store, incoming, is_json);
            stored.fetch_add(is_stored.into(), Ordering::SeqCst);
            is_stored
        }));
        running.retain(|thread| arguments.files.is_some() || !thread.is_finished());
    }
    for thread in running {
        failures += u64::from(!thread.join().unwrap_or(false));
    }
    anyhow::ensure!(!interrupt::is_interrupted(), "interrupted");
    anyhow::ensure!(failures == 0, "{} did not arrive", count(failures, "file"));
    Ok(())
}

// The next request; `None` if the command was interrupted.
fn next(listener: &Listener) -> Result<Option<Incoming>, ConnectError> {
    let (sender, receiver) = mpsc::sync_channel(1);
    listener.next().on_done(move |incoming| {
        // If this fails the receiver is gone.
        let _ = sender.send(incoming);
    });
    while !interrupt::is_interrupted() {
        if let Ok(incoming) = receiver.recv_timeout(Duration::from_millis(100)) {
            return incoming.map(Some);
        }
    }
    Ok(None)
}

// A failure is reported at once, and does not end the others.
fn take(store: &Store, incoming: Incoming, is_json: bool) -> bool {
    let stored = store.take(incoming, |_| ());
    let told = match &stored {
        Ok(stored) => tell(stored, is_json),
        Err(error) => {
            complain(&format!("a file did not arrive: {error}"));
            Ok(())
        }
    };
    told.is_ok() && stored.is_ok_and(|stored| stored.copied.is_intact())
}

fn tell(Stored { path, copied }: &Stored, is_json: bool) -> anyhow::Result<()> {
    if is_json {
        let line = json!({
            "path": path.to_string_lossy(),
            "bytes": copied.bytes,
            "pieces": copied.pieces,
            "digests": {
                "algorithm": "sha256",
                "client": hexadecimal(&copied.client_digest),
                "server": hexadecimal(&copied.server_digest),
                "equal": copied.is_intact(),
            },
            "seconds": copied.elapsed.as_secs_f64(),
        });
        say!("{line}")?;
    } else {
        let verdict = if copied.is_intact() {
            format!("{GOOD}equal{GOOD:#}")
        } else {
            "DIFFERENT, not kept".to_owned()
        };
        let speed = copied.bytes as f64 / copied.elapsed.as_secs_f64();
        say!(
            "{}  {} in {}, {}\n  sha256 {} {verdict}",
            path.display(),
            format_bytes(copied.bytes),
            seconds(copied.elapsed),
            rate(speed),
            hexadecimal(&copied.server_digest),
        )?;
    }
    std::io::stdout().flush()?;
    Ok(())
}
