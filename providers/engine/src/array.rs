//! Arrays whose memory may not be had: an error, where the standard library ends the process.

use std::iter;

/// So many default elements.
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
    fn memory_that_cannot_be_had_is_no_array() {
        assert_eq!(filled::<u64>(usize::MAX / 16), None);
        assert_eq!(filled::<u64>(3).as_deref(), Some(&[0; 3][..]));
    }
}
