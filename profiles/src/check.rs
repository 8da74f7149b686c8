//! What a program requires, against devices that are not there.

use std::collections::BTreeMap;

use polyverbs::capability::Shortfall;
use polyverbs::{Limit, Requirements, Transport};
use serde::Deserialize;
use toml::Spanned;

use crate::ability::Ability;
use crate::device::ProfileDeviceError;
use crate::error::{ProfileError, Source};
use crate::format;
use crate::profile::Profile;

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct WantedText {
    transport: Option<Spanned<String>>,
    #[serde(default)]
    needs: Vec<Spanned<String>>,
    #[serde(default)]
    limits: BTreeMap<Spanned<String>, u64>,
}

/// What a program requires of a device, as a file says it.
#[derive(Clone, Debug, Default)]
pub struct Wanted {
    transport: Option<Transport>,
    needs: Vec<Ability>,
    limits: Vec<(Limit, u64)>,
}

/// Whether a program would run on the devices of a profile.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The missing features and limits, as far as they are known; `None` if nothing is known to be missing.
    pub shortfall: Option<Shortfall>,
    /// The requirements of the program that no fact of the profile is about.
    pub unknown: Vec<String>,
}

impl Answer {
    /// Whether the program would run; `None` if that depends on unknown facts.
    pub fn runs(&self) -> Option<bool> {
        match (&self.shortfall, &*self.unknown) {
            (Some(_), _) => Some(false),
            (None, []) => Some(true),
            (None, _) => None,
        }
    }
}

impl Wanted {
    /// Reads what a program requires from TOML. `file` is the name of the file in errors.
    ///
    /// # Errors
    /// The first fault of the text, with its line and what would be right.
    pub fn parse(file: &str, text: &str) -> Result<Self, ProfileError> {
        let source = Source { file, text };
        let read: WantedText = toml::from_str(text).map_err(|error| {
            let message = error.message().replace('\n', ", ");
            match error.span() {
                Some(place) => source.fault(&place, message),
                None => source.whole(message),
            }
        })?;
        let transport = read.transport.map(|name| match name.get_ref().as_str() {
            "infiniband" | "roce" => Ok(Transport::InfiniBand),
            "iwarp" => Ok(Transport::Iwarp),
            other => {
                let message = format!("transport is infiniband, roce or iwarp, not {other}");
                Err(source.fault(&name.span(), message))
            }
        });
        let needs = read.needs.iter().map(|name| {
            let ability = name.get_ref().parse();
            ability.map_err(|message: String| source.fault(&name.span(), message))
        });
        let limits = read.limits.iter().map(|(name, value)| {
            let limit = format::limit(name.get_ref());
            let limit = limit.map_err(|message| source.fault(&name.span(), message))?;
            Ok((limit, *value))
        });
        Ok(Self {
            transport: transport.transpose()?,
            needs: needs.collect::<Result<_, _>>()?,
            limits: limits.collect::<Result<_, _>>()?,
        })
    }

    /// Returns the requirements by which a program opens a device.
    pub fn requirements(&self) -> Requirements {
        self.without(&[])
    }

    /// Returns the requirements without those of these names.
    fn without(&self, names: &[String]) -> Requirements {
        let is_kept = |name: &str| !names.iter().any(|known| known == name);
        let mut all = Requirements::new();
        if let Some(transport) = self.transport {
            all = all.transport(transport);
        }
        let needs = self.needs.iter().filter(|it| is_kept(&it.to_string()));
        all = needs.fold(all, |all, ability| all.needs_bits(ability.bits()));
        let limits = self
            .limits
            .iter()
            .filter(|(limit, _)| is_kept(limit.name()));
        limits.fold(all, |all, &(limit, value)| all.at_least(limit, value))
    }

    /// Answers whether the program would run on the devices of a profile. No device is opened.
    ///
    /// # Errors
    /// The profile has no attributes, because no device can be made of it.
    pub fn check(&self, profile: &Profile) -> Result<Answer, ProfileDeviceError> {
        let needs = self.needs.iter().map(Ability::to_string);
        let limits = self.limits.iter().map(|(limit, _)| limit.name().to_owned());
        let unknown = needs.chain(limits).filter(|name| profile.is_unknown(name));
        let unknown: Vec<_> = unknown.collect();
        let checked = self.without(&unknown).check(&profile.attributes()?);
        Ok(Answer {
            shortfall: checked.err(),
            unknown,
        })
    }
}
