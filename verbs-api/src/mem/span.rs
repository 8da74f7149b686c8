//! A range of registered memory that has passed the access check.
// Copies between checked ranges of registered memory.
#![allow(unsafe_code)]

use std::marker::PhantomData;

use super::copy;

/// A range of registered memory that stays mapped for `'p`; others may write it at any time, so it is only copied.
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

    /// Bytes.
    pub const fn len(self) -> usize {
        self.length
    }

    /// Whether there are none.
    pub const fn is_empty(self) -> bool {
        self.length == 0
    }

    /// Where the range begins in the address space of the process.
    pub fn address(self) -> u64 {
        self.start.expose_provenance() as u64
    }

    /// The bytes from `offset` on, `length` of them at most.
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

    /// Copies the bytes of `source`, as many as both have.
    #[inline]
    pub fn copy_from(self, source: Span<'_>) {
        // SAFETY: both ranges are mapped for the length copied.
        unsafe { copy::copy(self.start, source.start, self.length.min(source.length)) }
    }

    /// Copies `source`, as much as fits.
    #[inline]
    pub fn write(self, source: &[u8]) {
        // SAFETY: the range is mapped; `source` is an ordinary slice.
        unsafe { copy::copy(self.start, source.as_ptr(), self.length.min(source.len())) }
    }

    /// Copies into `target`, as much as fits.
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

    /// The eight bytes here as a native integer, read at once.
    ///
    /// `None` unless the range has eight bytes at an 8-aligned address.
    #[inline]
    pub fn load_u64(self) -> Option<u64> {
        // SAFETY: checked to be aligned and long enough.
        self.is_word()
            .then(|| unsafe { copy::load_u64(self.start.cast()) })
    }

    /// Writes eight bytes at once; `None` unless 8-aligned and long enough.
    #[inline]
    pub fn store_u64(self, value: u64) -> Option<()> {
        // SAFETY: checked to be aligned and long enough.
        self.is_word()
            .then(|| unsafe { copy::store_u64(self.start.cast(), value) })
    }

    /// Replaces the eight bytes by what `change` makes of them, atomically; returns the original value.
    ///
    /// `change` returns `None` to leave them. `None` unless 8-aligned and long enough.
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
