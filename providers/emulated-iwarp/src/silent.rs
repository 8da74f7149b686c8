//! The choice of the stream to close when too many streams wait whose peers have not sent a request.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::Hash;
use std::net::IpAddr;

/// Streams whose peer has not sent its whole MPA request yet, by the peer's address and the stream's age.
#[derive(Debug)]
pub(crate) struct SilentStreams<P = IpAddr, A = u64> {
    of_peers: HashMap<P, BTreeMap<A, u32>>,
    /// The peers, ordered by how many of these streams each has.
    counts: BTreeSet<(usize, P)>,
}

impl<P, A> Default for SilentStreams<P, A> {
    fn default() -> Self {
        Self {
            of_peers: HashMap::new(),
            counts: BTreeSet::new(),
        }
    }
}

impl<P: Copy + Hash + Ord, A: Ord> SilentStreams<P, A> {
    pub(crate) fn insert(&mut self, peer: P, order: A, number: u32) {
        let streams = self.of_peers.entry(peer).or_default();
        self.counts.remove(&(streams.len(), peer));
        streams.insert(order, number);
        self.counts.insert((streams.len(), peer));
    }

    pub(crate) fn remove(&mut self, peer: P, order: A) {
        let Some(streams) = self.of_peers.get_mut(&peer) else {
            return;
        };
        self.counts.remove(&(streams.len(), peer));
        streams.remove(&order);
        if streams.is_empty() {
            self.of_peers.remove(&peer);
        } else {
            self.counts.insert((streams.len(), peer));
        }
    }

    /// Returns the oldest stream of the peer that has the most of these streams; `None` if there is no stream.
    pub(crate) fn longest(&self) -> Option<u32> {
        let (_, peer) = self.counts.last()?;
        let oldest = self.of_peers.get(peer)?.first_key_value();
        oldest.map(|(_, number)| *number)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::cmp::Ordering;

    use super::*;

    fn peer(number: u32) -> IpAddr {
        IpAddr::from(number.to_be_bytes())
    }

    // covers 7.41
    #[test]
    fn the_oldest_stream_of_the_peer_with_the_most_is_chosen() {
        let mut silent = SilentStreams::default();
        assert_eq!(silent.longest(), None);
        for (order, from) in [1, 2, 2, 3, 3, 3].into_iter().enumerate() {
            silent.insert(peer(from), order as u64, 100 + order as u32);
        }
        assert_eq!(silent.longest(), Some(103));
        silent.remove(peer(3), 3);
        silent.remove(peer(3), 4);
        assert_eq!(silent.longest(), Some(101));
        silent.remove(peer(2), 1);
        silent.remove(peer(2), 2);
        silent.remove(peer(3), 5);
        silent.remove(peer(1), 0);
        assert_eq!(silent.longest(), None);
    }

    thread_local! {
        static COMPARISONS: Cell<u64> = const { Cell::new(0) };
    }

    /// A peer or an age that counts its comparisons.
    #[derive(Clone, Copy)]
    struct Counted(u32);

    impl Ord for Counted {
        fn cmp(&self, other: &Self) -> Ordering {
            COMPARISONS.set(COMPARISONS.get() + 1);
            self.0.cmp(&other.0)
        }
    }

    impl PartialOrd for Counted {
        fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
            Some(self.cmp(other))
        }
    }

    impl PartialEq for Counted {
        fn eq(&self, other: &Self) -> bool {
            self.cmp(other).is_eq()
        }
    }

    impl Eq for Counted {}

    impl Hash for Counted {
        fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
            self.0.hash(state);
        }
    }

    // A scan of all streams for each new one would take minutes.
    #[test]
    fn a_flood_of_silent_streams_costs_no_scan() {
        const FLOOD: u32 = 200_000;
        const KEPT: u32 = 40_000;
        for peers in [1, 1000] {
            let mut silent = SilentStreams::default();
            COMPARISONS.set(0);
            let peer = |order| Counted(order % peers);
            for order in 0..FLOOD {
                if order >= KEPT {
                    let oldest = order - KEPT;
                    // If many peers have equally many streams, any of them may have to give one up.
                    let longest = silent.longest().unwrap();
                    assert!(peers > 1 || longest == oldest, "{longest} for {oldest}");
                    silent.remove(peer(oldest), Counted(oldest));
                }
                silent.insert(peer(order), Counted(order), order);
            }
            let comparisons = COMPARISONS.get() / u64::from(FLOOD);
            assert!(comparisons < 300, "{comparisons} for each stream");
        }
    }
}
