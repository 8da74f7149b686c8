//! The TOML of a profile: see `docs/profiles.md`.

use std::collections::BTreeMap;
use std::ops::Range;

use polyverbs::capability::{AtomicScope, Baseline, GidSlot, GidType, Mtu};
use polyverbs::{Features, Limit, Transport};
use serde::Deserialize;
use toml::Spanned;

use crate::ability::Ability;
use crate::error::{ProfileError, Source};
use crate::profile::{Evidence, Fact, IdentityFacts, PortFacts, Profile, Quirk, Sure};
use crate::rule::Rule;

/// The version of the format.
const FORMAT: u32 = 1;

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct ProfileText {
    profile: Spanned<u32>,
    name: Spanned<String>,
    class: String,
    summary: String,
    transport: Spanned<String>,
    #[serde(default)]
    fact: Vec<FactText>,
    #[serde(default)]
    quirk: Vec<QuirkText>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct FactText {
    sure: Sure,
    source: Spanned<String>,
    seen: Option<String>,
    note: Option<String>,
    #[serde(default)]
    identity: IdentityText,
    #[serde(default)]
    port: PortText,
    #[serde(default)]
    limits: BTreeMap<Spanned<String>, u64>,
    device_cap_flags: Option<u32>,
    atomic_cap: Option<Spanned<String>>,
    #[serde(default)]
    has: Vec<Spanned<String>>,
    #[serde(default)]
    lacks: Vec<Spanned<String>>,
    #[serde(default)]
    unknown: Vec<Spanned<String>>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
struct IdentityText {
    vendor_id: Option<u32>,
    vendor_part_ids: Vec<u32>,
    hw_ver: Option<u32>,
    fw_ver: Option<String>,
    transport_type: Option<i32>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
struct PortText {
    link_layer: Option<Spanned<String>>,
    active_mtu: Option<Spanned<u32>>,
    lid: Option<u16>,
    lmc: Option<u8>,
    gids: Option<Vec<Spanned<String>>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct QuirkText {
    rule: Spanned<String>,
    sure: Sure,
    source: Spanned<String>,
    seen: Option<String>,
    note: Option<String>,
}

/// Reads a profile.
pub(crate) fn parse(source: Source<'_>) -> Result<Profile, ProfileError> {
    let read: ProfileText = toml::from_str(source.text).map_err(|error| {
        let message = error.message().replace('\n', ", ");
        match error.span() {
            Some(place) => source.fault(&place, message),
            None => source.whole(message),
        }
    })?;
    if *read.profile.get_ref() != FORMAT {
        let message = format!("the format is {FORMAT}, not {}", read.profile.get_ref());
        return Err(source.fault(&read.profile.span(), message));
    }
    let name = read.name.get_ref();
    let is_plain =
        |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-.".contains(&byte);
    if name.is_empty() || !name.bytes().all(is_plain) {
        let message = format!("a name has small letters, digits, - and ., not {name:?}");
        return Err(source.fault(&read.name.span(), message));
    }
    let transport = match read.transport.get_ref().as_str() {
        "roce" => Transport::InfiniBand,
        "iwarp" => Transport::Iwarp,
        other => {
            let message = format!("transport is roce or iwarp, not {other}");
            return Err(source.fault(&read.transport.span(), message));
        }
    };
    let mut said = Said {
        source,
        all: BTreeMap::new(),
    };
    let facts = read.fact.into_iter().map(|fact| fact.read(&mut said));
    let facts = facts.collect::<Result<Vec<_>, _>>()?;
    let mut quirks: Vec<Quirk> = Vec::new();
    for quirk in read.quirk {
        let place = quirk.rule.span();
        let quirk = quirk.read(source)?;
        let name = quirk.name();
        if quirks.iter().any(|known| known.name() == name) {
            let message = format!("there is a quirk {name} already: join the two");
            return Err(source.fault(&place, message));
        }
        quirks.push(quirk);
    }
    let profile = Profile {
        name: read.name.into_inner(),
        class: read.class,
        summary: read.summary,
        transport,
        facts,
        quirks,
    };
    check_features(&profile, &said)?;
    check_services(&profile, source)?;
    Ok(profile)
}

/// What the profile has said so far, and where: nothing is said twice.
struct Said<'a> {
    source: Source<'a>,
    all: BTreeMap<String, Range<usize>>,
}

impl Said<'_> {
    fn once(&mut self, what: &str, place: Range<usize>) -> Result<(), ProfileError> {
        if let Some(first) = self.all.get(what) {
            let first = self.source.fault(first, "").line.unwrap_or_default();
            let message =
                format!("{what} is said in line {first} already: keep the surer of the two");
            return Err(self.source.fault(&place, message));
        }
        self.all.insert(what.to_owned(), place);
        Ok(())
    }
}

impl FactText {
    fn read(self, said: &mut Said<'_>) -> Result<Fact, ProfileError> {
        let source = said.source;
        let place = self.source.span();
        let evidence = evidence(source, self.sure, self.source, self.seen, self.note)?;
        for (key, is_there) in [
            ("vendor-id", self.identity.vendor_id.is_some()),
            ("vendor-part-ids", !self.identity.vendor_part_ids.is_empty()),
            ("hw-ver", self.identity.hw_ver.is_some()),
            ("fw-ver", self.identity.fw_ver.is_some()),
            ("transport-type", self.identity.transport_type.is_some()),
            ("lid", self.port.lid.is_some()),
            ("lmc", self.port.lmc.is_some()),
            ("device-cap-flags", self.device_cap_flags.is_some()),
            ("link-layer", self.port.link_layer.is_some()),
            ("active-mtu", self.port.active_mtu.is_some()),
            ("gids", self.port.gids.is_some()),
            ("atomic-cap", self.atomic_cap.is_some()),
        ] {
            if is_there {
                said.once(key, place.clone())?;
            }
        }
        let mut limits = Vec::new();
        for (name, value) in self.limits {
            let place = name.span();
            let limit = limit(name.get_ref()).map_err(|message| source.fault(&place, message))?;
            said.once(limit.name(), place)?;
            limits.push((limit, value));
        }
        let mut abilities = |names: Vec<Spanned<String>>, is_lacking: bool| {
            let mut found = Vec::new();
            for name in names {
                let place = name.span();
                let ability: Ability = name
                    .get_ref()
                    .parse()
                    .map_err(|message: String| source.fault(&place, message))?;
                if is_lacking && !ability.can_be_lacked() {
                    let message = format!("every device has {ability}: name what it lacks instead");
                    return Err(source.fault(&place, message));
                }
                said.once(name.get_ref(), place)?;
                found.push(ability);
            }
            Ok(found)
        };
        let has = abilities(self.has, false)?;
        let lacks = abilities(self.lacks, true)?;
        let mut unknown = Vec::new();
        for name in self.unknown {
            let is_known =
                limit(name.get_ref()).is_ok() || name.get_ref().parse::<Ability>().is_ok();
            if !is_known {
                let message = format!("{} is neither a limit nor an ability", name.get_ref());
                return Err(source.fault(&name.span(), message));
            }
            said.once(name.get_ref(), name.span())?;
            unknown.push(name.into_inner());
        }
        Ok(Fact {
            evidence,
            identity: IdentityFacts {
                vendor_id: self.identity.vendor_id,
                vendor_part_ids: self.identity.vendor_part_ids,
                hw_ver: self.identity.hw_ver,
                fw_ver: self.identity.fw_ver,
                transport_type: self.identity.transport_type,
            },
            port: self.port.read(source)?,
            limits,
            device_cap_flags: self.device_cap_flags,
            atomic_cap: self
                .atomic_cap
                .map(|text| scope(source, &text))
                .transpose()?,
            has,
            lacks,
            unknown,
        })
    }
}

fn evidence(
    source: Source<'_>,
    sure: Sure,
    place: Spanned<String>,
    seen: Option<String>,
    note: Option<String>,
) -> Result<Evidence, ProfileError> {
    if place.get_ref().trim().is_empty() {
        let message =
            "a source is a file of a driver, an issue or a page: nothing is claimed without one";
        return Err(source.fault(&place.span(), message));
    }
    Ok(Evidence {
        sure,
        source: place.into_inner(),
        seen,
        note,
    })
}

impl QuirkText {
    fn read(self, source: Source<'_>) -> Result<Quirk, ProfileError> {
        let rule: Result<Rule, String> = self.rule.get_ref().parse();
        let rule = rule.map_err(|message| source.fault(&self.rule.span(), message))?;
        Ok(Quirk {
            rule,
            evidence: evidence(source, self.sure, self.source, self.seen, self.note)?,
        })
    }
}

impl PortText {
    fn read(self, source: Source<'_>) -> Result<PortFacts, ProfileError> {
        let is_infiniband = self.link_layer.map(|layer| match layer.get_ref().as_str() {
            "ethernet" => Ok(false),
            "infiniband" => Ok(true),
            other => {
                let message = format!("link-layer is ethernet or infiniband, not {other}");
                Err(source.fault(&layer.span(), message))
            }
        });
        let active_mtu = self.active_mtu.map(|mtu| {
            let found = (1..=5)
                .filter_map(Mtu::from_code)
                .find(|known| known.octets() == *mtu.get_ref());
            found.ok_or_else(|| {
                let message = format!(
                    "an MTU is 256, 512, 1024, 2048 or 4096, not {}",
                    mtu.get_ref()
                );
                source.fault(&mtu.span(), message)
            })
        });
        let gids = self.gids.map(|slots| {
            let slots = slots.iter().map(|slot| gid_slot(source, slot));
            slots.collect::<Result<Vec<_>, _>>()
        });
        Ok(PortFacts {
            is_infiniband: is_infiniband.transpose()?,
            active_mtu: active_mtu.transpose()?,
            lid: self.lid,
            lmc: self.lmc,
            gids: gids.transpose()?,
        })
    }
}

/// The names of the entries of a GID table.
pub(crate) const GID_SLOTS: [(&str, GidSlot); 6] = [
    ("empty", GidSlot::Empty),
    ("v1 link-local", GidSlot::LinkLocal(GidType::RoceV1)),
    ("v2 link-local", GidSlot::LinkLocal(GidType::RoceV2)),
    ("v1 address", GidSlot::Address(GidType::RoceV1)),
    ("v2 address", GidSlot::Address(GidType::RoceV2)),
    ("iwarp", GidSlot::Address(GidType::Iwarp)),
];

fn gid_slot(source: Source<'_>, text: &Spanned<String>) -> Result<GidSlot, ProfileError> {
    let found = GID_SLOTS.iter().find(|(name, _)| name == text.get_ref());
    found.map(|(_, slot)| *slot).ok_or_else(|| {
        let known: Vec<_> = GID_SLOTS.iter().map(|(name, _)| *name).collect();
        let message = format!(
            "a GID is one of {}, not {}",
            known.join(", "),
            text.get_ref()
        );
        source.fault(&text.span(), message)
    })
}

fn scope(source: Source<'_>, text: &Spanned<String>) -> Result<AtomicScope, ProfileError> {
    Ok(match text.get_ref().as_str() {
        "none" => AtomicScope::None,
        "hca" => AtomicScope::Hca,
        "global" => AtomicScope::Global,
        other => {
            let message = format!("atomic-cap is none, hca or global, not {other}");
            return Err(source.fault(&text.span(), message));
        }
    })
}

/// Finds a limit by its name in verbs.
pub(crate) fn limit(name: &str) -> Result<Limit, String> {
    let found = Limit::ALL.iter().find(|known| known.name() == name);
    found.copied().ok_or_else(|| {
        let known: Vec<_> = Limit::ALL.iter().map(|known| known.name()).collect();
        format!("no limit is called {name}; there are {}", known.join(", "))
    })
}

/// A feature comes with its limit.
fn check_features(profile: &Profile, said: &Said<'_>) -> Result<(), ProfileError> {
    let windows = [Features::WINDOW_1, Features::WINDOW_2A, Features::WINDOW_2B];
    let pairs = [
        (Features::SRQ, Limit::MaxSrq),
        (Features::SRQ, Limit::MaxSrqWr),
        (Features::MULTICAST, Limit::MaxMcastGrp),
        (Features::BMME, Limit::MaxFastRegPageListLen),
    ];
    for (feature, limit) in pairs
        .into_iter()
        .chain(windows.map(|window| (window, Limit::MaxMw)))
    {
        let ability = Ability::Core(feature);
        let has = matches!(profile.ability(&ability), Some((true, _)));
        let is_zero = matches!(profile.limit(limit), Some((0, _)));
        if has && is_zero {
            let place = said.all.get(&ability.to_string()).cloned();
            let message = format!("has {ability}, but {limit} is 0: one of the two is wrong");
            return Err(said.source.fault(&place.unwrap_or_default(), message));
        }
    }
    let atomics = Ability::Baseline(Baseline::ATOMICS);
    let has = matches!(profile.ability(&atomics), Some((true, _)));
    if has && matches!(profile.atomic_cap(), Some((AtomicScope::None, _))) {
        let place = said.all.get("ATOMICS").cloned().unwrap_or_default();
        let message = "has ATOMICS, but atomic-cap is none: one of the two is wrong";
        return Err(said.source.fault(&place, message));
    }
    Ok(())
}

/// Every profile says which queue pairs there are.
fn check_services(profile: &Profile, source: Source<'_>) -> Result<(), ProfileError> {
    let unsaid = [Baseline::RC, Baseline::UC, Baseline::UD].map(Ability::Baseline);
    let is_unknown = |ability: &Ability| {
        let name = ability.to_string();
        profile
            .facts
            .iter()
            .any(|fact| fact.unknown.contains(&name))
    };
    let unsaid = unsaid
        .into_iter()
        .find(|it| profile.ability(it).is_none() && !is_unknown(it));
    match unsaid {
        Some(ability) => Err(source.whole(format!(
            "nothing is said about {ability}: name it in `has`, `lacks` or `unknown` of a fact"
        ))),
        None => Ok(()),
    }
}
