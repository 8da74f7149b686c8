//! Rules that software devices keep, each of which a test may have broken.
//!
//! Whether a probe notices that a rule is broken shows only on a device that breaks it. In builds with debug assertions
//! [`break_rule`] has the devices break one rule in whatever the calling thread does: in virtual time, all that they do. In
//! other builds, releases among them, no rule can be broken, [`is_broken`] is a constant, and a call of it costs nothing.

use std::cell::Cell;

use crate::request::{Op, Request, Source};

/// Declares the rules, with the names by which they are broken.
macro_rules! rules {
    ($($(#[$about:meta])* $rule:ident = $name:literal,)*) => {
        /// A rule. What is written about each is what a device does that breaks it.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Rule {
            $($(#[$about])* $rule,)*
        }

        #[cfg(debug_assertions)]
        impl Rule {
            /// Every rule.
            pub const ALL: &[Self] = &[$(Self::$rule),*];

            /// Its name.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$rule => $name,)*
                }
            }
        }
    };
}

rules! {
    /// What stands behind a failed request is reported as done.
    FlushBehindError = "flush-behind-error",
    /// InfiniBand: retries after a timeout never end.
    RetriesEnd = "retries-end",
    /// An unreliable connection fails when a message finds no receive.
    UnreliableLoss = "unreliable-loss",
    /// Datagrams with any Q_Key are delivered.
    DatagramQkey = "datagram-qkey",
    /// A message longer than its receive is cut.
    ReceiveLength = "receive-length",
    /// The immediate of a send is lost.
    SendImmediate = "send-immediate",
    /// The immediate of a write is lost.
    WriteImmediate = "write-immediate",
    /// A queue pair that lets peers write nothing lets them write.
    QueuePairWrite = "queue-pair-write",
    /// A queue pair that lets peers read nothing lets them read.
    QueuePairRead = "queue-pair-read",
    /// InfiniBand: the sink of a read must be open to peers.
    LocalReadSink = "local-read-sink",
    /// iWARP: the sink of a read need not be open to peers.
    OpenReadSink = "open-read-sink",
    /// Compare-and-swap swaps what is different as well.
    CompareSwapCompares = "compare-swap-compares",
    /// Inline bytes of a write are not those of the moment of posting.
    InlineCopied = "inline-copied",
    /// A send that finds no receive is not tried again.
    RnrRetry = "rnr-retry",
    /// The right to read is not asked of regions.
    RegionReadRight = "region-read-right",
    /// A region that is registered anew keeps its rights.
    ReregisteredRights = "reregistered-rights",
    /// A completion queue is resized although what waits does not fit.
    ResizeFits = "resize-fits",
    /// Nobody is told that a shared receive queue runs low.
    SrqLimitEvent = "srq-limit-event",
    /// A datagram to a group reaches the members of all groups.
    GroupMembersOnly = "group-members-only",
    /// An atomic write to misaligned bytes changes the aligned ones before them.
    AtomicWriteAligned = "atomic-write-aligned",
    /// The right to flush is not asked of keys.
    FlushRight = "flush-right",
    /// A key that was invalidated still answers peers.
    StaleKey = "stale-key",
    /// Send-with-invalidate leaves the key of a region valid.
    SendInvalidates = "send-invalidates",
    /// A fenced invalidate overtakes reads.
    InvalidateFence = "invalidate-fence",
    /// A type-1 window opens its whole region.
    Window1Range = "window-1-range",
    /// A type-2 window opens its whole region.
    Window2Range = "window-2-range",
    /// A type-2 window answers every queue pair of its domain.
    Window2QueuePair = "window-2-queue-pair",
    /// A region is deregistered although windows are bound to it, which go on opening its memory.
    RegionInUse = "region-in-use",
    /// Read-with-invalidate leaves the key of its sink valid.
    ReadInvalidates = "read-invalidates",
    /// A zero-based window counts from the beginning of its region.
    ZeroBasedStart = "zero-based-start",
    /// Bytes of a list of blocks are looked for in the wrong place.
    BlockOffset = "block-offset",
    /// A window on a list with gaps begins where the list does.
    GapWindowStart = "gap-window-start",
    /// A carry of a masked fetch-and-add leaves its field.
    MaskedCarry = "masked-carry",
    /// Masked compare-and-swap compares all bits.
    MaskedCompare = "masked-compare",
    /// A queue pair gets its own multicasts although it blocks them.
    LoopbackBlocked = "loopback-blocked",
    /// Receives are over before they are seen without their queue.
    ReceivesSeen = "receives-seen",
    /// A request that names a shared receive queue goes to the first one of its domain.
    NamedQueue = "named-queue",
}

thread_local! {
    static BROKEN: Cell<Option<Rule>> = const { Cell::new(None) };
}

/// From now on every software device breaks this rule, and no other, in what this thread does; `None` for no rule.
#[cfg(debug_assertions)]
pub fn break_rule(rule: Option<Rule>) {
    BROKEN.set(rule);
}

/// Whether this rule is broken here.
#[inline(always)]
pub fn is_broken(rule: Rule) -> bool {
    cfg!(debug_assertions) && BROKEN.get() == Some(rule)
}

/// Whether any rule is broken here: then no request goes a short way, where nobody looks.
#[inline(always)]
pub fn is_any_broken() -> bool {
    cfg!(debug_assertions) && BROKEN.get().is_some()
}

/// A write whose inline bytes were looked at when the program had other bytes there; other requests as they are.
pub(crate) fn looked_at_later<'r>(request: &Request<'r>) -> Request<'r> {
    static LATER: [u8; 1024] = [0xff; 1024];
    match (request.op, request.source) {
        (Op::Write(..), Source::Inline(bytes)) => Request {
            source: Source::Inline(&LATER[..bytes.len().min(LATER.len())]),
            ..*request
        },
        _ => *request,
    }
}
