//! The bytes of a fuzzer as a sequence of decisions.

/// The bytes that are left.
pub(crate) struct Script<'o>(&'o [u8]);

impl<'o> Script<'o> {
    pub(crate) fn new(octets: &'o [u8]) -> Self {
        Self(octets)
    }

    pub(crate) fn is_over(&self) -> bool {
        self.0.is_empty()
    }

    /// The next byte; 0 if none is left.
    pub(crate) fn octet(&mut self) -> u8 {
        self.octets(1).first().copied().unwrap_or(0)
    }

    /// The next `count` bytes, or all that are left.
    pub(crate) fn octets(&mut self, count: usize) -> &'o [u8] {
        let (taken, rest) = self.0.split_at(count.min(self.0.len()));
        self.0 = rest;
        taken
    }
}
