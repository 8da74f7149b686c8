//! A function of C: its name, and its arguments and result as far as the trace shows them.
//!
//! Each function has one, next to its symbol or its slot in a table. The [entry](crate::entry) passes it to the trace, and a failure
//! that the entry reports has the form of the function's result.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_int};

use super::show::{self, Kind};
use super::{Arguments, REGISTERS, error};
use crate::errno::Errno;

/// A function that programs call.
#[derive(Debug, PartialEq)]
pub struct Function {
    pub(crate) name: &'static str,
    // Separated by blanks: the name, a colon, and the letter of the type; nothing for a pointer.
    arguments: Option<&'static str>,
    answer: Answer,
}

/// The result of a verb.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Answer {
    /// 0, or an error number.
    Number,
    /// -1 with an error number in `errno`, or something else.
    MinusOne,
    /// The number of ready descriptors, or -1 with an error number in `errno`.
    Ready,
    /// A number of entries, or an error number below zero.
    Count,
    /// A size, or -1 with an error number in `errno`.
    Size,
    /// Null with an error number in `errno`, or a pointer.
    Pointer,
    /// A queue pair, with its number.
    Qp,
    /// A region, with its keys.
    Mr,
    /// A string.
    Text,
    /// A number that is no error.
    Plain,
    /// 64 bits.
    Wide,
    /// Nothing.
    Nothing,
}

impl Answer {
    /// The result of a verb that has failed with this error.
    fn failure(self, errno: c_int) -> u64 {
        match self {
            Self::Number => errno as u64,
            Self::MinusOne | Self::Ready | Self::Size => u64::MAX,
            Self::Count => -i64::from(errno) as u64,
            Self::Pointer | Self::Qp | Self::Mr | Self::Text => 0,
            Self::Plain | Self::Wide | Self::Nothing => 0,
        }
    }

    fn show(self, result: u64, errno: Errno) -> String {
        let small = result as u32 as c_int;
        match self {
            Self::Nothing => String::new(),
            Self::Number if small > 0 => format!(" = {small} {}", error(small)),
            Self::MinusOne | Self::Ready if small == -1 => format!(" = -1 {}", error(errno.0)),
            Self::Size if result as i64 == -1 => format!(" = -1 {}", error(errno.0)),
            Self::Count if small < 0 => format!(" = {small} {}", error(-small)),
            Self::Number | Self::MinusOne | Self::Ready | Self::Count | Self::Plain => {
                format!(" = {small}")
            }
            Self::Size => format!(" = {}", result as i64),
            Self::Wide => format!(" = {result:#x}"),
            Self::Pointer | Self::Qp | Self::Mr | Self::Text if result == 0 => {
                format!(" = NULL {}", error(errno.0))
            }
            Self::Pointer => format!(" = {result:#x}"),
            Self::Qp => format!(" = {result:#x} {}", show::qp(result)),
            Self::Mr => format!(" = {result:#x} {}", show::mr(result)),
            Self::Text => {
                // SAFETY: a text of ours.
                let text = unsafe { CStr::from_ptr(result as *const c_char) };
                format!(" = {text:?}")
            }
        }
    }

    // Whether the verb has not filled its output argument.
    fn failed(self, result: u64) -> bool {
        let small = result as u32 as c_int;
        match self {
            Self::Number => small != 0,
            Self::MinusOne | Self::Ready | Self::Count => small < 0,
            _ => false,
        }
    }
}

impl Function {
    /// A function. Its arguments are separated by blanks, each a name or `name:kind`; `None` if they are not shown.
    ///
    /// # Panics
    /// There are more arguments than registers, or a kind is unknown.
    pub const fn new(name: &'static str, arguments: Option<&'static str>, answer: Answer) -> Self {
        if let Some(arguments) = arguments {
            check(arguments.as_bytes());
        }
        Self {
            name,
            arguments,
            answer,
        }
    }

    /// The result of a call that has failed with this error; sets `errno`.
    pub(crate) fn fail(&self, error: Errno) -> u64 {
        error.set();
        self.answer.failure(error.0)
    }

    /// A call with its result, as a line of the trace shows it.
    pub(super) fn show(&self, given: &Arguments, result: u64, errno: Errno) -> String {
        let (arguments, answer) = (
            self.show_arguments(given, result),
            self.answer.show(result, errno),
        );
        format!("{}({arguments}){answer}", self.name)
    }

    /// The arguments of a call, by name.
    fn show_arguments(&self, given: &Arguments, result: u64) -> String {
        let Some(arguments) = self.arguments else {
            return "…".to_owned();
        };
        let mut shown = String::new();
        for (place, argument) in arguments.split_whitespace().enumerate() {
            let (name, kind) = argument.split_once(':').unwrap_or((argument, ""));
            let kind = kind.bytes().next().unwrap_or(Kind::POINTER);
            let value = given.get(place).copied().unwrap_or_default();
            if place > 0 {
                shown.push_str(", ");
            }
            let next = given.get(place + 1).copied().unwrap_or_default();
            let failed = self.answer.failed(result);
            shown.push_str(name);
            shown.push('=');
            Kind::of(kind).show(&mut shown, value, next, result, failed);
        }
        shown
    }

    /// Whether the result says that there was nothing, so that the next is likely to be the same.
    pub(super) fn is_idle(&self, result: u64, errno: Errno) -> bool {
        let small = result as u32 as c_int;
        match self.answer {
            Answer::Count => small == 0,
            Answer::Number => small == libc::ENOENT,
            Answer::Size => small == -1 && errno.0 == libc::EAGAIN,
            Answer::MinusOne => small == -1 && errno.0 == libc::EAGAIN,
            Answer::Ready => small == 0 || small == -1 && errno.0 == libc::EAGAIN,
            _ => false,
        }
    }
}

const fn check(arguments: &[u8]) {
    let (mut at, mut blanks) = (0, 0);
    while at < arguments.len() {
        match arguments[at] {
            b' ' => blanks += 1,
            b':' => assert!(
                Kind::is_known(arguments[at + 1]),
                "an argument of no known kind"
            ),
            _ => {}
        }
        at += 1;
    }
    assert!(blanks < REGISTERS, "more arguments than registers");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "more arguments than registers")]
    fn arguments_fit_the_registers() {
        Function::new("f", Some("a b c d e f g"), Answer::Number);
    }

    #[test]
    #[should_panic(expected = "an argument of no known kind")]
    fn arguments_have_known_kinds() {
        Function::new("f", Some("a:i b:?"), Answer::Number);
    }

    #[test]
    fn only_polls_that_found_nothing_count_as_idle() {
        let idle =
            |answer, result, errno| Function::new("f", None, answer).is_idle(result, Errno(errno));
        let minus_one = u64::MAX;
        assert!(idle(Answer::Count, 0, 0) && !idle(Answer::Count, 1, 0));
        assert!(idle(Answer::Number, libc::ENOENT as u64, 0) && !idle(Answer::Number, 0, 0));
        assert!(idle(Answer::Ready, 0, 0) && !idle(Answer::Ready, 1, 0));
        let size = |result, errno| idle(Answer::Size, result, errno);
        assert!(size(minus_one, libc::EAGAIN) && !size(minus_one, libc::EBADF) && !size(0, 0));
        assert!(!idle(Answer::MinusOne, 0, 0));
    }

    #[test]
    fn results_report_errors_in_each_functions_way() {
        let none = Errno(0);
        assert_eq!(
            Answer::Number.show(22, none),
            " = 22 EINVAL (Invalid argument)"
        );
        assert_eq!(Answer::Number.show(0, none), " = 0");
        let minus_one = u64::from(u32::MAX);
        let told = Answer::MinusOne.show(minus_one, Errno::OPNOTSUPP);
        assert_eq!(told, " = -1 EOPNOTSUPP (Operation not supported)");
        assert_eq!(
            Answer::Pointer.show(0, Errno::NOMEM),
            " = NULL ENOMEM (Cannot allocate memory)"
        );
        assert_eq!(Answer::Nothing.show(7, none), "");
        assert_eq!(Answer::Size.show(4096, none), " = 4096");
    }
}
