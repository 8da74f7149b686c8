//! Handles are equal where they are of one object.

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use super::Handle;
use crate::ah::Ah;
use crate::channel::CompletionChannel;
use crate::context::{Context, ContextInner};
use crate::cq::Cq;
use crate::mr::{Mr, MrKey};
use crate::mw::Mw;
use crate::pd::Pd;
use crate::qp::Qp;
use crate::srq::Srq;

macro_rules! by_identity {
    ($($handle:ty: $object:path;)*) => {$(
        /// Equal where both are of one object.
        impl PartialEq for $handle {
            fn eq(&self, other: &Self) -> bool {
                Arc::ptr_eq($object(self), $object(other))
            }
        }

        impl Eq for $handle {}

        impl Hash for $handle {
            fn hash<S: Hasher>(&self, state: &mut S) {
                Arc::as_ptr($object(self)).hash(state);
            }
        }
    )*};
}

by_identity! {
    Ah: Handle::object;
    CompletionChannel: Handle::object;
    Context: inner;
    Cq: Handle::object;
    Mr: Handle::object;
    MrKey: Handle::object;
    Mw: Handle::object;
    Pd: Handle::object;
    Qp: Handle::object;
    Srq: Handle::object;
}

const fn inner(context: &Context) -> &Arc<ContextInner> {
    &context.inner
}
