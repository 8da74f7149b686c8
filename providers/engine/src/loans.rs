//! The engine's use of lent buffers, which a program passes with a request. Each is returned once, when its request has
//! retired.
//!
//! A loan names the buffers of a request. It enters with the request, is stored in one queue entry or one completion at a
//! time, and leaves through one of these functions. No other code of the engine uses a loan.
// The contract trusts a provider to return buffers correctly.
#![allow(unsafe_code)]

use verbs_api::Completion;
use verbs_api::memory::Loan;

/// Joins the lent buffers of two requests of one queue that have both retired, those of the earlier request first.
#[inline]
pub(crate) fn join(earlier: Loan, later: Loan) -> Loan {
    if earlier.is_none() {
        return later;
    }
    // SAFETY: both loans were taken out of the entries of requests that have retired.
    unsafe { earlier.join(later) }
}

/// Returns the lent buffers of a request that will have no completion to their pool.
pub(crate) fn release(loan: Loan) {
    // SAFETY: the loan was taken out of the only entry or completion that held it.
    unsafe { loan.release() }
}

/// Gives lent buffers to the program with the completion that carried them.
#[inline]
pub(crate) fn hand_back(completion: &mut Completion, loan: Loan) {
    // SAFETY: the loan was taken out of the ring with the completion that carried it.
    unsafe { completion.set_loan(loan) }
}
