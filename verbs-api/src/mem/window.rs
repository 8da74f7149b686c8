//! Kinds of memory windows.

/// The type of a memory window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[doc(alias = "ibv_mw_type")]
pub enum MwType {
    /// A type 1 window: bound by a verb of its own, and usable through every queue pair of its protection domain.
    Type1,
    /// A type 2 window: bound by a work request, and usable through one queue pair. Whether it is 2A or 2B depends on the
    /// device.
    Type2,
}
