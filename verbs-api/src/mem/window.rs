//! Kinds of memory windows.

/// Kinds of memory windows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[doc(alias = "ibv_mw_type")]
pub enum MwType {
    /// Bound by a verb; usable by every queue pair of the domain.
    Type1,
    /// Bound by a work request; usable by one queue pair. 2A or 2B as the device has it.
    Type2,
}
