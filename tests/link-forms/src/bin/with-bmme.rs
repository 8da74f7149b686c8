//! A program that names the devices, and base memory management.
#![forbid(unsafe_code)]

use bmme as _;
use emulated_ib as _;
use emulated_iwarp as _;

fn main() -> Result<(), verbs_api::provider::RegistryError> {
    print!("{}", link_forms::Report::of(verbs_api::registry()?));
    Ok(())
}
