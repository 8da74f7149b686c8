//! What every device must show.

mod fast_register;
mod invalidate;
mod windows;
