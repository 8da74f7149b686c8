//! What a test needs of a device.

use std::fmt;

use verbs_api::{
    Context, Features,
    capability::{BaselineGaps, feature_names},
};

/// What a device must have for a body to be run on it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Needs {
    all: Features,
    one_of: Features,
    baseline: BaselineGaps,
}

/// A body for every device.
pub const ANY_DEVICE: Needs = needs(Features::empty());

/// A body that needs all of these.
pub const fn needs(features: Features) -> Needs {
    Needs {
        all: features,
        one_of: Features::empty(),
        baseline: BaselineGaps::empty(),
    }
}

/// A body that needs one of these.
pub const fn one_of(features: Features) -> Needs {
    Needs {
        all: Features::empty(),
        one_of: features,
        baseline: BaselineGaps::empty(),
    }
}

impl Needs {
    /// All of these as well.
    #[must_use]
    pub const fn and(mut self, features: Features) -> Self {
        self.all = self.all.union(features);
        self
    }

    /// None of these gaps.
    #[must_use]
    pub const fn without(mut self, gaps: BaselineGaps) -> Self {
        self.baseline = self.baseline.union(gaps);
        self
    }

    /// What a device lacks of it, if it lacks anything.
    pub fn missing_of(&self, context: &Context) -> Option<Missing> {
        let features = context.features();
        let mut missing = self.all - features;
        if !self.one_of.is_empty() && !features.intersects(self.one_of) {
            missing |= self.one_of;
        }
        let gaps = self.baseline & context.attributes().gaps;
        (!missing.is_empty() || !gaps.is_empty()).then_some(Missing {
            features: missing,
            gaps,
        })
    }
}

/// What a device lacks.
#[derive(Clone, Copy, Debug)]
pub struct Missing {
    /// Features.
    pub features: Features,
    /// Parts of the baseline.
    pub gaps: BaselineGaps,
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let gaps = self.gaps.iter_names().map(|(name, _)| name);
        let names: Vec<_> = feature_names(self.features)
            .into_iter()
            .chain(gaps)
            .collect();
        f.write_str(&names.join(", "))
    }
}
