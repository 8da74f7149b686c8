//! Which stream to give up when there are too many without a request.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;

/// Streams whose peer has not sent its whole MPA request, by peer and age.
#[derive(Debug, Default)]
pub(crate) struct SilentStreams {
    of_peers: HashMap<IpAddr, BTreeMap<u64, u32>>,
    /// How many each peer has.
    counts: BTreeSet<(usize, IpAddr)>,
}

impl SilentStreams {
    pub(crate) fn insert(&mut self, peer: IpAddr, order: u64, number: u32) {
        let streams = self.of_peers.entry(peer).or_default();
        self.counts.remove(&(streams.len(), peer));
        streams.insert(order, number);
        self.counts.insert((streams.len(), peer));
    }

    pub(crate) fn remove(&mut self, peer: IpAddr, order: u64) {
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

    /// The oldest one of the peer that has most of them.
    pub(crate) fn longest(&self) -> Option<u32> {
        let (_, peer) = self.counts.last()?;
        let oldest = self.of_peers.get(peer)?.first_key_value();
        oldest.map(|(_, number)| *number)
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    fn peer(number: u32) -> IpAddr {
        IpAddr::from(number.to_be_bytes())
    }

    // covers 7.41
    #[test]
    fn the_oldest_stream_of_the_peer_with_most_of_them_is_the_longest_silent() {
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

    // A scan of all streams for each one would take minutes.
    #[test]
    fn a_flood_of_silent_streams_is_handled_in_time() {
        let mut silent = SilentStreams::default();
        let began = Instant::now();
        for order in 0..200_000_u32 {
            if order >= 40_000 {
                assert_eq!(silent.longest(), Some(order - 40_000));
                silent.remove(peer(1), u64::from(order - 40_000));
            }
            silent.insert(peer(1), order.into(), order);
        }
        assert!(began.elapsed() < Duration::from_secs(60));
    }
}
