//! The extensions and providers that a library for C finds registered; `link_forms.h` is its header.

#[path = "../report.rs"]
mod report;

use polyverbs::{Registry, provider::RegistryError};
use report::Report;

/// Prints the extensions and providers that register themselves and that the linker kept.
#[unsafe(no_mangle)]
pub extern "C" fn link_forms_linked() -> i32 {
    print(Registry::linked())
}

/// Prints the content of a registry to which extensions and providers are added one by one.
#[unsafe(no_mangle)]
pub extern "C" fn link_forms_added() -> i32 {
    print(added())
}

fn added() -> Result<Registry, RegistryError> {
    let mut registry = Registry::new();
    registry.add_extension(&bmme::EXTENSION)?;
    registry.add_provider(&emulated_ib::PROVIDER)?;
    registry.add_provider(&emulated_iwarp::PROVIDER)?;
    Ok(registry)
}

fn print(registry: Result<Registry, RegistryError>) -> i32 {
    match registry {
        Ok(registry) => {
            print!("{}", Report::of(&registry));
            0
        }
        Err(error) => {
            println!("{error}");
            1
        }
    }
}
