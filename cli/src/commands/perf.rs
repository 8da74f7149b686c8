//! `polyverbs perf`.

/// Measure
#[derive(clap::Args)]
pub(crate) struct Arguments {}

pub(crate) fn run(_: &Arguments) -> anyhow::Result<()> {
    anyhow::bail!("nothing is measured yet")
}
