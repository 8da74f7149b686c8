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

/// The result of a probe: the rule holds, or the evidence that it does not.
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
    /// Describes a probe of `feature`. `id` is unique and begins with the extension's name, `rule` names where the rule is
    /// written down, `about` states the expected behaviour in one line.
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

    /// Lets the probe run only on devices that claim all of these features as well.
    #[must_use]
    pub const fn needs(mut self, features: &'static [FeatureInfo]) -> Self {
        self.needs = features;
        self
    }

    /// Lets the probe run only on devices that have none of these gaps.
    #[must_use]
    pub const fn without(mut self, gaps: BaselineGaps) -> Self {
        self.gaps = gaps;
        self
    }

    /// Lets the probe run only on devices of this transport, because the rule is the transport's own.
    #[must_use]
    pub const fn only_on(mut self, transport: Transport) -> Self {
        self.transport = Some(transport);
        self
    }

    /// Names a feature that excludes the probe's own and can do what the probe tries as well. The probe does not run on a
    /// device that claims `other`, and a device that claims both is at fault.
    #[must_use]
    pub const fn or_else(mut self, other: &FeatureInfo) -> Self {
        self.instead = Some(*other);
        self
    }

    /// Sets a probe for the documented behaviour of a device without the feature, where such a device cannot report an
    /// error. A device that does not claim the feature, fails the main probe and passes this one counts as refusing the
    /// feature.
    #[must_use]
    pub const fn lacking(mut self, lacking: fn(&Rig) -> Outcome) -> Self {
        self.lacking = Some(lacking);
        self
    }

    /// Returns the feature that the probe proves.
    pub const fn feature(&self) -> &FeatureInfo {
        &self.feature
    }

    /// Returns the unique name of the probe.
    pub const fn id(&self) -> &'static str {
        self.id
    }

    /// Returns where the rule is written down.
    pub const fn rule(&self) -> &'static str {
        self.rule
    }

    /// Returns the expected behaviour, in one line.
    pub const fn about(&self) -> &'static str {
        self.about
    }

    /// Whether this is a probe of `feature`.
    pub fn proves(&self, feature: &FeatureInfo) -> bool {
        self.feature.set == feature.set && self.feature.bits & feature.bits != 0
    }

    /// Returns why the probe cannot run on a device with these attributes; `None` if it can. On a device that does not
    /// claim the feature (`claimed` is false), it runs even if the device lacks other features that the probe needs.
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

    /// Runs the probe on the two ends of `rig`.
    ///
    /// # Errors
    /// Evidence that the rule does not hold, or why it cannot be checked.
    pub fn run(&self, rig: &Rig) -> Outcome {
        (self.run)(rig)
    }
}

impl fmt::Debug for Probe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Probe({})", self.id)
    }
}
