//! Types of queue pairs that extensions add.

use super::{QpState, Transition};
use crate::operation::RequestAttributeKind;
use crate::service::QpType;

/// A type of queue pairs that an extension adds, as a variant of a service of the core: a `static` of its crate.
///
/// It has no receive queue of its own. Its states are those of the service; what a transition takes may differ.
#[derive(Debug)]
pub struct QpVariant {
    name: &'static str,
    base: QpType,
    sends: bool,
    attribute: Option<&'static RequestAttributeKind>,
    transition: fn(QpState, QpState, Transition) -> Transition,
}

impl QpVariant {
    /// The variant `name` of a service, with its transitions, and without a send queue.
    pub const fn new(name: &'static str, base: QpType) -> Self {
        Self {
            name,
            base,
            sends: false,
            attribute: None,
            transition: |_, _, transition| transition,
        }
    }

    /// It has a send queue, whose requests all carry this attribute if they reach the peer.
    #[must_use]
    pub const fn sends(mut self, attribute: &'static RequestAttributeKind) -> Self {
        self.sends = true;
        self.attribute = Some(attribute);
        self
    }

    /// What a transition demands and allows, made of what it does for the service.
    #[must_use]
    pub const fn transition(
        mut self,
        transition: fn(QpState, QpState, Transition) -> Transition,
    ) -> Self {
        self.transition = transition;
        self
    }

    /// Its name.
    pub const fn name(&self) -> &'static str {
        self.name
    }

    /// The service that it is a variant of.
    pub const fn base(&self) -> QpType {
        self.base
    }

    /// Whether it has a send queue.
    pub const fn has_sends(&self) -> bool {
        self.sends
    }

    /// The attribute that its requests carry.
    pub const fn request_attribute(&self) -> Option<&'static RequestAttributeKind> {
        self.attribute
    }

    pub(crate) fn transition_of(
        &self,
        from: QpState,
        to: QpState,
        service: Transition,
    ) -> Transition {
        (self.transition)(from, to, service)
    }
}

impl PartialEq for QpVariant {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self, other)
    }
}

impl Eq for QpVariant {}
