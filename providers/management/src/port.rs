//! Ports: the state of their link, their tables, and the check of the M_Key.

use std::collections::VecDeque;
use std::time::Duration;

use polyverbs_wire::layout::Octets;
use polyverbs_wire::mad::perf::{PortCounters, PortCountersExtended};
use polyverbs_wire::mad::smp::{MAX_UNICAST_LID, PhysicalState, PortInfo, PortState, capability};
use polyverbs_wire::mad::{method, status};

use crate::counters::{Counters, Totals};

/// How soon the agents promise to answer: 4.096 µs × 2^18, 1.07 s, as Linux's software agents do. An answer takes far less.
pub(crate) const RESPONSE_TIME: u8 = 18;

/// A change that a MAD or a link has caused, named as the asynchronous event of verbs if there is one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The port's LIDs have changed.
    LidChange,
    /// The port has another subnet manager.
    SmChange,
    /// The port's P_Key table has changed.
    PkeyChange,
    /// The port's GIDs have changed.
    GidChange,
    /// Programs on the port are to register again with the subnet administrator.
    ClientReregister,
    /// The port has become active.
    PortActive,
    /// The port is no longer active.
    PortErr,
    /// A subnet manager has taken the link down, or enabled the port: the caller takes the other end of the link
    /// [down](Port::link_down) and then both [up](Port::link_up).
    Retrain,
}

/// What a port can do, in the codes of [`PortInfo`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Abilities {
    /// The GUID of the port.
    pub guid: u64,
    /// The widths that the link may have.
    pub widths: u8,
    /// The speeds that the link may have.
    pub speeds: u8,
    /// The extended speeds that the link may have.
    pub extended_speeds: u8,
    /// The largest packets that the port can receive.
    pub mtu: u8,
    /// The virtual lanes that the port has.
    pub vls: u8,
    /// The number of the port's GUIDs, 1 at least.
    pub guids: u8,
    /// The bits of the capability mask.
    pub capability_mask: u32,
}

/// A port of a node.
#[derive(Clone, Debug)]
pub struct Port {
    /// What the port has sent, received and dropped since it was made. The caller counts.
    pub totals: Totals,
    pub(crate) info: PortInfo,
    pub(crate) guids: Vec<u64>,
    pub(crate) p_keys: Vec<u16>,
    pub(crate) sl_to_vl: [u8; 16],
    /// The entries for low and for high priority.
    pub(crate) vl_arbitration: [Octets<64>; 2],
    pub(crate) counters: Counters,
    /// The time at which the protection by the M_Key ends.
    lease_end: Option<Duration>,
    events: VecDeque<Event>,
}

impl Port {
    pub(crate) fn new(abilities: &Abilities, partitions: usize) -> Self {
        const DEFAULT_GID_PREFIX: u64 = 0xfe80 << 48;
        const DEFAULT_P_KEY: u16 = 0xffff;
        // A port with one lane has nothing to arbitrate.
        let arbitration_cap = if abilities.vls > 1 { 32 } else { 0 };
        let info = PortInfo {
            gid_prefix: DEFAULT_GID_PREFIX,
            capability_mask: abilities.capability_mask,
            link_width_enabled: abilities.widths,
            link_width_supported: abilities.widths,
            link_speed_supported: abilities.speeds,
            link_speed_enabled: abilities.speeds,
            link_speed_ext_supported: abilities.extended_speeds,
            link_speed_ext_enabled: abilities.extended_speeds,
            port_state: PortState::DOWN,
            physical_state: PhysicalState::POLLING,
            link_down_default_state: PhysicalState::POLLING,
            neighbor_mtu: abilities.mtu,
            mtu_cap: abilities.mtu,
            vl_cap: abilities.vls,
            operational_vls: abilities.vls,
            vl_arbitration_high_cap: arbitration_cap,
            vl_arbitration_low_cap: arbitration_cap,
            guid_cap: abilities.guids,
            resp_time_value: RESPONSE_TIME,
            ..PortInfo::default()
        };
        let mut guids = vec![0; usize::from(abilities.guids)];
        guids[0] = abilities.guid;
        let mut p_keys = vec![0; partitions];
        p_keys[0] = DEFAULT_P_KEY;
        Self {
            totals: Totals::default(),
            info,
            guids,
            p_keys,
            sl_to_vl: [0; 16],
            vl_arbitration: [Octets::default(); 2],
            counters: Counters::default(),
            lease_end: None,
            events: VecDeque::new(),
        }
    }

    /// Makes this the port 0 of a switch, which has no link and is always active.
    pub(crate) fn be_own_port(&mut self) {
        self.info.port_state = PortState::ACTIVE;
        self.info.physical_state = PhysicalState::LINK_UP;
    }

    /// Returns the state of the port, as a subnet manager with the M_Key reads it; `local_port_num` is 0.
    pub fn info(&self) -> &PortInfo {
        &self.info
    }

    /// Returns the P_Keys of the port.
    pub fn p_keys(&self) -> &[u16] {
        &self.p_keys
    }

    /// Returns the GUIDs of the port; the first is its own.
    pub fn guids(&self) -> &[u64] {
        &self.guids
    }

    /// Returns the virtual lane by service level.
    pub fn sl_to_vl(&self) -> &[u8; 16] {
        &self.sl_to_vl
    }

    /// Returns the counters as the agent of performance management shows them.
    pub fn counters(&self) -> (PortCounters, PortCountersExtended) {
        let mut shown = Default::default();
        let (narrow, wide) = &mut shown;
        self.counters.narrow.show(&self.totals, narrow);
        self.counters.wide.show(&self.totals, wide);
        shown
    }

    /// Says whether the port has a subnet manager, which is a bit of its capability mask.
    pub fn set_sm(&mut self, is_sm: bool) {
        self.info.capability_mask &= !capability::IS_SM;
        if is_sm {
            self.info.capability_mask |= capability::IS_SM;
        }
    }

    /// Counts a packet with a wrong Q_Key.
    pub fn note_q_key_violation(&mut self) {
        self.info.q_key_violations = self.info.q_key_violations.saturating_add(1);
    }

    /// Brings the link up, with the best width and speed that both ends have enabled. Does nothing if the port has a link or is
    /// disabled.
    pub fn link_up(&mut self, neighbor: &PortInfo) {
        let info = &mut self.info;
        if info.port_state != PortState::DOWN || info.physical_state == PhysicalState::DISABLED {
            return;
        }
        info.port_state = PortState::INIT;
        info.physical_state = PhysicalState::LINK_UP;
        info.link_width_active = best(info.link_width_enabled & neighbor.link_width_enabled);
        info.link_speed_active = best(info.link_speed_enabled & neighbor.link_speed_enabled);
        info.link_speed_ext_active =
            best(info.link_speed_ext_enabled & neighbor.link_speed_ext_enabled);
    }

    /// Takes the link down. The port keeps its configuration.
    pub fn link_down(&mut self) {
        self.leave_link(self.info.link_down_default_state);
    }

    fn leave_link(&mut self, physical_state: PhysicalState) {
        if self.info.port_state == PortState::ACTIVE {
            self.note(Event::PortErr);
        }
        self.info.port_state = PortState::DOWN;
        self.info.physical_state = physical_state;
    }

    pub(crate) fn note(&mut self, event: Event) {
        self.events.push_back(event);
    }

    pub(crate) fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Whether the M_Key of a request is right, or is not needed (IBTA 14.2.4). A wrong one is counted, and starts the lease.
    pub(crate) fn admits(&mut self, request: u8, m_key: u64, now: Duration) -> bool {
        let info = &mut self.info;
        if self.lease_end.is_some_and(|end| end <= now) {
            self.lease_end = None;
            info.m_key_protect_bits = 0;
        }
        if info.m_key == 0 || info.m_key == m_key {
            self.lease_end = None;
            return true;
        }
        if request == method::GET && info.m_key_protect_bits <= 1 {
            return true;
        }
        info.m_key_violations = info.m_key_violations.saturating_add(1);
        if info.m_key_lease_period > 0 && self.lease_end.is_none() {
            self.lease_end = Some(now + Duration::from_secs(info.m_key_lease_period.into()));
        }
        false
    }

    /// Configures the port as a whole (IBTA 14.2.5.6).
    ///
    /// # Errors
    /// A value is invalid, and nothing has changed.
    pub(crate) fn configure(&mut self, wanted: &PortInfo) -> Result<(), u16> {
        let old = self.info;
        let new = PortInfo {
            m_key: wanted.m_key,
            gid_prefix: wanted.gid_prefix,
            lid: unicast(old.lid, wanted.lid)?,
            sm_lid: unicast(old.sm_lid, wanted.sm_lid)?,
            m_key_lease_period: wanted.m_key_lease_period,
            link_width_enabled: enabled(
                old.link_width_enabled,
                wanted.link_width_enabled,
                old.link_width_supported,
                0xff,
            )?,
            link_down_default_state: match wanted.link_down_default_state {
                PhysicalState::NO_CHANGE => old.link_down_default_state,
                state @ (PhysicalState::SLEEP | PhysicalState::POLLING) => state,
                _ => return Err(status::INVALID_FIELD),
            },
            m_key_protect_bits: wanted.m_key_protect_bits,
            lmc: wanted.lmc,
            link_speed_enabled: enabled(
                old.link_speed_enabled,
                wanted.link_speed_enabled,
                old.link_speed_supported,
                0x0f,
            )?,
            neighbor_mtu: up_to(old.mtu_cap, wanted.neighbor_mtu)?,
            sm_sl: wanted.sm_sl,
            vl_high_limit: wanted.vl_high_limit,
            vl_stall_count: wanted.vl_stall_count,
            hoq_life: wanted.hoq_life,
            operational_vls: match wanted.operational_vls {
                0 => old.operational_vls,
                vls => up_to(old.vl_cap, vls)?,
            },
            m_key_violations: cleared(old.m_key_violations, wanted.m_key_violations),
            p_key_violations: cleared(old.p_key_violations, wanted.p_key_violations),
            q_key_violations: cleared(old.q_key_violations, wanted.q_key_violations),
            subnet_timeout: wanted.subnet_timeout,
            local_phy_errors: wanted.local_phy_errors,
            overrun_errors: wanted.overrun_errors,
            link_speed_ext_enabled: enabled(
                old.link_speed_ext_enabled,
                wanted.link_speed_ext_enabled,
                old.link_speed_ext_supported,
                0x1f,
            )?,
            ..old
        };
        let transition = Transition::of(&old, wanted)?;
        self.info = new;
        let changes = [
            ((old.lid, old.lmc) != (new.lid, new.lmc), Event::LidChange),
            (
                (old.sm_lid, old.sm_sl) != (new.sm_lid, new.sm_sl),
                Event::SmChange,
            ),
            (old.gid_prefix != new.gid_prefix, Event::GidChange),
            (wanted.client_reregister, Event::ClientReregister),
        ];
        for (_, event) in changes.into_iter().filter(|(has_changed, _)| *has_changed) {
            self.note(event);
        }
        self.make(transition);
        Ok(())
    }

    fn make(&mut self, transition: Transition) {
        match transition {
            Transition::None => {}
            Transition::Arm => self.info.port_state = PortState::ARMED,
            Transition::Activate => {
                self.info.port_state = PortState::ACTIVE;
                self.note(Event::PortActive);
            }
            Transition::Down(physical_state) => {
                self.leave_link(physical_state);
                self.note(Event::Retrain);
            }
        }
    }
}

/// What a write of PortInfo does to the link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Transition {
    None,
    Arm,
    Activate,
    Down(PhysicalState),
}

impl Transition {
    /// The table of transitions (IBTA 7.2.7, 14.2.5.6).
    fn of(old: &PortInfo, wanted: &PortInfo) -> Result<Self, u16> {
        use {PhysicalState as Physical, PortState as State};
        Ok(
            match (old.port_state, wanted.port_state, wanted.physical_state) {
                (_, State::NO_CHANGE, Physical::NO_CHANGE) => Self::None,
                (State::INIT, State::ARMED, Physical::NO_CHANGE) => Self::Arm,
                (State::ARMED, State::ACTIVE, Physical::NO_CHANGE) => Self::Activate,
                // A disabled port stays so until a write names another physical state.
                (_, State::DOWN, Physical::NO_CHANGE) => Self::Down(match old.physical_state {
                    Physical::DISABLED => Physical::DISABLED,
                    _ => old.link_down_default_state,
                }),
                (
                    _,
                    State::NO_CHANGE | State::DOWN,
                    state @ (Physical::SLEEP | Physical::POLLING | Physical::DISABLED),
                ) => Self::Down(state),
                _ => return Err(status::INVALID_FIELD),
            },
        )
    }
}

// A port that no subnet manager has configured has LID 0, which a write may repeat.
fn unicast(old: u16, wanted: u16) -> Result<u16, u16> {
    if wanted == old || (1..=MAX_UNICAST_LID).contains(&wanted) {
        Ok(wanted)
    } else {
        Err(status::INVALID_FIELD)
    }
}

fn enabled(old: u8, wanted: u8, supported: u8, all: u8) -> Result<u8, u16> {
    match wanted {
        0 => Ok(old),
        _ if wanted == all => Ok(supported),
        _ if wanted & !supported == 0 => Ok(wanted),
        _ => Err(status::INVALID_FIELD),
    }
}

fn up_to(most: u8, wanted: u8) -> Result<u8, u16> {
    if (1..=most).contains(&wanted) {
        Ok(wanted)
    } else {
        Err(status::INVALID_FIELD)
    }
}

fn cleared(old: u16, wanted: u16) -> u16 {
    if wanted == 0 { 0 } else { old }
}

/// The highest bit.
fn best(bits: u8) -> u8 {
    bits.checked_ilog2().map_or(0, |bit| 1 << bit)
}
