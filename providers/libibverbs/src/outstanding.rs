//! Requests that are with the device, found again when they complete.
//!
//! The library hands back a number for each. On a send queue it counts requests, because a completion is also that of the
//! unsignaled ones before it: a ring, at whose one end is whoever posts, and at the other whoever polls the completion queue.
//! Neither waits for the other. A receive always has a completion of its own, and its number is a place.
#![allow(unsafe_code)]

use std::cell::UnsafeCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use verbs_api::completion::{Completion, WcOpcode};
use verbs_api::memory::Loan;
use verbs_api::wr::{PostReason, SendFlags};

use crate::window::Bound;

/// In the numbers of receives, so that a failure tells which queue it is of.
const RECEIVE: u64 = 1 << 63;

/// In the numbers of receives of queues that requests name. A completion says which queue pair brought the message, which any
/// process may have, and not which queue it came to.
const NAMED: u64 = 1 << 62;

/// What stands between these two and the place.
const EPOCH: u32 = 0x3fff_ffff;

/// A request of a send queue.
#[derive(Default)]
pub(crate) struct Sent {
    pub(crate) wr_id: u64,
    pub(crate) opcode: WcOpcode,
    pub(crate) flags: SendFlags,
    pub(crate) loan: Loan,
    /// It has a completion of its own, which the library may hand out behind those of later requests.
    pub(crate) is_overtaken: bool,
}

/// A place for a request of a send queue.
#[derive(Default)]
struct Place {
    sent: Sent,
    /// Of a posted bind.
    bound: Option<Bound>,
}

/// What is told of a request that has completed.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Retired {
    pub(crate) wr_id: u64,
    pub(crate) opcode: WcOpcode,
    /// The buffers that come back.
    pub(crate) loan: Loan,
}

/// The requests of a send queue, in order: those from `retired` on up to `posted`, a place each.
struct Ring {
    places: Box<[UnsafeCell<Place>]>,
    posted: AtomicU64,
    retired: AtomicU64,
    /// How many of those retired had `RESERVED`.
    retired_reserved: AtomicU32,
}

// SAFETY: a place belongs to the one poster until `posted` is behind it, and then to the one retirer until `retired` is.
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
            // SAFETY: nobody else has the ring any more.
            release(unsafe { &*self.place(number) }.sent.loan);
        }
    }
}

/// The end of a send queue at which requests are posted.
pub(crate) struct Posted {
    ring: Arc<Ring>,
    /// The number of the next.
    next: u64,
    max: u32,
    /// How many places only requests with `RESERVED` may take.
    reserve: u32,
    reserved: u32,
}

/// The end of a send queue at which requests retire.
pub(crate) struct Retiring {
    ring: Arc<Ring>,
    /// The number of the oldest.
    oldest: u64,
    /// The first half of a portable operation has failed: its second one is not told of.
    absorbs: bool,
    /// Of requests that were not told of.
    kept: Loan,
}

/// A send queue of `max` requests, `reserve` of them for those with `RESERVED` only.
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
    /// Takes a place; answers the number that the library is given.
    ///
    /// # Errors
    /// There is none, or, for a first half, none for the second one.
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
        // SAFETY: it was found to be free, and this is the one who posts.
        let place = unsafe { &mut *self.ring.place(number) };
        // One by one: what is put together first and then copied is waited for.
        place.sent.wr_id = sent.wr_id;
        place.sent.opcode = sent.opcode;
        place.sent.flags = sent.flags;
        place.sent.loan = sent.loan;
        place.sent.is_overtaken = sent.is_overtaken;
        self.next += 1;
        self.ring.posted.store(self.next, Ordering::Release);
        Ok(number)
    }

    /// The last is a bind: what becomes of its window.
    pub(crate) fn set_bound(&mut self, bound: Bound) {
        // SAFETY: nothing that the library has not taken retires, so it is still the poster's.
        unsafe { &mut *self.ring.place(self.next - 1) }.bound = Some(bound);
    }

    /// Takes back the last `count`: the library has refused them.
    pub(crate) fn take_back(&mut self, count: usize) {
        for _ in 0..count {
            self.next -= 1;
            // SAFETY: nothing that the library has not taken retires, so it is still the poster's.
            let Place { sent, .. } = unsafe { std::mem::take(&mut *self.ring.place(self.next)) };
            let is_reserved = sent.flags.contains(SendFlags::RESERVED);
            self.reserved = self.reserved.wrapping_sub(is_reserved.into());
        }
        self.ring.posted.store(self.next, Ordering::Release);
    }
}

impl Retiring {
    /// Whether the request of this number has completed before one that was posted before it. What follows overtakes it then.
    pub(crate) fn overtakes(&mut self, number: u64) -> bool {
        number != self.oldest && self.finds_overtaken(number)
    }

    #[cold]
    fn finds_overtaken(&mut self, number: u64) -> bool {
        let place = |number| self.ring.place(number);
        // SAFETY: they were posted, and this is the one who retires.
        let is_overtaken = |number| unsafe { (*place(number)).sent.is_overtaken };
        let is_posted = number < self.ring.posted.load(Ordering::Acquire);
        let overtakes = is_posted && (self.oldest..number).any(is_overtaken);
        if overtakes {
            // SAFETY: as above.
            unsafe { (*place(number)).sent.is_overtaken = true };
        }
        overtakes
    }

    /// The request of this number has completed, and all before it. Nothing is told where it is not outstanding, was not to be
    /// told of, or is a second half behind a first that failed.
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

    /// The oldest have completed, and nobody is told.
    #[cold]
    fn pass(&mut self, count: u64) {
        for _ in 0..count {
            let (retired, _) = self.pop(true);
            self.kept = join(self.kept, retired.loan);
            self.absorbs = false;
        }
    }

    /// The oldest request that is posted and has not retired has ended with an error of the device's end.
    pub(crate) fn flush(&mut self) -> Option<Retired> {
        while self.oldest < self.ring.posted.load(Ordering::Acquire) {
            let told = self.retire(self.oldest, false);
            if told.is_some() {
                return told;
            }
        }
        None
    }

    /// The oldest, which is posted and has not retired.
    #[inline(always)]
    fn pop(&mut self, is_success: bool) -> (Retired, SendFlags) {
        // SAFETY: it was posted, and this is the one who retires.
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

    /// The device has forgotten every request: it was reset, or is no more. Nobody posts meanwhile.
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

/// The requests of a receive queue, in any order.
pub(crate) struct Receives {
    pub(crate) is_open: bool,
    places: Vec<Option<Received>>,
    free: Vec<u32>,
    /// How often the queue was reset: a number from before names nothing. A queue that requests name is never reset, and this
    /// says which it is.
    epoch: u32,
    named: u64,
}

/// A request of a receive queue.
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

    /// Those of a queue that requests name, and its number in this process.
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

    /// Takes a place; answers the number that the library is given. Whether there is room in the queue the library knows: a
    /// request leaves it when a message has come, and its place only when that was polled.
    pub(crate) fn push(&mut self, received: Received) -> u64 {
        let place = self.free.pop().unwrap_or_else(|| {
            let before = self.places.len() as u32;
            self.grow(2 * before.max(1));
            self.free.pop().unwrap_or(before)
        });
        self.places[place as usize] = Some(received);
        RECEIVE | self.named | u64::from(self.epoch & EPOCH) << 32 | u64::from(place)
    }

    /// The request of this number has completed, or was refused.
    pub(crate) fn retire(&mut self, number: u64) -> Option<Received> {
        let (epoch, place) = ((number >> 32) as u32 & EPOCH, number as u32);
        if epoch != self.epoch & EPOCH {
            return None;
        }
        let received = self.places.get_mut(place as usize)?.take()?;
        self.free.push(place);
        Some(received)
    }

    /// A request that is posted has ended with an error of the device's end.
    pub(crate) fn flush(&mut self) -> Option<Received> {
        let place = self.places.iter().position(Option::is_some)?;
        self.free.push(place as u32);
        self.places[place].take()
    }

    /// The device has forgotten every request: it was reset, or is no more.
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

/// The buffers of two requests of one queue that have retired, and that nobody has given back.
#[inline(always)]
fn join(first: Loan, second: Loan) -> Loan {
    match second.is_none() {
        true => first,
        // SAFETY: whoever retires a request has its loan alone.
        false => unsafe { first.join(second) },
    }
}

/// Whether a number is one of a receive.
pub(crate) const fn is_receive(number: u64) -> bool {
    number & RECEIVE != 0
}

/// Which queue that requests name the number of a receive is of.
pub(crate) fn named_queue(number: u64) -> Option<u32> {
    (number & NAMED != 0 && is_receive(number)).then_some((number >> 32) as u32 & EPOCH)
}

/// Has the buffers of a request that has retired come back with its completion.
pub(crate) fn set_loan(completion: &mut Completion, loan: Loan) {
    // SAFETY: whoever retires a request has its loan alone.
    unsafe { completion.set_loan(loan) };
}

fn release(loan: Loan) {
    // SAFETY: of a request that the device has forgotten, and that nobody was told of.
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
    fn a_completion_retires_all_before_it() {
        let (mut sends, mut retiring) = send_queue(3, 0);
        for wr_id in 0..3 {
            assert_eq!(sends.push(sent(wr_id, PLAIN)), Ok(wr_id));
        }
        let full = Err(PostReason::QueueFull { max: 3 });
        assert_eq!(sends.push(sent(3, PLAIN)), full);
        let told = retiring.retire(1, true).map(|retired| retired.wr_id);
        assert_eq!(told, Some(1));
        assert_eq!(retiring.retire(0, true), None, "it was retired before");
        assert_eq!(retiring.retire(3, true), None, "nobody has posted it");
        assert_eq!(sends.push(sent(3, PLAIN)), Ok(3));
        assert_eq!(sends.push(sent(4, PLAIN)), Ok(4));
    }

    #[test]
    fn what_the_library_refused_leaves_its_place_and_number() {
        let (mut sends, _retiring) = send_queue(1, 0);
        assert_eq!(sends.push(sent(0, PLAIN)), Ok(0));
        sends.take_back(1);
        assert_eq!(sends.push(sent(1, PLAIN)), Ok(0));
    }

    #[test]
    fn what_completes_before_an_earlier_request_waits_for_it_in_turn() {
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
        assert_eq!(of_read, None, "the program has not asked for it");
        assert!(retiring.overtakes(3), "the third is in front of it");
        for number in [2, 3] {
            assert!(!retiring.overtakes(number));
            assert_eq!(retire(&mut retiring, number), Some(number));
        }
    }

    #[test]
    fn reserved_places_are_for_portable_operations_only() {
        let (mut sends, _retiring) = send_queue(4, 2);
        assert_eq!(sends.push(sent(0, SendFlags::RESERVED)), Ok(0));
        assert_eq!(sends.push(sent(1, PLAIN)), Ok(1));
        assert_eq!(sends.push(sent(2, PLAIN)), Ok(2));
        let full = |max| Err(PostReason::QueueFull { max });
        assert_eq!(sends.push(sent(3, PLAIN)), full(2));
        // A first half takes a place only where there is one for the second half.
        let first = SendFlags::RESERVED | SendFlags::FIRST_HALF;
        assert_eq!(sends.push(sent(3, first)), full(4));
        assert_eq!(sends.push(sent(3, SendFlags::RESERVED)), Ok(3));
    }

    #[test]
    fn a_second_half_is_told_of_unless_the_first_failed() {
        let halves = [SendFlags::FIRST_HALF, SendFlags::SECOND_HALF];
        for (first_fails, told) in [(false, [None, Some(7)]), (true, [Some(7), None])] {
            let (mut sends, mut retiring) = send_queue(2, 0);
            for half in halves {
                sends.push(sent(7, half)).unwrap();
            }
            let mut found = [None, None];
            // A first half that succeeds is not signaled.
            if first_fails {
                found[0] = retiring.retire(0, false).map(|retired| retired.wr_id);
            }
            let second = retiring.retire(1, !first_fails);
            found[1] = second.map(|retired| retired.wr_id);
            assert_eq!(found, told);
        }
    }

    #[test]
    fn the_number_of_a_receive_says_which_named_queue_it_is_of() {
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
        assert_eq!(named_queue(!RECEIVE), None, "that of a send");
    }

    #[test]
    fn receives_complete_in_any_order_and_none_from_before_a_reset() {
        let mut receives = Receives::new(2);
        let received = |wr_id| Received {
            wr_id,
            loan: Loan::NONE,
        };
        let first = receives.push(received(1));
        let second = receives.push(received(2));
        assert!(is_receive(first) && first != second);
        assert_eq!(receives.retire(second), Some(received(2)));
        assert_eq!(receives.retire(second), None, "it was retired before");
        receives.clear();
        receives.push(received(4));
        receives.push(received(5));
        assert_eq!(receives.retire(first), None, "it is of before the reset");
        // The library has taken one more than there were places for.
        let third = receives.push(received(6));
        assert_eq!(receives.retire(third), Some(received(6)));
    }
}
