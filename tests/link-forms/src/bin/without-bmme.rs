//! A program that names the devices. With one more line they have base memory management.
#![forbid(unsafe_code)]

use emulated_ib as _;
use emulated_iwarp as _;

fn main() -> Result<(), verbs_api::provider::RegistryError> {
    let registry = verbs_api::registry()?;
    print!("{}", link_forms::Report::of(&registry));
    Ok(())
}
