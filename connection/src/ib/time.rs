//! Times as the messages encode them.

use std::time::Duration;

/// Returns the time that a code of 0 to 31 stands for: 4.096 µs x 2^code.
pub fn decoded(code: u8) -> Duration {
    Duration::from_nanos(4096 << code.min(31))
}

/// Returns the local ACK timeout of a path as a code: the adapter's delay plus twice the packet lifetime.
///
/// The sum of two powers of two is the next power if they are equal, and is rounded up to it if they are adjacent (IBTA
/// 12.7.34).
pub fn ack_timeout(target_ack_delay: u8, packet_life_time: u8) -> u8 {
    let there_and_back = packet_life_time.saturating_add(1);
    let longer = there_and_back.max(target_ack_delay);
    let are_near = there_and_back.abs_diff(target_ack_delay) <= 1;
    longer.saturating_add(u8::from(are_near)).min(31)
}

/// Returns how long a connection stays in TIMEWAIT and keeps its communication ID: until all of its packets have left the
/// network.
pub fn timewait(ack_timeout: u8) -> Duration {
    Duration::from_millis(1 << ack_timeout.min(31).saturating_sub(8))
}

#[cfg(test)]
mod tests {
    use super::*;

    // covers 7.15
    #[test]
    fn an_ack_timeout_is_its_longer_part_rounded_up_where_both_are_close() {
        assert_eq!(ack_timeout(0, 14), 15);
        assert_eq!(ack_timeout(20, 14), 20);
        assert_eq!(ack_timeout(15, 14), 16);
        assert_eq!(ack_timeout(14, 14), 16);
        assert_eq!(ack_timeout(31, 31), 31);
        assert_eq!(ack_timeout(255, 255), 31);
    }

    #[test]
    fn timewait_takes_milliseconds_by_the_ack_timeout() {
        assert_eq!(timewait(3), Duration::from_millis(1));
        assert_eq!(timewait(8), Duration::from_millis(1));
        assert_eq!(timewait(14), Duration::from_millis(64));
        assert_eq!(timewait(200), Duration::from_millis(1 << 23));
    }

    #[test]
    fn codes_are_powers_of_two() {
        assert_eq!(decoded(0), Duration::from_nanos(4096));
        assert_eq!(decoded(20), Duration::from_nanos(4_294_967_296));
        assert_eq!(decoded(255), decoded(31));
    }
}
