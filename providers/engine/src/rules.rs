//! Rules that software devices keep, and that a test can make them break.
//!
//! Only a device that breaks a rule shows whether a probe notices that. In builds with debug assertions [`break_rule`]
//! makes the devices break one rule in everything that the calling thread does: in virtual time, in everything. In other
//! builds, including releases, no rule can be broken: [`is_broken`] is a constant and costs nothing.

use std::cell::Cell;

/// Declares the rules, with the names by which they are broken.
macro_rules! rules {
    ($($(#[$about:meta])* $rule:ident = $name:literal,)*) => {
        /// A rule. The documentation of each says what a device that breaks it does.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Rule {
            $($(#[$about])* $rule,)*
        }

        #[cfg(debug_assertions)]
        impl Rule {
            /// Every rule.
            pub const ALL: &[Self] = &[$(Self::$rule),*];

            /// The name of the rule.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$rule => $name,)*
                }
            }
        }
    };
}

rules! {
    /// Requests after a failed one complete with success.
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
    /// Compare-and-swap swaps also if the values differ.
    CompareSwapCompares = "compare-swap-compares",
    /// Inline bytes of a write are read after the post.
    InlineCopied = "inline-copied",
    /// A send that finds no receive is not retried.
    RnrRetry = "rnr-retry",
    /// Remote reads need no right of the region.
    RegionReadRight = "region-read-right",
    /// A reregistered region keeps its old rights.
    ReregisteredRights = "reregistered-rights",
    /// A completion queue is resized although its pending completions do not fit.
    ResizeFits = "resize-fits",
    /// No event reports that a shared receive queue has reached its limit.
    SrqLimitEvent = "srq-limit-event",
    /// A datagram to a group reaches the members of all groups.
    GroupMembersOnly = "group-members-only",
    /// An atomic write to misaligned bytes changes the aligned ones before them.
    AtomicWriteAligned = "atomic-write-aligned",
    /// Flushes need no right of the key.
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
    /// A region with bound windows is deregistered, and the windows still open its memory.
    RegionInUse = "region-in-use",
    /// Read-with-invalidate leaves the key of its sink valid.
    ReadInvalidates = "read-invalidates",
    /// A zero-based window counts from the beginning of its region.
    ZeroBasedStart = "zero-based-start",
    /// Bytes of a block list are read from the wrong position.
    BlockOffset = "block-offset",
    /// A window on a list with gaps begins where the list does.
    GapWindowStart = "gap-window-start",
    /// A carry of a masked fetch-and-add leaves its field.
    MaskedCarry = "masked-carry",
    /// Masked compare-and-swap compares all bits.
    MaskedCompare = "masked-compare",
    /// A queue pair gets its own multicasts although it blocks them.
    LoopbackBlocked = "loopback-blocked",
    /// A receive completes without being visible outside its completion queue.
    ReceivesSeen = "receives-seen",
    /// A request that names a shared receive queue goes to the first one of its domain.
    NamedQueue = "named-queue",
}

thread_local! {
    static BROKEN: Cell<Option<Rule>> = const { Cell::new(None) };
}

/// Makes every software device break this rule, and no other, in everything that this thread does; `None` for no rule.
#[cfg(debug_assertions)]
pub fn break_rule(rule: Option<Rule>) {
    BROKEN.set(rule);
}

/// Returns the rule that the calling thread breaks.
#[cfg(debug_assertions)]
pub(crate) fn broken() -> Option<Rule> {
    BROKEN.get()
}

/// Returns whether the calling thread breaks this rule.
#[inline(always)]
pub fn is_broken(rule: Rule) -> bool {
    cfg!(debug_assertions) && BROKEN.get() == Some(rule)
}

/// Returns whether the calling thread breaks any rule. Then no request takes the express path, which checks no rule.
#[inline(always)]
pub fn is_any_broken() -> bool {
    cfg!(debug_assertions) && BROKEN.get().is_some()
}
