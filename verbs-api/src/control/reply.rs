//! Replies to control verbs.

use crate::error::VerbError;

type Answer<T> = Box<dyn FnOnce(Result<T, VerbError>) + Send>;

/// The reply that a provider owes for a control verb.
///
/// Dropped without one, it replies with [`VerbError::Canceled`].
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

    /// Replies.
    pub fn send(mut self, result: Result<T, VerbError>) {
        if let Some(answer) = self.answer.take() {
            answer(result);
        }
    }

    /// Replies that the device does not support the verb.
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
