//! What the baseline promises and a device lacks.

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
        /// A send cannot carry immediate data. Permanent on iWARP: RFC 7306 immediate data is a message of its own.
        const NO_SEND_WITH_IMMEDIATE = 1 << 2;
        /// A write cannot be followed by immediate data. iWARP without RFC 7306.
        const NO_WRITE_WITH_IMMEDIATE = 1 << 3;
        /// No compare-and-swap and fetch-and-add. iWARP without RFC 7306.
        const NO_ATOMICS = 1 << 4;
        /// A read needs a sink that grants remote write. iWARP: the sink key goes on the wire (RFC 5040 section 5.2).
        const READ_SINK_NEEDS_REMOTE_WRITE = 1 << 5;
        /// A message that finds no receive ends the connection instead of being retried. iWARP: RFC 5041 section 7.
        const NO_RNR_RETRY = 1 << 6;
        /// The transport demands base memory management and what emulates it is not linked.
        const NO_BMME = 1 << 7;
        /// The transport demands a fence on local invalidate and what emulates it is not linked.
        const NO_LOCAL_INVALIDATE_FENCE = 1 << 8;
        /// The transport demands type-2B windows and what emulates them is not linked.
        const NO_WINDOW_2B = 1 << 9;
        /// The transport demands zero-based addresses and what emulates them is not linked.
        const NO_ZBVA = 1 << 10;
        /// The transport demands read-with-invalidate and what emulates it is not linked.
        const NO_READ_WITH_INVALIDATE = 1 << 11;
        /// A region cannot be changed: it is deregistered and made anew. Many drivers of hardware.
        const NO_REREG_MR = 1 << 12;
        /// A completion queue keeps the size that it was made with. Many drivers of hardware.
        const NO_RESIZE_CQ = 1 << 13;
        /// No reliable connections. Devices with datagrams of their own only.
        const NO_RC = 1 << 14;
        /// Queue pairs are not modified to RTR: a connection brings them up to RTS at once. [`Qp::connect`](crate::Qp::connect)
        /// ends when the peer connects too, and both are of one process. iWARP by a library of C: the kernel's drivers begin
        /// with a stream.
        const NO_MODIFY_TO_RTR = 1 << 15;
    }
}
