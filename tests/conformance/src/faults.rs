//! Faults of drivers that the conformance suite has found: a list for each, `faults/NAME.toml`.

use std::any::Any;
use std::panic::{self, AssertUnwindSafe};

use serde::Deserialize;

/// A fault of a driver.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fault {
    /// The cases that show it, `module::body`.
    pub cases: Vec<String>,
    /// Their failure message, or a part of it; where they are not run, the message of the kernel.
    pub says: String,
    /// Whether the fault stops the kernel, so that the cases are not run.
    #[serde(default)]
    pub stops: bool,
    /// Whether the fault shows only sometimes, so that the cases may pass.
    #[serde(default)]
    pub sometimes: bool,
    /// The behaviour of the driver.
    pub does: String,
    /// The correct behaviour.
    pub right: String,
    /// The place in the kernel's source.
    pub source: String,
}

/// The known faults of a driver.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Faults {
    /// The faults, one for each cause.
    #[serde(default, rename = "fault")]
    pub faults: Vec<Fault>,
}

impl Faults {
    /// Reads a list.
    ///
    /// # Errors
    /// The text is no list of faults.
    pub fn parse(list: &str) -> Result<Self, toml::de::Error> {
        toml::from_str(list)
    }

    fn of(&self, case: &str) -> Option<&Fault> {
        let is_named = |fault: &&Fault| fault.cases.iter().any(|named| named == case);
        self.faults.iter().find(is_named)
    }

    /// Runs a case: one that is listed must fail, any other must not. One that stops the kernel is not run.
    ///
    /// # Panics
    /// A listed case passes, or another one fails.
    pub fn run(&self, case: &str, body: impl FnOnce()) {
        let Some(fault) = self.of(case) else {
            return body();
        };
        let Fault {
            cases: _,
            says,
            stops,
            sometimes,
            does,
            right,
            source,
        } = fault;
        let why = format!("{does} Right is: {right} Place: {source}");
        if *stops {
            return println!("not run, because it stops the kernel: {why}");
        }
        println!("known fault: {why}");
        let ended = panic::catch_unwind(AssertUnwindSafe(body));
        let Err(panic) = ended else {
            return assert!(sometimes, "a case in the list of faults that passes");
        };
        let said = said(&*panic);
        assert!(said.contains(says), "not {says:?}, but {said}");
    }
}

fn said(panic: &(dyn Any + Send)) -> &str {
    let formatted = panic.downcast_ref().map(String::as_str);
    let literal = || panic.downcast_ref().copied();
    formatted.or_else(literal).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list() -> Faults {
        let list = "[[fault]]\ncases = ['keys::a']\nsays = 'as ever'\ndoes = 'this'\nright = 'that'\nsource = 'there.c'";
        Faults::parse(list).unwrap()
    }

    #[test]
    fn a_case_that_is_listed_must_fail() {
        list().run("keys::a", || panic!("as ever: {}", 1));
        let passed = panic::catch_unwind(|| list().run("keys::a", || ()));
        assert!(passed.is_err());
    }

    #[test]
    fn it_must_fail_as_it_always_has() {
        let failed = panic::catch_unwind(|| list().run("keys::a", || panic!("otherwise")));
        assert!(failed.is_err());
    }

    #[test]
    fn a_case_that_is_not_listed_must_not_fail() {
        list().run("keys::b", || ());
        let failed = panic::catch_unwind(|| list().run("keys::b", || panic!("unexpected")));
        assert!(failed.is_err());
    }

    #[test]
    fn a_fault_that_shows_now_and_then_shows_as_it_always_has() {
        let mut list = list();
        list.faults[0].sometimes = true;
        list.run("keys::a", || ());
        list.run("keys::a", || panic!("as ever"));
        let failed = panic::catch_unwind(|| list.run("keys::a", || panic!("otherwise")));
        assert!(failed.is_err());
    }

    #[test]
    fn a_case_that_stops_the_kernel_is_not_run() {
        let mut list = list();
        list.faults[0].stops = true;
        list.run("keys::a", || unreachable!("the kernel would have stopped"));
    }

    #[test]
    fn a_fault_without_its_reason_is_refused() {
        assert!(Faults::parse("[[fault]]\ncases = ['keys::a']").is_err());
    }
}
