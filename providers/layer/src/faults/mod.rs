//! Scripts of faults: which verb, request, completion or event fails, when, and how.

mod injector;
mod names;
mod notation;
mod parse;

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use verbs_api::Device;

pub use injector::{CmFate, Fired, Injector, LibraryFate};
pub use names::{CM_EVENTS, LIBRARY_CALLS};
pub use notation::Rule;
pub use parse::ScriptError;

use crate::clock::{Clock, RealClock};
use crate::layered_ops;
use parse::Part;

/// A script of faults, as `polyverbs run --fail` takes it.
///
/// ```
/// use polyverbs_layer::Faults;
///
/// let faults: Faults = "reg_mr@101+:ENOMEM; wc.write@3:RETRY_EXC; seed=7".parse()?;
/// let same = Faults::new().rule("reg_mr@101+:ENOMEM")?.rule("wc.write@3:RETRY_EXC")?.seed(7);
/// assert_eq!(faults, same);
/// assert_eq!(faults.to_string(), "reg_mr@101+:ENOMEM; wc.write@3:RETRY_EXC; seed=7");
/// # Ok::<(), polyverbs_layer::ScriptError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    rules: Vec<Rule>,
    seed: u64,
}

impl Faults {
    /// Returns a script without rules.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds the rules of a text.
    ///
    /// # Errors
    /// The text is no script: where, why, and what would be right.
    pub fn rule(mut self, text: &str) -> Result<Self, ScriptError> {
        for part in parse::script(text)? {
            match part {
                Part::Rule(rule) => self.rules.push(rule),
                Part::Seed(seed) => self.seed = seed,
            }
        }
        Ok(self)
    }

    /// Sets the seed of the chances: the same seed gives the same run.
    #[must_use]
    pub const fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// Returns the rules in the order in which they were added.
    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }

    /// Whether the script has no rules.
    pub const fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// Starts to count, for one process or one test.
    pub fn injector(&self) -> Arc<Injector> {
        Injector::new(self.rules.clone(), self.seed, Box::new(|_| ()))
    }

    /// As [`injector`](Self::injector), and calls `log` each time that a rule fires.
    pub fn logged(&self, log: impl Fn(&Fired) + Send + Sync + 'static) -> Arc<Injector> {
        Injector::new(self.rules.clone(), self.seed, Box::new(log))
    }
}

impl Injector {
    /// Returns this device with the faults in front of it.
    pub fn on(self: &Arc<Self>, device: &Device) -> Device {
        self.on_with_clock(device, Arc::new(RealClock::default()))
    }

    /// As [`on`](Self::on), and times are those of this clock.
    pub fn on_with_clock(self: &Arc<Self>, device: &Device, clock: Arc<dyn Clock>) -> Device {
        let hooks = self.hooks(device.name().to_owned());
        Device::of(layered_ops(Arc::clone(device.ops()), hooks, clock))
    }
}

impl FromStr for Faults {
    type Err = ScriptError;

    fn from_str(text: &str) -> Result<Self, ScriptError> {
        Self::new().rule(text)
    }
}

impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts: Vec<_> = self.rules.iter().map(Rule::to_string).collect();
        if self.seed != 0 {
            parts.push(format!("seed={}", self.seed));
        }
        f.write_str(&parts.join("; "))
    }
}
