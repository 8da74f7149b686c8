//! Copies a file over an RDMA device: `copy FROM TO [DEVICE]`.
//!
//! The program is in `transfer.rs`; the `polyverbs copy` command runs the same file.
#![forbid(unsafe_code)]

use std::path::Path;
use std::process::ExitCode;

mod transfer;

use transfer::{CopyOptions, Digest, Error, requirements};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let result = match &arguments[..] {
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

fn run(from: &str, to: &str, name: Option<&String>) -> Result<(), Error> {
    let mut wanted = requirements();
    if let Some(name) = name {
        wanted = wanted.device(name);
    }
    // Without a name this finds the first device that can do it; the error lists what each device lacks.
    let name = polyverbs::open(wanted)?.attributes().name.clone();
    let device = polyverbs::registry()?
        .device(&name)
        .ok_or("the device has gone")?;
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

fn hexadecimal(digest: &Digest) -> String {
    digest.iter().map(|octet| format!("{octet:02x}")).collect()
}
