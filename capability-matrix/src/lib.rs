//! The capabilities of all devices, side by side: gathered once, shown as text, Markdown, JSON or one HTML page.
//!
//! A [`Matrix`] has a column for each device and a row for each feature, operation, gap and limit. [`Matrix::of`] gathers
//! the *claims* of devices; [`Matrix::verified`] also runs the conformance probes of each feature on each device, and
//! each cell then has the verdict on its claim. Read first: [`Matrix`], then one of the renderers.
//!
//! ```
//! let devices = polyverbs::devices()?;
//! let matrix = capability_matrix::Matrix::verified(&devices, &mut |_| ())?;
//! println!("{}", matrix.to_text(100, false));
//! assert!(matrix.mismatches().next().is_none());
//! # Ok::<(), polyverbs::provider::RegistryError>(())
//! ```
#![forbid(unsafe_code)]

mod about;
mod described;
mod device;
mod html;
mod json;
mod markdown;
mod matrix;
mod text;
mod verify;

pub use device::{DeviceReport, IdentityReport, PortReport};
pub use matrix::{Cell, Claim, Column, Matrix, Proof, Row, Section, Tally};
pub use verify::Step;
