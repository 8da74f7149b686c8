//! Copies a file over an RDMA device.
//!
//! `copy FROM TO [DEVICE]` has both sides in one process. `copy --serve ADDRESS:PORT FOLDER DEVICE` stores what
//! `copy --put FILE ADDRESS:PORT DEVICE` sends, in another process or on another machine.
//!
//! The program is in `transfer.rs`; the `polyverbs` command runs the same file.
#![forbid(unsafe_code)]

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use polyverbs::connection::Connector;
use polyverbs::emulated::{self, EmulatedOptions};

mod transfer;

use transfer::files::{self, Room};
use transfer::network::{self, Store, Stored};
use transfer::peers::Peers;
use transfer::{CopyOptions, Digest, Error, printable, requirements};

/// How long a client repeats its request to a server that has no place for it.
const INSISTS: Duration = Duration::from_secs(10);

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let result = match arguments[..] {
        ["--serve", at, folder, device] => serve(at, folder, device),
        ["--put", file, to, device] => put(file, to, device),
        [from, to] => run(from, to, None),
        [from, to, device] => run(from, to, Some(device)),
        _ => Err("usage: copy FROM TO [DEVICE]".into()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("copy: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(from: &str, to: &str, name: Option<&str>) -> Result<(), Error> {
    let mut wanted = requirements();
    if let Some(name) = name {
        wanted = wanted.device(name);
    }
    // Without a name this finds the first device that can do it; the error lists what each device lacks.
    let name = polyverbs::open(wanted)?.attributes().name.clone();
    let registry = polyverbs::registry()?;
    let device = registry.device(&name).ok_or("the device has gone")?;
    let options = CopyOptions::default();
    let copied = transfer::copy(device, Path::new(from), Path::new(to), options, |_| ())?;
    let (windows, pieces) = (copied.windows, copied.pieces);
    println!("{name}: {} octets in {:?}", copied.bytes, copied.elapsed);
    println!("{windows} windows were lent, and fetched in {pieces} pieces");
    println!("client {}", hexadecimal(&copied.client_digest));
    println!("server {}", hexadecimal(&copied.server_digest));
    if copied.is_intact() {
        Ok(())
    } else {
        Err("the digests differ".into())
    }
}

fn serve(at: &str, folder: &str, device: &str) -> Result<(), Error> {
    let at: SocketAddr = at.parse()?;
    files::clean(Path::new(folder))?;
    let device = emulated::device_at(device, at.ip(), &EmulatedOptions::default())?;
    let store = Store {
        device,
        folder: PathBuf::from(folder),
        options: CopyOptions::default(),
        limit: u64::MAX,
        room: Room::new(u64::MAX),
    };
    let context = store.device.open(&requirements())?;
    let listener = Connector::of(&context)?.listen(at, 0)?;
    let peers = Peers::new(16, Duration::from_secs(30));
    // A failure does not end the others.
    let fail = |error| eprintln!("copy: {error}");
    peers.serve(
        &listener,
        u64::MAX,
        |incoming, _| store.accept(incoming).map_err(fail).ok(),
        |server, connection, peer| match store.take(server, &connection, peer, |_| ()) {
            Ok(Stored { path, copied }) => {
                let digest = hexadecimal(&copied.server_digest);
                let path = printable(path.display());
                println!("{path}: {} octets, {digest}", copied.bytes);
            }
            Err(error) => fail(error),
        },
    )
}

fn put(file: &str, to: &str, device: &str) -> Result<(), Error> {
    let to: SocketAddr = to.parse()?;
    let device = emulated::device_reaching(device, to, &EmulatedOptions::default())?;
    let copied = network::put(&device, Path::new(file), to, INSISTS, |_| ())?;
    println!("client {}", hexadecimal(&copied.client_digest));
    println!("server {}", hexadecimal(&copied.server_digest));
    if copied.is_intact() {
        Ok(())
    } else {
        Err("the digests differ".into())
    }
}

fn hexadecimal(digest: &Digest) -> String {
    digest.iter().map(|octet| format!("{octet:02x}")).collect()
}
