//! The requirements that a test has of a device.

use std::fmt;

use verbs_api::{
    Context, Features,
    capability::{BaselineGaps, feature_names},
};

/// The features that a device must have to run a body.
#[derive(Clone, Copy, Debug, Default)]
pub struct Needs {
    all: Features,
    one_of: Features,
    baseline: BaselineGaps,
}

/// The requirements of a body that runs on every device.
pub const ANY_DEVICE: Needs = needs(Features::empty());

/// The requirements of a body that needs all of these features.
pub const fn needs(features: Features) -> Needs {
    Needs {
        all: features,
        one_of: Features::empty(),
        baseline: BaselineGaps::empty(),
    }
}

/// The requirements of a body that needs at least one of these features.
pub const fn one_of(features: Features) -> Needs {
    Needs {
        all: Features::empty(),
        one_of: features,
        baseline: BaselineGaps::empty(),
    }
}

impl Needs {
    /// Requires all of these features too.
    #[must_use]
    pub const fn and(mut self, features: Features) -> Self {
        self.all = self.all.union(features);
        self
    }

    /// Requires that the device has none of these gaps.
    #[must_use]
    pub const fn without(mut self, gaps: BaselineGaps) -> Self {
        self.baseline = self.baseline.union(gaps);
        self
    }

    /// The requirements that a device does not meet; `None` if it meets all.
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

/// The requirements that a device does not meet.
#[derive(Clone, Copy, Debug)]
pub struct Missing {
    /// The missing features.
    pub features: Features,
    /// The missing parts of the baseline.
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
