//! The agent of performance management, PMA (IBTA 16.1).

use polyverbs_wire::layout::Octets;
use polyverbs_wire::mad::perf::{
    self, Perf, PortCounters, PortCountersExtended, PortSamplesControl, capability,
};
use polyverbs_wire::mad::{Attribute as _, ClassPortInfo, MadHeader, method, status};

use crate::node::Node;
use crate::port::{Port, RESPONSE_TIME};

/// Answers a MAD of performance management, in place.
///
/// # Errors
/// The status with which the request is answered.
pub(crate) fn process(node: &mut Node, header: &MadHeader, perf: &mut Perf) -> Result<(), u16> {
    if header.class_version != perf::CLASS_VERSION {
        return Err(status::VERSION);
    }
    let is_set = match header.method {
        method::GET => false,
        method::SET => true,
        _ => return Err(status::METHOD),
    };
    if header.attribute_modifier != 0 {
        return Err(status::INVALID_FIELD);
    }
    perf.data = match header.attribute_id {
        ClassPortInfo::ID if !is_set => Octets::holding(&class_port_info()),
        PortSamplesControl::ID if !is_set => Octets::holding(&samples_control(node, perf)?),
        PortCounters::ID => Octets::holding(&port_counters(node, is_set, perf)?),
        PortCountersExtended::ID => Octets::holding(&extended_counters(node, is_set, perf)?),
        _ => return Err(status::METHOD_AND_ATTRIBUTE),
    };
    Ok(())
}

fn class_port_info() -> ClassPortInfo {
    ClassPortInfo {
        base_version: 1,
        class_version: perf::CLASS_VERSION,
        capability_mask: capability::EXTENDED_WIDTH | capability::XMIT_WAIT,
        resp_time_value: RESPONSE_TIME,
        ..ClassPortInfo::default()
    }
}

/// PortSamplesControl is mandatory. This one shows that no counter can be sampled.
fn samples_control(node: &mut Node, perf: &Perf) -> Result<PortSamplesControl, u16> {
    let port_select = perf.data.header::<PortSamplesControl>().port_select;
    selected(node, port_select)?;
    Ok(PortSamplesControl {
        port_select,
        ..PortSamplesControl::default()
    })
}

fn port_counters(node: &mut Node, is_set: bool, perf: &Perf) -> Result<PortCounters, u16> {
    let wanted: PortCounters = perf.data.header();
    let port = selected(node, wanted.port_select)?;
    if is_set {
        port.counters.narrow.write(&port.totals, &wanted);
    }
    Ok(PortCounters {
        port_select: wanted.port_select,
        ..port.counters().0
    })
}

fn extended_counters(
    node: &mut Node,
    is_set: bool,
    perf: &Perf,
) -> Result<PortCountersExtended, u16> {
    let wanted: PortCountersExtended = perf.data.header();
    let port = selected(node, wanted.port_select)?;
    if is_set {
        port.counters.wide.write(&port.totals, &wanted);
    }
    Ok(PortCountersExtended {
        port_select: wanted.port_select,
        ..port.counters().1
    })
}

fn selected(node: &mut Node, port_select: u8) -> Result<&mut Port, u16> {
    node.port_mut(port_select).ok_or(status::INVALID_FIELD)
}
