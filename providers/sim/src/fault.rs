//! Which faults a link injects, as values and as text.
//!
//! The text is a list of `name=value`, separated by commas: `drop=5%,duplicate=1%,delay=1ms..5ms,seed=7`. [`FORMS`]
//! lists the names, what each takes, and which kind of link it belongs to.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use thiserror::Error;

/// What a link injects. Without faults it carries everything unharmed and at once.
///
/// ```
/// use polyverbs_sim::{DatagramOptions, FaultSpec, StreamOptions};
///
/// let spec: FaultSpec = "drop=5%,delay=1ms..5ms,seed=7".parse()?;
/// assert_eq!(spec.to_string(), "drop=5%,delay=1ms..5ms,seed=7");
/// let options = DatagramOptions::try_from(&spec)?;
/// # assert_eq!(options.seed, 7);
/// assert_eq!(
///     StreamOptions::try_from(&spec).unwrap_err().to_string(),
///     "drop is a fault of a datagram link (InfiniBand); this is a stream link (iWARP)"
/// );
/// # Ok::<(), polyverbs_sim::FaultSpecError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultSpec {
    /// Faults of a datagram link.
    pub datagram: DatagramFaults,
    /// Faults of a stream link.
    pub stream: StreamFaults,
    /// How long a frame is under way.
    pub delay: Between<Duration>,
    /// What chance starts from.
    pub seed: u64,
}

impl FaultSpec {
    /// Whether no fault is injected.
    pub fn is_none(&self) -> bool {
        *self
            == Self {
                seed: self.seed,
                ..Self::default()
            }
    }

    /// Whether a link of this kind can inject all of it.
    ///
    /// # Errors
    /// A fault belongs to the other kind.
    pub fn check(&self, link: Contract) -> Result<(), FaultSpecError> {
        let foreign = FORMS.iter().find(|form| {
            form.contract.is_some_and(|contract| contract != link) && (form.show)(self).is_some()
        });
        foreign.map_or(Ok(()), |form| {
            Err(FaultSpecError::WrongLink {
                name: form.name,
                link,
            })
        })
    }
}

impl FromStr for FaultSpec {
    type Err = FaultSpecError;

    /// Reads the text form. Nothing, or `none`, is no fault.
    fn from_str(text: &str) -> Result<Self, FaultSpecError> {
        let mut spec = Self::default();
        let mut seen = Vec::new();
        if matches!(text.trim(), "" | "none") {
            return Ok(spec);
        }
        for clause in text.split(',').map(str::trim) {
            let (name, value) = clause
                .split_once('=')
                .ok_or_else(|| FaultSpecError::NoValue {
                    clause: clause.to_owned(),
                })?;
            let (name, value) = (name.trim(), value.trim());
            let form = FORMS.iter().find(|form| form.name == name).ok_or_else(|| {
                FaultSpecError::Unknown {
                    name: name.to_owned(),
                }
            })?;
            if seen.contains(&form.name) {
                return Err(FaultSpecError::Twice { name: form.name });
            }
            seen.push(form.name);
            (form.read)(&mut spec, value).ok_or_else(|| FaultSpecError::Value {
                name: form.name,
                value: value.to_owned(),
                form: form.value,
            })?;
        }
        Ok(spec)
    }
}

impl fmt::Display for FaultSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut before = "";
        for form in FORMS {
            if let Some(value) = (form.show)(self) {
                write!(f, "{before}{}={value}", form.name)?;
                before = ",";
            }
        }
        if before.is_empty() {
            f.write_str("none")
        } else {
            Ok(())
        }
    }
}

/// What is wrong with the text of a [`FaultSpec`], or with the link it is meant for.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum FaultSpecError {
    /// A clause without `=`.
    #[error("{clause:?} is not of the form name=value")]
    NoValue {
        /// The clause.
        clause: String,
    },
    /// One fault given twice.
    #[error("{name} is given twice")]
    Twice {
        /// The fault.
        name: &'static str,
    },
    /// No fault has this name.
    #[error("no fault is called {name:?}; there are {}", names())]
    Unknown {
        /// The name.
        name: String,
    },
    /// A value that is not of the fault's form.
    #[error("{name}={value}: expected {form}")]
    Value {
        /// The fault.
        name: &'static str,
        /// What was given.
        value: String,
        /// What the fault takes.
        form: &'static str,
    },
    /// The fault belongs to the other kind of link.
    #[error("{name} is a fault of {}; this is {link}", link.other())]
    WrongLink {
        /// The fault.
        name: &'static str,
        /// The link it was given to.
        link: Contract,
    },
}

/// What a link promises.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Contract {
    /// Frames of bounded length, which may get lost, doubled, reordered and damaged: InfiniBand's transport.
    Datagram,
    /// Frames in order, each once, until the stream is reset: iWARP's.
    Stream,
}

impl Contract {
    fn other(self) -> Self {
        match self {
            Self::Datagram => Self::Stream,
            Self::Stream => Self::Datagram,
        }
    }
}

impl fmt::Display for Contract {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Datagram => "a datagram link (InfiniBand)",
            Self::Stream => "a stream link (iWARP)",
        })
    }
}

/// Faults of a datagram link, besides delay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DatagramFaults {
    /// Frames that are lost.
    pub drop: Rate,
    /// Frames that arrive twice.
    pub duplicate: Rate,
    /// Frames that are held back, so that later ones overtake them.
    pub reorder: Rate,
    /// Frames of which one bit is flipped.
    pub corrupt: Rate,
    /// The link carries nothing within these times, counted from its first frame; the last not included.
    pub partition: Option<Between<Duration>>,
}

/// Faults of a stream link, besides delay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StreamFaults {
    /// Octets of the pieces in which a frame arrives; it is delivered with its last piece.
    pub chunk: Option<Between<u32>>,
    /// Streams that stand still for a while.
    pub stall: Option<Stall>,
    /// Frames that a connection carries, both directions together, before it is reset.
    pub reset_after: Option<u64>,
    /// Frames of which one bit is flipped.
    pub flip: Rate,
}

/// How often a stream stands still, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stall {
    /// Frames before which it does.
    pub rate: Rate,
    /// How long.
    pub time: Duration,
}

/// How often something happens: 0 to 100 percent of the frames, in millionths.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rate(u32);

impl Rate {
    /// To no frame.
    pub const NEVER: Self = Self(0);
    /// To each frame.
    pub const ALWAYS: Self = Self(1_000_000);

    /// Of a million frames, this many; no more than all.
    pub const fn of_millionths(millionths: u32) -> Self {
        if millionths > Self::ALWAYS.0 {
            Self::ALWAYS
        } else {
            Self(millionths)
        }
    }

    /// Of a hundred frames, this many; no more than all.
    pub const fn percent(percent: u32) -> Self {
        Self::of_millionths(percent.saturating_mul(10_000))
    }

    /// Of a million frames, how many.
    pub const fn millionths(self) -> u32 {
        self.0
    }

    fn read(text: &str) -> Option<Self> {
        let millionths = u32::try_from(decimal(text.strip_suffix('%')?.trim_end(), 4)?).ok()?;
        (millionths <= Self::ALWAYS.0).then_some(Self(millionths))
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (whole, part) = (self.0 / 10_000, self.0 % 10_000);
        let part = format!(".{part:04}");
        write!(
            f,
            "{whole}{}%",
            part.trim_end_matches('0').trim_end_matches('.')
        )
    }
}

/// Two bounds, both included unless it is said otherwise. Chance picks evenly between them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Between<T> {
    least: T,
    most: T,
}

impl<T: Copy + PartialOrd> Between<T> {
    /// Both bounds, whichever is given first.
    pub fn new(one: T, other: T) -> Self {
        if one <= other {
            Self {
                least: one,
                most: other,
            }
        } else {
            Self {
                least: other,
                most: one,
            }
        }
    }

    /// Always the same.
    pub const fn exactly(value: T) -> Self {
        Self {
            least: value,
            most: value,
        }
    }

    /// The lower bound.
    pub const fn least(&self) -> T {
        self.least
    }

    /// The upper bound; never below the lower one.
    pub const fn most(&self) -> T {
        self.most
    }

    fn read(text: &str, value: impl Fn(&str) -> Option<T>) -> Option<Self> {
        let Some((least, most)) = text.split_once("..") else {
            return value(text).map(Self::exactly);
        };
        let (least, most) = (value(least.trim_end())?, value(most.trim_start())?);
        (least <= most).then_some(Self { least, most })
    }

    fn show(&self, value: impl Fn(T) -> String) -> String {
        let least = value(self.least);
        if self.least == self.most {
            least
        } else {
            format!("{least}..{}", value(self.most))
        }
    }
}

/// A fault by name: what the text form knows about it.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Form {
    /// Its name in the text.
    pub name: &'static str,
    /// The kind of link it belongs to; `None` for both.
    pub contract: Option<Contract>,
    /// What it takes.
    pub value: &'static str,
    /// What it does.
    pub meaning: &'static str,
    read: fn(&mut FaultSpec, &str) -> Option<()>,
    show: fn(&FaultSpec) -> Option<String>,
}

/// Everything that the text form knows, in the order in which it is printed.
pub const FORMS: &[Form] = &[
    Form {
        name: "drop",
        contract: Some(Contract::Datagram),
        value: RATE,
        meaning: "frames that are lost",
        read: |spec, text| set(&mut spec.datagram.drop, Rate::read(text)),
        show: |spec| show_rate(spec.datagram.drop),
    },
    Form {
        name: "duplicate",
        contract: Some(Contract::Datagram),
        value: RATE,
        meaning: "frames that arrive twice",
        read: |spec, text| set(&mut spec.datagram.duplicate, Rate::read(text)),
        show: |spec| show_rate(spec.datagram.duplicate),
    },
    Form {
        name: "reorder",
        contract: Some(Contract::Datagram),
        value: RATE,
        meaning: "frames that later ones overtake",
        read: |spec, text| set(&mut spec.datagram.reorder, Rate::read(text)),
        show: |spec| show_rate(spec.datagram.reorder),
    },
    Form {
        name: "corrupt",
        contract: Some(Contract::Datagram),
        value: RATE,
        meaning: "frames of which one bit is flipped",
        read: |spec, text| set(&mut spec.datagram.corrupt, Rate::read(text)),
        show: |spec| show_rate(spec.datagram.corrupt),
    },
    Form {
        name: "partition",
        contract: Some(Contract::Datagram),
        value: "two times, such as 100ms..300ms, counted from the first frame",
        meaning: "nothing is carried from the first time until the second",
        read: |spec, text| {
            let times = Between::read(text, read_time).filter(|_| text.contains(".."));
            set(&mut spec.datagram.partition, times.map(Some))
        },
        show: |spec| spec.datagram.partition.map(|times| show_window(&times)),
    },
    Form {
        name: "chunk",
        contract: Some(Contract::Stream),
        value: "octets, at least 1, or a range of them, such as 64..1460",
        meaning: "frames arrive in pieces of this length",
        read: |spec, text| {
            set(
                &mut spec.stream.chunk,
                Between::read(text, read_octets).map(Some),
            )
        },
        show: |spec| {
            spec.stream
                .chunk
                .map(|octets| octets.show(|octets| octets.to_string()))
        },
    },
    Form {
        name: "stall",
        contract: Some(Contract::Stream),
        value: "a rate and a time, such as 1%:20ms",
        meaning: "frames before which a stream stands still, and for how long",
        read: |spec, text| set(&mut spec.stream.stall, Stall::read(text).map(Some)),
        show: |spec| {
            spec.stream
                .stall
                .map(|stall| format!("{}:{}", stall.rate, show_time(stall.time)))
        },
    },
    Form {
        name: "reset-after",
        contract: Some(Contract::Stream),
        value: "a number of frames, such as 100",
        meaning: "a connection is reset once it has carried this many frames",
        read: |spec, text| set(&mut spec.stream.reset_after, decimal(text, 0).map(Some)),
        show: |spec| spec.stream.reset_after.map(|frames| frames.to_string()),
    },
    Form {
        name: "flip",
        contract: Some(Contract::Stream),
        value: RATE,
        meaning: "frames of which one bit is flipped",
        read: |spec, text| set(&mut spec.stream.flip, Rate::read(text)),
        show: |spec| show_rate(spec.stream.flip),
    },
    Form {
        name: "delay",
        contract: None,
        value: "a time, or a range of them, such as 1ms..5ms (units ns, us, ms, s)",
        meaning: "how long a frame is under way",
        read: |spec, text| set(&mut spec.delay, Between::read(text, read_time)),
        show: |spec| (spec.delay != Between::default()).then(|| spec.delay.show(show_time)),
    },
    Form {
        name: "seed",
        contract: None,
        value: "a number, such as 7",
        meaning: "what chance starts from: the same seed gives the same faults",
        read: |spec, text| set(&mut spec.seed, decimal(text, 0)),
        show: |spec| (spec.seed != 0).then(|| spec.seed.to_string()),
    },
];

const RATE: &str = "a percentage from 0% to 100%, such as 5% or 0.1%, of at most four decimals";

const UNITS: [(&str, u32); 5] = [("ns", 0), ("us", 3), ("µs", 3), ("ms", 6), ("s", 9)];

impl Stall {
    fn read(text: &str) -> Option<Self> {
        let (rate, time) = text.split_once(':')?;
        Some(Self {
            rate: Rate::read(rate.trim_end())?,
            time: read_time(time.trim_start())?,
        })
    }
}

fn names() -> String {
    FORMS
        .iter()
        .map(|form| form.name)
        .collect::<Vec<_>>()
        .join(", ")
}

fn set<T>(place: &mut T, value: Option<T>) -> Option<()> {
    *place = value?;
    Some(())
}

fn show_rate(rate: Rate) -> Option<String> {
    (rate != Rate::NEVER).then(|| rate.to_string())
}

fn read_octets(text: &str) -> Option<u32> {
    decimal(text, 0)
        .and_then(|octets| u32::try_from(octets).ok())
        .filter(|octets| *octets != 0)
}

fn read_time(text: &str) -> Option<Duration> {
    UNITS.iter().find_map(|(unit, digits)| {
        decimal(text.strip_suffix(unit)?.trim_end(), *digits).map(Duration::from_nanos)
    })
}

/// In the largest unit that needs no decimals.
fn show_time(time: Duration) -> String {
    let nanoseconds = time.as_nanos();
    let whole = |(_, digits): &&(&str, u32)| nanoseconds.is_multiple_of(10_u128.pow(*digits));
    let (unit, digits) = UNITS.iter().rev().find(whole).unwrap_or(&UNITS[0]);
    let unit = if *unit == "µs" { "us" } else { unit };
    format!("{}{unit}", nanoseconds / 10_u128.pow(*digits))
}

fn show_window(times: &Between<Duration>) -> String {
    format!("{}..{}", show_time(times.least), show_time(times.most))
}

/// A number without sign, times 10 to the power of `digits`; no more decimals than that.
fn decimal(text: &str, digits: u32) -> Option<u64> {
    let (whole, part) = match text.split_once('.') {
        Some((whole, part)) if !part.is_empty() => (whole, part),
        Some(_) => return None,
        None => (text, ""),
    };
    let is_number = |text: &str| text.bytes().all(|octet| octet.is_ascii_digit());
    let missing = digits.checked_sub(u32::try_from(part.len()).ok()?)?;
    if whole.is_empty() || !is_number(whole) || !is_number(part) {
        return None;
    }
    let part = if part.is_empty() {
        0
    } else {
        part.parse::<u64>().ok()?.checked_mul(10_u64.pow(missing))?
    };
    whole
        .parse::<u64>()
        .ok()?
        .checked_mul(10_u64.pow(digits))?
        .checked_add(part)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn error(text: &str) -> String {
        text.parse::<FaultSpec>().unwrap_err().to_string()
    }

    #[test]
    fn every_fault_has_a_text() {
        let text =
            "drop=5%,duplicate=1%,reorder=2%,corrupt=0.1%,partition=1s..2s,delay=1ms..5ms,seed=7";
        let spec: FaultSpec = text.parse().unwrap();
        assert_eq!(spec.to_string(), text);
        assert_eq!(spec.datagram.corrupt, Rate::of_millionths(1000));
        assert_eq!(
            spec.delay,
            Between::new(Duration::from_millis(1), Duration::from_millis(5))
        );
        let text = "chunk=64..1460,stall=1%:20ms,reset-after=100,flip=0.0001%,delay=3us";
        let spec: FaultSpec = text.parse().unwrap();
        assert_eq!(spec.to_string(), text);
        assert_eq!(
            spec.stream.stall,
            Some(Stall {
                rate: Rate::percent(1),
                time: Duration::from_millis(20)
            })
        );
    }

    #[test]
    fn nothing_is_no_fault() {
        for text in ["", " ", "none"] {
            assert!(text.parse::<FaultSpec>().unwrap().is_none());
        }
        assert_eq!(FaultSpec::default().to_string(), "none");
        assert!("drop=0%,seed=3".parse::<FaultSpec>().unwrap().is_none());
    }

    #[test]
    fn blanks_decimals_and_units_are_read() {
        let spec: FaultSpec = " drop = 1.25 % , delay = 1.5ms .. 2 s ".parse().unwrap();
        assert_eq!(spec.to_string(), "drop=1.25%,delay=1500us..2s");
        assert_eq!(
            "delay=4µs".parse::<FaultSpec>().unwrap().to_string(),
            "delay=4us"
        );
        assert_eq!(
            "delay=7ns".parse::<FaultSpec>().unwrap().to_string(),
            "delay=7ns"
        );
    }

    #[test]
    fn a_wrong_text_is_told_what_was_expected() {
        assert_eq!(
            error("loss=5%"),
            "no fault is called \"loss\"; there are drop, duplicate, reorder, corrupt, partition, chunk, stall, \
             reset-after, flip, delay, seed"
        );
        assert_eq!(
            error("drop=5"),
            "drop=5: expected a percentage from 0% to 100%, such as 5% or 0.1%, of at most four decimals"
        );
        assert_eq!(error("drop"), "\"drop\" is not of the form name=value");
        assert_eq!(error("drop=1%,"), "\"\" is not of the form name=value");
        assert_eq!(error("drop=1%,drop=2%"), "drop is given twice");
        assert_eq!(
            error("stall=20ms"),
            "stall=20ms: expected a rate and a time, such as 1%:20ms"
        );
    }

    #[test]
    fn values_out_of_range_are_refused() {
        for text in [
            "drop=101%",
            "drop=-1%",
            "drop=0.00001%",
            "drop=.%",
            "drop=1.%",
            "drop=%",
            "delay=5",
            "delay=5ms..1ms",
            "delay=99999999999999s",
            "partition=5ms",
            "chunk=0",
            "chunk=99999999999",
            "reset-after=1.5",
            "seed=x",
            "seed=99999999999999999999",
        ] {
            assert!(
                matches!(text.parse::<FaultSpec>(), Err(FaultSpecError::Value { .. })),
                "{text}"
            );
        }
    }

    #[test]
    fn a_fault_of_the_other_link_is_refused() {
        let spec: FaultSpec = "drop=5%,delay=1ms".parse().unwrap();
        assert!(spec.check(Contract::Datagram).is_ok());
        assert_eq!(
            spec.check(Contract::Stream).unwrap_err(),
            FaultSpecError::WrongLink {
                name: "drop",
                link: Contract::Stream
            }
        );
        let spec: FaultSpec = "flip=5%".parse().unwrap();
        assert!(spec.check(Contract::Stream).is_ok());
        assert_eq!(
            spec.check(Contract::Datagram).unwrap_err().to_string(),
            "flip is a fault of a stream link (iWARP); this is a datagram link (InfiniBand)"
        );
        let spec: FaultSpec = "delay=1ms,seed=9".parse().unwrap();
        assert!(spec.check(Contract::Datagram).is_ok() && spec.check(Contract::Stream).is_ok());
    }

    fn rate() -> impl Strategy<Value = Rate> {
        (0_u32..=1_000_000).prop_map(Rate::of_millionths)
    }

    fn time() -> impl Strategy<Value = Duration> {
        (
            0..10_000_u64,
            prop::sample::select(vec![1, 1_000, 1_000_000, 1_000_000_000]),
        )
            .prop_map(|(count, unit)| Duration::from_nanos(count * unit))
    }

    fn times() -> impl Strategy<Value = Between<Duration>> {
        (time(), time()).prop_map(|(one, other)| Between::new(one, other))
    }

    prop_compose! {
        fn datagram()(
            drop in rate(), duplicate in rate(), reorder in rate(), corrupt in rate(),
            partition in prop::option::of(times()),
        ) -> DatagramFaults {
            DatagramFaults { drop, duplicate, reorder, corrupt, partition }
        }
    }

    prop_compose! {
        fn stream()(
            chunk in prop::option::of((1_u32.., 1_u32..).prop_map(|(one, other)| Between::new(one, other))),
            stall in prop::option::of((rate(), time()).prop_map(|(rate, time)| Stall { rate, time })),
            reset_after in prop::option::of(any::<u64>()),
            flip in rate(),
        ) -> StreamFaults {
            StreamFaults { chunk, stall, reset_after, flip }
        }
    }

    proptest! {
        #[test]
        fn the_text_means_the_same_when_read_again(
            datagram in datagram(), stream in stream(), delay in times(), seed in any::<u64>(),
        ) {
            let spec = FaultSpec { datagram, stream, delay, seed };
            prop_assert_eq!(spec.to_string().parse::<FaultSpec>(), Ok(spec));
        }

        #[test]
        fn no_text_makes_the_reader_panic(text in ".*") {
            let _ = text.parse::<FaultSpec>();
        }

        #[test]
        fn no_value_makes_the_reader_panic(form in 0..FORMS.len(), value in "[0-9.%:a-z]{0,24}") {
            let _ = format!("{}={value}", FORMS[form].name).parse::<FaultSpec>();
        }
    }
}
