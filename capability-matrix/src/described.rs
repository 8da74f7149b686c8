//! Collects the features that exist: those of the core, those of extensions, and bits that devices claim without an
//! extension that describes them.

use polyverbs::probe::Probe;
use polyverbs::{
    Features,
    capability::{DeviceAttributes, FeatureSet},
    extension::{ExtensionDescriptor, Extensions, FeatureInfo},
};
use polyverbs_probes::{CORE_FEATURES, CORE_PROBES};

use crate::about::about;

/// The extension name of features that belong to no extension.
pub(crate) const CORE: &str = "core";

/// A feature with its extension and its probes.
pub(crate) struct Described {
    pub(crate) extension: &'static str,
    pub(crate) info: FeatureInfo,
    pub(crate) probes: Vec<Probe>,
}

impl Described {
    /// The name of the feature in the matrix: the name of its bit, preceded by the name of its set where extensions could
    /// use the same name for other bits.
    pub(crate) fn name(&self) -> String {
        let FeatureInfo { set, name, .. } = self.info;
        if CORE_FEATURES.iter().any(|known| known.set == set) || set == Features::SET {
            name.to_owned()
        } else {
            format!("{set}::{name}")
        }
    }

    fn of_extension(extension: &ExtensionDescriptor, info: &FeatureInfo) -> Self {
        Self::of(extension.name(), info, extension.all_probes())
    }

    fn of(extension: &'static str, info: &FeatureInfo, probes: &[Probe]) -> Self {
        let mine = probes.iter().filter(|probe| probe.proves(info));
        Self {
            extension,
            info: *info,
            probes: mine.copied().collect(),
        }
    }
}

/// All features: those of the core first, then those of each extension, in the order of the extensions' names.
pub(crate) fn described(devices: &[DeviceAttributes], extensions: &Extensions) -> Vec<Described> {
    let mut of_extensions = Vec::new();
    for extension in extensions.iter() {
        for info in extension.all_features() {
            of_extensions.push(Described::of_extension(extension, info));
        }
    }
    let core = CORE_FEATURES.iter().copied();
    let mut all: Vec<_> = core
        .map(|info| Described::of(CORE, &info, CORE_PROBES))
        .collect();
    let undescribed = |info: &FeatureInfo| {
        let known = all.iter().chain(&of_extensions);
        !known
            .map(|known| &known.info)
            .any(|known| known.set == info.set && known.bits & info.bits != 0)
    };
    let named = Features::all()
        .iter_names()
        .map(|(name, feature)| FeatureInfo {
            set: Features::SET,
            name,
            bits: feature.bits(),
            about: about(name),
        });
    let strangers: Vec<_> = named
        .chain(devices.iter().flat_map(claimed_bits))
        .filter(undescribed)
        .collect();
    for info in strangers {
        if !all.iter().any(|known| known.info == info) {
            all.push(Described::of(CORE, &info, &[]));
        }
    }
    all.append(&mut of_extensions);
    all
}

// The bits that a device claims in sets of extensions, each with the name that the device gives it.
fn claimed_bits(device: &DeviceAttributes) -> Vec<FeatureInfo> {
    let sets = device.extensions.iter();
    sets.flat_map(|set| {
        let bits = (0..u64::BITS).map(|bit| 1 << bit);
        let bits = bits.filter(|bit| set.bits & bit != 0);
        bits.zip(&set.names).map(|(bits, &name)| FeatureInfo {
            set: set.set,
            name,
            bits,
            about: "",
        })
    })
    .collect()
}
