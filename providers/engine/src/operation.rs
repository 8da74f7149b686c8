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

/// The number of bytes of memory that are copied at a time.
const PIECE: usize = 4096;

/// How software devices carry out one operation of an extension.
pub trait OperationEmulation: Send + Sync {
    /// Returns the operation that this emulates.
    fn operation(&self) -> &'static ExtensionOperation;

    /// Carries out a request on the device that has received it, and stores the answer in `answer`. Requests are carried
    /// out in order, each once: a duplicate gets the first answer again.
    ///
    /// # Errors
    /// The request is refused. The transport answers the peer as it does for a fault of this kind.
    fn respond(
        &self,
        request: &Arrived<'_>,
        memory: &TargetMemory<'_>,
        answer: &mut Octets,
    ) -> Result<(), Fault>;

    /// Converts an answer on the device of the requester, before its bytes are placed in the scatter/gather list; by
    /// default they stay unchanged. This is for numbers, which travel in network order.
    fn complete(&self, _answer: &mut Octets) {}

    /// Returns the operation that a standard of this transport defines for a request with this body, if any. The transport
    /// then carries out that operation, and does not call [`respond`](Self::respond) and [`complete`](Self::complete).
    fn standard(&self, _transport: Transport, _body: &[u8]) -> Option<StandardOperation> {
        None
    }
}

/// An extension's request on the device that carries it out.
#[derive(Clone, Copy, Debug)]
pub struct Arrived<'r> {
    /// The body of the request, with the length that the operation defines.
    pub body: &'r [u8],
    /// The bytes of the request's scatter/gather list.
    pub data: &'r [u8],
    /// The objects that the request keeps alive; `None` if it came from another device.
    pub held: Option<&'r Held>,
}

/// Standard operations that a driver of this project carries out for an extension.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StandardOperation {
    /// An Atomic Request of RFC 7306, which has masks.
    Atomic(RemoteAddress, AtomicOp),
}

/// An atomic operation with its operands, in this machine's byte order (RFC 7306 section 5.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtomicOp {
    /// Adds `add` to the operand, field by field: no carry leaves a field.
    FetchAdd {
        /// The value to add.
        add: u64,
        /// The highest bit of each field. With only bit 63, or no bit, the whole operand is one field.
        mask: u64,
    },
    /// Replaces the bits of `swap_mask` if the operand and `compare` have equal bits in `compare_mask`.
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
    /// Creates a fetch-and-add without a mask.
    pub const fn fetch_add(add: u64) -> Self {
        Self::FetchAdd { add, mask: 0 }
    }

    /// Creates a compare-and-swap without masks.
    pub const fn compare_swap(compare: u64, swap: u64) -> Self {
        Self::CompareSwap {
            compare,
            compare_mask: u64::MAX,
            swap,
            swap_mask: u64::MAX,
        }
    }

    /// Returns the effect of an operation without masks on an operand that is `current`: `Some(Some(value))` changes it to
    /// `value`, and `Some(None)` leaves it as it is. The result is `None` for an operation with masks.
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

/// Computes masked atomics for devices whose transport carries them.
pub trait MaskedAtomics: Send + Sync {
    /// Returns the new value of an operand that is `current`; `None` if it stays as it is.
    fn apply(&self, op: AtomicOp, current: u64) -> Option<u64>;
}

/// Which address of an atomic's operand the transport requires to be aligned to 8 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Aligned {
    /// The address by which the request names the operand (InfiniBand).
    Address,
    /// The address of the operand in the device's memory (RFC 7306).
    Memory,
}

/// The registered memory that an extension's request may use on the device that carries it out, through one of its queue
/// pairs.
pub struct TargetMemory<'p> {
    keys: &'p KeyTable,
    pin: &'p Pin,
    pd: u32,
    qpn: u32,
    permitted: Access,
    aligned: Aligned,
}

impl<'p> TargetMemory<'p> {
    /// Gives access through the queue pair `qpn` in the domain `pd`. `permitted` are the rights that the queue pair grants
    /// to its peers; `aligned` is the transport's rule for atomics.
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

    /// Passes the `length` bytes at `remote` to `each`, in order and in pieces. They are copies, because the memory may
    /// change at any time. The key must grant the right to read.
    ///
    /// # Errors
    /// The queue pair, the key or its range does not allow it. No byte was passed then.
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

    /// Writes `bytes` to the memory at `remote`. The key must grant the right to write.
    ///
    /// # Errors
    /// The queue pair, the key or its range does not allow it. No byte was written then.
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

    /// Changes the eight bytes at `remote` atomically, as an integer of this machine, and returns their old value. `change`
    /// returns the new value, or `None` if the value stays. The key must grant the right to atomics.
    ///
    /// # Errors
    /// The queue pair, the key or its range does not allow it, or the bytes are not aligned. Nothing was changed then.
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

/// Carries out an extension's request. `message` is its body, of the length that the operation defines, followed by its
/// data; `answer` gets the answer.
///
/// # Errors
/// The message is shorter than the body, or the operation refuses the request.
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

/// Converts an answer and places as much of it in `sink` as fits. Returns the number of bytes placed.
pub fn place(emulation: &dyn OperationEmulation, mut answer: Octets, sink: &Spans<'_>) -> u32 {
    emulation.complete(&mut answer);
    let room: usize = sink.iter().map(|span| span.len()).sum();
    let bytes = &answer[..answer.len().min(room)];
    scatter_at(sink, 0, &Payload::Bytes(bytes));
    bytes.len() as u32
}
