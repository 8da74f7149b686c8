//! Arrays whose allocation may fail with an error, where the standard library ends the process.

use std::iter;

/// Creates an array of `len` default elements; `None` if the memory cannot be allocated.
pub(crate) fn filled<T: Default>(len: usize) -> Option<Box<[T]>> {
    let mut elements = Vec::new();
    elements.try_reserve_exact(len).ok()?;
    elements.extend(iter::repeat_with(T::default).take(len));
    Some(elements.into_boxed_slice())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_array_that_cannot_be_allocated_is_none() {
        assert_eq!(filled::<u64>(usize::MAX / 16), None);
        assert_eq!(filled::<u64>(3).as_deref(), Some(&[0; 3][..]));
    }
}
