//! Emulated devices that break a rule: a test sees that the command fails then. Only builds with debug assertions have it.

use anyhow::Context as _;
use polyverbs::rules::{Rule, break_rule};

const VARIABLE: &str = "POLYVERBS_BREAKS";

/// Makes the emulated devices break the rule that the environment names, if any, in what this thread does.
pub(crate) fn from_environment() -> anyhow::Result<()> {
    let Some(name) = std::env::var_os(VARIABLE) else {
        return Ok(());
    };
    let rule = Rule::ALL
        .iter()
        .copied()
        .find(|rule| name.to_str() == Some(rule.name()));
    let rule = rule.with_context(|| format!("{VARIABLE}: there is no rule {}", name.display()))?;
    break_rule(Some(rule));
    Ok(())
}
