//! Private buffers that belong to the device while they are posted, under a small number that is part of the request.
// Ending a loan is unsafe: giving buffers back while the device still has them would make two owners.
#![allow(unsafe_code)]

use super::Buffers;
use crate::fork::ForkLock;

/// A number for the private buffers that one or more posted requests have passed to the device; 0 stands for none.
///
/// A provider keeps the loan of a request until the request retires, and then puts it into the request's
/// [completion](crate::Completion::set_loan). If there is none (an unsignaled success), it [joins](Loan::join) the loan to
/// the next completion of that queue. When a queue is reset or destroyed, the provider [releases](Loan::release) the loans
/// of its requests. Dropping the number has no effect.
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
    /// The loan that stands for no buffers.
    pub const NONE: Self = Self(0);

    /// Whether the loan stands for no buffers.
    pub const fn is_none(self) -> bool {
        self.0 == 0
    }

    /// Returns the number, for a provider's queue entry.
    pub const fn to_bits(self) -> u32 {
        self.0
    }

    /// Converts a loan's number back to the loan.
    pub const fn from_bits(bits: u32) -> Self {
        Self(bits)
    }

    /// Returns one loan for the buffers of both, those of `self` first.
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

    /// Returns the buffers of the loan to their pools.
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

/// Moves the buffers of a loan into an existing collection, whose allocation is reused.
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
