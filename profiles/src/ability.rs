//! What a device can do or cannot, by name.

use std::fmt;
use std::str::FromStr;

use polyverbs::Features;
use polyverbs::capability::{Baseline, DeviceAttributes, FeatureBits, FeatureInfo, feature_names};
use polyverbs::extension::Extensions;

/// An ability of devices: of the baseline, an opt-in feature of the core, or a feature of an extension.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ability {
    /// An ability that every device has unless it lists a gap, such as `UC`.
    Baseline(Baseline),
    /// An opt-in feature of the core, such as `SRQ`.
    Core(Features),
    /// A feature of an extension, such as `xrc::XRC`.
    Extension(FeatureInfo),
}

impl Ability {
    /// Returns every ability that this program knows, in the order of the tables.
    pub fn all() -> Vec<Self> {
        let baseline = Baseline::all().iter().map(Self::Baseline);
        let core = Features::all().iter().map(Self::Core);
        let extensions = Extensions::linked().unwrap_or_default();
        let infos = extensions.iter().flat_map(|it| it.all_features());
        let of_extensions = infos.filter(|info| is_of_extension(info));
        let of_extensions = of_extensions.map(|&info| Self::Extension(info));
        baseline.chain(core).chain(of_extensions).collect()
    }

    /// Returns the bits by which requirements name the ability.
    pub fn bits(&self) -> FeatureBits {
        match self {
            Self::Baseline(bits) => FeatureBits::of(*bits),
            Self::Core(bits) => FeatureBits::of(*bits),
            Self::Extension(info) => FeatureBits::of_info(info),
        }
    }

    /// Whether a device with these attributes has the ability.
    pub fn is_of(&self, device: &DeviceAttributes) -> bool {
        match self {
            Self::Baseline(bits) => Baseline::of(device).contains(*bits),
            Self::Core(bits) => device.features.contains(*bits),
            Self::Extension(info) => device.claims(info),
        }
    }

    /// Whether a device can be made to lack the ability.
    pub(crate) fn can_be_lacked(&self) -> bool {
        match self {
            Self::Baseline(bits) => !bits.gaps().is_empty() || *bits == Baseline::INLINE,
            Self::Core(_) | Self::Extension(_) => true,
        }
    }
}

/// The features of the core that extensions emulate are listed with the core.
fn is_of_extension(info: &FeatureInfo) -> bool {
    use polyverbs::capability::FeatureSet as _;
    info.set != Features::SET && info.set != Baseline::SET
}

impl fmt::Display for Ability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Baseline(bits) => f.write_str(&feature_names(*bits).join("|")),
            Self::Core(bits) => f.write_str(&feature_names(*bits).join("|")),
            Self::Extension(info) => write!(f, "{}::{}", info.set, info.name),
        }
    }
}

impl FromStr for Ability {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let all = Self::all();
        let found = all.iter().find(|known| known.to_string() == text);
        found.copied().ok_or_else(|| {
            let known: Vec<_> = all.iter().map(Self::to_string).collect();
            format!(
                "no ability is called {text}; there are {}",
                known.join(", ")
            )
        })
    }
}
