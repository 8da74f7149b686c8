//! Buffers that are lent to the device, under a small number that travels with the request.
// Ending a loan is unsafe: giving buffers back while the device still has them would make two owners.
#![allow(unsafe_code)]

use super::Buffers;
use crate::fork::ForkLock;

/// Names the buffers of one or more posted requests; 0 names none.
///
/// A provider keeps the loan of a request until it retires. It puts the loan into the request's
/// [completion](crate::Completion::set_loan); where the request completes without one (an unsignaled success) it
/// [joins](Loan::join) it to the next completion of that queue. A queue that is reset or destroyed
/// [releases](Loan::release) what it still holds. The number by itself does nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[must_use]
pub struct Loan(u32);

#[derive(Default)]
struct Ledger {
    entries: Vec<Entry>,
    free: Vec<u32>,
}

#[derive(Default)]
struct Entry {
    lent: bool,
    buffers: Buffers,
    next: u32,
}

// Requests with buffers are as many as the program posts; the ledger is shared by all queues because a completion
// names no queue object, and held only for a push or a take. A child of a fork needs it as it is: requests that it has inherited
// name their buffers by these numbers.
static LEDGER: ForkLock<Ledger> = ForkLock::new(Ledger {
    entries: Vec::new(),
    free: Vec::new(),
});

impl Loan {
    /// No buffers.
    pub const NONE: Self = Self(0);

    /// Whether no buffers are named.
    pub const fn is_none(self) -> bool {
        self.0 == 0
    }

    /// The number, for a provider's queue entry.
    pub const fn to_bits(self) -> u32 {
        self.0
    }

    /// The loan of which `bits` is the number.
    pub const fn from_bits(bits: u32) -> Self {
        Self(bits)
    }

    /// One loan that names the buffers of both, those of `self` first.
    ///
    /// # Safety
    /// Both come from retired requests of one queue whose buffers have not been given back or joined yet.
    pub unsafe fn join(self, later: Self) -> Self {
        if self.is_none() || later.is_none() {
            return if self.is_none() { later } else { self };
        }
        let mut ledger = LEDGER.lock();
        let mut last = self.0;
        while ledger.entries[last as usize - 1].next != 0 {
            last = ledger.entries[last as usize - 1].next;
        }
        ledger.entries[last as usize - 1].next = later.0;
        self
    }

    /// Gives the buffers back to their pools.
    ///
    /// # Safety
    /// The device no longer accesses them, and they have not been given back or joined yet.
    pub unsafe fn release(self) {
        drop(take_back(self));
    }
}

pub(crate) fn lend(buffers: Buffers) -> Loan {
    let mut ledger = LEDGER.lock();
    let index = ledger.free.pop().unwrap_or_else(|| {
        ledger.entries.push(Entry::default());
        ledger.entries.len() as u32
    });
    ledger.entries[index as usize - 1] = Entry {
        lent: true,
        buffers,
        next: 0,
    };
    Loan(index)
}

pub(crate) fn take_back(loan: Loan) -> Buffers {
    let mut all = Buffers::default();
    take_back_into(loan, &mut all);
    all
}

/// The same into an existing collection, which reuses its allocation.
pub(crate) fn take_back_into(loan: Loan, all: &mut Buffers) {
    if loan.is_none() {
        return;
    }
    let mut ledger = LEDGER.lock();
    let mut index = loan.0;
    while index != 0 {
        let Some(entry) = ledger
            .entries
            .get_mut(index as usize - 1)
            .filter(|entry| entry.lent)
        else {
            break;
        };
        let mut entry = std::mem::take(entry);
        ledger.free.push(index);
        index = entry.next;
        entry.buffers.take().for_each(|buffer| all.push(buffer));
    }
}
