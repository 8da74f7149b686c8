//! The verdict about a device's claim to a feature, from the results of the feature's probes.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::{Evidence, EvidenceKind, Outcome, Probe, Rig};
use crate::capability::{DeviceAttributes, FeatureBits, FeatureInfo, Requirements};

/// The verdict about a device's claim to have, or not to have, a feature.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// The device claims the feature, and every probe that can run here passed.
    Verified,
    /// The device does not claim the feature, and refuses it in a documented form.
    Refused,
    /// The device claims the feature and a probe failed; or it does not claim it, and the feature works, or is not refused
    /// in a documented form.
    Mismatch,
    /// No probe of the feature can run here.
    NotVerifiable,
}

impl Verdict {
    /// Returns the verdict in lower case: `"verified"`, `"refused"`, `"mismatch"` or `"not-verifiable"`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Verified => "verified",
            Self::Refused => "refused",
            Self::Mismatch => "mismatch",
            Self::NotVerifiable => "not-verifiable",
        }
    }
}

/// The result of running one probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ProbeResult {
    /// The rule that the probe checks holds.
    Passed,
    /// The rule does not hold; or the device does not claim the feature, and did something else than to refuse it.
    Failed,
    /// The device does not claim the feature, and refused it in a documented form.
    Refused,
    /// The probe could not check the rule.
    NotRun,
}

impl ProbeResult {
    /// Returns the result in lower case: `"passed"`, `"failed"`, `"refused"` or `"not-run"`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Passed => "passed",
            Self::Failed => "failed",
            Self::Refused => "refused",
            Self::NotRun => "not-run",
        }
    }
}

/// The result of one probe, with its evidence.
#[derive(Clone, Debug)]
pub struct Finding {
    /// The probe that was run.
    pub probe: Probe,
    /// The result of the probe.
    pub result: ProbeResult,
    /// What the probe found instead of the rule; `None` if the rule holds.
    pub evidence: Option<Evidence>,
}

impl Finding {
    /// Whether the probe passed: the rule holds.
    pub fn passed(&self) -> bool {
        self.result == ProbeResult::Passed
    }

    /// Whether the probe could check the rule.
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

/// A feature of a device after its probes have run.
#[derive(Clone, Debug)]
pub struct Verified {
    /// Whether the device claims the feature.
    pub claimed: bool,
    /// The verdict about the device's claim.
    pub verdict: Verdict,
    /// The results of the probes that could be started.
    pub findings: Vec<Finding>,
    /// The reason for the verdict, in one line: the first probe that failed or refused, or why nothing could be verified.
    /// Empty for a verified feature.
    pub because: String,
}

impl Verified {
    /// Returns how many probes have this result.
    pub fn count(&self, result: ProbeResult) -> usize {
        let findings = self.findings.iter();
        findings.filter(|found| found.result == result).count()
    }

    /// Returns how many probes passed.
    pub fn passed(&self) -> usize {
        self.count(ProbeResult::Passed)
    }

    /// Returns how many probes failed.
    pub fn failed(&self) -> usize {
        self.count(ProbeResult::Failed)
    }

    /// Returns in how many probes the device refused the feature.
    pub fn refused(&self) -> usize {
        self.count(ProbeResult::Refused)
    }
}

/// Runs the probes of `feature` on a device and returns the verdict.
///
/// `rig` makes a fresh rig for each probe, which is granted everything that the device claims, and the bits of its argument
/// whether the device claims them or not. For a feature that is not claimed the same probes run with its bits, and those of
/// other features that they need, granted nevertheless, so that the device itself must refuse them. A device that passes
/// them all has the feature and hides it. `told` is called with each probe before it runs.
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

/// After a failed probe, checks whether the two ends reach each other at all, and returns the evidence if they do not. A
/// failed rule is then no evidence against the device.
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

/// Reasons why probes of a feature were not run.
#[derive(Default)]
struct WhyNot {
    /// Name of a feature that the device claims and that excludes the probed one.
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

/// Checks that opening a device which does not claim `feature` is refused to a program that requires the feature, and that
/// the error names it.
///
/// # Errors
/// The feature is granted, or the error does not name it.
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

// A probe that panics has found a broken rule too: the device did something that the probe did not expect.
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
