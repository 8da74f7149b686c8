//! Operations of extensions on a software device: what travels, and on what memory it is carried out.
//!
//! A request is a body of fixed length and the bytes of its scatter/gather list, together at most
//! [`ExtensionOperation::MAX_OCTETS`]; the answer is as many bytes at most. A transport carries both with the extension's
//! number and the operation's, unless the operation is one that a standard gives it an encoding for.

use smallvec::SmallVec;
use verbs_api::memory::Span;
use verbs_api::{
    Access, RemoteAddress, Transport,
    extension::{ExtensionOperation, Held},
};

use crate::fault::Fault;
use crate::key_table::{KeyTable, Region, RemoteUse};
use crate::payload::{Payload, Spans, scatter_at};
use crate::pin::Pin;

/// The bytes of a request or of an answer.
pub type Octets = SmallVec<[u8; 64]>;

/// Bytes that are looked at in one piece.
const PIECE: usize = 4096;

/// What a software device does for an operation of an extension.
pub trait OperationEmulation: Send + Sync {
    /// The operation.
    fn operation(&self) -> &'static ExtensionOperation;

    /// Carries a request out, at the device that it arrived at, and fills in the answer. Requests are carried out in
    /// order, each once: one that comes again is answered with what was answered before.
    ///
    /// # Errors
    /// The request is refused: the transport answers as it does to a fault of that kind.
    fn respond(
        &self,
        request: &Arrived<'_>,
        memory: &TargetMemory<'_>,
        answer: &mut Octets,
    ) -> Result<(), Fault>;

    /// Makes of an answer what is placed in the scatter/gather list; by default nothing else. For numbers, which travel
    /// in network order.
    fn complete(&self, _answer: &mut Octets) {}

    /// The operation that a standard of this transport has for it, if there is one: it is carried out by the transport,
    /// and [`respond`](Self::respond) and [`complete`](Self::complete) are not asked.
    fn standard(&self, _transport: Transport, _body: &[u8]) -> Option<StandardOperation> {
        None
    }
}

/// A request that arrived.
#[derive(Clone, Copy, Debug)]
pub struct Arrived<'r> {
    /// The body: as many bytes as the operation has.
    pub body: &'r [u8],
    /// The bytes of the scatter/gather list.
    pub data: &'r [u8],
    /// What the request keeps alive; where it is carried out by whoever posted it.
    pub held: Option<&'r Held>,
}

/// Operations that a standard gives an encoding, and a driver of this project carries for an extension.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StandardOperation {
    /// An Atomic Request of RFC 7306: the masks are native there.
    Atomic(RemoteAddress, AtomicOp),
}

/// An atomic operation with its operands, in the order of this machine (RFC 7306 section 5.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtomicOp {
    /// Adds within fields; each bit of the mask is the highest of a field.
    FetchAdd {
        /// Added.
        add: u64,
        /// The highest bit of each field; none but bit 63, or none at all, is one field.
        mask: u64,
    },
    /// Swaps where the bits that are compared are equal.
    CompareSwap {
        /// Compared with.
        compare: u64,
        /// The bits that are compared.
        compare_mask: u64,
        /// Replaced by.
        swap: u64,
        /// The bits that are replaced.
        swap_mask: u64,
    },
}

impl AtomicOp {
    /// An ordinary fetch-and-add.
    pub const fn fetch_add(add: u64) -> Self {
        Self::FetchAdd { add, mask: 0 }
    }

    /// An ordinary compare-and-swap.
    pub const fn compare_swap(compare: u64, swap: u64) -> Self {
        Self::CompareSwap {
            compare,
            compare_mask: u64::MAX,
            swap,
            swap_mask: u64::MAX,
        }
    }

    /// What an ordinary one makes of `current`, `None` inside where it stays; `None` for one with masks.
    #[inline]
    pub const fn ordinary(self, current: u64) -> Option<Option<u64>> {
        match self {
            Self::FetchAdd { add, mask: 0 } => Some(Some(current.wrapping_add(add))),
            Self::CompareSwap {
                compare,
                compare_mask: u64::MAX,
                swap,
                swap_mask: u64::MAX,
            } => Some(if current == compare { Some(swap) } else { None }),
            _ => None,
        }
    }
}

/// What makes atomics with masks work where a transport carries them.
pub trait MaskedAtomics: Send + Sync {
    /// What `current` becomes; `None` where it stays.
    fn apply(&self, op: AtomicOp, current: u64) -> Option<u64>;
}

/// What a transport counts for the alignment of an atomic's operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Aligned {
    /// The address that the request names (InfiniBand).
    Address,
    /// The address of the bytes in memory (RFC 7306).
    Memory,
}

/// The registered memory of the device that a request arrived at, as far as its queue pair may use it.
pub struct TargetMemory<'p> {
    keys: &'p KeyTable,
    pin: &'p Pin,
    pd: u32,
    qpn: u32,
    permitted: Access,
    aligned: Aligned,
}

impl<'p> TargetMemory<'p> {
    /// What the queue pair `qpn` of the domain `pd` may use, whose peers are permitted `permitted`.
    pub const fn new(
        keys: &'p KeyTable,
        pin: &'p Pin,
        (pd, qpn): (u32, u32),
        permitted: Access,
        aligned: Aligned,
    ) -> Self {
        Self {
            keys,
            pin,
            pd,
            qpn,
            permitted,
            aligned,
        }
    }

    fn region(
        &self,
        remote: RemoteAddress,
        length: u64,
        access: Access,
    ) -> Result<Region<'p>, Fault> {
        if !self.permitted.contains(access) {
            return Err(Fault::NotPermitted);
        }
        let user = RemoteUse {
            pd: self.pd,
            qpn: self.qpn,
            access,
        };
        self.keys
            .check_remote(self.pin, remote.rkey.value(), remote.addr, length, user)
    }

    /// Passes `length` bytes to `each`, in order and in pieces: a copy, since they may change at any time. Takes the
    /// right to read.
    ///
    /// # Errors
    /// The queue pair, the key or its range does not allow it; nothing was passed.
    pub fn read(
        &self,
        remote: RemoteAddress,
        length: u64,
        mut each: impl FnMut(&[u8]),
    ) -> Result<(), Fault> {
        if length == 0 {
            return Ok(());
        }
        let region = self.region(remote, length, Access::REMOTE_READ)?;
        let mut piece = [0; PIECE];
        region.for_each(|span| {
            let mut at = 0;
            while at < span.len() {
                let here = span.sub(at, PIECE);
                here.read(&mut piece[..here.len()]);
                each(&piece[..here.len()]);
                at += here.len();
            }
        });
        Ok(())
    }

    /// Writes bytes. Takes the right to write.
    ///
    /// # Errors
    /// The queue pair, the key or its range does not allow it; nothing was written.
    pub fn write(&self, remote: RemoteAddress, bytes: &[u8]) -> Result<(), Fault> {
        if bytes.is_empty() {
            return Ok(());
        }
        let region = self.region(remote, bytes.len() as u64, Access::REMOTE_WRITE)?;
        let mut spans = Spans::new();
        region.for_each(|span| spans.push(span));
        scatter_at(&spans, 0, &Payload::Bytes(bytes));
        Ok(())
    }

    /// Changes eight bytes atomically, as an integer of this machine, and answers what they were: `change` answers
    /// what they become, or `None` where they stay. Takes the right to atomics.
    ///
    /// # Errors
    /// The queue pair, the key or its range does not allow it, or they are not aligned; nothing was changed.
    pub fn update(
        &self,
        remote: RemoteAddress,
        change: impl Fn(u64) -> Option<u64>,
    ) -> Result<u64, Fault> {
        if self.aligned == Aligned::Address && !remote.addr.is_multiple_of(8) {
            return Err(Fault::Misaligned);
        }
        let region = self.region(remote, 8, Access::REMOTE_ATOMIC)?;
        let word: Span<'_> = region.first(8);
        word.update_u64(change).ok_or(Fault::Misaligned)
    }
}

/// Carries a message out: the body and the data behind it.
///
/// # Errors
/// The message is too short for the operation, or the operation refuses it.
pub fn respond(
    emulation: &dyn OperationEmulation,
    message: &[u8],
    held: Option<&Held>,
    memory: &TargetMemory<'_>,
    answer: &mut Octets,
) -> Result<(), Fault> {
    let length = emulation.operation().body_len();
    let (body, data) = message
        .split_at_checked(length)
        .ok_or(Fault::UnknownOperation)?;
    let request = Arrived { body, data, held };
    emulation.respond(&request, memory, answer)?;
    answer.truncate(ExtensionOperation::MAX_OCTETS);
    Ok(())
}

/// Places an answer, as much of it as there is room for, and tells how many bytes.
pub fn place(emulation: &dyn OperationEmulation, mut answer: Octets, sink: &Spans<'_>) -> u32 {
    emulation.complete(&mut answer);
    let room: usize = sink.iter().map(|span| span.len()).sum();
    let bytes = &answer[..answer.len().min(room)];
    scatter_at(sink, 0, &Payload::Bytes(bytes));
    bytes.len() as u32
}
