//! Access rights of memory regions, windows and queue pairs.

use bitflags::bitflags;

bitflags! {
    /// What may be done with registered memory, or through a queue pair.
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
        /// The device may write here on behalf of a local request.
        const LOCAL_WRITE = 1;
        /// A peer may write here. Needs [`Access::LOCAL_WRITE`].
        const REMOTE_WRITE = 1 << 1;
        /// A peer may read here.
        const REMOTE_READ = 1 << 2;
        /// A peer may operate atomically here. Needs [`Access::LOCAL_WRITE`].
        const REMOTE_ATOMIC = 1 << 3;
        /// Memory windows may be bound to this region.
        const MW_BIND = 1 << 4;
        /// Addresses are offsets from the first byte of the region or window.
        const ZERO_BASED = 1 << 5;
        /// A peer may flush what it wrote here, up to global visibility.
        const FLUSH_GLOBAL = 1 << 8;
        /// A peer may flush what it wrote here, up to persistence.
        const FLUSH_PERSISTENT = 1 << 9;
    }
}

impl Access {
    /// The rights that a peer can use.
    pub const REMOTE: Self = Self::REMOTE_WRITE
        .union(Self::REMOTE_READ)
        .union(Self::REMOTE_ATOMIC)
        .union(Self::FLUSH_GLOBAL)
        .union(Self::FLUSH_PERSISTENT);

    /// Why these rights cannot be granted together, if they cannot.
    ///
    /// Remote write and remote atomic imply local write for a region, and unknown bits are no rights.
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

    /// Whether memory with these rights may be touched by a peer, now or after a bind.
    pub const fn exposes(self) -> bool {
        self.intersects(Self::REMOTE.union(Self::MW_BIND))
    }
}
