//! Types of queue pairs that extensions add.

use super::{QpState, Transition};
use crate::operation::RequestAttributeKind;
use crate::service::QpType;

/// A type of queue pairs that an extension adds, as a variant of a service of the core: a `static` of the extension's
/// crate.
///
/// A variant has no receive queue of its own. Its states are those of the service, but the attributes that a transition
/// requires may differ.
#[derive(Debug)]
pub struct QpVariant {
    name: &'static str,
    base: QpType,
    sends: bool,
    attribute: Option<&'static RequestAttributeKind>,
    transition: fn(QpState, QpState, Transition) -> Transition,
}

impl QpVariant {
    /// Describes the variant `name` of a service, without a send queue and with the service's transitions.
    pub const fn new(name: &'static str, base: QpType) -> Self {
        Self {
            name,
            base,
            sends: false,
            attribute: None,
            transition: |_, _, transition| transition,
        }
    }

    /// Gives the variant a send queue. Every request that is sent to the peer must then have this attribute.
    #[must_use]
    pub const fn sends(mut self, attribute: &'static RequestAttributeKind) -> Self {
        self.sends = true;
        self.attribute = Some(attribute);
        self
    }

    /// Sets a function that returns what a transition requires and permits, given what the service's transition does.
    #[must_use]
    pub const fn transition(
        mut self,
        transition: fn(QpState, QpState, Transition) -> Transition,
    ) -> Self {
        self.transition = transition;
        self
    }

    /// Returns the name of the variant.
    pub const fn name(&self) -> &'static str {
        self.name
    }

    /// Returns the service that this is a variant of.
    pub const fn base(&self) -> QpType {
        self.base
    }

    /// Whether the variant has a send queue.
    pub const fn has_sends(&self) -> bool {
        self.sends
    }

    /// Returns the attribute that every request sent to the peer must have; `None` without a send queue.
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
