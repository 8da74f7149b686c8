//! Conformance probes: small programs that prove a feature on whatever device they are given.
//!
//! A device claims only what its probes prove. A [`Probe`] gets a [`Rig`]: two ends that reach each other, on one device
//! or on two, in real or in virtual time. It makes what it needs, does what the rule is about, and answers `Ok`, or the
//! [`Evidence`] of what went otherwise. [`verify()`] runs the probes of a feature and draws the conclusion.

mod evidence;
mod pair;
mod rig;
mod verify;

use std::fmt;

#[doc(inline)]
pub use crate::{__ensure as ensure, __ensure_eq as ensure_eq};
pub use evidence::{Evidence, EvidenceKind};
pub use pair::{Pair, Side, open};
pub use rig::{Clock, End, Fast, Pace, Region, Rig};
pub use verify::{Finding, ProbeResult, Verdict, Verified, refusal_of, verify};

use crate::capability::{BaselineGaps, DeviceAttributes, FeatureInfo};
use crate::transport::Transport;

/// What a probe answers.
pub type Outcome = Result<(), Evidence>;

/// A small program that proves one rule of one feature.
///
/// ```
/// use verbs_api::probe::{Outcome, Probe, Rig};
/// use verbs_api::{Access, Features, extension::{FeatureInfo, feature}, probe::ensure, wr};
///
/// const BMME: FeatureInfo = feature!(Features::BMME, "fast-register and invalidate");
///
/// fn register(rig: &Rig) -> Outcome {
///     let pair = rig.rc()?;
///     let fast = rig.far.fast(4096)?;
///     rig.succeeds(&pair.far, fast.register(Access::LOCAL_WRITE | Access::REMOTE_WRITE))?;
///     ensure!(rig.can_write(&pair, fast.remote(0))?, "a registered key opens its memory");
///     Ok(())
/// }
///
/// pub static PROBES: &[Probe] = &[
///     Probe::new(&BMME, "bmme.register", "2.23", "a registered key opens its memory", register),
/// ];
/// ```
#[derive(Clone, Copy)]
pub struct Probe {
    feature: FeatureInfo,
    id: &'static str,
    rule: &'static str,
    about: &'static str,
    run: fn(&Rig) -> Outcome,
    needs: &'static [FeatureInfo],
    gaps: BaselineGaps,
    transport: Option<Transport>,
    instead: Option<FeatureInfo>,
    lacking: Option<fn(&Rig) -> Outcome>,
}

impl Probe {
    /// A probe of `feature`. `id` is unique and begins with the extension's name, `rule` names where the rule is written
    /// down, `about` states the behaviour in one line.
    pub const fn new(
        feature: &FeatureInfo,
        id: &'static str,
        rule: &'static str,
        about: &'static str,
        run: fn(&Rig) -> Outcome,
    ) -> Self {
        Self {
            feature: *feature,
            id,
            rule,
            about,
            run,
            needs: &[],
            gaps: BaselineGaps::empty(),
            transport: None,
            instead: None,
            lacking: None,
        }
    }

    /// Runs only where the device claims all of these as well.
    #[must_use]
    pub const fn needs(mut self, features: &'static [FeatureInfo]) -> Self {
        self.needs = features;
        self
    }

    /// Runs only where the device has none of these gaps.
    #[must_use]
    pub const fn without(mut self, gaps: BaselineGaps) -> Self {
        self.gaps = gaps;
        self
    }

    /// Runs only on devices of this transport: the rule is the transport's own.
    #[must_use]
    pub const fn only_on(mut self, transport: Transport) -> Self {
        self.transport = Some(transport);
        self
    }

    /// `other` excludes the feature, and does what the probe tries as well: a device that claims `other` is not tried, and
    /// one that claims both is wrong.
    #[must_use]
    pub const fn or_else(mut self, other: &FeatureInfo) -> Self {
        self.instead = Some(*other);
        self
    }

    /// What is documented of a device without the feature, where no error can say so: what it does instead. A device
    /// that does not claim the feature, fails the probe and passes this has refused it.
    #[must_use]
    pub const fn lacking(mut self, lacking: fn(&Rig) -> Outcome) -> Self {
        self.lacking = Some(lacking);
        self
    }

    /// The feature that it proves.
    pub const fn feature(&self) -> &FeatureInfo {
        &self.feature
    }

    /// Unique name.
    pub const fn id(&self) -> &'static str {
        self.id
    }

    /// Where the rule is written down.
    pub const fn rule(&self) -> &'static str {
        self.rule
    }

    /// The behaviour, in one line.
    pub const fn about(&self) -> &'static str {
        self.about
    }

    /// Whether it is a probe of this feature.
    pub fn proves(&self, feature: &FeatureInfo) -> bool {
        self.feature.set == feature.set && self.feature.bits & feature.bits != 0
    }

    /// Why it cannot be run on a device with these attributes, if it cannot. A device that does not claim the feature
    /// itself is tried although it lacks what the probe takes as well.
    pub fn not_here(&self, device: &DeviceAttributes, claimed: bool) -> Option<String> {
        if let Some(transport) = self.transport.filter(|&only| only != device.transport) {
            return Some(format!("a rule of {} devices", transport.name()));
        }
        let gaps = self.gaps & device.gaps;
        if let Some((name, _)) = gaps.iter_names().next() {
            return Some(format!("the device lists {name}"));
        }
        let mut needs = self.needs.iter().filter(|_| claimed);
        let missing = needs.find(|need| !device.claims(need))?;
        Some(format!("takes {} as well", missing.name))
    }

    /// Runs it.
    ///
    /// # Errors
    /// What went otherwise than the rule says.
    pub fn run(&self, rig: &Rig) -> Outcome {
        (self.run)(rig)
    }
}

impl fmt::Debug for Probe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Probe({})", self.id)
    }
}
