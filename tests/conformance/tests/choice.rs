//! The choice of a program's device among four: our two, and two of a C library, one of each kind. The two are the
//! kernel's if it has both kinds, as in a guest with rxe and siw.

use std::path::Path;
use std::sync::Arc;

use polyverbs::capability::Baseline;
use polyverbs::{Features, Limit, OpenError, Registry, Requirements, Transport, registry};

fn devices() -> Arc<Registry> {
    if !Path::new("/sys/class/infiniband").exists() {
        test_kit::libraries::named_apart();
    }
    registry().unwrap()
}

/// The device of a C library with this transport.
fn real(registry: &Registry, transport: Transport) -> String {
    let is_it = |device: &&polyverbs::Device| {
        device.provider() == "libibverbs" && device.attributes().transport == transport
    };
    let mut found = registry.devices().filter(is_it);
    let device = found.next().expect("a device of each kind");
    assert!(found.next().is_none(), "one of each kind");
    device.name().to_owned()
}

// covers 1.21
#[test]
fn each_set_of_requirements_opens_the_device_that_it_is_for() {
    let registry = devices();
    let roce = real(&registry, Transport::InfiniBand);
    let iwarp = real(&registry, Transport::Iwarp);
    let any = Requirements::new;
    let sets: [(&str, Requirements, &str); 10] = [
        ("anything", any(), &roce),
        ("a transport", any().transport(Transport::Iwarp), &iwarp),
        (
            "what only emulated devices have",
            any().needs(Features::BMME),
            "ib0",
        ),
        (
            "the same of a transport",
            any().needs(Features::BMME).transport(Transport::Iwarp),
            "iw0",
        ),
        (
            "what real ones have too",
            any().needs(Features::WINDOW_2B),
            &roce,
        ),
        ("a preference", any().prefers(Features::BMME), &roce),
        (
            "what is iWARP's",
            any().needs(Features::READ_WITH_INVALIDATE),
            "iw0",
        ),
        ("a part of the baseline", any().needs(Baseline::UD), &roce),
        ("a name", any().device("iw0"), "iw0"),
        (
            "a number",
            any().at_least(Limit::MaxFastRegPageListLen, 16),
            "ib0",
        ),
    ];
    for (what, requirements, wanted) in sets {
        let opened = registry.open(&requirements).unwrap();
        assert_eq!(opened.attributes().name, wanted, "{what}");
    }
}

// covers 1.21
#[test]
fn one_error_lists_the_gaps_of_each_device() {
    let registry = devices();
    let both = Features::READ_WITH_INVALIDATE | Features::WINDOW_1;
    let Err(OpenError::NotMet(lacking)) = registry.open(&Requirements::new().needs(both)) else {
        panic!("no device has both");
    };
    let said: Vec<_> = lacking.iter().map(ToString::to_string).collect();
    let names: Vec<_> = registry.devices().map(|device| device.name()).collect();
    assert_eq!(said.len(), names.len());
    for (said, name) in said.iter().zip(names) {
        assert!(said.starts_with(&format!("{name}: lacks")), "{said}");
    }
    let unknown = registry.open(&Requirements::new().device("mlx5_7"));
    let Err(OpenError::NoSuchDevice { known, .. }) = unknown else {
        panic!("no device here has these features");
    };
    assert_eq!(known.len(), 4, "{known:?}");
}
