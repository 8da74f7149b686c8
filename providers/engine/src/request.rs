//! A request of a send queue as the engine uses it: borrowed from the caller, or stored in the queue.

use std::sync::Arc;

use verbs_api::memory::Loan;
use verbs_api::{
    Access, PageList, RKey, RemoteAddress, Sge,
    completion::WcOpcode,
    extension::{ExtensionOperation, Held},
    ids::LKey,
    provider::{AhOps, Operation},
    wr::{Data, SendFlags, UdDestination, WorkRequest},
};

/// The operation of a request, without its data.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Op {
    /// Sends a message, with the value that it carries in addition.
    Send(SendExtra),
    /// Writes bytes to remote memory, possibly with four bytes of immediate data.
    Write(RemoteAddress, Option<[u8; 4]>),
    /// Reads bytes from remote memory, and possibly invalidates a local key at the end.
    Read(RemoteAddress, Option<LKey>),
    /// Compares with the first number and swaps in the second.
    CompareSwap(RemoteAddress, u64, u64),
    /// Adds a number.
    FetchAdd(RemoteAddress, u64),
    /// Writes eight bytes atomically.
    AtomicWrite(RemoteAddress),
    /// Flushes a stretch of a region, or the whole region.
    Flush {
        /// The beginning of the stretch.
        remote: RemoteAddress,
        /// Bytes of the stretch.
        length: u32,
        /// How the bytes are flushed: visible globally, or persistent.
        placement: Access,
        /// Whether the whole region is flushed.
        whole_region: bool,
    },
    /// Registers the memory of the request's page list.
    FastRegister {
        /// The key, with its new low byte.
        key: RKey,
        /// The rights of the region.
        access: Access,
        /// The address of the region's first byte.
        iova: u64,
        /// Bytes of the region.
        length: u64,
    },
    /// Invalidates a key.
    LocalInvalidate(RKey),
    /// Binds a window to a part of a region.
    Bind {
        /// The key of the window, with its new low byte.
        window: RKey,
        /// The key of the region.
        region: LKey,
        /// The first address of the part.
        addr: u64,
        /// Bytes of the part.
        length: u64,
        /// The rights of the window.
        access: Access,
    },
    /// An operation of an extension.
    Extension(&'static ExtensionOperation),
}

/// The value that a message carries in addition to its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum SendExtra {
    /// The message carries only its bytes.
    #[default]
    Nothing,
    /// Immediate data.
    Immediate([u8; 4]),
    /// A key of the receiver to invalidate.
    Invalidate(u32),
}

impl Op {
    /// Returns whether it is carried out without a frame.
    pub const fn is_local(&self) -> bool {
        match self {
            Self::FastRegister { .. } | Self::LocalInvalidate(_) | Self::Bind { .. } => true,
            Self::Extension(operation) => operation.is_local(),
            _ => false,
        }
    }

    /// Returns whether it reads remote memory or changes it atomically: a fence waits for such requests.
    pub const fn is_read_or_atomic(&self) -> bool {
        match self {
            Self::Read(..) | Self::CompareSwap(..) | Self::FetchAdd(..) | Self::Flush { .. } => {
                true
            }
            Self::Extension(operation) => !operation.is_local(),
            _ => false,
        }
    }

    /// Returns the opcode of its completion.
    pub fn wc_opcode(&self) -> WcOpcode {
        match self {
            Self::Send(_) => WcOpcode::Send,
            Self::Write(..) => WcOpcode::RdmaWrite,
            Self::Read(..) => WcOpcode::RdmaRead,
            Self::CompareSwap(..) => WcOpcode::CompSwap,
            Self::FetchAdd(..) => WcOpcode::FetchAdd,
            Self::AtomicWrite(_) => WcOpcode::AtomicWrite,
            Self::Flush { .. } => WcOpcode::Flush,
            Self::FastRegister { .. } => WcOpcode::FastRegister,
            Self::LocalInvalidate(_) => WcOpcode::LocalInv,
            Self::Bind { .. } => WcOpcode::BindMw,
            Self::Extension(operation) => operation.wc_opcode(),
        }
    }
}

/// The location of a request's bytes.
#[derive(Clone, Copy, Debug)]
pub enum Source<'r> {
    /// The bytes are in registered memory.
    Sges(&'r [Sge]),
    /// The bytes are in the request.
    Inline(&'r [u8]),
}

/// The destination of a datagram.
#[derive(Clone)]
pub struct Destination {
    /// The route.
    pub ah: Arc<dyn AhOps>,
    /// The destination queue pair.
    pub qpn: u32,
    /// The Q_Key of the destination, as the request gives it.
    pub qkey: u32,
}

/// A request: the caller's own, or the queue's copy.
#[derive(Clone, Copy)]
pub struct Request<'r> {
    /// The program's number, which the completion returns.
    pub wr_id: u64,
    /// Flags that say how it is carried out and reported.
    pub flags: SendFlags,
    /// Whether the request uses private memory.
    pub private: bool,
    /// The buffers that the program lent with it.
    pub loan: Loan,
    /// The operation.
    pub op: Op,
    /// The value of an extension's attribute that it carries.
    pub attribute: u32,
    /// The location of its bytes.
    pub source: Source<'r>,
    /// The number of its bytes.
    pub length: u64,
    /// The memory that a fast-register maps.
    pub pages: Option<&'r PageList>,
    /// The destination of a datagram.
    pub destination: Option<DestinationRef<'r>>,
    /// The body of an extension's request.
    pub body: &'r [u8],
    /// The objects that an extension's request keeps alive.
    pub held: Option<&'r Held>,
}

/// A borrowed destination of a datagram.
#[derive(Clone, Copy)]
pub enum DestinationRef<'r> {
    /// The destination is borrowed from the caller's request.
    Posted(&'r UdDestination),
    /// The destination is borrowed from the queue.
    Queued(&'r Destination),
}

impl DestinationRef<'_> {
    /// Returns an owned copy.
    pub fn to_owned(self) -> Destination {
        let (qpn, qkey) = self.qpn_and_qkey();
        let ah = Arc::clone(self.ah());
        Destination { ah, qpn, qkey }
    }

    /// Returns the route.
    pub fn ah(&self) -> &Arc<dyn AhOps> {
        match self {
            Self::Posted(to) => to.ah.ops(),
            Self::Queued(to) => &to.ah,
        }
    }

    /// Returns the queue pair and its Q_Key.
    pub fn qpn_and_qkey(&self) -> (u32, u32) {
        match self {
            Self::Posted(to) => (to.remote_qpn.value(), to.remote_qkey),
            Self::Queued(to) => (to.qpn, to.qkey),
        }
    }
}

impl<'r> Request<'r> {
    /// Returns the engine's view of a posted request.
    #[inline]
    pub fn of(request: &'r WorkRequest<'_>) -> Self {
        let (mut pages, mut destination) = (None, None);
        let (mut body, mut held) = (&[][..], None);
        let op = match request {
            WorkRequest::Send(send) => {
                destination = send.destination.map(DestinationRef::Posted);
                Op::Send(SendExtra::Nothing)
            }
            WorkRequest::SendWithImmediate(send) => {
                destination = send.destination.map(DestinationRef::Posted);
                Op::Send(SendExtra::Immediate(send.imm))
            }
            WorkRequest::SendWithInvalidate(send) => {
                Op::Send(SendExtra::Invalidate(send.rkey.value()))
            }
            WorkRequest::Write(write) => Op::Write(write.remote, None),
            WorkRequest::WriteWithImmediate(write) => Op::Write(write.remote, Some(write.imm)),
            WorkRequest::Read(read) => Op::Read(read.remote, None),
            WorkRequest::ReadWithInvalidate(read) => Op::Read(read.remote, Some(read.invalidate)),
            WorkRequest::CompareSwap(atomic) => {
                Op::CompareSwap(atomic.remote, atomic.compare, atomic.swap)
            }
            WorkRequest::FetchAdd(atomic) => Op::FetchAdd(atomic.remote, atomic.add),
            WorkRequest::AtomicWrite(write) => Op::AtomicWrite(write.remote),
            WorkRequest::Flush(flush) => Op::Flush {
                remote: flush.remote,
                length: flush.length,
                placement: flush.placement,
                whole_region: flush.whole_region,
            },
            WorkRequest::FastRegister(register) => {
                pages = register.pages;
                let mapped = pages.map_or(0, PageList::len);
                let start = match register.access.contains(Access::ZERO_BASED) {
                    true => 0,
                    false => pages.map_or(0, PageList::address),
                };
                Op::FastRegister {
                    key: register.key,
                    access: register.access,
                    iova: register.iova.unwrap_or(start),
                    length: register.length.map_or(mapped, u64::from),
                }
            }
            WorkRequest::LocalInvalidate(invalidate) => Op::LocalInvalidate(invalidate.key),
            WorkRequest::BindWindow(bind) => Op::Bind {
                window: bind.key(),
                region: bind.region_key(),
                addr: bind.addr,
                length: bind.length,
                access: bind.access,
            },
            WorkRequest::Extension(extension) => {
                (body, held) = (extension.body(), extension.held());
                Op::Extension(extension.extension_operation())
            }
        };
        let common = request.common();
        let data = request.data();
        let (source, private, loan) = match data {
            Data::Inline(bytes) => (Source::Inline(bytes), false, Loan::NONE),
            data => {
                let sges = data.sges();
                (Source::Sges(sges.list), sges.private, sges.loan)
            }
        };
        let length = data.len();
        Self {
            wr_id: common.wr_id,
            flags: common.flags,
            private,
            loan,
            op,
            attribute: common.attribute_value(),
            source,
            length,
            pages,
            destination,
            body,
            held,
        }
    }
}

/// The bytes or scatter/gather entries of a queued request: one entry in place, more in a box.
#[derive(Clone, Debug)]
enum KeptSource {
    One(Sge),
    Many(Box<[Sge]>),
    Inline(Box<[u8]>),
}

/// A request that waits or is under way, stored in the queue.
#[derive(Clone)]
pub struct QueuedRequest {
    wr_id: u64,
    /// Its flags.
    pub flags: SendFlags,
    private: bool,
    /// The buffers that the program lent with it.
    pub loan: Loan,
    /// The operation.
    pub op: Op,
    attribute: u32,
    source: KeptSource,
    /// The number of its bytes.
    pub length: u64,
    pages: Option<PageList>,
    destination: Option<Box<Destination>>,
    body: Box<[u8]>,
    held: Option<Held>,
}

impl Default for QueuedRequest {
    /// An empty message, which stands for a request while that is processed.
    fn default() -> Self {
        Self {
            wr_id: 0,
            flags: SendFlags::empty(),
            private: false,
            loan: Loan::NONE,
            op: Op::Send(SendExtra::Nothing),
            attribute: 0,
            source: KeptSource::Inline(Box::default()),
            length: 0,
            pages: None,
            destination: None,
            body: Box::default(),
            held: None,
        }
    }
}

impl QueuedRequest {
    /// Stores a copy of a request.
    pub fn keep(request: &Request<'_>) -> Self {
        let source = match request.source {
            Source::Sges([sge]) => KeptSource::One(*sge),
            Source::Sges(list) => KeptSource::Many(list.into()),
            Source::Inline(bytes) => KeptSource::Inline(bytes.into()),
        };
        Self {
            wr_id: request.wr_id,
            flags: request.flags,
            private: request.private,
            loan: request.loan,
            op: request.op,
            attribute: request.attribute,
            source,
            length: request.length,
            pages: request.pages.cloned(),
            destination: request.destination.map(|to| Box::new(to.to_owned())),
            body: request.body.into(),
            held: request.held.cloned(),
        }
    }

    /// Returns the request.
    pub fn request(&self) -> Request<'_> {
        Request {
            wr_id: self.wr_id,
            flags: self.flags,
            private: self.private,
            loan: self.loan,
            op: self.op,
            attribute: self.attribute,
            source: match &self.source {
                KeptSource::One(sge) => Source::Sges(std::slice::from_ref(sge)),
                KeptSource::Many(list) => Source::Sges(list),
                KeptSource::Inline(bytes) => Source::Inline(bytes),
            },
            length: self.length,
            pages: self.pages.as_ref(),
            destination: self.destination.as_deref().map(DestinationRef::Queued),
            body: &self.body,
            held: self.held.as_ref(),
        }
    }
}
