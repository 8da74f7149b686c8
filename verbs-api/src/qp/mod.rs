//! Queue pairs: types, states, attributes.

mod attributes;
mod state;

pub use attributes::*;
pub use state::*;
