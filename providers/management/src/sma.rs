//! The agent of subnet management, SMA (IBTA 14.2.4, 14.2.5).

use std::time::Duration;

use polyverbs_wire::layout::Octets;
use polyverbs_wire::mad::notice::Notice;
use polyverbs_wire::mad::smp::{
    self, GuidInfo, LinearForwardingTable, MulticastForwardingTable, NodeDescription, NodeInfo,
    PKeyTable, PortInfo, SlToVlTable, SmInfo, Smp, SwitchInfo, VlArbitrationTable, capability,
};
use polyverbs_wire::mad::{Attribute as _, MadHeader, method, status};

use crate::node::{Node, Processed};
use crate::port::{Event, Port};
use crate::switch::Switch;

/// Answers an SMP that has come to this node by this port, in place.
///
/// # Errors
/// The status with which the request is answered.
pub(crate) fn process(
    node: &mut Node,
    port: u8,
    header: &MadHeader,
    smp: &mut Smp,
    now: Duration,
) -> Result<Processed, u16> {
    let request = header.method;
    if header.class_version != smp::CLASS_VERSION {
        return Err(status::VERSION);
    }
    if !matches!(request, method::GET | method::SET | method::TRAP_REPRESS) {
        return Err(status::METHOD);
    }
    // Port 0 of a switch has the M_Key of the whole switch.
    let own = node.own_port(port);
    if node.port(port).is_none() {
        return Ok(Processed::Consumed);
    }
    let is_switch = node.switch.is_some();
    let Some(entered) = node.port_mut(own) else {
        return Ok(Processed::Consumed);
    };
    if !entered.admits(request, smp.m_key, now) {
        return Ok(Processed::Consumed);
    }
    let modifier = header.attribute_modifier;
    let is_set = request == method::SET;
    match (header.attribute_id, request) {
        // A TrapRepress is never answered.
        (Notice::ID, method::TRAP_REPRESS) => return Ok(Processed::Consumed),
        (_, method::TRAP_REPRESS) => return Err(status::METHOD_AND_ATTRIBUTE),
        (NodeDescription::ID, method::GET) => node_description(node, modifier, smp)?,
        (NodeInfo::ID, method::GET) => node_info(node, port, modifier, smp)?,
        (PortInfo::ID, _) => port_info(node, port, modifier, is_set, smp)?,
        (GuidInfo::ID, _) => guid_info(entered, modifier, is_set, smp)?,
        (PKeyTable::ID, _) => {
            let port = selected(node, port, modifier >> 16)?;
            p_key_table(port, modifier, is_set, smp)?;
        }
        (SlToVlTable::ID, _) if is_switch => {
            switch_sl_to_vl(node, modifier, is_set, smp)?;
        }
        (SlToVlTable::ID, _) => sl_to_vl(entered, is_set, smp)?,
        (VlArbitrationTable::ID, _) => {
            let port = selected(node, port, modifier & 0xffff)?;
            vl_arbitration(port, modifier, is_set, smp)?;
        }
        (SwitchInfo::ID, _) => switch_info(switch_of(node)?, modifier, is_set, smp)?,
        (LinearForwardingTable::ID, _) => linear(switch_of(node)?, modifier, is_set, smp)?,
        (MulticastForwardingTable::ID, _) => multicast(switch_of(node)?, modifier, is_set, smp)?,
        (SmInfo::ID, _) => return sm_info(entered),
        _ => return Err(status::METHOD_AND_ATTRIBUTE),
    }
    Ok(Processed::Reply)
}

fn node_description(node: &Node, modifier: u32, smp: &mut Smp) -> Result<(), u16> {
    require(modifier == 0)?;
    smp.data = Octets::holding(&node.description);
    Ok(())
}

fn node_info(node: &Node, port: u8, modifier: u32, smp: &mut Smp) -> Result<(), u16> {
    require(modifier == 0)?;
    let entered = node
        .port(node.own_port(port))
        .ok_or(status::INVALID_FIELD)?;
    smp.data = Octets::holding(&NodeInfo {
        port_guid: entered.guids[0],
        local_port_num: port,
        ..node.identity
    });
    Ok(())
}

fn port_info(
    node: &mut Node,
    entered: u8,
    modifier: u32,
    is_set: bool,
    smp: &mut Smp,
) -> Result<(), u16> {
    const KNOWS_EXTENDED_SPEEDS: u32 = 1 << 31;
    let number = match modifier & !KNOWS_EXTENDED_SPEEDS {
        0 => node.own_port(entered),
        other => u8::try_from(other).map_err(|_| status::INVALID_FIELD)?,
    };
    let wanted: PortInfo = smp.data.header();
    // A port of an adapter is configured through itself alone, because its own M_Key protects it.
    let is_set = is_set && (node.switch.is_some() || number == entered);
    let port = node.port_mut(number).ok_or(status::INVALID_FIELD)?;
    if is_set {
        port.configure(&wanted)?;
    }
    let hides_key = port.info.m_key_protect_bits > 0 && port.info.m_key != smp.m_key && !is_set;
    smp.data = Octets::holding(&PortInfo {
        m_key: if hides_key { 0 } else { port.info.m_key },
        local_port_num: entered,
        client_reregister: is_set && wanted.client_reregister,
        ..port.info
    });
    Ok(())
}

fn guid_info(port: &mut Port, modifier: u32, is_set: bool, smp: &mut Smp) -> Result<(), u16> {
    let mut wanted: GuidInfo = smp.data.header();
    if modifier == 0 {
        wanted.guids[0] = port.guids[0];
    }
    let written = is_set.then_some(wanted.guids);
    let (guids, has_changed) = exchange(&mut port.guids, modifier, written)?;
    if has_changed {
        port.note(Event::GidChange);
    }
    smp.data = Octets::holding(&GuidInfo { guids });
    Ok(())
}

fn p_key_table(port: &mut Port, modifier: u32, is_set: bool, smp: &mut Smp) -> Result<(), u16> {
    let wanted: PKeyTable = smp.data.header();
    let written = is_set.then_some(wanted.p_keys);
    // The upper half of the modifier is the port of a switch, which is found already.
    let (p_keys, has_changed) = exchange(&mut port.p_keys, modifier & 0xffff, written)?;
    if has_changed {
        port.note(Event::PkeyChange);
    }
    smp.data = Octets::holding(&PKeyTable { p_keys });
    Ok(())
}

fn sl_to_vl(port: &mut Port, is_set: bool, smp: &mut Smp) -> Result<(), u16> {
    if port.info.capability_mask & capability::SL_MAPPING == 0 {
        return Err(status::METHOD_AND_ATTRIBUTE);
    }
    if is_set {
        port.sl_to_vl = smp.data.header::<SlToVlTable>().vls;
    }
    let vls = port.sl_to_vl;
    smp.data = Octets::holding(&SlToVlTable { vls });
    Ok(())
}

fn vl_arbitration(port: &mut Port, modifier: u32, is_set: bool, smp: &mut Smp) -> Result<(), u16> {
    if port.info.vl_arbitration_low_cap == 0 {
        return Err(status::METHOD_AND_ATTRIBUTE);
    }
    let [low, high] = &mut port.vl_arbitration;
    let entries = match modifier >> 16 {
        1 => low,
        3 => high,
        _ => return Err(status::INVALID_FIELD),
    };
    if is_set {
        *entries = smp.data;
    }
    smp.data = *entries;
    Ok(())
}

/// The port that a modifier selects at a switch; at an adapter, the one by which the request came.
fn selected(node: &mut Node, entered: u8, number: u32) -> Result<&mut Port, u16> {
    let number = match node.switch {
        Some(_) => u8::try_from(number).map_err(|_| status::INVALID_FIELD)?,
        None => entered,
    };
    node.port_mut(number).ok_or(status::INVALID_FIELD)
}

/// An adapter does not know the attributes of switches.
fn switch_of(node: &mut Node) -> Result<&mut Switch, u16> {
    node.switch.as_mut().ok_or(status::METHOD_AND_ATTRIBUTE)
}

fn switch_sl_to_vl(node: &mut Node, modifier: u32, is_set: bool, smp: &mut Smp) -> Result<(), u16> {
    let [_, _, input, output] = modifier.to_be_bytes();
    require(node.port(input).is_some() && node.port(output).is_some())?;
    let written = is_set.then(|| smp.data.header::<SlToVlTable>());
    let table = switch_of(node)?.sl_to_vl(input, output, written);
    smp.data = Octets::holding(&table);
    Ok(())
}

fn switch_info(switch: &mut Switch, modifier: u32, is_set: bool, smp: &mut Smp) -> Result<(), u16> {
    require(modifier == 0)?;
    if is_set {
        switch.configure(&smp.data.header())?;
    }
    smp.data = Octets::holding(&switch.info);
    Ok(())
}

fn linear(switch: &mut Switch, modifier: u32, is_set: bool, smp: &mut Smp) -> Result<(), u16> {
    let written = is_set.then_some(smp.data.0);
    let (ports, _) = exchange(&mut switch.linear, modifier, written)?;
    smp.data = Octets(ports);
    Ok(())
}

fn multicast(switch: &mut Switch, modifier: u32, is_set: bool, smp: &mut Smp) -> Result<(), u16> {
    let (block, position) = (modifier & 0x1ff, modifier >> 28);
    let table = switch.multicast.get_mut(position as usize);
    let table = table.ok_or(status::INVALID_FIELD)?;
    let written = is_set.then(|| smp.data.header::<MulticastForwardingTable>().port_masks);
    let (port_masks, _) = exchange(table, block, written)?;
    smp.data = Octets::holding(&MulticastForwardingTable { port_masks });
    Ok(())
}

/// A subnet manager answers for itself, if there is one.
fn sm_info(port: &Port) -> Result<Processed, u16> {
    let can = |ability| port.info.capability_mask & ability != 0;
    if can(capability::SM_DISABLED) {
        Ok(Processed::Consumed)
    } else if can(capability::IS_SM) {
        Ok(Processed::Pass)
    } else {
        Err(status::METHOD_AND_ATTRIBUTE)
    }
}

/// Writes a block of a table, if there is something to write, and returns it with whether it has changed. The last block may be
/// shorter; then zeros follow.
fn exchange<T: Copy + Default + PartialEq, const N: usize>(
    table: &mut [T],
    number: u32,
    written: Option<[T; N]>,
) -> Result<([T; N], bool), u16> {
    let mut blocks = table.chunks_mut(N);
    let block = blocks.nth(number as usize).ok_or(status::INVALID_FIELD)?;
    let mut has_changed = false;
    if let Some(written) = written {
        let written = &written[..block.len()];
        has_changed = block != written;
        block.copy_from_slice(written);
    }
    let mut shown = [T::default(); N];
    shown[..block.len()].copy_from_slice(block);
    Ok((shown, has_changed))
}

fn require(is_valid: bool) -> Result<(), u16> {
    is_valid.then_some(()).ok_or(status::INVALID_FIELD)
}
