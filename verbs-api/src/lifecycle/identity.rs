//! Equality of handles: two are equal if they refer to the same object.

/// Implements `PartialEq`, `Eq` and `Hash` for a handle type by the identity of its object, `$object(&handle)`.
macro_rules! by_identity {
    ($handle:ty: $object:path) => {
        /// Equal if both refer to the same object.
        impl PartialEq for $handle {
            fn eq(&self, other: &Self) -> bool {
                std::sync::Arc::ptr_eq($object(self), $object(other))
            }
        }

        impl Eq for $handle {}

        impl std::hash::Hash for $handle {
            fn hash<S: std::hash::Hasher>(&self, state: &mut S) {
                std::sync::Arc::as_ptr($object(self)).hash(state);
            }
        }
    };
}
pub(crate) use by_identity;
