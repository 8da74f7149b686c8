//! Handles are equal where they are of one object.

/// What `PartialEq`, `Eq` and `Hash` are for a handle whose object is `$object(&handle)`.
macro_rules! by_identity {
    ($handle:ty: $object:path) => {
        /// Equal where both are of one object.
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
