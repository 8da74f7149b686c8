//! The atlas in `docs/atlas`, and the schemas of it and of submissions.

use std::fs;
use std::path::Path;

use polyverbs_profiles::{Atlas, Profile};
use serde_json::Value;

fn folder(name: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

#[test]
fn the_atlas_in_the_docs_is_that_of_the_profiles() {
    let profiles = Profile::shipped().unwrap();
    let atlas = folder("../docs/atlas");
    for (name, text) in Atlas::of(&profiles).files().unwrap() {
        let committed = fs::read_to_string(atlas.join(&name)).unwrap_or_default();
        assert!(
            committed == text,
            "{name} is old: `polyverbs profile atlas --output docs/atlas` makes it anew"
        );
    }
    // A page of a profile that is gone goes too.
    let pages = fs::read_dir(&atlas)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let pages = pages.filter(|path| path.extension().is_some_and(|it| it == "md"));
    assert_eq!(pages.count(), profiles.len() + 1);
}

#[track_caller]
fn must_fit(schema: &str, value: &Value) {
    let schema = fs::read_to_string(folder("../docs/atlas").join(schema)).unwrap();
    let schema: Value = serde_json::from_str(&schema).unwrap();
    let validator = jsonschema::validator_for(&schema).unwrap();
    let faults: Vec<_> = validator
        .iter_errors(value)
        .map(|it| it.to_string())
        .collect();
    assert_eq!(faults, [""; 0]);
}

#[test]
fn the_json_of_the_atlas_fits_its_schema() {
    let profiles = Profile::shipped().unwrap();
    must_fit("atlas.schema.json", &Atlas::of(&profiles).to_json());
}

#[test]
fn each_profile_fits_the_schema_of_submissions() {
    for file in fs::read_dir(folder("cards")).unwrap() {
        let text = fs::read_to_string(file.unwrap().path()).unwrap();
        must_fit("profile.schema.json", &toml::from_str(&text).unwrap());
    }
    // Profiles that this crate writes fit too.
    let profile = Profile::named("rxe-6.1").unwrap();
    must_fit(
        "profile.schema.json",
        &toml::from_str(&profile.to_toml()).unwrap(),
    );
}

#[test]
fn a_page_has_no_script_and_escapes_what_it_shows() {
    let mut profile = Profile::named("amd-ionic").unwrap();
    profile.summary = "<script>".to_owned();
    let page = Atlas::of(&[profile]).to_html();
    assert!(!page.contains("<script") && page.contains("&lt;script&gt;"));
}
