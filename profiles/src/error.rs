//! Why a profile cannot be read.

use std::ops::Range;

use thiserror::Error;

/// The fault of a profile, with its file and line.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{file}{}: {message}", line.map_or_else(String::new, |line| format!(":{line}")))]
pub struct ProfileError {
    /// The file, or the name of the profile.
    pub file: String,
    /// The line of the file, counted from 1; `None` if the fault is not in one line.
    pub line: Option<usize>,
    /// The fault, and what would be right.
    pub message: String,
}

/// A text with its file name, for faults that are found in it.
#[derive(Clone, Copy)]
pub(crate) struct Source<'a> {
    pub(crate) file: &'a str,
    pub(crate) text: &'a str,
}

impl Source<'_> {
    /// Makes the error of a fault at a place of the text.
    pub(crate) fn fault(&self, place: &Range<usize>, message: impl Into<String>) -> ProfileError {
        let before = self.text.get(..place.start).unwrap_or(self.text);
        ProfileError {
            line: Some(before.matches('\n').count() + 1),
            ..self.whole(message)
        }
    }

    /// Makes the error of a fault that is not in one line.
    pub(crate) fn whole(&self, message: impl Into<String>) -> ProfileError {
        ProfileError {
            file: self.file.to_owned(),
            line: None,
            message: message.into(),
        }
    }
}
