//! Cargo builds a dependency once for all shipped packages: each package asks for the same features of it.

use std::collections::BTreeSet;

use project::{Build, builds, workspace_root};

/// The shipped packages that contain the devices. `.ci/dist` builds each by itself.
const SHIPPED: [&str; 3] = [
    "polyverbs-cli",
    "polyverbs-c-libraries",
    "polyverbs-rds-sockets",
];

#[test]
fn shipped_packages_ask_for_the_same_features() {
    let root = workspace_root();
    let [command, libraries @ ..] =
        SHIPPED.map(|package| builds(&root, package, &["normal", "build"], &[]));
    let package = |build: &Build| (build.name.clone(), build.version.clone());
    let of_command: BTreeSet<_> = command.iter().map(package).collect();
    for (library, name) in libraries.iter().zip(&SHIPPED[1..]) {
        assert!(library.len() > 50, "{name}: {library:?}");
        let mut differing = library.difference(&command).collect::<Vec<_>>();
        differing.retain(|build| of_command.contains(&package(build)));
        assert!(
            differing.is_empty(),
            "{name} asks for other features than {}, so cargo builds these and what depends on them twice: {differing:#?}",
            SHIPPED[0]
        );
    }
}
