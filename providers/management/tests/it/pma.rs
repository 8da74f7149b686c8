//! Counters of performance management.

use polyverbs_wire::layout::Octets;
use polyverbs_wire::mad::perf::{
    PortCounters, PortCountersExtended, PortSamplesControl, capability,
};
use polyverbs_wire::mad::{ClassPortInfo, method, status};

use crate::rig::{Request, Rig};

fn counters() -> Request {
    let select = PortCounters {
        port_select: 1,
        ..PortCounters::default()
    };
    Request {
        method: method::GET,
        ..Request::set(&select).of_counters()
    }
}

fn extended() -> Request {
    let select = PortCountersExtended {
        port_select: 1,
        ..PortCountersExtended::default()
    };
    Request {
        method: method::GET,
        ..Request::set(&select).of_counters()
    }
}

// covers 8.73
#[test]
fn the_class_says_which_counters_there_are() {
    let mut rig = Rig::new();
    let info: ClassPortInfo = rig.read(Request::get::<ClassPortInfo>().of_counters());
    assert_eq!((info.base_version, info.class_version), (1, 1));
    assert_eq!(
        info.capability_mask,
        capability::EXTENDED_WIDTH | capability::XMIT_WAIT
    );
}

// covers 8.73
#[test]
fn counters_stop_at_their_largest_value() {
    let mut rig = Rig::new();
    let totals = &mut rig.node.port_mut(1).unwrap().totals;
    totals.xmit_data = u64::from(u32::MAX) + 7;
    totals.rcv_pkts = 9;
    totals.symbol_errors = 0x1_0000;
    totals.link_downed = 0x100;
    totals.local_link_integrity_errors = 0x10;
    totals.xmit_wait = u64::from(u32::MAX) - 1;
    let shown: PortCounters = rig.read(counters());
    let expected = PortCounters {
        port_select: 1,
        xmit_data: u32::MAX,
        rcv_pkts: 9,
        symbol_errors: u16::MAX,
        link_downed: u8::MAX,
        local_link_integrity_errors: 15,
        xmit_wait: u32::MAX - 1,
        ..PortCounters::default()
    };
    assert_eq!(shown, expected);
    let wide: PortCountersExtended = rig.read(extended());
    assert_eq!(
        (wide.xmit_data, wide.rcv_pkts),
        (u64::from(u32::MAX) + 7, 9)
    );

    // Even the wide ones do not wrap, wherever they were written to begin.
    let written = PortCountersExtended {
        port_select: 1,
        counter_select: 1,
        xmit_data: u64::MAX - 1,
        ..PortCountersExtended::default()
    };
    rig.read::<PortCountersExtended>(Request::set(&written).of_counters());
    rig.node.port_mut(1).unwrap().totals.xmit_data += 5;
    let wide: PortCountersExtended = rig.read(extended());
    assert_eq!(wide.xmit_data, u64::MAX);
}

// covers 8.73
#[test]
fn a_write_sets_the_selected_counters_only() {
    let mut rig = Rig::new();
    let totals = &mut rig.node.port_mut(1).unwrap().totals;
    (totals.xmit_data, totals.rcv_data, totals.xmit_wait) = (100, 200, 300);
    let write = |counter_select, counter_select2| {
        let written = PortCounters {
            port_select: 1,
            counter_select,
            counter_select2,
            rcv_data: 50,
            ..PortCounters::default()
        };
        Request::set(&written).of_counters()
    };
    // Bit 13 is that of the received data, and bit 0 of the second mask that of the waiting.
    let shown: PortCounters = rig.read(write(1 << 13, 0));
    assert_eq!(
        (shown.xmit_data, shown.rcv_data, shown.xmit_wait),
        (100, 50, 300)
    );
    let shown: PortCounters = rig.read(write(0, 1));
    assert_eq!(
        (shown.xmit_data, shown.rcv_data, shown.xmit_wait),
        (100, 50, 0)
    );

    rig.node.port_mut(1).unwrap().totals.rcv_data += 3;
    let shown: PortCounters = rig.read(counters());
    assert_eq!(
        shown.rcv_data, 53,
        "counting goes on from the written value"
    );
    let wide: PortCountersExtended = rig.read(extended());
    assert_eq!(wide.rcv_data, 203, "the wide counters are others");
}

// covers 8.65 8.73
#[test]
fn counters_of_no_port_are_refused() {
    let mut rig = Rig::new();
    for port_select in [0, 3, 0xff] {
        let select = PortCounters {
            port_select,
            ..PortCounters::default()
        };
        let read = Request {
            data: Octets::holding(&select),
            ..counters()
        };
        assert_eq!(rig.refusal(read), status::INVALID_FIELD);
    }
    assert_eq!(rig.refusal(counters().modifier(1)), status::INVALID_FIELD);
    let unknown = Request {
        method: method::SEND + 1,
        ..counters()
    };
    assert_eq!(rig.refusal(unknown), status::METHOD);
    let version = Request {
        class_version: 2,
        ..counters()
    };
    assert_eq!(rig.refusal(version), status::VERSION);
    let attribute = Request {
        attribute_id: 0xff01,
        ..counters()
    };
    assert_eq!(rig.refusal(attribute), status::METHOD_AND_ATTRIBUTE);
}

// covers 8.73
#[test]
fn there_are_no_sampled_counters() {
    let mut rig = Rig::new();
    let control = PortSamplesControl {
        port_select: 2,
        ..PortSamplesControl::default()
    };
    let write = Request::set(&control).of_counters();
    let read = Request {
        method: method::GET,
        ..write
    };
    assert_eq!(rig.read::<PortSamplesControl>(read), control);
    assert_eq!(rig.refusal(write), status::METHOD_AND_ATTRIBUTE);
}
