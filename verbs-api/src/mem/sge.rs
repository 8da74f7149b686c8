//! Scatter/gather entries.

use crate::ids::LKey;

/// A scatter/gather entry: a range of registered memory, named by its local key.
///
/// A region ([`Mr::sge`](crate::Mr::sge)) or a key ([`MrKey::sge`](crate::MrKey::sge)) makes one: safe code can only name
/// memory that it registered. Length 0 means 0 bytes, and then the key is not checked. It does not keep the memory alive:
/// the device checks key, bounds and rights when it executes the request. Laid out as the C interface has it: `addr`,
/// `length` and `lkey` at 0, 8 and 12.
///
/// ```no_run
/// # fn example(qp: &verbs_api::Qp, header: &verbs_api::Mr, body: &verbs_api::Mr)
/// #     -> Result<(), Box<dyn std::error::Error>> {
/// use verbs_api::wr;
/// let entries = [header.sge(0, 16)?, body.sge_all()];
/// qp.post_one(wr::Send::new(&entries))?; // one message of both
/// # Ok(())
/// # }
/// ```
///
/// A program cannot make up a key:
///
/// ```compile_fail,E0451
/// use verbs_api::{Sge, ids::LKey};
/// let forged = Sge { addr: 0x1000, length: 11, lkey: LKey::new(0x1234) };
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[doc(alias = "ibv_sge")]
#[repr(C)]
pub struct Sge {
    addr: u64,
    length: u32,
    lkey: LKey,
}

const _: () = assert!(
    size_of::<Sge>() == 16
        && std::mem::offset_of!(Sge, addr) == 0
        && std::mem::offset_of!(Sge, length) == 8
        && std::mem::offset_of!(Sge, lkey) == 12
);

impl Sge {
    pub(crate) const fn new(addr: u64, length: u32, lkey: LKey) -> Self {
        Self { addr, length, lkey }
    }

    /// Makes an entry of these numbers, which programs of the C interface have.
    ///
    /// # Safety
    /// `lkey` is not the key of a [`BufferPool`](crate::BufferPool), whose buffers are exclusive slices: not every device
    /// can distinguish its region from others. A number that is no key is harmless: the device refuses the request.
    #[allow(unsafe_code)]
    pub const unsafe fn from_raw(addr: u64, length: u32, lkey: LKey) -> Self {
        Self::new(addr, length, lkey)
    }

    /// Returns an entry for another range under the same key. The device refuses a range that is not in the key's region.
    #[must_use]
    pub const fn at(self, addr: u64, length: u32) -> Self {
        Self::new(addr, length, self.lkey)
    }

    /// Returns the address of the first byte; for zero-based memory, its offset.
    #[inline]
    pub const fn addr(&self) -> u64 {
        self.addr
    }

    /// Returns the number of bytes of the range.
    #[inline]
    pub const fn length(&self) -> u32 {
        self.length
    }

    /// Returns the local key that the range is accessed by.
    #[inline]
    pub const fn lkey(&self) -> LKey {
        self.lkey
    }
}
