//! Emulated devices that break a rule, for tests of the probes that must notice it.

use anyhow::Context as _;
use polyverbs::rules::{Rule, break_rule};

const VARIABLE: &str = "POLYVERBS_BREAKS";

/// Makes the emulated devices break the rule that the environment names, if any.
pub(crate) fn from_environment() -> anyhow::Result<()> {
    let Some(name) = std::env::var_os(VARIABLE) else {
        return Ok(());
    };
    let rule = Rule::ALL
        .iter()
        .copied()
        .find(|rule| name.to_str() == Some(rule.name()));
    break_rule(rule.with_context(|| format!("{VARIABLE}: there is no rule {}", name.display()))?);
    Ok(())
}
