//! The profile that a device takes on.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use polyverbs_profiles::{Profile, ProfileError};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// A profile, with the name by which it was chosen: that of a shipped one, or of a file.
#[derive(Clone, Debug)]
pub struct ChosenProfile {
    name: String,
    profile: Arc<Profile>,
}

impl ChosenProfile {
    /// Returns the profile.
    pub fn profile(&self) -> &Profile {
        &self.profile
    }
}

impl FromStr for ChosenProfile {
    type Err = ProfileError;

    fn from_str(name: &str) -> Result<Self, ProfileError> {
        // The program may be started in, or change to, another folder.
        let is_file = name.contains('/') || name.ends_with(".toml");
        let absolute = std::path::absolute(name).ok().filter(|_| is_file);
        let absolute = absolute.and_then(|path| path.into_os_string().into_string().ok());
        let name = absolute.unwrap_or_else(|| name.to_owned());
        Ok(Self {
            profile: Arc::new(Profile::named(&name)?),
            name,
        })
    }
}

impl fmt::Display for ChosenProfile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

impl PartialEq for ChosenProfile {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Serialize for ChosenProfile {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&self.name)
    }
}

impl<'de> Deserialize<'de> for ChosenProfile {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let name = String::deserialize(from)?;
        name.parse().map_err(de::Error::custom)
    }
}
