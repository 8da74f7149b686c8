//! Gaps: abilities of the baseline that a device lacks.

use bitflags::bitflags;

bitflags! {
    /// Baseline abilities that a device does not have.
    ///
    /// The baseline is RC, UC and UD with send, write, read, immediate data and 64-bit atomics, plus what a transport
    /// makes mandatory for its own devices. A device without gaps has an empty set.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
    pub struct BaselineGaps: u32 {
        /// No unreliable datagrams. iWARP runs over streams only.
        const NO_UD = 1;
        /// No unreliable connections. iWARP runs over reliable streams only.
        const NO_UC = 1 << 1;
        /// An RDMA write cannot carry immediate data. iWARP without RFC 7306.
        const NO_SEND_WITH_IMMEDIATE = 1 << 2;
        /// A write cannot be followed by immediate data. iWARP without RFC 7306.
        const NO_WRITE_WITH_IMMEDIATE = 1 << 3;
        /// No atomic compare-and-swap or fetch-and-add. iWARP without RFC 7306.
        const NO_ATOMICS = 1 << 4;
        /// An RDMA read needs a local buffer whose region grants remote write. iWARP: the local key goes on the wire (RFC
        /// 5040 section 5.2).
        const READ_SINK_NEEDS_REMOTE_WRITE = 1 << 5;
        /// A send for which the peer has no receive posted ends the connection instead of being retried. iWARP: RFC 5041
        /// section 7.
        const NO_RNR_RETRY = 1 << 6;
        /// The device lacks BMME, which its transport requires, because no emulation of it is linked.
        const NO_BMME = 1 << 7;
        /// The device lacks the fence on local invalidate, which its transport requires, because no emulation of it is
        /// linked.
        const NO_LOCAL_INVALIDATE_FENCE = 1 << 8;
        /// The device lacks type-2B windows, which its transport requires, because no emulation of them is linked.
        const NO_WINDOW_2B = 1 << 9;
        /// The device lacks zero-based addresses, which its transport requires, because no emulation of them is linked.
        const NO_ZBVA = 1 << 10;
        /// The device lacks read-with-invalidate, which its transport requires, because no emulation of it is linked.
        const NO_READ_WITH_INVALIDATE = 1 << 11;
        /// A memory region cannot be re-registered, only deregistered and registered anew. Many drivers of hardware.
        const NO_REREG_MR = 1 << 12;
        /// A completion queue cannot be resized. Many drivers of hardware.
        const NO_RESIZE_CQ = 1 << 13;
        /// No reliable connections. Only devices that have their own kind of datagrams.
        const NO_RC = 1 << 14;
        /// Queue pairs cannot be modified to RTR: making a connection moves them to RTS.
        /// [`Qp::connect`](crate::Qp::connect) completes when the peer, a queue pair of the same process, connects too.
        /// iWARP devices of a C library: the kernel's drivers need a TCP stream first.
        const NO_MODIFY_TO_RTR = 1 << 15;
    }
}
