//! A range of registered memory that has passed the access check.
// Copies between checked ranges of registered memory.
#![allow(unsafe_code)]

use std::marker::PhantomData;

use super::copy;

/// A range of registered memory that stays mapped for `'p`. Others may write it at any time, so it is only copied from and
/// to.
#[derive(Clone, Copy, Debug)]
pub struct Span<'p> {
    start: *mut u8,
    length: usize,
    pinned: PhantomData<&'p ()>,
}

impl<'p> Span<'p> {
    /// # Safety
    /// `length` bytes from `start` stay mapped and writable for `'p`, are not accessed through a Rust reference
    /// in that time, and otherwise only through [`copy`].
    pub const unsafe fn new(start: *mut u8, length: usize) -> Self {
        Self {
            start,
            length,
            pinned: PhantomData,
        }
    }

    /// Returns the number of bytes in the range.
    pub const fn len(self) -> usize {
        self.length
    }

    /// Whether the range has no bytes.
    pub const fn is_empty(self) -> bool {
        self.length == 0
    }

    /// Returns the address of the first byte in this process.
    pub fn address(self) -> u64 {
        self.start.expose_provenance() as u64
    }

    /// Returns the part that begins at `offset` and has `length` bytes, or fewer where the range ends before.
    #[must_use]
    pub fn sub(self, offset: usize, length: usize) -> Self {
        let offset = offset.min(self.length);
        // SAFETY: `offset` is within the range.
        let start = unsafe { self.start.add(offset) };
        Self {
            start,
            length: length.min(self.length - offset),
            pinned: PhantomData,
        }
    }

    /// Copies the first bytes of `source` to this range, as many as the shorter of the two has.
    #[inline]
    pub fn copy_from(self, source: Span<'_>) {
        // SAFETY: both ranges are mapped for the length copied.
        unsafe { copy::copy(self.start, source.start, self.length.min(source.length)) }
    }

    /// Copies the first bytes of `source` to this range, as many as the shorter of the two has.
    #[inline]
    pub fn write(self, source: &[u8]) {
        // SAFETY: the range is mapped; `source` is an ordinary slice.
        unsafe { copy::copy(self.start, source.as_ptr(), self.length.min(source.len())) }
    }

    /// Copies the first bytes of this range to `target`, as many as the shorter of the two has.
    #[inline]
    pub fn read(self, target: &mut [u8]) {
        // SAFETY: the range is mapped; `target` is an ordinary slice.
        unsafe {
            copy::copy(
                target.as_mut_ptr(),
                self.start,
                self.length.min(target.len()),
            )
        }
    }

    /// Atomically reads the first eight bytes as a native integer.
    ///
    /// `None` unless the range has eight bytes at an 8-aligned address.
    #[inline]
    pub fn load_u64(self) -> Option<u64> {
        // SAFETY: checked to be aligned and long enough.
        self.is_word()
            .then(|| unsafe { copy::load_u64(self.start.cast()) })
    }

    /// Atomically writes the first eight bytes; returns `None` unless the range has eight bytes at an 8-aligned address.
    #[inline]
    pub fn store_u64(self, value: u64) -> Option<()> {
        // SAFETY: checked to be aligned and long enough.
        self.is_word()
            .then(|| unsafe { copy::store_u64(self.start.cast(), value) })
    }

    /// Atomically replaces the first eight bytes by what `change` returns for them; returns their original value.
    ///
    /// If `change` returns `None`, they stay as they are. Returns `None` unless the range has eight bytes at an 8-aligned
    /// address.
    #[inline]
    pub fn update_u64(self, change: impl Fn(u64) -> Option<u64>) -> Option<u64> {
        let mut current = self.load_u64()?;
        while let Some(new) = change(current) {
            // SAFETY: checked to be aligned and long enough.
            let seen = unsafe { copy::compare_exchange_u64(self.start.cast(), current, new) };
            if seen == current {
                break;
            }
            current = seen;
        }
        Some(current)
    }

    fn is_word(self) -> bool {
        self.length >= 8 && self.start.addr().is_multiple_of(8)
    }
}
