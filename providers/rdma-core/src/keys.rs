//! The local keys that the program has seen, which no private region may get.

use std::collections::HashSet;

use verbs_api::VerbError;

/// The local keys that the program has seen. A region of a buffer pool must not get one of them, because the program may
/// still have scatter/gather entries with it; but the library chooses keys, and does not report that it reuses one.
#[derive(Default)]
pub(crate) struct KeyHistory(HashSet<u32>);

/// How often a region is registered until its key is one that the program has not seen.
const ATTEMPTS: usize = 256;

impl KeyHistory {
    /// Notes that the program has seen this key.
    pub(crate) fn insert(&mut self, lkey: u32) {
        self.0.insert(lkey);
    }

    /// Registers regions with `make` until one has a key that the program has not seen. Returns the earlier regions too,
    /// which were kept so that the library had to choose another key.
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
    fn a_private_region_gets_a_key_the_program_has_not_seen() {
        let history = KeyHistory(HashSet::from([1, 2]));
        let mut keys = [1, 2, 3].into_iter();
        let make = || keys.next().map(|key| (key, key)).ok_or(VerbError::Canceled);
        assert_eq!(history.find_unseen(make), (Ok(3), vec![1, 2]));
    }

    #[test]
    fn a_library_that_repeats_one_key_leads_to_an_error() {
        let history = KeyHistory(HashSet::from([1]));
        let (found, seen) = history.find_unseen(|| Ok(((), 1)));
        assert!(matches!(found, Err(VerbError::Resources(_))), "{found:?}");
        assert_eq!(seen.len(), ATTEMPTS);
    }
}
