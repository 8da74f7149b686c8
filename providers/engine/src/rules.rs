//! Rules that software devices keep, and that a test can make them break.
//!
//! Only a device that breaks a rule shows whether a probe notices that. In builds with debug assertions [`break_rule`]
//! makes the devices break one rule in everything that the calling thread does: in virtual time, in everything. In other
//! builds, including releases, no rule can be broken: [`is_broken`] is a constant and costs nothing.

use std::cell::Cell;

/// Declares the rules, with the names by which they are broken.
macro_rules! rules {
    ($($(#[$about:meta])* $rule:ident = $name:literal,)*) => {
        /// A rule of software devices. The comment of each rule says what a device does when a test makes it break the
        /// rule.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Rule {
            $($(#[$about])* $rule,)*
        }

        #[cfg(debug_assertions)]
        impl Rule {
            /// Every rule.
            pub const ALL: &[Self] = &[$(Self::$rule),*];

            /// The name by which a test selects the rule.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$rule => $name,)*
                }
            }
        }
    };
}

rules! {
    /// If broken, requests after a failed one complete with success instead of being flushed.
    FlushBehindError = "flush-behind-error",
    /// If broken, an InfiniBand requester retries without end after timeouts.
    RetriesEnd = "retries-end",
    /// If broken, a queue pair of an unreliable connection fails when a message finds no receive.
    UnreliableLoss = "unreliable-loss",
    /// If broken, datagrams with any Q_Key are delivered.
    DatagramQkey = "datagram-qkey",
    /// If broken, a message that is longer than its receive is cut, and the receive succeeds.
    ReceiveLength = "receive-length",
    /// If broken, the immediate data of a send arrive as zeros.
    SendImmediate = "send-immediate",
    /// If broken, the immediate data of a write arrive as zeros.
    WriteImmediate = "write-immediate",
    /// If broken, peers may write through a queue pair whose access flags forbid that.
    QueuePairWrite = "queue-pair-write",
    /// If broken, peers may read through a queue pair whose access flags forbid that.
    QueuePairRead = "queue-pair-read",
    /// If broken, InfiniBand requires that peers may write to the local memory of a read.
    LocalReadSink = "local-read-sink",
    /// If broken, iWARP does not require that peers may write to the local memory of a read.
    OpenReadSink = "open-read-sink",
    /// If broken, a compare-and-swap swaps even if the values differ.
    CompareSwapCompares = "compare-swap-compares",
    /// If broken, the device reads the inline bytes of a write only after the post, when the program may have changed them.
    InlineCopied = "inline-copied",
    /// If broken, a send that finds no receive fails without a retry.
    RnrRetry = "rnr-retry",
    /// If broken, peers may read from a region that does not grant remote read.
    RegionReadRight = "region-read-right",
    /// If broken, a region that is registered again with other rights keeps its old rights.
    ReregisteredRights = "reregistered-rights",
    /// If broken, a completion queue accepts a resize for which it holds too many completions.
    ResizeFits = "resize-fits",
    /// If broken, no event reports that a shared receive queue has reached its limit.
    SrqLimitEvent = "srq-limit-event",
    /// If broken, completion counters count requests that fail as successes.
    CountedApart = "counted-apart",
    /// If broken, a datagram to a multicast group reaches the members of all groups.
    GroupMembersOnly = "group-members-only",
    /// If broken, an atomic write to a misaligned address writes to the aligned address before it.
    AtomicWriteAligned = "atomic-write-aligned",
    /// If broken, a flush needs no right of the key.
    FlushRight = "flush-right",
    /// If broken, a fast-registered key still opens its memory to peers after it was invalidated.
    StaleKey = "stale-key",
    /// If broken, a send-with-invalidate leaves the key of a region valid.
    SendInvalidates = "send-invalidates",
    /// If broken, a fenced local invalidate is carried out before earlier reads.
    InvalidateFence = "invalidate-fence",
    /// If broken, a type-1 window opens its whole region instead of its part.
    Window1Range = "window-1-range",
    /// If broken, a type-2 window opens its whole region instead of its part.
    Window2Range = "window-2-range",
    /// If broken, a type-2 window can be used through every queue pair of its protection domain.
    Window2QueuePair = "window-2-queue-pair",
    /// If broken, a region with bound windows can be deregistered, and the windows still open its memory.
    RegionInUse = "region-in-use",
    /// If broken, a read-with-invalidate leaves the local key valid.
    ReadInvalidates = "read-invalidates",
    /// If broken, the addresses of a zero-based window count from the beginning of its region.
    ZeroBasedStart = "zero-based-start",
    /// If broken, bytes of a block list are accessed at the wrong position.
    BlockOffset = "block-offset",
    /// If broken, a window on a list with gaps begins where the list does.
    GapWindowStart = "gap-window-start",
    /// If broken, a carry of a masked fetch-and-add changes the next field.
    MaskedCarry = "masked-carry",
    /// If broken, a masked compare-and-swap compares all bits.
    MaskedCompare = "masked-compare",
    /// If broken, a queue pair receives its own multicast datagrams although it blocks them.
    LoopbackBlocked = "loopback-blocked",
    /// If broken, a receive completes without being seen outside its completion queue.
    ReceivesSeen = "receives-seen",
    /// If broken, a request that names a shared receive queue takes its receive from the first queue of its domain.
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

/// Returns whether the calling thread breaks any rule. Then no request takes the express path for ordinary requests, which
/// checks no rule.
#[inline(always)]
pub fn is_any_broken() -> bool {
    cfg!(debug_assertions) && BROKEN.get().is_some()
}
