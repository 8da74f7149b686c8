//! The parts of a command of `bench`, which are measured one after another.

use std::panic::resume_unwind;
use std::thread;

use anyhow::{Context as _, Result, ensure};
use polyverbs_benches::partner::Partner;
use polyverbs_benches::yardstick::line_crossing;

use crate::report::{Report, Row};

/// The number of round trips over which the time of a cache line crossing is measured.
const CROSSINGS: u64 = 5_000;

/// A part of a command of `bench`: a name, by which `--only` selects the part, and the function that measures the
/// part's rows.
pub(crate) struct Part {
    name: String,
    measure: Box<dyn FnOnce() -> Result<Vec<Row>> + Send>,
}

/// A function that measures a part of a command with the arguments `A`, and returns the rows of that part.
pub(crate) type Measure<A> = fn(&A) -> Result<Vec<Row>>;

impl Part {
    pub(crate) fn new(
        name: impl Into<String>,
        measure: impl FnOnce() -> Result<Vec<Row>> + Send + 'static,
    ) -> Self {
        let (name, measure) = (name.into(), Box::new(measure));
        Self { name, measure }
    }

    /// Returns a part for each pair of a name and a function; each function gets a copy of the arguments when it is
    /// measured.
    pub(crate) fn of_each<A: Clone + Send + 'static>(
        arguments: &A,
        functions: &[(&str, Measure<A>)],
    ) -> Vec<Self> {
        let part = |&(name, measure): &(&str, Measure<A>)| {
            let arguments = arguments.clone();
            Self::new(name, move || measure(&arguments))
        };
        functions.iter().map(part).collect()
    }
}

/// Returns the parts whose names begin with `only`; if there are none, the error lists all names.
fn selected(parts: Vec<Part>, only: &str) -> Result<Vec<Part>> {
    let (selected, others): (Vec<_>, Vec<_>) = parts
        .into_iter()
        .partition(|part| part.name.starts_with(only));
    let names = others.iter().map(|part| &*part.name);
    ensure!(
        !selected.is_empty(),
        "no part begins with {only}: there are {}",
        names.collect::<Vec<_>>().join(", ")
    );
    Ok(selected)
}

/// Measures the parts whose names begin with `only`, each on a thread of its own, and the time of a cache line crossing
/// before and after each part; fails if no name begins so, or a part fails.
pub(crate) fn measure(parts: Vec<Part>, only: &str) -> Result<Report> {
    let parts = selected(parts, only)?;
    let mut rows = Vec::new();
    let (mut before, mut is_apart) = apart(crossing);
    for Part { name, measure } in parts {
        let measured = apart(measure).with_context(|| name.clone())?;
        let (after, still_apart) = apart(crossing);
        is_apart &= still_apart;
        for mut row in measured {
            row.part.clone_from(&name);
            row.crossings_ns = [before, after];
            rows.push(row);
        }
        before = after;
    }
    Ok(Report {
        apart: is_apart,
        rows,
    })
}

/// Returns the time that a cache line takes from one processor to another, in nanoseconds, and whether the two threads
/// that measured this time had a processor each.
fn crossing() -> (f64, bool) {
    let partner = Partner::pinned();
    (line_crossing(&partner, CROSSINGS), partner.is_apart())
}

/// Runs `measure` on a new thread and returns its result; a panic of `measure` continues in the calling thread. A thread
/// that a measurement has pinned to a processor stays there, and so do all threads that it starts afterwards.
pub(crate) fn apart<T: Send + 'static>(measure: impl FnOnce() -> T + Send + 'static) -> T {
    let measured = thread::spawn(measure).join();
    measured.unwrap_or_else(|panic| resume_unwind(panic))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn select(only: &str) -> Result<Vec<String>> {
        let part = |name: &str| Part::new(name, || Ok(Vec::new()));
        let parts = ["udp-latency", "udp-stream", "tcp-stream"].map(part);
        let selected = selected(parts.into(), only)?;
        Ok(selected.into_iter().map(|part| part.name).collect())
    }

    #[test]
    fn the_beginning_of_a_name_selects_parts() {
        assert_eq!(select("udp").unwrap(), ["udp-latency", "udp-stream"]);
        assert_eq!(select("").unwrap().len(), 3);
        let error = select("sctp").unwrap_err().to_string();
        assert!(
            error.contains("udp-latency, udp-stream, tcp-stream"),
            "{error}"
        );
    }
}
