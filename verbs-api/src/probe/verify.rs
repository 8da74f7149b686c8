//! What the probes of a feature say about a device's claim.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::{Evidence, EvidenceKind, Outcome, Probe, Rig};
use crate::capability::{DeviceAttributes, FeatureBits, Requirements};
use crate::extension::FeatureInfo;

/// What is true of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// Claimed, and every probe that can be run here passed.
    Verified,
    /// Not claimed, and it cannot be had.
    Refused,
    /// Claimed and failing, or not claimed and working.
    Mismatch,
    /// No probe can be run here.
    NotVerifiable,
}

impl Verdict {
    /// `"verified"`, `"refused"`, `"mismatch"` or `"not-verifiable"`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Verified => "verified",
            Self::Refused => "refused",
            Self::Mismatch => "mismatch",
            Self::NotVerifiable => "not-verifiable",
        }
    }
}

/// What one probe found.
#[derive(Clone, Debug)]
pub struct Finding {
    /// The probe.
    pub probe: Probe,
    /// `None` where the rule holds; otherwise what was found.
    pub evidence: Option<Evidence>,
}

impl Finding {
    /// Whether the rule holds.
    pub const fn passed(&self) -> bool {
        self.evidence.is_none()
    }

    /// Whether it could be looked at.
    pub fn was_run(&self) -> bool {
        !self.is(EvidenceKind::NotHere)
    }

    fn is(&self, kind: EvidenceKind) -> bool {
        self.evidence
            .as_ref()
            .is_some_and(|evidence| evidence.kind() == kind)
    }
}

/// A feature of a device, probed.
#[derive(Clone, Debug)]
pub struct Verified {
    /// Whether the device claims it.
    pub claimed: bool,
    /// What is true of that.
    pub verdict: Verdict,
    /// What each probe found that could be run.
    pub findings: Vec<Finding>,
    /// What the verdict rests on, in one line: the first that went wrong, or why nothing could be said.
    pub because: String,
}

impl Verified {
    /// How many probes found the rule kept.
    pub fn passed(&self) -> usize {
        self.findings.iter().filter(|found| found.passed()).count()
    }

    /// How many found it broken. Of a feature that is not claimed these are the refusals.
    pub fn failed(&self) -> usize {
        let ran = self.findings.iter().filter(|found| found.was_run());
        ran.filter(|found| !found.passed()).count()
    }
}

/// Runs the probes that prove `feature` and draws the conclusion.
///
/// `rig` makes a fresh rig for each probe, granted everything that the device claims and, whether it claims them or not,
/// these bits. Of a feature that is not claimed the same probes are run with its bits granted all the same, so that the
/// device itself must refuse; one that passes them all has the feature and hides it. `told` hears of each probe before
/// it is run.
pub fn verify(
    device: &DeviceAttributes,
    feature: &FeatureInfo,
    probes: &[Probe],
    rig: &dyn Fn(&[FeatureBits]) -> Result<Rig, Evidence>,
    told: &mut dyn FnMut(&Probe),
) -> Verified {
    let claimed = device.claims(feature);
    let mine = probes.iter().filter(|probe| probe.proves(feature));
    let beyond = if claimed {
        vec![]
    } else {
        vec![FeatureBits::of_info(feature)]
    };
    let mut findings = Vec::new();
    let mut why_not = None;
    for probe in mine {
        let substitute = probe.instead.filter(|_| !claimed);
        let instead = substitute.filter(|other| device.claims(other));
        if let Some(other) = instead {
            why_not = Some(format!("the device has {} instead", other.name));
            continue;
        }
        if let Some(why) = probe.not_here(device) {
            why_not = Some(why);
            continue;
        }
        told(probe);
        let outcome = rig(&beyond).and_then(|rig| run(probe, &rig));
        findings.push(Finding {
            probe: *probe,
            evidence: outcome.err(),
        });
    }
    conclude(device, feature, claimed, findings, why_not)
}

fn conclude(
    device: &DeviceAttributes,
    feature: &FeatureInfo,
    claimed: bool,
    findings: Vec<Finding>,
    why_not: Option<String>,
) -> Verified {
    let ran = || findings.iter().filter(|found| found.was_run());
    let broken = ran().find(|found| !found.passed());
    let say = |found: &Finding| {
        let evidence = found.evidence.as_ref().map(ToString::to_string);
        format!("{}: {}", found.probe.id(), evidence.unwrap_or_default())
    };
    let (verdict, because) = if claimed {
        match (broken, ran().next()) {
            (Some(found), _) => (Verdict::Mismatch, say(found)),
            (None, Some(_)) => (Verdict::Verified, String::new()),
            (None, None) => {
                let skipped = findings.first().map(say).or(why_not);
                let why = skipped.unwrap_or_else(|| "no probe".into());
                (Verdict::NotVerifiable, why)
            }
        }
    } else if let Err(evidence) = refusal_of(device, feature) {
        (Verdict::Mismatch, evidence.to_string())
    } else if broken.is_none() && ran().next().is_some() {
        let why = format!("not claimed, and {} probes of it pass", ran().count());
        (Verdict::Mismatch, why)
    } else {
        let why = broken.map(say).or(why_not);
        (Verdict::Refused, why.unwrap_or_default())
    };
    Verified {
        claimed,
        verdict,
        findings,
        because,
    }
}

/// A feature that is not claimed is refused by name to whoever needs it.
///
/// # Errors
/// It is granted, or the refusal does not name it.
pub fn refusal_of(device: &DeviceAttributes, feature: &FeatureInfo) -> Outcome {
    let bits = FeatureBits::of_info(feature);
    match Requirements::new().needs_bits(bits).check(device) {
        Ok(_) => Err(Evidence::wrong("not claimed, and granted")),
        Err(shortfall) if shortfall.to_string().contains(feature.name) => Ok(()),
        Err(shortfall) => Err(Evidence::wrong(format!(
            "refused without its name: {shortfall}"
        ))),
    }
}

// A probe that panics has found something, too: the device did what nobody expected.
fn run(probe: &Probe, rig: &Rig) -> Outcome {
    let outcome = catch_unwind(AssertUnwindSafe(|| probe.run(rig)));
    outcome.unwrap_or_else(|panic| {
        let message = panic
            .downcast_ref::<String>()
            .map(String::as_str)
            .or_else(|| panic.downcast_ref::<&str>().copied());
        let message = message.unwrap_or("a panic");
        Err(Evidence::wrong(format!("panicked: {message}")))
    })
}
