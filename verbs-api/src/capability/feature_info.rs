//! One feature bit, described.

/// One feature bit of an extension: a bit of its own set, or a bit of the core that it makes work.
///
/// Made by [`feature!`](crate::extension::feature).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FeatureInfo {
    /// Name of the set ([`FeatureSet::SET`](crate::capability::FeatureSet::SET)).
    pub set: &'static str,
    /// Name of the bit.
    pub name: &'static str,
    /// The bit.
    pub bits: u64,
    /// What it is, in one line.
    pub about: &'static str,
}

/// A [`FeatureInfo`]: `feature!(Set::BIT, "what it is")`.
///
/// ```
/// use verbs_api::{Features, extension::feature};
/// let info = feature!(Features::BMME, "fast-register and invalidate");
/// assert_eq!((info.set, info.name, info.bits), ("core", "BMME", 1));
/// ```
#[doc(hidden)]
#[macro_export]
macro_rules! __feature {
    ($set:ident::$bit:ident, $about:expr) => {
        $crate::capability::FeatureInfo {
            set: <$set as $crate::capability::FeatureSet>::SET,
            name: stringify!($bit),
            bits: $set::$bit.bits(),
            about: $about,
        }
    };
}
