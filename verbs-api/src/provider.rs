//! The contract of a provider: what a crate implements to make its devices available.
//!
//! A program never sees these traits. The safe objects check the caller's arguments once, track which object uses
//! which, and call the provider; a provider checks everything that a peer controls.
//!
//! Rules that every method obeys:
//!
//! * A control verb takes a [`Reply`] and answers it exactly once, from any thread, with no lock held. It never blocks its
//!   caller: a verb that takes time is answered later.
//! * A verb that a provider does not implement answers [`VerbError::UnsupportedVerb`], as the default methods do.
//! * Posting, polling and arming are direct calls that allocate nothing.
//! * Posts, polls, arms and queries may be under way on other threads while an object is destroyed: the safe objects do not
//!   wait for them. A provider keeps the state that they use until they have returned.
//! * After a destroy has been answered with success, neither a new completion nor an event comes from that object. Completions
//!   from before may or may not still be polled.
//!
//! # Removal
//!
//! A provider whose device is gone does this, in order:
//!
//! 1. No verb starts any more: those that begin afterwards answer [`VerbError::DeviceRemoved`], and so do the outstanding
//!    ones. A destroy that answers so has destroyed the object all the same; a deregistration still waits for accesses in
//!    progress.
//! 2. Queue pairs are closed ([`QpOps::admit`]) and go to ERR. The *provider* flushes: every request that was posted
//!    completes once with [`WR_FLUSH_ERR`](crate::WcStatus::WrFlushErr), also where the hardware answers nothing any more; what
//!    had completed before keeps its status. Completion queues can be polled until they are empty.
//! 3. [`EventType::DeviceRemoved`] is reported once, about [`EventSubject::Device`], and no event after it. The safe layer marks
//!    the objects and reports it to the program.
//!
//! [`VerbError::UnsupportedVerb`]: crate::VerbError::UnsupportedVerb
//! [`VerbError::DeviceRemoved`]: crate::VerbError::DeviceRemoved
//! [`EventType::DeviceRemoved`]: crate::event::EventType::DeviceRemoved
//! [`EventSubject::Device`]: crate::event::EventSubject::Device

#[doc(inline)]
pub use crate::__link_provider as link_provider;
pub use crate::ah::AhOps;
pub use crate::as_any::{AsAny, own, own_in_layers};
pub use crate::contract::{
    AgentOps, AgentSink, CompletionSink, ContextOps, CqInit, CqOps, DeviceOps, EventSink, MrChange,
    MrInit, MrOps, MwOps, PdOps, PostOps, QpInit, QpOps, SrqInit, SrqOps, backend, carrier,
    modify_in_turn, only_started_threads_are_left, start_thread, wait_for_threads,
};
pub use crate::control::{
    Completer, Help, Reply, handler_scope, in_handler, run_handler, want_help,
};
pub use crate::counts::{AttachedCounts, Counts};
pub use crate::error::{RegistryError, errno_of};
pub use crate::fork::{ForkLock, MadeOnce, PerProcess, forks};
pub use crate::lifecycle::Outcome;
pub use crate::lock::{Condvar, Mutex, RwLock};
pub use crate::mem::{MwType, RegionMemory};
pub use crate::post::QpRules;
pub use crate::random::random;
pub use crate::registry::{Absent, DeviceList, LinkedProvider, Provider};
pub use crate::spin::{SpinGuard, SpinLock};
pub use crate::version::CONTRACT_VERSION;
pub use crate::wr::data::{Lent, Sges};
pub use crate::wr::requests::{Common, Operation};

/// Registers a `static` provider in every program that links the provider's crate and names it.
#[doc(hidden)]
#[macro_export]
macro_rules! __link_provider {
    ($provider:path) => {
        $crate::inventory::submit! { $crate::provider::LinkedProvider(&$provider) }
    };
}
