//! The devices of the C library of this workspace.

use rdma_core_provider::LibIbverbs;
use verbs_api::extension::Extensions;
use verbs_api::{Context, Registry, Requirements};

pub(crate) fn registry() -> Registry {
    let mut registry = Registry::new();
    for extension in Extensions::linked().unwrap().iter() {
        registry.add_extension(extension).unwrap();
    }
    let provider = LibIbverbs::in_file(test_kit::libraries::built_apart());
    registry.add_provider(provider).unwrap();
    registry
}

/// Opens one of these devices with all its features.
#[allow(dead_code, reason = "not every test opens a device itself")]
pub(crate) fn open(name: &str) -> Context {
    let registry = registry();
    let device = registry.device(name).unwrap();
    device
        .open(&Requirements::everything_of(&device.attributes()))
        .unwrap()
}
