//! Octets to be sent, wherever they lie.
// A piece is the kernel's own description of memory, and is built from what keeps that memory mapped.
#![allow(unsafe_code)]

use std::marker::PhantomData;
use std::ptr::{null_mut, with_exposed_provenance_mut};

use verbs_api::memory::Span;

/// Octets that the kernel gathers from where they lie: ordinary ones, or a stretch of registered memory, which others may
/// change while they are read.
#[repr(transparent)]
pub struct Piece<'a> {
    vector: libc::iovec,
    octets: PhantomData<&'a ()>,
}

impl<'a> Piece<'a> {
    /// Nothing.
    pub const EMPTY: Self = Self::of(null_mut(), 0);

    const fn of(start: *mut u8, length: usize) -> Self {
        let vector = libc::iovec {
            iov_base: start.cast(),
            iov_len: length,
        };
        Self {
            vector,
            octets: PhantomData,
        }
    }

    /// Octets.
    pub const fn len(&self) -> usize {
        self.vector.iov_len
    }

    /// Whether there are none.
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// As the kernel takes it.
    pub(crate) const fn raw(&self) -> (*const libc::c_void, usize) {
        (self.vector.iov_base.cast_const(), self.vector.iov_len)
    }

    /// What is left behind the first `octets`.
    #[must_use]
    pub fn after(&self, octets: usize) -> Self {
        let octets = octets.min(self.len());
        let start: *mut u8 = self.vector.iov_base.cast();
        // `wrapping_add`: within the memory or one past its end, and allowed for the null of an empty piece.
        Self::of(start.wrapping_add(octets), self.len() - octets)
    }

    /// Appends a copy of the octets as they are now.
    pub fn copy_to(&self, target: &mut Vec<u8>) {
        let start = target.len();
        target.resize(start + self.len(), 0);
        if let Some(span) = self.span() {
            span.read(&mut target[start..]);
        }
    }

    /// The octets, to be copied; `None` if there are none.
    pub(crate) fn span(&self) -> Option<Span<'a>> {
        // SAFETY: the memory stays mapped for `'a`, is read only, and through the copy that bears writers.
        (!self.is_empty()).then(|| unsafe { Span::new(self.vector.iov_base.cast(), self.len()) })
    }
}

impl Clone for Piece<'_> {
    fn clone(&self) -> Self {
        *self
    }
}

impl Copy for Piece<'_> {}

impl<'a> From<&'a [u8]> for Piece<'a> {
    fn from(octets: &'a [u8]) -> Self {
        Self::of(octets.as_ptr().cast_mut(), octets.len())
    }
}

impl<'a> From<Span<'a>> for Piece<'a> {
    fn from(span: Span<'a>) -> Self {
        // The address was exposed when it was asked for.
        Self::of(
            with_exposed_provenance_mut(span.address() as usize),
            span.len(),
        )
    }
}

/// Octets of all pieces together.
pub(crate) fn total(pieces: &[Piece<'_>]) -> usize {
    pieces.iter().map(Piece::len).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_behind_a_number_of_octets_is_the_rest() {
        let piece = Piece::from(b"octets".as_slice());
        let rest = |octets| {
            let mut copy = Vec::new();
            piece.after(octets).copy_to(&mut copy);
            copy
        };
        assert_eq!(
            [rest(0), rest(2), rest(6), rest(9)],
            [&b"octets"[..], b"tets", b"", b""]
        );
        assert!(Piece::EMPTY.after(3).is_empty());
    }

    #[test]
    fn pieces_of_ordinary_and_of_registered_memory_read_alike() {
        let mut memory = *b"registered";
        // SAFETY: the array outlives the span and nobody else touches it meanwhile.
        let span = unsafe { Span::new(memory.as_mut_ptr(), memory.len()) };
        let pieces = [Piece::from(b"is ".as_slice()), span.sub(2, 5).into()];
        assert_eq!(total(&pieces), 8);
        let mut copy = Vec::new();
        pieces.iter().for_each(|piece| piece.copy_to(&mut copy));
        assert_eq!(copy, b"is giste");
    }
}
