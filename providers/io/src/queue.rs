//! A queue of bytes that are to be sent and that a socket has not taken yet.

/// Bytes that are to be sent, in order. Their memory is reused without being cleared.
#[derive(Debug, Default)]
pub struct ByteQueue {
    bytes: Vec<u8>,
    begin: usize,
    end: usize,
}

impl ByteQueue {
    /// Creates a queue that contains these bytes.
    pub const fn new(bytes: Vec<u8>) -> Self {
        let end = bytes.len();
        Self {
            bytes,
            begin: 0,
            end,
        }
    }

    /// Returns how many bytes are queued.
    pub const fn len(&self) -> usize {
        self.end - self.begin
    }

    /// Returns whether no byte is queued.
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the queued bytes.
    pub fn waiting(&self) -> &[u8] {
        &self.bytes[self.begin..self.end]
    }

    /// Appends `length` bytes to the queue and returns them, so that the caller can write them. Until then they hold data
    /// of earlier frames.
    pub fn push(&mut self, length: usize) -> &mut [u8] {
        let begin = self.end;
        self.end += length;
        if self.bytes.len() < self.end {
            self.bytes.resize(self.end.next_multiple_of(ROOM), 0);
        }
        &mut self.bytes[begin..self.end]
    }

    /// Returns the last `length` queued bytes, or all of them if fewer are queued.
    pub fn last(&mut self, length: usize) -> &mut [u8] {
        let begin = self.end.saturating_sub(length).max(self.begin);
        &mut self.bytes[begin..self.end]
    }

    /// Removes the first `length` bytes, which the socket has taken.
    pub fn left(&mut self, length: usize) {
        self.begin = (self.begin + length).min(self.end);
        if self.is_empty() {
            (self.begin, self.end) = (0, 0);
        }
    }

    /// Moves the queued bytes to the front of the memory, if at least `least` bytes before them are unused.
    pub(crate) fn tidy(&mut self, least: usize) {
        if self.begin >= least {
            self.bytes.copy_within(self.begin..self.end, 0);
            (self.begin, self.end) = (0, self.len());
        }
    }

    /// Returns whether the queue has allocated memory.
    pub(crate) const fn has_memory(&self) -> bool {
        self.bytes.capacity() > 0
    }

    /// Removes all bytes, and returns the queue with its memory.
    pub(crate) fn emptied(mut self) -> Self {
        (self.begin, self.end) = (0, 0);
        self
    }
}

/// The number of bytes by which the memory grows at a time.
const ROOM: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_leave_in_their_order() {
        let mut queue = ByteQueue::new(b"ab".to_vec());
        queue.push(3).copy_from_slice(b"cde");
        assert_eq!(queue.waiting(), b"abcde");
        queue.left(2);
        queue.tidy(1);
        queue.push(1).copy_from_slice(b"f");
        assert_eq!((queue.waiting(), queue.len()), (&b"cdef"[..], 4));
        assert_eq!(queue.last(2), b"ef");
        queue.left(9);
        assert!(queue.is_empty() && queue.emptied().has_memory());
    }
}
