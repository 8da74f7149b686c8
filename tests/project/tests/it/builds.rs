//! What the checks of a build's packages and features read.

use std::fs;
use std::path::Path;

use project::builds;

fn package(folder: &Path, manifest: &str) {
    fs::create_dir_all(folder.join("src")).unwrap();
    fs::write(folder.join("src/lib.rs"), "").unwrap();
    fs::write(folder.join("Cargo.toml"), manifest).unwrap();
}

#[test]
fn two_versions_of_a_package_are_two_builds() {
    let folder = tempfile::tempdir().unwrap();
    let features = [("1.0.0", "old"), ("2.0.0", "new")];
    for (version, feature) in features {
        let manifest = format!(
            "[package]\nname = 'twice'\nversion = '{version}'\nedition = '2024'\n[features]\n{feature} = []\n"
        );
        package(&folder.path().join(feature), &manifest);
    }
    let dependencies = features.map(|(_, feature)| {
        format!(
            "{feature} = {{ package = 'twice', path = '{feature}', features = ['{feature}'] }}\n"
        )
    });
    let program =
        "[package]\nname = 'program'\nversion = '1.0.0'\nedition = '2024'\n[dependencies]\n";
    package(folder.path(), &[program, &dependencies.concat()].concat());
    let built = builds(folder.path(), "program", &["normal"], &[]);
    let twice = built.iter().filter(|build| build.name == "twice");
    let found: Vec<_> = twice
        .map(|build| {
            (
                build.version.as_str(),
                build.features.iter().collect::<Vec<_>>(),
            )
        })
        .collect();
    let [old, new] = ["old", "new"].map(str::to_owned);
    assert_eq!(found, [("v1.0.0", vec![&old]), ("v2.0.0", vec![&new])]);
}
