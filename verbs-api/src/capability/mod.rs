//! The capability model: features (opt-in bits), limits (numbers), baseline gaps; what a program requires of them.

mod baseline;
mod device;
mod feature_info;
mod features;
mod gaps;
mod limits;
mod requirements;

pub use crate::transport::Transport;
pub use baseline::*;
pub use device::*;
pub use feature_info::*;
pub use features::*;
pub use gaps::*;
pub use limits::*;
pub use requirements::*;
