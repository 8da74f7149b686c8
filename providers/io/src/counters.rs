//! Counters of what a link did.

use std::sync::atomic::{AtomicU64, Ordering};

/// Defines a public struct of counts, and the private `Counters` that a link increments.
macro_rules! counts {
    ($(#[$about:meta])* $counts:ident, $($(#[$doc:meta])* $name:ident,)*) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct $counts {
            $($(#[$doc])* pub $name: u64,)*
        }

        #[derive(Debug, Default)]
        struct Counters {
            $($name: AtomicU64,)*
        }

        impl Counters {
            fn add_to(&self, counts: &mut $counts) {
                $(counts.$name += self.$name.load(Ordering::Relaxed);)*
            }
        }
    };
}

/// Increments a counter that other threads may increment at the same time.
#[inline]
pub(crate) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// Adds to a counter that no other thread changes at the same time.
#[inline]
pub(crate) fn count_alone(counter: &AtomicU64, by: u64) {
    counter.store(counter.load(Ordering::Relaxed) + by, Ordering::Relaxed);
}
