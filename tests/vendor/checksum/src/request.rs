//! The work request: its body in network order, as it is sent.

use verbs_api::{
    RKey, RemoteAddress,
    extension::{ExtensionOperation, OperationData},
    wr::{self, Data},
};
use zerocopy::byteorder::network_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::RANGE;

/// The operation of [`Range`], whose completions have its opcode.
pub static CHECKSUM: ExtensionOperation =
    ExtensionOperation::new("acme-checksum", "CHECKSUM", 1, &RANGE)
        .body(size_of::<Range>() as u16)
        .data(OperationData::Sink { least: 4 });

/// A range of remote memory whose checksum is requested.
#[derive(Clone, Copy, Debug, IntoBytes, FromBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Range {
    addr: U64,
    rkey: U32,
    length: U32,
}

impl Range {
    pub(crate) fn new(remote: RemoteAddress, length: u32) -> Self {
        Self {
            addr: U64::new(remote.addr),
            rkey: U32::new(remote.rkey.value()),
            length: U32::new(length),
        }
    }

    /// The request. The checksum is placed in the first four bytes of `sink`, in the byte order of this machine.
    pub fn request<'a>(&'a self, sink: impl Into<Data<'a>>) -> wr::ExtensionRequest<'a> {
        wr::ExtensionRequest::new(&CHECKSUM, self, sink)
    }

    pub(crate) fn remote(&self) -> RemoteAddress {
        RemoteAddress::new(self.addr.get(), RKey::new(self.rkey.get()))
    }

    pub(crate) fn length(&self) -> u64 {
        self.length.get().into()
    }
}
