//! The flags of Windows' NetworkDirect interface, translated: for programs that come from there.
//!
//! The values are those of its header `nddef.h`. An unknown flag is an error that names the argument.

use bitflags::bitflags;
use verbs_api::{Access, ArgumentReason, VerbError, completion::Notify, wr::SendFlags};

bitflags! {
    /// Flags of requests.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct OpFlags: u32 {
        /// No completion if the request succeeds.
        const SILENT_SUCCESS = 0x01;
        /// Wait until earlier reads have completed.
        const READ_FENCE = 0x02;
        /// The peer's completion is solicited.
        const SEND_AND_SOLICIT_EVENT = 0x04;
        /// Bind: the peer may read.
        const ALLOW_READ = 0x08;
        /// Bind: the peer may write.
        const ALLOW_WRITE = 0x10;
        /// The data are copied when the request is posted.
        const INLINE = 0x20;
    }

    /// Flags of registrations. Remote write includes the bit of local write, so test for it by [`contains`](Self::contains),
    /// not by `intersects`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct MrFlags: u32 {
        /// Local write.
        const ALLOW_LOCAL_WRITE = 0x01;
        /// Remote read.
        const ALLOW_REMOTE_READ = 0x02;
        /// Remote write.
        const ALLOW_REMOTE_WRITE = 0x05;
        /// The region may be the sink of reads, where that takes a right of its own.
        const RDMA_READ_SINK = 0x08;
    }
}

impl OpFlags {
    /// Parses these bits.
    ///
    /// # Errors
    /// Unknown flags.
    pub fn parse(flags: u32) -> Result<Self, VerbError> {
        Self::from_bits(flags).ok_or_else(|| unknown("flags", flags))
    }

    /// The corresponding flags of a request. Inline data and the rights of a bind are part of the request itself.
    pub fn send_flags(self) -> SendFlags {
        let mut flags = SendFlags::empty();
        flags.set(SendFlags::SIGNALED, !self.contains(Self::SILENT_SUCCESS));
        flags.set(SendFlags::FENCE, self.contains(Self::READ_FENCE));
        let solicits = self.contains(Self::SEND_AND_SOLICIT_EVENT);
        flags.set(SendFlags::SOLICITED, solicits);
        flags
    }

    /// The access that a bind grants.
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
    /// Parses these bits.
    ///
    /// # Errors
    /// Unknown flags.
    pub fn parse(flags: u32) -> Result<Self, VerbError> {
        Self::from_bits(flags).ok_or_else(|| unknown("flags", flags))
    }

    /// The access that a registration grants, on a device where the sink of a read needs `sink` besides local write.
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

/// Which completions a queue notifies of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum NotifyKind {
    /// Errors.
    Errors = 0,
    /// All completions.
    Any = 1,
    /// Solicited ones and errors.
    Solicited = 2,
}

impl NotifyKind {
    /// Parses this value.
    ///
    /// # Errors
    /// An unknown value.
    pub fn parse(kind: u32) -> Result<Self, VerbError> {
        match kind {
            0 => Ok(Self::Errors),
            1 => Ok(Self::Any),
            2 => Ok(Self::Solicited),
            other => Err(unknown("type", other)),
        }
    }

    /// How to arm a queue for it. Both forms notify of errors; a queue without solicited completions notifies of nothing else.
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
    fn local_write_access_does_not_include_remote_write() {
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
    fn a_bind_has_the_access_that_its_flags_allow() {
        assert_eq!(OpFlags::ALLOW_READ.of_bind(), Ok(Access::REMOTE_READ));
        let both = OpFlags::ALLOW_READ | OpFlags::ALLOW_WRITE | OpFlags::READ_FENCE;
        assert_eq!(
            both.of_bind(),
            Ok(Access::REMOTE_READ | Access::REMOTE_WRITE)
        );
        assert!(OpFlags::READ_FENCE.of_bind().is_err());
    }
}
