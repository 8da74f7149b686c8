//! Results as text and JSON.

use std::io::Write as _;
use std::net::SocketAddr;

use hdrhistogram::Histogram;
use polyverbs::Device;
use serde_json::{Value, json};

use super::Test;
use super::figures::{Each, Figures};
use crate::output::{BOLD, DIM, format_bytes, nanoseconds, rate, say, width, wrapped};

const QUANTILES: [(&str, f64); 5] = [
    ("p50", 0.5),
    ("p90", 0.9),
    ("p99", 0.99),
    ("p99.9", 0.999),
    ("p99.99", 0.9999),
];

pub(super) fn print(
    device: &Device,
    test: Test,
    size: u32,
    to: Option<SocketAddr>,
    figures: &Figures,
) -> anyhow::Result<()> {
    let Figures {
        median,
        iterations,
        each,
        yardsticks,
    } = figures;
    say!(
        "{BOLD}{} on {}{}{BOLD:#}  {DIM}{}, {iterations} operations{DIM:#}",
        test.name(),
        device.name(),
        to.map_or_else(String::new, |to| format!(" to {to}")),
        format_bytes(u64::from(size)),
    )?;
    let figure = match test {
        _ if test.counts_bytes() => rate(f64::from(size) / median * 1e9),
        Test::MessageRate => format!("{:.2} million messages a second", 1e3 / median),
        _ => nanoseconds(*median),
    };
    let meaning = match test {
        Test::SendLatency => "half a round trip",
        Test::SendBandwidth => "64 sends in flight",
        Test::ReadBandwidth => "64 reads asked for",
        Test::Bandwidth | Test::MessageRate if to.is_some() => "64 writes in flight",
        Test::Bandwidth => "16 writes in flight",
        Test::MessageRate => "32 writes for each doorbell",
        _ => "posted and polled by one thread",
    };
    say!("  {BOLD}{figure}{BOLD:#}  {DIM}{meaning}; median of blocks{DIM:#}")?;
    for yardstick in yardsticks {
        let (before, after) = (nanoseconds(yardstick.before), nanoseconds(yardstick.after));
        say!(
            "  {:.2} times {}: {before} before, {after} after",
            median / yardstick.mean(),
            yardstick.name,
        )?;
    }
    if let Some(Each { histogram, clock }) = each {
        say!(
            "\n  {DIM}timed one by one, which adds about {}:{DIM:#}",
            nanoseconds(*clock)
        )?;
        say!("  {}", quantiles(histogram))?;
        for line in bars(histogram, width()) {
            say!("  {line}")?;
        }
    }
    if cfg!(debug_assertions) {
        say!("  {DIM}this is a debug build: measure a release build{DIM:#}")?;
    }
    Ok(())
}

/// The quantiles of picoseconds.
pub(crate) fn quantiles(histogram: &Histogram<u64>) -> String {
    let mut parts = vec![format!("min {}", time(histogram.min()))];
    for (name, quantile) in QUANTILES {
        parts.push(format!(
            "{name} {}",
            time(histogram.value_at_quantile(quantile))
        ));
    }
    parts.push(format!("max {}", time(histogram.max())));
    wrapped(parts.iter().map(String::as_str), "  ", 2, width())
}

fn time(picoseconds: u64) -> String {
    nanoseconds(picoseconds as f64 / 1e3)
}

// A bar for each of a dozen steps up to the 99th percentile, and one for all above.
fn bars(histogram: &Histogram<u64>, width: usize) -> Vec<String> {
    const STEPS: u64 = 12;
    // Room for a label, a percentage and blanks.
    let longest = (width - 20).min(50) as f64;
    let least = histogram.min();
    let most = histogram.value_at_quantile(0.99).max(least + 1);
    let step = nice((most - least).div_ceil(STEPS));
    let first = least / step;
    // Each recorded value counts in one bar; the last takes all above.
    let steps = (most / step - first + 1) as usize;
    let mut counts = vec![0; steps + 1];
    for value in histogram.iter_recorded() {
        let index = (value.value_iterated_to() / step).saturating_sub(first) as usize;
        counts[index.min(steps)] += value.count_since_last_iteration();
    }
    let mut counts: Vec<_> = (first..)
        .zip(&counts)
        .map(|(index, count)| (format!("{:>8}", time(index * step)), *count))
        .collect();
    if let Some((label, _)) = counts.last_mut() {
        *label = format!("{:>8}", "above");
    }
    let largest = counts
        .iter()
        .map(|(_, count)| *count)
        .max()
        .unwrap_or(1)
        .max(1);
    let line = |(label, count): &(String, u64)| {
        let eighths = (*count as f64 / largest as f64 * longest * 8.0).round() as usize;
        let part = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"][eighths % 8];
        let percent = *count as f64 / histogram.len().max(1) as f64 * 100.0;
        format!("{label} {}{part} {percent:.1}%", "█".repeat(eighths / 8))
    };
    counts.iter().map(line).collect()
}

// The next larger number that is 1, 2 or 5 times a power of ten.
fn nice(step: u64) -> u64 {
    let mut power = 1;
    loop {
        for times in [1, 2, 5] {
            if times * power >= step {
                return times * power;
            }
        }
        power *= 10;
    }
}

pub(super) fn to_json(device: &Device, test: Test, size: u32, figures: &Figures) -> Value {
    let Figures {
        median,
        iterations,
        each,
        yardsticks,
    } = figures;
    let yardsticks: Vec<_> = yardsticks
        .iter()
        .map(|yardstick| {
            json!({
                "name": yardstick.name,
                "before_ns": yardstick.before,
                "after_ns": yardstick.after,
                "ratio": median / yardstick.mean(),
            })
        })
        .collect();
    let mut object = json!({
        "test": test.name(),
        "device": device.name(),
        "transport": device.attributes().transport.name(),
        "size": size,
        "iterations": iterations,
        "nanoseconds": median,
        "yardsticks": yardsticks,
        "release": !cfg!(debug_assertions),
    });
    match test {
        _ if test.counts_bytes() => {
            object["bytes_per_second"] = json!(f64::from(size) / median * 1e9)
        }
        Test::MessageRate => object["messages_per_second"] = json!(1e9 / median),
        _ => {}
    }
    if let Some(Each { histogram, clock }) = each {
        object["one_by_one"] = one_by_one(histogram, *clock);
    }
    object
}

fn one_by_one(histogram: &Histogram<u64>, clock: f64) -> Value {
    let mut object = quantiles_to_json(histogram);
    object["clock_ns"] = json!(clock);
    object
}

/// The quantiles of picoseconds.
pub(crate) fn quantiles_to_json(histogram: &Histogram<u64>) -> Value {
    let mut object = json!({
        "min_ns": histogram.min() as f64 / 1e3,
        "mean_ns": histogram.mean() / 1e3,
        "max_ns": histogram.max() as f64 / 1e3,
    });
    for (name, quantile) in QUANTILES {
        object[format!("{name}_ns")] = json!(histogram.value_at_quantile(quantile) as f64 / 1e3);
    }
    object
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn histogram_steps_are_round_and_every_value_is_in_a_bar() {
        assert_eq!([0, 1, 3, 7, 11, 430].map(nice), [1, 1, 5, 10, 20, 500]);
        let mut histogram = Histogram::new_with_bounds(1, 1_000_000, 3).unwrap();
        for value in 1..=1000u64 {
            histogram.record(value * 100).unwrap();
        }
        let lines = bars(&histogram, 80);
        let percents = lines.iter().map(|line| {
            line.rsplit(' ')
                .next()
                .unwrap()
                .trim_end_matches('%')
                .parse::<f64>()
                .unwrap()
        });
        let sum: f64 = percents.sum();
        assert!((99.0..101.0).contains(&sum), "{sum} {lines:#?}");
        assert!(lines.iter().all(|line| line.chars().count() <= 80));
    }
}
