//! The payload of a frame: stretches of registered memory, or ordinary bytes.

use smallvec::SmallVec;
use verbs_api::memory::Span;

use crate::fault::Fault;
use crate::key_table::{KeyTable, LocalUse};
use crate::log_event;
use crate::pin::Pin;
use crate::receive_ring::RawSge;

/// Stretches of registered memory that passed a key check, in order.
pub type Spans<'p> = SmallVec<[Span<'p>; 4]>;

/// The payload of a frame: where its bytes are.
#[derive(Clone, Debug)]
pub enum Payload<'p> {
    /// The payload is empty.
    Empty,
    /// One stretch of registered memory.
    Span(Span<'p>),
    /// `length` bytes of several stretches of registered memory, beginning at byte `offset`.
    Spans {
        /// The stretches.
        spans: &'p [Span<'p>],
        /// The position of the first byte, counted from the beginning of the first stretch.
        offset: usize,
        /// The number of bytes.
        length: usize,
    },
    /// Bytes in ordinary memory, which no key names.
    Bytes(&'p [u8]),
}

impl<'p> Payload<'p> {
    /// Returns a payload of all bytes of `spans`.
    pub fn of_spans(spans: &'p [Span<'p>]) -> Self {
        match spans {
            [] => Self::Empty,
            [span] => Self::Span(*span),
            spans => Self::Spans {
                spans,
                offset: 0,
                length: spans.iter().map(|span| span.len()).sum(),
            },
        }
    }

    /// Returns the number of bytes.
    #[inline]
    pub fn len(&self) -> usize {
        match self {
            Self::Empty => 0,
            Self::Span(span) => span.len(),
            Self::Spans { length, .. } => *length,
            Self::Bytes(bytes) => bytes.len(),
        }
    }

    /// Returns whether the payload is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the part that begins at byte `offset` and has `length` bytes, or fewer if the payload ends before.
    #[must_use]
    pub fn part(&self, offset: usize, length: usize) -> Payload<'p> {
        match *self {
            Self::Empty => Self::Empty,
            Self::Span(span) => Self::Span(span.sub(offset, length)),
            Self::Spans {
                spans,
                offset: start,
                length: all,
            } => {
                let offset = offset.min(all);
                Self::Spans {
                    spans,
                    offset: start + offset,
                    length: length.min(all - offset),
                }
            }
            Self::Bytes(bytes) => {
                let offset = offset.min(bytes.len());
                Self::Bytes(&bytes[offset..bytes.len().min(offset.saturating_add(length))])
            }
        }
    }

    /// Copies the payload into `target`, as many bytes as fit.
    #[inline]
    pub fn copy_to(&self, target: Span<'_>) {
        match *self {
            Self::Empty => {}
            Self::Span(span) => target.copy_from(span),
            Self::Bytes(bytes) => target.write(bytes),
            Self::Spans {
                spans,
                offset,
                length,
            } => {
                let mut done = 0;
                for here in pieces(spans, offset, length) {
                    target.sub(done, here.len()).copy_from(here);
                    done += here.len();
                }
            }
        }
    }

    /// Returns a copy of the bytes, for a link that does not deliver the frame at once.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.len()];
        self.read(&mut bytes);
        bytes
    }

    /// Copies the payload into `bytes`, as many bytes as fit.
    pub fn read(&self, bytes: &mut [u8]) {
        let most = self.len().min(bytes.len());
        let bytes = &mut bytes[..most];
        match *self {
            Self::Empty => {}
            Self::Span(span) => span.read(bytes),
            Self::Bytes(source) => bytes.copy_from_slice(&source[..most]),
            Self::Spans { spans, offset, .. } => {
                let mut done = 0;
                for here in pieces(spans, offset, most) {
                    here.read(&mut bytes[done..done + here.len()]);
                    done += here.len();
                }
            }
        }
    }

    /// Returns the first eight bytes as an integer in this machine's byte order; 0 if the payload has fewer.
    pub fn word(&self) -> u64 {
        let mut bytes = [0; 8];
        if self.len() >= 8 {
            self.read(&mut bytes);
        }
        u64::from_ne_bytes(bytes)
    }
}

// Returns the stretches of the `length` bytes that begin at byte `offset` of all spans.
fn pieces<'p>(
    spans: &[Span<'p>],
    mut offset: usize,
    mut length: usize,
) -> impl Iterator<Item = Span<'p>> {
    spans.iter().map(move |span| {
        let here = span.sub(offset, length);
        offset = offset.saturating_sub(span.len());
        length -= here.len();
        here
    })
}

/// Checks scatter/gather entries for the local use `user`, and adds their memory to `into`. Entries of length 0 are skipped
/// unchecked.
#[inline]
pub(crate) fn gather<'p>(
    keys: &KeyTable,
    pin: &'p Pin,
    entries: impl Iterator<Item = RawSge>,
    user: LocalUse,
    into: &mut Spans<'p>,
) -> Result<(), Fault> {
    for sge in entries.filter(|sge| sge.length != 0) {
        let region = keys.check_local(pin, sge.lkey, sge.addr, sge.length.into(), user);
        let region = region.inspect_err(|fault| {
            log_event!(
                WARN,
                "a request is refused access to memory",
                lkey = format_args!("{:#x}", sge.lkey),
                addr = format_args!("{:#x}", sge.addr),
                length = sge.length,
                reason = format_args!("{fault:?}"),
            );
        });
        region?.for_each(|span| into.push(span));
    }
    Ok(())
}

/// Copies `payload` into the stretches `targets`, beginning at byte `offset` of all of them together. Bytes that do not fit
/// are dropped.
#[inline]
pub fn scatter_at(targets: &[Span<'_>], offset: u64, payload: &Payload<'_>) {
    if let ([target], 0) = (targets, offset) {
        return payload.copy_to(*target);
    }
    scatter_among(targets, offset, payload);
}

#[inline(never)]
fn scatter_among(targets: &[Span<'_>], offset: u64, payload: &Payload<'_>) {
    let (mut skip, mut done) = (offset as usize, 0);
    for target in targets {
        if done >= payload.len() {
            return;
        }
        let here = target.sub(skip, usize::MAX);
        skip = skip.saturating_sub(target.len());
        if !here.is_empty() {
            payload.part(done, here.len()).copy_to(here);
            done += here.len();
        }
    }
}
