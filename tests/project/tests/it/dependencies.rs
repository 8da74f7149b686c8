//! Dependencies between the crates of the workspace go one way, in the order of the folders in `docs/architecture.md`.

use std::fs;

use project::{Order, packages, shipped_dependencies, text, workspace_root};

/// Crates that depend on less than the order of the folders allows: all crates of the workspace that each may depend on.
/// Development dependencies are free: tests may use higher layers.
const ALLOWED: &[(&str, &[&str])] = &[
    // The API alone says what devices must show.
    ("polyverbs-probes", &["polyverbs-verbs-api"]),
    // A layer is in front of emulated and of real devices, and knows neither.
    ("polyverbs-layer", &["polyverbs-verbs-api"]),
    // The engine knows no link and no transport, the formats know no engine.
    ("polyverbs-engine", &["polyverbs-verbs-api"]),
    ("polyverbs-wire", &[]),
    // The agents of nodes know formats, and neither the engine nor a transport.
    ("polyverbs-management", &["polyverbs-wire"]),
    // A fabric carries datagrams of management, and knows no device. The memory in which devices count is that of `polyverbs-io`.
    (
        "polyverbs-fabric",
        &[
            "polyverbs-verbs-api",
            "polyverbs-management",
            "polyverbs-wire",
            "polyverbs-io",
        ],
    ),
    // Links with a wire are generic over the codec that a driver gives them.
    ("polyverbs-io", &["polyverbs-verbs-api", "polyverbs-engine"]),
    // Drivers do not know each other. Only InfiniBand has agents for a subnet manager, and ports of a fabric.
    (
        "polyverbs-emulated-ib",
        &[
            "polyverbs-verbs-api",
            "polyverbs-engine",
            "polyverbs-wire",
            "polyverbs-management",
            "polyverbs-io",
            "polyverbs-fabric",
        ],
    ),
    ("polyverbs-emulated-iwarp", DRIVER),
    // The provider of real devices knows the contract and the layouts of C, and no engine.
    (
        "polyverbs-rdma-core",
        &["polyverbs-verbs-api", "polyverbs-abi"],
    ),
    // Connections know the formats of both transports, and no device.
    (
        "polyverbs-connection",
        &["polyverbs-verbs-api", "polyverbs-engine", "polyverbs-wire"],
    ),
    // Extensions know the contract and the engine's hooks, and no driver.
    ("polyverbs-block-loopback", EXTENSION),
    ("polyverbs-bmme", EXTENSION),
    ("polyverbs-low-latency-qp", EXTENSION),
    ("polyverbs-masked-atomics", EXTENSION),
    // XRC works on real devices too, and therefore knows their provider. Other processes see the names of its domains, and
    // `polyverbs-io` has all socket code.
    (
        "polyverbs-xrc",
        &[
            "polyverbs-verbs-api",
            "polyverbs-engine",
            "polyverbs-io",
            "polyverbs-rdma-core",
        ],
    ),
    // The facade names the default providers and extensions.
    (
        "polyverbs",
        &[
            "polyverbs-verbs-api",
            "polyverbs-engine",
            "polyverbs-io",
            "polyverbs-emulated-ib",
            "polyverbs-emulated-iwarp",
            "polyverbs-rdma-core",
            "polyverbs-block-loopback",
            "polyverbs-connection",
            "polyverbs-bmme",
            "polyverbs-low-latency-qp",
            "polyverbs-masked-atomics",
            "polyverbs-xrc",
        ],
    ),
    // Profiles make devices by the facade, and are hooks of the layer in front of them.
    ("polyverbs-profiles", &["polyverbs", "polyverbs-layer"]),
    // The verbs of C are on the facade; `polyverbs-c-libraries` only exports their names.
    (
        "polyverbs-libibverbs",
        &[
            "polyverbs-verbs-api",
            "polyverbs",
            "polyverbs-abi",
            "polyverbs-configuration",
            "polyverbs-layer",
            // Programs run over the system's library too.
            "polyverbs-rdma-core",
            "polyverbs-block-loopback",
            "polyverbs-xrc",
        ],
    ),
    (
        "polyverbs-librdmacm",
        &[
            "polyverbs-verbs-api",
            "polyverbs",
            "polyverbs-abi",
            "polyverbs-connection",
            "polyverbs-libibverbs",
        ],
    ),
    (
        "polyverbs-c-libraries",
        &[
            "polyverbs-libibumad",
            "polyverbs-libibverbs",
            "polyverbs-librdmacm",
        ],
    ),
    // The command writes the configuration of a program, and the libraries read it. Its manifest says why it names the formats.
    (
        "polyverbs-configuration",
        &[
            "polyverbs-verbs-api",
            "polyverbs",
            "polyverbs-layer",
            "polyverbs-profiles",
            "polyverbs-wire",
        ],
    ),
    // The preloaded library redirects paths, and knows the owner of each descriptor.
    ("polyverbs-redirect", &[]),
    // Protocols on the facade name the extensions that they use.
    (
        "polyverbs-rds",
        &["polyverbs", "polyverbs-masked-atomics", "polyverbs-wire"],
    ),
    (
        "polyverbs-rds-sockets",
        &[
            "polyverbs",
            "polyverbs-abi",
            "polyverbs-configuration",
            "polyverbs-rds",
        ],
    ),
    // These are programs on the facade.
    (
        "polyverbs-capability-matrix",
        &["polyverbs-verbs-api", "polyverbs", "polyverbs-probes"],
    ),
    (
        "polyverbs-cli",
        &[
            "polyverbs-verbs-api",
            "polyverbs-fabric",
            "polyverbs-layer",
            "polyverbs-wire",
            "polyverbs",
            "polyverbs-benches",
            "polyverbs-configuration",
            "polyverbs-profiles",
            "polyverbs-capability-matrix",
            "polyverbs-dissect",
            "polyverbs-rds",
        ],
    ),
    // The dissector reads captures: it knows formats and no device.
    ("polyverbs-dissect", &["polyverbs-wire"]),
    // The checks of the project are quick to build.
    ("project", &[]),
];

const DRIVER: &[&str] = &[
    "polyverbs-verbs-api",
    "polyverbs-engine",
    "polyverbs-io",
    "polyverbs-wire",
];

const EXTENSION: &[&str] = &["polyverbs-verbs-api", "polyverbs-engine"];

/// Crates that make no OS calls, and the crates that they may therefore not depend on.
const NO_OS_CRATES: &[&str] = &["polyverbs-engine", "polyverbs-management", "polyverbs-wire"];
const OS_DEPENDENCIES: &[&str] = &["libc", "mio", "nix", "rustix", "socket2", "tokio"];

#[test]
fn no_dependency_goes_against_the_order_of_the_folders() {
    let root = workspace_root();
    let packages = packages(&root);
    let order = Order::of(&root);
    let unplaced = order.without_row(&root, &packages);
    assert!(
        unplaced.is_empty(),
        "the table in docs/architecture.md has no row for the folders of {unplaced:?}"
    );
    let back = order.arrows_back(&root, &packages);
    assert!(
        back.is_empty(),
        "folder -> folder that stands further down in the table of docs/architecture.md: {back:#?}"
    );
}

// covers 8.01 8.10
#[test]
fn crates_depend_only_on_those_that_they_may_know() {
    let packages = packages(&workspace_root());
    for (name, allowed) in ALLOWED {
        let package = packages.iter().find(|it| text(it, "name") == *name);
        let package = package.unwrap_or_else(|| panic!("there is no package {name}"));
        for dependency in shipped_dependencies(package) {
            let needed = text(dependency, "name");
            assert!(
                dependency["path"].is_null() || allowed.contains(&needed),
                "{name} may not depend on {needed}"
            );
        }
    }
}

#[test]
fn the_page_of_the_architecture_says_why_each_is_a_crate() {
    let root = workspace_root();
    let page = fs::read_to_string(root.join("docs/architecture.md")).unwrap();
    let (_, reasons) = page.split_once("### Why each is a crate").unwrap();
    let (reasons, _) = reasons.split_once("\n## ").unwrap();
    let cells = reasons.lines().filter_map(|line| line.split('|').nth(1));
    let mut explained: Vec<_> = cells
        .flat_map(|cell| cell.split('`').skip(1).step_by(2))
        .collect();
    let packages = packages(&root);
    let mut names: Vec<_> = packages
        .iter()
        .map(|package| text(package, "name"))
        .collect();
    explained.sort_unstable();
    names.sort_unstable();
    assert_eq!(explained, names);
}

#[test]
fn core_depends_on_no_os_crate() {
    for package in packages(&workspace_root()) {
        let name = text(&package, "name");
        if NO_OS_CRATES.contains(&name) {
            for dependency in shipped_dependencies(&package) {
                let needed = text(dependency, "name");
                assert!(!OS_DEPENDENCIES.contains(&needed), "{name}: {needed}");
            }
        }
    }
}
