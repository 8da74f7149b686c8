//! What a library for C finds registered: `link_forms.h` is its header.

use link_forms::Report;
use polyverbs::{Registry, provider::RegistryError};

/// Prints what the linker kept of what registers itself.
#[unsafe(no_mangle)]
pub extern "C" fn link_forms_linked() -> i32 {
    print(Registry::linked())
}

/// Prints what a registry has whose extensions and providers are added one by one.
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
