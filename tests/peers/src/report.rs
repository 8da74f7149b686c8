//! The exercises, as lines of a table.

use std::sync::LazyLock;
use std::time::Instant;

/// When the first row was made.
static BEGAN: LazyLock<Instant> = LazyLock::new(Instant::now);

/// How an exercise ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Ok,
    /// The peer reports that it has no such operation.
    NotDefined,
    Failed(String),
}

/// An exercise and its outcome.
pub(crate) struct Row {
    pub(crate) what: &'static str,
    /// The side that requested the connection.
    pub(crate) who: &'static str,
    pub(crate) direction: &'static str,
    pub(crate) detail: String,
    pub(crate) outcome: Outcome,
}

impl Row {
    pub(crate) fn new(
        what: &'static str,
        who: &'static str,
        direction: &'static str,
        detail: String,
        outcome: anyhow::Result<Outcome>,
    ) -> Self {
        let outcome = outcome.unwrap_or_else(|error| Outcome::Failed(format!("{error:#}")));
        let elapsed = BEGAN.elapsed().as_secs_f64();
        println!("{elapsed:6.1} s  {what}, {who}, {direction}: {outcome:?}");
        Self {
            what,
            who,
            direction,
            detail,
            outcome,
        }
    }

    /// Whether the exercise did not fail.
    pub(crate) fn is_fine(&self) -> bool {
        !matches!(self.outcome, Outcome::Failed(_))
    }

    /// A line of a table in Markdown.
    pub(crate) fn line(&self, peer: &str) -> String {
        let outcome = match &self.outcome {
            Outcome::Ok => "ok",
            Outcome::NotDefined => "not defined by the peer",
            Outcome::Failed(reason) => reason,
        };
        let Self {
            what,
            who,
            direction,
            detail,
            ..
        } = self;
        format!("| {peer} | {what} | {who} | {direction} | {detail} | {outcome} |\n")
    }
}
