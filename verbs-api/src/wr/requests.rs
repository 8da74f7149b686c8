//! The requests that can be posted to a send queue, one type for each operation.

use std::sync::Arc;

use bitflags::bitflags;
use enum_dispatch::enum_dispatch;
use zerocopy::{Immutable, IntoBytes};

use super::{Data, RemoteAddress, Sge, UdDestination};
use crate::access::Access;
use crate::capability::Features;
use crate::contract::{MrOps, MwOps};
use crate::ids::{LKey, RKey};
use crate::lifecycle::{ContextCore, ObjectBase};
use crate::mem::{MwType, PageList};
use crate::operation::{ExtensionOperation, Held, OperationData, RequestAttribute, WcOpcode};
use crate::post::{PostReason, QpRules};
use crate::service::Operations;

bitflags! {
    /// Flags that determine how a request is executed and how its end is reported.
    ///
    /// ```
    /// use verbs_api::wr::{self, SendFlags};
    /// let flags = SendFlags::FENCE | SendFlags::SIGNALED;
    /// let after_reads = wr::Send::new(b"the reads are done").flags(flags).wr_id(7);
    /// ```
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
    #[doc(alias = "ibv_send_flags")]
    pub struct SendFlags: u8 {
        /// The request starts only after all earlier reads and atomics of this send queue have completed.
        const FENCE = 1;
        /// The request generates a completion when it succeeds. Without this flag only a failure does.
        const SIGNALED = 1 << 1;
        /// The receive that the message completes at the peer counts as solicited. Only for sends and writes with immediate
        /// data; ignored for others.
        const SOLICITED = 1 << 2;
        /// The request is part of a portable operation, and may take the send queue entries that are reserved for those.
        const RESERVED = 1 << 5;
        /// The request is the first of a portable operation's two, and is posted only together with the second.
        const FIRST_HALF = 1 << 6;
        /// The request is the second of a portable operation's two. If the first completes with an error, this one is
        /// flushed without a completion.
        const SECOND_HALF = 1 << 7;
    }
}

impl SendFlags {
    /// The flags that only requests of portable operations have.
    const PORTABLE: Self = Self::RESERVED
        .union(Self::FIRST_HALF)
        .union(Self::SECOND_HALF);
}

/// The fields that every request has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Common {
    /// An identifier of the program's choice, which the completion returns.
    pub wr_id: u64,
    /// How the request is executed and how its end is reported.
    pub flags: SendFlags,
    // What needs extra checks while posting.
    pub(crate) special: Special,
    // The kind of the attribute, 0 for none, and its value.
    attribute: u8,
    value: u32,
}

bitflags! {
    /// Properties of a request that need extra checks while posting.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
    pub(crate) struct Special: u8 {
        /// The request has private buffers, which posting passes to the device.
        const LENDS = 1;
        /// The request has an attribute of an extension.
        const ATTRIBUTE = 1 << 1;
    }
}

impl Common {
    /// Returns the request's attribute of an extension; `None` without one.
    #[inline]
    pub fn attribute(&self) -> Option<RequestAttribute> {
        RequestAttribute::of_parts(self.attribute, self.value)
    }

    /// Returns the value of the request's attribute of an extension; 0 without one.
    #[inline]
    pub const fn attribute_value(&self) -> u32 {
        self.value
    }

    fn set_attribute(&mut self, attribute: RequestAttribute) {
        (self.attribute, self.value) = attribute.parts();
        self.special |= Special::ATTRIBUTE;
    }
}

/// The common interface of all operations of a send queue.
#[enum_dispatch]
pub trait Operation {
    /// Returns the bit that permits this operation in a queue pair's set.
    fn operation(&self) -> Operations;

    /// Returns the opcode of the operation's completion.
    fn wc_opcode(&self) -> WcOpcode;

    /// Returns the fields that every request has.
    fn common(&self) -> &Common;

    /// Returns the local bytes of the request.
    fn data(&self) -> &Data<'_>;

    /// Whether the operation is an RDMA read or an atomic, for which a fence waits and which counts against
    /// `max_rd_atomic`.
    fn is_read_or_atomic(&self) -> bool {
        false
    }

    /// Checks everything that is independent of the state of the queue pair and its memory: entries, lengths, rights.
    ///
    /// # Errors
    /// Which field is invalid, and why.
    fn validate(&self, rules: &QpRules) -> Result<(), PostReason>;
}

macro_rules! requests {
    ($( $(#[$doc:meta])* $name:ident { $( $(#[$field_doc:meta])* $vis:vis $field:ident: $ty:ty, )* }
        $bit:ident => $wc:ident, read_or_atomic: $reads:literal, check: $check:path;)*) => {
        $(
            $(#[$doc])*
            // `repr(C)`: the common fields are at the same offset in all requests, and are read without matching on the operation.
            #[derive(Debug, Default)]
            #[repr(C)]
            pub struct $name<'a> {
                pub(crate) common: Common,
                pub(crate) data: Data<'a>,
                $( $(#[$field_doc])* $vis $field: $ty, )*
            }

            impl<'a> $name<'a> {
                /// Sets the identifier that the completion returns, if there is one.
                #[must_use]
                #[inline]
                pub fn wr_id(mut self, wr_id: u64) -> Self {
                    self.common.wr_id = wr_id;
                    self
                }

                /// Makes the request signaled: its completion returns `wr_id`.
                #[must_use]
                #[inline]
                pub fn signaled(mut self, wr_id: u64) -> Self {
                    self.common.flags |= SendFlags::SIGNALED;
                    self.wr_id(wr_id)
                }

                /// Lets the request start only after all earlier reads and atomics of this send queue have completed.
                #[must_use]
                #[inline]
                pub fn fence(mut self) -> Self {
                    self.common.flags |= SendFlags::FENCE;
                    self
                }

                /// Adds an attribute of an extension to the request.
                #[must_use]
                pub fn with(mut self, attribute: RequestAttribute) -> Self {
                    self.common.set_attribute(attribute);
                    self
                }

                /// Sets exactly these flags; those of portable operations are ignored, because a program must not set them.
                #[must_use]
                #[inline]
                pub fn flags(mut self, flags: SendFlags) -> Self {
                    self.common.flags = flags - SendFlags::PORTABLE;
                    self
                }
            }

            impl Operation for $name<'_> {
                #[inline]
                fn operation(&self) -> Operations {
                    Operations::$bit
                }

                #[inline]
                fn wc_opcode(&self) -> WcOpcode {
                    WcOpcode::$wc
                }

                #[inline]
                fn common(&self) -> &Common {
                    &self.common
                }

                #[inline]
                fn data(&self) -> &Data<'_> {
                    &self.data
                }

                #[inline]
                fn is_read_or_atomic(&self) -> bool {
                    $reads
                }

                #[inline]
                fn validate(&self, rules: &QpRules) -> Result<(), PostReason> {
                    $check(self, rules)
                }
            }
        )*

        impl<'a> WorkRequest<'a> {
            pub(crate) fn data_mut(&mut self) -> &mut Data<'a> {
                match self {
                    $( Self::$name(request) => &mut request.data, )*
                    Self::Extension(request) => &mut request.data,
                }
            }

            pub(crate) fn common_mut(&mut self) -> &mut Common {
                match self {
                    $( Self::$name(request) => &mut request.common, )*
                    Self::Extension(request) => &mut request.common,
                }
            }

            /// Sets the identifier of a request of any kind, and exactly these flags; those of portable operations are
            /// ignored, because a program must not set them.
            pub fn set_common(&mut self, wr_id: u64, flags: SendFlags) {
                let common = self.common_mut();
                common.wr_id = wr_id;
                common.flags = flags - SendFlags::PORTABLE;
            }
        }
    };
}

requests! {
    /// Sends a message into the peer's next receive.
    ///
    /// Its completion means the same as that of a [`Write`]: it does not prove that the peer's program has received the
    /// message.
    ///
    /// ```no_run
    /// # fn example(qp: &verbs_api::Qp, cq: &verbs_api::Cq) -> Result<(), Box<dyn std::error::Error>> {
    /// use verbs_api::wr;
    /// qp.post_one(wr::Send::new(b"hello").signaled(7))?; // few bytes: copied while posting
    /// let done = cq.next().wait()?.success()?;
    /// assert_eq!(done.wr_id, 7);
    /// # Ok(())
    /// # }
    /// ```
    Send {
        /// The destination of a datagram; `None` on connected queue pairs.
        pub destination: Option<&'a UdDestination>,
    } SEND => Send, read_or_atomic: false, check: checks::send;

    /// Sends a message into the peer's next receive, with four bytes of immediate data.
    ///
    /// ```no_run
    /// # fn example(qp: &verbs_api::Qp, region: &verbs_api::Mr) -> Result<(), Box<dyn std::error::Error>> {
    /// use verbs_api::wr;
    /// let stream = 17_u32;
    /// qp.post_one(wr::SendWithImmediate::new(region.sge(0, 512)?, stream.to_be_bytes()))?;
    /// // The peer: `done.immediate().map(u32::from_be_bytes)`.
    /// # Ok(())
    /// # }
    /// ```
    SendWithImmediate {
        /// The immediate data: bytes that arrive unchanged, by convention a number in network byte order.
        pub imm: [u8; 4],
        /// The destination of a datagram; `None` on connected queue pairs.
        pub destination: Option<&'a UdDestination>,
    } SEND_WITH_IMM => Send, read_or_atomic: false, check: checks::send_imm;

    /// Sends a message that also invalidates a key of the receiver, before the receive completes.
    ///
    /// ```no_run
    /// # fn example(qp: &verbs_api::Qp, told: verbs_api::RemoteAddress) -> Result<(), Box<dyn std::error::Error>> {
    /// use verbs_api::wr;
    /// // The peer opened memory under this key for what it asked: the reply closes it.
    /// qp.post_one(wr::SendWithInvalidate::new(b"reply", told.rkey))?;
    /// // The peer: `done.invalidated_rkey()` is the key.
    /// # Ok(())
    /// # }
    /// ```
    SendWithInvalidate {
        /// The key of the receiver that is invalidated.
        pub rkey: RKey,
    } SEND_WITH_INV => Send, read_or_atomic: false, check: checks::connected;

    /// Writes local bytes into remote memory; the peer's program is not notified.
    ///
    /// A successful completion always means that the local memory may be used again. Beyond that:
    /// * Reliable connections of InfiniBand and RoCE: the peer's adapter has acknowledged the bytes. A write that is
    ///   refused fails here.
    /// * iWARP: the bytes were only passed to the stream (RFC 5040 section 5.1). They may still be on their way or be lost
    ///   with the connection, and a refusal is seen only as the end of the connection.
    /// * Unreliable connections: the bytes have left; whether they arrive is not reported.
    ///
    /// On no transport does the completion prove to the peer's program that the bytes have been placed. A later [`Send`] or
    /// [`WriteWithImmediate`] of the same queue pair is executed after the write: when the peer's receive completes, the
    /// bytes are in place. So is a later [`Read`]: when it completes, the bytes are in place.
    ///
    /// ```no_run
    /// # fn example(qp: &verbs_api::Qp, region: &verbs_api::Mr, remote: verbs_api::RemoteAddress)
    /// #     -> Result<(), Box<dyn std::error::Error>> {
    /// use verbs_api::wr;
    /// qp.post_one(wr::Write::new(region.sge(0, 512)?, remote))?;
    /// qp.post_one(wr::Send::new(b"written").signaled(1))?; // when this has come, so have the bytes
    /// # Ok(())
    /// # }
    /// ```
    Write {
        /// The remote memory that is written.
        pub remote: RemoteAddress,
    } WRITE => RdmaWrite, read_or_atomic: false, check: checks::connected;

    /// Writes local bytes into remote memory, and then completes a receive of the peer with four bytes of immediate data.
    ///
    /// Its completion means the same as that of a [`Write`], also for the receive: on iWARP the peer's receive may complete
    /// later, or never. The completion of that receive proves to the peer that the bytes have been placed.
    ///
    /// ```no_run
    /// # fn example(qp: &verbs_api::Qp, region: &verbs_api::Mr, remote: verbs_api::RemoteAddress)
    /// #     -> Result<(), Box<dyn std::error::Error>> {
    /// use verbs_api::wr;
    /// let slot = 3_u32;
    /// let to = remote.plus(u64::from(slot) * 512);
    /// qp.post_one(wr::WriteWithImmediate::new(region.sge(0, 512)?, to, slot.to_be_bytes()).signaled(1))?;
    /// # Ok(())
    /// # }
    /// ```
    WriteWithImmediate {
        /// The remote memory that is written.
        pub remote: RemoteAddress,
        /// The immediate data: bytes that arrive unchanged, by convention a number in network byte order.
        pub imm: [u8; 4],
    } WRITE_WITH_IMM => RdmaWrite, read_or_atomic: false, check: checks::connected;

    /// Reads remote memory into local memory.
    ///
    /// ```no_run
    /// # fn example(
    /// #     qp: &verbs_api::Qp, cq: &verbs_api::Cq, region: &verbs_api::Mr,
    /// #     memory: &verbs_api::Memory, remote: verbs_api::RemoteAddress,
    /// # ) -> Result<(), Box<dyn std::error::Error>> {
    /// use verbs_api::wr;
    /// qp.post_one(wr::Read::new(region.sge(0, 64)?, remote).signaled(1))?;
    /// cq.next().wait()?.success()?;
    /// println!("{:?}", memory.to_vec(0, 64)?); // the memory that the region was registered for
    /// # Ok(())
    /// # }
    /// ```
    Read {
        /// The remote memory that is read.
        pub remote: RemoteAddress,
    } READ => RdmaRead, read_or_atomic: true, check: checks::read;

    /// Reads remote memory into local memory, whose key is invalidated when the last byte has been placed.
    ///
    /// ```no_run
    /// # fn example(qp: &verbs_api::Qp, key: &verbs_api::MrKey, addr: u64, remote: verbs_api::RemoteAddress)
    /// #     -> Result<(), Box<dyn std::error::Error>> {
    /// use verbs_api::wr;
    /// // `key` was registered for the memory at `addr` with `read_sink_access`: afterwards it opens nothing.
    /// qp.post_one(wr::ReadWithInvalidate::new(key.sge(addr, 64), remote).signaled(1))?;
    /// # Ok(())
    /// # }
    /// ```
    ReadWithInvalidate {
        /// The remote memory that is read.
        pub remote: RemoteAddress,
        /// The local key that is invalidated after the read.
        pub invalidate: LKey,
    } READ_WITH_INV => RdmaRead, read_or_atomic: true, check: checks::read_inv;

    /// Atomically replaces eight bytes of remote memory if they equal `compare`; their original value is placed into local
    /// memory.
    ///
    /// ```no_run
    /// # fn example(
    /// #     qp: &verbs_api::Qp, cq: &verbs_api::Cq, region: &verbs_api::Mr,
    /// #     memory: &verbs_api::Memory, lock: verbs_api::RemoteAddress,
    /// # ) -> Result<(), Box<dyn std::error::Error>> {
    /// use verbs_api::wr;
    /// let (free, own) = (0, 7);
    /// qp.post_one(wr::CompareSwap::new(region.sge(0, 8)?, lock, free, own).signaled(1))?;
    /// cq.next().wait()?.success()?;
    /// let is_ours = memory.load_u64(0)? == free; // what was there before
    /// # Ok(())
    /// # }
    /// ```
    CompareSwap {
        /// The eight bytes to compare, at an 8-aligned address.
        pub remote: RemoteAddress,
        /// The value that the eight bytes are compared with.
        pub compare: u64,
        /// The value that replaces them if they are equal.
        pub swap: u64,
    } ATOMIC_CMP_AND_SWP => CompSwap, read_or_atomic: true, check: checks::cmp_swap;

    /// Atomically adds to eight bytes of remote memory; their original value is placed into local memory.
    ///
    /// ```no_run
    /// # fn example(
    /// #     qp: &verbs_api::Qp, cq: &verbs_api::Cq, region: &verbs_api::Mr,
    /// #     memory: &verbs_api::Memory, counter: verbs_api::RemoteAddress,
    /// # ) -> Result<(), Box<dyn std::error::Error>> {
    /// use verbs_api::wr;
    /// qp.post_one(wr::FetchAdd::new(region.sge(0, 8)?, counter, 1).signaled(1))?;
    /// cq.next().wait()?.success()?;
    /// let ticket = memory.load_u64(0)?; // nobody else gets this one
    /// # Ok(())
    /// # }
    /// ```
    FetchAdd {
        /// The eight bytes to add to, at an 8-aligned address.
        pub remote: RemoteAddress,
        /// The number that is added to the eight bytes, modulo 2^64.
        pub add: u64,
    } ATOMIC_FETCH_AND_ADD => FetchAdd, read_or_atomic: true, check: checks::fetch_add;

    /// Atomically writes eight bytes of remote memory.
    ///
    /// ```no_run
    /// # fn example(
    /// #     qp: &verbs_api::Qp, region: &verbs_api::Mr, memory: &verbs_api::Memory, remote: verbs_api::RemoteAddress,
    /// # ) -> Result<(), Box<dyn std::error::Error>> {
    /// use verbs_api::wr;
    /// memory.store_u64(0, 7)?; // the first bytes of the region
    /// qp.post_one(wr::AtomicWrite::new(region.sge(0, 8)?, remote).signaled(1))?;
    /// # Ok(())
    /// # }
    /// ```
    AtomicWrite {
        /// The eight bytes to write, at an 8-aligned address.
        pub remote: RemoteAddress,
    } ATOMIC_WRITE => AtomicWrite, read_or_atomic: false, check: checks::atomic_write;

    /// Flushes earlier writes: completes when they are visible or persistent in a range of remote memory.
    ///
    /// ```no_run
    /// # fn example(qp: &verbs_api::Qp, region: &verbs_api::Mr, remote: verbs_api::RemoteAddress)
    /// #     -> Result<(), Box<dyn std::error::Error>> {
    /// use verbs_api::{Access, wr};
    /// qp.post_one(wr::Write::new(region.sge(0, 512)?, remote))?;
    /// // When this completes, the bytes are persistent there.
    /// qp.post_one(wr::Flush::new(remote, 512, Access::FLUSH_PERSISTENT).signaled(1))?;
    /// # Ok(())
    /// # }
    /// ```
    Flush {
        /// The address and key of the range.
        pub remote: RemoteAddress,
        /// The length of the range in bytes; ignored if `whole_region` is set.
        pub length: u32,
        /// Whether the writes must be visible (`FLUSH_GLOBAL`), persistent (`FLUSH_PERSISTENT`) or both.
        pub placement: Access,
        /// Whether the whole region that the key names is flushed.
        pub whole_region: bool,
    } FLUSH => Flush, read_or_atomic: true, check: checks::flush;

    /// Registers memory with an allocated key that is in the free state.
    ///
    /// ```no_run
    /// # fn example(pd: &verbs_api::Pd, qp: &verbs_api::Qp, memory: &verbs_api::Memory)
    /// #     -> Result<(), Box<dyn std::error::Error>> {
    /// use verbs_api::{Access, PageList, wr};
    /// let pages = PageList::map(&[memory.into()], 4096, 256)?.list;
    /// let key = pd.alloc_key(256).wait()?.next_consumer_key();
    /// qp.post_one(wr::FastRegister::new(&key, &pages).access(Access::REMOTE_READ))?;
    /// // Requests behind it may rely on the key: this one tells the peer.
    /// qp.post_one(wr::Send::new(&key.remote(pages.address()).to_bytes()).signaled(1))?;
    /// # Ok(())
    /// # }
    /// ```
    FastRegister {
        /// The allocated key, with the low byte that it shall have.
        pub key: RKey,
        /// The memory to register; the request is refused if it is `None`.
        pub pages: Option<&'a PageList>,
        /// The access rights that the registration grants.
        pub access: Access,
        /// The address by which requests name the first byte; the page list's own if `None`.
        pub iova: Option<u64>,
        /// How many bytes to register; all that the page list maps if `None`.
        pub length: Option<u32>,
    } FAST_REGISTER => FastRegister, read_or_atomic: false, check: checks::fast_register;

    /// Invalidates a key: a fast-registered key, or that of a type-2 window, is then in the free state.
    ///
    /// ```no_run
    /// # fn example(qp: &verbs_api::Qp, cq: &verbs_api::Cq, key: &verbs_api::MrKey)
    /// #     -> Result<(), Box<dyn std::error::Error>> {
    /// use verbs_api::wr;
    /// // Fenced: reads into the memory of the key have ended before.
    /// qp.post_one(wr::LocalInvalidate::new(key).fence().signaled(1))?;
    /// cq.next().wait()?.success()?;
    /// let key = key.clone().next_consumer_key(); // for the next fast-register
    /// # Ok(())
    /// # }
    /// ```
    LocalInvalidate {
        /// The key that is invalidated.
        pub key: RKey,
    } LOCAL_INV => LocalInv, read_or_atomic: false, check: checks::local_invalidate;

    /// Binds a memory window to a range of a region.
    ///
    /// ```no_run
    /// # fn example(qp: &verbs_api::Qp, key: &verbs_api::MrKey, pages: &verbs_api::PageList, window: &verbs_api::Mw)
    /// #     -> Result<(), Box<dyn std::error::Error>> {
    /// use verbs_api::{Access, Batch, wr};
    /// // Over a region that is registered in the same batch, behind one doorbell.
    /// let rights = Access::LOCAL_WRITE | Access::MW_BIND;
    /// let bind = wr::BindWindow::new(window, key, pages.address(), 64).access(Access::REMOTE_WRITE);
    /// let mut batch = Batch::new();
    /// batch.push(wr::FastRegister::new(key, pages).access(rights));
    /// batch.push(bind.signaled(1));
    /// qp.post(&mut batch)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// The window and the region are named by their handles, which must be of the queue pair's context. The device checks
    /// that all three are of one protection domain. A destroyed object cannot be named, because its handle no longer
    /// exists; if a clone of the handle is used, posting fails with [`PostReason::InvalidHandle`].
    ///
    /// ```compile_fail,E0382
    /// # use verbs_api::{Mr, Mw, Qp, wr::BindWindow};
    /// fn bind_to_what_is_gone(qp: &Qp, window: &Mw, region: Mr) {
    ///     let deregistered = region.deregister().wait();
    ///     let posted = qp.post_one(BindWindow::new(window, &region, 0, 64));
    /// }
    /// ```
    BindWindow {
        // None is refused while posting.
        window: Option<&'a ObjectBase<dyn MwOps>>,
        window_type: Option<MwType>,
        // None unbinds.
        region: Option<&'a ObjectBase<dyn MrOps>>,
        /// The address of the window's first byte, as requests name it in the region.
        pub addr: u64,
        /// The length of the window in bytes. 0 unbinds a window of type 1 and is refused for type 2.
        pub length: u64,
        /// The access rights that the window grants to peers.
        pub access: Access,
        window_key_byte: u8,
        region_key_byte: u8,
    } BIND_MW => BindMw, read_or_atomic: false, check: checks::bind;
}

/// The region that a [`BindWindow`] binds to, with its present key: an [`Mr`](crate::Mr) or an [`MrKey`](crate::MrKey).
#[derive(Clone, Copy, Debug)]
pub struct WindowRegion<'a> {
    pub(crate) region: &'a ObjectBase<dyn MrOps>,
    pub(crate) key_byte: u8,
}

/// A work request for the send queue, of any kind.
///
/// ```no_run
/// # fn example(qp: &verbs_api::Qp, pool: &verbs_api::BufferPool) -> Result<(), Box<dyn std::error::Error>> {
/// use verbs_api::wr::{Data, Send, WorkRequest};
/// let buffer = pool.take().ok_or("every buffer is taken")?;
/// let request = WorkRequest::from(Send::new(buffer));
/// qp.post_one(request)?; // the buffer comes back with the completion
/// # Ok(())
/// # }
/// ```
// Written out, because `enum_dispatch` cannot see through the hygiene of a declarative macro.
#[enum_dispatch(Operation)]
#[derive(Debug)]
#[doc(alias = "ibv_send_wr")]
#[allow(missing_docs)]
pub enum WorkRequest<'a> {
    Send(Send<'a>),
    SendWithImmediate(SendWithImmediate<'a>),
    SendWithInvalidate(SendWithInvalidate<'a>),
    Write(Write<'a>),
    WriteWithImmediate(WriteWithImmediate<'a>),
    Read(Read<'a>),
    ReadWithInvalidate(ReadWithInvalidate<'a>),
    CompareSwap(CompareSwap<'a>),
    FetchAdd(FetchAdd<'a>),
    AtomicWrite(AtomicWrite<'a>),
    Flush(Flush<'a>),
    FastRegister(FastRegister<'a>),
    LocalInvalidate(LocalInvalidate<'a>),
    BindWindow(BindWindow<'a>),
    Extension(ExtensionRequest<'a>),
}

/// A request for an [operation](ExtensionOperation) of an extension. The extension's crate converts its own request types
/// into it.
///
/// The body is a fixed number of bytes that are sent unchanged, with numbers in network byte order. Objects that it
/// [holds](Self::holding) are kept alive until the request has retired.
#[derive(Debug)]
#[repr(C)]
pub struct ExtensionRequest<'a> {
    common: Common,
    data: Data<'a>,
    operation: &'static ExtensionOperation,
    body: &'a [u8],
    holds: Option<&'a Held>,
}

impl<'a> ExtensionRequest<'a> {
    /// Creates a request with this body and this scatter/gather list.
    #[inline]
    pub fn new<B: IntoBytes + Immutable + ?Sized>(
        operation: &'static ExtensionOperation,
        body: &'a B,
        data: impl Into<Data<'a>>,
    ) -> Self {
        let data = data.into();
        Self {
            common: common_for(&data),
            data,
            operation,
            body: body.as_bytes(),
            holds: None,
        }
    }

    /// Adds an attribute of an extension to the request.
    #[must_use]
    pub fn with(mut self, attribute: RequestAttribute) -> Self {
        self.common.set_attribute(attribute);
        self
    }

    /// Keeps these objects alive until the request has retired.
    #[must_use]
    pub fn holding(mut self, objects: &'a Held) -> Self {
        self.holds = Some(objects);
        self
    }

    /// Sets the identifier that the completion returns, if there is one.
    #[must_use]
    pub fn wr_id(mut self, wr_id: u64) -> Self {
        self.common.wr_id = wr_id;
        self
    }

    /// Makes the request signaled: its completion returns `wr_id`.
    #[must_use]
    pub fn signaled(mut self, wr_id: u64) -> Self {
        self.common.flags |= SendFlags::SIGNALED;
        self.wr_id(wr_id)
    }

    /// Lets the request start only after all earlier reads and atomics of this send queue have completed.
    #[must_use]
    pub fn fence(mut self) -> Self {
        self.common.flags |= SendFlags::FENCE;
        self
    }

    /// Returns the operation of the request.
    #[inline]
    pub fn extension_operation(&self) -> &'static ExtensionOperation {
        self.operation
    }

    /// Returns the bytes of the request's body.
    #[inline]
    pub fn body(&self) -> &'a [u8] {
        self.body
    }

    /// Returns the objects that the request keeps alive.
    #[inline]
    pub fn held(&self) -> Option<&'a Held> {
        self.holds
    }
}

impl Operation for ExtensionRequest<'_> {
    fn operation(&self) -> Operations {
        self.operation.bit()
    }

    fn wc_opcode(&self) -> WcOpcode {
        self.operation.wc_opcode()
    }

    fn common(&self) -> &Common {
        &self.common
    }

    fn data(&self) -> &Data<'_> {
        &self.data
    }

    fn is_read_or_atomic(&self) -> bool {
        !self.operation.is_local()
    }

    fn validate(&self, rules: &QpRules) -> Result<(), PostReason> {
        checks::extension(self, rules)
    }
}

#[inline]
fn common_for(data: &Data<'_>) -> Common {
    Common {
        special: match data.holds_buffers() {
            true => Special::LENDS,
            false => Special::empty(),
        },
        ..Common::default()
    }
}

impl<'a> Send<'a> {
    /// Sends a message of these bytes.
    #[inline]
    pub fn new(data: impl Into<Data<'a>>) -> Self {
        let data = data.into();
        Self {
            common: common_for(&data),
            data,
            destination: None,
        }
    }

    /// Makes the message a datagram to `destination`.
    #[must_use]
    #[inline]
    pub fn to(mut self, destination: &'a UdDestination) -> Self {
        self.destination = Some(destination);
        self
    }

    /// Lets the receive that the message completes at the peer count as solicited.
    #[must_use]
    #[inline]
    pub fn solicited(mut self) -> Self {
        self.common.flags |= SendFlags::SOLICITED;
        self
    }
}

impl<'a> SendWithImmediate<'a> {
    /// Sends a message of these bytes, with four bytes of immediate data.
    #[inline]
    pub fn new(data: impl Into<Data<'a>>, imm: [u8; 4]) -> Self {
        let data = data.into();
        Self {
            common: common_for(&data),
            data,
            imm,
            destination: None,
        }
    }

    /// Makes the message a datagram to `destination`.
    #[must_use]
    #[inline]
    pub fn to(mut self, destination: &'a UdDestination) -> Self {
        self.destination = Some(destination);
        self
    }

    /// Lets the receive that the message completes at the peer count as solicited.
    #[must_use]
    #[inline]
    pub fn solicited(mut self) -> Self {
        self.common.flags |= SendFlags::SOLICITED;
        self
    }
}

impl<'a> SendWithInvalidate<'a> {
    /// Sends a message of these bytes that invalidates the receiver's key `rkey`.
    #[inline]
    pub fn new(data: impl Into<Data<'a>>, rkey: RKey) -> Self {
        let data = data.into();
        Self {
            common: common_for(&data),
            data,
            rkey,
        }
    }

    /// Lets the receive that the message completes at the peer count as solicited.
    #[must_use]
    #[inline]
    pub fn solicited(mut self) -> Self {
        self.common.flags |= SendFlags::SOLICITED;
        self
    }
}

impl<'a> Write<'a> {
    /// Writes these bytes to `remote`.
    #[inline]
    pub fn new(data: impl Into<Data<'a>>, remote: RemoteAddress) -> Self {
        let data = data.into();
        Self {
            common: common_for(&data),
            data,
            remote,
        }
    }
}

impl<'a> WriteWithImmediate<'a> {
    /// Writes these bytes to `remote`, and completes the peer's next receive with the immediate data `imm`.
    #[inline]
    pub fn new(data: impl Into<Data<'a>>, remote: RemoteAddress, imm: [u8; 4]) -> Self {
        let data = data.into();
        Self {
            common: common_for(&data),
            data,
            remote,
            imm,
        }
    }

    /// Lets the receive that the request completes at the peer count as solicited.
    #[must_use]
    #[inline]
    pub fn solicited(mut self) -> Self {
        self.common.flags |= SendFlags::SOLICITED;
        self
    }
}

impl<'a> Read<'a> {
    /// Reads as many bytes from `remote` as `sink` holds.
    #[inline]
    pub fn new(sink: impl Into<Data<'a>>, remote: RemoteAddress) -> Self {
        let data = sink.into();
        Self {
            common: common_for(&data),
            data,
            remote,
        }
    }
}

impl<'a> ReadWithInvalidate<'a> {
    /// Reads as many bytes from `remote` as `sink` holds, and then invalidates the key of `sink`.
    #[inline]
    pub fn new(sink: Sge, remote: RemoteAddress) -> Self {
        Self {
            common: Common::default(),
            data: Data::Sge(sink),
            remote,
            invalidate: sink.lkey(),
        }
    }
}

impl<'a> CompareSwap<'a> {
    /// Replaces the eight bytes at `remote` by `swap` if they equal `compare`; their original value is placed into
    /// `result`.
    #[inline]
    pub fn new(
        result: impl Into<Data<'a>>,
        remote: RemoteAddress,
        compare: u64,
        swap: u64,
    ) -> Self {
        let data = result.into();
        Self {
            common: common_for(&data),
            data,
            remote,
            compare,
            swap,
        }
    }
}

impl<'a> FetchAdd<'a> {
    /// Adds `add` to the eight bytes at `remote`; their original value is placed into `result`.
    #[inline]
    pub fn new(result: impl Into<Data<'a>>, remote: RemoteAddress, add: u64) -> Self {
        let data = result.into();
        Self {
            common: common_for(&data),
            data,
            remote,
            add,
        }
    }
}

impl<'a> AtomicWrite<'a> {
    /// Atomically writes eight bytes to `remote`.
    #[inline]
    pub fn new(data: impl Into<Data<'a>>, remote: RemoteAddress) -> Self {
        let data = data.into();
        Self {
            common: common_for(&data),
            data,
            remote,
        }
    }
}

impl Flush<'_> {
    /// Flushes earlier writes to the `length` bytes at `remote`.
    #[inline]
    pub fn new(remote: RemoteAddress, length: u32, placement: Access) -> Self {
        Self {
            remote,
            length,
            placement,
            ..Self::default()
        }
    }

    /// Flushes earlier writes to the region that `rkey` names.
    #[inline]
    pub fn whole_region(rkey: RKey, placement: Access) -> Self {
        Self {
            remote: RemoteAddress::new(0, rkey),
            placement,
            whole_region: true,
            ..Self::default()
        }
    }
}

impl<'a> FastRegister<'a> {
    /// Registers the memory of `pages` with `key`: an allocated key with the low byte that it shall have.
    #[inline]
    pub fn new(key: impl Into<RKey>, pages: &'a PageList) -> Self {
        Self {
            key: key.into(),
            pages: Some(pages),
            ..Self::default()
        }
    }

    /// Sets the access rights that the registration grants.
    #[must_use]
    #[inline]
    pub fn access(mut self, access: Access) -> Self {
        self.access = access;
        self
    }

    /// Sets the address by which requests name the first byte.
    #[must_use]
    #[inline]
    pub fn iova(mut self, iova: u64) -> Self {
        self.iova = Some(iova);
        self
    }

    /// Registers only the first `length` bytes.
    #[must_use]
    #[inline]
    pub fn length(mut self, length: u32) -> Self {
        self.length = Some(length);
        self
    }
}

impl LocalInvalidate<'_> {
    /// Invalidates `key`.
    #[inline]
    pub fn new(key: impl Into<RKey>) -> Self {
        Self {
            key: key.into(),
            ..Self::default()
        }
    }
}

impl<'a> BindWindow<'a> {
    /// Creates a request that unbinds a window and gives its key this low byte.
    #[inline]
    pub(crate) fn of_window(
        window: &'a ObjectBase<dyn MwOps>,
        window_type: MwType,
        key_byte: u8,
    ) -> Self {
        Self {
            window: Some(window),
            window_type: Some(window_type),
            window_key_byte: key_byte,
            ..Self::default()
        }
    }

    /// Makes the request bind the window to `length` bytes from `addr` of a region.
    #[inline]
    pub(crate) fn bound_to(self, region: WindowRegion<'a>, addr: u64, length: u64) -> Self {
        Self {
            region: Some(region.region),
            addr,
            length,
            region_key_byte: region.key_byte,
            ..self
        }
    }

    /// Sets the access rights that the window grants to peers.
    #[must_use]
    #[inline]
    pub fn access(mut self, access: Access) -> Self {
        self.access = access;
        self
    }

    /// Sets the low byte that a type-2 window's key gets from the bind.
    #[must_use]
    #[inline]
    pub fn key_byte(mut self, byte: u8) -> Self {
        self.window_key_byte = byte;
        self
    }

    /// Sets the low byte that the region's key has when the bind is executed: for a fast-register that was posted before
    /// with another byte than that of its [`MrKey`](crate::MrKey).
    #[must_use]
    #[inline]
    pub fn region_key_byte(mut self, byte: u8) -> Self {
        self.region_key_byte = byte;
        self
    }

    /// Returns the key that the window has after the bind; 0 if the request has no window, and is refused.
    #[inline]
    pub fn key(&self) -> RKey {
        let key = self
            .window
            .map(|window| window.ops.rkey())
            .unwrap_or_default();
        key.with_key_byte(self.window_key_byte)
    }

    /// Returns the key that the region has when the bind is executed; 0 if the request has no region, and unbinds the
    /// window.
    #[inline]
    pub fn region_key(&self) -> LKey {
        let key = self
            .region
            .map(|region| region.ops.lkey())
            .unwrap_or_default();
        key.with_key_byte(self.region_key_byte)
    }

    /// Returns the provider's part of the window; never `None` in a request that a provider gets.
    #[inline]
    pub fn mw(&self) -> Option<&'a Arc<dyn MwOps>> {
        self.window.map(|window| &window.ops)
    }

    /// Returns the provider's part of the region; `None` in a request that unbinds the window.
    #[inline]
    pub fn mr(&self) -> Option<&'a Arc<dyn MrOps>> {
        self.region.map(|region| &region.ops)
    }

    /// Returns the type of the window; `None` if the request has none.
    pub(crate) fn window_type(&self) -> Option<MwType> {
        self.window_type
    }

    // Window and region are of this context, and live.
    pub(crate) fn check_handles(&self, context: &Arc<ContextCore>) -> Result<(), PostReason> {
        if let Some(window) = self.window {
            window.check_in(context)?;
        }
        if let Some(region) = self.region {
            region.check_in(context)?;
        }
        Ok(())
    }
}

mod checks {
    use super::*;
    use crate::service::QpType;

    #[inline(always)]
    fn data(
        data: &Data<'_>,
        rules: &QpRules,
        max_sge: u32,
        inline_allowed: bool,
    ) -> Result<(), PostReason> {
        let num_sge = data.num_sge();
        if num_sge > max_sge as usize {
            return Err(PostReason::TooManySges {
                max: max_sge,
                given: num_sge,
            });
        }
        if let Data::Inline(bytes) = data {
            if !inline_allowed {
                return Err(PostReason::InlineNotAllowed);
            }
            if bytes.len() > rules.max_inline_data as usize {
                return Err(PostReason::InlineTooLong {
                    max: rules.max_inline_data,
                    given: bytes.len(),
                });
            }
        }
        let length = data.len();
        if length > rules.max_msg_sz {
            return Err(PostReason::MessageTooLong {
                max: rules.max_msg_sz,
                given: length,
            });
        }
        Ok(())
    }

    #[inline]
    fn message(
        body: &Data<'_>,
        destination: Option<&UdDestination>,
        rules: &QpRules,
    ) -> Result<(), PostReason> {
        match (rules.qp_type, destination) {
            (QpType::Ud, None) => return Err(PostReason::NoDestination),
            (QpType::Ud, Some(to)) if !to.ah.is_of_pd(rules.pd) => {
                return Err(PostReason::ForeignAh);
            }
            (QpType::Ud, Some(to)) if !to.ah.is_live() => return Err(PostReason::InvalidHandle),
            (QpType::Rc | QpType::Uc, Some(_)) => return Err(PostReason::DestinationOnConnected),
            _ => {}
        }
        data(body, rules, rules.max_send_sge, true)
    }

    #[inline]
    pub(super) fn send(request: &Send<'_>, rules: &QpRules) -> Result<(), PostReason> {
        message(&request.data, request.destination, rules)
    }

    pub(super) fn send_imm(
        request: &SendWithImmediate<'_>,
        rules: &QpRules,
    ) -> Result<(), PostReason> {
        message(&request.data, request.destination, rules)
    }

    #[inline]
    pub(super) fn connected(request: &impl Operation, rules: &QpRules) -> Result<(), PostReason> {
        data(request.data(), rules, rules.max_send_sge, true)
    }

    #[inline]
    pub(super) fn read(request: &Read<'_>, rules: &QpRules) -> Result<(), PostReason> {
        data(&request.data, rules, rules.max_sge_rd, false)
    }

    pub(super) fn read_inv(
        request: &ReadWithInvalidate<'_>,
        rules: &QpRules,
    ) -> Result<(), PostReason> {
        data(&request.data, rules, rules.max_sge_rd, false)
    }

    #[inline]
    fn atomic(result: &Data<'_>, rules: &QpRules) -> Result<(), PostReason> {
        data(result, rules, rules.max_send_sge, false)?;
        if result.len() < 8 {
            return Err(PostReason::AtomicLength {
                given: result.len(),
            });
        }
        Ok(())
    }

    #[inline]
    pub(super) fn cmp_swap(request: &CompareSwap<'_>, rules: &QpRules) -> Result<(), PostReason> {
        atomic(&request.data, rules)
    }

    #[inline]
    pub(super) fn fetch_add(request: &FetchAdd<'_>, rules: &QpRules) -> Result<(), PostReason> {
        atomic(&request.data, rules)
    }

    pub(super) fn atomic_write(
        request: &AtomicWrite<'_>,
        rules: &QpRules,
    ) -> Result<(), PostReason> {
        data(&request.data, rules, rules.max_send_sge, true)?;
        match request.data.len() {
            8 => Ok(()),
            given => Err(PostReason::AtomicLength { given }),
        }
    }

    pub(super) fn flush(request: &Flush<'_>, _: &QpRules) -> Result<(), PostReason> {
        let known = Access::FLUSH_GLOBAL | Access::FLUSH_PERSISTENT;
        if request.placement.is_empty() || !known.contains(request.placement) {
            return Err(PostReason::IllegalAccess(
                "a flush is FLUSH_GLOBAL, FLUSH_PERSISTENT or both",
            ));
        }
        Ok(())
    }

    pub(super) fn fast_register(
        request: &FastRegister<'_>,
        rules: &QpRules,
    ) -> Result<(), PostReason> {
        let Some(pages) = request.pages else {
            return Err(PostReason::NoPages);
        };
        if let Some(reason) = request.access.illegal() {
            return Err(PostReason::IllegalAccess(reason));
        }
        let mut missing = Features::empty();
        missing.set(Features::BLOCK_LIST, pages.is_block_list());
        missing.set(Features::SG_GAPS, pages.has_gaps());
        missing.set(Features::ZBVA, request.access.contains(Access::ZERO_BASED));
        missing -= rules.features;
        if !missing.is_empty() {
            return Err(PostReason::Unsupported { missing });
        }
        let supported = rules.page_size_cap;
        if let Some(given) = pages.page_size().filter(|size| size & supported == 0) {
            return Err(PostReason::PageSize { given, supported });
        }
        if pages.entries() > rules.max_fast_reg_page_list_len {
            let max = rules.max_fast_reg_page_list_len;
            return Err(PostReason::TooManyPages {
                max,
                given: pages.entries(),
            });
        }
        match request.length {
            Some(length) if length == 0 || u64::from(length) > pages.len() => {
                Err(PostReason::RegionLength {
                    mapped: pages.len(),
                    given: length,
                })
            }
            _ => Ok(()),
        }
    }

    pub(super) fn local_invalidate(
        request: &LocalInvalidate<'_>,
        rules: &QpRules,
    ) -> Result<(), PostReason> {
        let fenced = request.common.flags.contains(SendFlags::FENCE);
        let missing = Features::LOCAL_INVALIDATE_FENCE - rules.features;
        if fenced && !missing.is_empty() {
            return Err(PostReason::Unsupported { missing });
        }
        Ok(())
    }

    pub(super) fn extension(
        request: &ExtensionRequest<'_>,
        rules: &QpRules,
    ) -> Result<(), PostReason> {
        let operation = request.operation;
        let refused = |reason| {
            let extension = operation.extension();
            Err(PostReason::Extension { extension, reason })
        };
        if request.body.len() != operation.body_len() {
            return refused("the body is not of the operation's length");
        }
        let length = request.data.len();
        match operation.data_use() {
            OperationData::None if length > 0 || request.data.num_sge() > 0 => {
                refused("the operation has no scatter/gather list")
            }
            OperationData::Sink { least } if length < u64::from(least) => {
                refused("the answer does not fit the scatter/gather list")
            }
            OperationData::Source { most } if length > u64::from(most) => {
                let (max, given) = (u64::from(most), length);
                Err(PostReason::MessageTooLong { max, given })
            }
            used => {
                let source = matches!(used, OperationData::Source { .. });
                data(&request.data, rules, rules.max_send_sge, source)
            }
        }
    }

    pub(super) fn bind(request: &BindWindow<'_>, rules: &QpRules) -> Result<(), PostReason> {
        if request.window.is_none() {
            return Err(PostReason::NoWindow);
        }
        let missing = Features::ZBVA - rules.features;
        if request.access.contains(Access::ZERO_BASED) && !missing.is_empty() {
            return Err(PostReason::Unsupported { missing });
        }
        Ok(())
    }
}
