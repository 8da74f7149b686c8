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

/// The operation of a send-queue request, without its data.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Op {
    /// Sends a message, possibly with immediate data or a key that the receiver invalidates.
    Send(SendExtra),
    /// Writes bytes to remote memory, possibly with four bytes of immediate data.
    Write(RemoteAddress, Option<[u8; 4]>),
    /// Reads bytes from remote memory; then the device invalidates the local key, if there is one.
    Read(RemoteAddress, Option<LKey>),
    /// Compares eight bytes of remote memory with the first number, and if they are equal replaces them by the second,
    /// atomically.
    CompareSwap(RemoteAddress, u64, u64),
    /// Adds a number to eight bytes of remote memory atomically.
    FetchAdd(RemoteAddress, u64),
    /// Writes eight bytes to remote memory atomically.
    AtomicWrite(RemoteAddress),
    /// Makes earlier writes to a part of a remote region, or to the whole region, visible or persistent.
    Flush {
        /// The address and key of the first byte of the part.
        remote: RemoteAddress,
        /// The number of bytes of the part.
        length: u32,
        /// What the flush guarantees for the bytes: global visibility or persistence.
        placement: Access,
        /// Whether the whole region is flushed, instead of the part.
        whole_region: bool,
    },
    /// Registers the memory of the request's page list (fast registration).
    FastRegister {
        /// The key of the region afterwards, with its new low byte.
        key: RKey,
        /// The rights that the region grants.
        access: Access,
        /// The address by which requests name the region's first byte.
        iova: u64,
        /// The number of bytes of the region.
        length: u64,
    },
    /// Invalidates a key of the device on which the request is posted.
    LocalInvalidate(RKey),
    /// Binds a window to a part of a region.
    Bind {
        /// The key of the window afterwards, with its new low byte.
        window: RKey,
        /// The local key of the region.
        region: LKey,
        /// The address of the part's first byte.
        addr: u64,
        /// The number of bytes of the part.
        length: u64,
        /// The rights that the window grants to peers.
        access: Access,
    },
    /// An operation of an extension.
    Extension(&'static ExtensionOperation),
}

/// What a sent message carries in addition to its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum SendExtra {
    /// The message carries only its bytes.
    #[default]
    Nothing,
    /// Four bytes of immediate data.
    Immediate([u8; 4]),
    /// A key of the receiver, which the receiver invalidates.
    Invalidate(u32),
}

impl Op {
    /// Returns whether the poster's device carries the operation out by itself, without a frame to the peer.
    pub const fn is_local(&self) -> bool {
        match self {
            Self::FastRegister { .. } | Self::LocalInvalidate(_) | Self::Bind { .. } => true,
            Self::Extension(operation) => operation.is_local(),
            _ => false,
        }
    }

    /// Returns whether the peer answers the operation with data or a flush: a read, an atomic, a flush or an extension's
    /// operation. A fenced request waits for these.
    pub const fn is_read_or_atomic(&self) -> bool {
        match self {
            Self::Read(..) | Self::CompareSwap(..) | Self::FetchAdd(..) | Self::Flush { .. } => {
                true
            }
            Self::Extension(operation) => !operation.is_local(),
            _ => false,
        }
    }

    /// Returns the opcode of the operation's completion.
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

/// Where the bytes of a request are.
#[derive(Clone, Copy, Debug)]
pub enum Source<'r> {
    /// The bytes are in registered memory, which scatter/gather entries name.
    Sges(&'r [Sge]),
    /// The bytes are in the request itself (inline data).
    Inline(&'r [u8]),
}

/// The destination of a datagram, owned by the queue.
#[derive(Clone)]
pub struct Destination {
    /// The address handle, which has the route.
    pub ah: Arc<dyn AhOps>,
    /// The number of the destination queue pair.
    pub qpn: u32,
    /// The Q_Key of the destination, as the request gives it.
    pub qkey: u32,
}

/// A send-queue request as the engine uses it: a view of the caller's work request, or of the queue's copy.
#[derive(Clone, Copy)]
pub struct Request<'r> {
    /// The program's `wr_id`, which the completion returns.
    pub wr_id: u64,
    /// The flags of the request, such as signaled, fenced and solicited.
    pub flags: SendFlags,
    /// Whether the entries name private buffers, which the program has lent with the request.
    pub private: bool,
    /// The buffers that the program lent with the request.
    pub loan: Loan,
    /// The operation.
    pub op: Op,
    /// The value of the attribute that an extension adds to the request; 0 if it has none.
    pub attribute: u32,
    /// Where the request's bytes are.
    pub source: Source<'r>,
    /// The number of bytes that the request transfers.
    pub length: u64,
    /// The page list whose memory a fast registration maps; `None` for other requests.
    pub pages: Option<&'r PageList>,
    /// The destination of a datagram; `None` for other requests.
    pub destination: Option<DestinationRef<'r>>,
    /// The body of an extension's request, of the length that its operation defines; empty for other requests.
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

    /// Returns the address handle, which has the route.
    pub fn ah(&self) -> &Arc<dyn AhOps> {
        match self {
            Self::Posted(to) => to.ah.ops(),
            Self::Queued(to) => &to.ah,
        }
    }

    /// Returns the number of the destination queue pair and the Q_Key in the request.
    pub fn qpn_and_qkey(&self) -> (u32, u32) {
        match self {
            Self::Posted(to) => (to.remote_qpn.value(), to.remote_qkey),
            Self::Queued(to) => (to.qpn, to.qkey),
        }
    }
}

impl<'r> Request<'r> {
    /// Returns the engine's form of a posted work request. Nothing is copied.
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

/// The scatter/gather entries or inline bytes of a queued request: one entry in place, more in a box.
#[derive(Clone, Debug)]
enum KeptSource {
    One(Sge),
    Many(Box<[Sge]>),
    Inline(Box<[u8]>),
}

/// A request that waits or is under way, with its own copy of everything that the caller's request borrowed.
#[derive(Clone)]
pub struct QueuedRequest {
    wr_id: u64,
    /// The flags of the request, such as signaled, fenced and solicited.
    pub flags: SendFlags,
    private: bool,
    /// The buffers that the program lent with the request.
    pub loan: Loan,
    /// The operation of the request.
    pub op: Op,
    attribute: u32,
    source: KeptSource,
    /// The number of bytes that the request transfers.
    pub length: u64,
    pages: Option<PageList>,
    destination: Option<Box<Destination>>,
    body: Box<[u8]>,
    held: Option<Held>,
}

impl Default for QueuedRequest {
    /// An empty message. It takes the place of a request in the queue while the driver processes that request.
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
    /// Copies a request, so that it can wait in the queue.
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

    /// Returns the engine's form of this request. Nothing is copied.
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
