//! What a control verb is answered with.

use crate::error::VerbError;

type Answer<T> = Box<dyn FnOnce(Result<T, VerbError>) + Send>;

/// The answer that a started control verb owes.
///
/// Dropped unanswered, it answers [`VerbError::Canceled`].
pub struct Reply<T: 'static> {
    answer: Option<Answer<T>>,
}

impl<T> Reply<T> {
    /// `answer` is called exactly once.
    pub fn new(answer: impl FnOnce(Result<T, VerbError>) + Send + 'static) -> Self {
        Self {
            answer: Some(Box::new(answer)),
        }
    }

    /// Answers.
    pub fn send(mut self, result: Result<T, VerbError>) {
        if let Some(answer) = self.answer.take() {
            answer(result);
        }
    }

    /// Answers that the device has no such verb.
    pub fn unsupported(self, verb: &'static str) {
        self.send(Err(VerbError::UnsupportedVerb(verb)));
    }
}

impl<T> Drop for Reply<T> {
    fn drop(&mut self) {
        if let Some(answer) = self.answer.take() {
            answer(Err(VerbError::Canceled));
        }
    }
}
