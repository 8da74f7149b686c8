//! Counters of a port.
//!
//! A port's totals only grow. The counters that the agent shows are how much the totals have grown since the last write, on top of
//! the value that was written, and stop at the largest value of their width.

use polyverbs_wire::mad::perf::{PortCounters, PortCountersExtended};

/// A counter as of its last write.
#[derive(Clone, Copy, Debug, Default)]
struct Counter {
    written: u64,
    /// The total at that time.
    total: u64,
}

impl Counter {
    fn shown(self, total: u64, width: u32) -> u64 {
        let value = self
            .written
            .saturating_add(total.saturating_sub(self.total));
        value.min(u64::MAX >> (64 - width))
    }
}

macro_rules! counters {
    ($name:ident of $attribute:ident, $select:expr => { $($bit:literal $counter:ident = $width:literal;)* }) => {
        #[derive(Clone, Copy, Debug, Default)]
        pub(crate) struct $name {
            $($counter: Counter,)*
        }

        impl $name {
            pub(crate) fn show(&self, totals: &Totals, shown: &mut $attribute) {
                $(shown.$counter = self.$counter.shown(totals.$counter, $width) as _;)*
            }

            pub(crate) fn write(&mut self, totals: &Totals, written: &$attribute) {
                let select: fn(&$attribute) -> u32 = $select;
                $(if select(written) & 1 << $bit != 0 {
                    self.$counter = Counter {
                        written: written.$counter.into(),
                        total: totals.$counter,
                    };
                })*
            }
        }
    };
}

counters! {
    Narrow of PortCounters, |it| u32::from(it.counter_select2) << 16 | u32::from(it.counter_select) => {
        0 symbol_errors = 16;
        1 link_error_recoveries = 8;
        2 link_downed = 8;
        3 rcv_errors = 16;
        4 rcv_remote_physical_errors = 16;
        5 rcv_switch_relay_errors = 16;
        6 xmit_discards = 16;
        7 xmit_constraint_errors = 8;
        8 rcv_constraint_errors = 8;
        9 local_link_integrity_errors = 4;
        10 excessive_buffer_overrun_errors = 4;
        11 vl15_dropped = 16;
        12 xmit_data = 32;
        13 rcv_data = 32;
        14 xmit_pkts = 32;
        15 rcv_pkts = 32;
        16 xmit_wait = 32;
    }
}

counters! {
    Wide of PortCountersExtended, |it| it.counter_select.into() => {
        0 xmit_data = 64;
        1 rcv_data = 64;
        2 xmit_pkts = 64;
        3 rcv_pkts = 64;
        4 unicast_xmit_pkts = 64;
        5 unicast_rcv_pkts = 64;
        6 multicast_xmit_pkts = 64;
        7 multicast_rcv_pkts = 64;
    }
}

/// What a port has sent, received and dropped since it was made. Each total means what the counter with its name does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(
    missing_docs,
    reason = "the counters of the wire format have the names and the docs"
)]
pub struct Totals {
    pub symbol_errors: u64,
    pub link_error_recoveries: u64,
    pub link_downed: u64,
    pub rcv_errors: u64,
    pub rcv_remote_physical_errors: u64,
    pub rcv_switch_relay_errors: u64,
    pub xmit_discards: u64,
    pub xmit_constraint_errors: u64,
    pub rcv_constraint_errors: u64,
    pub local_link_integrity_errors: u64,
    pub excessive_buffer_overrun_errors: u64,
    pub vl15_dropped: u64,
    pub xmit_data: u64,
    pub rcv_data: u64,
    pub xmit_pkts: u64,
    pub rcv_pkts: u64,
    pub xmit_wait: u64,
    pub unicast_xmit_pkts: u64,
    pub unicast_rcv_pkts: u64,
    pub multicast_xmit_pkts: u64,
    pub multicast_rcv_pkts: u64,
}

/// The counters of a port.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counters {
    pub(crate) narrow: Narrow,
    pub(crate) wide: Wide,
}
