//! Calls of a program's sinks: collected while a lock is held, and made when none is.

use std::sync::Arc;

use verbs_api::provider::backend::{
    Answer, AnswerSink, CmEvent, ConnectError, ListenSink, Offer, Question, Sink, Token,
};

/// A call of a sink that is still to be made, once no lock is held.
pub(crate) enum Notice {
    Request(Arc<dyn ListenSink<Offer>>, Token, Offer),
    RequestWithdrawn(Arc<dyn ListenSink<Offer>>, Token),
    Event(Arc<dyn Sink>, CmEvent),
    Question(Arc<dyn ListenSink<Question>>, Token, Question),
    QuestionWithdrawn(Arc<dyn ListenSink<Question>>, Token),
    Answer(Arc<dyn AnswerSink>, Result<Answer, ConnectError>),
}

impl Notice {
    /// Makes the call. No lock may be held, because the sink may call back.
    pub(crate) fn deliver(self) {
        match self {
            Self::Request(sink, token, offer) => sink.asked(token, offer),
            Self::RequestWithdrawn(sink, token) => sink.withdrawn(token),
            Self::Event(sink, event) => sink.event(event),
            Self::Question(sink, token, question) => sink.asked(token, question),
            Self::QuestionWithdrawn(sink, token) => sink.withdrawn(token),
            Self::Answer(sink, answer) => sink.answered(answer),
        }
    }
}
