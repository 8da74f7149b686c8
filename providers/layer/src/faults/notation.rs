//! A script of faults: its rules, and how they are written.

use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use verbs_api::WcStatus;
use verbs_api::completion::WcOpcode;
use verbs_api::event::EventType;
use verbs_api::qp::{QpState, QpType};

use super::names::{CM_EVENTS, EVENTS, OPERATIONS, STATES, STATUSES, TYPES, errno_name, name_of};
use crate::verb::Verb;

/// A rule of a script: what it is about, when it fires, and what happens then.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    pub(super) what: What,
    pub(super) filter: Filter,
    pub(super) when: When,
    pub(super) chance: Option<Chance>,
    pub(super) acts: Vec<Act>,
}

/// What a rule is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum What {
    /// A verb of a device.
    Verb(Verb),
    /// A call of the libraries for C.
    Library(&'static str),
    /// A completion, of any operation or of one.
    Completion(Option<WcOpcode>),
    /// An asynchronous event.
    Event,
    /// An event of the connection manager, by code.
    Cm(u8),
}

/// Which of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Filter {
    pub(super) dev: Option<String>,
    pub(super) qp: Option<u32>,
    pub(super) cq: Option<u32>,
    pub(super) srq: Option<u32>,
    pub(super) qp_type: Option<QpType>,
    pub(super) event: Option<EventType>,
    pub(super) op: Option<WcOpcode>,
    pub(super) to: Option<QpState>,
    pub(super) peer: Option<IpAddr>,
}

/// At which occurrences of those that are counted, or at which time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum When {
    Counts {
        first: u64,
        last: Option<u64>,
        step: u64,
    },
    Time(Duration),
}

impl When {
    /// Every occurrence.
    pub(super) const ALWAYS: Self = Self::Counts {
        first: 1,
        last: None,
        step: 1,
    };

    pub(super) fn includes(self, count: u64) -> bool {
        match self {
            Self::Counts { first, last, step } => {
                count >= first
                    && last.is_none_or(|last| count <= last)
                    && (count - first).is_multiple_of(step)
            }
            Self::Time(_) => false,
        }
    }
}

/// A chance, in millionths of a percent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Chance(pub(super) u32);

impl Chance {
    pub(super) const ALL: u32 = 100_000_000;

    /// Whether a rule with this chance fires at this occurrence. The answer depends only on seed, rule and count.
    pub(super) fn hits(self, seed: u64, rule: usize, count: u64) -> bool {
        let mixed = mix(mix(mix(seed) ^ rule as u64) ^ count);
        mixed % u64::from(Self::ALL) < u64::from(self.0)
    }
}

/// The finalizer of SplitMix64, whose output passes for random.
const fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

/// What happens when a rule fires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Act {
    /// The verb fails, or the event of the connection manager has this status.
    Errno(i32),
    /// The request has failed.
    Status(WcStatus, u32),
    /// The completion says so, and nothing else happens.
    BareStatus(WcStatus, u32),
    /// The event occurs, with what a device does when it occurs.
    Event(EventType),
    /// The event is reported, and nothing else happens.
    BareEvent(EventType),
    /// The event of the connection manager is this one instead.
    Cm(u8),
    /// The program never gets it.
    Lost,
    /// It comes later.
    Delay(Duration),
    /// The completion is held back, and those of its queue pair after it.
    Hold(Duration),
    /// The acts that follow happen later.
    After(Duration),
    /// The rule ends.
    Off,
}

impl Rule {
    /// The rule that fires at this count only.
    pub(super) fn exactly(&self, count: u64) -> Self {
        Self {
            when: match self.when {
                When::Counts { .. } => When::Counts {
                    first: count,
                    last: Some(count),
                    step: 1,
                },
                time => time,
            },
            chance: None,
            acts: self
                .acts
                .iter()
                .copied()
                .filter(|act| *act != Act::Off)
                .collect(),
            ..self.clone()
        }
    }

    /// Whether only the libraries for C can carry it out.
    pub fn is_for_c(&self) -> bool {
        matches!(self.what, What::Library(_) | What::Cm(_))
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}{}", self.what, self.filter, self.when)?;
        if let Some(Chance(millionths)) = self.chance {
            write!(f, "~{}%", f64::from(millionths) / 1e6)?;
        }
        for (place, act) in self.acts.iter().enumerate() {
            write!(f, "{}{act}", if place == 0 { ":" } else { "->" })?;
        }
        Ok(())
    }
}

impl fmt::Display for What {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Verb(verb) => write!(f, "{verb}"),
            Self::Library(call) => f.write_str(call),
            Self::Completion(None) => f.write_str("wc"),
            Self::Completion(Some(op)) => write!(f, "wc.{}", name_of(OPERATIONS, op)),
            Self::Event => f.write_str("event"),
            Self::Cm(event) => write!(f, "cm.{}", CM_EVENTS[usize::from(*event)]),
        }
    }
}

impl fmt::Display for Filter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number = |name, number: &Option<u32>| number.map(|number| format!("{name}={number}"));
        let parts = [
            self.dev.as_ref().map(|dev| format!("dev={dev}")),
            number("qp", &self.qp),
            number("cq", &self.cq),
            number("srq", &self.srq),
            (self.qp_type.as_ref()).map(|kind| format!("type={}", name_of(TYPES, kind))),
            (self.event.as_ref()).map(|event| format!("type={}", name_of(EVENTS, event))),
            (self.op.as_ref()).map(|op| format!("op={}", name_of(OPERATIONS, op))),
            (self.to.as_ref()).map(|to| format!("to={}", name_of(STATES, to))),
            self.peer.as_ref().map(|peer| format!("peer={peer}")),
        ];
        let parts: Vec<_> = parts.into_iter().flatten().collect();
        match parts.is_empty() {
            true => Ok(()),
            false => write!(f, "[{}]", parts.join(",")),
        }
    }
}

impl fmt::Display for When {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::ALWAYS => Ok(()),
            Self::Time(time) => write!(f, "@{}", Time(time)),
            Self::Counts { first, last, step } => {
                write!(f, "@{first}")?;
                match last {
                    Some(last) if last == first => Ok(()),
                    Some(last) if step == 1 => write!(f, "..{last}"),
                    Some(last) => write!(f, "..{last}+{step}"),
                    None if step == 1 => f.write_str("+"),
                    None => write!(f, "+{step}"),
                }
            }
        }
    }
}

impl fmt::Display for Act {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bare = match self {
            Self::BareStatus(..) | Self::BareEvent(_) => "bare ",
            _ => "",
        };
        match *self {
            Self::Errno(errno) => f.write_str(&errno_name(errno)),
            Self::Status(status, vendor) | Self::BareStatus(status, vendor) => {
                write!(f, "{bare}{}", name_of(STATUSES, &status))?;
                match vendor {
                    0 => Ok(()),
                    code => write!(f, " vendor {code:#x}"),
                }
            }
            Self::Event(event) | Self::BareEvent(event) => {
                write!(f, "{bare}{}", name_of(EVENTS, &event))
            }
            Self::Cm(event) => f.write_str(CM_EVENTS[usize::from(event)]),
            Self::Lost => f.write_str("lost"),
            Self::Delay(time) => write!(f, "delay {}", Time(time)),
            Self::Hold(time) => write!(f, "hold {}", Time(time)),
            Self::After(time) => write!(f, "after {}", Time(time)),
            Self::Off => f.write_str("off"),
        }
    }
}

/// A time in the largest unit in which it is a whole number.
struct Time(Duration);

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nanoseconds = self.0.as_nanos();
        let units = [(1_000_000_000, "s"), (1_000_000, "ms"), (1000, "us")];
        let whole = |(unit, _): &&(u128, &str)| nanoseconds.is_multiple_of(*unit);
        match units.iter().find(whole) {
            Some((unit, name)) => write!(f, "{}{name}", nanoseconds / unit),
            None => write!(f, "{nanoseconds}ns"),
        }
    }
}
