//! What the engine does with the loans of buffers: each is handed back once, when its request has retired.
//!
//! A loan enters with a request, is kept in one queue entry or one completion at a time, and leaves through one of these
//! functions. Nothing else in the engine acts on one.
// Handing buffers back is what the contract trusts a provider with.
#![allow(unsafe_code)]

use verbs_api::Completion;
use verbs_api::memory::Loan;

/// The loans of two requests of one queue that have retired, the earlier first.
#[inline]
pub(crate) fn join(earlier: Loan, later: Loan) -> Loan {
    if earlier.is_none() {
        return later;
    }
    // SAFETY: both were taken out of the entries of requests that have retired.
    unsafe { earlier.join(later) }
}

/// Gives back the buffers of a request that will never complete.
pub(crate) fn release(loan: Loan) {
    // SAFETY: taken out of the only entry or completion that held it.
    unsafe { loan.release() }
}

/// Hands buffers back with a completion.
#[inline]
pub(crate) fn hand_back(completion: &mut Completion, loan: Loan) {
    // SAFETY: taken out of the ring with the completion that carried it.
    unsafe { completion.set_loan(loan) }
}
