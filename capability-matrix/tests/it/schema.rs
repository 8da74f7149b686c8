//! The JSON fits its schema, and the schema describes every member.

use capability_matrix::Matrix;
use serde_json::Value;

use crate::{OF_LIARS, VERIFIED};

const SCHEMA: &str = include_str!("../../../docs/capability-matrix.schema.json");

// Forbids members that the schema does not describe: every new member must be described.
fn closed(schema: &mut Value) {
    match schema {
        Value::Object(object) => {
            if object.contains_key("properties") && !object.contains_key("additionalProperties") {
                object.insert("additionalProperties".into(), false.into());
            }
            // A condition does not restrict the other members.
            let others = object.iter_mut().filter(|(key, _)| *key != "if");
            others.for_each(|(_, value)| closed(value));
        }
        Value::Array(array) => array.iter_mut().for_each(closed),
        _ => {}
    }
}

#[track_caller]
fn fits(page: &Value) {
    let schema: Value = serde_json::from_str(SCHEMA).unwrap();
    let mut only = schema.clone();
    closed(&mut only);
    for schema in [schema, only] {
        let validator = jsonschema::validator_for(&schema).unwrap();
        let wrong: Vec<_> = validator
            .iter_errors(page)
            .map(|error| format!("{}: {error}", error.instance_path()))
            .collect();
        assert!(wrong.is_empty(), "{wrong:#?}");
    }
}

#[test]
fn claims_fit_the_schema() {
    let devices = polyverbs::devices().unwrap();
    fits(&Matrix::of(&devices).unwrap().to_json());
    fits(&Matrix::of(&[]).unwrap().to_json());
}

#[test]
fn verified_cells_fit_the_schema() {
    fits(&VERIFIED.to_json());
    fits(&OF_LIARS.to_json());
}

#[test]
fn another_shape_does_not_fit() {
    let schema: Value = serde_json::from_str(SCHEMA).unwrap();
    let validator = jsonschema::validator_for(&schema).unwrap();
    let mut page = Matrix::of(&polyverbs::devices().unwrap())
        .unwrap()
        .to_json();
    assert!(validator.is_valid(&page));
    page["rows"][0]["cells"]["ib0"]["verdict"] = "perhaps".into();
    assert!(!validator.is_valid(&page));
}
