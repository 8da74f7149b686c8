use core::fmt;

/// Length of a congestion map, in bytes.
pub const CONGESTION_MAP_BYTES: usize = 65536 / 8;

/// The congestion map of a receiving address: the ports that are congested, to which senders must not send.
///
/// The state of port p is bit p % 8 of byte p / 8, counted from the least significant bit.
///
/// A map without congested ports needs no memory.
#[derive(Clone, Default)]
pub struct CongestionMap(Option<Box<[u8; CONGESTION_MAP_BYTES]>>);

static NO_PORT: [u8; CONGESTION_MAP_BYTES] = [0; CONGESTION_MAP_BYTES];

impl CongestionMap {
    /// Creates a map without congested ports.
    pub const fn new() -> Self {
        Self(None)
    }

    /// Marks a port as congested.
    pub fn set(&mut self, port: u16) {
        self.bytes_mut()[byte(port)] |= bit(port);
    }

    /// Marks a port as not congested.
    pub fn clear(&mut self, port: u16) {
        if let Some(bytes) = &mut self.0 {
            bytes[byte(port)] &= !bit(port);
        }
    }

    /// Marks the congested ports of another map as congested in this one, too.
    pub fn merge(&mut self, other: &Self) {
        let Some(other) = &other.0 else { return };
        for (own, other) in self.bytes_mut().iter_mut().zip(other.iter()) {
            *own |= other;
        }
    }

    /// Returns whether a port is congested.
    pub fn is_set(&self, port: u16) -> bool {
        self.bytes()[byte(port)] & bit(port) != 0
    }

    /// Returns the congested ports in ascending order.
    pub fn ports(&self) -> impl Iterator<Item = u16> {
        let bytes = self.bytes().iter();
        let used = (0..).zip(bytes).filter(|(_, bits)| **bits != 0);
        used.flat_map(|(byte, _)| 8 * byte..=8 * byte + 7)
            .filter(|port| self.is_set(*port))
    }

    /// The map as a message carries it: a bit for each port.
    pub fn bytes(&self) -> &[u8; CONGESTION_MAP_BYTES] {
        self.0.as_deref().unwrap_or(&NO_PORT)
    }

    fn bytes_mut(&mut self) -> &mut [u8; CONGESTION_MAP_BYTES] {
        self.0.get_or_insert_with(|| Box::new(NO_PORT))
    }

    /// Replaces the map by a received one. Returns which groups of ports have a port that is no longer congested, as a
    /// congestion monitor reports them: bit p % 64 stands for port p.
    pub fn replace(&mut self, bytes: &[u8; CONGESTION_MAP_BYTES]) -> u64 {
        let (old, _) = self.bytes().as_chunks();
        let (new, _) = bytes.as_chunks();
        let freed = old.iter().zip(new).fold(0, |freed, (old, new)| {
            freed | u64::from_le_bytes(*old) & !u64::from_le_bytes(*new)
        });
        self.0 = (*bytes != NO_PORT).then(|| Box::new(*bytes));
        freed
    }
}

impl PartialEq for CongestionMap {
    fn eq(&self, other: &Self) -> bool {
        self.bytes() == other.bytes()
    }
}

impl Eq for CongestionMap {}

fn byte(port: u16) -> usize {
    usize::from(port / 8)
}

fn bit(port: u16) -> u8 {
    1 << (port % 8)
}

impl fmt::Debug for CongestionMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.ports()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // covers 8.33
    #[test]
    fn a_port_is_one_bit_counted_from_the_least_significant() {
        for (port, byte, bits) in [
            (0, 0, 1),
            (7, 0, 0x80),
            (8, 1, 1),
            (4000, 500, 1),
            (65535, 8191, 0x80),
        ] {
            let mut map = CongestionMap::new();
            map.set(port);
            let mut expected = [0; CONGESTION_MAP_BYTES];
            expected[byte] = bits;
            assert_eq!(map.bytes(), &expected);
            assert!(map.is_set(port));
            assert_eq!(map.ports().collect::<Vec<_>>(), [port]);
        }
    }

    // covers 8.33
    #[test]
    fn clearing_a_port_leaves_its_neighbours_congested() {
        let mut map = CongestionMap::new();
        (4000..4003).for_each(|port| map.set(port));
        map.clear(4001);
        map.clear(5000);
        assert_eq!(map.ports().collect::<Vec<_>>(), [4000, 4002]);
    }

    // covers 8.33
    #[test]
    fn replacing_a_map_returns_the_ports_that_became_free() {
        let mut map = CongestionMap::new();
        let mut arrived = CongestionMap::new();
        [3, 70, 4000].into_iter().for_each(|port| arrived.set(port));
        assert_eq!(map.replace(arrived.bytes()), 0);
        assert_eq!(map, arrived);

        arrived.clear(70);
        arrived.clear(4000);
        arrived.set(65535);
        assert_eq!(
            map.replace(arrived.bytes()),
            1 << (70 % 64) | 1 << (4000 % 64)
        );
        assert_eq!(map, arrived);
        assert_eq!(map.replace(arrived.bytes()), 0);
    }
}
