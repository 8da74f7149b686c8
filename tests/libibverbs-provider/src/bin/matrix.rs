//! The capability matrix of the devices of `libibverbs.so.1`, each claim tried: text, or JSON with `--json`.
//!
//! A mismatch fails, and so does a library without devices.

use std::process::ExitCode;

use capability_matrix::Matrix;
use verbs_api::Registry;

fn main() -> ExitCode {
    match shown() {
        Ok(code) => code,
        Err(error) => {
            eprintln!("matrix: {error}");
            ExitCode::FAILURE
        }
    }
}

fn shown() -> Result<ExitCode, Box<dyn std::error::Error>> {
    let mut registry = Registry::new();
    registry.add_provider(&libibverbs_provider::PROVIDER)?;
    for (device, why) in libibverbs_provider::left_out()? {
        eprintln!("matrix: {device} is left out: {why}");
    }
    let devices: Vec<_> = registry.devices().cloned().collect();
    if devices.is_empty() {
        return Err("the library has no devices that can be used".into());
    }
    let matrix = Matrix::verified(&devices, &mut |_| ())?;
    match std::env::args().any(|argument| argument == "--json") {
        true => println!("{}", matrix.to_json()),
        false => println!("{}", matrix.to_text(100, false)),
    }
    Ok(match matrix.mismatches().next() {
        None => ExitCode::SUCCESS,
        Some(_) => ExitCode::FAILURE,
    })
}
