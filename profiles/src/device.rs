//! Emulated devices that are as a profile says.

use std::fmt;
use std::sync::Arc;

use nix::errno::Errno;
use polyverbs::capability::{
    Baseline, BaselineGaps, DeviceAttributes, Direction, GidSlot, Identity,
};
use polyverbs::emulated::{self, Appearance, EmulatedDeviceError, EmulatedError, EmulatedOptions};
use polyverbs::extension::Extensions;
use polyverbs::{Device, Features, Limit, Transport, provider::RegistryError};
use polyverbs_layer::layered;
use thiserror::Error;

use crate::ability::Ability;
use crate::profile::Profile;
use crate::quirks::{Met, Quirks};

/// Why a device of a profile could not be made.
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum ProfileDeviceError {
    /// The emulated device could not be made.
    #[error(transparent)]
    Device(#[from] EmulatedDeviceError),
    /// The extensions of this program contradict one another.
    #[error(transparent)]
    Extensions(#[from] RegistryError),
    /// The profile has no quirk of this name.
    #[error("{profile} has no quirk {wanted}; it has {}", list(known))]
    NoSuchQuirk {
        /// The name of the profile.
        profile: String,
        /// The name that was asked for.
        wanted: String,
        /// The names of the quirks of the profile.
        known: Vec<String>,
    },
}

impl ProfileDeviceError {
    /// Returns the operating system's error number; `None` if the error is not the system's.
    pub fn errno(&self) -> Option<i32> {
        match self {
            Self::Device(error) => error.errno(),
            Self::Extensions(_) | Self::NoSuchQuirk { .. } => None,
        }
    }
}

impl From<ProfileDeviceError> for EmulatedDeviceError {
    fn from(error: ProfileDeviceError) -> Self {
        match error {
            ProfileDeviceError::Device(error) => error,
            other => Self::NotMade {
                name: "profile".to_owned(),
                error: EmulatedError::Wire {
                    reason: other.to_string(),
                    errno: Errno::EINVAL as i32,
                },
            },
        }
    }
}

fn list(names: &[String]) -> String {
    match names {
        [] => "none".to_owned(),
        names => names.join(", "),
    }
}

/// Something that devices of a class have and that their emulated devices have not.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Unmet {
    /// An ability.
    Ability(String),
    /// A limit with a stronger value.
    Limit {
        /// The limit.
        limit: Limit,
        /// Its value on devices of the class.
        wanted: u64,
        /// Its value on the emulated device.
        offered: u64,
    },
}

impl Unmet {
    fn limit(limit: Limit, wanted: u64, offered: u64) -> Option<Self> {
        let is_short = limit.compare(offered, wanted).is_err();
        is_short.then_some(Self::Limit {
            limit,
            wanted,
            offered,
        })
    }
}

impl fmt::Display for Unmet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ability(name) => write!(f, "no {name}"),
            Self::Limit {
                limit,
                wanted,
                offered,
            } if limit.direction() == Direction::Bits => {
                write!(f, "{limit} {offered:#x} instead of {wanted:#x}")
            }
            Self::Limit {
                limit,
                wanted,
                offered,
            } => write!(f, "{limit} {offered} instead of {wanted}"),
        }
    }
}

impl Profile {
    /// Returns the name of the kind of emulated devices that take on the profile.
    pub fn kind(&self) -> &'static str {
        match self.transport {
            Transport::Iwarp => "iw0",
            _ => "ib0",
        }
    }

    /// Returns `options` changed so that a device of [`kind`](Self::kind) is as the profile says, but for its quirks.
    /// Limits that `options` lower further stay lower.
    ///
    /// # Errors
    /// The extensions of this program contradict one another.
    pub fn options(
        &self,
        options: &EmulatedOptions,
    ) -> Result<EmulatedOptions, ProfileDeviceError> {
        let mut limits: Vec<_> = options.limits.clone();
        for fact in &self.facts {
            limits.extend(&fact.limits);
        }
        let identity = self.identity().or(options.appearance.identity.clone());
        let port = |fact: &crate::profile::Fact| fact.port.active_mtu;
        let gids = self.fact(|fact| fact.port.gids.clone());
        Ok(EmulatedOptions {
            limits,
            gaps: options.gaps | self.gaps(),
            without: options.without | (Features::all() - self.features()),
            extensions: Some(self.extensions(options.extensions.clone())?),
            appearance: Appearance {
                identity,
                atomic_cap: self
                    .atomic_cap()
                    .map(|(scope, _)| scope)
                    .or(options.appearance.atomic_cap),
                active_mtu: self
                    .fact(port)
                    .map(|(mtu, _)| mtu)
                    .or(options.appearance.active_mtu),
                gids: gids
                    .map(|(gids, _)| gids)
                    .or(options.appearance.gids.clone()),
            },
            ..options.clone()
        })
    }

    /// Makes an emulated device that is as the profile says, without the quirks named in `except`. `options` may give it a
    /// name, an address, faults and lower limits.
    ///
    /// # Errors
    /// The device cannot be made, or the profile has no quirk of a name in `except`.
    pub fn device(
        &self,
        options: &EmulatedOptions,
        except: &[String],
    ) -> Result<Device, ProfileDeviceError> {
        self.device_telling(options, except, Arc::new(|_, _| ()))
    }

    /// As [`device`](Self::device); and `met` is called each time that a program meets a quirk.
    ///
    /// # Errors
    /// As for [`device`](Self::device).
    pub fn device_telling(
        &self,
        options: &EmulatedOptions,
        except: &[String],
        met: Met,
    ) -> Result<Device, ProfileDeviceError> {
        self.check_except(except)?;
        let options = self.options(options)?;
        let device = emulated::device(self.kind(), &options)?;
        let quirks = self.quirks.iter();
        let quirks = quirks.filter(|quirk| !except.contains(&quirk.name()));
        // A device without quirks has no layer.
        Ok(match Quirks::of(quirks, &device.attributes(), met) {
            Some(hooks) => layered(&device, hooks),
            None => device,
        })
    }

    /// Checks that the profile has quirks of these names.
    ///
    /// # Errors
    /// The first name that is none.
    pub fn check_except(&self, except: &[String]) -> Result<(), ProfileDeviceError> {
        let known: Vec<_> = self.quirks.iter().map(|quirk| quirk.name()).collect();
        match except.iter().find(|name| !known.contains(name)) {
            None => Ok(()),
            Some(wanted) => Err(ProfileDeviceError::NoSuchQuirk {
                profile: self.name.clone(),
                wanted: wanted.clone(),
                known,
            }),
        }
    }

    /// Returns the attributes that a device of the class has, as far as they are known; the rest is that of the emulated
    /// device.
    ///
    /// # Errors
    /// No such device can be made.
    pub fn attributes(&self) -> Result<DeviceAttributes, ProfileDeviceError> {
        let named = EmulatedOptions {
            name: Some(self.name.clone()),
            ..EmulatedOptions::default()
        };
        let mut attributes = self.device(&named, &[])?.attributes();
        for (limit, value) in self.facts.iter().flat_map(|fact| &fact.limits) {
            attributes.limits.set(*limit, *value);
        }
        Ok(attributes)
    }

    /// Returns what devices of the class have and the emulated device has not.
    ///
    /// # Errors
    /// No such device can be made.
    pub fn unmet(&self) -> Result<Vec<Unmet>, ProfileDeviceError> {
        let device = self.device(&EmulatedOptions::default(), &[])?.attributes();
        let mut unmet = Vec::new();
        for ability in self.facts.iter().flat_map(|fact| &fact.has) {
            if !ability.is_of(&device) {
                unmet.push(Unmet::Ability(ability.to_string()));
            }
        }
        for &(limit, wanted) in self.facts.iter().flat_map(|fact| &fact.limits) {
            let offered = device.limits.value(limit);
            unmet.extend(Unmet::limit(limit, wanted, offered));
        }
        Ok(unmet)
    }

    /// Returns the vendor and the model; `None` if neither is known.
    pub fn identity(&self) -> Option<Identity> {
        let vendor_id = self.fact(|fact| fact.identity.vendor_id)?.0;
        let part = self.fact(|fact| fact.identity.vendor_part_ids.first().copied());
        let hw_ver = self.fact(|fact| fact.identity.hw_ver);
        let fw_ver = self.fact(|fact| fact.identity.fw_ver.clone());
        Some(Identity {
            vendor_id,
            vendor_part_id: part.map_or(0, |(part, _)| part),
            hw_ver: hw_ver.map_or(0, |(version, _)| version),
            fw_ver: fw_ver.map_or_else(String::new, |(version, _)| version),
        })
    }

    /// Returns the flags that C programs see in `device_cap_flags`; `None` if they are not known.
    pub fn device_cap_flags(&self) -> Option<u32> {
        self.fact(|fact| fact.device_cap_flags)
            .map(|(flags, _)| flags)
    }

    /// Returns the number that C programs see in `transport_type`; `None` for that of the transport.
    pub fn transport_type(&self) -> Option<i32> {
        self.fact(|fact| fact.identity.transport_type)
            .map(|(it, _)| it)
    }

    /// Returns the LID and the LMC that C programs see; `None` for those of the port.
    pub fn lid(&self) -> (Option<u16>, Option<u8>) {
        let lid = self.fact(|fact| fact.port.lid).map(|(lid, _)| lid);
        (lid, self.fact(|fact| fact.port.lmc).map(|(lmc, _)| lmc))
    }

    /// Returns the layout of the GID table; `None` if it is not known.
    pub fn gids(&self) -> Option<Vec<GidSlot>> {
        self.fact(|fact| fact.port.gids.clone())
            .map(|(gids, _)| gids)
    }

    /// Returns whether the link layer is InfiniBand; `None` if it is not known.
    pub fn is_infiniband(&self) -> Option<bool> {
        self.fact(|fact| fact.port.is_infiniband).map(|(it, _)| it)
    }

    fn gaps(&self) -> BaselineGaps {
        let lacked = self.facts.iter().flat_map(|fact| &fact.lacks);
        let baseline = lacked.filter_map(|ability| match ability {
            Ability::Baseline(bits) => Some(bits.gaps()),
            _ => None,
        });
        baseline.fold(BaselineGaps::empty(), |all, gaps| all | gaps)
    }

    fn features(&self) -> Features {
        let had = self.facts.iter().flat_map(|fact| &fact.has);
        let core = had.filter_map(|ability| match ability {
            Ability::Core(bits) => Some(*bits),
            _ => None,
        });
        core.fold(Features::empty(), |all, bits| all | bits)
    }

    /// The extensions without those whose own features the profile does not have.
    fn extensions(&self, given: Option<Extensions>) -> Result<Extensions, RegistryError> {
        let given = given.map_or_else(Extensions::linked, Ok)?;
        let had: Vec<_> = self.facts.iter().flat_map(|fact| &fact.has).collect();
        let mut kept = given.clone();
        for ability in Ability::all() {
            let Ability::Extension(info) = ability else {
                continue;
            };
            if had.contains(&&ability) {
                continue;
            }
            let owners = given.iter().filter(|it| it.all_features().contains(&info));
            for owner in owners {
                kept = kept.without(owner.name());
            }
        }
        Ok(kept)
    }

    /// Whether nothing is known about an ability or a limit of this name.
    pub(crate) fn is_unknown(&self, name: &str) -> bool {
        if let Ok(limit) = crate::format::limit(name) {
            return self.limit(limit).is_none();
        }
        let Ok(ability) = name.parse::<Ability>() else {
            return true;
        };
        match ability {
            // Profiles do not repeat the abilities that every verbs device has.
            Ability::Baseline(bits)
                if !bits.intersects(Baseline::RC | Baseline::UC | Baseline::UD) =>
            {
                self.facts
                    .iter()
                    .any(|fact| fact.unknown.iter().any(|known| known == name))
            }
            _ => self.ability(&ability).is_none(),
        }
    }
}
