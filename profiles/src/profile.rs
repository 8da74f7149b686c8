//! A profile, as it was read.

use std::fmt;
use std::path::Path;

use polyverbs::capability::{AtomicScope, GidSlot, Mtu};
use polyverbs::{Limit, Transport};
use serde::{Deserialize, Serialize};

use crate::ability::Ability;
use crate::error::{ProfileError, Source};
use crate::format;
use crate::rule::Rule;
use crate::shipped::SHIPPED;

/// The facts about one class of devices, and its quirks.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Profile {
    /// The name of the profile: that of its file, and what `--as` takes.
    pub name: String,
    /// The class of devices: mostly the name of the driver.
    pub class: String,
    /// The devices in one line.
    pub summary: String,
    /// The family of protocols that the devices speak, or the nearest one that an emulated device has.
    pub transport: Transport,
    /// The facts, each group with its source.
    pub facts: Vec<Fact>,
    /// What programs have met on these devices that no attribute says.
    pub quirks: Vec<Quirk>,
}

/// Facts with one source.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Fact {
    /// Where the facts are from.
    pub evidence: Evidence,
    /// The vendor and the model.
    pub identity: IdentityFacts,
    /// The attributes of the port.
    pub port: PortFacts,
    /// Limits with their values.
    pub limits: Vec<(Limit, u64)>,
    /// The flags that C programs see in `device_cap_flags`, whatever the device can do.
    pub device_cap_flags: Option<u32>,
    /// With respect to what atomics are atomic.
    pub atomic_cap: Option<AtomicScope>,
    /// What the devices can do.
    pub has: Vec<Ability>,
    /// What the devices cannot do.
    pub lacks: Vec<Ability>,
    /// Names of limits and abilities that were looked for and not found.
    pub unknown: Vec<String>,
}

/// Where facts are from, and how sure they are.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Evidence {
    /// How sure the facts are.
    pub sure: Sure,
    /// The place: a file of a driver, an issue, a page.
    pub source: String,
    /// When it was read or reported, as a date or a part of one.
    pub seen: Option<String>,
    /// What a reader should know in addition.
    pub note: Option<String>,
}

/// How sure a fact is: the surest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Sure {
    /// Probes of this project measured it on such a device.
    Measured,
    /// It was read in the source of a driver or a library.
    Source,
    /// It is in the published output of a tool.
    Output,
    /// It is in the report of one user.
    Report,
}

impl fmt::Display for Sure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Measured => "measured",
            Self::Source => "source",
            Self::Output => "output",
            Self::Report => "report",
        })
    }
}

/// The vendor and the model of a class of devices, as far as it is known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IdentityFacts {
    /// The vendor's number.
    pub vendor_id: Option<u32>,
    /// The numbers of the models; an emulated device has the first one.
    pub vendor_part_ids: Vec<u32>,
    /// The version of the hardware.
    pub hw_ver: Option<u32>,
    /// The version of the firmware.
    pub fw_ver: Option<String>,
    /// The number that C programs see in `transport_type`, where it is not that of the transport.
    pub transport_type: Option<i32>,
}

/// The attributes of a class's ports, as far as they are known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PortFacts {
    /// Whether the link layer is InfiniBand, and not Ethernet.
    pub is_infiniband: Option<bool>,
    /// The usual MTU.
    pub active_mtu: Option<Mtu>,
    /// The LID that C programs see, where an Ethernet port has one.
    pub lid: Option<u16>,
    /// The LMC that C programs see.
    pub lmc: Option<u8>,
    /// The layout of the GID table.
    pub gids: Option<Vec<GidSlot>>,
}

/// Something that programs have met on a class of devices: a rule that its emulated devices obey.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Quirk {
    /// The rule.
    pub rule: Rule,
    /// Who met it.
    pub evidence: Evidence,
}

impl Quirk {
    /// Returns the name by which the quirk is turned off: unique in its profile.
    pub fn name(&self) -> String {
        self.rule.name()
    }
}

impl Profile {
    /// Reads a profile from TOML. `file` is the name of the file in errors.
    ///
    /// # Errors
    /// The first fault of the text, with its line and what would be right.
    pub fn parse(file: &str, text: &str) -> Result<Self, ProfileError> {
        format::parse(Source { file, text })
    }

    /// Returns the profile of this name that is shipped, or, if `name` is that of a TOML file, reads the file.
    ///
    /// # Errors
    /// There is no such profile, or the file cannot be read or has a fault.
    pub fn named(name: &str) -> Result<Self, ProfileError> {
        if let Some((file, text)) = SHIPPED.iter().find(|(known, _)| *known == name) {
            return Self::parse(&format!("{file}.toml"), text);
        }
        let whole = |message| {
            Source {
                file: name,
                text: "",
            }
            .whole(message)
        };
        if name.contains('/') || name.ends_with(".toml") {
            let text = std::fs::read_to_string(Path::new(name))
                .map_err(|error| whole(format!("cannot be read: {error}")))?;
            return Self::parse(name, &text);
        }
        let known: Vec<_> = SHIPPED.iter().map(|(name, _)| *name).collect();
        Err(whole(format!(
            "no profile has this name; there are {}, and files that end in .toml",
            known.join(", ")
        )))
    }

    /// Returns the names of the profiles that are shipped, in alphabetical order.
    pub fn names() -> impl Iterator<Item = &'static str> {
        SHIPPED.iter().map(|(name, _)| *name)
    }

    /// Returns the profiles that are shipped, in alphabetical order of their names.
    ///
    /// # Errors
    /// The first fault of a shipped profile, which a test of this crate would have found.
    pub fn shipped() -> Result<Vec<Self>, ProfileError> {
        Self::names().map(Self::named).collect()
    }

    /// Returns the value of a limit, with its source; `None` if it is not known.
    pub fn limit(&self, limit: Limit) -> Option<(u64, &Evidence)> {
        self.fact(|fact| {
            let found = fact.limits.iter().find(|(known, _)| *known == limit);
            found.map(|(_, value)| *value)
        })
    }

    /// Returns whether the devices have an ability, with its source; `None` if it is not known.
    pub fn ability(&self, ability: &Ability) -> Option<(bool, &Evidence)> {
        self.fact(|fact| {
            let has = fact.has.contains(ability).then_some(true);
            has.or(fact.lacks.contains(ability).then_some(false))
        })
    }

    /// Returns with respect to what atomics are atomic, with its source; `None` if it is not known.
    pub fn atomic_cap(&self) -> Option<(AtomicScope, &Evidence)> {
        self.fact(|fact| fact.atomic_cap)
    }

    /// Returns the first fact that has what `of` looks for, with its source.
    pub(crate) fn fact<'a, T>(
        &'a self,
        of: impl Fn(&'a Fact) -> Option<T>,
    ) -> Option<(T, &'a Evidence)> {
        let mut found = self.facts.iter();
        found.find_map(|fact| Some((of(fact)?, &fact.evidence)))
    }
}
