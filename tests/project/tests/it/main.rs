//! Rules that the workspace itself keeps.

mod builds;
mod cargo_features;
mod circles;
mod dependencies;
mod features_page;
mod ignored;
mod links;
mod no_os_calls;
mod overflow_checks;
mod root_examples;
mod root_names;
mod shared_builds;
mod untested_targets;
