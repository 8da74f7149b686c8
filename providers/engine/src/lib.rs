//! Software verbs engine.

pub mod completion_ring;
pub mod lock;
pub mod pin;
pub mod receive_ring;
pub mod slab;
pub mod sync;
