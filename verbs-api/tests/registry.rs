//! Devices that come and go while a registry has them.

use std::sync::Arc;

use verbs_api::extension::Extensions;
use verbs_api::provider::{DeviceList, Provider, RegistryError, link_provider};
use verbs_api::*;

// This test has a binary of its own, because no other test may link its provider.
#[path = "it/mock/mod.rs"]
mod mock;

use mock::{MockDevice, MockProvider, provider};

fn device(name: &str) -> Arc<MockDevice> {
    mock::device(mock::attributes(name))
}

fn registry_of(providers: &[&'static MockProvider]) -> Registry {
    let mut registry = Registry::new();
    for provider in providers {
        registry.add_provider(*provider).unwrap();
    }
    registry
}

fn names(registry: &Registry) -> Vec<&str> {
    registry.devices().map(Device::name).collect()
}

fn open_error(device: &Device) -> VerbError {
    match device.open(&Requirements::new()) {
        Err(OpenError::Failed { error, .. }) => error,
        other => panic!("not refused: {other:?}"),
    }
}

// covers 1.16
#[test]
fn a_refresh_adds_and_removes_devices_and_keeps_the_rest() {
    let (a, b, c) = (device("a"), device("b"), device("c"));
    let slots = provider("slots", &[&a, &b]);
    let mut registry = registry_of(&[slots]);
    let [stays, goes] = ["a", "b"].map(|name| registry.device(name).unwrap().clone());
    let context = stays.open(&Requirements::new()).unwrap();

    slots.put(&[&c, &a]);
    assert_eq!(names(&registry), ["a", "b"], "before any refresh");
    registry.refresh().unwrap();
    assert_eq!(names(&registry), ["a", "c"]);
    context.alloc_pd().wait().unwrap();
    stays.open(&Requirements::new()).unwrap();
    assert_eq!(open_error(&goes), VerbError::DeviceRemoved);
    registry.open(&Requirements::new().device("c")).unwrap();

    // The device is back: the registry has it again as a new one.
    slots.put(&[&a, &b]);
    registry.refresh().unwrap();
    registry.open(&Requirements::new().device("b")).unwrap();
    assert_eq!(open_error(&goes), VerbError::DeviceRemoved);
}

#[test]
fn another_device_of_the_same_name_takes_its_place() {
    let (before, after) = (device("a"), device("a"));
    let slots = provider("slots", &[&before]);
    let mut registry = registry_of(&[slots]);
    let handle = registry.device("a").unwrap().clone();
    slots.put(&[&after]);
    registry.refresh().unwrap();
    assert_eq!(open_error(&handle), VerbError::DeviceRemoved);
    let opened = registry.open(&Requirements::new()).unwrap();
    let pd = opened.alloc_pd().wait().unwrap();
    assert_eq!((before.mock.live("pd"), after.mock.live("pd")), (0, 1));
    drop(pd);
}

#[test]
fn a_failing_provider_keeps_its_devices_and_affects_no_other() {
    let (a, b, c) = (device("a"), device("b"), device("c"));
    let (first, second) = (provider("first", &[&a]), provider("second", &[&b]));
    let mut registry = registry_of(&[first, second]);
    first.fail(VerbError::Resources("slots"));
    second.put(&[&b, &c]);
    let error = registry.refresh().unwrap_err();
    assert_eq!(
        error.to_string(),
        "provider first could not tell its devices: out of slots"
    );
    assert_eq!(names(&registry), ["a", "b", "c"]);
    registry.open(&Requirements::new().device("a")).unwrap();

    first.put(&[&a]);
    let twin = device("a");
    second.put(&[&twin]);
    assert_eq!(
        registry.refresh().unwrap_err(),
        RegistryError::DuplicateDevice {
            device: "a".into(),
            first: "first",
            second: "second",
        }
    );
    assert_eq!(names(&registry), ["a", "b", "c"]);
}

/// A provider with the mandatory methods alone.
struct Fixed;

impl Provider for Fixed {
    fn name(&self) -> &'static str {
        "fixed"
    }

    fn devices(&self, _: &Extensions) -> Result<DeviceList, VerbError> {
        Ok([device("a") as _].into_iter().collect())
    }
}

#[test]
fn devices_of_a_provider_without_refresh_stay() {
    let mut registry = Registry::new();
    registry.add_provider(&Fixed).unwrap();
    let handle = registry.device("a").unwrap().clone();
    registry.refresh().unwrap();
    assert_eq!(names(&registry), ["a"]);
    handle.open(&Requirements::new()).unwrap();
}

static LINKED: MockProvider = MockProvider::new("linked");
link_provider!(LINKED);

#[test]
fn a_refresh_of_the_process_registry_keeps_taken_ones() {
    let before = registry().unwrap();
    LINKED.put(&[&device("a")]);
    assert!(devices().unwrap().is_empty());
    Registry::refresh_linked().unwrap();
    let found: Vec<_> = devices().unwrap();
    assert_eq!(found.iter().map(Device::name).collect::<Vec<_>>(), ["a"]);
    assert!(names(&before).is_empty());
    open(Requirements::new().device("a")).unwrap();
}
