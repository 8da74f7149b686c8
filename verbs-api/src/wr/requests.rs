//! The operations that can be posted on a send queue.

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
    /// How a request is carried out and reported.
    ///
    /// ```
    /// use verbs_api::wr::{self, SendFlags};
    /// let flags = SendFlags::FENCE | SendFlags::SIGNALED;
    /// let after_reads = wr::Send::new(b"the reads are done").flags(flags).wr_id(7);
    /// ```
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
    #[doc(alias = "ibv_send_flags")]
    pub struct SendFlags: u8 {
        /// Starts only after all earlier reads and atomics of this queue have completed.
        const FENCE = 1;
        /// Completes with a completion. Without it only a failure does.
        const SIGNALED = 1 << 1;
        /// Raises a solicited event at the receiver. Sends and write-with-immediate only; ignored elsewhere.
        const SOLICITED = 1 << 2;
        /// May take the slots that are reserved for portable operations, of which it is a part.
        const RESERVED = 1 << 5;
        /// First half of a portable operation: takes its place only together with the second.
        const FIRST_HALF = 1 << 6;
        /// Second half of a portable operation: flushed without a completion where the first half had one.
        const SECOND_HALF = 1 << 7;
    }
}

impl SendFlags {
    /// What only portable operations carry.
    const PORTABLE: Self = Self::RESERVED
        .union(Self::FIRST_HALF)
        .union(Self::SECOND_HALF);
}

/// What every request carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Common {
    /// Comes back in the completion.
    pub wr_id: u64,
    /// How the request is carried out and reported.
    pub flags: SendFlags,
    // What needs extra checks while posting.
    pub(crate) special: Special,
    // The kind of the attribute, 0 for none, and its value.
    attribute: u8,
    value: u32,
}

bitflags! {
    /// What of a request needs extra checks while posting.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
    pub(crate) struct Special: u8 {
        /// Private buffers are handed over.
        const LENDS = 1;
        /// It carries an attribute of an extension.
        const ATTRIBUTE = 1 << 1;
    }
}

impl Common {
    /// The attribute of an extension that the request carries.
    #[inline]
    pub fn attribute(&self) -> Option<RequestAttribute> {
        RequestAttribute::of_parts(self.attribute, self.value)
    }

    /// The value of that attribute; 0 without one.
    #[inline]
    pub const fn attribute_value(&self) -> u32 {
        self.value
    }

    fn set_attribute(&mut self, attribute: RequestAttribute) {
        (self.attribute, self.value) = attribute.parts();
        self.special |= Special::ATTRIBUTE;
    }
}

/// What every operation tells about itself.
#[enum_dispatch]
pub trait Operation {
    /// The bit of this operation in a queue pair's set.
    fn operation(&self) -> Operations;

    /// The opcode of its completion.
    fn wc_opcode(&self) -> WcOpcode;

    /// What every request carries.
    fn common(&self) -> &Common;

    /// Where its bytes lie.
    fn data(&self) -> &Data<'_>;

    /// Whether it reads remote memory or operates on it atomically: what a fence waits for, and what counts against
    /// `max_rd_atomic`.
    fn is_read_or_atomic(&self) -> bool {
        false
    }

    /// Checks what does not depend on the moment: entries, lengths, rights.
    ///
    /// # Errors
    /// Which field is wrong and why.
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
                /// Comes back in the completion, if there is one.
                #[must_use]
                #[inline]
                pub fn wr_id(mut self, wr_id: u64) -> Self {
                    self.common.wr_id = wr_id;
                    self
                }

                /// Completes with a completion that carries `wr_id`.
                #[must_use]
                #[inline]
                pub fn signaled(mut self, wr_id: u64) -> Self {
                    self.common.flags |= SendFlags::SIGNALED;
                    self.wr_id(wr_id)
                }

                /// Starts only after all earlier reads and atomics of this queue have completed.
                #[must_use]
                #[inline]
                pub fn fence(mut self) -> Self {
                    self.common.flags |= SendFlags::FENCE;
                    self
                }

                /// Carries this attribute of an extension.
                #[must_use]
                pub fn with(mut self, attribute: RequestAttribute) -> Self {
                    self.common.set_attribute(attribute);
                    self
                }

                /// Sets exactly these flags; those of portable operations are not the program's to set.
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

            /// Gives the request, whatever it is, this identity and exactly these flags; those of portable operations
            /// are not the program's to set.
            pub fn set_common(&mut self, wr_id: u64, flags: SendFlags) {
                let common = self.common_mut();
                common.wr_id = wr_id;
                common.flags = flags - SendFlags::PORTABLE;
            }
        }
    };
}

requests! {
    /// A message into the peer's next receive.
    ///
    /// Its completion says the same as that of a [`Write`]: it is no proof that the peer's program has the message.
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
        /// Where a datagram goes; none on connected queue pairs.
        pub destination: Option<&'a UdDestination>,
    } SEND => Send, read_or_atomic: false, check: checks::send;

    /// A message into the peer's next receive, with four bytes of immediate data.
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
        /// Carried as it is, in network order.
        pub imm: [u8; 4],
        /// Where a datagram goes; none on connected queue pairs.
        pub destination: Option<&'a UdDestination>,
    } SEND_WITH_IMM => Send, read_or_atomic: false, check: checks::send_imm;

    /// A message that also invalidates a key of the receiver, before its receive completes.
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
        /// The receiver's key.
        pub rkey: RKey,
    } SEND_WITH_INV => Send, read_or_atomic: false, check: checks::connected;

    /// Writes into remote memory; the peer's program is not notified.
    ///
    /// A successful completion always means that the local memory may be used again. Beyond that:
    /// * Reliable connections of InfiniBand and RoCE: the peer's adapter has acknowledged the bytes. A write that is
    ///   refused fails here.
    /// * iWARP: the bytes were handed to the stream, no more (RFC 5040 section 5.1). They may still be on their way or
    ///   be lost with the connection, and a refusal is seen only as the end of the connection.
    /// * Unreliable connections: the bytes have left; whether they arrive is not reported.
    ///
    /// On no transport may the peer's program rely on the bytes because of it. A later [`Send`] or
    /// [`WriteWithImmediate`] of the same queue pair is ordered behind the write: when the peer's receive completes, the
    /// bytes are there. A later [`Read`] is as well: when it completes, they are placed.
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
        /// Where they go.
        pub remote: RemoteAddress,
    } WRITE => RdmaWrite, read_or_atomic: false, check: checks::connected;

    /// Bytes into remote memory, then four bytes that complete a receive of the peer.
    ///
    /// Its completion says the same as that of a [`Write`], also about the receive: over iWARP the peer's receive may
    /// still be to come, or never. The completion of that receive tells the peer that the bytes are there.
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
        /// Where they go.
        pub remote: RemoteAddress,
        /// Carried as it is, in network order.
        pub imm: [u8; 4],
    } WRITE_WITH_IMM => RdmaWrite, read_or_atomic: false, check: checks::connected;

    /// Bytes from remote memory.
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
        /// Where they come from.
        pub remote: RemoteAddress,
    } READ => RdmaRead, read_or_atomic: true, check: checks::read;

    /// Bytes from remote memory; the local sink's key is invalidated when the last has been placed.
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
        /// Where they come from.
        pub remote: RemoteAddress,
        /// The sink's key.
        pub invalidate: LKey,
    } READ_WITH_INV => RdmaRead, read_or_atomic: true, check: checks::read_inv;

    /// Compares eight remote bytes and swaps them where equal; the original comes back.
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
        /// The eight bytes, 8-aligned.
        pub remote: RemoteAddress,
        /// Compared with.
        pub compare: u64,
        /// Replaced by.
        pub swap: u64,
    } ATOMIC_CMP_AND_SWP => CompSwap, read_or_atomic: true, check: checks::cmp_swap;

    /// Adds to eight remote bytes; the original comes back.
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
        /// The eight bytes, 8-aligned.
        pub remote: RemoteAddress,
        /// Added, modulo 2^64.
        pub add: u64,
    } ATOMIC_FETCH_AND_ADD => FetchAdd, read_or_atomic: true, check: checks::fetch_add;

    /// Writes eight remote bytes at once.
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
        /// The eight bytes, 8-aligned.
        pub remote: RemoteAddress,
    } ATOMIC_WRITE => AtomicWrite, read_or_atomic: false, check: checks::atomic_write;

    /// Completes when earlier writes to a range of remote memory are visible or persistent there.
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
        /// The range.
        pub remote: RemoteAddress,
        /// Bytes; ignored where `whole_region` is set.
        pub length: u32,
        /// `FLUSH_GLOBAL`, `FLUSH_PERSISTENT` or both.
        pub placement: Access,
        /// Flushes the whole region that the key names.
        pub whole_region: bool,
    } FLUSH => Flush, read_or_atomic: true, check: checks::flush;

    /// Registers memory with a key in the free state.
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
        /// The key that was allocated, with the low byte that it shall have.
        pub key: RKey,
        /// The memory; none is refused.
        pub pages: Option<&'a PageList>,
        /// Rights.
        pub access: Access,
        /// The address of the first byte, or the page list's own.
        pub iova: Option<u64>,
        /// Bytes, or all that the page list maps.
        pub length: Option<u32>,
    } FAST_REGISTER => FastRegister, read_or_atomic: false, check: checks::fast_register;

    /// Invalidates a key: a fast-registered region or a type-2 window becomes free.
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
        /// The key.
        pub key: RKey,
    } LOCAL_INV => LocalInv, read_or_atomic: false, check: checks::local_invalidate;

    /// Binds a window to a range of a region.
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
    /// It names the window and the region by their handles, which must be of the queue pair's context. Whether all three
    /// are of one protection domain is checked by the device. A destroyed object cannot be named, since its handle is gone;
    /// where a clone of that is left, posting refuses it with [`PostReason::InvalidHandle`].
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
        /// Address of the first byte, in the region's own addresses.
        pub addr: u64,
        /// Bytes. 0 unbinds a window of type 1 and is refused for type 2.
        pub length: u64,
        /// Rights.
        pub access: Access,
        window_key_byte: u8,
        region_key_byte: u8,
    } BIND_MW => BindMw, read_or_atomic: false, check: checks::bind;
}

/// The region of a [bind](BindWindow), with the key that it has now: an [`Mr`](crate::Mr) or an [`MrKey`](crate::MrKey).
#[derive(Clone, Copy, Debug)]
pub struct WindowRegion<'a> {
    pub(crate) region: &'a ObjectBase<dyn MrOps>,
    pub(crate) key_byte: u8,
}

/// A work request of a send queue.
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

/// A request of an extension's [operation](ExtensionOperation): what its crate makes its own types into.
///
/// The body is fixed bytes, which travel as they are: numbers in network order. `holds` are objects that stay alive
/// until the request has retired.
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
    /// A request with this body, and what its scatter/gather list is.
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

    /// Carries this attribute of an extension.
    #[must_use]
    pub fn with(mut self, attribute: RequestAttribute) -> Self {
        self.common.set_attribute(attribute);
        self
    }

    /// Keeps these alive until it has retired.
    #[must_use]
    pub fn holding(mut self, objects: &'a Held) -> Self {
        self.holds = Some(objects);
        self
    }

    /// Comes back in the completion, if there is one.
    #[must_use]
    pub fn wr_id(mut self, wr_id: u64) -> Self {
        self.common.wr_id = wr_id;
        self
    }

    /// Completes with a completion that carries `wr_id`.
    #[must_use]
    pub fn signaled(mut self, wr_id: u64) -> Self {
        self.common.flags |= SendFlags::SIGNALED;
        self.wr_id(wr_id)
    }

    /// Starts only after all earlier reads and atomics of this queue have completed.
    #[must_use]
    pub fn fence(mut self) -> Self {
        self.common.flags |= SendFlags::FENCE;
        self
    }

    /// The operation.
    #[inline]
    pub fn extension_operation(&self) -> &'static ExtensionOperation {
        self.operation
    }

    /// The body.
    #[inline]
    pub fn body(&self) -> &'a [u8] {
        self.body
    }

    /// What it keeps alive.
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
    /// A message of these bytes.
    #[inline]
    pub fn new(data: impl Into<Data<'a>>) -> Self {
        let data = data.into();
        Self {
            common: common_for(&data),
            data,
            destination: None,
        }
    }

    /// As a datagram to `destination`.
    #[must_use]
    #[inline]
    pub fn to(mut self, destination: &'a UdDestination) -> Self {
        self.destination = Some(destination);
        self
    }

    /// Raises a solicited event at the receiver.
    #[must_use]
    #[inline]
    pub fn solicited(mut self) -> Self {
        self.common.flags |= SendFlags::SOLICITED;
        self
    }
}

impl<'a> SendWithImmediate<'a> {
    /// A message of these bytes, and four beside it.
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

    /// As a datagram to `destination`.
    #[must_use]
    #[inline]
    pub fn to(mut self, destination: &'a UdDestination) -> Self {
        self.destination = Some(destination);
        self
    }

    /// Raises a solicited event at the receiver.
    #[must_use]
    #[inline]
    pub fn solicited(mut self) -> Self {
        self.common.flags |= SendFlags::SOLICITED;
        self
    }
}

impl<'a> SendWithInvalidate<'a> {
    /// A message of these bytes that invalidates the receiver's `rkey`.
    #[inline]
    pub fn new(data: impl Into<Data<'a>>, rkey: RKey) -> Self {
        let data = data.into();
        Self {
            common: common_for(&data),
            data,
            rkey,
        }
    }

    /// Raises a solicited event at the receiver.
    #[must_use]
    #[inline]
    pub fn solicited(mut self) -> Self {
        self.common.flags |= SendFlags::SOLICITED;
        self
    }
}

impl<'a> Write<'a> {
    /// These bytes to `remote`.
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
    /// These bytes to `remote`, and four to the peer's next receive.
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

    /// Raises a solicited event at the receiver.
    #[must_use]
    #[inline]
    pub fn solicited(mut self) -> Self {
        self.common.flags |= SendFlags::SOLICITED;
        self
    }
}

impl<'a> Read<'a> {
    /// As many bytes from `remote` as `sink` holds.
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
    /// As many bytes from `remote` as `sink` holds; the sink's key is invalidated at the end.
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
    /// Swaps the eight bytes at `remote` where they equal `compare`; the original goes to `result`.
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
    /// Adds to the eight bytes at `remote`; the original goes to `result`.
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
    /// Writes eight bytes to `remote` at once.
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
    /// Flushes `length` bytes at `remote`.
    #[inline]
    pub fn new(remote: RemoteAddress, length: u32, placement: Access) -> Self {
        Self {
            remote,
            length,
            placement,
            ..Self::default()
        }
    }

    /// Flushes the region that `rkey` names.
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
    /// Registers the memory of `pages` under `key`: an allocated key with the low byte that it shall have.
    #[inline]
    pub fn new(key: impl Into<RKey>, pages: &'a PageList) -> Self {
        Self {
            key: key.into(),
            pages: Some(pages),
            ..Self::default()
        }
    }

    /// Grants these rights.
    #[must_use]
    #[inline]
    pub fn access(mut self, access: Access) -> Self {
        self.access = access;
        self
    }

    /// Gives the first byte this address.
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
    /// A request that frees a window, whose key will have this low byte.
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

    /// The same for one that binds it to `length` bytes from `addr` of a region.
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

    /// Grants these rights.
    #[must_use]
    #[inline]
    pub fn access(mut self, access: Access) -> Self {
        self.access = access;
        self
    }

    /// Sets the low byte that the bind gives the key of a window of type 2.
    #[must_use]
    #[inline]
    pub fn key_byte(mut self, byte: u8) -> Self {
        self.window_key_byte = byte;
        self
    }

    /// Sets the low byte that the region's key has when the bind is carried out: for a fast-register that was posted before
    /// with another byte than that of its [`MrKey`](crate::MrKey).
    #[must_use]
    #[inline]
    pub fn region_key_byte(mut self, byte: u8) -> Self {
        self.region_key_byte = byte;
        self
    }

    /// The key of the window once it is bound. 0 without a window: such a request is refused.
    #[inline]
    pub fn key(&self) -> RKey {
        let key = self
            .window
            .map(|window| window.ops.rkey())
            .unwrap_or_default();
        key.with_key_byte(self.window_key_byte)
    }

    /// The key of the region when the bind is carried out. 0 without a region: the window is unbound.
    #[inline]
    pub fn region_key(&self) -> LKey {
        let key = self
            .region
            .map(|region| region.ops.lkey())
            .unwrap_or_default();
        key.with_key_byte(self.region_key_byte)
    }

    /// The provider's part of the window: always some in a request that a provider is given.
    #[inline]
    pub fn mw(&self) -> Option<&'a Arc<dyn MwOps>> {
        self.window.map(|window| &window.ops)
    }

    /// The provider's part of the region; none unbinds the window.
    #[inline]
    pub fn mr(&self) -> Option<&'a Arc<dyn MrOps>> {
        self.region.map(|region| &region.ops)
    }

    /// The kind of the window.
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
