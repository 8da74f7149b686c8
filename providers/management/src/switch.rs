//! What a switch has besides its ports: SwitchInfo and the forwarding tables (IBTA 14.2.5.4, 14.2.5.10 to 14.2.5.12).

use std::collections::BTreeMap;

use polyverbs_wire::mad::smp::{MAX_UNICAST_LID, SlToVlTable, SwitchInfo};
use polyverbs_wire::mad::status;

/// What a switch can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SwitchAbilities {
    /// The number of LIDs that the linear forwarding table can have.
    pub unicast_lids: u16,
    /// The number of LIDs that the multicast forwarding table can have.
    pub multicast_lids: u16,
}

/// The state of a switch.
#[derive(Clone, Debug)]
pub(crate) struct Switch {
    pub(crate) info: SwitchInfo,
    /// The port by LID.
    pub(crate) linear: Vec<u8>,
    /// Ports by multicast LID, for each group of 16 ports.
    pub(crate) multicast: Vec<Vec<u16>>,
    /// By input and output port. Most are as they were at first, and not here.
    sl_to_vl: BTreeMap<(u8, u8), SlToVlTable>,
}

impl Switch {
    pub(crate) fn new(abilities: &SwitchAbilities, partitions: u16) -> Self {
        let info = SwitchInfo {
            linear_fdb_cap: abilities.unicast_lids,
            multicast_fdb_cap: abilities.multicast_lids,
            life_time_value: LIFE_TIME,
            partition_enforcement_cap: partitions,
            inbound_enforcement_cap: true,
            outbound_enforcement_cap: true,
            ..SwitchInfo::default()
        };
        Self {
            info,
            linear: vec![NO_PORT; abilities.unicast_lids.into()],
            multicast: vec![vec![0; abilities.multicast_lids.into()]; GROUPS],
            sl_to_vl: BTreeMap::new(),
        }
    }

    /// Configures the switch as a whole.
    ///
    /// # Errors
    /// A value is invalid, and nothing has changed.
    pub(crate) fn configure(&mut self, wanted: &SwitchInfo) -> Result<(), u16> {
        let old = self.info;
        if wanted.linear_fdb_top >= old.linear_fdb_cap && wanted.linear_fdb_top > 0 {
            return Err(status::INVALID_FIELD);
        }
        self.info = SwitchInfo {
            linear_fdb_top: wanted.linear_fdb_top,
            default_port: wanted.default_port,
            default_multicast_primary_port: wanted.default_multicast_primary_port,
            default_multicast_not_primary_port: wanted.default_multicast_not_primary_port,
            life_time_value: wanted.life_time_value,
            port_state_change: old.port_state_change && !wanted.port_state_change,
            multicast_fdb_top: wanted.multicast_fdb_top,
            ..old
        };
        Ok(())
    }

    pub(crate) fn sl_to_vl(
        &mut self,
        input: u8,
        output: u8,
        written: Option<SlToVlTable>,
    ) -> SlToVlTable {
        if let Some(table) = written {
            self.sl_to_vl.insert((input, output), table);
        }
        let known = self.sl_to_vl.get(&(input, output));
        known.copied().unwrap_or_default()
    }

    pub(crate) fn forward(&self, lid: u16) -> Option<u8> {
        if lid > self.info.linear_fdb_top {
            return None;
        }
        let port = self.linear.get(usize::from(lid))?;
        Some(*port).filter(|port| *port != NO_PORT)
    }

    pub(crate) fn forward_multicast(&self, lid: u16, ports: u8) -> Vec<u8> {
        let Some(index) = lid.checked_sub(MAX_UNICAST_LID + 1).map(usize::from) else {
            return Vec::new();
        };
        let has = |port: &u8| {
            let (group, bit) = (usize::from(port / 16), port % 16);
            let mask = self.multicast.get(group).and_then(|it| it.get(index));
            mask.is_some_and(|mask| mask & 1 << bit != 0)
        };
        (0..=ports).filter(has).collect()
    }
}

/// The entry of LIDs that no port leads to.
const NO_PORT: u8 = 0xff;
/// As many groups of ports as the modifier can name.
const GROUPS: usize = 16;
/// 4.096 µs × 2^18, what opensm sets.
const LIFE_TIME: u8 = 18;
