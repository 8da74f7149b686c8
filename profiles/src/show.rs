//! A profile as TOML, as lines for people, and as JSON.

use std::fmt::Write as _;

use polyverbs::capability::{AtomicScope, Direction};
use polyverbs::{Limit, Transport};
use serde_json::{Value, json};

use crate::format::GID_SLOTS;
use crate::profile::{Evidence, Fact, Profile};

/// Returns the name of a scope in profiles.
pub(crate) fn scope(scope: AtomicScope) -> &'static str {
    match scope {
        AtomicScope::None => "none",
        AtomicScope::Hca => "hca",
        AtomicScope::Global => "global",
    }
}

/// Returns a value of a limit as profiles write it: masks and the largest numbers in hexadecimal.
pub(crate) fn number(limit: Limit, value: u64) -> String {
    match limit.direction() == Direction::Bits || value > i64::MAX as u64 {
        true => format!("{value:#x}"),
        false => value.to_string(),
    }
}

fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for letter in text.chars() {
        match letter {
            '"' | '\\' => quoted.extend(['\\', letter]),
            '\n' => quoted.push_str("\\n"),
            letter if letter.is_control() => {
                let _ = write!(quoted, "\\u{:04x}", u32::from(letter));
            }
            letter => quoted.push(letter),
        }
    }
    quoted + "\""
}

fn list<T: ToString>(items: impl IntoIterator<Item = T>) -> String {
    let items: Vec<_> = items
        .into_iter()
        .map(|it| quoted(&it.to_string()))
        .collect();
    format!("[{}]", items.join(", "))
}

impl Profile {
    /// Returns the name of the profile's transport: `roce` or `iwarp`.
    pub fn transport_name(&self) -> &'static str {
        match self.transport {
            Transport::Iwarp => "iwarp",
            _ => "roce",
        }
    }

    /// Returns the profile as TOML, which [`parse`](Self::parse) reads.
    pub fn to_toml(&self) -> String {
        let mut text = format!(
            "profile = 1\nname = {}\nclass = {}\nsummary = {}\ntransport = {}\n",
            quoted(&self.name),
            quoted(&self.class),
            quoted(&self.summary),
            quoted(self.transport_name()),
        );
        for fact in &self.facts {
            text.push_str("\n[[fact]]\n");
            text.push_str(&evidence(&fact.evidence));
            text.push_str(&fact.to_toml());
        }
        for quirk in &self.quirks {
            let rule = quoted(&quirk.rule.to_string());
            let _ = write!(text, "\n[[quirk]]\nrule = {rule}\n");
            text.push_str(&evidence(&quirk.evidence));
        }
        text
    }

    /// Returns every fact and quirk with its source, for people.
    pub fn lines(&self) -> Vec<String> {
        let mut lines = vec![
            format!("{}: {}", self.name, self.summary),
            format!(
                "class {}, taken on by an emulated {} device",
                self.class,
                self.transport_name()
            ),
        ];
        for fact in &self.facts {
            lines.push(String::new());
            lines.push(source(&fact.evidence));
            lines.extend(fact.lines().into_iter().map(|line| format!("  {line}")));
        }
        for quirk in &self.quirks {
            lines.push(String::new());
            lines.push(format!("quirk {}: {}", quirk.name(), quirk.rule));
            lines.push(format!("  {}", source(&quirk.evidence)));
        }
        lines
    }

    /// Returns the profile as JSON.
    pub fn to_json(&self) -> Value {
        json!({
            "name": self.name,
            "class": self.class,
            "summary": self.summary,
            "transport": self.transport_name(),
            "facts": self.facts.iter().map(Fact::to_json).collect::<Vec<_>>(),
            "quirks": self.quirks.iter().map(|quirk| json!({
                "name": quirk.name(),
                "rule": quirk.rule.to_string(),
                "evidence": evidence_json(&quirk.evidence),
            })).collect::<Vec<_>>(),
        })
    }

    /// Returns what two profiles say differently: what it is about, and what each of the two says.
    pub fn differences(&self, other: &Self) -> Vec<(String, String, String)> {
        let (mine, others) = (self.statements(), other.statements());
        let mut names: Vec<_> = mine.iter().chain(&others).map(|(name, _)| name).collect();
        names.sort();
        names.dedup();
        let value = |of: &[(String, String)], name: &str| {
            let found = of.iter().find(|(known, _)| known == name);
            found.map_or_else(|| "not known".to_owned(), |(_, value)| value.clone())
        };
        let pairs = names
            .into_iter()
            .map(|name| (name.clone(), value(&mine, name), value(&others, name)));
        pairs.filter(|(_, mine, other)| mine != other).collect()
    }

    /// Everything that the profile says, without sources: names and values.
    pub(crate) fn statements(&self) -> Vec<(String, String)> {
        let mut all = vec![("transport".to_owned(), self.transport_name().to_owned())];
        for fact in &self.facts {
            all.extend(fact.named().map(|(name, value)| (name.to_owned(), value)));
            all.extend(
                fact.limits
                    .iter()
                    .map(|&(limit, value)| (limit.name().to_owned(), number(limit, value))),
            );
            let abilities = [(&fact.has, "yes"), (&fact.lacks, "no")];
            for (abilities, answer) in abilities {
                all.extend(
                    abilities
                        .iter()
                        .map(|it| (it.to_string(), answer.to_owned())),
                );
            }
        }
        all.extend(
            self.quirks
                .iter()
                .map(|quirk| (format!("quirk {}", quirk.name()), quirk.rule.to_string())),
        );
        all
    }
}

impl Fact {
    /// What the fact says of the device itself and its port: keys and values of TOML.
    fn named(&self) -> impl Iterator<Item = (&'static str, String)> {
        let hex = |value: u32| format!("{value:#x}");
        let parts = &self.identity.vendor_part_ids;
        let parts = (!parts.is_empty()).then(|| {
            let parts: Vec<_> = parts.iter().map(u32::to_string).collect();
            format!("[{}]", parts.join(", "))
        });
        let gids = self.port.gids.as_ref().map(|slots| {
            let name = |slot| GID_SLOTS.iter().find(|(_, known)| known == slot);
            list(slots.iter().filter_map(name).map(|(name, _)| *name))
        });
        let link_layer = self.port.is_infiniband.map(|it| match it {
            true => quoted("infiniband"),
            false => quoted("ethernet"),
        });
        [
            ("identity.vendor-id", self.identity.vendor_id.map(hex)),
            ("identity.vendor-part-ids", parts),
            ("identity.hw-ver", self.identity.hw_ver.map(hex)),
            (
                "identity.fw-ver",
                self.identity.fw_ver.as_deref().map(quoted),
            ),
            (
                "identity.transport-type",
                self.identity.transport_type.map(|it| it.to_string()),
            ),
            ("port.link-layer", link_layer),
            ("port.lid", self.port.lid.map(|it| it.to_string())),
            ("port.lmc", self.port.lmc.map(|it| it.to_string())),
            (
                "port.active-mtu",
                self.port.active_mtu.map(|mtu| mtu.octets().to_string()),
            ),
            ("port.gids", gids),
            ("device-cap-flags", self.device_cap_flags.map(hex)),
            ("atomic-cap", self.atomic_cap.map(|it| quoted(scope(it)))),
        ]
        .into_iter()
        .filter_map(|(name, value)| Some((name, value?)))
    }

    fn to_toml(&self) -> String {
        let mut text = String::new();
        for (name, value) in self.named() {
            let _ = writeln!(text, "{name} = {value}");
        }
        for (name, abilities) in [("has", &self.has), ("lacks", &self.lacks)] {
            if !abilities.is_empty() {
                let _ = writeln!(text, "{name} = {}", list(abilities));
            }
        }
        if !self.unknown.is_empty() {
            let _ = writeln!(text, "unknown = {}", list(&self.unknown));
        }
        for &(limit, value) in &self.limits {
            let _ = writeln!(text, "limits.{limit} = {}", number(limit, value));
        }
        text
    }

    pub(crate) fn lines(&self) -> Vec<String> {
        let mut lines: Vec<_> = self
            .named()
            .map(|(name, value)| format!("{name} {value}"))
            .collect();
        let limits = self.limits.iter();
        let limits: Vec<_> = limits
            .map(|&(limit, value)| format!("{limit} {}", number(limit, value)))
            .collect();
        let names =
            |all: &[crate::Ability]| all.iter().map(ToString::to_string).collect::<Vec<_>>();
        for (name, all) in [
            ("", limits),
            ("has ", names(&self.has)),
            ("lacks ", names(&self.lacks)),
            ("unknown ", self.unknown.clone()),
        ] {
            if !all.is_empty() {
                lines.push(format!("{name}{}", all.join(", ")));
            }
        }
        lines
    }

    fn to_json(&self) -> Value {
        let named = self
            .named()
            .map(|(name, value)| (name.to_owned(), Value::from(value.trim_matches('"'))));
        let names =
            |all: &[crate::Ability]| all.iter().map(ToString::to_string).collect::<Vec<_>>();
        let limits = self
            .limits
            .iter()
            .map(|&(limit, value)| (limit.name().to_owned(), Value::from(value)));
        json!({
            "evidence": evidence_json(&self.evidence),
            "says": named.collect::<serde_json::Map<_, _>>(),
            "limits": limits.collect::<serde_json::Map<_, _>>(),
            "has": names(&self.has),
            "lacks": names(&self.lacks),
            "unknown": self.unknown,
        })
    }
}

fn evidence(of: &Evidence) -> String {
    let mut text = format!(
        "sure = {}\nsource = {}\n",
        quoted(&of.sure.to_string()),
        quoted(&of.source)
    );
    for (name, value) in [("seen", &of.seen), ("note", &of.note)] {
        if let Some(value) = value {
            let _ = writeln!(text, "{name} = {}", quoted(value));
        }
    }
    text
}

fn evidence_json(of: &Evidence) -> Value {
    json!({ "sure": of.sure, "source": of.source, "seen": of.seen, "note": of.note })
}

/// Returns the source of facts in one line.
pub(crate) fn source(of: &Evidence) -> String {
    format!("{}: {}", of.sure, crate::atlas::about(of))
}
