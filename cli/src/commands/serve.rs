//! `polyverbs serve`: stores the files that `polyverbs put` sends.

use std::io::Write as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use polyverbs::connection::Connector;
use serde_json::json;

use super::copy::{digests_to_json, hexadecimal, parse_piece};
use super::network::{DeviceOptions, Endpoint, Limits};
use crate::interrupt::{self, Ending};
use crate::output::{
    BOLD, GOOD, complain, count, format_bytes, json_line, parse_bytes, rate, say, seconds,
};
use crate::transfer::files::{Room, clean};
use crate::transfer::network::{Store, Stored};
use crate::transfer::peers::BACKLOG;
use crate::transfer::{CopyOptions, Error, printable, requirements};

/// Store the files that `polyverbs put` sends
///
/// The first line of output has the address that the server listens at. A file gets its name only when it is complete and
/// on the disk, and then the client gets an answer; a file that does not arrive completely is not stored. Unfinished files
/// are in a subfolder, .polyverbs-unfinished, which the next server empties if one was killed.
///
/// While all places are taken, a client that is idle for a second gives way to another. Memory for each client: --piece
/// times three more than --depth, and 128k. The client chooses the digest.
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
    /// Local address and port to listen at; for port 0 one is assigned
    #[arg(long, value_name = "HOST:PORT")]
    listen: Endpoint,
    /// Folder for the files; one of the same name is replaced
    #[arg(long, value_name = "DIR")]
    dir: PathBuf,
    /// End after this many connections
    #[arg(long, value_name = "N")]
    files: Option<u64>,
    #[command(flatten)]
    limits: Limits,
    /// Refuse files with more bytes
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    max_bytes: Option<u64>,
    /// Refuse a file if all unfinished files together would have more bytes
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    max_unfinished: Option<u64>,
    /// Bytes that one RDMA read fetches: up to 1M
    #[arg(long, value_name = "BYTES", default_value = "256k", value_parser = parse_piece)]
    piece: u32,
    /// RDMA reads that are outstanding at one time
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
    let listener = Connector::of(&context)?.listen(listen, BACKLOG)?;
    let store = Store {
        device,
        folder: arguments.dir.clone(),
        options: CopyOptions {
            piece: arguments.piece,
            depth: arguments.depth,
        },
        limit: arguments.max_bytes.unwrap_or(u64::MAX),
        room: Room::new(arguments.max_unfinished.unwrap_or(u64::MAX)),
    };
    if arguments.json {
        say!("{}", json!({ "listening": listener.address() }))?;
    } else {
        say!(
            "{BOLD}{}{BOLD:#}  listens at {}",
            store.device.name(),
            listener.address()
        )?;
    }
    let stored = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&stored);
    interrupt::says(Ending::ByItself, move || {
        format!("{} stored", count(counted.load(Ordering::SeqCst), "file"))
    });
    let failures = AtomicU64::new(0);
    let count_of = |is_stored| if is_stored { &*stored } else { &failures };
    arguments
        .limits
        .peers()
        .serve(
            &listener,
            arguments.files.unwrap_or(u64::MAX),
            |incoming, _| {
                let accepted = store.accept(incoming);
                accepted.map_err(|error| format!("no file can be taken: {error}"))
            },
            |server, connection, peer| {
                let stored = store.take(server, &connection, peer, |_| ());
                let is_stored = report(&stored, arguments.json);
                count_of(is_stored).fetch_add(1, Ordering::SeqCst);
            },
        )
        .map_err(anyhow::Error::from_boxed)?;
    anyhow::ensure!(!interrupt::is_interrupted(), "interrupted");
    let failures = failures.into_inner();
    anyhow::ensure!(failures == 0, "{} did not arrive", count(failures, "file"));
    Ok(())
}

// A failure is reported at once, and does not end the others.
fn report(stored: &Result<Stored, Error>, is_json: bool) -> bool {
    let told = match stored {
        Ok(stored) => tell(stored, is_json),
        Err(error) => {
            complain(&format!("a file did not arrive: {error}"));
            Ok(())
        }
    };
    told.is_ok()
        && stored
            .as_ref()
            .is_ok_and(|stored| stored.copied.is_intact())
}

fn tell(Stored { path, copied }: &Stored, is_json: bool) -> anyhow::Result<()> {
    if is_json {
        let line = json!({
            "path": path.to_string_lossy(),
            "bytes": copied.bytes,
            "pieces": copied.pieces,
            "digests": digests_to_json(copied),
            "seconds": copied.elapsed.as_secs_f64(),
        });
        say!("{}", json_line(&line))?;
    } else {
        let verdict = if copied.is_intact() {
            format!("{GOOD}equal{GOOD:#}")
        } else {
            "DIFFERENT, not kept".to_owned()
        };
        let speed = copied.bytes as f64 / copied.elapsed.as_secs_f64();
        say!(
            "{}  {} in {}, {}\n  {} {} {verdict}",
            printable(path.display()),
            format_bytes(copied.bytes),
            seconds(copied.elapsed),
            rate(speed),
            copied.algorithm.name(),
            hexadecimal(copied.server_digest),
        )?;
    }
    Ok(())
}
