//! Requests that are posted together, with one doorbell.

use std::{slice, vec};

use super::WorkRequest;

/// Work requests in the order in which they are to be posted.
///
/// Posting removes the requests that were posted. After an error the refused request is the first of those that remain, and
/// still has its buffers. A batch keeps its allocation, so that a loop that reuses one allocates no memory.
///
/// ```no_run
/// # fn example(qp: &verbs_api::Qp, region: &verbs_api::Mr, remote: verbs_api::RemoteAddress)
/// #     -> Result<(), Box<dyn std::error::Error>> {
/// use verbs_api::{Batch, wr};
/// let mut batch = Batch::with_capacity(9);
/// for chunk in 0..8 {
///     batch.push(wr::Write::new(region.sge(chunk * 64, 64)?, remote.plus(chunk as u64 * 4096)));
/// }
/// batch.push(wr::Send::new(b"written").signaled(1)); // one completion, behind all of them
/// qp.post(&mut batch)?;
/// assert!(batch.is_empty());
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Default)]
pub struct Batch<'a> {
    pub(crate) requests: Vec<WorkRequest<'a>>,
}

impl<'a> Batch<'a> {
    /// Creates an empty batch, without allocating memory.
    pub const fn new() -> Self {
        Self {
            requests: Vec::new(),
        }
    }

    /// Creates an empty batch with memory for `capacity` requests.
    pub fn with_capacity(capacity: usize) -> Self {
        Self {
            requests: Vec::with_capacity(capacity),
        }
    }

    /// Appends a request to the batch.
    #[inline]
    pub fn push(&mut self, request: impl Into<WorkRequest<'a>>) {
        self.requests.push(request.into());
    }

    /// Returns the number of requests in the batch.
    pub fn len(&self) -> usize {
        self.requests.len()
    }

    /// Whether the batch has no requests.
    pub fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    /// Iterates over the requests in the order in which they will be posted.
    pub fn iter(&self) -> impl Iterator<Item = &WorkRequest<'a>> {
        self.requests.iter()
    }

    /// Removes and returns the first request, for instance one that was refused.
    pub fn remove_first(&mut self) -> Option<WorkRequest<'a>> {
        (!self.is_empty()).then(|| self.requests.remove(0))
    }

    /// Removes all requests; their buffers return to their pools.
    pub fn clear(&mut self) {
        self.requests.clear();
    }

    /// Empties the batch and returns it with its allocation, for requests that borrow from something else.
    #[must_use]
    pub fn recycle<'b>(mut self) -> Batch<'b> {
        self.clear();
        // Collecting an empty `Vec` of the same layout in place keeps its allocation.
        Batch {
            requests: self
                .requests
                .into_iter()
                .map(|_| -> WorkRequest<'b> { unreachable!() })
                .collect(),
        }
    }
}

impl<'a, R: Into<WorkRequest<'a>>> Extend<R> for Batch<'a> {
    fn extend<I: IntoIterator<Item = R>>(&mut self, requests: I) {
        self.requests.extend(requests.into_iter().map(Into::into));
    }
}

impl<'a, R: Into<WorkRequest<'a>>> FromIterator<R> for Batch<'a> {
    fn from_iter<I: IntoIterator<Item = R>>(requests: I) -> Self {
        let mut batch = Self::new();
        batch.extend(requests);
        batch
    }
}

impl<'a> IntoIterator for Batch<'a> {
    type Item = WorkRequest<'a>;
    type IntoIter = vec::IntoIter<WorkRequest<'a>>;

    fn into_iter(self) -> Self::IntoIter {
        self.requests.into_iter()
    }
}

impl<'b, 'a> IntoIterator for &'b Batch<'a> {
    type Item = &'b WorkRequest<'a>;
    type IntoIter = slice::Iter<'b, WorkRequest<'a>>;

    fn into_iter(self) -> Self::IntoIter {
        self.requests.iter()
    }
}
