//! The work requests, whose operands are in network byte order.

use polyverbs_engine::operation::AtomicOp;
use verbs_api::{
    RKey, RemoteAddress,
    extension::{ExtensionOperation, OperationData},
    wr::{self, Data},
};
use zerocopy::byteorder::network_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::MASKED_64;

const RESULT: OperationData = OperationData::Sink { least: 8 };

/// The operation of a [`MaskedCompareSwap`], whose opcode its completions have.
pub static COMPARE_SWAP: ExtensionOperation =
    ExtensionOperation::new("masked-atomics", "MASKED_ATOMIC_CMP_AND_SWP", 1, &MASKED_64)
        .body(size_of::<MaskedCompareSwap>() as u16)
        .data(RESULT);

/// The operation of a [`MaskedFetchAdd`], whose opcode its completions have.
pub static FETCH_ADD: ExtensionOperation = ExtensionOperation::new(
    "masked-atomics",
    "MASKED_ATOMIC_FETCH_AND_ADD",
    2,
    &MASKED_64,
)
.body(size_of::<MaskedFetchAdd>() as u16)
.data(RESULT);

/// The remote address and key of the eight bytes, in network byte order as they are sent.
#[derive(Clone, Copy, Debug, IntoBytes, FromBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Target {
    addr: U64,
    rkey: U32,
}

impl Target {
    fn new(remote: RemoteAddress) -> Self {
        Self {
            addr: U64::new(remote.addr),
            rkey: U32::new(remote.rkey.value()),
        }
    }

    fn remote(self) -> RemoteAddress {
        RemoteAddress::new(self.addr.get(), RKey::new(self.rkey.get()))
    }
}

/// A masked compare-and-swap: compares some bits of eight remote bytes, and replaces some if those are equal. The original
/// value is placed into local memory.
#[derive(Clone, Copy, Debug, IntoBytes, FromBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct MaskedCompareSwap {
    target: Target,
    compare: U64,
    compare_mask: U64,
    swap: U64,
    swap_mask: U64,
}

impl MaskedCompareSwap {
    /// Compares all bits with `compare` and replaces all by `swap`, unless masks are set.
    pub fn new(remote: RemoteAddress, compare: u64, swap: u64) -> Self {
        Self {
            target: Target::new(remote),
            compare: U64::new(compare),
            compare_mask: U64::new(u64::MAX),
            swap: U64::new(swap),
            swap_mask: U64::new(u64::MAX),
        }
    }

    /// Compares only these bits; with an empty mask the bits are always replaced.
    #[must_use]
    pub fn compare_mask(mut self, bits: u64) -> Self {
        self.compare_mask = U64::new(bits);
        self
    }

    /// Replaces only these bits; with an empty mask no bit changes.
    #[must_use]
    pub fn swap_mask(mut self, bits: u64) -> Self {
        self.swap_mask = U64::new(bits);
        self
    }

    /// Returns the work request. The original value is placed into the eight bytes of `result`.
    pub fn request<'a>(&'a self, result: impl Into<Data<'a>>) -> wr::ExtensionRequest<'a> {
        wr::ExtensionRequest::new(&COMPARE_SWAP, self, result)
    }

    pub(crate) fn parts(&self) -> (RemoteAddress, AtomicOp) {
        let op = AtomicOp::CompareSwap {
            compare: self.compare.get(),
            compare_mask: self.compare_mask.get(),
            swap: self.swap.get(),
            swap_mask: self.swap_mask.get(),
        };
        (self.target.remote(), op)
    }
}

/// A masked fetch-and-add: adds to fields of eight remote bytes, without carry between the fields. The original value is
/// placed into local memory.
#[derive(Clone, Copy, Debug, IntoBytes, FromBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct MaskedFetchAdd {
    target: Target,
    add: U64,
    mask: U64,
}

impl MaskedFetchAdd {
    /// Adds `add` to a single field of 64 bits, unless [`fields`](Self::fields) is called.
    pub fn new(remote: RemoteAddress, add: u64) -> Self {
        Self {
            target: Target::new(remote),
            add: U64::new(add),
            mask: U64::new(0),
        }
    }

    /// Sets the fields: each bit of `highest` is the highest bit of a field, beyond which there is no carry. The bits above
    /// the highest such bit are a field too.
    #[must_use]
    pub fn fields(mut self, highest: u64) -> Self {
        self.mask = U64::new(highest);
        self
    }

    /// Returns the work request. The original value is placed into the eight bytes of `result`.
    pub fn request<'a>(&'a self, result: impl Into<Data<'a>>) -> wr::ExtensionRequest<'a> {
        wr::ExtensionRequest::new(&FETCH_ADD, self, result)
    }

    pub(crate) fn parts(&self) -> (RemoteAddress, AtomicOp) {
        let op = AtomicOp::FetchAdd {
            add: self.add.get(),
            mask: self.mask.get(),
        };
        (self.target.remote(), op)
    }
}
