//! Access rights of memory regions, windows and queue pairs.

use bitflags::bitflags;

bitflags! {
    /// Access rights: the operations that are permitted on registered memory, or that a queue pair permits its peer.
    ///
    /// Local read is always granted. A check passes only when *every* required bit is present.
    ///
    /// ```
    /// use verbs_api::Access;
    /// let rights = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    /// assert_eq!(rights.illegal(), None);
    /// // What a peer may write the device may write as well: one right needs the other.
    /// assert!(Access::REMOTE_WRITE.illegal().is_some());
    /// ```
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
    #[doc(alias = "ibv_access_flags")]
    pub struct Access: u32 {
        /// The device may write to the memory for a local request, such as a receive or the local buffer of a read.
        const LOCAL_WRITE = 1;
        /// A peer may write to the memory by RDMA write. Needs [`Access::LOCAL_WRITE`].
        const REMOTE_WRITE = 1 << 1;
        /// A peer may read the memory by RDMA read.
        const REMOTE_READ = 1 << 2;
        /// A peer may execute atomic operations on the memory. Needs [`Access::LOCAL_WRITE`].
        const REMOTE_ATOMIC = 1 << 3;
        /// Memory windows may be bound to this region.
        const MW_BIND = 1 << 4;
        /// Addresses are offsets from the first byte of the region or window.
        const ZERO_BASED = 1 << 5;
        /// A peer may flush what it wrote to the memory, until it is visible to the whole system (global visibility).
        const FLUSH_GLOBAL = 1 << 8;
        /// A peer may flush what it wrote to the memory, until it is persistent.
        const FLUSH_PERSISTENT = 1 << 9;
    }
}

impl Access {
    /// All rights that a peer can use; the others concern local requests only.
    pub const REMOTE: Self = Self::REMOTE_WRITE
        .union(Self::REMOTE_READ)
        .union(Self::REMOTE_ATOMIC)
        .union(Self::FLUSH_GLOBAL)
        .union(Self::FLUSH_PERSISTENT);

    /// Returns why a memory region cannot have this set of rights; `None` if it can.
    ///
    /// The set is refused if it has a bit that is no access right, or if it has remote write or remote atomic without
    /// local write.
    pub fn illegal(self) -> Option<&'static str> {
        if !Self::all().contains(self) {
            return Some("a bit is set that is no right");
        }
        if self.intersects(Self::REMOTE_WRITE | Self::REMOTE_ATOMIC)
            && !self.contains(Self::LOCAL_WRITE)
        {
            return Some("REMOTE_WRITE and REMOTE_ATOMIC need LOCAL_WRITE as well");
        }
        None
    }

    /// Whether a peer may access memory that has these rights, either at once or after a memory window was bound to the
    /// memory.
    pub const fn exposes(self) -> bool {
        self.intersects(Self::REMOTE.union(Self::MW_BIND))
    }
}
