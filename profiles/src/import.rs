//! Profiles of what devices have said: the output of `ibv_devinfo -v`, and the JSON of `polyverbs matrix`.
//!
//! What identifies one machine or one card is left out: GUIDs, addresses, GIDs, names.

use polyverbs::capability::{
    AtomicScope, Baseline, DeviceAttributes, GidEntry, GidSlot, GidType, Mtu,
};
use polyverbs::{Features, Limit, Transport};
use serde_json::Value;

use crate::ability::Ability;
use crate::error::{ProfileError, Source};
use crate::format;
use crate::profile::{Evidence, Fact, IdentityFacts, PortFacts, Profile, Sure};

/// A profile that was made of a posted text.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Imported {
    /// The profile.
    pub profile: Profile,
    /// The lines that were not understood, without what identifies a machine.
    pub rest: Vec<String>,
}

impl Imported {
    /// A profile of a text of which every line was understood.
    pub fn of(profile: Profile) -> Self {
        Self {
            profile,
            rest: Vec::new(),
        }
    }
}

/// Returns the layout of a device's GID table, without the GIDs; `None` where GIDs are not of RoCE.
pub fn gid_layout(device: &DeviceAttributes) -> Option<Vec<GidSlot>> {
    let entry = |entry: &GidEntry| {
        let is_link_local = entry.gid.0.starts_with(&[0xfe, 0x80]);
        Some(match entry.gid_type {
            _ if entry.is_empty() => GidSlot::Empty,
            GidType::RoceV1 | GidType::RoceV2 if is_link_local => {
                GidSlot::LinkLocal(entry.gid_type)
            }
            GidType::RoceV1 | GidType::RoceV2 => GidSlot::Address(entry.gid_type),
            GidType::Ib | GidType::Iwarp => return None,
        })
    };
    device.ports.first()?.gids.iter().map(entry).collect()
}

/// What identifies one machine or card, by the key of `ibv_devinfo`.
const PERSONAL: [&str; 4] = ["hca_id", "node_guid", "sys_image_guid", "port"];

impl Profile {
    /// Makes a profile of a posted text: `ibv_devinfo -v` as it prints it, cut off or with lines of other
    /// versions, or the JSON of `polyverbs matrix`. `name` becomes the name of the profile, and `source` the source of its facts.
    ///
    /// # Errors
    /// The text is neither of them, or a number of it is none.
    pub fn import(name: &str, source: &str, text: &str) -> Result<Imported, ProfileError> {
        let whole = |message: &str| Source { file: source, text }.whole(message);
        match serde_json::from_str::<Value>(text) {
            Ok(matrix) => Self::of_matrix(name, source, &matrix, None).map(Imported::of),
            Err(_) if text.trim_start().starts_with('{') => Err(whole(
                "is no JSON of `polyverbs matrix --json`: is it cut off?",
            )),
            Err(_) => of_devinfo(name, source, text),
        }
    }

    /// Makes a profile of a device in the JSON of `polyverbs matrix`; of the only one if `device` names none. If probes were
    /// run, only what they have verified counts as there.
    ///
    /// # Errors
    /// The value is no such JSON, or has no such device, or several and none is named.
    pub fn of_matrix(
        name: &str,
        source: &str,
        matrix: &Value,
        device: Option<&str>,
    ) -> Result<Self, ProfileError> {
        let whole = |message: String| {
            Source {
                file: source,
                text: "",
            }
            .whole(message)
        };
        let reports = matrix["reports"].as_array();
        let reports = reports.ok_or_else(|| {
            whole("has no `reports`: it is no JSON of `polyverbs matrix --json`".into())
        })?;
        let names = || {
            let names: Vec<_> = reports
                .iter()
                .filter_map(|it| it["name"].as_str())
                .collect();
            names.join(", ")
        };
        let report = match device {
            Some(device) => reports.iter().find(|it| it["name"] == device),
            None if reports.len() > 1 => {
                return Err(whole(format!(
                    "has several devices: name one of {} with --device",
                    names()
                )));
            }
            None => reports.first(),
        };
        let report =
            report.ok_or_else(|| whole(format!("has no such device; it has {}", names())))?;
        let device = report["name"].as_str().unwrap_or_default();
        let mut fact = fact(Sure::Output, source);
        if matrix["verified"] == true {
            fact.evidence.sure = Sure::Measured;
        }
        fact.identity = identity(&report["identity"]);
        fact.atomic_cap = match report["atomic_cap"].as_str() {
            Some("none") => Some(AtomicScope::None),
            Some("hca") => Some(AtomicScope::Hca),
            Some("global") => Some(AtomicScope::Global),
            _ => None,
        };
        let mtu = report["ports"][0]["active_mtu"].as_u64();
        fact.port.active_mtu = mtu.and_then(mtu_of);
        for (limit, value) in report["limits"].as_object().into_iter().flatten() {
            if let (Ok(limit), Some(value)) = (format::limit(limit), value.as_u64())
                && limit != Limit::PhysPortCnt
            {
                fact.limits.push((limit, value));
            }
        }
        let mut broken = Vec::new();
        for row in matrix["rows"].as_array().into_iter().flatten() {
            let cell = &row["cells"][device];
            let ability = row["feature"].as_str().map(str::parse::<Ability>);
            let Some(Ok(ability)) = ability else { continue };
            match cell["claimed"].as_bool() {
                Some(true) => {
                    fact.has.push(ability);
                    if cell["verdict"] == "mismatch" {
                        broken.push(ability.to_string());
                    }
                }
                Some(false) if ability.can_be_lacked() => fact.lacks.push(ability),
                _ => {}
            }
        }
        if !broken.is_empty() {
            let note = format!(
                "Claims that probes found broken in places: {}.",
                broken.join(", ")
            );
            fact.evidence.note = Some(note);
        }
        let transport = match report["transport"].as_str() {
            Some("iwarp") => Transport::Iwarp,
            _ => Transport::InfiniBand,
        };
        Ok(profile(name, transport, fact))
    }
}

fn mtu_of(octets: u64) -> Option<Mtu> {
    let mut all = (1..=5).filter_map(Mtu::from_code);
    all.find(|known| u64::from(known.octets()) == octets)
}

fn fact(sure: Sure, source: &str) -> Fact {
    Fact {
        evidence: Evidence {
            sure,
            source: source.to_owned(),
            seen: None,
            note: None,
        },
        identity: IdentityFacts::default(),
        port: PortFacts::default(),
        limits: Vec::new(),
        device_cap_flags: None,
        atomic_cap: None,
        has: Vec::new(),
        lacks: Vec::new(),
        unknown: Vec::new(),
    }
}

fn profile(name: &str, transport: Transport, mut fact: Fact) -> Profile {
    for service in [Baseline::RC, Baseline::UC, Baseline::UD].map(Ability::Baseline) {
        if !fact.has.contains(&service) && !fact.lacks.contains(&service) {
            fact.unknown.push(service.to_string());
        }
    }
    Profile {
        name: name.to_owned(),
        class: "imported".to_owned(),
        summary: "imported; write here what it is".to_owned(),
        transport,
        facts: vec![fact],
        quirks: Vec::new(),
    }
}

fn identity(report: &Value) -> IdentityFacts {
    let number = |key: &str| report[key].as_u64().and_then(|it| u32::try_from(it).ok());
    IdentityFacts {
        vendor_id: number("vendor_id"),
        vendor_part_ids: number("vendor_part_id").into_iter().collect(),
        hw_ver: number("hw_ver"),
        fw_ver: report["fw_ver"].as_str().map(str::to_owned),
        transport_type: None,
    }
}

fn of_devinfo(name: &str, source: &str, text: &str) -> Result<Imported, ProfileError> {
    let mut fact = fact(Sure::Output, source);
    let mut transport = Transport::InfiniBand;
    let mut gids = Vec::new();
    let (mut flags, mut understood, mut rest) = (0, 0, Vec::new());
    let mut place = 0;
    for line in text.split_inclusive('\n') {
        let at = place..place + line.len();
        place = at.end;
        let Some((key, value)) = line.trim().split_once(':') else {
            // The names of flags, which the number has said.
            continue;
        };
        let (key, value) = (key.trim(), value.trim());
        if key.starts_with("GID[") {
            understood += 1;
            gids.extend(gid_slot(value));
            continue;
        }
        if PERSONAL.contains(&key) || value.is_empty() {
            continue;
        }
        let wrong = || {
            let message = format!("{key} is a number, not {value}");
            Source { file: source, text }.fault(&at, message)
        };
        let number = || number(value).ok_or_else(wrong);
        let small = || number().and_then(|it| u32::try_from(it).map_err(|_| wrong()));
        let before = understood;
        understood += 1;
        match key {
            "transport" => {
                if value.starts_with("iWARP") {
                    transport = Transport::Iwarp;
                }
            }
            "fw_ver" => fact.identity.fw_ver = Some(value.to_owned()),
            "vendor_id" => fact.identity.vendor_id = Some(small()?),
            "vendor_part_id" => fact.identity.vendor_part_ids = vec![small()?],
            "hw_ver" => fact.identity.hw_ver = Some(small()?),
            "device_cap_flags" => {
                let said = small()?;
                fact.device_cap_flags = Some(said);
                flags = said.into();
            }
            "max_sge" => {
                let most = number()?;
                fact.limits
                    .extend([(Limit::MaxSendSge, most), (Limit::MaxRecvSge, most)]);
            }
            "atomic_cap" => {
                fact.atomic_cap = match value.split(' ').next() {
                    Some("ATOMIC_NONE") => Some(AtomicScope::None),
                    Some("ATOMIC_HCA") => Some(AtomicScope::Hca),
                    Some("ATOMIC_GLOB") => Some(AtomicScope::Global),
                    _ => None,
                };
            }
            "active_mtu" if fact.port.active_mtu.is_none() => {
                fact.port.active_mtu = mtu_of(number()?);
            }
            "link_layer" if fact.port.is_infiniband.is_none() => {
                fact.port.is_infiniband = Some(value == "InfiniBand");
            }
            // Said of each port, and taken of the first.
            "active_mtu" | "link_layer" | "phys_port_cnt" => {}
            _ => match format::limit(key) {
                Ok(limit) if fact.limits.iter().any(|(known, _)| *known == limit) => {}
                Ok(limit) => fact.limits.push((limit, number()?)),
                Err(_) => {
                    understood = before;
                    rest.push(format!("{key}: {value}"));
                }
            },
        }
    }
    if understood == 0 {
        let message = "has no line of `ibv_devinfo -v`, such as max_qp: 262144";
        return Err(Source { file: source, text }.whole(message));
    }
    if !gids.is_empty()
        && transport == Transport::InfiniBand
        && fact.port.is_infiniband != Some(true)
    {
        fact.port.gids = Some(gids);
    }
    abilities(&mut fact, flags);
    Ok(Imported {
        profile: profile(name, transport, fact),
        rest,
    })
}

/// Reads a number as `ibv_devinfo` prints it: decimal or hexadecimal, perhaps with its name or its code after it.
fn number(value: &str) -> Option<u64> {
    let first = value.split([' ', '(']).next()?;
    match first.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => first.parse().ok(),
    }
}

/// The kind of a GID, without the GID.
fn gid_slot(value: &str) -> Option<GidSlot> {
    let (gid, gid_type) = value.split_once(", ").unwrap_or((value, ""));
    let gid_type = match gid_type.trim() {
        "RoCE v1" | "IB/RoCE v1" => GidType::RoceV1,
        _ => GidType::RoceV2,
    };
    let gid = gid.trim().to_ascii_lowercase();
    if gid.chars().all(|it| it == '0' || it == ':') {
        return Some(GidSlot::Empty);
    }
    Some(match gid.starts_with("fe80") {
        true => GidSlot::LinkLocal(gid_type),
        false => GidSlot::Address(gid_type),
    })
}

/// What flags and maxima say about abilities.
fn abilities(fact: &mut Fact, flags: u64) {
    const FLAGS: [(Features, u32); 3] = [
        (Features::WINDOW_1, 17),
        (Features::WINDOW_2A, 23),
        (Features::WINDOW_2B, 24),
    ];
    let value = |limit| {
        let found = fact.limits.iter().find(|(known, _)| *known == limit);
        found.map(|(_, value)| *value)
    };
    let (srqs, groups, windows) = (
        value(Limit::MaxSrq),
        value(Limit::MaxMcastGrp),
        value(Limit::MaxMw),
    );
    let mut say = |ability, has: Option<bool>| match has {
        Some(true) => fact.has.push(ability),
        Some(false) => fact.lacks.push(ability),
        None => {}
    };
    say(Ability::Core(Features::SRQ), srqs.map(|most| most > 0));
    say(
        Ability::Core(Features::MULTICAST),
        groups.map(|most| most > 0),
    );
    for (window, bit) in FLAGS {
        let is_claimed = flags & 1 << bit != 0;
        say(
            Ability::Core(window),
            windows.map(|most| most > 0 && is_claimed),
        );
    }
    let atomics = fact.atomic_cap.map(|scope| scope != AtomicScope::None);
    match atomics {
        Some(true) => fact.has.push(Ability::Baseline(Baseline::ATOMICS)),
        Some(false) => fact.lacks.push(Ability::Baseline(Baseline::ATOMICS)),
        None => {}
    }
}
