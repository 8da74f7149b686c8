//! What each device can do, side by side: gathered once, shown as text, Markdown, JSON or one HTML page.
//!
//! A [`Matrix`] has a column for each device and a row for each service, operation, feature, gap and limit. A cell is
//! what the device *claims*, and later also what a probe found: see [`Proof`]. Read first: [`Matrix`], then one of
//! the renderers.
//!
//! ```
//! let devices = polyverbs::devices()?;
//! let matrix = capability_matrix::Matrix::of(&devices);
//! println!("{}", matrix.to_text());
//! # Ok::<(), polyverbs::RegistryError>(())
//! ```
#![forbid(unsafe_code)]

mod about;
mod device;
mod html;
mod json;
mod markdown;
mod matrix;
mod text;

pub use device::{DeviceReport, PortReport};
pub use matrix::{Cell, Claim, Column, Matrix, Proof, Row, Section};
