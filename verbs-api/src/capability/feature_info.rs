//! One feature bit, described.

/// Describes one feature bit that an extension provides: a bit of the extension's own set, or a bit of the core's.
///
/// Made by [`feature!`](crate::extension::feature).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FeatureInfo {
    /// Name of the set ([`FeatureSet::SET`](crate::capability::FeatureSet::SET)).
    pub set: &'static str,
    /// Name of the bit, such as `"BMME"`.
    pub name: &'static str,
    /// The bit as a mask in its set.
    pub bits: u64,
    /// What the feature is, in one line.
    pub about: &'static str,
}

/// Makes a [`FeatureInfo`]: `feature!(Set::BIT, "what it is")`.
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
