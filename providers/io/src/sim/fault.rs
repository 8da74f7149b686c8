//! The faults that a link injects, as a value and as text.
//!
//! The text is a list of `name=value` pairs, separated by commas: `drop=5%,duplicate=1%,delay=1ms..5ms,seed=7`. [`FORMS`]
//! lists the names, the form of each value, and the kind of link that each belongs to.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use thiserror::Error;

/// The faults that a link injects into frames. Without faults, a link carries every frame unchanged and at once.
///
/// ```
/// use polyverbs_io::sim::{Contract, FaultSpec};
///
/// let spec: FaultSpec = "drop=5%,delay=1ms..5ms,seed=7".parse()?;
/// assert_eq!(spec.to_string(), "drop=5%,delay=1ms..5ms,seed=7");
/// spec.check(Contract::Datagram)?;
/// assert_eq!(
///     spec.check(Contract::Stream).unwrap_err().to_string(),
///     "drop is a fault of a datagram link (InfiniBand); this is a stream link (iWARP)"
/// );
/// # Ok::<(), polyverbs_io::sim::FaultSpecError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultSpec {
    /// Datagram links: how many frames are dropped.
    pub drop: Rate,
    /// Datagram links: how many frames arrive twice.
    pub duplicate: Rate,
    /// Datagram links: how many frames are held back so that later ones overtake them.
    pub reorder: Rate,
    /// Datagram links: in how many frames one bit is flipped.
    pub corrupt: Rate,
    /// Datagram links: the period in which every frame is dropped, counted from the first frame.
    pub partition: Option<Window>,
    /// Stream links: the length in bytes of the pieces in which a frame arrives. The frame is delivered when its last piece
    /// has arrived.
    pub chunk: Option<Between<u32>>,
    /// Stream links: how often a stream stalls, and for how long.
    pub stall: Option<Stall>,
    /// Stream links: the number of frames after which a connection is reset, in both directions together.
    pub reset_after: Option<u64>,
    /// Stream links: in how many frames one bit is flipped.
    pub flip: Rate,
    /// The time from sending a frame to its delivery. Later frames of the same direction or stream are not delivered before
    /// it.
    pub delay: Between<Duration>,
    /// The seed of the random numbers that decide about the faults.
    pub seed: u64,
}

impl FaultSpec {
    /// Returns whether no fault is injected, whatever the seed is.
    pub fn is_none(&self) -> bool {
        *self
            == Self {
                seed: self.seed,
                ..Self::default()
            }
    }

    /// Checks that a link with the guarantees `link` can inject all of these faults.
    ///
    /// # Errors
    /// One of the faults belongs to the other kind of link.
    pub fn check(&self, link: Contract) -> Result<(), FaultSpecError> {
        let foreign = FORMS.iter().find(|form| {
            form.contract.is_some_and(|contract| contract != link) && form.text(*self).is_some()
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

    /// Parses the text form. An empty text and `none` both mean no fault.
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
            let field = (form.field)(&mut spec);
            field.set(value).ok_or_else(|| FaultSpecError::Value {
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
        let given = FORMS.iter().filter_map(|form| {
            let value = form.text(*self)?;
            Some(format!("{}={value}", form.name))
        });
        let given = given.collect::<Vec<_>>().join(",");
        f.write_str(if given.is_empty() { "none" } else { &given })
    }
}

/// An error in the text of a [`FaultSpec`], or a fault that does not belong to the link.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum FaultSpecError {
    /// A clause of the text has no `=`.
    #[error("{clause:?} is not of the form name=value")]
    NoValue {
        /// The clause without a value.
        clause: String,
    },
    /// A fault occurs twice in the text.
    #[error("{name} is given twice")]
    Twice {
        /// The name of the fault.
        name: &'static str,
    },
    /// The text names a fault that does not exist.
    #[error("no fault is called {name:?}; there are {}", names())]
    Unknown {
        /// The unknown name.
        name: String,
    },
    /// A value does not have the form that its fault expects.
    #[error("{name}={value}: expected {form}")]
    Value {
        /// The name of the fault.
        name: &'static str,
        /// The value in the text.
        value: String,
        /// A description of the expected form.
        form: &'static str,
    },
    /// A fault belongs to the other kind of link.
    #[error("{name} is a fault of {}; this is {link}", link.other())]
    WrongLink {
        /// The name of the fault.
        name: &'static str,
        /// The guarantees of the link that was to inject it.
        link: Contract,
    },
}

/// The guarantees that a link gives for its frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Contract {
    /// Frames have a limited length, and may be lost, duplicated, reordered and damaged, as InfiniBand's transport expects.
    Datagram,
    /// Frames arrive in order, each exactly once, until the stream is reset, as iWARP expects.
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

/// A period in which every frame is dropped, counted from the first frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// The time from the first frame to the beginning of the period in which frames are dropped.
    pub from: Duration,
    /// The time from the first frame to the end of the period in which frames are dropped.
    pub until: Duration,
}

/// A fault of a stream: how often it stands still before a frame, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stall {
    /// The share of frames before which the stream stalls.
    pub rate: Rate,
    /// How long each stall lasts.
    pub time: Duration,
}

/// The share of frames to which something happens: from 0 to 100 percent, stored in millionths.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rate(u32);

impl Rate {
    /// The share of no frame: 0 percent.
    pub const NEVER: Self = Self(0);
    /// The share of every frame: 100 percent.
    pub const ALWAYS: Self = Self(1_000_000);

    /// Creates a rate of this many frames in a million, at most all of them.
    pub const fn of_millionths(millionths: u32) -> Self {
        if millionths > Self::ALWAYS.0 {
            Self::ALWAYS
        } else {
            Self(millionths)
        }
    }

    /// Creates a rate of this many frames in a hundred, at most all of them.
    pub const fn percent(percent: u32) -> Self {
        Self::of_millionths(percent.saturating_mul(10_000))
    }

    /// Returns the share as the number of frames in a million.
    pub const fn millionths(self) -> u32 {
        self.0
    }
}

/// A lower and an upper bound, both included. Links draw values between them with equal probability.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Between<T> {
    least: T,
    most: T,
}

impl<T: Copy + PartialOrd> Between<T> {
    /// Creates the bounds from two values in any order: the smaller one becomes the lower bound.
    pub fn new(one: T, other: T) -> Self {
        let (least, most) = if one <= other {
            (one, other)
        } else {
            (other, one)
        };
        Self { least, most }
    }

    /// Creates bounds between which only this value lies.
    pub const fn exactly(value: T) -> Self {
        Self {
            least: value,
            most: value,
        }
    }

    /// Returns the lower bound.
    pub const fn least(&self) -> T {
        self.least
    }

    /// Returns the upper bound, which is never below the lower one.
    pub const fn most(&self) -> T {
        self.most
    }
}

/// A fault of the text form: its name, its value, and its effect.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Form {
    /// The name of the fault in the text.
    pub name: &'static str,
    /// The kind of link that the fault belongs to; `None` for both.
    pub contract: Option<Contract>,
    /// A description of the value that follows `=`.
    pub value: &'static str,
    /// A description of the fault's effect.
    pub meaning: &'static str,
    field: fn(&mut FaultSpec) -> &mut dyn Field,
}

/// All faults of the text form, in the order in which they are printed.
pub const FORMS: &[Form] = &[
    Form {
        name: "drop",
        contract: DATAGRAM,
        value: RATE,
        meaning: "frames that are lost",
        field: |spec| &mut spec.drop,
    },
    Form {
        name: "duplicate",
        contract: DATAGRAM,
        value: RATE,
        meaning: "frames that arrive twice",
        field: |spec| &mut spec.duplicate,
    },
    Form {
        name: "reorder",
        contract: DATAGRAM,
        value: RATE,
        meaning: "frames that later ones overtake",
        field: |spec| &mut spec.reorder,
    },
    Form {
        name: "corrupt",
        contract: DATAGRAM,
        value: RATE,
        meaning: "frames of which one bit is flipped",
        field: |spec| &mut spec.corrupt,
    },
    Form {
        name: "partition",
        contract: DATAGRAM,
        value: "two times, such as 100ms..300ms, counted from the first frame",
        meaning: "nothing is carried from the first time until the second",
        field: |spec| &mut spec.partition,
    },
    Form {
        name: "chunk",
        contract: STREAM,
        value: "bytes, at least 1, or a range of them, such as 64..1460",
        meaning: "frames arrive in pieces of this length",
        field: |spec| &mut spec.chunk,
    },
    Form {
        name: "stall",
        contract: STREAM,
        value: "a rate and a time, such as 1%:20ms",
        meaning: "frames before which a stream stands still, and for how long",
        field: |spec| &mut spec.stall,
    },
    Form {
        name: "reset-after",
        contract: STREAM,
        value: "a number of frames, such as 100",
        meaning: "a connection is reset once it has carried this many frames",
        field: |spec| &mut spec.reset_after,
    },
    Form {
        name: "flip",
        contract: STREAM,
        value: RATE,
        meaning: "frames of which one bit is flipped",
        field: |spec| &mut spec.flip,
    },
    Form {
        name: "delay",
        contract: None,
        value: "a time, or a range of them, such as 1ms..5ms (units ns, us, ms, s)",
        meaning: "how long a frame is under way",
        field: |spec| &mut spec.delay,
    },
    Form {
        name: "seed",
        contract: None,
        value: "a number, such as 7",
        meaning: "what chance starts from: the same seed gives the same faults",
        field: |spec| &mut spec.seed,
    },
];

const DATAGRAM: Option<Contract> = Some(Contract::Datagram);
const STREAM: Option<Contract> = Some(Contract::Stream);
const RATE: &str = "a percentage from 0% to 100%, such as 5% or 0.1%, of at most four decimals";

impl Form {
    /// Returns the value of this fault in the text of `spec`; `None` if the fault has its default, which the text omits.
    fn text(&self, mut spec: FaultSpec) -> Option<String> {
        (self.field)(&mut spec).text()
    }
}

fn names() -> String {
    let names: Vec<_> = FORMS.iter().map(|form| form.name).collect();
    names.join(", ")
}

/// A field of a [`FaultSpec`] of any type, as the text form reads and prints it.
trait Field {
    /// Sets the field from its text. Returns `None` if the text does not have the field's form.
    fn set(&mut self, text: &str) -> Option<()>;
    /// Returns the field as text; `None` if it has its default.
    fn text(&self) -> Option<String>;
}

impl<T: Value + Default + PartialEq> Field for T {
    fn set(&mut self, text: &str) -> Option<()> {
        *self = T::read(text)?;
        Some(())
    }

    fn text(&self) -> Option<String> {
        (*self != T::default()).then(|| self.show())
    }
}

/// A value with a text form. Parsing its text gives the same value again.
trait Value: Sized {
    fn read(text: &str) -> Option<Self>;
    fn show(&self) -> String;
}

impl<T: Value> Value for Option<T> {
    fn read(text: &str) -> Option<Self> {
        T::read(text).map(Some)
    }

    fn show(&self) -> String {
        self.as_ref().map(T::show).unwrap_or_default()
    }
}

impl Value for Rate {
    fn read(text: &str) -> Option<Self> {
        let millionths = u32::try_from(decimal(text.strip_suffix('%')?.trim_end(), 4)?).ok()?;
        (millionths <= Self::ALWAYS.0).then_some(Self(millionths))
    }

    fn show(&self) -> String {
        let number = format!("{}.{:04}", self.0 / 10_000, self.0 % 10_000);
        format!("{}%", number.trim_end_matches('0').trim_end_matches('.'))
    }
}

impl<T: Value + Copy + PartialOrd> Value for Between<T> {
    fn read(text: &str) -> Option<Self> {
        let Some((least, most)) = text.split_once("..") else {
            return T::read(text).map(Self::exactly);
        };
        let (least, most) = (T::read(least.trim_end())?, T::read(most.trim_start())?);
        (least <= most).then_some(Self { least, most })
    }

    fn show(&self) -> String {
        let least = self.least.show();
        if self.least == self.most {
            least
        } else {
            format!("{least}..{}", self.most.show())
        }
    }
}

impl Value for Window {
    fn read(text: &str) -> Option<Self> {
        let Between { least, most } = Between::read(text).filter(|_| text.contains(".."))?;
        Some(Self {
            from: least,
            until: most,
        })
    }

    fn show(&self) -> String {
        format!("{}..{}", self.from.show(), self.until.show())
    }
}

impl Value for Stall {
    fn read(text: &str) -> Option<Self> {
        let (rate, time) = text.split_once(':')?;
        Some(Self {
            rate: Rate::read(rate.trim_end())?,
            time: Duration::read(time.trim_start())?,
        })
    }

    fn show(&self) -> String {
        format!("{}:{}", self.rate.show(), self.time.show())
    }
}

impl Value for u64 {
    fn read(text: &str) -> Option<Self> {
        decimal(text, 0)
    }

    fn show(&self) -> String {
        self.to_string()
    }
}

/// A number that is at least 1.
impl Value for u32 {
    fn read(text: &str) -> Option<Self> {
        let number = Self::try_from(decimal(text, 0)?).ok()?;
        (number != 0).then_some(number)
    }

    fn show(&self) -> String {
        self.to_string()
    }
}

const UNITS: [(&str, u32); 5] = [("ns", 0), ("us", 3), ("µs", 3), ("ms", 6), ("s", 9)];

impl Value for Duration {
    fn read(text: &str) -> Option<Self> {
        UNITS.iter().find_map(|(unit, digits)| {
            decimal(text.strip_suffix(unit)?.trim_end(), *digits).map(Self::from_nanos)
        })
    }

    /// Prints the time in the largest unit that needs no decimals.
    fn show(&self) -> String {
        let nanoseconds = self.as_nanos();
        let whole = |(_, digits): &&(&str, u32)| nanoseconds.is_multiple_of(10_u128.pow(*digits));
        let (unit, digits) = UNITS.iter().rev().find(whole).unwrap_or(&UNITS[0]);
        let unit = if *unit == "µs" { "us" } else { unit };
        format!("{}{unit}", nanoseconds / 10_u128.pow(*digits))
    }
}

/// Parses a number without a sign and with at most `digits` decimals. Returns it multiplied by 10 to the power of `digits`;
/// `None` if it does not have this form or is too large.
fn decimal(text: &str, digits: u32) -> Option<u64> {
    let (whole, part) = match text.split_once('.') {
        Some((whole, part)) if !part.is_empty() => (whole, part),
        Some(_) => return None,
        None => (text, ""),
    };
    let is_number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
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
        let text = "drop=5%,duplicate=1%,reorder=2%,corrupt=0.1%,partition=1s..2s,chunk=64..1460,stall=1%:20ms,\
                    reset-after=100,flip=0.0001%,delay=1ms..5ms,seed=7";
        let (ms, seconds) = (Duration::from_millis, Duration::from_secs);
        let spec = FaultSpec {
            drop: Rate::percent(5),
            duplicate: Rate::percent(1),
            reorder: Rate::percent(2),
            corrupt: Rate::of_millionths(1000),
            partition: Some(Window {
                from: seconds(1),
                until: seconds(2),
            }),
            chunk: Some(Between::new(1460, 64)),
            stall: Some(Stall {
                rate: Rate::percent(1),
                time: ms(20),
            }),
            reset_after: Some(100),
            flip: Rate::of_millionths(1),
            delay: Between::new(ms(1), ms(5)),
            seed: 7,
        };
        assert_eq!((text.parse(), spec.to_string()), (Ok(spec), text.into()));
    }

    #[test]
    fn empty_text_and_none_mean_no_fault() {
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
        for (text, shown) in [("delay=4µs", "delay=4us"), ("delay=7ns", "delay=7ns")] {
            assert_eq!(text.parse::<FaultSpec>().unwrap().to_string(), shown);
        }
    }

    #[test]
    fn the_error_for_a_wrong_text_names_the_expected_form() {
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
        for text in
            "drop=101% drop=-1% drop=0.00001% drop=.% drop=1.% drop=% delay=5 delay=5ms..1ms \
            delay=99999999999999s partition=5ms chunk=0 chunk=99999999999 reset-after=1.5 seed=x \
            seed=99999999999999999999"
                .split_whitespace()
        {
            let read = text.parse::<FaultSpec>();
            assert!(matches!(read, Err(FaultSpecError::Value { .. })), "{text}");
        }
    }

    #[test]
    fn a_fault_of_the_other_link_is_refused() {
        use Contract::{Datagram, Stream};
        let check = |text: &str, link| text.parse::<FaultSpec>().unwrap().check(link);
        for (text, right, wrong) in [
            ("drop=5%,delay=1ms", Datagram, Stream),
            ("flip=5%,seed=9", Stream, Datagram),
        ] {
            let name = &text[..4];
            assert!(check(text, right).is_ok());
            let error = FaultSpecError::WrongLink { name, link: wrong };
            assert_eq!(check(text, wrong), Err(error));
        }
        for link in [Datagram, Stream] {
            assert!(check("delay=1ms,seed=9", link).is_ok());
        }
        assert_eq!(
            check("flip=5%", Datagram).unwrap_err().to_string(),
            "flip is a fault of a stream link (iWARP); this is a datagram link (InfiniBand)"
        );
    }

    fn rate() -> impl Strategy<Value = Rate> {
        (0_u32..=1_000_000).prop_map(Rate::of_millionths)
    }

    fn time() -> impl Strategy<Value = Duration> {
        let units = prop::sample::select(vec![1, 1_000, 1_000_000, 1_000_000_000]);
        (0..10_000_u64, units).prop_map(|(count, unit)| Duration::from_nanos(count * unit))
    }

    fn times() -> impl Strategy<Value = Between<Duration>> {
        (time(), time()).prop_map(|(one, other)| Between::new(one, other))
    }

    prop_compose! {
        fn spec()(
            [drop, duplicate, reorder, corrupt, flip] in [rate(), rate(), rate(), rate(), rate()],
            partition in prop::option::of(times().prop_map(|times| Window { from: times.least, until: times.most })),
            chunk in prop::option::of((1_u32.., 1_u32..).prop_map(|(one, other)| Between::new(one, other))),
            stall in prop::option::of((rate(), time()).prop_map(|(rate, time)| Stall { rate, time })),
            (reset_after, delay, seed) in (any::<Option<u64>>(), times(), any::<u64>()),
        ) -> FaultSpec {
            FaultSpec { drop, duplicate, reorder, corrupt, partition, chunk, stall, reset_after, flip, delay, seed }
        }
    }

    proptest! {
        #[test]
        fn a_printed_spec_is_read_as_the_same_spec(spec in spec()) {
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
