//! Operations of extensions on a software device: their messages, and the memory that they use.
//!
//! A request is a body of fixed length and the bytes of its scatter/gather list, together at most
//! [`ExtensionOperation::MAX_OCTETS`]; the answer has at most as many bytes. A transport carries both with the numbers of
//! extension and operation, unless a standard gives the operation an encoding of its own.

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

/// Bytes that are read in one piece.
const PIECE: usize = 4096;

/// The emulation of one operation of an extension on software devices.
pub trait OperationEmulation: Send + Sync {
    /// The operation.
    fn operation(&self) -> &'static ExtensionOperation;

    /// Carries out a request at the device that received it, and fills in the answer. Requests are carried out in order,
    /// each once: a duplicate gets the first answer again.
    ///
    /// # Errors
    /// The request is refused: the transport answers as it does to a fault of this kind.
    fn respond(
        &self,
        request: &Arrived<'_>,
        memory: &TargetMemory<'_>,
        answer: &mut Octets,
    ) -> Result<(), Fault>;

    /// Converts an answer before it is placed in the scatter/gather list; by default it is placed unchanged. This is for
    /// numbers, which travel in network order.
    fn complete(&self, _answer: &mut Octets) {}

    /// Returns the operation that a standard of this transport defines for it, if any: then the transport carries it out,
    /// and [`respond`](Self::respond) and [`complete`](Self::complete) are not called.
    fn standard(&self, _transport: Transport, _body: &[u8]) -> Option<StandardOperation> {
        None
    }
}

/// A received request.
#[derive(Clone, Copy, Debug)]
pub struct Arrived<'r> {
    /// The body, with the length that the operation defines.
    pub body: &'r [u8],
    /// The bytes of the scatter/gather list.
    pub data: &'r [u8],
    /// The objects that the request keeps alive; present if the poster's device carries it out.
    pub held: Option<&'r Held>,
}

/// Operations for which a standard defines an encoding, and which a driver of this project carries for an extension.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StandardOperation {
    /// An Atomic Request of RFC 7306, which has masks.
    Atomic(RemoteAddress, AtomicOp),
}

/// An atomic operation with its operands, in this machine's byte order (RFC 7306 section 5.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtomicOp {
    /// Adds within fields; each bit of the mask is the highest bit of a field.
    FetchAdd {
        /// The value to add.
        add: u64,
        /// The highest bit of each field. Only bit 63, or no bit, means one field.
        mask: u64,
    },
    /// Swaps if the compared bits are equal.
    CompareSwap {
        /// The value to compare with.
        compare: u64,
        /// The bits that are compared.
        compare_mask: u64,
        /// The new value.
        swap: u64,
        /// The bits that are replaced.
        swap_mask: u64,
    },
}

impl AtomicOp {
    /// Creates an ordinary fetch-and-add.
    pub const fn fetch_add(add: u64) -> Self {
        Self::FetchAdd { add, mask: 0 }
    }

    /// Creates an ordinary compare-and-swap.
    pub const fn compare_swap(compare: u64, swap: u64) -> Self {
        Self::CompareSwap {
            compare,
            compare_mask: u64::MAX,
            swap,
            swap_mask: u64::MAX,
        }
    }

    /// Returns the result of an ordinary operation on `current`, with `Some(None)` if the value stays; `None` for an
    /// operation with masks.
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

/// Carries out masked atomics on devices whose transport carries them.
pub trait MaskedAtomics: Send + Sync {
    /// Returns the new value in place of `current`; `None` if it stays.
    fn apply(&self, op: AtomicOp, current: u64) -> Option<u64>;
}

/// The address whose alignment a transport checks for an atomic's operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Aligned {
    /// The address that the request names (InfiniBand).
    Address,
    /// The address of the bytes in memory (RFC 7306).
    Memory,
}

/// The registered memory of the device that received a request, as far as its queue pair may use it.
pub struct TargetMemory<'p> {
    keys: &'p KeyTable,
    pin: &'p Pin,
    pd: u32,
    qpn: u32,
    permitted: Access,
    aligned: Aligned,
}

impl<'p> TargetMemory<'p> {
    /// Creates the view of the queue pair `qpn` of the domain `pd`, which grants its peers the rights `permitted`.
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

    /// Passes `length` bytes to `each`, in order and in pieces. They are copies, because the memory may change at any time.
    /// This needs the right to read.
    ///
    /// # Errors
    /// The queue pair, the key or its range does not allow it; no byte was passed.
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

    /// Writes bytes. This needs the right to write.
    ///
    /// # Errors
    /// The queue pair, the key or its range does not allow it; no byte was written.
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

    /// Changes eight bytes atomically, as an integer of this machine, and returns their old value. `change` returns the new
    /// value, or `None` if the value stays. This needs the right to atomics.
    ///
    /// # Errors
    /// The queue pair, the key or its range does not allow it, or the bytes are not aligned; nothing was changed.
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

/// Carries out a message, which is the body followed by the data.
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

/// Places as much of an answer as there is room for, and returns the number of bytes.
pub fn place(emulation: &dyn OperationEmulation, mut answer: Octets, sink: &Spans<'_>) -> u32 {
    emulation.complete(&mut answer);
    let room: usize = sink.iter().map(|span| span.len()).sum();
    let bytes = &answer[..answer.len().min(room)];
    scatter_at(sink, 0, &Payload::Bytes(bytes));
    bytes.len() as u32
}
