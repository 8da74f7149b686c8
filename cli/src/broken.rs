//! Makes emulated devices break a rule, so that a test can check that the command then fails. Only in builds with debug
//! assertions.

use anyhow::Context as _;
use polyverbs::rules::{Rule, break_rule};

const VARIABLE: &str = "POLYVERBS_BREAKS";

/// Makes the emulated devices that this thread uses break the rule that the environment variable names; does nothing if it
/// is not set.
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
