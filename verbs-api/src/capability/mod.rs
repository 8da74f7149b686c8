//! The capability model: features (opt-in bits), limits (numbers), baseline gaps; what a program requires of them.

mod baseline;
mod device;
mod features;
mod gaps;
mod limits;
mod requirements;

pub use baseline::*;
pub use device::*;
pub use features::*;
pub use gaps::*;
pub use limits::*;
pub use requirements::*;
