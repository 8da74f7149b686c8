//! The outstanding requests of queues, to find the request that a completion belongs to.
//!
//! The library returns a number with each completion. On a send queue the number counts requests, because a completion also
//! completes the earlier unsignaled ones. The send queue is a ring: the poster works at one end and the poller of the completion
//! queue at the other, and neither waits for the other. Each receive has a completion of its own, and its number is a place.
#![allow(unsafe_code)]

use std::cell::UnsafeCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use verbs_api::completion::{Completion, WcOpcode};
use verbs_api::memory::Loan;
use verbs_api::wr::{PostReason, SendFlags};

use crate::window::Bound;

/// This bit of a `wr_id` marks a receive, because the completion of a failed request does not show whether it is a send or
/// a receive.
const RECEIVE: u64 = 1 << 63;

/// This bit of a `wr_id` marks a receive of an XRC shared receive queue. Its completion reports the queue pair that
/// received the message, which may be of any process, but not the queue that the receive came from.
const NAMED: u64 = 1 << 62;

/// The bits of a receive's `wr_id` between these two marks and the index of its place.
const EPOCH: u32 = 0x3fff_ffff;

/// An outstanding request of a send queue.
#[derive(Default)]
pub(crate) struct Sent {
    pub(crate) wr_id: u64,
    pub(crate) opcode: WcOpcode,
    pub(crate) flags: SendFlags,
    pub(crate) loan: Loan,
    /// Whether the library may return the request's completion after those of later requests.
    pub(crate) is_overtaken: bool,
}

/// An entry of the ring of a send queue, for one request.
#[derive(Default)]
struct Place {
    sent: Sent,
    /// The change of a window that a posted bind makes; `None` for other requests.
    bound: Option<Bound>,
}

/// The fields of a request that are kept until its completion reports them.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Retired {
    pub(crate) wr_id: u64,
    pub(crate) opcode: WcOpcode,
    /// The buffers that the completion returns.
    pub(crate) loan: Loan,
}

/// The outstanding requests of a send queue in order of their numbers, from `retired` to `posted` (excluded).
struct Ring {
    places: Box<[UnsafeCell<Place>]>,
    posted: AtomicU64,
    retired: AtomicU64,
    /// How many of the retired requests had the flag `RESERVED`.
    retired_reserved: AtomicU32,
}

// SAFETY: a place belongs to the one poster until `posted` has passed it, and then to the one poller until `retired` has passed
// it.
unsafe impl Sync for Ring {}

impl Ring {
    #[inline(always)]
    fn place(&self, number: u64) -> *mut Place {
        let index = number as usize & (self.places.len() - 1);
        self.places[index].get()
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        for number in *self.retired.get_mut()..*self.posted.get_mut() {
            // SAFETY: the ring is being dropped, so there is no other user.
            release(unsafe { &*self.place(number) }.sent.loan);
        }
    }
}

/// The end of a send queue's ring at which requests are posted.
pub(crate) struct Posted {
    ring: Arc<Ring>,
    /// The number of the next request to be posted.
    next: u64,
    max: u32,
    /// How many entries only requests with the flag `RESERVED` may take.
    reserve: u32,
    reserved: u32,
}

/// The end of a send queue's ring at which requests retire, used by the thread that polls the completion queue.
pub(crate) struct Retiring {
    ring: Arc<Ring>,
    /// The number of the oldest outstanding request.
    oldest: u64,
    /// Whether the first request of a portable operation has failed, so that the failure of its second one is not reported.
    absorbs: bool,
    /// The buffers of retired requests whose completions are not reported; the next reported completion returns them.
    kept: Loan,
}

/// Makes the ring of a send queue for `max` requests; `reserve` of its entries are only for requests with the flag
/// `RESERVED`.
pub(crate) fn send_queue(max: u32, reserve: u32) -> (Posted, Retiring) {
    let places = (0..max.next_power_of_two()).map(|_| UnsafeCell::default());
    let ring = Arc::new(Ring {
        places: places.collect(),
        posted: AtomicU64::new(0),
        retired: AtomicU64::new(0),
        retired_reserved: AtomicU32::new(0),
    });
    let posted = Posted {
        ring: Arc::clone(&ring),
        next: 0,
        max,
        reserve,
        reserved: 0,
    };
    let retiring = Retiring {
        ring,
        oldest: 0,
        absorbs: false,
        kept: Loan::NONE,
    };
    (posted, retiring)
}

impl Posted {
    /// Takes an entry for a request. Returns the request's number, which the library gets as `wr_id`.
    ///
    /// # Errors
    /// The queue is full or, for the first request of a portable operation, has no entry for the second one.
    #[inline(always)]
    pub(crate) fn push(&mut self, sent: Sent) -> Result<u64, PostReason> {
        let needed = 1 + u32::from(sent.flags.contains(SendFlags::FIRST_HALF));
        let is_reserved = sent.flags.contains(SendFlags::RESERVED);
        let all = (self.next - self.ring.retired.load(Ordering::Acquire)) as u32;
        if all + needed > self.max {
            return Err(PostReason::QueueFull { max: self.max });
        }
        if self.reserve > 0 && !is_reserved {
            let for_ordinary = self.max - self.reserve;
            let retired = self.ring.retired_reserved.load(Ordering::Acquire);
            let reserved = self.reserved.wrapping_sub(retired);
            if all.saturating_sub(reserved) + needed > for_ordinary {
                return Err(PostReason::QueueFull { max: for_ordinary });
            }
        }
        self.reserved = self.reserved.wrapping_add(is_reserved.into());
        let number = self.next;
        // SAFETY: the place is free, and only the poster uses free places.
        let place = unsafe { &mut *self.ring.place(number) };
        // Each field is written by itself, because the processor would wait for a value that is built first and then copied.
        place.sent.wr_id = sent.wr_id;
        place.sent.opcode = sent.opcode;
        place.sent.flags = sent.flags;
        place.sent.loan = sent.loan;
        place.sent.is_overtaken = sent.is_overtaken;
        self.next += 1;
        self.ring.posted.store(self.next, Ordering::Release);
        Ok(number)
    }

    /// Notes the change of a window that the last pushed request, a bind, will make.
    pub(crate) fn set_bound(&mut self, bound: Bound) {
        // SAFETY: the library has not taken the request, so it cannot retire, and its place belongs to the poster.
        unsafe { &mut *self.ring.place(self.next - 1) }.bound = Some(bound);
    }

    /// Removes the last `count` requests, which the library has refused to post.
    pub(crate) fn take_back(&mut self, count: usize) {
        for _ in 0..count {
            self.next -= 1;
            // SAFETY: the library has not taken the request, so it cannot retire, and its place belongs to the poster.
            let Place { sent, .. } = unsafe { std::mem::take(&mut *self.ring.place(self.next)) };
            let is_reserved = sent.flags.contains(SendFlags::RESERVED);
            self.reserved = self.reserved.wrapping_sub(is_reserved.into());
        }
        self.ring.posted.store(self.next, Ordering::Release);
    }
}

impl Retiring {
    /// Whether the completion of this request has been polled before that of an earlier request which may be late. If so,
    /// later completions are also held back until the earlier one has come.
    pub(crate) fn overtakes(&mut self, number: u64) -> bool {
        number != self.oldest && self.finds_overtaken(number)
    }

    #[cold]
    fn finds_overtaken(&mut self, number: u64) -> bool {
        let place = |number| self.ring.place(number);
        // SAFETY: these requests were posted, and only the poller retires requests.
        let is_overtaken = |number| unsafe { (*place(number)).sent.is_overtaken };
        let is_posted = number < self.ring.posted.load(Ordering::Acquire);
        let overtakes = is_posted && (self.oldest..number).any(is_overtaken);
        if overtakes {
            // SAFETY: this request was posted, and only the poller retires requests.
            unsafe { (*place(number)).sent.is_overtaken = true };
        }
        overtakes
    }

    /// Retires this request and all earlier ones. Returns `None` if the request is not outstanding, is unsignaled, or is
    /// the failed second request of a portable operation whose first one has failed.
    #[inline(always)]
    pub(crate) fn retire(&mut self, number: u64, is_success: bool) -> Option<Retired> {
        let count = number.wrapping_sub(self.oldest);
        let posted = self.ring.posted.load(Ordering::Acquire);
        if count >= posted.saturating_sub(self.oldest) {
            return None;
        }
        if count > 0 {
            self.pass(count);
        }
        let (mut retired, flags) = self.pop(is_success);
        self.ring.retired.store(self.oldest, Ordering::Release);
        retired.loan = join(retired.loan, std::mem::take(&mut self.kept));
        let is_absorbed = self.absorbs && !is_success && flags.contains(SendFlags::SECOND_HALF);
        self.absorbs = !is_success && flags.contains(SendFlags::FIRST_HALF);
        let is_unsignaled = is_success && !flags.contains(SendFlags::SIGNALED);
        if is_absorbed || is_unsignaled {
            self.kept = retired.loan;
            return None;
        }
        Some(retired)
    }

    /// Retires the oldest `count` requests without reporting them.
    #[cold]
    fn pass(&mut self, count: u64) {
        for _ in 0..count {
            let (retired, _) = self.pop(true);
            self.kept = join(self.kept, retired.loan);
            self.absorbs = false;
        }
    }

    /// Retires the oldest outstanding requests as failed, because the device is gone, up to the first whose failure is
    /// reported; `None` if there is none.
    pub(crate) fn flush(&mut self) -> Option<Retired> {
        while self.oldest < self.ring.posted.load(Ordering::Acquire) {
            let told = self.retire(self.oldest, false);
            if told.is_some() {
                return told;
            }
        }
        None
    }

    /// Removes the oldest request, which must be outstanding.
    #[inline(always)]
    fn pop(&mut self, is_success: bool) -> (Retired, SendFlags) {
        // SAFETY: the request was posted, and only the poller retires requests.
        let place = unsafe { &mut *self.ring.place(self.oldest) };
        self.oldest += 1;
        if place.bound.is_some() {
            let bound = place.bound.take().filter(|_| is_success);
            bound.iter().for_each(Bound::tell);
        }
        let sent = &place.sent;
        if sent.flags.contains(SendFlags::RESERVED) {
            self.ring.retired_reserved.fetch_add(1, Ordering::Release);
        }
        let retired = Retired {
            wr_id: sent.wr_id,
            opcode: sent.opcode,
            loan: sent.loan,
        };
        (retired, sent.flags)
    }

    /// Drops all outstanding requests, because the device has dropped them too: after a reset of the queue pair, or at its
    /// end. The caller prevents posts meanwhile.
    pub(crate) fn clear(&mut self) {
        while self.oldest < self.ring.posted.load(Ordering::Acquire) {
            let (retired, _) = self.pop(false);
            release(retired.loan);
        }
        self.ring.retired.store(self.oldest, Ordering::Release);
        release(std::mem::take(&mut self.kept));
        self.absorbs = false;
    }
}

impl Drop for Retiring {
    fn drop(&mut self) {
        release(std::mem::take(&mut self.kept));
    }
}

/// The outstanding requests of a receive queue, which may complete in any order.
pub(crate) struct Receives {
    pub(crate) is_open: bool,
    places: Vec<Option<Received>>,
    free: Vec<u32>,
    /// How often the queue was reset, so that a `wr_id` from before a reset is recognised as invalid. An XRC shared receive
    /// queue is never reset; for it this is its number in this process.
    epoch: u32,
    named: u64,
}

/// An outstanding request of a receive queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Received {
    pub(crate) wr_id: u64,
    pub(crate) loan: Loan,
}

impl Receives {
    pub(crate) fn new(max: u32) -> Self {
        let mut receives = Self {
            is_open: true,
            places: Vec::new(),
            free: Vec::new(),
            epoch: 0,
            named: 0,
        };
        receives.grow(max);
        receives
    }

    /// Creates it for an XRC shared receive queue, and returns the number of that queue in this process too.
    pub(crate) fn of_named_queue(max: u32) -> (Self, u32) {
        static QUEUES: AtomicU32 = AtomicU32::new(0);
        let queue = QUEUES.fetch_add(1, Ordering::Relaxed) & EPOCH;
        let mut receives = Self::new(max);
        (receives.epoch, receives.named) = (queue, NAMED);
        (receives, queue)
    }

    fn grow(&mut self, max: u32) {
        let before = self.places.len() as u32;
        self.places.resize(max as usize, None);
        self.free.extend((before..max).rev());
    }

    /// Takes a place for a receive. Returns the `wr_id` for the library. Only the library knows whether the queue has room:
    /// a receive leaves the queue when a message has arrived, but keeps its place here until its completion is polled.
    pub(crate) fn push(&mut self, received: Received) -> u64 {
        let place = self.free.pop().unwrap_or_else(|| {
            let before = self.places.len() as u32;
            self.grow(2 * before.max(1));
            self.free.pop().unwrap_or(before)
        });
        self.places[place as usize] = Some(received);
        RECEIVE | self.named | u64::from(self.epoch & EPOCH) << 32 | u64::from(place)
    }

    /// Removes and returns the receive with this `wr_id`, which has completed or was refused.
    pub(crate) fn retire(&mut self, number: u64) -> Option<Received> {
        let (epoch, place) = ((number >> 32) as u32 & EPOCH, number as u32);
        if epoch != self.epoch & EPOCH {
            return None;
        }
        let received = self.places.get_mut(place as usize)?.take()?;
        self.free.push(place);
        Some(received)
    }

    /// Removes and returns any outstanding receive, because the device is gone; `None` if there is none.
    pub(crate) fn flush(&mut self) -> Option<Received> {
        let place = self.places.iter().position(Option::is_some)?;
        self.free.push(place as u32);
        self.places[place].take()
    }

    /// Drops all outstanding receives, because the device has dropped them too: after a reset of the queue, or at its end.
    pub(crate) fn clear(&mut self) {
        self.epoch = self.epoch.wrapping_add(1);
        for (place, slot) in self.places.iter_mut().enumerate() {
            if let Some(received) = slot.take() {
                self.free.push(place as u32);
                release(received.loan);
            }
        }
    }
}

impl Drop for Receives {
    fn drop(&mut self) {
        self.clear();
    }
}

/// Joins the buffers of two retired requests of one queue that were not returned to the program yet.
#[inline(always)]
fn join(first: Loan, second: Loan) -> Loan {
    match second.is_none() {
        true => first,
        // SAFETY: only the poller that retires a request has its loan.
        false => unsafe { first.join(second) },
    }
}

/// Whether a `wr_id` of the library is that of a receive.
pub(crate) const fn is_receive(number: u64) -> bool {
    number & RECEIVE != 0
}

/// Returns the number in this process of the XRC shared receive queue that a receive's `wr_id` belongs to; `None` for other
/// queues.
pub(crate) fn named_queue(number: u64) -> Option<u32> {
    (number & NAMED != 0 && is_receive(number)).then_some((number >> 32) as u32 & EPOCH)
}

/// Attaches the buffers of a retired request to its completion.
pub(crate) fn set_loan(completion: &mut Completion, loan: Loan) {
    // SAFETY: only the poller that retires a request has its loan.
    unsafe { completion.set_loan(loan) };
}

fn release(loan: Loan) {
    // SAFETY: the device has forgotten the request, and it was not reported.
    unsafe { loan.release() };
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(wr_id: u64, flags: SendFlags) -> Sent {
        Sent {
            wr_id,
            opcode: WcOpcode::Send,
            flags: flags | SendFlags::SIGNALED,
            ..Sent::default()
        }
    }

    const PLAIN: SendFlags = SendFlags::empty();

    #[test]
    fn a_completion_retires_all_earlier_requests() {
        let (mut sends, mut retiring) = send_queue(3, 0);
        for wr_id in 0..3 {
            assert_eq!(sends.push(sent(wr_id, PLAIN)), Ok(wr_id));
        }
        let full = Err(PostReason::QueueFull { max: 3 });
        assert_eq!(sends.push(sent(3, PLAIN)), full);
        let told = retiring.retire(1, true).map(|retired| retired.wr_id);
        assert_eq!(told, Some(1));
        assert_eq!(
            retiring.retire(0, true),
            None,
            "the request was retired before"
        );
        assert_eq!(retiring.retire(3, true), None, "the request was not posted");
        assert_eq!(sends.push(sent(3, PLAIN)), Ok(3));
        assert_eq!(sends.push(sent(4, PLAIN)), Ok(4));
    }

    #[test]
    fn a_refused_request_frees_its_place_and_number() {
        let (mut sends, _retiring) = send_queue(1, 0);
        assert_eq!(sends.push(sent(0, PLAIN)), Ok(0));
        sends.take_back(1);
        assert_eq!(sends.push(sent(1, PLAIN)), Ok(0));
    }

    #[test]
    fn early_completions_wait_for_earlier_requests() {
        let (mut sends, mut retiring) = send_queue(4, 0);
        let read = |wr_id, flags| Sent {
            flags,
            is_overtaken: true,
            ..sent(wr_id, PLAIN)
        };
        sends.push(read(0, SendFlags::SIGNALED)).unwrap();
        sends.push(read(1, PLAIN)).unwrap();
        sends.push(sent(2, PLAIN)).unwrap();
        sends.push(sent(3, PLAIN)).unwrap();
        let retire = |retiring: &mut Retiring, number| {
            let retired = retiring.retire(number, true);
            retired.map(|retired| retired.wr_id)
        };
        assert_eq!(retire(&mut retiring, 0), Some(0));
        assert!(retiring.overtakes(2) && retiring.overtakes(3));
        let of_read = retire(&mut retiring, 1);
        assert_eq!(of_read, None, "the read is unsignaled");
        assert!(retiring.overtakes(3), "the third request has not retired");
        for number in [2, 3] {
            assert!(!retiring.overtakes(number));
            assert_eq!(retire(&mut retiring, number), Some(number));
        }
    }

    #[test]
    fn only_portable_operations_use_reserved_places() {
        let (mut sends, _retiring) = send_queue(4, 2);
        assert_eq!(sends.push(sent(0, SendFlags::RESERVED)), Ok(0));
        assert_eq!(sends.push(sent(1, PLAIN)), Ok(1));
        assert_eq!(sends.push(sent(2, PLAIN)), Ok(2));
        let full = |max| Err(PostReason::QueueFull { max });
        assert_eq!(sends.push(sent(3, PLAIN)), full(2));
        // A first half takes a place only if there is one for the second half too.
        let first = SendFlags::RESERVED | SendFlags::FIRST_HALF;
        assert_eq!(sends.push(sent(3, first)), full(4));
        assert_eq!(sends.push(sent(3, SendFlags::RESERVED)), Ok(3));
    }

    #[test]
    fn a_failed_first_half_hides_the_second() {
        let halves = [SendFlags::FIRST_HALF, SendFlags::SECOND_HALF];
        for (first_fails, told) in [(false, [None, Some(7)]), (true, [Some(7), None])] {
            let (mut sends, mut retiring) = send_queue(2, 0);
            for half in halves {
                sends.push(sent(7, half)).unwrap();
            }
            let mut found = [None, None];
            // A first half that succeeds has no completion.
            if first_fails {
                found[0] = retiring.retire(0, false).map(|retired| retired.wr_id);
            }
            let second = retiring.retire(1, !first_fails);
            found[1] = second.map(|retired| retired.wr_id);
            assert_eq!(found, told);
        }
    }

    #[test]
    fn the_number_of_a_receive_identifies_its_named_queue() {
        let received = Received {
            wr_id: 1,
            loan: Loan::NONE,
        };
        let (mut first, queue) = Receives::of_named_queue(1);
        let (mut second, other) = Receives::of_named_queue(1);
        let number = first.push(received);
        assert_eq!(named_queue(number), Some(queue));
        assert_eq!(named_queue(second.push(received)), Some(other));
        assert_ne!(queue, other);
        assert_eq!(first.retire(number), Some(received));
        assert_eq!(named_queue(Receives::new(1).push(received)), None);
        assert_eq!(named_queue(!RECEIVE), None, "the number belongs to a send");
    }

    #[test]
    fn receives_complete_in_any_order_but_not_after_a_reset() {
        let mut receives = Receives::new(2);
        let received = |wr_id| Received {
            wr_id,
            loan: Loan::NONE,
        };
        let first = receives.push(received(1));
        let second = receives.push(received(2));
        assert!(is_receive(first) && first != second);
        assert_eq!(receives.retire(second), Some(received(2)));
        assert_eq!(
            receives.retire(second),
            None,
            "the receive was retired before"
        );
        receives.clear();
        receives.push(received(4));
        receives.push(received(5));
        assert_eq!(
            receives.retire(first),
            None,
            "the receive is from before the reset"
        );
        // The library takes one receive more than there were places.
        let third = receives.push(received(6));
        assert_eq!(receives.retire(third), Some(received(6)));
    }
}
