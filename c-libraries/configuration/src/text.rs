//! Conversion of values that are strings in the TOML configuration and have a `FromStr` of their own.

use std::fmt::Display;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, de};

/// A value that is deserialized by parsing a string with its `FromStr`.
pub(crate) struct Parsed<T>(pub(crate) T);

impl<'de, T: FromStr<Err: Display>> Deserialize<'de> for Parsed<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        text.parse().map(Self).map_err(de::Error::custom)
    }
}

/// Serializes an optional value as a string, by its `Display` and `FromStr`. For serde's `with`.
pub(crate) mod optional {
    use std::fmt::Display;
    use std::str::FromStr;

    use serde::{Deserialize as _, Deserializer, Serializer};

    use super::Parsed;

    pub(crate) fn serialize<T: Display, S: Serializer>(
        value: &Option<T>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        match value {
            Some(value) => to.collect_str(value),
            None => to.serialize_none(),
        }
    }

    pub(crate) fn deserialize<'de, T, D>(from: D) -> Result<Option<T>, D::Error>
    where
        T: FromStr<Err: Display>,
        D: Deserializer<'de>,
    {
        Parsed::deserialize(from).map(|Parsed(value)| Some(value))
    }
}
