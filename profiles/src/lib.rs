//! Device profiles: what a class of RDMA devices says, can do and gets wrong, each fact with its source.
//!
//! A [`Profile`] is read from TOML. An emulated device [takes it on](Profile::device): it reports what the class reports,
//! refuses what the class refuses, and obeys the [rules](rule::Rule) that programs have met on such cards. `docs/profiles.md`
//! describes the format.
//!
//! ```
//! use polyverbs::{Requirements, capability::Baseline, emulated::EmulatedOptions};
//! use polyverbs_profiles::Profile;
//!
//! let ionic = Profile::named("amd-ionic")?;
//! let device = ionic.device(&EmulatedOptions::default(), &[])?;
//! // The card has no unreliable connections, and so the device is refused to a program that needs them.
//! assert!(device.open(&Requirements::new().needs(Baseline::UC)).is_err());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

mod ability;
mod atlas;
mod check;
mod device;
mod error;
mod format;
mod import;
mod profile;
mod quirks;
pub mod rule;
mod shipped;
mod show;

pub use ability::Ability;
pub use atlas::Atlas;
pub use check::{Answer, Wanted};
pub use device::{ProfileDeviceError, Unmet};
pub use error::ProfileError;
pub use import::{Imported, gid_layout};
pub use profile::{Evidence, Fact, IdentityFacts, PortFacts, Profile, Quirk, Sure};
pub use quirks::Met;
