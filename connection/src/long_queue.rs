//! Queues that peers can make long.

use std::collections::VecDeque;

/// Frees the memory of a queue that is empty and was long: a flood of requests must not cost memory when it is over.
pub(crate) fn release<T>(queue: &mut VecDeque<T>) {
    if queue.is_empty() && queue.capacity() > KEPT {
        *queue = VecDeque::new();
    }
}

/// The places that an empty queue keeps, so that an ordinary one does not allocate memory again and again.
pub(crate) const KEPT: usize = 256;
