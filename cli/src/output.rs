//! Output of the subcommands: coloured on a terminal, plain elsewhere.

use std::io::{self, IsTerminal as _, Write as _};
use std::time::Duration;

use anstyle::{AnsiColor, Style};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use polyverbs::Device;

use crate::NAME;
use crate::transfer::{is_command, printable};

pub(crate) const BOLD: Style = Style::new().bold();
pub(crate) const DIM: Style = Style::new().dimmed();
pub(crate) const GOOD: Style = AnsiColor::Green.on_default().bold();
pub(crate) const BAD: Style = AnsiColor::Red.on_default().bold();

/// Prints to standard output. An error, unlike a panic, lets `polyverbs … | head` end quietly.
macro_rules! say {
    ($($argument:tt)*) => {
        $crate::output::written(writeln!(anstream::stdout(), $($argument)*))
    };
}
pub(crate) use say;

/// Adds to the error of a write that it was to standard output.
pub(crate) fn written(outcome: io::Result<()>) -> io::Result<()> {
    outcome.map_err(|error| {
        io::Error::new(
            error.kind(),
            format!("cannot write to standard output: {error}"),
        )
    })
}

/// Prints a text to standard output as it is.
pub(crate) fn print(text: &[u8]) -> io::Result<()> {
    let mut output = io::stdout();
    written(output.write_all(text).and_then(|()| output.flush()))
}

/// The error of a command that has reported its failure already.
#[derive(Debug)]
pub(crate) struct AlreadyReported;

impl std::fmt::Display for AlreadyReported {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("failed, as was told")
    }
}

impl std::error::Error for AlreadyReported {}

pub(crate) fn complain(what: &str) {
    let line = what.split_whitespace().collect::<Vec<_>>().join(" ");
    let line = printable(line);
    // A failure cannot be reported.
    let _ = writeln!(anstream::stderr(), "{BAD}{NAME}:{BAD:#} {line}");
}

pub(crate) fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let io = error.downcast_ref::<io::Error>();
    io.is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

pub(crate) fn print_json(value: &impl serde::Serialize) -> anyhow::Result<()> {
    let mut text = escaped(&serde_json::to_string_pretty(value)?);
    text.push('\n');
    Ok(print(text.as_bytes())?)
}

/// Returns a JSON object as one line of text.
pub(crate) fn json_line(value: &serde_json::Value) -> String {
    escaped(&value.to_string())
}

// JSON leaves some characters as they are that are commands to a terminal.
fn escaped(json: &str) -> String {
    let mut text = String::with_capacity(json.len());
    for letter in json.chars() {
        match letter {
            '\n' => text.push(letter),
            _ if is_command(letter) => text.push_str(&format!("\\u{:04x}", u32::from(letter))),
            _ => text.push(letter),
        }
    }
    text
}

/// Returns the registered device of this name, or an error that lists the names.
pub(crate) fn device(name: &str) -> anyhow::Result<Device> {
    let registry = polyverbs::registry()?;
    let Some(device) = registry.device(name) else {
        let known: Vec<_> = registry.devices().map(Device::name).collect();
        anyhow::bail!("no device is named {name}; there are {}", known.join(", "));
    };
    Ok(device.clone())
}

/// Returns the width of standard output in columns: that of the terminal, or `COLUMNS`. For a file or a pipe it is 100, so
/// that the output is always the same.
pub(crate) fn width() -> usize {
    let said = || std::env::var("COLUMNS").ok()?.parse().ok();
    terminal_size::terminal_size_of(io::stdout())
        .map(|(width, _)| usize::from(width.0))
        .or_else(said)
        .filter(|width| *width > 0)
        .unwrap_or(100)
        .max(40)
}

/// Wraps words at `width` columns; lines after the first are indented by `indent` blanks.
pub(crate) fn wrapped<'w>(
    words: impl IntoIterator<Item = &'w str>,
    separator: &str,
    indent: usize,
    width: usize,
) -> String {
    let mut text = String::new();
    let mut column = indent;
    let mut is_first = true;
    for word in words {
        let length = word.chars().count();
        if is_first {
            is_first = false;
        } else if column + separator.len() + length > width {
            text.push_str(separator.trim_end());
            text.push('\n');
            text.extend(std::iter::repeat_n(' ', indent));
            column = indent;
        } else {
            text.push_str(separator);
            column += separator.len();
        }
        text.push_str(word);
        column += length;
    }
    text
}

/// Returns a number with a noun, such as `1 window` or `2 windows`.
pub(crate) fn count(number: u64, what: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{number} {what}{plural}")
}

/// Returns a progress bar on standard error, which is hidden if that is no interactive terminal.
pub(crate) fn progress(total: u64, template: &str) -> ProgressBar {
    let is_plain = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let target = if io::stderr().is_terminal() && !is_plain {
        ProgressDrawTarget::stderr_with_hz(15)
    } else {
        ProgressDrawTarget::hidden()
    };
    let bar = ProgressBar::with_draw_target(Some(total), target);
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style.progress_chars("━━╌"));
    }
    bar
}

/// Formats a number of bytes in a suitable unit, such as `1.5 GiB`.
pub(crate) fn format_bytes(count: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = count as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 {
        format!("{count} B")
    } else {
        format!("{} {}", three_digits(value), UNITS[unit])
    }
}

/// Formats bytes per second in a decimal unit, such as `1.23 GB/s`.
pub(crate) fn rate(bytes_per_second: f64) -> String {
    let (value, unit) = match bytes_per_second {
        rate if rate >= 1e9 => (rate / 1e9, "GB/s"),
        rate if rate >= 1e6 => (rate / 1e6, "MB/s"),
        rate if rate >= 1e3 => (rate / 1e3, "kB/s"),
        rate => (rate, "B/s"),
    };
    format!("{} {unit}", three_digits(value))
}

/// Formats a number of nanoseconds in a suitable unit.
pub(crate) fn nanoseconds(count: f64) -> String {
    match count {
        count if count >= 1e9 => format!("{} s", three_digits(count / 1e9)),
        count if count >= 1e6 => format!("{} ms", three_digits(count / 1e6)),
        count if count >= 1e4 => format!("{} µs", three_digits(count / 1e3)),
        count => format!("{} ns", three_digits(count)),
    }
}

pub(crate) fn seconds(duration: Duration) -> String {
    nanoseconds(duration.as_secs_f64() * 1e9)
}

fn three_digits(value: f64) -> String {
    match value {
        value if value >= 100.0 => format!("{value:.0}"),
        value if value >= 10.0 => format!("{value:.1}"),
        value => format!("{value:.2}"),
    }
}

/// Parses a number of bytes, such as `4096`, `64k`, `1M` or `2G`, with or without `iB`.
pub(crate) fn parse_bytes(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|letter: char| !letter.is_ascii_digit());
    let shift = match text[digits.len()..].trim().to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kib" => 10,
        "m" | "mib" => 20,
        "g" | "gib" => 30,
        _ => return Err("a number of bytes is like 4096, 64k, 1M or 2G".into()),
    };
    let number: u64 = digits
        .parse()
        .map_err(|_| "a number of bytes is like 4096, 64k, 1M or 2G")?;
    number
        .checked_mul(1 << shift)
        .ok_or_else(|| "too many bytes".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_wrapped_and_nouns_pluralized() {
        let words = ["one", "two", "three", "four"];
        assert_eq!(wrapped(words, " ", 2, 9), "one two\n  three\n  four");
        assert_eq!(wrapped(words, ", ", 0, 80), "one, two, three, four");
        assert_eq!(wrapped(["longer than that"], " ", 2, 4), "longer than that");
        assert_eq!(count(1, "window"), "1 window");
        assert_eq!(count(0, "window"), "0 windows");
    }

    #[test]
    fn sizes_are_parsed_and_printed() {
        assert_eq!(parse_bytes("4096"), Ok(4096));
        assert_eq!(parse_bytes("64k"), Ok(65536));
        assert_eq!(parse_bytes("1MiB"), Ok(1 << 20));
        assert!(parse_bytes("").is_err());
        assert!(parse_bytes("k").is_err());
        assert!(parse_bytes("-1").is_err());
        assert!(parse_bytes("64 parsecs").is_err());
        assert!(parse_bytes("99999999999999999999").is_err());
        assert!(parse_bytes("99999999999G").is_err());
        assert_eq!(format_bytes(0), "0 B");
        assert_eq!(format_bytes(4097), "4.00 KiB");
        assert_eq!(format_bytes(1 << 30), "1.00 GiB");
        assert_eq!(rate(1.5e9), "1.50 GB/s");
        assert_eq!(nanoseconds(61.0), "61.0 ns");
    }
}
