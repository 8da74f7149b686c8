//! Times as the messages encode them.

use std::time::Duration;

/// 4.096 µs x 2^code, code up to 31.
pub fn decoded(code: u8) -> Duration {
    Duration::from_nanos(4096 << code.min(31))
}

/// The local ACK timeout of a path, as a code: the adapter's delay and twice the packet lifetime.
///
/// The sum of two powers is the next one where they are equal, and nearer to it where they are next to each other
/// (IBTA 12.7.34).
pub fn ack_timeout(target_ack_delay: u8, packet_life_time: u8) -> u8 {
    let there_and_back = packet_life_time.saturating_add(1);
    let longer = there_and_back.max(target_ack_delay);
    let are_near = there_and_back.abs_diff(target_ack_delay) <= 1;
    longer.saturating_add(u8::from(are_near)).min(31)
}

/// How long a connection that has ended keeps its communication ID: until all of its packets have left the network.
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
