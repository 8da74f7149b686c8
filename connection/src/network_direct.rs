//! Flags as Windows' NetworkDirect interface has them, and what they are here: for programs that come from there.
//!
//! The values are those of its header `nddef.h`. A flag that is not known is an error that names the argument.

use bitflags::bitflags;
use verbs_api::{Access, ArgumentReason, VerbError, completion::Notify, wr::SendFlags};

bitflags! {
    /// Flags of requests.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct OpFlags: u32 {
        /// No completion where the request succeeds.
        const SILENT_SUCCESS = 0x01;
        /// Not before the reads in front of it have ended.
        const READ_FENCE = 0x02;
        /// The peer's completion is a solicited one.
        const SEND_AND_SOLICIT_EVENT = 0x04;
        /// Of a bind: the peer may read.
        const ALLOW_READ = 0x08;
        /// Of a bind: the peer may write.
        const ALLOW_WRITE = 0x10;
        /// The octets are copied while the request is posted.
        const INLINE = 0x20;
    }

    /// Flags of registrations. The right to write from afar contains that to write locally, so that only all of its bits
    /// mean it: [`contains`](Self::contains), not `intersects`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct MrFlags: u32 {
        /// The device may write for the program.
        const ALLOW_LOCAL_WRITE = 0x01;
        /// Peers may read.
        const ALLOW_REMOTE_READ = 0x02;
        /// Peers may write.
        const ALLOW_REMOTE_WRITE = 0x05;
        /// Reads may be placed here, where that takes a right of its own.
        const RDMA_READ_SINK = 0x08;
    }
}

impl OpFlags {
    /// These bits.
    ///
    /// # Errors
    /// One of them is none of these flags.
    pub fn parse(flags: u32) -> Result<Self, VerbError> {
        Self::from_bits(flags).ok_or_else(|| unknown("flags", flags))
    }

    /// How a request is carried out and reported. What is inline and what a bind allows is said with the request itself.
    pub fn send_flags(self) -> SendFlags {
        let mut flags = SendFlags::empty();
        flags.set(SendFlags::SIGNALED, !self.contains(Self::SILENT_SUCCESS));
        flags.set(SendFlags::FENCE, self.contains(Self::READ_FENCE));
        let solicits = self.contains(Self::SEND_AND_SOLICIT_EVENT);
        flags.set(SendFlags::SOLICITED, solicits);
        flags
    }

    /// The rights that a bind gives.
    ///
    /// # Errors
    /// It names neither [`ALLOW_READ`](Self::ALLOW_READ) nor [`ALLOW_WRITE`](Self::ALLOW_WRITE).
    pub fn of_bind(self) -> Result<Access, VerbError> {
        let mut access = Access::empty();
        access.set(Access::REMOTE_READ, self.contains(Self::ALLOW_READ));
        access.set(Access::REMOTE_WRITE, self.contains(Self::ALLOW_WRITE));
        if access.is_empty() {
            return Err(VerbError::argument(
                "flags",
                "a bind allows reading or writing",
            ));
        }
        Ok(access)
    }
}

impl MrFlags {
    /// These bits.
    ///
    /// # Errors
    /// One of them is none of these flags.
    pub fn parse(flags: u32) -> Result<Self, VerbError> {
        Self::from_bits(flags).ok_or_else(|| unknown("flags", flags))
    }

    /// The rights that a registration gives, on a device where a read's sink needs `sink` besides the right to write
    /// locally.
    pub fn access(self, sink: Access) -> Access {
        let mut access = Access::empty();
        access.set(Access::LOCAL_WRITE, self.contains(Self::ALLOW_LOCAL_WRITE));
        access.set(Access::REMOTE_READ, self.contains(Self::ALLOW_REMOTE_READ));
        access.set(
            Access::REMOTE_WRITE,
            self.contains(Self::ALLOW_REMOTE_WRITE),
        );
        if self.contains(Self::RDMA_READ_SINK) {
            access |= sink | Access::LOCAL_WRITE;
        }
        access
    }
}

/// What a queue tells of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum NotifyKind {
    /// What failed.
    Errors = 0,
    /// Any completion.
    Any = 1,
    /// Solicited ones, and what failed.
    Solicited = 2,
}

impl NotifyKind {
    /// This value.
    ///
    /// # Errors
    /// It is none of these.
    pub fn parse(kind: u32) -> Result<Self, VerbError> {
        match kind {
            0 => Ok(Self::Errors),
            1 => Ok(Self::Any),
            2 => Ok(Self::Solicited),
            other => Err(unknown("type", other)),
        }
    }

    /// How a queue is armed for it. What failed is told of in either case; where nobody solicits anything, that is all.
    pub const fn notify(self) -> Notify {
        match self {
            Self::Any => Notify::Next,
            Self::Errors | Self::Solicited => Notify::Solicited,
        }
    }
}

fn unknown(argument: &'static str, value: u32) -> VerbError {
    VerbError::argument(argument, ArgumentReason::UnknownBits(value.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    // covers 7.88
    #[test]
    fn flags_have_the_values_of_the_interface() {
        let operations = [
            (OpFlags::SILENT_SUCCESS, 0x1),
            (OpFlags::READ_FENCE, 0x2),
            (OpFlags::SEND_AND_SOLICIT_EVENT, 0x4),
            (OpFlags::ALLOW_READ, 0x8),
            (OpFlags::ALLOW_WRITE, 0x10),
            (OpFlags::INLINE, 0x20),
        ];
        for (flag, value) in operations {
            assert_eq!(OpFlags::parse(value), Ok(flag));
        }
        assert!(OpFlags::parse(0x40).is_err());
        assert_eq!(OpFlags::empty().send_flags(), SendFlags::SIGNALED);
        let all = OpFlags::all().send_flags();
        assert_eq!(all, SendFlags::FENCE | SendFlags::SOLICITED);
        let kinds = [NotifyKind::Errors, NotifyKind::Any, NotifyKind::Solicited];
        for (value, kind) in (0..).zip(kinds) {
            assert_eq!(NotifyKind::parse(value), Ok(kind));
        }
        assert!(NotifyKind::parse(3).is_err());
    }

    // covers 7.88
    #[test]
    fn a_right_to_write_locally_is_none_to_write_from_afar() {
        let access = |flags| MrFlags::parse(flags).unwrap().access(Access::REMOTE_WRITE);
        assert_eq!(access(1), Access::LOCAL_WRITE);
        assert_eq!(access(2), Access::REMOTE_READ);
        assert_eq!(access(3), Access::LOCAL_WRITE | Access::REMOTE_READ);
        assert_eq!(access(5), Access::LOCAL_WRITE | Access::REMOTE_WRITE);
        assert_eq!(access(8), Access::LOCAL_WRITE | Access::REMOTE_WRITE);
        assert!(MrFlags::parse(0x10).is_err());
    }

    // covers 7.88
    #[test]
    fn a_bind_says_what_it_allows() {
        assert_eq!(OpFlags::ALLOW_READ.of_bind(), Ok(Access::REMOTE_READ));
        let both = OpFlags::ALLOW_READ | OpFlags::ALLOW_WRITE | OpFlags::READ_FENCE;
        assert_eq!(
            both.of_bind(),
            Ok(Access::REMOTE_READ | Access::REMOTE_WRITE)
        );
        assert!(OpFlags::READ_FENCE.of_bind().is_err());
    }
}
