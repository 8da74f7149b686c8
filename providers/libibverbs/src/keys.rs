//! The local keys that programs have seen.

use std::collections::HashSet;

use verbs_api::VerbError;

/// A private region must not get one of them, because a program may still have entries with it; the library chooses keys,
/// and does not say when it uses one again.
#[derive(Default)]
pub(crate) struct KeyHistory(HashSet<u32>);

/// How often a region is registered in search of a key that nobody has seen.
const ATTEMPTS: usize = 256;

impl KeyHistory {
    /// A program sees this key from now on.
    pub(crate) fn insert(&mut self, lkey: u32) {
        self.0.insert(lkey);
    }

    /// Makes regions until one has a key that nobody has seen; answers those before it too, which had to be kept until
    /// then so that another key was next.
    pub(crate) fn find_unseen<T>(
        &self,
        mut make: impl FnMut() -> Result<(T, u32), VerbError>,
    ) -> (Result<T, VerbError>, Vec<T>) {
        let mut seen = Vec::new();
        for _ in 0..ATTEMPTS {
            match make() {
                Ok((made, lkey)) if self.0.contains(&lkey) => seen.push(made),
                Ok((made, _)) => return (Ok(made), seen),
                Err(error) => return (Err(error), seen),
            }
        }
        let none = VerbError::Resources("keys that no region has had");
        (Err(none), seen)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_private_region_has_a_key_that_no_program_has_seen() {
        let history = KeyHistory(HashSet::from([1, 2]));
        let mut keys = [1, 2, 3].into_iter();
        let make = || keys.next().map(|key| (key, key)).ok_or(VerbError::Canceled);
        assert_eq!(history.find_unseen(make), (Ok(3), vec![1, 2]));
    }

    #[test]
    fn a_library_that_gives_the_same_key_again_and_again_is_an_error() {
        let history = KeyHistory(HashSet::from([1]));
        let (found, seen) = history.find_unseen(|| Ok(((), 1)));
        assert!(matches!(found, Err(VerbError::Resources(_))), "{found:?}");
        assert_eq!(seen.len(), ATTEMPTS);
    }
}
