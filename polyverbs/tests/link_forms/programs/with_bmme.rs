//! A program that names the devices, and base memory management.
#![forbid(unsafe_code)]

#[path = "../report.rs"]
mod report;

use bmme as _;
use emulated_ib as _;
use emulated_iwarp as _;

fn main() -> Result<(), verbs_api::provider::RegistryError> {
    let registry = verbs_api::registry()?;
    print!("{}", report::Report::of(&registry));
    Ok(())
}
