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

/// What the data path of a port counts. The order is that of [`Totals::carried`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub enum Carried {
    XmitWords,
    XmitUnicast,
    XmitMulticast,
    RcvWords,
    RcvUnicast,
    RcvMulticast,
    RcvErrors,
    XmitDiscards,
}

impl Carried {
    /// How many there are.
    pub const COUNT: usize = 8;
}

impl Totals {
    /// Returns the totals of a port whose data path alone has counted.
    pub fn carried(numbers: [u64; Carried::COUNT]) -> Self {
        let of = |what: Carried| numbers[what as usize];
        let (sent, received) = (of(Carried::XmitUnicast), of(Carried::RcvUnicast));
        let (sent_to_groups, of_groups) = (of(Carried::XmitMulticast), of(Carried::RcvMulticast));
        Self {
            rcv_errors: of(Carried::RcvErrors),
            xmit_discards: of(Carried::XmitDiscards),
            xmit_data: of(Carried::XmitWords),
            rcv_data: of(Carried::RcvWords),
            xmit_pkts: sent.saturating_add(sent_to_groups),
            rcv_pkts: received.saturating_add(of_groups),
            unicast_xmit_pkts: sent,
            unicast_rcv_pkts: received,
            multicast_xmit_pkts: sent_to_groups,
            multicast_rcv_pkts: of_groups,
            ..Self::default()
        }
    }

    /// Adds how much the numbers of the data path have grown since they were `before`.
    pub fn add_growth(&mut self, before: &[u64; Carried::COUNT], now: &[u64; Carried::COUNT]) {
        let mut growth = Self::carried(std::array::from_fn(|index| {
            now[index].saturating_sub(before[index])
        }));
        for (total, grown) in self.of_data().into_iter().zip(growth.of_data()) {
            *total = total.saturating_add(*grown);
        }
    }

    fn of_data(&mut self) -> [&mut u64; 10] {
        [
            &mut self.rcv_errors,
            &mut self.xmit_discards,
            &mut self.xmit_data,
            &mut self.rcv_data,
            &mut self.xmit_pkts,
            &mut self.rcv_pkts,
            &mut self.unicast_xmit_pkts,
            &mut self.unicast_rcv_pkts,
            &mut self.multicast_xmit_pkts,
            &mut self.multicast_rcv_pkts,
        ]
    }
}

/// The counters of a port.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counters {
    pub(crate) narrow: Narrow,
    pub(crate) wide: Wide,
}
