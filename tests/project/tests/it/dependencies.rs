//! Dependencies between the crates of the workspace go one way.

use project::{packages, workspace_root};
use serde_json::Value;

/// The crates of the workspace that each crate may depend on, from the ground up. A crate that is
/// not listed fails the test, so that its place is decided when it is added. Development
/// dependencies are free: tests may use higher layers.
const ALLOWED: &[(&str, &[&str])] = &[
    // The ground depends on no other crate.
    ("verbs-api", &[]),
    // What devices must show, by the API alone.
    ("polyverbs-probes", &["verbs-api"]),
    // On the ground: the engine knows no link and no transport, the formats know no engine.
    ("polyverbs-engine", &["verbs-api"]),
    ("polyverbs-wire", &["verbs-api"]),
    // Virtual time and link models know no socket.
    ("polyverbs-sim", &["verbs-api", "polyverbs-engine"]),
    // Links with a wire are generic over the codec that a driver gives them.
    (
        "polyverbs-io",
        &["verbs-api", "polyverbs-engine", "polyverbs-sim"],
    ),
    // Drivers do not know each other.
    ("emulated-ib", DRIVER),
    ("emulated-iwarp", DRIVER),
    // The layouts of C, and the checks that some of them are those of verbs-api.
    ("polyverbs-abi", &["verbs-api"]),
    // The provider of real devices knows the contract and the layouts of C, and no engine.
    ("rdma-core-provider", &["verbs-api", "polyverbs-abi"]),
    // Connections know the formats of both transports, and no device.
    (
        "polyverbs-connection",
        &["verbs-api", "polyverbs-engine", "polyverbs-wire"],
    ),
    // Extensions know the contract and the engine's hooks, and no driver.
    ("block-loopback", EXTENSION),
    ("bmme", EXTENSION),
    ("low-latency-qp", EXTENSION),
    ("masked-atomics", EXTENSION),
    // XRC works on real devices too, and therefore knows their provider.
    (
        "xrc",
        &["verbs-api", "polyverbs-engine", "rdma-core-provider"],
    ),
    // The facade names the default providers and extensions.
    (
        "polyverbs",
        &[
            "verbs-api",
            "polyverbs-engine",
            "polyverbs-io",
            "polyverbs-sim",
            "emulated-ib",
            "emulated-iwarp",
            "rdma-core-provider",
            "block-loopback",
            "polyverbs-connection",
            "bmme",
            "low-latency-qp",
            "masked-atomics",
            "xrc",
        ],
    ),
    // Protocols on the facade; nothing below knows them. They name the extensions that they use.
    (
        "polyverbs-rds",
        &["polyverbs", "masked-atomics", "polyverbs-wire"],
    ),
    // These are programs on the facade.
    (
        "capability-matrix",
        &["verbs-api", "polyverbs", "polyverbs-probes"],
    ),
    // The dissector reads captures: it knows formats and no device.
    ("polyverbs-dissect", &["polyverbs-wire"]),
    // The configuration of a program: the command writes it, the libraries read it.
    ("polyverbs-configuration", &["verbs-api", "polyverbs"]),
    (
        "polyverbs-cli",
        &[
            "verbs-api",
            "polyverbs",
            "polyverbs-configuration",
            "capability-matrix",
            "polyverbs-dissect",
            "polyverbs-rds",
        ],
    ),
    // The verbs of C, on the facade; `polyverbs-c-libraries` only exports their names.
    (
        "polyverbs-libibverbs",
        &[
            "verbs-api",
            "polyverbs",
            "polyverbs-abi",
            "polyverbs-configuration",
            "block-loopback",
            "xrc",
        ],
    ),
    (
        "polyverbs-librdmacm",
        &[
            "verbs-api",
            "polyverbs",
            "polyverbs-abi",
            "polyverbs-connection",
            "polyverbs-libibverbs",
        ],
    ),
    (
        "polyverbs-c-libraries",
        &["polyverbs-libibverbs", "polyverbs-librdmacm"],
    ),
    // The preloaded library redirects paths, and knows the owner of each descriptor.
    ("polyverbs-redirect", &[]),
    // The sockets of C programs.
    (
        "polyverbs-rds-sockets",
        &[
            "polyverbs",
            "polyverbs-abi",
            "polyverbs-configuration",
            "polyverbs-rds",
        ],
    ),
    // The crates of tests.
    // Tests depend on it to have the libraries for C built.
    (
        "test-kit",
        &[
            "polyverbs-c-libraries",
            "polyverbs-redirect",
            "polyverbs-rds-sockets",
        ],
    ),
    ("polyverbs-benches", TEST),
    ("conformance", TEST),
    ("seeded-runs", TEST),
    ("fuzz-targets", FUZZED),
    ("link-forms", TEST),
    ("peers", TEST),
    ("project", &[]),
    (
        "two-processes",
        &[
            "verbs-api",
            "polyverbs-engine",
            "emulated-ib",
            "emulated-iwarp",
        ],
    ),
];

const DRIVER: &[&str] = &[
    "verbs-api",
    "polyverbs-engine",
    "polyverbs-io",
    "polyverbs-sim",
    "polyverbs-wire",
];

const EXTENSION: &[&str] = &["verbs-api", "polyverbs-engine"];

const TEST: &[&str] = &[
    "verbs-api",
    "polyverbs-probes",
    "polyverbs-engine",
    "polyverbs-io",
    "polyverbs-sim",
    "block-loopback",
    "polyverbs-wire",
    "bmme",
    "low-latency-qp",
    "masked-atomics",
    "xrc",
    "emulated-ib",
    "emulated-iwarp",
    "polyverbs",
    "polyverbs-rds",
    "test-kit",
];

const FUZZED: &[&str] = &[
    "verbs-api",
    "polyverbs-engine",
    "polyverbs-connection",
    "polyverbs-io",
    "polyverbs-sim",
    "polyverbs-wire",
    "bmme",
    "masked-atomics",
    "emulated-ib",
    "emulated-iwarp",
    "polyverbs-dissect",
    "polyverbs",
    "polyverbs-libibverbs",
    "polyverbs-librdmacm",
];

/// Crates that make no OS calls, and the crates that they may therefore not depend on.
const NO_OS_CRATES: &[&str] = &["polyverbs-engine", "polyverbs-wire"];
const OS_DEPENDENCIES: &[&str] = &["libc", "mio", "nix", "rustix", "socket2", "tokio"];

#[test]
fn dependencies_go_one_way() {
    let mut wrong = Vec::new();
    for package in packages(&workspace_root()) {
        let name = text(&package, "name");
        let Some((_, allowed)) = ALLOWED.iter().find(|(crate_name, _)| *crate_name == name) else {
            wrong.push(format!("{name} has no place yet in the table of this test"));
            continue;
        };
        for (dependency, _) in shipped(&package)
            .into_iter()
            .filter(|(_, is_local)| *is_local)
        {
            if !allowed.contains(&dependency.as_str()) {
                wrong.push(format!("{name} may not depend on {dependency}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn table_is_in_order_from_the_ground_up() {
    for (at, (name, allowed)) in ALLOWED.iter().enumerate() {
        for below in *allowed {
            let is_below = ALLOWED[..at].iter().any(|(earlier, _)| earlier == below);
            assert!(is_below, "{name} names {below}, which is not further down");
        }
    }
}

#[test]
fn core_depends_on_no_os_crate() {
    for package in packages(&workspace_root()) {
        let name = text(&package, "name");
        if NO_OS_CRATES.contains(&name.as_str()) {
            for (dependency, _) in shipped(&package) {
                assert!(
                    !OS_DEPENDENCIES.contains(&dependency.as_str()),
                    "{name}: {dependency}"
                );
            }
        }
    }
}

/// The dependencies that are part of the built crate, each with whether it is of this workspace.
fn shipped(package: &Value) -> Vec<(String, bool)> {
    let all = package["dependencies"].as_array().unwrap().iter();
    all.filter(|dependency| dependency["kind"] != "dev")
        .map(|dependency| (text(dependency, "name"), dependency["path"].is_string()))
        .collect()
}

fn text(value: &Value, field: &str) -> String {
    value[field].as_str().unwrap().to_owned()
}
