//! Replies to control verbs.

use crate::error::VerbError;

type Answer<T> = Box<dyn FnOnce(Result<T, VerbError>) + Send>;

/// The obligation of a provider to report the outcome of a control verb.
///
/// If it is dropped without a reply, the outcome is [`VerbError::Canceled`].
pub struct Reply<T: 'static> {
    answer: Option<Answer<T>>,
}

impl<T> Reply<T> {
    /// Creates a reply that calls `answer` with the outcome, exactly once.
    pub fn new(answer: impl FnOnce(Result<T, VerbError>) + Send + 'static) -> Self {
        Self {
            answer: Some(Box::new(answer)),
        }
    }

    /// Reports the outcome of the verb.
    pub fn send(mut self, result: Result<T, VerbError>) {
        if let Some(answer) = self.answer.take() {
            answer(result);
        }
    }

    /// Reports that the device does not support the verb of this name.
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
