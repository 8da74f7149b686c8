//! What the probes of a feature say about a device's claim.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::{Evidence, EvidenceKind, Outcome, Probe, Rig};
use crate::capability::{DeviceAttributes, FeatureBits, FeatureInfo, Requirements};

/// What is true of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// Claimed, and every probe that can be run here passed.
    Verified,
    /// Not claimed, and refused in a documented form.
    Refused,
    /// Claimed and failing; or not claimed, and working or neither working nor refused.
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

/// What became of a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ProbeResult {
    /// The rule holds.
    Passed,
    /// It does not; or, of a feature that is not claimed, the device did something else than to refuse.
    Failed,
    /// Of a feature that is not claimed: the device refused in a documented form.
    Refused,
    /// It could not be looked at.
    NotRun,
}

impl ProbeResult {
    /// `"passed"`, `"failed"`, `"refused"` or `"not-run"`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Passed => "passed",
            Self::Failed => "failed",
            Self::Refused => "refused",
            Self::NotRun => "not-run",
        }
    }
}

/// What one probe found.
#[derive(Clone, Debug)]
pub struct Finding {
    /// The probe.
    pub probe: Probe,
    /// What became of it.
    pub result: ProbeResult,
    /// `None` where the rule holds; otherwise what was found.
    pub evidence: Option<Evidence>,
}

impl Finding {
    /// Whether the rule holds.
    pub fn passed(&self) -> bool {
        self.result == ProbeResult::Passed
    }

    /// Whether it could be looked at.
    pub fn was_run(&self) -> bool {
        self.result != ProbeResult::NotRun
    }

    // Runs a probe of a feature that the device claims: whatever it finds but a reason of the rig's is a failure.
    fn of_claimed(probe: &Probe, rig: impl Fn() -> Result<Rig, Evidence>) -> Self {
        let evidence = rig().and_then(|rig| run(probe.run, &rig)).err();
        let result = match evidence.as_ref().map(Evidence::kind) {
            None => ProbeResult::Passed,
            Some(EvidenceKind::NotHere) => ProbeResult::NotRun,
            Some(EvidenceKind::Unsupported | EvidenceKind::Wrong) => ProbeResult::Failed,
        };
        Self::new(probe, result, evidence)
    }

    // Runs a probe of a feature that it does not claim. What failed is a refusal where the device said so, or did what
    // is documented of a device without the feature.
    fn of_unclaimed(probe: &Probe, rig: impl Fn() -> Result<Rig, Evidence>) -> Self {
        let Self {
            result, evidence, ..
        } = Self::of_claimed(probe, &rig);
        let said = evidence.as_ref().map(Evidence::kind) == Some(EvidenceKind::Unsupported);
        if result != ProbeResult::Failed || said {
            let result = if said { ProbeResult::Refused } else { result };
            return Self::new(probe, result, evidence);
        }
        let Some(lacking) = probe.lacking else {
            return Self::new(probe, result, evidence);
        };
        match rig().and_then(|rig| run(lacking, &rig)) {
            Ok(()) => Self::new(probe, ProbeResult::Refused, evidence),
            Err(otherwise) => Self::new(probe, ProbeResult::Failed, Some(otherwise)),
        }
    }

    fn new(probe: &Probe, result: ProbeResult, evidence: Option<Evidence>) -> Self {
        Self {
            probe: *probe,
            result,
            evidence,
        }
    }

    fn says(&self) -> String {
        let evidence = self.evidence.as_ref().map(ToString::to_string);
        format!("{}: {}", self.probe.id(), evidence.unwrap_or_default())
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
    /// How many probes have this result.
    pub fn count(&self, result: ProbeResult) -> usize {
        let findings = self.findings.iter();
        findings.filter(|found| found.result == result).count()
    }

    /// How many probes found the rule kept.
    pub fn passed(&self) -> usize {
        self.count(ProbeResult::Passed)
    }

    /// How many found it broken.
    pub fn failed(&self) -> usize {
        self.count(ProbeResult::Failed)
    }

    /// How many were refused.
    pub fn refused(&self) -> usize {
        self.count(ProbeResult::Refused)
    }
}

/// Runs the probes that prove `feature` and draws the conclusion.
///
/// `rig` makes a fresh rig for each probe, granted everything that the device claims and, whether it claims them or not,
/// these bits. Of a feature that is not claimed the same probes are run with its bits granted all the same, and those of
/// what they take as well, so that the device itself must refuse; one that passes them all has the feature and hides it.
/// `told` hears of each probe before it is run.
pub fn verify(
    device: &DeviceAttributes,
    feature: &FeatureInfo,
    probes: &[Probe],
    rig: &dyn Fn(&[FeatureBits]) -> Result<Rig, Evidence>,
    told: &mut dyn FnMut(&Probe),
) -> Verified {
    let claimed = device.claims(feature);
    let mut findings = Vec::new();
    let mut why_not = WhyNot::default();
    for probe in probes.iter().filter(|probe| probe.proves(feature)) {
        if let Some(other) = probe.instead.filter(|other| device.claims(other)) {
            why_not.instead = Some(other.name);
            continue;
        }
        if let Some(why) = probe.not_here(device, claimed) {
            why_not.otherwise = Some(why);
            continue;
        }
        told(probe);
        findings.push(if claimed {
            Finding::of_claimed(probe, || rig(&[]))
        } else {
            let taken = probe.needs.iter().chain([feature]);
            let beyond: Vec<_> = taken.map(FeatureBits::of_info).collect();
            Finding::of_unclaimed(probe, || rig(&beyond))
        });
    }
    let apart = ends_apart(&findings, rig);
    if let Some(apart) = &apart {
        let failed = |found: &&mut Finding| found.result == ProbeResult::Failed;
        for found in findings.iter_mut().filter(failed) {
            *found = Finding::new(&found.probe, ProbeResult::NotRun, Some(apart.clone()));
        }
    }
    let (verdict, because) = if claimed {
        match apart {
            // That something does not happen, as some probes see, says nothing then either.
            Some(apart) => (Verdict::NotVerifiable, apart.to_string()),
            None => conclude_claimed(&findings, why_not),
        }
    } else {
        match refusal_of(device, feature) {
            Err(evidence) => (Verdict::Mismatch, evidence.to_string()),
            Ok(()) => conclude_unclaimed(device, &findings, why_not),
        }
    };
    Verified {
        claimed,
        verdict,
        findings,
        because,
    }
}

/// Where a probe failed: why the two ends do not reach each other, if they do not. Then a rule that seems broken is no evidence
/// against the device.
fn ends_apart(
    findings: &[Finding],
    rig: &dyn Fn(&[FeatureBits]) -> Result<Rig, Evidence>,
) -> Option<Evidence> {
    let mut results = findings.iter().map(|found| found.result);
    results.find(|&result| result == ProbeResult::Failed)?;
    let found = rig(&[]).and_then(|rig| run(Rig::ends_reach_each_other, &rig));
    let found = found.err()?;
    (found.kind() == EvidenceKind::NotHere).then_some(found)
}

/// Why probes were not run.
#[derive(Default)]
struct WhyNot {
    /// What the device claims that excludes the feature.
    instead: Option<&'static str>,
    otherwise: Option<String>,
}

fn conclude_claimed(findings: &[Finding], why_not: WhyNot) -> (Verdict, String) {
    if let Some(other) = why_not.instead {
        let why = format!("{other} is claimed as well, and one excludes the other");
        return (Verdict::Mismatch, why);
    }
    let first = |result| findings.iter().find(|found| found.result == result);
    if let Some(found) = first(ProbeResult::Failed) {
        return (Verdict::Mismatch, found.says());
    }
    if first(ProbeResult::Passed).is_some() {
        return (Verdict::Verified, String::new());
    }
    let skipped = findings.first().map(Finding::says).or(why_not.otherwise);
    let why = skipped.unwrap_or_else(|| "no probe".into());
    (Verdict::NotVerifiable, why)
}

// Probes of something forbidden pass on a device without the feature too: some other must have been refused, or none have been
// kept from running. Where a probe takes something else that the device does not claim, its refusal may be of that.
fn conclude_unclaimed(
    device: &DeviceAttributes,
    findings: &[Finding],
    why_not: WhyNot,
) -> (Verdict, String) {
    let first = |result| findings.iter().find(|found| found.result == result);
    let is_of_the_feature = |found: &&Finding| {
        let needs = &mut found.probe.needs.iter();
        found.result == ProbeResult::Refused && needs.all(|need| device.claims(need))
    };
    if let Some(found) = first(ProbeResult::Failed) {
        let why = format!("neither works nor is refused: {}", found.says());
        return (Verdict::Mismatch, why);
    }
    if let Some(found) = findings.iter().find(is_of_the_feature) {
        return (Verdict::Refused, found.says());
    }
    let not_run = first(ProbeResult::NotRun).map(Finding::says);
    if first(ProbeResult::Passed).is_some() && not_run.is_none() {
        let passed = findings.iter().filter(|found| found.passed()).count();
        let why = match passed {
            1 => "not claimed, and its probe passes".to_owned(),
            _ => format!("not claimed, and {passed} probes of it pass"),
        };
        return (Verdict::Mismatch, why);
    }
    if let Some(found) = first(ProbeResult::Refused) {
        return (Verdict::Refused, found.says());
    }
    if let Some(other) = why_not.instead {
        return (Verdict::Refused, format!("the device has {other} instead"));
    }
    let why = not_run.or(why_not.otherwise);
    (
        Verdict::NotVerifiable,
        why.unwrap_or_else(|| "no probe".into()),
    )
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
fn run(probe: fn(&Rig) -> Outcome, rig: &Rig) -> Outcome {
    let outcome = catch_unwind(AssertUnwindSafe(|| probe(rig)));
    outcome.unwrap_or_else(|panic| {
        let message = panic
            .downcast_ref::<String>()
            .map(String::as_str)
            .or_else(|| panic.downcast_ref::<&str>().copied());
        let message = message.unwrap_or("a panic");
        Err(Evidence::wrong(format!("panicked: {message}")))
    })
}
