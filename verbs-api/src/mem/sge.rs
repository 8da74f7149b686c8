//! Scatter/gather entries.

use crate::ids::LKey;

/// A scatter/gather entry: a range of registered memory, named by its local key.
///
/// Made by a region ([`Mr::sge`](crate::Mr::sge)) or a key ([`MrKey::sge`](crate::MrKey::sge)): safe code can only name
/// the memory that it registered. Length 0 is 0 bytes, and then the key is not looked at. It holds nothing: the device
/// checks key, bounds and rights when the request runs. Laid out as the C interface has it: `addr`, `length` and `lkey` at
/// 0, 8 and 12.
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

    /// An entry of these numbers, as programs of the C interface have them.
    ///
    /// # Safety
    /// `lkey` is not the key of a [`BufferPool`](crate::BufferPool), whose buffers are exclusive slices: not every device
    /// can tell its region from others. A number that is no key at all is harmless; the device refuses it.
    #[allow(unsafe_code)]
    pub const unsafe fn from_raw(addr: u64, length: u32, lkey: LKey) -> Self {
        Self::new(addr, length, lkey)
    }

    /// Another range of what the same key opens. The device refuses one that lies outside.
    #[must_use]
    pub const fn at(self, addr: u64, length: u32) -> Self {
        Self::new(addr, length, self.lkey)
    }

    /// Address of the first byte; for zero-based memory, its offset.
    #[inline]
    pub const fn addr(&self) -> u64 {
        self.addr
    }

    /// Bytes.
    #[inline]
    pub const fn length(&self) -> u32 {
        self.length
    }

    /// Local key.
    #[inline]
    pub const fn lkey(&self) -> LKey {
        self.lkey
    }
}
