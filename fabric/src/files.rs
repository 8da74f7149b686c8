//! What programs read below `/sys` about a port, in the texts of Linux.

use polyverbs_wire::mad::perf::{PortCounters, PortCountersExtended};
use polyverbs_wire::mad::smp::{PhysicalState, PortInfo, PortState};

use crate::protocol::{ActiveRate, PortReport};

/// The files of a port, with their paths below its folder. Each text ends with the end of a line.
pub fn of_port(
    port: &PortReport,
    narrow: &PortCounters,
    wide: &PortCountersExtended,
) -> Vec<(String, String)> {
    let info = port.info();
    let about = [
        ("state", state(&info).to_owned()),
        ("phys_state", physical_state(&info).to_owned()),
        ("link_layer", "InfiniBand".to_owned()),
        ("lid", format!("{:#x}", info.lid)),
        ("sm_lid", format!("{:#x}", info.sm_lid)),
        ("lid_mask_count", info.lmc.to_string()),
        ("sm_sl", info.sm_sl.to_string()),
        ("cap_mask", format!("{:#010x}", info.capability_mask)),
        ("rate", rate(port)),
    ];
    let about = about.map(|(name, text)| (name.to_owned(), text));
    let p_keys = port.p_keys.iter().map(|it| format!("{it:#06x}"));
    let gids = port.guids.iter().map(|guid| {
        let gid = [info.gid_prefix.to_be_bytes(), guid.to_be_bytes()].concat();
        by_fours(&gid)
    });
    let files = about
        .into_iter()
        .chain(list("pkeys", p_keys))
        .chain(list("gids", gids))
        .chain(counters(narrow, wide));
    files.map(|(path, text)| (path, text + "\n")).collect()
}

fn counters(
    narrow: &PortCounters,
    wide: &PortCountersExtended,
) -> impl Iterator<Item = (String, String)> {
    let counters: [(&str, u64); 21] = [
        ("symbol_error", narrow.symbol_errors.into()),
        ("link_error_recovery", narrow.link_error_recoveries.into()),
        ("link_downed", narrow.link_downed.into()),
        ("port_rcv_errors", narrow.rcv_errors.into()),
        (
            "port_rcv_remote_physical_errors",
            narrow.rcv_remote_physical_errors.into(),
        ),
        (
            "port_rcv_switch_relay_errors",
            narrow.rcv_switch_relay_errors.into(),
        ),
        ("port_xmit_discards", narrow.xmit_discards.into()),
        (
            "port_xmit_constraint_errors",
            narrow.xmit_constraint_errors.into(),
        ),
        (
            "port_rcv_constraint_errors",
            narrow.rcv_constraint_errors.into(),
        ),
        (
            "local_link_integrity_errors",
            narrow.local_link_integrity_errors.into(),
        ),
        (
            "excessive_buffer_overrun_errors",
            narrow.excessive_buffer_overrun_errors.into(),
        ),
        ("VL15_dropped", narrow.vl15_dropped.into()),
        ("port_xmit_wait", narrow.xmit_wait.into()),
        ("port_xmit_data", wide.xmit_data),
        ("port_rcv_data", wide.rcv_data),
        ("port_xmit_packets", wide.xmit_pkts),
        ("port_rcv_packets", wide.rcv_pkts),
        ("unicast_xmit_packets", wide.unicast_xmit_pkts),
        ("unicast_rcv_packets", wide.unicast_rcv_pkts),
        ("multicast_xmit_packets", wide.multicast_xmit_pkts),
        ("multicast_rcv_packets", wide.multicast_rcv_pkts),
    ];
    let file = |(name, value): (&str, u64)| (format!("counters/{name}"), value.to_string());
    counters.into_iter().map(file)
}

fn list(
    folder: &str,
    texts: impl Iterator<Item = String>,
) -> impl Iterator<Item = (String, String)> {
    let numbered = texts.enumerate();
    numbered.map(move |(index, text)| (format!("{folder}/{index}"), text))
}

fn state(info: &PortInfo) -> &'static str {
    match info.port_state {
        PortState::DOWN => "1: DOWN",
        PortState::INIT => "2: INIT",
        PortState::ARMED => "3: ARMED",
        PortState::ACTIVE => "4: ACTIVE",
        _ => "0: NOP",
    }
}

fn physical_state(info: &PortInfo) -> &'static str {
    match info.physical_state {
        PhysicalState::SLEEP => "1: Sleep",
        PhysicalState::POLLING => "2: Polling",
        PhysicalState::DISABLED => "3: Disabled",
        PhysicalState::LINK_UP => "5: LinkUp",
        _ => "0: No state change",
    }
}

fn rate(port: &PortReport) -> String {
    let ActiveRate { lanes, speed, name } = port.rate();
    let all = f64::from(lanes * speed) / 10.0;
    format!("{all} Gb/sec ({lanes}X {name})")
}

/// Hexadecimal with a colon after each two bytes, as the kernel shows GUIDs and GIDs.
pub fn by_fours(bytes: &[u8]) -> String {
    let groups: Vec<String> = bytes
        .chunks(2)
        .map(|pair| pair.iter().map(|byte| format!("{byte:02x}")).collect())
        .collect();
    groups.join(":")
}
