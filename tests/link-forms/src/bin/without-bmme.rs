//! A program that names the devices. One line more, and they have base memory management.
#![forbid(unsafe_code)]

use emulated_ib as _;
use emulated_iwarp as _;

fn main() -> Result<(), verbs_api::provider::RegistryError> {
    print!("{}", link_forms::Report::of(verbs_api::registry()?));
    Ok(())
}
