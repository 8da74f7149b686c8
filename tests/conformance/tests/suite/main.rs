//! What every device must show.

mod windows;
